//! A call as its initiator sees it: a stream of answers that ends when the whole tree of hops is complete.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::JoinHandle;
use wallaby_proto::call::initiator::{Arrival, Initiator, Violation};
use wallaby_proto::call::taken::{AnswerLimits, Answers};
use wallaby_proto::connection::{ConnectionError, MAX_CALLS, MethodDefinition, Refusal};
use wallaby_proto::detach::{FEW, detach};
use wallaby_proto::wire::{
    Budgets, End, Message, Metadata, MethodRef, Options, PingSettings, ReplyTo, Request, Response,
};
use wallaby_proto::{Address, CallId, Path, RequestId, Status, Token};

use crate::attempts::Attempts;
use crate::body::{Attached, Body};
use crate::client::Outgoing;
use crate::driver::peer::{Peer, Place, Refused};
use crate::endpoint::Inner;
use crate::error::{CallError, Failure};
use crate::log;
use crate::timer::Instant;
use wallaby_proto::line::Line;
use wallaby_proto::numbers::{DEFAULT_DEADLINE, DEFAULT_PING};
use wallaby_proto::numbers::{MESSAGE_COST, MOST_MOVES};
use wallaby_proto::trace::{self, Trace};

mod following;
mod order;
mod placed;
mod rare;
mod resending;
mod roots;
mod typed;
mod watching;

use self::rare::{Rare, Watched};
pub use self::resending::Resend;
use self::roots::Roots;
pub use self::typed::{AnswerFuture, Call};

/// How a call is made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// How much time the call has; the endpoint's default (60 s) if not set.
    pub deadline: Option<Duration>,
    /// Whether each hop reports its timings for [`Call::trace`].
    pub traced: bool,
    /// Whether the first status ends the call; the rest of the tree is aborted then.
    pub fail_fast: bool,
    /// Whether the answers of each branch are delivered in the order in which they were sent.
    pub in_order: bool,
    /// Pairs that travel down the tree.
    pub metadata: Metadata,
    /// What the call's tree may use up.
    pub budgets: Option<Budgets>,
    /// How often its servers are asked about it, and how long silence may last; as the endpoint says if not set.
    pub ping: Option<PingSettings>,
    /// How long a handler may make no progress; as the endpoint says if not set.
    pub stall_limit: Option<Duration>,
    /// Whether and where its initial requests may be sent again.
    pub(crate) resend: Option<Arc<Resend>>,
    /// Whether what is lost ends it only when nothing else is missing.
    pub(crate) partial: bool,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that was to come has come. `statuses` counts the errors among the answers.
    Complete {
        /// How many answers were statuses.
        statuses: u64,
    },
    /// It failed.
    Failed(Failure),
}

/// An initial request, its server and its method.
type Prepared = (Request, Address, Arc<MethodDefinition>);

/// An [`Outcome`] that takes little room.
enum Ended {
    Complete { statuses: u64 },
    Failed(Box<Failure>),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

impl Ended {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Complete { statuses } => Outcome::Complete {
                statuses: *statuses,
            },
            Self::Failed(failure) => Outcome::Failed(Failure::clone(failure)),
        }
    }
}

/// The part of a call that the endpoint knows too.
pub(crate) struct CallShared {
    pub(crate) id: CallId,
    token: Token,
    endpoint: Arc<Inner>,
    options: Arc<CallOptions>,
    /// When it began and when its deadline is, in nanoseconds since the endpoint was made: half the size of instants.
    begun: u64,
    deadline: u64,
    state: Mutex<State>,
    /// Told when the call ends, for requests that wait for a connection or for credit, and when the application takes
    /// an answer that came from this endpoint itself.
    changed: OnceLock<Box<Notify>>,
}

