//! An endpoint: one addressable participant, client and server at once.

mod datagrams;
mod handlings;
mod same_host;

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use wallaby_proto::call::records::Remembered;
use wallaby_proto::connection::{
    Connection, ConnectionError, Features, Hello, Limits as WireLimits, MethodDefinition, VERSION,
};
use wallaby_proto::wire::{Message, PingSettings};
use wallaby_proto::{Address, CallId, Code, NodeId, Status, Token};

use self::handlings::Handlings;
use crate::builder::{Builder, Config};
use crate::call::{CallOptions, CallShared, RawCall};
use crate::calls::Calls;
use crate::client::{Caller, Outgoing, Sender};
use crate::dispatch::Dispatcher;
use crate::driver::carrier::Carrier;
use crate::driver::peer::{Delayed, Peer};
use crate::driver::port::Port;
use crate::error::{BindError, ConnectError, Failure, ServeError, Undrained};
use crate::executor::{Admitted, Executor, Schedule};
use crate::handling::{Handling, Job};
use crate::link::DelayLine;
use crate::liveness::Liveness;
use crate::log::Sparse;
use crate::metrics::{Meters, Metrics};
use crate::pipeline::{Gatherings, Store};
use crate::pool::{Opening, Pool};
use crate::random;
use crate::relay::{Passing, Relay};
use crate::service::{Handler, Registered, Service};
use crate::timer::{self, Instant};
use crate::transport::{self, Entrance, Listener, ReadHalf, WriteHalf};

/// How much time a call has if nobody says: the protocol's default, which is not stated on the wire.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// How calls are watched over if they do not say: the protocol's default, which is not stated on the wire.
pub(crate) const DEFAULT_PING: PingSettings = PingSettings {
    period: Duration::from_millis(500),
    timeout: Duration::from_secs(5),
};

/// After so long without a sign of life peers close their connections, unless they are set otherwise.
const AWAY: Duration = Duration::from_secs(10);

/// Deadlines that pass within so short a time are looked at together.
const DEADLINE_TICK: Duration = Duration::from_millis(1);

/// A runtime looks at its sockets in the first turn; in the next ones connections read: what came, and that they ended.
const LISTENING_TURNS: u32 = 4;

/// How often an endpoint that is shutting down looks whether all is done.
const DRAIN_CHECK: Duration = Duration::from_millis(2);

/// How often connections are looked at while nothing is known to wait on them, and how long a large message may take to
/// grow.
const STALL_CHECK: Duration = Duration::from_secs(15);

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
    pub(crate) sender: Option<Arc<dyn Sender>>,
    calls: Mutex<Calls>,
    services: RwLock<HashMap<Arc<str>, Arc<Registered>>>,
    executor: Executor<Job>,
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
    pub(crate) gatherings: Gatherings,
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
}

/// A peer, and who learns when its handshake is done.
type Opened = (Arc<Peer>, oneshot::Receiver<Result<(), ConnectError>>);

