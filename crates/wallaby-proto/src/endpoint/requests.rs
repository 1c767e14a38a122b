//! The server's side: which requests are handled, what they send, and how they end.

mod delegation;
mod verbs;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::delegation::{AcceptedDelegation, DelegateOptions, How, NewDelegation};
pub use self::verbs::{Offer, Offered, Outline};

use super::bodies::{InBody, OutBody};
use super::conn::{ConnId, Meant, RefusedMethod};
use super::draining::shutting_down;
use super::event::{IncomingRequest, Output, RequestKey};
use super::probe::Probe;
use super::{Alarm, Endpoint, LONGEST, Serving};
use crate::call::records::{Admission, Origin, StopReason, Ticket};
use crate::call::server::Server;
use crate::connection::MethodDefinition;
use crate::executor::{Owner, Turn};
use crate::numbers::DEFAULT_DEADLINE;
use crate::seal::verify;
use crate::wire::{
    Budgets, Continuation, Message, Metadata, MethodRef, Options, ReplyTo, Request, Response,
};
use crate::{Address, CallId, Code, DurableId, NodeId, RequestId, Status};

/// How long after the deadline a server stops by itself: the initiator's abort, which comes first, is the rule.
const BEHIND: Duration = Duration::from_millis(10);

/// Where a delegated request goes.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
    /// What follows it.
    pub(super) body: Option<OutBody>,
    /// It has its place in the tree [whatever happens](DelegateOptions::always).
    always: bool,
    /// Why it must not go there, though it has a place in the tree already.
    pub(super) refused: Option<Box<Status>>,
    /// What it has of its own.
    own: Option<Box<TimedOptions>>,
}

/// What a delegation has of its own.
#[derive(Debug, Default)]
struct TimedOptions {
    /// All that it has, in place of what its request has.
    metadata: Option<Metadata>,
    /// When its time is over.
    until: Option<Duration>,
    traced: bool,
    continuation: Option<Continuation>,
    durable: Option<DurableId>,
}

/// One request that is handled.
#[derive(Debug)]
pub struct HandledRequest {
    pub(super) server: Server<Destination>,
    /// What records call it; `None` if it was refused.
    pub(super) ticket: Option<Ticket>,
    /// The connection that it came over.
    pub(super) from: ConnId,
    pub(super) reply_to: ReplyTo,
    oldest: u64,
    /// The number of its first answer.
    base: u32,
    /// The request's optional fields: what children inherit.
    pub(super) options: Option<Box<Options>>,
    /// When it has no time left, and when it came.
    pub(super) deadline: Duration,
    arrived: Duration,
    /// When its handler took it.
    began: Option<Duration>,
    /// Which of the methods served it calls.
    served: usize,
    /// As it was named, if it is one of the rest.
    named: Option<Arc<MethodDefinition>>,
    /// What it was sent with, until its handler takes it.
    pub(super) payload: Bytes,
    /// How long the payload is whose credit is granted when it leaves the queue.
    pub(super) owed: Option<usize>,
    /// What follows it; the handler's, once it has taken it.
    pub(super) body: Option<InBody>,
    /// Its initiator expects exactly one answer.
    owes_answer: bool,
    /// What was refused to the handler so that its request must not end as if all were well.
    refused: Option<Status>,
    exhausted: bool,
    /// The places of its messages are told.
    reported: bool,
    /// How much each has handed on or called for it, if it has a durable id: what has names that follow from that.
    names_given: Vec<(Author, u32)>,
    /// Its key, unless it was refused at once.
    pub(super) key: Option<RequestKey>,
    pub(super) stage: Stage,
    /// It has one of the executor's places, which is free when it ends.
    pub(super) placed: bool,
    /// Somebody runs its handler and says when it is done: it may go on when the request has ended.
    pub(super) kept: bool,
    /// Its call was aborted: with this status it ends when its handler is done.
    pub(super) stopping: Option<Box<Status>>,
}

/// What becomes of what a handler has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// Its request ends so, or goes on.
    Heard,
    /// It has failed after its request had ended: nobody hears of that but who counts it.
    Late,
    /// Its request had ended before, or was stopped: that the handler says so as well is no news.
    Stopped,
}

