//! How long a thread does nothing but one thing: the processor time between two signs of progress.
//!
//! Processor time, since other programs may take the processor away at any time, and that is no pause of this one. What the
//! kernel does for the thread counts, clearing memory that a table grows into, for one.

use crate::harness::Latencies;
use crate::process::thread_time;
use anyhow::Result;
use std::time::Duration;

/// The pauses of one thread so far.
#[derive(Debug)]
pub(super) struct Pauses {
    all: Latencies,
    last: Duration,
}

impl Pauses {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            all: Latencies::new()?,
            last: thread_time()?,
        })
    }

    /// Progress was made.
    pub(super) fn step(&mut self) -> Result<()> {
        let now = thread_time()?;
        self.all.record(now.saturating_sub(self.last));
        self.last = now;
        Ok(())
    }

    /// What was done since the last step does not count.
    pub(super) fn skip(&mut self) -> Result<()> {
        self.last = thread_time()?;
        Ok(())
    }

    pub(super) fn longest(&self) -> Duration {
        self.all.quantile(1.0)
    }

    /// The longest but for one in 10,000.
    pub(super) fn nearly_longest(&self) -> Duration {
        self.all.quantile(0.9999)
    }
}
