//! Latency over the degree of fan-out (figure 6.2 of the DPC thesis).

use crate::comparison::{RunOptions, compare};
use crate::harness::Progress;
use crate::pattern::{Pattern, Shape};
use crate::row::Row;
use anyhow::Result;

/// What to measure.
#[derive(Clone, Debug)]
pub struct FanoutOptions {
    /// The numbers of servers in parallel.
    pub fanout: Vec<usize>,
    /// How.
    pub run: RunOptions,
}

impl Default for FanoutOptions {
    fn default() -> Self {
        Self {
            fanout: vec![1, 2, 5, 10, 20],
            run: RunOptions::default(),
        }
    }
}

/// Measures a request to one server that delegates to `n` others, each of which answers the client, against a call of
/// the one and then `n` calls in parallel.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn fanout(options: &FanoutOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    let patterns: Vec<Pattern> = options
        .fanout
        .iter()
        .map(|&servers| Shape::Fan { servers })
        .flat_map(|shape| [Pattern::Multihop(shape), Pattern::Calls(shape)])
        .collect();
    compare(&patterns, &options.run, progress)
}
