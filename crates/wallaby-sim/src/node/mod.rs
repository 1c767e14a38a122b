//! One node: thin glue of the protocol's machines. Nothing here decides what a message means.

mod again;
mod client;
mod liveness;
mod peers;
mod server;
mod ways;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::clock::Clock;
use wallaby_proto::call::records::{RecordLimits, Records, Ticket};
use wallaby_proto::call::waiting::{Waiting, WaitingLimits};
use wallaby_proto::connection::{
    DialLimits, Dials, Features, Hello, Limits, MethodDefinition, VERSION,
};
use wallaby_proto::datagram::{Gate, SessionId, Settings};
use wallaby_proto::wire::Message;
use wallaby_proto::{Address, CallId, Code, NodeId, Status};

use self::client::Call;
use self::peers::{Parcel, Peer};
use self::server::Job;
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;
use crate::plan::{NodePlan, Plan, Reach};
use crate::queue::Timer;
use crate::trail::Flight;

const PORT: u16 = 7000;

/// One node, in its present life.
#[derive(Debug)]
pub(crate) struct Node {
    index: u32,
    plan: NodePlan,
    life: u32,
    id: NodeId,
    hello: Arc<Hello>,
    method: MethodDefinition,
    peers: BTreeMap<Socket, Peer>,
    /// Connections that this node dialled and that are still of use, by server and the life that was wanted.
    dialled: BTreeMap<(u32, Option<NodeId>), Socket>,
    /// Sessions over datagrams, as the peers are called here.
    sessions: BTreeMap<SessionId, Socket>,
    gate: Gate,
    /// Dials of nodes that others have named.
    dials: Dials<u32>,
    calls: BTreeMap<u64, Call>,
    last_sequence: u64,
    jobs: BTreeMap<u64, Job>,
    last_job: u64,
    /// Handlers that may go on.
    ready: VecDeque<u64>,
    /// Requests by what records call them.
    tickets: BTreeMap<Ticket, u64>,
    records: Records,
    passages: std::collections::BTreeMap<
        (CallId, wallaby_proto::RequestId, u32),
        wallaby_proto::call::records::Passage,
    >,
    /// Answers to which no way leads.
    waiting: Waiting<Parcel>,
    clock: Clock,
    /// The time of this turn, by the node's own clock: that of its sessions.
    raw: Duration,
    /// The same, but it stood still while nobody listened: that of all other machines.
    now: Duration,
    /// When the machines have something to do next, by the node's own clock.
    due: Option<Duration>,
    /// When connections on which something may wait are looked at.
    look_at_peers: Option<Duration>,
    /// The life that was last found at each address.
    found: BTreeMap<u32, NodeId>,
    /// What tokens are derived from.
    secret: [u8; 16],
}

/// Something from outside.
#[derive(Debug)]
pub(crate) enum Input {
    /// Somebody dialled.
    Accepted(Socket),
    /// A dial of this node was answered; whether it was accepted.
    Answered(Socket, bool),
    Bytes(Socket, Bytes),
    Ended(Socket),
    /// A datagram, and which node it comes from.
    Datagram(u32, Bytes),
    /// A datagram of this node found nobody at that node's address.
    Unreachable(u32),
    Writable(Socket),
    Timer(Timer),
    Begin(usize),
    Abort(usize),
    /// It ends its sessions with that node.
    HangUp(u32),
}

/// Where the node with this index is reached.
pub(crate) fn address(plan: &Plan, node: u32) -> Address {
    match plan.nodes[node as usize].udp {
        true => Address::Udp(socket_address(node)),
        false => Address::Tcp(socket_address(node)),
    }
}

/// Where the sockets of the node with this index are.
pub(crate) fn socket_address(node: u32) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, node as u8 + 1), PORT).into()
}

/// Which node is reached at an address.
fn node_at(address: &Address) -> Option<u32> {
    match address {
        Address::Tcp(address) | Address::Udp(address) => node_of(*address),
        _ => None,
    }
}

fn node_of(address: SocketAddr) -> Option<u32> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    u32::from(address.ip().octets()[3]).checked_sub(1)
}

