//! Messages that arrive in several datagrams, in any order.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::carrier::bounds::{BudgetShare, Gain, StallWatch};
use crate::connection::ConnectionError;
use crate::datagram::outbound::{MAX_PIECES, Streams};

/// Most that are not complete, however short they are: all are looked at for each piece.
const MOST_UNFINISHED: usize = 64;

/// One that is not complete.
#[derive(Debug)]
struct Partial {
    number: u64,
    kind: u8,
    total: usize,
    /// What has arrived, ascending, with gaps between: so much memory as bytes came, whatever was announced.
    runs: Vec<ByteRun>,
    progress: Gain,
}

/// Bytes without a gap, and where they begin.
#[derive(Debug)]
struct ByteRun {
    start: usize,
    bytes: BytesMut,
}

/// Those that are not complete.
#[derive(Debug)]
pub(super) struct Assembly {
    /// As they came.
    partials: Vec<Partial>,
    /// How long they will be together.
    bytes: usize,
    share: BudgetShare,
    watch: StallWatch,
    /// When it is looked whether they grow.
    due: Option<Duration>,
}

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PieceOutcome {
    /// More pieces are to come.
    Partly,
    /// It was the last of its message.
    Whole(Bytes),
    /// It cannot be taken now: the peer may not have so many messages under way.
    Full,
    /// It contradicts another piece of its message.
    Contradiction,
}

impl Assembly {
    pub(super) fn new(share: BudgetShare) -> Self {
        Self {
            partials: Vec::new(),
            bytes: 0,
            share,
            watch: StallWatch::default(),
            due: None,
        }
    }

    /// Takes a piece of message `number`, which lies within `total`. What does not fit the `limit` is not begun. Where
    /// unfinished messages of the endpoint take too much room, only the first one here goes on.
    pub(super) fn insert(
        &mut self,
        now: Duration,
        (number, kind, total): (u64, u8, usize),
        offset: usize,
        piece: &[u8],
        limit: Streams,
    ) -> PieceOutcome {
        let known = (self.partials.iter()).position(|partial| partial.number == number);
        let place = known.unwrap_or(self.partials.len());
        if place > 0 && self.share.is_pressed() {
            self.watch.hold_back();
            return PieceOutcome::Full;
        }
        if known.is_none() {
            let many = self.partials.len() >= MOST_UNFINISHED.max(limit.count);
            if many || !limit.admit(self.partials.len(), self.bytes, total) {
                return PieceOutcome::Full;
            }
            self.begin(now, number, kind, total);
        }
        let partial = &mut self.partials[place];
        if (partial.kind, partial.total) != (kind, total) {
            return PieceOutcome::Contradiction;
        }
        let Some(gained) = partial.insert(offset, piece) else {
            return PieceOutcome::Full;
        };
        partial.progress.gain(gained);
        self.share.add(gained as u64);
        match &mut partial.runs[..] {
            [run] if run.bytes.len() == total => {
                let whole = std::mem::take(&mut run.bytes).freeze();
                self.bytes -= total;
                self.share.remove(total as u64);
                self.partials.remove(place);
                if let (0, Some(next)) = (place, self.partials.first_mut()) {
                    next.progress = Gain::default(); // it may have been held back until now
                }
                PieceOutcome::Whole(whole)
            }
            _ => PieceOutcome::Partly,
        }
    }

    fn begin(&mut self, now: Duration, number: u64, kind: u8, total: usize) {
        self.bytes += total;
        self.partials.push(Partial {
            number,
            kind,
            total,
            runs: Vec::new(),
            progress: Gain::default(),
        });
        if self.due.is_none() {
            self.watch = StallWatch::default();
            self.look(now);
        }
    }

    /// When [`Assembly::check`] has something to do.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// It is `now`: whether each unfinished message has gained enough.
    pub(super) fn check(&mut self, now: Duration) -> Result<(), ConnectionError> {
        if self.due.is_none_or(|due| now < due) {
            return Ok(());
        }
        if self.partials.is_empty() {
            self.due = None;
            return Ok(());
        }
        match self.look(now) {
            true => Err(self.share.stalled()),
            false => Ok(()),
        }
    }

    /// Looks at all of them; whether one is stalled. The first one always goes on, so nothing excuses it.
    fn look(&mut self, now: Duration) -> bool {
        let period = self.share.limits().period;
        self.due = Some(now.saturating_add(period));
        let (time, held_back) = self.watch.look(now, period);
        let least = time.map(|time| self.share.least(time));
        let mut stalled = false;
        for (place, partial) in self.partials.iter_mut().enumerate() {
            stalled |= partial
                .progress
                .look(least.filter(|_| place == 0 || !held_back));
        }
        stalled
    }
}

