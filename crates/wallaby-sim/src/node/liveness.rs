//! Failure detection, abort and collection: the driver's side of `watch` and `records`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::clock::earliest;
use wallaby_proto::call::records::{Action as RecordAction, Origin, Sent};
use wallaby_proto::call::watch::{
    self, Action, Executed, FailureKind, Location, Source, Watch, WatchSettings,
};
use wallaby_proto::connection::Hello;
use wallaby_proto::wire::{Message, Ping, PingSettings, Pong, ReplyTo};
use wallaby_proto::{CallId, Code, NodeId, Path, RequestId, Status, Token};

use super::peers::{Destination, Parcel, session, socket};
use super::{Node, address};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;
use crate::oracle::{Outcome, Place, Rule};
use crate::plan::Plan;
use crate::queue::{Event, Timer};
use crate::trail::Item;

/// By how much some handlers stop late.
const TARDY: Duration = Duration::from_millis(10);

impl Node {
    /// The time of this node's machines in this turn.
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// The node begins a turn: something happened.
    pub(super) fn turn(&mut self, context: &Context<'_>) {
        let nanos = context.now().as_nanos() * (1_000_000 + self.plan.drift) as u128 / 1_000_000;
        self.raw = Duration::from_nanos(nanos as u64);
        self.now = self.clock.turn(self.raw);
    }

    /// Sees to it that the node is woken when its machines have something to do.
    pub(super) fn arm(&mut self, context: &mut Context<'_>) {
        let calls = self
            .calls
            .values()
            .filter_map(|call| call.watch.as_ref()?.next_timeout());
        let records = self
            .records
            .next_timeout()
            .filter(|_| !context.is(Broken::NeverForgets));
        let due = calls
            .chain(records)
            .chain(self.next_look_at_dials())
            .chain(self.look_at_peers)
            .chain(self.waiting.next_timeout())
            .min();
        self.clock
            .arm(due.filter(|_| !context.is(Broken::TimersFirst)));
        let due = earliest(due.map(|due| self.clock.raw(due)), self.gate.next_timeout());
        if due == self.due {
            return;
        }
        self.due = due;
        if let Some(due) = due {
            let nanos = due.as_nanos() * 1_000_000 / (1_000_000 + self.plan.drift) as u128;
            let at = Duration::from_nanos(nanos as u64 + 2);
            let (node, life) = (self.index, self.life);
            context.queue.at(
                at,
                Event::Timer {
                    node,
                    life,
                    timer: Timer::Clock(due),
                },
            );
        }
    }

    pub(super) fn clock_fired(&mut self, due: Duration, context: &mut Context<'_>) {
        if self.due != Some(due) {
            return;
        }
        self.due = None;
        self.gate.handle_timeout(self.raw);
        self.handle_sessions(context);
        self.end_dials(context);
        self.end_silent_peers(context);
        self.give_up_answers(context);
        let now = self.now();
        if !context.is(Broken::NeverForgets) {
            self.records.handle_timeout(now);
        }
        for call in self.calls.values_mut() {
            if let Some(watch) = &mut call.watch
                && watch.next_timeout().is_some_and(|due| due <= now)
            {
                let peers = &self.peers;
                call.writing.retain(|(_, socket, mark)| {
                    peers
                        .get(socket)
                        .is_some_and(|peer| !peer.has_written(*mark))
                });
                // As long as this node itself has them, no server's silence means anything.
                let written = call.writing.iter().map(|(request, ..)| request);
                let goes_on = !watch.is_winding_down();
                for request in written.chain(&call.unsent).filter(|_| goes_on) {
                    watch.writing(&call.initiator, *request, now);
                }
                watch.handle_timeout(&mut call.initiator, now);
            }
        }
    }

    /// Datagrams have arrived, or time has passed: what became of the sessions.
    pub(super) fn handle_sessions(&mut self, context: &mut Context<'_>) {
        while let Some((id, event)) = self.gate.poll_event() {
            let socket = match self.sessions.get(&id) {
                Some(socket) => *socket,
                None if event.is_ok() => self.accept_session(id, context),
                None => continue,
            };
            match event {
                Ok(event) => self.handle_event(socket, event, context),
                Err(ended) => self.handle_session_end(socket, &ended.cause, context),
            }
        }
        let sockets: Vec<Socket> = self.sessions.values().copied().collect();
        for socket in sockets {
            self.note_written(socket, context);
            self.pump(socket, context);
        }
    }

