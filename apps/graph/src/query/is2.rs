//! IS2, a person's ten latest messages: each with the post that began its thread, and who wrote that.
//!
//! ```text
//!   client ──▶ person ──┬─▶ message ──▶ message above … ──▶ post ──▶ its author ──▶ client
//!                       ├─▶ message, itself a post ──▶ client
//!                       └─▶ …
//! ```
//!
//! What is found of a row travels with the request; whoever completes it answers the client. A post of the person
//! needs no hop to its author, whose name is known from the first hop.

use super::DEEPEST_THREAD;
use crate::client::{Answers, Client};
use crate::model::{Message, MessageId, Name, PersonId, Place, Timestamp};
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cmp::Reverse;
use tokio::task::JoinSet;
use wallaby::{CallError, Many, Request, Status};

/// How many messages are asked for.
const MOST: usize = 10;

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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    message: MessageId,
    shown: String,
    created: Timestamp,
    /// Who wrote it.
    writer: Name,
}

/// The query's hops.
#[wallaby::service(package = "graph")]
pub trait RecentMessages {
    /// At the person's server.
    async fn person(id: PersonId) -> Many<Row>;
    /// At the server of each of the person's messages.
    async fn message(id: MessageId, writer: Name) -> Many<Row>;
    /// At the server of each message above it, up to the post.
    async fn above(id: MessageId, found: Found) -> Many<Row>;
    /// At the server of the post's author.
    async fn author(id: PersonId, post: MessageId, found: Found) -> Many<Row>;
}

#[wallaby::serve]
impl RecentMessages for Server {
    async fn person(&self, request: Request<Many<Row>>, id: PersonId) -> Result<(), Status> {
        let Some(writer) = self.name(id) else {
            return Ok(());
        };
        let messages: Vec<_> = self.read(|shard| shard.latest_messages(id).take(MOST).collect());
        for message in messages {
            let target = recent_messages::message(message, writer.clone());
            request.delegate(self.at(message), target).await?;
        }
        Ok(())
    }

    async fn message(
        &self,
        request: Request<Many<Row>>,
        id: MessageId,
        writer: Name,
    ) -> Result<(), Status> {
        let Some(message) = self.read(|shard| shard.message(id).cloned()) else {
            return Ok(());
        };
        let found = Found::new(&message, writer);
        self.go_up(request, &message, found).await
    }

    async fn above(
        &self,
        request: Request<Many<Row>>,
        id: MessageId,
        found: Found,
    ) -> Result<(), Status> {
        match self.read(|shard| shard.message(id).cloned()) {
            Some(message) => self.go_up(request, &message, found).await,
            None => Ok(()),
        }
    }

    async fn author(
        &self,
        request: Request<Many<Row>>,
        id: PersonId,
        post: MessageId,
        found: Found,
    ) -> Result<(), Status> {
        if let Some(author) = self.name(id) {
            request.respond(found.below(post, author)).await?;
        }
        Ok(())
    }
}

impl Server {
    /// From a message of the thread, which is here, to the next hop.
    async fn go_up(
        &self,
        request: Request<Many<Row>>,
        message: &Message,
        found: Found,
    ) -> Result<(), Status> {
        let author = message.creator;
        match message.place {
            Place::Reply(to) => {
                let target = recent_messages::above(to, found);
                request.forward(self.at(to), target).await?
            }
            Place::Forum { .. } if author == found.writer.id => {
                let author = found.writer.clone();
                request.respond(found.below(message.id, author)).await?
            }
            Place::Forum { .. } => {
                let target = recent_messages::author(author, message.id, found);
                request.forward(self.at(author), target).await?
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
    let mut rows = client.collect(call).await?;
    sort(&mut rows.items);
    Ok(rows)
}

/// The query as plain calls: the client follows all threads at the same time.
///
/// # Errors
///
/// If one of them fails.
pub async fn by_rpc(client: &Client, person: PersonId) -> Result<Vec<Row>, CallError> {
    let writer = vertices::within(client.at(person));
    let Some(writer) = writer.latest_messages(person, MOST as u32).await? else {
        return Ok(Vec::new());
    };
    let mut threads = JoinSet::new();
    for message in writer.messages {
        threads.spawn(thread(client.clone(), message, writer.name.clone()));
    }
    let mut rows = Vec::new();
    while let Some(row) = threads.join_next().await {
        // A task that panicked panics here: it is this program's own mistake.
        rows.extend(row.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?);
    }
    sort(&mut rows);
    Ok(rows)
}

/// One message, and up its thread.
async fn thread(client: Client, id: MessageId, writer: Name) -> Result<Option<Row>, CallError> {
    let Some(message) = vertices::within(client.at(id)).message(id).await? else {
        return Ok(None);
    };
    let found = Found::new(&message, writer);
    let mut above = message;
    for _ in 0..DEEPEST_THREAD {
        let author = above.creator;
        match above.place {
            Place::Forum { .. } if author == found.writer.id => {
                let author = found.writer.clone();
                return Ok(Some(found.below(above.id, author)));
            }
            Place::Forum { .. } => {
                let names = vertices::within(client.at(author))
                    .names(vec![author])
                    .await?;
                let author = names.into_iter().next();
                return Ok(author.map(|author| found.below(above.id, author)));
            }
            Place::Reply(to) => match vertices::within(client.at(to)).message(to).await? {
                Some(message) => above = message,
                None => return Ok(None),
            },
        }
    }
    Ok(None)
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
        }
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