impl Node {
    /// A life of a node.
    pub(crate) fn new(index: u32, life: u32, context: &mut Context<'_>) -> Self {
        let plan = context.plan.nodes[index as usize];
        let id = loop {
            if let Some(id) = NodeId::new(context.random.next()) {
                break id;
            }
        };
        let limits = match plan.narrow {
            true => Limits {
                message: 250_000,
                requests: 2048,
                call: 1024,
                parts: 32 << 10,
                streams: 1,
            },
            false => Limits::default(),
        };
        let hello = Hello {
            versions: (VERSION, VERSION),
            node: id,
            expected: None,
            address: (plan.reach != Reach::Silent).then(|| address(context.plan, index)),
            features: Features::TIME,
            limits,
        };
        let hello = Arc::new(hello);
        let Some(method) = MethodDefinition::new("sim.Tree/run", "raw", 0, 0) else {
            unreachable!("the name is neither empty nor long")
        };
        note!(context, index, "life {life} starts as {id}");
        context.oracle.began(context.queue.now(), id, index);
        Self {
            index,
            plan,
            life,
            id,
            hello: Arc::clone(&hello),
            method,
            peers: BTreeMap::new(),
            dialled: BTreeMap::new(),
            sessions: BTreeMap::new(),
            gate: Gate::new(hello, random_secret(context), Settings::default()),
            dials: Dials::new(DialLimits::default()),
            calls: BTreeMap::new(),
            last_sequence: 0,
            jobs: BTreeMap::new(),
            last_job: 0,
            ready: VecDeque::new(),
            tickets: BTreeMap::new(),
            passages: Default::default(),
            records: Records::new(record_limits(plan), random_secret(context)),
            waiting: Waiting::new(WaitingLimits::default()),
            clock: Clock::default(),
            raw: Duration::ZERO,
            now: Duration::ZERO,
            due: None,
            look_at_peers: None,
            found: BTreeMap::new(),
            secret: random_secret(context),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// Something happened.
    pub(crate) fn handle(&mut self, input: Input, context: &mut Context<'_>) {
        self.turn(context);
        if !matches!(input, Input::Timer(Timer::Clock(_))) {
            self.watch_peers();
        }
        match input {
            Input::Accepted(socket) => self.accept(socket),
            Input::Answered(socket, true) => self.connected(socket, context),
            Input::Answered(socket, false) => {
                context.hit(Point::ConnectionRefused);
                self.remove_peer(socket, peers::Failed::Refused, context);
            }
            Input::Bytes(socket, bytes) => self.handle_bytes(socket, &bytes, context),
            Input::Ended(socket) => self.handle_ended(socket, context),
            Input::Datagram(from, bytes) => {
                self.gate
                    .handle_datagram(self.raw, socket_address(from), bytes);
                self.handle_sessions(context);
            }
            Input::Unreachable(node) => {
                self.gate.handle_unreachable(self.raw, socket_address(node));
                self.handle_sessions(context);
            }
            Input::Writable(socket) => self.pump(socket, context),
            Input::Timer(timer) => self.handle_timer(timer, context),
            Input::Begin(index) => self.begin_call(index, context),
            Input::Abort(index) => self.abort_call(index, context),
            Input::HangUp(node) => self.hang_up_on(node, context),
        }
        while let Some(job) = self.ready.pop_front() {
            self.run(job, context);
        }
        self.act(context);
        self.transmit(context);
        self.arm(context);
    }

    fn handle_timer(&mut self, timer: Timer, context: &mut Context<'_>) {
        match timer {
            Timer::Resume(job) => self.resume(job, context),
            Timer::Stop(job) => {
                let status = Status::new(Code::Cancelled, "it was told to stop");
                self.stop_job(job, &status, context);
            }
            Timer::JobDeadline(job) => self.job_deadline(job, context),
            Timer::CallDeadline(sequence) => self.call_deadline(sequence, context),
            Timer::Take(sequence) => self.take_answers(sequence, context),
            Timer::Watch(sequence) => self.begin_watch(sequence, context),
            Timer::Clock(due) => self.clock_fired(due, context),
        }
    }

    fn handle_message(&mut self, from: Socket, message: Message, context: &mut Context<'_>) {
        note!(context, self.index, "gets {}", Short(&message));
        if let Some(flight) = self
            .flight(from)
            .map(|(own, other, link)| (other, own, link))
        {
            context.oracle.came(&message, flight);
        }
        match message {
            Message::Request(request) => {
                let echoed = context.random.chance(context.plan.links.echoes);
                // What was refused is not remembered: only a session can tell that it comes again.
                let echo = echoed.then(|| request.clone());
                let accepted = self.handle_request(from, request, context);
                if let Some(request) = echo.filter(|_| accepted) {
                    self.handle_request(from, request, context);
                }
            }
            Message::Ping(ping) => self.handle_ping(from, &ping, context),
            Message::Pong(pong) if pong.call.initiator == self.id => {
                self.handle_pong(from, &pong, context)
            }
            message if self.is_mine(message.call(), context) => {
                self.handle_answer(from, message, context)
            }
            message => self.relay(from, message, context),
        }
    }

    /// What goes out over a connection, as the oracle calls it.
    fn flight(&self, socket: Socket) -> Option<Flight> {
        let peer = self.peers.get(&socket)?;
        Some((self.id, peer.node()?, peer.wire.shared_name(socket)))
    }

    /// Whether this life made a call.
    fn is_mine(&self, call: CallId, context: &Context<'_>) -> bool {
        let any_life =
            context.is(Broken::AnyLife) && context.oracle.initiator_of(call) == Some(self.index);
        call.initiator == self.id || any_life
    }

    fn wake(&self, delay: Duration, timer: Timer, context: &mut Context<'_>) {
        context.wake((self.index, self.life), self.plan.drift, delay, timer);
    }

    /// Whether nothing of any call is left here.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.leftovers().is_empty()
    }

    /// What is left in tables that should be empty when nothing happens any more.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.calls.is_empty() {
            found.push(format!("{} calls", self.calls.len()));
        }
        if !self.waiting.is_empty() {
            found.push(format!("{} answers without a way", self.waiting.len()));
        }
        if !self.jobs.is_empty() {
            found.push(format!("{} requests", self.jobs.len()));
        }
        let remembered = self.records.remembered();
        if remembered != Default::default() {
            found.push(format!("{remembered:?}"));
        }
        found
    }

    fn post_all(&mut self, parcels: impl IntoIterator<Item = Parcel>, context: &mut Context<'_>) {
        for parcel in parcels {
            self.post(parcel, context);
        }
    }
}

