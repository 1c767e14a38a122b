//! The thread that accepts connections, and watches those that nobody waits at.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Shared;
use super::connection::Connection;
use crate::blocking::socket::Stream;
use crate::peer::{Origin, Peer};
use crate::server::counters::count;

/// Where connections come from.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(super) fn tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    pub(super) fn unix(listener: UnixListener, path: PathBuf) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener, path))
    }

    fn accept(&self) -> io::Result<(Stream, Origin)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                let origin = Origin {
                    peer: Peer::Tcp(peer),
                    local: Peer::Tcp(stream.local_addr()?),
                    uid: None,
                };
                Ok((Stream::Tcp(stream), origin))
            }
            Self::Unix(listener, path) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let origin = Origin {
                    peer: Peer::Unix(peer.as_pathname().map(PathBuf::from)),
                    local: Peer::Unix(Some(path.clone())),
                    uid: user(&stream)?,
                };
                Ok((Stream::Unix(stream), origin))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Who is at the other end, where the system says it in a way that is known here.
#[cfg(target_os = "linux")]
fn user(stream: &UnixStream) -> io::Result<Option<u32>> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    Ok(Some(getsockopt(stream, PeerCredentials)?.uid()))
}

#[cfg(not(target_os = "linux"))]
fn user(_stream: &UnixStream) -> io::Result<Option<u32>> {
    Ok(None)
}

/// What others tell the thread.
#[derive(Debug)]
pub(super) struct Watcher {
    news: Arc<Mutex<News>>,
    bell: UnixStream,
}

#[derive(Debug, Default)]
struct News {
    listeners: Vec<Listener>,
    idle: Vec<Arc<Connection>>,
}

/// The thread, before it starts.
pub(super) struct Watching {
    news: Arc<Mutex<News>>,
    bell: UnixStream,
    listeners: Vec<Listener>,
    /// Those that are idle, longest first.
    idle: Vec<Arc<Connection>>,
    next: u64,
}

impl Watcher {
    pub(super) fn new() -> io::Result<(Self, Watching)> {
        let (bell, rings) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rings.set_nonblocking(true)?;
        let news = Arc::default();
        let watching = Watching {
            news: Arc::clone(&news),
            bell: rings,
            listeners: Vec::new(),
            idle: Vec::new(),
            next: 0,
        };
        Ok((Self { news, bell }, watching))
    }

    /// Connections come from here, too.
    pub(super) fn listen(&self, listener: Listener) {
        lock(&self.news).listeners.push(listener);
        self.wake();
    }

    /// Nobody waits at this connection any more.
    pub(super) fn park(&self, connection: Arc<Connection>) {
        lock(&self.news).idle.push(connection);
        self.wake();
    }

    pub(super) fn wake(&self) {
        // If it is full, it rings already.
        let _ = (&self.bell).write(&[1]);
    }
}

fn lock(news: &Mutex<News>) -> MutexGuard<'_, News> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watching {
    pub(super) fn start(mut self, shared: &Arc<Shared>) -> io::Result<()> {
        let shared = Arc::downgrade(shared);
        let thread = thread::Builder::new().name("onc-watcher".into());
        thread.spawn(move || while self.turn(&shared) {}).map(drop)
    }

    /// Waits until something happens, and does what follows from it; whether the server goes on.
    fn turn(&mut self, shared: &Weak<Shared>) -> bool {
        let ready = self.wait();
        let Some(shared) = shared.upgrade().filter(|shared| !shared.is_over()) else {
            return false;
        };
        while matches!((&self.bell).read(&mut [0; 64]), Ok(64)) {}
        let listening = self.listeners.len();
        let mut ready = ready.into_iter().skip(1); // the bell was heard
        let mut is_next_ready = || ready.next().unwrap_or_default();
        let calling: Vec<bool> = (0..listening).map(|_| is_next_ready()).collect();
        for connection in std::mem::take(&mut self.idle) {
            match is_next_ready() {
                true => resume(&shared, connection),
                false => self.idle.push(connection),
            }
        }
        for (listener, _) in calling
            .iter()
            .enumerate()
            .filter(|(_, is_ready)| **is_ready)
        {
            self.accept(&shared, listener);
        }
        let mut news = lock(&self.news);
        self.listeners.append(&mut news.listeners);
        self.idle.append(&mut news.idle);
        true
    }

    /// What can be read: the bell, listeners, idle connections, in this order.
    fn wait(&self) -> Vec<bool> {
        let watched = |socket| PollFd::new(socket, PollFlags::POLLIN);
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let idle = self.idle.iter().map(|connection| connection.stream.as_fd());
        let all = std::iter::once(self.bell.as_fd())
            .chain(listeners)
            .chain(idle);
        let mut sockets: Vec<PollFd<'_>> = all.map(watched).collect();
        if poll(&mut sockets, PollTimeout::NONE).is_err() {
            thread::sleep(EXHAUSTED);
            return Vec::new();
        }
        sockets
            .iter()
            .map(|socket| socket.any().unwrap_or(true))
            .collect()
    }

    fn accept(&mut self, shared: &Arc<Shared>, listener: usize) {
        let Some(listener) = self.listeners.get(listener) else {
            return;
        };
        match listener.accept() {
            Ok((stream, origin)) => self.admit(shared, stream, origin),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Mostly a peer that is gone already; if it is the system, it needs time.
            Err(_) => thread::sleep(EXHAUSTED),
        }
    }

    fn admit(&mut self, shared: &Arc<Shared>, stream: Stream, origin: Origin) {
        let open = shared.connections().len();
        if open >= shared.options.max_connections.max(1) {
            if self.idle.is_empty() {
                return count(&shared.counters.refused);
            }
            let longest = self.idle.remove(0);
            longest.stream.shut_down(Shutdown::Both);
            shared.connections().remove(&longest.id);
            count(&shared.counters.idle_ended);
        }
        self.next += 1;
        // A socket that can't be set up is gone already.
        let Ok(connection) = Connection::new(self.next, stream, origin, shared) else {
            return;
        };
        count(&shared.counters.connections);
        let connection = Arc::new(connection);
        shared
            .connections()
            .insert(connection.id, Arc::clone(&connection));
        // Who connects mostly has something to say.
        resume(shared, connection);
    }
}

/// A thread waits at this connection again.
fn resume(shared: &Arc<Shared>, connection: Arc<Connection>) {
    let for_job = Arc::clone(shared);
    shared.workers.submit(move || connection.serve(&for_job));
}

/// How long the thread waits when the system has no descriptors or memory.
const EXHAUSTED: Duration = Duration::from_millis(50);
