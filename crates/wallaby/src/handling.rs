//! One request being handled: its place in the call, what its handler sends, and how it ends.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use wallaby_proto::call::allowance::Exhausted;
use wallaby_proto::call::records::Ticket;
use wallaby_proto::call::server::{Outbound, Server};
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::executor::Owner;
use wallaby_proto::wire::{Budgets, Options, ReplyTo, Request, TraceRecord};
use wallaby_proto::{Address, CallId, Code, NodeId, RequestId, Status, Token};

use crate::blocking::panic_message;
use crate::body::{Attached, Body, Following};
use crate::call::CallShared;
use crate::driver::peer::Peer;
use crate::endpoint::Inner;
use crate::error::SendError;
use crate::liveness;
use crate::log;
use crate::pipeline::Held;
use crate::request::RawRequest;
use crate::service::{Handler, HandlerFuture};
use crate::timer::{self, Instant, Sleep};
use wallaby_proto::numbers::DEFAULT_DEADLINE;

mod passing;
mod refused;
mod sending;

pub(crate) use self::sending::Delivery;
use self::sending::Lanes;

/// How long after the deadline a server stops by itself: the initiator's abort, which comes first, is the rule. On top of
/// it comes what the deadline may have lost on its way: remaining times are rounded to a thousandth.
const BEHIND: Duration = Duration::from_millis(10);

/// Where a delegated request goes.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) server: Address,
    pub(crate) method: Arc<MethodDefinition>,
    /// What follows the request.
    pub(crate) body: Option<Attached>,
}

/// One request being handled.
pub(crate) struct Handling {
    pub(crate) endpoint: Arc<Inner>,
    /// The connection that the request came over.
    pub(crate) peer: Arc<Peer>,
    pub(crate) method: Arc<MethodDefinition>,
    pub(crate) call: CallId,
    pub(crate) token: Token,
    pub(crate) id: RequestId,
    pub(crate) depth: u32,
    reply_to: ReplyTo,
    /// Its record; `None` if the request was refused.
    pub(crate) ticket: Option<Ticket>,
    oldest: u64,
    /// The request's optional fields: what children inherit.
    pub(crate) options: Option<Box<Options>>,
    pub(crate) deadline: Instant,
    pub(crate) arrived: Instant,
    state: Mutex<State>,
    cancelled: AtomicBool,
    /// Made when the first message has to wait.
    lanes: OnceLock<Box<Lanes>>,
    /// Told when the request is stopped, and when nothing waits any more.
    changed: Notify,
    /// The endpoint knows that it waits for something, so that an abort finds it.
    pub(crate) listed: AtomicBool,
    /// Of one that came down a line of servers (see [`crate::pipeline`]): its bytes, which count against its connection's
    /// window until it is over, since it is not passed on before there is a way.
    pub(crate) in_line: Option<usize>,
}

struct State {
    server: Server<Destination>,
    started: Option<Instant>,
    /// The handler is being polled: its latest message may be held back.
    polling: bool,
    /// The request's handle was dropped.
    dropped: bool,
    /// A blocking handler runs: what it returns decides how the request ends.
    kept: bool,
    /// The initiator expects exactly one answer.
    owes_answer: bool,
    /// Why the framework ended the request.
    stopped: Option<String>,
    /// A budget was used up, which ended the request.
    exhausted: bool,
    /// What was refused to the handler so that its request must not end as if all were well, unless it says otherwise.
    refused: Option<Box<Status>>,
    /// Calls that the handler made on behalf of this one.
    calls: Vec<Weak<CallShared>>,
    /// The handler's task, while it waits.
    task: Option<Waker>,
    /// What follows the request.
    body: Option<Box<Following>>,
    /// The handler is done.
    left: bool,
    /// Stops a request that outlives its handler at its deadline.
    watch: Option<AbortHandle>,
    /// What its arguments take of what may be stored, while it waits for its turn.
    held: Option<Box<Held>>,
}