fn record_limits(plan: NodePlan) -> RecordLimits {
    let patience = match plan.keeps {
        // As little as may be for some: who asks each ping period is not given up for that.
        true => Duration::ZERO,
        false => RecordLimits::default().patience,
    };
    RecordLimits {
        requests: plan.requests,
        kept_bytes: if plan.keeps { 1 << 20 } else { 0 },
        patience,
        ..RecordLimits::default()
    }
}

fn random_secret(context: &mut Context<'_>) -> [u8; 16] {
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&context.random.next().to_be_bytes());
    secret[8..].copy_from_slice(&context.random.next().to_be_bytes());
    secret
}

/// A message in few words.
pub(crate) struct Short<'a>(pub(crate) &'a Message);

impl std::fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let call = self.0.call();
        match self.0 {
            Message::Request(request) => {
                write!(f, "request {} of {call}, base {}", request.id, request.base)?;
                manifest(f, request.manifest)
            }
            Message::Response(response) => {
                let kind = if response.status {
                    "status"
                } else {
                    "response"
                };
                let last = if response.last { ", last" } else { "" };
                write!(
                    f,
                    "{kind} {}/{} of {call}{last}",
                    response.request, response.index
                )?;
                manifest(f, response.manifest)
            }
            Message::End(end) => {
                let facts = end.facts;
                write!(
                    f,
                    "end {} of {call}: {}+{}",
                    end.request, facts.requests, facts.responses
                )?;
                manifest(f, end.manifest)
            }
            Message::Ping(ping) => write!(
                f,
                "ping {} of {call}, abort {}, {:?}",
                ping.request, ping.abort, ping.missing
            ),
            Message::Pong(pong) => {
                let (announced, writing) = (pong.announced, pong.writing);
                write!(
                    f,
                    "pong {} of {call}, announced {announced}, writing {writing}, ",
                    pong.request
                )?;
                match &pong.progress {
                    Some(progress) => write!(f, "{progress:?}"),
                    None => f.write_str("unknown"),
                }
            }
            Message::Trace(report) => {
                write!(f, "trace of {call}, {} records", report.records.len())
            }
        }
    }
}

fn manifest(
    f: &mut std::fmt::Formatter<'_>,
    manifest: Option<wallaby_proto::Manifest>,
) -> std::fmt::Result {
    match manifest {
        Some(manifest) => {
            let (owner, facts) = (manifest.owner, manifest.facts);
            write!(f, ", {owner} sent {}+{}", facts.requests, facts.responses)
        }
        None => Ok(()),
    }
}
