//! One request at its server: what its handler sends, what that inherits, what is owed, and how far it is.
//!
//! A [`HandledRequest`] is told what its handler does, and says what leaves ([`HandledRequest::poll`]). It knows connections by
//! their keys; which requests are taken, their places in the executor, routes and alarms are its endpoint's.
//!
//! ```text
//! it came:            HandledRequest::new(..), with what the records call it
//! its handler:        send(..), flush(..), refuse(..), finish(..), fail(..)
//! after each of them: while let Some(message) = request.poll() {
//!                         an answer:    records.answer_released(request.ticket(), ..), when it leaves
//!                         a delegation: request.hand_on(..), and that leaves
//!                     }
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::LONGEST;
use super::bodies::{InBody, OutBody};
use super::conn::Times;
use super::event::Lane;
use super::requests::{How, TimedOptions};
use crate::call::allowance::Exhausted;
use crate::call::records::{Frozen, Records, Ticket};
use crate::call::server::{Delegated, Inherited, LastMessages, Outbound, ServerHalf};
use crate::connection::MethodDefinition;
use crate::error::SendError;
use crate::executor::{Owner, Turn};
use crate::fifo::Fifo;
use crate::numbers::{DEFAULT_DEADLINE, MESSAGE_COST};
use crate::wire::{
    Budgets, Child, HandledBy, MAX_TRACE_PARTS, MessageOptions, Metadata, MethodRef, ReplyTo,
    Request, Response, TracePart, TraceRecord,
};
use crate::{Address, CallId, Code, ConnId, DurableId, NodeId, RequestId, Status, Token};

/// How long after the deadline a server stops by itself: the initiator's abort, which comes first, is the rule.
const BEHIND: Duration = Duration::from_millis(10);

/// What a request knows of its endpoint.
#[derive(Debug, Clone, Copy)]
pub struct RequestContext<'a> {
    /// Who that is, and where it is reached.
    pub node: NodeId,
    /// See [`node`](Self::node).
    pub address: Option<&'a Address>,
    /// The time that goes on even while the process stands still: deadlines are kept by it.
    pub raw: Duration,
    /// The Unix time when that began.
    pub epoch: Duration,
    /// The method that it calls, as it is served.
    pub served: Option<&'a Arc<MethodDefinition>>,
}

impl RequestContext<'_> {
    fn own(&self, status: Status) -> Status {
        status.by(self.address)
    }
}

/// Where a delegated request goes.
#[derive(Debug)]
pub struct Destination {
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
    /// What follows it.
    pub(super) body: Option<OutBody>,
    /// What it has of its own.
    pub(super) own: Option<Box<TimedOptions>>,
}

impl Destination {
    /// This method of a server.
    pub fn new(server: Address, method: &Arc<MethodDefinition>) -> Self {
        Self {
            server,
            method: Arc::clone(method),
            body: None,
            own: None,
        }
    }
}

/// A message that a handler sends.
#[derive(Debug)]
pub enum Sending {
    /// An answer to the initiator.
    Answer(Bytes),
    /// Work for another server.
    Delegation(Destination, Bytes),
}

impl Sending {
    /// What a delegation has of its own.
    pub(super) fn own(&self) -> Option<&TimedOptions> {
        match self {
            Self::Answer(_) => None,
            Self::Delegation(to, _) => to.own.as_deref(),
        }
    }

    /// What it needs on its way.
    pub fn outline(&self) -> Outline<'_> {
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

    pub(super) fn lane(&self) -> Lane {
        match self.server {
            Some(_) => Lane::Requests,
            None => Lane::Answers,
        }
    }

    /// What it costs while it waits, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.payload + MESSAGE_COST as usize
    }
}

