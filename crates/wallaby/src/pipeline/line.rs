//! Which server of a line a part of its call's tree belongs to, and what the tree says of each.

use std::collections::HashMap;

use wallaby_proto::Path;
use wallaby_proto::call::initiator::{BranchView, Initiator};

use crate::call::CallShared;

/// The places of a line's servers in the tree of its call.
#[derive(Debug)]
pub(super) struct ServerPaths {
    places: Vec<Path>,
    /// Whose each place of the tree is: those of the servers, and below them those far down, which do not say whence they
    /// come and were looked up once.
    owners: HashMap<Path, usize>,
}

/// What the tree says of a server of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerState {
    /// Its request certainly did not reach it.
    Undelivered,
    /// It and all that it led to has ended, and all answers are here.
    Whole,
    /// Some of that is missing, or nothing is known.
    Open,
}

impl ServerPaths {
    pub(super) fn new(call: &CallShared, servers: usize) -> Self {
        let places = call.look_at_tree(|tree| tree.places_in_line(servers));
        let places = places.unwrap_or_else(|| vec![Path::FIRST; servers]); // nothing is told of a call that has not begun
        let owners = places.iter().copied().zip(0..).collect();
        Self { places, owners }
    }

    /// Whose request led to this one.
    ///
    /// # Errors
    ///
    /// The topmost place on the way up that does not say whence it came, and of which nobody else has said it yet.
    pub(super) fn above(&mut self, path: &Path, tree: &Initiator) -> Result<usize, Path> {
        let (mut place, mut way) = (*path, Vec::new());
        let owner = loop {
            if let Some(owner) = self.owners.get(&place) {
                break *owner;
            }
            let known = tree.branch_view(&place).and_then(|branch| branch.parent);
            let parent = known.or_else(|| place.parent()).ok_or(place)?;
            if place.is_folded() {
                way.push(place);
            }
            place = parent;
        };
        self.owners
            .extend(way.into_iter().map(|place| (place, owner)));
        Ok(owner)
    }

    /// What the tree says of each server.
    pub(super) fn told(&mut self, call: &CallShared) -> Vec<ServerState> {
        let servers = self.places.len();
        let told = call.look_at_tree(|tree| self.told_by(tree));
        told.unwrap_or_else(|| vec![ServerState::Open; servers])
    }

    fn told_by(&mut self, tree: &Initiator) -> Vec<ServerState> {
        let own = |place: &Path| match tree.branch_view(place) {
            Some(branch) if branch.undelivered => ServerState::Undelivered,
            Some(branch) if branch.has_ended() => ServerState::Whole,
            _ => ServerState::Open,
        };
        let mut told: Vec<_> = self.places.iter().map(own).collect();
        for branch in tree.branches() {
            let Ok(owner) = self.above(&branch.path, tree) else {
                continue;
            };
            if told[owner] == ServerState::Whole && !tree.is_whole(&branch) {
                told[owner] = ServerState::Open;
            }
        }
        told
    }

    /// Whether the request with this place is the own one of a server, and certainly did not reach it.
    pub(super) fn is_undelivered(&self, position: usize, path: &Path, call: &CallShared) -> bool {
        self.places[position] == *path
            && self
                .branch(position, call)
                .is_some_and(|branch| branch.undelivered)
    }

    /// Whether a server has certainly passed nothing on.
    pub(super) fn has_kept(&self, position: usize, call: &CallShared) -> bool {
        let facts = self.branch(position, call).and_then(|branch| branch.facts);
        facts.is_some_and(|facts| facts.requests == 0)
    }

    fn branch(&self, position: usize, call: &CallShared) -> Option<BranchView> {
        call.look_at_tree(|tree| tree.branch_view(&self.places[position]))?
    }
}
