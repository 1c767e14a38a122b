//! What a server holds and has sent: for people and for measurements, not for queries.

use crate::client::Client;
use crate::model::{MessageId, PersonId};
use crate::server::Server;
use crate::shard::Counts;
use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};
use wallaby::{CallError, Endpoint};

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
            persons: shard.some_persons(most as usize),
            messages: shard.some_messages(most as usize),
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
    for server in 0..client.placement().servers().len() {
        counts += census::within(client.server(server)).counts().await?;
    }
    Ok(counts)
}

/// Ids of vertices of all servers, in order; about so many of each kind.
///
/// # Errors
///
/// If a server does not answer.
pub async fn sample(client: &Client, most: u32) -> Result<Sample, CallError> {
    let servers = client.placement().servers().len();
    let each = most.div_ceil(servers as u32);
    let mut sample = Sample::default();
    for server in 0..servers {
        let more = census::within(client.server(server)).sample(each).await?;
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
    servers: Traffic,
    /// What counting itself costs.
    reading: u64,
}

impl Meter {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn begin(client: &Client) -> Result<Self, CallError> {
        let idle = servers(client).await?;
        let servers = servers(client).await?;
        Ok(Self {
            client: Traffic::of(client.endpoint()),
            servers,
            reading: (servers - idle).sent,
        })
    }

    /// What was sent since.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn end(self, client: &Client) -> Result<Messages, CallError> {
        let own = Traffic::of(client.endpoint()) - self.client;
        let others = servers(client).await? - self.servers;
        Ok(Messages {
            client: own.sent.saturating_add(own.received),
            all: own
                .sent
                .saturating_add(others.sent.saturating_sub(self.reading)),
        })
    }
}

async fn servers(client: &Client) -> Result<Traffic, CallError> {
    let mut sum = Traffic::default();
    for server in 0..client.placement().servers().len() {
        sum = sum + census::within(client.server(server)).traffic().await?;
    }
    Ok(sum)
}

impl Traffic {
    fn of(endpoint: &Endpoint) -> Self {
        let metrics = endpoint.metrics();
        Self {
            sent: metrics.messages_sent,
            received: metrics.messages_received,
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent),
            received: self.received.saturating_add(other.received),
        }
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(other.sent),
            received: self.received.saturating_sub(other.received),
        }
    }
}