/// Who hands work on, or calls, for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// Its handler.
    Handler,
    /// One of the interceptors that the application has registered, by its place among them.
    Interceptor(u32),
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

impl HandledRequest {
    /// The call that it belongs to.
    pub fn call(&self) -> CallId {
        self.server.call()
    }

    /// Its place in the call's tree.
    pub fn id(&self) -> RequestId {
        self.server.id()
    }

    /// The connection that it came over, which may have ended meanwhile.
    pub fn conn(&self) -> ConnId {
        self.from
    }

    /// When its call's deadline passes, by the shell's clock.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Whether it reports its timings.
    pub fn is_traced(&self) -> bool {
        self.server.is_traced()
    }

    /// How many hops led here: 0 if the initiator sent it.
    pub fn depth(&self) -> u32 {
        self.server.depth()
    }

    /// Whether that is the number of its first answer.
    fn is_first(&self, index: u32) -> bool {
        index == self.base
    }

    /// Pairs that travel down the tree, on from here.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.options.as_ref().map(|options| &options.metadata)
    }

    /// What its sender gave along for who handles it: [`Continuation`](crate::wire::Continuation).
    pub fn continuation(&self) -> Option<&Bytes> {
        self.options.as_ref()?.continuation.as_ref()
    }

    /// The name under which it may have been asked for before.
    pub fn durable(&self) -> Option<DurableId> {
        self.options.as_ref()?.durable
    }

    /// The name of what this one hands on, or calls, next.
    pub(super) fn name_next(&mut self, author: Author) -> Option<DurableId> {
        let durable = match author {
            Author::Handler => self.durable()?,
            Author::Interceptor(index) => self.durable()?.interceptor(index),
        };
        let mut given = self.names_given.iter_mut();
        let Some((_, next)) = given.find(|given| given.0 == author) else {
            self.names_given.push((author, 1));
            return Some(durable.child(0));
        };
        let index = *next;
        *next = index.saturating_add(1);
        Some(durable.child(index))
    }

    /// The method as its caller has named it, if it is [one of the rest](Serving::rest).
    pub fn named(&self) -> Option<&Arc<MethodDefinition>> {
        self.named.as_ref()
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

    /// Whether anything may have been done for it: its handler was begun, or what decides whether that is.
    pub(super) fn has_begun(&self) -> bool {
        self.began.is_some()
    }

    /// Whether it may come again in another attempt.
    pub(super) fn is_repeatable(&self) -> bool {
        self.options
            .as_ref()
            .is_some_and(|options| options.repeatable)
    }

    /// Whether the application may come back to it, or has.
    fn was_put_aside(&self) -> bool {
        matches!(self.stage, Stage::Aside | Stage::Resumed)
    }

    /// From now on it calls this method, whose initiators expect exactly `one` answer or not.
    pub(super) fn expect(&mut self, served: usize, one: bool) {
        (self.served, self.owes_answer) = (served, one);
    }

    /// The next delegation goes on to so many servers.
    fn announce_line(&mut self, servers: u32) {
        if let Some(allowance) = self.server.allowance_mut() {
            allowance.announce_line(servers);
        }
    }

    /// Whether an abort finds it.
    pub(super) fn is_listed(&self) -> bool {
        self.was_put_aside() || matches!(self.stage, Stage::Queued(_))
    }
}

impl<P: Probe> Endpoint<P> {
    // What arrives.

    /// A request came: it is to be handled, or refused.
    pub(super) fn admit(&mut self, from: ConnId, request: &mut Request) {
        self.metrics.requests_received += 1;
        let body = request.body();
        let judged = self.judge(from, request);
        let payload = std::mem::take(&mut request.payload);
        if let (Some(number), None | Some((_, Err(_)))) = (body, &judged) {
            self.stop_unread(from, number);
        }
        let Some((ticket, judged)) = judged else {
            self.grant_request(from, payload.len());
            return;
        };
        let owner = (from.session(), request.call.initiator);
        let served = judged.as_ref().map_or(0, |meant| meant.served);
        let Serving {
            ahead, credit_free, ..
        } = self.serving(served);
        let placed = judged.is_ok() && !ahead && self.executor.try_run(owner);
        let waits = judged.is_ok() && !ahead && !placed;
        let owes = judged.is_ok() && !placed && !credit_free;
        let owed = owes.then_some(payload.len());
        if owed.is_none() {
            self.grant_request(from, payload.len());
        }
        let mut handler = self.handler(from, request, payload, ticket, served);
        handler.owed = owed;
        if let Ok(Meant {
            named: Some(named), ..
        }) = &judged
        {
            handler.named = Some(Arc::clone(named));
        }
        if let (Some(number), Ok(_)) = (body, &judged) {
            handler.body = self.begin_read(from, number);
        }
        match judged {
            Ok(_) if waits => self.wait_for_place(handler),
            Ok(_) => {
                handler.placed = placed;
                let key = self.handlers.add(handler);
                self.outputs.push_back(Output::Run(key));
            }
            Err(status) => drop(self.end_with(handler, &status)),
        }
    }

