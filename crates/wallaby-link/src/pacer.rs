//! How fast a link takes what is sent.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// A link's bandwidth, and until when it is occupied by what was sent over it.
///
/// A machine has one link for all that it sends, whatever connection that is for: messages to three peers at once take
/// three times as long as a message to one. Only the bytes that are handed over count, not what a network puts around
/// them.
///
/// ```
/// use std::num::NonZeroU64;
/// use std::time::{Duration, Instant};
/// use wallaby_link::Pacer;
///
/// let mut pacer = Pacer::new(NonZeroU64::new(8_000_000).unwrap()); // a byte a microsecond
/// let now = Instant::now();
/// assert_eq!(pacer.departure(100, now), now + Duration::from_micros(100));
/// assert_eq!(pacer.departure(50, now), now + Duration::from_micros(150));
/// ```
#[derive(Clone, Debug)]
pub struct Pacer {
    bits_per_second: NonZeroU64,
    free: Option<Instant>,
}

impl Pacer {
    /// A link that is free.
    pub fn new(bits_per_second: NonZeroU64) -> Self {
        Self {
            bits_per_second,
            free: None,
        }
    }

    /// When the last of so many bytes has left, if they are handed over now: what was handed over before goes first.
    pub fn departure(&mut self, bytes: usize, now: Instant) -> Instant {
        let begin = self.free.map_or(now, |free| free.max(now));
        let end = begin + self.time(bytes);
        self.free = Some(end);
        end
    }

    /// How many bytes are handed over at a time if nobody is to wait for more than he needs: what takes 64 µs, and at least
    /// the 1,500 of a packet.
    pub fn piece(&self) -> usize {
        let bits = u128::from(self.bits_per_second.get()) * PIECE.as_nanos() / NANOSECONDS;
        usize::try_from(bits / 8).unwrap_or(usize::MAX).max(PACKET)
    }

    fn time(&self, bytes: usize) -> Duration {
        let bits = bytes as u128 * 8;
        let nanoseconds = bits * NANOSECONDS / u128::from(self.bits_per_second.get());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).min(LONGEST)
    }
}

const NANOSECONDS: u128 = 1_000_000_000;
const PIECE: Duration = Duration::from_micros(64);
pub(super) const PACKET: usize = 1_500;
/// Longer than anybody waits, and a clock can still count it.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    fn pacer(bits_per_second: u64) -> Pacer {
        Pacer::new(NonZeroU64::new(bits_per_second).unwrap())
    }

    #[test]
    fn pieces_take_as_long_as_the_whole() {
        let now = Instant::now();
        for bits_per_second in [GIGABIT / 10, GIGABIT, 10 * GIGABIT] {
            let mut whole = pacer(bits_per_second);
            let mut pieces = whole.clone();
            let left = whole.departure(1_000 * pieces.piece(), now);
            let last = (0..1_000).map(|_| pieces.departure(pieces.piece(), now));
            let last = last.last().unwrap();
            assert!(left - last < Duration::from_micros(1), "{bits_per_second}");
        }
    }

    #[test]
    fn a_free_link_saves_nothing_up() {
        let (mut pacer, now) = (pacer(GIGABIT), Instant::now());
        let sent = pacer.departure(125_000, now);
        assert_eq!(sent, now + Duration::from_millis(1));
        let later = now + Duration::from_secs(1);
        assert_eq!(
            pacer.departure(125_000, later),
            later + Duration::from_millis(1)
        );
    }

    #[test]
    fn pieces_are_short_but_no_shorter_than_packets() {
        assert_eq!(pacer(GIGABIT).piece(), 8_000);
        assert_eq!(pacer(GIGABIT / 10).piece(), PACKET);
        assert_eq!(pacer(1).piece(), PACKET);
    }

    #[test]
    fn what_takes_for_ever_is_no_overflow() {
        let (mut pacer, now) = (pacer(1), Instant::now());
        assert!(pacer.departure(usize::MAX, now) > now);
        assert!(super::Pacer::new(NonZeroU64::MAX).piece() > PACKET);
    }
}
