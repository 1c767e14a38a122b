//! The calls of one initiator that are near each other, found by their sequences alone.
//!
//! Initiators count their calls up, and most calls are over before many others begin: the last digits of a sequence nearly
//! always tell a call from all that are remembered with it, and nothing has to be hashed. Whoever makes sequences collide
//! gains nothing: a call whose place is taken is found by its keyed hash.

/// Most places of one initiator: more of its calls at a time are found by their hashes. It is no pause to move so many.
const MOST: usize = 1024;

const SMALLEST: usize = 16;

/// Slots of calls by the last digits of their sequences.
#[derive(Debug, Default)]
pub(super) struct Near {
    /// One more than a slot, zero where it is empty. A power of two of them, or none.
    places: Vec<u32>,
    len: usize,
}

impl Near {
    /// The only call here that may have this sequence.
    #[inline]
    pub(super) fn find(&self, sequence: u64) -> Option<u32> {
        let place = self.place(sequence);
        self.places.get(place)?.checked_sub(1)
    }

    /// Adds a call, if its place is free or can be made so; `sequence_of` tells those of the others.
    #[inline]
    pub(super) fn insert(
        &mut self,
        sequence: u64,
        slot: u32,
        sequence_of: impl Fn(u32) -> u64,
    ) -> bool {
        self.put(sequence, slot) || self.grow(sequence_of) && self.put(sequence, slot)
    }

    /// Takes a call out, if it is here.
    #[inline]
    pub(super) fn remove(&mut self, sequence: u64, slot: u32) -> bool {
        let place = self.place(sequence);
        match self.places.get_mut(place) {
            Some(taken) if *taken == slot + 1 => {
                *taken = 0;
                self.len -= 1;
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn put(&mut self, sequence: u64, slot: u32) -> bool {
        let place = self.place(sequence);
        match self.places.get_mut(place) {
            Some(free) if *free == 0 => {
                *free = slot + 1;
                self.len += 1;
                true
            }
            _ => false,
        }
    }

    /// Doubles the places if half of them are taken and there may be more.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, sequence_of: impl Fn(u32) -> u64) -> bool {
        let places = self.places.len();
        if self.len * 2 < places || places >= MOST {
            return false;
        }
        let more = vec![0; (places * 2).max(SMALLEST)];
        for taken in std::mem::replace(&mut self.places, more) {
            if let Some(slot) = taken.checked_sub(1) {
                let place = self.place(sequence_of(slot));
                self.places[place] = taken;
            }
        }
        true
    }

    /// Beyond all places if there are none.
    fn place(&self, sequence: u64) -> usize {
        sequence as usize & self.places.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::chance::Random;

    #[test]
    fn calls_are_found_until_they_are_removed() {
        for seed in 0..8 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let mut near = Near::default();
            // By slot: its sequence, if it is there.
            let mut known: Vec<Option<u64>> = Vec::new();
            for step in 0..4_000 {
                let sequence = [step, random.below(1 << 40)][random.index(2)];
                let slot = known.len() as u32;
                let taken = near.find(sequence).is_some();
                let inserted = near.insert(sequence, slot, |slot| {
                    known[slot as usize].expect("it asks for those that are there")
                });
                assert!(inserted || taken, "it was free");
                known.push(inserted.then_some(sequence));
                let gone = random.index(known.len());
                if let Some(sequence) = known[gone].take_if(|_| seed % 2 == 0) {
                    assert!(near.remove(sequence, gone as u32));
                    assert!(!near.remove(sequence, gone as u32), "it is gone");
                }
                assert!(near.places.len() <= MOST);
            }
            for (slot, sequence) in known.iter().enumerate() {
                let Some(sequence) = sequence else { continue };
                assert_eq!(near.find(*sequence), Some(slot as u32));
            }
            assert_eq!(near.len, known.iter().flatten().count());
        }
    }

    #[test]
    fn calls_in_a_row_all_have_places_up_to_the_most() {
        let mut near = Near::default();
        let most = MOST as u64;
        let taken =
            (0..2 * most).filter(|&sequence| near.insert(sequence, sequence as u32, u64::from));
        assert_eq!(taken.count(), MOST);
        assert!(near.remove(0, 0));
        assert!(!near.insert(most + 1, 9, u64::from), "that place is taken");
        assert!(near.insert(most, 9, u64::from));
    }

    #[test]
    fn there_are_no_more_places_than_a_few_for_each_call() {
        let mut near = Near::default();
        // The worst that can be sent: all want one place.
        let taken = (0..4_000)
            .filter(|&slot| near.insert(u64::from(slot) << 32, slot, |slot| u64::from(slot) << 32));
        assert_eq!(taken.count(), 1);
        assert_eq!(near.places.len(), SMALLEST);
    }
}