impl Handling {
    pub(crate) fn new(
        endpoint: Arc<Inner>,
        peer: Arc<Peer>,
        method: Arc<MethodDefinition>,
        request: &mut Request,
        ticket: Option<Ticket>,
        arrived: Instant,
    ) -> Arc<Self> {
        let time = request.time(DEFAULT_DEADLINE);
        let server = Server::bounded(request, endpoint.config.max_budgets.as_ref());
        peer.hold();
        Arc::new(Self {
            endpoint,
            peer,
            method,
            call: request.call,
            token: request.token,
            id: request.id,
            depth: request.depth,
            reply_to: std::mem::replace(&mut request.reply_to, ReplyTo::Relay),
            ticket,
            oldest: request.oldest,
            options: request.options.take(),
            deadline: arrived + time.min(Duration::from_secs(365 * 86_400)),
            arrived,
            state: Mutex::new(State {
                server,
                started: None,
                polling: false,
                dropped: false,
                kept: false,
                owes_answer: false,
                stopped: None,
                exhausted: false,
                refused: None,
                calls: Vec::new(),
                task: None,
                body: None,
                left: false,
                watch: None,
                held: None,
            }),
            cancelled: AtomicBool::new(false),
            lanes: OnceLock::new(),
            changed: Notify::new(),
            listed: AtomicBool::new(false),
            in_line: None,
        })
    }

    /// Whose handler it takes.
    pub(crate) fn owner(&self) -> Owner {
        (liveness::session(&self.peer), self.call.initiator)
    }

    /// When it stops by itself.
    pub(crate) fn end(&self) -> Instant {
        let time = self.deadline.saturating_duration_since(self.arrived);
        self.deadline + BEHIND + time / 512
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago the call began, as far as hosts know.
    pub(crate) fn age(&self) -> Duration {
        self.age_on_arrival() + self.arrived.elapsed()
    }

    /// The same when the request arrived.
    pub(crate) fn age_on_arrival(&self) -> Duration {
        let options = self.options.as_ref();
        options.and_then(|options| options.age).unwrap_or_default()
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.lock().server.is_traced()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) async fn cancelled(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_cancelled() {
                return;
            }
            changed.await;
        }
    }

    /// The span in which its handler runs, for those who subscribe to tracing.
    fn span(&self) -> tracing::Span {
        if log::debugs() {
            self.make_span()
        } else {
            tracing::Span::none()
        }
    }

    #[cold]
    #[inline(never)]
    fn make_span(&self) -> tracing::Span {
        tracing::debug_span!(
            "request",
            method = self.method.name().as_ref(),
            call = %self.call,
            request = %self.id,
            depth = self.depth,
        )
    }

    /// From now on an abort finds the request: it waits in the queue, or for something in its handler.
    pub(crate) fn enlist(self: &Arc<Self>) {
        let state = self.lock();
        if state.left {
            return;
        }
        self.endpoint.handling_waits(self);
        drop(state);
        // It may have been aborted while nobody could find it.
        if let Some(ticket) = self.ticket
            && !self.lock().server.has_ended()
            && !self.endpoint.liveness.may_go_on(ticket)
        {
            let why = "the call was aborted by its initiator";
            self.stop(&Status::new(Code::Cancelled, why));
        }
    }

    /// The handler is done. A request that lives on elsewhere is still found by an abort, and stopped at its deadline.
    pub(crate) fn leave(self: &Arc<Self>) {
        let mut state = self.lock();
        state.left = true;
        if state.dropped || state.server.has_ended() {
            self.endpoint.handling_ended(self);
            return;
        }
        self.endpoint.handling_waits(self);
        state.watch = Some(self.watch());
    }

