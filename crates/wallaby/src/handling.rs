//! One request that is handled: what its handler can ask and do.

mod running;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::detach::detach;
use wallaby_proto::endpoint::{
    Author, CallKey, Endpoint as Proto, HandledRequest, How, InBody, Lane, NewDelegation, Offer,
    Offered, OutBody, Permit, RequestKey, Returned,
};
use wallaby_proto::wire::{Budgets, Metadata, MetadataError};
use wallaby_proto::{Address, CallId, DurableId, NodeId, RequestId, Status};

use crate::body::{self, Attached, Body, BodyError};
use crate::call::CallOptions;
use crate::driver::effects::Inside;
use crate::driver::shared::{Core, Inner};
use crate::driver::waiters::Wait;
use crate::error::{Failure, SendError};
use crate::intercept::{
    Around, DelegatedRequest, Exit, Extensions, Intent, Interceptor, Layer, RequestEnd,
    RequestWatch, caught, until_stopped,
};
use crate::log;
use crate::panics::{contain, panic_message};
use crate::pipeline::StoredBytes;
use crate::service::{HandlerFuture, Registered};
use crate::timer::Instant;
use crate::transport::Identity;

pub(crate) use self::running::{Job, Work};

/// How a request has ended.
enum Ended {
    /// Perhaps with a status.
    With(Option<Box<Status>>),
    /// It was stopped, which is told by whoever stops it.
    Stopped,
}

/// One request that is handled.
pub(crate) struct Handling {
    pub(crate) endpoint: Arc<Inner>,
    key: RequestKey,
    /// Who brought it.
    pub(crate) identity: Arc<Identity>,
    pub(crate) delegator: Option<NodeId>,
    method: Arc<MethodDefinition>,
    /// The method of a message that came down a line, which is not the one that the request calls.
    inner: OnceLock<Arc<MethodDefinition>>,
    pub(crate) call: CallId,
    pub(crate) id: RequestId,
    pub(crate) depth: u32,
    pub(crate) metadata: Metadata,
    pub(crate) traced: bool,
    /// It has a durable id, and what it leads to gets names.
    pub(crate) durable: bool,
    pub(crate) extensions: Extensions,
    /// Interceptors are asked about it: something may be around it.
    intercepted: bool,
    state: Mutex<State>,
    /// The handler is being polled: its latest message may be held back.
    polling: AtomicBool,
    cancelled: AtomicBool,
    /// How many sections of its handler must finish that have begun, the whole handler perhaps.
    shields: AtomicU32,
    /// Told when the request is stopped.
    changed: Notify,
}

struct State {
    deadline: Instant,
    /// What it leads to has these pairs in place of those that it came with.
    inherited: Option<Metadata>,
    /// The request's handle was dropped.
    dropped: bool,
    /// A blocking handler runs: what it returns decides how the request ends.
    kept: bool,
    /// Nothing more is done for it.
    over: bool,
    /// What is around it, until it has ended.
    around: Option<Arc<Around>>,
    /// What was around it until it was stopped, as long as its handler goes on.
    lingering: Option<Arc<Around>>,
    /// Its handler is done: what is around it does the rest.
    closing: bool,
    /// The handler's place in the executor meanwhile: what must be finished takes it along.
    place: Option<Permit>,
    /// The status with which that is to begin.
    failed: Option<Status>,
    /// Why the framework ended the request.
    stopped: Option<String>,
    /// Who wants to know how it ends.
    watch: Option<Box<RequestWatches>>,
    /// The handler's task, while it waits, and the handler: who stops the request drops it.
    task: Option<Waker>,
    idle: Option<HandlerFuture>,
    /// What follows the request, until somebody takes it, and what the handler is to get of it.
    body: Option<InBody>,
    unread: Option<Body>,
    /// What is to run when its turn has come.
    job: Option<WaitingHandler>,
}

/// Who wants to know how a request ends.
struct RequestWatches {
    /// Since when they do, and since when its handler runs.
    since: Instant,
    began: Option<Instant>,
    watches: Vec<RequestWatch>,
}

