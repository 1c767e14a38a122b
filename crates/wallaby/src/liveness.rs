//! Who lives: what an endpoint remembers of requests, when it looks at which call, and what comes of it (thesis 4.4).
//!
//! The state machines are `wallaby_proto::call::{watch, records}`; here they get the time, and what they want done is done.
//! Their lock is the innermost one: nothing is sent while it is held.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use wallaby_proto::call::clock::Clock;
use wallaby_proto::call::records::written_next;
use wallaby_proto::call::records::{
    Action, Admission, Frozen, Origin, Output, RecordLimits, Records, RefusedRequest, Remembered,
    Sent, Session, StopReason, Ticket, Way,
};
use wallaby_proto::call::server::Delegated;
use wallaby_proto::call::waiting::{Awaited, Full, Waiting, WaitingId, WaitingLimits};
use wallaby_proto::call::watch::{self, is_vouched};
use wallaby_proto::connection::{NamedBy, Refusal};
use wallaby_proto::wire::{Child, Message, Ping, Pong, ReplyTo, Request, Response};
use wallaby_proto::{Address, CallId, Code, NodeId, RequestId, Status, Token};

use crate::call::CallShared;
use crate::calls::BATCH;
use crate::driver::peer::{Peer, Place, Refused};
use crate::endpoint::Inner;
use crate::timer::Instant;

/// What an endpoint knows of who lives.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// What time is counted from.
    epoch: Instant,
    state: Mutex<State>,
    endpoint: Weak<Inner>,
}

#[derive(Debug)]
struct State {
    clock: Clock,
    records: Records,
    /// Answers to which no way leads; who waits for one is told that there is one, or nothing when time is up.
    waiting: Waiting<oneshot::Sender<()>>,
    /// Calls that are watched over, by when they are to be looked at.
    watched: BTreeSet<(Duration, u64)>,
    /// All calls before this one have been looked at once, or have ended.
    looked_at: u64,
    /// When the records learn next what connections have written.
    written_next: Duration,
}

/// What a delegated request carries of its line of the call.
pub(crate) struct Carried {
    /// How long the initiator has not heard of it.
    pub(crate) quiet: Option<Duration>,
    /// The initiator's oldest live call.
    pub(crate) oldest: Option<u64>,
}