    /// Tells the records what has left by sessions.
    fn note_left(&mut self, context: &mut Context<'_>) {
        let sockets: Vec<Socket> = self.sessions.values().copied().collect();
        for socket in sockets {
            self.note_written(socket, context);
        }
    }

    /// Sends the datagrams that are due.
    pub(super) fn transmit(&mut self, context: &mut Context<'_>) {
        let mut bytes = Vec::new();
        let mut left = false;
        while let Some(transmit) = self.gate.poll_transmit(self.raw, &mut bytes) {
            left = true;
            let datagram = Bytes::from(std::mem::take(&mut bytes));
            if let Some(to) = super::node_of(transmit.to) {
                let Context {
                    network,
                    queue,
                    coverage,
                    ..
                } = context;
                network.send_datagram(self.index, to, datagram, queue, coverage);
            }
        }
        if left {
            self.note_left(context);
        }
    }

    /// Does what the machines want done.
    pub(super) fn act(&mut self, context: &mut Context<'_>) {
        loop {
            while let Some(action) = self.records.poll() {
                self.act_on_records(action, context);
            }
            let next = self.calls.iter_mut().find_map(|(sequence, call)| {
                let action = call.watch.as_mut()?.poll()?;
                Some((*sequence, action))
            });
            let Some((sequence, action)) = next else {
                match self.ready.pop_front() {
                    Some(job) => self.run(job, context),
                    None => return,
                }
                continue;
            };
            self.act_on_watch(sequence, action, context);
        }
    }

    /// Does what one call's watch wants done.
    pub(super) fn follow_watch(&mut self, sequence: u64, context: &mut Context<'_>) {
        while let Some(call) = self.calls.get_mut(&sequence)
            && let Some(action) = call.watch.as_mut().and_then(Watch::poll)
        {
            self.act_on_watch(sequence, action, context);
        }
    }

    fn act_on_watch(&mut self, sequence: u64, action: Action, context: &mut Context<'_>) {
        match action {
            Action::Ping { to, ping } => {
                context.hit(if ping.abort {
                    Point::PingAbort
                } else {
                    Point::Ping
                });
                if !ping.missing.is_empty() {
                    context.hit(Point::PingMissing);
                }
                note!(
                    context,
                    self.index,
                    "pings {} of {} at {to}",
                    ping.request,
                    ping.call
                );
                let found = self.is_found_at(&to);
                let parcel = Parcel {
                    message: Message::Ping(ping),
                    to: Destination::Asked(to),
                    job: None,
                    released: None,
                    waits: 0,
                };
                let asks = parcel.asks().filter(|_| found.is_some());
                self.not_found(asks.into_iter().collect(), found, context);
                self.post(parcel, context);
            }
            Action::Retry {
                request, attempt, ..
            } => self.send_again(sequence, request, attempt, context),
            Action::Lost(failure) => unreachable!("no call goes on without {failure}"),
            Action::Failed(mut failure) => {
                if context.is(Broken::NothingSent) {
                    failure.executed = Executed::NothingSent;
                }
                note!(context, self.index, "{failure}");
                context.hit(match failure.kind {
                    FailureKind::Silent { .. } => Point::FailureSilent,
                    FailureKind::ResponseLost { .. } => Point::FailureResponseLost,
                    FailureKind::Stalled { .. } => Point::FailureStalled,
                    FailureKind::Undelivered => Point::FailureUndelivered,
                    _ => Point::OutcomeFailed,
                });
                if let FailureKind::Violation(violation) = &failure.kind
                    && !context.oracle.reruns.may_differ(failure.call)
                {
                    context.violate(Rule::FalseAccusation, format!("{violation}"));
                }
                let (now, hanging) = (context.queue.now(), self.hanging(context));
                context.oracle.failed(now, &failure, hanging, context.plan);
                self.settle(sequence, Outcome::Failed, context);
            }
            Action::Frozen => context.hit(Point::WindingFrozen),
            Action::Quiet => {
                context.hit(Point::WindingQuiet);
                self.calls.remove(&sequence);
            }
        }
    }

