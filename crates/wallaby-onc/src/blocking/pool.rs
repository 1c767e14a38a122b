//! The handles of a client, kept open between calls (the handle manager of FlexRPC, section IV-B).

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handle::{Calling, Done, Handle, Time};
use crate::auth::OpaqueAuth;
use crate::failure::{NoReply, Reason};
use crate::message::{Call, Procedure, Reply};
use crate::peer::Peer;
use crate::record;
use crate::scratch::Scratch;
use crate::service::Channel;
use crate::xdr::{EncodeError, Writer};

/// How calls of a pool are made, and what it may take up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who calls: [`OpaqueAuth::none`], or [`AuthSys::credential`](crate::auth::AuthSys::credential).
    pub credential: OpaqueAuth,
    /// How long a call may take, connecting included; 25 s, as clients of rpcgen wait.
    pub timeout: Duration,
    /// Connections and sockets at a time, those that are used and those that are kept; 256. When one more is needed, the one
    /// that was not used for longest is closed; if all are used, the call fails.
    pub max_handles: usize,
    /// After which time without a call it is looked whether a connection has ended, which costs a call of the system; 1 s.
    pub look_after: Duration,
    /// Most bytes of a record, sent or received, over TCP and unix sockets; 16 MiB.
    pub max_record: usize,
    /// How long a call over UDP waits for its reply before it is sent again; 500 ms, and twice as long each time.
    pub retransmit_after: Duration,
    /// The longest such wait; 10 s.
    pub retransmit_at_most: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            credential: OpaqueAuth::none(),
            timeout: Duration::from_secs(25),
            max_handles: 256,
            look_after: Duration::from_secs(1),
            max_record: 16 << 20,
            retransmit_after: Duration::from_millis(500),
            retransmit_at_most: Duration::from_secs(10),
        }
    }
}

/// What happened in a pool so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Calls that were begun.
    pub calls: u64,
    /// Calls that found a handle which was kept.
    pub hits: u64,
    /// Calls that needed a new one.
    pub misses: u64,
    /// Handles that were closed to make room for others.
    pub evictions: u64,
    /// Handles that were closed since a connection to the same server had ended.
    pub invalidated: u64,
    /// Datagrams of calls that were sent again.
    pub retransmissions: u64,
    /// What arrived and was no reply to the call that waited: late replies and duplicates. It is dropped.
    pub strangers: u64,
    /// Handles that are open now.
    pub open: u64,
    /// Those of them that no call uses.
    pub idle: u64,
}

/// Connections and sockets to any number of servers, each used by one call at a time and kept for the next one.
///
/// When a connection turns out to have ended, all others to the same server are closed with it: those that are kept at once,
/// those that are used as soon as their calls are over.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    servers: Mutex<HashMap<Peer, Arc<Server>>>,
    open: AtomicUsize,
    uses: AtomicU64,
    xid: AtomicU32,
    counters: Counting,
}

#[derive(Debug, Default)]
struct Counting {
    calls: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    invalidated: AtomicU64,
    retransmissions: AtomicU64,
    strangers: AtomicU64,
}

/// The handles to one server.
#[derive(Debug)]
struct Server {
    peer: Peer,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Those that no call uses, the one used last at the end.
    idle: Vec<Idle>,
    /// How often all of them were closed: handles from before are not kept.
    generation: u64,
}

#[derive(Debug)]
struct Idle {
    handle: Box<Handle>,
    since: Instant,
    /// Its place in the order of uses.
    used: u64,
}

