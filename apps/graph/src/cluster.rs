//! All servers within this program: for tests and for who wants to embed a graph.

use crate::placement::{Placement, Seat};
use crate::server::Server;
use crate::store::Store;
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use wallaby::Endpoint;

/// Servers that end with this value.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<(Endpoint, Arc<Server>)>,
    placement: Placement,
}

impl Cluster {
    /// Starts so many servers on a store. `listen` says where each listens, by its number from 1.
    ///
    /// # Errors
    ///
    /// If one cannot listen, or its part of the store cannot be opened.
    pub async fn start(
        store: &Store,
        servers: u32,
        listen: impl Fn(u32) -> String,
    ) -> anyhow::Result<Self> {
        let mut endpoints = Vec::new();
        for seat in Seat::all(servers) {
            endpoints.push(Endpoint::bind(&listen(seat.number())).await?);
        }
        let addresses = endpoints.iter().filter_map(|endpoint| endpoint.address());
        let placement = Placement::new(addresses.cloned().collect());
        let placement = placement.context("the servers have no addresses")?;
        let mut serving = Vec::new();
        for (endpoint, seat) in endpoints.into_iter().zip(Seat::all(servers)) {
            let server = Server::serve(&endpoint, store, seat, placement.clone())?;
            serving.push((endpoint, server));
        }
        Ok(Self {
            servers: serving,
            placement,
        })
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
