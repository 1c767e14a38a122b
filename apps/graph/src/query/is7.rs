//! IS7, the direct replies to a message: each with its author, and whether that one and the author of the message know
//! each other.
//!
//! ```text
//!   client ──▶ message ──┬─▶ comment ──▶ its author ──▶ client
//!                        ├─▶ …
//!                        └─▶ author of the message: all friends ──▶ client
//! ```
//!
//! The friends are read once, for all rows: so a friendship that begins meanwhile shows in all rows or in none.

use crate::client::{Answers, Client};
use crate::model::{Message, MessageId, Name, PersonId, Timestamp};
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::HashSet;
use tokio::task::JoinSet;
use wallaby::{CallError, Many, Request, Status};

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

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// A reply.
    Reply(Reply),
    /// Who knows the author of the message.
    Friends(Vec<PersonId>),
}

/// The query's hops.
#[wallaby::service(package = "graph")]
pub trait Replies {
    /// At the message's server.
    async fn message(id: MessageId) -> Many<Part>;
    /// At the server of each reply.
    async fn comment(id: MessageId) -> Many<Part>;
    /// At the server of a reply's author.
    async fn author(
        id: PersonId,
        comment: MessageId,
        content: String,
        created: Timestamp,
    ) -> Many<Part>;
    /// At the server of the message's author.
    async fn friends(of: PersonId) -> Many<Part>;
}

#[wallaby::serve]
impl Replies for Server {
    async fn message(&self, request: Request<Many<Part>>, id: MessageId) -> Result<(), Status> {
        let (author, comments) = self.read(|shard| {
            let author = shard.message(id).map(|message| message.creator);
            (author, shard.replies(id).collect::<Vec<_>>())
        });
        let (Some(author), false) = (author, comments.is_empty()) else {
            return Ok(());
        };
        for comment in comments {
            let target = replies::comment(comment);
            request.delegate(self.at(comment), target).await?;
        }
        let target = replies::friends(author);
        Ok(request.forward(self.at(author), target).await?)
    }

    async fn comment(&self, request: Request<Many<Part>>, id: MessageId) -> Result<(), Status> {
        if let Some(comment) = self.read(|shard| shard.message(id).cloned()) {
            let author = comment.creator;
            let target = replies::author(author, id, comment.content, comment.created);
            request.forward(self.at(author), target).await?;
        }
        Ok(())
    }

    async fn author(
        &self,
        request: Request<Many<Part>>,
        id: PersonId,
        comment: MessageId,
        content: String,
        created: Timestamp,
    ) -> Result<(), Status> {
        if let Some(author) = self.name(id) {
            let reply = Reply {
                comment,
                content,
                created,
                author,
            };
            request.respond(Part::Reply(reply)).await?;
        }
        Ok(())
    }

    async fn friends(&self, of: PersonId) -> Part {
        Part::Friends(self.read(|shard| shard.friends(of).map(|(id, _)| id).collect()))
    }
}

/// The query as one call.
///
/// # Errors
///
/// If it fails.
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = replies::within(client.at(message)).message(message);
    let answers = client.collect(call).await?;
    let (mut replies, mut friends) = (Vec::new(), HashSet::new());
    for part in answers.items {
        match part {
            Part::Reply(reply) => replies.push(reply),
            Part::Friends(ids) => friends.extend(ids),
        }
    }
    Ok(Answers {
        items: rows(replies, &friends),
        trace: answers.trace,
    })
}

/// The query as plain calls: the client follows all replies at the same time.
///
/// # Errors
///
/// If one of them fails.
pub async fn by_rpc(client: &Client, message: MessageId) -> Result<Vec<Row>, CallError> {
    let thread = vertices::within(client.at(message))
        .replies(message)
        .await?;
    let Some(thread) = thread.filter(|thread| !thread.replies.is_empty()) else {
        return Ok(Vec::new());
    };
    let author = thread.creator;
    let friends = vertices::within(client.at(author)).friends(author);
    let mut comments = JoinSet::new();
    for comment in thread.replies {
        comments.spawn(reply(client.clone(), comment));
    }
    let mut replies = Vec::new();
    while let Some(reply) = comments.join_next().await {
        // A task that panicked panics here: it is this program's own mistake.
        replies
            .extend(reply.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?);
    }
    let friends = friends.await?.into_iter().map(|(id, _)| id).collect();
    Ok(rows(replies, &friends))
}

/// A reply and its author.
async fn reply(client: Client, id: MessageId) -> Result<Option<Reply>, CallError> {
    let comment = vertices::within(client.at(id)).message(id).await?;
    let Some(Message {
        creator,
        content,
        created,
        ..
    }) = comment
    else {
        return Ok(None);
    };
    let names = vertices::within(client.at(creator))
        .names(vec![creator])
        .await?;
    Ok(names.into_iter().next().map(|author| Reply {
        comment: id,
        content,
        created,
        author,
    }))
}

/// The latest reply first, of equal age the one whose author has the least id, then the one with the least id.
fn rows(mut replies: Vec<Reply>, friends: &HashSet<PersonId>) -> Vec<Row> {
    replies.sort_by_key(|reply| (Reverse(reply.created), reply.author.id, reply.comment));
    let row = |reply: Reply| Row {
        knows: friends.contains(&reply.author.id),
        reply,
    };
    replies.into_iter().map(row).collect()
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