/// A handler that waits for its turn, or for interceptors to decide about that.
pub(crate) struct WaitingHandler {
    /// Which of the methods served it is for.
    pub(crate) served: usize,
    pub(crate) registered: Arc<Registered>,
    pub(crate) payload: Bytes,
    /// What its arguments take of what may be stored.
    pub(crate) held: Option<StoredBytes>,
    /// How many interceptors were not asked yet.
    unasked: usize,
    /// What is sent in place of what its handler would send.
    replay: Option<Vec<Intent>>,
}

impl WaitingHandler {
    pub(crate) fn new(
        served: usize,
        registered: Arc<Registered>,
        payload: Bytes,
        held: Option<StoredBytes>,
    ) -> Self {
        Self {
            served,
            unasked: registered.interceptors.len(),
            registered,
            payload,
            held,
            replay: None,
        }
    }
}

/// The bytes behind a delegation, and where they go, if they may. They are let go of outside the endpoint's lock, which a body
/// takes when it is dropped.
#[derive(Default)]
struct Following {
    out: Option<OutBody>,
    attached: Option<Attached>,
}

impl Handling {
    /// A request's turn has come.
    pub(crate) fn new(
        endpoint: &Arc<Inner>,
        core: &Core,
        (key, served): (RequestKey, &Registered),
        body: Option<InBody>,
    ) -> Option<Arc<Self>> {
        let request = core.endpoint.request(key)?;
        Some(Arc::new(Self {
            endpoint: Arc::clone(endpoint),
            key,
            identity: core.identity(request.conn()),
            delegator: core.endpoint.delegator(key),
            method: Arc::clone(request.named().unwrap_or(&served.definition)),
            inner: OnceLock::new(),
            call: request.call(),
            id: request.id(),
            depth: request.depth(),
            metadata: request.metadata().cloned().unwrap_or_default(),
            traced: request.is_traced(),
            durable: request.durable().is_some(),
            extensions: Extensions::default(),
            intercepted: !served.interceptors.is_empty(),
            state: Mutex::new(State {
                deadline: endpoint.moment(request.deadline()),
                inherited: None,
                dropped: false,
                kept: false,
                over: false,
                around: None,
                lingering: None,
                closing: false,
                place: None,
                failed: None,
                stopped: None,
                watch: None,
                task: None,
                idle: None,
                body,
                unread: None,
                job: None,
            }),
            polling: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            shields: AtomicU32::new(u32::from(served.shielded && served.interceptors.is_empty())),
            changed: Notify::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn method(&self) -> &Arc<MethodDefinition> {
        self.inner.get().unwrap_or(&self.method)
    }

    /// It came down a line, and calls this method.
    pub(crate) fn set_method(&self, method: &Arc<MethodDefinition>) {
        let _ = self.inner.set(Arc::clone(method));
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// It is stopped: under the endpoint's lock, so that nobody who begins a call then takes it for one that has ended otherwise.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
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

    /// The handler runs on to the end of what is done under this, whether the request is stopped or not.
    pub(crate) fn shield(self: &Arc<Self>) -> Shield {
        self.shields.fetch_add(1, Ordering::AcqRel);
        Shield(Arc::clone(self))
    }

    /// Whether its handler is to be dropped where it waits: the request was stopped, and nothing says that it must finish.
    fn is_given_up(&self) -> bool {
        self.is_cancelled() && self.shields.load(Ordering::Acquire) == 0
    }

    /// The span in which its handler runs, for those who subscribe to tracing.
    pub(crate) fn span(&self) -> tracing::Span {
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
            method = self.method().name().as_ref(),
            call = %self.call,
            request = %self.id,
            depth = self.depth,
        )
    }

    /// Begins a call that ends with this request.
    pub(crate) fn begin_call(
        &self,
        core: &mut Core,
        options: &CallOptions,
    ) -> Result<CallKey, Failure> {
        match self.is_cancelled() {
            true => Err(Failure::aborted()), // the endpoint does not know the request any more
            false => core.endpoint.begin_within(self.key, options),
        }
    }

    /// How a call on behalf of this one is made that would be made like this otherwise; it may have ended.
    pub(crate) fn options_for(
        &self,
        author: Author,
        own: &CallOptions,
    ) -> Result<CallOptions, Failure> {
        let mut options = own.on_behalf(Some(&self.inherited()), self.remaining(), self.traced)?;
        (self.endpoint).ask(|core| core.endpoint.share_for(self.key, author, &mut options));
        Ok(options)
    }

    // What handlers send.

    /// Sends a message, perhaps the `last` one, and waits until it is accepted for sending. Before, it waits for earlier messages
    /// of the same kind: so order is kept, little waits, and a handler that gives up waiting does so before its message has a
    /// number.
    ///
    /// `message` is empty once it was sent.
    pub(crate) fn poll_send(
        &self,
        message: &mut Option<Intent>,
        lane: &mut Option<Lane>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if let Some(Intent::Status(status)) = message.take_if(|next| next.is_status()) {
            self.fail_now(&status);
            return Poll::Ready(Ok(()));
        }
        let mut body = Following::default();
        let sent = self.endpoint.enter(|core| {
            let offered = match *lane {
                Some(lane) if core.endpoint.waits(self.key, lane) => Ok(Offered::Waits(lane)),
                Some(_) => Ok(Offered::Sent(None)),
                None => self.offer(core, Offer::Wait, message, &mut body),
            };
            let wait = match offered? {
                Offered::Sent(None) => return Poll::Ready(Ok(())),
                Offered::Sent(Some(waits)) => Wait::Room(self.key, *lane.insert(waits)),
                Offered::Waits(lane) => Wait::Room(self.key, lane),
                Offered::Full => Wait::Space(self.key),
            };
            core.wait(wait, cx.waker());
            Poll::Pending
        });
        self.send_body(body);
        sent.map_err(|error| self.ended(error))
    }

    fn offer(
        &self,
        core: &mut Core,
        how: Offer,
        message: &mut Option<Intent>,
        body: &mut Following,
    ) -> Result<Offered, SendError> {
        let send = |endpoint: &mut Proto, message: Intent| {
            let last = message.is_last();
            self.give(endpoint, message, body)?;
            // Asked under the lock: whose poll is over says so before it takes the lock to flush.
            if !self.is_polling() && !last {
                endpoint.flush(self.key);
            }
            Ok(())
        };
        (core.endpoint).offer(self.key, how, message, Intent::outline, send)
    }

    /// Sends a message after which more may follow, if it need not wait.
    pub(crate) fn try_send(self: &Arc<Self>, message: Intent) -> Result<(), SendError> {
        let around = self.around();
        let (mut message, mut body) = (Some(message), Following::default());
        let offered = self.endpoint.enter(|core| match around {
            None => self.offer(core, Offer::Now, &mut message, &mut body),
            // It passes those around first.
            Some(_) => {
                let outline = &mut message.as_ref().map(Intent::outline);
                let endpoint = &mut core.endpoint;
                endpoint.offer(
                    self.key,
                    Offer::Now,
                    outline,
                    |outline| *outline,
                    |_, _| Ok(()),
                )
            }
        });
        self.send_body(body);
        match offered.map_err(|error| self.ended(error))? {
            Offered::Sent(_) => {}
            Offered::Waits(_) | Offered::Full => return Err(SendError::Full),
        }
        match (around, message) {
            (Some(around), Some(message)) => Exit::of(self).try_pass(&around, message),
            _ => Ok(()),
        }
    }

    fn give(
        &self,
        endpoint: &mut Proto,
        message: Intent,
        body: &mut Following,
    ) -> Result<(), SendError> {
        let key = self.key;
        match message {
            Intent::Answer {
                payload,
                last: false,
            } => endpoint.reply(key, payload),
            Intent::Answer {
                payload,
                last: true,
            } => endpoint.respond(key, payload),
            Intent::Delegation { to, last } => match (&to.body, &to.own, last) {
                (None, None, false) => endpoint.delegate(key, to.server, &to.method, to.payload),
                (None, None, true) => endpoint.forward(key, to.server, &to.method, to.payload),
                (.., last) => self.give_with(endpoint, to, last, body),
            },
            Intent::Status(status) => {
                endpoint.fail(key, &status);
                Ok(())
            }
        }
    }

    #[cold]
    fn give_with(
        &self,
        endpoint: &mut Proto,
        to: DelegatedRequest,
        last: bool,
        body: &mut Following,
    ) -> Result<(), SendError> {
        let followed = to.body.is_some();
        body.attached = to.body;
        let own = to.own.map(|own| *own).unwrap_or_default();
        let delegation = NewDelegation {
            server: to.server,
            method: to.method,
            payload: to.payload,
            options: Some(own.options),
            followed,
        };
        let how = if last { How::Last } else { How::More };
        body.out = endpoint.delegate_with(self.key, delegation, how)?;
        if let Some(place) = own.place {
            let _ = place.set(endpoint.latest_delegation(self.key)?);
        }
        Ok(())
    }

    /// A body follows a delegation, whether the handler goes on or not.
    fn send_body(&self, body: Following) {
        if let (Some(out), Some(attached)) = (body.out, body.attached) {
            let gone = || Body::broken(BodyError::Broken("it went with another request".into()));
            let body = attached.take().unwrap_or_else(gone);
            body::spawn(&self.endpoint, body, out);
        }
    }

    /// Whether a message may be sent, but for budgets, credit and room. What has its place whatever happens only needs a request
    /// that goes on.
    pub(crate) fn check_message(&self, message: &Intent) -> Result<(), SendError> {
        let (server, size) = match message.is_always() {
            true => (None, 0),
            false => (message.server(), message.payload()),
        };
        let check = |core: &mut Core| core.endpoint.check_message(self.key, server, size);
        self.endpoint.ask(check).map_err(|error| self.ended(error))
    }

    /// A message failed before it was given to the endpoint.
    #[cold]
    pub(crate) fn note_refused(&self, error: &SendError, last: bool) {
        self.endpoint
            .ask(|core| core.endpoint.refuse_message(self.key, error, last));
    }

    /// Why nothing may be sent: of a request that was stopped, why that was.
    #[cold]
    fn ended(&self, error: SendError) -> SendError {
        match (error, &self.lock().stopped) {
            (SendError::Ended(_), Some(why)) => SendError::Ended(why.clone()),
            (error, _) => error,
        }
    }

    /// The message held back leaves now, and all that wait.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.endpoint.enter(|core| {
            let Some(lane) = core.endpoint.flush(self.key) else {
                return Poll::Ready(());
            };
            core.wait(Wait::Room(self.key, lane), cx.waker());
            Poll::Pending
        })
    }

    fn is_polling(&self) -> bool {
        self.polling.load(Ordering::Relaxed)
    }

    // How it ends.

    /// The request is to end with a status; its handle is dropped after this.
    pub(crate) fn fail(&self, status: &Status) {
        if self.around().is_none() {
            return self.fail_now(status);
        }
        self.lock().failed.get_or_insert_with(|| status.clone());
    }

    /// The request ends with a status.
    #[inline(never)]
    pub(crate) fn fail_now(&self, status: &Status) {
        self.lock().over = true;
        let returned = self.leave(|core| {
            let returned = core.endpoint.returned(self.key, Err(status.clone()));
            let ended = match returned {
                Returned::Heard => Ended::With(Some(Box::new(status.clone()))),
                Returned::Late => Ended::With(None),
                Returned::Stopped => Ended::Stopped,
            };
            (returned, ended)
        });
        match returned {
            Returned::Heard => {
                tracing::debug!(call = %self.call, request = %self.id, %status, "ended with a status");
            }
            Returned::Late => {
                if let Some(left_out) = self.endpoint.logs.late_errors.pass() {
                    let method = self.method().name().as_ref();
                    tracing::warn!(method, call = %self.call, request = %self.id, %status, left_out, "error after the request ended");
                }
            }
            Returned::Stopped => {}
        }
        self.drop_body();
    }

    /// The endpoint has stopped the request. A handler that waits is dropped here, before the initiator is told of its end; one
    /// that is being polled, by its task where it waits next.
    pub(crate) fn handle_stopped(&self, status: &Status) {
        let mut state = self.lock();
        if state.stopped.is_some() {
            return;
        }
        state.stopped = Some(status.message().to_owned());
        self.cancel();
        let (task, job) = (state.task.take(), state.job.take());
        let mut around = state.around.take();
        let idle = state.idle.take_if(|_| self.is_given_up());
        let goes_on = idle.is_none() && job.is_none();
        state.lingering = around.take_if(|_| goes_on);
        drop(state);
        tracing::debug!(call = %self.call, request = %self.id, %status, "ended with a status");
        self.note_end(Some(status)); // before its handler is dropped, which would end it otherwise
        if let Some(idle) = idle {
            let _ = self.drop_handler(idle);
        }
        self.changed.notify_waiters();
        task.into_iter().for_each(Waker::wake);
        if job.is_some() {
            self.drop_body(); // nobody reads it: those behind are not to wait for that
        }
        drop((job, around));
    }

    /// Drops its handler, which may do anything then; the status if it panics.
    fn drop_handler(&self, handler: HandlerFuture) -> Result<(), Status> {
        let _runtime = self.endpoint.runtime.enter();
        let dropped = self
            .span()
            .in_scope(|| catch_unwind(AssertUnwindSafe(|| drop(handler))));
        dropped.map_err(|panic| self.panicked(panic))
    }

    /// The request's handle was dropped.
    pub(crate) fn handle_dropped(self: &Arc<Self>) {
        let mut state = self.lock();
        state.dropped = true;
        let ends = !self.is_polling() && !state.kept;
        drop(state);
        if ends {
            self.finish();
        }
    }

    /// Lets the request end, when what is around it has done the rest.
    fn finish(self: &Arc<Self>) {
        if self.around().is_none() {
            return self.finish_now();
        }
        if let Some(closing) = self.begin_close(None) {
            self.close_apart(closing);
        }
    }

    /// Lets the request end: what it has sent last was the last.
    fn finish_now(&self) {
        if std::mem::replace(&mut self.lock().over, true) {
            return;
        }
        self.leave(|core| ((), Ended::With(core.endpoint.finish_request(self.key))));
        self.drop_body();
    }

    /// The request ends by this, perhaps with a status. Whoever is around it is told of its last messages before it is forgotten,
    /// and who watches of its end before anybody else may learn of that.
    fn leave<R>(&self, end: impl FnOnce(&mut Core) -> (R, Ended)) -> R {
        let is_around = self.around().is_some();
        let _inside = self.intercepted.then(Inside::enter);
        let (result, ended) = self.endpoint.enter(|core| {
            let ended = end(core);
            if !is_around {
                core.forget_request(self.key);
            }
            ended
        });
        if is_around {
            self.endpoint.enter(|core| core.forget_request(self.key));
            let around = self.lock().around.take();
            drop(around);
        }
        if let Ended::With(status) = ended {
            self.note_end(status.as_deref());
        }
        result
    }

    // Who wants to know how it ends.

    /// This is told how it ends.
    pub(crate) fn watch(&self, watch: RequestWatch) {
        let mut state = self.lock();
        let watches = state.watch.get_or_insert_with(|| {
            Box::new(RequestWatches {
                since: Instant::now(),
                began: None,
                watches: Vec::new(),
            })
        });
        watches.watches.push(watch);
        let status = state.stopped.as_deref().map(Status::cancelled);
        drop(state);
        if status.is_some() {
            self.note_end(status.as_ref());
        }
    }

    /// The request has ended so.
    fn note_end(&self, status: Option<&Status>) {
        if !self.intercepted {
            return;
        }
        let Some(watches) = self.lock().watch.take() else {
            return;
        };
        let now = Instant::now();
        let ran_from = watches.began.unwrap_or(now);
        let end = RequestEnd {
            status: status.cloned(),
            waited: ran_from.saturating_duration_since(watches.since),
            ran: watches
                .began
                .map(|began| now.saturating_duration_since(began)),
        };
        for watch in watches.watches {
            let told = catch_unwind(AssertUnwindSafe(|| watch(&end)));
            if let Err(panic) = told {
                self.interceptor_panicked(panic);
            }
        }
    }

    // What is around it.

    /// What is around it, until it has ended.
    pub(crate) fn around(&self) -> Option<Arc<Around>> {
        match self.intercepted {
            true => self.lock().around.clone(),
            false => None,
        }
    }

    /// From now on these are around it.
    pub(crate) fn put_around(&self, layers: Vec<Layer>) {
        if layers.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.stopped.is_none() {
            state.around = Some(Arc::new(Around::new(layers)));
        }
        drop(state);
        self.endpoint
            .ask(|core| core.endpoint.report_places(self.key));
    }

    /// Whether its handler may still send.
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        let state = self.lock();
        match &state.stopped {
            Some(why) => Err(SendError::Ended(why.clone())),
            None if state.closing || state.over => {
                Err(SendError::Ended("it was answered or failed before".into()))
            }
            None => Ok(()),
        }
    }

