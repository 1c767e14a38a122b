//! The attempts of a call: it is told what comes of each, and says what becomes of the call and when there is another one. It has no
//! clock and draws no numbers: all times are since the call began, and its driver has a source of random numbers for it.

use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::Address;

use crate::body::Body;
use crate::budget::RetryBudget;
use crate::call::{CallOptions, Resend};
use crate::error::{AttemptsFailed, CallError, FailedAttempt, Failure, NoMore};
use crate::hedge::Hedge;
use crate::metrics::Meters;
use crate::retry::{self, Retry};
use crate::servers::{Servers, Visit};

/// How calls are made again that have failed or are slow, and at which servers. A [`Client`](crate::Client) is told the same by
/// methods of the same names.
///
/// ```
/// # use std::time::Duration;
/// # use wallaby::{Address, Hedge, Retry};
/// # use wallaby::polling::RetryPolicy;
/// # fn example(other: Address) {
/// let policy = RetryPolicy::default()
///     .retry(Retry::idempotent(3))
///     .hedge(Hedge::idempotent(Duration::from_millis(50)))
///     .alternates([other]);
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[cfg_attr(
    not(target_os = "linux"),
    expect(
        unreachable_pub,
        reason = "the polling driver names it, which other systems do not have"
    )
)]
pub struct RetryPolicy {
    pub(crate) retry: Option<Retry>,
    pub(crate) hedge: Option<Hedge>,
    pub(crate) resend: Option<Resend>,
    pub(crate) budget: RetryBudget,
    pub(crate) alternates: Vec<Address>,
}

#[cfg_attr(
    not(target_os = "linux"),
    expect(
        dead_code,
        unreachable_pub,
        reason = "the polling driver names it, which other systems do not have"
    )
)]
impl RetryPolicy {
    /// Makes calls again that have failed: see [`Client::retry`](crate::Client::retry).
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Makes a second attempt beside calls that take long: see [`Client::hedge`](crate::Client::hedge).
    #[must_use]
    pub fn hedge(mut self, hedge: Hedge) -> Self {
        self.hedge = Some(hedge);
        self
    }

    /// How many further attempts all calls of this policy may make: see [`Client::retry_budget`](crate::Client::retry_budget).
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Further servers that can do the same: see [`Client::alternates`](crate::Client::alternates).
    #[must_use]
    pub fn alternates(mut self, servers: impl IntoIterator<Item = impl Into<Address>>) -> Self {
        self.alternates = servers.into_iter().map(Into::into).collect();
        self
    }

    /// Whether this is for a call that has this body. One with a body is made once: a body can be read once.
    pub(crate) fn is_for(body: Option<&Body>) -> bool {
        body.is_none()
    }

    /// Whether calls may have several attempts.
    pub(crate) fn has_attempts(&self) -> bool {
        self.retry.is_some() || self.hedge.is_some()
    }
}

/// The shortest pause while a call waits for a server.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);

/// Most attempts before the last that are told of.
const MOST_TOLD: usize = 63;

/// The attempts of a call so far, and when there is another one. `A` is what its driver knows an attempt by.
#[derive(Debug)]
pub(crate) struct Plan<A> {
    policy: Arc<RetryPolicy>,
    server: Address,
    /// Those of which each attempt goes to one.
    servers: Option<Servers>,
    /// The call's, whatever its attempts have.
    deadline: Duration,
    made: u32,
    /// Those of them that were made while the call waited for a server.
    waited: u32,
    /// Since when no attempt was sent.
    unsent: Option<Duration>,
    /// Attempts that may still deliver: one, two once the call is hedged, and none while it pauses.
    racing: Vec<Attempt<A>>,
    /// One has delivered: it is the call.
    delivers: bool,
    failed: Vec<FailedAttempt>,
    /// How many failed before these.
    untold: u32,
    /// When the next attempt begins, after the last one has failed.
    again_at: Option<Duration>,
    /// When the call is hedged.
    hedge_at: Option<Duration>,
}

