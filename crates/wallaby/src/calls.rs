//! The live calls of an endpoint, by sequence.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::call::CallShared;
use crate::timer::Instant;

/// Calls that outlive so many younger ones move out of the way.
const SPARSE: usize = 1024;

/// Most calls that are handed out at a time: whoever wants more comes again, so that others get the lock between.
pub(crate) const BATCH: usize = 1024;

/// Calls that follow each other are looked through together when the first of their deadlines passes: 2 to this power.
const BLOCK: u32 = 10;

/// Live calls. Sequences count up, so the young ones sit in a queue where a sequence is a position; the few that live
/// long are kept in a map.
#[derive(Debug)]
pub(crate) struct Calls {
    /// The sequence of the first in `young`.
    first: u64,
    young: VecDeque<Option<Arc<CallShared>>>,
    old: BTreeMap<u64, Arc<CallShared>>,
    live: usize,
    deadlines: Deadlines,
}

/// The first deadline of each block of calls, as far as known: those of calls that have ended count until it passes. Most
/// calls end long before their deadlines, so they are not kept by deadline, each by itself. Times are in nanoseconds since
/// the endpoint was made.
#[derive(Debug, Default)]
struct Deadlines {
    by_time: BTreeSet<(u64, u64)>,
    /// The same by block, which is in the order of their calls; and the block that new calls are in.
    by_block: BTreeMap<u64, u64>,
    newest: Option<(u64, u64)>,
}

impl Deadlines {
    fn note(&mut self, sequence: u64, deadline: u64) {
        let block = sequence >> BLOCK;
        match &mut self.newest {
            Some((newest, first)) if *newest == block => *first = deadline.min(*first),
            _ => self.begin(block, deadline),
        }
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, block: u64, deadline: u64) {
        if let Some((before, first)) = self.newest.replace((block, deadline)) {
            self.put(before, first);
        }
    }

    fn put(&mut self, block: u64, first: u64) {
        let first = match self.by_block.get(&block) {
            Some(known) => first.min(*known),
            None => first,
        };
        if let Some(known) = self.by_block.insert(block, first) {
            self.by_time.remove(&(known, block));
        }
        self.by_time.insert((first, block));
    }

    fn first(&self) -> Option<u64> {
        let known = self.by_time.first().map(|first| first.0);
        let newest = self.newest.map(|newest| newest.1);
        known.into_iter().chain(newest).min()
    }

    /// A block with a deadline that has passed; it is to be put back if it has calls that live on.
    fn pop(&mut self, now: u64) -> Option<u64> {
        if let Some((block, _)) = self.newest.take_if(|newest| newest.1 <= now) {
            return Some(block);
        }
        let due = self
            .by_time
            .first()
            .filter(|first| first.0 <= now)
            .copied()?;
        self.by_time.remove(&due);
        self.by_block.remove(&due.1);
        Some(due.1)
    }

    /// All calls of blocks before this one have ended, but for old ones.
    fn forget_before(&mut self, block: u64, is_old: impl Fn(u64) -> bool) {
        while let Some(entry) = self.by_block.first_entry() {
            let (known, first) = (*entry.key(), *entry.get());
            if known >= block || is_old(known) {
                return;
            }
            entry.remove();
            self.by_time.remove(&(first, known));
        }
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            first: 1,
            young: VecDeque::new(),
            old: BTreeMap::new(),
            live: 0,
            deadlines: Deadlines::default(),
        }
    }
}

impl Calls {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// The sequence of the oldest live call, or of the next one.
    pub(crate) fn oldest(&self) -> u64 {
        self.old.keys().next().copied().unwrap_or(self.first)
    }

