//! What one operation takes: time, messages, processor time of the client and of the servers.

use crate::comparison::{RunOptions, compare};
use crate::harness::Progress;
use crate::pattern::{Pattern, Query, Shape, THESIS_SERVERS};
use crate::row::Row;
use crate::stack::Own;
use anyhow::Result;
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug)]
pub struct LatencyOptions {
    /// Servers in sequence (figure 6.1).
    pub hops: Vec<usize>,
    /// Servers in parallel on the second hop (figure 6.2).
    pub fanout: Vec<usize>,
    /// Bounces of a ray (figure 6.4).
    pub bounces: Vec<usize>,
    /// Queries (figures 6.5 and 6.6, table 6.3).
    pub queries: Vec<Query>,
    /// How. Unless it says otherwise, requests go to 20 servers.
    pub run: RunOptions,
}

impl Default for LatencyOptions {
    fn default() -> Self {
        Self {
            hops: vec![1, 2, 4, 10],
            fanout: vec![1, 5, 10, 19],
            bounces: vec![1, 2, 3, 5, 10],
            queries: Query::ALL.to_vec(),
            run: RunOptions {
                stacks: vec![&Own::FloorBlocking, &Own::FloorTokio, &Own::Wallaby],
                servers: Some(THESIS_SERVERS),
                turn: Duration::from_millis(20),
                ..RunOptions::default()
            },
        }
    }
}

impl LatencyOptions {
    /// The queries, to see whose their processor time is (figure 6.6), beside the same without the meter.
    #[must_use]
    pub fn split() -> Self {
        let mut options = Self {
            hops: Vec::new(),
            fanout: Vec::new(),
            bounces: Vec::new(),
            ..Self::default()
        };
        options.run.stacks = vec![&Own::Wallaby, &Own::WallabySplit];
        options
    }

    /// What can be measured in minutes over links with such a delay: as few operations as tell a median, and only the
    /// floor that waits for messages one by one on threads of their own. The other one would wait for all of them on one
    /// thread.
    #[must_use]
    pub fn over_link(mut self, link: Duration) -> Self {
        self.run.link = link;
        if !link.is_zero() {
            self.run.stacks = vec![&Own::FloorBlocking, &Own::Wallaby];
            self.run.least = 2;
        }
        self
    }

    fn patterns(&self) -> Vec<Pattern> {
        let forms = |shape| [Pattern::Multihop(shape), Pattern::Calls(shape)];
        self.shapes().into_iter().flat_map(forms).collect()
    }

    /// All that is measured, in the order of the figures.
    pub(super) fn shapes(&self) -> Vec<Shape> {
        let hops = self.hops.iter().map(|&servers| Shape::Chain { servers });
        let fanout = self.fanout.iter().map(|&servers| Shape::Fan { servers });
        let bounces = self.bounces.iter().map(|&bounces| Shape::Ray { bounces });
        let queries = self.queries.iter().map(|&query| Shape::Query(query));
        hops.chain(fanout).chain(bounces).chain(queries).collect()
    }
}

/// Measures the thesis' patterns of messages one at a time.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn latency(options: &LatencyOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    let mut rows = compare(&options.patterns(), &options.run, progress)?;
    // As in the thesis: a figure after the other.
    let patterns = options.patterns();
    let figure = |row: &Row| {
        let of = |pattern: &Pattern| pattern.bench() == row.bench;
        patterns.iter().position(of)
    };
    rows.sort_by_key(figure);
    Ok(rows)
}
