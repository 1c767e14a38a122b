//! How messages leave: they are handed to connections as far as these take them, and reach nobody where none does.

use crate::call::records::{OutputMark as Standing, ReleasedMessage, Ticket};
use crate::call::server::make_too_large;
use crate::call::watch::Location;
use crate::connection::{Charge, Features, Mark, MethodDefinition, SendRefusal};
use crate::error::{ConnectError, hint};
use crate::numbers::MOST_MOVES;
use crate::wire::{Message, MessageOptions, Ping, Request, Response};
use crate::{CallId, Code, ConnId};

use super::Endpoint;
use super::conn::{Asks, Cargo, Conn, Delegation, OutAnswer, OutRequest, Parcel, Times};
use super::probe::{Leaving, Probe};
use super::routing::Route;
use super::streams::MarkOwner;

/// Questions of others, and reports, that wait for a connection to open.
const MOST_CONTROLS: usize = 256;

/// Why a delegation is not sent any more. So who waits until nothing of a call runs knows that nothing of this does.
pub(super) const ABORTED: (Code, &str) =
    (Code::Cancelled, "its call was aborted before this was sent");

/// The same where the call goes on.
const LATE: (Code, &str) = (
    Code::DeadlineExceeded,
    "its own deadline passed before it was sent",
);

/// How an answer is sent over a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Back over its request's own connection: it shows no token, and need not be counted if it is small.
    pub(super) direct: bool,
    pub(super) charge: Charge,
    /// The initiator's oldest live call, where the answer goes back over its request's connection; elsewhere others may have made
    /// that up.
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

