//! IS4, what a message says: its text, or the name of its image, and when it was written.
//!
//! ```text
//!   client ──▶ message ──▶ client
//! ```

use crate::client::{Answers, Client};
use crate::model::{MessageId, Timestamp};
use crate::server::Server;
use serde::{Deserialize, Serialize};
use wallaby::CallError;

/// The query's hop.
#[wallaby::service(package = "graph")]
pub trait Content {
    /// At the message's server.
    async fn message(id: MessageId) -> Option<Row>;
}

#[wallaby::serve]
impl Content for Server {
    async fn message(&self, id: MessageId) -> Option<Row> {
        self.read(|shard| {
            let message = shard.message(id)?;
            Some(Row {
                created: message.created,
                content: message.content.clone(),
            })
        })
    }
}

/// The query as a call of one hop.
pub async fn by_dpc(client: &Client, message: MessageId) -> Result<Answers<Row>, CallError> {
    let call = content::within(client.at(message)).message(message);
    client.rows(call).await
}

/// The query as a plain call: with one hop it is the same.
pub async fn by_rpc(client: &Client, message: MessageId) -> Result<Option<Row>, CallError> {
    content::within(client.at(message)).message(message).await
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    created: Timestamp,
    content: String,
}

columns!(Row {
    "messageCreationDate": created,
    "messageContent": content,
});
