//! How messages leave: which route they take, and what becomes of those that have to wait or cannot be sent.

use std::collections::VecDeque;
use std::time::Duration;

use crate::call::records::{OutputMark as Standing, ReleasedMessage, Ticket};
use crate::call::server::make_too_large;
use crate::call::watch::Location;
use crate::carrier::Carrier;
use crate::connection::{Charge, Features, Granted, Mark, MethodDefinition, NamedBy, Refusal};
use crate::wire::{Message, Options, Ping, Request, Response};
use crate::{Address, CallId, Code, ConnId, NodeId, RequestId};

use super::answer_queues::{AnswerQueues, Of, Size};
use super::conn::{
    Asks, Cargo, Conn, Delegation, DialledFor, OutAnswer, OutRequest, Parcel, Room, Times,
};
use super::event::{Lane, Output, RequestKey};
use super::probe::{Leaving, Note, Probe};
use super::streams::MarkOwner;
use super::{Alarm, Endpoint};
use crate::error::ConnectError;
use crate::error::hint;
use crate::numbers::MOST_MOVES;

/// Questions of others, and reports, that wait for a connection to open.
const MOST_CONTROLS: usize = 256;

/// How often it is looked, at most, whether requests wait whose calls have ended.
const PURGE_PAUSE: Duration = Duration::from_millis(100);

/// Why a delegation is not sent any more. So who waits until nothing of a call runs knows that nothing of this does.
const ABORTED: (Code, &str) = (Code::Cancelled, "its call was aborted before this was sent");

/// The same where the call goes on.
const LATE: (Code, &str) = (
    Code::DeadlineExceeded,
    "its own deadline passed before it was sent",
);

/// Calls whose answers wait for others in parts and that are tried each time that something has left.
const LARGE_TRIED: usize = 16;

/// How an answer is sent in a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Back over its request's own session: it shows no token, and need not be counted if it is small.
    pub(super) direct: bool,
    pub(super) charge: Charge,
    /// The initiator's oldest live call, where the answer goes back over its request's session; elsewhere others may have made that
    /// up.
    oldest: Option<u64>,
    pub(super) ticket: Option<Ticket>,
}

impl Manner {
    /// How an answer to a request that came over `came`, from its initiator itself if `own`, is sent over `id`.
    pub(super) fn new(
        id: ConnId,
        (came, own): (Option<ConnId>, bool),
        (small, oldest): (bool, u64),
        ticket: Option<Ticket>,
    ) -> Self {
        let back = Some(id) == came;
        Self {
            direct: own && back,
            charge: match own && back && small {
                true => Charge::Free,
                false => Charge::Counted,
            },
            oldest: back.then_some(oldest),
            ticket,
        }
    }
}

/// The route that a message takes.
enum Route {
    Over(ConnId),
    Dial(Address, Option<NodeId>, NamedBy),
    Nowhere(ConnectError),
}

/// What became of a request that was to be handed to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Sent,
    /// It is not sent at all: its call is over, or another answer goes in its place.
    Settled,
    /// The session does not take it yet.
    Waits,
}

impl<P: Probe> Endpoint<P> {
    /// Messages of which no byte was sent go another way, since this has become of their connection.
    pub(super) fn post_again(&mut self, parcels: Vec<Parcel>, why: &ConnectError) {
        for mut parcel in parcels {
            parcel.moves += 1;
            if parcel.moves > MOST_MOVES {
                self.undeliverable(parcel, why);
            } else {
                self.post(parcel);
            }
        }
    }

    /// Sends a message, now or when that is possible.
    pub(super) fn post(&mut self, mut parcel: Parcel) {
        let route = self.route(&mut parcel);
        let dialled = match route {
            Route::Over(id) => return self.enqueue(id, parcel),
            Route::Dial(to, expected, named_by) => self.dial(&to, expected, named_by),
            Route::Nowhere(error) => Err(error),
        };
        match dialled {
            Ok(id) => self.enqueue(id, parcel),
            Err(error) => self.undeliverable(parcel, &error),
        }
    }