    /// Stops the request at its deadline.
    #[inline(never)]
    fn watch(self: &Arc<Self>) -> AbortHandle {
        let (end, watched) = (self.end(), Arc::downgrade(self));
        let watch = self.endpoint.runtime.spawn(async move {
            timer::sleep_until(end).await;
            if let Some(handling) = watched.upgrade() {
                handling.stop(&too_late());
            }
        });
        watch.abort_handle()
    }

    /// The initiator expects exactly one answer to this request.
    pub(crate) fn owe_answer(&self) {
        self.lock().owes_answer = true;
    }

    /// A call that the handler makes on behalf of this one: it ends with it.
    pub(crate) fn adopt(&self, call: &Arc<CallShared>) {
        let mut state = self.lock();
        if state.stopped.is_some() {
            drop(state);
            call.abort();
            return;
        }
        state.calls.retain(|call| call.strong_count() > 0);
        state.calls.push(Arc::downgrade(call));
    }

    // What handlers do.

    /// The handler sends a message after which more may follow. What has to wait is returned.
    pub(crate) fn send(self: &Arc<Self>, message: Sending) -> Result<Option<Delivery>, SendError> {
        let released = self.release(message)?;
        Ok(self.dispatch_both(released))
    }

    /// Like `send`, but fails where that would wait.
    pub(crate) fn try_send(self: &Arc<Self>, message: Sending) -> Result<(), SendError> {
        if self.has_waiting(message.is_onward()) || !self.has_room(&message) {
            return Err(SendError::Full);
        }
        let released = self.release(message)?;
        drop(self.dispatch_both(released));
        Ok(())
    }

    /// The handler sends its last message. What has to wait is returned.
    pub(crate) fn send_last(
        self: &Arc<Self>,
        message: Sending,
    ) -> Result<Option<Delivery>, SendError> {
        message
            .check(self)
            .inspect_err(|error| self.note_refused(error, true))?;
        let mut state = self.open()?;
        if let Err(exhausted) = message.afford(&mut state.server) {
            return Err(self.exhaust(state, exhausted));
        }
        let record = self.record(&state);
        let released = match message {
            Sending::Answer(payload) => state.server.respond(payload, record),
            Sending::Onward(to, payload) => state.server.forward(to, payload, record),
        };
        drop(state);
        Ok(self.dispatch(released))
    }

    /// A message was refused. The handler is told, and may do something else, unless that was the last it could do; and a
    /// limit of the tree is not its own matter. Then the request ends with a status if the handler just lets it end: work
    /// that was refused never looks done (PROTOCOL-NOTES 11).
    #[cold]
    #[inline(never)]
    pub(crate) fn note_refused(&self, error: &SendError, last: bool) {
        if last || matches!(error, SendError::TooDeep { .. }) {
            self.lock().refused = Some(Box::new(Status::from(error.clone())));
        }
    }

    /// The message held back leaves now. What has to wait is returned.
    pub(crate) fn flush(self: &Arc<Self>) -> Option<Delivery> {
        let released = self.lock().server.flush();
        self.dispatch_one(released?)
    }

    /// The handler ends the request with a status.
    #[inline(never)]
    pub(crate) fn fail(self: &Arc<Self>, status: &Status) {
        let mut state = self.lock();
        if state.server.has_ended() {
            // What a handler says because it was stopped is no news.
            if state.stopped.is_some() && status.code() == Code::Cancelled
                || state.exhausted && status.code() == Code::ResourceExhausted
            {
                return;
            }
            drop(state);
            self.endpoint.meters.late_errors.add();
            tracing::warn!(call = %self.call, request = %self.id, %status, "error after the request ended");
            return;
        }
        let record = self.record(&state);
        let status = status.clone().by(self.endpoint.address.as_ref());
        let released = state.server.fail(&status, record);
        drop(state);
        self.endpoint.meters.statuses_sent.add();
        tracing::debug!(call = %self.call, request = %self.id, %status, "ended with a status");
        match released {
            Outbound::Response(response) if self.ticket.is_none() => self.leave_refused(response),
            released => drop(self.dispatch_one(released)),
        }
    }

