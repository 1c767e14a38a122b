//! [`Server`]: programs, served over UDP, TCP and unix sockets.
//!
//! ```no_run
//! # use wallaby_onc::Programs;
//! # async fn example(programs: Programs) -> std::io::Result<()> {
//! use wallaby_onc::server::{ServerOptions, Server};
//!
//! let server = Server::new(programs, ServerOptions::default());
//! let tcp = server.listen_tcp("0.0.0.0:0".parse().unwrap()).await?;
//! let udp = server.listen_udp("0.0.0.0:0".parse().unwrap()).await?;
//! println!("TCP port {}, UDP port {}", tcp.port(), udp.port());
//! tokio::signal::ctrl_c().await?;
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod connection;
mod connections;
pub(crate) mod counters;
mod datagram;
mod job;
mod listener;
pub(crate) mod seen;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

pub use counters::ServerCounters;

use crate::peer::Peer;
use crate::service::Programs;
use connections::Connections;
use counters::Counting;

/// What a server may take up, and how long it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Connections at a time; 1,024. When one more comes, the one that has been idle for longest is ended; if all are busy,
    /// the new one is refused.
    pub max_connections: usize,
    /// Requests that are handled at a time, together; 1,024. More wait in their connections; over UDP they are dropped, and
    /// clients send them again.
    pub max_requests: usize,
    /// Requests that are handled at a time for one connection; 64. More wait in the connection.
    pub max_requests_per_connection: usize,
    /// Requests that are handled at a time for one UDP socket; 512. More are dropped.
    pub max_requests_over_udp: usize,
    /// Most bytes of a record; 4 MiB. A connection on which a longer one begins is ended. Each connection may hold as much of
    /// a record that is not complete.
    pub max_record: usize,
    /// How long a connection may take no byte of what waits to be written; 30 s. Then it is ended.
    pub write_timeout: Duration,
    /// Answers that are kept for calls over UDP that come again; 4,096, oldest first.
    pub max_kept_replies: usize,
    /// The memory of these answers in bytes; 16 MiB.
    pub max_kept_bytes: usize,
    /// How long they are kept; 2 minutes.
    pub keep_replies: Duration,
    /// How long [`Server::shutdown`] waits for what runs; 30 s.
    pub shutdown_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_requests: 1024,
            max_requests_per_connection: 64,
            max_requests_over_udp: 512,
            max_record: 4 << 20,
            write_timeout: Duration::from_secs(30),
            max_kept_replies: 4096,
            max_kept_bytes: 16 << 20,
            keep_replies: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// Serves programs on any number of sockets, until it is dropped or shut down.
///
/// Requests are handled concurrently, and their replies leave in the order in which they are ready. A handler that panics
/// is a failure of the server to its caller, and the others don't notice.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Mutex<Vec<Peer>>,
}

/// What listeners, connections and requests share.
#[derive(Debug)]
struct Shared {
    programs: Programs,
    options: ServerOptions,
    requests: Arc<Semaphore>,
    connections: Connections,
    counters: Counting,
    phase: watch::Sender<Phase>,
}

/// How far a server is with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// What runs is finished, nothing is begun.
    Draining,
    /// Everything ends at once.
    Stopped,
}

impl Server {
    /// A server that listens nowhere yet.
    #[must_use]
    pub fn new(programs: Programs, options: ServerOptions) -> Self {
        let most = options.max_requests.clamp(1, Semaphore::MAX_PERMITS);
        let shared = Shared {
            programs,
            requests: Arc::new(Semaphore::new(most)),
            connections: Connections::new(options.max_connections),
            options,
            counters: Counting::default(),
            phase: watch::channel(Phase::Serving).0,
        };
        Self {
            shared: Arc::new(shared),
            addresses: Mutex::default(),
        }
    }

    /// Listens on a TCP port; 0 is any that is free. The address that it got.
    ///
    /// # Errors
    /// The system does not give it.
    pub async fn listen_tcp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        self.listening().push(Peer::Tcp(address));
        listener::spawn(&self.shared, listener::Listener::Tcp(listener));
        Ok(address)
    }

    /// Receives on a UDP port; 0 is any that is free. The address that it got.
    ///
    /// # Errors
    /// The system does not give it.
    pub async fn listen_udp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let socket = datagram::Socket::bind(address)?;
        let address = socket.local_addr();
        self.listening().push(Peer::Udp(address));
        datagram::spawn(&self.shared, socket);
        Ok(address)
    }

    /// Listens on a unix socket. One that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// The system does not give it, or somebody listens there.
    pub async fn listen_unix(&self, path: &Path) -> io::Result<()> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match UnixStream::connect(path).await {
                    Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    _ => return Err(error),
                }
            }
            other => other?,
        };
        self.listening().push(Peer::Unix(Some(path.to_owned())));
        listener::spawn(
            &self.shared,
            listener::Listener::Unix(listener, path.to_owned()),
        );
        Ok(())
    }

    /// Where it listens, in the order in which it began to.
    #[must_use]
    pub fn addresses(&self) -> Vec<Peer> {
        self.listening().clone()
    }

    fn listening(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.shared.counters.now(self.shared.connections.len())
    }

    /// What is served.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.shared.programs
    }

    /// Takes no more requests, finishes those that run and sends their replies, then ends all connections. What is not
    /// finished within [`ServerOptions::shutdown_timeout`] is dropped.
    pub async fn shutdown(self) {
        let phase = &self.shared.phase;
        phase.send_replace(Phase::Draining);
        // Every task of the server has a receiver.
        if timeout(self.shared.options.shutdown_timeout, phase.closed())
            .await
            .is_err()
        {
            phase.send_replace(Phase::Stopped);
            phase.closed().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.phase.send_replace(Phase::Stopped);
        for address in self.listening().drain(..) {
            if let Peer::Unix(Some(path)) = address {
                // Who removed it before us is welcome.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Waits until a server is at least this far with its end.
async fn ends(phase: &mut watch::Receiver<Phase>, at_least: Phase) {
    let reached = |now: &Phase| match at_least {
        Phase::Stopped => *now == Phase::Stopped,
        Phase::Draining | Phase::Serving => *now != Phase::Serving,
    };
    // A server that is gone has ended, too.
    let _ = phase.wait_for(reached).await;
}
