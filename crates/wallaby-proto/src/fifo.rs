//! A queue whose first element needs no memory of its own: most calls have one request and one answer.

use std::collections::VecDeque;

/// First in, first out.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    /// Empty only if `rest` is.
    first: Option<T>,
    #[expect(
        clippy::box_collection,
        reason = "small where there is none, as almost always"
    )]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }
}

impl<T> Fifo<T> {
    /// Adds one behind all others.
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.push_rest(value),
        }
    }

    #[inline(never)]
    fn push_rest(&mut self, value: T) {
        self.rest.get_or_insert_default().push_back(value);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.len());
        usize::from(self.first.is_some()) + rest
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Takes the first one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.first.take();
        if let Some(rest) = &mut self.rest {
            self.first = rest.pop_front();
        }
        first
    }

    /// The one that is so many places behind the first.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match index.checked_sub(1) {
            None => self.first.as_ref(),
            Some(index) => self.rest.as_ref()?.get(index),
        }
    }

    /// The one that is so many places behind the first.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rest.as_mut()?.get_mut(index),
        }
    }

    /// All, the first one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first
            .iter()
            .chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    /// All, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let rest = self.rest.iter_mut().flat_map(|rest| rest.iter_mut());
        self.first.iter_mut().chain(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_is_first_out() {
        let mut fifo = Fifo::default();
        for round in 0..3 {
            for value in 0..=round {
                fifo.push(value);
            }
            fifo.iter_mut().for_each(|value| *value *= 10);
            for (index, value) in (0..=round).enumerate() {
                assert_eq!(fifo.get(index), Some(&(value * 10)));
                assert_eq!(fifo.get_mut(index), Some(&mut (value * 10)));
            }
            assert_eq!(fifo.get(round as usize + 1), None);
            assert!(fifo.iter().copied().eq((0..=round).map(|value| value * 10)));
            for value in 0..=round {
                assert_eq!(fifo.pop(), Some(value * 10));
            }
            assert_eq!(fifo.pop(), None);
        }
    }
}
