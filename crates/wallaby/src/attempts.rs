//! A call of several attempts: made again after a failure (*retry*), or a second time beside a slow one (*hedge*).
//!
//! Each attempt is a call of its own. What makes them is driven by the application that waits for the answers: it needs
//! no task, and ends when the call is dropped. The first answer decides: from then on its attempt is the call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Address;
use wallaby_proto::connection::MethodDefinition;

use crate::budget::RetryBudget;
use crate::call::{CallShared, CallWatch, Outcome, RawAnswer, RawCall, Resend};
use crate::client::{Client, Outgoing};
use crate::error::{AttemptsFailed, CallError, FailedAttempt, Failure, NoMore};
use crate::hedge::Hedge;
use crate::metrics::Meters;
use crate::retry::{self, Retry};
use crate::timer::{self, Instant, Sleep};

/// How a client makes calls again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy {
    pub(crate) retry: Option<Retry>,
    pub(crate) hedge: Option<Hedge>,
    pub(crate) resend: Option<Resend>,
    pub(crate) budget: RetryBudget,
    pub(crate) alternates: Vec<Address>,
}

impl Policy {
    /// Whether calls may have several attempts.
    pub(crate) fn has_attempts(&self) -> bool {
        self.retry.is_some() || self.hedge.is_some()
    }
}

/// What an application gets next.
type Next = Option<Result<RawAnswer, CallError>>;

/// The attempts of a call.
pub(crate) struct Attempts {
    client: Client,
    policy: Arc<Policy>,
    method: Arc<MethodDefinition>,
    /// The arguments, kept for a further attempt.
    payload: Bytes,
    begun: Instant,
    /// The call's, whatever its attempts have.
    deadline: Instant,
    made: u32,
    /// Those of them that were made while the call waited for a server.
    waited: u32,
    /// Since when no attempt was sent.
    unsent: Option<Instant>,
    /// Attempts that may still deliver: one, or two once the call is hedged.
    racing: Vec<Attempt>,
    /// Attempts that no longer count.
    past: Vec<Arc<CallShared>>,
    failed: Vec<FailedAttempt>,
    /// How many failed before these.
    untold: u32,
    phase: Phase,
    /// When the call is hedged.
    hedge: Option<Sleep>,
    aborted: AtomicBool,
}

/// The shortest pause while a call waits for a server.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);

/// Most attempts before the last that are told of.
const MOST_TOLD: usize = 63;

struct Attempt {
    /// 0 for the first.
    number: u32,
    server: Address,
    call: RawCall,
    hedged: bool,
}

enum Phase {
    /// No attempt has delivered anything yet.
    Racing,
    /// The last attempt has failed; the next one begins after a while.
    Pausing(Sleep),
    /// One of them has delivered an answer.
    Delivering,
    /// The call is over. A failure is told once.
    Over {
        outcome: Option<Outcome>,
        told: bool,
    },
}

