//! What handlers send, and how it leaves.

use std::sync::Arc;

use bytes::Bytes;

use super::{Destination, HandledRequest, Returned, age};
use crate::call::allowance::Exhausted;
use crate::call::records::{OutputMark as Standing, ReleasedMessage, Ticket};
use crate::call::server::{Delegated, Inherited, LastMessages, Outbound, undelivered};
use crate::connection::{Mark, MethodDefinition};
use crate::datagram::MAX_MESSAGE;
use crate::endpoint::Endpoint;
use crate::endpoint::conn::{ConnId, Parcel, Times, Towards};
use crate::endpoint::event::{Lane, Output, Placed, RequestKey};
use crate::endpoint::probe::{Note, Probe, Released as Seen};
use crate::endpoint::sending::{Manner, SendOutcome, output};
use crate::error::SendError;
use crate::numbers::{MESSAGE_COST, SMALL_ANSWER};
use crate::wire::{Child, HandledBy, Message, ReplyTo, Request, TraceRecord};
use crate::{Address, Code, Status};

/// A message that a handler sends.
#[derive(Debug)]
pub(super) enum HandlerMessage {
    Answer(Bytes),
    Delegation(Destination, Bytes),
}

impl HandlerMessage {
    /// Whether it has its place in the tree [whatever happens](DelegateOptions::always).
    fn is_always(&self) -> bool {
        matches!(self, Self::Delegation(to, _) if to.always)
    }

    fn outline(&self) -> Outline<'_> {
        match self {
            Self::Answer(payload) => Outline::answer(payload.len()),
            Self::Delegation(to, payload) => Outline {
                server: Some(&to.server),
                payload: payload.len(),
                followed: to.body.is_some(),
            },
        }
    }
}

/// What a message needs on its way.
#[derive(Debug, Clone, Copy)]
pub struct Outline<'a> {
    /// The server that it goes to; `None` if it goes to the initiator.
    pub server: Option<&'a Address>,
    /// How long its payload is, in bytes.
    pub payload: usize,
    /// Whether a body follows it.
    pub followed: bool,
}

impl Outline<'_> {
    /// An answer with a payload of so many bytes.
    pub fn answer(payload: usize) -> Self {
        Self {
            server: None,
            payload,
            followed: false,
        }
    }

    fn lane(&self) -> Lane {
        match self.server {
            Some(_) => Lane::Requests,
            None => Lane::Answers,
        }
    }

    /// What it costs while it waits, in bytes.
    fn cost(&self) -> usize {
        self.payload + MESSAGE_COST as usize
    }
}

/// How a handler offers a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It does not wait: the message is sent if it would leave at once, as far as can be told.
    Now,
    /// It waits until there is room for the message to wait in.
    Wait,
}

/// What became of a message that [was offered](Endpoint::offer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// It was sent. If messages wait in this direction now, who can wait does so [until they do not](Endpoint::waits) before it goes
    /// on: so a handler is no faster than those who take what it sends.
    Sent(Option<Lane>),
    /// Not yet: messages wait that were sent in this direction before. [`Output::Room`] tells when they do not.
    Waits(Lane),
    /// Not yet: there is no room. If it can wait, [`Output::Space`] tells when there may be.
    Full,
}

impl<P: Probe> Endpoint<P> {
    /// Sends an answer to the initiator; more may follow.
    ///
    /// # Errors
    ///
    /// If it is too large, exceeds a budget, or too much waits already ([`SendError::Full`]); or the request has ended.
    pub fn reply(&mut self, key: RequestKey, payload: Bytes) -> Result<(), SendError> {
        self.with(key, |endpoint, handler| {
            endpoint.send_more(handler, HandlerMessage::Answer(payload))
        })
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply); unless its handler returns a status, the request then ends with the one that the error becomes.
    pub fn respond(&mut self, key: RequestKey, payload: Bytes) -> Result<(), SendError> {
        self.with(key, |endpoint, handler| {
            endpoint.send_last(handler, HandlerMessage::Answer(payload))
        })
    }

