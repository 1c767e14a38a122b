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
//! The friends are read once, for all rows: so a friendship that begins meanwhile shows in all rows or in none.

use super::step::{self, ALL, Found, ONE_MESSAGE, by_calls};
use crate::client::{Answers, Client};
use crate::model::{MessageId, Name, PersonId, Timestamp, Vertex};
use crate::server::Server;
use crate::shard::Shard;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use wallaby::{CallError, Many, Request, Status};

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
        self: &Arc<Self>,
        request: Request<Many<Vec<Part>>>,
        id: MessageId,
    ) -> Result<(), Status> {
        self.onward(request, vec![Step::Message(id)]).await
    }

    async fn onward(
        &self,
        request: Request<Many<Vec<Part>>>,
        steps: Vec<Step>,
    ) -> Result<(), Status> {
        let found = self.follow(steps, ALL)?;
        for parts in found.rows {
            request.reply(parts).await?;
        }
        for (other, steps) in found.next {
            let rest = replies::onward(steps);
            request.delegate(self.numbered(other), rest).await?;
        }
        Ok(())
    }

    async fn find(&self, steps: Vec<Step>) -> Result<Found<Step, Part>, Status> {
        self.follow(steps, ONE_MESSAGE)
    }
}

/// The query as one call.
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = replies::within(client.at(message)).message(message);
    let answers = client.rows(call).await?;
    Ok(Answers {
        rows: rows(answers.rows),
        trace: answers.trace,
    })
}

/// The query as plain calls.
pub async fn by_rpc(client: &Client, message: MessageId) -> Result<Vec<Row>, CallError> {
    let find = |server, steps| async move { replies::within(server).find(steps).await };
    Ok(rows(by_calls(client, Step::Message(message), find).await?))
}

/// The latest reply first, of equal age the one whose author has the least id, then the one with the least id.
fn rows(parts: Vec<Part>) -> Vec<Row> {
    let (mut replies, mut friends) = (Vec::new(), HashSet::new());
    for part in parts {
        match part {
            Part::Reply(comment, author) => replies.push((comment, author)),
            Part::Friends(ids) => friends.extend(ids),
        }
    }
    replies.sort_by_key(|(comment, author)| (Reverse(comment.created), author.id, comment.id));
    let row = |(comment, author): (Comment, Name)| Row {
        knows: friends.contains(&author.id),
        comment,
        author,
    };
    replies.into_iter().map(row).collect()
}

/// What is asked of a server, each at one vertex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The message: which replies?
    Message(MessageId),
    /// One of them: what does it say?
    Comment(MessageId),
    /// Its author: what name?
    Author(PersonId, Comment),
    /// The author of the message: which friends?
    Friends(PersonId),
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// A reply and its author.
    Reply(Comment, Name),
    /// Who knows the author of the message.
    Friends(Vec<PersonId>),
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    id: MessageId,
    content: String,
    created: Timestamp,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    comment: Comment,
    author: Name,
    knows: bool,
}

columns!(Row {
    "commentId": comment.id,
    "commentContent": comment.content,
    "commentCreationDate": comment.created,
    "replyAuthorId": author.id,
    "replyAuthorFirstName": author.first,
    "replyAuthorLastName": author.last,
    "replyAuthorKnowsOriginalMessageAuthor": knows,
});

impl step::Step for Step {
    type Row = Part;

    fn at(&self) -> Vertex {
        match self {
            Self::Message(id) | Self::Comment(id) => (*id).into(),
            Self::Author(id, _) | Self::Friends(id) => (*id).into(),
        }
    }

    fn take(
        self,
        shard: &Shard,
        parts: &mut Vec<Part>,
        next: &mut Vec<Self>,
    ) -> Result<(), Status> {
        match self {
            Self::Message(id) => {
                let author = shard.message(id).map(|message| message.creator);
                next.extend(shard.replies(id).map(Self::Comment));
                if !next.is_empty() {
                    next.extend(author.map(Self::Friends));
                }
            }
            Self::Comment(id) => next.extend(shard.message(id).map(|message| {
                let comment = Comment {
                    id,
                    content: message.content.clone(),
                    created: message.created,
                };
                Self::Author(message.creator, comment)
            })),
            Self::Author(id, comment) => {
                let author = shard.name(id).cloned();
                parts.extend(author.map(|author| Part::Reply(comment, author)));
            }
            Self::Friends(of) => {
                let friends = shard.friends(of).map(|(id, _)| id);
                parts.push(Part::Friends(friends.collect()));
            }
        }
        Ok(())
    }
}
