//! Which requests run now, which wait, and which are refused.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::timer::Instant;

/// How many handlers run at a time, how many requests wait, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// Handlers that run at a time; one that waits for something counts as running. Default 4,096.
    pub concurrency: usize,
    /// Requests that wait while all handlers run; one more is refused with the status `ResourceExhausted`. Default
    /// 4,096.
    pub queue: usize,
    /// Which of the waiting requests runs next. Default: first come, first served.
    pub schedule: Schedule,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            concurrency: 4096,
            queue: 4096,
            schedule: Schedule::Fifo,
        }
    }
}

/// Which of the waiting requests runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The one that has waited longest.
    Fifo,
    /// The one whose call began first: calls that are under way finish before new ones begin (the run-to-completion of
    /// the thesis, for whole calls).
    OldestCall,
    /// The one whose deadline comes first.
    EarliestDeadline,
}

/// Admits jobs of type `J`.
#[derive(Debug)]
pub(crate) struct Executor<J> {
    config: ExecutorConfig,
    /// What urgency counts from.
    epoch: Instant,
    state: Mutex<State<J>>,
}

#[derive(Debug)]
struct State<J> {
    running: usize,
    waiting: BinaryHeap<Waiting<J>>,
    arrivals: u64,
}

/// What became of a job.
pub(crate) enum Admitted<J> {
    /// It runs now; [`Executor::release`] when it is done.
    Run(J),
    /// It waits; a release returns it.
    Queued,
    /// There is no room.
    Refused(J),
}

impl<J> Executor<J> {
    pub(crate) fn new(config: ExecutorConfig) -> Self {
        let state = State {
            running: 0,
            waiting: BinaryHeap::new(),
            arrivals: 0,
        };
        Self {
            config,
            epoch: Instant::now(),
            state: Mutex::new(state),
        }
    }

    /// How urgent a request is that arrives now: smaller for what should run earlier. It is about points in time, so
    /// that it does not matter when a request arrived.
    pub(crate) fn urgency(&self, age: impl FnOnce() -> Duration, deadline: Instant) -> u64 {
        let micros = |duration: Duration| duration.as_micros() as u64;
        match self.config.schedule {
            Schedule::Fifo => 0,
            // Calls may have begun before this endpoint did.
            Schedule::OldestCall => {
                (1 << 62) + micros(self.epoch.elapsed()) - micros(age()).min(1 << 62)
            }
            Schedule::EarliestDeadline => micros(deadline.saturating_duration_since(self.epoch)),
        }
    }

    /// Admits a job; `urgency` is smaller for what should run earlier.
    pub(crate) fn admit(&self, job: J, urgency: u64) -> Admitted<J> {
        let mut state = self.lock();
        if state.running < self.config.concurrency.max(1) {
            state.running += 1;
            return Admitted::Run(job);
        }
        self.queue(state, job, urgency)
    }

    #[inline(never)]
    fn queue(&self, mut state: MutexGuard<'_, State<J>>, job: J, urgency: u64) -> Admitted<J> {
        if state.waiting.len() >= self.config.queue {
            return Admitted::Refused(job);
        }
        state.arrivals += 1;
        let arrival = state.arrivals;
        state.waiting.push(Waiting {
            urgency,
            arrival,
            job,
        });
        Admitted::Queued
    }

    /// A job is done; returns the one that runs in its place.
    pub(crate) fn release(&self) -> Option<J> {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.running -= 1;
            return None;
        }
        state.next()
    }

    /// How many jobs run and how many wait.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.running, state.waiting.len())
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    #[inline(never)]
    fn next(&mut self) -> Option<J> {
        self.waiting.pop().map(|waiting| waiting.job)
    }
}

#[derive(Debug)]
struct Waiting<J> {
    urgency: u64,
    arrival: u64,
    job: J,
}

impl<J> Waiting<J> {
    fn rank(&self) -> (u64, u64) {
        (self.urgency, self.arrival)
    }
}

/// The greatest is the most urgent: the heap yields it first.
impl<J> Ord for Waiting<J> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<J> PartialOrd for Waiting<J> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<J> PartialEq for Waiting<J> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<J> Eq for Waiting<J> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_up_to_the_limit_then_queues_then_refuses() {
        let executor = Executor::new(ExecutorConfig {
            concurrency: 1,
            queue: 2,
            schedule: Schedule::OldestCall,
        });
        assert!(matches!(executor.admit("runs", 9), Admitted::Run("runs")));
        assert!(matches!(executor.admit("later", 5), Admitted::Queued));
        assert!(matches!(executor.admit("sooner", 3), Admitted::Queued));
        assert!(matches!(
            executor.admit("refused", 1),
            Admitted::Refused("refused")
        ));
        assert_eq!(executor.load(), (1, 2));
        assert_eq!(executor.release(), Some("sooner"));
        assert_eq!(executor.release(), Some("later"));
        assert_eq!(executor.release(), None);
        assert_eq!(executor.load(), (0, 0));
    }

    #[test]
    fn urgency_does_not_depend_on_when_a_request_arrives() {
        let schedule = |schedule| {
            let config = ExecutorConfig {
                schedule,
                ..ExecutorConfig::default()
            };
            Executor::<()> {
                epoch: Instant::now() - Duration::from_secs(100),
                ..Executor::new(config)
            }
        };
        let later = |executor: &Executor<()>| Executor::<()> {
            epoch: executor.epoch - Duration::from_secs(10),
            ..Executor::new(executor.config.clone())
        };
        let secs = Duration::from_secs;

        let first = schedule(Schedule::OldestCall);
        let ten_later = later(&first);
        let deadline = Instant::now();
        assert!(first.urgency(|| secs(5), deadline) < ten_later.urgency(|| secs(12), deadline));
        assert!(first.urgency(|| secs(5), deadline) > ten_later.urgency(|| secs(18), deadline));
        assert!(first.urgency(|| secs(1_000), deadline) < first.urgency(|| secs(999), deadline));

        let executor = schedule(Schedule::EarliestDeadline);
        let none = || unreachable!("the age does not matter");
        assert!(executor.urgency(none, deadline) < executor.urgency(none, deadline + secs(1)));
        assert_eq!(executor.urgency(none, executor.epoch - secs(1)), 0);
    }

    #[test]
    fn equal_urgency_is_first_come_first_served() {
        let executor = Executor::new(ExecutorConfig {
            concurrency: 1,
            queue: 9,
            schedule: Schedule::Fifo,
        });
        for job in 0..5 {
            executor.admit(job, 0);
        }
        let order: Vec<_> = std::iter::from_fn(|| executor.release()).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }
}
