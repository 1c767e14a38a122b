//! How handlers run: from the turn of their request to their end, however long after its that is.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use wallaby_proto::Status;
use wallaby_proto::endpoint::Permit;

use super::ending::Ended;
use super::{Handling, WaitingHandler};
use crate::driver::effects::{self, Effect, Inside};
use crate::driver::shared::Core;
use crate::intercept::Intent;
use crate::request::RawRequest;
use crate::service::{Handler, HandlerFuture};

/// What is done for a request.
pub(crate) enum Work {
    Handle(Arc<dyn Handler>),
    /// This is sent.
    Replay(Vec<Intent>),
}

impl Work {
    fn begin(self, request: RawRequest) -> HandlerFuture {
        match self {
            Self::Handle(handler) => handler.handle(request),
            Self::Replay(intents) => Box::pin(async move { request.exit.send_all(intents).await }),
        }
    }
}

/// A request whose handler's turn has come.
pub(crate) struct Job {
    pub(crate) handling: Arc<Handling>,
    pub(crate) work: Work,
    pub(crate) payload: Bytes,
    /// Its place in the executor, until the handler is done.
    pub(crate) place: Option<Permit>,
}

impl Job {
    /// The turn of a request has come which has run before: what passes it on.
    pub(crate) fn go_on(handling: Arc<Handling>, core: &mut Core) -> Option<Self> {
        if let Err(why) = core.endpoint.take_request(handling.key) {
            core.forget_request(handling.key);
            handling.cancel();
            effects::push(Effect::Stop(handling, why));
            return None;
        }
        let WaitingHandler {
            registered,
            payload,
            held,
            replay,
            ..
        } = handling.begin_job()?;
        // Interceptors may have shields of their own.
        let shields = u32::from(registered.shielded);
        handling.shields.fetch_add(shields, Ordering::AcqRel);
        if let Some(held) = held {
            effects::push(Effect::Drop(Box::new(held)));
        }
        Some(Self {
            place: core.endpoint.keep_permit(handling.key),
            handling,
            work: match replay {
                None => Work::Handle(Arc::clone(&registered.handler)),
                Some(intents) => Work::Replay(intents),
            },
            payload,
        })
    }

    /// Begins to handle the request when it is the turn of a task of its own.
    #[cold]
    pub(crate) fn start_later(self) {
        let Self {
            handling,
            work,
            payload,
            place,
        } = self;
        let runtime = handling.endpoint.runtime.clone();
        let of = Arc::clone(&handling);
        let begins: HandlerFuture =
            Box::pin(async move { work.begin(RawRequest::new(&of, payload)).await });
        handling.lock().idle = Some(begins);
        let span = handling.span();
        runtime.spawn(RunningHandler::new(handling, span, place));
    }

    /// Begins to handle the request on this thread; a handler that waits for something becomes a task of its own.
    pub(crate) fn start(self) {
        let Self {
            handling,
            work,
            payload,
            place,
        } = self;
        handling.polling.store(true, Ordering::Relaxed);
        let span = handling.span();
        let request = RawRequest::new(&handling, payload);
        let handled = span.in_scope(|| catch_unwind(AssertUnwindSafe(|| work.begin(request))));
        let mut run = RunningHandler::new(handling, span, place);
        match handled {
            Ok(future) => run.future = Some(future),
            Err(panic) => {
                let status = run.handling.panicked(panic);
                run.future = Some(Box::pin(ready(Err(status))));
            }
        }
        // The handler gets a real waker when the task polls it again.
        if run
            .poll_handler(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            let runtime = run.handling.endpoint.runtime.clone();
            runtime.spawn(run);
        }
    }
}

/// A handler that runs.
struct RunningHandler {
    handling: Arc<Handling>,
    span: tracing::Span,
    future: Option<HandlerFuture>,
    place: Option<Permit>,
    /// An abort finds it.
    enlisted: bool,
    /// The handler has returned, and what is around the request does the rest.
    closing: bool,
    /// That is done, too.
    done: bool,
}

impl RunningHandler {
    fn new(handling: Arc<Handling>, span: tracing::Span, place: Option<Permit>) -> Self {
        Self {
            future: None,
            handling,
            span,
            place,
            enlisted: false,
            closing: false,
            done: false,
        }
    }

