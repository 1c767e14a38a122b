//! What an initiator knows of each branch of a call.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::call::initiator::{Arrival, Violation};
use crate::call::room::{BranchRoom, RoomShare};
use crate::cold::Cold;
use crate::id::{Path, PathHasher, Token};
use crate::manifest::Facts;
use crate::wire::{HandledBy, Response};

/// Below this many branches a scan beats a map.
const SCANNED: usize = 16;

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
    pub(super) received: ReceivedResponses,
    /// The highest hop that was heard of.
    pub(super) hop: u32,
    /// Responses that are statuses: its last, and those in place of answers that were too large.
    statuses: Cold<ReceivedResponses>,
    /// Who handles it, as its servers said, and at which hop that was.
    pub(super) handled_by: Cold<Option<(u32, HandledBy)>>,
    /// When something was heard of it last, if it did not end with that.
    pub(super) heard: Option<Duration>,
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
            received: ReceivedResponses::default(),
            hop: 0,
            statuses: Cold::NONE,
            handled_by: Cold::NONE,
            heard: None,
            changed: false,
            undelivered: false,
            lost: false,
        }
    }

    /// Who handles a hop of it.
    pub(super) fn handled_by(&self, hop: u32) -> Option<&HandledBy> {
        let known = self.handled_by.get()?.as_ref();
        known.filter(|known| known.0 == hop).map(|known| &known.1)
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
        let statuses = self.statuses.get();
        statuses.is_some_and(|statuses| statuses.has(index))
    }

    /// Whether this response has arrived and is an answer.
    pub(super) fn has_answer(&self, index: u32) -> bool {
        self.received.has(index) && !self.has_status(index)
    }

    /// How many responses are not here, as far as the facts tell. Those of a lost branch are not waited for.
    pub(super) fn missing(&self) -> u64 {
        match self.facts {
            Some(facts) => u64::from(facts.responses - self.received.count),
            None => 0,
        }
    }
}

/// Runs of numbers: their first, and the one after their last.
type Runs = BTreeMap<u32, u32>;

/// Which responses of a branch have arrived: all below a number, and those that overtook others.
#[derive(Debug, Clone, Default)]
pub(super) struct ReceivedResponses {
    below: u32,
    ahead: Cold<Runs>,
    pub(super) count: u32,
}

impl ReceivedResponses {
    /// Notes response `index`, which is less than `u32::MAX`; `false` if it had arrived before.
    #[inline]
    pub(super) fn insert(&mut self, index: u32) -> bool {
        let in_order = index == self.below && !self.ahead.is_some();
        if in_order {
            self.count += 1;
            self.below += 1;
        }
        in_order || self.insert_out_of_order(index)
    }

    #[inline(never)]
    fn insert_out_of_order(&mut self, index: u32) -> bool {
        if self.has(index) {
            return false;
        }
        self.count += 1;
        let ahead = self.ahead.get_mut();
        let end = ahead.and_then(|ahead| ahead.remove(&(index + 1)));
        let end = end.unwrap_or(index + 1);
        if index == self.below {
            self.below = end;
            return true;
        }
        let ahead = self.ahead.get_or_insert_default();
        match ahead.range_mut(..index).next_back() {
            Some((_, before)) if *before == index => *before = end,
            _ => {
                ahead.insert(index, end);
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
        let (_, &end) = self.ahead.get()?.range(..=index).next_back()?;
        (index < end).then_some(end)
    }

    /// One more than the highest index that has arrived.
    #[inline]
    pub(super) fn bound(&self) -> u32 {
        match self.ahead.get() {
            None => self.below,
            Some(ahead) => last_end(ahead).unwrap_or(self.below),
        }
    }
}

#[inline(never)]
fn last_end(runs: &Runs) -> Option<u32> {
    runs.last_key_value().map(|(_, end)| *end)
}

/// All branches of a call. The first is kept inline: most calls have no other.
#[derive(Debug, Default)]
pub(super) struct Branches {
    first: Option<Branch>,
    rest: Cold<Rest>,
}

/// All but the first.
#[derive(Debug, Default)]
struct Rest {
    branches: Vec<Branch>,
    /// Positions by path, once there are more than [`SCANNED`].
    index: Option<HashMap<Path, u32, PathHasher>>,
    /// Branches whose parents have become known, if anybody wants to know.
    adopted: Option<Vec<u32>>,
    /// The part of the room for branches of all calls that is taken here.
    share: Option<RoomShare>,
}

impl std::fmt::Debug for PathHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PathHasher")
    }
}

