//! Values in slots that are used again, each known by the number of its slot alone. Who must not find another one there keeps a key
//! ([`SlotMap`](crate::slot_map::SlotMap)).

use std::ops::{Index, IndexMut, Range};

/// The values. What was in a slot stays there until that is used again.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        let (slots, free) = Default::default();
        Self { slots, free }
    }
}

impl<T> Slots<T> {
    /// How many are in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All slots that there are.
    pub(crate) fn all(&self) -> Range<u32> {
        0..self.slots.len() as u32
    }

    #[inline]
    pub(crate) fn add(&mut self, new: T) -> u32 {
        match self.reuse() {
            Some(slot) => {
                self[slot] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// A slot that is used again, with what was there before.
    #[inline]
    pub(crate) fn reuse(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A slot, which is in use, is free.
    #[inline]
    pub(crate) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// What is in a slot, if there is such a one.
    #[inline]
    pub(crate) fn find(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn find_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        &self.slots[slot as usize]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize]
    }
}
