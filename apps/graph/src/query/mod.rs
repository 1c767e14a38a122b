//! The seven interactive short reads of LDBC's Social Network Benchmark, a file each.
//!
//! Each file has the hops as a service, what a server does at each hop, and two functions that give the same rows:
//! `by_dpc`, one call whose hops run at the servers, and `by_rpc`, plain calls that the client drives. Where an answer names
//! what is not there, such as an unknown person, there is no row.
//!
//! A handler that owes one answer ends in `respond`, or in `forward`: a tail call, by which another server answers in its
//! place. One of a query that branches replies with what it has found, and delegates the rest ([`is2`], [`step`]).

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

use crate::client::Client;
use crate::model::{DEEPEST_THREAD, MessageId, PersonId};
use serde_json::Value;
use std::fmt;
use wallaby::{CallError, Code, Status, Trace};

macro_rules! queries {
    ($($(#[$doc:meta])+ $query:ident($id:ident), $module:ident, $about:literal;)+) => {
        /// A query with its parameter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Query {
            $($(#[$doc])+ $query($id),)+
        }

        impl Query {
            /// The names of all.
            pub const NAMES: [&str; 7] = [$(stringify!($module)),+];

            /// The query of this name, `is2`, about this person or message.
            pub fn new(name: &str, id: i64) -> Option<Self> {
                match name.to_ascii_lowercase() {
                    $(name if name == stringify!($module) => Some(Self::$query($id(id))),)+
                    _ => None,
                }
            }

            /// Asks.
            pub async fn ask(self, form: Form, client: &Client) -> Result<Outcome, CallError> {
                Ok(match (self, form) {
                    $(
                        (Self::$query(id), Form::Dpc) => {
                            let answers = $module::by_dpc(client, id).await?;
                            outcome(answers.rows, answers.trace)
                        }
                        (Self::$query(id), Form::Rpc) => {
                            outcome($module::by_rpc(client, id).await?, None)
                        }
                    )+
                })
            }

            /// Its name, what it is about, `person` or `message`, and which one.
            pub fn parts(self) -> (&'static str, &'static str, i64) {
                match self {
                    $(Self::$query(id) => (stringify!($module), $about, id.0),)+
                }
            }
        }
    };
}

queries! {
    /// Who a person is.
    Is1(PersonId), is1, "person";
    /// A person's latest messages, each with the post that began its thread.
    Is2(PersonId), is2, "person";
    /// A person's friends.
    Is3(PersonId), is3, "person";
    /// What a message says.
    Is4(MessageId), is4, "message";
    /// Who wrote a message.
    Is5(MessageId), is5, "message";
    /// The forum of a message.
    Is6(MessageId), is6, "message";
    /// The replies to a message.
    Is7(MessageId), is7, "message";
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

fn outcome<R: Row>(rows: impl IntoIterator<Item = R>, trace: Option<Trace>) -> Outcome {
    Outcome {
        columns: R::COLUMNS,
        rows: rows.into_iter().map(R::values).collect(),
        trace,
    }
}

/// Why a thread was not followed to its post.
fn too_deep(message: MessageId) -> Status {
    let reason = format!(
        "message {message} has more than {DEEPEST_THREAD} above it: as deep is no thread, so it goes in a circle"
    );
    Status::new(Code::ResourceExhausted, reason)
}
