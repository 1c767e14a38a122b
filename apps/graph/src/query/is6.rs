//! IS6, the forum of a message, and who moderates it. Of a comment it is the forum of the post that began its thread.
//!
//! ```text
//!   client ──▶ message ──▶ message above … ──▶ post ──▶ forum ──▶ moderator ──▶ client
//! ```

use super::too_deep;
use crate::client::{Answers, Client};
use crate::model::{DEEPEST_THREAD, Forum, ForumId, MessageId, Name, Place};
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use wallaby::{CallError, One, Request, Status};

/// The query's hops.
#[wallaby::service(package = "graph")]
pub trait ForumOfMessage {
    /// At the message's server, and at that of each message above it.
    async fn message(id: MessageId) -> Option<Row>;
    /// At the server of the post's forum.
    async fn forum(id: ForumId) -> Option<Row>;
    /// At the moderator's server.
    async fn moderator(of: Forum) -> Option<Row>;
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
        let server = self.at(forum.moderator);
        let rest = forum_of_message::moderator(forum);
        Ok(request.forward(server, rest).await?)
    }

    async fn moderator(&self, of: Forum) -> Option<Row> {
        let moderator = self.read(|shard| shard.name(of.moderator).cloned())?;
        Some(Row {
            forum: of,
            moderator,
        })
    }
}

/// The query as one call.
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = forum_of_message::within(client.at(message)).message(message);
    client.rows(call).await
}

/// The query as plain calls, one after the other.
pub async fn by_rpc(client: &Client, message: MessageId) -> Result<Option<Row>, CallError> {
    let Some(id) = forum_above(client, message).await? else {
        return Ok(None);
    };
    let Some(forum) = vertices::within(client.at(id)).forum(id).await? else {
        return Ok(None);
    };
    let moderator = vertices::within(client.at(forum.moderator));
    let name = moderator.name(forum.moderator).await?;
    Ok(name.map(|moderator| Row { forum, moderator }))
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

/// A forum and its moderator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    forum: Forum,
    moderator: Name,
}

columns!(Row {
    "forumId": forum.id,
    "forumTitle": forum.title,
    "moderatorId": moderator.id,
    "moderatorFirstName": moderator.first,
    "moderatorLastName": moderator.last,
});
