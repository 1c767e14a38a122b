//! IS7, the direct replies to a message: each with its author, and whether that one and the author of the message know
//! each other.
//!
//! ```text
//!   client ──▶ message ──┬─▶ some of the comments ──┬─▶ some of their authors ──▶ client
//!                        │                          └─▶ others, at another server ──▶ client
//!                        ├─▶ others, at another server ──▶ …
//!                        └─▶ author of the message: all friends ──▶ client
//! ```
//!
//! The friends are read once, for all rows: so a friendship that begins meanwhile shows in all rows or in none. Whatever one
//! server is asked by another it is asked in one request: see [`step`].

use super::step::{self, Found, by_calls};
use crate::client::{Answers, Client};
use crate::fact::Vertex;
use crate::model::{MessageId, Name, PersonId, Timestamp};
use crate::server::Server;
use crate::shard::Shard;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::HashSet;
use wallaby::{CallError, Many, Request, Status};

/// About how many bytes a reply has besides what it says.
const FIXED: usize = 100;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    reply: Reply,
    knows: bool,
}

/// What two of its hops tell of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    comment: MessageId,
    content: String,
    created: Timestamp,
    author: Name,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// A reply.
    Reply(Reply),
    /// Who knows the author of the message.
    Friends(Vec<PersonId>),
}

/// What a server is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The message: which replies?
    Message(MessageId),
    /// One of them.
    Comment(MessageId),
    /// Its author.
    Author(PersonId, Comment),
    /// The author of the message: which friends?
    Friends(PersonId),
}

/// What is known of a reply before its author is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    id: MessageId,
    content: String,
    created: Timestamp,
}

/// The query's hops. An answer has what one server completes.
#[wallaby::service(package = "graph")]
pub trait Replies {
    /// At the message's server.
    async fn message(id: MessageId) -> Many<Vec<Part>>;
    /// At each server with replies, their authors, or the author of the message.
    async fn onward(steps: Vec<Step>) -> Many<Vec<Part>>;
    /// The same as a plain call: what is left to ask comes back.
    async fn find(steps: Vec<Step>) -> Found<Step, Part>;
}

#[wallaby::serve]
impl Replies for Server {
    async fn message(
        &self,
        request: Request<Many<Vec<Part>>>,
        id: MessageId,
    ) -> Result<(), Status> {
        let first = vec![Step::Message(id)];
        self.take(request, first, replies::onward).await
    }

    async fn onward(
        &self,
        request: Request<Many<Vec<Part>>>,
        steps: Vec<Step>,
    ) -> Result<(), Status> {
        self.take(request, steps, replies::onward).await
    }

    async fn find(&self, steps: Vec<Step>) -> Result<Found<Step, Part>, Status> {
        Self::find(self, steps)
    }
}

impl step::Step for Step {
    type Row = Part;

    fn at(&self) -> Vertex {
        match self {
            Self::Message(id) | Self::Comment(id) => (*id).into(),
            Self::Author(id, _) | Self::Friends(id) => (*id).into(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Author(_, comment) => FIXED + comment.content.len(),
            Self::Message(_) | Self::Comment(_) | Self::Friends(_) => FIXED,
        }
    }

    fn take(self, shard: &Shard, rows: &mut Vec<Part>, next: &mut Vec<Self>) -> Result<(), Status> {
        match self {
            Self::Message(id) => {
                let author = shard.message(id).map(|message| message.creator);
                let Some(author) = author.filter(|_| shard.replies(id).next().is_some()) else {
                    return Ok(());
                };
                next.push(Self::Friends(author));
                next.extend(shard.replies(id).map(Self::Comment));
            }
            Self::Comment(id) => next.extend(shard.message(id).map(|comment| {
                let known = Comment {
                    id,
                    content: comment.content.clone(),
                    created: comment.created,
                };
                Self::Author(comment.creator, known)
            })),
            Self::Author(id, comment) => rows.extend(shard.name(id).map(|author| {
                Part::Reply(Reply {
                    comment: comment.id,
                    content: comment.content,
                    created: comment.created,
                    author: author.clone(),
                })
            })),
            Self::Friends(of) => {
                let friends = shard.friends(of).map(|(id, _)| id);
                rows.push(Part::Friends(friends.collect()));
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
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = replies::within(client.at(message)).message(message);
    let answers = client.collect(call).await?.concat();
    Ok(Answers {
        items: rows(answers.items),
        trace: answers.trace,
    })
}

/// The query as plain calls.
///
/// # Errors
///
/// If one of them fails.
pub async fn by_rpc(client: &Client, message: MessageId) -> Result<Vec<Row>, CallError> {
    let find = |server, steps| async move { replies::within(server).find(steps).await };
    Ok(rows(by_calls(client, Step::Message(message), find).await?))
}

/// The latest reply first, of equal age the one whose author has the least id, then the one with the least id.
fn rows(parts: Vec<Part>) -> Vec<Row> {
    let (mut replies, mut friends) = (Vec::new(), HashSet::new());
    for part in parts {
        match part {
            Part::Reply(reply) => replies.push(reply),
            Part::Friends(ids) => friends.extend(ids),
        }
    }
    replies.sort_by_key(|reply| (Reverse(reply.created), reply.author.id, reply.comment));
    let row = |reply: Reply| Row {
        knows: friends.contains(&reply.author.id),
        reply,
    };
    replies.into_iter().map(row).collect()
}

impl step::Row for Part {
    fn size(&self) -> usize {
        match self {
            Self::Reply(reply) => FIXED + reply.content.len(),
            Self::Friends(ids) => FIXED + 10 * ids.len(),
        }
    }
}

impl super::Row for Row {
    const COLUMNS: &'static [&'static str] = &[
        "commentId",
        "commentContent",
        "commentCreationDate",
        "replyAuthorId",
        "replyAuthorFirstName",
        "replyAuthorLastName",
        "replyAuthorKnowsOriginalMessageAuthor",
    ];

    fn values(self) -> Vec<Value> {
        vec![
            json!(self.reply.comment),
            self.reply.content.into(),
            json!(self.reply.created),
            json!(self.reply.author.id),
            self.reply.author.first.into(),
            self.reply.author.last.into(),
            self.knows.into(),
        ]
    }
}
