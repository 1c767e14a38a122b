//! How many pings of a call leave in a period: what is beyond that has its place in the next ones, in the order in which it
//! came.

use std::time::Duration;

/// Most branches of a call that are asked about in a ping period, of those that servers have named. A call with fewer that
/// have not ended never waits. In a larger one those that run announce themselves, and who does so is asked in any case.
pub const MOST_ASKED: u32 = 256;

/// The places of a period.
#[derive(Debug, Default)]
pub(super) struct PingPace {
    /// When the period begins whose places are given away now; perhaps a later one.
    start: Duration,
    taken: u32,
}

impl PingPace {
    /// The next place: now, or when a later period begins.
    pub(super) fn next(&mut self, period: Duration, now: Duration) -> Duration {
        if now >= self.start.saturating_add(period) {
            (self.start, self.taken) = (now, 0);
        }
        if self.taken >= MOST_ASKED {
            (self.start, self.taken) = (self.start.saturating_add(period), 0);
        }
        self.taken += 1;
        self.start.max(now)
    }

    /// A place in this period, if there is one.
    pub(super) fn take(&mut self, period: Duration, now: Duration) -> bool {
        self.has_place(period, now) && self.next(period, now) <= now
    }

    /// Whether this period has a place.
    pub(super) fn has_place(&self, period: Duration, now: Duration) -> bool {
        let is_over = now >= self.start.saturating_add(period);
        is_over || (self.start <= now && self.taken < MOST_ASKED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    fn at(period: u32) -> Duration {
        PERIOD * period
    }

    #[test]
    fn a_period_has_so_many_places_and_the_next_ones_follow() {
        let mut pace = PingPace::default();
        let most = MOST_ASKED as usize;
        let places: Vec<_> = (0..2 * most + 1)
            .map(|_| pace.next(PERIOD, at(7)))
            .collect();
        for (index, place) in places.iter().enumerate() {
            assert_eq!(*place, at(7 + (index / most) as u32), "{index}");
        }
        assert!(!pace.take(PERIOD, at(7)), "two others are before it");
        assert_eq!(pace.next(PERIOD, at(8)), at(9));
        assert!(pace.take(PERIOD, at(9)), "that period has places left");
        for _ in 0..most {
            pace.next(PERIOD, at(9));
        }
        assert_eq!(pace.next(PERIOD, at(20)), at(20), "nobody waits any more");
    }
}
