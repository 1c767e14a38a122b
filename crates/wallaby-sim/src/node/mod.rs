//! One node: a shell around the endpoint that users run. It moves bytes and keeps the time. What is served there and what applications
//! do is the plan's, and who looks on tells the oracle.

mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::NodeId;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    self, Config, ConnId, Endpoint, Output, Schemes, Seeds, Serving, Shell, SocketId,
};

use self::streams::Stream;
use crate::addresses::{address, node_of, socket_address};
use crate::applications::Applications;
use crate::bodies::Written;
use crate::broken::{Broken, Ghosts};
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;
use crate::oracle::Rule;
use crate::plan::{LinkPlan, NodePlan, Reach};
use crate::queue::{Event, Timer};
use crate::services::{Awaited, Services};
use crate::sight::{Eyes, FOR_EVER, Sight};

const MS: Duration = Duration::from_millis(1);

/// One node, in its present incarnation.
#[derive(Debug)]
pub(crate) struct Node {
    host: Host,
    services: Services,
    applications: Applications,
    sight: Sight,
    /// What a node does that sends requests again though it must not.
    ghosts: Ghosts,
}

/// An endpoint, and the streams and timers that it has.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) index: u32,
    pub(crate) plan: NodePlan,
    pub(crate) incarnation: u32,
    pub(crate) id: NodeId,
    pub(crate) endpoint: Endpoint<Eyes>,
    /// What tokens are derived from.
    pub(crate) secret: [u8; 16],
    /// What all nodes serve.
    pub(crate) method: Arc<MethodDefinition>,
    pub(crate) streams: BTreeMap<ConnId, Stream>,
    /// The bodies that it writes.
    pub(crate) written: Written,
    /// The same, as the network calls them.
    sockets: BTreeMap<Socket, ConnId>,
    /// Its socket for datagrams: there from the beginning, or opened for a dial.
    udp: Option<SocketId>,
    /// The time, by the node's own clock.
    raw: Duration,
    /// When the endpoint has something to do next, by that clock.
    due: Option<Duration>,
    /// It is drained, and has not said yet that nothing is left to be done.
    draining: bool,
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
    /// The application drains its endpoint.
    Drain,
    /// The application closes its endpoint.
    Close,
}

