//! Time as both halves of a call count it, and the times that a call is watched by.

use std::time::Duration;

use crate::wire::PingSettings;

/// Lateness below this is that of any timer, and is not made up for.
const PUNCTUAL: Duration = Duration::from_millis(5);

/// Time that passes only while the process listens (docs/protocol.md, rule 20).
///
/// A process that was stopped for a second wakes up with a second's silence on all its clocks, and with every answer
/// waiting in its sockets' buffers. Therefore all input is read before timers are judged; and while the earliest timer is
/// late, time stands still: also for that input, as time that went on with it and back with the timer would make good
/// cookies, answers and pings come from the future.
///
/// `raw` is the time since any fixed moment by a clock that never goes backwards; what comes out never does either, and
/// is what [`crate::call::watch`] and [`crate::call::records`] call `now`. A [`crate::datagram::Gate`] gets the raw time: how
/// long this process was stopped is what decides whether peers still have its sessions. One clock serves a whole endpoint:
///
/// ```
/// # use std::time::Duration;
/// use wallaby_proto::call::clock::Clock;
///
/// let at = Duration::from_secs;
/// let mut clock = Clock::default();
/// assert_eq!(clock.turn(at(10)), at(10));
/// clock.arm(Some(at(11)));
/// // It is 14, and what was due at 11 was not done: for three seconds nobody listened.
/// assert_eq!(clock.turn(at(14)), at(11));
/// // What is due at 12 now, must be waited for until 15.
/// assert_eq!(clock.raw(at(12)), at(15));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Clock {
    behind: Duration,
    /// When the driver has to wake up.
    due: Option<Duration>,
    /// The latest time that was told.
    last: Duration,
}

impl Clock {
    /// The driver wakes up, or is asked for something: the time for all that it does then.
    pub fn turn(&mut self, raw: Duration) -> Duration {
        let mut now = raw.saturating_sub(self.behind);
        if let Some(due) = self.due
            && now > due
            && now - due > PUNCTUAL
        {
            let stood = due.max(self.last);
            self.behind = self.behind.saturating_add(now.saturating_sub(stood));
            now = now.min(stood);
        }
        self.last = self.last.max(now);
        now
    }

    /// All that was due is done, and the driver will wake up at `due` to do more, if it is not woken before; `None` if nothing
    /// is to be done. Until it tells the next time, this one does not pass.
    pub fn arm(&mut self, due: Option<Duration>) {
        self.due = due;
    }

    /// The raw time at which the driver has to wake up to do what is due then.
    pub fn raw(&self, due: Duration) -> Duration {
        due.saturating_add(self.behind)
    }
}

/// The earlier of two times, of which each may be never.
#[inline]
pub fn earliest<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A ping period of half a second and a timeout of ten periods.
impl Default for PingSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(500),
            timeout: Duration::from_secs(5),
        }
    }
}

impl PingSettings {
    /// How long a server remembers a request that has ended, and at most believes in an initiator that does not ping: the
    /// ping period and two timeouts (rule 30).
    pub fn gc_timeout(&self) -> Duration {
        let timeouts = self.timeout.saturating_mul(2);
        self.period.saturating_add(timeouts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum ClockStep {
        Pass(u64),
        Arm(Option<u64>),
    }

    fn steps() -> impl Strategy<Value = Vec<ClockStep>> {
        let step = prop_oneof![
            (0..20_u64).prop_map(ClockStep::Pass),
            proptest::option::of(0..40_u64).prop_map(ClockStep::Arm),
        ];
        proptest::collection::vec(step, 0..100)
    }

    proptest! {
        #[test]
        fn time_never_goes_backwards_and_never_passes_what_is_due(steps in steps()) {
            let (mut clock, mut raw, mut last) = (Clock::default(), Duration::ZERO, Duration::ZERO);
            let mut due = None;
            for step in steps {
                let from_now = |millis: u64| last.saturating_sub(Duration::from_millis(10)) + Duration::from_millis(millis);
                match step {
                    ClockStep::Pass(millis) => raw += Duration::from_millis(millis),
                    ClockStep::Arm(at) => {
                        due = at.map(from_now);
                        clock.arm(due);
                    }
                }
                let now = clock.turn(raw);
                prop_assert!(now >= last, "{now:?} after {last:?}");
                prop_assert!(now <= due.map_or(raw, |due| (due + PUNCTUAL).max(last)));
                prop_assert_eq!(clock.raw(now), raw);
                last = now;
            }
        }
    }

    #[test]
    fn who_is_as_late_as_that_is_punctual() {
        let due = Duration::from_secs(1);
        let mut clock = Clock::default();
        clock.arm(Some(due));
        assert_eq!(clock.turn(due + PUNCTUAL), due + PUNCTUAL);
        let later = due + PUNCTUAL + Duration::from_nanos(1);
        let mut clock = Clock::default();
        clock.arm(Some(due));
        assert_eq!(clock.turn(later), due, "it stood still");
        assert_eq!(clock.raw(due), later);
    }
}
