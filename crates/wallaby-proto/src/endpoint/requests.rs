//! The server's side: which requests are handled, what they send, and how they end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Endpoint;
use super::bodies::{InBody, OutBody};
use super::calls::most_to;
use super::conn::{ConnId, Parcel, Refused, Times, Towards};
use super::draining::shutting_down;
use super::event::{Incoming, Output, RequestKey};
use super::probe::{Note, Probe, Released as Seen};
use super::sending::{Attempt, Manner, output};
use crate::call::allowance::Exhausted;
use crate::call::records::{
    Admission, Frozen, Origin, Output as Standing, Sent, StopReason, Ticket,
};
use crate::call::server::{Delegated, Inherited, Outbound, Released, Server, undelivered};
use crate::connection::{Mark, MethodDefinition};
use crate::error::SendError;
use crate::executor::{Owner, Turn};
use crate::numbers::{DEFAULT_DEADLINE, MESSAGE_COST, SMALL_ANSWER};
use crate::seal::verify;
use crate::wire::{
    Budgets, Child, Message, Metadata, MethodRef, Options, ReplyTo, Request, Response, TraceRecord,
};
use crate::{Address, CallId, Code, NodeId, RequestId, Status};

/// How long after the deadline a server stops by itself: the initiator's abort, which comes first, is the rule.
const BEHIND: Duration = Duration::from_millis(10);

/// Longer times than this are as good as none.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Where a delegated request goes.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
    /// What follows it.
    pub(super) body: Option<OutBody>,
}

/// One request that is handled.
#[derive(Debug)]
pub struct Handler {
    pub(super) server: Server<Destination>,
    /// What records call it; `None` if it was refused.
    pub(super) ticket: Option<Ticket>,
    /// The connection that it came over.
    pub(super) from: ConnId,
    pub(super) reply_to: ReplyTo,
    oldest: u64,
    /// The request's optional fields: what children inherit.
    pub(super) options: Option<Box<Options>>,
    /// When it has no time left, and when it came.
    pub(super) deadline: Duration,
    arrived: Duration,
    /// When its handler took it.
    began: Option<Duration>,
    /// Which of the methods served it calls.
    served: usize,
    /// What it was sent with, until its handler takes it.
    pub(super) payload: Bytes,
    /// What follows it; the handler's, once it has taken it.
    pub(super) body: Option<InBody>,
    /// Its initiator expects exactly one answer.
    owes_answer: bool,
    /// What was refused to the handler so that its request must not end as if all were well.
    refused: Option<Status>,
    exhausted: bool,
    /// Its key, unless it was refused at once.
    pub(super) key: Option<RequestKey>,
    pub(super) stage: Stage,
    /// It has one of the executor's places, which is free when it ends.
    pub(super) placed: bool,
}

/// How far a handler is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It was not taken yet.
    Waits,
    /// It waits for its turn.
    Queued(Turn),
    /// It has waited for that, and was not taken yet.
    Late,
    /// It runs.
    Runs,
    /// It was put aside, and the application may come back to it.
    Aside,
    /// The application has come back to it.
    Resumed,
}

impl Handler {
    /// The call that it belongs to.
    pub fn call(&self) -> CallId {
        self.server.call()
    }

    /// Its place in the call's tree.
    pub fn id(&self) -> RequestId {
        self.server.id()
    }

    /// How many hops led here: 0 if the initiator sent it.
    pub fn depth(&self) -> u32 {
        self.server.depth()
    }

    /// Pairs that travel down the tree.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.options.as_ref().map(|options| &options.metadata)
    }

    /// What it may still use up, if its call's budgets are stated or this endpoint has a maximum.
    pub fn budgets(&self) -> Option<Budgets> {
        self.server.allowance().map(|known| known.left())
    }

    /// Whose place it takes.
    pub(super) fn owner(&self) -> Owner {
        (self.from.session(), self.server.call().initiator)
    }

    /// When it is stopped without a word of its initiator. Deadlines are rounded down on their way, by a thousandth.
    pub(super) fn given_up_at(&self) -> Duration {
        let time = self.deadline.saturating_sub(self.arrived);
        self.deadline.saturating_add(time / 512 + BEHIND)
    }

    /// Whether the application may come back to it, or has.
    fn was_put_aside(&self) -> bool {
        matches!(self.stage, Stage::Aside | Stage::Resumed)
    }

    /// Whether its handler has what it was sent with.
    fn was_taken(&self) -> bool {
        !matches!(self.stage, Stage::Waits | Stage::Queued(_) | Stage::Late)
    }

    /// Whether an abort finds it.
    fn is_listed(&self) -> bool {
        self.was_put_aside() || matches!(self.stage, Stage::Queued(_))
    }
}

