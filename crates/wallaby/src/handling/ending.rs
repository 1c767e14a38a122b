//! How a request ends, what is around it until then, and who is told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use tokio::task::JoinHandle;
use wallaby_proto::Status;
use wallaby_proto::endpoint::{Permit, Returned};

use super::Handling;
use crate::driver::effects::Inside;
use crate::driver::shared::{Core, Inner};
use crate::error::SendError;
use crate::intercept::{Around, Exit, Layer, RequestEnd, RequestWatch, caught, until_stopped};
use crate::service::HandlerFuture;
use crate::timer::Instant;

/// How a request has ended.
pub(super) enum Ended {
    /// Perhaps with a status.
    With(Option<Box<Status>>),
    /// It was stopped, which is told by whoever stops it.
    Stopped,
}

/// Who wants to know how a request ends.
pub(super) struct RequestWatches {
    /// Since when they do, and since when its handler runs.
    since: Instant,
    pub(super) began: Option<Instant>,
    watches: Vec<RequestWatch>,
}

impl Handling {
    /// Whether the request has ended: nothing may be sent for it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.endpoint
            .ask(|core| core.endpoint.has_finished(self.key))
    }

    /// The request is to end with a status; its handle is dropped after this.
    pub(crate) fn fail(&self, status: &Status) {
        if self.around().is_none() {
            return self.fail_now(status);
        }
        self.lock().failed.get_or_insert_with(|| status.clone());
    }

    /// The request ends with a status.
    #[inline(never)]
    pub(crate) fn fail_now(&self, status: &Status) {
        self.lock().over = true;
        let returned = self.leave(|core| {
            let returned = core.endpoint.returned(self.key, Err(status.clone()));
            let ended = match returned {
                Returned::Heard => Ended::With(Some(Box::new(status.clone()))),
                Returned::Late => Ended::With(None),
                Returned::Stopped => Ended::Stopped,
            };
            (returned, ended)
        });
        match returned {
            Returned::Heard => {
                tracing::debug!(call = %self.call, request = %self.id, %status, "ended with a status");
            }
            Returned::Late => {
                self.endpoint.logs.late_error(&self.of(), status);
            }
            Returned::Stopped => {}
        }
        self.drop_body();
    }

    /// The endpoint has stopped the request. A handler that waits is dropped here, before the initiator is told of its end; one
    /// that is being polled, by its task where it waits next.
    pub(crate) fn handle_stopped(&self, status: &Status) {
        let mut state = self.lock();
        if state.stopped.is_some() {
            return;
        }
        state.stopped = Some(Box::new(status.clone()));
        self.cancel();
        let (task, job) = (state.task.take(), state.job.take());
        let mut around = state.around.take();
        let idle = state.idle.take_if(|_| self.is_given_up());
        let goes_on = idle.is_none() && job.is_none();
        state.lingering = around.take_if(|_| goes_on);
        drop(state);
        tracing::debug!(call = %self.call, request = %self.id, %status, "ended with a status");
        self.note_end(Some(status)); // before its handler is dropped, which would end it otherwise
        if let Some(idle) = idle {
            let _ = self.drop_handler(idle);
        }
        self.changed.notify_waiters();
        task.into_iter().for_each(Waker::wake);
        if job.is_some() {
            self.drop_body(); // nobody reads it: those behind are not to wait for that
        }
        drop((job, around));
    }

    /// Drops its handler, which may do anything then; the status if it panics.
    pub(super) fn drop_handler(&self, handler: HandlerFuture) -> Result<(), Status> {
        let _runtime = self.endpoint.runtime.enter();
        let dropped = self
            .span()
            .in_scope(|| catch_unwind(AssertUnwindSafe(|| drop(handler))));
        dropped.map_err(|panic| self.panicked(panic))
    }

    /// The request's handle was dropped.
    pub(crate) fn handle_dropped(self: &Arc<Self>) {
        let mut state = self.lock();
        state.dropped = true;
        let ends = !self.is_polling() && !state.kept;
        drop(state);
        if ends {
            self.finish();
        }
    }

    /// Lets the request end, when what is around it has done the rest.
    pub(super) fn finish(self: &Arc<Self>) {
        if self.around().is_none() {
            return self.finish_now();
        }
        if let Some(closing) = self.begin_close(None) {
            self.close_apart(closing);
        }
    }

    /// Lets the request end: what it has sent last was the last.
    fn finish_now(&self) {
        if std::mem::replace(&mut self.lock().over, true) {
            return;
        }
        self.leave(|core| ((), Ended::With(core.endpoint.finish_request(self.key))));
        self.drop_body();
    }

    /// The request ends by this, perhaps with a status. Whoever is around it is told of its last messages before it is forgotten,
    /// and who watches of its end before anybody else may learn of that.
    pub(super) fn leave<R>(&self, end: impl FnOnce(&mut Core) -> (R, Ended)) -> R {
        let is_around = self.around().is_some();
        let _inside = self.intercepted.then(Inside::enter);
        let (result, ended) = self.endpoint.enter(|core| {
            let ended = end(core);
            if !is_around {
                core.forget_request(self.key);
            }
            ended
        });
        if is_around {
            self.endpoint.enter(|core| core.forget_request(self.key));
            let around = self.lock().around.take();
            drop(around);
        }
        if let Ended::With(status) = ended {
            self.note_end(status.as_deref());
        }
        result
    }

    // Who wants to know how it ends.

    /// This is told how it ends.
    pub(crate) fn watch(&self, watch: RequestWatch) {
        let mut state = self.lock();
        let watches = state.watch.get_or_insert_with(|| {
            Box::new(RequestWatches {
                since: Instant::now(),
                began: None,
                watches: Vec::new(),
            })
        });
        watches.watches.push(watch);
        let status = state.stopped.as_deref().cloned();
        drop(state);
        if status.is_some() {
            self.note_end(status.as_ref());
        }
    }

    /// The request has ended so.
    pub(super) fn note_end(&self, status: Option<&Status>) {
        if !self.intercepted {
            return;
        }
        let Some(watches) = self.lock().watch.take() else {
            return;
        };
        let now = Instant::now();
        let ran_from = watches.began.unwrap_or(now);
        let end = RequestEnd {
            status: status.cloned(),
            waited: ran_from.saturating_duration_since(watches.since),
            ran: watches
                .began
                .map(|began| now.saturating_duration_since(began)),
        };
        for watch in watches.watches {
            let told = catch_unwind(AssertUnwindSafe(|| watch(&end)));
            if let Err(panic) = told {
                self.interceptor_panicked(panic);
            }
        }
    }

    // What is around it.

    /// What is around it, until it has ended.
    pub(crate) fn around(&self) -> Option<Arc<Around>> {
        match self.intercepted {
            true => self.lock().around.clone(),
            false => None,
        }
    }

    /// From now on these are around it.
    pub(crate) fn put_around(&self, layers: Vec<Layer>) {
        if layers.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.stopped.is_none() {
            state.around = Some(Arc::new(Around::new(layers)));
        }
        drop(state);
        self.endpoint
            .ask(|core| core.endpoint.report_places(self.key));
    }

    /// Whether its handler may still send: what is around it may, when that is done.
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        self.check(None, 0)?;
        match self.lock().closing {
            true => Err(SendError::Ended("its handler is done".into())),
            false => Ok(()),
        }
    }

    /// The handler is done, or the request's handle was dropped: what is around it does the rest. `None` if it goes on, or that has
    /// begun already.
    pub(super) fn begin_close(self: &Arc<Self>, failed: Option<Status>) -> Option<HandlerFuture> {
        let mut state = self.lock();
        let failed = failed.or_else(|| state.failed.take());
        let is_done = failed.is_some() || state.dropped && !state.kept;
        if !is_done || std::mem::replace(&mut state.closing, true) {
            return None;
        }
        drop(state);
        let handling = Arc::clone(self);
        Some(Box::pin(async move {
            let close = Exit::of(&handling).close(failed);
            let closed = until_stopped(&handling, close).await;
            closed.unwrap_or(Ok(()))
        }))
    }

    /// That is done, apart from the handler.
    fn close_apart(self: &Arc<Self>, closing: HandlerFuture) {
        self.enlist();
        let handling = Arc::clone(self);
        self.endpoint.runtime.spawn(async move {
            let closed = caught(closing).await;
            match closed.unwrap_or_else(|panic| Err(handling.interceptor_panicked(panic))) {
                Ok(()) => handling.finish_now(),
                Err(status) => handling.fail_now(&status),
            }
        });
    }

    /// Does something that goes on whatever becomes of the request. It takes the handler's place in the executor along, or else one
    /// that is free.
    pub(crate) fn finish_all(
        self: &Arc<Self>,
        work: HandlerFuture,
    ) -> JoinHandle<(Result<(), Status>, Occupied)> {
        let place = self.lock().place.take();
        let place = self.endpoint.enter(|core| {
            let place = place.or_else(|| core.endpoint.take_place(self.key));
            place.inspect(|place| core.endpoint.keep_place(place))
        });
        let handling = Arc::clone(self);
        let endpoint = Arc::clone(&handling.endpoint);
        let occupied = Occupied { endpoint, place };
        self.endpoint.runtime.spawn(async move {
            let done = caught(work).await;
            let done = done.unwrap_or_else(|panic| Err(handling.interceptor_panicked(panic)));
            (done, occupied)
        })
    }

    /// It is refused before its handler runs; these were to be around it.
    pub(crate) fn refuse(self: &Arc<Self>, layers: Vec<Layer>, status: Status) {
        self.put_around(layers);
        if self.around().is_none() {
            return self.fail_now(&status);
        }
        if let Some(closing) = self.begin_close(Some(status)) {
            self.close_apart(closing);
        }
    }

    /// The request does not end before this is dropped, even if its handle is.
    pub(crate) fn keep(self: &Arc<Self>) -> Keep {
        self.lock().kept = true;
        Keep(Arc::clone(self))
    }
}

/// Keeps a request from ending.
pub(crate) struct Keep(Arc<Handling>);

impl Drop for Keep {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.kept = false;
        let ends = state.dropped && !self.0.is_polling();
        drop(state);
        if ends {
            self.0.finish();
        }
    }
}

/// A place in the executor, until this is dropped.
pub(crate) struct Occupied {
    endpoint: Arc<Inner>,
    place: Option<Permit>,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.endpoint
                .enter(|core| core.endpoint.release_permit(place));
        }
    }
}
