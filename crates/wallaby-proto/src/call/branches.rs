//! What an initiator knows of each branch of a call.

use std::collections::{BTreeMap, HashMap};

use crate::call::initiator::Arrival;
use crate::id::{Path, PathHasher, Token};
use crate::manifest::Facts;
use crate::wire::Response;

/// Below this many branches a scan beats a map.
const SCANNED: usize = 8;

/// One branch, as far as the initiator knows it.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub(super) path: Path,
    /// The branch that has it as a child; `None` for initial requests and while that is not known.
    pub(super) parent: Option<u32>,
    /// Its number among its parent's children, once the parent is known.
    pub(super) index: u32,
    /// A manifest on the way from the root says that it exists.
    pub(super) expected: bool,
    pub(super) facts: Option<Facts>,
    pub(super) received: Received,
    /// The highest hop that was heard of.
    pub(super) hop: u32,
    /// Responses that are statuses: its last, and those in place of answers that were too large.
    statuses: Option<Box<Received>>,
    /// It has changed since the call's watch last looked at it.
    pub(super) changed: bool,
    /// Its request certainly did not reach its server.
    pub(super) undelivered: bool,
    /// Nobody waits for it any more: the call goes on without what is missing of it.
    pub(super) lost: bool,
}

impl Branch {
    pub(super) fn new(path: Path) -> Self {
        Self {
            path,
            parent: None,
            index: 0,
            expected: false,
            facts: None,
            received: Received::default(),
            hop: 0,
            statuses: None,
            changed: false,
            undelivered: false,
            lost: false,
        }
    }

    /// Whether nothing of the branch itself is waited for: its facts and all its responses are here, or it is lost.
    pub(super) fn is_settled(&self) -> bool {
        self.lost || self.facts.is_some() && self.missing() == 0
    }

    /// A response that arrived before came again.
    pub(super) fn again(&self, response: &Response) -> Arrival {
        match response.status == self.has_status(response.index) {
            true => Arrival::Duplicate,
            false => Arrival::Contradiction,
        }
    }

    /// Notes that this response, which is new, is a status.
    pub(super) fn note_status(&mut self, index: u32) {
        self.statuses.get_or_insert_default().insert(index);
    }

    /// Whether this response has arrived and is a status.
    pub(super) fn has_status(&self, index: u32) -> bool {
        let statuses = self.statuses.as_ref();
        statuses.is_some_and(|statuses| statuses.has(index))
    }

    /// Whether this response has arrived and is an answer.
    pub(super) fn has_answer(&self, index: u32) -> bool {
        self.received.has(index) && !self.has_status(index)
    }

    /// How many responses are waited for, as far as the facts tell.
    pub(super) fn missing(&self) -> u64 {
        match self.facts {
            Some(facts) if !self.lost => u64::from(facts.responses - self.received.count),
            _ => 0,
        }
    }
}

/// Which responses of a branch have arrived: all below a number, and those that overtook others.
#[derive(Debug, Clone, Default)]
pub(super) struct Received {
    below: u32,
    /// Runs of numbers above: their first, and the one after their last.
    ahead: BTreeMap<u32, u32>,
    pub(super) count: u32,
}

impl Received {
    /// Notes response `index`, which is less than `u32::MAX`; `false` if it had arrived before.
    pub(super) fn insert(&mut self, index: u32) -> bool {
        if self.has(index) {
            return false;
        }
        self.count += 1;
        let end = self.ahead.remove(&(index + 1)).unwrap_or(index + 1);
        if index == self.below {
            self.below = end;
            return true;
        }
        match self.ahead.range_mut(..index).next_back() {
            Some((_, before)) if *before == index => *before = end,
            _ => {
                self.ahead.insert(index, end);
            }
        }
        true
    }

    /// Whether all responses with a number below `bound` have arrived.
    pub(super) fn has_all_below(&self, bound: u32) -> bool {
        self.below >= bound
    }

    /// Whether this response has arrived.
    pub(super) fn has(&self, index: u32) -> bool {
        index < self.below || self.end_of_run(index).is_some()
    }

