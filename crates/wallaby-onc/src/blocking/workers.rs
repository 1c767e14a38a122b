//! Threads that come when there is work and go when there has been none for a while (FlexRPC, sections IV-A and IV-C).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How many threads there are, and were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounters {
    /// Threads that have something to do: a call to execute, or a connection or socket to wait for.
    pub active: u64,
    /// Threads that have nothing to do, and end if that stays so.
    pub dormant: u64,
    /// Threads that were started.
    pub started: u64,
    /// Threads that ended.
    pub ended: u64,
    /// Work that waits since there are as many threads as may be.
    pub waiting: u64,
}

type Job = Box<dyn FnOnce() + Send>;

/// More threads than any process has.
const MOST: usize = 1 << 24;

/// Threads for jobs, which may take as long as they like.
#[derive(Debug)]
pub(super) struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
    keep: Duration,
    /// Work waits since all threads have some: known without the lock.
    is_short: AtomicBool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    dormant: usize,
    started: u64,
    ended: u64,
    most: usize,
    is_closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            threads, dormant, ..
        } = self;
        write!(formatter, "{threads} threads, {dormant} of them dormant")
    }
}

impl Workers {
    /// No thread yet, never more than `most`; one without work ends after `keep`.
    pub(super) fn new(most: usize, keep: Duration) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                most: most.clamp(1, MOST),
                ..Queue::default()
            }),
            changed: Condvar::new(),
            keep,
            is_short: AtomicBool::new(false),
        })
    }

    /// There may be one thread more.
    pub(super) fn allow_one_more(&self) {
        self.queue().most += 1;
    }

    /// Takes back [`Workers::allow_one_more`].
    pub(super) fn allow_one_less(&self) {
        self.queue().most -= 1;
    }

    /// A thread does this: a dormant one, a new one, or the first that has time. Nobody does after [`Workers::close`].
    pub(super) fn submit(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        self.push(Box::new(job), true, || {});
    }

    /// A thread does this at once, a dormant or a new one, if there may be one: whether it does. If so, it is `accepted`
    /// before it begins.
    pub(super) fn try_submit(
        self: &Arc<Self>,
        job: impl FnOnce() + Send + 'static,
        accepted: impl FnOnce(),
    ) -> bool {
        self.push(Box::new(job), false, accepted)
    }

    fn push(self: &Arc<Self>, job: Job, may_wait: bool, accepted: impl FnOnce()) -> bool {
        let mut queue = self.queue();
        if queue.is_closed {
            return false;
        }
        if queue.dormant > queue.jobs.len() {
            accepted();
            queue.jobs.push_back(job);
            drop(queue);
            self.changed.notify_one();
            return true;
        }
        // Without a new one, those that there are do it later.
        let is_started = queue.threads < queue.most && self.start();
        if is_started {
            queue.threads += 1;
            queue.started += 1;
        }
        if !is_started && !may_wait {
            return false;
        }
        accepted();
        queue.jobs.push_back(job);
        if !is_started {
            self.is_short.store(true, Ordering::Relaxed);
        }
        true
    }

    fn start(self: &Arc<Self>) -> bool {
        let workers = Arc::clone(self);
        let thread = thread::Builder::new().name("onc-worker".into());
        thread.spawn(move || workers.work()).is_ok()
    }

    /// Whether work waits since all threads have some.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// No more jobs: threads end when they have none.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        // What was not begun is dropped outside of the lock, whatever that does.
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(jobs);
        self.changed.notify_all();
    }

    /// Waits until all threads have ended, at most so long; whether they have.
    pub(super) fn join(&self, limit: Duration) -> bool {
        let queue = self.queue();
        let all_ended = self
            .changed
            .wait_timeout_while(queue, limit, |queue| queue.threads > 0);
        let (queue, _) = all_ended.unwrap_or_else(PoisonError::into_inner);
        queue.threads == 0
    }

    pub(super) fn counters(&self) -> WorkerCounters {
        let queue = self.queue();
        WorkerCounters {
            active: (queue.threads - queue.dormant) as u64,
            dormant: queue.dormant as u64,
            started: queue.started,
            ended: queue.ended,
            waiting: queue.jobs.len().saturating_sub(queue.dormant) as u64,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // Handlers' panics are caught where they are counted; whatever else panics must not cost a thread's place.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// The next job; none if this thread is to end, which is counted here.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                if queue.jobs.is_empty() {
                    self.is_short.store(false, Ordering::Relaxed);
                }
                return Some(job);
            }
            if queue.is_closed {
                break;
            }
            queue.dormant += 1;
            let waited = self.changed.wait_timeout(queue, self.keep);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = after;
            queue.dormant -= 1;
            if timeout.timed_out() && queue.jobs.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
        queue.ended += 1;
        drop(queue);
        self.changed.notify_all();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);

    /// Jobs that run until the sender is dropped.
    fn occupy(workers: &Arc<Workers>, count: usize) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (begun, begins) = mpsc::channel();
        for _ in 0..count {
            let (released, begun) = (Arc::clone(&released), begun.clone());
            workers.submit(move || {
                begun.send(()).unwrap();
                let _ = released.lock().map(|released| released.recv());
            });
        }
        for _ in 0..count {
            begins.recv().unwrap();
        }
        release
    }

    #[test]
    fn threads_come_with_work_and_are_used_again() {
        let workers = Workers::new(10, LONG);
        assert_eq!(workers.counters(), WorkerCounters::default());
        let release = occupy(&workers, 4);
        let busy = workers.counters();
        assert_eq!((busy.active, busy.dormant, busy.started), (4, 0, 4));
        drop(release);
        // Whichever is dormant by then takes the next job; else one more thread comes.
        while workers.counters().dormant < 4 {
            thread::yield_now();
        }
        drop(occupy(&workers, 3));
        assert_eq!(workers.counters().started, 4);
    }

    #[test]
    fn no_more_threads_than_the_limit() {
        let workers = Workers::new(2, LONG);
        let release = occupy(&workers, 2);
        assert!(!workers.is_short());
        let (done, is_done) = mpsc::channel();
        workers.submit(move || done.send(7).unwrap());
        assert!(workers.is_short());
        assert_eq!(workers.counters().waiting, 1);
        drop(release);
        assert_eq!(is_done.recv(), Ok(7));
        assert_eq!(workers.counters().started, 2);
    }

    #[test]
    fn idle_threads_end() {
        let workers = Workers::new(5, Duration::from_millis(1));
        drop(occupy(&workers, 3));
        while workers.counters().ended < 3 {
            thread::yield_now();
        }
        assert_eq!(workers.counters().active + workers.counters().dormant, 0);
        drop(occupy(&workers, 1));
        assert_eq!(workers.counters().started, 4);
    }

    #[test]
    fn a_panic_costs_no_thread() {
        let workers = Workers::new(1, LONG);
        workers.submit(|| panic!("as the test wants it"));
        let (done, is_done) = mpsc::channel();
        workers.submit(move || done.send(7).unwrap());
        assert_eq!(is_done.recv(), Ok(7));
        assert_eq!(workers.counters().started, 1);
    }

    #[test]
    fn closing_ends_all_and_takes_no_more() {
        let workers = Workers::new(5, LONG);
        drop(occupy(&workers, 3));
        workers.close();
        assert!(workers.join(LONG));
        workers.submit(|| panic!("nobody does this"));
        assert_eq!(workers.counters().started, 3);
    }
}
