//! Which lines have a hop at which node: so that the loss of a node does not make a watch look at all its lines.

use std::collections::{BTreeMap, BTreeSet};

use crate::call::watch::line::{Hop, Line};
use crate::id::NodeId;

/// More entries than twice the hops of all lines, and these: then most of them are old.
const MORE: usize = 64;

/// Lines by node. Entries may be old: what a line says itself counts.
#[derive(Debug, Default)]
pub(super) struct Located {
    lines: BTreeMap<NodeId, BTreeSet<u32>>,
    entries: usize,
}

impl Located {
    pub(super) fn new(lines: &[Line]) -> Self {
        let mut located = Self::default();
        for (line, position) in lines.iter().zip(0..) {
            for node in line.hops.iter().filter_map(|hop| hop.at.node) {
                located.note(node, position);
            }
        }
        located
    }

    /// A line has a hop at this node.
    pub(super) fn note(&mut self, node: NodeId, position: u32) {
        let new = self.lines.entry(node).or_default().insert(position);
        self.entries += usize::from(new);
    }

    /// Whether it holds too much that is old to be kept, where all lines have so many hops: a server that names ever new
    /// nodes gets no memory for them.
    pub(super) fn is_old(&self, hops: usize) -> bool {
        self.entries > 2 * hops + MORE
    }

    /// The first line from this position on that has a hop at this node.
    pub(super) fn first_at(&self, node: NodeId, from: u32, lines: &[Line]) -> Option<u32> {
        let there = |hop: &Hop| hop.at.node == Some(node);
        let is_there = |position: &&u32| lines[**position as usize].hops.iter().any(there);
        let positions = self.lines.get(&node)?.range(from..);
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
        let line = |nodes: &[usize]| {
            let hop = |(number, at): (u32, &usize)| {
                let mut hop = Hop::new(number);
                hop.at = Location {
                    address: None,
                    node: Some(node(*at)),
                };
                hop
            };
            Line {
                hops: (0..).zip(nodes).map(hop).collect(),
                ..Line::default()
            }
        };
        let mut lines = [line(&[1, 2]), line(&[2]), line(&[])];
        let located = Located::new(&lines);
        let at = |located: &Located, number, lines: &[Line]| {
            let mut found = Vec::new();
            while let Some(position) =
                located.first_at(node(number), found.last().map_or(0, |last| last + 1), lines)
            {
                found.push(position);
            }
            found
        };
        assert_eq!(at(&located, 1, &lines), [0]);
        assert_eq!(at(&located, 2, &lines), [0, 1]);
        assert_eq!(at(&located, 3, &lines), []);
        lines[0] = line(&[1]);
        assert_eq!(at(&located, 2, &lines), [1], "the other has moved");
    }
}
