//! One endpoint without IO: everything between the sockets and the application, for every driver.
//!
//! An [`Endpoint`] is client and server at once. It is told what happened outside (`handle_*`) and what the application does
//! (verbs), and says what is to be done ([`Endpoint::poll_output`], [`Endpoint::poll_timeout`]). It owns no socket, no
//! clock and no handler, and decides everything else: which connection a message takes, what waits, what is dialled, which
//! requests are handled, how calls end. A *shell* around it moves bytes and runs handlers, and decides nothing.
//!
//! | file | what is in it |
//! |---|---|
//! | `config`, `event`, `probe` | what an endpoint is set to; what it says; what a simulator sees of it |
//! | [`client`] | one call at its initiator: it is told what came, and says what is to be done |
//! | `calls`, `call_table` | all calls, and the table of them by their sequence |
//! | `following`, `call_options` | what is done for calls, to their ends; how one is made |
//! | `initial`, `resending` | initial requests: how they leave, what becomes of them, and how they are sent again |
//! | `answers`, `watching`, `asking` | what calls do with answers, what they learn of their servers, and how these are asked |
//! | `order`, `missing` | answers in the order in which they were sent; what is told of missing branches when a call ends |
//! | [`server`] | one request at its server: what its handler sends and owes, and how far it is |
//! | `handler_table` | the table of requests that are handled or wait for it, by their keys |
//! | `requests`, `refused`, `telling` | all requests: what is handled, which way that leaves, what is refused, and what is told of them |
//! | `behalf` | calls on behalf of requests: what they inherit, and what ends them |
//! | `bodies` | what follows requests: bytes, read and written piece by piece |
//! | `methods` | which methods are served, and which of them a caller means |
//! | `permits`, `draining`, `stopping` | which requests run and which wait; how an endpoint, and what was stopped, come to rest |
//! | `panicked` | what becomes of an endpoint in which something has panicked |
//! | `routing`, `sending` | which route messages take, how they are handed over, what reaches nobody |
//! | `queues`, `answer_queues`, `queue_room` | what waits for a connection, and the room for it |
//! | `relaying` | what is relayed for others |
//! | `conns`, `conn`, `streams` | connections: who makes room, how they begin and end, how streams come and go |
//! | `directory`, `dialling` | which connection leads where, and which are being opened |
//! | `sockets` | UDP sockets: which one an address is dialled from, what comes and leaves by them |
//! | `metrics` | what an endpoint counts |
//!
//! # What a shell owes
//!
//! - [`set_time`](Endpoint::set_time) before whatever it tells, by a clock that does not go back.
//! - All that has arrived is handed over before [`handle_timeout`](Endpoint::handle_timeout): else silence is found where
//!   somebody has spoken.
//! - Everything that came over a stream is handed over before its end.
//! - If it has not read for long, it reads before it writes ([`Config::reads_first`]).
//! - After each of its entries it drains [`poll_output`](Endpoint::poll_output), and it asks
//!   [`poll_timeout`](Endpoint::poll_timeout) before it waits: time stands still for the endpoint while nobody looks at that.
//! - A body that came with a request it reads to its end, or drops; one that it sends it ends, or abandons.
//! - Of a call that has [ended](Next::Ended) it asks nothing more: where calls are kept, or something has panicked, it is told the same
//!   for ever.
//! - If what runs its handlers ends, it says so ([`runtime_ended`](Endpoint::runtime_ended), then [`stop_all`](Endpoint::stop_all)) before
//!   it drops them.
//! - If a panic comes out of the endpoint, [`handle_panic`](Endpoint::handle_panic) is next.
//! - Keys of what has ended are ignored. [`Output::Close`] may come while its dial is still under way, and [`Output::Write`]
//!   before that has succeeded.
//!
//! Nothing here calls back, but for a dial policy's closures, which must not call the endpoint.
//!
//! # What wakes an endpoint
//!
//! [`poll_timeout`](Endpoint::poll_timeout) is the earliest of these times. Those of the state machines are by a clock that stands
//! still while nobody listens ([`Clock`]); `find_due` knows them, and they are done in this order:
//!
//! | what wakes | who sets it | what is done then |
//! |---|---|---|
//! | streams: `withheld` | input that is large, while there is no room for more of it | grants what there is room for by now |
//! | streams: `silence` | `begin_looking`, when something may wait for a peer; then each look, as long as something does | asks peers that are silent, and ends connections with those that stay so |
//! | streams: `stalled` | the first stream; then each look, as long as there are streams | ends connections whose large messages do not grow |
//! | `dialling` | `open_until`: with a dial, and where a peer's last words are still read | gives connections up, or lets a late dial go on without messages |
//! | `places` | a connection that came in, until it is seen to be of use | ends it |
//! | `farewells` | the end of a connection that calls have used | tells more calls of it, a batch at a time |
//! | `queue_room` | room for what was refused, where that was told a moment ago | [`Output::Space`] |
//! | `unrouted` | an answer to which no route leads | drops it: its initiator asks for it |
//! | `records` | what they are told | announces requests, stops those whose initiators are silent, forgets what is over |
//! | `fresh` | `begin`: a ping period after that, and a little, so that many calls are looked at together | puts the call's deadline among the alarms, and has it watched |
//! | `watched` | a call, after each thing that it is told | [`ClientCall::handle_timeout`](client::ClientCall::handle_timeout): asks servers, finds that they are silent |
//!
//! The others are by the shell's clock. Sockets are looked at before all that, alarms after it:
//!
//! | what wakes | who sets it | what is done then |
//! |---|---|---|
//! | `sockets` | sessions over UDP, each in its gate; [`Shell::timers_wait`] puts off those that want nothing | sends again what was lost, acknowledges, asks silent peers, ends sessions |
//! | `Alarm::Call` | a look at a call that has lasted a ping period, or is watched | the call fails by its deadline |
//! | `Alarm::Request` | `enter`, while a request waits for its turn or is put aside: a little after its deadline | it is answered that its time is over |
//! | `Alarm::Resend` | a call whose initial request was lost | sends the request again |
//! | `Alarm::Body` | a delegation that a body follows | breaks the body off |
//! | `Alarm::EndedRequests` | the abort of a request that has delegated what still waits | drops what waits in vain |
//! | `Alarm::Grace` | the stop of a handler that goes on, until [`Config::grace`] is over | tells of it ([`Output::Stuck`]); it keeps its place no longer |
//! | `Alarm::Grace`, too | the end of a handler whose request was stopped, while calls on its behalf go on | the request ends: they are waited for no longer |
//! | `Alarm::Rest` | an endpoint that is drained, while further attempts may begin | the next `poll_output` finds it drained |
//!
//! `due` is never later than the first of the state machines' times, so that it need not be found for each entry. `written_next` and
//! `purge_next` only keep something from being done again too soon.
//!
//! # A whole driver
//!
//! Over streams that are two buffers each, in place of sockets. Handlers here answer with what they were asked.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use bytes::BytesMut;
//! use wallaby_proto::connection::MethodDefinition;
//! use wallaby_proto::endpoint::{
//!     Config, ConnId, Endpoint, InputOutcome, NewInitial, Next, Outcome, Output, Schemes, Seeds, Serving,
//! };
//! use wallaby_proto::{Address, NodeId, Status};
//!
//! struct Shell {
//!     endpoint: Endpoint,
//!     /// Which of the streams is whose: a dialler reads from the first buffer of its, an acceptor from the second.
//!     streams: BTreeMap<ConnId, (usize, usize)>,
//!     heard: Vec<Next>,
//! }
//!
//! impl Shell {
//!     fn turn(&mut self, network: &mut Vec<[BytesMut; 2]>, now: Duration) {
//!         let Self { endpoint, streams, heard } = self;
//!         endpoint.set_time(now);
//!         for (conn, (stream, side)) in streams.clone() {
//!             while endpoint.handle_input(conn, &mut network[stream][side]) == InputOutcome::More {}
//!         }
//!         if endpoint.poll_timeout().is_some_and(|due| due <= now) {
//!             endpoint.handle_timeout();
//!         }
//!         while let Some(output) = endpoint.poll_output() {
//!             match output {
//!                 Output::Dial(conn, _) => {
//!                     streams.insert(conn, (network.len(), 0));
//!                     network.push(Default::default());
//!                 }
//!                 Output::Write(conn) => {
//!                     let (stream, side) = streams[&conn];
//!                     let written = endpoint.output(conn);
//!                     network[stream][1 - side].extend_from_slice(written);
//!                     let written = written.len();
//!                     endpoint.advance(conn, written);
//!                     endpoint.handle_written(conn);
//!                 }
//!                 Output::Run(request) => {
//!                     let Ok(incoming) = endpoint.take_request(request) else {
//!                         continue; // its abort has come with it
//!                     };
//!                     if let Some(body) = incoming.body {
//!                         endpoint.drop_body(body); // nobody reads bodies here
//!                     }
//!                     let sent = endpoint.respond(request, incoming.payload);
//!                     endpoint.returned(request, sent.map_err(Status::from));
//!                 }
//!                 Output::Call(call) => loop {
//!                     match endpoint.next_answer(call) {
//!                         Next::Pending => break,
//!                         ended @ Next::Ended(_) => break heard.push(ended),
//!                         next => heard.push(next),
//!                     }
//!                 },
//!                 Output::Close(conn, _) => drop(streams.remove(&conn)),
//!                 _ => {} // nothing is put aside here, nor dialled over UDP
//!             }
//!         }
//!     }
//! }
//!
//! # let seed = |node: u64| { let mut seed = [7; 16]; seed[0] = node as u8; seed };
//! let shell = |node| {
//!     let node = NodeId::new(node).unwrap();
//!     let config = Config { schemes: Schemes::new(["mem"]), ..Config::default() };
//!     let seed = seed(node.get()); // in earnest: random, and another one for each
//!     let seeds = Seeds { tokens: seed, cookies: seed };
//!     let endpoint = Endpoint::new(config, node, None, seeds);
//!     Shell { endpoint, streams: BTreeMap::new(), heard: Vec::new() }
//! };
//! let (mut client, mut server) = (shell(1), shell(2));
//! let echo = Arc::new(MethodDefinition::new("example.Echo/say", "raw", 0, 0).unwrap());
//! server.endpoint.serve(echo.clone(), Serving { one: true, ..Serving::default() })?;
//!
//! let at: Address = "mem://server".parse()?;
//! let call = client.endpoint.begin(&Default::default())?;
//! client.endpoint.send_only(call, NewInitial::new(&at, &echo, "hop".into()))?;
//! let mut network = Vec::new();
//! client.turn(&mut network, Duration::ZERO); // it dials
//! server.streams.insert(server.endpoint.handle_accepted(), (0, 1));
//! for turn in 1..5 {
//!     server.turn(&mut network, Duration::from_millis(turn));
//!     client.turn(&mut network, Duration::from_millis(turn));
//! }
//! let [Next::Answer(answer), Next::Ended(Outcome::Complete { statuses: 0 })] = &client.heard[..] else {
//!     panic!("{:?}", client.heard);
//! };
//! assert_eq!(answer.clone().payload()?, "hop");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer_queues;
mod answers;
mod asking;
mod behalf;
mod bodies;
mod call_options;
mod call_table;
mod calls;
pub mod client;
mod config;
mod conn;
mod conns;
mod dialling;
mod directory;
mod draining;
mod event;
mod following;
mod handler_table;
mod initial;
mod methods;
mod metrics;
mod missing;
mod order;
mod panicked;
mod permits;
mod probe;
mod queue_room;
mod queues;
mod refused;
mod relaying;
mod requests;
mod resending;
mod routing;
mod sending;
pub mod server;
mod sockets;
mod stopping;
mod streams;
mod telling;
mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use self::bodies::{BodyEnd, BodyNext, InBody, OutBody};
pub use self::call_options::CallOptions;
pub use self::config::{Config, Limits, Schemes, Seeds, Shell};
pub use self::event::{
    CallKey, Closed, IncomingAnswer, IncomingRequest, Lane, Next, Outcome, Output, Placed,
    ReportedEnd, RequestKey, StuckHandler,
};
pub use self::initial::NewInitial;
pub use self::methods::Serving;
pub use self::metrics::Metrics;
pub use self::permits::Permit;
pub use self::probe::{Leaving, Note, Probe, Released};
pub use self::requests::{DelegateOptions, How, NewDelegation, Offer, Offered};
pub use self::resending::Resend;
pub use self::server::{Author, Destination, HandledRequest, Outline, Returned, Sending};
pub use self::sockets::{SocketId, reaches};
pub use self::streams::{InputOutcome, StreamEnd};
pub use crate::executor::Load;
pub use crate::id::ConnId;