    /// Hands work to another server, which answers the initiator directly; more may follow. A server that cannot be reached shows as
    /// a status among the call's answers.
    ///
    /// # Errors
    ///
    /// If the request is too large, too deep in the tree, or exceeds a budget; if the server's address is not permitted or of a
    /// scheme that is not dialled; if too much waits already; or the request has ended.
    pub fn delegate(
        &mut self,
        key: RequestKey,
        server: Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<(), SendError> {
        let sending = delegation_to(server, method, payload);
        self.with(key, |endpoint, handler| {
            endpoint.send_more(handler, sending)
        })
    }

    /// Hands the rest of the work to another server and ends the request: a tail call.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate), and what [`respond`](Self::respond) says of them.
    pub fn forward(
        &mut self,
        key: RequestKey,
        server: Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<(), SendError> {
        let sending = delegation_to(server, method, payload);
        self.with(key, |endpoint, handler| {
            endpoint.send_last(handler, sending)
        })
    }

    /// A handler offers a message: `send` sends it if no earlier one of its direction waits and there is room. Else `message` stays
    /// where it is, to be offered again. For a request that has ended or was stopped it is sent, which says so.
    ///
    /// # Errors
    ///
    /// What `send` says.
    pub fn offer<M>(
        &mut self,
        key: RequestKey,
        how: Offer,
        message: &mut Option<M>,
        outline: impl FnOnce(&M) -> Outline<'_>,
        send: impl FnOnce(&mut Self, M) -> Result<(), SendError>,
    ) -> Result<Offered, SendError> {
        let Some(offered) = message.as_ref().map(outline) else {
            return Ok(Offered::Sent(None));
        };
        let lane = offered.lane();
        if self.waits(key, lane) {
            return Ok(Offered::Waits(lane));
        }
        if self.goes_on(key) && !self.finds_room(key, how, offered) {
            return Ok(Offered::Full);
        }
        let waited = self.waits(key, lane.other());
        if let Some(message) = message.take() {
            send(self, message)?;
        }
        // What was held back may have left with it, in the other direction.
        let waits = match self.waits(key, lane) {
            true => Some(lane),
            false => Some(lane.other()).filter(|other| !waited && self.waits(key, *other)),
        };
        Ok(Offered::Sent(waits))
    }

    fn finds_room(&mut self, key: RequestKey, how: Offer, message: Outline<'_>) -> bool {
        let handler = self.handlers.get(key);
        let is_own = handler.is_some_and(|handler| handler.server.call().initiator == self.node);
        if how == Offer::Wait && !is_own && self.has_plenty(message) {
            return true;
        }
        let Some(handler) = self.handlers.take(key) else {
            return true; // that it has ended is told when it is sent
        };
        let has_room = match how {
            Offer::Now => self.leaves_now(&handler, message),
            Offer::Wait => self.has_room_for(&handler, message),
        };
        self.handlers.put(key, handler);
        has_room
    }

    /// Whether there is room for a message whatever request it is of, if it is none of this endpoint's own calls.
    fn has_plenty(&self, message: Outline<'_>) -> bool {
        match message.server {
            Some(_) => self.has_room(message.payload),
            None => self.answers_waiting.is_plenty(message.cost()),
        }
    }

    /// Whether a message may wait, if it must, or would leave at once, as far as can be told. If not, [`Output::Space`] tells when it
    /// may.
    fn has_room_for(&mut self, handler: &HandledRequest, message: Outline<'_>) -> bool {
        let call = handler.server.call();
        let has_room = match message.server {
            None if call.initiator == self.node => self.takes_own(call.sequence),
            _ if self.has_plenty(message) => true,
            None => self.may_have(handler, message.cost()) || self.takes_answer(handler),
            Some(server) => self.takes_request(server, message.followed),
        };
        self.full.refused += usize::from(!has_room);
        has_room
    }

    /// Whether a message would leave at once, as far as can be told.
    fn leaves_now(&mut self, handler: &HandledRequest, message: Outline<'_>) -> bool {
        let call = handler.server.call();
        match message.server {
            None if call.initiator == self.node => self.takes_own(call.sequence),
            None => {
                let conn = self.route_of(handler);
                !self.is_open(conn) || self.takes_answer(handler)
            }
            Some(server) => {
                let conn = self.conn_at(server);
                !self.is_open(conn) || self.takes_request(server, message.followed)
            }
        }
    }

    fn is_open(&self, conn: Option<ConnId>) -> bool {
        conn.and_then(|id| self.conns.get(id)?.node).is_some()
    }

    /// Whether an answer of this request would leave at once.
    fn takes_answer(&mut self, handler: &HandledRequest) -> bool {
        let call = handler.server.call();
        let route = self.route_of(handler);
        let peer = route.and_then(|id| self.conns.get(id));
        let shown = Some(handler.server.token());
        let waits = peer.is_none_or(|peer| peer.holds_answers((call, shown)));
        let carrier = route.and_then(|id| self.carrier(id));
        !waits && carrier.is_some_and(|carrier| carrier.takes_responses(call))
    }

    /// Whether a request to this server would leave at once.
    pub(super) fn takes_request(&mut self, server: &Address, followed: bool) -> bool {
        let route = self.conn_at(server);
        let peer = route.and_then(|id| self.conns.get(id));
        let waits = peer.is_none_or(|peer| peer.holds_requests(followed));
        let carrier = route.and_then(|id| self.carrier(id));
        !waits && carrier.is_some_and(|carrier| carrier.takes_requests())
    }

    /// Whether messages of a request that goes on wait which were sent in this direction. Whoever does not send the next one before
    /// [`Output::Room`] keeps their order and has few that wait.
    pub fn waits(&self, key: RequestKey, lane: Lane) -> bool {
        self.handlers.waits(key, lane) && self.goes_on(key)
    }

    /// Whether it is of any use to wait for something of a request, if it has not ended.
    fn goes_on(&self, key: RequestKey) -> bool {
        !self.closed && !self.is_stopping(key)
    }

    /// Sends the message that is held back because it might be the last one. In which direction messages of the request wait now, if
    /// any do.
    pub fn flush(&mut self, key: RequestKey) -> Option<Lane> {
        if let Some(mut handler) = self.handlers.take(key) {
            self.flush_held(&mut handler);
            self.handlers.put(key, handler);
        }
        let lanes = [Lane::Answers, Lane::Requests];
        lanes.into_iter().find(|lane| self.waits(key, *lane))
    }

    /// Lets a request end that was put aside: what it has sent last was the last. The status that it ends with all the same, if
    /// it owes an answer, or has used up more than it may.
    pub fn finish_request(&mut self, key: RequestKey) -> Option<Box<Status>> {
        if self.is_stopping(key) {
            return None;
        }
        let handler = self.handlers.take(key)?;
        self.finish(handler)
    }

    /// Whether a request has sent its last message, or was never known.
    pub fn has_finished(&self, key: RequestKey) -> bool {
        let handler = self.handlers.get(key);
        handler.is_none_or(|handler| handler.server.has_ended())
    }

    /// Ends a request with a status.
    pub fn fail(&mut self, key: RequestKey, status: &Status) {
        if self.is_stopping(key) {
            return;
        }
        if let Some(handler) = self.handlers.take(key) {
            self.end_with(handler, status);
        }
    }

    /// A message of a handler failed before it was given to the endpoint; whether it was to be the `last` one.
    pub fn refuse_message(&mut self, key: RequestKey, error: &SendError, last: bool) {
        if let Some(handler) = self.handlers.get_mut(key) {
            note_refused(handler, error, last);
        }
    }

    pub(super) fn with<T>(
        &mut self,
        key: RequestKey,
        send: impl FnOnce(&mut Self, &mut HandledRequest) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        let Some(mut handler) = self.handlers.take(key) else {
            return Err(SendError::Ended("it is over".into()));
        };
        let sent = send(self, &mut handler);
        self.handlers.put(key, handler);
        sent
    }

    /// A message after which more may follow.
    pub(super) fn send_more(
        &mut self,
        handler: &mut HandledRequest,
        sending: HandlerMessage,
    ) -> Result<(), SendError> {
        self.check(handler, &sending)
            .inspect_err(|error| note_refused(handler, error, false))?;
        let released = match sending {
            HandlerMessage::Answer(payload) => {
                let afforded = handler.server.afford_answer(payload.len());
                afforded.map(|()| handler.server.reply(payload))
            }
            HandlerMessage::Delegation(mut to, payload) => {
                let afforded = handler.server.afford_request();
                to.inherit_name(handler);
                afforded.map(|()| handler.server.delegate(to, payload))
            }
        };
        let released = released.map_err(|exhausted| self.exhaust(handler, exhausted))?;
        handler.owes_answer = false;
        if let Some(released) = released {
            self.leave_one(handler, released);
        }
        Ok(())
    }

    /// The last message.
    pub(super) fn send_last(
        &mut self,
        handler: &mut HandledRequest,
        sending: HandlerMessage,
    ) -> Result<(), SendError> {
        self.check(handler, &sending)
            .inspect_err(|error| note_refused(handler, error, true))?;
        let afforded = match &sending {
            HandlerMessage::Answer(payload) => handler.server.afford_answer(payload.len()),
            HandlerMessage::Delegation(..) => handler.server.afford_request(),
        };
        if let Err(exhausted) = afforded {
            return Err(self.exhaust(handler, exhausted));
        }
        let record = self.record(handler);
        let released = match sending {
            HandlerMessage::Answer(payload) => handler.server.respond(payload, record),
            HandlerMessage::Delegation(mut to, payload) => {
                to.inherit_name(handler);
                handler.server.forward(to, payload, record)
            }
        };
        self.leave(handler, released);
        Ok(())
    }

    /// The message held back leaves now.
    pub(super) fn flush_held(&mut self, handler: &mut HandledRequest) {
        if let Some(released) = handler.server.flush() {
            self.leave_one(handler, released);
        }
    }

    /// How long an answer to the initiator may be: less if only datagrams lead there.
    fn longest_answer(&self, handler: &HandledRequest) -> u64 {
        let most = self.config.limits.message;
        match &handler.reply_to {
            ReplyTo::Peer if self.is_session(handler.from) => most.min(MAX_MESSAGE as u64),
            ReplyTo::At(address) => {
                let known = self.claiming(handler.call().initiator);
                let by_stream = known.iter().any(|id| !self.is_session(*id));
                match by_stream {
                    true => most,
                    false => self.config.longest_to(address),
                }
            }
            ReplyTo::Peer | ReplyTo::Relay => most,
        }
    }

    /// Whether a message with a payload of so many bytes may be sent to this server or to the initiator, but for budgets, credit and
    /// room.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply) and [`delegate`](Self::delegate).
    pub fn check_message(
        &mut self,
        key: RequestKey,
        server: Option<&Address>,
        payload: usize,
    ) -> Result<(), SendError> {
        self.with(key, |endpoint, handler| {
            endpoint.check_may(handler, server, payload)
        })
    }

    fn check(
        &mut self,
        handler: &HandledRequest,
        sending: &HandlerMessage,
    ) -> Result<(), SendError> {
        if sending.is_always() {
            return check_open(handler);
        }
        let message = sending.outline();
        self.check_may(handler, message.server, message.payload)?;
        match self.has_room_for(handler, message) {
            true => Ok(()),
            false => Err(SendError::Full),
        }
    }

    fn check_may(
        &mut self,
        handler: &HandledRequest,
        server: Option<&Address>,
        payload: usize,
    ) -> Result<(), SendError> {
        check_open(handler)?;
        self.check_size(handler, server, payload)?;
        match server {
            None => Ok(()),
            Some(_) if self.draining => Err(SendError::Draining),
            Some(server) => self.check_delegation(handler, server),
        }
    }

    pub(super) fn check_size(
        &mut self,
        handler: &HandledRequest,
        server: Option<&Address>,
        payload: usize,
    ) -> Result<(), SendError> {
        let size = payload as u64;
        let limit = match server {
            None if size <= MAX_MESSAGE as u64 => self.config.limits.message,
            None => self.longest_answer(handler),
            Some(server) => self.config.longest_to(server),
        };
        if size > limit {
            let peer = match server {
                None if limit < self.config.limits.message => {
                    "the initiator by udp: (tcp:, unix: and shm: carry larger ones)".to_owned()
                }
                None => "the initiator".to_owned(),
                Some(server) => server.to_string(),
            };
            return Err(SendError::TooLarge { size, limit, peer });
        }
        Ok(())
    }

    /// Whether an answer of this request may take so much of the room for those that wait.
    #[cold]
    fn may_have(&mut self, handler: &HandledRequest, cost: usize) -> bool {
        let initiator = handler.server.call().initiator;
        let route = self.route_of(handler).unwrap_or(handler.from);
        let share = self.answers_waiting.name(route.session(), initiator);
        self.answers_waiting.has_room_for(share, cost)
    }

    /// A budget is used up: the request ends here and now, with a status (PROTOCOL-NOTES 11).
    #[cold]
    fn exhaust(&mut self, handler: &mut HandledRequest, exhausted: Exhausted) -> SendError {
        let record = self.record(handler);
        self.metrics.budgets_exhausted += 1;
        self.metrics.statuses_sent += 1;
        let status = self.own(Status::from(exhausted));
        let released = handler.server.exhaust(&status, record);
        handler.exhausted = true;
        self.leave(handler, released);
        SendError::Exhausted(exhausted)
    }

    /// The handler lets its request end.
    pub(in crate::endpoint) fn finish(
        &mut self,
        mut handler: Box<HandledRequest>,
    ) -> Option<Box<Status>> {
        let status = match handler.server.has_ended() {
            true => None,
            false => self.finish_open(&mut handler),
        };
        self.release_key(&handler);
        status
    }

    fn finish_open(&mut self, handler: &mut HandledRequest) -> Option<Box<Status>> {
        let record = self.record(handler);
        if let Some(refused) = handler.refused.take() {
            self.metrics.statuses_sent += 1;
            let released = handler.server.exhaust(&self.own(refused.clone()), record);
            self.leave(handler, released);
            return Some(Box::new(refused));
        }
        let mut status = None;
        let last = if handler.owes_answer {
            let name = self
                .served
                .get(handler.served)
                .map_or("the request", |served| served.definition.name());
            let message = format!("{name} ended without an answer");
            self.metrics.statuses_sent += 1;
            let unanswered = Status::new(Code::Unanswered, message);
            let last = handler.server.fail(&self.own(unanswered.clone()), record);
            status = Some(Box::new(unanswered));
            last
        } else {
            handler.server.finish(record)
        };
        self.leave_one(handler, last);
        status
    }

    /// A request ends with a status.
    #[cold]
    #[inline(never)]
    pub(in crate::endpoint) fn end_with(
        &mut self,
        mut handler: Box<HandledRequest>,
        status: &Status,
    ) -> Returned {
        let mut returned = Returned::Heard;
        if handler.server.has_ended() {
            if !(handler.exhausted && status.code() == Code::ResourceExhausted) {
                self.metrics.late_errors += 1;
                returned = Returned::Late;
            }
        } else {
            let record = self.record(&handler);
            self.metrics.statuses_sent += 1;
            let mut last = handler.server.fail(&self.own(status.clone()), record);
            // What has begun may hand on the status of somebody else, of whom that is true.
            let is_unexecuted = status.is_not_executed() && !handler.has_begun();
            if let (true, Outbound::Response(response)) = (is_unexecuted, &mut last) {
                response.options.get_or_insert_default().undelivered = true;
            }
            self.leave_one(&handler, last);
            if let Some(key) = handler.key.filter(|_| !self.bodies.is_empty()) {
                self.end_held_bodies(key);
            }
        }
        self.release_key(&handler);
        returned
    }

    // How it leaves.

    fn leave(&mut self, handler: &HandledRequest, released: LastMessages<Destination>) {
        if let Some(before) = released.before {
            self.leave_as(handler, *before, false);
        }
        self.leave_as(handler, released.last, true);
    }

    fn leave_one(&mut self, handler: &HandledRequest, outbound: Outbound<Destination>) {
        self.leave_as(handler, outbound, handler.server.has_ended());
    }

    /// A message leaves; whether it is the last one.
    fn leave_as(&mut self, handler: &HandledRequest, outbound: Outbound<Destination>, last: bool) {
        let seen = match &outbound {
            Outbound::Response(response) => Seen::Response(response),
            Outbound::End(end) => Seen::End(end),
            Outbound::Request(delegated) => {
                Seen::Request(delegated.id, &delegated.to.server, &delegated.payload)
            }
        };
        let by = (handler.server.call(), handler.server.id());
        self.probe.released(by, seen, last);
        if let Some(key) = handler.key.filter(|_| handler.reported) {
            self.report_place(key, &outbound);
        }
        match outbound {
            Outbound::Response(mut response) => {
                let says = response.status || !last && handler.is_first(response.index);
                if says && handler.depth() > 0 {
                    let options = response.options.get_or_insert_default();
                    options.handled_by = Some(self.handled_by(handler));
                }
                let small =
                    response.last && response.index == 0 && response.payload.len() <= SMALL_ANSWER;
                self.send_answer(handler, Message::Response(response), small);
            }
            Outbound::End(end) => self.send_answer(handler, Message::End(end), true),
            Outbound::Request(delegated) => self.send_delegated(handler, delegated),
        }
    }

    #[cold]
    fn report_place(&mut self, key: RequestKey, outbound: &Outbound<Destination>) {
        let placed = match outbound {
            Outbound::Response(response) => Placed::Answer {
                index: response.index,
                status: response.status,
            },
            Outbound::Request(delegated) => Placed::Delegation {
                id: delegated.id,
                server: delegated.to.server.clone(),
            },
            Outbound::End(_) => return,
        };
        let placed = Box::new(placed);
        self.outputs.push_back(Output::Placed(key, placed));
    }

    /// The open connection by which answers of a request go straight to its initiator.
    fn route_of(&mut self, handler: &HandledRequest) -> Option<ConnId> {
        let initiator = handler.server.call().initiator;
        self.route_back(initiator, handler.from, |core| {
            core.initiator_address(&handler.reply_to, handler.from)
        })
    }

    fn send_answer(&mut self, handler: &HandledRequest, mut message: Message, small: bool) {
        let initiator = handler.server.call().initiator;
        if initiator == self.node {
            let output = output(handler.from, 0);
            self.note_released(handler.ticket, &message, Some(output));
            self.note_own(&message);
            return self.local.push_back(message);
        }
        let own = handler.reply_to == ReplyTo::Peer;
        if let Some(id) = self.route_of(handler) {
            let direct = own && id == handler.from;
            let manner = Manner {
                direct,
                counted: !(direct && small),
                oldest: handler.oldest,
                ticket: handler.ticket,
            };
            if let Some(mark) = self.attempt_answer(id, &mut message, manner) {
                return match handler.ticket {
                    Some(_) => self.note_left_for(id, handler.ticket, &message, mark),
                    None => self.note_refusal_taken(handler, id, mark),
                };
            }
        }
        self.note_released(handler.ticket, &message, None);
        let sent = sent(&message);
        let towards = Towards::Initiator {
            address: self.initiator_address(&handler.reply_to, handler.from),
            came: handler.from,
            own,
            small,
            oldest: handler.oldest,
        };
        let mut parcel = Parcel::new(message, towards);
        parcel.of = handler.key.map(|key| (key, Lane::Answers));
        match handler.ticket {
            Some(ticket) => parcel.released = Some((ticket, sent)),
            None => parcel.relay_id = self.tell_of_refusal(handler),
        }
        self.post(parcel);
    }

    /// An answer was taken by a connection.
    fn note_left_for(&mut self, id: ConnId, ticket: Option<Ticket>, message: &Message, mark: Mark) {
        match mark {
            Mark::Written(mark) => self.note_released(ticket, message, Some(output(id, mark))),
            Mark::Parts(_) => {
                self.note_released(ticket, message, None);
                let released = ticket.map(|ticket| (ticket, sent(message)));
                self.note_placed(id, released, mark);
            }
        }
    }

    /// The record of a request learns of an answer, and where it stands in a session's output.
    fn note_released(
        &mut self,
        ticket: Option<Ticket>,
        message: &Message,
        output: Option<Standing>,
    ) {
        let Some(ticket) = ticket else { return };
        match message {
            Message::Response(response) => self
                .records
                .response_released(ticket, response, output, self.now),
            Message::End(end) => self.records.end_released(ticket, end, output, self.now),
            _ => {}
        }
    }

    fn send_delegated(&mut self, handler: &HandledRequest, delegated: Delegated<Destination>) {
        let known = self.conn_at(&delegated.to.server);
        let node = known.and_then(|id| self.conns.get(id)?.node());
        let child = Child {
            server: delegated.to.server.clone(),
            node,
        };
        let inherited = Inherited {
            reply_to: self.delegated_reply_to(handler),
            deadline: Some(handler.deadline.saturating_sub(self.raw)),
            oldest: handler.oldest,
            options: (handler.options.as_ref()).map(|options| Box::new(options.inherited())),
        };
        let of = (handler.server.call(), handler.server.token());
        let (to, mut request, noted) =
            self.records
                .hand_on(handler.ticket, of, delegated, child, inherited, self.now);
        let mut times = Times {
            born: handler.arrived.saturating_sub(age(handler)),
            until: handler.deadline,
            own: false,
        };
        if let Some(own) = &to.own {
            own.apply(&mut request, &mut times, self.raw);
        }
        if let Some(body) = to.body {
            request.options.get_or_insert_default().body = Some(0); // its number is the connection's business
            self.bodies.released(body);
        }
        let ticket = match noted {
            Ok(ticket) => ticket,
            Err(frozen) => {
                self.probe.notes(Note::RefusedDelegation);
                let status = frozen.status();
                let why = (status.code(), status.message());
                if let Some(body) = to.body {
                    self.body_over(body);
                }
                return self.answer_over(&request, &to.server, (None, handler.from), why);
            }
        };
        let released = Some((ticket, ReleasedMessage::Delegation));
        if let Some(refused) = &to.refused {
            let why = (refused.code(), refused.message());
            return self.answer_over(&request, &to.server, (released, handler.from), why);
        }
        let times = Some(times);
        if let Some(id) = known
            && self
                .conns
                .get(id)
                .is_some_and(|peer| !peer.holds_requests(to.body.is_some()))
        {
            let towards = Towards::Server(to.server.clone());
            let (method, body) = ((&to.method, &towards), to.body);
            match self.attempt_request(id, &mut request, method, (released, times), body) {
                SendOutcome::Waits => {}
                SendOutcome::Sent | SendOutcome::Settled => return,
            }
        }
        let mut parcel = Parcel::new(Message::Request(request), Towards::Server(to.server));
        parcel.method = Some(to.method);
        parcel.of = handler.key.map(|key| (key, Lane::Requests));
        parcel.body = to.body;
        (parcel.released, parcel.times) = (released, times);
        self.post(parcel);
    }

    /// Where servers further on send their answers.
    fn delegated_reply_to(&self, handler: &HandledRequest) -> ReplyTo {
        match &handler.reply_to {
            ReplyTo::Peer => match self.initiator_address(&handler.reply_to, handler.from) {
                Some(address) => ReplyTo::At(address),
                None => ReplyTo::Relay,
            },
            other => other.clone(),
        }
    }

    /// Where the initiator of a request that came over this session says that it is reached.
    pub(in crate::endpoint) fn initiator_address(
        &self,
        reply_to: &ReplyTo,
        from: ConnId,
    ) -> Option<Address> {
        match reply_to {
            ReplyTo::Peer => self.conns.get(from)?.hello()?.address.clone(),
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Relay => None,
        }
    }

    /// A status in the name of a delegated request that certainly did not reach its server.
    #[cold]
    pub(in crate::endpoint) fn answer_for(
        &mut self,
        request: &Request,
        to: &Address,
        released: Option<(Ticket, ReleasedMessage)>,
        why: (Code, &str),
    ) {
        let came = released.and_then(|(ticket, _)| self.records.came(ticket));
        let came = came.or_else(|| self.records.route_back(request.call, request.token));
        let came = came.map_or(ConnId::NOBODY, |session| ConnId::from_number(session.0));
        self.answer_over(request, to, (released, came), why);
    }

    /// The same of a request that came of one over this connection: along which its status goes back, if it must.
    fn answer_over(
        &mut self,
        request: &Request,
        to: &Address,
        (released, came): (Option<(Ticket, ReleasedMessage)>, ConnId),
        (code, why): (Code, &str),
    ) {
        let status = match &self.address {
            Some(own) => Status::new(code, format!("{why}; delegated by {own}")),
            None => Status::new(code, why),
        };
        let status = status.by(Some(to));
        self.metrics.statuses_sent += 1;
        let response = undelivered(request, &status);
        self.probe.replaced(&response);
        let mut parcel_of = None;
        if let (Some((ticket, _)), Some(server)) = (released, self.address.clone()) {
            let own = Child {
                server,
                node: Some(self.node),
            };
            let stands_in = self
                .records
                .delegation_undelivered(ticket, request, own, self.now);
            if let Some(ticket) = stands_in {
                self.records
                    .response_released(ticket, &response, None, self.now);
                parcel_of = Some((ticket, ReleasedMessage::Response(response.index)));
            }
        }
        let initiator = request.call.initiator;
        if initiator == self.node {
            return self.local.push_back(Message::Response(response));
        }
        let address = match &request.reply_to {
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Peer | ReplyTo::Relay => None,
        };
        let towards = Towards::Initiator {
            address,
            came,
            own: false,
            small: false,
            oldest: request.oldest,
        };
        let mut parcel = Parcel::new(Message::Response(response), towards);
        parcel.released = parcel_of;
        self.post(parcel);
    }

    /// What a traced hop reports of itself when it ends.
    fn record(&self, handler: &HandledRequest) -> Option<TraceRecord> {
        handler
            .server
            .is_traced()
            .then(|| self.make_record(handler))
    }

    /// Who handles a request, for an initiator that did not send it itself.
    #[cold]
    pub(in crate::endpoint) fn handled_by(&self, handler: &HandledRequest) -> HandledBy {
        let called = self.method_called(handler);
        let method = called.map(|called| Arc::clone(called.name()));
        HandledBy {
            node: self.node,
            server: self.address.clone(),
            method: method.unwrap_or_else(|| "".into()),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_record(&self, handler: &HandledRequest) -> TraceRecord {
        let called = self.method_called(handler);
        let began = handler.began.unwrap_or(self.raw);
        TraceRecord {
            request: handler.server.id(),
            node: self.node,
            server: self.address.clone(),
            method: called.map_or_else(String::new, |called| called.name().to_string()),
            arrived_us: self.epoch.saturating_add(handler.arrived).as_micros() as u64,
            queued_us: began.saturating_sub(handler.arrived).as_micros() as u64,
            ran_us: self.raw.saturating_sub(began).as_micros() as u64,
        }
    }
}

/// Nothing is sent for a request that has ended, or is to.
fn check_open(handler: &HandledRequest) -> Result<(), SendError> {
    if handler.server.has_ended() {
        let why = if handler.exhausted {
            "a budget was used up"
        } else {
            "it was answered or failed before"
        };
        return Err(SendError::Ended(why.into()));
    }
    match &handler.stopping {
        Some(why) => Err(SendError::Ended(why.message().to_owned())),
        None => Ok(()),
    }
}

fn delegation_to(
    server: Address,
    method: &Arc<MethodDefinition>,
    payload: Bytes,
) -> HandlerMessage {
    let method = Arc::clone(method);
    let to = Destination {
        server,
        method,
        body: None,
        always: false,
        refused: None,
        own: None,
    };
    HandlerMessage::Delegation(to, payload)
}

/// What records call an answer.
fn sent(message: &Message) -> ReleasedMessage {
    match message {
        Message::Response(response) => ReleasedMessage::Response(response.index),
        _ => ReleasedMessage::End,
    }
}

/// A message was refused: what the request ends with if its handler lets it end all the same.
#[cold]
pub(super) fn note_refused(handler: &mut HandledRequest, error: &SendError, last: bool) {
    if last || matches!(error, SendError::TooDeep { .. }) {
        handler.refused = Some(Status::from(error.clone()));
    }
}
