//! One node: a shell around the endpoint that users run. It moves bytes, runs tasks, and tells the oracle what it sees.

mod calls;
mod eyes;
mod ghosts;
mod jobs;
mod sight;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    self, CallKey, Config, ConnId, Endpoint, Output, RequestKey, Schemes, Seeds, Serving, SocketId,
};
use wallaby_proto::error::ConnectError;
use wallaby_proto::{Address, NodeId};

use self::calls::Call;
use self::eyes::Eyes;
use self::ghosts::Ghosts;
use self::jobs::Job;
use self::sight::Sight;
use self::streams::Stream;
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;
use crate::plan::{LinkPlan, NodePlan, Plan, Reach};
use crate::queue::{Event, Timer};

const PORT: u16 = 7000;

const MS: Duration = Duration::from_millis(1);

/// One node, in its present life.
#[derive(Debug)]
pub(crate) struct Node {
    index: u32,
    plan: NodePlan,
    life: u32,
    id: NodeId,
    endpoint: Endpoint<Eyes>,
    /// What tokens are derived from.
    secret: [u8; 16],
    method: Arc<MethodDefinition>,
    /// Its socket for datagrams: there from the beginning, or opened for a dial.
    udp: Option<SocketId>,
    streams: BTreeMap<ConnId, Stream>,
    /// The same, as the network calls them.
    sockets: BTreeMap<Socket, ConnId>,
    calls: BTreeMap<CallKey, Call>,
    jobs: BTreeMap<RequestKey, Job>,
    sight: Sight,
    /// The time, by the node's own clock.
    raw: Duration,
    /// When the endpoint has something to do next, by that clock.
    due: Option<Duration>,
    /// What a node does that sends requests again though it must not.
    ghosts: Ghosts,
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
    /// The application closes its endpoint.
    Close,
}

/// Where the node with this index is reached.
pub(crate) fn address(plan: &Plan, node: u32) -> Address {
    match plan.nodes[node as usize].udp {
        true => Address::Udp(socket_address(node)),
        false => Address::Tcp(socket_address(node)),
    }
}

