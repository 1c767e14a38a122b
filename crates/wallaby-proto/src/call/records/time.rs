//! Times as records count them: in one number, which is added and compared in one step where a [`Duration`] takes several.

use std::time::Duration;

use crate::wire::PingSettings;

/// A time since the clock's beginning, or a span of time. What is longer than 584 years is 584 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Nanoseconds(u64);

impl Nanoseconds {
    pub(super) const ZERO: Self = Self(0);

    pub(super) const NEVER: Self = Self(u64::MAX);

    /// Which power of two of 16 ms this comes to, roughly.
    pub(super) fn magnitude(self) -> u32 {
        (self.0 >> 24).checked_ilog2().unwrap_or(0)
    }

    pub(super) fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(super) fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    pub(super) fn saturating_mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    pub(super) fn divided_by(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

impl From<Duration> for Nanoseconds {
    #[inline]
    fn from(duration: Duration) -> Self {
        let seconds = duration.as_secs().saturating_mul(1_000_000_000);
        Self(seconds.saturating_add(u64::from(duration.subsec_nanos())))
    }
}

impl From<Nanoseconds> for Duration {
    fn from(Nanoseconds(nanoseconds): Nanoseconds) -> Self {
        Self::from_nanos(nanoseconds)
    }
}

/// An initiator that lives asks at least once in so many ping periods.
const FEW_PERIODS: u64 = 5;

/// [`PingSettings`] of a call, or of those that state none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PingTimes {
    pub(super) period: Nanoseconds,
    pub(super) timeout: Nanoseconds,
    /// The period of its heartbeats, if it wants any: then it does not ask.
    pub(super) heartbeats: Option<Nanoseconds>,
}

impl PingTimes {
    /// How long the initiator may hear nothing of a line.
    pub(super) fn quiet(self) -> Nanoseconds {
        self.heartbeats.unwrap_or(self.period)
    }

    /// As [`PingSettings::gc_timeout`].
    pub(super) fn gc_timeout(self) -> Nanoseconds {
        let period = self.period.max(self.quiet());
        period.saturating_add(self.timeout.saturating_mul(2))
    }

    /// How long an initiator is believed in that does not ping, or that no heartbeat leaves for, by who has so much patience. Some may
    /// be lost or late.
    pub(super) fn belief(self, patience: Nanoseconds) -> Nanoseconds {
        let period = self.period.max(self.quiet());
        let patience = patience.max(period.saturating_mul(FEW_PERIODS));
        self.gc_timeout().min(patience)
    }
}

impl From<PingSettings> for PingTimes {
    fn from(settings: PingSettings) -> Self {
        Self {
            period: settings.period.into(),
            timeout: settings.timeout.into(),
            heartbeats: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_up_to_the_longest() {
        let longest = Duration::from_nanos(u64::MAX);
        for time in [Duration::ZERO, Duration::new(3, 999_999_999), longest] {
            assert_eq!(Duration::from(Nanoseconds::from(time)), time);
        }
        let beyond = [Duration::MAX, longest + Duration::from_nanos(1)];
        assert_eq!(beyond.map(Nanoseconds::from), [longest.into(); 2]);
    }

    #[test]
    fn a_request_is_remembered_for_a_period_and_two_timeouts() {
        for period in [Duration::from_millis(10), Duration::MAX] {
            let timeout = Duration::from_secs(7);
            let settings = PingSettings { period, timeout };
            let expected = Nanoseconds::from(settings.gc_timeout());
            assert_eq!(PingTimes::from(settings).gc_timeout(), expected);
        }
    }
}
