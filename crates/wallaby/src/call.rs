//! A call as its initiator sees it: a stream of answers that ends when the whole tree of hops is complete.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::watch::Loss;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{CallKey, IncomingAnswer, NewInitial, Next, OutBody, ReportedEnd};
use wallaby_proto::error::CodecError;
use wallaby_proto::trace::Trace;
use wallaby_proto::{Address, CallId, Code, RequestId};

use crate::attempts::Attempts;
use crate::body::{self, Attached, Body};
use crate::client::Outgoing;
use crate::driver::effects::{self, Effect};
use crate::driver::shared::{Core, Inner};
use crate::driver::waiters::Wait;
use crate::error::{CallError, Failure, StillRunning};
use crate::handling::Handling;
use crate::log;
use crate::timer::{self, Instant};

mod typed;

pub use self::typed::{AnswerFuture, Call, Collected};
pub use wallaby_proto::endpoint::{CallOptions, Outcome, Resend};

/// How a call ended, as [`Outgoing::on_end`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallEnd {
    /// The call.
    pub call: CallId,
    /// How it ended.
    pub outcome: Outcome,
    /// The code of the first status that was among its answers.
    pub status: Option<Code>,
    /// The server that was called takes no more requests.
    pub(crate) turned_away: bool,
}

impl CallEnd {
    pub(crate) fn new(call: CallId, end: &ReportedEnd) -> Self {
        Self {
            call,
            outcome: end.outcome.clone(),
            status: end.status,
            turned_away: end.turned_away,
        }
    }

    /// What kind of error the call ended with: its failure's, or that of the first status among its answers; `None` if all is well.
    pub fn code(&self) -> Option<Code> {
        match &self.outcome {
            Outcome::Failed(Failure::FailedFast) | Outcome::Complete { .. } => self.status,
            Outcome::Failed(failure) => Some(failure.code()),
        }
    }
}

/// Somebody who wants to know how a call ends.
#[derive(Clone)]
pub(crate) struct CallWatch(pub(crate) Arc<dyn Fn(&CallEnd) + Send + Sync>);

impl CallWatch {
    /// They are told. What panics in that is theirs alone.
    pub(crate) fn tell(watches: &[Self], end: &CallEnd) {
        for watch in watches {
            let _ = catch_unwind(AssertUnwindSafe(|| (watch.0)(end)));
        }
    }
}

impl fmt::Debug for CallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallWatch(..)")
    }
}

/// A call that the endpoint knows by a key: it is forgotten when this is dropped.
pub(crate) struct CallShared {
    pub(crate) id: CallId,
    /// What the endpoint knows it by, or why there is no call at all.
    key: Result<CallKey, Failure>,
    endpoint: Arc<Inner>,
    options: Arc<CallOptions>,
    /// The failure was told to the application.
    told: AtomicBool,
}

/// An answer with its payload as bytes.
#[derive(Debug)]
#[non_exhaustive]
pub struct RawAnswer {
    /// The request that sent it.
    pub request: RequestId,
    /// Its number among the answers of its branch.
    pub index: u32,
    /// The answer.
    pub payload: Bytes,
}

impl RawAnswer {
    fn read(answer: IncomingAnswer) -> Result<Self, CallError> {
        let (request, index) = (answer.request, answer.index);
        Ok(Self {
            request,
            index,
            payload: answer.payload()?,
        })
    }
}

impl CallShared {
    /// A call without initial requests.
    pub(crate) fn begin(
        endpoint: &Arc<Inner>,
        within: Option<&Handling>,
        options: Arc<CallOptions>,
    ) -> Arc<Self> {
        Self::begin_with(endpoint, within, options, |_, _| {})
    }

    /// One that has failed before it began, with this failure also where no call can begin.
    #[cold]
    pub(crate) fn failed(endpoint: &Arc<Inner>, failure: Failure) -> Arc<Self> {
        let mut call = Self::begin(endpoint, None, Arc::default());
        match Arc::get_mut(&mut call) {
            Some(never) if never.key.is_err() => never.key = Err(failure),
            _ => call.fail(failure),
        }
        call
    }

