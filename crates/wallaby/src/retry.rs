//! When a call that failed is made again as a whole.

use std::time::Duration;

use wallaby_proto::{Code, RequestId, Status};

use crate::error::{CallError, ConnectError, Failure};

/// Most attempts of a call.
const MOST: u32 = 64;

/// Makes calls again that have failed. See [`crate::Client::retry`].
///
/// Each attempt is a call of its own, with its own id, so "at most once" holds for each attempt and not for the call as
/// the application sees it. [`Self::idempotent`] is for methods that may run several times, as often as they are called;
/// [`Self::unexecuted`] is for all others. An attempt follows if the one before
///
/// - was not sent ([`Failure::NotSent`](crate::Failure::NotSent), [`Failure::Refused`](crate::Failure::Refused)),
/// - was lost ([`Failure::Lost`](crate::Failure::Lost): a request undelivered or silent, a response lost, a handler without
///   progress),
/// - was answered by a server that was closed: [not executed](crate::Status::is_not_executed), or [`Code::Unfinished`],
/// - took longer than an attempt may ([`Self::each`]),
/// - or was answered with a status that is retried ([`Self::on`]),
///
/// as long as no answer has been delivered to the application, the call's deadline has not come and its
/// [budget](crate::RetryBudget) allows it. In between is a random time: at most `first` after the first attempt, twice as
/// much after each further one, up to `longest` ([`Self::backoff`]).
///
/// So attempts are over soon: three of them within 150 ms if a server refuses connections, ten within 5 s on average. Who wants
/// to wait until a server is there again says for how long: [`Self::wait_for_server`].
///
/// ```
/// # use wallaby::{Client, Code, Endpoint, Address, Retry};
/// # use std::time::Duration;
/// # fn example(endpoint: &Endpoint, server: Address, other: Address) {
/// let client = Client::new(endpoint, server)
///     .alternates([other])
///     .retry(Retry::idempotent(3).each(Duration::from_secs(2)).on(Code::ResourceExhausted));
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub(crate) attempts: u32,
    /// Also what may have run.
    executed: bool,
    pub(crate) once_each: bool,
    wait: Duration,
    pub(crate) each: Option<Duration>,
    first: Duration,
    longest: Duration,
    codes: Vec<Code>,
}

impl Retry {
    /// Up to so many attempts in all, 1 to 64, the first and hedged ones included. Only for methods whose handlers may
    /// run again, also when they have run already.
    pub fn idempotent(attempts: u32) -> Self {
        Self {
            attempts: attempts.clamp(1, MOST),
            executed: true,
            once_each: false,
            wait: Duration::ZERO,
            each: None,
            first: Duration::from_millis(50),
            longest: Duration::from_secs(2),
            codes: Vec::new(),
        }
    }

    /// The same for any method: an attempt follows only if the one before was certainly not executed, as it was not sent, or
    /// was refused by a server that shuts down. What was lost on the way, or took too long, is not made again.
    pub fn unexecuted(attempts: u32) -> Self {
        Self {
            executed: false,
            ..Self::idempotent(attempts)
        }
    }

    /// Each of several servers is tried once, without a pause.
    pub(crate) fn once_each() -> Self {
        Self {
            once_each: true,
            ..Self::unexecuted(MOST).backoff(Duration::ZERO, Duration::ZERO)
        }
    }

    /// Waits for a server so long: while no connection can be made, further attempts follow, which count neither as
    /// [attempts](Self::idempotent) nor against the [budget](crate::RetryBudget), since no server has anything to do for them. The
    /// time begins anew whenever an attempt was sent. Default 0: they count as all others. The call's deadline ends it in any case.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use wallaby::Retry;
    /// // A server may be away for half a minute. What was under way when it went may run again, twice at most.
    /// let retry = Retry::idempotent(3).wait_for_server(Duration::from_secs(30));
    /// ```
    #[must_use]
    pub fn wait_for_server(mut self, within: Duration) -> Self {
        self.wait = within;
        self
    }

