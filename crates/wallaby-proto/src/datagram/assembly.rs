//! Messages that arrive in several datagrams, in any order.

use bytes::{Bytes, BytesMut};

use crate::datagram::outgoing::{MAX_PIECES, Streams};

/// One that is not complete.
#[derive(Debug)]
struct Partial {
    number: u64,
    kind: u8,
    total: usize,
    /// As long as the furthest piece reaches: it grows with what arrived, not with what was announced.
    bytes: BytesMut,
    /// Start and end of what has arrived, ascending, with gaps between them.
    runs: Vec<(usize, usize)>,
}

/// Those that are not complete.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    partials: Vec<Partial>,
    /// How long they will be together.
    bytes: usize,
}

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Assembled {
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
    /// Takes a piece of message `number`, which lies within `total`. What does not fit the `limit` is not begun.
    pub(super) fn insert(
        &mut self,
        number: u64,
        kind: u8,
        total: usize,
        offset: usize,
        piece: &[u8],
        limit: Streams,
    ) -> Assembled {
        let known = (self.partials.iter()).position(|partial| partial.number == number);
        let index = match known {
            Some(index) => index,
            None if !limit.admit(self.partials.len(), self.bytes, total) => return Assembled::Full,
            None => {
                self.bytes += total;
                self.partials.push(Partial {
                    number,
                    kind,
                    total,
                    bytes: BytesMut::new(),
                    runs: Vec::new(),
                });
                self.partials.len() - 1
            }
        };
        let partial = &mut self.partials[index];
        if (partial.kind, partial.total) != (kind, total) {
            return Assembled::Contradiction;
        }
        if !partial.insert(offset, piece) {
            return Assembled::Full;
        }
        if partial.runs != [(0, total)] {
            return Assembled::Partly;
        }
        self.bytes -= total;
        Assembled::Whole(self.partials.swap_remove(index).bytes.freeze())
    }
}

impl Partial {
    /// `false` if there are too many gaps.
    fn insert(&mut self, offset: usize, piece: &[u8]) -> bool {
        let end = offset + piece.len();
        // The runs that this one touches become one with it.
        let from = self.runs.partition_point(|run| run.1 < offset);
        let to = self.runs.partition_point(|run| run.0 <= end);
        if from == to && self.runs.len() >= MAX_PIECES {
            return false;
        }
        let joined = self.runs[from..to]
            .iter()
            .fold((offset, end), |joined, run| {
                (joined.0.min(run.0), joined.1.max(run.1))
            });
        self.runs.splice(from..to, [joined]);
        if self.bytes.len() == offset {
            self.bytes.extend_from_slice(piece);
        } else {
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[offset..end].copy_from_slice(piece);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &[u8] = b"the quick brown fox jumps over the lazy dog";

    const TWO: Streams = Streams { count: 2, bytes: 0 };

    fn put(assembly: &mut Assembly, number: u64, from: usize, to: usize) -> Assembled {
        let total = MESSAGE.len();
        assembly.insert(number, 0x10, total, from, &MESSAGE[from..to], TWO)
    }

    #[test]
    fn pieces_come_in_any_order_and_twice_and_overlap() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            let mut assembly = Assembly::default();
            for (step, piece) in order.into_iter().enumerate() {
                let (from, to) = (piece * 11, (piece * 11 + 13).min(MESSAGE.len()));
                let assembled = put(&mut assembly, 7, from, to);
                if step < 3 {
                    assert_eq!(assembled, Assembled::Partly);
                    assert_eq!(put(&mut assembly, 7, from, to), Assembled::Partly);
                } else {
                    assert_eq!(assembled, Assembled::Whole(Bytes::from_static(MESSAGE)));
                }
            }
        }
    }

    #[test]
    fn no_more_messages_than_allowed_and_no_contradictions() {
        let mut assembly = Assembly::default();
        assert_eq!(put(&mut assembly, 1, 0, 5), Assembled::Partly);
        assert_eq!(put(&mut assembly, 2, 0, 5), Assembled::Partly);
        assert_eq!(put(&mut assembly, 3, 0, 5), Assembled::Full);
        let other_kind = assembly.insert(1, 0x11, MESSAGE.len(), 5, b"x", TWO);
        assert_eq!(other_kind, Assembled::Contradiction);
        let other_total = assembly.insert(1, 0x10, MESSAGE.len() + 1, 5, b"x", TWO);
        assert_eq!(other_total, Assembled::Contradiction);
        assert!(matches!(
            put(&mut assembly, 1, 5, MESSAGE.len()),
            Assembled::Whole(_)
        ));
        assert_eq!(put(&mut assembly, 3, 0, 5), Assembled::Partly);
    }

    #[test]
    fn more_messages_are_taken_as_long_as_they_are_short() {
        let mut assembly = Assembly::default();
        let limit = Streams {
            count: 2,
            bytes: 300,
        };
        let mut insert = |number| assembly.insert(number, 0x10, 100, 0, b"x", limit);
        assert_eq!([1, 2, 3].map(&mut insert), [const { Assembled::Partly }; 3]);
        assert_eq!(insert(4), Assembled::Full);
        let end = assembly.insert(1, 0x10, 100, 1, &[b'x'; 99], limit);
        assert!(matches!(end, Assembled::Whole(_)), "{end:?}");
        let mut insert = |number| assembly.insert(number, 0x10, 100, 0, b"x", limit);
        assert_eq!(
            [4, 5].map(&mut insert),
            [Assembled::Partly, Assembled::Full]
        );
    }

    #[test]
    fn crumbs_are_bounded() {
        let mut assembly = Assembly::default();
        let mut insert = |offset| assembly.insert(1, 0x10, 1000, offset, b"x", TWO);
        (0..MAX_PIECES).for_each(|crumb| assert_eq!(insert(2 * crumb), Assembled::Partly));
        assert_eq!(insert(2 * MAX_PIECES), Assembled::Full);
        assert_eq!(
            insert(1),
            Assembled::Partly,
            "a crumb that fills a gap is taken"
        );
    }
}
