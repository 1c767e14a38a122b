//! What carries out patterns of messages: Wallaby, bare loops on sockets, or whatever else is to be compared with them.

use crate::fleet::{Fleet, ServerConfig, Transport};
use crate::floor::{self, Floor, LARGEST_DATAGRAM, LARGEST_PAYLOAD, Loops};
use crate::harness::{Latencies, Traffic};
use crate::meter;
use crate::on_polling::{self, Waiting};
use crate::on_wallaby;
use crate::pattern::{Pattern, Routes, Shape};
use anyhow::Result;
use std::fmt;
use std::time::Duration;

/// A server's side and a client's side of the same thing.
pub trait Stack: fmt::Debug + Sync {
    /// Its name, by which a server's process finds it.
    fn name(&self) -> &'static str;

    /// The name in result rows of a pattern with such payloads; none: that can't be done.
    fn system(
        &self,
        transport: Transport,
        pattern: Pattern,
        payload: usize,
    ) -> Option<&'static str>;

    /// Whether it can delay what it sends over a transport like an emulated link.
    fn emulates_links(&self, _transport: Transport) -> bool {
        true
    }

    /// Whether its processes keep their processors busy while they wait: it is only measured where each has one.
    fn keeps_busy(&self) -> bool {
        false
    }

    /// Connects the servers, and a client with them. All its messages will have payloads of this size.
    ///
    /// # Errors
    /// The stack's.
    fn connect(
        &self,
        fleet: Fleet,
        config: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn Client>>;

    /// Called before any server is started, for what they all need in the folder of the run.
    ///
    /// # Errors
    /// The stack's.
    fn prepare(&self, _config: &ServerConfig) -> Result<()> {
        Ok(())
    }

    /// Runs a server until its client has gone.
    ///
    /// # Errors
    /// The stack's.
    fn serve(&self, config: &ServerConfig) -> Result<()>;
}

/// The client's side of a stack, connected to its servers.
pub trait Client {
    /// Opens whatever connections there can be.
    ///
    /// # Errors
    /// The stack's.
    fn warm_up(&mut self) -> Result<()>;

    /// Runs operations, one after the other or as many at a time as the pattern says; gives up after `limit`.
    ///
    /// # Errors
    /// The stack's, or no answer within the limit.
    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()>;

    /// All processes that serve it.
    fn processes(&self) -> Vec<u32>;

    /// What was sent so far, if somebody counts.
    ///
    /// # Errors
    /// The stack's.
    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(None)
    }
}

/// The stacks of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Bare loops on blocking sockets.
    FloorBlocking,
    /// Bare loops on nonblocking sockets behind an epoll.
    FloorEpoll,
    /// Bare loops on tokio's sockets, on its current-thread runtime.
    FloorTokio,
    /// Bare loops on shared memory that wait by a futex.
    FloorFutex,
    /// Bare loops on shared memory that look again and again.
    FloorSpinning,
    /// Wallaby.
    Wallaby,
    /// Wallaby's polling driver: over UDP it waits in its receive, over streams by an epoll.
    WallabyPolling,
    /// The same over UDP, but it waits by an epoll, as an endpoint with further sockets does.
    WallabyPollingEpoll,
    /// Wallaby's polling driver, turned again and again without a wait.
    WallabyPollingBusy,
    /// Wallaby on runtimes of two threads each.
    WallabyThreads,
    /// Wallaby, with its processor time split into parts by a [`meter`] that takes some itself.
    WallabySplit,
}

impl Own {
    /// All of them that latencies are compared of.
    pub const ALL: [&'static dyn Stack; 9] = [
        &Self::FloorBlocking,
        &Self::FloorEpoll,
        &Self::FloorTokio,
        &Self::FloorFutex,
        &Self::FloorSpinning,
        &Self::Wallaby,
        &Self::WallabyPolling,
        &Self::WallabyPollingEpoll,
        &Self::WallabyPollingBusy,
    ];

    /// Whether it carries messages by this at all.
    fn speaks(self, transport: Transport) -> bool {
        match self {
            Self::FloorBlocking | Self::FloorEpoll | Self::FloorTokio => {
                transport != Transport::Shm
            }
            Self::FloorFutex | Self::FloorSpinning => transport == Transport::Shm,
            // Over streams the other waits so, too.
            Self::WallabyPollingEpoll => transport == Transport::Udp,
            Self::Wallaby
            | Self::WallabyPolling
            | Self::WallabyPollingBusy
            | Self::WallabyThreads
            | Self::WallabySplit => true,
        }
    }
}

