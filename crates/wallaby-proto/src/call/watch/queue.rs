//! Which branches are to be looked at when. The first is kept inline: most calls have one branch, and a million of them may be
//! watched over.

use std::collections::BTreeSet;
use std::time::Duration;

/// When, and the branch's position.
type Entry = (Duration, u32);

/// Branches by time.
#[derive(Debug, Default)]
pub(super) struct DueQueue {
    /// The least of all.
    first: Option<Entry>,
    rest: BTreeSet<Entry>,
}

impl DueQueue {
    pub(super) fn first(&self) -> Option<Entry> {
        self.first
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        match self.first {
            None => self.first = Some(entry),
            Some(first) if entry < first => {
                self.rest.insert(first);
                self.first = Some(entry);
            }
            Some(first) if entry == first => {}
            Some(_) => {
                self.rest.insert(entry);
            }
        }
    }

    pub(super) fn remove(&mut self, entry: Entry) {
        if self.first == Some(entry) {
            self.first = self.rest.pop_first();
        } else {
            self.rest.remove(&entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_comes_first_whatever_comes_and_goes() {
        let mut queue = DueQueue::default();
        let mut expected = BTreeSet::new();
        let mut state = 7_u64;
        for _ in 0..2_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let entry = (Duration::from_secs(state >> 60), (state >> 40) as u32 % 4);
            match state >> 33 & 1 {
                0 => {
                    queue.insert(entry);
                    expected.insert(entry);
                }
                _ => {
                    queue.remove(entry);
                    expected.remove(&entry);
                }
            }
            assert_eq!(queue.first(), expected.first().copied());
        }
    }
}