/// Where the sockets of the node with this index are.
fn socket_address(node: u32) -> SocketAddr {
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
        // One that does not tell lives apart is the same in all of them.
        let number = match context.is(Broken::AnyLife) {
            true => u64::from(index) + 1,
            false => context.random.between(1, u64::MAX - 1),
        };
        let Some(id) = NodeId::new(number) else {
            unreachable!("it is not 0")
        };
        // One more than there are: so worlds are still those that seeds on record have given.
        let [secret, cookies, _] = [(); 3].map(|()| random_secret(context));
        let seeds = Seeds {
            tokens: secret,
            cookies,
        };
        let random = context.random.fork(0x6579);
        let eyes = Eyes::new(id, context.broken, (&context.plan.links, random));
        let mut config = config(plan, &context.plan.links);
        if context.is(Broken::NoQuestion) {
            config.confirm_after = eyes::FOR_EVER.timeout;
        }
        let told = (plan.reach != Reach::Silent).then(|| address(context.plan, index));
        let mut endpoint = Endpoint::with_probe(config, id, told, seeds, eyes);
        let udp = (plan.udp).then(|| endpoint.add_listening_socket(socket_address(index)));
        let Some(method) = MethodDefinition::new("sim.Tree/run", "raw", 0, 0) else {
            unreachable!("the name is neither empty nor long")
        };
        let method = Arc::new(method);
        let Ok(_) = endpoint.serve(Arc::clone(&method), Serving::default()) else {
            unreachable!("nothing else is served")
        };
        note!(context, index, "life {life} starts as {id}");
        context.oracle.began(context.queue.now(), id, index);
        let ghosts = Ghosts::new(Arc::clone(endpoint.hello()));
        Self {
            index,
            plan,
            life,
            id,
            endpoint,
            secret,
            method,
            udp,
            streams: BTreeMap::new(),
            sockets: BTreeMap::new(),
            calls: BTreeMap::new(),
            jobs: BTreeMap::new(),
            sight: Sight::default(),
            raw: Duration::ZERO,
            due: None,
            ghosts,
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// Whether this node lets itself be dialled.
    pub(crate) fn listens(&self) -> bool {
        self.plan.reach == Reach::Open
    }

    /// Something happened.
    pub(crate) fn handle(&mut self, input: Input, context: &mut Context<'_>) {
        let now = self.own_time(context.now());
        if context.is(Broken::TimersFirst) {
            self.make_up_for_lost_time(now);
        }
        self.set_time(now);
        self.endpoint.begin_turn();
        match input {
            Input::Accepted(socket) => self.accepted(socket),
            Input::Answered(socket, accepted) => self.answered(socket, accepted, context),
            Input::Bytes(socket, bytes) => self.handle_bytes(socket, &bytes, context),
            Input::Ended(socket) => self.stream_ended(socket, context),
            Input::Datagram(from, bytes) => {
                if let Some(udp) = self.udp {
                    self.endpoint
                        .handle_datagram(udp, socket_address(from), bytes);
                }
            }
            Input::Unreachable(node) => {
                if let Some(udp) = self.udp {
                    self.endpoint.handle_unreachable(udp, socket_address(node));
                }
            }
            Input::Writable(socket) => self.writable(socket, context),
            Input::Timer(Timer::Resume(request)) => self.resume(request, context),
            Input::Timer(Timer::Take(call)) => self.take_answers(call, context),
            Input::Timer(Timer::Clock(due)) => self.clock_fired(due),
            Input::Begin(index) => self.begin_call(index, context),
            Input::Abort(index) => self.abort_call(index, context),
            Input::HangUp(node) => self.hang_up_on(node, context),
            Input::Close => self.end(context),
        }
        self.follow(context);
        self.note_written(context);
        self.look_at_calls(context);
        self.arm(context);
    }

    fn own_time(&self, now: Duration) -> Duration {
        let nanos = now.as_nanos() * (1_000_000 + self.plan.drift) as u128 / 1_000_000;
        Duration::from_nanos(nanos as u64)
    }

    fn set_time(&mut self, raw: Duration) {
        self.raw = raw;
        self.endpoint.probe().now = raw;
        self.endpoint.set_time(raw);
    }

    /// Does what the endpoint wants done, until that is all.
    fn follow(&mut self, context: &mut Context<'_>) {
        loop {
            let output = self.endpoint.poll_output();
            self.see(context);
            let Some(output) = output else {
                return;
            };
            match output {
                Output::Run(request) => self.run(request, context),
                Output::Call(call) => self.look_at_call(call, context),
                Output::Stopped(request, status) => self.stopped(request, &status, context),
                Output::Stuck(_) => context.hit(Point::HandlerStuck),
                Output::Room(request, lane) => self.has_room(request, lane, context),
                Output::Space(request) => self.has_space(request, context),
                Output::Socket(udp, _) => self.udp = Some(udp),
                Output::Datagrams(udp) => self.transmit(udp, context),
                Output::Dial(conn, to) => self.dial(conn, &to, context),
                Output::Write(conn) => self.write(conn, context),
                Output::Close(conn, closed) => self.close(conn, &closed, context),
                _ => {} // no bodies are sent, and none of the others is asked for
            }
        }
    }

    /// Sends the datagrams that are due.
    fn transmit(&mut self, udp: SocketId, context: &mut Context<'_>) {
        let mut bytes = Vec::new();
        while let Some(transmit) = self.endpoint.poll_datagram(udp, &mut bytes) {
            let datagram = Bytes::from(std::mem::take(&mut bytes));
            if let Some(to) = node_of(transmit.to) {
                let (network, queue) = (&mut context.network, &mut context.queue);
                network.send_datagram(self.index, to, datagram, queue, &mut context.coverage);
            }
        }
    }

    fn clock_fired(&mut self, due: Duration) {
        if self.due != Some(due) {
            return;
        }
        self.due = None;
        self.endpoint.handle_timeout();
    }

    /// Goes through the time that has passed while the node stood still as if it had listened all along.
    fn make_up_for_lost_time(&mut self, now: Duration) {
        while let Some(due) = self.endpoint.poll_timeout().filter(|due| *due < now) {
            self.set_time(due.max(self.raw));
            self.endpoint.handle_timeout();
        }
    }

    /// Sees to it that the node is woken when its endpoint has something to do.
    fn arm(&mut self, context: &mut Context<'_>) {
        let due = self.endpoint.poll_timeout();
        if due == self.due {
            return;
        }
        self.due = due;
        if let Some(due) = due {
            let nanos = due.as_nanos() * 1_000_000 / (1_000_000 + self.plan.drift) as u128;
            let at = Duration::from_nanos(nanos as u64 + 2);
            let (node, life, timer) = (self.index, self.life, Timer::Clock(due));
            context.queue.at(at, Event::Timer { node, life, timer });
        }
    }

    fn wake(&self, delay: Duration, timer: Timer, context: &mut Context<'_>) {
        context.wake((self.index, self.life), self.plan.drift, delay, timer);
    }

    /// Closes the endpoint, as the drivers do.
    fn end(&mut self, context: &mut Context<'_>) {
        self.endpoint.stop_all();
        self.follow(context);
        self.endpoint.close();
    }

    /// Ends all sessions with a node.
    fn hang_up_on(&mut self, node: u32, context: &mut Context<'_>) {
        let sessions = self.sight.peers.iter().filter(|(conn, life)| {
            !self.streams.contains_key(conn) && context.oracle.node_of(**life) == Some(node)
        });
        let sessions: BTreeSet<ConnId> = sessions.map(|(conn, _)| *conn).collect();
        for conn in sessions {
            self.endpoint.close_conn(conn, "it is hung up");
        }
    }

    /// Whether nothing of any call is left here.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.leftovers().is_empty()
    }

    /// What is left in tables that should be empty when nothing happens any more.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let sizes = self.endpoint.sizes();
        let mut found = Vec::new();
        for (size, what) in [
            (sizes.calls.max(self.calls.len()), "calls"),
            (sizes.unrouted, "answers without a route"),
            (sizes.requests.max(self.jobs.len()), "requests"),
        ] {
            if size > 0 {
                found.push(format!("{size} {what}"));
            }
        }
        if sizes.remembered != Default::default() {
            found.push(format!("{:?}", sizes.remembered));
        }
        found
    }
}