    /// A budget is used up: the request ends here and now, with a status (PROTOCOL-NOTES 11). Its handler is not cancelled:
    /// what it has sent still waits for its turn.
    #[cold]
    #[inline(never)]
    fn exhaust(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        exhausted: Exhausted,
    ) -> SendError {
        let record = self.record(&state);
        let status = Status::from(exhausted).by(self.endpoint.address.as_ref());
        let released = state.server.exhaust(&status, record);
        state.exhausted = true;
        drop(state);
        let meters = &self.endpoint.meters;
        meters.statuses_sent.add();
        meters.budgets_exhausted.add();
        tracing::debug!(call = %self.call, request = %self.id, %status, "a budget is used up");
        drop(self.dispatch(released));
        SendError::Exhausted(exhausted)
    }

    /// The runtime ends and takes the handler along: what it would have sent is missing.
    #[cold]
    fn cut_short(self: &Arc<Self>) {
        if !self.lock().server.has_ended() {
            let why = "its server shut down before its handler was done";
            self.fail(&Status::new(Code::Unavailable, why));
        }
    }

    /// The framework ends the request: abort, deadline. The handler learns of it and cannot send any more.
    pub(crate) fn stop(self: &Arc<Self>, status: &Status) {
        let mut state = self.lock();
        if state.stopped.is_some() {
            return;
        }
        state.stopped = Some(status.message().to_owned());
        let calls = std::mem::take(&mut state.calls);
        let body = state.body.as_mut().map(|body| body.give_up());
        let ended = state.server.has_ended();
        drop(state);
        if let Some(body) = body {
            body.tell();
        }
        if !ended {
            self.fail(status);
        }
        self.cancelled.store(true, Ordering::Release);
        self.changed.notify_waiters();
        self.lock().task.take().into_iter().for_each(Waker::wake);
        calls
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|call| call.abort());
    }

    /// The request's handle was dropped.
    pub(crate) fn handle_dropped(self: &Arc<Self>) {
        let mut state = self.lock();
        state.dropped = true;
        if let Some(watch) = state.watch.take() {
            watch.abort();
            self.endpoint.handling_ended(self);
        }
        let unread = state.body.as_mut().and_then(|body| body.take());
        if !state.polling && !state.kept {
            self.finish(state);
        } else {
            drop(state);
        }
        drop(unread);
    }

    /// A body follows the request.
    #[cold]
    #[inline(never)]
    pub(crate) fn attach(&self, body: Box<Following>) {
        self.lock().body = Some(body);
    }

    /// The body that follows the request, for whoever asks first.
    pub(crate) fn take_body(&self) -> Option<Body> {
        self.lock().body.as_mut()?.take()
    }

    /// This is what its handler is to get of the body.
    pub(crate) fn put_body(&self, body: Body) {
        let mut state = self.lock();
        // If its request was stopped meanwhile, there is one that says so.
        if state.stopped.is_none()
            && let Some(following) = &mut state.body
        {
            following.put(body);
        }
    }

    /// The request does not end before this is dropped, even if its handle is.
    pub(crate) fn keep(self: &Arc<Self>) -> Keep {
        self.lock().kept = true;
        Keep(Arc::clone(self))
    }

    /// Ends the request if nothing has ended it.
    fn finish(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.server.has_ended() {
            return;
        }
        if let Some(refused) = state.refused.take() {
            return self.end_refused(state, *refused);
        }
        if state.owes_answer && !state.server.holds_back() {
            drop(state);
            let message = format!("{} ended without an answer", self.method.name());
            self.fail(&Status::new(Code::Unanswered, message));
            return;
        }
        let record = self.record(&state);
        let released = state.server.finish(record);
        drop(state);
        drop(self.dispatch_one(released));
    }

    /// The handler has let the request end after a refusal that it should not have ignored; what it sent before stays sent.
    #[cold]
    #[inline(never)]
    fn end_refused(self: &Arc<Self>, mut state: MutexGuard<'_, State>, refused: Status) {
        let record = self.record(&state);
        let status = refused.by(self.endpoint.address.as_ref());
        let released = state.server.exhaust(&status, record);
        drop(state);
        self.endpoint.meters.statuses_sent.add();
        tracing::debug!(call = %self.call, request = %self.id, %status, "ended with a refusal");
        drop(self.dispatch(released));
    }

    fn release(
        self: &Arc<Self>,
        message: Sending,
    ) -> Result<[Option<Outbound<Destination>>; 2], SendError> {
        message
            .check(self)
            .inspect_err(|error| self.note_refused(error, false))?;
        let mut state = self.open()?;
        if let Err(exhausted) = message.afford(&mut state.server) {
            return Err(self.exhaust(state, exhausted));
        }
        let polling = state.polling;
        let server = &mut state.server;
        let before = match message {
            Sending::Answer(payload) => server.reply(payload),
            Sending::Onward(to, payload) => server.delegate(to, payload),
        };
        // Outside the handler's own poll nobody would come back for a message held back.
        let now = if polling { None } else { server.flush() };
        Ok([before, now])
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, SendError> {
        let state = self.lock();
        if state.server.has_ended() {
            let why = state
                .stopped
                .clone()
                .unwrap_or_else(|| match state.exhausted {
                    true => "a budget was used up".into(),
                    false => "it was answered or failed before".into(),
                });
            return Err(SendError::Ended(why));
        }
        Ok(state)
    }

    /// What a traced hop reports of itself when it ends.
    fn record(&self, state: &State) -> Option<TraceRecord> {
        state.server.is_traced().then(|| self.make_record(state))
    }

    #[inline(never)]
    fn make_record(&self, state: &State) -> TraceRecord {
        let now = Instant::now();
        let started = state.started.unwrap_or(now);
        let arrived = SystemTime::now()
            .checked_sub(now - self.arrived)
            .unwrap_or(UNIX_EPOCH);
        let micros = |duration: Duration| duration.as_micros() as u64;
        TraceRecord {
            request: self.id,
            node: self.endpoint.node,
            server: self.endpoint.address.clone(),
            method: self.method.name().to_string(),
            arrived_us: micros(arrived.duration_since(UNIX_EPOCH).unwrap_or_default()),
            queued_us: micros(started.saturating_duration_since(self.arrived)),
            ran_us: micros(now.saturating_duration_since(started)),
        }
    }
}

