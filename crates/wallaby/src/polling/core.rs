//! All of an endpoint but its datagrams and its handlers: what it knows, and what becomes of what arrives.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::call::clock::{Clock, earliest};
use wallaby_proto::call::records::{RecordLimits, Records, Ticket};
use wallaby_proto::call::room::BranchRoom;
use wallaby_proto::connection::{
    Bounds, Dials, Event as News, Hello, MethodDefinition, Partials, Places,
};
use wallaby_proto::datagram::{Gate, Settings};
use wallaby_proto::wire::Message;
use wallaby_proto::{Address, Code, NodeId, Status};

use super::builder::Config;
use super::calls::Calls;
use super::event::{Event, RequestKey};
use super::peer::{PeerId, Peers, Refused};
use super::requests::{Held, Job};
use super::streams::Streams;
use crate::endpoint::{DEFAULT_DEADLINE, DEFAULT_PING};
use crate::error::BindError;
use crate::liveness::written_next;
use crate::random;

/// What an endpoint has seen that it does not tell anybody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Datagrams received, whatever became of them.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams dropped: damaged, not what the protocol says, or for no session.
    pub datagrams_dropped: u64,
    /// Strangers whose connection was closed: they did not say who they are, or over `udp:` nothing at all, for too long or
    /// while too many others did.
    pub strangers_dismissed: u64,
    /// Connections refused: all that may be are in use.
    pub connections_refused: u64,
    /// Streams broken off: their peer sent what the protocol does not say, or was silent for too long.
    pub connections_broken: u64,
    /// Requests that came twice, or for a call that is over.
    pub requests_dropped: u64,
    /// Times that an address which a peer had named was not dialled: it was a moment ago, or too many such addresses were.
    pub dials_held: u64,
    /// Requests refused: without a valid seal, though seals are required.
    pub unsealed_refused: u64,
    /// Answers and pongs dropped: they did not show that they may answer.
    pub forged_dropped: u64,
    /// Answers dropped: their call was over.
    pub late_dropped: u64,
    /// Answers dropped: no way leads to their initiator.
    pub undeliverable: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Errors of handlers whose request had ended before.
    pub late_errors: u64,
}

/// Something that happens at a time of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// The deadline of a call.
    Call(u64),
    /// The deadline of a request that was put aside.
    Request(RequestKey),
}

/// An event, and what the application's taking it sets off.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) event: Event,
    /// The connection that an answer came over.
    pub(super) from: Option<PeerId>,
}

/// An endpoint without its datagrams and its handlers.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) node: NodeId,
    pub(super) address: Option<Address>,
    /// What tokens are derived from.
    pub(super) secret: [u8; 16],
    /// What it says of itself to others.
    pub(super) hello: Arc<Hello>,
    pub(super) gate: Gate,
    pub(super) streams: Streams,
    clock: Clock,
    /// The time, since the moment that the sockets' clock counts from: deadlines are kept by it, and the gate, since what it
    /// waits for are peers for whom time has not stood still.
    pub(super) raw: Duration,
    /// The same, but it stood still while nobody listened: all other state machines keep to it.
    pub(super) now: Duration,
    pub(super) counters: Counters,
    /// What streams hold for their peers.
    pub(super) bounds: Bounds,
    /// How many branches its calls know together.
    pub(super) branches: BranchRoom,
    /// A connection that has just brought more answers than were granted.
    pub(super) overdrawn: Option<PeerId>,

    pub(super) peers: Peers,
    /// Which of them are strangers, and in which order the others make room.
    pub(super) places: Places<PeerId>,
    pub(super) by_address: HashMap<Address, PeerId>,
    /// What was looked up there last.
    pub(super) last_address: Option<(Address, PeerId)>,
    /// By what their peers say that they are: that proves nothing of those who dialled this endpoint.
    pub(super) by_node: HashMap<NodeId, Vec<PeerId>>,
    /// Connections that are being opened, or that end soon.
    pub(super) opening: BTreeSet<(Duration, PeerId)>,
    /// The life that was last found at each address.
    pub(super) found: HashMap<Address, NodeId>,
    /// Dials of addresses that peers have named, and those of them that are for one life and under way.
    pub(super) dials: Dials<Address>,
    pub(super) dialled_back: HashMap<Address, PeerId>,
    /// Bytes of messages that wait for a connection or for credit.
    pub(super) waiting: usize,
    /// When peers' use was last counted.
    pub(super) used: u64,

    pub(super) records: Records,
    /// When the records learn next what has been acknowledged.
    written_next: Duration,
    /// Methods that are served, by name.
    names: HashMap<Arc<str>, usize>,
    pub(super) served: Vec<Arc<MethodDefinition>>,
    pub(super) held: Held,
    pub(super) tickets: BTreeMap<Ticket, RequestKey>,
    /// The request of the handler that has just returned, if that did not end it.
    pub(super) returned: Option<Box<Job>>,
    /// What that handler has put aside.
    pub(super) put_aside: Option<RequestKey>,

    pub(super) calls: Calls,
    /// Calls that are watched over, by when they are to be looked at.
    pub(super) watched: BTreeSet<(Duration, u64)>,
    /// Calls that were not looked at yet, in the order in which they began, and when that was.
    pub(super) fresh: VecDeque<(Duration, u64)>,
    /// How long the first of them waits for others: those that begin in quick succession are looked at many at a time.
    fresh_for: Duration,
    pub(super) alarms: BTreeSet<(Duration, Alarm)>,
    /// Answers of this endpoint to its own calls.
    pub(super) local: VecDeque<Message>,
    pub(super) events: VecDeque<Queued>,
}