    /// The longest waits before the second attempt, and before any. Default 50 ms and 2 s.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        (self.first, self.longest) = (first, longest);
        self
    }

    /// How much time an attempt has, within the call's deadline; not limited by default. One that takes longer is made again if
    /// the method is [idempotent](Self::idempotent).
    #[must_use]
    pub fn each(mut self, deadline: Duration) -> Self {
        self.each = Some(deadline);
        self
    }

    /// A status of this code in place of the first answer is retried too, whether or not anything was executed: with
    /// [`unexecuted`](Self::unexecuted), name only codes that no handler gives. By default only those of servers that shut down are.
    /// Servers that have too much to do refuse with [`Code::ResourceExhausted`].
    #[must_use]
    pub fn on(mut self, code: Code) -> Self {
        self.codes.push(code);
        self
    }

    /// Whether an error that came in place of the first answer is retried.
    pub(crate) fn retries(&self, error: &CallError) -> bool {
        if self.once_each && matches!(error.failure(), Some(Failure::Refused { .. })) {
            return false; // this endpoint has too much to send: another server does not change that
        }
        let by_code = error
            .status()
            .is_some_and(|status| self.codes.contains(&status.code()));
        by_code || is_unexecuted(error) || self.executed && (was_closed(error) || is_loss(error))
    }

    /// Whether an attempt that took longer than it may is made again.
    pub(crate) fn retries_late(&self) -> bool {
        self.executed && self.each.is_some()
    }

    /// How long further attempts follow while no server can be reached; zero for an error that is something else.
    pub(crate) fn waits(&self, error: &CallError) -> Duration {
        match error {
            CallError::Failed(Failure::NotSent { error, .. }) if may_come(error) => self.wait,
            _ => Duration::ZERO,
        }
    }

    /// How long to wait after so many failed attempts; `random` is drawn from all numbers.
    pub(crate) fn pause(&self, failed: u32, random: u64) -> Duration {
        let doubled = 1u32.checked_shl(failed.saturating_sub(1));
        let most = doubled
            .and_then(|times| self.first.checked_mul(times))
            .map_or(self.longest, |most| most.min(self.longest));
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(most) * u128::from(random)) >> 64) as u64)
    }
}

/// Whether something was lost on the way, so that another attempt may fare better: also of a call that goes on without it
/// ([`crate::Client::tolerant`]).
pub(crate) fn is_loss(error: &CallError) -> bool {
    match error {
        CallError::Status(status) => status.loss().is_some_and(|loss| loss.may_pass()),
        CallError::Failed(failure) => failure.is_loss(),
        _ => false,
    }
}

/// Whether the request was certainly not sent.
pub(crate) fn is_unsent(error: &CallError) -> bool {
    let failure = error.failure();
    failure
        .is_some_and(|failure| matches!(failure, Failure::NotSent { .. } | Failure::Refused { .. }))
}

/// Whether nothing of the call was executed, certainly. That something which a handler has delegated was not does not say that.
fn is_unexecuted(error: &CallError) -> bool {
    is_unsent(error) || was_turned_away(error)
}

/// Whether the server that was called has said that it begins nothing any more.
fn was_turned_away(error: &CallError) -> bool {
    matches!(error, CallError::Status(status) if status.turns_away())
}

/// Whether an attempt that ends so, beside another one that may still deliver, is not the call's end: it was lost, or its server is
/// closing.
pub(crate) fn is_no_answer(error: &CallError) -> bool {
    is_loss(error) || is_unexecuted(error) || is_unfinished(error)
}

/// Whether the server that was called was closed before it was done. One below it says nothing of the others there.
fn is_unfinished(error: &CallError) -> bool {
    let unfinished = |status: &Status| {
        status.request() == Some(RequestId::FIRST) && status.code() == Code::Unfinished
    };
    matches!(error, CallError::Status(status) if unfinished(status))
}

/// Whether some server was closed: of what it had begun it is unknown how much was done.
fn was_closed(error: &CallError) -> bool {
    let closed = |status: &Status| status.is_not_executed() || status.code() == Code::Unfinished;
    matches!(error, CallError::Status(status) if closed(status))
}

/// Whether no server has anything to do for the next attempt: so it costs none of the budget among several servers.
pub(crate) fn is_free(error: &CallError) -> bool {
    matches!(error.failure(), Some(Failure::NotSent { .. })) || was_turned_away(error)
}

/// Whether a server may be there later that cannot be connected to now.
fn may_come(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::Refused { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::Local { .. }
            | ConnectError::TimedOut { .. }
            | ConnectError::Closed { .. }
            | ConnectError::Held { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_are_anything_below() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(65));
        let retry = Retry::idempotent(9).backoff(first, longest);
        let most: Vec<_> = (1..6)
            .map(|failed| retry.pause(failed, u64::MAX).as_micros())
            .collect();
        assert_eq!(most, [9_999, 19_999, 39_999, 64_999, 64_999]);
        assert_eq!(retry.pause(3, 0), Duration::ZERO);
        assert_eq!(retry.pause(3, 1 << 63), Duration::from_millis(20));
        assert!(retry.pause(u32::MAX, u64::MAX) < longest);
        assert_eq!(Retry::idempotent(0).attempts, 1);
        let forever = Retry::idempotent(9).backoff(Duration::MAX, Duration::MAX);
        assert!(forever.pause(60, u64::MAX) > Duration::from_secs(1 << 33));
    }
}