    /// The handler is done, or the request's handle was dropped: what is around it does the rest. `None` if it goes on, or that has
    /// begun already.
    fn begin_close(self: &Arc<Self>, failed: Option<Status>) -> Option<HandlerFuture> {
        let mut state = self.lock();
        let failed = failed.or_else(|| state.failed.take());
        let is_done = failed.is_some() || state.dropped && !state.kept;
        if !is_done || std::mem::replace(&mut state.closing, true) {
            return None;
        }
        drop(state);
        let handling = Arc::clone(self);
        Some(Box::pin(async move {
            let close = Exit::of(&handling).close(failed);
            let closed = until_stopped(&handling, close).await;
            closed.unwrap_or(Ok(()))
        }))
    }

    /// That is done, apart from the handler.
    fn close_apart(self: &Arc<Self>, closing: HandlerFuture) {
        self.enlist();
        let handling = Arc::clone(self);
        self.endpoint.runtime.spawn(async move {
            let closed = caught(closing).await;
            match closed.unwrap_or_else(|panic| Err(handling.interceptor_panicked(panic))) {
                Ok(()) => handling.finish_now(),
                Err(status) => handling.fail_now(&status),
            }
        });
    }

    /// Does something that goes on whatever becomes of the request. It takes the handler's place in the executor along, or else one
    /// that is free.
    pub(crate) fn finish_all(
        self: &Arc<Self>,
        work: HandlerFuture,
    ) -> JoinHandle<(Result<(), Status>, Occupied)> {
        let place = self.lock().place.take();
        let place = self.endpoint.enter(|core| {
            core.endpoint.keep_place(self.key);
            place.or_else(|| core.endpoint.take_place(self.key))
        });
        let handling = Arc::clone(self);
        self.endpoint.runtime.spawn(async move {
            let done = caught(work).await;
            let done = done.unwrap_or_else(|panic| Err(handling.interceptor_panicked(panic)));
            // If the runtime ends before, the place stays taken: whoever waits for it would only begin.
            let endpoint = Arc::clone(&handling.endpoint);
            (done, Occupied { endpoint, place })
        })
    }

