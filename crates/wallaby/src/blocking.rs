//! Blocking forms for code that is not async: handlers on worker threads, and callers on threads of their own.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use wallaby_proto::{Code, Status};

thread_local! {
    /// This thread runs a blocking handler, so it may wait although a runtime is near.
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// A blocking wait where it would stop an async runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WouldBlock;

/// Runs `work` on a worker thread of the runtime's blocking pool.
///
/// # Errors
///
/// A status if the runtime is shutting down.
///
/// # Panics
///
/// If the work does, so that a blocking handler's panic is treated and counted as any other handler's.
pub async fn run<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Status> {
    let worker = tokio::task::spawn_blocking(move || {
        WORKER.set(true);
        let _leave = Leave;
        work()
    });
    worker.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Status::new(Code::Unavailable, "the server is shutting down"),
    })
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        WORKER.set(false);
    }
}

/// What a panic of the handler, or of whatever else it is, said.
pub(crate) fn panic_message(who: &str, panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "{who} panicked: {}",
        text.as_deref().unwrap_or("no message")
    )
}

/// Does what runs code of the application where nobody may panic: wakers, drops. A panic is logged, and ends there.
pub(crate) fn contain(whose: &str, act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        let panic_said = panic_message(whose, &*panic);
        tracing::error!("{panic_said}");
        std::mem::forget(panic); // its drop may panic as well
    }
}

/// Waits for a future on this thread.
///
/// # Errors
///
/// If the thread belongs to an async runtime, which must not wait.
pub(crate) fn wait<F: Future>(future: F) -> Result<F::Output, WouldBlock> {
    if !WORKER.get() && tokio::runtime::Handle::try_current().is_ok() {
        return Err(WouldBlock);
    }
    let woken = Arc::new(Woken::new());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending => woken.wait(),
        }
    }
}

/// Whether a wait was ended. Each has its own: a handler that waits while it is waited for must not take what is for both.
struct Woken {
    thread: Thread,
    woken: AtomicBool,
}

impl Woken {
    fn new() -> Self {
        Self {
            thread: thread::current(),
            woken: AtomicBool::new(false),
        }
    }

    fn wait(&self) {
        while !self.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Pending once, and then woken together with whoever waits outside.
    fn wakes_both(outer: &Waker) -> impl Future<Output = ()> {
        let mut waited = false;
        poll_fn(move |cx| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            outer.wake_by_ref();
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[test]
    fn a_wait_within_a_wait_leaves_it_its_wake_up() {
        let (done, told) = mpsc::channel();
        thread::spawn(move || {
            let mut polls = 0;
            let outer = poll_fn(|cx| {
                polls += 1;
                if polls > 1 {
                    return Poll::Ready(polls);
                }
                wait(wakes_both(cx.waker())).expect("no runtime is near");
                Poll::Pending
            });
            done.send(wait(outer)).expect("the test listens");
        });
        let waited = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(
            waited,
            Ok(Ok(2)),
            "it was woken while another one waited within it"
        );
    }
}