/// Keeps a request from ending.
pub(crate) struct Keep(Arc<Handling>);

impl Drop for Keep {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.kept = false;
        if state.dropped && !state.polling {
            self.0.finish(state);
        }
    }
}

/// A message that a handler sends.
#[derive(Debug)]
pub(crate) enum Sending {
    Answer(Bytes),
    Onward(Destination, Bytes),
}

impl Sending {
    /// Whether it goes to another server.
    pub(crate) fn is_onward(&self) -> bool {
        matches!(self, Self::Onward(..))
    }

    /// Takes what it costs from what the request may use up.
    #[inline]
    fn afford(&self, server: &mut Server<Destination>) -> Result<(), Exhausted> {
        match self {
            Self::Answer(payload) => server.afford_answer(payload.len()),
            Self::Onward(..) => server.afford_request(),
        }
    }

    fn check(&self, handling: &Handling) -> Result<(), SendError> {
        let (Self::Answer(payload) | Self::Onward(_, payload)) = self;
        let (size, limit) = (
            payload.len() as u64,
            handling.endpoint.config.limits.message,
        );
        if size > limit {
            let peer = match self {
                Self::Answer(_) => "the initiator".to_owned(),
                Self::Onward(to, _) => to.server.to_string(),
            };
            return Err(SendError::TooLarge { size, limit, peer });
        }
        if self.is_onward() {
            self.check_onward(handling)?;
            if handling.endpoint.is_draining() {
                return Err(SendError::Draining);
            }
        }
        Ok(())
    }

