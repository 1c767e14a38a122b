//! One world: nodes, links and faults under virtual time, from a plan to what became of it.

use std::time::Duration;

use bytes::Bytes;

use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::{Coverage, Point};
use crate::kinds::Kind;
use crate::network::{LinkId, Network, Segment, Side, Socket};
use crate::node::{Input, Node};
use crate::oracle::{Oracle, Rule, Verdict, Violation};
use crate::plan::{Fault, Manner, Plan};
use crate::queue::{Event, Queue};
use crate::random::Random;

/// By so much after its last call's deadline a world has come to rest: all collection timeouts are shorter.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// A world with more events than this within [`LOOK`] goes in circles.
const MOST_EVENTS: u64 = 15_000;

/// How often it is looked whether a world has come to rest.
const LOOK: Duration = Duration::from_secs(1);

/// How a world is run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Write down what happens.
    pub log: bool,
    /// What is deliberately wrong in it.
    pub broken: Option<Broken>,
    /// Seeds name worlds of this kind alone.
    pub kind: Option<Kind>,
}

impl Options {
    /// The world that a seed names.
    pub fn plan(self, seed: u64) -> Plan {
        match self.kind {
            Some(kind) => kind.plan(seed),
            None => Plan::random(seed),
        }
    }
}

/// What became of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What must not have been; the first one ends the world.
    pub violations: Vec<Violation>,
    /// How its calls ended.
    pub outcomes: Vec<Verdict>,
    /// What was exercised.
    pub coverage: Coverage,
    /// How long it lasted, in its own time.
    pub lasted: Duration,
    /// How many events it had.
    pub events: u64,
    /// What happened, if that was asked for.
    pub log: String,
}

/// Runs a world until nothing happens any more.
pub fn run(plan: &Plan, options: Options) -> Report {
    let mut world = World::new(plan, options);
    world.run();
    world.report()
}

struct World<'a> {
    context: Context<'a>,
    places: Vec<Place>,
    events: u64,
}

