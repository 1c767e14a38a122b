//! A body on its way out: piece by piece, as its source yields them and its endpoint takes them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use wallaby_proto::connection::BodyRefusal;
use wallaby_proto::endpoint::{Endpoint as Proto, OutBody};

use super::Body;
use crate::driver::shared::Inner;
use crate::driver::waiters::Wait;

/// What follows a request that was sent.
pub(crate) struct WrittenBody {
    out: OutBody,
    body: Body,
    /// What was not written yet of what it is made of, and how it ends.
    chunk: Bytes,
    end: Option<Result<(), String>>,
}

/// What the endpoint says to a piece: pending if it takes no more of it now.
type Taken = Poll<Result<(), BodyRefusal>>;

impl WrittenBody {
    pub(crate) fn new(out: OutBody, body: Body) -> Self {
        Self {
            out,
            body: body.handed_on(),
            chunk: Bytes::new(),
            end: None,
        }
    }

    /// Writes as much as there is room for. Ready when it has ended, or nobody wants more of it. The source is asked without the
    /// endpoint, for which `with` then does what it is given.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut with: impl FnMut(&mut dyn FnMut(&mut Proto) -> Taken) -> Taken,
    ) -> Poll<()> {
        let out = self.out;
        loop {
            let Self { chunk, end, .. } = self;
            if !chunk.is_empty() {
                let written = with(&mut |endpoint| taken(endpoint.write_body(out, chunk)));
                if ready!(written).is_err() {
                    return Poll::Ready(());
                }
            } else if let Some(end) = end {
                let end = end.as_ref().copied().map_err(String::as_str);
                return with(&mut |endpoint| taken(endpoint.end_body(out, end))).map(drop);
            } else {
                match self.body.poll_chunk(cx) {
                    Poll::Ready(Some(Ok(next))) => self.chunk = next,
                    Poll::Ready(Some(Err(error))) => self.end = Some(Err(error.into_reason())),
                    Poll::Ready(None) => self.end = Some(Ok(())),
                    Poll::Pending => {
                        return with(&mut |endpoint| match endpoint.wants_body(out) {
                            true => Poll::Pending,
                            false => Poll::Ready(Ok(())),
                        })
                        .map(drop);
                    }
                }
            }
        }
    }
}

fn taken(taken: Result<(), BodyRefusal>) -> Taken {
    match taken {
        Err(BodyRefusal::Blocked) => Poll::Pending,
        taken => Poll::Ready(taken),
    }
}

/// Sends a body after its request, in a task of its own.
pub(crate) fn spawn(endpoint: &Arc<Inner>, body: Body, out: OutBody) {
    let sending = SendingBody {
        endpoint: Arc::clone(endpoint),
        out,
        body: WrittenBody::new(out, body),
        is_over: false,
    };
    endpoint.runtime.spawn(sending);
}

/// A body that is being sent.
struct SendingBody {
    endpoint: Arc<Inner>,
    out: OutBody,
    body: WrittenBody,
    is_over: bool,
}

impl Future for SendingBody {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self {
            endpoint,
            out,
            body,
            is_over,
        } = &mut *self;
        let waker = cx.waker().clone();
        let sent = body.poll(cx, |act| {
            endpoint.enter(|core| {
                let taken = act(&mut core.endpoint);
                if taken.is_pending() {
                    core.wait(Wait::Write(*out), &waker);
                }
                taken
            })
        });
        *is_over = sent.is_ready();
        sent
    }
}

impl Drop for SendingBody {
    fn drop(&mut self) {
        let is_over = self.is_over;
        self.endpoint.enter(|core| {
            if !is_over {
                core.endpoint
                    .abandon_body(self.out, "its sender was shut down");
            }
            core.stop_waiting(Wait::Write(self.out));
        });
    }
}