    /// Whether it may go to another server.
    fn check_onward(&self, handling: &Handling) -> Result<(), SendError> {
        let Self::Onward(to, _) = self else {
            return Ok(());
        };
        let (depth, limit) = (
            handling.depth.saturating_add(1), // a peer may say anything
            handling.endpoint.config.max_depth,
        );
        if !handling.endpoint.config.dial_policy.permits(&to.server) {
            handling.endpoint.forbid(&to.server);
            let server = to.server.clone();
            return Err(SendError::Forbidden { server });
        }
        if depth > limit {
            return Err(SendError::TooDeep { depth, limit });
        }
        Ok(())
    }
}

/// A handler that runs.
pub(crate) struct Run {
    handling: Arc<Handling>,
    span: tracing::Span,
    future: HandlerFuture,
    /// When the request must have ended, then when its handler counts as stuck; only once it is a task of its own.
    alarm: Option<Sleep>,
    /// The request was stopped and the handler has a little time left.
    in_grace: bool,
    /// It holds one of the executor's places.
    placed: bool,
    /// The handler has returned.
    done: bool,
}

/// A request that waits for its handler.
pub(crate) struct Job {
    pub(crate) handling: Arc<Handling>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) payload: Bytes,
}

impl Job {
    /// Begins to handle the request on this thread; a handler that waits for something becomes a task of its own.
    pub(crate) fn start(self) {
        let Self {
            handling,
            handler,
            payload,
        } = self;
        handling.begin();
        let span = handling.span();
        let request = RawRequest::new(Arc::clone(&handling), payload);
        let handled = span.in_scope(|| catch_unwind(AssertUnwindSafe(|| handler.handle(request))));
        let future = match handled {
            Ok(future) => future,
            Err(panic) => {
                handling.end_poll(Some(Err(panicked(&handling, &*panic))));
                handling.leave();
                Inner::release(&handling);
                return;
            }
        };
        let mut run = Run {
            handling,
            span,
            future,
            alarm: None,
            in_grace: false,
            placed: true,
            done: false,
        };
        // The handler gets a real waker when the task polls it again.
        if run
            .poll_handler(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            run.go_on();
        }
    }

    /// The same for a request that has waited in the queue, perhaps for too long.
    pub(crate) fn start_late(self) {
        let handling = &self.handling;
        if handling.in_line.is_none() {
            let size = std::iter::once(self.payload.len());
            handling.peer.grant_requests(size);
        }
        drop(handling.lock().held.take());
        if handling.remaining().is_zero() {
            handling.stop(&too_late());
        }
        // One that is being stopped has ended already, though its handler may not have been told.
        if handling.lock().stopped.is_some() {
            handling.leave();
            Inner::release(handling);
            return;
        }
        self.start();
    }
}

impl Handling {
    fn begin(&self) {
        let mut state = self.lock();
        state.polling = true;
        if state.server.is_traced() {
            state.started = Some(Instant::now());
        }
    }

    /// The handler is polled again.
    fn resume(&self, task: &Waker) {
        if let Some(ticket) = self.ticket {
            self.endpoint.liveness.progressed(ticket);
        }
        let mut state = self.lock();
        state.polling = true;
        if !state
            .task
            .as_ref()
            .is_some_and(|known| known.will_wake(task))
        {
            state.task = Some(task.clone());
        }
    }

    /// The handler's poll is over: what it held back leaves, and if it is done, its request ends.
    fn end_poll(self: &Arc<Self>, result: Option<Result<(), Status>>) {
        let mut state = self.lock();
        state.polling = false;
        match result {
            Some(Err(status)) => {
                drop(state);
                self.fail(&status);
            }
            _ if state.dropped && !state.kept => self.finish(state),
            _ => {
                let released = state.server.flush();
                drop(state);
                drop(released.and_then(|outbound| self.dispatch_one(outbound)));
            }
        }
    }
}