/// A message that a handler sends.
#[derive(Debug)]
enum Sending {
    Answer(Bytes),
    Onward(Destination, Bytes),
}

impl<P: Probe> Endpoint<P> {
    // What arrives.

    /// A request came: it is to be handled, or refused.
    pub(super) fn admit(&mut self, from: ConnId, request: &mut Request) {
        let payload = std::mem::take(&mut request.payload);
        let body = request.body();
        let judged = self.judge(from, request);
        if let (Some(number), None | Some((_, Err(_)))) = (body, &judged) {
            self.stop_unread(from, number);
        }
        let Some((ticket, judged)) = judged else {
            self.grant_request(from, payload.len());
            return;
        };
        let owner = (from.session(), request.call.initiator);
        let placed = judged.is_ok() && self.executor.try_run(owner);
        if placed || judged.is_err() {
            self.grant_request(from, payload.len());
        }
        let served = judged.as_ref().map_or(0, |served| *served);
        let mut handler = self.handler(from, request, payload, ticket, served);
        if judged.is_ok() {
            handler.body = body.and_then(|number| self.begin_read(from, number));
        }
        match judged {
            Ok(_) if !placed => self.wait_for_place(handler),
            Ok(_) => {
                handler.placed = true;
                let key = self.handlers.add(handler);
                self.outputs.push_back(Output::Run(key));
            }
            Err(status) => self.end_with(handler, &status),
        }
    }

    /// Which method is to handle a request, or the status that refuses it; `None` if nothing becomes of it.
    fn judge(
        &mut self,
        from: ConnId,
        request: &mut Request,
    ) -> Option<(Option<Ticket>, Result<usize, Status>)> {
        let MethodRef::Number(number) = request.method else {
            return None;
        };
        self.use_conn(from);
        let node = self.conns.get(from)?.node()?;
        if self.config.require_seals && !self.takes(from, request) {
            return None;
        }
        let origin = Origin {
            session: from.session(),
            peer: node,
            transit: Duration::ZERO,
        };
        let admission = self.records.admit(request, origin, self.now);
        self.probe.judged(request, &admission);
        let ticket = match admission {
            Admission::Accepted(ticket) => ticket,
            Admission::Refused(status) => return Some((None, Err(status))),
            Admission::Duplicate => {
                self.counters.requests_dropped += 1;
                return None;
            }
        };
        let methods = &self.conns.get(from)?.methods;
        let judged = match methods.get(number as usize) {
            _ if self.draining => Err(shutting_down()),
            Some(Ok(served)) => Ok(*served),
            Some(Err(Refused(refused))) => Err(refused.1.clone()),
            None => Err(Status::new(Code::Internal, "its method was not named")),
        };
        Some((Some(ticket), judged))
    }

    fn handler(
        &self,
        from: ConnId,
        request: &mut Request,
        payload: Bytes,
        ticket: Option<Ticket>,
        served: usize,
    ) -> Box<Handler> {
        let time = request.time(DEFAULT_DEADLINE);
        Box::new(Handler {
            server: Server::bounded(request, self.config.max_budgets.as_ref()),
            ticket,
            from,
            reply_to: std::mem::replace(&mut request.reply_to, ReplyTo::Peer),
            oldest: request.oldest,
            options: request.options.take(),
            deadline: self.raw.saturating_add(time.min(LONGEST)),
            arrived: self.raw,
            began: None,
            served,
            payload,
            body: None,
            owes_answer: self.served.get(served).is_some_and(|served| served.one),
            refused: None,
            exhausted: false,
            key: None,
            stage: Stage::Waits,
            placed: false,
        })
    }