/// Where a node lives.
struct Place {
    node: Option<Node>,
    /// Counts its incarnations.
    incarnations: u32,
    /// What waits while it stalls.
    stalled: Option<Vec<Input>>,
    /// Until when it stalls.
    until: Duration,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, options: Options) -> Self {
        let mut context = Context {
            plan,
            queue: Queue::default(),
            network: Network::new(plan),
            oracle: Oracle::default(),
            coverage: Coverage::default(),
            random: Random::new(plan.seed).fork(0x776f),
            broken: options.broken,
            log: options.log.then(String::new),
        };
        let mut places = Vec::new();
        for (index, node) in plan.nodes.iter().enumerate() {
            if node.drift != 0 {
                context.hit(Point::FaultSlowClock);
            }
            let node = Some(Node::new(index as u32, 0, &mut context));
            places.push(Place {
                node,
                incarnations: 1,
                stalled: None,
                until: Duration::ZERO,
            });
        }
        for (index, call) in plan.calls.iter().enumerate() {
            context.queue.at(call.at, Event::Begin(index));
            if let Some(after) = call.abort {
                context.queue.at(call.at + after, Event::Abort(index));
            }
        }
        for (index, fault) in plan.faults.iter().enumerate() {
            context.queue.at(fault.at(), Event::Fault(index));
        }
        context.queue.at(plan.end() + LOOK, Event::Look);
        Self {
            context,
            places,
            events: 0,
        }
    }

    fn run(&mut self) {
        let deadlines = self.context.plan.calls.iter().map(|call| call.deadline);
        let latest = self.context.plan.end() + deadlines.max().unwrap_or_default() + LONGEST_REST;
        let mut window = (Duration::ZERO, 0);
        while let Some(event) = self.context.queue.next() {
            let looking = matches!(event, Event::Look);
            self.handle(event);
            self.context.oracle.judge_resends();
            if !self.context.oracle.violations().is_empty() {
                return;
            }
            if looking && (self.is_at_rest() || self.context.now() > latest) {
                break;
            }
            self.events += 1;
            if self.context.now() >= window.0 + LOOK {
                window = (self.context.now(), self.events);
            }
            if self.events > window.1 + MOST_EVENTS {
                let what = format!("{MOST_EVENTS} events since {:?}", window.0);
                return self.context.violate(Rule::Storm, what);
            }
        }
        let now = self.context.now();
        self.context.oracle.at_rest(now, self.context.plan);
        for (index, place) in self.places.iter().enumerate() {
            for what in place.node.iter().flat_map(Node::leftovers) {
                self.context
                    .violate(Rule::Leftover, format!("n{index}: {what}"));
            }
        }
    }

    /// Whether nothing of any call is left anywhere.
    fn is_at_rest(&self) -> bool {
        self.places
            .iter()
            .flat_map(|place| &place.node)
            .all(Node::is_at_rest)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Dialled(link) => self.dialled(link),
            Event::Answered(link, accepted) => {
                let socket = Socket {
                    link,
                    side: Side::Dialler,
                };
                self.give_socket(socket, Input::Answered(socket, accepted));
            }
            Event::Arrived(socket) => self.arrived(socket),
            Event::Datagram { from, to, bytes } => self.datagram(from, to, bytes),
            Event::Unreachable { node, at } => self.give(node, None, Input::Unreachable(at)),
            Event::Look => self.context.queue.after(LOOK, Event::Look),
            Event::Writable(socket) => self.give_socket(socket, Input::Writable(socket)),
            Event::GivenUp(socket) => self.give_socket(socket, Input::Ended(socket)),
            Event::Timer {
                node,
                incarnation,
                timer,
            } => self.give(node, Some(incarnation), Input::Timer(timer)),
            Event::Begin(index) => self.give(
                self.context.plan.calls[index].initiator,
                None,
                Input::Begin(index),
            ),
            Event::Abort(index) => self.give(
                self.context.plan.calls[index].initiator,
                None,
                Input::Abort(index),
            ),
            Event::Fault(index) => self.fault(index),
            Event::Wake(node) => self.go_on(node),
            Event::Restart(node) => self.restart(node),
        }
    }

    /// A dial has reached its target, or does so when the way is open again.
    fn dialled(&mut self, link: LinkId) {
        let context = &mut self.context;
        let [from, to] = [Side::Dialler, Side::Acceptor]
            .map(|side| context.network.end(Socket { link, side }).node);
        for (from, to) in [(from, to), (to, from)] {
            if let Some(end) =
                context
                    .network
                    .closed_until(from, to, context.queue.now(), &mut context.coverage)
            {
                context.queue.at(end, Event::Dialled(link));
                return;
            }
        }
        if context.network.is_dark(to)
            || !context.network.is_open(Socket {
                link,
                side: Side::Dialler,
            })
        {
            return;
        }
        let place = &self.places[to as usize];
        let incarnation = place
            .node
            .as_ref()
            .filter(|node| node.listens())
            .map(Node::incarnation);
        context
            .network
            .answer(link, incarnation, &mut context.queue);
        if incarnation.is_some() {
            self.give(
                to,
                incarnation,
                Input::Accepted(Socket {
                    link,
                    side: Side::Acceptor,
                }),
            );
        }
    }

    fn arrived(&mut self, socket: Socket) {
        let context = &mut self.context;
        match context
            .network
            .arrived(socket, &mut context.queue, &mut context.coverage)
        {
            Some(Segment::Bytes(bytes)) => self.give_socket(socket, Input::Bytes(socket, bytes)),
            Some(Segment::End) => self.give_socket(socket, Input::Ended(socket)),
            None => {}
        }
    }

    fn datagram(&mut self, from: u32, to: u32, bytes: Bytes) {
        let context = &mut self.context;
        if context.network.is_dark(to) {
            return;
        }
        match &self.places[to as usize].node {
            // Others get through to it only where it has begun.
            Some(node) if node.listens() || context.network.has_spoken(to, from) => {
                self.give(to, None, Input::Datagram(from, bytes));
            }
            Some(_) => {}
            None => {
                let back = context.plan.links.latency;
                context
                    .queue
                    .after(back, Event::Unreachable { node: from, at: to });
            }
        }
    }

    fn give_socket(&mut self, socket: Socket, input: Input) {
        let end = self.context.network.end(socket);
        if self.context.network.is_open(socket) {
            self.give(end.node, Some(end.incarnation), input);
        }
    }

    /// Gives an input to a node, if it is in that incarnation (or in any).
    fn give(&mut self, node: u32, incarnation: Option<u32>, input: Input) {
        let place = &mut self.places[node as usize];
        let Some(state) = &mut place.node else { return };
        if incarnation.is_some_and(|incarnation| incarnation != state.incarnation()) {
            return;
        }
        match &mut place.stalled {
            Some(waiting) => {
                self.context.coverage.hit(Point::FaultStall);
                waiting.push(input);
            }
            None => state.handle(input, &mut self.context),
        }
    }

    fn fault(&mut self, index: usize) {
        let context = &mut self.context;
        let fault = &context.plan.faults[index];
        note!(context, 0, "FAULT {fault}");
        match *fault {
            Fault::Crash {
                node,
                restart,
                manner,
                ..
            } => self.end_incarnation(node, restart, manner),
            Fault::Drain { node, .. } => {
                context.hit(Point::FaultDrain);
                self.give(node, None, Input::Drain);
            }
            Fault::Stall { node, lasts, .. } => {
                let place = &mut self.places[node as usize];
                place.until = place.until.max(context.now() + lasts);
                place.stalled.get_or_insert_default();
                context.queue.after(lasts, Event::Wake(node));
            }
            // The network looks at the plan by itself.
            Fault::Partition { .. } => {}
            Fault::Cut { a, b, .. } => {
                for link in context.network.between(a, b) {
                    context
                        .network
                        .cut(link, &mut context.queue, &mut context.coverage);
                }
                self.give(a, None, Input::HangUp(b));
            }
        }
    }

    fn end_incarnation(&mut self, node: u32, restart: Option<Duration>, manner: Manner) {
        let context = &mut self.context;
        let place = &mut self.places[node as usize];
        let Some(mut gone) = place.node.take() else {
            return;
        };
        if manner == Manner::Closed && place.stalled.is_none() {
            gone.handle(Input::Close, context);
        }
        context.hit(match manner {
            Manner::Killed => Point::FaultProcessCrash,
            Manner::Machine => Point::FaultMachineCrash,
            Manner::Closed => Point::FaultClosed,
        });
        let now = context.queue.now();
        let judged = (context.plan, &mut context.coverage);
        if context.oracle.incarnation_ended(now, gone.id(), judged) {
            context.hit(Point::OutcomeInitiatorGone);
        }
        place.stalled = None;
        context.network.crash(
            node,
            manner == Manner::Machine,
            &mut context.queue,
            &mut context.coverage,
        );
        if let Some(after) = restart {
            context.queue.after(after, Event::Restart(node));
        }
    }

    fn restart(&mut self, node: u32) {
        let place = &mut self.places[node as usize];
        if place.node.is_some() {
            return;
        }
        self.context.hit(Point::FaultRestart);
        self.context.network.restart(node);
        place.node = Some(Node::new(node, place.incarnations, &mut self.context));
        place.incarnations += 1;
        place.stalled = None;
    }

    /// A stalled node goes on: it reads what waits before it looks at its timers (docs/protocol.md, rule 20).
    fn go_on(&mut self, node: u32) {
        let place = &mut self.places[node as usize];
        if place.until > self.context.queue.now() {
            return;
        }
        let waiting = place.stalled.take().unwrap_or_default();
        let Some(state) = &mut place.node else { return };
        let (timers, inputs): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|input| matches!(input, Input::Timer(_)));
        let (first, then) = match self.context.is(Broken::TimersFirst) {
            true => (timers, inputs),
            false => (inputs, timers),
        };
        for input in first.into_iter().chain(then) {
            state.handle(input, &mut self.context);
        }
    }

    fn report(self) -> Report {
        Report {
            violations: self.context.oracle.violations().to_vec(),
            outcomes: self.context.oracle.outcomes().collect(),
            coverage: self.context.coverage,
            lasted: self.context.queue.now(),
            events: self.events,
            log: self.context.log.unwrap_or_default(),
        }
    }
}