impl Liveness {
    pub(crate) fn new(
        limits: RecordLimits,
        waiting: WaitingLimits,
        secret: [u8; 16],
        endpoint: Weak<Inner>,
    ) -> Self {
        Self {
            endpoint,
            epoch: Instant::now(),
            state: Mutex::new(State {
                clock: Clock::default(),
                records: Records::new(limits, secret),
                waiting: Waiting::new(waiting),
                watched: BTreeSet::new(),
                looked_at: 1,
                written_next: Duration::ZERO,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of all state machines of the endpoint.
    pub(crate) fn now(&self) -> Duration {
        self.time(Instant::now())
    }

    /// The same, of a moment not long ago.
    pub(crate) fn time(&self, moment: Instant) -> Duration {
        let raw = moment.saturating_duration_since(self.epoch);
        self.lock().clock.turn(raw)
    }

    /// When something that is due at this time must be done.
    pub(crate) fn moment(&self, due: Duration) -> Instant {
        self.epoch + self.lock().clock.raw(due)
    }

    pub(crate) fn remembered(&self) -> Remembered {
        self.lock().records.remembered()
    }

    /// The session that answers of a call leave by, if its initiator is reached by none of its own.
    pub(crate) fn way_onward(&self, call: CallId, token: Token, distance: u32) -> Option<Way> {
        self.lock().records.way_onward(call, token, distance)
    }

    /// The session that an initiator has proven to be its own, for what came over another one.
    pub(crate) fn way_direct(&self, initiator: NodeId, came: Session) -> Option<Session> {
        self.lock().records.way_direct(initiator, came)
    }

    /// What to say over a session that claims to be the initiator's own, of a request that came over another one.
    pub(crate) fn invite(
        &self,
        named: (CallId, Token, RequestId),
        (came, claims): (Session, Session),
        own: NodeId,
    ) -> Option<Pong> {
        let records = &mut self.lock().records;
        records.invite(named, came, (claims, own))
    }

    // What servers tell.

    /// A request arrived: is it handled?
    pub(crate) fn admit(
        &self,
        request: &Request,
        peer: &Peer,
        node: NodeId,
        arrived: Instant,
    ) -> Admission {
        let raw = arrived.saturating_duration_since(self.epoch);
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let admission = state.records.admit(request, origin(peer, node), now);
        self.leave(state);
        admission
    }

    /// The records have changed: perhaps they are due earlier than when the next look is.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        if let Some(due) = state.records.take_sooner() {
            self.note_due(state, due);
        }
    }

    #[cold]
    fn note_due(&self, mut state: MutexGuard<'_, State>, due: Duration) {
        state.clock.arm_sooner(due);
        let moment = self.epoch + state.clock.raw(due);
        drop(state);
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.note_due(moment);
        }
    }

    /// The server half of a request released an answer; its place in the output is given later if it has none yet.
    pub(crate) fn released(
        &self,
        ticket: Ticket,
        answer: &Message,
        output: Option<Output>,
        moment: Instant,
    ) {
        let raw = moment.saturating_duration_since(self.epoch);
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        match answer {
            Message::Response(response) => {
                state
                    .records
                    .response_released(ticket, response, output, now);
            }
            Message::End(end) => state.records.end_released(ticket, end, output, now),
            _ => {}
        }
        self.leave(state);
    }

    /// The server half of a request released a delegation.
    ///
    /// # Errors
    ///
    /// If it must not be sent.
    pub(crate) fn delegated<T>(
        &self,
        ticket: Ticket,
        delegated: &Delegated<T>,
        to: Child,
        moment: Instant,
    ) -> Result<Carried, Frozen> {
        let raw = moment.saturating_duration_since(self.epoch);
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let records = &mut state.records;
        let carried = Carried {
            quiet: records.quiet(ticket, now),
            oldest: records.oldest(ticket),
        };
        records.delegation_released(ticket, delegated, to, None, now)?;
        self.leave(state);
        Ok(carried)
    }

    /// A delegation that had waited was handed to a connection with this life.
    pub(crate) fn taken(&self, ticket: Ticket, request: RequestId, node: NodeId) {
        let records = &mut self.lock().records;
        records.delegation_taken(ticket, request, node);
    }

    /// A delegation certainly was not delivered, and `own` answers in its name: for whom, if there is room to remember.
    pub(crate) fn undelivered(
        &self,
        ticket: Ticket,
        request: &Request,
        own: Child,
    ) -> Option<Ticket> {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let undelivered = state
            .records
            .delegation_undelivered(ticket, request, own, now);
        self.leave(state);
        undelivered
    }

    /// A released message got its place in a connection's output.
    pub(crate) fn placed(&self, place: Place, output: Output) {
        if let Place::Initiator(_) = place {
            return; // no record waits for it
        }
        let records = &mut self.lock().records;
        match place {
            Place::Released(ticket, sent) => records.placed(ticket, sent, output),
            Place::Passing(passage) => records.passed_on(passage, Some(output)),
            Place::Initiator(_) => {}
        }
    }

    /// A message will never be sent.
    pub(crate) fn dropped(&self, place: Place) {
        let records = &mut self.lock().records;
        match place {
            Place::Released(ticket, sent) => records.dropped(ticket, sent),
            Place::Passing(passage) => records.passed_on(passage, None),
            Place::Initiator(_) => {}
        }
    }

    /// A status takes the place of an answer that was, or will be, released: the answer is larger than its initiator takes.
    pub(crate) fn replaced(&self, ticket: Ticket, status: &Response) {
        self.lock().records.response_replaced(ticket, status);
    }

    /// An answer of another server goes on over this connection, but not at once: its place is to be told, if there is
    /// room to remember it.
    pub(crate) fn passing(&self, response: &Response, next: &Peer) -> Option<Place> {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let passage = state.records.passing(response, session(next), now);
        self.leave(state);
        passage.map(Place::Passing)
    }

    /// The status of a request that is not remembered does not leave at once: its place is to be told, if there is room to
    /// remember it.
    #[cold]
    pub(crate) fn refused(&self, refused: &RefusedRequest) -> Option<Place> {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let passage = state.records.refused(refused, now);
        self.leave(state);
        passage.map(Place::Passing)
    }

    /// A pong of another server is passed on.
    pub(crate) fn pong_passes(&self, pong: &Pong) {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        state.records.pong_passes(pong, now);
        self.leave(state);
    }

    /// A handler goes on.
    pub(crate) fn progressed(&self, ticket: Ticket) {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        state.records.progressed(ticket, now);
        self.leave(state);
    }

    /// The time that a delegation has which has waited; `None` if it must not be sent any more: its call may have been
    /// aborted, long ago even.
    pub(crate) fn time_left(&self, ticket: Ticket) -> Option<Duration> {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let left = state.records.time_left(ticket, now);
        self.leave(state);
        left
    }

    /// Whether a request may go on: its call was not aborted.
    pub(crate) fn may_go_on(&self, ticket: Ticket) -> bool {
        self.lock().records.may_delegate(ticket)
    }

    // Answers without a way.

    /// An answer waits for a way to its initiator, and `waits` is told when there is one. Also whether it is the first of its
    /// call.
    ///
    /// # Errors
    ///
    /// If too many wait.
    pub(crate) fn begin_wait(
        &self,
        awaited: Awaited,
        payload: usize,
        waits: oneshot::Sender<()>,
    ) -> Result<(WaitingId, bool), Full> {
        let raw = self.epoch.elapsed();
        let mut state = self.lock();
        let now = state.clock.turn(raw);
        let Awaited { call, token, .. } = awaited;
        let before = state.waiting.session(call, token);
        let came = before.or_else(|| state.records.way_back(call, token));
        let came = came.unwrap_or(Session(0)); // its request was forgotten
        let put = state.waiting.put((awaited, came), payload, waits, now);
        put.map(|id| (id, before.is_none()))
            .map_err(|(full, _)| full)
    }

    /// It does not wait any more.
    pub(crate) fn end_wait(&self, id: WaitingId) {
        self.lock().waiting.remove(id);
    }

    /// There is a way for answers of this call: whoever waits for one.
    pub(crate) fn end_waits(&self, call: CallId, token: Token) -> Vec<oneshot::Sender<()>> {
        let waiting = &mut self.lock().waiting;
        std::iter::from_fn(|| waiting.take(call, token)).collect()
    }

    /// Of which calls of this initiator answers wait for a way, a few of them.
    pub(crate) fn awaited(&self, initiator: NodeId) -> Vec<Awaited> {
        self.lock().waiting.of(initiator)
    }

    // What calls are watched.

    /// A call wants to be looked at: `before` is when it wanted that until now.
    pub(crate) fn watch(&self, sequence: u64, before: Option<Duration>, due: Option<Duration>) {
        let mut state = self.lock();
        if let Some(before) = before {
            state.watched.remove(&(before, sequence));
        }
        if let Some(due) = due {
            state.watched.insert((due, sequence));
            state.clock.arm_sooner(due);
        }
    }
}

/// A connection's name in the records.
pub(crate) fn session(peer: &Peer) -> Session {
    Session(peer.id)
}

fn origin(peer: &Peer, node: NodeId) -> Origin {
    Origin {
        session: session(peer),
        peer: node,
        transit: Duration::ZERO,
    }
}

impl Inner {
    /// A connection's handshake is done.
    pub(crate) fn session_opened(&self, peer: &Peer) {
        if let Some(node) = peer.node() {
            let mut state = self.liveness.lock();
            state.records.session_opened(session(peer), node);
        }
    }

