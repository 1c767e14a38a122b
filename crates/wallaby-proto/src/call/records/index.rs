//! Finds slots of a table by the hash of their names. The names stay in the slots, so that a name is hashed once in its
//! life and nothing is allocated while the number of slots stays the same.

use crate::call::records::list::NONE;

/// Slots by hash: open addressing, at most half full.
#[derive(Debug, Default)]
pub(super) struct Index {
    buckets: Vec<Bucket>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    hash: u64,
    slot: u32,
}

const EMPTY: Bucket = Bucket {
    hash: 0,
    slot: NONE,
};

const SMALLEST: usize = 16;

impl Index {
    /// The slot with this hash that `is` the one.
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut place = self.home(hash);
        loop {
            let bucket = self.buckets[place];
            if bucket.slot == NONE {
                return None;
            }
            if bucket.hash == hash && is(bucket.slot) {
                return Some(bucket.slot);
            }
            place = self.after(place);
        }
    }

    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        if (self.len + 1) * 2 > self.buckets.len() {
            self.grow();
        }
        self.put(Bucket { hash, slot });
        self.len += 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let more = (self.buckets.len() * 2).max(SMALLEST);
        let before = std::mem::replace(&mut self.buckets, vec![EMPTY; more]);
        let full = before.into_iter().filter(|bucket| bucket.slot != NONE);
        full.for_each(|bucket| self.put(bucket));
    }

    /// Takes a slot out that was inserted with this hash.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        if self.len == 0 {
            return;
        }
        let mut hole = self.home(hash);
        while self.buckets[hole].slot != slot {
            if self.buckets[hole].slot == NONE {
                return;
            }
            hole = self.after(hole);
        }
        self.len -= 1;
        // What was pushed out of its place by the removed one moves back.
        let mut place = self.after(hole);
        while self.buckets[place].slot != NONE {
            let home = self.home(self.buckets[place].hash);
            let mask = self.buckets.len() - 1;
            let moved = place.wrapping_sub(home) & mask;
            if moved >= place.wrapping_sub(hole) & mask {
                self.buckets[hole] = self.buckets[place];
                hole = place;
            }
            place = self.after(place);
        }
        self.buckets[hole] = EMPTY;
    }

    fn put(&mut self, bucket: Bucket) {
        let mut place = self.home(bucket.hash);
        while self.buckets[place].slot != NONE {
            place = self.after(place);
        }
        self.buckets[place] = bucket;
    }

    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inserted_is_found_until_it_is_removed() {
        // Few different hashes: most slots are pushed out of their places.
        let hash = |slot: u32| u64::from(slot * slot % 7) * 5;
        let mut index = Index::default();
        for round in 0..3 {
            for slot in 0..40 {
                index.insert(hash(slot), slot);
                assert!(2 * index.len <= index.buckets.len(), "at most half full");
            }
            for slot in 0..40 {
                assert_eq!(index.find(hash(slot), |found| found == slot), Some(slot));
            }
            // In another order each time.
            for turn in 0..40 {
                let slot = (turn * 13 + round) % 40;
                index.remove(hash(slot), slot);
                assert_eq!(index.find(hash(slot), |found| found == slot), None);
                for later in turn + 1..40 {
                    let slot = (later * 13 + round) % 40;
                    assert_eq!(index.find(hash(slot), |found| found == slot), Some(slot));
                }
            }
            assert_eq!(index.len, 0);
        }
    }
}