impl Server {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// A pool of nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        // Numbers start at random, so that the replies to an earlier life's calls are not taken for this one's.
        let xid = RandomState::new().hash_one(0_u8) as u32;
        Self(Arc::new(Shared {
            options,
            servers: Mutex::default(),
            open: AtomicUsize::new(0),
            uses: AtomicU64::new(0),
            xid: AtomicU32::new(xid),
            counters: Counting::default(),
        }))
    }

    /// Calls to a server over TCP. Nothing is connected yet.
    #[must_use]
    pub fn tcp(&self, server: SocketAddr) -> PooledChannel {
        self.channel(Peer::Tcp(server))
    }

    /// Calls to a server over UDP. Calls and results have to fit into a datagram, 65,507 bytes with everything. A server may
    /// execute a call as often as it was sent, unless it keeps a cache of duplicates, as those of this crate do.
    #[must_use]
    pub fn udp(&self, server: SocketAddr) -> PooledChannel {
        self.channel(Peer::Udp(server))
    }

    /// Calls to a server at a unix socket. Nothing is connected yet.
    #[must_use]
    pub fn unix(&self, path: &Path) -> PooledChannel {
        self.channel(Peer::Unix(Some(path.to_owned())))
    }

    fn channel(&self, peer: Peer) -> PooledChannel {
        let mut servers = self.0.servers();
        if servers.len() > self.0.options.max_handles {
            // Servers that nobody calls any more are forgotten: what is left has a channel or a handle.
            servers.retain(|_, server| {
                Arc::strong_count(server) > 1 || !server.kept().idle.is_empty()
            });
        }
        let server = servers.entry(peer.clone()).or_insert_with(|| {
            let kept = Mutex::default();
            Arc::new(Server { peer, kept })
        });
        PooledChannel {
            pool: self.clone(),
            server: Arc::clone(server),
            credential: self.0.options.credential.clone(),
            timeout: self.0.options.timeout,
        }
    }

    /// Closes all connections and sockets to a server; those that are used as soon as their calls are over.
    pub fn invalidate(&self, server: &Peer) {
        let server = self.0.servers().get(server).cloned();
        if let Some(server) = server {
            self.0.invalidate(&server);
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        let shared = &self.0;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let servers: Vec<_> = shared.servers().values().cloned().collect();
        let idle = servers.iter().map(|server| server.kept().idle.len() as u64);
        PoolCounters {
            calls: read(&shared.counters.calls),
            hits: read(&shared.counters.hits),
            misses: read(&shared.counters.misses),
            evictions: read(&shared.counters.evictions),
            invalidated: read(&shared.counters.invalidated),
            retransmissions: read(&shared.counters.retransmissions),
            strangers: read(&shared.counters.strangers),
            idle: idle.sum(),
            open: shared.open.load(Ordering::Relaxed) as u64,
        }
    }
}

/// A handle that a call uses; it counts as open until this is dropped without being kept.
struct CheckedOut<'a> {
    shared: &'a Shared,
    handle: Option<Box<Handle>>,
    generation: u64,
    is_new: bool,
}

impl Drop for CheckedOut<'_> {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn servers(&self) -> MutexGuard<'_, HashMap<Peer, Arc<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_out(&self, server: &Server, time: &Time) -> Result<CheckedOut<'_>, NoReply> {
        loop {
            let (taken, generation) = {
                let mut kept = server.kept();
                (kept.idle.pop(), kept.generation)
            };
            let Some(Idle { handle, since, .. }) = taken else {
                add(&self.counters.misses, 1);
                return self.open(server, generation, time);
            };
            let found = CheckedOut {
                shared: self,
                handle: Some(handle),
                generation,
                is_new: false,
            };
            let idle = time.begin.saturating_duration_since(since);
            let is_stale = |handle: &Handle| idle >= self.options.look_after && handle.is_stale();
            if found.handle.as_deref().is_some_and(is_stale) {
                add(&self.counters.invalidated, 1);
                self.invalidate(server);
                continue;
            }
            add(&self.counters.hits, 1);
            return Ok(found);
        }
    }

    fn open(
        &self,
        server: &Server,
        generation: u64,
        time: &Time,
    ) -> Result<CheckedOut<'_>, NoReply> {
        let limit = self.options.max_handles;
        // Counted before it is looked at: two that come at once don't take the same place.
        let others = self.open.fetch_add(1, Ordering::Relaxed);
        let mut opened = CheckedOut {
            shared: self,
            handle: None,
            generation,
            is_new: true,
        };
        if others >= limit && !self.evict() {
            return Err(NoReply::TooManyCalls { limit });
        }
        let handle = Handle::open(&server.peer, &self.options, time.left());
        opened.handle = Some(handle.map(Box::new).map_err(NoReply::Connect)?);
        Ok(opened)
    }

    /// Closes the handle that was not used for longest; whether there was one.
    fn evict(&self) -> bool {
        let servers = self.servers();
        let oldest = |server: &&Arc<Server>| server.kept().idle.first().map(|idle| idle.used);
        loop {
            let server = servers
                .values()
                .filter_map(|server| Some((oldest(&server)?, server)))
                .min_by_key(|(used, _)| *used);
            let Some((_, server)) = server else {
                return false;
            };
            let mut kept = server.kept();
            if kept.idle.is_empty() {
                continue; // somebody was quicker: it is used again
            }
            drop(kept.idle.remove(0));
            self.open.fetch_sub(1, Ordering::Relaxed);
            add(&self.counters.evictions, 1);
            return true;
        }
    }

    /// The call that used a handle is over.
    fn give_back(&self, server: &Server, mut used: CheckedOut<'_>, begin: Instant, done: &Done) {
        add(&self.counters.strangers, done.strangers);
        add(
            &self.counters.retransmissions,
            u64::from(done.sent.saturating_sub(1)),
        );
        if done.is_gone {
            return self.invalidate(server);
        }
        let Some(handle) = used.handle.take().filter(|_| done.is_clean) else {
            return;
        };
        let idle = Idle {
            handle,
            since: begin,
            used: self.uses.fetch_add(1, Ordering::Relaxed),
        };
        let mut kept = server.kept();
        if kept.generation == used.generation {
            kept.idle.push(idle);
            drop(kept);
            std::mem::forget(used); // it stays open
        } else {
            add(&self.counters.invalidated, 1);
        }
    }

    fn invalidate(&self, server: &Server) {
        let closed = {
            let mut kept = server.kept();
            kept.generation += 1;
            std::mem::take(&mut kept.idle)
        };
        self.open.fetch_sub(closed.len(), Ordering::Relaxed);
        add(&self.counters.invalidated, closed.len() as u64);
    }
}

