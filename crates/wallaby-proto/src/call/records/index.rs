//! Finds slots of a table by the hash of their names. The names stay in the slots, and nothing is allocated while the number
//! of slots stays the same.

/// Buckets moved at each insertion while the index grows. Two would do to be done before it must grow again.
const MOVED: usize = 8;

const SMALLEST: usize = 16;

/// Slots by hash. It grows a little at each insertion: moving a million slots at once would be a pause.
#[derive(Debug, Default)]
pub(super) struct Index {
    buckets: Buckets,
    /// Those of before it grew, and how many of them have been looked at; all of these are empty.
    before: Buckets,
    moved: usize,
}

/// Open addressing, at most half full.
#[derive(Debug, Default)]
struct Buckets {
    all: Vec<Bucket>,
    len: usize,
}

/// A hash and one more than a slot; zeros where it is empty, since zeros need not be written into new memory.
type Bucket = (u64, u32);

const EMPTY: Bucket = (0, 0);

impl Index {
    /// The slot with this hash that `is` the one.
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.buckets.find(hash, &is);
        if found.is_none() && self.before.len > 0 {
            return self.find_before(hash, &is);
        }
        found
    }

    #[cold]
    #[inline(never)]
    fn find_before(&self, hash: u64, is: &impl Fn(u32) -> bool) -> Option<u32> {
        self.before.find(hash, is)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buckets.len + self.before.len == 0
    }

    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        if (self.buckets.len + 1) * 2 > self.buckets.all.len() {
            self.grow();
        }
        self.buckets.put((hash, slot + 1));
        if !self.before.all.is_empty() {
            self.move_some();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        // Nothing is left of an earlier time: that was moved long before this became full again.
        while !self.before.all.is_empty() {
            self.move_some();
        }
        let more = (self.buckets.all.len() * 2).max(SMALLEST);
        let grown = Buckets {
            all: vec![EMPTY; more],
            len: 0,
        };
        self.before = std::mem::replace(&mut self.buckets, grown);
        self.moved = 0;
    }

    #[cold]
    #[inline(never)]
    fn move_some(&mut self) {
        let until = (self.moved + MOVED).min(self.before.all.len());
        while self.moved < until {
            match self.before.all[self.moved] {
                (_, 0) => self.moved += 1,
                bucket => {
                    // Another may take its place, which is looked at then.
                    self.before.clear(self.moved);
                    self.buckets.put(bucket);
                }
            }
        }
        if self.moved == self.before.all.len() {
            self.before = Buckets::default();
        }
    }

    /// Takes a slot out that was inserted with this hash.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        if !self.buckets.remove(hash, slot + 1) && self.before.len > 0 {
            self.remove_before(hash, slot + 1);
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_before(&mut self, hash: u64, slot: u32) {
        self.before.remove(hash, slot);
    }
}

impl Buckets {
    #[inline]
    fn find(&self, hash: u64, is: &impl Fn(u32) -> bool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut place = self.home(hash);
        loop {
            let (known, slot) = self.all[place];
            if slot == 0 {
                return None;
            }
            if known == hash && is(slot - 1) {
                return Some(slot - 1);
            }
            place = self.after(place);
        }
    }

    #[inline]
    fn put(&mut self, bucket: Bucket) {
        let mut place = self.home(bucket.0);
        while self.all[place].1 != 0 {
            place = self.after(place);
        }
        self.all[place] = bucket;
        self.len += 1;
    }

    #[inline]
    fn remove(&mut self, hash: u64, slot: u32) -> bool {
        if self.len == 0 {
            return false;
        }
        let mut place = self.home(hash);
        while self.all[place].1 != slot {
            if self.all[place].1 == 0 {
                return false;
            }
            place = self.after(place);
        }
        self.clear(place);
        true
    }

    /// Empties a place. What was pushed out of its own by this one moves back.
    #[inline]
    fn clear(&mut self, mut hole: usize) {
        let mask = self.all.len() - 1;
        let mut place = self.after(hole);
        while self.all[place].1 != 0 {
            let home = self.home(self.all[place].0);
            let moved = place.wrapping_sub(home) & mask;
            if moved >= place.wrapping_sub(hole) & mask {
                self.all[hole] = self.all[place];
                hole = place;
            }
            place = self.after(place);
        }
        self.all[hole] = EMPTY;
        self.len -= 1;
    }

    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.all.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.all.len() - 1)
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
                let Buckets { all, len } = &index.buckets;
                assert!(2 * len <= all.len(), "at most half full");
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
            assert_eq!(index.buckets.len + index.before.len, 0);
        }
    }

    #[test]
    fn nothing_is_lost_while_it_grows_and_no_insertion_moves_many() {
        // Well-spread hashes, and some that wrap around the end.
        let hash = |slot: u32| match slot % 5 {
            0 => u64::MAX - u64::from(slot % 3),
            _ => u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20,
        };
        let mut index = Index::default();
        let mut kept = std::collections::BTreeSet::new();
        for slot in 0..3_000 {
            let moved = (index.moved, index.before.all.len());
            index.insert(hash(slot), slot);
            kept.insert(slot);
            if moved.1 > 0 && index.before.all.len() == moved.1 {
                assert!(index.moved - moved.0 <= MOVED);
            }
            if slot % 3 == 0 {
                let gone = slot / 2;
                index.remove(hash(gone), gone);
                kept.remove(&gone);
            }
            if slot % 97 == 0 {
                for slot in 0..=slot {
                    let found = index.find(hash(slot), |found| found == slot);
                    assert_eq!(found.is_some(), kept.contains(&slot), "{slot}");
                }
            }
        }
        assert_eq!(index.buckets.len + index.before.len, kept.len());
    }

    #[test]
    fn what_was_there_before_it_grew_is_moved_soon() {
        let mut index = Index::default();
        let (mut len, mut since) = (0, 0);
        for slot in 0..2_000 {
            index.insert(u64::from(slot) << 3, slot);
            since += 1;
            if index.buckets.all.len() != len {
                (len, since) = (index.buckets.all.len(), 1);
            }
            let moved = since * MOVED;
            assert!(index.before.all.is_empty() || moved < index.before.all.len());
        }
    }
}