    /// It is refused before its handler runs; these were to be around it.
    pub(crate) fn refuse(self: &Arc<Self>, layers: Vec<Layer>, status: Status) {
        self.put_around(layers);
        if self.around().is_none() {
            return self.fail_now(&status);
        }
        if let Some(closing) = self.begin_close(Some(status)) {
            self.close_apart(closing);
        }
    }

    /// The request does not end before this is dropped, even if its handle is.
    pub(crate) fn keep(self: &Arc<Self>) -> Keep {
        self.lock().kept = true;
        Keep(Arc::clone(self))
    }

    // The body that follows it.

    /// The body that follows the request, for whoever asks first.
    pub(crate) fn take_body(&self) -> Option<Body> {
        let mut state = self.lock();
        if let Some(unread) = state.unread.take() {
            return Some(unread);
        }
        let body = state.body.take()?;
        drop(state);
        Some(Body::received(&self.endpoint, body))
    }

    /// This is what its handler is to get of the body.
    pub(crate) fn put_body(&self, body: Body) {
        let before = self.lock().unread.replace(body);
        drop(before);
    }

    /// Nobody has taken it.
    fn drop_body(&self) {
        drop(self.take_body());
    }

    // Who decides about it before it runs.

    /// The next interceptor to be asked, the outermost first, with its place among them, and whether it is still to be asked if
    /// this method concerns it.
    pub(crate) fn next_interceptor(&self) -> Option<(u32, Arc<dyn Interceptor>, bool)> {
        let mut state = self.lock();
        let job = state.job.as_mut()?;
        job.unasked = job.unasked.checked_sub(1)?;
        let next = job.registered.interceptors.get(job.unasked)?;
        Some((job.unasked as u32, Arc::clone(next), job.registered.rest))
    }