use self::bodies::Bodies;
use self::call_table::CallTable;
use self::conn::{Conn, Conns, Parcel};
use self::conns::note_progress;
use self::dialling::Dialling;
use self::directory::Directory;
use self::draining::{Draining, Lifecycle};
use self::following::LostCalls;
use self::handler_table::Handlers;
use self::methods::Methods;
use self::queue_room::QueueRoom;
use self::sockets::Sockets;
use self::stopping::GoesOn;
use self::streams::StreamTimes;
use self::watching::{BATCH, Farewell};
use crate::call::clock::{Clock, earliest};
use crate::call::records::{RecordLimits, Records, Remembered, Ticket, written_next};
use crate::call::room::BranchRoom;
use crate::call::shares::Shares;
use crate::call::waiting::WaitingAnswers;
use crate::connection::{Bounds, ConnectionSlots, Event as News, Hello, Partials};
use crate::datagram::SessionEvent;
use crate::error::Breakdown;
use crate::executor::Executor;
use crate::numbers::{DEFAULT_DEADLINE, DEFAULT_PING};
use crate::wire::{Message, PingSettings};
use crate::{Address, NodeId, RequestId, Status};

/// Longer times than this are as good as none.
const LONGEST: Duration = PingSettings::LONGEST;

/// Nothing is due.
const NEVER: Duration = Duration::MAX;