    /// The same with what is done first of all, if there is a call.
    fn begin_with(
        endpoint: &Arc<Inner>,
        within: Option<&Handling>,
        options: Arc<CallOptions>,
        first: impl FnOnce(&mut Core, CallKey),
    ) -> Arc<Self> {
        let begun = endpoint.enter(|core| {
            let begun = match within {
                Some(request) => request.begin_call(core, &options),
                None => core.endpoint.begin(&options),
            };
            if let Ok(key) = begun {
                first(core, key);
            }
            begun.map(|key| (key, core.endpoint.call_id(key)))
        });
        let (key, id) = match begun {
            Ok((key, id)) => (Ok(key), id),
            Err(failure) => (Err(failure), CallId::none(endpoint.node)),
        };
        Arc::new(Self {
            id,
            key,
            endpoint: Arc::clone(endpoint),
            options,
            told: AtomicBool::new(false),
        })
    }

    /// Does something about the call, if there is one.
    fn with<R>(&self, act: impl FnOnce(&mut Core, CallKey) -> R) -> Option<R> {
        let key = self.key()?;
        Some(self.endpoint.enter(|core| act(core, key)))
    }

    /// Only asks the endpoint something about it.
    fn ask<R>(&self, ask: impl FnOnce(&mut Core, CallKey) -> R) -> Option<R> {
        let key = self.key()?;
        Some(self.endpoint.ask(|core| ask(core, key)))
    }

    pub(crate) fn abort(&self) {
        self.with(|core, key| core.endpoint.abort(key));
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.with(|core, key| core.endpoint.fail_call(key, failure));
    }

    /// They are told how it ends; now, if it has.
    pub(crate) fn watch(&self, watches: Vec<CallWatch>) {
        if watches.is_empty() {
            return;
        }
        let ended = match &self.key {
            Err(failure) => Some(ReportedEnd::failed(failure)),
            Ok(key) => self.endpoint.enter(|core| {
                let ended = core.endpoint.report_end(*key);
                if ended.is_none() {
                    let watched = core.watched.entry(*key).or_default();
                    watched.extend_from_slice(&watches);
                }
                ended
            }),
        };
        if let Some(end) = ended {
            CallWatch::tell(&watches, &CallEnd::new(self.id, &end));
        }
    }

    fn close(&self) {
        self.with(|core, key| core.endpoint.close_call(key));
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match &self.key {
            Ok(key) => (self.endpoint).ask(|core| core.endpoint.outcome(*key).cloned()),
            Err(failure) => Some(Outcome::Failed(failure.clone())),
        }
    }

    fn trace(&self) -> Trace {
        let trace = self.with(|core, key| core.endpoint.trace(key));
        trace.flatten().unwrap_or_else(|| Trace::empty(self.id))
    }

    /// What the endpoint knows it by, if there is a call.
    pub(crate) fn key(&self) -> Option<CallKey> {
        self.key.as_ref().ok().copied()
    }

    /// How many times requests of the call were sent again.
    pub(crate) fn resent(&self) -> u32 {
        self.ask(|core, key| core.endpoint.resent(key)).unwrap_or(0)
    }

