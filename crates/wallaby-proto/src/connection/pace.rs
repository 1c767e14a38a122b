//! How fast parts of large messages leave, so that small messages beside them are hardly held up.
//!
//! Without small messages about, parts are large and as many are under way as the receiver grants. Where a small message
//! was sent lately, parts are short, and only so many are under way as keep the line busy: what lies in the transport's
//! buffers is what the next small message waits for. What arrives waits for nothing here: an answer to a large message, or
//! the request ahead of a body, says nothing of others, and large messages that follow one another are not held up by it.

use std::time::Duration;

/// Payload bytes of a part while no small messages are about: large enough to cost little.
const PART: usize = 32 * 1024;

/// Payload bytes of a part beside small messages: what takes about as long as handling one of them.
const SHORT_PART: usize = 4 * 1024;

/// Small messages are about until so many bytes of parts have moved since the last one.
const QUIET: usize = 1024 * 1024;

/// Beside small messages at least so many bytes of parts may be under way.
const NARROW: u64 = 8 * 1024;

/// Beside small messages parts move at about this rate, in bytes a second: the longer a round trip takes, the more may
/// be under way.
const RATE: u64 = 160_000_000;

/// Parts are added to the output only while it is shorter than this: without small messages, and beside them.
const BELOW: (usize, usize) = (32 * 1024, 2 * 1024);

/// Whatever else waits: after so many written bytes without a part, one is added.
const AFTER: usize = 256 * 1024;

/// Decides when the next part leaves, and how long it is.
#[derive(Debug)]
pub(super) struct Pace {
    /// How much the receiver lets be under way: what its handshake said, and what it granted beyond that since.
    window: u64,
    /// Bytes of parts that were sent and are not granted anew yet.
    under_way: u64,
    /// Bytes of parts that moved, in either direction, since the last small message was sent.
    since_small: usize,
    /// Bytes written since the last part was added.
    since_part: usize,
    /// The time, as far as it was told.
    now: Option<Duration>,
    /// A part whose grant is waited for: so many bytes must be granted until then, and when it left.
    timed: Option<(u64, Duration)>,
    /// The shortest time between a part and its grant.
    round_trip: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            window: 0,
            under_way: 0,
            since_small: QUIET,
            since_part: 0,
            now: None,
            timed: None,
            round_trip: Duration::MAX,
        }
    }
}

impl Pace {
    /// The handshake told how many bytes of parts the peer takes.
    pub(super) fn open(&mut self, window: u64) {
        self.window = window;
    }

    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = Some(now);
    }

    /// Whether a grant is waited for to measure the round trip.
    pub(super) fn is_timing(&self) -> bool {
        self.timed.is_some()
    }

    /// A message that is not in parts was sent.
    pub(super) fn small_sent(&mut self) {
        self.since_small = 0;
    }

    /// What [`Pace::small_sent`] forgets.
    pub(super) fn quiet(&self) -> usize {
        self.since_small
    }

    /// The message that was sent last is the beginning of a large one: nothing was small. So quiet it was before.
    pub(super) fn was_a_beginning(&mut self, quiet: usize) {
        self.since_small = quiet;
    }

    /// Bytes of parts have arrived.
    pub(super) fn part_arrived(&mut self, bytes: usize) {
        self.since_small = self.since_small.saturating_add(bytes);
    }

    /// A part with so many bytes of its message was added to the output.
    pub(super) fn part_sent(&mut self, bytes: usize) {
        self.under_way += bytes as u64;
        self.since_small = self.since_small.saturating_add(bytes);
        self.since_part = 0;
        if self.timed.is_none() {
            self.timed = self.now.map(|now| (self.under_way, now));
        }
    }

    /// Bytes of the output were written.
    pub(super) fn written(&mut self, bytes: usize) {
        self.since_part = self.since_part.saturating_add(bytes);
    }

    /// The receiver takes so many more bytes of parts; `None` if that is more than a window can hold.
    pub(super) fn granted(&mut self, bytes: u64) -> Option<()> {
        let surplus = bytes.saturating_sub(self.under_way);
        self.window = self.window.checked_add(surplus)?;
        self.under_way = self.under_way.saturating_sub(bytes);
        if let (Some((until, since)), Some(now)) = (&mut self.timed, self.now) {
            *until = until.saturating_sub(bytes);
            if *until == 0 {
                self.round_trip = self.round_trip.min(now.saturating_sub(*since));
                self.timed = None;
            }
        }
        Some(())
    }

    /// How many bytes the next part may have, with so many bytes of other messages waiting; `None` if it is to wait.
    pub(super) fn next_part(&self, waiting: usize) -> Option<usize> {
        let (size, below, window) = if self.is_beside_small() {
            (SHORT_PART, BELOW.1, self.narrow_window())
        } else {
            (PART, BELOW.0, self.window)
        };
        let fits = self.under_way < window;
        (fits && (waiting < below || self.since_part > AFTER)).then_some(size)
    }

    fn is_beside_small(&self) -> bool {
        self.since_small < QUIET
    }

    fn narrow_window(&self) -> u64 {
        let round_trip = match self.round_trip {
            Duration::MAX => 0,
            known => known.as_micros(),
        };
        let busy = round_trip * u128::from(RATE) / 1_000_000;
        u64::try_from(busy)
            .unwrap_or(u64::MAX)
            .max(NARROW)
            .min(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(window: u64) -> Pace {
        let mut pace = Pace::default();
        pace.open(window);
        pace
    }

    #[test]
    fn parts_are_short_until_much_has_moved_since_the_last_small_message() {
        let mut pace = open(1 << 30);
        assert_eq!(pace.next_part(0), Some(PART), "nothing small is about");
        pace.small_sent();
        assert_eq!(pace.next_part(0), Some(SHORT_PART));
        pace.part_arrived(QUIET - 1);
        assert_eq!(pace.next_part(0), Some(SHORT_PART));
        pace.part_arrived(1);
        assert_eq!(pace.next_part(0), Some(PART));
    }

    #[test]
    fn no_part_leaves_when_as_many_bytes_are_under_way_as_are_granted() {
        let mut pace = open(1000);
        pace.part_sent(999);
        assert!(pace.next_part(0).is_some());
        pace.part_sent(1);
        assert_eq!(pace.next_part(0), None);
        pace.granted(1).expect("a window holds it");
        assert!(pace.next_part(0).is_some());
    }

    #[test]
    fn a_round_trip_is_timed_until_its_part_is_granted_anew() {
        let mut pace = open(1000);
        pace.part_sent(10);
        assert!(!pace.is_timing(), "the time was not told");
        pace.set_time(Duration::from_secs(1));
        pace.part_sent(10);
        assert!(pace.is_timing());
        pace.granted(19).expect("a window holds it");
        assert!(pace.is_timing(), "a byte is missing");
        pace.granted(1).expect("a window holds it");
        assert!(!pace.is_timing());
    }
}
