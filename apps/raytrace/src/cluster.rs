//! All servers within this program: for tests, and for who wants to embed a renderer.

use crate::client::Client;
use crate::hosting::distribute;
use crate::server::Server;
use crate::triangle::Triangle;
use crate::world::World;
use anyhow::Context;
use indicatif::ProgressBar;
use std::time::Duration;
use wallaby::Endpoint;

/// Servers that end with [`end`](Self::end).
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Endpoint>,
    client: Client,
}

impl Cluster {
    /// Starts a server for each part of a scene and gives it to them. `listen` says where each listens, by its number
    /// from 1, and as number 0 the client.
    ///
    /// # Errors
    ///
    /// If one cannot listen, or does not take its part.
    pub async fn start(
        world: &World,
        parts: Vec<Vec<Triangle>>,
        listen: impl Fn(usize) -> String,
    ) -> anyhow::Result<Self> {
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for number in 1..=parts.len() {
            let endpoint = Server::endpoint(&listen(number), Duration::ZERO).await?;
            Server::serve(&endpoint)?;
            addresses.push(endpoint.address().context("it does not listen")?.clone());
            servers.push(endpoint);
        }
        let endpoint = Client::listening(&listen(0), Duration::ZERO).await?;
        let client = Client::new(endpoint, addresses)?;
        distribute(&client, world, parts, &ProgressBar::hidden()).await?;
        Ok(Self { servers, client })
    }

    /// A client of them.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Takes one server away at once, by its number from 0, as if its process had been killed.
    pub fn kill(&self, number: usize) {
        if let Some(server) = self.servers.get(number) {
            server.close();
        }
    }

    /// Ends all servers.
    pub fn end(self) {
        self.servers.iter().for_each(Endpoint::close);
    }
}