/// A delegation that leaves.
#[derive(Debug)]
pub struct HandedOn {
    /// Where it goes.
    pub to: Destination,
    /// The message, with all that it inherits.
    pub request: Request,
    /// What the records call its request; or why it must not be sent.
    pub noted: Result<Ticket, Frozen>,
    /// What it says of the time when it is sent, at last.
    pub(super) times: Times,
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
pub(super) enum HandlerState {
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

/// Who has the place in the executor that a request has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has got none yet, or whoever ran its handler has given it back.
    None,
    /// The request: it is free when that ends.
    Request,
    /// Whoever runs its handler and says when that is done: it may go on when the request has ended, for a while.
    Permit,
    /// The same, for however long it takes.
    Kept,
}

/// One request that is handled.
#[derive(Debug)]
pub struct HandledRequest {
    pub(super) server: ServerHalf<Destination>,
    /// What records call it; `None` if it was refused.
    pub(super) ticket: Option<Ticket>,
    /// The connection that it came over.
    pub(super) from: ConnId,
    pub(super) reply_to: ReplyTo,
    pub(super) oldest: u64,
    /// The number of its first answer.
    base: u32,
    /// The request's optional fields: what children inherit.
    pub(super) options: Option<Box<MessageOptions>>,
    /// When it has no time left, and when it came.
    pub(super) deadline: Duration,
    arrived: Duration,
    /// When its handler took it.
    pub(super) began: Option<Duration>,
    /// Which of the methods served it calls, if it is to be handled.
    pub(super) served: Option<usize>,
    /// As it was named, if it is one of the rest.
    pub(super) named: Option<Arc<MethodDefinition>>,
    /// What it was sent with, until its handler takes it.
    pub(super) payload: Bytes,
    /// How long the payload is whose credit is granted when it leaves the queue.
    pub(super) owed: Option<usize>,
    /// What follows it; the handler's, once it has taken it.
    pub(super) body: Option<InBody>,
    /// Why it is handled here, if it was for another server.
    pub(super) undelivered: Option<Box<Status>>,
    /// Its initiator expects exactly one answer.
    pub(super) owes_answer: bool,
    /// What was refused to the handler so that its request must not end as if all were well.
    refused: Option<Status>,
    /// Its turn among those that wait for room, if some was refused to it.
    pub(super) room_turn: Option<u64>,
    exhausted: bool,
    /// The places of its messages are told.
    pub(super) reported: bool,
    /// How much each has handed on or called for it, if it has a durable id: what has names that follow from that.
    names_given: Vec<(Author, u32)>,
    pub(super) state: HandlerState,
    pub(super) place: Place,
    /// Its call was aborted: with this status it ends when its handler is done.
    pub(super) stopping: Option<Box<Status>>,
    /// What a traced hop tells apart of its time.
    parts: Vec<TracePart>,
    /// What is to leave.
    leaving: Fifo<Outbound<Destination>>,
}

impl HandledRequest {
    /// A request that came now over a connection, and what the records call it, if they know it. It may use up no more than `most`,
    /// if that is given, whatever it states.
    #[inline]
    pub fn new(
        request: &mut Request,
        (from, ticket): (ConnId, Option<Ticket>),
        most: Option<&Budgets>,
        raw: Duration,
    ) -> Self {
        let time = request.time(DEFAULT_DEADLINE);
        Self {
            server: ServerHalf::bounded(request, most),
            ticket,
            from,
            reply_to: std::mem::replace(&mut request.reply_to, ReplyTo::Peer),
            oldest: request.oldest,
            base: request.base,
            options: request.options.take(),
            deadline: raw.saturating_add(time.min(LONGEST)),
            arrived: raw,
            began: None,
            served: None,
            named: None,
            payload: Bytes::new(),
            owed: None,
            body: None,
            undelivered: None,
            owes_answer: false,
            refused: None,
            room_turn: None,
            exhausted: false,
            reported: false,
            names_given: Vec::new(),
            state: HandlerState::Waits,
            place: Place::None,
            stopping: None,
            parts: Vec::new(),
            leaving: Fifo::default(),
        }
    }

    /// The call that it belongs to.
    pub fn call(&self) -> CallId {
        self.server.call()
    }

    /// Its place in the call's tree.
    pub fn id(&self) -> RequestId {
        self.server.id()
    }

    /// What the records call it.
    pub fn ticket(&self) -> Option<Ticket> {
        self.ticket
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

    /// What tells its call from one of a stranger with the same id.
    pub fn token(&self) -> Token {
        self.server.token()
    }

    /// How many hops led here: 0 if the initiator sent it.
    pub fn depth(&self) -> u32 {
        self.server.depth()
    }

    /// Whether it has sent its last message.
    pub fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    /// Pairs that travel down the tree, on from here.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.options.as_ref().map(|options| &options.metadata)
    }

    /// What its sender gave along for who handles it: [`Continuation`](crate::wire::Continuation).
    pub fn continuation(&self) -> Option<&Bytes> {
        self.options.as_ref()?.continuation.as_ref()
    }