/// One that has begun.
#[derive(Debug)]
pub(crate) struct Attempt<A> {
    number: u32,
    server: Address,
    hedged: bool,
    pub(crate) handle: A,
}

/// One that is to begin now.
pub(crate) struct NewAttempt {
    /// 0 for the first.
    pub(crate) number: u32,
    pub(crate) server: Address,
    /// The same, if it is one of several: they want to know how the attempt ends.
    pub(crate) visit: Option<Arc<Visit>>,
    /// How much time it has, if not as much as the client says.
    pub(crate) time: Option<Duration>,
}

/// What follows from what has come of an attempt.
#[derive(Debug)]
pub(crate) enum Heard<A> {
    /// It is the call, and what has come is the application's. These others do not count any more.
    Delivers(Vec<A>),
    /// This one has failed, and the call goes on: another one may deliver, now or later.
    GoesOn(A),
    /// The call has failed. These were its attempts to the last.
    Over(Failure, Vec<A>),
}

impl NewAttempt {
    /// The call's options with the attempt's time.
    pub(crate) fn options(&self, of_call: &CallOptions) -> CallOptions {
        let mut options = of_call.clone();
        if let Some(time) = self.time {
            options.deadline = Some(options.deadline.map_or(time, |own| own.min(time)));
        }
        options
    }
}

impl<A> Plan<A> {
    /// The plan of a call to this server.
    pub(crate) fn new(
        policy: Arc<RetryPolicy>,
        server: Address,
        servers: Option<Servers>,
        deadline: Duration,
    ) -> Self {
        policy.budget.pay_in();
        Self {
            policy,
            server,
            servers,
            deadline,
            made: 0,
            waited: 0,
            unsent: None,
            racing: Vec::with_capacity(1),
            delivers: false,
            failed: Vec::new(),
            untold: 0,
            again_at: None,
            hedge_at: None,
        }
    }

    /// How many attempts were made.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// Whether an attempt has delivered something.
    pub(crate) fn delivers(&self) -> bool {
        self.delivers
    }

    /// The attempts that may still deliver.
    pub(crate) fn racing(&self) -> &[Attempt<A>] {
        &self.racing
    }

    /// None of them counts any more.
    pub(crate) fn give_up(&mut self) -> Vec<A> {
        let racing = std::mem::take(&mut self.racing).into_iter();
        racing.map(|attempt| attempt.handle).collect()
    }

