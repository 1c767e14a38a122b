//! What handlers send, and how it leaves.

use std::sync::Arc;

use bytes::Bytes;

use super::How;
use crate::call::records::{ReleasedMessage, Ticket};
use crate::call::server::{Delegated, Outbound, undelivered};
use crate::connection::{Mark, MethodDefinition};
use crate::datagram::MAX_MESSAGE;
use crate::endpoint::Endpoint;
use crate::endpoint::conn::{Cargo, Conn, Delegation, OutAnswer, OutRequest, Parcel, Times};
use crate::endpoint::event::{Lane, Output, Placed, RequestKey};
use crate::endpoint::probe::{Note, Probe, Released as Seen};
use crate::endpoint::sending::{Manner, SendOutcome, output};
use crate::endpoint::server::{Destination, HandedOn, HandledRequest, Outline, Returned, Sending};
use crate::endpoint::streams::MarkOwner;
use crate::error::SendError;
use crate::numbers::{MESSAGE_COST, SMALL_ANSWER};
use crate::wire::{Child, Message, ReplyTo, Request};
use crate::{Address, Code, ConnId, Status};

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
        self.send_message(key, Sending::Answer(payload), How::More)
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply); unless its handler returns a status, the request then ends with the one that the error becomes.
    pub fn respond(&mut self, key: RequestKey, payload: Bytes) -> Result<(), SendError> {
        self.send_message(key, Sending::Answer(payload), How::Last)
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
        let to = Destination::new(server, method);
        self.send_message(key, Sending::Delegation(to, payload), How::More)
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
        let to = Destination::new(server, method);
        self.send_message(key, Sending::Delegation(to, payload), How::Last)
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
        if self.handlers.get(key).is_none() {
            return true; // that it has ended is told when it is sent
        }
        match how {
            Offer::Now => self.leaves_now(key, message),
            Offer::Wait => self.has_room_for(key, message),
        }
    }

    /// Whether there is room for a message whatever request it is of, if it is none of this endpoint's own calls.
    fn has_plenty(&self, message: Outline<'_>) -> bool {
        match message.server {
            Some(_) => self.queue_room.has_room(message.payload),
            None => self.queue_room.is_plenty(message.cost()),
        }
    }

    /// Whether a message may wait, if it must, or would leave at once, as far as can be told. If not, [`Output::Space`] tells when it
    /// may.
    fn has_room_for(&mut self, key: RequestKey, message: Outline<'_>) -> bool {
        let own = match message.server {
            Some(_) => None,
            None => self.own_call(key),
        };
        let has_room = match (own, message.server) {
            (Some(own), _) => self.takes_own(own),
            _ if self.has_plenty(message) => true,
            (None, None) => self.may_have(key, message.cost()) || self.takes_one_more(key),
            (None, Some(server)) => self.takes_request(server, message.followed),
        };
        if !has_room {
            self.note_refused(key);
        }
        has_room
    }

    /// A message was refused for want of room: its request is told when there may be some, behind those that wait for that already.
    #[cold]
    fn note_refused(&mut self, key: RequestKey) {
        if let Some(handler) = self.handlers.get_mut(key)
            && handler.room_turn.is_none()
        {
            handler.room_turn = Some(self.queue_room.note_refused(key));
        }
    }

    /// Which of this endpoint's own calls a request belongs to, if it does.
    fn own_call(&self, key: RequestKey) -> Option<u64> {
        let call = self.handlers.get(key)?.call();
        (call.initiator == self.node).then_some(call.sequence)
    }

    /// Whether a message would leave at once, as far as can be told.
    fn leaves_now(&mut self, key: RequestKey, message: Outline<'_>) -> bool {
        match (message.server, self.own_call(key)) {
            (None, Some(own)) => self.takes_own(own),
            (None, None) => {
                let conn = self.route_of(key);
                !self.is_open(conn) || self.takes_answer(key)
            }
            (Some(server), _) => {
                let conn = self.conn_at(server);
                !self.is_open(conn) || self.takes_request(server, message.followed)
            }
        }
    }

    pub(in crate::endpoint) fn is_open(&self, conn: Option<ConnId>) -> bool {
        conn.and_then(|id| self.conns.get(id))
            .is_some_and(Conn::is_open)
    }

    /// The same of one for which there is no room. What is held back leaves first: whether another one does is not known before.
    #[cold]
    fn takes_one_more(&mut self, key: RequestKey) -> bool {
        self.flush_held(key);
        self.takes_answer(key)
    }

    /// Whether an answer of this request would leave at once.
    fn takes_answer(&mut self, key: RequestKey) -> bool {
        let route = self.route_of(key);
        let Some(handler) = self.handlers.get(key) else {
            return true;
        };
        let (call, shown) = (handler.call(), Some(handler.server.token()));
        let conn = route.and_then(|id| self.conns.get(id));
        let waits = conn.is_none_or(|conn| conn.holds_answers((call, shown)));
        let carrier = route.and_then(|id| self.carrier(id));
        !waits && carrier.is_some_and(|carrier| carrier.takes_responses(call))
    }

    /// Whether a request to this server would leave at once.
    pub(super) fn takes_request(&mut self, server: &Address, followed: bool) -> bool {
        let route = self.conn_at(server);
        let conn = route.and_then(|id| self.conns.get(id));
        let waits = conn.is_none_or(|conn| conn.holds_requests(followed));
        let carrier = route.and_then(|id| self.carrier(id));
        !waits && carrier.is_some_and(|carrier| carrier.takes_requests())
    }

    /// Whether messages of a request that goes on wait which were sent in this direction, and hold up the next one. Whoever does not
    /// send that before [`Output::Room`] keeps their order and has few that wait. Delegations to servers that are dialled hold none up,
    /// unless there are very many of them.
    pub fn waits(&self, key: RequestKey, lane: Lane) -> bool {
        self.handlers.holds_up(key, lane) && self.goes_on(key)
    }

    /// Whether it is of any use to wait for something of a request, if it has not ended.
    fn goes_on(&self, key: RequestKey) -> bool {
        !self.is_closed() && !self.is_stopping(key)
    }

    /// Sends the message that is held back because it might be the last one. In which direction messages of the request wait now, if
    /// any do.
    pub fn flush(&mut self, key: RequestKey) -> Option<Lane> {
        self.flush_held(key);
        let mut lanes = [Lane::Answers, Lane::Requests].into_iter();
        lanes.find(|lane| self.handlers.waits(key, *lane) && self.goes_on(key))
    }

    /// Lets a request end that was put aside: what it has sent last was the last. The status that it ends with all the same, if
    /// it owes an answer, or has used up more than it may.
    pub fn finish_request(&mut self, key: RequestKey) -> Option<Box<Status>> {
        match self.is_stopping(key) {
            true => None,
            false => self.finish(key),
        }
    }

    /// Whether a request has sent its last message, or was never known.
    pub fn has_finished(&self, key: RequestKey) -> bool {
        let handler = self.handlers.get(key);
        handler.is_none_or(HandledRequest::has_ended)
    }

    /// Ends a request with a status.
    pub fn fail(&mut self, key: RequestKey, status: &Status) {
        if !self.is_stopping(key) {
            self.end_with(key, status);
        }
    }

    /// A message of a handler failed before it was given to the endpoint; whether it was to be the `last` one.
    pub fn refuse_message(&mut self, key: RequestKey, error: &SendError, last: bool) {
        let how = if last { How::Last } else { How::More };
        if let Some(handler) = self.handlers.get_mut(key) {
            handler.refuse(error, how);
        }
    }

    /// Sends a message, after which more may follow or not.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply), [`respond`](Self::respond), [`delegate`](Self::delegate) and [`forward`](Self::forward).
    pub fn send_message(
        &mut self,
        key: RequestKey,
        message: Sending,
        how: How,
    ) -> Result<(), SendError> {
        let checked = self.check(key, &message);
        let Some((handler, context)) = self.handled(key) else {
            return checked;
        };
        checked.inspect_err(|error| handler.refuse(error, how))?;
        let sent = handler.send(message, how, &context);
        self.metrics.budgets_exhausted += u64::from(sent.is_err());
        self.leave(key);
        sent
    }

    /// The message held back leaves now.
    pub(super) fn flush_held(&mut self, key: RequestKey) {
        if let Some((handler, context)) = self.handled(key) {
            handler.flush(&context);
            self.leave(key);
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
        self.handlers.get(key).ok_or_else(over)?.check_open()?;
        self.check_size(key, server, payload)?;
        match server {
            None => Ok(()),
            Some(server) => self.check_delegation(key, server),
        }
    }

    fn check(&mut self, key: RequestKey, message: &Sending) -> Result<(), SendError> {
        if message
            .own()
            .is_some_and(|own| own.always || own.refused.is_some())
        {
            return self.handlers.get(key).ok_or_else(over)?.check_open();
        }
        let message = message.outline();
        self.check_message(key, message.server, message.payload)?;
        match self.has_room_for(key, message) {
            true => Ok(()),
            false => Err(SendError::Full),
        }
    }

    pub(super) fn check_size(
        &self,
        key: RequestKey,
        server: Option<&Address>,
        payload: usize,
    ) -> Result<(), SendError> {
        let size = payload as u64;
        let limit = match server {
            None if size <= MAX_MESSAGE as u64 => self.config.limits.message,
            None => self.longest_answer(self.handlers.get(key).ok_or_else(over)?),
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

    /// Whether an answer of this request may take so much of the room for those that wait, beside the one that is held back.
    #[cold]
    fn may_have(&mut self, key: RequestKey, cost: usize) -> bool {
        let route = self.route_of(key);
        let Some(handler) = self.handlers.get(key) else {
            return true;
        };
        let (initiator, route) = (handler.call().initiator, route.unwrap_or(handler.from));
        let held = handler.server.held_answer();
        let held = held.map_or(0, |payload| payload + MESSAGE_COST as usize);
        self.queue_room.has_room_for(route, initiator, held + cost)
    }

    /// The handler lets its request end.
    pub(in crate::endpoint) fn finish(&mut self, key: RequestKey) -> Option<Box<Status>> {
        let (handler, context) = self.handled(key)?;
        let status = handler.finish(&context);
        if handler.has_more() {
            self.leave(key);
        }
        self.release(key);
        status
    }

    /// A request ends with a status.
    #[cold]
    #[inline(never)]
    pub(in crate::endpoint) fn end_with(&mut self, key: RequestKey, status: &Status) -> Returned {
        let Some((handler, context)) = self.handled(key) else {
            return Returned::Stopped;
        };
        let returned = handler.fail(status, &context);
        self.metrics.late_errors += u64::from(returned == Returned::Late);
        self.leave(key);
        if !self.bodies.is_empty() {
            self.end_held_bodies(key);
        }
        self.release(key);
        returned
    }

    // How it leaves.

    /// What a request has sent leaves.
    fn leave(&mut self, key: RequestKey) {
        while let Some(handler) = self.handlers.get_mut(key)
            && let Some(message) = handler.poll()
        {
            let has_more = handler.has_more();
            self.leave_one(key, message, !has_more);
            if !has_more {
                return;
            }
        }
    }

    /// A message leaves; whether it is the last one for now.
    #[inline(never)]
    fn leave_one(&mut self, key: RequestKey, message: Outbound<Destination>, last: bool) {
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        let seen = match &message {
            Outbound::Response(response) => Seen::Response(response),
            Outbound::End(end) => Seen::End(end),
            Outbound::Request(delegated) => {
                Seen::Request(delegated.id, &delegated.to.server, &delegated.payload)
            }
        };
        let by = (handler.call(), handler.id());
        self.probe.released(by, seen, last && handler.has_ended());
        if handler.reported {
            self.report_place(key, &message);
        }
        match message {
            Outbound::Response(response) => {
                self.metrics.statuses_sent += u64::from(response.status);
                let small =
                    response.last && response.index == 0 && response.payload.len() <= SMALL_ANSWER;
                self.send_answer(key, Message::Response(response), small);
            }
            Outbound::End(end) => self.send_answer(key, Message::End(end), true),
            Outbound::Request(delegated) => self.send_delegated(key, delegated),
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
    fn route_of(&mut self, key: RequestKey) -> Option<ConnId> {
        let handler = self.handlers.get(key)?;
        let (initiator, came) = (handler.call().initiator, Some(handler.from));
        self.route_back(initiator, came, |endpoint| endpoint.address_for(key))
    }

    /// Where the initiator of a request says that it is reached.
    fn address_for(&self, key: RequestKey) -> Option<Address> {
        let handler = self.handlers.get(key)?;
        self.initiator_address(&handler.reply_to, Some(handler.from))
    }

    fn send_answer(&mut self, key: RequestKey, mut message: Message, small: bool) {
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        let (ticket, came, oldest) = (handler.ticket, handler.from, handler.oldest);
        let own = handler.reply_to == ReplyTo::Peer;
        let initiator = handler.call().initiator;
        if initiator == self.node {
            let output = output(came, 0);
            self.records
                .answer_released(ticket, &message, Some(output), self.now);
            self.note_own(&message);
            return self.local.push_back(message);
        }
        if let Some(id) = self.route_of(key) {
            let manner = Manner::new(id, (Some(came), own), (small, oldest), ticket);
            if let Some(mark) = self.try_answer(id, &mut message, manner) {
                return match ticket {
                    Some(_) => self.note_left_for(id, ticket, &message, mark),
                    None => self.note_refusal_taken(key, id, mark),
                };
            }
        }
        self.records
            .answer_released(ticket, &message, None, self.now);
        let owner = match ticket {
            Some(ticket) => Some(MarkOwner::Released(ticket, sent(&message))),
            None => self.tell_of_refusal(key).map(MarkOwner::Relay),
        };
        self.post(Parcel::new(Cargo::Answer(OutAnswer {
            message,
            address: self.address_for(key),
            came: Some(came),
            own,
            small,
            oldest,
            owner,
            by: Some(key),
        })));
    }

    /// An answer was taken by a connection.
    fn note_left_for(&mut self, id: ConnId, ticket: Option<Ticket>, message: &Message, mark: Mark) {
        let output = match mark {
            Mark::Written(mark) => Some(output(id, mark)),
            Mark::Parts(_) => None,
        };
        self.records
            .answer_released(ticket, message, output, self.now);
        if output.is_none() {
            let owner = ticket.map(|ticket| MarkOwner::Released(ticket, sent(message)));
            self.note_placed(id, owner, mark);
        }
    }

    fn send_delegated(&mut self, key: RequestKey, delegated: Delegated<Destination>) {
        let known = self.conn_at(&delegated.to.server);
        let node = known.and_then(|id| self.conns.get(id)?.node());
        let child = Child {
            server: delegated.to.server.clone(),
            node,
        };
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        // Where servers further on send their answers.
        let reply_to = match &handler.reply_to {
            ReplyTo::Peer => self.address_for(key).map_or(ReplyTo::Relay, ReplyTo::At),
            other => other.clone(),
        };
        let (came, onward) = (handler.from, (child, reply_to));
        let times = (self.now, self.raw);
        let HandedOn {
            to,
            mut request,
            noted,
            times,
        } = handler.hand_on(&mut self.records, delegated, onward, times);
        if let Some(body) = to.body {
            request.options.get_or_insert_default().body = Some(0); // its number is the connection's business
            self.bodies.released(body);
        }
        let ticket = match noted {
            Ok(ticket) => ticket,
            Err(frozen) => {
                self.probe.notes(Note::RefusedDelegation);
                let status = frozen.status();
                let why = (status.code(), status.message(), None);
                if let Some(body) = to.body {
                    self.body_over(body);
                }
                let to = (&to.method, &to.server);
                return self.answer_over(&request, to, (None, Some(came)), why);
            }
        };
        let own = to.own.map(|own| (own.refused, own.unless_sent));
        let (refused, unless_sent) = own.unwrap_or_default();
        if let Some(refused) = refused {
            let unless_sent = unless_sent.map(|method| (method, times));
            let why = (refused.code(), refused.message(), unless_sent);
            let to = (&to.method, &to.server);
            return self.answer_over(&request, to, (Some(ticket), Some(came)), why);
        }
        let by = key;
        let mut out = OutRequest {
            request,
            server: to.server,
            method: to.method,
            body: to.body,
            delegated: Some(Delegation { by, ticket, times }),
            unless_sent,
        };
        if let Some(id) = known
            && self
                .conns
                .get(id)
                .is_some_and(|conn| !conn.holds_requests(out.body.is_some()))
        {
            match self.try_request(id, &mut out) {
                SendOutcome::Waits => {}
                SendOutcome::Sent | SendOutcome::Settled => return,
            }
        }
        self.post(Parcel::new(Cargo::Request(out)));
    }

    /// Where the initiator of a request that came over this connection says that it is reached.
    pub(in crate::endpoint) fn initiator_address(
        &self,
        reply_to: &ReplyTo,
        from: Option<ConnId>,
    ) -> Option<Address> {
        match reply_to {
            ReplyTo::Peer => self.conns.get(from?)?.hello()?.address.clone(),
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Relay => None,
        }
    }

    /// A delegated request certainly did not reach its server: it is handled here in its name, if whoever has sent it wants that, or a
    /// status goes.
    #[cold]
    pub(in crate::endpoint) fn not_delivered(
        &mut self,
        out: &OutRequest,
        delegation: Delegation,
        (code, why): (Code, &str),
    ) {
        let unless_sent = out.unless_sent.clone();
        let unless_sent = unless_sent.map(|method| (method, delegation.times));
        self.stand_in(out, delegation.ticket, (code, why, unless_sent));
    }

    /// A status in the name of a delegated request that certainly did not reach its server.
    #[cold]
    pub(in crate::endpoint) fn answer_for(
        &mut self,
        out: &OutRequest,
        ticket: Ticket,
        (code, why): (Code, &str),
    ) {
        self.stand_in(out, ticket, (code, why, None));
    }

    fn stand_in(
        &mut self,
        out: &OutRequest,
        ticket: Ticket,
        why: (Code, &str, Option<(Arc<MethodDefinition>, Times)>),
    ) {
        let (request, to) = (&out.request, (&out.method, &out.server));
        let came = self.records.came(ticket);
        let came = came.or_else(|| self.records.route_back(request.call, request.token));
        self.answer_over(request, to, (Some(ticket), came), why);
    }

    /// The same of a request that came of one over this connection: along which its status goes back, if it must.
    fn answer_over(
        &mut self,
        request: &Request,
        (method, to): (&Arc<MethodDefinition>, &Address),
        (ticket, came): (Option<Ticket>, Option<ConnId>),
        (code, why, unless_sent): (Code, &str, Option<(Arc<MethodDefinition>, Times)>),
    ) {
        let own = self.address.as_ref();
        let own = own.map(|own| format!("; delegated by {own}"));
        let status = Status::new(code, format!("{why}{}", own.unwrap_or_default()));
        let status = status.by(Some(to));
        let mut stands_in = None;
        if let (Some(ticket), Some(server)) = (ticket, self.address.clone()) {
            let own = Child {
                server,
                node: Some(self.node),
            };
            let request = (request, unless_sent.is_some());
            stands_in = (self.records).delegation_undelivered(ticket, request, own, self.now);
        }
        if let (Some((ticket, true)), Some(came), Some(by)) = (stands_in, came, unless_sent) {
            let status = status.clone().called(Some(method.name()));
            if self.handle_unsent(request, (came, ticket), by, status) {
                return;
            }
        }
        self.metrics.statuses_sent += 1;
        let mut response = undelivered(request, &status);
        // Only who has it from here knows what it called.
        let method = Some(Arc::clone(method.name()));
        response.options.get_or_insert_default().method = method;
        self.probe.replaced(&response);
        let owner = stands_in.map(|(ticket, _)| {
            self.records
                .response_released(ticket, &response, None, self.now);
            MarkOwner::Released(ticket, ReleasedMessage::Response(response.index))
        });
        let initiator = request.call.initiator;
        if initiator == self.node {
            return self.local.push_back(Message::Response(response));
        }
        let address = match &request.reply_to {
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Peer | ReplyTo::Relay => None,
        };
        self.post(Parcel::new(Cargo::Answer(OutAnswer {
            message: Message::Response(response),
            address,
            came,
            own: false,
            small: false,
            oldest: request.oldest,
            owner,
            by: None,
        })));
    }
}

/// It has ended.
pub(super) fn over() -> SendError {
    SendError::Ended("it was answered or failed before".into())
}

/// What records call an answer.
fn sent(message: &Message) -> ReleasedMessage {
    match message {
        Message::Response(response) => ReleasedMessage::Response(response.index),
        _ => ReleasedMessage::End,
    }
}
