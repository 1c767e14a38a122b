//! Another thread for a socket whose threads don't come back, known by looking each millisecond.
//!
//! A thread that receives a call executes it. If a second one waited in the socket meanwhile, it would get the next call, and
//! the two would take turns: with each call one of them would be put to sleep and the other woken, which costs more than
//! many handlers. So one thread receives for itself as long as it comes back soon; when it does not, this one starts another.
//! From then on there is one at once for each call that is executed, until none has taken long for a while.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use super::Shared;
use super::datagram;

/// How often it looks while calls are executed. No call waits longer than two of these behind one that blocks.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// After so many ticks without a call it sleeps, until the next one wakes it.
const QUIET: u32 = 16;

/// The thread that looks, for those that execute calls.
#[derive(Debug, Default)]
pub(super) struct Relief {
    thread: Mutex<Option<Thread>>,
    is_asleep: AtomicBool,
    ticks: AtomicU64,
}

impl Relief {
    /// Starts the thread, if there is none yet. It ends when the server does.
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
        let relief = &shared.relief;
        let mut thread = relief.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let for_thread = Arc::clone(shared);
            let builder = thread::Builder::new().name("onc-relief".into());
            let started = builder.spawn(move || run(&for_thread))?;
            *thread = Some(started.thread().clone());
        }
        Ok(())
    }

    /// A call begins, and has told its socket's [`Turns`](super::turns::Turns) so: the thread sees that, or is seen here to
    /// sleep.
    pub(super) fn notice(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            thread.unpark();
        }
    }

    /// The time: ticks in which there were calls.
    pub(super) fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }
}

fn run(shared: &Arc<Shared>) {
    let mut quiet = 0;
    while !shared.is_over() {
        quiet = match look(shared) {
            true => quiet + 1,
            false => 0,
        };
        if quiet < QUIET {
            thread::park_timeout(TICK);
            shared.relief.ticks.fetch_add(1, Ordering::Relaxed);
        } else {
            quiet = 0;
            sleep(shared);
        }
    }
}

/// Looks at all sockets; whether nothing is going on there.
fn look(shared: &Arc<Shared>) -> bool {
    let ports = shared.ports();
    let going_on = ports.iter().filter(|port| !datagram::look(shared, port));
    going_on.count() == 0
}

/// Sleeps until a call begins, or the server ends.
fn sleep(shared: &Arc<Shared>) {
    let is_asleep = &shared.relief.is_asleep;
    is_asleep.store(true, Ordering::SeqCst);
    // Who began a call before that did not see it.
    if !look(shared) {
        is_asleep.store(false, Ordering::SeqCst);
    }
    while is_asleep.load(Ordering::SeqCst) && !shared.is_over() {
        thread::park();
    }
}
