//! One call, executed.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::watch;

use super::counters::count;
use super::{Phase, Shared, ends};
use crate::message::{AcceptError, Call, Reply};
use crate::peer::Origin;

/// The reply to a call, if there is one: also if the handler panics.
pub(super) async fn reply(
    shared: Arc<Shared>,
    xid: u32,
    call: Call,
    origin: Origin,
) -> Option<Bytes> {
    count(&shared.counters.calls);
    match caught(shared.programs.answer_call(xid, call, Some(origin))).await {
        Ok(reply) => reply,
        Err(_) => {
            count(&shared.counters.panics);
            Reply::accepted(Err(AcceptError::SystemError)).message(xid)
        }
    }
}

/// A future's output, or its panic.
async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|context| {
        // After a panic it is not polled again, and what it borrows is the application's to keep in order.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Runs a job: at once as far as it does not wait, which spares most of them a task, then in a task of its own. It is
/// dropped only if the server is.
pub(super) fn run<F: Future<Output = ()> + Send + 'static>(
    context: &mut Context<'_>,
    mut phase: watch::Receiver<Phase>,
    job: F,
) {
    let mut job: Pin<Box<F>> = Box::pin(job);
    if job.as_mut().poll(context).is_ready() {
        return;
    }
    tokio::spawn(async move {
        tokio::select! {
            () = job => {}
            () = ends(&mut phase, Phase::Stopped) => {}
        }
    });
}