    /// The numbers from `from` on and below `to` of responses that have not arrived.
    pub(super) fn missing(&self, from: u32, to: u32) -> impl Iterator<Item = u32> {
        let mut next = from.max(self.below);
        std::iter::from_fn(move || {
            while let Some(end) = self.end_of_run(next) {
                next = end;
            }
            let missing = (next < to).then_some(next)?;
            next += 1;
            Some(missing)
        })
    }

    /// The end of the run that has this number, if it has arrived ahead of others.
    fn end_of_run(&self, index: u32) -> Option<u32> {
        let (_, &end) = self.ahead.range(..=index).next_back()?;
        (index < end).then_some(end)
    }

    /// One more than the highest index that has arrived.
    pub(super) fn bound(&self) -> u32 {
        self.ahead.last_key_value().map_or(self.below, |run| *run.1)
    }
}

/// All branches of a call. The first is kept inline: most calls have no other.
#[derive(Debug)]
pub(super) struct Branches {
    first: Option<Branch>,
    more: Vec<Branch>,
    /// Positions by path, once there are more than [`SCANNED`].
    index: Option<HashMap<Path, u32, PathHasher>>,
    token: Token,
}

impl std::fmt::Debug for PathHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PathHasher")
    }
}

impl Branches {
    pub(super) fn new(token: Token) -> Self {
        Self {
            first: None,
            more: Vec::new(),
            index: None,
            token,
        }
    }

    pub(super) fn len(&self) -> u32 {
        u32::from(self.first.is_some()) + self.more.len() as u32
    }

    pub(super) fn find(&self, path: &Path) -> Option<u32> {
        if self.first.as_ref().is_some_and(|first| first.path == *path) {
            return Some(0);
        }
        match &self.index {
            Some(index) => index.get(path).copied(),
            None => self
                .more
                .iter()
                .position(|branch| branch.path == *path)
                .map(|position| position as u32 + 1),
        }
    }

    /// Adds a branch that is not there yet and returns its position.
    pub(super) fn add(&mut self, path: Path) -> u32 {
        if self.first.is_none() {
            self.first = Some(Branch::new(path));
            return 0;
        }
        self.add_more(path)
    }

    #[inline(never)]
    fn add_more(&mut self, path: Path) -> u32 {
        let position = self.len();
        self.more.push(Branch::new(path));
        match &mut self.index {
            Some(index) => {
                index.insert(path, position);
            }
            None if self.more.len() > SCANNED => {
                let mut index = HashMap::with_hasher(PathHasher(self.token));
                index.extend(
                    self.more
                        .iter()
                        .zip(1..)
                        .map(|(branch, position)| (branch.path, position)),
                );
                self.index = Some(index);
            }
            None => {}
        }
        position
    }

    /// The branch at a position that [`Self::find`] or [`Self::add`] returned.
    pub(super) fn at(&mut self, position: u32) -> &mut Branch {
        match (position, &mut self.first) {
            (0, Some(first)) => first,
            _ => &mut self.more[position as usize - 1],
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Branch> {
        self.first.iter().chain(&self.more)
    }

    pub(super) fn get(&self, position: u32) -> Option<&Branch> {
        match position {
            0 => self.first.as_ref(),
            _ => self.more.get(position as usize - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_noted_in_any_order() {
        let order = [5, 3, 9, 4, 0, 11, 10, 1, 3, 5, 2, 0, 8, 7, 6];
        let (mut received, mut expected) = (Received::default(), Vec::new());
        for index in order {
            assert_eq!(received.insert(index), !expected.contains(&index));
            expected.push(index);
            for (from, to) in [(0, 14), (4, 9), (10, 12), (6, 6), (12, 3)] {
                let missing: Vec<u32> = received.missing(from, to).collect();
                let wanted: Vec<u32> = (from..to)
                    .filter(|index| !expected.contains(index))
                    .collect();
                assert_eq!(missing, wanted, "from {from} to {to}");
            }
            assert_eq!(
                received.bound(),
                expected.iter().max().map_or(0, |max| max + 1)
            );
        }
        assert_eq!(received.count, 12);
        assert!(received.has_all_below(12) && !received.has_all_below(13));
    }
}