impl Run {
    fn poll_handler(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let future = &mut self.future;
        let poll = || catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        let result = match self.span.in_scope(poll) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(result),
            Err(panic) => Some(Err(panicked(&self.handling, &*panic))),
        };
        self.done = result.is_some();
        self.handling.end_poll(result);
        if !self.done {
            return Poll::Pending;
        }
        self.leave();
        Poll::Ready(())
    }

    /// The handler waits for something: it becomes a task of its own.
    #[inline(never)]
    fn go_on(self) {
        self.handling.enlist();
        let runtime = self.handling.endpoint.runtime.clone();
        runtime.spawn(self);
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.placed) {
            Inner::release(&self.handling);
        }
    }

    /// Stops the request at its deadline; a handler that goes on for too long after a stop gives up its place.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) {
        let handling = &self.handling;
        let alarm = self
            .alarm
            .get_or_insert_with(|| timer::sleep_until(handling.end()));
        while self.placed {
            if self.handling.is_cancelled() && !std::mem::replace(&mut self.in_grace, true) {
                let grace = self.handling.endpoint.config.grace;
                alarm.reset(Instant::now() + grace);
            }
            if Pin::new(&mut *alarm).poll(cx).is_pending() {
                return;
            }
            if self.in_grace {
                self.placed = false;
                self.handling.endpoint.meters.stuck.add();
                Inner::release(&self.handling);
                return;
            }
            self.handling.stop(&too_late());
        }
    }
}

impl Future for Run {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.handling.resume(cx.waker());
        if self.poll_handler(cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_alarm(cx);
        Poll::Pending
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.done {
            self.handling.cut_short();
        }
        self.handling.leave();
        self.leave();
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.peer.release();
        if let Some(size) = self.in_line {
            // Later: whoever drops it may hold the peer's lock.
            let peer = Arc::clone(&self.peer);
            let grant = async move { peer.grant_requests(std::iter::once(size)) };
            self.endpoint.runtime.spawn(grant);
        }
    }
}

pub(crate) fn too_late() -> Status {
    let why = "the call's deadline passed before the request was done";
    Status::new(Code::DeadlineExceeded, why)
}

fn panicked(handling: &Handling, panic: &(dyn std::any::Any + Send)) -> Status {
    handling.endpoint.meters.panics.add();
    Status::new(Code::Panicked, panic_message(panic))
}

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Handling({} {} of {})",
            self.method.name(),
            self.id,
            self.call
        )
    }
}

/// What a handler can ask about its request.
impl Handling {
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The handler says that it makes progress.
    pub(crate) fn progress(&self) {
        if let Some(ticket) = self.ticket {
            self.endpoint.liveness.progressed(ticket);
        }
    }

    /// What the request may still use up, if its call's budgets are stated or this server has a maximum.
    pub(crate) fn budgets(&self) -> Option<Budgets> {
        self.lock().server.allowance().map(|known| known.left())
    }

    /// So many delegations will come.
    pub(crate) fn share_among(&self, times: u32) {
        if let Some(allowance) = self.lock().server.allowance_mut() {
            allowance.announce(times);
        }
    }

    /// What a call on behalf of this request may use up, its initial requests included: a delegation's share.
    pub(crate) fn share(&self) -> Option<Budgets> {
        let mut state = self.lock();
        let allowance = state.server.allowance_mut()?;
        let initial = u32::from(allowance.spend_request().is_ok());
        let share = allowance.share();
        Some(Budgets {
            requests: share.requests + initial,
            ..share
        })
    }

    pub(crate) fn delegator(&self) -> Option<NodeId> {
        self.peer.node()
    }
}
