//! One server: its part of the graph, and what its handlers do with it.

use crate::census::census;
use crate::fact::Fact;
use crate::insert::inserts;
use crate::model::Vertex;
use crate::placement::{Placement, Seat};
use crate::query::{is1, is2, is3, is4, is5, is6, is7};
use crate::shard::{Conflict, Shard};
use crate::store::{Part, Store};
use crate::vertices::vertices;
use anyhow::Context;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use wallaby::{Address, Code, Endpoint, Status};

/// A server of the graph. One value serves all services: see [`serve`](Self::serve).
#[derive(Debug)]
pub struct Server {
    pub(crate) seat: Seat,
    pub(crate) placement: Placement,
    pub(crate) endpoint: Endpoint,
    part: RwLock<Part>,
}

impl Server {
    /// Opens the part of a store that belongs to a seat and serves it, together with the other servers of `placement`.
    pub fn serve(
        endpoint: &Endpoint,
        store: &Store,
        seat: Seat,
        placement: Placement,
    ) -> anyhow::Result<Arc<Self>> {
        let server = Arc::new(Self {
            seat,
            placement,
            part: RwLock::new(store.open(seat)?),
            endpoint: endpoint.clone(),
        });
        for service in [
            vertices::service(Arc::clone(&server)),
            is1::profile::service(Arc::clone(&server)),
            is2::recent_messages::service(Arc::clone(&server)),
            is3::friends::service(Arc::clone(&server)),
            is4::content::service(Arc::clone(&server)),
            is5::creator::service(Arc::clone(&server)),
            is6::forum_of_message::service(Arc::clone(&server)),
            is7::replies::service(Arc::clone(&server)),
            inserts::service(Arc::clone(&server)),
            census::service(Arc::clone(&server)),
        ] {
            let served = endpoint.serve(service);
            served.context("this endpoint serves a graph already")?;
        }
        Ok(server)
    }

    /// Closes the store, for somebody else to open. What is asked still finds the graph in memory.
    pub fn close(&self) {
        self.part_mut().close();
    }

    /// Looks at the graph. Facts are learned before or after, never during it.
    pub fn read<R>(&self, look: impl FnOnce(&Shard) -> R) -> R {
        look(self.part().shard())
    }

    /// Learns a fact and keeps it. The status is `AlreadyExists` if it contradicts what is known.
    pub fn learn(&self, fact: Fact) -> Result<(), Status> {
        self.part_mut().learn(fact).map_err(|error| {
            let code = match error.is::<Conflict>() {
                true => Code::AlreadyExists,
                false => Code::Internal,
            };
            Status::new(code, format!("{error:#}"))
        })
    }

    /// The server of a vertex.
    pub fn at(&self, vertex: impl Into<Vertex>) -> &Address {
        self.placement.server(vertex)
    }

    /// The server of this number, from 0: one of those that there are.
    pub fn numbered(&self, number: u32) -> &Address {
        &self.placement.servers()[number as usize]
    }

    fn part(&self) -> RwLockReadGuard<'_, Part> {
        self.part.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn part_mut(&self) -> RwLockWriteGuard<'_, Part> {
        self.part.write().unwrap_or_else(PoisonError::into_inner)
    }
}
