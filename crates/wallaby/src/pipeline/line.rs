//! Which server of a line a part of its call's tree belongs to, and what the tree says of each.

use std::collections::HashMap;

use wallaby_proto::Path;
use wallaby_proto::call::initiator::BranchView;

use crate::call::CallShared;

/// The places of a line's servers in the tree of its call.
#[derive(Debug)]
pub(super) struct Places(Vec<Path>);

/// What the tree says of a server of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Its request certainly did not reach it.
    Undelivered,
    /// It and all that it led to has ended, and all answers are here.
    Whole,
    /// Some of that is missing, or nothing is known.
    Open,
}

impl Places {
    pub(super) fn new(call: &CallShared, servers: usize) -> Self {
        Self(call.places_in_line(servers))
    }

    /// Whose own request this is.
    pub(super) fn exactly(&self, path: &Path) -> Option<usize> {
        self.0.iter().rposition(|place| place == path)
    }

    /// Whose request led to this one; `None` while the tree above it is not known.
    pub(super) fn above(&self, path: &Path, call: &CallShared) -> Option<usize> {
        let literal = std::iter::successors(Some(*path), Path::parent);
        let found = literal.clone().find_map(|path| self.exactly(&path));
        // Only those far down in the tree have places that do not say whence they come.
        found.or_else(|| Tree::new(call.branches()).line_above(self, path))
    }

    /// What the tree says of each server.
    pub(super) fn told(&self, call: &CallShared) -> Vec<Told> {
        let tree = Tree::new(call.branches());
        let mut told: Vec<_> = self.0.iter().map(|place| tree.own(place)).collect();
        for branch in tree.0.values() {
            let Some(position) = tree.line_above(self, &branch.path) else {
                continue;
            };
            if told[position] == Told::Whole && !tree.is_whole(branch, call) {
                told[position] = Told::Open;
            }
        }
        told
    }

    /// Whether a server has certainly passed nothing on.
    pub(super) fn has_kept(&self, position: usize, call: &CallShared) -> bool {
        let place = self.0[position];
        let branch = call
            .branches()
            .into_iter()
            .find(|known| known.path == place);
        branch.is_some_and(|known| known.facts.is_some_and(|facts| facts.requests == 0))
    }
}

/// The branches of a call, by place.
struct Tree(HashMap<Path, BranchView>);

impl Tree {
    fn new(branches: Vec<BranchView>) -> Self {
        Self(
            branches
                .into_iter()
                .map(|branch| (branch.path, branch))
                .collect(),
        )
    }

    fn line_above(&self, places: &Places, path: &Path) -> Option<usize> {
        let mut place = *path;
        // No way up is longer than there are branches.
        for _ in 0..=self.0.len() {
            if let Some(position) = places.exactly(&place) {
                return Some(position);
            }
            let known = self.0.get(&place).and_then(|branch| branch.parent);
            place = known.or_else(|| place.parent())?;
        }
        None
    }

    fn own(&self, place: &Path) -> Told {
        match self.0.get(place) {
            Some(branch) if branch.undelivered => Told::Undelivered,
            Some(branch) if has_ended(branch) => Told::Whole,
            _ => Told::Open,
        }
    }

    /// Whether a branch has ended, and its children are known.
    fn is_whole(&self, branch: &BranchView, call: &CallShared) -> bool {
        let requests = branch.facts.map_or(0, |facts| facts.requests);
        let mut children = (0..requests).map(|index| call.child_of(&branch.path, index));
        has_ended(branch) && children.all(|child| self.0.contains_key(&child))
    }
}

fn has_ended(branch: &BranchView) -> bool {
    branch
        .facts
        .is_some_and(|facts| facts.responses == branch.received)
}
