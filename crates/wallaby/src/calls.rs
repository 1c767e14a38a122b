//! The live calls of an endpoint, by sequence.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::call::CallShared;
use crate::timer::Instant;

/// Calls that outlive so many younger ones move out of the way.
const SPARSE: usize = 1024;

/// Live calls. Sequences count up, so the young ones sit in a queue where a sequence is a position; the few that live
/// long are kept in a map.
#[derive(Debug)]
pub(crate) struct Calls {
    /// The sequence of the first in `young`.
    first: u64,
    young: VecDeque<Option<Arc<CallShared>>>,
    old: BTreeMap<u64, Arc<CallShared>>,
    live: usize,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            first: 1,
            young: VecDeque::new(),
            old: BTreeMap::new(),
            live: 0,
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

    /// The live calls from this sequence on that began no later than a moment, and the sequence to go on from.
    pub(crate) fn begun_before(
        &self,
        sequence: u64,
        moment: Instant,
    ) -> (Vec<Arc<CallShared>>, u64) {
        let mut calls = Vec::new();
        for (sequence, call) in self.from(sequence) {
            if call.begun() > moment {
                return (calls, sequence);
            }
            calls.push(Arc::clone(call));
        }
        (calls, self.first + self.young.len() as u64)
    }

    fn from(&self, sequence: u64) -> impl Iterator<Item = (u64, &Arc<CallShared>)> {
        let skipped = sequence.saturating_sub(self.first) as usize;
        let old = self
            .old
            .range(sequence..)
            .map(|(sequence, call)| (*sequence, call));
        let young = (self.first..).zip(&self.young).skip(skipped);
        old.chain(young.filter_map(|(sequence, call)| Some((sequence, call.as_ref()?))))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<CallShared>> {
        self.old.values().chain(self.young.iter().flatten())
    }

    fn drop_ended(&mut self) {
        while let Some(None) = self.young.front() {
            self.young.pop_front();
            self.first += 1;
        }
    }
}
