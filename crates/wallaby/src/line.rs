//! A queue whose first element needs no memory of its own: most calls have one request and one answer.

use std::collections::VecDeque;

/// First in, first out.
#[derive(Debug)]
pub(crate) struct Line<T> {
    /// Empty only if `rest` is.
    first: Option<T>,
    #[expect(
        clippy::box_collection,
        reason = "small where there is none, as almost always"
    )]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }
}

impl<T> Line<T> {
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

    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.first.take();
        if let Some(rest) = &mut self.rest {
            self.first = rest.pop_front();
        }
        first
    }

    /// Takes the first value of which this is so.
    pub(crate) fn take_first(&mut self, mut is_it: impl FnMut(&T) -> bool) -> Option<T> {
        if is_it(self.first.as_ref()?) {
            return self.pop();
        }
        let rest = self.rest.as_mut()?;
        let position = rest.iter().position(is_it)?;
        rest.remove(position)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first
            .iter()
            .chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

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
        let mut line = Line::default();
        for round in 0..3 {
            for value in 0..=round {
                line.push(value);
            }
            line.iter_mut().for_each(|value| *value *= 10);
            assert!(line.iter().copied().eq((0..=round).map(|value| value * 10)));
            for value in 0..=round {
                assert_eq!(line.pop(), Some(value * 10));
            }
            assert_eq!(line.pop(), None);
        }
    }

    #[test]
    fn the_first_that_fits_is_taken() {
        let mut line = Line::default();
        (0..5).for_each(|value| line.push(value));
        assert_eq!(line.take_first(|value| *value == 3), Some(3));
        assert_eq!(line.take_first(|value| *value < 2), Some(0));
        assert_eq!(line.take_first(|value| *value > 9), None);
        assert!(line.iter().copied().eq([1, 2, 4]));
        assert_eq!(Line::<u32>::default().take_first(|_| true), None);
    }
}
