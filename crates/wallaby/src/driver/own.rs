//! Which calls of this endpoint still have something in a connection's output.

use std::collections::{HashMap, VecDeque};

/// Calls by their sequences, and how far the output must be written until all that they have put there has left. There may be
/// as many as there are live calls, when a peer takes nothing for a while.
#[derive(Debug, Default)]
pub(super) struct OwnOutput {
    /// In the order of the output, but that the end of a large message may come behind what is written after it.
    waiting: VecDeque<(u64, u64)>,
    /// The last mark of each.
    last: HashMap<u64, u64>,
}

impl OwnOutput {
    /// What this call has put there has left once the output is written so far.
    pub(super) fn note(&mut self, call: u64, mark: u64) {
        match self.waiting.back_mut() {
            Some((of, last)) if *of == call => *last = mark.max(*last),
            _ => self.waiting.push_back((call, mark)),
        }
        let last = self.last.entry(call).or_default();
        *last = mark.max(*last);
    }

    /// The output is written so far.
    pub(super) fn written(&mut self, so_far: u64) {
        while let Some(&(call, mark)) = self.waiting.front()
            && mark <= so_far
        {
            self.waiting.pop_front();
            if self.last.get(&call).is_some_and(|last| *last <= so_far) {
                self.last.remove(&call);
            }
        }
    }

    /// Whether something of this call is still to be written.
    pub(super) fn has(&self, call: u64) -> bool {
        self.last.contains_key(&call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_for_the_last_that_it_has_put_there() {
        let mut own = OwnOutput::default();
        for (call, mark) in [(1, 10), (1, 20), (2, 30), (1, 40), (3, 50)] {
            own.note(call, mark);
        }
        let waiting = |own: &OwnOutput| [1, 2, 3].map(|call| own.has(call));
        own.written(29);
        assert_eq!(waiting(&own), [true, true, true]);
        own.written(30);
        assert_eq!(waiting(&own), [true, false, true]);
        own.written(45);
        assert_eq!(waiting(&own), [false, false, true]);
        own.written(50);
        assert_eq!(waiting(&own), [false; 3]);
        assert!(own.waiting.is_empty() && own.last.is_empty());
    }
}
