//! The table of calls, by their sequence.

use super::calls::Call;

/// Calls that are over whose memory is kept, at most.
const SPARE: usize = 64;

/// Fewest places in the table of calls.
const PLACES: usize = 16;

/// Sequences that are looked at for the oldest live call when one ends. One that ends after very many short ones must not hold
/// up all others: the oldest is known to be no older than said, which may be less than could be.
const STEPS: usize = 64;

/// Live calls: a call's place is the end of its sequence, and a sequence whose place is taken is passed over. So nothing is
/// hashed or searched.
#[derive(Debug, Default)]
pub(super) struct CallTable {
    places: Vec<Option<(u64, Box<Option<Call>>)>>,
    /// Boxes of calls that are over, for the next ones.
    #[allow(clippy::vec_box, reason = "they go into `places` as they are")]
    spare: Vec<Box<Option<Call>>>,
    /// How many places are taken, and how many of them by calls that are over.
    pub(super) taken: usize,
    pub(super) over: usize,
    last: u64,
    /// No call before this one is live.
    oldest: u64,
}

impl CallTable {
    /// The sequence of a call that is begun now.
    pub(super) fn next(&mut self) -> u64 {
        if self.taken * 2 >= self.places.len() {
            self.grow();
        }
        loop {
            self.last += 1;
            let place = self.place(self.last);
            if self.places.get(place).is_some_and(Option::is_none) {
                break;
            }
        }
        if self.taken == self.over {
            self.oldest = self.last;
        }
        self.last
    }

    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.places.len().wrapping_sub(1))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn grow(&mut self) {
        let len = (self.places.len() * 2).max(PLACES);
        let before = std::mem::take(&mut self.places);
        self.places.resize_with(len, || None);
        for call in before.into_iter().flatten() {
            let place = self.place(call.0);
            self.places[place] = Some(call); // sequences that differed in fewer bits differ in more
        }
    }

    /// The call is made where it stays: it is long.
    #[inline]
    pub(super) fn add(&mut self, sequence: u64, call: impl FnOnce() -> Call) {
        let place = self.place(sequence);
        if let Some(free) = self.places.get_mut(place) {
            let mut kept = self.spare.pop().unwrap_or_default();
            *kept = Some(call());
            *free = Some((sequence, kept));
            self.taken += 1;
        }
    }

    /// A call, as long as anything of it may run.
    pub(super) fn get(&self, sequence: u64) -> Option<&Call> {
        self.peek(sequence).filter(|call| !call.over)
    }

    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut Call> {
        self.kept(sequence).filter(|call| !call.over)
    }

    /// A call that lives, or is kept for its outcome.
    pub(super) fn peek(&self, sequence: u64) -> Option<&Call> {
        match self.places.get(self.place(sequence))? {
            Some((found, call)) if *found == sequence => call.as_ref().as_ref(),
            _ => None,
        }
    }

    /// The same, to change it.
    pub(super) fn kept(&mut self, sequence: u64) -> Option<&mut Call> {
        let place = self.place(sequence);
        match self.places.get_mut(place)? {
            Some((found, call)) if *found == sequence => call.as_mut().as_mut(),
            _ => None,
        }
    }

    /// All calls that live, or are kept for their outcomes.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, &Call)> {
        let taken = self.places.iter().flatten();
        taken.filter_map(|(sequence, call)| Some((*sequence, call.as_ref().as_ref()?)))
    }

    /// Nothing of a call runs any more. It goes as soon as its outcome was taken.
    pub(super) fn finish(&mut self, sequence: u64) {
        let Some(call) = self.get_mut(sequence).filter(|call| !call.over) else {
            return;
        };
        call.over = true;
        self.over += 1;
        for _ in 0..STEPS {
            if self.oldest > self.last || self.get(self.oldest).is_some() {
                break;
            }
            self.oldest += 1;
        }
        self.leave(sequence);
    }

    /// The outcome of a call was taken, nothing of it runs any more, or nobody waits for that: with all three it goes.
    pub(super) fn leave(&mut self, sequence: u64) {
        let place = self.place(sequence);
        if let Some(found) = self.places.get_mut(place)
            && let Some((_, mut call)) = found.take_if(|(found, call)| {
                let done = |call: &Call| call.over && call.taken && call.stop_by.is_none();
                *found == sequence && call.as_ref().as_ref().is_none_or(done)
            })
        {
            *call = None;
            if self.spare.len() < SPARE {
                self.spare.push(call);
            }
            self.taken -= 1;
            self.over -= 1;
        }
    }

    /// How many are live.
    pub(super) fn len(&self) -> usize {
        self.taken - self.over
    }

    /// No call before this one is live.
    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The live calls in so many places from this one on, and the place to go on from. Who goes on in a later turn misses none
    /// that lives since: where the table has grown meanwhile, calls have stayed or moved on.
    pub(super) fn batch(&self, from: usize, most: usize) -> (Vec<u64>, Option<usize>) {
        let end = from.saturating_add(most);
        let places = self.places.get(from..end.min(self.places.len()));
        let kept = places.into_iter().flatten().flatten();
        let live = kept.filter(|(_, call)| call.as_ref().as_ref().is_some_and(|call| !call.over));
        let live = live.map(|(sequence, _)| *sequence).collect();
        (live, (end < self.places.len()).then_some(end))
    }

    /// All live calls.
    pub(super) fn live(&self) -> Vec<u64> {
        self.batch(0, usize::MAX).0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::endpoint::client::ClientCall;
    use crate::endpoint::{CallOptions, Config};
    use crate::{CallId, NodeId, Token};

    fn call(sequence: u64) -> Call {
        let id = CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence,
        };
        let (token, options) = (Token::new(sequence), CallOptions::default());
        let mut call = Call::new(ClientCall::new(
            id,
            token,
            &options,
            &Config::default(),
            Duration::ZERO,
        ));
        call.taken = true;
        call
    }

    /// A call that lives long beside very many short ones keeps its place, and costs them none.
    #[test]
    fn calls_are_found_by_their_sequence_and_the_oldest_is_known() {
        let mut calls = CallTable::default();
        let first = calls.next();
        calls.add(first, || call(first));
        for _ in 0..10_000 {
            let next = calls.next();
            assert!(next > first && calls.get(next).is_none());
            calls.add(next, || call(next));
            assert_eq!(
                calls.get_mut(next).map(|call| call.client.tree().token()),
                Some(Token::new(next))
            );
            assert_eq!(calls.oldest, first);
            calls.finish(next);
            assert!(calls.get(next).is_none());
        }
        assert_eq!((calls.len(), calls.places.len()), (1, PLACES));
        let many: Vec<u64> = (0..1000)
            .map(|_| {
                let next = calls.next();
                calls.add(next, || call(next));
                next
            })
            .collect();
        assert!(many.is_sorted());
        assert!(many.iter().all(|sequence| calls.get(*sequence).is_some()));
        let mut found = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let (batch, on) = calls.batch(from, 100);
            found.extend(batch);
            if next == Some(0) {
                calls.grow();
            }
            next = on;
        }
        found.sort_unstable();
        found.dedup();
        assert!(found.iter().eq([first].iter().chain(&many)), "{found:?}");
        calls.finish(first);
        assert_eq!(
            calls.oldest,
            first + STEPS as u64,
            "it is not looked for at once"
        );
        let next = calls.next();
        calls.add(next, || call(next));
        for _ in 0..(many[0] - first) as usize / STEPS {
            let short = calls.next();
            calls.add(short, || call(short));
            calls.finish(short);
        }
        assert_eq!(calls.oldest, many[0]);
        calls.finish(next);
        many.iter()
            .rev()
            .for_each(|sequence| calls.finish(*sequence));
        assert_eq!(calls.spare.len(), SPARE, "of a thousand that were live");
        assert!(calls.spare.iter().all(|spare| spare.is_none()));
        let next = calls.next();
        assert_eq!((calls.len(), calls.oldest), (0, next));
    }
}
