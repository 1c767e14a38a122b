//! How interceptors are asked about a request, one after the other.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use super::{Admission, Incoming};
use crate::handling::Handling;
use crate::request::RequestInfo;

/// An interceptor that wants to wait.
type Wait = Pin<Box<dyn Future<Output = Admission> + Send>>;

/// A request about which interceptors are asked.
pub(crate) struct Asking {
    handling: Arc<Handling>,
}

impl Asking {
    /// Asks them. If one wants to wait, that is a task, which an abort and the deadline find.
    pub(crate) fn begin(handling: Arc<Handling>) {
        let mut asking = Self { handling };
        let Some(wait) = asking.ask() else {
            return;
        };
        let handling = Arc::clone(&asking.handling);
        handling.wait_for_admission();
        let runtime = handling.endpoint.runtime.clone();
        runtime.spawn(async move { until_stopped(&handling, asking.wait(wait)).await });
    }

    async fn wait(mut self, mut wait: Wait) {
        loop {
            let decided = caught(wait).await;
            let decided = decided.unwrap_or_else(|panic| self.refuse_for(&*panic));
            let next = match self.follow(decided) {
                ControlFlow::Continue(()) => self.ask(),
                ControlFlow::Break(next) => next,
            };
            match next {
                Some(next) => wait = next,
                None => return,
            }
        }
    }

    /// Asks as long as nobody wants to wait, or it is decided.
    fn ask(&mut self) -> Option<Wait> {
        let incoming = Incoming::new(RequestInfo::new(&self.handling));
        while let Some(interceptor) = self.handling.next_interceptor() {
            let ask = AssertUnwindSafe(|| interceptor.admit(&incoming));
            let decided = self.handling.span().in_scope(|| catch_unwind(ask));
            let decided = decided.unwrap_or_else(|panic| self.refuse_for(&*panic));
            if let ControlFlow::Break(next) = self.follow(decided) {
                return next;
            }
        }
        self.handling.enqueue();
        None
    }

    /// Whether the next one is to be asked; if not, whether this one wants to wait.
    fn follow(&mut self, decided: Admission) -> ControlFlow<Option<Wait>> {
        match decided {
            Admission::Run => return ControlFlow::Continue(()),
            Admission::Wait(wait) => return ControlFlow::Break(Some(wait)),
            Admission::Refuse(status) => self.handling.fail(&status),
        }
        ControlFlow::Break(None)
    }

    fn refuse_for(&self, panic: &(dyn Any + Send)) -> Admission {
        Admission::Refuse(self.handling.panicked(panic))
    }
}

/// Does something until the request is stopped: `None` if it was.
pub(crate) async fn until_stopped<T>(
    handling: &Handling,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut stopped) = (pin!(work), pin!(handling.cancelled()));
    poll_fn(|cx| match stopped.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

/// What a future yields, or with what it panics.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| future.as_mut().poll(cx));
        match catch_unwind(poll) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}
