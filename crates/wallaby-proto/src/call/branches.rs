//! What an initiator knows of each branch of a call.

use std::collections::{BTreeSet, HashMap};

use crate::id::{Path, PathHasher, Token};
use crate::manifest::Facts;

/// Below this many branches a scan beats a map.
const SCANNED: usize = 8;

/// One branch, as far as the initiator knows it.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub(super) path: Path,
    /// The branch that has it as a child; `None` for initial requests and while that is not known.
    pub(super) parent: Option<u32>,
    /// A manifest on the way from the root says that it exists.
    pub(super) expected: bool,
    pub(super) facts: Option<Facts>,
    pub(super) received: Received,
    /// The highest hop that was heard of.
    pub(super) hop: u32,
}

impl Branch {
    pub(super) fn new(path: Path) -> Self {
        Self {
            path,
            parent: None,
            expected: false,
            facts: None,
            received: Received::default(),
            hop: 0,
        }
    }

    /// How many responses are missing, as far as the facts tell.
    pub(super) fn missing(&self) -> u64 {
        self.facts
            .map_or(0, |facts| u64::from(facts.responses - self.received.count))
    }
}

/// Which responses of a branch have arrived: all below a number, and those that overtook others.
#[derive(Debug, Clone, Default)]
pub(super) struct Received {
    below: u32,
    ahead: BTreeSet<u32>,
    pub(super) count: u32,
}

impl Received {
    /// Notes response `index`; `false` if it had arrived before.
    pub(super) fn insert(&mut self, index: u32) -> bool {
        if index == self.below && self.ahead.is_empty() {
            (self.below, self.count) = (self.below + 1, self.count + 1);
            return true;
        }
        self.insert_out_of_order(index)
    }

    #[inline(never)]
    fn insert_out_of_order(&mut self, index: u32) -> bool {
        if index < self.below || self.ahead.contains(&index) {
            return false;
        }
        self.count += 1;
        if index > self.below {
            return self.ahead.insert(index);
        }
        self.below += 1;
        while self.ahead.remove(&self.below) {
            self.below += 1;
        }
        true
    }

    /// One more than the highest index that has arrived.
    pub(super) fn bound(&self) -> u32 {
        self.ahead.last().map_or(self.below, |last| last + 1)
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