    fn act_on_records(&mut self, action: RecordAction, context: &mut Context<'_>) {
        match action {
            RecordAction::Pong { session, mut pong } => {
                self.spoil(&mut pong, context);
                context.oracle.pongs(context.queue.now(), &pong);
                context.hit(match &pong.progress {
                    None => Point::PongUnknown,
                    Some(progress) if !progress.lost.is_empty() => Point::PongLost,
                    Some(progress) if progress.facts.is_some() => Point::PongFacts,
                    Some(progress) if progress.continuation.is_some() => Point::PongContinued,
                    Some(progress) if !progress.children.is_empty() => Point::PongChildren,
                    Some(_) => Point::PongRunning,
                });
                if pong.writing {
                    context.hit(Point::PongWriting);
                }
                let to = Destination::Over(socket(session));
                self.post(
                    Parcel {
                        message: Message::Pong(pong),
                        to,
                        job: None,
                        released: None,
                        waits: 0,
                    },
                    context,
                );
            }
            RecordAction::Announce {
                mut pong,
                reply_to,
                session,
            } => {
                self.spoil(&mut pong, context);
                context.hit(Point::Announced);
                context.oracle.pongs(context.queue.now(), &pong);
                let came = socket(session);
                let address = self.initiator_address(&reply_to, came);
                let to = Destination::Initiator {
                    address,
                    came,
                    small: true,
                };
                self.post(
                    Parcel {
                        message: Message::Pong(pong),
                        to,
                        job: None,
                        released: None,
                        waits: 0,
                    },
                    context,
                );
            }
            RecordAction::Resend {
                ticket,
                session,
                response,
            } => {
                context.hit(Point::ResponseResent);
                let place = Place::Response(response.request.path, response.index);
                context.oracle.leaves(response.call, Item::Answer(place));
                let (to, sent) = (
                    Destination::Over(socket(session)),
                    Sent::Response(response.index),
                );
                let message = Message::Response(response);
                self.post(
                    Parcel {
                        message,
                        to,
                        job: None,
                        released: Some((ticket, sent)),
                        waits: 0,
                    },
                    context,
                );
            }
            RecordAction::Stop {
                ticket,
                call,
                reason,
                ..
            } => {
                if reason == wallaby_proto::call::records::StopReason::InitiatorSilent {
                    let what = "a server believes that its initiator is dead";
                    context
                        .oracle
                        .gave_up(context.queue.now(), call, context.plan, what);
                }
                match reason {
                    wallaby_proto::call::records::StopReason::Aborted => {
                        context.hit(Point::StopAborted);
                    }
                    wallaby_proto::call::records::StopReason::InitiatorSilent => {
                        context.hit(Point::StopSilent);
                    }
                    _ => {}
                }
                if let Some(number) = self.tickets.get(&ticket).copied() {
                    if self.plan.tardy {
                        return self.wake(TARDY, Timer::Stop(number), context);
                    }
                    self.stop_job(
                        number,
                        &Status::new(Code::Cancelled, reason.to_string()),
                        context,
                    );
                }
            }
        }
    }

    /// Where the initiator of a request that came over this connection says that it is reached.
    pub(super) fn initiator_address(
        &self,
        reply_to: &ReplyTo,
        came: Socket,
    ) -> Option<wallaby_proto::Address> {
        match reply_to {
            ReplyTo::Peer => self.hello_of(came)?.address.clone(),
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Relay => None,
        }
    }

    /// What the other end of a connection said of itself.
    fn hello_of(&self, socket: Socket) -> Option<Arc<Hello>> {
        let wire = &self.peers.get(&socket)?.wire;
        wire.peek(&self.gate)?.peer().cloned()
    }