    /// When there may be another attempt.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.again_at.or(self.hedge_at)
    }

    /// Makes the first attempt, or another one that is [due](Self::due): after a pause, or beside one that is slow, if there may be
    /// one. Whether or not it can be sent it is one of those that [race](Self::racing).
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        meters: &Meters,
        make: impl FnOnce(NewAttempt) -> A,
    ) {
        if self.made > 0 && self.again_at.take().is_none() {
            if self.hedge_at.take().is_some() && self.may_hedge(now, meters) {
                self.add(now, true, make);
            }
            return;
        }
        let hedge = self.policy.hedge.as_ref();
        // A call is hedged once.
        let hedge = hedge.filter(|_| self.made == 0 || self.hedge_at.is_some());
        self.hedge_at = hedge.map(|hedge| now.saturating_add(hedge.after()));
        if self.made > 0 {
            meters.retries.add();
        }
        self.add(now, false, make);
    }

    /// Whether there may be an attempt beside the other one.
    fn may_hedge(&self, now: Duration, meters: &Meters) -> bool {
        let is_late = now >= self.deadline;
        if self.racing.len() != 1 || is_late || !self.may_go_on(None) {
            return false;
        }
        let may = self.policy.budget.take();
        match may {
            true => meters.hedges.add(),
            false => meters.retries_over_budget.add(),
        }
        may
    }

    fn add(&mut self, now: Duration, hedged: bool, make: impl FnOnce(NewAttempt) -> A) {
        let number = self.made;
        let left = self.deadline.saturating_sub(now);
        let each = self.policy.retry.as_ref().and_then(|retry| retry.each);
        let time = match (each, number) {
            (Some(each), _) => Some(each.min(left)),
            (None, 0) => None,
            (None, _) => Some(left),
        };
        let visit = (self.servers.as_ref()).map(|servers| servers.visit(&self.tried()));
        let server = match &visit {
            Some(visit) => visit.server().clone(),
            None => self.in_turn(number),
        };
        if hedged {
            tracing::debug!(%server, after = ?now, "a second attempt beside a slow one");
        }
        self.made += 1;
        let handle = make(NewAttempt {
            number,
            server: server.clone(),
            visit,
            time,
        });
        self.racing.push(Attempt {
            number,
            server,
            hedged,
            handle,
        });
    }

    /// The servers of all attempts so far.
    fn tried(&self) -> Vec<Address> {
        let failed = self.failed.iter().map(|failed| &failed.server);
        let racing = self.racing.iter().map(|attempt| &attempt.server);
        failed.chain(racing).cloned().collect()
    }

    /// Whether a further attempt is allowed after one that has `failed` just now, if so; its time and the budget apart.
    fn may_go_on(&self, failed: Option<&Address>) -> bool {
        let Some(retry) = &self.policy.retry else {
            return true;
        };
        let servers = self.servers.as_ref().filter(|_| retry.once_each);
        let tried = || {
            self.tried()
                .into_iter()
                .chain(failed.cloned())
                .collect::<Vec<_>>()
        };
        let has_another = servers.is_none_or(|servers| servers.has_another(&tried()));
        self.made - self.waited < retry.attempts && has_another
    }

    fn in_turn(&self, number: u32) -> Address {
        let alternates = &self.policy.alternates;
        match (number as usize % (alternates.len() + 1)).checked_sub(1) {
            Some(number) => alternates[number].clone(),
            None => self.server.clone(),
        }
    }

    /// Whether an error that came in place of the first answer ends only its attempt. If not, a status is what the attempt delivers.
    fn is_retried(&self, error: &CallError, now: Duration) -> bool {
        if self.racing.len() > 1 && retry::is_no_answer(error) {
            return true;
        }
        match (&self.policy.retry, error) {
            (Some(retry), CallError::Failed(Failure::Deadline { .. })) => {
                retry.retries_late() && now < self.deadline
            }
            (Some(retry), error) => retry.retries(error),
            (None, _) => false,
        }
    }

    /// An answer of the attempt at this place among those that [race](Self::racing), an error in place of one, or its end: without an
    /// error, if all has come that was to come. `random` is asked for a number if another attempt follows.
    pub(crate) fn hear(
        &mut self,
        place: usize,
        came: Result<(), CallError>,
        (now, random): (Duration, fn() -> u64),
        meters: &Meters,
    ) -> Heard<A> {
        match came {
            Err(CallError::Failed(failure)) if self.delivers => {
                Heard::Over(self.delivered_and_failed(failure), self.give_up())
            }
            _ if self.delivers => Heard::Delivers(Vec::new()),
            Err(error) if error.failure().is_some() || self.is_retried(&error, now) => {
                self.fail(place, error, (now, random), meters)
            }
            _ => Heard::Delivers(self.win(place, meters)),
        }
    }

    /// An attempt has failed before it delivered anything.
    fn fail(
        &mut self,
        place: usize,
        error: CallError,
        (now, random): (Duration, fn() -> u64),
        meters: &Meters,
    ) -> Heard<A> {
        // How an attempt fails says nothing of the one beside it, unless the time of both is over.
        let is_over =
            matches!(error, CallError::Failed(Failure::Deadline { .. })) && now >= self.deadline;
        let is_beside = self.racing.len() > 1 && !is_over;
        let is_retried = is_beside || self.is_retried(&error, now);
        let attempt = self.racing.remove(place);
        let (number, server) = (attempt.number, &attempt.server);
        let next = match &error {
            CallError::Failed(failure) if !is_retried => {
                Err(self.failed_for_good(failure.clone(), now))
            }
            _ => {
                tracing::debug!(attempt = number, %server, %error, "an attempt failed");
                let next = match self.racing.is_empty() {
                    false => Ok(None),
                    true => self.next((server, &error), (now, random), meters).map(Some),
                };
                next.map_err(|why| self.all_failed(error.clone(), why))
            }
        };
        match next {
            Ok(at) => self.again_at = at,
            Err(failure) => {
                let mut all = self.give_up();
                all.push(attempt.handle);
                return Heard::Over(failure, all);
            }
        }
        // Who waits long has many: the latest are told.
        if self.failed.len() == MOST_TOLD {
            self.failed.remove(0);
            self.untold += 1;
        }
        let failed = FailedAttempt::new(attempt.server, brief(&error));
        self.failed.push(failed);
        Heard::GoesOn(attempt.handle)
    }

    /// No further attempt could mend this.
    fn failed_for_good(&self, failure: Failure, now: Duration) -> Failure {
        let why = match failure {
            Failure::Deadline { .. } if now >= self.deadline => NoMore::Deadline,
            Failure::Deadline { .. } => NoMore::Executed,
            Failure::Refused { .. } => return failure, // this endpoint has too much to send
            _ if failure.is_loss() && self.policy.retry.is_some() => NoMore::Executed,
            _ if failure.is_loss() => NoMore::Limit,
            _ => return failure,
        };
        match self.made {
            0 | 1 => failure,
            _ => self.all_failed(failure.into(), why),
        }
    }

    /// When the next attempt may begin.
    fn next(
        &mut self,
        (server, error): (&Address, &CallError),
        (now, random): (Duration, fn() -> u64),
        meters: &Meters,
    ) -> Result<Duration, NoMore> {
        let retry = self.policy.retry.as_ref().ok_or(NoMore::Limit)?;
        let wait = retry.waits(error);
        let at = now.saturating_add(retry.pause(self.made, random()));
        if at >= self.deadline {
            return Err(NoMore::Deadline);
        }
        if wait.is_zero() {
            self.unsent = None;
        } else {
            let since = *self.unsent.get_or_insert(now);
            let is_over = now.saturating_sub(since) >= wait;
            self.waited += u32::from(!is_over);
            return match is_over {
                true => Err(NoMore::Absent),
                false => Ok(at.max(now.saturating_add(SHORTEST_WAIT))),
            };
        }
        if !self.may_go_on(Some(server)) {
            return Err(NoMore::Limit);
        }
        // The next attempt goes to another server, and this one has nothing to do for it.
        let is_free = self.servers.is_some() && retry::is_free(error);
        if !is_free && !self.policy.budget.take() {
            meters.retries_over_budget.add();
            return Err(NoMore::Budget);
        }
        Ok(at)
    }

    /// An attempt delivers: from now on it is the call, and no other counts.
    fn win(&mut self, place: usize, meters: &Meters) -> Vec<A> {
        (self.delivers, self.hedge_at) = (true, None);
        let winner = self.racing.remove(place);
        if winner.hedged {
            meters.hedges_won.add();
        }
        if self.made > 1 {
            tracing::debug!(
                attempt = winner.number,
                made = self.made,
                "the attempt that delivers"
            );
        }
        let others = self.give_up();
        self.racing.push(winner);
        others
    }

    /// How the call fails when the attempt that has delivered does.
    pub(crate) fn delivered_and_failed(&self, failure: Failure) -> Failure {
        match self.policy.retry.is_some() && failure.is_loss() {
            true => self.all_failed(failure.into(), NoMore::Delivered),
            false => failure,
        }
    }

    /// How the call fails that its application has given up: as the attempt that counts, if that was aborted then.
    pub(crate) fn aborted(attempt: Option<Failure>) -> Failure {
        let aborted = attempt.filter(|failure| matches!(failure, Failure::Aborted { .. }));
        aborted.unwrap_or_else(Failure::aborted)
    }

    fn all_failed(&self, last: CallError, why: NoMore) -> Failure {
        let (made, before) = (self.made, self.failed.clone());
        let failed = AttemptsFailed::new(made, why, self.untold, before, last);
        Failure::Attempts(Box::new(failed))
    }
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
