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

    /// The positions of the lines that have a hop at this node.
    pub(super) fn at(&self, node: NodeId, lines: &[Line]) -> Vec<u32> {
        let there = |hop: &Hop| hop.at.node == Some(node);
        let is_there = |position: &&u32| lines[**position as usize].hops.iter().any(there);
        let positions = self.lines.get(&node).into_iter().flatten();
        positions.filter(is_there).copied().collect()
    }
}
