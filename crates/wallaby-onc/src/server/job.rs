//! One call, executed.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::counters::count;
use super::{Phase, Shared, ends};
use crate::message::{AcceptError, CallBody, Reply};
use crate::peer::Origin;
use crate::service::{self, Handling};

/// Executes a call as far as it does not wait, which spares most of them a task: its reply, if there is one, or what is left
/// to do.
pub(super) fn run(
    shared: &Shared,
    call: CallBody,
    origin: Origin,
    context: &mut Context<'_>,
) -> Result<Option<Reply>, Handling> {
    count(&shared.counters.calls);
    let mut handling = match shared.programs.begin(call, Some(origin)) {
        Ok(handling) => handling,
        Err(refusal) => return Ok(service::reply(Err(refusal))),
    };
    match poll(shared, &mut handling, context) {
        Poll::Ready(reply) => Ok(reply),
        Poll::Pending => Err(handling),
    }
}

/// Executes the rest of a call in a task of its own, and what follows from its reply.
pub(super) fn finish<F: Future<Output = ()> + Send>(
    shared: &Arc<Shared>,
    mut handling: Handling,
    then: impl FnOnce(Option<Reply>) -> F + Send + 'static,
) {
    let for_job = Arc::clone(shared);
    spawn(shared, async move {
        let reply = poll_fn(|context| poll(&for_job, &mut handling, context)).await;
        then(reply).await;
    });
}

/// Runs a job in a task of its own. It is dropped only if the server is.
pub(super) fn spawn(shared: &Shared, job: impl Future<Output = ()> + Send + 'static) {
    let mut phase = shared.phase.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            () = job => {}
            () = ends(&mut phase, Phase::Stopped) => {}
        }
    });
}

/// Polls a procedure. One that panics is a failure of the server, and not polled again.
fn poll(
    shared: &Shared,
    handling: &mut Handling,
    context: &mut Context<'_>,
) -> Poll<Option<Reply>> {
    // After a panic, what it borrows is the application's to keep in order.
    match catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(context))) {
        Ok(results) => results.map(service::reply),
        Err(_) => {
            count(&shared.counters.panics);
            let failed = Reply::accepted(Err(AcceptError::SystemError));
            Poll::Ready(Some(failed))
        }
    }
}