impl Stack for Own {
    fn name(&self) -> &'static str {
        match self {
            Self::FloorBlocking => "floor-blocking",
            Self::FloorEpoll => "floor-epoll",
            Self::FloorTokio => "floor-tokio",
            Self::FloorFutex => "floor-futex",
            Self::FloorSpinning => "floor-spinning",
            Self::Wallaby => "wallaby",
            Self::WallabyPolling => "wallaby-polling",
            Self::WallabyPollingEpoll => "wallaby-polling-epoll",
            Self::WallabyPollingBusy => "wallaby-polling-busy",
            Self::WallabyThreads => "wallaby-threads",
            Self::WallabySplit => "wallaby-split",
        }
    }

    fn system(
        &self,
        transport: Transport,
        pattern: Pattern,
        payload: usize,
    ) -> Option<&'static str> {
        let largest = match transport {
            _ if !self.speaks(transport) => return None,
            Transport::Udp => LARGEST_DATAGRAM,
            Transport::Tcp | Transport::Unix | Transport::Shm => LARGEST_PAYLOAD,
        };
        if payload > largest {
            return None;
        }
        let fan = matches!(pattern.shape(), Shape::Fan { .. });
        Some(match (self, pattern) {
            (Self::Wallaby, Pattern::Multihop(_)) => "wallaby-dpc",
            (Self::Wallaby, _) => "wallaby-rpc",
            (Self::WallabyThreads, Pattern::Multihop(_)) => "wallaby-threads-dpc",
            (Self::WallabyThreads, _) => "wallaby-threads-rpc",
            (Self::WallabySplit, Pattern::Multihop(_)) => "wallaby-split-dpc",
            (Self::WallabySplit, _) => "wallaby-split-rpc",
            (Self::WallabyPolling, Pattern::Multihop(_)) => "wallaby-polling-dpc",
            (Self::WallabyPolling, _) => "wallaby-polling-rpc",
            (Self::WallabyPollingEpoll, Pattern::Multihop(_)) => "wallaby-polling-epoll-dpc",
            (Self::WallabyPollingEpoll, _) => "wallaby-polling-epoll-rpc",
            (Self::WallabyPollingBusy, Pattern::Multihop(_)) => "wallaby-polling-busy-dpc",
            (Self::WallabyPollingBusy, _) => "wallaby-polling-busy-rpc",
            // One loop sends one message at a time; over UDP nobody would repeat what gets lost.
            (
                Self::FloorBlocking | Self::FloorEpoll | Self::FloorFutex | Self::FloorSpinning,
                Pattern::Concurrent { .. },
            ) => return None,
            (Self::FloorTokio, Pattern::Concurrent { .. }) if transport == Transport::Udp => {
                return None;
            }
            (Self::FloorTokio, Pattern::Concurrent { .. }) => "floor-concurrent-tokio",
            (Self::FloorTokio, Pattern::Multihop(_)) => "floor-forward-tokio",
            (Self::FloorTokio, Pattern::Calls(_)) if fan => "floor-parallel-tokio",
            (Self::FloorTokio, Pattern::Calls(_)) => "floor-sequential-tokio",
            (Self::FloorEpoll, Pattern::Multihop(_)) => "floor-forward-epoll",
            (Self::FloorEpoll, Pattern::Calls(_)) if fan => "floor-parallel-epoll",
            (Self::FloorEpoll, Pattern::Calls(_)) => "floor-sequential-epoll",
            (Self::FloorFutex, Pattern::Multihop(_)) => "floor-forward-futex",
            (Self::FloorFutex, Pattern::Calls(_)) if fan => "floor-parallel-futex",
            (Self::FloorFutex, Pattern::Calls(_)) => "floor-sequential-futex",
            (Self::FloorSpinning, Pattern::Multihop(_)) => "floor-forward-spinning",
            (Self::FloorSpinning, Pattern::Calls(_)) if fan => "floor-parallel-spinning",
            (Self::FloorSpinning, Pattern::Calls(_)) => "floor-sequential-spinning",
            (Self::FloorBlocking, Pattern::Multihop(_)) => "floor-forward",
            (Self::FloorBlocking, Pattern::Calls(_)) if fan => "floor-parallel",
            (Self::FloorBlocking, Pattern::Calls(_)) => "floor-sequential",
        })
    }

    fn emulates_links(&self, transport: Transport) -> bool {
        match self {
            Self::WallabyPolling => transport == Transport::Udp,
            Self::WallabyPollingEpoll | Self::WallabyPollingBusy => false,
            _ => true,
        }
    }

    fn keeps_busy(&self) -> bool {
        matches!(self, Self::FloorSpinning | Self::WallabyPollingBusy)
    }

    fn connect(
        &self,
        fleet: Fleet,
        config: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn Client>> {
        let floor = |fleet, loops| Floor::connect(loops, fleet, config, payload);
        Ok(match self {
            Self::FloorBlocking => Box::new(floor(fleet, Loops::Blocking)?),
            Self::FloorEpoll => Box::new(floor(fleet, Loops::Epoll)?),
            Self::FloorTokio => Box::new(floor(fleet, Loops::Tokio)?),
            Self::FloorFutex => Box::new(floor(fleet, Loops::Memory(floor::Waiting::Sleeping))?),
            Self::FloorSpinning => Box::new(floor(fleet, Loops::Memory(floor::Waiting::Spinning))?),
            Self::Wallaby | Self::WallabyThreads | Self::WallabySplit => {
                Box::new(on_wallaby::Caller::connect(fleet, config, payload)?)
            }
            Self::WallabyPolling => on_polling::connect(fleet, config, payload, Waiting::Own)?,
            Self::WallabyPollingEpoll => {
                on_polling::connect(fleet, config, payload, Waiting::Epoll)?
            }
            Self::WallabyPollingBusy => on_polling::connect(fleet, config, payload, Waiting::Busy)?,
        })
    }

    fn serve(&self, config: &ServerConfig) -> Result<()> {
        match self {
            Self::FloorBlocking => floor::serve(Loops::Blocking, config),
            Self::FloorEpoll => floor::serve(Loops::Epoll, config),
            Self::FloorTokio => floor::serve(Loops::Tokio, config),
            Self::FloorFutex => floor::serve(Loops::Memory(floor::Waiting::Sleeping), config),
            Self::FloorSpinning => floor::serve(Loops::Memory(floor::Waiting::Spinning), config),
            Self::Wallaby | Self::WallabyThreads => on_wallaby::serve(config),
            Self::WallabySplit => {
                let _measuring = meter::begin();
                on_wallaby::serve(config)
            }
            Self::WallabyPolling => on_polling::serve(config, Waiting::Own),
            Self::WallabyPollingEpoll => on_polling::serve(config, Waiting::Epoll),
            Self::WallabyPollingBusy => on_polling::serve(config, Waiting::Busy),
        }
    }
}