    /// Waits until nothing of the call runs any more, as far as its servers can be reached.
    pub(crate) async fn settled(&self) {
        poll_fn(|cx| {
            let waits = self.with(|core, key| {
                let is_live = core.endpoint.is_live(key);
                if is_live {
                    core.wait(Wait::Settled(key), cx.waker());
                }
                is_live
            });
            match waits {
                Some(true) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Waits for that until then at most; what runs on then.
    async fn stopped(&self, until: Instant) -> StillRunning {
        let mut settled = pin!(self.settled());
        let mut late = pin!(timer::sleep_until(until));
        poll_fn(|cx| match settled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => late.as_mut().poll(cx),
        })
        .await;
        let running = self.ask(|core, key| core.endpoint.still_running(key));
        running.unwrap_or_default()
    }

    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<RawAnswer, CallError>>> {
        let key = match &self.key {
            Ok(key) => *key,
            Err(failure) => return Poll::Ready(self.tell(failure.clone())),
        };
        let next = self.endpoint.enter(|core| {
            let next = core.endpoint.next_answer(key);
            if let Next::Pending = next {
                core.wait(Wait::Answer(key), cx.waker());
            }
            next
        });
        match next {
            Next::Answer(answer) => Poll::Ready(Some(RawAnswer::read(answer))),
            Next::Pending | Next::Trace(_) => Poll::Pending,
            Next::Ended(Outcome::Failed(failure)) => Poll::Ready(self.tell(failure)),
            Next::Ended(Outcome::Complete { .. }) => Poll::Ready(None),
        }
    }

    /// A failure is told once.
    fn tell(&self, failure: Failure) -> Option<Result<RawAnswer, CallError>> {
        if self.told.swap(true, Ordering::AcqRel) {
            return None;
        }
        match failure {
            Failure::FailedFast => None, // the status has said why
            failure => Some(Err(failure.into())),
        }
    }

    // What pipelines look at.

    /// Looks at what the initiator knows, if there is a call.
    pub(crate) fn look_at_tree<T>(&self, look: impl FnOnce(&mut Initiator) -> T) -> Option<T> {
        self.ask(|core, key| core.endpoint.tree(key).map(look))?
    }

    /// Whether anything of the call may have left this endpoint.
    pub(crate) fn was_sent(&self) -> bool {
        let was_sent = self.ask(|core, key| core.endpoint.was_sent(key));
        was_sent.unwrap_or(false)
    }

    /// It goes down a line: these are its servers, behind the first. Said before it is watched over.
    pub(crate) fn expect_servers(&self, servers: &[Address]) {
        self.with(|core, key| core.endpoint.expect_servers(key, servers));
    }

    /// An answer to this request cannot be decoded.
    pub(crate) fn unreadable(&self, request: RequestId, error: CodecError) -> CallError {
        match self.key() {
            Some(key) => (self.endpoint).ask(|core| core.endpoint.unreadable(key, request, error)),
            None => CallError::unreadable(request, error),
        }
    }

    /// What it has gone on without.
    pub(crate) fn losses(&self) -> Vec<Arc<Loss>> {
        let losses = self.ask(|core, key| core.endpoint.losses(key).to_vec());
        losses.unwrap_or_default()
    }
}

impl Drop for CallShared {
    fn drop(&mut self) {
        self.with(|core, key| {
            core.endpoint.forget(key);
            core.stop_waiting(Wait::Answer(key));
            core.stop_waiting(Wait::Settled(key));
            core.stop_waiting(Wait::Sent(key));
        });
    }
}

impl Inner {
    /// Makes a call of one request, which the interceptors of calls have passed.
    pub(crate) fn send(self: &Arc<Self>, within: Option<&Handling>, outgoing: Outgoing) -> RawCall {
        let options = Arc::clone(&outgoing.options);
        if self.was_away() {
            return self.send_later(within, outgoing);
        }
        let initial = Initial::new(outgoing, true);
        let mut following = None;
        let shared = CallShared::begin_with(self, within, options, |core, key| {
            following = initial.give(core, key).ok().and_then(|sent| sent.1);
        });
        if let Some((out, body)) = following {
            body::spawn(self, body, out);
        }
        RawCall::new(shared)
    }

    /// The runtime was blocked: connections that may have ended meanwhile are listened to first.
    #[cold]
    fn send_later(self: &Arc<Self>, within: Option<&Handling>, outgoing: Outgoing) -> RawCall {
        let options = Arc::clone(&outgoing.options);
        let call = RawCall::new(CallShared::begin(self, within, options));
        let (endpoint, shared) = (Arc::clone(self), Arc::downgrade(call.shared()));
        self.runtime.spawn(async move {
            endpoint.listen().await;
            if let Some(shared) = shared.upgrade() {
                let _ = shared.give(outgoing, true);
            }
        });
        call
    }
}

/// An initial request that is about to leave, and what follows it.
struct Initial {
    outgoing: Outgoing,
    body: Option<Body>,
    /// What was to follow it went with another request.
    is_gone: bool,
    /// It is the only one of its call. Of another one the metadata, the continuation and the durable id are its own, not the call's
    /// other options.
    only: bool,
}

/// The place of an initial request that was sent, and what is to be written behind it.
type Given = (RequestId, Option<(OutBody, Body)>);

impl Initial {
    fn new(mut outgoing: Outgoing, only: bool) -> Self {
        let attached = outgoing.body.take();
        let body = attached.as_ref().and_then(Attached::take);
        Self {
            is_gone: attached.is_some() && body.is_none(),
            body,
            outgoing,
            only,
        }
    }

    fn give(self, core: &mut Core, key: CallKey) -> Result<Given, Failure> {
        let Outgoing {
            server,
            method,
            payload,
            options,
            ..
        } = self.outgoing;
        if self.is_gone {
            let failure = body::is_gone(server);
            core.endpoint.fail_call(key, failure.clone());
            return Err(failure);
        }
        if log::debugs() {
            let (call, method) = (core.endpoint.call_id(key), Arc::clone(&method));
            effects::push(Effect::Sends(call, method, server.clone()));
        }
        let new = NewInitial {
            server: &server,
            method: &method,
            payload,
            own: (!self.only).then_some(&options),
            followed: self.body.is_some(),
        };
        let (sent, out) = if self.only {
            core.endpoint.send_only(key, new)?
        } else {
            core.endpoint.send_with(key, new)?
        };
        Ok((sent, out.zip(self.body)))
    }
}

impl CallShared {
    fn give(&self, outgoing: Outgoing, only: bool) -> Result<RequestId, Failure> {
        let key = self.key.clone()?;
        let initial = Initial::new(outgoing, only);
        let (id, body) = self.endpoint.enter(|core| initial.give(core, key))?;
        if let Some((out, body)) = body {
            body::spawn(&self.endpoint, body, out);
        }
        Ok(id)
    }
}

/// A call whose payloads are bytes: any number of initial requests, then a stream of answers.
///
/// It can complete only after [`close`](Self::close). Dropping it aborts it.
pub struct RawCall {
    /// The call, or the attempt of it that counts.
    shared: Arc<CallShared>,
    /// What makes it again.
    attempts: Option<Box<Attempts>>,
}

impl RawCall {
    pub(crate) fn new(shared: Arc<CallShared>) -> Self {
        Self {
            shared,
            attempts: None,
        }
    }

    /// A call that is made again if need be; `shared` is its first attempt.
    pub(crate) fn with_attempts(shared: Arc<CallShared>, attempts: Attempts) -> Self {
        Self {
            shared,
            attempts: Some(Box::new(attempts)),
        }
    }

    /// The call's id.
    pub fn id(&self) -> CallId {
        self.shared.id
    }

    /// What a call has come to of which this answer cannot be decoded: with its method and its server, as far as they are known.
    pub fn unreadable(&self, request: RequestId, error: CodecError) -> CallError {
        self.shared.unreadable(request, error)
    }

    /// Sends an initial request; waits until it is accepted for sending.
    ///
    /// # Errors
    ///
    /// The failure of the call: it cannot be sent, or the call has ended or was [closed](Self::close).
    pub async fn send(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<RequestId, CallError> {
        self.send_attached(server.into(), method, payload, None)
            .await
    }

    /// Sends an initial request, and then a body. Waits until the request is accepted for sending, not for its body. It is
    /// not sent again, whatever the call's options say.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and over `udp:`.
    pub async fn send_with_body(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Body,
    ) -> Result<RequestId, CallError> {
        let body = Some(Attached::new(body));
        self.send_attached(server.into(), method, payload, body)
            .await
    }

    async fn send_attached(
        &mut self,
        server: Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Option<Attached>,
    ) -> Result<RequestId, CallError> {
        let mut outgoing = Outgoing {
            server,
            method: Arc::clone(method),
            payload,
            options: Arc::clone(&self.shared.options),
            attempt: 0,
            body,
            visit: None,
            watches: Vec::new(),
        };
        let endpoint = &self.shared.endpoint;
        let passed = endpoint.intercept(&mut outgoing);
        let passed = passed.inspect_err(|failure| self.shared.fail(failure.clone()));
        self.shared.watch(std::mem::take(&mut outgoing.watches));
        passed?;
        if endpoint.was_away() {
            endpoint.listen().await;
        }
        let id = self.shared.give(outgoing, false)?;
        poll_fn(|cx| self.shared.poll_sent(id, cx)).await?;
        Ok(id)
    }

    /// Says how many initial requests will come: each gets an equal part of the call's budgets, if these are stated.
    ///
    /// Without, half of them is kept for requests to come, and of the other half the k-th request gets 1/(k(k+1)).
    pub fn share_among(&self, requests: u32) {
        self.shared
            .with(|core, key| core.endpoint.share_among(key, requests));
    }

    /// No further initial request comes: the call completes when all that was sent is done.
    pub fn close(&mut self) {
        self.shared.close();
    }

    /// Waits for the next answer; `None` when the call is over. A status is an `Err` after which more may come.
    pub async fn next(&mut self) -> Option<Result<RawAnswer, CallError>> {
        poll_fn(|cx| self.poll_answer(cx)).await
    }

    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<RawAnswer, CallError>>> {
        match &mut self.attempts {
            None => self.shared.poll_next(cx),
            Some(attempts) => attempts.poll_next(&mut self.shared, cx),
        }
    }

    /// How the call ended; `None` while it goes on. One that may be made again ends when its application has seen it end.
    pub fn outcome(&self) -> Option<Outcome> {
        match &self.attempts {
            None => self.shared.outcome(),
            Some(attempts) => attempts.outcome(&self.shared),
        }
    }

    /// How many times initial requests were sent again; see [`crate::Client::resend`].
    pub fn resent(&self) -> u32 {
        self.shared.resent()
    }

    /// How many attempts were made, hedged ones included; see [`crate::Client::retry`].
    pub fn attempts(&self) -> u32 {
        let attempts = self.attempts.as_ref();
        attempts.map_or(1, |attempts| attempts.made())
    }

    /// The tree of hops, as far as it is known now.
    pub fn trace(&self) -> Trace {
        self.shared.trace()
    }

    /// Gives the call up: its servers are told to stop.
    pub fn abort(&self) {
        if let Some(attempts) = &self.attempts {
            attempts.abort();
        }
        self.shared.abort();
    }

    /// Waits until nothing of the call runs any more, as far as its servers can be reached: after completion at once,
    /// after a failure or an abort when all its requests have been stopped or silent for the ping timeout, or two ping periods after
    /// only handlers go on which do not stop; in any case 300 ping periods and a ping timeout later. What may run on
    /// even then is said at [`Call::stop`](crate::Call::stop).
    pub async fn settled(&self) {
        if let Some(attempts) = &self.attempts {
            for attempt in attempts.all() {
                attempt.settled().await;
            }
        }
        self.shared.settled().await;
    }

    /// Gives the call up and waits until nothing of it runs any more, but at most for so long: see
    /// [`Call::stop_within`](crate::Call::stop_within).
    ///
    /// # Errors
    ///
    /// What runs on then.
    pub async fn stop_within(&self, grace: Duration) -> Result<(), StillRunning> {
        self.abort();
        let until = Instant::now() + timer::bounded(grace);
        let mut calls = vec![Arc::clone(&self.shared)];
        for attempt in self.attempts.iter().flat_map(|attempts| attempts.all()) {
            if !calls.iter().any(|call| Arc::ptr_eq(call, attempt)) {
                calls.push(Arc::clone(attempt));
            }
        }
        let calls: Vec<Awaited> = (calls.into_iter())
            .map(|call| Awaited::new(call, grace))
            .collect();
        let mut running = StillRunning::default();
        for call in &calls {
            running = running.and(call.0.stopped(until).await);
        }
        match running.is_empty() {
            true => Ok(()),
            false => Err(running),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<CallShared> {
        &self.shared
    }
}

/// A call that was given up, of which somebody waits until nothing runs any more.
struct Awaited(Arc<CallShared>);

impl Awaited {
    fn new(call: Arc<CallShared>, grace: Duration) -> Self {
        call.with(|core, key| core.endpoint.wait_for_stop(key, Some(grace)));
        Self(call)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        (self.0).with(|core, key| core.endpoint.wait_for_stop(key, None));
    }
}

impl CallShared {
    /// Waits until a connection has taken an initial request, or the call has failed.
    fn poll_sent(&self, id: RequestId, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let key = self.key.clone()?;
        self.endpoint.enter(|core| {
            if let Some(Outcome::Failed(failure)) = core.endpoint.outcome(key) {
                return Poll::Ready(Err(failure.clone()));
            }
            if core.endpoint.is_sent(key, id) {
                return Poll::Ready(Ok(()));
            }
            core.wait(Wait::Sent(key), cx.waker());
            Poll::Pending
        })
    }
}

impl Stream for RawCall {
    type Item = Result<RawAnswer, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_answer(cx)
    }
}

impl Drop for RawCall {
    fn drop(&mut self) {
        // Where nobody else has it, it is forgotten, which does the same.
        if Arc::strong_count(&self.shared) > 1 {
            self.shared.abort();
        }
    }
}

impl fmt::Debug for RawCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawCall({}, {:?})", self.shared.id, self.outcome())
    }
}

impl fmt::Debug for CallShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallShared({})", self.id)
    }
}
