//! An endpoint: one addressable participant, client and server at once.

mod connections;
mod datagrams;
mod handlings;
mod moments;
mod same_host;
mod services;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use wallaby_proto::call::records::Remembered;
use wallaby_proto::call::room::BranchRoom;
use wallaby_proto::connection::{Bounds, Features, Hello, Limits as WireLimits, VERSION};
use wallaby_proto::executor::{Executor, Load, Schedule};
use wallaby_proto::wire::Message;
use wallaby_proto::{Address, CallId, Code, NodeId, Status, Token};

use self::connections::Listening;
use self::handlings::Handlings;
use crate::builder::{Builder, Config};
use crate::call::{CallOptions, CallShared, RawCall};
use crate::calls::Calls;
use crate::client::{Caller, Outgoing};
use crate::driver::peer::{Delayed, Peer};
use crate::driver::port::Port;
use crate::error::{BindError, ConnectError, Failure, ServeError, Undrained};
use crate::handling::Job;
use crate::link::DelayLine;
use crate::liveness::Liveness;
use crate::log::Sparse;
use crate::metrics::{Meters, Metrics};
use crate::pipeline::Store;
use crate::pool::Pool;
use crate::random;
use crate::relay::{Passing, Relay};
use crate::service::{Registered, Service};
use crate::timer::{self, Instant};
use crate::transport::{self, Entrance};

/// After so long without a sign of life peers close their connections, unless they are set otherwise.
const AWAY: Duration = Duration::from_secs(10);

/// How often an endpoint that is shutting down looks whether all is done.
const DRAIN_CHECK: Duration = Duration::from_millis(2);

/// One addressable participant, client and server at once. Cheap to clone; it closes when the last clone is dropped.
///
/// An endpoint lives in the tokio runtime in which it was made.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
    _open: Arc<Open>,
}

/// Closes the endpoint when its last handle is gone.
struct Open(Arc<Inner>);

/// What all parts of an endpoint share.
pub(crate) struct Inner {
    pub(crate) node: NodeId,
    secret: [u8; 16],
    hello: Arc<Hello>,
    /// What streams hold for their peers.
    bounds: Bounds,
    /// How many branches its calls know together.
    pub(crate) branches: BranchRoom,
    /// Where others reach this endpoint.
    pub(crate) address: Option<Address>,
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) relay: Relay,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) meters: Meters,
    /// What peers can make it log.
    pub(crate) sparse: Events,
    pub(crate) runtime: Handle,
    /// What typed clients send goes through this, if there is client middleware.
    calls: Mutex<Calls>,
    services: RwLock<HashMap<Arc<str>, Arc<Registered>>>,
    executor: Mutex<Executor<Job>>,
    handlings: Mutex<Handlings>,
    me: Weak<Self>,
    /// What `next_look` counts from.
    epoch: Instant,
    /// When calls and records are to be looked at, in microseconds; `u64::MAX` if nothing is due.
    next_look: AtomicU64,
    /// When the first of the live calls' deadlines passes, as far as known.
    next_alarm: Mutex<Option<Instant>>,
    /// When connections are looked at, and when next for messages that have stopped to grow.
    next_tending: Mutex<(Instant, Instant)>,
    /// When the runtime was last seen to drive connections, in microseconds since `epoch`.
    listened: AtomicU64,
    /// How many microseconds without that are too long.
    away_after: u64,
    /// Bytes of requests kept to be sent again.
    kept: AtomicU64,
    pub(crate) stored: Store,
    /// Answers that go back along lines, and wait for others.
    delay: Option<Arc<DelayLine<Delayed>>>,
    listeners: Mutex<Vec<(Arc<Listening>, AbortHandle)>>,
    /// UDP sockets: those that listen, and those opened to dial.
    ports: Mutex<Vec<Arc<Port>>>,
    closed: AtomicBool,
    draining: AtomicBool,
}

/// Events that peers can cause as often as they like.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) forged: Sparse,
    pub(crate) unknown_ping: Sparse,
    pub(crate) no_way: Sparse,
    pub(crate) unsealed: Sparse,
    pub(crate) forbidden: Sparse,
    pub(crate) not_accepted: Sparse,
}

impl Endpoint {
    /// An endpoint that listens at this address: `tcp://HOST:PORT` or `udp://HOST:PORT` (port 0 for any), `unix:///PATH`,
    /// `shm:///PATH` (shared memory, between processes of one user on Linux) or `mem://NAME`. Over UDP a message's payload has at most 64 KiB.
    ///
    /// # Errors
    ///
    /// If that cannot be listened at.
    pub async fn bind(address: &str) -> Result<Self, BindError> {
        Self::builder().listen(address).bind().await
    }

