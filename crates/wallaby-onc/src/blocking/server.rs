//! [`Server`]: programs, served by threads that wait in the sockets.

mod connection;
mod datagram;
mod relief;
mod turns;
mod watcher;

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;

use super::wait_after;
use super::workers::{WorkerCounters, Workers};
use crate::message::{AcceptError, Call, Reply};
use crate::peer::{Origin, Peer};
use crate::server::counters::{Counters, Counting, count};
use crate::service::{self, Programs};
use connection::Connection;
use datagram::Port;
use relief::Relief;
use watcher::{Listener, Watcher};

/// What a server may take up, and how long it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Threads at a time that serve connections; 256. There is one more for each UDP socket. While all have something to do,
    /// connections take turns.
    pub max_workers: usize,
    /// How long a thread without work is kept; 10 s.
    pub keep_workers: Duration,
    /// How long a thread waits for the next call of a connection before it leaves it to the one that watches all; 100 ms. Over
    /// UDP, how long after a call that took long another thread receives as soon as one executes a call.
    pub linger: Duration,
    /// Connections at a time; 1,024. When one more comes, the one that has been idle for longest is ended; if a thread is at
    /// each of them, the new one is refused.
    pub max_connections: usize,
    /// Most bytes of a record; 4 MiB. A connection on which a longer one begins is ended.
    pub max_record: usize,
    /// How long a connection may take no byte of a reply; 30 s. Then it is ended.
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
            max_workers: 256,
            keep_workers: Duration::from_secs(10),
            linger: Duration::from_millis(100),
            max_connections: 1024,
            max_record: 4 << 20,
            write_timeout: Duration::from_secs(30),
            max_kept_replies: 4096,
            max_kept_bytes: 16 << 20,
            keep_replies: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// What happened at a server so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounters {
    /// Calls, duplicates and connections.
    pub traffic: Counters,
    /// The threads.
    pub workers: WorkerCounters,
    /// Calls that are executed now.
    pub executing: u64,
}

/// Serves programs on any number of sockets, until it is dropped or shut down.
///
/// Calls over one connection are executed one after the other, as a client of rpcgen makes them; those of other connections,
/// and those over UDP, at the same time. Handlers may block. One that panics is a failure of the server to its caller, and
/// the others don't notice. If the server is made within a tokio runtime, handlers run within it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    addresses: Mutex<Vec<Peer>>,
}

/// What listeners, connections and calls share.
#[derive(Debug)]
struct Shared {
    programs: Programs,
    options: ServerOptions,
    workers: Arc<Workers>,
    watcher: Watcher,
    relief: Relief,
    /// Threads can run at the same time.
    is_parallel: bool,
    counters: Counting,
    executing: AtomicU64,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    ports: Mutex<Vec<Arc<Port>>>,
    runtime: Option<Handle>,
    is_over: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn ports(&self) -> MutexGuard<'_, Vec<Arc<Port>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply to a call, if there is one: also if the handler panics. It is told before the handler waits for something.
    fn reply(&self, call: Call, origin: Origin, waits: impl FnOnce()) -> Option<Reply> {
        count(&self.counters.calls);
        self.executing.fetch_add(1, Ordering::Relaxed);
        let answer = || {
            let begun = self.programs.begin(call, Some(origin));
            service::reply(begun.and_then(|handling| wait_after(handling, waits)))
        };
        // After a panic, what the handler borrows is the application's to keep in order.
        let reply = catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            count(&self.counters.panics);
            Some(Reply::accepted(Err(AcceptError::SystemError)))
        });
        self.executing.fetch_sub(1, Ordering::Relaxed);
        reply
    }

    /// Takes no more calls; what runs is finished.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.watcher.wake();
        self.relief.wake();
        let connections: Vec<_> = self.connections().values().cloned().collect();
        for connection in connections {
            connection.stream.shut_down(Shutdown::Read);
        }
        for port in self.ports().drain(..) {
            port.end();
        }
        self.workers.close();
    }
}

impl Server {
    /// A server that listens nowhere yet.
    ///
    /// # Errors
    /// The system has no sockets or threads.
    pub fn new(programs: Programs, options: ServerOptions) -> io::Result<Self> {
        let (watcher, watching) = Watcher::new()?;
        let shared = Arc::new(Shared {
            programs,
            workers: Workers::new(options.max_workers, options.keep_workers),
            options,
            watcher,
            relief: Relief::default(),
            is_parallel: thread::available_parallelism().is_ok_and(|threads| threads.get() > 1),
            counters: Counting::default(),
            executing: AtomicU64::new(0),
            connections: Mutex::default(),
            ports: Mutex::default(),
            runtime: Handle::try_current().ok(),
            is_over: AtomicBool::new(false),
        });
        watching.start(&shared)?;
        Ok(Self {
            shared,
            addresses: Mutex::default(),
        })
    }

    /// Listens on a TCP port; 0 is any that is free. The address that it got.
    ///
    /// # Errors
    /// The system does not give it.
    pub fn listen_tcp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        self.listening().push(Peer::Tcp(address));
        self.shared.watcher.listen(Listener::tcp(listener)?);
        Ok(address)
    }

    /// Receives on a UDP port; 0 is any that is free. The address that it got.
    ///
    /// # Errors
    /// The system does not give it, or no thread for it.
    pub fn listen_udp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let port = Port::bind(address, &self.shared.options)?;
        let address = port.local_addr();
        datagram::serve(&self.shared, &port)?;
        self.listening().push(Peer::Udp(address));
        self.shared.ports().push(port);
        // Calls may have come before it was known.
        self.shared.relief.wake();
        Ok(address)
    }

    /// Listens on a unix socket. One that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// The system does not give it, or somebody listens there.
    pub fn listen_unix(&self, path: &Path) -> io::Result<()> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match UnixStream::connect(path) {
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
        let listener = Listener::unix(listener, path.to_owned())?;
        self.shared.watcher.listen(listener);
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
        let open = self.shared.connections().len();
        ServerCounters {
            traffic: self.shared.counters.now(open),
            workers: self.shared.workers.counters(),
            executing: self.shared.executing.load(Ordering::Relaxed),
        }
    }

    /// Takes no more calls, finishes those that run and sends their replies, then ends all connections. Whether all was
    /// finished within [`ServerOptions::shutdown_timeout`]; threads that are not go on for themselves.
    pub fn shutdown(self) -> bool {
        self.shared.end();
        let limit = self.shared.options.shutdown_timeout;
        self.shared.workers.join(limit)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.end();
        for address in self.listening().drain(..) {
            if let Peer::Unix(Some(path)) = address {
                // Who removed it before us is welcome.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_without_a_thread_is_an_error() {
        let server = Server::new(Programs::new(), ServerOptions::default()).unwrap();
        server.shared.workers.close();
        assert!(server.listen_udp(([127, 0, 0, 1], 0).into()).is_err());
        assert_eq!(server.addresses(), []);
        assert!(server.shared.ports().is_empty());
    }
}