/// How much an endpoint holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Sizes {
    /// Calls that live.
    pub calls: usize,
    /// Requests that are handled, or wait for it.
    pub requests: usize,
    /// What the records hold.
    pub remembered: Remembered,
    /// Answers to which no route leads.
    pub unrouted: usize,
    /// Connections.
    pub connections: usize,
    /// Bodies of requests that are read or written.
    pub bodies: usize,
}

/// Something that happens at a time of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// The deadline of a call.
    Call(u64),
    /// The deadline of a request that was put aside, or waits for its turn.
    Request(RequestKey),
    /// An initial request is sent again.
    Resend(u64, RequestId),
    /// The deadline of a delegation that a body follows.
    Body(OutBody),
    /// Requests may wait that are not sent any more.
    EndedRequests,
    /// A handler that goes on though its request was stopped has had its time.
    Grace(RequestKey),
    /// So has who waits until nothing of a call runs any more.
    Awaited(u64),
    /// A draining endpoint has waited for long enough for further attempts.
    Rest,
}

/// One participant, client and server at once, without IO.
#[derive(Debug)]
pub struct Endpoint<P = ()> {
    /// Who looks on.
    probe: P,
    config: Config,
    node: NodeId,
    address: Option<Address>,
    /// What tokens are derived from.
    secret: [u8; 16],
    /// What it says of itself to others.
    hello: Arc<Hello>,
    sockets: Sockets,
    clock: Clock,
    /// The time, since the moment that the shell's clock counts from: deadlines are kept by it, and the gates, since what they
    /// wait for are peers for whom time has not stood still.
    raw: Duration,
    /// The same, but it stood still while nobody listened: all other state machines keep to it.
    now: Duration,
    /// The Unix time when the shell's clock began, for traces.
    epoch: Duration,
    metrics: Metrics,
    outputs: VecDeque<Output>,
    /// What streams hold for their peers.
    bounds: Bounds,
    /// How many branches its calls know together.
    branches: BranchRoom,

