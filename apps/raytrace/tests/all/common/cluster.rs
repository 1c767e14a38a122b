//! All servers within a test.

use std::time::Duration;
use wallaby::Endpoint;
use wallaby_raytrace::client::Client;
use wallaby_raytrace::hosting::distribute;
use wallaby_raytrace::server::Server;
use wallaby_raytrace::triangle::Triangle;
use wallaby_raytrace::world::World;

/// Servers that end with [`end`](Self::end).
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Endpoint>,
    client: Client,
}

impl Cluster {
    /// Starts a server for each part of a scene and gives it to them. `listen` says where each listens, by its number
    /// from 1, and as number 0 the client.
    pub async fn start(
        world: &World,
        parts: Vec<Vec<Triangle>>,
        listen: impl Fn(usize) -> String,
    ) -> Self {
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for number in 1..=parts.len() {
            let endpoint = Server::endpoint(&listen(number), Duration::ZERO)
                .await
                .unwrap();
            Server::serve(&endpoint).unwrap();
            addresses.push(endpoint.address().unwrap().clone());
            servers.push(endpoint);
        }
        let endpoint = Client::listening(&listen(0), Duration::ZERO).await.unwrap();
        let client = Client::new(endpoint, addresses).unwrap();
        distribute(&client, world, parts).await.unwrap();
        Self { servers, client }
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

    /// Messages that the client has sent and received, and that all have sent.
    pub fn messages(&self) -> (u64, u64) {
        let client = self.client.endpoint().metrics();
        let servers = self.servers.iter().map(|server| server.metrics());
        let sent: u64 = servers.map(|metrics| metrics.messages_sent).sum();
        let of_client = client.messages_sent + client.messages_received;
        (of_client, sent + client.messages_sent)
    }

    /// Ends all servers.
    pub fn end(self) {
        self.servers.iter().for_each(Endpoint::close);
    }
}
