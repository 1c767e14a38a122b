//! IS5, who wrote a message.
//!
//! ```text
//!   client ──▶ message ──▶ person ──▶ client
//! ```

use crate::client::{Answers, Client};
use crate::model::{MessageId, Name, PersonId};
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use wallaby::{CallError, One, Request, Status};

/// The query's hops.
#[wallaby::service(package = "graph")]
pub trait Creator {
    /// At the message's server.
    async fn message(id: MessageId) -> Option<Row>;
    /// At the server of who wrote it.
    async fn person(id: PersonId) -> Option<Row>;
}

#[wallaby::serve]
impl Creator for Server {
    async fn message(
        &self,
        request: Request<One<Option<Row>>>,
        id: MessageId,
    ) -> Result<(), Status> {
        let creator = self.read(|shard| shard.message(id).map(|message| message.creator));
        let Some(person) = creator else {
            return Ok(request.respond(None).await?);
        };
        let rest = creator::person(person);
        Ok(request.forward(self.at(person), rest).await?)
    }

    async fn person(&self, id: PersonId) -> Option<Row> {
        let creator = self.read(|shard| shard.name(id).cloned())?;
        Some(Row { creator })
    }
}

/// The query as one call.
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = creator::within(client.at(message)).message(message);
    client.rows(call).await
}

/// The query as plain calls.
pub async fn by_rpc(client: &Client, id: MessageId) -> Result<Option<Row>, CallError> {
    let Some(message) = vertices::within(client.at(id)).message(id).await? else {
        return Ok(None);
    };
    let person = message.creator;
    let name = vertices::within(client.at(person)).name(person).await?;
    Ok(name.map(|creator| Row { creator }))
}

/// Who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    creator: Name,
}

columns!(Row {
    "personId": creator.id,
    "firstName": creator.first,
    "lastName": creator.last,
});