    /// A connection has ended, and all that came over it has been read.
    pub(crate) fn session_ended(self: &Arc<Self>, peer: &Arc<Peer>) {
        let now = self.liveness.now();
        self.note_progress(peer);
        let mut state = self.liveness.lock();
        state.records.session_ended(session(peer), now);
        self.liveness.leave(state);
        self.act();
        if let Some(node) = peer.node().filter(|_| peer.uses.has_carried_calls()) {
            self.tell_calls(peer, node);
        }
    }

    /// Tells all live calls that a connection has ended; if these are many, other tasks have their turn between. Only one that
    /// has carried something of calls is worth that: anybody can connect and leave.
    fn tell_calls(self: &Arc<Self>, peer: &Arc<Peer>, node: NodeId) {
        let was_last = self.pool.was_last(node);
        let (calls, next) = self.calls().batch(0);
        let tell = |call: &Arc<CallShared>| call.handle_disconnect(peer, node, was_last);
        calls.iter().for_each(tell);
        if calls.len() < BATCH {
            return;
        }
        let (endpoint, peer) = (Arc::clone(self), Arc::clone(peer));
        self.runtime.spawn(async move {
            let (mut calls, mut next) = (calls, next);
            while calls.len() >= BATCH {
                tokio::task::yield_now().await;
                let was_last = endpoint.pool.was_last(node);
                (calls, next) = endpoint.calls().batch(next);
                let tell = |call: &Arc<CallShared>| call.handle_disconnect(&peer, node, was_last);
                calls.iter().for_each(tell);
            }
        });
    }