    fn enqueue(&mut self, id: ConnId, parcel: Parcel) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let waits = match (&parcel.cargo, &conn.queues) {
            _ if !conn.is_open() => true,
            (_, None) => false,
            (Cargo::Request(out), Some(_)) => conn.holds_requests(out.body.is_some()),
            (cargo, Some(queues)) => match cargo.response() {
                Some(response) => conn.holds_answers((response.call, response.token)),
                None => !queues.controls.is_empty(),
            },
        };
        let waiting = if waits {
            Some(parcel)
        } else {
            self.attempt(id, parcel)
        };
        if let (Some(parcel), Some(conn)) = (waiting, self.conns.get_mut(id)) {
            // Who does not read what it asked for asks again, and so does who asks others through this endpoint.
            let is_repeated = match &parcel.cargo {
                Cargo::Answer(out) => matches!(out.message, Message::Pong(_)),
                Cargo::Ping(ping, _) => ping.call.initiator != self.node,
                _ => false,
            };
            let controls = conn
                .queues
                .as_ref()
                .map_or(0, |queues| queues.controls.len());
            if is_repeated && (conn.is_open() || controls >= MOST_CONTROLS) {
                return;
            }
            self.queue(id, parcel);
        }
    }

    /// A message waits for a connection. An answer for which there is no room is dropped: it is asked for again.
    fn queue(&mut self, id: ConnId, mut parcel: Parcel) {
        if P::LOOKS {
            self.probe.waits(parcel.message());
        }
        let Some(room) = self.queue_room.take(id, &parcel) else {
            return self.drop_answer(parcel);
        };
        parcel.room = room;
        if let Some(of) = parcel.of() {
            self.handlers.begin_wait(of);
            parcel.room.of = Some(of);
        }
        if let Some(conn) = self.conns.get_mut(id) {
            conn.queues().push(parcel);
        }
    }

    /// A message of this request waits no longer.
    pub(super) fn end_wait(&mut self, of: Option<(RequestKey, Lane)>) {
        if let Some(of) = of
            && self.handlers.end_wait(of)
        {
            self.outputs.push_back(Output::Room(of.0, of.1));
        }
    }

    /// There may be room for what was refused before.
    pub(super) fn note_space(&mut self) {
        if self.queue_room.note_space(self.now) {
            self.outputs.push_back(Output::Space);
        } else if let Some(due) = self.queue_room.due() {
            self.note_due(due);
        }
    }

    /// What there was room for before is told now.
    pub(super) fn tell_space_late(&mut self) {
        if self.queue_room.due().is_some_and(|due| due <= self.now) {
            self.note_space();
        }
    }

    fn route(&mut self, parcel: &mut Parcel) -> Route {
        match &mut parcel.cargo {
            Cargo::Relay(response, relayed, _) => match self.route_of_relayed(response, relayed) {
                None => Route::Nowhere(gone()),
                Some((id, nearer)) => {
                    response.distance = nearer;
                    Route::Over(id)
                }
            },
            Cargo::Request(out) if self.is_ending() => Route::Nowhere(ended(&out.server)),
            Cargo::Request(out) => self.route_to(&out.server, NamedBy::Application),
            Cargo::Ping(_, Asks::Over(id)) | Cargo::Again(_, id, _) | Cargo::Refusal(_, id, _) => {
                match self.conns.contains(*id) {
                    true => Route::Over(*id),
                    false => Route::Nowhere(gone()),
                }
            }
            Cargo::Ping(ping, Asks::At(asked)) => {
                match asked.to.address.as_ref().map(|at| self.reachable(at)) {
                    Some(Ok(to)) => self.route_to(to, self.named_by(ping.call, to)),
                    Some(Err(error)) => Route::Nowhere(error),
                    None => Route::Nowhere(gone()),
                }
            }
            Cargo::Answer(out) => {
                self.route_to_initiator(&out.message, out.address.clone(), out.came)
            }
        }
    }

    /// The connection with a server, or its address, to be dialled. One that is being opened since a peer has named the address is
    /// opened like the application's own once that wants it, too: a stranger's address is asked seldom.
    fn route_to(&mut self, to: &Address, named_by: NamedBy) -> Route {
        let Some(id) = self.conn_at(to) else {
            return Route::Dial(to.clone(), None, named_by);
        };
        if named_by == NamedBy::Application {
            self.name_by_application(id);
        }
        Route::Over(id)
    }

    /// The open connection by which an answer goes straight to its initiator: the one that its request came over, if the
    /// initiator brought it itself; one with the address that the request names; one that has proven to be the initiator's.
    pub(super) fn route_back(
        &mut self,
        initiator: NodeId,
        came: Option<ConnId>,
        address: impl FnOnce(&Self) -> Option<Address>,
    ) -> Option<ConnId> {
        let node = came.and_then(|came| self.conns.get(came)?.node());
        if node == Some(initiator) {
            return came;
        }
        let known = address(self).and_then(|address| self.incarnation_at(&address, initiator));
        known.or_else(|| self.direct_route(initiator, came?))
    }

    /// The connection that an initiator has proven to be its own, for what came over another one.
    pub(super) fn direct_route(&self, initiator: NodeId, came: ConnId) -> Option<ConnId> {
        let id = self.records.direct_route(initiator, came)?;
        self.conns.contains(id).then_some(id)
    }

    fn route_to_initiator(
        &mut self,
        message: &Message,
        address: Option<Address>,
        came: Option<ConnId>,
    ) -> Route {
        let call = message.call();
        let initiator = call.initiator;
        if let Some(id) = self.route_back(initiator, came, |_| address.clone()) {
            return Route::Over(id);
        }
        let brought = message.token();
        let brought = brought.and_then(|token| self.records.brought_by_initiator(call, token));
        if let Some(id) = brought.filter(|id| self.conns.contains(*id)) {
            return Route::Over(id);
        }
        let error = match address
            .as_ref()
            .map(|address| (address, self.reachable(address)))
        {
            Some((address, _)) if self.is_ending() => ended(address),
            Some((address, _)) if !self.config.dial_policy.permits(address) => {
                self.metrics.dials_forbidden += 1;
                ConnectError::Forbidden {
                    server: address.clone(),
                }
            }
            Some((_, Ok(to))) => {
                let opening = self.directory.back_to(to);
                let opening = opening.and_then(|id| Some((id, self.conns.get(id)?.dialled?)));
                match opening.filter(|(_, dialled)| dialled.expected() == Some(initiator)) {
                    Some((_, DialledFor::Late(_))) => ConnectError::TimedOut {
                        server: to.clone(),
                        after: self.config.dial_back_timeout,
                    },
                    Some((id, _)) => return Route::Over(id),
                    None => match self.may_dial(to, Some(initiator), NamedBy::Peer) {
                        Ok(()) => return Route::Dial(to.clone(), Some(initiator), NamedBy::Peer),
                        Err(held) => held,
                    },
                }
            }
            Some((_, Err(error))) => error,
            None => gone(),
        };
        // Back along the route that the request came; who is there passes it on.
        let relays = came.and_then(|came| Some((came, self.conns.get(came)?.node()?)));
        if let Some((came, peer)) = relays {
            let id = self.route_round(message, (came, peer)).unwrap_or(came);
            self.invite(message, id);
            return Route::Over(id);
        }
        // Where somebody has shown the call's token since.
        let now = message
            .token()
            .and_then(|token| self.records.route_back(call, token));
        let now = now.map(|id| self.direct_route(initiator, id).unwrap_or(id));
        match now.filter(|id| self.conns.contains(*id)) {
            Some(id) => Route::Over(id),
            None => Route::Nowhere(error),
        }
    }

    /// The connection that leads on where the one that a request came over leads back here: see [`Records::route_before`].
    ///
    /// [`Records::route_before`]: crate::call::records::Records::route_before
    fn route_round(&self, message: &Message, (came, peer): (ConnId, NodeId)) -> Option<ConnId> {
        let (request, call) = (from(message)?, message.call());
        let id = self
            .records
            .route_before((call, message.token()?), request, (came, peer))?;
        let id = self.direct_route(call.initiator, id).unwrap_or(id);
        self.conns.contains(id).then_some(id)
    }

    /// An answer goes back over the connection that its request came over. If its initiator seems to be connected itself,
    /// it is asked to prove it: what comes the same way is then answered straight.
    fn invite(&mut self, message: &Message, came: ConnId) {
        let (Some(request), Some(token)) = (from(message), message.token()) else {
            return;
        };
        let call = message.call();
        for claiming in self.claiming(call.initiator) {
            let claims = (claiming, self.node);
            let named = (call, token, request);
            if let Some(pong) = self.records.invite(named, came, claims) {
                self.probe.notes(Note::Invited);
                self.attempt_control(claiming, Message::Pong(pong));
            }
        }
    }

    /// Sends what can be sent, as far as there is room.
    pub(super) fn pump(&mut self, id: ConnId) {
        self.pump_for(id, Granted::Room);
    }

    /// Sends what can be sent now that this was granted.
    pub(super) fn pump_for(&mut self, id: ConnId, granted: Granted) {
        // What was refused for want of room may leave at once now, and so need none.
        if matches!(granted, Granted::Requests | Granted::Call(_)) {
            self.note_space();
        }
        // Who is there is not known before the handshake is done.
        let open = self.conns.get_mut(id).filter(|conn| conn.is_open());
        let open = open.filter(|_| !matches!(granted, Granted::Parts | Granted::Body));
        let Some((mut queues, over)) = open.and_then(|conn| Some((conn.queues.take()?, conn.over)))
        else {
            return;
        };
        if granted == Granted::Room {
            self.pump_queue(id, &mut queues.controls);
        }
        if matches!(granted, Granted::Room | Granted::Requests) {
            self.pump_queue(id, &mut queues.requests);
            self.pump_queue(id, &mut queues.followed);
        }
        match granted {
            Granted::Room => self.pump_answers(id, &mut queues.answers),
            Granted::Call(call) => {
                for of in queues.answers.of_call(call) {
                    if let Some(parcels) = queues.answers.remove(&of) {
                        self.pump_those(id, &mut queues.answers, (of, parcels, None));
                    }
                }
            }
            Granted::Requests | Granted::Parts | Granted::Body => {}
        }
        match self.conns.get_mut(id) {
            // What was sent may have set off more, which now waits here, too.
            Some(conn) => {
                let newer = conn.queues.take();
                newer
                    .into_iter()
                    .flat_map(|newer| newer.all())
                    .for_each(|parcel| queues.push(parcel));
                conn.queues = Some(queues).filter(|queues| !queues.is_empty());
                if let Some(oldest) = conn.over.filter(|_| conn.over != over) {
                    self.pump_over(id, oldest);
                }
            }
            None => {
                let left = self.take_back(id, queues.all());
                self.post_again(left, &gone());
            }
        }
    }

    /// Calls are over: their answers need no credit any more.
    fn pump_over(&mut self, id: ConnId, oldest: CallId) {
        let queues = self.conns.get_mut(id).and_then(|conn| conn.queues.as_mut());
        if queues.is_some_and(|queues| queues.answers.note_over(oldest)) {
            self.pump(id);
        }
    }

    /// Sends answers for which there is room, in their turn. Of those that wait for others in parts some are tried, the others in
    /// the next turns.
    fn pump_answers(&mut self, id: ConnId, answers: &mut AnswerQueues) {
        for size in [Size::Only, Size::Small] {
            while let Some((of, turn, parcels)) = answers.next(size) {
                if self.pump_those(id, answers, (of, parcels, Some(turn))) == Some(size) {
                    break;
                }
            }
        }
        for _ in 0..LARGE_TRIED {
            let Some((of, _, parcels)) = answers.next(Size::Large) else {
                return;
            };
            self.pump_those(id, answers, (of, parcels, None));
        }
    }

    /// Sends those of a call that can be sent; what is left waits on, for credit or for its turn among those of this size.
    fn pump_those(
        &mut self,
        id: ConnId,
        answers: &mut AnswerQueues,
        (of, mut parcels, turn): (Of, VecDeque<Parcel>, Option<u64>),
    ) -> Option<Size> {
        self.pump_queue(id, &mut parcels);
        let size = Size::of(parcels.front()?);
        let carrier = self.carrier_peek(id);
        let has_credit = carrier.as_ref().is_none_or(|it| it.has_credit(of.0));
        let size = match size {
            Size::Only => Some(size),
            _ if !has_credit => None,
            // It must not overtake one in parts.
            Size::Small if carrier.is_some_and(|it| it.takes_output()) => Some(Size::Large),
            _ => Some(size),
        };
        let turn = turn.filter(|_| size != Some(Size::Large));
        answers.put(of, parcels, size.map(|size| (size, turn)));
        size
    }

    /// What carries a peer's messages, only to ask it.
    fn carrier_peek(&self, id: ConnId) -> Option<&dyn Carrier> {
        self.conns.get(id)?.link.peek(&self.sockets)
    }

    /// A message does not wait for this connection any more.
    pub(super) fn leave_queue(&mut self, id: ConnId, room: Room) {
        self.end_wait(room.of);
        self.queue_room.give_back(id, room);
        self.note_space();
    }

    /// Requests that wait, and are not sent any more as their calls have ended or were aborted, make room; who waits for the end of an
    /// aborted call is told. Not each time that there is no room, or that a call is aborted, as this looks at all that wait: `false` if
    /// it is too early.
    #[cold]
    pub(super) fn drop_ended_requests(&mut self) -> bool {
        if self.raw < self.purge_next {
            return false;
        }
        self.purge_next = self.raw.saturating_add(PURGE_PAUSE);
        let mut ended: Vec<Parcel> = Vec::new();
        for id in self.conns.ids() {
            let Some(queues) = self.conns.get_mut(id).and_then(|conn| conn.queues.as_mut()) else {
                continue;
            };
            let requests = std::mem::take(&mut queues.requests);
            let followed = std::mem::take(&mut queues.followed);
            let requests = self.without_ended(id, requests, &mut ended);
            let followed = self.without_ended(id, followed, &mut ended);
            if let Some(conn) = self.conns.get_mut(id) {
                let queues = conn.queues();
                (queues.requests, queues.followed) = (requests, followed);
                if queues.is_empty() {
                    conn.queues = None; // it may be one that nobody needs
                }
            }
            self.may_rest(id);
        }
        for parcel in ended {
            if let Some(body) = parcel.body() {
                self.body_over(body);
            }
            if let Cargo::Request(out) = &parcel.cargo
                && let Some(Delegation { ticket, .. }) = out.delegated
            {
                self.withdraw(out, ticket, Some(ABORTED));
            }
        }
        true
    }

    fn without_ended(
        &mut self,
        id: ConnId,
        parcels: VecDeque<Parcel>,
        ended: &mut Vec<Parcel>,
    ) -> VecDeque<Parcel> {
        let (over, rest): (VecDeque<Parcel>, VecDeque<Parcel>) = parcels
            .into_iter()
            .partition(|parcel| self.is_in_vain(parcel));
        ended.extend(self.take_back(id, over.into_iter()));
        rest
    }

    /// Whether a request that waits is not sent any more, whatever its connection takes.
    fn is_in_vain(&self, parcel: &Parcel) -> bool {
        let Cargo::Request(out) = &parcel.cargo else {
            return false;
        };
        match out.delegated {
            Some(Delegation { ticket, .. }) => self.records.is_aborted(ticket),
            None => self.is_over(out.request.call.sequence),
        }
    }

    /// The call of a request was aborted: what it has delegated, and still waits, does so no more.
    pub(super) fn withdraw_delegations(&mut self, ping: &Ping) {
        if self
            .records
            .has_waiting((ping.call, ping.token), ping.request)
        {
            let at = self.raw.max(self.purge_next);
            self.alarms.insert((at, Alarm::EndedRequests));
        }
    }

    fn pump_queue(&mut self, id: ConnId, queue: &mut VecDeque<Parcel>) {
        while let Some(mut parcel) = queue.pop_front() {
            let room = std::mem::take(&mut parcel.room);
            if let Some(mut parcel) = self.attempt(id, parcel) {
                parcel.room = room;
                queue.push_front(parcel);
                return;
            }
            self.leave_queue(id, room);
        }
    }

    /// Hands a message to a session; gives it back if it has to wait.
    fn attempt(&mut self, id: ConnId, mut parcel: Parcel) -> Option<Parcel> {
        let has_gone = match &mut parcel.cargo {
            Cargo::Relay(..) => return self.attempt_relay(id, parcel),
            Cargo::Request(out) => self.attempt_waiting(id, out),
            Cargo::Ping(ping, asks) => self.attempt_ping(id, ping, asks),
            Cargo::Answer(out) => self.attempt_own(id, out),
            Cargo::Refusal(response, _, refused) => self.attempt_refusal(id, response, *refused),
            Cargo::Again(response, _, sent) => {
                self.attempt_again(id, response, *sent);
                true
            }
        };
        (!has_gone).then_some(parcel)
    }

    /// Whether a request that may have waited need not wait any more: a session has taken it, or it is not sent.
    fn attempt_waiting(&mut self, id: ConnId, out: &mut OutRequest) -> bool {
        let outcome = self.attempt_request(id, out);
        if outcome == SendOutcome::Sent {
            self.note_taken(id, out);
        }
        outcome != SendOutcome::Waits
    }

    /// Whether a session has taken an answer.
    fn attempt_own(&mut self, id: ConnId, out: &mut OutAnswer) -> bool {
        let ticket = match out.owner {
            Some(MarkOwner::Released(ticket, _)) => Some(ticket),
            _ => None,
        };
        let manner = Manner::new(id, (out.came, out.own), (out.small, out.oldest), ticket);
        let mark = self.attempt_answer(id, &mut out.message, manner);
        if let Some(mark) = mark {
            self.note_placed(id, out.owner, mark);
        }
        mark.is_some()
    }

    /// Whether a session has taken a question, or somebody else is there.
    fn attempt_ping(&mut self, id: ConnId, ping: &Ping, asks: &Asks) -> bool {
        if let Asks::At(asked) = asks {
            if !self.is_meant(id, &asked.to) {
                self.ping_elsewhere(ping, asked, None);
                return true;
            }
            if ping.call.initiator == self.node {
                self.note_asked(ping.call.sequence, id);
            }
        }
        self.attempt_control(id, Message::Ping(ping.clone()))
            .is_some()
    }

    /// Whether who is behind a session is who was meant.
    fn is_meant(&self, id: ConnId, to: &Location) -> bool {
        let found = self.conns.get(id).and_then(Conn::node);
        to.node.is_none() || to.node == found
    }

    /// A delegation that has waited was taken by a session whose incarnation may not have been known when it was released.
    fn note_taken(&mut self, id: ConnId, out: &OutRequest) {
        let node = self.conns.get(id).and_then(|conn| conn.node());
        if let (Some(delegated), Some(node)) = (out.delegated, node) {
            self.records
                .delegation_taken(delegated.ticket, out.request.id, node);
        }
    }

    /// Hands a request to a session; its body follows it, or is over with it.
    pub(super) fn attempt_request(&mut self, id: ConnId, out: &mut OutRequest) -> SendOutcome {
        let attempt = self.attempt_first(id, out);
        match (attempt, out.body) {
            (_, None) | (SendOutcome::Waits, _) => {}
            (SendOutcome::Sent, body) => self.body_sent(body, id, &out.request),
            (SendOutcome::Settled, Some(body)) => self.body_over(body),
        }
        attempt
    }

    fn attempt_first(&mut self, id: ConnId, out: &mut OutRequest) -> SendOutcome {
        match out.delegated {
            Some(Delegation { ticket, times, .. }) => {
                let may = self.records.time_left(ticket, self.now).is_some();
                let left = times.until.saturating_sub(self.raw);
                if !may || left.is_zero() {
                    let why = match self.records.is_aborted(ticket) {
                        true => Some(ABORTED),
                        false => (may && times.own).then_some(LATE),
                    };
                    self.withdraw(out, ticket, why);
                    return SendOutcome::Settled;
                }
                out.request.deadline = Some(left);
            }
            None => {
                let sequence = out.request.call.sequence;
                if self.is_over(sequence) {
                    return SendOutcome::Settled;
                }
                if out.request.deadline.is_some()
                    && let Some(call) = self.calls.get(sequence)
                {
                    out.request.deadline = Some(call.client.deadline.saturating_sub(self.raw));
                }
            }
        }
        let times = out.delegated.map(|delegated| delegated.times);
        match self.send_request(id, &mut out.request, &out.method, times) {
            Ok(mark) => {
                match out.delegated {
                    Some(Delegation { ticket, .. }) => {
                        let owner = MarkOwner::Released(ticket, ReleasedMessage::Delegation);
                        self.note_placed(id, Some(owner), mark);
                    }
                    None => {
                        let request = &out.request;
                        self.root_sent(request.call.sequence, request.id, id, mark);
                    }
                }
                SendOutcome::Sent
            }
            Err(Refusal::Blocked | Refusal::NotOpen) => SendOutcome::Waits,
            Err(refusal) => {
                self.request_refused(out, refusal);
                SendOutcome::Settled
            }
        }
    }

    /// A delegation is not sent any more. Its initiator is told `why`, unless its call is over.
    #[cold]
    fn withdraw(&mut self, out: &OutRequest, ticket: Ticket, why: Option<(Code, &str)>) {
        match why {
            Some(why) => self.answer_for(out, ticket, why),
            None => self.records.dropped(ticket, ReleasedMessage::Delegation),
        }
    }

    /// Hands a request to a connection.
    pub(super) fn send_request(
        &mut self,
        id: ConnId,
        request: &mut Request,
        method: &MethodDefinition,
        times: Option<Times>,
    ) -> Result<Mark, Refusal> {
        let Some(hello) = self.conns.get(id).and_then(|conn| conn.hello()) else {
            return Err(Refusal::NotOpen);
        };
        if let Some(options) = &request.options {
            understood(options, hello.features)?;
        }
        if let (Some(times), true) = (times, hello.features.contains(Features::AGE)) {
            request.options.get_or_insert_default().age = Some(self.raw.saturating_sub(times.born));
        }
        if let Some(key) = self.config.cluster_keys.first() {
            key.seal(request, method.name(), hello.node, self.address.as_ref());
        }
        let raw = self.raw;
        self.probe.leaves(id, Leaving::Request(request));
        let carrier = self.carrier(id).ok_or(Refusal::NotOpen)?;
        if !carrier.is_ready_for(request, raw) {
            return Err(Refusal::Blocked);
        }
        let mark = carrier.send_request(request, method)?;
        if carrier.names_are_scarce() {
            // Else whoever calls ever new methods through a gateway takes all names of its connection from others.
            self.going_away(id);
        }
        self.probe.sent(id, Leaving::Request(request), mark);
        self.use_conn(id);
        Ok(mark)
    }

    pub(super) fn use_conn(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id) {
            (conn.used, conn.useful) = (self.used, true);
            self.metrics.connections_used += 1;
        }
    }

    /// A message stands there in a peer's output; of one that travels in parts that is only known once it has left.
    pub(super) fn note_placed(&mut self, id: ConnId, owner: Option<MarkOwner>, mark: Mark) {
        let Some(owner) = owner else {
            return;
        };
        if let MarkOwner::Released(ticket, ReleasedMessage::Delegation) = owner {
            self.note_handed_on(id, ticket);
        }
        match mark {
            Mark::Written(mark) => self.note_mark(id, owner, mark),
            Mark::Parts(number) => self.note_large(id, number, owner),
        }
    }

    /// Who is told where a message stands is told.
    pub(super) fn note_mark(&mut self, id: ConnId, owner: MarkOwner, mark: u64) {
        match owner {
            MarkOwner::Released(ticket, sent) => {
                self.records.placed(ticket, sent, output(id, mark));
            }
            MarkOwner::Relay(relay_id) => self.records.relayed(relay_id, Some(output(id, mark))),
            MarkOwner::Root(sequence, request) => self.root_left(sequence, request, mark),
            MarkOwner::Announced(ticket) => {
                let to = self.conns.get(id).and_then(Conn::node);
                self.records.announcement_left(ticket, to, self.now);
            }
        }
    }

    /// The message does not stand anywhere: it goes nowhere, or its connection has ended before all of it had left.
    pub(super) fn note_dropped(&mut self, owner: MarkOwner) {
        match owner {
            MarkOwner::Released(ticket, sent) => self.records.dropped(ticket, sent),
            MarkOwner::Relay(relay_id) => self.records.relayed(relay_id, None),
            MarkOwner::Root(..) | MarkOwner::Announced(_) => {}
        }
    }

    /// A request was handed on. Who has it by datagrams is not told of this endpoint's end.
    fn note_handed_on(&mut self, id: ConnId, ticket: Ticket) {
        let came = self.records.came(ticket);
        if self.is_session(id) && came.is_some_and(|came| !self.is_session(came)) {
            self.records.announce_after_delegation(ticket, self.now);
        }
    }

    pub(super) fn note_large(&mut self, id: ConnId, number: u64, place: MarkOwner) {
        if let Some(stream) = self.conns.get_mut(id).and_then(Conn::stream_mut) {
            stream.large.push((number, place));
        }
    }

    /// Hands an answer to a connection; `None` if it has to wait. One that its initiator does not take becomes a status.
    pub(super) fn attempt_answer(
        &mut self,
        id: ConnId,
        message: &mut Message,
        manner: Manner,
    ) -> Option<Mark> {
        let Message::Response(response) = message else {
            let message = self.shown(message.clone(), manner.direct);
            return self.attempt_control(id, message);
        };
        let token = response.token;
        if manner.direct {
            response.token = None;
        }
        let sent = self.send_response(id, response, manner);
        if sent.is_none() {
            response.token = token;
        }
        sent
    }

    /// A message as it must be over this session: one that comes directly shows no token, or only that this server knows it.
    fn shown(&self, mut message: Message, direct: bool) -> Message {
        match &mut message {
            Message::End(end) if direct => end.token = None,
            Message::Pong(pong) if direct => {
                pong.token = pong.token.map(|token| token.vouch(pong.call, self.node));
            }
            _ => {}
        }
        message
    }

    fn send_response(
        &mut self,
        id: ConnId,
        response: &mut Response,
        manner: Manner,
    ) -> Option<Mark> {
        let conn = self.conns.get_mut(id)?;
        let over = manner.oldest.map(|sequence| CallId {
            sequence,
            ..response.call
        });
        if let Some(over) =
            over.filter(|over| manner.charge == Charge::Counted && conn.is_news(*over))
        {
            conn.over = Some(over);
            self.carrier(id)?.forget_calls(over);
            self.pump_over(id, over);
        }
        let (size, limit) = match self.hand_response(id, response, manner.charge) {
            Ok(mark) => return Some(mark),
            Err(Refusal::TooLarge { size, limit }) => (size, limit),
            Err(_) => return None,
        };
        let hint = hint(limit, self.is_session(id));
        make_too_large(response, (size, limit), hint, self.address.as_ref());
        if let Some(ticket) = manner.ticket {
            self.records.response_replaced(ticket, response);
        }
        match self.hand_response(id, response, manner.charge) {
            Ok(mark) => Some(mark),
            Err(Refusal::Blocked | Refusal::NotOpen) => None,
            Err(_) => {
                self.metrics.undeliverable += 1;
                Some(Mark::Written(0))
            }
        }
    }

    /// Sends an answer again; if that has to wait, the initiator asks for it once more.
    fn attempt_again(
        &mut self,
        id: ConnId,
        response: &mut Response,
        (ticket, sent): (Ticket, ReleasedMessage),
    ) {
        match self.hand_response(id, response, Charge::Counted) {
            Ok(mark) => self.note_placed(id, Some(MarkOwner::Released(ticket, sent)), mark),
            // No status goes in its place: the first copy may still arrive, by a way that takes it.
            Err(Refusal::TooLarge { .. }) => self.records.too_large(ticket, response.index),
            Err(_) => self.records.dropped(ticket, sent),
        }
    }

    /// Hands a message that needs no credit to a connection; `None` if it has to wait.
    pub(super) fn attempt_control(&mut self, id: ConnId, mut message: Message) -> Option<Mark> {
        if let Message::Pong(pong) = &mut message {
            pong.heartbeats = pong.heartbeats && self.hears_heartbeats(id, pong.call.initiator);
        }
        self.probe.leaves(id, Leaving::Control(&mut message));
        let kept = P::LOOKS.then(|| message.clone());
        let mark = self.carrier(id)?.send_control(message).ok()?;
        if let Some(mut message) = kept {
            self.probe.sent(id, Leaving::Control(&mut message), mark);
        }
        Some(mark)
    }

    /// Hands an answer to a connection.
    pub(super) fn hand_response(
        &mut self,
        id: ConnId,
        response: &mut Response,
        charge: Charge,
    ) -> Result<Mark, Refusal> {
        self.probe.leaves(id, Leaving::Response(response));
        let carrier = self.carrier(id).ok_or(Refusal::NotOpen)?;
        let mark = carrier.send_response(response, charge)?;
        self.probe.sent(id, Leaving::Response(response), mark);
        Ok(mark)
    }

    /// Whether a connection is a session over datagrams.
    pub(super) fn is_session(&self, id: ConnId) -> bool {
        self.conns
            .get(id)
            .is_some_and(|conn| conn.stream().is_none())
    }

    /// A message reaches nobody.
    pub(super) fn undeliverable(&mut self, parcel: Parcel, error: &ConnectError) {
        match &parcel.cargo {
            Cargo::Request(out) => {
                if let Some(body) = out.body {
                    self.body_over(body);
                }
                let (call, id) = (out.request.call, out.request.id);
                match out.delegated {
                    Some(Delegation { ticket, .. }) => {
                        let why = (Code::Unavailable, &*error.to_string());
                        self.answer_for(out, ticket, why);
                    }
                    None => self.not_sent(call.sequence, id, error.clone()),
                }
            }
            Cargo::Ping(ping, Asks::At(asked)) => self.ping_elsewhere(ping, asked, Some(error)),
            Cargo::Answer(_) | Cargo::Relay(..) => self.wait_for_route(parcel),
            Cargo::Ping(..) | Cargo::Again(..) | Cargo::Refusal(..) => self.drop_answer(parcel),
        }
    }

    /// A request is not taken by its server's session at all.
    fn request_refused(&mut self, out: &OutRequest, refusal: Refusal) {
        let (request, to) = (&out.request, &out.server);
        let Some(Delegation { ticket, .. }) = out.delegated else {
            return self.root_refused(request.call.sequence, request.id, to, refusal);
        };
        let (code, hint) = match refusal {
            Refusal::TooLarge { limit, .. } => {
                let hint = hint(limit, to.is_udp());
                (Code::ResourceExhausted, hint)
            }
            Refusal::NotUnderstood { .. } => (Code::Mismatch, ""),
            _ => (Code::ResourceExhausted, ""),
        };
        self.answer_for(out, ticket, (code, &format!("{refusal}{hint}")));
    }
}