/// Where streams come in, until the endpoint is closed.
type Listening = Mutex<Option<Listener>>;

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

    pub(crate) async fn from_builder(builder: Builder) -> Result<Self, BindError> {
        let mut listeners = Vec::new();
        for address in &builder.listen {
            listeners.push(transport::listen(address).await?);
        }
        let told = builder.advertise.as_ref();
        let told = told.or_else(|| listeners.first().map(|(_, address)| address));
        if let (Some(folder), Some(address)) = (&builder.config.same_host, told)
            && let Some(socket) = same_host::socket(folder, address)
        {
            listeners.push(transport::listen(&socket.to_string()).await?);
        }
        Self::start(builder, listeners)
    }

    fn start(builder: Builder, listeners: Vec<(Entrance, Address)>) -> Result<Self, BindError> {
        let runtime = Handle::try_current().map_err(|_| BindError::NoRuntime)?;
        if builder.config.require_seals && builder.config.cluster_keys.is_empty() {
            return Err(BindError::NoClusterKey);
        }
        let address = builder
            .advertise
            .or_else(|| listeners.first().map(|(_, address)| address.clone()));
        let inner = Inner::new(builder.config, address, runtime)?;
        for service in builder.services {
            inner.register(service)?;
        }
        inner.tend_by(Instant::now() + STALL_CHECK, true);
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
        let open = self.inner.pool.open();
        self.inner.meters.snapshot(
            open.iter().map(|peer| peer.counters()),
            self.inner.pool.uses(),
        )
    }

    /// How many handlers run and how many requests wait for one.
    pub fn load(&self) -> (usize, usize) {
        self.inner.executor.load()
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
        let end = Instant::now() + within;
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
                Schedule::OldestCall => Features::AGE,
                Schedule::Fifo | Schedule::EarliestDeadline => Features::default(),
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
        Ok(Arc::new_cyclic(|inner: &Weak<Self>| {
            let base: Arc<dyn Sender> = Arc::new(Base(inner.clone()));
            let layers = &config.send_layers;
            let sender = layers.iter().fold(base, |inner, layer| layer.wrap(inner));
            Self {
                node,
                secret,
                hello: Arc::new(hello),
                address,
                pool: Pool::new(config.limits.connections),
                relay: Relay::default(),
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
                sender: (!layers.is_empty()).then_some(sender),
                calls: Mutex::default(),
                services: RwLock::default(),
                executor: Executor::new(config.executor.clone()),
                handlings: Mutex::default(),
                me: inner.clone(),
                next_alarm: Mutex::default(),
                next_tending: Mutex::new((Instant::now(), Instant::now() + STALL_CHECK)),
                listened: AtomicU64::new(0),
                away_after: micros(config.keep_alive.timeout.min(AWAY) / 4),
                kept: AtomicU64::new(0),
                stored: Store::default(),
                gatherings: Gatherings::default(),
                delay,
                listeners: Mutex::default(),
                ports: Mutex::default(),
                closed: AtomicBool::new(false),
                draining: AtomicBool::new(false),
                config,
            }
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
        let idle = self.executor.load() == (0, 0) && self.calls().len() == 0;
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
        self.gatherings.clear();
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

    /// Makes a call of one request, without client middleware.
    pub(crate) fn send(self: &Arc<Self>, outgoing: Outgoing) -> RawCall {
        let mut call = self.begin_call(Arc::clone(&outgoing.options));
        call.share_among(1);
        let Outgoing {
            server,
            method,
            payload,
            body,
            ..
        } = outgoing;
        call.send_now(server, &method, payload, body);
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
        let id = message.call();
        let Some(from) = from else {
            return; // what runs here sends by itself
        };
        if let Err(error) = message.count_relay() {
            return self.cannot_pass_on(id, &error);
        }
        if !self.gatherings.keep(self, from, message) {
            self.pass_on_now(from, message);
        }
    }

    /// The same for one that waits for no others.
    pub(crate) fn pass_on_now(self: &Arc<Self>, from: &Arc<Peer>, message: &Message) {
        let id = message.call();
        let next = self.way_onward(id, message.token(), from);
        match (message, next) {
            (Message::Response(response), next) => {
                self.relay
                    .pass(self, Passing::new(from, next, response.clone()));
            }
            (other, Some(next)) => {
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

    // Deadlines of calls.

    fn note_deadline(&self, deadline: Instant) {
        let mut next = self
            .next_alarm
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if next.is_none_or(|next| deadline < next) {
            *next = Some(deadline);
            drop(next);
            self.set_alarm(deadline);
        }
    }

    fn set_alarm(&self, at: Instant) {
        timer::wake_endpoint(self.me.clone(), at);
    }

    /// Fails calls whose deadline has passed, and has connections looked at.
    pub(crate) fn alarm(&self, now: Instant) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let mut next = self
            .next_alarm
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let due = next.take_if(|next| *next <= now).is_some();
        drop(next);
        if due {
            self.end_late_calls(now);
        }
        if now >= locked(&self.next_tending).0 {
            self.tend_by(now + STALL_CHECK, true);
            if let Some(endpoint) = self.me.upgrade() {
                self.spawn(async move { endpoint.tend() });
            }
        }
        if now >= self.look_moment() {
            self.next_look.store(u64::MAX, Ordering::Release);
            if let Some(endpoint) = self.me.upgrade() {
                self.spawn(async move { endpoint.look() });
            }
        }
    }

    /// So many nanoseconds after it was made.
    pub(crate) fn moment(&self, nanoseconds: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanoseconds)
    }

    fn look_moment(&self) -> Instant {
        let micros = self.next_look.load(Ordering::Acquire).min(1 << 50); // 35 years
        self.epoch + Duration::from_micros(micros)
    }

    /// Calls or records are to be looked at by then.
    pub(crate) fn note_due(&self, moment: Instant) {
        let micros = moment.saturating_duration_since(self.epoch).as_micros() as u64;
        if micros < self.next_look.load(Ordering::Acquire) {
            self.set_look(moment, micros);
        }
    }

    /// The same, so many microseconds after the endpoint was made.
    fn note_due_at(&self, micros: u64) {
        if micros < self.next_look.load(Ordering::Acquire) {
            self.set_look(self.epoch + Duration::from_micros(micros), micros);
        }
    }

    #[inline(never)]
    fn set_look(&self, moment: Instant, micros: u64) {
        if self.next_look.fetch_min(micros, Ordering::AcqRel) > micros {
            self.set_alarm(moment);
        }
    }

    /// A request has arrived: its record is looked at after a ping period.
    pub(crate) fn note_request(&self, arrived: Instant) {
        self.note_due(arrived + DEFAULT_PING.period * 9 / 8);
    }

    fn end_late_calls(&self, now: Instant) {
        let age = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        loop {
            let late = self.calls().late(age); // the lock is not held while they end
            let Some(late) = late else { break };
            late.iter().for_each(|call| call.handle_deadline());
        }
        let next = self.calls().first_deadline();
        if let Some(next) = next {
            self.note_deadline(self.moment(next).max(now + DEADLINE_TICK));
        }
    }

    /// Something may wait on connections: they are looked at soon.
    pub(crate) fn tend_soon(&self) {
        if let Some(interval) = self.config.keep_alive.interval() {
            self.tend_by(Instant::now() + interval, false);
        }
    }

    /// Connections are looked at by then; not before, if they have just been.
    fn tend_by(&self, moment: Instant, afresh: bool) {
        let mut next = locked(&self.next_tending);
        if afresh || moment < next.0 {
            next.0 = moment;
            drop(next);
            self.set_alarm(moment);
        }
    }

    /// Gives up connections whose peers are silent while something waits for them, or whose large messages have stopped
    /// to grow and would hold their memory for ever. It runs where connections are driven: a runtime that was blocked
    /// has not listened.
    fn tend(&self) {
        let (settings, now) = (&self.config.keep_alive, self.epoch.elapsed());
        self.note_listening(now);
        let peers = self.pool.open();
        let mut waits = false;
        for peer in &peers {
            match peer.look(settings, now) {
                Ok(something) => waits |= something,
                Err(error) => {
                    self.meters.connections_silent.add();
                    tracing::warn!(?peer, %error, "the connection is given up");
                }
            }
        }
        if waits {
            self.tend_soon();
        }
        let late = Instant::now() >= locked(&self.next_tending).1;
        if late {
            locked(&self.next_tending).1 = Instant::now() + STALL_CHECK;
            peers.iter().for_each(Peer::check_stalled);
        }
    }

    // Whether the runtime listens.

    fn note_listening(&self, now: Duration) {
        self.listened.store(micros(now), Ordering::Release);
    }

    /// Whether the runtime may have been blocked for so long that peers believe this endpoint dead by `now`, in nanoseconds
    /// since it was made, and have closed their connections without its having noticed.
    pub(crate) fn was_away(&self, now: u64) -> bool {
        (now / 1000).saturating_sub(self.listened.load(Ordering::Acquire)) > self.away_after
    }

    /// Lets the runtime look at its sockets, and connections take what has arrived meanwhile.
    pub(crate) async fn listen(&self) {
        for _ in 0..LISTENING_TURNS {
            tokio::task::yield_now().await;
        }
        self.note_listening(self.epoch.elapsed());
    }

    // Connections.

    /// The connection to a server, dialled if need be; several who need it wait for the same one.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        server: &Address,
    ) -> Result<Arc<Peer>, ConnectError> {
        if let Some(peer) = self.pool.ready(server) {
            return Ok(peer);
        }
        if !self.config.dial_policy.permits_call(server) {
            return Err(self.forbid(server));
        }
        let (after, begun) = (self.config.dial_timeout, Instant::now());
        loop {
            let mut own = false;
            let dial = || {
                own = true;
                self.dial(server, None, after)
            };
            match self.dial_once(server, dial).await {
                // Somebody else's dial, which began earlier, had less time or wanted a certain life, says nothing about
                // this one.
                Err(ConnectError::TimedOut { .. }) if !own && begun.elapsed() < 2 * after => {}
                Err(ConnectError::Handshake {
                    source: ConnectionError::WrongNode { .. },
                    ..
                }) => {}
                result => return result,
            }
        }
    }

    /// Several who need a connection to the same address at the same time wait for one dial.
    async fn dial_once<F>(
        &self,
        server: &Address,
        dial: impl FnOnce() -> F,
    ) -> Result<Arc<Peer>, ConnectError>
    where
        F: Future<Output = Result<Arc<Peer>, ConnectError>>,
    {
        let slot = self.pool.slot(server);
        let result = slot.get_or_init(dial).await.clone();
        if result.is_err() {
            self.pool.forget(server, &slot);
        }
        result
    }

    /// A connection to an initiator, to answer it.
    pub(crate) async fn connect_initiator(
        self: &Arc<Self>,
        address: &Address,
        node: NodeId,
    ) -> Result<Arc<Peer>, ConnectError> {
        let after = self.config.dial_back_timeout;
        if !self.config.dial_policy.permits(address) {
            return Err(self.forbid(address));
        }
        if self.pool.is_unreachable(address, Some(node)) {
            return Err(ConnectError::TimedOut {
                server: address.clone(),
                after,
            });
        }
        let dial = || self.dial(address, Some(node), after);
        match self.dial_once(address, dial).await {
            Ok(peer) if peer.node() == Some(node) => Ok(peer),
            Ok(peer) => Err(ConnectError::Closed {
                server: address.clone(),
                reason: format!("node {node} is gone: {:?} answers there", peer.node()),
            }),
            Err(error) => {
                self.pool.set_unreachable(address, Some(node));
                Err(error)
            }
        }
    }

    /// The dial policy forbids an address: that is counted and logged.
    #[cold]
    pub(crate) fn forbid(&self, server: &Address) -> ConnectError {
        self.meters.dials_forbidden.add();
        if let Some(more) = self.sparse.forbidden.pass(self.age()) {
            tracing::warn!(%server, more, "not dialled: the dial policy forbids it");
        }
        ConnectError::Forbidden {
            server: server.clone(),
        }
    }

    async fn dial(
        self: &Arc<Self>,
        server: &Address,
        expected: Option<NodeId>,
        after: Duration,
    ) -> Result<Arc<Peer>, ConnectError> {
        if self.closed.load(Ordering::Acquire) {
            let reason = "this endpoint was closed".into();
            let server = server.clone();
            return Err(ConnectError::Unreachable { server, reason });
        }
        let opening = self.make_room().map_err(|limit| ConnectError::TooMany {
            server: server.clone(),
            limit,
        })?;
        let timed_out = || ConnectError::TimedOut {
            server: server.clone(),
            after,
        };
        let end = Instant::now() + after;
        let near = timer::timeout_at(end, self.dial_same_host(server));
        let (peer, opened) = match (near.await.ok_or_else(timed_out)?, server) {
            (Some(stream), _) => self.open_stream(server, expected, stream, opening),
            (None, Address::Udp(to)) => self.dial_session(*to, expected, opening)?,
            (None, _) => {
                let dialled = timer::timeout_at(end, self.dial_stream(server));
                let stream = dialled.await.ok_or_else(timed_out)??;
                self.open_stream(server, expected, stream, opening)
            }
        };
        // Whoever wants it has not used it yet when it opens: others that need room must not close it before.
        let _wanted = peer.want();
        match timer::timeout_at(end, opened).await {
            Some(Ok(Ok(()))) => Ok(Arc::clone(&peer)),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(ConnectError::Closed {
                server: server.clone(),
                reason: "it ended early".into(),
            }),
            None => {
                peer.end("the handshake took too long");
                Err(timed_out())
            }
        }
    }

    async fn dial_stream(&self, server: &Address) -> Result<(ReadHalf, WriteHalf), ConnectError> {
        let stream = transport::dial(server, self.config.ring).await;
        let stream = stream.ok_or_else(|| ConnectError::NoTransport {
            server: server.clone(),
        })?;
        stream.map_err(|error| ConnectError::from_dial(server, &error))
    }

    /// Drives a new connection that was dialled.
    fn open_stream(
        self: &Arc<Self>,
        server: &Address,
        expected: Option<NodeId>,
        (reader, writer): (ReadHalf, WriteHalf),
        opening: Opening,
    ) -> Opened {
        let connection = Connection::dial(Arc::clone(&self.hello), expected);
        self.adopt(connection, reader, writer, Some(server.clone()), opening)
    }

    /// Room for one more connection; the one that is closed for it, if any, is counted as ended.
    fn make_room(&self) -> Result<Opening, usize> {
        let (opening, closed) = self.pool.make_room()?;
        if let Some(closed) = closed {
            self.meters.connections_evicted.add();
            self.meters.connection_ended(closed.counters());
        }
        Ok(opening)
    }

    async fn accept(inner: Weak<Self>, listening: Arc<Listening>) {
        loop {
            let accepted = poll_fn(|cx| match locked(&listening).as_mut() {
                Some(listener) => listener.poll_accept(cx).map(Some),
                None => Poll::Ready(None),
            });
            let (Some(accepted), Some(endpoint)) = (accepted.await, inner.upgrade()) else {
                return;
            };
            match accepted {
                Ok((reader, writer)) => {
                    let connection = Connection::accept(Arc::clone(&endpoint.hello));
                    match endpoint.make_room() {
                        Ok(opening) => endpoint.welcome(connection, reader, writer, opening),
                        Err(limit) => {
                            let carrier = Carrier::Stream(connection, writer);
                            let peer = Peer::new(carrier, None, Arc::clone(&endpoint.liveness));
                            peer.end(&format!("all {limit} connections are in use"));
                        }
                    }
                }
                Err(error) => {
                    // Out of file descriptors, most likely: accepting again at once would only burn the processor.
                    tracing::error!(%error, "cannot accept a connection");
                    timer::sleep_until(Instant::now() + Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Drives a connection that somebody else has opened, and who must say who they are soon.
    fn welcome(
        self: &Arc<Self>,
        connection: Connection,
        reader: ReadHalf,
        writer: WriteHalf,
        opening: Opening,
    ) {
        let (peer, opened) = self.adopt(connection, reader, writer, None, opening);
        let after = self.config.dial_timeout;
        self.spawn(async move {
            if timer::timeout_at(Instant::now() + after, opened)
                .await
                .is_none()
            {
                peer.end("the handshake took too long");
            }
        });
    }

    /// Drives a new connection in a task of its own; the receiver learns when its handshake is done.
    fn adopt(
        self: &Arc<Self>,
        connection: Connection,
        reader: ReadHalf,
        writer: WriteHalf,
        dialled: Option<Address>,
        opening: Opening,
    ) -> Opened {
        let (opened, receiver) = oneshot::channel();
        let carrier = Carrier::Stream(connection, writer);
        let peer = Peer::new(carrier, self.delay.clone(), Arc::clone(&self.liveness));
        peer.flush_now();
        let mut dispatcher = Dispatcher::new(Arc::clone(self), dialled, opened, opening);
        let (driven, endpoint) = (Arc::clone(&peer), Arc::clone(self));
        let drive = async move {
            let end = driven.drive(reader, &mut dispatcher).await;
            endpoint.connection_ended(&driven, &dispatcher.ended(end));
        };
        self.spawn(drive);
        (peer, receiver)
    }

    /// A connection's handshake is done.
    pub(crate) fn connection_opened(&self, peer: &Arc<Peer>, dialled: Option<&Address>) {
        self.meters.connections_opened.add();
        self.session_opened(peer);
        for stale in self.pool.opened(peer, dialled) {
            stale.end("another life answers at this address");
        }
        if let Some(node) = peer.node() {
            self.found_way(node);
        }
        if self.closed.load(Ordering::Acquire) {
            peer.end("the endpoint was closed");
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn connection_ended(self: &Arc<Self>, peer: &Arc<Peer>, reason: &str) {
        if self.pool.remove(peer) {
            self.meters.connection_ended(peer.counters());
        }
        tracing::debug!(?peer, reason, "connection ended");
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        self.session_ended(peer);
        self.gatherings.connection_ended(self, peer);
    }

    // Requests.

    fn services_mut(&self) -> RwLockWriteGuard<'_, HashMap<Arc<str>, Arc<Registered>>> {
        self.services
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, service: Service) -> Result<(), ServeError> {
        let mut services = self.services_mut();
        // Under the lock: `close` takes them away once.
        if self.is_closed() {
            return Err(ServeError::Closed);
        }
        for method in &service.methods {
            let name = method.definition.name();
            if name.starts_with("wallaby.") {
                return Err(ServeError::Reserved {
                    name: name.to_string(),
                });
            }
            let twice = service
                .methods
                .iter()
                .filter(|other| other.definition.name() == name)
                .count()
                > 1;
            if twice || services.contains_key(name) {
                return Err(ServeError::Taken {
                    name: name.to_string(),
                });
            }
        }
        for method in service.methods {
            let name = Arc::clone(method.definition.name());
            let wrap = |inner, layer: &Arc<dyn crate::service::Layer>| layer.wrap(&name, inner);
            let handler = self.config.layers.iter().fold(method.handler, wrap);
            services.insert(
                Arc::clone(&name),
                Arc::new(Registered {
                    definition: method.definition,
                    handler,
                }),
            );
        }
        Ok(())
    }

    /// What this endpoint does with a method that a caller names.
    pub(crate) fn method(&self, caller: &MethodDefinition) -> Result<Arc<Registered>, Status> {
        let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
        let Some(method) = services.get(caller.name()) else {
            return Err(Status::new(
                Code::Unimplemented,
                format!("no method {} here", caller.name()),
            ));
        };
        method.check(caller).map(|()| Arc::clone(method))
    }

    /// A request is ready for its handler. It may start now, waits in the queue, or was refused.
    pub(crate) fn admit(
        &self,
        handling: &Arc<Handling>,
        handler: &Arc<dyn Handler>,
        payload: bytes::Bytes,
    ) -> Admitted<Job> {
        let urgency = self.executor.urgency(|| handling.age(), handling.deadline);
        let job = Job {
            handling: Arc::clone(handling),
            handler: Arc::clone(handler),
            payload,
        };
        let admission = self.executor.admit(job, urgency);
        match &admission {
            Admitted::Run(_) => {}
            Admitted::Queued => handling.enlist(),
            Admitted::Refused(job) => self.refuse(job),
        }
        admission
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, job: &Job) {
        self.meters.requests_refused.add();
        let (running, waiting) = self.executor.load();
        let message =
            format!("{running} handlers run and {waiting} requests wait: no more are taken");
        job.handling
            .fail(&Status::new(Code::ResourceExhausted, message));
    }

    /// A handler is done: the next request in the queue takes its place.
    pub(crate) fn release(endpoint: &Arc<Self>) {
        if let Some(job) = endpoint.executor.release() {
            endpoint.spawn_late(job);
        }
    }

    #[inline(never)]
    fn spawn_late(&self, job: Job) {
        self.spawn(async move { job.start_late() });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends without client middleware.
struct Base(Weak<Inner>);

impl Sender for Base {
    fn send(&self, outgoing: Outgoing) -> RawCall {
        let endpoint = self.0.upgrade().expect("whoever sends holds the endpoint");
        Inner::send(&endpoint, outgoing)
    }
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