    /// Somebody wants to wait before that is decided: from now on an abort and the deadline find the request.
    pub(crate) fn wait_for_admission(&self) {
        if let Some(job) = &mut self.lock().job {
            detach(&mut job.payload);
        }
        self.enlist();
    }

    /// Its arguments, until its handler runs.
    pub(crate) fn arguments(&self) -> Bytes {
        let state = self.lock();
        state
            .job
            .as_ref()
            .map_or_else(Bytes::new, |job| job.payload.clone())
    }

    /// Its handler gets none, and their credit is free.
    pub(crate) fn take_arguments(&self) -> Bytes {
        let mut state = self.lock();
        let taken = state
            .job
            .as_mut()
            .map(|job| std::mem::take(&mut job.payload));
        drop(state);
        self.endpoint
            .enter(|core| core.endpoint.free_credit(self.key));
        taken.unwrap_or_default()
    }

    pub(crate) fn set_arguments(&self, payload: Bytes) {
        if let Some(job) = &mut self.lock().job {
            job.payload = payload;
        }
    }

    /// What is to run, now that its turn has come.
    fn begin_job(&self) -> Option<WaitingHandler> {
        let mut state = self.lock();
        let job = state.job.take()?;
        if let Some(watches) = &mut state.watch {
            watches.began = Some(Instant::now());
        }
        Some(job)
    }