    conns: Conns,
    stream_times: StreamTimes,
    /// Which of them are strangers, and in which order the others make room.
    places: ConnectionSlots<ConnId>,
    directory: Directory,
    dialling: Dialling,
    queue_room: QueueRoom,
    lost: LostCalls,
    /// When it may be looked again which requests wait in vain.
    purge_next: Duration,
    /// Who has how much of the room for answers that are relayed.
    relayed: Shares,
    /// Answers to which no route leads.
    unrouted: WaitingAnswers<Parcel>,
    /// The number of this turn: a connection that is used keeps it, so that the one used least recently is found.
    used: u64,

    records: Records,
    /// When the records learn next what has been acknowledged.
    written_next: Duration,
    methods: Methods,
    handlers: Handlers,
    /// Requests that were stopped, ended or not, of which something goes on here.
    going_on: BTreeMap<RequestKey, GoesOn>,
    executor: Executor<RequestKey>,
    /// Of those that were put aside, or wait for their turn.
    tickets: BTreeMap<Ticket, RequestKey>,
    bodies: Bodies,

    calls: CallTable,
    /// Calls on behalf of requests.
    within: BTreeSet<(RequestKey, u64)>,
    /// Calls that are watched over, by when they are to be looked at.
    watched: BTreeSet<(Duration, u64)>,
    /// Calls that were not looked at yet, in the order in which they began, and when that was.
    fresh: VecDeque<(Duration, u64)>,
    /// How long the first of them waits for others: those that begin in quick succession are looked at many at a time.
    fresh_for: Duration,
    alarms: BTreeSet<(Duration, Alarm)>,
    /// The state machines are looked at by then, or sooner: those that it was for may have gone.
    due: Duration,
    /// Connections that have ended, as long as not all calls were told.
    farewells: VecDeque<Farewell>,
    /// Answers of this endpoint to its own calls.
    local: VecDeque<Message>,
    /// Initial requests that cannot be sent, as is known at once, of calls that go on without what is lost.
    unsent: Vec<(u64, RequestId, crate::error::Failure)>,
    /// Answers that the application has not taken.
    untaken: usize,
    /// Bytes of initial requests that are kept to be sent again.
    kept: u64,
    lifecycle: Lifecycle,
    /// Why it could not go on, if so.
    breakdown: Option<Breakdown>,
    draining: Draining,
}

