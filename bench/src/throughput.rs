//! Operations per second with several calls of one server under way.

use crate::comparison::{RunOptions, compare};
use crate::harness::Progress;
use crate::pattern::Pattern;
use crate::row::Row;
use crate::stack::Own;
use anyhow::{Result, ensure};
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ThroughputOptions {
    /// The numbers of calls under way.
    pub calls: Vec<usize>,
    /// How. There is one server, whatever is said here.
    pub run: RunOptions,
}

impl Default for ThroughputOptions {
    fn default() -> Self {
        Self {
            calls: vec![1, 8, 64, 512],
            run: RunOptions {
                stacks: [&Own::ALL[..], &[&Own::WallabyThreads]].concat(),
                // Long enough that hundreds of calls reach a steady state.
                turn: Duration::from_millis(100),
                ..RunOptions::default()
            },
        }
    }
}

/// Measures a client that always has `n` calls of one server under way, each answered by its own payload.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn throughput(
    options: &ThroughputOptions,
    progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Row>> {
    let patterns = options.calls.iter().map(|&calls| {
        ensure!(
            calls <= MOST_CALLS && calls.saturating_mul(options.run.payload) <= MOST_BYTES,
            "{calls} calls of {} bytes are too much: at most {MOST_CALLS} calls and {} MiB are possible",
            options.run.payload,
            MOST_BYTES >> 20
        );
        Ok(Pattern::Concurrent { calls })
    });
    let run = RunOptions {
        servers: Some(1),
        ..options.run.clone()
    };
    compare(&patterns.collect::<Result<Vec<_>>>()?, &run, progress)
}

const MOST_CALLS: usize = 10_000;
/// Payloads that are under way together.
pub const MOST_BYTES: usize = 64 << 20;