    /// An endpoint that does not listen. It can make calls; answers of servers that it is not connected to come back
    /// along the way its requests went.
    ///
    /// # Errors
    ///
    /// If there is no tokio runtime here, or no random numbers.
    pub fn client() -> Result<Self, BindError> {
        Self::start(Builder::default(), Vec::new())
    }

    /// Sets up an endpoint.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) async fn from_builder(mut builder: Builder) -> Result<Self, BindError> {
        let transports = &builder.config.transports;
        transports.check()?;
        let mut listeners = Vec::new();
        for address in &builder.listen {
            listeners.push(transport::listen(address, transports).await?);
        }
        let first = listeners.first().map(|(_, address)| address.clone());
        builder.advertise = builder
            .advertise
            .or_else(|| first.map(transport::advertised));
        if let (Some(folder), Some(address)) = (&builder.config.same_host, &builder.advertise)
            && let Some(socket) = same_host::socket(folder, address)
        {
            listeners.push(transport::listen(&socket.to_string(), transports).await?);
        }
        Self::start(builder, listeners)
    }

    fn start(builder: Builder, listeners: Vec<(Entrance, Address)>) -> Result<Self, BindError> {
        let runtime = Handle::try_current().map_err(|_| BindError::NoRuntime)?;
        if builder.config.require_seals && builder.config.cluster_keys.is_empty() {
            return Err(BindError::NoClusterKey);
        }
        let inner = Inner::new(builder.config, builder.advertise, runtime)?;
        for service in builder.services {
            inner.register(service)?;
        }
        inner.tend_by(Instant::now() + inner.stall_check(), true);
        for (entrance, _) in listeners {
            let listener = match entrance {
                Entrance::Streams(listener) => listener,
                Entrance::Datagrams(socket) => {
                    let port = inner.open_port(socket, true)?;
                    locked(&inner.ports).push(port);
                    continue;
                }
            };
            let listening = Arc::new(Mutex::new(Some(listener)));
            let accept = Inner::accept(Arc::downgrade(&inner), Arc::clone(&listening));
            let accepting = inner.runtime.spawn(accept).abort_handle();
            locked(&inner.listeners).push((listening, accepting));
        }
        Ok(Self {
            _open: Arc::new(Open(Arc::clone(&inner))),
            inner,
        })
    }

    /// Serves these methods from now on.
    ///
    /// # Errors
    ///
    /// If one of them is served already or has a reserved name, or the endpoint was closed; none is registered then.
    pub fn serve(&self, service: Service) -> Result<(), ServeError> {
        self.inner.register(service)
    }

    /// Where others reach this endpoint; `None` if it does not listen.
    pub fn address(&self) -> Option<&Address> {
        self.inner.address.as_ref()
    }

    /// The endpoint's life: random, new at every start.
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// Makes calls with settings of their own, with several initial requests, or with payloads as bytes.
    pub fn caller(&self) -> Caller {
        Caller::new(self)
    }

    /// Connects to a server ahead of the first call.
    ///
    /// # Errors
    ///
    /// If it cannot be reached.
    pub async fn connect(&self, server: impl Into<Address>) -> Result<(), ConnectError> {
        self.inner.connect(&server.into()).await.map(drop)
    }

    /// What the endpoint has counted since its start.
    pub fn metrics(&self) -> Metrics {
        let pool = &self.inner.pool;
        self.inner.meters.snapshot(pool.carried(), pool.uses())
    }

    /// How many handlers run and how many requests wait for one.
    pub fn load(&self) -> (usize, usize) {
        let load = locked(&self.inner.executor).load();
        (load.running, load.waiting)
    }

    /// What is remembered of requests that came here, running ones included.
    pub fn remembered(&self) -> Remembered {
        self.inner.liveness.remembered()
    }

    /// Shuts the endpoint down without loss: what runs here is finished and answered, new requests are refused with the
    /// status `Unavailable`, handlers cannot delegate any more, and connected peers send their next requests elsewhere.
    /// When all is done, or after `within`, the endpoint is closed; what ran on until then ends with a status.
    ///
    /// # Errors
    ///
    /// How many handlers still ran, and how many requests waited for one, when time was up.
    pub async fn drain(&self, within: Duration) -> Result<(), Undrained> {
        let end = Instant::now() + timer::bounded(within);
        self.inner.begin_draining();
        while !self.inner.is_drained() {
            if Instant::now() >= end {
                let (running, waiting) = self.load();
                self.inner.stop_all();
                self.close();
                return Err(Undrained { running, waiting });
            }
            timer::sleep_until(end.min(Instant::now() + DRAIN_CHECK)).await;
        }
        self.close();
        Ok(())
    }

    /// Closes the endpoint: its calls fail, its connections end, it listens no more, and it gives up its services.
    ///
    /// Until then it keeps them. A service that holds its own endpoint therefore keeps it open: such an endpoint must be
    /// closed, or [drained](Self::drain), and not just dropped.
    pub fn close(&self) {
        self.inner.close();
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Inner {
    fn new(
        config: Config,
        address: Option<Address>,
        runtime: Handle,
    ) -> Result<Arc<Self>, BindError> {
        let secret = random::bytes()?;
        let node = NodeId::new(u64::from_ne_bytes(random::bytes()?).max(1))
            .ok_or(BindError::Random("zero".into()))?;
        let limits = &config.limits;
        let hello = Hello {
            versions: (VERSION, VERSION),
            node,
            expected: None,
            address: address.clone(),
            features: match config.executor.schedule {
                Schedule::OldestCall => Features::AGE.and(Features::TIME),
                Schedule::Fifo | Schedule::EarliestDeadline => Features::TIME,
            },
            limits: WireLimits {
                message: limits.message,
                requests: limits.requests.max(1),
                call: limits.call.max(1),
                parts: limits.parts.max(WireLimits::default().parts),
                streams: limits.streams.max(1),
            },
        };
        let delay = Delayed::link(config.link_delay, config.link_bandwidth)
            .map_err(|error| BindError::Random(error.to_string()))?;
        let bounds = config.bounds();
        let branches = BranchRoom::new(config.limits.branches);
        Ok(Arc::new_cyclic(|inner: &Weak<Self>| Self {
            node,
            secret,
            hello: Arc::new(hello),
            address,
            pool: Pool::new(
                config.limits.connections,
                config.strangers,
                config.dial_policy.limits(),
            ),
            relay: Relay::new(config.limits.relayed),
            liveness: Arc::new(Liveness::new(
                config.records(),
                config.waiting,
                secret,
                inner.clone(),
            )),
            epoch: Instant::now(),
            next_look: AtomicU64::new(u64::MAX),
            meters: Meters::default(),
            sparse: Events::default(),
            runtime,
            calls: Mutex::default(),
            services: RwLock::default(),
            executor: Mutex::new(Executor::new(config.executor.clone())),
            handlings: Mutex::default(),
            me: inner.clone(),
            next_alarm: Mutex::default(),
            next_tending: Mutex::new((
                Instant::now(),
                Instant::now() + bounds.partials.limits().period,
            )),
            bounds,
            branches,
            listened: AtomicU64::new(0),
            away_after: micros(config.keep_alive.timeout.min(AWAY) / 4),
            kept: AtomicU64::new(0),
            stored: Store::default(),
            delay,
            listeners: Mutex::default(),
            ports: Mutex::default(),
            closed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            config,
        }))
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    fn begin_draining(&self) {
        self.draining.store(true, Ordering::Release);
        self.pool.open().iter().for_each(Peer::go_away);
    }

    /// Whether the endpoint finishes what it has begun, and begins nothing.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether nothing runs here any more, and all that was sent has been written.
    fn is_drained(&self) -> bool {
        let idle = locked(&self.executor).load() == Load::default() && self.calls().len() == 0;
        idle && self.pool.open().iter().all(|peer| peer.is_idle())
    }

    /// Ends all requests that still wait for something.
    fn stop_all(&self) {
        let why = "this server is shutting down";
        for handling in self.all_waiting() {
            handling.stop(&Status::new(Code::Unavailable, why));
        }
    }

    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // Now, so that the addresses are free when this returns.
        for (listening, accepting) in locked(&self.listeners).drain(..) {
            accepting.abort();
            drop(locked(&listening).take());
        }
        let calls: Vec<_> = self.calls().iter().cloned().collect();
        calls.iter().for_each(|call| call.fail(Failure::Closed));
        for peer in self.pool.open() {
            peer.end("the endpoint was closed");
        }
        self.close_ports();
        // They may hold this endpoint; what they hold else is free again. Out of the lock: dropping it runs foreign code.
        let services = std::mem::take(&mut *self.services_mut());
        drop(services);
    }

    /// How long ago the endpoint was made.
    pub(crate) fn age(&self) -> Duration {
        self.epoch.elapsed()
    }

    // Calls.

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new call without requests. Taking an id and entering the live set is one step (PROTOCOL-NOTES 29).
    pub(crate) fn begin_call(self: &Arc<Self>, options: Arc<CallOptions>) -> RawCall {
        let mut calls = self.calls();
        let limit = self.config.limits.calls;
        let full = calls.len() >= limit;
        let call = calls.add(|sequence| {
            let id = CallId {
                initiator: self.node,
                sequence,
            };
            CallShared::new(
                Arc::clone(self),
                id,
                Token::derive(self.secret, sequence),
                options,
            )
        });
        drop(calls);
        self.meters.calls_started.add();
        self.note_deadline(call.deadline());
        // Its connection is looked at, too.
        let period = self.config.ping.period * 9 / 8;
        let period = micros(period.min(self.config.keep_alive.period));
        self.note_due_at((call.begun_age() / 1000).saturating_add(period));
        if call.has_own_ping() {
            call.look_after_own_period();
        }
        if full {
            call.fail(Failure::TooManyCalls { limit });
        }
        if self.closed.load(Ordering::Acquire) {
            call.fail(Failure::Closed);
        }
        RawCall::new(call)
    }

    /// An initial request passes the interceptors of calls.
    #[inline]
    pub(crate) fn intercept(&self, outgoing: &mut Outgoing) -> Result<(), Failure> {
        for interceptor in self.config.call_interceptors.iter().rev() {
            interceptor
                .outgoing(outgoing)
                .map_err(|status| Failure::Intercepted {
                    server: outgoing.server.clone(),
                    method: Arc::clone(outgoing.method.name()),
                    status: Box::new(status),
                })?;
        }
        Ok(())
    }

    /// Makes a call of one request, which the interceptors of calls have passed.
    pub(crate) fn send(self: &Arc<Self>, outgoing: Outgoing) -> RawCall {
        let mut call = self.begin_call(Arc::clone(&outgoing.options));
        call.share_among(1);
        call.send_now(outgoing);
        call.close();
        call
    }

    /// Room for so many bytes more of requests to be sent again; `false` if there is none.
    pub(crate) fn keep(&self, size: u64) -> bool {
        let limit = self.config.limits.kept;
        let more = |kept: u64| kept.checked_add(size).filter(|kept| *kept <= limit);
        let kept = &self.kept;
        kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(crate) fn unkeep(&self, size: u64) {
        self.kept.fetch_sub(size, Ordering::Relaxed);
    }

    /// The reply token of a call of this endpoint.
    pub(crate) fn token(&self, sequence: u64) -> Token {
        Token::derive(self.secret, sequence)
    }

    pub(crate) fn oldest_call(&self) -> u64 {
        self.calls().oldest()
    }

    pub(crate) fn forget_call(&self, sequence: u64) {
        self.calls().remove(sequence);
    }

    pub(crate) fn call(&self, sequence: u64) -> Option<Arc<CallShared>> {
        self.calls().get(sequence).cloned()
    }

    /// An answer to a call of this endpoint or, if it is another's, one to pass on.
    pub(crate) fn handle_answer(self: &Arc<Self>, peer: Option<&Arc<Peer>>, message: &mut Message) {
        let id = message.call();
        if id.initiator != self.node {
            return self.pass_on(peer, message);
        }
        if let Message::Pong(pong) = message {
            return self.handle_pong(peer, pong);
        }
        match self.call(id.sequence) {
            Some(call) => call.handle_answer(peer, message),
            None => self.meters.late_dropped.add(),
        }
    }

    /// Passes an answer on towards an initiator that cannot be dialled.
    #[inline(never)]
    fn pass_on(self: &Arc<Self>, from: Option<&Arc<Peer>>, message: &mut Message) {
        let Some(from) = from else {
            return; // what runs here sends by itself
        };
        let id = message.call();
        let (token, distance) = (message.token(), message.distance().map_or(0, |far| *far));
        let next = self.way_onward((id, token, distance), from);
        match (message, next) {
            // Anybody can make up answers of calls that never came by here.
            (Message::Response(response), None) if !self.may_wait(response) => {
                self.cannot_pass_on(
                    id,
                    &"no request of its call came by here that is nearer to its initiator",
                );
            }
            (Message::Response(response), next) => {
                let mut passing = Passing::new(from, response.clone());
                passing.leads(next);
                self.relay.pass(self, passing);
            }
            (other, Some((next, nearer))) => {
                if let Some(distance) = other.distance() {
                    *distance = nearer;
                }
                if let Message::Pong(pong) = other {
                    self.liveness.pong_passes(pong);
                }
                self.meters.relayed.add();
                next.control(other.clone());
            }
            // Whatever it says, the initiator will ask.
            (_, None) => self.meters.undeliverable.add(),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("node", &self.inner.node)
            .field("address", &self.inner.address)
            .finish()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
