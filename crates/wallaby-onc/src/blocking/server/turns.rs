//! Who receives on a socket, and whether those that don't come back.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many threads wait for a datagram or are about to, and how many they have got, in one number.
#[derive(Debug, Default)]
pub(super) struct Turns(AtomicU64);

/// What is in it at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment {
    /// Threads that receive.
    pub(super) receiving: u32,
    /// How often one of them stopped to. It starts again some time.
    pub(super) turn: u32,
}

const TURN: u64 = 1 << 32;

impl From<u64> for Moment {
    fn from(both: u64) -> Self {
        Self {
            receiving: both as u32,
            turn: (both >> 32) as u32,
        }
    }
}

impl Turns {
    pub(super) fn now(&self) -> Moment {
        self.0.load(Ordering::SeqCst).into()
    }

    /// One thread more receives; what is so then.
    pub(super) fn enter(&self) -> Moment {
        self.0.fetch_add(1, Ordering::SeqCst).wrapping_add(1).into()
    }

    /// One of them has got something, and receives no more; what is so then.
    pub(super) fn begin(&self) -> Moment {
        let more = TURN - 1;
        let before = self.0.fetch_add(more, Ordering::SeqCst);
        before.wrapping_add(more).into()
    }

    /// One of them will not receive any more, if others do: whether it is so.
    pub(super) fn leave(&self) -> bool {
        let less = |both: u64| (Moment::from(both).receiving > 1).then(|| both - 1);
        let left = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        left.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_turns_are_counted_apart() {
        let moment = |receiving, turn| Moment { receiving, turn };
        let turns = Turns::default();
        assert_eq!(turns.enter(), moment(1, 0));
        assert_eq!(turns.begin(), moment(0, 1));
        assert_eq!(turns.enter(), moment(1, 1));
        assert_eq!(turns.enter(), moment(2, 1));
        assert_eq!(turns.begin(), moment(1, 2));
        assert_eq!(turns.now(), moment(1, 2));
    }

    #[test]
    fn turns_start_again_without_a_trace() {
        let turns = Turns(AtomicU64::new(u64::MAX - u64::from(u32::MAX) + 1));
        let last = Moment {
            receiving: 1,
            turn: u32::MAX,
        };
        assert_eq!(turns.now(), last);
        turns.begin();
        let first = Moment {
            receiving: 0,
            turn: 0,
        };
        assert_eq!(turns.now(), first);
    }

    #[test]
    fn the_last_one_that_receives_stays() {
        let turns = Turns::default();
        turns.enter();
        assert!(!turns.leave());
        turns.enter();
        assert!(turns.leave());
        assert_eq!(turns.now().receiving, 1);
    }
}
