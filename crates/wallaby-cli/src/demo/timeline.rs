//! What happened when during one query: one call's tree of hops, or several plain calls, on one time scale.

use serde::Serialize;

/// The hops of a query, in the order in which they are drawn: parents before children.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    /// From the query's begin to its end, in microseconds, as all times here.
    pub(crate) elapsed_us: f64,
    pub(crate) hops: Vec<HopRow>,
}

/// One request: its way to a server, what the server did, and the last answer's way to the client.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct HopRow {
    /// Its place in the tree, as the protocol names it.
    pub(crate) path: String,
    /// Who sent it: a position in [`Timeline::hops`], or the client.
    pub(crate) parent: Option<usize>,
    pub(crate) method: String,
    pub(crate) server: String,
    /// When the client began the call that this hop belongs to.
    pub(crate) begun_us: f64,
    /// When and how long the server worked; missing if no report of it came.
    pub(crate) work: Option<Work>,
    /// When its last answer reached the client.
    pub(crate) answered_us: Option<f64>,
    pub(crate) responses: u64,
    pub(crate) delegated: u64,
}

/// What a server did with a request, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Work {
    pub(crate) arrived_us: f64,
    pub(crate) queued_us: f64,
    pub(crate) ran_us: f64,
}

impl Work {
    /// When the handler began.
    pub(crate) fn started_us(&self) -> f64 {
        self.arrived_us + self.queued_us
    }

    /// When the handler ended.
    pub(crate) fn ended_us(&self) -> f64 {
        self.started_us() + self.ran_us
    }
}

impl Timeline {
    /// When a hop's request left its sender, as well as that is known: not before its sender began to work on its own.
    pub(crate) fn sent_us(&self, hop: usize) -> f64 {
        let row = &self.hops[hop];
        let sender = row
            .parent
            .and_then(|parent| self.hops.get(parent))
            .and_then(|parent| parent.work);
        let sent = sender.map_or(row.begun_us, |work| work.ended_us());
        row.work.map_or(sent, |work| sent.min(work.arrived_us))
    }

    /// Whether a hop is the last of those with the same sender.
    pub(crate) fn is_last_child(&self, hop: usize) -> bool {
        let parent = self.hops[hop].parent;
        self.hops[hop + 1..]
            .iter()
            .all(|later| later.parent != parent)
    }

    /// Adds the hops of another call; they stay in place, the times too.
    pub(crate) fn append(&mut self, other: Self) {
        let first = self.hops.len();
        let moved = |hop: HopRow| HopRow {
            parent: hop.parent.map(|parent| parent + first),
            ..hop
        };
        self.hops.extend(other.hops.into_iter().map(moved));
        self.elapsed_us = self.elapsed_us.max(other.elapsed_us);
    }

    /// The hops in the order of the tree: each directly followed by its children, siblings as they stand.
    pub(crate) fn in_tree_order(mut self) -> Self {
        let mut order = Vec::with_capacity(self.hops.len());
        let mut open: Vec<usize> = (0..self.hops.len())
            .rev()
            .filter(|hop| self.hops[*hop].parent.is_none())
            .collect();
        while let Some(hop) = open.pop() {
            order.push(hop);
            open.extend(
                (hop + 1..self.hops.len())
                    .rev()
                    .filter(|child| self.hops[*child].parent == Some(hop)),
            );
        }
        let place = |old: usize| order.iter().position(|hop| *hop == old);
        self.hops = order
            .iter()
            .map(|old| {
                let hop = &self.hops[*old];
                HopRow {
                    parent: hop.parent.and_then(place),
                    ..hop.clone()
                }
            })
            .collect();
        self
    }
}

/// A small tree for the tests of everything that draws.
#[cfg(test)]
pub(crate) fn example() -> Timeline {
    let work = |arrived_us, ran_us| {
        Some(Work {
            arrived_us,
            queued_us: 10.0,
            ran_us,
        })
    };
    let excerpt = |number: u32, arrived_us: f64| HopRow {
        path: format!("0.{number}"),
        parent: Some(0),
        method: "Documents/excerpt".to_owned(),
        server: format!("documents {number}"),
        work: work(arrived_us, 40.0),
        answered_us: Some(arrived_us + 1_050.0),
        responses: 1,
        ..HopRow::default()
    };
    let lookup = HopRow {
        path: "0".to_owned(),
        method: "Index/lookup".to_owned(),
        server: "index".to_owned(),
        work: work(1_000.0, 90.0),
        delegated: 3,
        ..HopRow::default()
    };
    let hops = vec![
        lookup,
        excerpt(1, 2_100.0),
        excerpt(2, 2_150.0),
        HopRow {
            work: None,
            ..excerpt(3, 2_200.0)
        },
    ];
    Timeline {
        elapsed_us: 3_300.0,
        hops,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_siblings() {
        let timeline = example();
        assert!(
            timeline.is_last_child(0) && timeline.is_last_child(3) && !timeline.is_last_child(1)
        );
    }

    #[test]
    fn requests_leave_when_their_sender_is_done_or_before_they_arrive() {
        let mut timeline = example();
        assert_eq!((timeline.sent_us(0), timeline.sent_us(1)), (0.0, 1_100.0));
        timeline.hops[1].work = Some(Work {
            arrived_us: 1_050.0,
            ..Work::default()
        });
        assert_eq!(timeline.sent_us(1), 1_050.0);
    }

    #[test]
    fn calls_are_put_together() {
        let mut both = example();
        both.append(example());
        let parents: Vec<_> = both.hops.iter().map(|hop| hop.parent).collect();
        assert_eq!(
            parents,
            [
                None,
                Some(0),
                Some(0),
                Some(0),
                None,
                Some(4),
                Some(4),
                Some(4)
            ]
        );
    }

    #[test]
    fn children_follow_their_parent() {
        let hop = |path: &str, parent| HopRow {
            path: path.to_owned(),
            parent,
            ..HopRow::default()
        };
        let hops = vec![
            hop("0", None),
            hop("1", None),
            hop("0.0", Some(0)),
            hop("1.0", Some(1)),
            hop("0.0.0", Some(2)),
        ];
        let ordered = Timeline {
            elapsed_us: 0.0,
            hops,
        }
        .in_tree_order();
        let seen: Vec<_> = ordered
            .hops
            .iter()
            .map(|hop| (hop.path.as_str(), hop.parent))
            .collect();
        assert_eq!(
            seen,
            [
                ("0", None),
                ("0.0", Some(0)),
                ("0.0.0", Some(1)),
                ("1", None),
                ("1.0", Some(3))
            ]
        );
    }
}