    /// Why it is handled here, if a request here has handed it on to another server, which it certainly did not reach
    /// ([`DelegateOptions::unless_sent`](super::DelegateOptions::unless_sent)). The status names that server and what was called there.
    pub fn undelivered(&self) -> Option<&Status> {
        self.undelivered.as_deref()
    }

    /// Whether one of the endpoint's cluster keys has sealed it: another seal it has lost.
    pub fn is_sealed(&self) -> bool {
        let options = self.options.as_ref();
        options.is_some_and(|options| options.seal.is_some())
    }

    /// The name under which it may have been asked for before.
    pub fn durable(&self) -> Option<DurableId> {
        self.options.as_ref()?.durable
    }

    /// The method as its caller has named it, if it is [one of the rest](super::Serving::rest).
    pub fn named(&self) -> Option<&Arc<MethodDefinition>> {
        self.named.as_ref()
    }

    /// What it may still use up, if its call's budgets are stated or this endpoint has a maximum.
    pub fn budgets(&self) -> Option<Budgets> {
        self.server.allowance().map(|known| known.left())
    }

    /// Whose place it takes.
    pub(super) fn owner(&self) -> Owner {
        (self.from, self.server.call().initiator)
    }

    /// How old the call was when the request came, as far as hosts know.
    pub(super) fn age(&self) -> Duration {
        let options = self.options.as_ref();
        options.and_then(|options| options.age).unwrap_or_default()
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

    /// Whether somebody works for it, and was not told to stop.
    pub(super) fn is_worked_for(&self) -> bool {
        self.has_begun() && self.stopping.is_none()
    }

    /// Whether it may come again in another attempt.
    pub(super) fn is_repeatable(&self) -> bool {
        let options = self.options.as_ref();
        options.is_some_and(|options| options.repeatable)
    }

    /// Whether its handler may go on when it has ended.
    pub(super) fn goes_on_without(&self) -> bool {
        matches!(self.place, Place::Permit | Place::Kept)
    }

    /// Whether an abort finds it: it waits for its turn, or the application may come back to it, or has.
    pub(super) fn is_listed(&self) -> bool {
        matches!(
            self.state,
            HandlerState::Aside | HandlerState::Resumed | HandlerState::Queued(_)
        )
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

    /// What a call on its behalf may use up, its initial request included.
    pub(super) fn share_for_call(&mut self) -> Option<Budgets> {
        let allowance = self.server.allowance_mut()?;
        let initial = u32::from(allowance.spend_request().is_ok());
        let share = allowance.share();
        Some(Budgets {
            requests: share.requests + initial,
            ..share
        })
    }

    // What its handler does.

    /// Nothing is sent for a request that has ended, or is to.
    ///
    /// # Errors
    ///
    /// Then.
    pub fn check_open(&self) -> Result<(), SendError> {
        let why = match &self.stopping {
            _ if self.has_ended() && self.exhausted => "a budget was used up",
            _ if self.has_ended() => "it was answered or failed before",
            Some(why) => why.message(),
            None => return Ok(()),
        };
        Err(SendError::Ended(why.into()))
    }

    /// A message, after which more may follow or not. It [is open](Self::check_open).
    ///
    /// # Errors
    ///
    /// If a budget is used up: then it has ended, with a status (docs/protocol.md, rule 11).
    pub fn send(
        &mut self,
        message: Sending,
        how: How,
        context: &RequestContext<'_>,
    ) -> Result<(), SendError> {
        let line = message.own().map_or(0, |own| own.line);
        if line == 0 {
            return self.send_one(message, how, context);
        }
        self.flush(context);
        self.announce_line(line);
        let sent = self.send_one(message, how, context);
        self.flush(context);
        self.announce_line(0);
        sent
    }

    /// The next delegation goes on to so many servers.
    fn announce_line(&mut self, servers: u32) {
        if let Some(allowance) = self.server.allowance_mut() {
            allowance.announce_line(servers);
        }
    }

    #[inline]
    fn send_one(
        &mut self,
        mut message: Sending,
        how: How,
        context: &RequestContext<'_>,
    ) -> Result<(), SendError> {
        let afforded = match &mut message {
            Sending::Answer(payload) => self.server.afford_answer(payload.len()),
            Sending::Delegation(to, _) => {
                self.name(to);
                self.server.afford_request()
            }
        };
        if let Err(exhausted) = afforded {
            return Err(self.exhaust(exhausted, context));
        }
        self.owes_answer = false;
        if how == How::More {
            let before = match message {
                Sending::Answer(payload) => self.server.reply(payload),
                Sending::Delegation(to, payload) => self.server.delegate(to, payload),
            };
            if let Some(before) = before {
                self.release(before, false, context);
            }
            return Ok(());
        }
        let record = self.record(context);
        let last = match message {
            Sending::Answer(payload) => self.server.respond(payload, record),
            Sending::Delegation(to, payload) => self.server.forward(to, payload, record),
        };
        self.release_last(last, context);
        Ok(())
    }

    /// What is handed on by a request with a durable id has one that follows from it, unless it has a name already.
    #[inline]
    fn name(&mut self, to: &mut Destination) {
        if self.durable().is_some() {
            let own = to.own.get_or_insert_default();
            own.name(|| self.name_next(Author::Handler));
        }
    }

    /// A budget is used up: it ends here and now.
    #[cold]
    fn exhaust(&mut self, exhausted: Exhausted, context: &RequestContext<'_>) -> SendError {
        self.exhausted = true;
        self.end_behind(Status::from(exhausted), context);
        SendError::Exhausted(exhausted)
    }

    /// It ends with a status behind what was held back.
    fn end_behind(&mut self, status: Status, context: &RequestContext<'_>) {
        let record = self.record(context);
        let last = self.server.exhaust(&context.own(status), record);
        self.release_last(last, context);
    }

    /// A message was refused to its handler: what it ends with if that lets it end all the same.
    #[cold]
    pub fn refuse(&mut self, error: &SendError, how: How) {
        if error.is_final(how == How::Last) {
            self.refused = Some(Status::from(error.clone()));
        }
    }

    /// The message held back leaves now.
    pub fn flush(&mut self, context: &RequestContext<'_>) {
        if let Some(released) = self.server.flush() {
            self.release(released, false, context);
        }
    }

    /// Its handler lets it end. The status that it ends with all the same, if it owes an answer, or was refused something.
    pub fn finish(&mut self, context: &RequestContext<'_>) -> Option<Box<Status>> {
        if self.has_ended() {
            return None;
        }
        if let Some(refused) = self.refused.take() {
            self.end_behind(refused.clone(), context);
            return Some(Box::new(refused));
        }
        if self.owes_answer {
            let name = (context.served).map_or("the request", |served| served.name());
            let message = format!("{name} ended without an answer");
            let unanswered = Status::new(Code::Unanswered, message);
            self.fail(&unanswered, context);
            return Some(Box::new(unanswered));
        }
        let record = self.record(context);
        let last = self.server.finish(record);
        self.release(last, true, context);
        None
    }

    /// It ends with a status.
    #[cold]
    #[inline(never)]
    pub fn fail(&mut self, status: &Status, context: &RequestContext<'_>) -> Returned {
        if self.has_ended() {
            return match self.exhausted && status.code() == Code::ResourceExhausted {
                true => Returned::Heard,
                false => Returned::Late,
            };
        }
        let record = self.record(context);
        let mut last = self.server.fail(&context.own(status.clone()), record);
        // What has begun may hand on the status of somebody else, of whom that is true; what comes of the one that has brought it here
        // is about itself.
        let unsent = (self.undelivered.as_ref()).filter(|unsent| {
            (unsent.server(), unsent.method()) == (status.server(), status.method())
        });
        let is_unexecuted = status.is_not_executed() && (!self.has_begun() || unsent.is_some());
        if let (true, Outbound::Response(response)) = (is_unexecuted, &mut last) {
            let options = response.options.get_or_insert_default();
            options.undelivered = true;
            options.method = unsent.and_then(|unsent| unsent.method().map(Into::into));
        }
        self.release(last, true, context);
        Returned::Heard
    }

    // What leaves.

    /// The next message that leaves; `None` when all have.
    #[inline]
    pub fn poll(&mut self) -> Option<Outbound<Destination>> {
        self.leaving.pop()
    }

    /// Whether another message leaves.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        !self.leaving.is_empty()
    }

    #[inline]
    fn release_last(&mut self, messages: LastMessages<Destination>, context: &RequestContext<'_>) {
        if let Some(before) = messages.before {
            self.release(*before, false, context);
        }
        self.release(messages.last, true, context);
    }

    #[inline]
    fn release(
        &mut self,
        mut message: Outbound<Destination>,
        last: bool,
        context: &RequestContext<'_>,
    ) {
        if self.depth() > 0
            && let Outbound::Response(response) = &mut message
            && !self.is_about_another(response)
            && (response.status || !last && response.index == self.base)
        {
            let options = response.options.get_or_insert_default();
            options.handled_by = Some(self.handled_by(context));
        }
        self.leaving.push(message);
    }

    /// Whether a status is as if another server's: of that one this is to be told.
    fn is_about_another(&self, status: &Response) -> bool {
        let options = status.options.as_ref();
        self.undelivered.is_some() && options.is_some_and(|options| options.undelivered)
    }

    /// Who handles it, for an initiator that did not send it itself.
    #[cold]
    pub(super) fn handled_by(&self, context: &RequestContext<'_>) -> HandledBy {
        let method = self.method(context);
        HandledBy {
            node: context.node,
            server: context.address.cloned(),
            method: method.map_or_else(|| "".into(), |method| Arc::clone(method.name())),
        }
    }

    fn method<'a>(&'a self, context: &RequestContext<'a>) -> Option<&'a Arc<MethodDefinition>> {
        self.named.as_ref().or(context.served)
    }

    /// A part of its time is told apart if it is traced: the first of them, and each again under its name.
    pub(super) fn note_time(&mut self, name: &str, took: Duration) {
        if !self.is_traced() {
            return;
        }
        let part = TracePart::new(name, took);
        let known = self.parts.iter_mut().find(|other| other.name == part.name);
        if let Some(known) = known {
            known.took_us = known.took_us.saturating_add(part.took_us);
        } else if self.parts.len() < MAX_TRACE_PARTS {
            self.parts.push(part);
        }
    }

    /// What a traced hop reports of itself when it ends.
    fn record(&self, context: &RequestContext<'_>) -> Option<TraceRecord> {
        self.is_traced().then(|| self.make_record(context))
    }

    #[cold]
    #[inline(never)]
    fn make_record(&self, context: &RequestContext<'_>) -> TraceRecord {
        let method = self.method(context);
        let began = self.began.unwrap_or(context.raw);
        TraceRecord {
            request: self.id(),
            node: context.node,
            server: context.address.cloned(),
            method: method.map_or_else(String::new, |method| method.name().to_string()),
            arrived_us: context.epoch.saturating_add(self.arrived).as_micros() as u64,
            queued_us: began.saturating_sub(self.arrived).as_micros() as u64,
            ran_us: context.raw.saturating_sub(began).as_micros() as u64,
            parts: self.parts.clone(),
        }
    }

    /// A delegation of it leaves for the server at `child`, which sends its answers to `reply_to`. The records learn of it; `now` is
    /// their time, and `raw` the time that deadlines are kept by.
    #[inline]
    pub fn hand_on(
        &self,
        records: &mut Records,
        delegated: Delegated<Destination>,
        (child, reply_to): (Child, ReplyTo),
        (now, raw): (Duration, Duration),
    ) -> HandedOn {
        let known = self.ticket.map(|ticket| {
            let (quiet, oldest) = (records.quiet(ticket, now), records.oldest(ticket));
            let released = records.delegation_released(ticket, &delegated, child, None, now);
            released.map(|()| (ticket, quiet, oldest))
        });
        let known = known.unwrap_or(Err(Frozen::Aborted));
        let (quiet, oldest) = known.map_or((None, None), |(_, quiet, oldest)| (quiet, oldest));
        let mut options = (self.options.as_ref()).map(|options| Box::new(options.inherited()));
        if quiet.is_some() {
            options.get_or_insert_default().quiet = quiet;
        }
        let inherited = Inherited {
            reply_to,
            deadline: Some(self.deadline.saturating_sub(raw)),
            oldest: oldest.unwrap_or(self.oldest),
            options,
        };
        let (call, token) = (self.call(), self.server.token());
        let number = MethodRef::Number(0); // its connection's business
        let (to, mut request) = delegated.into_request(call, token, number, inherited);
        let mut times = Times {
            born: self.arrived.saturating_sub(self.age()),
            until: self.deadline,
            own: false,
        };
        if let Some(own) = &to.own {
            own.apply(&mut request, &mut times, raw);
        }
        HandedOn {
            to,
            request,
            noted: known.map(|(ticket, ..)| ticket),
            times,
        }
    }
}
