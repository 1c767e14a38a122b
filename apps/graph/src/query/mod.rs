//! The seven interactive short reads of LDBC's Social Network Benchmark, a file each.
//!
//! Each file has the row, the hops as a service, what a server does at each hop, and two functions that give the same
//! rows: `by_dpc`, one call whose hops run at the servers, and `by_rpc`, plain calls that the client drives. Where an
//! answer names what is not there, such as an unknown person, there is no row. Queries that branch take [`step`]s, so that
//! each server is asked once for all its vertices.

/// What the values of a row are, in the order that LDBC specifies.
macro_rules! columns {
    ($row:ident { $($column:literal: $($field:ident).+,)+ }) => {
        impl super::Row for $row {
            const COLUMNS: &'static [&'static str] = &[$($column),+];

            fn values(self) -> Vec<serde_json::Value> {
                vec![$(serde_json::json!(self.$($field).+)),+]
            }
        }
    };
}

pub mod is1;
pub mod is2;
pub mod is3;
pub mod is4;
pub mod is5;
pub mod is6;
pub mod is7;
pub mod step;

use crate::client::{Answers, Client};
use crate::model::{DEEPEST_THREAD, MessageId, PersonId};
use serde_json::Value;
use std::fmt;
use wallaby::{CallError, Code, Status, Trace};

/// Why a thread was not followed to its post.
fn too_deep(message: MessageId) -> Status {
    let reason = format!(
        "message {message} has more than {DEEPEST_THREAD} above it: as deep is no thread, so it goes in a circle"
    );
    Status::new(Code::ResourceExhausted, reason)
}

/// A query with its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// Who a person is.
    Is1(PersonId),
    /// A person's latest messages, each with the post that began its thread.
    Is2(PersonId),
    /// A person's friends.
    Is3(PersonId),
    /// What a message says.
    Is4(MessageId),
    /// Who wrote a message.
    Is5(MessageId),
    /// The forum of a message.
    Is6(MessageId),
    /// The replies to a message.
    Is7(MessageId),
}

/// How a query is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// One multi-hop call.
    Dpc,
    /// Plain calls, driven by the client.
    Rpc,
}

/// What came of a query.
#[derive(Debug)]
pub struct Outcome {
    /// What the values of a row are, in order.
    pub columns: &'static [&'static str],
    /// The rows.
    pub rows: Vec<Vec<Value>>,
    /// The tree of hops of a traced multi-hop call.
    pub trace: Option<Trace>,
}

/// A row of a result.
pub trait Row {
    /// What its values are, in order.
    const COLUMNS: &'static [&'static str];

    /// Its values.
    fn values(self) -> Vec<Value>;
}

impl Form {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Dpc, Self::Rpc];
}

impl Query {
    /// The names of all.
    pub const NAMES: [&str; 7] = ["is1", "is2", "is3", "is4", "is5", "is6", "is7"];

    /// The query of this name, `is2`, about this person or message.
    pub fn new(name: &str, id: i64) -> Option<Self> {
        let (person, message) = (PersonId(id), MessageId(id));
        Some(match name.to_ascii_lowercase().as_str() {
            "is1" => Self::Is1(person),
            "is2" => Self::Is2(person),
            "is3" => Self::Is3(person),
            "is4" => Self::Is4(message),
            "is5" => Self::Is5(message),
            "is6" => Self::Is6(message),
            "is7" => Self::Is7(message),
            _ => return None,
        })
    }

    /// Asks.
    ///
    /// # Errors
    ///
    /// If a server fails or cannot be reached.
    pub async fn ask(self, form: Form, client: &Client) -> Result<Outcome, CallError> {
        match (self, form) {
            (Self::Is1(person), Form::Dpc) => is1::by_dpc(client, person).await.map(dpc),
            (Self::Is1(person), Form::Rpc) => is1::by_rpc(client, person).await.map(rpc),
            (Self::Is2(person), Form::Dpc) => is2::by_dpc(client, person).await.map(dpc),
            (Self::Is2(person), Form::Rpc) => is2::by_rpc(client, person).await.map(rpc),
            (Self::Is3(person), Form::Dpc) => is3::by_dpc(client, person).await.map(dpc),
            (Self::Is3(person), Form::Rpc) => is3::by_rpc(client, person).await.map(rpc),
            (Self::Is4(message), Form::Dpc) => is4::by_dpc(client, message).await.map(dpc),
            (Self::Is4(message), Form::Rpc) => is4::by_rpc(client, message).await.map(rpc),
            (Self::Is5(message), Form::Dpc) => is5::by_dpc(client, message).await.map(dpc),
            (Self::Is5(message), Form::Rpc) => is5::by_rpc(client, message).await.map(rpc),
            (Self::Is6(message), Form::Dpc) => is6::by_dpc(client, message).await.map(dpc),
            (Self::Is6(message), Form::Rpc) => is6::by_rpc(client, message).await.map(rpc),
            (Self::Is7(message), Form::Dpc) => is7::by_dpc(client, message).await.map(dpc),
            (Self::Is7(message), Form::Rpc) => is7::by_rpc(client, message).await.map(rpc),
        }
    }

    /// Its name, as in `is2`.
    pub fn name(self) -> &'static str {
        self.parts().0
    }

    /// What it is about, `person` or `message`, and which one.
    pub fn about(self) -> (&'static str, i64) {
        let (_, about, id) = self.parts();
        (about, id)
    }

    fn parts(self) -> (&'static str, &'static str, i64) {
        match self {
            Self::Is1(id) => ("is1", "person", id.0),
            Self::Is2(id) => ("is2", "person", id.0),
            Self::Is3(id) => ("is3", "person", id.0),
            Self::Is4(id) => ("is4", "message", id.0),
            Self::Is5(id) => ("is5", "message", id.0),
            Self::Is6(id) => ("is6", "message", id.0),
            Self::Is7(id) => ("is7", "message", id.0),
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, about, id) = self.parts();
        write!(f, "{name} --{about} {id}")
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dpc => "DPC",
            Self::Rpc => "RPC",
        })
    }
}

fn dpc<R: Row>(answers: Answers<R>) -> Outcome {
    Outcome {
        columns: R::COLUMNS,
        rows: answers.rows.into_iter().map(R::values).collect(),
        trace: answers.trace,
    }
}

fn rpc<R: Row>(rows: impl IntoIterator<Item = R>) -> Outcome {
    dpc(Answers {
        rows: rows.into_iter().collect(),
        trace: None,
    })
}