    fn poll_handler(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut result = self.poll_once(cx);
        if let Some(returned) =
            result.take_if(|_| !self.closing && self.handling.around().is_some())
        {
            match self.handling.begin_close(returned.err()) {
                Some(closing) => {
                    (self.future, self.closing) = (Some(closing), true);
                    self.handling.lock().place = self.place.take();
                    result = self.poll_once(cx);
                }
                // It goes on elsewhere.
                None => result = Some(Ok(())),
            }
        }
        let pending = result.is_none();
        self.end_poll(result);
        match pending {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// What it returned, if it has.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> Option<Result<(), Status>> {
        let future = self.future.as_mut()?;
        let poll = || catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        match self.span.in_scope(poll) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(result),
            Err(panic) if self.closing => Some(Err(self.handling.interceptor_panicked(panic))),
            Err(panic) => Some(Err(self.handling.panicked(panic))),
        }
    }

    /// The handler's poll is over: what it held back leaves, and if it is done, its request ends.
    fn end_poll(&mut self, result: Option<Result<(), Status>>) {
        let handling = &self.handling;
        handling.polling.store(false, Ordering::Relaxed);
        self.done = result.is_some();
        let place = self.place.take_if(|_| result.is_some());
        let failed = matches!(result, Some(Err(_)));
        if let Some(Err(status)) = result {
            handling.fail_now(&status);
        }
        let around = handling.around().is_some();
        let (place, dropped, ends, lingering) = {
            let mut state = handling.lock();
            let place = place.or(state.place.take_if(|_| self.done));
            let dropped = !failed && state.dropped && !state.kept && !state.over;
            let ends = dropped && !around || self.closing && self.done && !failed && !state.over;
            state.over |= ends;
            if !self.done {
                state.idle = self.future.take();
            }
            (place, dropped, ends, state.lingering.take_if(|_| self.done))
        };
        drop(lingering);
        if ends && around {
            handling.leave(|core| ((), Ended::With(core.endpoint.finish_request(handling.key))));
        } else if dropped && !ends && !self.closing {
            handling.finish(); // its handler goes on without it
        }
        let enlist = !failed && !ends && !std::mem::replace(&mut self.enlisted, true);
        let _inside = handling.intercepted.then(Inside::enter);
        let status = handling.endpoint.enter(|core| {
            let mut status = None;
            if ends {
                status = core.endpoint.finish_request(handling.key);
                core.forget_request(handling.key);
            } else if enlist {
                core.endpoint.put_aside(handling.key);
            } else if !failed {
                core.endpoint.flush(handling.key);
            }
            if let Some(place) = place {
                core.endpoint.release_permit(place);
            }
            status
        });
        if ends {
            handling.note_end(status.as_deref());
            handling.drop_body();
        }
    }

    /// The request was stopped: its handler is dropped, if it was not yet, and with that it is done.
    fn give_up(&mut self) {
        // The request goes with it, and ends when all of it is gone.
        self.handling.polling.store(true, Ordering::Relaxed);
        let idle = self.handling.lock().idle.take();
        let dropped = idle.map_or(Ok(()), |handler| self.handling.drop_handler(handler));
        self.end_poll(Some(dropped));
    }
}

impl Future for RunningHandler {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let handling = Arc::clone(&self.handling);
        let goes_on = {
            let mut state = handling.lock();
            if !state
                .task
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                state.task = Some(cx.waker().clone());
            }
            let goes_on = !handling.is_given_up();
            if goes_on {
                self.future = state.idle.take();
            }
            goes_on
        };
        if goes_on {
            handling.progress();
            handling.polling.store(true, Ordering::Relaxed);
            if self.poll_handler(cx).is_ready() {
                return Poll::Ready(());
            }
        }
        if handling.is_given_up() {
            self.give_up();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        if !self.done {
            let endpoint = &self.handling.endpoint;
            endpoint.note_dropped();
            let place = self.place.take();
            let place = place.or_else(|| self.handling.lock().place.take());
            if let Some(place) = place {
                endpoint.enter(|core| core.endpoint.release_permit(place));
            }
        }
        let idle = self.handling.lock().idle.take();
        drop(idle);
    }
}
