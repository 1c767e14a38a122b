//! Which messages have arrived: a window of numbers that only moves forward (docs/protocol.md, rule 28).

/// How many numbers it holds: a sender is never further ahead of its oldest message that is not acknowledged.
pub(super) const WINDOW: u64 = 4096;

const WORDS: usize = (WINDOW / 64) as usize;

/// The numbers of messages that have arrived.
#[derive(Debug)]
pub(super) struct ReplayWindow {
    /// All below have arrived; this one has not.
    base: u64,
    /// A bit for each number from `base` on, in a ring: that of number n is bit n mod [`WINDOW`].
    bits: [u64; WORDS],
}

/// What a window says of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowCheck {
    /// It has not arrived yet.
    New,
    /// It has.
    Duplicate,
    /// It is further ahead than any sender may be.
    TooFar,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self {
            base: 0,
            bits: [0; WORDS],
        }
    }
}

impl ReplayWindow {
    pub(super) fn look(&self, number: u64) -> WindowCheck {
        if number < self.base {
            WindowCheck::Duplicate
        } else if number - self.base >= WINDOW {
            WindowCheck::TooFar
        } else if self.bits[word(number)] & bit(number) != 0 {
            WindowCheck::Duplicate
        } else {
            WindowCheck::New
        }
    }

    /// A message that is [`WindowCheck::New`] has arrived.
    pub(super) fn insert(&mut self, number: u64) {
        debug_assert_eq!(self.look(number), WindowCheck::New);
        self.bits[word(number)] |= bit(number);
        while self.bits[word(self.base)] & bit(self.base) != 0 {
            self.bits[word(self.base)] &= !bit(self.base);
            self.base += 1;
        }
    }
}

fn word(number: u64) -> usize {
    (number % WINDOW / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once() {
        let mut window = ReplayWindow::default();
        // Every block of 100 backwards, so that there are always gaps.
        for block in 0..200 {
            for number in (block * 100..(block + 1) * 100).rev() {
                assert_eq!(window.look(number), WindowCheck::New, "{number}");
                window.insert(number);
                assert_eq!(window.look(number), WindowCheck::Duplicate, "{number}");
            }
        }
        assert!((0..20_000).all(|number| window.look(number) == WindowCheck::Duplicate));
        assert_eq!(window.look(20_000 + WINDOW - 1), WindowCheck::New);
        assert_eq!(window.look(20_000 + WINDOW), WindowCheck::TooFar);
    }

    #[test]
    fn a_gap_holds_it_back() {
        let mut window = ReplayWindow::default();
        (1..WINDOW).for_each(|number| window.insert(number));
        assert_eq!(window.look(WINDOW), WindowCheck::TooFar);
        assert_eq!(window.look(0), WindowCheck::New);
        window.insert(0);
        assert_eq!(window.look(WINDOW), WindowCheck::New);
        assert_eq!(window.look(0), WindowCheck::Duplicate);
    }
}