    /// Whether a request may be taken; one that may not is answered over its own session: the address to which it wants its
    /// answers may be a stranger's.
    #[cold]
    fn takes(&mut self, from: ConnId, request: &mut Request) -> bool {
        let peer = self.conns.get(from).and_then(|peer| peer.hello());
        let address = peer.and_then(|hello| hello.address.as_ref());
        let Err(error) = verify(&self.config.cluster_keys, request, self.node, address) else {
            return true;
        };
        self.counters.unsealed_refused += 1;
        let status = self.own(Status::new(Code::PermissionDenied, error.to_string()));
        self.answer_stranger(from, request, &status);
        false
    }

    /// A message above the limit came: a request gets a status, of an answer the application gets one in its place.
    #[cold]
    pub(super) fn handle_too_large(&mut self, from: ConnId, message: &mut Message, size: u64) {
        let limit = self.config.limits.message;
        let status = |what: &str| {
            let text = format!("{what} of {size} bytes: at most {limit} are taken");
            self.own(Status::new(Code::ResourceExhausted, text))
        };
        match message {
            Message::Request(request) => {
                let status = status("a request");
                if let Some(number) = request.body() {
                    self.stop_unread(from, number);
                }
                self.answer_stranger(from, request, &status);
            }
            Message::Response(response) => {
                let payload = status("an answer").to_payload();
                let response = Response {
                    status: true,
                    payload,
                    ..response.clone()
                };
                self.handle_answer(Some(from), &mut Message::Response(response));
            }
            _ => {}
        }
    }

    // Running.

    /// What a request asks for ([`Output::Run`]); `None` if it has ended meanwhile. The shell runs a handler for it, with the verbs
    /// below, and says when it has [`returned`](Self::returned).
    pub fn take_request(&mut self, key: RequestKey) -> Option<Incoming> {
        if self.was_stopped(key) {
            self.fail(key, &stopped());
            return None;
        }
        let handler = self.handlers.get(key)?;
        if handler.stage == Stage::Late && !self.starts_late(key) {
            return None;
        }
        let raw = self.raw;
        let handler = self.handlers.get_mut(key)?;
        (handler.stage, handler.began) = (Stage::Runs, Some(raw));
        Some(Incoming {
            method: handler.served,
            payload: std::mem::take(&mut handler.payload),
            body: handler.body,
        })
    }

    /// A handler has returned, with a status if it failed. Its request ends, unless it was put aside.
    pub fn returned(&mut self, key: RequestKey, result: Result<(), Status>) {
        match (self.handlers.take(key), result) {
            (Some(handler), Ok(())) if handler.stage == Stage::Aside => {
                self.handlers.put(key, handler);
            }
            (Some(handler), Ok(())) => self.finish(handler),
            (Some(handler), Err(status)) => self.end_with(handler, &status),
            (None, Ok(())) => {}
            (None, Err(_)) => self.counters.late_errors += 1,
        }
    }

    /// A handler has panicked; it has returned with a status that says so.
    pub fn note_panic(&mut self) {
        self.counters.panics += 1;
    }

    /// A request waits for something of the application's: it is put aside until it is [resumed](Self::resume), aborted, or has no
    /// time left. What was held back leaves.
    pub fn put_aside(&mut self, key: RequestKey) {
        let Some(mut handler) = self.handlers.take(key) else {
            return;
        };
        self.flush_held(&mut handler);
        if !handler.was_put_aside() {
            self.list(key, &handler);
        }
        handler.stage = Stage::Aside;
        self.handlers.put(key, handler);
        if self.was_stopped(key) {
            self.stop(key, stopped());
        }
    }

    /// Whether a request's call was aborted: of one that was not put aside then nobody was told.
    fn was_stopped(&self, key: RequestKey) -> bool {
        let ticket = self.handlers.get(key).and_then(|handler| handler.ticket);
        ticket.is_some_and(|ticket| !self.records.may_delegate(ticket))
    }

    /// A request that was put aside goes on; `false` if it has ended. Whoever is done with it says that it has
    /// [`returned`](Self::returned), or puts it aside again.
    pub fn resume(&mut self, key: RequestKey) -> bool {
        let handler = self.handlers.get_mut(key);
        let Some(handler) = handler.filter(|handler| handler.stage == Stage::Aside) else {
            return false;
        };
        handler.stage = Stage::Resumed;
        if let Some(ticket) = handler.ticket {
            self.records.progressed(ticket, self.now);
        }
        true
    }