    /// Which method is to handle a request, or the status that refuses it; `None` if nothing becomes of it.
    fn judge(
        &mut self,
        from: ConnId,
        request: &mut Request,
    ) -> Option<(Option<Ticket>, Result<Meant, Status>)> {
        let MethodRef::Number(number) = request.method else {
            return None;
        };
        self.use_conn(from);
        let node = self.conns.get(from)?.node()?;
        let methods = &self.conns.get(from)?.methods;
        let served = methods.get(number as usize);
        let served = served.and_then(|served| served.as_ref().ok());
        let how = served.map_or_else(Serving::default, |meant| self.serving(meant.served));
        let sealed = how.sealed && !self.config.cluster_keys.is_empty();
        let sealed = sealed || self.config.require_seals;
        if sealed && !self.takes(from, request) {
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
                self.metrics.requests_dropped += 1;
                return None;
            }
        };
        let methods = &self.conns.get(from)?.methods;
        let judged = match methods.get(number as usize) {
            _ if self.ending || self.draining && !how.while_draining => Err(shutting_down()),
            Some(Ok(meant)) => Ok(meant.clone()),
            Some(Err(RefusedMethod(refused))) => Err(refused.1.clone()),
            None => Err(Status::new(Code::Internal, "its method was not named")),
        };
        Some((Some(ticket), judged))
    }

    pub(super) fn serving(&self, served: usize) -> Serving {
        let served = self.served.get(served);
        served.map_or_else(Serving::default, |served| served.how)
    }

    fn handler(
        &self,
        from: ConnId,
        request: &mut Request,
        payload: Bytes,
        ticket: Option<Ticket>,
        served: usize,
    ) -> Box<HandledRequest> {
        let time = request.time(DEFAULT_DEADLINE);
        Box::new(HandledRequest {
            server: Server::bounded(request, self.config.max_budgets.as_ref()),
            ticket,
            from,
            reply_to: std::mem::replace(&mut request.reply_to, ReplyTo::Peer),
            oldest: request.oldest,
            base: request.base,
            options: request.options.take(),
            deadline: self.raw.saturating_add(time.min(LONGEST)),
            arrived: self.raw,
            began: None,
            served,
            named: None,
            payload,
            owed: None,
            body: None,
            owes_answer: self.serving(served).one,
            refused: None,
            exhausted: false,
            reported: false,
            names_given: Vec::new(),
            key: None,
            stage: Stage::Waits,
            placed: false,
            kept: false,
            stopping: None,
        })
    }

    /// Whether a request may be taken; one that may not is answered over its own session: the address to which it wants its
    /// answers may be a stranger's.
    #[cold]
    fn takes(&mut self, from: ConnId, request: &mut Request) -> bool {
        let peer = self.conns.get(from);
        let address = peer.and_then(|peer| peer.hello()?.address.as_ref());
        let method = self.name_of(from, request.method);
        let (keys, node) = (&self.config.cluster_keys, self.node);
        let Err(error) = verify(keys, request, method, node, address) else {
            return true;
        };
        self.metrics.unsealed_refused += 1;
        let status = self.own(Status::new(Code::PermissionDenied, error.to_string()));
        self.answer_stranger(from, request, &status);
        false
    }

    /// The name that a peer has given to a method.
    fn name_of(&self, from: ConnId, method: MethodRef) -> &str {
        let MethodRef::Number(number) = method else {
            return "";
        };
        let meant = self.conns.get(from);
        let meant = meant.and_then(|peer| peer.methods.get(number as usize));
        match meant {
            Some(Ok(Meant {
                named: Some(named), ..
            })) => named.name(),
            Some(Ok(meant)) => {
                let served = self.served.get(meant.served);
                served.map_or("", |served| served.definition.name())
            }
            Some(Err(RefusedMethod(refused))) => refused.0.name(),
            None => "",
        }
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

    /// The name of what this one says next is to be called or handed on for a request, if that has a durable id: it follows from that,
    /// and from how much the same one has said before. A delegation that is given none gets its handler's next when it is sent.
    pub fn name_next(&mut self, key: RequestKey, author: Author) -> Option<DurableId> {
        self.handlers.get_mut(key)?.name_next(author)
    }

    // Running.

    /// What a request asks for ([`Output::Run`]); `None` if it has ended meanwhile. The shell runs a handler for it, with the verbs
    /// below, and says when it has [`returned`](Self::returned).
    pub fn take_request(&mut self, key: RequestKey) -> Option<IncomingRequest> {
        let taken = self.take_turn(key);
        if taken.is_none() {
            self.abort_calls_within(key);
        }
        taken
    }

    fn take_turn(&mut self, key: RequestKey) -> Option<IncomingRequest> {
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
        Some(IncomingRequest {
            method: handler.served,
            payload: std::mem::take(&mut handler.payload),
            body: handler.body,
        })
    }

    /// A handler has returned, with a status if it failed. Its request ends, unless it was put aside.
    pub fn returned(&mut self, key: RequestKey, result: Result<(), Status>) -> Returned {
        let handler = match self.is_stopping(key) {
            true => None,
            false => self.handlers.take(key),
        };
        match (handler, result) {
            (Some(handler), Ok(())) if handler.stage == Stage::Aside => {
                self.handlers.put(key, handler);
                Returned::Heard
            }
            (Some(handler), Ok(())) => {
                self.finish(handler);
                Returned::Heard
            }
            (Some(handler), Err(status)) => self.end_with(handler, &status),
            (None, Err(status)) if status.code() != Code::Cancelled => {
                self.metrics.late_errors += 1;
                Returned::Late
            }
            (None, _) => Returned::Stopped,
        }
    }

    /// A handler has panicked, as this text says: the status with which it is to [return](Self::returned).
    pub fn panicked(&mut self, text: String) -> Status {
        self.metrics.panics += 1;
        Status::new(Code::Panicked, text)
    }

    /// A request waits for something of the application's: it is put aside until it is [resumed](Self::resume), aborted, or has no
    /// time left. What was held back leaves.
    pub fn put_aside(&mut self, key: RequestKey) {
        if self.is_stopping(key) {
            return;
        }
        let Some(mut handler) = self.handlers.take(key) else {
            return;
        };
        self.flush_held(&mut handler);
        if matches!(handler.stage, Stage::Queued(_)) {
            return self.handlers.put(key, handler); // it waits for another turn
        }
        if !handler.was_put_aside() {
            self.list(key, &handler);
        }
        handler.stage = Stage::Aside;
        self.handlers.put(key, handler);
        if self.was_stopped(key) {
            self.stop_aborted(key, stopped());
        }
    }

    /// Whether a request's call was aborted: of one that was not put aside then nobody was told.
    fn was_stopped(&self, key: RequestKey) -> bool {
        let goes_on = self
            .handlers
            .get(key)
            .filter(|handler| !handler.server.has_ended());
        let ticket = goes_on.and_then(|handler| handler.ticket);
        ticket.is_some_and(|ticket| !self.records.may_delegate(ticket))
    }

    /// A request that was put aside goes on; `false` if it has ended. Whoever is done with it says that it has
    /// [`returned`](Self::returned), or puts it aside again.
    pub fn resume(&mut self, key: RequestKey) -> bool {
        let handler = self.handlers.get_mut(key);
        let goes_on = |handler: &&mut HandledRequest| {
            handler.stage == Stage::Aside && handler.stopping.is_none()
        };
        let Some(handler) = handler.filter(goes_on) else {
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
    pub fn request(&self, key: RequestKey) -> Option<&HandledRequest> {
        self.handlers.get(key)
    }

    /// The method that a request calls.
    pub fn method_of(&self, key: RequestKey) -> Option<&Arc<MethodDefinition>> {
        self.method_called(self.handlers.get(key)?)
    }

    fn method_called<'a>(
        &'a self,
        handler: &'a HandledRequest,
    ) -> Option<&'a Arc<MethodDefinition>> {
        let served = || Some(&self.served.get(handler.served)?.definition);
        handler.named.as_ref().or_else(served)
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

    /// A request has no more time than this from now on, nor has what it leads to; it never has more than before.
    pub fn shorten_deadline(&mut self, key: RequestKey, left: Duration) {
        let until = self.raw.saturating_add(left);
        let Some(mut handler) = self.handlers.take(key) else {
            return;
        };
        if until < handler.deadline {
            let before = (handler.given_up_at(), Alarm::Request(key));
            handler.deadline = until;
            if handler.is_listed() {
                self.alarms.remove(&before);
                let alarm = (handler.given_up_at(), Alarm::Request(key));
                self.alarms.insert(alarm);
            }
        }
        self.handlers.put(key, handler);
    }

    /// What a request leads to has these pairs in place of those that it came with.
    pub fn set_inherited(&mut self, key: RequestKey, metadata: Metadata) {
        if let Some(handler) = self.handlers.get_mut(key) {
            handler.options.get_or_insert_default().metadata = metadata;
        }
    }

    /// From now on the places of a request's messages are told: [`Output::Placed`].
    pub fn report_places(&mut self, key: RequestKey) {
        if let Some(handler) = self.handlers.get_mut(key) {
            handler.reported = true;
        }
    }

    /// Says how many delegations of a request will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_delegations(&mut self, key: RequestKey, times: u32) {
        let handler = self.handlers.get_mut(key);
        if let Some(allowance) = handler.and_then(|handler| handler.server.allowance_mut()) {
            allowance.announce(times);
        }
    }

    /// A request has ended: its key means nothing any more.
    fn release_key(&mut self, handler: &HandledRequest) {
        let Some(key) = handler.key else { return };
        if let Some(body) = handler.body.filter(|_| handler.began.is_none()) {
            self.drop_body(body);
        }
        // Who waits for that waits for nothing.
        let waiting = self.handlers.waiting(key);
        self.outputs
            .extend(waiting.map(|lane| Output::Room(key, lane)));
        self.handlers.release(key);
        self.stopping -= usize::from(handler.stopping.is_some());
        if let Some(payload) = handler.owed {
            self.grant_request(handler.from, payload);
        }
        if handler.placed {
            self.free_place(handler.owner());
        }
        if handler.is_listed() {
            self.leave_line(handler);
            self.unlist(key, handler);
        }
    }

    pub(super) fn request_deadline(&mut self, key: RequestKey) {
        if !self.is_stopping(key) {
            self.stop(key, too_late());
        }
    }

    /// A request that waits ends here and now.
    pub(super) fn stop(&mut self, key: RequestKey, status: Status) {
        self.stop_as(key, status, true);
    }

    /// The same, but its initiator is not told.
    pub(super) fn abandon(&mut self, key: RequestKey, why: Status) {
        self.stop_as(key, why, false);
    }

    fn stop_as(&mut self, key: RequestKey, status: Status, told: bool) {
        let Some(handler) = self.handlers.take(key) else {
            return;
        };
        let (body, is_known) = (handler.body, handler.began.is_some()); // else nobody waits for it
        if handler.server.has_ended() || !told {
            self.release_key(&handler); // its handler goes on, that is all
        } else {
            self.end_with(handler, &status);
        }
        if is_known {
            self.outputs
                .push_back(Output::Stopped(key, Box::new(status)));
            if let Some(body) = body {
                self.give_body_up(body);
            }
            self.break_bodies_of_request(key);
            self.abort_calls_within(key);
        }
    }
}

#[cold]
fn stopped() -> Status {
    Status::new(Code::Cancelled, StopReason::Aborted.to_string())
}

#[cold]
pub(super) fn too_late() -> Status {
    let why = "the deadline passed before the request was done";
    Status::new(Code::DeadlineExceeded, why)
}

/// How old the call was when the request came, as far as hosts know.
pub(super) fn age(handler: &HandledRequest) -> Duration {
    let options = handler.options.as_ref();
    options.and_then(|options| options.age).unwrap_or_default()
}
