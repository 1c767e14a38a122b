//! Clients and servers on blocking sockets and threads, for whom latency counts more than how many connections there are.
//!
//! A message is one system call to send and one to receive; no runtime looks at its sockets in between. Generated clients
//! and services are the same as everywhere: a [`Channel`] of a [`Pool`] does its work when its future is polled, and
//! [`wait`] polls it.
//!
//! ```no_run
//! # mod rquota { pub mod rquotaprog { pub mod rquotavers {
//! #     #[derive(Debug)] pub struct Client<C>(pub C);
//! #     impl<C> Client<C> { pub async fn getquota(&self) {} }
//! # } } }
//! use rquota::rquotaprog::rquotavers::Client;
//! use wallaby_onc::blocking::{Options, Pool, wait};
//!
//! let pool = Pool::new(Options::default());
//! let client = Client(pool.udp("127.0.0.1:875".parse().unwrap()));
//! let quota = wait(client.getquota());
//! ```
//!
//! A [`Pool`] keeps connections and sockets open between calls (FlexRPC, section IV-B), a [`Server`] has as many threads as
//! calls need that are executed at the same time (section IV-C), and `server::Options::keep_replies` is the response cache
//! (section IV-D).
//!
//! [`Channel`]: crate::Channel

mod handle;
mod pool;
mod server;
mod socket;
mod workers;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

pub use pool::{Options, Pool, PoolCounters, PooledChannel};
pub use server::{Server, ServerCounters, ServerOptions};
pub use workers::WorkerCounters;

/// Waits for a future on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    wait_after(future, || {})
}

/// Waits for a future on this thread, and calls this before, unless the future is ready at once.
fn wait_after<F: Future>(future: F, before: impl FnOnce()) -> F::Output {
    let mut before = Some(before);
    let mut future = pin!(future);
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                // Whoever wakes another future of this thread too early only makes this one look again.
                Poll::Pending => {
                    if let Some(before) = before.take() {
                        before();
                    }
                    thread::park();
                }
            }
        }
    })
}

thread_local! {
    static WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn a_future_that_another_thread_completes_is_waited_for() {
        let (tell, told) = oneshot::channel();
        let other = thread::spawn(move || tell.send(7));
        assert_eq!(wait(told), Ok(7));
        other.join().unwrap().unwrap();
    }
}