    /// The initiator asks about a request, or aborts its call.
    pub(crate) fn handle_ping(self: &Arc<Self>, peer: &Arc<Peer>, ping: &Ping) {
        let Some(node) = peer.node() else {
            return; // messages come only after the handshake
        };
        let now = self.liveness.now();
        let origin = origin(peer, node);
        if self.pass_ping(peer, ping, (origin, now)) && !ping.abort {
            return;
        }
        self.note_written(now);
        let mut state = self.liveness.lock();
        let is_known = state.records.handle_ping(ping, origin, now);
        self.liveness.leave(state);
        if is_known {
            self.found_way(ping.call, ping.token);
        }
        if ping.abort {
            self.relay.forget(ping.call, ping.token);
        }
        self.act();
    }

    /// Somebody asked about a request that is not known here, or for an end of its call.
    #[cold]
    #[inline(never)]
    fn note_unknown_ping(&self, call: CallId, session: Session) {
        self.meters.unknown_pings.add();
        if let Some(more) = self.sparse.unknown_ping.pass(self.age()) {
            let peer = self.pool.by_id(session.0);
            tracing::debug!(%call, ?peer, more, "a ping about a request that is not known");
        }
    }

    /// A message did not show the token of its call: it is dropped.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_forged(&self, call: CallId, peer: Option<&Arc<Peer>>) {
        self.meters.forged_dropped.add();
        if let Some(more) = self.sparse.forged.pass(self.age()) {
            tracing::warn!(%call, ?peer, more, "a message without the call's token was dropped");
        }
    }

    /// A ping about a request that came of one here goes on to where that was handed, for an initiator that cannot reach
    /// its server. Returns whether it does.
    fn pass_ping(
        self: &Arc<Self>,
        from: &Arc<Peer>,
        ping: &Ping,
        (origin, now): (Origin, Duration),
    ) -> bool {
        let next = self.liveness.lock().records.onward(ping, origin, now);
        let Some(next) = next.filter(|next| next.node != Some(self.node)) else {
            return false;
        };
        self.found_way(ping.call, ping.token);
        let known = match next.node {
            Some(node) => self.pool.at(&next.server, node),
            None => self.pool.ready(&next.server),
        };
        match known {
            Some(peer) if peer.id == from.id => return false,
            Some(peer) => {
                peer.control(Message::Ping(ping.clone()));
            }
            None => {
                let (endpoint, ping) = (Arc::clone(self), ping.clone());
                self.runtime.spawn(async move {
                    let named_by = NamedBy::Peer;
                    let (server, node) = (&next.server, next.node);
                    if let Ok(peer) = endpoint.connect_asked(server, node, named_by).await
                        && next.node.is_none_or(|node| peer.node() == Some(node))
                    {
                        peer.control(Message::Ping(ping));
                    }
                });
            }
        }
        self.meters.pings_passed.add();
        true
    }

    /// The records learn what connections have written; not for each ping, as there may be many of both.
    fn note_written(&self, now: Duration) {
        if now < self.liveness.lock().written_next {
            return;
        }
        let peers = self.pool.open();
        self.liveness.lock().written_next = written_next(now, peers.len());
        peers.iter().for_each(|peer| self.note_progress(peer));
    }