    /// The sequence that the next call will have.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.young.len() as u64
    }

    /// Adds the call that `make` makes of the next sequence.
    pub(crate) fn add(&mut self, make: impl FnOnce(u64) -> Arc<CallShared>) -> Arc<CallShared> {
        let call = make(self.next());
        self.deadlines.note(self.next(), call.deadline_age());
        self.young.push_back(Some(Arc::clone(&call)));
        self.live += 1;
        if self.young.len() > SPARSE + 4 * self.live {
            self.move_aside();
        }
        call
    }

    #[cold]
    #[inline(never)]
    fn move_aside(&mut self) {
        if let Some(Some(old)) = self.young.pop_front() {
            self.old.insert(self.first, old);
            self.first += 1;
            self.drop_ended();
        }
    }

    pub(crate) fn get(&self, sequence: u64) -> Option<&Arc<CallShared>> {
        match sequence.checked_sub(self.first) {
            Some(position) => self.young.get(position as usize)?.as_ref(),
            None => self.old.get(&sequence),
        }
    }

    pub(crate) fn remove(&mut self, sequence: u64) {
        let removed = match sequence.checked_sub(self.first) {
            Some(position) => self.young.get_mut(position as usize).and_then(Option::take),
            None => self.remove_old(sequence),
        };
        self.live -= usize::from(removed.is_some());
        self.drop_ended();
    }

    #[cold]
    #[inline(never)]
    fn remove_old(&mut self, sequence: u64) -> Option<Arc<CallShared>> {
        self.old.remove(&sequence)
    }

    /// When the first of the live calls from this sequence on began.
    pub(crate) fn begun_from(&self, sequence: u64) -> Option<Instant> {
        self.from(sequence).next().map(|(_, call)| call.begun())
    }

    /// Live calls from this sequence on that began no later than a moment, [`BATCH`] at most, and the sequence to go on
    /// from.
    pub(crate) fn begun_before(
        &self,
        sequence: u64,
        moment: Instant,
    ) -> (Vec<Arc<CallShared>>, u64) {
        let mut calls = Vec::new();
        for (sequence, call) in self.from(sequence) {
            if call.begun() > moment || calls.len() >= BATCH {
                return (calls, sequence);
            }
            calls.push(Arc::clone(call));
        }
        (calls, self.next())
    }

    /// The next live calls from this sequence on, [`BATCH`] at most, and the sequence to go on from.
    pub(crate) fn batch(&self, sequence: u64) -> (Vec<Arc<CallShared>>, u64) {
        let mut calls = Vec::new();
        for (sequence, call) in self.from(sequence) {
            if calls.len() >= BATCH {
                return (calls, sequence);
            }
            calls.push(Arc::clone(call));
        }
        (calls, self.next())
    }

    /// When the first deadline passes, as far as known.
    pub(crate) fn first_deadline(&self) -> Option<u64> {
        self.deadlines.first()
    }

    /// Calls whose deadlines have passed, those of one block; `None` if there is no such block. Each is handed out once
    /// if it ends then.
    pub(crate) fn late(&mut self, now: u64) -> Option<Vec<Arc<CallShared>>> {
        let block = self.deadlines.pop(now)?;
        let (mut late, mut next) = (Vec::new(), None::<u64>);
        for (_, call) in self
            .from(block << BLOCK)
            .take_while(|(sequence, _)| sequence >> BLOCK == block)
        {
            match call.deadline_age() {
                deadline if deadline <= now => late.push(Arc::clone(call)),
                deadline => next = Some(next.map_or(deadline, |next| next.min(deadline))),
            }
        }
        if let Some(next) = next {
            self.deadlines.put(block, next);
        }
        Some(late)
    }

    fn from(&self, sequence: u64) -> impl Iterator<Item = (u64, &Arc<CallShared>)> {
        let skipped = sequence.saturating_sub(self.first) as usize;
        let old = self
            .old
            .range(sequence..)
            .map(|(sequence, call)| (*sequence, call));
        // Not `skip`, which would take a step for each call that it leaves out.
        let skipped = skipped.min(self.young.len());
        let young = (self.first + skipped as u64..).zip(self.young.range(skipped..));
        old.chain(young.filter_map(|(sequence, call)| Some((sequence, call.as_ref()?))))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<CallShared>> {
        self.old.values().chain(self.young.iter().flatten())
    }

    fn drop_ended(&mut self) {
        let before = self.first >> BLOCK;
        while let Some(None) = self.young.front() {
            self.young.pop_front();
            self.first += 1;
        }
        if before != self.first >> BLOCK {
            self.forget_deadlines();
        }
    }

    #[cold]
    #[inline(never)]
    fn forget_deadlines(&mut self) {
        let old = &self.old;
        let is_old = |block: u64| {
            let sequences = block << BLOCK..(block + 1) << BLOCK;
            old.range(sequences).next().is_some()
        };
        self.deadlines.forget_before(self.first >> BLOCK, is_old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When block by block the deadlines of these calls are found to have passed, at these seconds.
    fn found(deadlines: &[(u64, u64)], at: &[u64]) -> Vec<Vec<u64>> {
        let second = |number: u64| number * 1_000_000_000;
        let mut all = Deadlines::default();
        for &(sequence, deadline) in deadlines {
            all.note(sequence, second(deadline));
        }
        let pops = |&now: &u64| std::iter::from_fn(|| all.pop(second(now))).collect();
        at.iter().map(pops).collect()
    }

    #[test]
    fn blocks_are_found_when_their_first_deadline_passes() {
        let deadlines = [(1, 50), (2, 10), (1024, 20), (5000, 5), (5001, 7)];
        let found = found(&deadlines, &[4, 5, 10, 30, 60]);
        assert_eq!(found, [vec![], vec![4], vec![0], vec![1], vec![]]);
    }

    #[test]
    fn a_block_is_known_once_with_the_first_of_its_deadlines() {
        let second = |number: u64| number * 1_000_000_000;
        let mut all = Deadlines::default();
        all.note(1, second(1));
        assert_eq!(all.pop(second(1)), Some(0));
        all.put(0, second(9)); // one of its calls lives on
        all.note(2, second(3)); // and another one is made
        all.note(2000, second(20));
        assert_eq!(all.first(), Some(second(3)));
        assert_eq!((all.pop(second(10)), all.pop(second(10))), (Some(0), None));
    }

    #[test]
    fn blocks_whose_calls_have_ended_are_forgotten() {
        let epoch = 0;
        let mut all = Deadlines::default();
        for sequence in 0..10 << BLOCK {
            all.note(sequence, epoch);
        }
        all.forget_before(5, |_| false);
        all.forget_before(8, |block| block == 6);
        let known: Vec<u64> = all.by_block.keys().copied().collect();
        assert_eq!(known, [6, 7, 8]);
        assert_eq!(all.by_time.len(), 3);
    }
}