impl Partial {
    /// How many bytes are new; `None` if there are too many gaps.
    fn insert(&mut self, offset: usize, piece: &[u8]) -> Option<usize> {
        let end = offset + piece.len();
        // The runs that this one touches become one with it.
        let from = self.runs.partition_point(|run| run.end() < offset);
        let to = self.runs.partition_point(|run| run.start <= end);
        if from == to && self.runs.len() >= MAX_PIECES {
            return None;
        }
        let before: usize = self.runs[from..to].iter().map(|run| run.bytes.len()).sum();
        let mut touched = self.runs.drain(from..to);
        let mut joined = ByteRun {
            start: offset,
            bytes: BytesMut::new(),
        };
        match touched.next() {
            Some(first) if first.start <= offset => {
                joined = first;
                joined.append(offset, piece);
            }
            Some(first) => {
                joined.append(offset, piece);
                joined.append(first.start, &first.bytes);
            }
            None => joined.append(offset, piece),
        }
        touched.for_each(|run| joined.append(run.start, &run.bytes));
        let gained = joined.bytes.len() - before;
        self.runs.insert(from, joined);
        Some(gained)
    }
}

impl ByteRun {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    /// Appends what is new of bytes that begin within it or at its end.
    fn append(&mut self, start: usize, bytes: &[u8]) {
        let known = self.end() - start;
        if known < bytes.len() {
            self.bytes.extend_from_slice(&bytes[known..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{PartialLimits, Partials};

    const MESSAGE: &[u8] = b"the quick brown fox jumps over the lazy dog";

    const TWO: Streams = Streams { count: 2, bytes: 0 };

    fn empty() -> Assembly {
        Assembly::new(Partials::default().share())
    }

    fn insert(
        assembly: &mut Assembly,
        message: (u64, u8, usize),
        offset: usize,
        piece: &[u8],
        limit: Streams,
    ) -> PieceOutcome {
        assembly.insert(Duration::ZERO, message, offset, piece, limit)
    }

    fn put(assembly: &mut Assembly, number: u64, from: usize, to: usize) -> PieceOutcome {
        let total = MESSAGE.len();
        insert(
            assembly,
            (number, 0x10, total),
            from,
            &MESSAGE[from..to],
            TWO,
        )
    }

    #[test]
    fn pieces_come_in_any_order_and_twice_and_overlap() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            let mut assembly = empty();
            for (step, piece) in order.into_iter().enumerate() {
                let (from, to) = (piece * 11, (piece * 11 + 13).min(MESSAGE.len()));
                let assembled = put(&mut assembly, 7, from, to);
                if step < 3 {
                    assert_eq!(assembled, PieceOutcome::Partly);
                    assert_eq!(put(&mut assembly, 7, from, to), PieceOutcome::Partly);
                } else {
                    assert_eq!(assembled, PieceOutcome::Whole(Bytes::from_static(MESSAGE)));
                }
            }
        }
    }

    #[test]
    fn no_more_messages_than_allowed_and_no_contradictions() {
        let mut assembly = empty();
        assert_eq!(put(&mut assembly, 1, 0, 5), PieceOutcome::Partly);
        assert_eq!(put(&mut assembly, 2, 0, 5), PieceOutcome::Partly);
        assert_eq!(put(&mut assembly, 3, 0, 5), PieceOutcome::Full);
        let other_kind = insert(&mut assembly, (1, 0x11, MESSAGE.len()), 5, b"x", TWO);
        assert_eq!(other_kind, PieceOutcome::Contradiction);
        let other_total = insert(&mut assembly, (1, 0x10, MESSAGE.len() + 1), 5, b"x", TWO);
        assert_eq!(other_total, PieceOutcome::Contradiction);
        assert!(matches!(
            put(&mut assembly, 1, 5, MESSAGE.len()),
            PieceOutcome::Whole(_)
        ));
        assert_eq!(put(&mut assembly, 3, 0, 5), PieceOutcome::Partly);
    }

    #[test]
    fn more_messages_are_taken_as_long_as_they_are_short() {
        let mut assembly = empty();
        let limit = Streams {
            count: 2,
            bytes: 300,
        };
        let mut begin = |number| insert(&mut assembly, (number, 0x10, 100), 0, b"x", limit);
        assert_eq!(
            [1, 2, 3].map(&mut begin),
            [const { PieceOutcome::Partly }; 3]
        );
        assert_eq!(begin(4), PieceOutcome::Full);
        let end = insert(&mut assembly, (1, 0x10, 100), 1, &[b'x'; 99], limit);
        assert!(matches!(end, PieceOutcome::Whole(_)), "{end:?}");
        let mut begin = |number| insert(&mut assembly, (number, 0x10, 100), 0, b"x", limit);
        assert_eq!(
            [4, 5].map(&mut begin),
            [PieceOutcome::Partly, PieceOutcome::Full]
        );
    }

    #[test]
    fn crumbs_are_bounded() {
        let mut assembly = empty();
        let mut crumb = |offset| insert(&mut assembly, (1, 0x10, 1000), offset, b"x", TWO);
        (0..MAX_PIECES).for_each(|number| assert_eq!(crumb(2 * number), PieceOutcome::Partly));
        assert_eq!(crumb(2 * MAX_PIECES), PieceOutcome::Full);
        assert_eq!(
            crumb(1),
            PieceOutcome::Partly,
            "a crumb that fills a gap is taken"
        );
    }

    #[test]
    fn memory_follows_what_arrived() {
        let partials = Partials::default();
        let mut assembly = Assembly::new(partials.share());
        for number in 0..2 {
            insert(
                &mut assembly,
                (number, 0x10, 64 << 10),
                (64 << 10) - 1,
                b"x",
                TWO,
            );
        }
        let room: usize = (assembly.partials.iter())
            .flat_map(|partial| &partial.runs)
            .map(|run| run.bytes.capacity())
            .sum();
        assert!(room <= 256, "{room} bytes for two");
        assert_eq!(partials.held(), 2);
        drop(assembly);
        assert_eq!(partials.held(), 0);
    }

    #[test]
    fn only_the_first_goes_on_where_there_is_no_room() {
        let limits = PartialLimits {
            bytes: 8,
            ..PartialLimits::default()
        };
        let partials = Partials::new(limits);
        let (mut one, mut other) = (
            Assembly::new(partials.share()),
            Assembly::new(partials.share()),
        );
        assert_eq!(put(&mut one, 1, 0, 5), PieceOutcome::Partly);
        assert_eq!(put(&mut one, 2, 0, 5), PieceOutcome::Partly);
        assert_eq!(put(&mut one, 2, 5, 9), PieceOutcome::Full);
        assert_eq!(put(&mut other, 1, 0, 5), PieceOutcome::Partly);
        assert_eq!(put(&mut other, 2, 0, 5), PieceOutcome::Full);
        assert!(matches!(put(&mut one, 1, 5, 43), PieceOutcome::Whole(_)));
        assert!(matches!(put(&mut one, 2, 5, 43), PieceOutcome::Whole(_)));
    }

    #[test]
    fn crumbs_do_not_keep_a_message_alive() {
        let partials = Partials::default();
        let period = PartialLimits::default().period;
        let mut assembly = Assembly::new(partials.share());
        let mut now = Duration::ZERO;
        let mut crumb = |now, offset| {
            assembly.insert(now, (1, 0x10, 1000), offset, b"x", TWO);
            assembly.check(now)
        };
        let ended = (0..100).find(|&step| {
            now += period / 4;
            crumb(now, step).is_err()
        });
        assert!(ended.is_some_and(|step| step < 12), "{ended:?}");
    }

    /// What is dropped of others is no excuse for the one that goes on.
    #[test]
    fn the_message_that_goes_on_is_not_excused_by_others_that_wait() {
        let limits = PartialLimits {
            bytes: 8,
            ..PartialLimits::default()
        };
        let partials = Partials::new(limits);
        let mut assembly = Assembly::new(partials.share());
        let mut now = Duration::ZERO;
        assert_eq!(put(&mut assembly, 1, 0, 9), PieceOutcome::Partly);
        let ended = (0..20).find(|_| {
            now += limits.period / 4;
            assert_eq!(put(&mut assembly, 2, 0, 5), PieceOutcome::Full);
            assembly.check(now).is_err()
        });
        assert!(ended.is_some_and(|step| step < 12), "{ended:?}");
    }

    /// They take turns as they came, and whose turn has come has its time before it.
    #[test]
    fn messages_that_wait_go_on_as_they_came() {
        let limits = PartialLimits {
            bytes: 22, // three quarters are 17
            ..PartialLimits::default()
        };
        let partials = Partials::new(limits);
        let mut assembly = Assembly::new(partials.share());
        let three = Streams { count: 3, bytes: 0 };
        for number in 1..4 {
            insert(&mut assembly, (number, 0x10, 43), 0, &MESSAGE[..6], three);
        }
        let mut end = |number| insert(&mut assembly, (number, 0x10, 43), 6, &MESSAGE[6..], three);
        assert_eq!(end(3), PieceOutcome::Full);
        assert!(matches!(end(1), PieceOutcome::Whole(_)));
        let rest = insert(&mut assembly, (3, 0x10, 43), 6, &MESSAGE[6..8], three);
        assert_eq!(rest, PieceOutcome::Partly, "there is room again");
        let full = insert(&mut assembly, (3, 0x10, 43), 8, &MESSAGE[8..12], three);
        assert_eq!(full, PieceOutcome::Partly);
        assert_eq!(partials.held(), 18);
        let held_back = insert(&mut assembly, (3, 0x10, 43), 12, &MESSAGE[12..], three);
        assert_eq!(
            held_back,
            PieceOutcome::Full,
            "the second one came before it"
        );
        assert_eq!(assembly.check(limits.period), Ok(()), "its turn has begun");
        assert!(assembly.check(2 * limits.period).is_err());
    }
}