/// Whether a peer with these features may get a request with these optional fields.
fn understood(options: &Options, features: Features) -> Result<(), Refusal> {
    let binary = options.metadata.iter_bin().next().is_some();
    if binary && !features.contains(Features::BINARY_METADATA) {
        let what = "metadata whose values are bytes";
        return Err(Refusal::NotUnderstood { what });
    }
    if options.durable.is_some() && !features.contains(Features::DURABLE) {
        let what = "a durable id";
        return Err(Refusal::NotUnderstood { what });
    }
    Ok(())
}

fn gone() -> ConnectError {
    ConnectError::Closed {
        server: None,
        reason: "its connection has ended, and it is not reached elsewhere".into(),
    }
}

/// Which request sends this towards its initiator.
fn from(message: &Message) -> Option<RequestId> {
    match message {
        Message::Response(response) => Some(response.request),
        Message::End(end) => Some(end.request),
        Message::Pong(pong) => Some(pong.request),
        _ => None,
    }
}

/// Why an endpoint that is about to be closed dials nobody.
#[cold]
pub(super) fn ended(server: &Address) -> ConnectError {
    ConnectError::Unreachable {
        server: server.clone(),
        reason: "this endpoint was closed".into(),
    }
}

/// Where a message stands.
pub(super) fn output(id: ConnId, mark: u64) -> Standing {
    Standing { session: id, mark }
}
