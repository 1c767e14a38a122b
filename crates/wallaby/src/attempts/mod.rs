//! A call of several attempts: made again after a failure (*retry*), or a second time beside a slow one (*hedge*).
//!
//! Each attempt is a call of its own. What makes them is driven by the application that waits for the answers: it needs
//! no task, and ends when the call is dropped. The first answer decides: from then on its attempt is the call. When there is an
//! attempt, and what its failure means, says a [`Plan`], here as for endpoints that the application turns.

pub(crate) mod plan;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;

use self::plan::{NewAttempt, Plan, RetryPolicy, Verdict};
use crate::call::{CallShared, Outcome, RawAnswer, RawCall};
use crate::client::{Client, Outgoing};
use crate::error::{CallError, Failure};
use crate::timer::{self, Instant, Sleep};
use crate::{random, retry};

/// What an application gets next.
type Next = Option<Result<RawAnswer, CallError>>;

/// The attempts of a call.
pub(crate) struct Attempts {
    plan: Plan,
    client: Client,
    method: Arc<MethodDefinition>,
    /// The arguments, kept for a further attempt.
    payload: Bytes,
    begun: Instant,
    /// Attempts that may still deliver, with their numbers.
    racing: Vec<(u32, RawCall)>,
    /// Attempts that no longer count.
    past: Vec<Arc<CallShared>>,
    phase: Phase,
    /// Until the call is hedged.
    hedge: Option<Sleep>,
    aborted: AtomicBool,
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
        policy: &Arc<RetryPolicy>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> RawCall {
        let time = timer::bounded(client.time());
        let mut attempts = Self {
            plan: Plan::new(
                Arc::clone(policy),
                client.server().clone(),
                client.servers().cloned(),
                time,
            ),
            client: client.kept(),
            method: Arc::clone(method),
            payload,
            begun: Instant::now(),
            racing: Vec::with_capacity(1),
            past: Vec::new(),
            phase: Phase::Racing,
            hedge: None,
            aborted: AtomicBool::new(false),
        };
        let first = attempts.begin_next();
        RawCall::with_attempts(first, attempts)
    }

    pub(crate) fn made(&self) -> u32 {
        self.plan.made()
    }

    /// All attempts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<CallShared>> {
        let racing = self.racing.iter().map(|(_, call)| call.shared());
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
            Phase::Delivering => Some(match current.outcome()? {
                Outcome::Failed(failure) => {
                    Outcome::Failed(self.plan.delivered_and_failed(failure))
                }
                complete @ Outcome::Complete { .. } => complete,
            }),
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
                }
                Phase::Pausing(sleep) => {
                    if self.aborted.load(Ordering::Relaxed) {
                        self.fail(aborted(current));
                        continue;
                    }
                    ready!(Pin::new(sleep).poll(cx));
                    self.phase = Phase::Racing;
                    *current = self.begin_next();
                }
                Phase::Delivering => {
                    let next = ready!(current.poll_next(cx));
                    let Some(Err(CallError::Failed(failure))) = next else {
                        return Poll::Ready(next);
                    };
                    self.fail(self.plan.delivered_and_failed(failure));
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

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn at(&self, time: Duration) -> Sleep {
        timer::sleep_until(self.begun + timer::bounded(time))
    }

    /// The first attempt, or the one after a pause.
    fn begin_next(&mut self) -> Arc<CallShared> {
        let new = self.plan.begin(self.now(), &self.client.endpoint().meters);
        self.hedge = self.plan.hedge_at().map(|at| self.at(at));
        self.send(new)
    }

    fn send(&mut self, new: NewAttempt) -> Arc<CallShared> {
        let mut options = self.client.options();
        if new.time.is_some() {
            options = Arc::new(new.options(&options));
        }
        let call = self.client.send(Outgoing {
            server: new.server,
            method: Arc::clone(&self.method),
            payload: self.payload.clone(),
            options,
            attempt: new.number,
            body: None,
            visit: new.visit,
            watches: Vec::new(),
        });
        let shared = Arc::clone(call.shared());
        self.racing.push((new.number, call));
        shared
    }

    /// Looks at all attempts that may deliver; ready with what the application gets, or with nothing if the race is over
    /// without that.
    fn poll_race(
        &mut self,
        current: &mut Arc<CallShared>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Next>> {
        let mut place = 0;
        while let Some((number, call)) = self.racing.get(place) {
            let number = *number;
            let Poll::Ready(next) = call.shared().poll_next(cx) else {
                place += 1;
                continue;
            };
            let now = self.now();
            let error = match next {
                Some(Err(error))
                    if matches!(error, CallError::Failed(_))
                        || self.plan.is_retried(&error, now) =>
                {
                    error
                }
                next => {
                    self.win(place, current, next.is_none());
                    return Poll::Ready(Some(next));
                }
            };
            let meters = &self.client.endpoint().meters;
            // What was not sent has left nothing anywhere, and who waits has much of it.
            let is_unsent = retry::is_unsent(&error);
            let verdict = self.plan.fail(number, error, now, random::number(), meters);
            let (_, call) = self.racing.remove(place);
            let is_over = matches!(verdict, Verdict::Over(_));
            if is_over || !is_unsent {
                self.past.push(Arc::clone(call.shared()));
            }
            match verdict {
                Verdict::Beside => {}
                Verdict::Again(at) => self.phase = Phase::Pausing(self.at(at)),
                Verdict::Over(failure) => {
                    self.end_race();
                    self.fail(failure);
                }
            }
            match self.racing.first() {
                // The other one may still deliver, and is the call now.
                Some((_, other)) => *current = Arc::clone(other.shared()),
                None => return Poll::Ready(None),
            }
        }
        Poll::Pending
    }

    /// An attempt delivers: the others are aborted.
    fn win(&mut self, place: usize, current: &mut Arc<CallShared>, over: bool) {
        let attempt = self.racing.swap_remove(place);
        *current = Arc::clone(attempt.1.shared());
        self.end_race();
        self.plan.win(attempt.0, &self.client.endpoint().meters);
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

    /// No attempt counts any more.
    fn end_race(&mut self) {
        self.hedge = None;
        for (_, call) in std::mem::take(&mut self.racing) {
            self.past.push(Arc::clone(call.shared()));
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.phase = Phase::Over {
            outcome: Some(Outcome::Failed(failure)),
            told: false,
        };
    }

    /// Ready when there is a second attempt.
    fn poll_hedge(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(hedge) = &mut self.hedge else {
            return Poll::Pending;
        };
        ready!(Pin::new(hedge).poll(cx));
        self.hedge = None;
        let second = self.plan.hedge(self.now(), &self.client.endpoint().meters);
        if let Some(second) = second {
            self.send(second);
        }
        Poll::Ready(())
    }
}

/// The end of a call that its application has given up; `current` is its latest attempt.
fn aborted(current: &CallShared) -> Failure {
    match current.outcome() {
        Some(Outcome::Failed(failure @ Failure::Aborted { .. })) => failure,
        _ => Failure::aborted(),
    }
}
