//! Whether what all nodes know makes one ring.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use wallaby_chord::message::Peer;
use wallaby_chord::node::Tables;

/// Something about a ring that is not as it should be. Maintenance puts it right, in a few rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// A node has another successor than the next node.
    Successor {
        /// The node.
        of: Peer,
        /// Whom it knows.
        known: Option<Peer>,
        /// Who it is.
        right: Peer,
    },
    /// A node has another predecessor than the node before.
    Predecessor {
        /// The node.
        of: Peer,
        /// Whom it knows.
        known: Option<Peer>,
        /// Who it is.
        right: Peer,
    },
    /// From successor to successor one comes round without having been at all nodes: there are several rings.
    Loop {
        /// How many nodes one comes by.
        visited: usize,
        /// How many there are.
        nodes: usize,
    },
    /// Two nodes have the same place.
    Twins(Peer, Peer),
}

/// All that is wrong with a ring whose nodes, those that serve, know this.
pub(crate) fn problems(tables: &[Tables]) -> Vec<Problem> {
    let mut nodes: Vec<&Tables> = tables.iter().filter(|tables| tables.serving).collect();
    nodes.sort_by(|one, other| one.peer.cmp(&other.peer));
    let mut problems = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let behind = nodes.iter().cycle().skip(at + 1).take(nodes.len());
        let Some(right) = behind.map(|node| &node.peer).next() else {
            continue;
        };
        let known = node.successors.first();
        if *right == node.peer {
            continue;
        }
        if right.id == node.peer.id {
            problems.push(Problem::Twins(node.peer.clone(), right.clone()));
        }
        if known != Some(right) {
            problems.push(Problem::Successor {
                of: node.peer.clone(),
                known: known.cloned(),
                right: right.clone(),
            });
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        let before = nodes
            .iter()
            .cycle()
            .skip(at + nodes.len().saturating_sub(1));
        let Some(right) = before.map(|node| &node.peer).next() else {
            continue;
        };
        if *right != node.peer && node.predecessor.as_ref() != Some(right) {
            problems.push(Problem::Predecessor {
                of: node.peer.clone(),
                known: node.predecessor.clone(),
                right: right.clone(),
            });
        }
    }
    problems.extend(find_loop(&nodes));
    problems
}

fn find_loop(nodes: &[&Tables]) -> Option<Problem> {
    let next: BTreeMap<&Peer, &Peer> = nodes
        .iter()
        .filter_map(|node| Some((&node.peer, node.successors.first()?)))
        .collect();
    let mut at = &nodes.first()?.peer;
    let mut visited = BTreeSet::new();
    while visited.insert(at) {
        // Where it breaks off is told of that node.
        at = next.get(at)?;
    }
    (visited.len() < nodes.len()).then_some(Problem::Loop {
        visited: visited.len(),
        nodes: nodes.len(),
    })
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |known: &Option<Peer>| {
            known
                .as_ref()
                .map_or_else(|| "nobody".to_owned(), ToString::to_string)
        };
        match self {
            Self::Successor { of, known, right } => write!(
                f,
                "node {of} has {} for its successor, not {right}",
                shown(known)
            ),
            Self::Predecessor { of, known, right } => write!(
                f,
                "node {of} has {} for its predecessor, not {right}",
                shown(known)
            ),
            Self::Loop { visited, nodes } => write!(
                f,
                "there are several rings: the successors come round after {visited} of {nodes} nodes"
            ),
            Self::Twins(one, other) => write!(f, "node {one} and node {other} have one place"),
        }
    }
}
