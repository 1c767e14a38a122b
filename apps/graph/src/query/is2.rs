//! IS2, a person's ten latest messages: each with the post that began its thread, and who wrote that.
//!
//! ```text
//!   client ──▶ person ──┬─▶ some of the messages ──┬─▶ some of those above them … ──▶ authors of posts ──▶ client
//!                       │                          └─▶ client
//!                       └─▶ others, at another server ──▶ …
//! ```
//!
//! This tree is one call. The client asks the person's server, [`RecentMessages::person`]. A server goes up the threads
//! that it is asked about as far as it has them. Rows that are complete it sends to the client, by `reply`; what is left it
//! hands to the servers that have more of the threads, by `delegate`, one request to each. These go on in its place: it
//! does not wait for them, and what is known of a row until then travels with the request. The call is complete when
//! all branches have ended.
//!
//! A post of the person needs no hop to its author, whose name is known from the first hop.

use super::step::{self, ALL, Found, ONE_MESSAGE, by_calls};
use super::too_deep;
use crate::client::{Answers, Client};
use crate::model::{DEEPEST_THREAD, Message, MessageId, Name, PersonId, Place, Timestamp, Vertex};
use crate::server::Server;
use crate::shard::Shard;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;
use wallaby::{CallError, Many, Request, Status};

/// How many messages are asked for.
const MOST: usize = 10;

/// The query's hops. An answer has the rows that one server completes.
#[wallaby::service(package = "graph")]
pub trait RecentMessages {
    /// At the person's server.
    async fn person(id: PersonId) -> Many<Vec<Row>>;
    /// At each server with more of the threads.
    async fn upward(steps: Vec<Step>) -> Many<Vec<Row>>;
    /// The same as a plain call: what is left to ask comes back.
    async fn find(steps: Vec<Step>) -> Found<Step, Row>;
}

#[wallaby::serve]
impl RecentMessages for Server {
    async fn person(
        self: &Arc<Self>,
        request: Request<Many<Vec<Row>>>,
        id: PersonId,
    ) -> Result<(), Status> {
        self.upward(request, vec![Step::Person(id)]).await
    }

    async fn upward(
        &self,
        request: Request<Many<Vec<Row>>>,
        steps: Vec<Step>,
    ) -> Result<(), Status> {
        let found = self.follow(steps, ALL)?;
        for rows in found.rows {
            request.reply(rows).await?;
        }
        for (other, steps) in found.next {
            let rest = recent_messages::upward(steps);
            request.delegate(self.numbered(other), rest).await?;
        }
        Ok(())
    }

    async fn find(&self, steps: Vec<Step>) -> Result<Found<Step, Row>, Status> {
        self.follow(steps, ONE_MESSAGE)
    }
}

/// The query as one call.
pub async fn by_dpc(client: &Client, person: PersonId) -> Result<Answers<Row>, CallError> {
    let call = recent_messages::within(client.at(person)).person(person);
    let mut answers = client.rows(call).await?;
    sort(&mut answers.rows);
    Ok(answers)
}

/// The query as plain calls: what is left to ask comes back to the client, which asks on.
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

/// What is asked of a server, each at one vertex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The person: which messages?
    Person(PersonId),
    /// One of them: what does it say?
    Message(MessageId, Name),
    /// It, or a message above it: is that the post?
    Thread(MessageId, Draft),
    /// The author of the post: what name?
    Author(PersonId, MessageId, Draft),
}

/// A row on its way up the thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    message: MessageId,
    content: String,
    created: Timestamp,
    /// Who wrote it.
    writer: Name,
    /// How many messages of the thread are below.
    passed: u32,
}

/// A message and where its thread began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    message: MessageId,
    content: String,
    created: Timestamp,
    post: MessageId,
    author: Name,
}

columns!(Row {
    "messageId": message,
    "messageContent": content,
    "messageCreationDate": created,
    "originalPostId": post,
    "originalPostAuthorId": author.id,
    "originalPostAuthorFirstName": author.first,
    "originalPostAuthorLastName": author.last,
});

impl step::Step for Step {
    type Row = Row;

    fn at(&self) -> Vertex {
        match self {
            Self::Person(id) | Self::Author(id, ..) => (*id).into(),
            Self::Message(id, _) | Self::Thread(id, _) => (*id).into(),
        }
    }

    fn take(self, shard: &Shard, rows: &mut Vec<Row>, next: &mut Vec<Self>) -> Result<(), Status> {
        match self {
            Self::Person(id) => next.extend(shard.name(id).into_iter().flat_map(|writer| {
                let messages = shard.latest_messages(id).take(MOST);
                messages.map(|message| Self::Message(message, writer.clone()))
            })),
            Self::Message(id, writer) => next.extend(shard.message(id).map(|message| {
                let draft = Draft {
                    message: id,
                    content: message.content.clone(),
                    created: message.created,
                    writer,
                    passed: 0,
                };
                Self::Thread(id, draft)
            })),
            Self::Thread(id, draft) => {
                if let Some(at) = shard.message(id) {
                    draft.go_up(at, rows, next)?;
                }
            }
            Self::Author(id, post, draft) => {
                let author = shard.name(id).cloned();
                rows.extend(author.map(|author| draft.finish(post, author)));
            }
        }
        Ok(())
    }
}

impl Draft {
    /// From a message of the thread to the row, or to the next step.
    fn go_up(
        mut self,
        at: &Message,
        rows: &mut Vec<Row>,
        next: &mut Vec<Step>,
    ) -> Result<(), Status> {
        match at.place {
            Place::Reply(_) if self.passed == DEEPEST_THREAD => {
                return Err(too_deep(self.message));
            }
            Place::Reply(to) => {
                self.passed += 1;
                next.push(Step::Thread(to, self));
            }
            Place::Forum(_) if at.creator == self.writer.id => {
                let author = self.writer.clone();
                rows.push(self.finish(at.id, author));
            }
            Place::Forum(_) => next.push(Step::Author(at.creator, at.id, self)),
        }
        Ok(())
    }

    fn finish(self, post: MessageId, author: Name) -> Row {
        Row {
            message: self.message,
            content: self.content,
            created: self.created,
            post,
            author,
        }
    }
}