    fn note_progress(&self, peer: &Peer) {
        let (written, confirmed) = peer.progress();
        let mut state = self.liveness.lock();
        state.records.written(session(peer), written);
        if let Some(confirmed) = confirmed {
            state.records.confirmed(session(peer), confirmed);
        }
    }

    /// An announcement, or an answer to a ping, for a call of this endpoint.
    pub(crate) fn handle_pong(self: &Arc<Self>, peer: Option<&Arc<Peer>>, pong: &Pong) {
        match self.call(pong.call.sequence) {
            Some(call) => call.handle_pong(peer, pong),
            // The call is over: whoever still works for it is told (PROTOCOL-NOTES 31). The token goes along, to who
            // knows it.
            None if pong.announced => {
                if let Some(peer) = peer {
                    let token = self.token(pong.call.sequence);
                    let to_come = pong.call.sequence >= self.calls().next();
                    let is_shown =
                        pong.token == Some(token) || is_vouched(pong, token, peer.node());
                    if to_come || !is_shown {
                        return self.note_forged(pong.call, Some(peer));
                    }
                    let stop = watch::dismiss(pong, token);
                    peer.control(Message::Ping(stop));
                }
            }
            None => {}
        }
    }

    /// Looks at all that is due, and says when to look again. It runs where connections are driven, so that a runtime
    /// that was blocked reads what has arrived before it judges silence (PROTOCOL-NOTES 20).
    pub(crate) fn look(self: &Arc<Self>) {
        let period = self.config.ping.period;
        let raw = self.liveness.epoch.elapsed();
        let fresh = self.next_fresh();
        let mut state = self.liveness.lock();
        let due = state.next(fresh);
        state.clock.arm(due);
        let now = state.clock.turn(raw);
        drop(state);
        self.note_written(now);
        let mut state = self.liveness.lock();
        state.records.handle_timeout(now);
        let given_up: Vec<_> = std::iter::from_fn(|| state.waiting.expired(now)).collect();
        let watched: Vec<u64> = state
            .watched
            .range(..=(now, u64::MAX))
            .map(|(_, sequence)| *sequence)
            .take(BATCH) // the rest is due at once, and others have their turn between
            .collect();
        let first = state.looked_at;
        drop(state);
        drop(given_up);
        self.act();
        for sequence in watched {
            if let Some(call) = self.call(sequence) {
                call.look(now);
            }
        }
        self.look_at_fresh(first, now, period);
        self.look_again();
        self.tend_soon();
    }

    /// Calls that have lasted a ping period are watched over from now on.
    fn look_at_fresh(self: &Arc<Self>, first: u64, now: Duration, period: Duration) {
        let before = self.liveness.moment(now.saturating_sub(period));
        let (calls, next) = self.calls().begun_before(first, before);
        self.liveness.lock().looked_at = next;
        for call in calls {
            call.look(now);
        }
    }

    /// Says when to look again.
    pub(crate) fn look_again(&self) {
        let fresh = self.next_fresh();
        let mut state = self.liveness.lock();
        let due = state.next(fresh);
        state.clock.arm(due);
        let moment = due.map(|due| self.liveness.epoch + state.clock.raw(due));
        drop(state);
        if let Some(moment) = moment {
            self.note_due(moment);
        }
    }

    /// When the first call that has not been looked at yet will have lasted a ping period, and some time more: calls
    /// that begin in quick succession are looked at many at a time.
    fn next_fresh(&self) -> Option<Duration> {
        let first = self.liveness.lock().looked_at;
        let begun = self.calls().begun_from(first)?;
        let raw = begun.saturating_duration_since(self.liveness.epoch);
        let mut state = self.liveness.lock();
        let begun = state.clock.turn(raw);
        Some(begun + self.config.ping.period * 9 / 8)
    }

    /// Does what the records want done.
    fn act(self: &Arc<Self>) {
        loop {
            let Some(action) = self.liveness.lock().records.poll() else {
                return;
            };
            match action {
                Action::Pong { session, pong } => {
                    if pong.progress.is_none() && !pong.writing {
                        self.note_unknown_ping(pong.call, session);
                    }
                    if let Some(peer) = self.pool.by_id(session.0) {
                        peer.control(Message::Pong(pong));
                    }
                }
                Action::Announce {
                    pong,
                    reply_to,
                    session,
                } => self.announce(pong, &reply_to, session),
                Action::Resend {
                    ticket,
                    session,
                    response,
                } => {
                    let peer = self.pool.by_id(session.0);
                    self.resend(peer.as_ref(), ticket, &response);
                }
                Action::Stop { ticket, reason, .. } => self.stop(ticket, reason),
            }
        }
    }