impl Core {
    pub(super) fn new(
        config: Config,
        hello: Arc<Hello>,
        settings: Settings,
        streams: Streams,
    ) -> Result<Self, BindError> {
        let limits = RecordLimits {
            requests: config.remembered,
            kept_bytes: config.kept_bytes,
            ping: DEFAULT_PING,
            deadline: DEFAULT_DEADLINE,
            requests_of_call: config.requests_of_call,
            patience: config.initiator_timeout,
            ..RecordLimits::default()
        };
        let places = Places::new(config.strangers);
        let dials = Dials::new(config.dial_policy.limits());
        let bounds = Bounds {
            output: config.limits.output,
            partials: Partials::new(config.limits.partials),
        };
        let branches = BranchRoom::new(config.limits.branches);
        let fresh_for = config.ping.period.saturating_mul(9) / 8;
        Ok(Self {
            config,
            node: hello.node,
            address: hello.address.clone(),
            secret: random::bytes()?,
            gate: Gate::new(Arc::clone(&hello), random::bytes()?, settings)
                .sharing(bounds.partials.clone()),
            bounds,
            branches,
            overdrawn: None,
            hello,
            streams,
            clock: Clock::default(),
            raw: Duration::ZERO,
            now: Duration::ZERO,
            counters: Counters::default(),
            peers: Peers::default(),
            places,
            by_address: HashMap::new(),
            by_node: HashMap::new(),
            last_address: None,
            opening: BTreeSet::new(),
            found: HashMap::new(),
            dials,
            dialled_back: HashMap::new(),
            waiting: 0,
            used: 0,
            records: Records::new(limits, random::bytes()?),
            written_next: Duration::ZERO,
            names: HashMap::new(),
            served: Vec::new(),
            held: Held::default(),
            tickets: BTreeMap::new(),
            returned: None,
            put_aside: None,
            calls: Calls::default(),
            watched: BTreeSet::new(),
            fresh: VecDeque::new(),
            fresh_for,
            alarms: BTreeSet::new(),
            local: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    // Time.

    /// It is so late by the sockets' clock.
    pub(super) fn set_time(&mut self, raw: Duration) {
        self.raw = raw.max(self.raw);
        self.now = self.clock.turn(self.raw);
    }

    /// When something has to be done next, by the state machines' clock. The gate has its own.
    fn due(&self) -> Option<Duration> {
        let fresh = self.fresh.front();
        let fresh = fresh.map(|(begun, _)| begun.saturating_add(self.fresh_for));
        let watched = self.watched.first().map(|first| first.0);
        let mut due = earliest(self.records.next_timeout(), self.streams.due());
        due = earliest(due, self.places.next_timeout());
        if fresh.is_some() || watched.is_some() {
            due = earliest(due, earliest(fresh, watched));
        }
        if !self.opening.is_empty() {
            due = earliest(due, self.opening_until());
        }
        due
    }

    /// How long until something has to be done; `None` is for ever.
    pub(super) fn time_left(&mut self) -> Option<Duration> {
        let due = self.due();
        self.clock.arm(due);
        let machines = due.map(|due| self.clock.raw(due));
        let alarm = self.alarms.first().map(|first| first.0);
        let next = earliest(earliest(machines, self.gate.next_timeout()), alarm)?;
        Some(next.saturating_sub(self.raw))
    }

    /// Does what is due. All that has arrived must have been handled.
    pub(super) fn handle_timeouts(&mut self) {
        self.gate.handle_timeout(self.raw);
        let now = self.now;
        if self.due().is_some_and(|due| due <= now) {
            self.look_at_streams();
            self.end_dials();
            self.dismiss_the_silent();
            self.note_written();
            self.records.handle_timeout(now);
            self.look_at_calls();
        }
        while let Some(&(at, alarm)) = self.alarms.first()
            && at <= self.raw
        {
            self.alarms.pop_first();
            match alarm {
                Alarm::Call(sequence) => self.call_deadline(sequence),
                Alarm::Request(key) => self.request_deadline(key),
            }
        }
    }

    /// The records learn what has left for peers, or was acknowledged; not each time, as there may be many peers.
    pub(super) fn note_written(&mut self) {
        if self.now < self.written_next {
            return;
        }
        self.written_next = written_next(self.now, self.peers.len());
        for (id, peer) in self.peers.iter() {
            if let Some((left, confirmed)) = self.has_left(peer) {
                self.records.written(id.session(), left);
                if let Some(confirmed) = confirmed {
                    self.records.confirmed(id.session(), confirmed);
                }
            }
        }
    }

    // Connections.

    /// Anything about a connection but a request.
    pub(super) fn handle_news(&mut self, id: PeerId, news: &mut News) {
        match news {
            News::Message(Message::Ping(ping)) => self.handle_ping(id, ping),
            News::Message(message) => self.handle_answer(Some(id), message),
            News::Opened(hello) => self.opened(id, hello),
            News::Method(_, definition) => self.learn_method(id, definition),
            News::Credit => self.pump(id),
            News::GoingAway { .. } => self.going_away(id),
            News::TooLarge { message, size } => self.handle_too_large(id, message, *size),
            News::Closed(reason) => self.closed_by_peer(id, std::mem::take(reason)),
            News::Body(number, _) => self.stop_body(id, *number),
        }
    }

    /// The peer names a method.
    fn learn_method(&mut self, id: PeerId, definition: &MethodDefinition) {
        let served = self.find_method(definition);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.methods.push(served);
        }
    }

    // Methods.

    /// Adds a method; returns where it stands.
    pub(super) fn add_method(&mut self, definition: Arc<MethodDefinition>) -> Option<usize> {
        let name = Arc::clone(definition.name());
        if self.names.contains_key(&name) {
            return None;
        }
        let position = self.served.len();
        self.names.insert(name, position);
        self.served.push(definition);
        Some(position)
    }

    /// The method that a caller means.
    fn find_method(&self, caller: &MethodDefinition) -> Result<usize, Refused> {
        let position = self.names.get(caller.name()).copied();
        let here = position.and_then(|position| Some((position, self.served.get(position)?)));
        let Some((position, here)) = here else {
            let message = format!("no method {} here", caller.name());
            return Err(Refused(Box::new((
                caller.clone(),
                Status::new(Code::Unimplemented, message),
            ))));
        };
        match crate::service::check(here, caller) {
            Ok(()) => Ok(position),
            Err(status) => Err(Refused(Box::new((caller.clone(), status)))),
        }
    }

    /// Methods that are registered later may be meant by names that peers have told before.
    pub(super) fn look_up_again(&mut self) {
        for id in self.peers.ids() {
            let known = self
                .peers
                .get_mut(id)
                .map(|peer| std::mem::take(&mut peer.methods));
            let known = known
                .unwrap_or_default()
                .into_iter()
                .map(|method| match method {
                    Ok(position) => Ok(position),
                    Err(Refused(refused)) => self.find_method(&refused.0),
                });
            let known = known.collect();
            if let Some(peer) = self.peers.get_mut(id) {
                peer.methods = known;
            }
        }
    }

    // The application.

    pub(super) fn tell(&mut self, event: Event) {
        self.events.push_back(Queued { event, from: None });
    }

    /// The records want something done.
    pub(super) fn act(&mut self) {
        loop {
            while let Some(action) = self.records.poll() {
                self.act_on_records(action);
            }
            let Some(mut message) = self.local.pop_front() else {
                return;
            };
            self.handle_answer(None, &mut message);
        }
    }

    /// The status, as one of this endpoint.
    pub(super) fn own(&self, status: Status) -> Status {
        status.by(self.address.as_ref())
    }
}
