//! For programs that are not async: an endpoint that brings the threads which it needs, and a way to wait for anything of it.
//!
//! [`bind`] makes an [`Endpoint`] that is used like any other. What is async of its calls has a form that blocks, `blocking_answer`
//! for instance, on any thread but those of an async runtime; [`Endpoint::wait`] waits for everything else. Handlers without `async`
//! in their service's trait run on threads that may block.
//!
//! ```
//! use wallaby::{Endpoint, blocking};
//!
//! #[wallaby::service(package = "example")]
//! trait Greeter {
//!     async fn greet(name: String) -> String;
//! }
//!
//! struct Polite;
//!
//! #[wallaby::serve]
//! impl Greeter for Polite {
//!     fn greet(&self, name: String) -> String {
//!         format!("Hello {name}")
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let server = Endpoint::builder().listen("tcp://127.0.0.1:0").serve(greeter::service(Polite));
//!     let server = blocking::bind(server)?;
//!
//!     let client = blocking::bind(Endpoint::builder())?;
//!     let greeter = greeter::at(&client, server.address().ok_or("it listens")?);
//!     println!("{}", greeter.greet("Ada".into()).blocking_answer()?);
//!     server.wait(server.drain(std::time::Duration::from_secs(5)))??;
//!     Ok(())
//! }
//! ```

use std::cell::Cell;
use std::future::{Future, pending};
use std::ops::Deref;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinError;
use wallaby_proto::Code;

use crate::builder::Builder;
use crate::error::BindError;

/// An endpoint, and the thread that it runs on: that carries messages, runs async handlers and keeps the time. The endpoint is closed
/// when this is dropped, whoever has clones of it.
#[derive(Debug)]
pub struct Endpoint {
    endpoint: crate::Endpoint,
    runtime: Handle,
    /// The thread ends when this is dropped.
    _runs: oneshot::Sender<()>,
}

/// Makes an endpoint for a program that is not async. Without [`listen`](Builder::listen) it is a client. It has one thread of its
/// own, and up to 512 more while handlers that block run at the same time.
///
/// # Errors
///
/// As [`Builder::bind`], if the thread cannot be started, and on a thread of an async runtime.
pub fn bind(builder: Builder) -> Result<Endpoint, BindError> {
    if is_async() {
        return Err(BindError::WouldBlock(WouldBlock));
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(BindError::Thread)?;
    let endpoint = runtime.block_on(builder.bind())?;
    let handle = runtime.handle().clone();
    let (runs, ends) = oneshot::channel();
    let carry = move || {
        let _: Result<(), _> = runtime.block_on(ends);
        runtime.shutdown_background(); // to wait for handlers that block is for who drains the endpoint
    };
    let thread = thread::Builder::new().name("wallaby".into());
    thread.spawn(carry).map_err(BindError::Thread)?;
    Ok(Endpoint {
        endpoint,
        runtime: handle,
        _runs: runs,
    })
}

impl Endpoint {
    /// Waits for anything of this endpoint that is async, such as [`drain`](crate::Endpoint::drain).
    ///
    /// # Errors
    ///
    /// On a thread of an async runtime: the rest of it would stand still.
    pub fn wait<F: Future>(&self, future: F) -> Result<F::Output, WouldBlock> {
        if is_async() {
            return Err(WouldBlock);
        }
        let _entered = self.runtime.enter();
        Ok(park_for(future))
    }
}

impl Deref for Endpoint {
    type Target = crate::Endpoint;

    fn deref(&self) -> &crate::Endpoint {
        &self.endpoint
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.endpoint.close();
    }
}

thread_local! {
    /// This thread runs a blocking handler, so it may wait although a runtime is near.
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// A blocking wait where it would stop an async runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a blocking wait inside an async runtime would stop it: await in place of it, or wait on a thread of its own"
)]
pub struct WouldBlock;

impl WouldBlock {
    /// What kind of error it is: always [`Code::FailedPrecondition`].
    pub fn code(&self) -> Code {
        Code::FailedPrecondition
    }
}

/// Runs `work` on a worker thread of the runtime's blocking pool. If the runtime ends first, this is dropped like all that waits
/// there: the endpoint says what becomes of the request.
///
/// # Panics
///
/// If the work does, so that a blocking handler's panic is treated and counted as any other handler's.
pub(crate) async fn run<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let worker = tokio::task::spawn_blocking(move || {
        WORKER.set(true);
        let _leave = Leave;
        work()
    });
    match worker.await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_)) => pending().await,
    }
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        WORKER.set(false);
    }
}

/// Waits for a future on this thread.
///
/// # Errors
///
/// If the thread belongs to an async runtime, which must not wait.
pub(crate) fn wait<F: Future>(future: F) -> Result<F::Output, WouldBlock> {
    match is_async() {
        true => Err(WouldBlock),
        false => Ok(park_for(future)),
    }
}

/// Whether this thread belongs to an async runtime, and runs no blocking handler.
fn is_async() -> bool {
    !WORKER.get() && Handle::try_current().is_ok()
}

fn park_for<F: Future>(future: F) -> F::Output {
    let woken = Arc::new(Woken::new());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
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