    pub(super) fn origin(&self, from: Socket, context: &Context<'_>) -> Option<Origin> {
        let peer = self.peers.get(&from)?.node()?;
        let links = context.plan.links;
        Some(Origin {
            session: session(from),
            peer,
            transit: links.latency + links.jitter,
        })
    }

    pub(super) fn handle_ping(&mut self, from: Socket, ping: &Ping, context: &mut Context<'_>) {
        if ping.abort {
            let now = context.queue.now();
            context
                .oracle
                .told_to_abort(now, self.id, ping.call, context.plan);
            if context.is(Broken::NoTombstone) && !self.runs(ping.call) {
                return;
            }
        }
        let now = self.now();
        let Some(origin) = self.origin(from, context) else {
            return;
        };
        let next = self.records.onward(ping, origin, now);
        if let Some(next) = next.filter(|next| next.node != Some(self.id)) {
            context.hit(Point::PingPassed);
            let message = Message::Ping(ping.clone());
            context
                .oracle
                .relayed(context.queue.now(), &message, Some(self.id));
            let to = Destination::Asked(Location {
                address: Some(next.server),
                node: next.node,
            });
            self.post(
                Parcel {
                    message,
                    to,
                    job: None,
                    released: None,
                    waits: 0,
                },
                context,
            );
            self.found_a_way(ping.call, ping.token, context);
            if !ping.abort {
                return;
            }
        }
        if self.records.handle_ping(ping, origin, now) {
            self.found_a_way(ping.call, ping.token, context);
        }
    }

    pub(super) fn handle_pong(&mut self, from: Socket, pong: &Pong, context: &mut Context<'_>) {
        let token = Token::derive(self.secret, pong.call.sequence);
        let node = self.peers.get(&from).and_then(super::Peer::node);
        let is_vouched = watch::is_vouched(pong, token, node);
        let source = self.source(from, pong.token.filter(|_| !is_vouched));
        let now = self.now();
        if is_vouched
            && self.calls.contains_key(&pong.call.sequence)
            && let Some(ping) = watch::show(pong, token)
        {
            context.hit(Point::TokenShown);
            return self.post_over(from, Message::Ping(ping), context);
        }
        let Some(call) = self.calls.get_mut(&pong.call.sequence) else {
            if is_vouched || pong.announced && pong.token == Some(token) {
                context.hit(Point::AnnouncementDismissed);
                let stop = watch::dismiss(pong, token);
                self.post_over(from, Message::Ping(stop), context);
            }
            return;
        };
        let sequence = pong.call.sequence;
        // Before its initial requests have been written a call is not watched, and has not asked.
        let Some(watch) = &mut call.watch else { return };
        context.oracle.pong_arrived(context.queue.now(), pong);
        let stop = watch.handle_pong(&mut call.initiator, pong, &source, now);
        if pong.progress.is_none() && context.is(Broken::UnknownFails) {
            let kind = FailureKind::Silent {
                silence: Duration::ZERO,
            };
            watch.fail(&mut call.initiator, pong.request, kind, now);
        }
        if let Some(stop) = stop {
            self.post_over(from, Message::Ping(stop), context);
        }
        self.check_completion(sequence, context);
    }

    /// Who sent a message. One that shows the call's token may have been relayed.
    pub(super) fn source(&self, from: Socket, token: Option<Token>) -> Source {
        let node = self
            .peers
            .get(&from)
            .and_then(super::Peer::node)
            .filter(|_| token.is_none());
        let alone = node.is_some()
            && self
                .peers
                .values()
                .filter(|peer| peer.node() == node)
                .count()
                == 1;
        let address = self.hello_of(from).and_then(|hello| hello.address.clone());
        Source {
            location: Location {
                address: address.filter(|_| node.is_some()),
                node,
            },
            alone,
        }
    }

    /// A connection has taken an initial request.
    pub(super) fn root_sent(&mut self, sequence: u64, root: (RequestId, Socket, u64)) {
        let node = self.peers.get(&root.1).and_then(super::Peer::node);
        if let Some(call) = self.calls.get_mut(&sequence) {
            let (id, token) = (call.initiator.call(), call.initiator.token());
            for (place, server) in (0..).zip(&mut call.servers) {
                if Path::ROOT.child(place, id, token) == root.0.path {
                    server.node = node;
                }
            }
            call.unsent.remove(&root.0);
            call.writing.push(root);
        }
    }