/// What became of a request that was to be handed to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Sent,
    /// It is not sent at all: its call is over, or another answer goes in its place.
    Settled,
    /// The connection does not take it yet.
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
            self.try_parcel(id, parcel)
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

    /// Hands a message to a connection; gives it back if it has to wait.
    pub(super) fn try_parcel(&mut self, id: ConnId, mut parcel: Parcel) -> Option<Parcel> {
        let has_gone = match &mut parcel.cargo {
            Cargo::Relay(..) => return self.try_relay(id, parcel),
            Cargo::Request(out) => self.try_waiting(id, out),
            Cargo::Ping(ping, asks) => self.try_ping(id, ping, asks),
            Cargo::Answer(out) => self.try_own(id, out),
            Cargo::Refusal(response, _, refused) => self.try_refusal(id, response, *refused),
            Cargo::Again(response, _, sent) => {
                self.try_again(id, response, *sent);
                true
            }
        };
        (!has_gone).then_some(parcel)
    }

    /// Whether a request that may have waited need not wait any more: a connection has taken it, or it is not sent.
    fn try_waiting(&mut self, id: ConnId, out: &mut OutRequest) -> bool {
        let outcome = self.try_request(id, out);
        if outcome == SendOutcome::Sent {
            self.note_taken(id, out);
        }
        outcome != SendOutcome::Waits
    }

    /// Whether a connection has taken an answer.
    fn try_own(&mut self, id: ConnId, out: &mut OutAnswer) -> bool {
        let ticket = match out.owner {
            Some(MarkOwner::Released(ticket, _)) => Some(ticket),
            _ => None,
        };
        let manner = Manner::new(id, (out.came, out.own), (out.small, out.oldest), ticket);
        let mark = self.try_answer(id, &mut out.message, manner);
        if let Some(mark) = mark {
            self.note_placed(id, out.owner, mark);
        }
        mark.is_some()
    }

    /// Whether a connection has taken a question, or somebody else is there.
    fn try_ping(&mut self, id: ConnId, ping: &Ping, asks: &Asks) -> bool {
        if let Asks::At(asked) = asks {
            if !self.is_meant(id, &asked.to) {
                self.ping_elsewhere(ping, asked, None);
                return true;
            }
            if ping.call.initiator == self.node {
                self.note_asked(ping.call.sequence, id);
            }
        }
        self.try_control(id, Message::Ping(ping.clone())).is_some()
    }

    /// Whether who is behind a connection is who was meant.
    fn is_meant(&self, id: ConnId, to: &Location) -> bool {
        let found = self.conns.get(id).and_then(Conn::node);
        to.node.is_none() || to.node == found
    }

    /// A delegation that has waited was taken by a connection whose incarnation may not have been known when it was released.
    fn note_taken(&mut self, id: ConnId, out: &OutRequest) {
        let node = self.conns.get(id).and_then(|conn| conn.node());
        if let (Some(delegated), Some(node)) = (out.delegated, node) {
            self.records
                .delegation_taken(delegated.ticket, out.request.id, node);
        }
    }

    /// Hands a request to a connection; its body follows it, or is over with it.
    pub(super) fn try_request(&mut self, id: ConnId, out: &mut OutRequest) -> SendOutcome {
        let attempt = self.try_first(id, out);
        match (attempt, out.body) {
            (_, None) | (SendOutcome::Waits, _) => {}
            (SendOutcome::Sent, body) => self.body_sent(body, id, &out.request),
            (SendOutcome::Settled, Some(body)) => self.body_over(body),
        }
        attempt
    }

    fn try_first(&mut self, id: ConnId, out: &mut OutRequest) -> SendOutcome {
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
            Err(SendRefusal::Blocked | SendRefusal::NotOpen) => SendOutcome::Waits,
            Err(refusal) => {
                self.request_refused(out, refusal);
                SendOutcome::Settled
            }
        }
    }

    /// A delegation is not sent any more. Its initiator is told `why`, unless its call is over.
    #[cold]
    pub(super) fn withdraw(&mut self, out: &OutRequest, ticket: Ticket, why: Option<(Code, &str)>) {
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
    ) -> Result<Mark, SendRefusal> {
        let Some(hello) = self.conns.get(id).and_then(|conn| conn.hello()) else {
            return Err(SendRefusal::NotOpen);
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
        let carrier = self.carrier(id).ok_or(SendRefusal::NotOpen)?;
        if !carrier.is_ready_for(request, raw) {
            return Err(SendRefusal::Blocked);
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
    pub(super) fn try_answer(
        &mut self,
        id: ConnId,
        message: &mut Message,
        manner: Manner,
    ) -> Option<Mark> {
        let Message::Response(response) = message else {
            let message = self.shown(message.clone(), manner.direct);
            return self.try_control(id, message);
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

    /// A message as it must be over this connection: one that comes directly shows no token, or only that this server knows it.
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
            Err(SendRefusal::TooLarge { size, limit }) => (size, limit),
            Err(_) => return None,
        };
        let hint = hint(limit, self.is_session(id));
        make_too_large(response, (size, limit), hint, self.address.as_ref());
        if let Some(ticket) = manner.ticket {
            self.records.response_replaced(ticket, response);
        }
        match self.hand_response(id, response, manner.charge) {
            Ok(mark) => Some(mark),
            Err(SendRefusal::Blocked | SendRefusal::NotOpen) => None,
            Err(_) => {
                self.metrics.undeliverable += 1;
                Some(Mark::Written(0))
            }
        }
    }

    /// Sends an answer again; if that has to wait, the initiator asks for it once more.
    fn try_again(
        &mut self,
        id: ConnId,
        response: &mut Response,
        (ticket, sent): (Ticket, ReleasedMessage),
    ) {
        match self.hand_response(id, response, Charge::Counted) {
            Ok(mark) => self.note_placed(id, Some(MarkOwner::Released(ticket, sent)), mark),
            // No status goes in its place: the first copy may still arrive, by a way that takes it.
            Err(SendRefusal::TooLarge { .. }) => self.records.too_large(ticket, response.index),
            Err(_) => self.records.dropped(ticket, sent),
        }
    }

    /// Hands a message that needs no credit to a connection; `None` if it has to wait.
    pub(super) fn try_control(&mut self, id: ConnId, mut message: Message) -> Option<Mark> {
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
    ) -> Result<Mark, SendRefusal> {
        self.probe.leaves(id, Leaving::Response(response));
        let carrier = self.carrier(id).ok_or(SendRefusal::NotOpen)?;
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
                    Some(delegation) => {
                        let why = (Code::Unavailable, &*error.to_string());
                        self.not_delivered(out, delegation, why);
                    }
                    None => self.not_sent(call.sequence, id, error.clone()),
                }
            }
            Cargo::Ping(ping, Asks::At(asked)) => self.ping_elsewhere(ping, asked, Some(error)),
            Cargo::Answer(_) | Cargo::Relay(..) => self.wait_for_route(parcel),
            Cargo::Ping(..) | Cargo::Again(..) | Cargo::Refusal(..) => self.drop_answer(parcel),
        }
    }

    /// A request is not taken by its server's connection at all.
    fn request_refused(&mut self, out: &OutRequest, refusal: SendRefusal) {
        let (request, to) = (&out.request, &out.server);
        let Some(delegation) = out.delegated else {
            return self.root_refused(request.call.sequence, request.id, to, refusal);
        };
        let (code, hint) = match refusal {
            SendRefusal::TooLarge { limit, .. } => {
                let hint = hint(limit, to.is_udp());
                (Code::ResourceExhausted, hint)
            }
            SendRefusal::NotUnderstood { .. } => (Code::Mismatch, ""),
            _ => (Code::ResourceExhausted, ""),
        };
        self.not_delivered(out, delegation, (code, &format!("{refusal}{hint}")));
    }
}

/// Whether a peer with these features may get a request with these optional fields.
fn understood(options: &MessageOptions, features: Features) -> Result<(), SendRefusal> {
    let binary = options.metadata.iter_bin().next().is_some();
    if binary && !features.contains(Features::BINARY_METADATA) {
        let what = "metadata whose values are bytes";
        return Err(SendRefusal::NotUnderstood { what });
    }
    if options.durable.is_some() && !features.contains(Features::DURABLE) {
        let what = "a durable id";
        return Err(SendRefusal::NotUnderstood { what });
    }
    Ok(())
}

/// Where a message stands.
pub(super) fn output(id: ConnId, mark: u64) -> Standing {
    Standing { conn: id, mark }
}