    /// A handler says that it makes progress.
    pub fn progress(&mut self, key: RequestKey) {
        if let Some(ticket) = self.handlers.get(key).and_then(|handler| handler.ticket) {
            self.records.progressed(ticket, self.now);
        }
    }

    /// A request that is handled, or waits for it.
    pub fn request(&self, key: RequestKey) -> Option<&Handler> {
        self.handlers.get(key)
    }

    /// The method that a request calls.
    pub fn method_of(&self, key: RequestKey) -> Option<&MethodDefinition> {
        let served = self.handlers.get(key)?.served;
        Some(&self.served.get(served)?.definition)
    }

    /// Who sent a request; `None` if its connection has ended meanwhile.
    pub fn delegator(&self, key: RequestKey) -> Option<NodeId> {
        self.conns.get(self.handlers.get(key)?.from)?.node()
    }

    /// How much time a request has left.
    pub fn remaining(&self, key: RequestKey) -> Duration {
        let handler = self.handlers.get(key);
        handler.map_or(Duration::ZERO, |handler| {
            handler.deadline.saturating_sub(self.raw)
        })
    }

    /// Says how many delegations of a request will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_delegations(&mut self, key: RequestKey, times: u32) {
        let handler = self.handlers.get_mut(key);
        if let Some(allowance) = handler.and_then(|handler| handler.server.allowance_mut()) {
            allowance.announce(times);
        }
    }

    /// A request has ended: its key means nothing any more.
    fn release_key(&mut self, handler: &Handler) {
        let Some(key) = handler.key else { return };
        if let Some(body) = handler.body.filter(|_| !handler.was_taken()) {
            self.drop_body(body);
        }
        self.handlers.release(key);
        if handler.placed {
            self.free_place(handler.owner());
        }
        if handler.is_listed() {
            self.leave_line(handler);
            self.unlist(key, handler);
        }
    }

    pub(super) fn request_deadline(&mut self, key: RequestKey) {
        self.stop(key, too_late());
    }

    /// A request that waits ends here and now.
    pub(super) fn stop(&mut self, key: RequestKey, status: Status) {
        let Some(handler) = self.handlers.take(key) else {
            return;
        };
        let body = handler.body;
        let is_known = handler.was_put_aside(); // else nobody waits for it
        self.end_with(handler, &status);
        if is_known {
            self.outputs
                .push_back(Output::Stopped(key, Box::new(status)));
            if let Some(body) = body {
                self.give_body_up(body);
            }
            self.break_bodies_of_request(key);
        }
    }

    // What handlers send.

    /// Sends an answer to the initiator; more may follow.
    ///
    /// # Errors
    ///
    /// If it is too large, exceeds a budget, or too much waits already ([`SendError::Full`]); or the request has ended.
    pub fn reply(&mut self, key: RequestKey, payload: Bytes) -> Result<(), SendError> {
        self.with(key, |endpoint, handler| {
            endpoint.send_more(handler, Sending::Answer(payload))
        })
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply); unless its handler returns a status, the request then ends with the one that the error becomes.
    pub fn respond(&mut self, key: RequestKey, payload: Bytes) -> Result<(), SendError> {
        self.with(key, |endpoint, handler| {
            endpoint.send_last(handler, Sending::Answer(payload))
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
        let sending = onward(server, method, payload, None);
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
        let sending = onward(server, method, payload, None);
        self.with(key, |endpoint, handler| {
            endpoint.send_last(handler, sending)
        })
    }

    /// Hands work to another server, with a body that follows the request, whether the handler goes on or not: see
    /// [`write_body`](Self::write_body). If it is the `last` message the request ends, as by [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate) and [`forward`](Self::forward). That bodies do not go over `udp:` shows as a status among
    /// the call's answers.
    pub fn delegate_with_body(
        &mut self,
        request: RequestKey,
        server: Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        last: bool,
    ) -> Result<OutBody, SendError> {
        let deadline = self.handlers.get(request).map(|handler| handler.deadline);
        let body = self.begin_onward(request, deadline.unwrap_or(self.raw));
        let sending = onward(server, method, payload, Some(body));
        let sent = self.with(request, |endpoint, handler| match last {
            true => endpoint.send_last(handler, sending),
            false => endpoint.send_more(handler, sending),
        });
        match sent {
            Ok(()) => Ok(body),
            Err(error) => {
                self.forget_body(body);
                Err(error)
            }
        }
    }

    /// Sends the message that is held back because it might be the last one.
    pub fn flush(&mut self, key: RequestKey) {
        if let Some(mut handler) = self.handlers.take(key) {
            self.flush_held(&mut handler);
            self.handlers.put(key, handler);
        }
    }

    /// Ends a request with a status.
    pub fn fail(&mut self, key: RequestKey, status: &Status) {
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

    fn with(
        &mut self,
        key: RequestKey,
        send: impl FnOnce(&mut Self, &mut Handler) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let Some(mut handler) = self.handlers.take(key) else {
            return Err(SendError::Ended("it is over".into()));
        };
        let sent = send(self, &mut handler);
        self.handlers.put(key, handler);
        sent
    }

    /// A message after which more may follow.
    fn send_more(&mut self, handler: &mut Handler, sending: Sending) -> Result<(), SendError> {
        let sending = self
            .check(handler, sending)
            .inspect_err(|error| note_refused(handler, error, false))?;
        let released = match sending {
            Checked::Answer(payload) => {
                let afforded = handler.server.afford_answer(payload.len());
                afforded.map(|()| handler.server.reply(payload))
            }
            Checked::Onward(to, payload) => {
                let afforded = handler.server.afford_request();
                afforded.map(|()| handler.server.delegate(to, payload))
            }
        };
        match released {
            Ok(Some(released)) => {
                self.leave_one(handler, released);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(exhausted) => Err(self.exhaust(handler, exhausted)),
        }
    }

    /// The last message.
    fn send_last(&mut self, handler: &mut Handler, sending: Sending) -> Result<(), SendError> {
        let sending = self
            .check(handler, sending)
            .inspect_err(|error| note_refused(handler, error, true))?;
        let afforded = match &sending {
            Checked::Answer(payload) => handler.server.afford_answer(payload.len()),
            Checked::Onward(..) => handler.server.afford_request(),
        };
        if let Err(exhausted) = afforded {
            return Err(self.exhaust(handler, exhausted));
        }
        let record = self.record(handler);
        let released = match sending {
            Checked::Answer(payload) => handler.server.respond(payload, record),
            Checked::Onward(to, payload) => handler.server.forward(to, payload, record),
        };
        self.leave(handler, released);
        Ok(())
    }

    /// The message held back leaves now.
    fn flush_held(&mut self, handler: &mut Handler) {
        if let Some(released) = handler.server.flush() {
            self.leave_one(handler, released);
        }
    }

    fn check(&mut self, handler: &Handler, sending: Sending) -> Result<Checked, SendError> {
        if handler.server.has_ended() {
            let why = if handler.exhausted {
                "a budget was used up"
            } else {
                "it was answered or failed before"
            };
            return Err(SendError::Ended(why.into()));
        }
        let (Sending::Answer(payload) | Sending::Onward(_, payload)) = &sending;
        let (size, mut limit) = (payload.len() as u64, self.config.limits.message);
        if let Sending::Onward(to, _) = &sending {
            limit = most_to(&to.server, limit);
        }
        if size > limit {
            let peer = match &sending {
                Sending::Answer(_) => "the initiator".to_owned(),
                Sending::Onward(to, _) => to.server.to_string(),
            };
            return Err(SendError::TooLarge { size, limit, peer });
        }
        if self.draining && matches!(sending, Sending::Onward(..)) {
            return Err(SendError::Draining);
        }
        if !self.may_wait_for(handler, &sending) && !self.would_leave(handler, &sending) {
            return Err(SendError::Full);
        }
        let (to, payload) = match sending {
            Sending::Answer(payload) => return Ok(Checked::Answer(payload)),
            Sending::Onward(to, payload) => (to, payload),
        };
        if !self.config.dial_policy.permits(&to.server) {
            return Err(SendError::Forbidden { server: to.server });
        }
        let (depth, limit) = (
            handler.server.depth().saturating_add(1),
            self.config.max_depth,
        );
        if depth > limit {
            return Err(SendError::TooDeep { depth, limit });
        }
        if !self.config.schemes.lead_to(&to.server) {
            return Err(SendError::NoTransport { server: to.server });
        }
        Ok(Checked::Onward(to, payload))
    }

    /// Whether a message may wait, if it must.
    fn may_wait_for(&mut self, handler: &Handler, sending: &Sending) -> bool {
        match sending {
            Sending::Onward(_, payload) => self.has_room(payload.len()),
            Sending::Answer(_) if handler.server.call().initiator == self.node => {
                self.takes_own(handler.server.call().sequence)
            }
            Sending::Answer(payload) => {
                let cost = payload.len() + MESSAGE_COST as usize;
                self.answers_waiting.is_plenty(cost) || self.may_have(handler, cost)
            }
        }
    }

    /// Whether an answer of this request may take so much of the room for those that wait.
    #[cold]
    fn may_have(&mut self, handler: &Handler, cost: usize) -> bool {
        let initiator = handler.server.call().initiator;
        let way = self.way_of(handler).unwrap_or(handler.from);
        let share = self.answers_waiting.name(way.session(), initiator);
        self.answers_waiting.has_room_for(share, cost)
    }

    /// Whether a message would leave at once, as far as can be told: then it needs no room to wait.
    #[cold]
    fn would_leave(&mut self, handler: &Handler, sending: &Sending) -> bool {
        let call = handler.server.call();
        let (way, waits) = match sending {
            Sending::Answer(_) if call.initiator == self.node => return false,
            Sending::Answer(_) => {
                let way = self.way_of(handler);
                let peer = way.and_then(|id| self.conns.get(id));
                (
                    way,
                    peer.is_none_or(|peer| {
                        peer.holds_answers((call, Some(handler.server.token())))
                    }),
                )
            }
            Sending::Onward(to, _) => {
                let way = self.conn_at(&to.server);
                let peer = way.and_then(|id| self.conns.get(id));
                let followed = to.body.is_some();
                (way, peer.is_none_or(|peer| peer.holds_requests(followed)))
            }
        };
        let carrier = way.and_then(|id| self.carrier(id));
        !waits
            && carrier.is_some_and(|carrier| match sending {
                Sending::Answer(_) => carrier.takes_responses(call),
                Sending::Onward(..) => carrier.takes_requests(),
            })
    }

    /// A budget is used up: the request ends here and now, with a status (PROTOCOL-NOTES 11).
    #[cold]
    fn exhaust(&mut self, handler: &mut Handler, exhausted: Exhausted) -> SendError {
        let record = self.record(handler);
        let status = self.own(Status::from(exhausted));
        let released = handler.server.exhaust(&status, record);
        handler.exhausted = true;
        self.leave(handler, released);
        SendError::Exhausted(exhausted)
    }

    /// The handler lets its request end.
    fn finish(&mut self, mut handler: Box<Handler>) {
        if !handler.server.has_ended() {
            self.finish_open(&mut handler);
        }
        self.release_key(&handler);
    }

    fn finish_open(&mut self, handler: &mut Handler) {
        let record = self.record(handler);
        if let Some(refused) = handler.refused.take() {
            let released = handler.server.exhaust(&self.own(refused), record);
            return self.leave(handler, released);
        }
        let last = if handler.owes_answer && !handler.server.holds_back() {
            let name = self
                .served
                .get(handler.served)
                .map_or("the request", |served| served.definition.name());
            let message = format!("{name} ended without an answer");
            handler
                .server
                .fail(&self.own(Status::new(Code::Unanswered, message)), record)
        } else {
            handler.server.finish(record)
        };
        self.leave_one(handler, last);
    }

    /// A request ends with a status.
    #[cold]
    #[inline(never)]
    pub(super) fn end_with(&mut self, mut handler: Box<Handler>, status: &Status) {
        if handler.server.has_ended() {
            if !(handler.exhausted && status.code() == Code::ResourceExhausted) {
                self.counters.late_errors += 1;
            }
        } else {
            let record = self.record(&handler);
            let last = handler.server.fail(&self.own(status.clone()), record);
            self.leave_one(&handler, last);
            if let Some(key) = handler.key.filter(|_| !self.bodies.is_empty()) {
                self.end_held_bodies(key);
            }
        }
        self.release_key(&handler);
    }

    // How it leaves.

    fn leave(&mut self, handler: &Handler, released: Released<Destination>) {
        if let Some(before) = released.before {
            self.leave_as(handler, *before, false);
        }
        self.leave_as(handler, released.last, true);
    }

    fn leave_one(&mut self, handler: &Handler, outbound: Outbound<Destination>) {
        self.leave_as(handler, outbound, handler.server.has_ended());
    }

    /// A message leaves; whether it is the last one.
    fn leave_as(&mut self, handler: &Handler, outbound: Outbound<Destination>, last: bool) {
        let seen = match &outbound {
            Outbound::Response(response) => Seen::Response(response),
            Outbound::End(end) => Seen::End(end),
            Outbound::Request(delegated) => {
                Seen::Request(delegated.id, &delegated.to.server, &delegated.payload)
            }
        };
        let by = (handler.server.call(), handler.server.id());
        self.probe.released(by, seen, last);
        match outbound {
            Outbound::Response(response) => {
                let small =
                    response.last && response.index == 0 && response.payload.len() <= SMALL_ANSWER;
                self.send_answer(handler, Message::Response(response), small);
            }
            Outbound::End(end) => self.send_answer(handler, Message::End(end), true),
            Outbound::Request(delegated) => self.send_onward(handler, delegated),
        }
    }

    /// The open connection by which answers of a request go straight to its initiator.
    fn way_of(&mut self, handler: &Handler) -> Option<ConnId> {
        let initiator = handler.server.call().initiator;
        self.way_back(initiator, handler.from, |core| {
            core.initiator_address(&handler.reply_to, handler.from)
        })
    }

    fn send_answer(&mut self, handler: &Handler, mut message: Message, small: bool) {
        let initiator = handler.server.call().initiator;
        if initiator == self.node {
            let output = output(handler.from, 0);
            self.note_released(handler.ticket, &message, Some(output));
            self.note_own(&message);
            return self.local.push_back(message);
        }
        let own = handler.reply_to == ReplyTo::Peer;
        if let Some(id) = self.way_of(handler) {
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
        match handler.ticket {
            Some(ticket) => parcel.released = Some((ticket, sent)),
            None => parcel.passage = self.tell_of_refusal(handler),
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

    fn send_onward(&mut self, handler: &Handler, delegated: Delegated<Destination>) {
        let known = self.conn_at(&delegated.to.server);
        let node = known.and_then(|id| self.conns.get(id)?.node());
        let child = Child {
            server: delegated.to.server.clone(),
            node,
        };
        let noted = match handler.ticket {
            Some(ticket) => {
                let quiet = self.records.quiet(ticket, self.now);
                let oldest = self.records.oldest(ticket);
                let noted = self
                    .records
                    .delegation_released(ticket, &delegated, child, None, self.now);
                noted.map(|()| (ticket, quiet, oldest))
            }
            None => Err(Frozen::Aborted),
        };
        let (call, token) = (handler.server.call(), handler.server.token());
        let mut inherited = Inherited {
            reply_to: self.onward_reply_to(handler),
            deadline: Some(handler.deadline.saturating_sub(self.raw)),
            oldest: handler.oldest,
            options: (handler.options.as_ref()).map(|options| Box::new(options.inherited())),
        };
        if let Ok((_, quiet, oldest)) = noted {
            inherited.oldest = oldest.unwrap_or(handler.oldest);
            if quiet.is_some() {
                inherited.options.get_or_insert_default().quiet = quiet;
            }
        }
        let (to, mut request) =
            delegated.into_request(call, token, MethodRef::Number(0), inherited);
        if let Some(body) = to.body {
            request.options.get_or_insert_default().body = Some(0); // its number is the connection's business
            self.bodies.released(body);
        }
        let ticket = match noted {
            Ok((ticket, ..)) => ticket,
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
        let released = Some((ticket, Sent::Delegation));
        let times = Some(Times {
            born: handler.arrived.saturating_sub(age(handler)),
            until: handler.deadline,
        });
        if let Some(id) = known
            && self
                .conns
                .get(id)
                .is_some_and(|peer| !peer.holds_requests(to.body.is_some()))
        {
            let towards = Towards::Server(to.server.clone());
            let (method, body) = ((&to.method, &towards), to.body);
            match self.attempt_request(id, &mut request, method, (released, times), body) {
                Attempt::Waits => {}
                Attempt::Sent | Attempt::Settled => return,
            }
        }
        let mut parcel = Parcel::new(Message::Request(request), Towards::Server(to.server));
        parcel.method = Some(to.method);
        parcel.body = to.body;
        (parcel.released, parcel.times) = (released, times);
        self.post(parcel);
    }

    /// Where servers further on send their answers.
    fn onward_reply_to(&self, handler: &Handler) -> ReplyTo {
        match &handler.reply_to {
            ReplyTo::Peer => match self.initiator_address(&handler.reply_to, handler.from) {
                Some(address) => ReplyTo::At(address),
                None => ReplyTo::Relay,
            },
            other => other.clone(),
        }
    }

    /// Where the initiator of a request that came over this session says that it is reached.
    pub(super) fn initiator_address(&self, reply_to: &ReplyTo, from: ConnId) -> Option<Address> {
        match reply_to {
            ReplyTo::Peer => self.conns.get(from)?.hello()?.address.clone(),
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Relay => None,
        }
    }

    /// A status in the name of a request onward that certainly did not reach its server.
    #[cold]
    pub(super) fn answer_for(
        &mut self,
        request: &Request,
        to: &Address,
        released: Option<(Ticket, Sent)>,
        why: (Code, &str),
    ) {
        let came = released.and_then(|(ticket, _)| self.records.came(ticket));
        let came = came.or_else(|| self.records.way_back(request.call, request.token));
        let came = came.map_or(ConnId::NOBODY, |session| ConnId::from_number(session.0));
        self.answer_over(request, to, (released, came), why);
    }

    /// The same of a request that came of one over this connection: along which its status goes back, if it must.
    fn answer_over(
        &mut self,
        request: &Request,
        to: &Address,
        (released, came): (Option<(Ticket, Sent)>, ConnId),
        (code, why): (Code, &str),
    ) {
        let status = Status::new(code, why).by(Some(to));
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
                parcel_of = Some((ticket, Sent::Response(response.index)));
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
    fn record(&self, handler: &Handler) -> Option<TraceRecord> {
        handler
            .server
            .is_traced()
            .then(|| self.make_record(handler))
    }

    #[cold]
    #[inline(never)]
    fn make_record(&self, handler: &Handler) -> TraceRecord {
        let served = self.served.get(handler.served);
        let began = handler.began.unwrap_or(self.raw);
        TraceRecord {
            request: handler.server.id(),
            node: self.node,
            server: self.address.clone(),
            method: served.map_or_else(String::new, |served| served.definition.name().to_string()),
            arrived_us: self.epoch.saturating_add(handler.arrived).as_micros() as u64,
            queued_us: began.saturating_sub(handler.arrived).as_micros() as u64,
            ran_us: self.raw.saturating_sub(began).as_micros() as u64,
        }
    }
}

#[cold]
fn stopped() -> Status {
    Status::new(Code::Cancelled, StopReason::Aborted.to_string())
}

#[cold]
pub(super) fn too_late() -> Status {
    let why = "the call's deadline passed before the request was done";
    Status::new(Code::DeadlineExceeded, why)
}

fn onward(
    server: Address,
    method: &Arc<MethodDefinition>,
    payload: Bytes,
    body: Option<OutBody>,
) -> Sending {
    let method = Arc::clone(method);
    let to = Destination {
        server,
        method,
        body,
    };
    Sending::Onward(to, payload)
}

/// A message that may be sent.
enum Checked {
    Answer(Bytes),
    Onward(Destination, Bytes),
}

/// What records call an answer.
fn sent(message: &Message) -> Sent {
    match message {
        Message::Response(response) => Sent::Response(response.index),
        _ => Sent::End,
    }
}

/// How old the call was when the request came, as far as hosts know.
pub(super) fn age(handler: &Handler) -> Duration {
    let options = handler.options.as_ref();
    options.and_then(|options| options.age).unwrap_or_default()
}

/// A message was refused: what the request ends with if its handler lets it end all the same.
#[cold]
fn note_refused(handler: &mut Handler, error: &SendError, last: bool) {
    if last || matches!(error, SendError::TooDeep { .. }) {
        handler.refused = Some(Status::from(error.clone()));
    }
}
