//! All servers within this program.

use std::sync::Arc;
use std::time::Duration;
use wallaby::Endpoint;
use wallaby_graph::placement::{Placement, Seat};
use wallaby_graph::server::Server;
use wallaby_graph::store::Store;

/// Servers that end with this value.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<(Endpoint, Arc<Server>)>,
    placement: Placement,
}

impl Cluster {
    /// Starts so many servers on a store. `listen` says where each listens, by its number from 1.
    pub async fn start(store: &Store, servers: u32, listen: impl Fn(u32) -> String) -> Self {
        let mut endpoints = Vec::new();
        for seat in Seat::all(servers) {
            endpoints.push(Endpoint::bind(&listen(seat.number())).await.unwrap());
        }
        let addresses = endpoints.iter().filter_map(|endpoint| endpoint.address());
        let placement = Placement::new(addresses.cloned().collect()).unwrap();
        let serve = |(endpoint, seat): (Endpoint, Seat)| {
            let server = Server::serve(&endpoint, store, seat, placement.clone());
            (endpoint, server.unwrap())
        };
        let servers = endpoints.into_iter().zip(Seat::all(servers)).map(serve);
        Self {
            servers: servers.collect(),
            placement,
        }
    }

    /// Where they are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Ends all servers when what they are doing is done, and closes the store.
    pub async fn end(self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        for (endpoint, server) in self.servers {
            // Who still waits for an answer after that learns that the server is gone.
            let _ = endpoint.drain(PATIENCE).await;
            server.close();
        }
    }
}