impl Attempts {
    /// A call whose first attempt has begun.
    pub(crate) fn begin(
        client: Client,
        policy: &Arc<Policy>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> RawCall {
        policy.budget.pay_in();
        let begun = Instant::now();
        let time = client.time();
        let mut attempts = Self {
            client: client.kept(),
            policy: Arc::clone(policy),
            method: Arc::clone(method),
            payload,
            begun,
            deadline: begun + timer::bounded(time),
            made: 0,
            waited: 0,
            unsent: None,
            racing: Vec::with_capacity(1),
            past: Vec::new(),
            failed: Vec::new(),
            untold: 0,
            phase: Phase::Racing,
            hedge: None,
            aborted: AtomicBool::new(false),
        };
        let after = attempts.hedge_after();
        attempts.hedge = after.map(|after| timer::sleep_until(begun + after));
        let first = attempts.attempt(false);
        RawCall::with_attempts(first, attempts)
    }

    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// All attempts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<CallShared>> {
        let racing = self.racing.iter().map(|attempt| attempt.call.shared());
        self.past.iter().chain(racing)
    }

    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.all().for_each(|call| call.abort());
    }

    /// How the call ended, if that is settled; `current` is the attempt that counts.
    pub(crate) fn outcome(&self, current: &CallShared) -> Option<Outcome> {
        match &self.phase {
            Phase::Over {
                outcome: Some(outcome),
                ..
            } => Some(outcome.clone()),
            Phase::Over { outcome: None, .. } => current.outcome(),
            _ if self.aborted.load(Ordering::Relaxed) => Some(Outcome::Failed(aborted(current))),
            Phase::Delivering => match current.outcome()? {
                Outcome::Failed(failure) => Some(self.delivered_and_failed(failure)),
                complete @ Outcome::Complete { .. } => Some(complete),
            },
            Phase::Racing | Phase::Pausing(_) => None,
        }
    }

    /// What the application gets next. `current` is changed to the attempt that counts.
    pub(crate) fn poll_next(
        &mut self,
        current: &mut Arc<CallShared>,
        cx: &mut Context<'_>,
    ) -> Poll<Next> {
        loop {
            match &mut self.phase {
                Phase::Racing => {
                    if let Poll::Ready(next) = self.poll_race(current, cx) {
                        match next {
                            Some(next) => return Poll::Ready(next),
                            None => continue,
                        }
                    }
                    ready!(self.poll_hedge(cx));
                    self.begin_hedge();
                }
                Phase::Pausing(sleep) => {
                    if self.aborted.load(Ordering::Relaxed) {
                        self.fail(aborted(current));
                        continue;
                    }
                    ready!(Pin::new(sleep).poll(cx));
                    *current = self.begin_again();
                }
                Phase::Delivering => {
                    let next = ready!(current.poll_next(cx));
                    let Some(Err(CallError::Failed(failure))) = next else {
                        return Poll::Ready(next);
                    };
                    let outcome = Some(self.delivered_and_failed(failure));
                    self.phase = Phase::Over {
                        outcome,
                        told: false,
                    };
                }
                Phase::Over { outcome, told } => {
                    let told = std::mem::replace(told, true);
                    let failure = match outcome {
                        Some(Outcome::Failed(failure)) if !told => Some(failure.clone()),
                        _ => None,
                    };
                    return Poll::Ready(failure.map(|failure| Err(failure.into())));
                }
            }
        }
    }

    /// The pause is over.
    fn begin_again(&mut self) -> Arc<CallShared> {
        self.phase = Phase::Racing;
        self.meters().retries.add();
        let after = self.hedge_after();
        if let (Some(hedge), Some(after)) = (&mut self.hedge, after) {
            hedge.reset(Instant::now() + after);
        }
        self.attempt(false)
    }

    /// How long an attempt may take before another one is made beside it.
    fn hedge_after(&self) -> Option<Duration> {
        let hedge = self.policy.hedge.as_ref()?;
        Some(timer::bounded(hedge.after()))
    }

    /// Begins an attempt.
    fn attempt(&mut self, hedged: bool) -> Arc<CallShared> {
        let number = self.made;
        let (server, watches) = self.towards(number);
        let at = server.clone();
        let mut options = self.client.options();
        if number > 0 {
            Arc::make_mut(&mut options).deadline =
                Some(self.deadline.saturating_duration_since(Instant::now()));
        }
        if let Some(each) = self.policy.retry.as_ref().and_then(|retry| retry.each) {
            let options = Arc::make_mut(&mut options);
            options.deadline = Some(options.deadline.map_or(each, |left| left.min(each)));
        }
        let call = self.client.send(Outgoing {
            server,
            method: Arc::clone(&self.method),
            payload: self.payload.clone(),
            options,
            attempt: number,
            body: None,
            watches,
        });
        self.made += 1;
        let shared = Arc::clone(call.shared());
        self.racing.push(Attempt {
            number,
            server: at,
            call,
            hedged,
        });
        shared
    }

    /// The server of an attempt, and who wants to know how that ends: servers take turns, or are drawn.
    fn towards(&self, number: u32) -> (Address, Vec<CallWatch>) {
        if self.client.servers().is_some() {
            let failed = self.failed.iter().map(|failed| &failed.server);
            let racing = self.racing.iter().map(|attempt| &attempt.server);
            let tried: Vec<Address> = failed.chain(racing).cloned().collect();
            return self.client.towards(&tried);
        }
        (self.in_turn(number), Vec::new())
    }

    fn in_turn(&self, number: u32) -> Address {
        let alternates = &self.policy.alternates;
        match (number as usize % (alternates.len() + 1)).checked_sub(1) {
            Some(number) => alternates[number].clone(),
            None => self.client.server().clone(),
        }
    }

    /// Looks at all attempts that may deliver; ready with what the application gets, or with nothing if the race is over
    /// without that.
    fn poll_race(
        &mut self,
        current: &mut Arc<CallShared>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Next>> {
        let mut place = 0;
        while let Some(attempt) = self.racing.get(place) {
            let Poll::Ready(next) = attempt.call.shared().poll_next(cx) else {
                place += 1;
                continue;
            };
            match next {
                Some(Err(error)) if self.is_retried(&error) => self.lose(place, error),
                Some(Err(CallError::Failed(failure))) => self.fail_at(place, failure),
                next => {
                    self.win(place, current, next.is_none());
                    return Poll::Ready(Some(next));
                }
            }
            match self.racing.first() {
                // The other one may still deliver, and is the call now.
                Some(other) => *current = Arc::clone(other.call.shared()),
                None => return Poll::Ready(None),
            }
        }
        Poll::Pending
    }

    /// Whether an error that came in place of the first answer ends only its attempt.
    fn is_retried(&self, error: &CallError) -> bool {
        let in_time = Instant::now() < self.deadline;
        match (&self.policy.retry, error) {
            (Some(retry), CallError::Failed(Failure::Deadline { .. })) => {
                retry.retries_late() && in_time
            }
            (Some(retry), error) => retry.retries(error),
            (None, error) => self.racing.len() > 1 && retry::is_loss(error),
        }
    }

    /// An attempt delivers: the others are aborted.
    fn win(&mut self, place: usize, current: &mut Arc<CallShared>, over: bool) {
        let attempt = self.racing.swap_remove(place);
        *current = Arc::clone(attempt.call.shared());
        self.end_race();
        if attempt.hedged {
            self.meters().hedges_won.add();
        }
        if self.made > 1 {
            tracing::debug!(call = %current.id, attempt = attempt.number, made = self.made, "the attempt that delivers");
        }
        self.phase = match over {
            true => Phase::Over {
                outcome: None,
                told: true,
            },
            false => Phase::Delivering,
        };
        // It lives on as `current`; only what is dropped with the call aborts it.
        self.racing.push(attempt);
        self.payload = Bytes::new();
    }

    /// An attempt has failed in a way that another one may mend.
    fn lose(&mut self, place: usize, error: CallError) {
        let attempt = self.racing.remove(place);
        let server = attempt.server;
        if let (Some(servers), CallError::Status(_)) = (self.client.servers(), &error) {
            servers.leave_out(&server); // it is about to close
        }
        tracing::debug!(call = %attempt.call.id(), attempt = attempt.number, %server, %error, "an attempt failed");
        // What was not sent has left nothing anywhere, and who waits has much of it.
        if !retry::is_unsent(&error) {
            self.past.push(Arc::clone(attempt.call.shared()));
        }
        if self.racing.is_empty() {
            match self.pause(&error) {
                Ok(pause) => self.phase = Phase::Pausing(timer::sleep_until(pause)),
                Err(why) => return self.fail(self.all_failed(error, why)),
            }
        }
        // Who waits long has many: the latest are told.
        if self.failed.len() == MOST_TOLD {
            self.failed.remove(0);
            self.untold += 1;
        }
        self.failed.push(FailedAttempt {
            server,
            error: brief(&error),
        });
    }

    /// An attempt has failed for good.
    fn fail_at(&mut self, place: usize, failure: Failure) {
        let attempt = self.racing.remove(place);
        self.past.push(Arc::clone(attempt.call.shared()));
        self.end_race();
        let of_attempts = failure.is_loss() || matches!(failure, Failure::Deadline { .. });
        if self.made > 1 && of_attempts {
            let why = match failure {
                Failure::Deadline { .. } => NoMore::Deadline,
                _ => NoMore::Limit,
            };
            return self.fail(self.all_failed(failure.into(), why));
        }
        self.fail(failure);
    }

    /// No attempt counts any more.
    fn end_race(&mut self) {
        self.hedge = None;
        for attempt in std::mem::take(&mut self.racing) {
            self.past.push(Arc::clone(attempt.call.shared()));
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.phase = Phase::Over {
            outcome: Some(Outcome::Failed(failure)),
            told: false,
        };
    }

    /// When the next attempt may begin.
    fn pause(&mut self, error: &CallError) -> Result<Instant, NoMore> {
        let retry = self.policy.retry.as_ref().ok_or(NoMore::Limit)?;
        let (now, wait) = (Instant::now(), retry.waits(error));
        let at = now + timer::bounded(retry.pause(self.made, random()));
        if at >= self.deadline {
            return Err(NoMore::Deadline);
        }
        if wait.is_zero() {
            self.unsent = None;
        } else {
            let since = *self.unsent.get_or_insert(now);
            let is_over = now.duration_since(since) >= wait;
            self.waited += u32::from(!is_over);
            return match is_over {
                true => Err(NoMore::Absent),
                false => Ok(at.max(now + SHORTEST_WAIT)),
            };
        }
        if self.made - self.waited >= retry.most(self.client.servers()) {
            return Err(NoMore::Limit);
        }
        // The next attempt goes to another server, and this one has nothing to do for it.
        let is_free = self.client.servers().is_some() && retry::is_unsent(error);
        if !is_free && !self.policy.budget.take() {
            self.meters().retries_over_budget.add();
            return Err(NoMore::Budget);
        }
        Ok(at)
    }

    /// Ready when the call is to be hedged.
    fn poll_hedge(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.hedge {
            Some(hedge) => {
                ready!(Pin::new(hedge).poll(cx));
                self.hedge = None;
                Poll::Ready(())
            }
            None => Poll::Pending,
        }
    }

    fn begin_hedge(&mut self) {
        let servers = self.client.servers();
        let most = (self.policy.retry.as_ref()).map(|retry| retry.most(servers));
        let is_late = Instant::now() >= self.deadline;
        if self.racing.len() != 1
            || is_late
            || most.is_some_and(|most| self.made - self.waited >= most)
        {
            return;
        }
        if !self.policy.budget.take() {
            return self.meters().retries_over_budget.add();
        }
        let second = self.attempt(true);
        self.meters().hedges.add();
        tracing::debug!(call = %second.id, after = ?self.begun.elapsed(), "a second attempt beside a slow one");
    }

    /// How the call ends when the attempt that has delivered fails.
    fn delivered_and_failed(&self, failure: Failure) -> Outcome {
        let may_retry = self.policy.retry.is_some() && failure.is_loss();
        Outcome::Failed(match may_retry {
            true => self.all_failed(failure.into(), NoMore::Delivered),
            false => failure,
        })
    }

    fn all_failed(&self, last: CallError, why: NoMore) -> Failure {
        Failure::Attempts(Box::new(AttemptsFailed {
            made: self.made,
            why,
            untold: self.untold,
            before: self.failed.clone(),
            last,
        }))
    }

    fn meters(&self) -> &Meters {
        &self.client.endpoint().meters
    }
}

/// Any number; the largest if the system has none.
fn random() -> u64 {
    crate::random::bytes().map_or(u64::MAX, u64::from_ne_bytes)
}

/// An error in a few words.
fn brief(error: &CallError) -> String {
    match error {
        CallError::Status(status) => status.code().to_string(),
        CallError::Failed(Failure::NotSent { error, .. }) => error.to_string(),
        CallError::Failed(Failure::Lost(loss)) => format!("request {} {}", loss.request, loss.kind),
        CallError::Failed(Failure::Deadline { after, .. }) => format!("no end within {after:?}"),
        other => other.to_string(),
    }
}

/// The end of a call that its application has given up; `current` is its latest attempt.
fn aborted(current: &CallShared) -> Failure {
    match current.outcome() {
        Some(Outcome::Failed(failure @ Failure::Aborted { .. })) => failure,
        _ => Failure::aborted(),
    }
}
