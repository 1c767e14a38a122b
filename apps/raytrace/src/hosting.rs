//! How servers get their parts of a scene, and what they tell of themselves.

use crate::client::Client;
use crate::server::Server;
use crate::triangle::Triangle;
use crate::world::World;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use wallaby::{Address, CallError, Endpoint, Status};

/// Messages that an endpoint has sent and received since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
}

/// Hosts a part of a scene.
#[wallaby::service(package = "raytrace")]
pub trait Hosting {
    /// Announces a part of so many triangles, what is known of the whole scene, and who has the parts of it.
    async fn begin(number: u16, triangles: u32, world: World, servers: Vec<Address>);
    /// Some of the triangles.
    async fn add(triangles: Vec<Triangle>);
    /// These were all: prepares them.
    async fn ready();
    /// What is known of the whole scene.
    async fn world() -> World;
    /// What this server has sent and received.
    async fn traffic() -> Traffic;
}

#[wallaby::serve]
impl Hosting for Server {
    async fn begin(
        &self,
        number: u16,
        triangles: u32,
        world: World,
        servers: Vec<Address>,
    ) -> Result<(), Status> {
        Self::begin(self, number, triangles, world, servers)
    }

    async fn add(&self, triangles: Vec<Triangle>) -> Result<(), Status> {
        Self::add(self, &triangles)
    }

    /// Takes a while for many triangles: on a thread of its own.
    fn ready(&self) -> Result<(), Status> {
        Self::ready(self)
    }

    async fn world(&self) -> Result<World, Status> {
        Ok(self.loaded()?.world.clone())
    }

    async fn traffic(&self) -> Traffic {
        Traffic::of(self.endpoint_of())
    }
}

/// Gives each server its part.
///
/// # Errors
///
/// If one of them does not take it.
pub async fn distribute(
    client: &Client,
    world: &World,
    parts: Vec<Vec<Triangle>>,
    bar: &ProgressBar,
) -> Result<(), CallError> {
    /// About a megabyte.
    const TRIANGLES: usize = 8192;
    bar.inc_length(parts.iter().map(|part| part.len() as u64).sum());
    for (number, part) in (0u16..).zip(parts) {
        let host = hosting::within(client.server(number));
        let servers = client.servers().to_vec();
        host.begin(number, part.len() as u32, world.clone(), servers)
            .await?;
        for some in part.chunks(TRIANGLES) {
            host.add(some.to_vec()).await?;
            bar.inc(some.len() as u64);
        }
    }
    // All prepare theirs at the same time.
    let all = 0..client.servers().len() as u16;
    let ready: Vec<_> = all
        .map(|number| hosting::within(client.server(number)).ready())
        .collect();
    for ready in ready {
        ready.await?;
    }
    Ok(())
}

/// How many messages something took: those of the client itself, and all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    servers: u64,
    /// What asking the servers costs, among what they have sent.
    asking: u64,
}

impl Meter {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn begin(client: &Client) -> Result<Self, CallError> {
        let before = sent_by_servers(client).await?;
        let servers = sent_by_servers(client).await?;
        Ok(Self {
            client: Traffic::of(client.endpoint()),
            servers,
            asking: servers.saturating_sub(before),
        })
    }

    /// What was sent since.
    ///
    /// # Errors
    ///
    /// If a server does not answer.
    pub async fn end(self, client: &Client) -> Result<Messages, CallError> {
        let now = Traffic::of(client.endpoint());
        let sent = now.sent.saturating_sub(self.client.sent);
        let received = now.received.saturating_sub(self.client.received);
        let servers = sent_by_servers(client).await?.saturating_sub(self.servers);
        Ok(Messages {
            client: sent + received,
            all: sent + servers.saturating_sub(self.asking),
        })
    }
}

async fn sent_by_servers(client: &Client) -> Result<u64, CallError> {
    let mut sum = 0u64;
    for number in 0..client.servers().len() as u16 {
        let traffic = hosting::within(client.server(number)).traffic().await?;
        sum = sum.saturating_add(traffic.sent);
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