impl Endpoint {
    /// An endpoint of this incarnation, which tells others that it is reached at this address.
    pub fn new(config: Config, node: NodeId, address: Option<Address>, seeds: Seeds) -> Self {
        Self::with_probe(config, node, address, seeds, ())
    }
}

impl<P: Probe> Endpoint<P> {
    /// The same, with somebody who looks on.
    pub fn with_probe(
        config: Config,
        node: NodeId,
        address: Option<Address>,
        seeds: Seeds,
        probe: P,
    ) -> Self {
        let hello = Arc::new(config.hello(node, address.clone()));
        let sessions = config.sessions();
        let limits = RecordLimits {
            requests: config.remembered,
            kept_bytes: config.kept_bytes,
            ping: DEFAULT_PING,
            deadline: DEFAULT_DEADLINE,
            requests_of_call: config.requests_of_call,
            patience: config.initiator_timeout,
            shortest_heartbeat: config.shortest_heartbeat,
            ..RecordLimits::default()
        };
        let places = ConnectionSlots::new(config.strangers);
        let dialling = Dialling::new(config.dial_policy.limits(), config.limits.connections);
        let bounds = Bounds {
            output: config.limits.output,
            partials: Partials::new(config.limits.partials),
        };
        let branches = BranchRoom::new(config.limits.branches);
        let unrouted = WaitingAnswers::new(config.unrouted);
        let fresh_for = config.ping.period.saturating_mul(9) / 8;
        let queue_room = QueueRoom::new(config.limits.waiting);
        let executor = Executor::new(config.executor.clone());
        let relayed = usize::try_from(config.limits.relayed).unwrap_or(usize::MAX);
        Self {
            probe,
            config,
            node,
            address,
            secret: seeds.tokens,
            sockets: Sockets::new(
                Arc::clone(&hello),
                seeds.cookies,
                sessions,
                bounds.partials.clone(),
            ),
            bounds,
            branches,
            hello,
            clock: Clock::default(),
            raw: Duration::ZERO,
            now: Duration::ZERO,
            epoch: Duration::ZERO,
            metrics: Metrics::default(),
            outputs: VecDeque::new(),
            conns: Conns::default(),
            stream_times: StreamTimes::default(),
            places,
            directory: Directory::default(),
            dialling,
            queue_room,
            lost: LostCalls::default(),
            purge_next: Duration::ZERO,
            relayed: Shares::new(relayed),
            unrouted,
            used: 0,
            records: Records::new(limits),
            written_next: Duration::ZERO,
            methods: Methods::default(),
            handlers: Handlers::default(),
            going_on: BTreeMap::new(),
            executor,
            tickets: BTreeMap::new(),
            bodies: Bodies::default(),
            calls: CallTable::default(),
            within: BTreeSet::new(),
            watched: BTreeSet::new(),
            fresh: VecDeque::new(),
            fresh_for,
            alarms: BTreeSet::new(),
            due: NEVER,
            farewells: VecDeque::new(),
            local: VecDeque::new(),
            unsent: Vec::new(),
            untaken: 0,
            kept: 0,
            lifecycle: Lifecycle::Open,
            breakdown: None,
            draining: Draining::default(),
        }
    }

