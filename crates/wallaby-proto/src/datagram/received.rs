//! Which packets have arrived, and when that has to be said.

use std::time::Duration;

use crate::datagram::packet::MAX_RANGES;
use crate::datagram::recovery::nanoseconds;

/// How long an acknowledgement waits for a message that takes it along.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(10);

/// Acknowledgements that wait are due at multiples of this: those of all sessions of a socket together, so that one that
/// only receives from many peers is not woken for each.
const ACK_TICK: Duration = Duration::from_millis(5);

/// So many packets with so many bytes are acknowledged at once: their sender's window must go on. A chain of servers sends
/// nothing the other way that could take acknowledgements along, so small packets should not need one each few.
const ACK_EVERY: (u32, usize) = (8, 9000);

/// So many packets are acknowledged at once, however short they are: their sender keeps what is in them.
const ACK_AT_MOST_EVERY: u32 = 64;

/// When something that arrives now is acknowledged at the latest, in nanoseconds.
fn latest(now: u64) -> u64 {
    let due = now.saturating_add(nanoseconds(ACK_DELAY));
    due - due % nanoseconds(ACK_TICK)
}

/// The numbers of packets that have arrived, as ranges; the oldest are forgotten.
#[derive(Debug, Default)]
pub(super) struct ReceivedPackets {
    /// First and last number, ascending, with gaps between them.
    ranges: Vec<(u64, u64)>,
    /// What is below has arrived or is not accepted any more.
    floor: u64,
    /// When the newest arrived, in nanoseconds.
    newest_at: u64,
    /// Packets that ask for an acknowledgement and have not got one.
    unanswered: u32,
    /// How long they are together.
    unanswered_bytes: usize,
    /// When they must have one, in nanoseconds.
    due: Option<u64>,
}

