//! One thread of the process that wakes endpoints when a deadline passes.
//!
//! The timers of the async runtime would do, but a runtime with a timer pending reads the clock each time it goes to
//! sleep and wakes up, which a call of some microseconds pays for several times. Deadlines are almost never reached.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use crate::endpoint::Inner;

static TIMER: LazyLock<Timer> = LazyLock::new(Timer::start);

struct Timer {
    alarms: &'static Mutex<Alarms>,
    changed: &'static Condvar,
    /// False if the operating system gave no thread: deadlines are not watched then.
    runs: bool,
}

#[derive(Default)]
struct Alarms {
    heap: BinaryHeap<Reverse<Alarm>>,
    count: u64,
}

struct Alarm {
    at: Instant,
    number: u64,
    endpoint: Weak<Inner>,
}

/// Calls [`Inner::alarm`] at this time, on a thread of its own. `false` if the system gives no thread.
pub(crate) fn wake(endpoint: Weak<Inner>, at: Instant) -> bool {
    let mut alarms = TIMER.alarms.lock().unwrap_or_else(PoisonError::into_inner);
    alarms.count += 1;
    let number = alarms.count;
    alarms.heap.push(Reverse(Alarm {
        at,
        number,
        endpoint,
    }));
    if alarms
        .heap
        .peek()
        .is_some_and(|first| first.0.number == number)
    {
        TIMER.changed.notify_one();
    }
    TIMER.runs
}

impl Timer {
    fn start() -> Self {
        let alarms: &'static Mutex<Alarms> = Box::leak(Box::default());
        let changed: &'static Condvar = Box::leak(Box::default());
        let thread = thread::Builder::new().name("wallaby-timer".into());
        let runs = thread.spawn(move || run(alarms, changed)).is_ok();
        Self {
            alarms,
            changed,
            runs,
        }
    }
}

fn run(alarms: &Mutex<Alarms>, changed: &Condvar) {
    let mut waiting = alarms.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let now = Instant::now();
        waiting = match waiting.heap.peek() {
            Some(Reverse(first)) if first.at <= now => {
                let due = waiting.heap.pop();
                drop(waiting);
                if let Some(endpoint) = due.and_then(|Reverse(alarm)| alarm.endpoint.upgrade()) {
                    endpoint.alarm(now);
                }
                alarms.lock().unwrap_or_else(PoisonError::into_inner)
            }
            Some(Reverse(first)) => {
                let wait = first.at - now;
                changed
                    .wait_timeout(waiting, wait)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Alarm {}
