//! Blocking forms for code that is not async: handlers on worker threads, and callers on threads of their own.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
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

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "the handler panicked: {}",
        text.as_deref().unwrap_or("no message")
    )
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
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
