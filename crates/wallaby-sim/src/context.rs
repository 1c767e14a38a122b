//! What nodes act upon: time, the network, and who watches.

use std::fmt;
use std::time::Duration;

use crate::broken::Broken;
use crate::coverage::{Coverage, Point};
use crate::network::Network;
use crate::oracle::{Oracle, Rule};
use crate::plan::Plan;
use crate::queue::{Event, Queue, Timer};
use crate::random::Random;

/// Everything but the nodes.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) queue: Queue,
    pub(crate) network: Network,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Coverage,
    pub(crate) random: Random,
    /// What is deliberately wrong in this world.
    pub(crate) broken: Option<Broken>,
    /// What happened, a line each, where somebody wants to read it.
    pub(crate) log: Option<String>,
}

impl Context<'_> {
    pub(crate) fn now(&self) -> Duration {
        self.queue.now()
    }

    pub(crate) fn hit(&mut self, point: Point) {
        self.coverage.hit(point);
    }

    pub(crate) fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    pub(crate) fn violate(&mut self, rule: Rule, what: impl Into<String>) {
        self.oracle.violate(self.queue.now(), rule, what);
    }

    /// Wakes an incarnation of a node after some time of a clock that is fast by so many millionths.
    pub(crate) fn wake(
        &mut self,
        (node, incarnation): (u32, u32),
        drift: i64,
        delay: Duration,
        timer: Timer,
    ) {
        let micros = delay.as_micros() as i128 * 1_000_000 / i128::from(1_000_000 + drift);
        let delay = Duration::from_micros(micros as u64 + u64::from(drift != 0));
        self.queue.after(
            delay,
            Event::Timer {
                node,
                incarnation,
                timer,
            },
        );
    }

    /// Notes what happened at a node.
    pub(crate) fn note(&mut self, node: u32, what: impl FnOnce(&mut String) -> fmt::Result) {
        if let Some(log) = &mut self.log {
            use fmt::Write;
            let at = self.queue.now().as_micros();
            let done =
                write!(log, "{:>6}.{:03} n{node} ", at / 1000, at % 1000).and_then(|()| what(log));
            log.push('\n');
            debug_assert!(done.is_ok(), "a string takes all that is written");
        }
    }
}

/// Adds a line to the log, if there is one.
macro_rules! note {
    ($context:expr, $node:expr, $($words:tt)*) => {
        $context.note($node, |line| std::fmt::Write::write_fmt(line, format_args!($($words)*)))
    };
}
pub(crate) use note;