    /// The time of the latest [`set_time`](Self::set_time).
    pub fn time(&self) -> Duration {
        self.raw
    }

    /// What it has counted itself: all but what its connections and sockets have.
    pub fn counted(&self) -> &Metrics {
        &self.metrics
    }

    /// Who looks on.
    pub fn probe(&mut self) -> &mut P {
        &mut self.probe
    }

    /// The endpoint's incarnation.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Where others reach it: what it tells them.
    pub fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// What it says of itself to those that it is connected to.
    pub fn hello(&self) -> &Arc<Hello> {
        &self.hello
    }

    /// How it is set.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it holds at most.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// How much time a call has that is made like this.
    pub fn time_of(&self, options: &CallOptions) -> Duration {
        self.config.time(options.deadline, None)
    }

    /// What it has counted.
    pub fn metrics(&self) -> Metrics {
        let datagrams = self.sockets.counts();
        let mut metrics = Metrics {
            datagrams_received: datagrams.received,
            datagrams_sent: datagrams.sent,
            datagrams_dropped: datagrams.dropped,
            ..self.metrics
        };
        for (_, conn) in self.conns.iter() {
            if let Some(carrier) = conn.link.peek(&self.sockets) {
                metrics.add_carried(carrier.counters());
            }
        }
        metrics
    }

