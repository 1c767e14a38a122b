//! IS2, a person's ten latest messages: each with the post that began its thread, and who wrote that.
//!
//! ```text
//!   client ──▶ person ──┬─▶ some of the messages ──┬─▶ some of those above them … ──▶ authors of posts ──▶ client
//!                       │                          └─▶ client
//!                       └─▶ others, at another server ──▶ …
//! ```
//!
//! What is found of a row travels with the request; whoever completes rows answers the client. A post of the person
//! needs no hop to its author, whose name is known from the first hop. Each server goes up all threads that it is asked
//! about as far as it knows them, and asks each other server once: see [`step`].

use super::step::{self, by_calls};
use super::too_deep;
use crate::client::{Answers, Client};
use crate::fact::Vertex;
use crate::model::{DEEPEST_THREAD, Message, MessageId, Name, PersonId, Place, Timestamp};
use crate::server::Server;
use crate::shard::Shard;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cmp::Reverse;
use wallaby::{CallError, Many, Request, Status};

/// How many messages are asked for.
const MOST: usize = 10;
/// About how many bytes a row has besides what the message says.
const FIXED: usize = 100;

/// A message and where its thread began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    message: MessageId,
    shown: String,
    created: Timestamp,
    post: MessageId,
    author: Name,
}

/// A row on its way up the thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    message: MessageId,
    shown: String,
    created: Timestamp,
    /// Who wrote it.
    writer: Name,
    /// How many messages of the thread are below.
    passed: u32,
}

/// What a server is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The person: which messages?
    Person(PersonId),
    /// One of them.
    Message(MessageId, Name),
    /// A message of its thread.
    Above(MessageId, Found),
    /// The author of the post.
    Author(PersonId, MessageId, Found),
}

/// The query's hops. An answer has the rows that one server completes.
#[wallaby::service(package = "graph")]
pub trait RecentMessages {
    /// At the person's server.
    async fn person(id: PersonId) -> Many<Vec<Row>>;
    /// At each server with more of the threads.
    async fn upward(steps: Vec<Step>) -> Many<Vec<Row>>;
    /// The same as a plain call: what is left to ask comes back.
    async fn find(steps: Vec<Step>) -> step::Found<Step, Row>;
}

#[wallaby::serve]
impl RecentMessages for Server {
    async fn person(&self, request: Request<Many<Vec<Row>>>, id: PersonId) -> Result<(), Status> {
        let first = vec![Step::Person(id)];
        self.take(request, first, recent_messages::upward).await
    }

    async fn upward(
        &self,
        request: Request<Many<Vec<Row>>>,
        steps: Vec<Step>,
    ) -> Result<(), Status> {
        self.take(request, steps, recent_messages::upward).await
    }

    async fn find(&self, steps: Vec<Step>) -> Result<step::Found<Step, Row>, Status> {
        Self::find(self, steps)
    }
}

impl step::Step for Step {
    type Row = Row;

    fn at(&self) -> Vertex {
        match self {
            Self::Person(id) | Self::Author(id, ..) => (*id).into(),
            Self::Message(id, _) | Self::Above(id, _) => (*id).into(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Person(_) | Self::Message(..) => FIXED,
            Self::Above(_, found) | Self::Author(_, _, found) => FIXED + found.shown.len(),
        }
    }

    fn take(self, shard: &Shard, rows: &mut Vec<Row>, next: &mut Vec<Self>) -> Result<(), Status> {
        match self {
            Self::Person(id) => next.extend(shard.name(id).into_iter().flat_map(|writer| {
                let messages = shard.latest_messages(id).take(MOST);
                messages.map(|message| Self::Message(message, writer.clone()))
            })),
            Self::Message(id, writer) => {
                if let Some(message) = shard.message(id) {
                    Found::new(message, writer).go_up(message, rows, next)?;
                }
            }
            Self::Above(id, found) => {
                if let Some(message) = shard.message(id) {
                    found.go_up(message, rows, next)?;
                }
            }
            Self::Author(id, post, found) => {
                rows.extend(
                    shard
                        .name(id)
                        .map(|author| found.below(post, author.clone())),
                );
            }
        }
        Ok(())
    }
}

/// The query as one call.
///
/// # Errors
///
/// If it fails.
pub async fn by_dpc(client: &Client, person: PersonId) -> Result<Answers<Row>, CallError> {
    let call = recent_messages::within(client.at(person)).person(person);
    let mut rows = client.collect(call).await?.concat();
    sort(&mut rows.items);
    Ok(rows)
}

/// The query as plain calls.
///
/// # Errors
///
/// If one of them fails.
pub async fn by_rpc(client: &Client, person: PersonId) -> Result<Vec<Row>, CallError> {
    let find = |server, steps| async move { recent_messages::within(server).find(steps).await };
    let mut rows = by_calls(client, Step::Person(person), find).await?;
    sort(&mut rows);
    Ok(rows)
}

/// Latest first, of equal age the one with the greatest id.
fn sort(rows: &mut [Row]) {
    rows.sort_by_key(|row| Reverse((row.created, row.message)));
}

impl Found {
    fn new(message: &Message, writer: Name) -> Self {
        Self {
            message: message.id,
            shown: message.shown().to_owned(),
            created: message.created,
            writer,
            passed: 0,
        }
    }

    /// From a message of the thread to the row, or to the next step.
    fn go_up(
        mut self,
        message: &Message,
        rows: &mut Vec<Row>,
        next: &mut Vec<Step>,
    ) -> Result<(), Status> {
        let author = message.creator;
        match message.place {
            Place::Reply(_) if self.passed == DEEPEST_THREAD => {
                return Err(too_deep(self.message));
            }
            Place::Reply(to) => {
                self.passed += 1;
                next.push(Step::Above(to, self));
            }
            Place::Forum { .. } if author == self.writer.id => {
                let author = self.writer.clone();
                rows.push(self.below(message.id, author));
            }
            Place::Forum { .. } => next.push(Step::Author(author, message.id, self)),
        }
        Ok(())
    }

    /// The row, when the post and its author are known.
    fn below(self, post: MessageId, author: Name) -> Row {
        Row {
            message: self.message,
            shown: self.shown,
            created: self.created,
            post,
            author,
        }
    }
}

impl step::Row for Row {
    fn size(&self) -> usize {
        FIXED + self.shown.len()
    }
}

impl super::Row for Row {
    const COLUMNS: &'static [&'static str] = &[
        "messageId",
        "messageContent",
        "messageCreationDate",
        "originalPostId",
        "originalPostAuthorId",
        "originalPostAuthorFirstName",
        "originalPostAuthorLastName",
    ];

    fn values(self) -> Vec<Value> {
        vec![
            json!(self.message),
            self.shown.into(),
            json!(self.created),
            json!(self.post),
            json!(self.author.id),
            self.author.first.into(),
            self.author.last.into(),
        ]
    }
}
