//! A pattern of messages carried out by some stack, as a system that the harness can measure.

use crate::fleet::{Stack, Transport};
use crate::harness::{Latencies, System, Traffic};
use crate::pattern::{Pattern, Routes};
use anyhow::Result;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The client's side of a stack, connected to its servers.
pub(crate) trait Client {
    /// Opens whatever connections there can be.
    fn warm_up(&mut self) -> Result<()>;

    /// Runs operations one after the other; gives up after `limit`.
    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()>;

    /// The servers.
    fn processes(&self) -> Vec<u32>;

    /// What was sent so far, if somebody counts.
    fn traffic(&mut self) -> Result<Option<Traffic>>;
}

/// A pattern on a stack. Several share one client and its servers: only one of them runs at a time.
pub(crate) struct Workload {
    pub(crate) stack: Stack,
    pub(crate) transport: Transport,
    pub(crate) pattern: Pattern,
    pub(crate) link: Duration,
    pub(crate) routes: Routes,
    pub(crate) client: Rc<RefCell<Box<dyn Client>>>,
}

impl System for Workload {
    fn name(&self) -> String {
        format!(
            "{} {} n={}",
            system(self.stack, self.pattern),
            self.transport,
            self.pattern.n()
        )
    }

    fn warm_up(&mut self) -> Result<()> {
        self.client.borrow_mut().warm_up()
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        let limit = limit(self.pattern, self.link, operations);
        self.client
            .borrow_mut()
            .run(self.pattern, &mut self.routes, operations, limit, latencies)
    }

    fn processes(&self) -> Vec<u32> {
        self.client.borrow().processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        self.client.borrow_mut().traffic()
    }
}

/// The name in a result row.
pub(crate) fn system(stack: Stack, pattern: Pattern) -> &'static str {
    match (stack, pattern) {
        (Stack::Wallaby, Pattern::Forward { .. } | Pattern::Spread { .. }) => "wallaby-dpc",
        (Stack::Wallaby, Pattern::Sequential { .. } | Pattern::Parallel { .. }) => "wallaby-rpc",
        (Stack::FloorTokio, Pattern::Forward { .. } | Pattern::Spread { .. }) => {
            "floor-forward-tokio"
        }
        (Stack::FloorTokio, Pattern::Sequential { .. }) => "floor-sequential-tokio",
        (Stack::FloorTokio, Pattern::Parallel { .. }) => "floor-parallel-tokio",
        (Stack::FloorBlocking, Pattern::Forward { .. } | Pattern::Spread { .. }) => "floor-forward",
        (Stack::FloorBlocking, Pattern::Sequential { .. }) => "floor-sequential",
        (Stack::FloorBlocking, Pattern::Parallel { .. }) => "floor-parallel",
    }
}

/// How long operations may take before they are given up: twice what the links need, and much patience.
fn limit(pattern: Pattern, link: Duration, operations: u64) -> Duration {
    let steps =
        u32::try_from(operations.saturating_mul(2 * pattern.depth() as u64)).unwrap_or(u32::MAX);
    PATIENCE.saturating_add(link.saturating_mul(steps))
}

const PATIENCE: Duration = Duration::from_secs(30);
