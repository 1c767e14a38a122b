//! One request that is handled: what its handler can ask and do.

mod ending;
mod running;
mod sending;
mod waiting;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{Author, CallKey, HandledRequest, InBody, Permit, RequestKey};
use wallaby_proto::wire::{Budgets, Metadata, MetadataError};
use wallaby_proto::{Address, CallId, DurableId, NodeId, RequestId, Status, Token};

use crate::body::Body;
use crate::call::CallOptions;
use crate::driver::shared::{Core, Inner};
use crate::error::Failure;
use crate::intercept::{Around, Extensions};
use crate::log::{self, Of};
use crate::panics::{contain, panic_message};
use crate::service::{HandlerFuture, Registered};
use crate::timer::Instant;
use crate::transport::Identity;

pub(crate) use self::ending::Keep;
pub(crate) use self::running::{Job, Work};
pub(crate) use self::waiting::WaitingHandler;

use self::ending::RequestWatches;

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
    stopped: Option<Box<Status>>,
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

    /// Why it is handled here, if it was for another server.
    pub(crate) fn undelivered(&self) -> Option<Status> {
        (self.endpoint).ask(|core| core.endpoint.request(self.key)?.undelivered().cloned())
    }

    /// Who does not know it does not speak of its call.
    pub(crate) fn token(&self) -> Option<Token> {
        (self.endpoint).ask(|core| Some(core.endpoint.request(self.key)?.token()))
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

    /// Which request it is, for the log.
    fn of(&self) -> Of {
        Of {
            method: Arc::clone(self.method().name()),
            call: self.call,
            request: self.id,
        }
    }

    fn note_panic(&self, who: &str, panic: Box<dyn Any + Send>) -> Status {
        let message = panic_message(who, &*panic);
        contain("what a panic carried", || drop(panic));
        self.endpoint.logs.panicked(&self.of(), &message);
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
