//! How long requests waited on their way here: in this side's buffers, in its peer's, and in the network.
//!
//! A request states how much time remains, not when it is over, as endpoints have no common clock. So the time that it waits
//! after it was written would not count. Therefore its sender says what its own clock shows. What that differs by from the
//! receiver's clock is unknown, but does not change; so if a frame takes longer than the quickest one did, the difference is
//! how long it waited. This is the base delay and the queueing delay of LEDBAT (RFC 6817, section 3.4.2 and appendix A.2). The
//! time that the quickest one took is not known, and not subtracted: a server is never ahead of its initiator's clock.

use std::time::Duration;

/// How often a sender tells its time, at most.
pub(crate) const EVERY: Duration = Duration::from_millis(10);

/// The least delay is that of the latest half, or of the one before it. Clocks do not drift by much meanwhile.
const HALF: Duration = Duration::from_secs(15);

/// What drifts less than one part in this many is no waiting time: quartz is better than 100 parts in a million.
const DRIFT: u32 = 4096;

/// When this side has told its time last.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    pub(crate) told: Option<Duration>,
}

impl Telling {
    /// A request with a deadline is sent: the time in microseconds, if it has to be told before.
    pub(crate) fn due(&mut self, now: Duration) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + EVERY) {
            return None;
        }
        self.told = Some(now);
        Some(microseconds(now))
    }

    /// This time has to be what was told last: in microseconds, if it is not.
    pub(crate) fn again(&mut self, time: Duration) -> Option<u64> {
        let before = self.told.replace(time);
        (before != self.told).then(|| microseconds(time))
    }
}

/// What a clock shows, as it is told.
pub(crate) fn microseconds(now: Duration) -> u64 {
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// What a peer's clock showed, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerTime(i64);

/// What the peer's times tell of those on the way.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    pub(crate) told: Option<PeerTime>,
    /// The least delay of this half of the time and of the half before.
    least: [Option<Delay>; 2],
    /// When this half began.
    half: Duration,
}

/// What this side's clock showed, less what the peer's did: how long something took, and what their clocks differ by.
#[derive(Debug, Clone, Copy)]
struct Delay {
    microseconds: i64,
    at: Duration,
}

impl Transit {
    /// The peer's clock showed `told`, in microseconds, when it sent what arrives at `now`.
    pub(crate) fn handle_time(&mut self, told: u64, now: Duration) {
        let told = self.note_time(told);
        let over = now.saturating_sub(self.half);
        if over >= HALF {
            let before = self.least[0].filter(|_| over < 2 * HALF);
            self.least = [None, before];
            self.half = now;
        }
        let delay = Delay::new(told, now);
        let [latest, _] = &mut self.least;
        if latest.is_none_or(|least| delay.microseconds <= least.microseconds) {
            *latest = Some(delay);
        }
    }

    /// The peer's clock showed this last.
    pub(crate) fn note_time(&mut self, told: u64) -> PeerTime {
        *self
            .told
            .insert(PeerTime(i64::try_from(told).unwrap_or(i64::MAX)))
    }

    /// How long something has waited that was sent when the latest time was told, and arrives at `now`.
    pub(crate) fn waited(&self, now: Duration) -> Duration {
        self.told
            .map_or(Duration::ZERO, |told| self.waited_since(told, now))
    }

    /// How long something has waited that was sent when the peer's clock showed `told`, and has arrived at `now`.
    pub(crate) fn waited_since(&self, told: PeerTime, now: Duration) -> Duration {
        let known = self.least.iter().flatten();
        let Some(least) = known.min_by_key(|least| least.microseconds) else {
            return Duration::ZERO;
        };
        let more = Delay::new(told, now)
            .microseconds
            .saturating_sub(least.microseconds);
        let more = Duration::from_micros(u64::try_from(more).unwrap_or(0));
        // What took long was sent before the quickest, perhaps.
        let apart = now.saturating_sub(least.at).max(more);
        more.saturating_sub(apart / DRIFT)
    }
}

impl Delay {
    fn new(PeerTime(told): PeerTime, now: Duration) -> Self {
        let shown = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        Self {
            microseconds: shown.saturating_sub(told),
            at: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Times arrive: when they were sent by the peer's clock and when they arrive by this one, in milliseconds. How long each
    /// has waited, as far as it is known.
    fn waits(times: &[(u64, u64)]) -> Vec<u64> {
        let mut transit = Transit::default();
        let wait = |&(sent, arrives): &(u64, u64)| {
            transit.handle_time(sent * 1000, ms(arrives));
            transit.waited(ms(arrives)).as_millis() as u64
        };
        times.iter().map(wait).collect()
    }

    #[test]
    fn what_takes_longer_than_the_quickest_has_waited() {
        // The clocks differ by a million, and the way takes at least five.
        let found = waits(&[
            (1_000_000, 5),
            (1_000_010, 15),
            (1_000_020, 525),
            (1_000_030, 527),
            (1_000_600, 605),
        ]);
        assert_eq!(found, [0, 0, 499, 491, 0]);
        let ahead = waits(&[(5, 1_000_000), (15, 1_000_011), (25, 1_000_019)]);
        assert_eq!(
            ahead,
            [0, 0, 0],
            "a millisecond is within what drifts, or not"
        );
    }

    #[test]
    fn the_first_may_have_waited() {
        assert_eq!(waits(&[(0, 800), (10, 810), (20, 320)])[2], 0);
        assert_eq!(waits(&[(0, 800), (500, 800), (510, 1110)]), [0, 0, 299]);
    }

    #[test]
    fn the_least_delay_is_forgotten_in_time() {
        // From then on everything takes half a second longer, for good.
        let times: Vec<(u64, u64)> = (0..100).map(|n| (n * 500, n * 500)).collect();
        let late = times.iter().map(|&(sent, arrives)| match sent {
            0..=5_000 => (sent, arrives),
            _ => (sent, arrives + 500),
        });
        let found = waits(&late.collect::<Vec<_>>());
        assert_eq!(found[10], 0);
        assert!(found[12] >= 490 && found[40] >= 490, "{found:?}");
        assert_eq!(found[99], 0, "{found:?}");
    }

    #[test]
    fn what_clocks_drift_by_is_no_wait() {
        let drifting = |n: u64| (n * 500, n * 500 + n / 10);
        let found = waits(&(0..200).map(drifting).collect::<Vec<_>>());
        assert_eq!(found.iter().max(), Some(&0), "200 parts in a million");
    }

    #[test]
    fn a_peer_may_tell_anything() {
        let found = waits(&[(u64::MAX / 1000, 0), (0, 0), (u64::MAX / 1000, 10)]);
        assert_eq!(found[0], 0);
        let mut transit = Transit::default();
        for (told, now) in [
            (u64::MAX, Duration::MAX),
            (0, Duration::MAX),
            (u64::MAX, ms(0)),
        ] {
            transit.handle_time(told, now);
            transit.waited(Duration::ZERO);
            transit.waited(Duration::MAX);
        }
    }

    #[test]
    fn the_time_is_told_now_and_then() {
        let mut telling = Telling::default();
        assert_eq!(telling.due(ms(7)), Some(7_000));
        assert_eq!(telling.due(ms(16)), None);
        assert_eq!(telling.due(ms(17)), Some(17_000));
    }
}