impl Node {
    /// An incarnation of a node.
    pub(crate) fn new(index: u32, incarnation: u32, context: &mut Context<'_>) -> Self {
        let plan = context.plan.nodes[index as usize];
        // One that does not tell incarnations apart is the same in all of them.
        let number = match context.is(Broken::AnyIncarnation) {
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
            config.confirm_after = FOR_EVER.timeout;
        }
        let told = (plan.reach != Reach::Silent).then(|| address(context.plan, index));
        let mut endpoint = Endpoint::with_probe(config, id, told, seeds, eyes);
        let udp = (plan.udp).then(|| endpoint.add_listening_socket(socket_address(index)));
        let Some(method) = MethodDefinition::new("sim.Tree/run", "raw", 0, 0) else {
            unreachable!("the name is neither empty nor long")
        };
        let method = Arc::new(method);
        let serving = Serving {
            ahead: plan.intercepted,
            ..Serving::default()
        };
        let Ok(_) = endpoint.serve(Arc::clone(&method), serving) else {
            unreachable!("nothing else is served")
        };
        note!(context, index, "incarnation {incarnation} starts as {id}");
        context.oracle.began(context.queue.now(), id, index);
        let host = Host {
            index,
            plan,
            incarnation,
            id,
            endpoint,
            secret,
            method,
            streams: BTreeMap::new(),
            written: Written::default(),
            sockets: BTreeMap::new(),
            udp,
            raw: Duration::ZERO,
            due: None,
            draining: false,
        };
        Self {
            host,
            services: Services::default(),
            applications: Applications::default(),
            sight: Sight::default(),
            ghosts: Ghosts::default(),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.host.id
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.host.incarnation
    }

    /// Whether this node lets itself be dialled.
    pub(crate) fn listens(&self) -> bool {
        self.host.plan.reach == Reach::Open
    }

    /// Something happened.
    pub(crate) fn handle(&mut self, input: Input, context: &mut Context<'_>) {
        let now = self.host.own_time(context.now());
        if context.is(Broken::TimersFirst) {
            self.host.make_up_for_lost_time(now);
        }
        self.host.set_time(now);
        self.host.endpoint.begin_turn();
        match input {
            Input::Accepted(socket) => self.host.accepted(socket),
            Input::Answered(socket, accepted) => self.answered(socket, accepted, context),
            Input::Bytes(socket, bytes) => self.handle_bytes(socket, &bytes, context),
            Input::Ended(socket) => self.stream_ended(socket, context),
            Input::Datagram(from, bytes) => {
                if let Some(udp) = self.host.udp {
                    self.host
                        .endpoint
                        .handle_datagram(udp, socket_address(from), bytes);
                }
            }
            Input::Unreachable(node) => {
                if let Some(udp) = self.host.udp {
                    self.host
                        .endpoint
                        .handle_unreachable(udp, socket_address(node));
                }
            }
            Input::Writable(socket) => self.writable(socket, context),
            Input::Timer(Timer::Resume(request)) => {
                self.services.resume(request, &mut self.host, context);
            }
            Input::Timer(Timer::Take(call)) => {
                self.applications
                    .take_answers(call, &mut self.host, context);
            }
            Input::Timer(Timer::Write(body)) => self.host.write_body(body, context),
            Input::Timer(Timer::Clock(due)) => self.host.clock_fired(due),
            Input::Begin(index) => {
                let told = (&mut self.host, &mut self.sight);
                self.applications.begin(index, told, context);
            }
            Input::Abort(index) => self.applications.abort(index, &mut self.host, context),
            Input::HangUp(node) => self.hang_up_on(node, context),
            Input::Drain => {
                self.host.draining |= !self.host.endpoint.is_draining();
                self.host.endpoint.drain();
            }
            Input::Close => self.end(context),
        }
        self.follow(context);
        self.note_written(context);
        self.applications.take_ended(&mut self.host, context);
        self.note_written(context);
        let touched = std::mem::take(&mut self.sight.touched);
        self.applications.check(touched, &mut self.host, context);
        self.host.arm(context);
    }

    /// Tells the oracle what has happened since the last time.
    fn see(&mut self, context: &mut Context<'_>) {
        let whose = (&mut self.applications, &mut self.ghosts);
        self.sight.see(&mut self.host, whose, context);
    }

    /// The same, and what has left.
    fn note_written(&mut self, context: &mut Context<'_>) {
        self.see(context);
        self.sight.note_written(&mut self.host, context);
    }

    /// Does what the endpoint wants done, until that is all.
    fn follow(&mut self, context: &mut Context<'_>) {
        loop {
            let output = self.host.endpoint.poll_output();
            self.see(context);
            let Some(output) = output else {
                return;
            };
            let host = &mut self.host;
            match output {
                Output::Run(request) => self.services.run(request, host, context),
                Output::Call(call) => self.applications.look_at(call, host, context),
                Output::Stopped(request, status) => {
                    self.services.stopped((request, &status), host, context);
                }
                Output::Stuck(handler) => self.services.stuck(&handler, context),
                Output::Room(request, lane) => {
                    let told = (request, Awaited::Room(lane));
                    self.services.told(told, host, context);
                }
                Output::Space(request) => {
                    self.services.told((request, Awaited::Space), host, context);
                }
                Output::Socket(udp, _) => host.udp = Some(udp),
                Output::Datagrams(udp) => host.transmit(udp, context),
                Output::Dial(conn, to) => host.dial(conn, &to, context),
                Output::Write(conn) => self.write(conn, context),
                Output::Close(conn, closed) => self.close(conn, &closed, context),
                Output::Drained => self.drained(context),
                Output::Body(body) => self.services.body_told(body, host, context),
                Output::BodyRoom(body) => host.write_body(body, context),
                Output::Sent(_)
                | Output::Ended(..)
                | Output::Settled(_)
                | Output::Lost(..)
                | Output::Placed(..)
                | Output::Connected(..) => {} // nobody asks for it here
            }
        }
    }

    /// It says that nothing is left to be done here.
    fn drained(&mut self, context: &mut Context<'_>) {
        if !std::mem::take(&mut self.host.draining) {
            return;
        }
        context.hit(Point::Drained);
        let (running, calls) = (self.services.running(), self.applications.open(&self.host));
        if running + calls > 0 {
            let index = self.host.index;
            let what = format!("n{index} is drained with {running} requests and {calls} calls");
            context.violate(Rule::DrainedEarly, what);
        }
    }

    /// Closes the endpoint, as the drivers do.
    fn end(&mut self, context: &mut Context<'_>) {
        self.host.draining = false;
        self.host.endpoint.stop_all();
        self.follow(context);
        self.host.endpoint.close();
    }

    /// Ends all sessions with a node.
    fn hang_up_on(&mut self, node: u32, context: &mut Context<'_>) {
        let sessions = self.sight.peers.iter().filter(|(conn, incarnation)| {
            !self.host.streams.contains_key(conn)
                && context.oracle.node_of(**incarnation) == Some(node)
        });
        let sessions: BTreeSet<ConnId> = sessions.map(|(conn, _)| *conn).collect();
        for conn in sessions {
            self.host.endpoint.close_conn(conn, "it is hung up");
        }
    }

    /// Whether nothing of any call is left here.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.leftovers().is_empty()
    }

