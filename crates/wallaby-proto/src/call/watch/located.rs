//! Which branches have a hop at which node: so that the loss of a node does not make a watch look at all its branches.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::watch::branch::{WatchedBranch, WatchedHop};
use crate::id::NodeId;

/// More entries than twice the hops of all branches, and these: then most of them are old.
const MORE: usize = 64;

/// Branches by node. Entries may be old: what a branch says itself counts.
#[derive(Debug, Default)]
pub(super) struct Located {
    branches: BTreeMap<NodeId, BTreeSet<u32>>,
    entries: usize,
}

impl Located {
    pub(super) fn new(branches: &[WatchedBranch]) -> Self {
        let mut located = Self::default();
        for (watched, position) in branches.iter().zip(0..) {
            for node in watched.hops.iter().filter_map(|hop| hop.at.node) {
                located.note(node, position);
            }
        }
        located
    }

    /// A branch has a hop at this node.
    pub(super) fn note(&mut self, node: NodeId, position: u32) {
        let new = self.branches.entry(node).or_default().insert(position);
        self.entries += usize::from(new);
    }

    /// Whether it holds too much that is old to be kept, where all branches have so many hops: a server that names ever new
    /// nodes gets no memory for them.
    pub(super) fn is_old(&self, hops: usize) -> bool {
        self.entries > 2 * hops + MORE
    }

    /// The first branch from this position on that has a hop at this node.
    pub(super) fn first_at(
        &self,
        node: NodeId,
        from: u32,
        branches: &[WatchedBranch],
    ) -> Option<u32> {
        let there = |hop: &WatchedHop| hop.at.node == Some(node);
        let is_there = |position: &&u32| branches[**position as usize].hops.iter().any(there);
        let positions = self.branches.get(&node)?.range(from..);
        positions.copied().find(|position| is_there(&position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::call::watch::Location;

    fn node(number: usize) -> NodeId {
        NodeId::new(number as u64).expect("not zero")
    }

    #[test]
    fn what_it_holds_is_old_when_it_is_much_more_than_there_are_hops() {
        for hops in [0, 1, 10, 100] {
            let mut located = Located::default();
            let most = 2 * hops + MORE;
            for number in 1..=most {
                located.note(node(number), 0);
                located.note(node(number), 0);
                assert!(!located.is_old(hops), "{number} for {hops}");
            }
            located.note(node(1), 1);
            assert!(located.is_old(hops), "{hops}");
        }
    }

    #[test]
    fn lines_are_found_at_the_nodes_of_their_hops_as_long_as_they_are_there() {
        let watched = |nodes: &[usize]| {
            let hop = |(number, at): (u32, &usize)| {
                let mut hop = WatchedHop::new(number);
                hop.at = Location {
                    address: None,
                    node: Some(node(*at)),
                };
                hop
            };
            WatchedBranch {
                hops: (0..).zip(nodes).map(hop).collect(),
                ..WatchedBranch::default()
            }
        };
        let mut branches = [watched(&[1, 2]), watched(&[2]), watched(&[])];
        let located = Located::new(&branches);
        let at = |located: &Located, number, branches: &[WatchedBranch]| {
            let mut found = Vec::new();
            while let Some(position) = located.first_at(
                node(number),
                found.last().map_or(0, |last| last + 1),
                branches,
            ) {
                found.push(position);
            }
            found
        };
        assert_eq!(at(&located, 1, &branches), [0]);
        assert_eq!(at(&located, 2, &branches), [0, 1]);
        assert_eq!(at(&located, 3, &branches), []);
        branches[0] = watched(&[1]);
        assert_eq!(at(&located, 2, &branches), [1], "the other has moved");
    }
}
