//! What a server holds and has sent: for people and for measurements, not for queries.

use crate::client::Client;
use crate::model::{MessageId, PersonId};
use crate::server::Server;
use crate::shard::Counts;
use serde::{Deserialize, Serialize};
use wallaby::CallError;

/// What one server tells, or all together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How much there is.
    pub counts: Counts,
    /// Some persons, in order.
    pub persons: Vec<PersonId>,
    /// Some messages, in order.
    pub messages: Vec<MessageId>,
    /// How many messages were sent since the start.
    pub sent: u64,
}

/// Tells about a server.
#[wallaby::service(package = "graph")]
pub trait Census {
    /// All that there is to tell, and about so many persons and messages.
    async fn report(some: u32) -> Report;
}

#[wallaby::serve]
impl Census for Server {
    async fn report(&self, some: u32) -> Report {
        let some = some as usize;
        self.read(|shard| Report {
            counts: shard.counts(),
            persons: shard.persons().take(some).collect(),
            messages: shard.messages().take(some).collect(),
            sent: self.endpoint.metrics().messages_sent,
        })
    }
}

/// What all servers tell, with about so many persons and messages.
pub async fn report(client: &Client, some: u32) -> Result<Report, CallError> {
    let each = some.div_ceil(client.placement().servers().len() as u32);
    let mut all = Report::default();
    for server in client.servers() {
        let one = census::within(server).report(each).await?;
        all.counts += one.counts;
        all.persons.extend(one.persons);
        all.messages.extend(one.messages);
        all.sent = all.sent.saturating_add(one.sent);
    }
    all.persons.sort();
    all.messages.sort();
    Ok(all)
}

/// Messages that were sent for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Sent or received by the client.
    pub client: u64,
    /// Sent by anybody.
    pub all: u64,
}

/// Counts messages while something is done, which should be the only thing that happens.
#[derive(Debug)]
pub struct Meter {
    /// What the client had sent, and received.
    client: (u64, u64),
    /// What all servers have sent when they have told it at the end.
    servers: u64,
}

impl Meter {
    /// Begins to count.
    pub async fn begin(client: &Client) -> Result<Self, CallError> {
        let idle = report(client, 0).await?.sent;
        let servers = report(client, 0).await?.sent;
        Ok(Self {
            client: traffic(client),
            servers: servers.saturating_add(servers.saturating_sub(idle)),
        })
    }

    /// What was sent since.
    pub async fn end(self, client: &Client) -> Result<Messages, CallError> {
        let (sent, received) = traffic(client);
        let sent = sent.saturating_sub(self.client.0);
        let received = received.saturating_sub(self.client.1);
        let servers = report(client, 0).await?.sent.saturating_sub(self.servers);
        Ok(Messages {
            client: sent.saturating_add(received),
            all: sent.saturating_add(servers),
        })
    }
}

fn traffic(client: &Client) -> (u64, u64) {
    let metrics = client.endpoint().metrics();
    (metrics.messages_sent, metrics.messages_received)
}
