//! IS6, the forum of a message, and who moderates it. Of a comment it is the forum of the post that began its thread.
//!
//! ```text
//!   client ──▶ message ──▶ message above … ──▶ post ──▶ forum ──▶ moderator ──▶ client
//! ```

use super::too_deep;
use crate::client::{Answers, Client};
use crate::model::{DEEPEST_THREAD, ForumId, MessageId, Name, PersonId, Place};
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use wallaby::{CallError, One, Request, Status};

/// A forum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    forum: ForumId,
    title: String,
    moderator: Name,
}

/// The query's hops.
#[wallaby::service(package = "graph")]
pub trait ForumOfMessage {
    /// At the message's server, and at that of each message above it.
    async fn message(id: MessageId) -> Option<Row>;
    /// At the server of the post's forum.
    async fn forum(id: ForumId) -> Option<Row>;
    /// At the moderator's server.
    async fn moderator(id: PersonId, forum: ForumId, title: String) -> Option<Row>;
}

#[wallaby::serve]
impl ForumOfMessage for Server {
    async fn message(
        &self,
        request: Request<One<Option<Row>>>,
        id: MessageId,
    ) -> Result<(), Status> {
        match self.read(|shard| shard.message(id).map(|message| message.place)) {
            None => Ok(request.respond(None).await?),
            Some(Place::Reply(to)) => {
                let rest = forum_of_message::message(to);
                Ok(request.forward(self.at(to), rest).await?)
            }
            Some(Place::Forum(forum)) => {
                let rest = forum_of_message::forum(forum);
                Ok(request.forward(self.at(forum), rest).await?)
            }
        }
    }

    async fn forum(&self, request: Request<One<Option<Row>>>, id: ForumId) -> Result<(), Status> {
        let Some(forum) = self.read(|shard| shard.forum(id).cloned()) else {
            return Ok(request.respond(None).await?);
        };
        let rest = forum_of_message::moderator(forum.moderator, id, forum.title);
        Ok(request.forward(self.at(forum.moderator), rest).await?)
    }

    async fn moderator(&self, id: PersonId, forum: ForumId, title: String) -> Option<Row> {
        let moderator = self.name(id)?;
        Some(Row {
            forum,
            title,
            moderator,
        })
    }
}

/// The query as one call.
///
/// # Errors
///
/// If it fails.
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = forum_of_message::within(client.at(message)).message(message);
    client.rows(call).await
}

/// The query as plain calls, one after the other.
///
/// # Errors
///
/// If one of them fails.
pub async fn by_rpc(client: &Client, message: MessageId) -> Result<Option<Row>, CallError> {
    let Some(id) = forum_above(client, message).await? else {
        return Ok(None);
    };
    let Some(forum) = vertices::within(client.at(id)).forum(id).await? else {
        return Ok(None);
    };
    let moderator = vertices::within(client.at(forum.moderator));
    let names = moderator.names(vec![forum.moderator]).await?;
    Ok(names.into_iter().next().map(|moderator| Row {
        forum: id,
        title: forum.title,
        moderator,
    }))
}

async fn forum_above(client: &Client, below: MessageId) -> Result<Option<ForumId>, CallError> {
    let mut id = below;
    for _ in 0..=DEEPEST_THREAD {
        let message = vertices::within(client.at(id)).message(id).await?;
        match message.map(|message| message.place) {
            None => return Ok(None),
            Some(Place::Forum(forum)) => return Ok(Some(forum)),
            Some(Place::Reply(to)) => id = to,
        }
    }
    Err(too_deep(below).into())
}

columns!(Row {
    "forumId": forum,
    "forumTitle": title,
    "moderatorId": moderator.id,
    "moderatorFirstName": moderator.first,
    "moderatorLastName": moderator.last,
});