impl Branches {
    pub(super) fn len(&self) -> u32 {
        let more = self.rest.get().map_or(0, |rest| rest.branches.len());
        u32::from(self.first.is_some()) + more as u32
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The first branch.
    #[inline]
    pub(super) fn begin(&mut self, path: Path) -> &mut Branch {
        self.first.insert(Branch::new(path))
    }

    #[inline]
    pub(super) fn find(&self, path: &Path) -> Option<u32> {
        if self.first.as_ref().is_some_and(|first| first.path == *path) {
            return Some(0);
        }
        self.rest.get()?.find(path)
    }

    /// Adds a branch that is not there yet and returns its position. Paths are hashed under the call's token, so that no
    /// peer can make them collide.
    pub(super) fn add(&mut self, path: Path, token: Token) -> u32 {
        if self.is_empty() {
            self.begin(path);
            return 0;
        }
        self.rest.get_or_insert_default().add(path, token)
    }

    /// One more branch is to be added, which is counted.
    #[cold]
    pub(super) fn take_room(&mut self, room: &BranchRoom) -> Result<(), Violation> {
        let share = &mut self.rest.get_or_insert_default().share;
        share.get_or_insert_with(|| RoomShare::of(room)).grow()
    }

    /// The branch at a position that [`Self::find`] or [`Self::add`] returned.
    #[inline]
    pub(super) fn at(&mut self, position: u32) -> &mut Branch {
        match (position, &mut self.first) {
            (0, Some(first)) => first,
            _ => self.rest.get_or_insert_default().at(position),
        }
    }

    /// Whether it is noted from now on which branches get their parent.
    pub(super) fn note_adopted(&mut self, wanted: bool) {
        let rest = self.rest.get_or_insert_default();
        let adopted = rest.adopted.take().unwrap_or_default();
        rest.adopted = wanted.then_some(adopted);
    }

    /// The parent of a branch has become known.
    #[inline(never)]
    pub(super) fn adopt(&mut self, position: u32) {
        if let Some(adopted) = self.rest.get_mut().and_then(|rest| rest.adopted.as_mut()) {
            adopted.push(position);
        }
    }

    pub(super) fn has_adopted(&self) -> bool {
        let adopted = self.rest.get().and_then(|rest| rest.adopted.as_ref());
        adopted.is_some_and(|adopted| !adopted.is_empty())
    }

    /// Branches whose parents have become known since this was asked last.
    pub(super) fn take_adopted(&mut self) -> Vec<u32> {
        let adopted = self.rest.get_mut().and_then(|rest| rest.adopted.as_mut());
        adopted.map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Branch> {
        let rest = self.rest.get().into_iter().flat_map(|rest| &rest.branches);
        self.first.iter().chain(rest)
    }

    pub(super) fn get(&self, position: u32) -> Option<&Branch> {
        match position {
            0 => self.first.as_ref(),
            _ => self.rest.get()?.branches.get(position as usize - 1),
        }
    }
}

impl Rest {
    #[inline(never)]
    fn find(&self, path: &Path) -> Option<u32> {
        match &self.index {
            Some(index) => index.get(path).copied(),
            None => {
                let mut branches = self.branches.iter();
                let position = branches.position(|branch| branch.path == *path)?;
                Some(position as u32 + 1)
            }
        }
    }

    fn at(&mut self, position: u32) -> &mut Branch {
        &mut self.branches[position as usize - 1]
    }

    fn add(&mut self, path: Path, token: Token) -> u32 {
        self.branches.push(Branch::new(path));
        let position = self.branches.len() as u32;
        match &mut self.index {
            Some(index) => {
                index.insert(path, position);
            }
            None if self.branches.len() > SCANNED => {
                let mut index = HashMap::with_hasher(PathHasher(token));
                let places = self.branches.iter().zip(1..);
                index.extend(places.map(|(branch, position)| (branch.path, position)));
                self.index = Some(index);
            }
            None => {}
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_noted_in_any_order() {
        let order = [5, 3, 9, 4, 0, 11, 10, 1, 3, 5, 2, 0, 8, 7, 6];
        let (mut received, mut expected) = (ReceivedResponses::default(), Vec::new());
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