fn add(counter: &AtomicU64, more: u64) {
    if more > 0 {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// A way to a server over the handles of a pool, for generated clients. A clone is the same way.
///
/// A call is made when its future is polled, and blocks the thread until then: [`wait`](super::wait) for it on a thread that
/// may be blocked. As many calls go on at a time as threads make them.
#[derive(Debug, Clone)]
pub struct PooledChannel {
    pool: Pool,
    server: Arc<Server>,
    credential: OpaqueAuth,
    timeout: Duration,
}

impl PooledChannel {
    /// The same way, for calls that may take this long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same way, for calls of this caller.
    #[must_use]
    pub fn credential(mut self, credential: OpaqueAuth) -> Self {
        self.credential = credential;
        self
    }

    /// The pool that it is of.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A call with arguments that are written here, if they are; `elsewhere` is how many bytes are not.
    fn written(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
        elsewhere: usize,
    ) -> Result<Written, Reason> {
        let xid = self.pool.0.xid.fetch_add(1, Ordering::Relaxed);
        let mut record = Scratch::write(|writer| {
            writer.u32(0); // the mark's place
            Call::write_head(xid, procedure, &self.credential, writer)?;
            arguments(writer)
        })?;
        record::set_mark(&mut record, elsewhere);
        Ok(Written { xid, record })
    }

    fn call_now(&self, written: &Written, arguments: &[u8]) -> Result<Reply, Reason> {
        let shared = &*self.pool.0;
        add(&shared.counters.calls, 1);
        let time = Time::new(self.timeout);
        let mut used = shared.check_out(&self.server, &time)?;
        let call = Calling {
            xid: written.xid,
            record: &written.record,
            arguments,
            time,
            now: match used.is_new {
                true => Instant::now(),
                false => time.begin,
            },
        };
        let Some(handle) = &mut used.handle else {
            return Err(NoReply::TimedOut {
                after: self.timeout,
                sent: 0,
            }
            .into());
        };
        let done = handle.call(&call, &shared.options);
        shared.give_back(&self.server, used, time.begin, &done);
        Ok(done.outcome?)
    }
}

/// A call that is written.
#[derive(Debug)]
struct Written {
    xid: u32,
    record: Scratch,
}

impl Channel for PooledChannel {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        let written = self.written(procedure, |_| Ok(()), arguments.len())?;
        Ok(self.call_now(&written, &arguments)?.results()?)
    }

    fn call_with(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send {
        let written = self.written(procedure, arguments, 0);
        async move { Ok(self.call_now(&written?, &[])?.results()?) }
    }

    fn peer(&self) -> Option<Peer> {
        Some(self.server.peer.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_nobody_calls_are_forgotten() {
        let pool = Pool::new(Options {
            max_handles: 10,
            ..Options::default()
        });
        let address = |port| ([127, 0, 0, 1], port).into();
        let kept = pool.tcp(address(1));
        for port in 1..1_000 {
            drop(pool.tcp(address(port)));
        }
        assert!(pool.0.servers().len() <= 12);
        assert!(pool.0.servers().contains_key(&kept.server.peer));
    }
}