    /// What is left in tables that should be empty when nothing happens any more.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let sizes = self.host.endpoint.sizes();
        let mut found = Vec::new();
        for (size, what) in [
            (sizes.calls.max(self.applications.len()), "calls"),
            (sizes.unrouted, "answers without a route"),
            (sizes.bodies.max(self.host.written.len()), "bodies"),
            (sizes.requests.max(self.services.len()), "requests"),
        ] {
            if size > 0 {
                found.push(format!("{size} {what}"));
            }
        }
        if self.host.draining {
            found.push("no word that it is drained".to_owned());
        }
        if sizes.remembered != Default::default() {
            found.push(format!("{:?}", sizes.remembered));
        }
        found
    }
}

impl Host {
    fn own_time(&self, now: Duration) -> Duration {
        let nanos = now.as_nanos() * (1_000_000 + self.plan.drift) as u128 / 1_000_000;
        Duration::from_nanos(nanos as u64)
    }

    fn set_time(&mut self, raw: Duration) {
        self.raw = raw;
        self.endpoint.probe().now = raw;
        self.endpoint.set_time(raw);
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
            let (node, incarnation, timer) = (self.index, self.incarnation, Timer::Clock(due));
            context.queue.at(
                at,
                Event::Timer {
                    node,
                    incarnation,
                    timer,
                },
            );
        }
    }

    /// Wakes the node after some time of its own clock.
    pub(crate) fn wake(&self, delay: Duration, timer: Timer, context: &mut Context<'_>) {
        context.wake(
            (self.index, self.incarnation),
            self.plan.drift,
            delay,
            timer,
        );
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
        shortest_heartbeat: MS,
        // Others may wait for those places.
        grace: Duration::from_secs(1),
        shell: match plan.tokio {
            true => Shell::RUNTIME,
            false => Shell::TURNED,
        },
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

fn random_secret(context: &mut Context<'_>) -> [u8; 16] {
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&context.random.next().to_be_bytes());
    secret[8..].copy_from_slice(&context.random.next().to_be_bytes());
    secret
}