    /// How many calls live, how many requests are handled, and how many connections there are.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            calls: self.calls.len(),
            requests: self.handlers.len(),
            remembered: self.records.remembered(),
            unrouted: self.unrouted.len(),
            connections: self.conns.len(),
            bodies: self.bodies.len(),
        }
    }

    /// What is to be done next, or has happened; `None` when that is all.
    #[inline]
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.settle();
        }
        match self.outputs.pop_front() {
            None if self.is_draining() => self.poll_draining(),
            None => self.sockets.tell().map(Output::Datagrams),
            output => output,
        }
    }

    /// Whether there is something to be done, but for [`Output::Drained`], which may be next all the same.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty() || self.is_unsettled() || self.sockets.have_news()
    }

    // Time.

    /// It is so late by the shell's clock.
    pub fn set_time(&mut self, raw: Duration) {
        self.raw = raw.max(self.raw);
        self.now = self.clock.turn(self.raw);
    }

    /// The state machines have to be looked at by then.
    #[inline]
    fn note_due(&mut self, due: Duration) {
        self.due = self.due.min(due);
    }

    /// When something has to be done next, by the state machines' clock. The gates have their own.
    fn find_due(&self) -> Option<Duration> {
        let fresh = self.fresh.front();
        let fresh = fresh.map(|(begun, _)| begun.saturating_add(self.fresh_for));
        let watched = self.watched.first().map(|first| first.0);
        let mut due = earliest(self.records.next_timeout(), self.stream_times.due());
        due = earliest(
            due,
            earliest(self.places.next_timeout(), self.queue_room.due()),
        );
        if !self.farewells.is_empty() {
            due = Some(self.now);
        }
        if !self.unrouted.is_empty() {
            due = earliest(due, self.unrouted.next_timeout());
        }
        if fresh.is_some() || watched.is_some() {
            due = earliest(due, earliest(fresh, watched));
        }
        if self.dialling.is_opening() {
            due = earliest(due, self.dialling.next_timeout());
        }
        due
    }

    /// When the endpoint has to be looked at next, by the shell's clock; `None` is never. Nothing is to be done at once if
    /// [`poll_output`](Self::poll_output) has said so since the last entry. It may be too soon, if what was to be done has gone.
    pub fn poll_timeout(&mut self) -> Option<Duration> {
        let alarm = self.alarms.first().map(|first| first.0);
        if self.is_closed() {
            return alarm; // handlers may go on, and whoever drains it waits
        }
        if let Some(sooner) = self.records.take_sooner() {
            self.note_due(sooner);
        }
        if self.due <= self.now {
            self.due = self.find_due().unwrap_or(NEVER); // all that was due is done
        }
        debug_assert!(self.find_due().is_none_or(|due| self.due <= due));
        let due = (self.due != NEVER).then_some(self.due);
        self.clock.arm(due);
        let machines = due.map(|due| self.clock.raw(due));
        if !self.config.shell.timers_wait.is_zero() {
            let until = self.raw.saturating_add(self.config.shell.timers_wait);
            self.sockets.put_off_timers(until);
        }
        earliest(earliest(machines, self.sockets.next_timeout()), alarm)
    }

    /// The Unix time was this when the shell's clock began, for traces.
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.epoch = epoch;
    }

    /// Another turn of the shell begins: connections that are used in different turns are told apart by it, where one has to make
    /// room.
    pub fn begin_turn(&mut self) {
        self.used += 1;
    }

    /// Does what is due. All that has arrived must have been handled.
    pub fn handle_timeout(&mut self) {
        self.sockets.handle_timeout(self.raw);
        let now = self.now;
        if self.find_due().is_some_and(|due| due <= now) {
            self.look_at_streams();
            self.end_dials();
            self.dismiss_the_silent();
            self.note_written();
            self.tell_farewells();
            self.tell_space_late();
            self.give_up_unrouted();
            self.records.handle_timeout(now);
            self.look_at_calls();
        }
        for _ in 0..BATCH {
            let due = self.alarms.first().filter(|first| first.0 <= self.raw);
            let Some(&(_, alarm)) = due else {
                break;
            };
            self.alarms.pop_first();
            match alarm {
                Alarm::Call(sequence) => self.call_deadline(sequence),
                Alarm::Request(key) => self.request_deadline(key),
                Alarm::Resend(sequence, request) => self.send_kept(sequence, request),
                Alarm::Body(body) => self.body_deadline(body),
                Alarm::EndedRequests => {
                    if !self.drop_ended_requests() {
                        self.alarms.insert((self.purge_next, alarm));
                    }
                }
                Alarm::Grace(key) => self.end_grace(key),
                Alarm::Awaited(sequence) => {
                    self.outputs.push_back(Output::Settled(CallKey(sequence)));
                }
                Alarm::Rest => {} // whoever asks what is next learns it
            }
        }
        self.settle();
    }

    /// Whether something is to be followed up.
    #[inline]
    fn is_unsettled(&self) -> bool {
        let told = self.farewells.is_empty() && self.local.is_empty();
        let told = told && !self.bodies.has_freed();
        let told = told && self.unsent.is_empty();
        !told || self.sockets.have_events() || self.records.has_actions()
    }

    /// Follows up what datagrams and the application's verbs have brought, and what the endpoint has told itself.
    #[inline]
    pub fn settle(&mut self) {
        if self.is_unsettled() {
            self.settle_all();
        }
    }

    #[inline(never)]
    fn settle_all(&mut self) {
        self.tell_farewells();
        loop {
            for socket in self.sockets.ids() {
                while let Some(mut told) = self.sockets.poll_event(socket) {
                    self.handle_session(socket, &mut told);
                }
            }
            self.send_followed();
            self.act();
            // What was done may have ended sessions.
            if !self.sockets.have_events() {
                return;
            }
        }
    }

    fn handle_session(&mut self, socket: SocketId, (session, event): &mut SessionEvent) {
        match event {
            Ok(News::Opened(hello)) => self.session_opened((socket, *session), hello),
            Ok(news) => {
                if let Some(id) = self.conns.over((socket, *session)) {
                    self.handle_news(id, news);
                }
            }
            Err(ended) => self.session_ended((socket, *session), ended),
        }
    }

    /// The records learn what has left for peers, or was acknowledged; not each time, as there may be many peers.
    fn note_written(&mut self) {
        if self.now < self.written_next {
            return;
        }
        self.written_next = written_next(self.now, self.conns.len());
        for (id, conn) in self.conns.iter() {
            if let Some(progress) = self.has_left(conn) {
                note_progress(&mut self.records, id, progress);
            }
        }
    }

    // Connections.

    /// Something has come over a connection.
    fn handle_news(&mut self, id: ConnId, news: &mut News) {
        if let News::Message(message) = news
            && !(self.probe.comes(Some(id), message) && self.heard(id, message))
        {
            return;
        }
        match news {
            News::Message(Message::Request(request)) => self.admit(id, request),
            News::Message(Message::Ping(ping)) => self.handle_ping(id, ping),
            News::Message(message) => self.handle_answer(Some(id), message),
            News::Opened(hello) => self.opened(id, hello),
            News::Method(_, definition) => self.learn_method(id, definition),
            News::Credit(granted) => {
                self.look_at_bodies(id);
                self.pump_for(id, *granted);
            }
            News::GoingAway { read, .. } => {
                if let Some(stream) = self.conns.get_mut(id).and_then(Conn::stream_mut) {
                    stream.read = *read;
                }
                self.going_away(id);
            }
            News::TooLarge { message, size } => self.handle_too_large(id, message, *size),
            News::Closed(reason) => self.closed_by_peer(id, std::mem::take(reason)),
            News::Body(number, event) => self.handle_body(id, *number, event),
        }
        if let Some(echo) = self.probe.echoes() {
            self.handle_news(id, &mut News::Message(echo));
        }
    }

    /// The records want something done.
    fn act(&mut self) {
        self.tell_of_unsent();
        loop {
            while let Some(action) = self.records.poll() {
                self.act_on_records(action);
            }
            let Some(mut message) = self.local.pop_front() else {
                return;
            };
            if self.probe.comes(None, &mut message) {
                self.handle_answer(None, &mut message);
            }
        }
    }

    /// The status, as one of this endpoint.
    fn own(&self, status: Status) -> Status {
        status.by(self.address.as_ref())
    }
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Endpoint>(); // shells may keep it behind a lock
};
