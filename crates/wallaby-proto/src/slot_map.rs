//! Values in slots that are used again. Each is known by a key that no other one of its table ever has, so that the key of one that
//! has gone finds nothing.

use crate::slots::Slots;

/// Names a value of a [`SlotMap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotKey {
    /// Never 0 of a key that a table has given.
    generation: u32,
    slot: u32,
}

impl SlotKey {
    /// Before all others, and no value's.
    pub(crate) const FIRST: Self = Self::from_number(0);

    /// Behind all others.
    pub(crate) const LAST: Self = Self::from_number(u64::MAX);

    #[inline]
    pub(crate) const fn number(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    #[inline]
    pub(crate) const fn from_number(number: u64) -> Self {
        Self {
            slot: number as u32,
            generation: (number >> 32) as u32,
        }
    }

    /// Its place: less than the number of values that were ever there at once, and of no other one that is there.
    #[inline]
    pub(crate) fn slot(self) -> usize {
        self.slot as usize
    }
}

/// The values.
#[derive(Debug)]
pub(crate) struct SlotMap<T>(Slots<(u32, Option<T>)>);

impl<T> Default for SlotMap<T> {
    fn default() -> Self {
        Self(Slots::default())
    }
}

impl<T> SlotMap<T> {
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> SlotKey {
        let slot = match self.0.reuse() {
            Some(slot) => slot,
            None => self.0.add((1, None)),
        };
        let (generation, place) = &mut self.0[slot];
        *place = Some(value);
        let generation = *generation;
        SlotKey { slot, generation }
    }

    #[inline]
    pub(crate) fn get(&self, key: SlotKey) -> Option<&T> {
        match self.0.find(key.slot)? {
            (generation, Some(value)) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: SlotKey) -> Option<&mut T> {
        match self.0.find_mut(key.slot)? {
            (generation, Some(value)) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: SlotKey) -> Option<T> {
        let (generation, place) = self.0.find_mut(key.slot)?;
        if *generation != key.generation {
            return None;
        }
        let value = place.take()?;
        *generation = generation.wrapping_add(1).max(1);
        self.0.free(key.slot);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotKey, &T)> {
        self.0.all().filter_map(|slot| {
            let (generation, value) = &self.0[slot];
            let generation = *generation;
            Some((SlotKey { slot, generation }, value.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_value_that_has_gone_finds_nothing() {
        let mut map = SlotMap::default();
        let [first, second] = ["a", "b"].map(|value| map.insert(value));
        assert_eq!(map.remove(first), Some("a"));
        assert_eq!((map.remove(first), map.len()), (None, 1));
        let third = map.insert("c");
        assert_eq!(third.slot(), first.slot());
        assert!(map.get(first).is_none() && map.get_mut(first).is_none());
        assert_eq!(map.get(SlotKey::from_number(third.number())), Some(&"c"));
        assert!(map.iter().eq([(third, &"c"), (second, &"b")]));
        assert!(map.get(SlotKey::FIRST).is_none() && SlotKey::FIRST < second);
    }
}
