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
use wallaby_proto::Address;
use wallaby_proto::connection::MethodDefinition;

use self::plan::{Heard, Plan, RetryPolicy};
use crate::call::{CallShared, Outcome, RawAnswer, RawCall};
use crate::client::{Client, Outgoing};
use crate::driver::shared::Undecided;
use crate::error::{CallError, Failure};
use crate::random;
use crate::retry;
use crate::timer::{self, Instant, Sleep};

/// What an application gets next.
type Next = Option<Result<RawAnswer, CallError>>;

/// The attempts of a call.
pub(crate) struct Attempts {
    plan: Plan<RawCall>,
    client: Client,
    method: Arc<MethodDefinition>,
    /// The arguments, kept for a further attempt.
    payload: Bytes,
    begun: Instant,
    /// Attempts that no longer count.
    past: Vec<Arc<CallShared>>,
    /// Until there may be another one.
    due: Option<(Duration, Sleep)>,
    /// How the call has failed, which is told once.
    failure: Option<Failure>,
    told: bool,
    aborted: AtomicBool,
    /// Who drains the endpoint waits until there is no further attempt.
    undecided: Option<Undecided>,
}

impl Attempts {
    /// A call whose first attempt has begun. It has failed if as many are undecided as there may be calls.
    pub(crate) fn begin(
        client: Client,
        server: Address,
        policy: &Arc<RetryPolicy>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> RawCall {
        let undecided = match Undecided::new(client.endpoint()) {
            Ok(undecided) => Some(undecided),
            Err(failure) => return client.failed(failure),
        };
        let time = timer::bounded(client.time());
        let mut attempts = Self {
            plan: Plan::new(Arc::clone(policy), server, client.servers().cloned(), time),
            undecided,
            client: client.kept(),
            method: Arc::clone(method),
            payload,
            begun: Instant::now(),
            past: Vec::new(),
            due: None,
            failure: None,
            told: false,
            aborted: AtomicBool::new(false),
        };
        attempts.begin_next();
        let first = Arc::clone(attempts.plan.racing()[0].handle.shared());
        RawCall::with_attempts(first, attempts)
    }

    pub(crate) fn made(&self) -> u32 {
        self.plan.made()
    }

    /// All attempts.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<CallShared>> {
        let racing = self.plan.racing().iter();
        let racing = racing.map(|attempt| attempt.handle.shared());
        self.past.iter().chain(racing)
    }

    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.all().for_each(|call| call.abort());
    }

    /// How the call ended, if that is settled; `current` is the attempt that counts.
    pub(crate) fn outcome(&self, current: &CallShared) -> Option<Outcome> {
        match &self.failure {
            Some(failure) => Some(Outcome::Failed(failure.clone())),
            None if self.is_aborted() => Some(Outcome::Failed(aborted(current))),
            None if self.plan.delivers() => Some(match current.outcome()? {
                Outcome::Failed(failure) => {
                    Outcome::Failed(self.plan.delivered_and_failed(failure))
                }
                complete @ Outcome::Complete { .. } => complete,
            }),
            None => None,
        }
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// What the application gets next. `current` is changed to the attempt that counts.
    pub(crate) fn poll_next(
        &mut self,
        current: &mut Arc<CallShared>,
        cx: &mut Context<'_>,
    ) -> Poll<Next> {
        loop {
            if let Some(failure) = &self.failure {
                let told = std::mem::replace(&mut self.told, true);
                return Poll::Ready((!told).then(|| Err(failure.clone().into())));
            }
            if self.plan.racing().is_empty() && self.is_aborted() {
                self.failure = Some(aborted(current));
                continue;
            }
            let Poll::Ready((place, next)) = self.poll_racing(cx) else {
                ready!(self.poll_due(cx));
                self.begin_next();
                self.find_current(current);
                continue;
            };
            if let Some(next) = self.hear(place, next, current) {
                return Poll::Ready(next);
            }
        }
    }

    /// What comes next of an attempt, and its place.
    fn poll_racing(&self, cx: &mut Context<'_>) -> Poll<(usize, Next)> {
        for (place, attempt) in self.plan.racing().iter().enumerate() {
            if let Poll::Ready(next) = attempt.handle.shared().poll_next(cx) {
                return Poll::Ready((place, next));
            }
        }
        Poll::Pending
    }

    /// What has come of an attempt, as the application gets it, if it does.
    fn hear(&mut self, place: usize, next: Next, current: &mut Arc<CallShared>) -> Option<Next> {
        let came = match &next {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(_)) | None if self.plan.delivers() => return Some(next),
            Some(Ok(_)) | None => Ok(()),
        };
        // What was not sent has left nothing anywhere, and who waits has much of it.
        let is_unsent = came.as_ref().is_err_and(retry::is_unsent);
        let meters = &self.client.endpoint().meters;
        let now = (self.begun.elapsed(), random::number as fn() -> u64);
        let past = match self.plan.hear(place, came, now, meters) {
            Heard::Delivers(others) => {
                (self.payload, self.undecided) = (Bytes::new(), None);
                self.find_current(current);
                self.past.extend(others.iter().map(shared));
                return Some(next);
            }
            Heard::GoesOn(_) if is_unsent => Vec::new(),
            Heard::GoesOn(failed) => vec![failed],
            Heard::Over(failure, all) => {
                (self.failure, self.undecided) = (Some(failure), None);
                all
            }
        };
        self.note_racing();
        self.past.extend(past.iter().map(shared));
        self.find_current(current);
        None
    }

    fn note_racing(&self) {
        if let Some(undecided) = &self.undecided {
            let racing = self.plan.racing().iter();
            let racing = racing.filter_map(|attempt| attempt.handle.shared().key());
            undecided.race(racing.collect());
        }
    }

    /// The first one that may still deliver is the call now.
    fn find_current(&self, current: &mut Arc<CallShared>) {
        if let Some(first) = self.plan.racing().first() {
            *current = shared(&first.handle);
        }
    }

    /// Ready when there may be another attempt.
    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(due) = self.plan.due() else {
            return Poll::Pending;
        };
        let known = self.due.take().filter(|(at, _)| *at == due);
        let (_, sleep) = self.due.insert(known.unwrap_or_else(|| {
            let at = self.begun + timer::bounded(due);
            (due, timer::sleep_until(at))
        }));
        ready!(Pin::new(sleep).poll(cx));
        self.due = None;
        Poll::Ready(())
    }

    /// The first attempt, or another one, if there may be one now.
    fn begin_next(&mut self) {
        let (now, meters) = (self.begun.elapsed(), &self.client.endpoint().meters);
        self.plan.begin(now, meters, |new| {
            let options = match self.client.next_options() {
                Ok(options) => options,
                Err(failure) => return self.client.failed(failure),
            };
            self.client.send(Outgoing {
                options: match new.time {
                    Some(_) => Arc::new(new.options(&options)),
                    None => options,
                },
                server: new.server,
                method: Arc::clone(&self.method),
                payload: self.payload.clone(),
                attempt: new.number,
                body: None,
                visit: new.visit,
                watches: Vec::new(),
            })
        });
        self.note_racing();
    }
}

fn shared(attempt: &RawCall) -> Arc<CallShared> {
    Arc::clone(attempt.shared())
}

/// The end of a call that its application has given up; `current` is its latest attempt.
fn aborted(current: &CallShared) -> Failure {
    let failure = match current.outcome() {
        Some(Outcome::Failed(failure)) => Some(failure),
        _ => None,
    };
    Plan::<RawCall>::aborted(failure)
}