    /// Sends an answer again; if that has to wait, the initiator asks for it once more.
    fn resend(&self, peer: Option<&Arc<Peer>>, ticket: Ticket, response: &Response) {
        let place = Place::Released(ticket, Sent::Response(response.index));
        match peer.map(|peer| peer.try_response(response, true, 0, Some(place))) {
            Some(Ok(_)) => {}
            // No status goes in its place: the first copy may still arrive, over a connection that takes it.
            Some(Err(Refused::Now(Refusal::TooLarge { .. }))) => {
                let records = &mut self.liveness.lock().records;
                records.too_large(ticket, response.index);
            }
            Some(Err(_)) | None => self.liveness.dropped(place),
        }
    }

    /// Tells the initiator of a request that it may not know of, the way the request's answers go.
    fn announce(self: &Arc<Self>, mut pong: Pong, reply_to: &ReplyTo, session: Session) {
        let initiator = pong.call.initiator;
        if initiator == self.node {
            return self.handle_pong(None, &pong);
        }
        let came = self.pool.by_id(session.0);
        if let Some(peer) = came.as_ref().filter(|peer| peer.node() == Some(initiator)) {
            if *reply_to == ReplyTo::Peer {
                pong.token = pong.token.map(|token| token.vouch(pong.call, self.node));
            }
            peer.control(Message::Pong(pong));
            return;
        }
        let address = match reply_to {
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Peer | ReplyTo::Relay => None,
        };
        let known = address.as_ref();
        let known = known.and_then(|address| self.pool.at(address, initiator));
        if let Some(peer) = known.or_else(|| self.way_direct(initiator, session)) {
            peer.control(Message::Pong(pong));
            return;
        }
        let Some(address) = address else {
            return self.announce_back(came, pong);
        };
        let endpoint = Arc::clone(self);
        self.runtime.spawn(async move {
            match endpoint.connect_initiator(&address, initiator).await {
                Ok(peer) => {
                    peer.control(Message::Pong(pong));
                }
                Err(_) => endpoint.announce_back(came, pong),
            }
        });
    }

    /// The same back the way that the request came; if that is gone, who claims to be the initiator is asked to prove it.
    fn announce_back(&self, came: Option<Arc<Peer>>, pong: Pong) {
        let Some(token) = pong.token else { return };
        let awaited = Awaited {
            call: pong.call,
            token,
            request: pong.request,
        };
        let Some(peer) = came else {
            for claiming in self.pool.claiming(pong.call.initiator) {
                self.invite(&claiming, awaited);
            }
            return;
        };
        self.invite_from(&peer, awaited);
        peer.control(Message::Pong(pong));
    }

    /// A request must stop. One that its handler's thread still works at is stopped when it first waits.
    fn stop(&self, ticket: Ticket, reason: StopReason) {
        if let Some(handling) = self.waiting(ticket) {
            handling.stop(&Status::new(Code::Cancelled, reason.to_string()));
        }
    }

    /// Where this endpoint stands in for a server that was not reached.
    pub(crate) fn own_place(&self) -> Option<Child> {
        let server = self.address.clone()?;
        Some(Child {
            server,
            node: Some(self.node),
        })
    }
}

impl State {
    fn next(&self, fresh: Option<Duration>) -> Option<Duration> {
        let watched = self.watched.first().map(|first| first.0);
        let records = self.records.next_timeout();
        let waiting = self.waiting.next_timeout();
        let due = records.into_iter().chain(watched).chain(waiting);
        due.chain(fresh).min()
    }
}

/// Where a delegated request goes, as far as known now.
pub(crate) fn child(server: &Address, peer: Option<&Arc<Peer>>) -> Child {
    Child {
        server: server.clone(),
        node: peer.and_then(|peer| peer.node()),
    }
}