impl ReceivedPackets {
    pub(super) fn ranges(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    fn newest(&self) -> Option<u64> {
        self.ranges.last().map(|range| range.1)
    }

    /// Whether this packet has arrived before, or is so old that this cannot be told.
    pub(super) fn contains(&self, number: u64) -> bool {
        if self.newest().is_some_and(|newest| newest < number) {
            return false; // nearly always
        }
        let next = self.ranges.partition_point(|range| range.1 < number);
        number < self.floor || self.ranges.get(next).is_some_and(|range| range.0 <= number)
    }

    /// Takes a packet's number, which is not in it yet.
    pub(super) fn insert(&mut self, number: u64) {
        if let Some(newest) = self.ranges.last_mut()
            && newest.1 + 1 == number
        {
            newest.1 = number; // nearly always
            return;
        }
        let next = self.ranges.partition_point(|range| range.1 < number);
        let joins_next = (self.ranges.get(next)).is_some_and(|range| range.0 == number + 1);
        let joins_previous = next > 0 && self.ranges[next - 1].1 + 1 == number;
        match (joins_previous, joins_next) {
            (true, true) => {
                self.ranges[next - 1].1 = self.ranges[next].1;
                self.ranges.remove(next);
            }
            (true, false) => self.ranges[next - 1].1 = number,
            (false, true) => self.ranges[next].0 = number,
            (false, false) => self.ranges.insert(next, (number, number)),
        }
        if self.ranges.len() > MAX_RANGES {
            let oldest = self.ranges.remove(0);
            self.floor = self.floor.max(oldest.1 + 1);
        }
    }

    /// A packet of this size has arrived that wants an acknowledgement: at once if it is `urgent`.
    pub(super) fn handle_asking(&mut self, now: u64, number: u64, size: usize, urgent: bool) {
        let expected = self.handle(now, number);
        self.unanswered += 1;
        self.unanswered_bytes = self.unanswered_bytes.saturating_add(size);
        // A gap is told at once: something was lost, or has come late after all.
        if urgent || number != expected || self.is_much() {
            self.due = Some(now);
        } else if self.due.is_none() {
            self.due = Some(latest(now));
        }
    }

    /// Whether what waits for an acknowledgement should not wait longer.
    fn is_much(&self) -> bool {
        let (packets, bytes) = ACK_EVERY;
        self.unanswered >= ACK_AT_MOST_EVERY
            || self.unanswered >= packets && self.unanswered_bytes >= bytes
    }

    /// A packet has arrived, with this number; returns the one that was expected.
    pub(super) fn handle(&mut self, now: u64, number: u64) -> u64 {
        let expected = self.newest().map_or(self.floor, |newest| newest + 1);
        self.insert(number);
        if number >= expected {
            self.newest_at = now;
        }
        expected
    }

    /// Whether there is a packet to acknowledge, be it for another time.
    pub(super) fn has_any(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Whether an acknowledgement should go with the next packet.
    pub(super) fn wants_ack(&self) -> bool {
        self.due.is_some()
    }

    /// When an acknowledgement must leave, in nanoseconds.
    pub(super) fn due(&self) -> Option<u64> {
        self.due
    }

    /// An acknowledgement leaves now: the newest packet that it covers, and how long that has waited.
    pub(super) fn take_ack(&mut self, now: Duration) -> (u64, Duration) {
        self.unanswered = 0;
        self.unanswered_bytes = 0;
        self.due = None;
        let newest = self.newest().unwrap_or(0);
        let waited = nanoseconds(now).saturating_sub(self.newest_at);
        (newest, Duration::from_nanos(waited))
    }

    /// The other side knows that everything below `number` has arrived, or needs no answer about it: this need not be
    /// said again.
    pub(super) fn forget_below(&mut self, number: u64) {
        // The newest stays: an acknowledgement names at least one packet.
        let floor = number.min(self.newest().unwrap_or(0));
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        let gone = self.ranges.iter().take_while(|range| range.1 < floor);
        let gone = gone.count();
        if gone > 0 {
            self.ranges.drain(..gone); // mostly there is one range, and it goes on
        }
        if let Some(oldest) = self.ranges.first_mut() {
            oldest.0 = oldest.0.max(floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = nanoseconds(Duration::from_secs(1));
    const DELAY: u64 = nanoseconds(ACK_DELAY);

    #[test]
    fn ranges_join_and_split() {
        let mut received = ReceivedPackets::default();
        for number in [5, 1, 3, 2, 9, 4, 0] {
            assert!(!received.contains(number));
            received.insert(number);
            assert!(received.contains(number));
        }
        assert_eq!(received.ranges().collect::<Vec<_>>(), [(0, 5), (9, 9)]);
    }

    #[test]
    fn what_is_too_old_to_tell_counts_as_arrived() {
        let mut received = ReceivedPackets::default();
        for number in 0..MAX_RANGES as u64 + 1 {
            received.insert(2 * number + 1);
        }
        assert!(received.contains(0), "below all that is remembered");
        assert!(received.contains(1), "it was forgotten");
        assert!(!received.contains(2));
        assert!(!received.contains(4));
        received.forget_below(21);
        assert!(received.contains(20));
        assert!(!received.contains(22));
        received.forget_below(1001);
        assert_eq!(received.ranges().count(), 1, "the newest stays");
    }

    #[test]
    fn an_acknowledgement_waits_unless_something_is_missing_or_urgent() {
        let due = |packets: &[(u64, bool)]| {
            let mut received = ReceivedPackets::default();
            for &(number, urgent) in packets {
                received.handle_asking(NOW, number, 1200, urgent);
            }
            received.due()
        };
        assert_eq!(due(&[(0, false)]), Some(NOW + DELAY));
        // Those that come at about the same time are due together, and none too late.
        let late = |microseconds: u64| latest(NOW + 1000 * microseconds) - NOW;
        let together = [0, 1, 2500, 4999].map(late);
        assert_eq!(together, [DELAY; 4]);
        assert_eq!(late(5000), DELAY + nanoseconds(ACK_TICK));
        assert_eq!(due(&[(0, false), (1, true)]), Some(NOW));
        assert_eq!(due(&[(0, false), (2, false)]), Some(NOW));
        assert_eq!(due(&[(1, false), (0, false)]), Some(NOW));
        let mut received = ReceivedPackets::default();
        received.handle(NOW, 0);
        assert_eq!(
            received.due(),
            None,
            "an acknowledgement is not acknowledged"
        );
    }

    #[test]
    fn much_is_acknowledged_at_once() {
        let until_due = |size: usize| {
            let mut received = ReceivedPackets::default();
            let mut packets = 0;
            while received.due() != Some(NOW) {
                received.handle_asking(NOW, packets, size, false);
                packets += 1;
            }
            received.take_ack(Duration::from_nanos(NOW));
            received.handle_asking(NOW, packets, size, false);
            assert_eq!(received.due(), Some(NOW + DELAY), "it begins anew");
            packets
        };
        assert_eq!([1150, 1200, 65_507].map(until_due), [8; 3]);
        assert_eq!(until_due(600), 15, "half as long, twice as many");
        assert_eq!([140, 30].map(until_due), [64, 64]);
    }

    #[test]
    fn what_was_forgotten_once_is_never_taken_again() {
        let mut received = ReceivedPackets::default();
        (0..30).for_each(|number| received.insert(number));
        received.forget_below(21);
        received.forget_below(6);
        assert_eq!(received.ranges().collect::<Vec<_>>(), [(21, 29)]);
        assert!((0..30).all(|number| received.contains(number)));
    }

    #[test]
    fn the_very_first_packet_is_forgotten_too() {
        let mut received = ReceivedPackets::default();
        received.insert(0);
        received.insert(2);
        received.forget_below(1);
        assert_eq!(received.ranges().collect::<Vec<_>>(), [(2, 2)]);
        assert!(received.contains(0) && !received.contains(1));
    }
}
