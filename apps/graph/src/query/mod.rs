//! The seven interactive short reads of LDBC's Social Network Benchmark, a file each.
//!
//! Each file has the row, the hops as a service, what a server does at each hop, and two functions that give the same
//! rows: `by_dpc`, one call whose hops run at the servers, and `by_rpc`, plain calls that the client drives. Where an
//! answer names what is not there, such as an unknown person, there is no row. Queries that branch take [`step`]s, so that
//! each server is asked once for all its vertices.

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
    /// The rows, their values in the order that LDBC specifies.
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

impl Query {
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

    /// What the values of its rows are.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Is1(_) => is1::Row::COLUMNS,
            Self::Is2(_) => is2::Row::COLUMNS,
            Self::Is3(_) => is3::Row::COLUMNS,
            Self::Is4(_) => is4::Row::COLUMNS,
            Self::Is5(_) => is5::Row::COLUMNS,
            Self::Is6(_) => is6::Row::COLUMNS,
            Self::Is7(_) => is7::Row::COLUMNS,
        }
    }

    /// Its name, as in `is2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Is1(_) => "is1",
            Self::Is2(_) => "is2",
            Self::Is3(_) => "is3",
            Self::Is4(_) => "is4",
            Self::Is5(_) => "is5",
            Self::Is6(_) => "is6",
            Self::Is7(_) => "is7",
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is1(id) | Self::Is2(id) | Self::Is3(id) => {
                write!(f, "{} --person {id}", self.name())
            }
            Self::Is4(id) | Self::Is5(id) | Self::Is6(id) | Self::Is7(id) => {
                write!(f, "{} --message {id}", self.name())
            }
        }
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
        trace: answers.trace,
        ..rpc(answers.items)
    }
}

fn rpc<R: Row>(rows: impl IntoIterator<Item = R>) -> Outcome {
    Outcome {
        rows: rows.into_iter().map(R::values).collect(),
        trace: None,
    }
}
