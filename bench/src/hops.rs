//! Latency over the number of servers in sequence (figure 6.1 of the DPC thesis).

use crate::comparison::{RunOptions, compare};
use crate::harness::Progress;
use crate::pattern::{Pattern, Shape};
use crate::row::Row;
use anyhow::Result;

/// What to measure.
#[derive(Clone, Debug)]
pub struct HopsOptions {
    /// The numbers of servers in sequence.
    pub hops: Vec<usize>,
    /// How.
    pub run: RunOptions,
}

impl Default for HopsOptions {
    fn default() -> Self {
        Self {
            hops: vec![1, 2, 4, 10],
            run: RunOptions::default(),
        }
    }
}

/// Measures a request that is handed from server to server, the last of which answers the client, against as many
/// round trips in sequence.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn hops(options: &HopsOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    let patterns: Vec<Pattern> = options
        .hops
        .iter()
        .map(|&servers| Shape::Chain { servers })
        .flat_map(|shape| [Pattern::Multihop(shape), Pattern::Calls(shape)])
        .collect();
    compare(&patterns, &options.run, progress)
}
