//! libtirpc: a handle for each caller and server, as its clients have them.

use super::line::{argument, grow, share};
use super::{Caller, Load, Way};
use crate::fleet::{Fleet, ServerConfig, Transport};
use crate::harness::Latencies;
use crate::tirpc::{self, Handle, Library};
use anyhow::{Context, Result};
use std::net::SocketAddrV4;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wallaby_link::{Pacer, sleep_until};

/// For a message: the paper's largest over UDP does not fit into libtirpc's own choice there.
pub(super) const BUFFER: u32 = 32 * 1_024;

/// The client's side.
pub(super) struct Tirpc {
    fleet: Fleet,
    tirpc: Library,
    transport: Transport,
    servers: Vec<SocketAddrV4>,
    /// For each caller a handle for each server that it has called.
    callers: Vec<Vec<Handle>>,
    link: Option<Link>,
}

impl Tirpc {
    pub(super) fn connect(fleet: Fleet, config: &ServerConfig) -> Result<Self> {
        let servers = fleet.addresses().iter().map(|address| Ok(address.parse()?));
        Ok(Self {
            tirpc: tirpc::library(&config.folder)?,
            transport: config.transport,
            servers: servers.collect::<Result<_>>()?,
            callers: Vec::new(),
            link: config.bandwidth.map(Link::new),
            fleet,
        })
    }
}

impl Caller for Tirpc {
    // The limit is kept by that of each call.
    fn run(
        &mut self,
        load: &Load,
        operations: u64,
        _limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let servers = match load.way {
            Way::Single => 1,
            Way::Consecutive(degree) | Way::Parallel(degree) | Way::Serial(degree) => degree,
        };
        let servers = self.servers.get(..servers).context("too few servers")?;
        let (loaded, transport) = (self.tirpc, self.transport);
        let open = |server: &SocketAddrV4| loaded.open(transport, *server, BUFFER);
        grow(&mut self.callers, load.callers, || Ok(Vec::new()))?;
        for handles in &mut self.callers {
            handles.truncate(servers.len());
            for server in &servers[handles.len()..] {
                handles.push(open(server)?);
            }
        }
        let (argument, link) = (argument(load.bytes), &self.link);
        share(&mut self.callers, operations, latencies, |handles| {
            for handle in handles.iter_mut() {
                let left = link.as_ref().map(|link| link.departure(argument.len()));
                handle.take(&argument)?;
                left.into_iter().for_each(sleep_until);
            }
            Ok(())
        })
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}

/// The client's link. libtirpc writes to its sockets itself, so a call is made as fast as it goes, and is over no earlier
/// than the link would have taken its argument: the least it could take over such a link.
struct Link(Arc<Mutex<Pacer>>);

impl Link {
    fn new(bandwidth: NonZeroU64) -> Self {
        Self(Arc::new(Mutex::new(Pacer::new(bandwidth))))
    }

    fn departure(&self, bytes: usize) -> Instant {
        let mut pacer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pacer.departure(bytes, Instant::now())
    }
}