struct State {
    initiator: Initiator,
    answers: Line<Box<RawAnswer>>,
    waker: Option<Waker>,
    /// How the call ended.
    ended: Option<Ended>,
    /// The failure was yielded.
    told: bool,
    roots: Roots,
    /// What answers cost of the call's credit, if any did.
    credit: Option<Box<Answers>>,
    watched: Option<Box<Watched>>,
    rare: Option<Box<Rare>>,
    /// Nothing of the call runs any more, as far as known.
    settled: bool,
}

/// An answer with its payload as bytes.
#[derive(Debug)]
pub struct RawAnswer {
    /// The request that sent it.
    pub request: RequestId,
    /// Its number among the answers of its branch.
    pub index: u32,
    /// The answer.
    pub payload: Bytes,
    status: bool,
    peer: Option<Arc<Peer>>,
}

impl CallShared {
    pub(crate) fn new(
        endpoint: Arc<Inner>,
        id: CallId,
        token: Token,
        options: Arc<CallOptions>,
    ) -> Arc<Self> {
        let begun = endpoint.age();
        let time = options.deadline.unwrap_or(endpoint.config.default_deadline);
        let deadline = begun + time.min(Duration::from_secs(365 * 86_400));
        let mut initiator = Initiator::new(id, token, options.budgets.unwrap_or_default());
        initiator.count_in(&endpoint.branches);
        let rare = Rare::new(&options);
        Arc::new(Self {
            id,
            token,
            endpoint,
            options,
            begun: nanoseconds(begun),
            deadline: nanoseconds(deadline),
            state: Mutex::new(State {
                initiator,
                answers: Line::default(),
                waker: None,
                ended: None,
                told: false,
                roots: Roots::default(),
                credit: None,
                watched: None,
                rare,
                settled: false,
            }),
            changed: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When its deadline is, in nanoseconds since the endpoint was made.
    pub(crate) fn deadline_age(&self) -> u64 {
        self.deadline
    }

    pub(crate) fn begun_age(&self) -> u64 {
        self.begun
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.endpoint.moment(self.deadline)
    }

    // What arrives.

    /// A response or the end of a branch arrived, over `peer` or from this endpoint itself.
    pub(crate) fn handle_answer(&self, peer: Option<&Arc<Peer>>, message: &mut Message) {
        let mut state = self.lock();
        if state.settled || state.ended.is_some() && !state.is_watched() {
            self.endpoint.meters.late_dropped.add();
            return;
        }
        let (token, path) = match &*message {
            Message::Response(response) => (response.token, response.request.path),
            Message::End(end) => (end.token, end.request.path),
            Message::Trace(report) => (report.token, Path::ROOT),
            _ => (None, Path::ROOT),
        };
        if !state.may_answer(self.token, token, peer, &path) {
            return self.note_forged(peer);
        }
        if let (Some(_), Some(peer)) = (token, peer) {
            peer.uses.note_call(); // others have taken a request of the call
        }
        if state.ended.is_some() {
            return self.handle_late(state, peer, message);
        }
        // A server that gave up at the deadline may be faster than the timer here; this clock decides (PROTOCOL-NOTES 38).
        if matches!(message, Message::Response(response) if response.status)
            && Instant::now() >= self.deadline()
        {
            let failure = self.too_late(&state);
            return self.end(state, failure.into());
        }
        let handled = match &mut *message {
            Message::Response(response) => self.handle_response(&mut state, peer, response),
            Message::End(end) => Self::handle_end(&mut state, end),
            Message::Trace(report) => {
                state.initiator.handle_trace(&report.records);
                Ok(())
            }
            _ => Ok(()),
        };
        let ends = match handled {
            Ok(()) if state.initiator.is_complete() => Some(state.completed()),
            Ok(()) => None,
            Err(failure) => Some(self.after_attempts(&state, failure).into()),
        };
        if let Some(ended) = ends {
            return self.end(state, ended);
        }
        state.wake();
        if state.is_watched() {
            self.note_heard(&mut state, message, peer);
            self.act(state);
        }
    }

    /// The call has ended, but what it still hears tells what has stopped.
    #[cold]
    #[inline(never)]
    fn handle_late(
        &self,
        mut state: MutexGuard<'_, State>,
        peer: Option<&Arc<Peer>>,
        message: &Message,
    ) {
        self.endpoint.meters.late_dropped.add();
        let _ = match message {
            Message::Response(response) => {
                self.credit_late(&mut state, peer, response);
                state.initiator.handle_response(response).map(drop)
            }
            Message::End(end) => state.initiator.handle_end(end),
            _ => Ok(()),
        };
        self.note_heard(&mut state, message, peer);
        self.act(state);
    }

    /// Servers that pass answers on keep those for which there is no credit.
    fn credit_late(&self, state: &mut State, peer: Option<&Arc<Peer>>, response: &Response) {
        let Some(peer) = peer else { return };
        let (limits, size) = (self.answer_limits(), response.payload.len());
        let credit = state.credit.get_or_insert_default();
        // Who sends more than was granted may not know yet that the call is over.
        let _ = credit.arrive(peer.id, size as u64, limits, || 0, || 0, |_| true);
        if let Some((responses, bytes)) = state.credit(peer, size, self.worth()) {
            peer.grant_call(self.id, responses, bytes);
        }
    }

    /// Nobody takes what has come of the call.
    fn credit_all(&self, state: &mut State) {
        let credit = state.credit.iter_mut();
        for (connection, bytes) in credit.flat_map(|credit| credit.take_all()) {
            if let Some(peer) = self.endpoint.pool.by_id(connection) {
                peer.grant_call(self.id, 0, bytes);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn note_forged(&self, peer: Option<&Arc<Peer>>) {
        self.endpoint.note_forged(self.id, peer);
    }

    fn handle_response(
        &self,
        state: &mut State,
        peer: Option<&Arc<Peer>>,
        response: &mut Response,
    ) -> Result<(), Failure> {
        match state.initiator.handle_response(response)? {
            Arrival::Duplicate | Arrival::Contradiction => {
                self.endpoint.meters.duplicates_dropped.add();
                // One that was sent again has cost the call's credit like any other.
                if let Some(peer) = peer {
                    let size = response.payload.len();
                    self.note_arrival(state, peer, size)?;
                    if let Some((responses, bytes)) = state.credit(peer, size, self.worth()) {
                        peer.grant_call(self.id, responses, bytes);
                    }
                }
            }
            Arrival::New => {
                self.endpoint.meters.responses_received.add();
                if response.status {
                    self.endpoint.meters.statuses_received.add();
                }
                if self.options.traced {
                    state.note_answer(response.request.path, self.begun().elapsed());
                }
                let first_failed = response.status && self.options.fail_fast;
                match peer {
                    None => *state.own() += response.payload.len() as u64 + MESSAGE_COST,
                    // The last one costs nothing any more.
                    Some(_) if state.initiator.is_complete() => {}
                    Some(peer) => self.note_arrival(state, peer, response.payload.len())?,
                }
                let mut payload = std::mem::take(&mut response.payload);
                if state.answers.len() >= FEW {
                    detach(&mut payload);
                }
                state.answers.push(Box::new(RawAnswer {
                    request: response.request,
                    index: response.index,
                    payload,
                    status: response.status,
                    peer: peer.cloned(),
                }));
                if first_failed {
                    return Err(Failure::Aborted);
                }
            }
        }
        Ok(())
    }

    fn answer_limits(&self) -> AnswerLimits {
        let limits = &self.endpoint.config.limits;
        AnswerLimits {
            call: limits.call.max(1),
            message: limits.message,
        }
    }

    /// An answer came that costs the call's credit.
    ///
    /// # Errors
    ///
    /// If it was not granted. Its connection is closed then, unless the sender may have forgotten what it had sent before.
    fn note_arrival(
        &self,
        state: &mut State,
        peer: &Arc<Peer>,
        size: usize,
    ) -> Result<(), Failure> {
        let limits = self.answer_limits();
        let roots = &state.roots;
        let requests = || roots.iter().count() as u64;
        let credit = state.credit.get_or_insert_default();
        let messages = || peer.counters().messages_received;
        let is_open = |id| self.endpoint.pool.by_id(id).is_some();
        let arrived = credit.arrive(peer.id, size as u64, limits, requests, messages, is_open);
        let Err(meanwhile) = arrived else {
            return Ok(());
        };
        if meanwhile < MAX_CALLS as u64 {
            let what = "answers of a call";
            let reason = ConnectionError::Overdrawn { what }.to_string();
            let peer = Arc::clone(peer);
            // Later: whoever ends with it may want to know of this call.
            (self.endpoint.runtime).spawn(async move { peer.end(&reason) });
        }
        Err(Failure::Violation(Violation::Overdrawn))
    }

    /// Credit goes out from so many bytes on.
    fn worth(&self) -> u64 {
        self.endpoint.config.limits.call / 4
    }

    fn handle_end(state: &mut State, end: &End) -> Result<(), Failure> {
        Ok(state.initiator.handle_end(end)?)
    }

    /// The deadline passed.
    pub(crate) fn handle_deadline(&self) {
        let state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let failure = self.too_late(&state);
        self.end(state, failure.into());
    }

    #[cold]
    #[inline(never)]
    fn too_late(&self, state: &State) -> Failure {
        let missing = state.initiator.missing().take(8);
        Failure::Deadline {
            after: Duration::from_nanos(self.deadline - self.begun),
            missing: missing.map(|request| state.describe(request)).collect(),
        }
    }

    // How it ends.

    /// The initiator gives the call up.
    pub(crate) fn abort(&self) {
        let state = self.lock();
        if state.ended.is_none() {
            self.end(state, Failure::Aborted.into());
        }
    }

    pub(crate) fn fail(&self, failure: Failure) {
        let state = self.lock();
        if state.ended.is_none() {
            self.end(state, failure.into());
        }
    }

    /// The call has ended; nothing changes that. What still runs somewhere is told to stop.
    fn end(&self, mut state: MutexGuard<'_, State>, ended: Ended) {
        let meters = &self.endpoint.meters;
        match &ended {
            Ended::Complete { .. } => meters.calls_completed.add(),
            Ended::Failed(failure) if **failure == Failure::Aborted => meters.calls_aborted.add(),
            Ended::Failed(_) => meters.calls_failed.add(),
        }
        if log::debugs() {
            self.log_end(&ended);
        }
        if state.resending().is_some() {
            self.release(&mut state);
        }
        let complete = matches!(ended, Ended::Complete { .. });
        // Dropped at the end of this: who made them may do anything then.
        let _unsent = (!complete).then(|| state.unsent_bodies());
        state.ended = Some(ended);
        if self.options.traced {
            state.rare.get_or_insert_default().ended_after = Some(self.begun().elapsed());
        }
        if !complete {
            self.credit_all(&mut state);
        }
        let winds_down = !complete && self.wind_down(&mut state);
        if !winds_down {
            self.settle(&mut state);
        }
        for used in state.roots.iter().filter_map(|sent| sent.peer.as_ref()) {
            used.release();
        }
        let waker = state.waker.take();
        if winds_down {
            self.act(state);
        } else {
            drop(state);
            self.endpoint.forget_call(self.id.sequence);
        }
        self.tell();
        waker.into_iter().for_each(Waker::wake);
    }

    #[cold]
    #[inline(never)]
    fn log_end(&self, ended: &Ended) {
        tracing::debug!(call = %self.id, outcome = ?ended.outcome(), "ended");
    }

    // What the initiator sends.

    /// So many initial requests will come.
    pub(crate) fn share_among(&self, requests: u32) {
        if self.options.budgets.is_some()
            && let Some(allowance) = self.lock().allowance()
        {
            allowance.announce(requests);
        }
    }

    /// Takes the next initial request's id and makes the request; returns its server and method, too.
    fn prepare(&self, outgoing: Outgoing) -> Result<Prepared, Failure> {
        let Outgoing {
            server,
            method,
            payload,
            options,
            body,
            ..
        } = outgoing;
        let mut state = self.lock();
        if let Some(Ended::Failed(failure)) = &state.ended {
            return Err(Failure::clone(failure));
        }
        let id = state.initiator.send()?;
        let (size, limit) = (payload.len() as u64, self.endpoint.config.limits.message);
        if size > limit {
            return Err(Failure::TooLarge {
                request: id,
                server,
                size,
                limit,
            });
        }
        if log::debugs() {
            self.log_request(id, &method, &server);
        }
        let name = Arc::clone(method.name());
        state.roots.push(id.path, server.clone(), name);
        let budgets = state.share();
        drop(state);
        let mut request = Request {
            call: self.id,
            token: self.token,
            id,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: self.stated_deadline(),
            oldest: self.endpoint.oldest_call(),
            traced: self.options.traced,
            compressed: false,
            waited: Duration::ZERO,
            options: self.request_options(&options.metadata, budgets),
            method: MethodRef::Number(0),
            payload,
        };
        match body {
            Some(body) => self.attach(&mut request, &body, &server)?,
            None if self.options.resend.is_some() => self.keep(&mut request, &method, &server),
            None => {}
        }
        Ok((request, server, method))
    }

    #[cold]
    #[inline(never)]
    fn log_request(&self, request: RequestId, method: &MethodDefinition, server: &Address) {
        let method = method.name().as_ref();
        tracing::debug!(call = %self.id, %request, method, %server, "sends");
    }

    /// The default of the protocol need not be stated.
    fn stated_deadline(&self) -> Option<Duration> {
        let own = self
            .options
            .deadline
            .unwrap_or(self.endpoint.config.default_deadline);
        (own != DEFAULT_DEADLINE).then(|| self.deadline().saturating_duration_since(Instant::now()))
    }

    fn request_options(
        &self,
        metadata: &Metadata,
        budgets: Option<Budgets>,
    ) -> Option<Box<Options>> {
        let ping = Some(self.ping()).filter(|ping| *ping != DEFAULT_PING);
        if metadata.is_empty() && budgets.is_none() && ping.is_none() {
            return None;
        }
        Some(Box::new(Options {
            ping,
            metadata: metadata.clone(),
            budgets,
            ..Options::default()
        }))
    }

    /// Sends at once if there is a connection and credit; `false` if the request has to wait.
    fn try_send(&self, server: &Address, method: &MethodDefinition, request: &mut Request) -> bool {
        match self.endpoint.pool.ready(server) {
            // A connection that may have been closed meanwhile is first listened to.
            Some(_) if self.endpoint.was_away(self.begun) => false,
            Some(peer) => self.try_send_on(&peer, server, method, request),
            None => false,
        }
    }

    fn try_send_on(
        &self,
        peer: &Arc<Peer>,
        server: &Address,
        method: &MethodDefinition,
        request: &mut Request,
    ) -> bool {
        let id = request.id;
        // Noted before it is sent: the answer may overtake the note.
        if !self.note_sent(id, peer) {
            return true;
        }
        self.endpoint.seal(request, peer);
        let place = Some(Place::Initiator(self.id.sequence));
        match peer.try_request(request, method, place) {
            Ok(()) => {
                let body = request.options.as_ref().and_then(|options| options.body);
                if let Some(number) = body {
                    self.send_body(id, number, peer);
                }
                true
            }
            Err(Refused::Ended(_) | Refused::Now(Refusal::Blocked | Refusal::NotOpen)) => {
                self.note_not_sent(id);
                false
            }
            Err(Refused::Now(refusal)) => {
                self.note_not_sent(id);
                self.fail_refused(id, server.clone(), refusal);
                true
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn fail_refused(&self, request: RequestId, server: Address, refusal: Refusal) {
        self.fail(match refusal {
            Refusal::TooLarge { size, limit } => Failure::TooLarge {
                request,
                server,
                size,
                limit,
            },
            refusal => Failure::Refused {
                request,
                server,
                reason: refusal.to_string(),
            },
        });
    }

    /// Sends; waits for a connection and for credit, but not longer than the call lives.
    async fn send(
        &self,
        server: &Address,
        method: &MethodDefinition,
        request: Request,
    ) -> Result<(), Failure> {
        let mut over = pin!(self.over());
        let mut sent = pin!(self.send_in_time(server, method, request));
        poll_fn(|cx| match sent.as_mut().poll(cx) {
            Poll::Ready(sent) => Poll::Ready(sent),
            Poll::Pending => over.as_mut().poll(cx).map(Err),
        })
        .await
    }

    /// Waits until the call has failed.
    async fn over(&self) -> Failure {
        loop {
            let changed = self.changed();
            if let Some(Outcome::Failed(failure)) = self.outcome() {
                return failure;
            }
            changed.await;
        }
    }

    /// Waits for a change. Create it before looking, so that nothing is missed.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.get_or_init(Box::default).notified()
    }

    /// Tells whoever waits for a change; who comes later looks first.
    fn tell(&self) {
        if let Some(changed) = self.changed.get() {
            changed.notify_waiters();
        }
    }

    /// Whether the application takes more answers that come from this endpoint itself.
    pub(crate) fn takes_own(&self) -> bool {
        let state = self.lock();
        state.ended.is_some() || state.has_own_below(self.endpoint.config.limits.call)
    }

    async fn send_in_time(
        &self,
        server: &Address,
        method: &MethodDefinition,
        mut request: Request,
    ) -> Result<(), Failure> {
        let id = request.id;
        if self.endpoint.was_away(self.begun) {
            self.endpoint.listen().await;
        }
        for _ in 0..MOST_MOVES {
            let peer = self
                .endpoint
                .connect(server)
                .await
                .map_err(|error| Failure::NotSent { request: id, error })?;
            let mut waiting = peer.waiting();
            loop {
                let room = peer.room();
                request.deadline = self.stated_deadline();
                if self.try_send_on(&peer, server, method, &mut request) {
                    return Ok(());
                }
                if !peer.is_usable() {
                    break;
                }
                waiting.room(Peer::request_waits_for(&request), room).await;
            }
        }
        let reason = "its connections end before the request is sent".into();
        Err(Failure::Refused {
            request: id,
            server: server.clone(),
            reason,
        })
    }

    fn note_sent(&self, id: RequestId, peer: &Arc<Peer>) -> bool {
        let mut state = self.lock();
        if state.ended.is_some() {
            return false;
        }
        if let Some(sent) = state.roots.find_mut(&id.path) {
            sent.node = peer.node();
            sent.peer = Some(Arc::clone(peer));
            peer.uses.note_call();
            peer.hold();
        }
        true
    }

    fn note_not_sent(&self, id: RequestId) {
        let mut state = self.lock();
        let ended = state.ended.is_some();
        if let Some(sent) = state.roots.find_mut(&id.path)
            && let Some(peer) = sent.peer.take()
            && !ended
        {
            peer.release();
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.initiator.close();
        if state.ended.is_none() && state.initiator.is_complete() {
            let ended = state.completed();
            self.end(state, ended);
        }
    }

    // What the application takes.

    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<RawAnswer, CallError>>> {
        let mut state = self.lock();
        if let Some(answer) = state.next_answer() {
            let credit = state.take(&answer, self.worth());
            if answer.peer.is_none() {
                *state.own() -= answer.payload.len() as u64 + MESSAGE_COST;
                self.tell();
            }
            drop(state);
            if let (Some((responses, bytes)), Some(peer)) = (credit, &answer.peer) {
                peer.grant_call(self.id, responses, bytes);
            }
            return Poll::Ready(Some(answer.into_result()));
        }
        match &state.ended {
            None => {
                if !state
                    .waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(cx.waker()))
                {
                    state.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Some(Ended::Failed(failure)) if !state.told => {
                let failure = Failure::clone(failure);
                state.told = true;
                // A call that failed fast has said why: the status.
                if self.options.fail_fast && failure == Failure::Aborted {
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(failure.into())))
            }
            Some(_) => Poll::Ready(None),
        }
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.lock().ended.as_ref().map(Ended::outcome)
    }

    fn trace(&self) -> Trace {
        let state = self.lock();
        let rare = state.rare.as_ref();
        let ended_after = rare.and_then(|rare| rare.ended_after);
        let elapsed = ended_after.unwrap_or_else(|| self.begun().elapsed());
        let begun = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let begun = begun.saturating_sub(self.begun().elapsed());
        let answered = rare.map_or(&[][..], |rare| &rare.answered);
        let roots = state.roots.traced();
        trace::assemble(&state.initiator, begun, elapsed, &roots, answered)
    }
}

impl State {
    /// What the next initial request and all that it leads to may use up, if budgets are stated.
    fn share(&mut self) -> Option<Budgets> {
        let allowance = self.allowance()?;
        // Whether there may be one more is decided where all that arrives is counted, too.
        let _ = allowance.spend_request();
        Some(match allowance.announced() {
            1 => allowance.rest(),
            _ => allowance.share(),
        })
    }

    /// Whether who sent an answer shows that it may: by the call's token, or by the connection of one of its requests.
    fn may_answer(
        &self,
        token: Token,
        shown: Option<Token>,
        peer: Option<&Arc<Peer>>,
        path: &Path,
    ) -> bool {
        match (shown, peer) {
            (Some(shown), _) => shown == token,
            (None, Some(peer)) => self.roots.any_over(peer.id, path) || self.sent_before(peer.id),
            (None, None) => false,
        }
    }

    /// Whether an earlier attempt of a request went out on this connection.
    #[cold]
    fn sent_before(&self, connection: u64) -> bool {
        let resending = self.resending();
        resending.is_some_and(|resending| resending.knows(connection))
    }

    fn completed(&self) -> Ended {
        if let Some(loss) = self.losses().first() {
            return Failure::Lost(Box::new(loss.clone())).into();
        }
        Ended::Complete {
            statuses: self.initiator.responses().1,
        }
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    #[inline(never)]
    fn note_answer(&mut self, path: Path, at: Duration) {
        let times = &mut self.rare.get_or_insert_default().answered;
        match times.iter_mut().find(|(known, _)| *known == path) {
            Some(answered) => answered.1 = at,
            None => times.push((path, at)),
        }
    }

    /// The application takes an answer; returns what is to be credited for now. A call that has ended needs no credit.
    fn take(&mut self, answer: &RawAnswer, worth: u64) -> Option<(u64, u64)> {
        let peer = answer.peer.as_ref()?;
        if self.ended.is_some() {
            return None;
        }
        self.credit(peer, answer.payload.len(), worth)
    }

    /// An answer of this size over a connection is out of the way; returns what is to be credited for now.
    fn credit(&mut self, peer: &Peer, size: usize, worth: u64) -> Option<(u64, u64)> {
        let credit = self.credit.get_or_insert_default();
        credit.take(peer.id, size as u64, worth)
    }

    /// A missing request in words.
    fn describe(&self, request: RequestId) -> String {
        let sent = self.roots.find(&request.path);
        // The hops behind the first one are where it was forwarded to.
        let Some(sent) = sent.filter(|_| request.hop == 0) else {
            let watch = self.watch();
            return match watch.and_then(|watch| watch.server_of(&self.initiator, request)) {
                Some(server) => format!("request {request} at {server}"),
                None => format!("request {request} (its server is not known)"),
            };
        };
        let server = &sent.server;
        match (&sent.peer, sent.lost) {
            (None, _) => format!("request {request} (not sent to {server} yet)"),
            (Some(_), true) => format!("request {request} at {server} (its connection has ended)"),
            (Some(_), false) => format!("request {request} at {server}"),
        }
    }
}

/// Of less than 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl RawAnswer {
    fn into_result(self) -> Result<Self, CallError> {
        if !self.status {
            return Ok(self);
        }
        match Status::from_payload(&self.payload) {
            Ok(status) => Err(CallError::Status(status.at(self.request))),
            Err(error) => {
                let error = crate::codec::CodecError::new("status", error.to_string());
                Err(CallError::Decode {
                    request: self.request,
                    error,
                })
            }
        }
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

    /// Sends an initial request; waits until it is accepted for sending.
    ///
    /// # Errors
    ///
    /// The failure of the call: it cannot be sent, or the call has ended.
    ///
    /// # Panics
    ///
    /// If the call is closed.
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
    ///
    /// # Panics
    ///
    /// If the call is closed.
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
        };
        let passed = self.shared.endpoint.intercept(&mut outgoing);
        passed.inspect_err(|failure| self.shared.fail(failure.clone()))?;
        let (mut request, server, method) = self.prepare(outgoing)?;
        let id = request.id;
        if !self.shared.try_send(&server, &method, &mut request) {
            // In a task of its own: the call cannot complete without it, even if this future is dropped.
            let sending = self.send_later(server, &method, request).await;
            sending.unwrap_or(Err(Failure::Closed))?;
        }
        Ok(id)
    }

    #[cold]
    #[inline(never)]
    fn send_later(
        &self,
        server: Address,
        method: &Arc<MethodDefinition>,
        request: Request,
    ) -> JoinHandle<Result<(), Failure>> {
        let (shared, method) = (Arc::clone(&self.shared), Arc::clone(method));
        self.shared.endpoint.runtime.spawn(async move {
            let id = request.id;
            let sent = shared.send(&server, &method, request).await;
            match &sent {
                Err(failure) if shared.is_kept(id, failure) => {
                    shared.send_kept(id).await;
                    return Ok(());
                }
                Err(failure) => shared.fail(failure.clone()),
                Ok(()) => {}
            }
            sent
        })
    }

    /// Sends an initial request at once, or in the background if that has to wait.
    pub(crate) fn send_now(&self, outgoing: Outgoing) {
        let Ok((mut request, server, method)) = self.prepare(outgoing) else {
            return;
        };
        if !self.shared.try_send(&server, &method, &mut request) {
            drop(self.send_later(server, &method, request));
        }
    }

    fn prepare(&self, outgoing: Outgoing) -> Result<Prepared, Failure> {
        self.shared
            .prepare(outgoing)
            .inspect_err(|failure| self.shared.fail(failure.clone()))
    }

    /// Says how many initial requests will come: each gets an equal part of the call's budgets, if these are stated.
    ///
    /// Without, half of them is kept for requests to come, and of the other half the k-th request gets 1/(k(k+1)).
    pub fn share_among(&self, requests: u32) {
        self.shared.share_among(requests);
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
    /// after a failure or an abort when all its requests have stopped or been silent for the ping timeout.
    pub async fn settled(&self) {
        if let Some(attempts) = &self.attempts {
            for attempt in attempts.all() {
                attempt.settled().await;
            }
        }
        self.shared.settled().await;
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.shared.fail(failure);
    }

    pub(crate) fn shared(&self) -> &Arc<CallShared> {
        &self.shared
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
        self.shared.abort();
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
