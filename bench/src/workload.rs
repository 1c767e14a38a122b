//! A pattern of messages carried out by some stack, as a system that the harness can measure.

use crate::fleet::Transport;
use crate::harness::{Latencies, System, Traffic};
use crate::pattern::{Pattern, Routes};
use crate::stack::Client;
use anyhow::Result;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A pattern on a stack. Several share one client and its servers: only one of them runs at a time.
pub(crate) struct Workload {
    pub(crate) system: &'static str,
    pub(crate) transport: Transport,
    pub(crate) pattern: Pattern,
    pub(crate) link: Duration,
    pub(crate) routes: Routes,
    pub(crate) client: Rc<RefCell<Box<dyn Client>>>,
}

impl System for Workload {
    fn name(&self) -> String {
        format!("{} {} {}", self.system, self.transport, self.pattern)
    }

    fn warm_up(&mut self) -> Result<()> {
        self.client.borrow_mut().warm_up()
    }

    fn under_way(&self) -> u64 {
        self.pattern.under_way() as u64
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

/// Takes one of the operations that are left; whether there was one. For clients that have several under way.
pub fn take_one(left: &AtomicU64) -> bool {
    let less = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// How long operations may take before they are given up: twice what the links need, and much patience.
fn limit(pattern: Pattern, link: Duration, operations: u64) -> Duration {
    let steps =
        u32::try_from(operations.saturating_mul(2 * pattern.depth() as u64)).unwrap_or(u32::MAX);
    PATIENCE.saturating_add(link.saturating_mul(steps))
}

const PATIENCE: Duration = Duration::from_secs(30);