/// Times on the way within which others are heard of whom a server that is gone has asked something: it has reached them, they have
/// dialled the initiator, and told it.
const SOON: u32 = 8;

/// What users have, but for what a plan wants small.
fn config(plan: NodePlan, links: &LinkPlan) -> Config {
    let mut limits = endpoint::Limits::default();
    if plan.narrow {
        (limits.message, limits.requests, limits.call) = (250_000, 2048, 1024);
        (limits.parts, limits.streams) = (32 << 10, 1);
    }
    let mut config = Config {
        limits,
        remembered: plan.requests,
        kept_bytes: if plan.keeps { 1 << 20 } else { 0 },
        schemes: Schemes::new(["tcp", "udp"]),
        // As little as may be, so that all who have to tell something must.
        gone_after: links.longest() * SOON,
        keep_ended: plan.tokio,
        shortest_heartbeat: MS,
        // Others may wait for those places.
        grace: Duration::from_secs(1),
        streams_first: plan.tokio,
        timers_wait: MS * if plan.tokio { 5 } else { 1 },
        ..Config::default()
    };
    if let Some(places) = plan.places {
        (config.executor.concurrency, config.executor.queue) = (places, 2);
    }
    if plan.keeps {
        // As little as may be for some: who asks each ping period is not given up for that.
        config.initiator_timeout = Duration::ZERO;
    }
    config
}

/// Nobody is there, or nobody says so.
fn refused(server: Address) -> ConnectError {
    ConnectError::Refused {
        server,
        reason: "nobody listens there".into(),
    }
}

fn random_secret(context: &mut Context<'_>) -> [u8; 16] {
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&context.random.next().to_be_bytes());
    secret[8..].copy_from_slice(&context.random.next().to_be_bytes());
    secret
}
