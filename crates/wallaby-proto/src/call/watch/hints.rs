//! Ends of connections and of nodes that are looked into: some branches of a node in each turn, however many there are.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::watch::{MOST_LOOKED_AT, Watch};
use crate::id::NodeId;

/// Nodes whose branches are looked at.
#[derive(Debug, Default)]
pub(super) struct Hints {
    nodes: BTreeMap<NodeId, Round>,
    /// The latest one, and when that was.
    latest: Option<(NodeId, NodeHint, Duration)>,
}

/// What has ended at a node, and what that means for its branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NodeHint {
    /// They are asked about, unless that was done a short while ago.
    pub(super) asks: bool,
    /// They are asked about in a moment.
    pub(super) soon: bool,
    /// No connection is left: they are asked about whatever was asked before.
    pub(super) alone: bool,
    /// The node is gone: they have less time.
    pub(super) node: bool,
    /// It is so for certain: they have still less.
    pub(super) certain: bool,
}

/// The branches of a node are looked at in the order of their positions.
#[derive(Debug)]
struct Round {
    ended: NodeHint,
    /// The next position.
    next: u32,
    /// Something has ended again meanwhile: another round begins when this one is over.
    again: Option<NodeHint>,
}

impl NodeHint {
    fn and(self, other: Self) -> Self {
        Self {
            asks: self.asks || other.asks,
            soon: self.soon || other.soon,
            alone: self.alone || other.alone,
            node: self.node || other.node,
            certain: self.certain || other.certain,
        }
    }
}

impl Hints {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Something ended at this node. A round that has begun goes on, so that new hints keep nobody from being reached.
    pub(super) fn note(&mut self, node: NodeId, ended: NodeHint) {
        let new = Round {
            ended,
            next: 0,
            again: None,
        };
        let round = self.nodes.entry(node).or_insert(new);
        if round.next > 0 {
            round.again = Some(round.again.unwrap_or_default().and(ended));
        } else {
            round.ended = round.ended.and(ended);
        }
    }

    /// The first node, what ended there and which position is the next.
    fn first(&self) -> Option<(NodeId, NodeHint, u32)> {
        let (node, round) = self.nodes.first_key_value()?;
        Some((*node, round.ended, round.next))
    }

    /// The branch at this position has been looked at; without one the round is over.
    fn went_on(&mut self, node: NodeId, position: Option<u32>) {
        let Some(round) = self.nodes.get_mut(&node) else {
            return;
        };
        match (position, round.again.take()) {
            (Some(position), again) => (round.next, round.again) = (position + 1, again),
            (None, Some(again)) => (round.ended, round.next) = (again, 0),
            (None, None) => drop(self.nodes.remove(&node)),
        }
    }
}

impl Watch {
    /// Looks at branches of nodes where something has ended, until the turn has taken so many steps.
    pub(super) fn follow_hints(&mut self, most: usize, now: Duration) {
        while self.steps < most
            && let Some((node, ended, from)) = self.hints.first()
        {
            self.steps += 1;
            let position = self.line_at(node, from);
            self.hints.went_on(node, position);
            if let Some(position) = position {
                self.look_into(position, node, ended, now);
            }
        }
    }

    /// Something has ended at this node: its branches are looked at, as far as this turn goes.
    pub(super) fn note_hint(&mut self, node: NodeId, ended: NodeHint, now: Duration) {
        // Each of the pings that one dial was for may find the same, and one of them says it for all.
        let hint = Some((node, ended, now));
        let asks = ended.asks || ended.alone;
        if std::mem::replace(&mut self.hints.latest, hint) == hint && !asks {
            return;
        }
        self.begin_turn(now);
        self.hints.note(node, ended);
        self.follow_hints(MOST_LOOKED_AT, now);
    }

    pub(super) fn look_into(
        &mut self,
        position: u32,
        node: NodeId,
        ended: NodeHint,
        now: Duration,
    ) {
        let watched = &mut self.branches[position as usize];
        if ended.alone {
            watched.hinted = None;
        }
        let on_top = watched.top().is_some_and(|hop| hop.at.node == Some(node));
        if ended.node && on_top && self.gone.contains_key(&node) {
            let is_news = watched.gone.is_none();
            watched.gone.get_or_insert(now);
            if is_news || ended.certain {
                self.arm(position);
            }
        }
        if ended.asks && self.is_open(position) {
            self.ask_out_of_turn(position, now);
        }
        if ended.soon && self.is_open(position) {
            self.ask_in_a_moment(position, node, now);
        }
    }
}
