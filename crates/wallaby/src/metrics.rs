//! What a driver counts itself.

use std::sync::atomic::{AtomicU64, Ordering};

pub use wallaby_proto::endpoint::Metrics;

/// What the shell counts itself.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) retries: Meter,
    pub(crate) hedges: Meter,
    pub(crate) hedges_won: Meter,
    pub(crate) retries_over_budget: Meter,
    pub(crate) accepts_failed: Meter,
}

impl Meters {
    /// Together with what the endpoint without IO has counted.
    pub(crate) fn join(&self, mut counted: Metrics) -> Metrics {
        counted.retries = self.retries.get();
        counted.hedges = self.hedges.get();
        counted.hedges_won = self.hedges_won.get();
        counted.retries_over_budget = self.retries_over_budget.get();
        counted.accepts_failed = self.accepts_failed.get();
        counted
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