    /// This is to be done for it in place of what was to be done before.
    pub(crate) fn reroute(&self, job: WaitingHandler) {
        let before = self.lock().job.replace(job);
        drop(before);
    }

    /// Its handler runs when its turn has come, or in its place this is sent.
    pub(crate) fn enqueue(&self, replay: Option<Vec<Intent>>) {
        let served = self.lock().job.as_mut().map(|job| {
            job.replay = replay;
            job.served
        });
        let Some(served) = served else {
            return; // it was stopped
        };
        let placed = self.endpoint.enter(|core| {
            let placed = core.endpoint.run_as(self.key, served);
            placed.inspect_err(|_| {
                self.cancel();
                core.forget_request(self.key);
            })
        });
        if let Err(why) = placed {
            self.handle_stopped(&why);
        }
    }

    /// Hands work to another server at once, whatever its handler does. That it can't be is told when it has
    /// [ended](Self::has_ended).
    pub(crate) fn send_now(&self, to: DelegatedRequest) {
        let mut body = Following::default();
        let _ =
            (self.endpoint).enter(|core| self.give_with(&mut core.endpoint, to, false, &mut body));
        self.send_body(body);
    }

    /// Whether the request has ended: nothing may be sent for it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.endpoint
            .ask(|core| core.endpoint.has_finished(self.key))
    }

    /// From now on an abort finds the request.
    pub(crate) fn enlist(&self) {
        self.endpoint
            .enter(|core| core.endpoint.put_aside(self.key));
    }

    // What a handler can ask about its request.

    /// Where its delegator says that it is reached.
    pub(crate) fn delegator_address(&self) -> Option<Address> {
        self.endpoint.ask(|core| {
            let conn = core.endpoint.request(self.key)?.conn();
            core.endpoint.peer_address(conn).cloned()
        })
    }

    /// What goes along with this request alone.
    pub(crate) fn continuation(&self) -> Option<Bytes> {
        (self.endpoint).ask(|core| core.endpoint.request(self.key)?.continuation().cloned())
    }

    /// Whether a member of the cluster has sealed it.
    pub(crate) fn is_sealed(&self) -> bool {
        (self.endpoint).ask(|core| {
            let request = core.endpoint.request(self.key);
            request.is_some_and(HandledRequest::is_sealed)
        })
    }

    pub(crate) fn remaining(&self) -> Duration {
        let deadline = self.lock().deadline;
        deadline.saturating_duration_since(Instant::now())
    }

    /// It has no more time than this.
    pub(crate) fn shorten_deadline(&self, left: Duration) {
        let deadline = self.endpoint.enter(|core| {
            core.endpoint.shorten_deadline(self.key, left);
            core.endpoint
                .request(self.key)
                .map(HandledRequest::deadline)
        });
        if let Some(deadline) = deadline {
            self.lock().deadline = self.endpoint.moment(deadline);
        }
    }

    /// The pairs that what it leads to inherits.
    pub(crate) fn inherited(&self) -> Metadata {
        let changed = self.lock().inherited.clone();
        changed.unwrap_or_else(|| self.metadata.clone())
    }

    /// It has this pair, too.
    pub(crate) fn set_inherited(&self, key: &str, value: &str) -> Result<(), MetadataError> {
        let mut metadata = self.inherited();
        metadata.insert(key, value)?;
        self.lock().inherited = Some(metadata.clone());
        self.endpoint
            .ask(|core| core.endpoint.set_inherited(self.key, metadata));
        Ok(())
    }

    /// Its handler has panicked.
    pub(crate) fn panicked(&self, panic: Box<dyn Any + Send>) -> Status {
        self.note_panic("the handler", panic)
    }

    /// An interceptor has, or what it has put around the request.
    pub(crate) fn interceptor_panicked(&self, panic: Box<dyn Any + Send>) -> Status {
        self.note_panic("an interceptor", panic)
    }

    fn note_panic(&self, who: &str, panic: Box<dyn Any + Send>) -> Status {
        let message = panic_message(who, &*panic);
        contain("what a panic carried", || drop(panic));
        if let Some(left_out) = self.endpoint.logs.panics.pass() {
            let method = self.method().name().as_ref();
            let (call, request, panic) = (&self.call, &self.id, message.as_str());
            tracing::warn!(method, %call, %request, panic, left_out, "a handler or an interceptor panicked");
        }
        self.endpoint.ask(|core| core.endpoint.panicked(message))
    }

    /// The handler tells a part of its time apart.
    pub(crate) fn note_time(&self, name: &str, took: Duration) {
        if self.traced {
            (self.endpoint).enter(|core| core.endpoint.note_time(self.key, name, took));
        }
    }

    /// The handler says that it makes progress.
    pub(crate) fn progress(&self) {
        self.endpoint.enter(|core| core.endpoint.progress(self.key));
    }

    /// What the request may still use up, if its call's budgets are stated or this server has a maximum.
    pub(crate) fn budgets(&self) -> Option<Budgets> {
        (self.endpoint).ask(|core| core.endpoint.request(self.key)?.budgets())
    }

    /// So many delegations will come.
    pub(crate) fn share_among(&self, times: u32) {
        self.endpoint
            .ask(|core| core.endpoint.share_delegations(self.key, times));
    }

    /// The name of what this one calls or hands on next.
    pub(crate) fn name_next(&self, author: Author) -> Option<DurableId> {
        self.endpoint
            .ask(|core| core.endpoint.name_next(self.key, author))
    }

    /// The name under which this request may have been asked for before.
    pub(crate) fn durable_id(&self) -> Option<DurableId> {
        (self.endpoint).ask(|core| core.endpoint.request(self.key)?.durable())
    }
}

/// Keeps a request from ending.
pub(crate) struct Keep(Arc<Handling>);

impl Drop for Keep {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.kept = false;
        let ends = state.dropped && !self.0.is_polling();
        drop(state);
        if ends {
            self.0.finish();
        }
    }
}

/// A place in the executor, until this is dropped.
pub(crate) struct Occupied {
    endpoint: Arc<Inner>,
    place: Option<Permit>,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.endpoint
                .enter(|core| core.endpoint.release_permit(place));
        }
    }
}

/// Keeps a handler from being dropped when its request is stopped.
pub(crate) struct Shield(Arc<Handling>);

impl Drop for Shield {
    fn drop(&mut self) {
        let last = self.0.shields.fetch_sub(1, Ordering::AcqRel) == 1;
        // Its handler may wait for something else.
        if last && self.0.is_cancelled() {
            let task = self.0.lock().task.take();
            task.into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Handling({} {} of {})",
            self.method().name(),
            self.id,
            self.call
        )
    }
}
