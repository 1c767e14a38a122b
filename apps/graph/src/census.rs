//! What a server holds and has sent: for people and for measurements, not for queries.

use crate::client::Client;
use crate::model::{MessageId, PersonId};
use crate::server::Server;
use crate::shard::Counts;
use serde::{Deserialize, Serialize};
use wallaby::CallError;

/// Messages that an endpoint has sent and received since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
}

/// Some ids, to ask about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Persons.
    pub persons: Vec<PersonId>,
    /// Messages.
    pub messages: Vec<MessageId>,
}

/// Tells about a server.
#[wallaby::service(package = "graph")]
pub trait Census {
    /// How much it holds.
    async fn counts() -> Counts;
    /// Some of what it holds, not more than so many of a kind.
    async fn sample(most: u32) -> Sample;
    /// What it has sent and received.
    async fn traffic() -> Traffic;
}

#[wallaby::serve]
impl Census for Server {
    async fn counts(&self) -> Counts {
        self.read(|shard| shard.counts())
    }

    async fn sample(&self, most: u32) -> Sample {
        self.read(|shard| Sample {
            persons: shard.persons().take(most as usize).collect(),
            messages: shard.messages().take(most as usize).collect(),
        })
    }

    async fn traffic(&self) -> Traffic {
        Traffic::of(self.endpoint())
    }
}

/// How much all servers hold.
///
/// # Errors
///
/// If one of them does not answer.
pub async fn counts(client: &Client) -> Result<Counts, CallError> {
    let mut counts = Counts::default();
    for server in client.servers() {
        counts += census::within(server).counts().await?;
    }
    Ok(counts)
}

/// Ids of vertices of all servers, in order; about so many of each kind.
///
/// # Errors
///
/// If a server does not answer.
pub async fn sample(client: &Client, most: u32) -> Result<Sample, CallError> {
    let each = most.div_ceil(client.placement().servers().len() as u32);
    let mut sample = Sample::default();
    for server in client.servers() {
        let more = census::within(server).sample(each).await?;
        sample.persons.extend(more.persons);
        sample.messages.extend(more.messages);
    }
    sample.persons.sort();
    sample.messages.sort();
    Ok(sample)
}

/// How many messages the work of `client` made until now: those of the client itself, and all.
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
    client: Traffic,
    /// What all servers have sent.
    servers: u64,
    /// What they send to tell that.
    reading: u64,
}

impl Meter {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn begin(client: &Client) -> Result<Self, CallError> {
        let idle = sent_by_servers(client).await?;
        let servers = sent_by_servers(client).await?;
        Ok(Self {
            client: Traffic::of(client.endpoint()),
            servers,
            reading: servers.saturating_sub(idle),
        })
    }

    /// What was sent since.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn end(self, client: &Client) -> Result<Messages, CallError> {
        let own = Traffic::of(client.endpoint());
        let sent = own.sent.saturating_sub(self.client.sent);
        let received = own.received.saturating_sub(self.client.received);
        let servers = sent_by_servers(client).await?;
        let servers = servers.saturating_sub(self.servers.saturating_add(self.reading));
        Ok(Messages {
            client: sent.saturating_add(received),
            all: sent.saturating_add(servers),
        })
    }
}

async fn sent_by_servers(client: &Client) -> Result<u64, CallError> {
    let mut sum = 0_u64;
    for server in client.servers() {
        let traffic = census::within(server).traffic().await?;
        sum = sum.saturating_add(traffic.sent);
    }
    Ok(sum)
}

impl Traffic {
    fn of(endpoint: &wallaby::Endpoint) -> Self {
        let metrics = endpoint.metrics();
        Self {
            sent: metrics.messages_sent,
            received: metrics.messages_received,
        }
    }
}
