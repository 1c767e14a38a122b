//! Processor time of the queries by whose it is: figure 6.6.

use super::latency::{LatencyOptions, latency};
use crate::comparison::RunOptions;
use crate::harness::Progress;
use crate::row::Row;
use crate::stack::Own;
use anyhow::Result;

/// What to split unless somebody says otherwise: the queries, beside the same without the meter.
pub fn split_options() -> LatencyOptions {
    let all = LatencyOptions::default();
    LatencyOptions {
        hops: Vec::new(),
        fanout: Vec::new(),
        bounces: Vec::new(),
        run: RunOptions {
            stacks: vec![&Own::Wallaby, &Own::WallabySplit],
            ..all.run
        },
        ..all
    }
}

/// Measures whose the processor time of each operation is, of the client and of the servers.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn split(options: &LatencyOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    latency(options, progress)
}