    /// A call has lasted a ping period.
    pub(super) fn begin_watch(&mut self, sequence: u64, context: &mut Context<'_>) {
        self.with_watch(sequence, context, |_, _, _| {});
    }

    /// Does something with the watch of a call, which begins now if there is none yet.
    pub(super) fn with_watch(
        &mut self,
        sequence: u64,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Watch, &mut wallaby_proto::call::initiator::Initiator, Duration),
    ) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(&sequence) else {
            return;
        };
        let watch = match &mut call.watch {
            Some(watch) => watch,
            none => {
                context.hit(Point::Watched);
                none.insert(Watch::new(
                    &mut call.initiator,
                    settings(context, call.index),
                    call.servers.clone(),
                    now,
                ))
            }
        };
        act(watch, &mut call.initiator, now);
    }

    /// No connection with a life is left, as far as this node knows.
    pub(super) fn disconnected(&mut self, node: NodeId, context: &mut Context<'_>) {
        if self.connection_to(node).is_some() {
            return;
        }
        let now = self.now();
        for call in self.calls.values_mut() {
            if let Some(watch) = &mut call.watch {
                context.hit(Point::WatchDisconnect);
                watch.handle_last_disconnect(&call.initiator, node, now);
            }
        }
    }

    /// A life, or nobody, was found at an address: who was there before is gone.
    pub(super) fn found_at(
        &mut self,
        server: u32,
        node: Option<NodeId>,
        context: &mut Context<'_>,
    ) {
        let before = match node {
            Some(node) => {
                self.dials.found(&server);
                self.found.insert(server, node)
            }
            None => self.found.remove(&server),
        };
        let Some(gone) = before.filter(|before| Some(*before) != node) else {
            return;
        };
        if context.is(Broken::NeverGone) {
            return;
        }
        let now = self.now();
        for call in self.calls.values_mut() {
            if let Some(watch) = &mut call.watch {
                context.hit(Point::WatchGone);
                watch.handle_gone(&call.initiator, gone, now);
            }
        }
    }

    /// Lives were to be asked about calls of this node, and somebody else, or nobody, is where others say that they are.
    pub(super) fn not_found(
        &mut self,
        asked: Vec<(CallId, NodeId)>,
        found: Option<NodeId>,
        context: &mut Context<'_>,
    ) {
        let now = self.now();
        for (id, node) in asked {
            if context.is(Broken::NeverGone)
                || Some(node) == found
                || self.connection_to(node).is_some()
            {
                continue;
            }
            if let Some(call) = self.calls.get_mut(&id.sequence)
                && id.initiator == self.id
                && let Some(watch) = &mut call.watch
            {
                context.hit(Point::WatchNotFound);
                watch.handle_not_found(&call.initiator, node, now);
            }
        }
    }

    /// An initial request certainly did not reach its server.
    pub(super) fn fail_call(
        &mut self,
        sequence: u64,
        request: RequestId,
        context: &mut Context<'_>,
    ) {
        self.with_watch(sequence, context, |watch, initiator, now| {
            watch.fail(initiator, request, FailureKind::Undelivered, now);
        });
    }
}

/// How the plan's call is watched.
pub(super) fn settings(context: &Context<'_>, index: usize) -> WatchSettings {
    WatchSettings {
        ping: ping_settings(context, index),
        stall: context.plan.calls[index].stall,
        retries: context.plan.calls[index].retries,
        partial: false,
    }
}

pub(super) fn ping_settings(context: &Context<'_>, index: usize) -> PingSettings {
    let plan = &context.plan.calls[index];
    PingSettings {
        period: plan.ping_period,
        timeout: plan.timeout,
    }
}

/// Where the server with this index is.
pub(super) fn location(plan: &Plan, server: u32) -> Location {
    Location {
        address: Some(address(plan, server)),
        node: None,
    }
}
