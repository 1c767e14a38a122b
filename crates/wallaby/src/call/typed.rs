//! A call with its types: what an application usually holds.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use wallaby_proto::{CallId, RequestId};

use super::{Outcome, RawAnswer, RawCall};
use crate::blocking;
use crate::codec::{Codec, CodecError, Postcard};
use crate::error::{CallError, Failure, StillRunning};
use crate::method::{Answers, Many, One};
use wallaby_proto::trace::Trace;

/// All that came of a call: [`Call::collect_all`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Collected<T> {
    /// The answers.
    pub answers: Vec<T>,
    /// What came in place of answers: statuses, answers that could not be read, and at the end the failure, if the call failed.
    pub errors: Vec<CallError>,
}

impl<T> Collected<T> {
    /// Whether the call is complete, and no part of it told of an error: nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.errors.is_empty()
    }
}

/// How long [`Call::stop`] waits.
const GRACE: Duration = Duration::from_secs(10);

/// A call to a method that answers `A`.
///
/// `Call<Many<T>>` is a stream of answers, each a `Result`, that ends when the whole tree of hops is complete.
/// `Call<One<T>>` is awaited for its answer. Dropping a call aborts it.
#[must_use = "a call that is dropped is aborted"]
pub struct Call<A, C = Postcard> {
    raw: RawCall,
    types: PhantomData<fn() -> (A, C)>,
}

impl<A: Answers, C: Codec<A::Item>> Call<A, C> {
    pub(crate) fn new(raw: RawCall) -> Self {
        Self {
            raw,
            types: PhantomData,
        }
    }

    /// The call's id.
    pub fn id(&self) -> CallId {
        self.raw.id()
    }

    /// Waits for the next answer; `None` when the call is over. A status is an `Err` after which more may come.
    pub async fn next(&mut self) -> Option<Result<A::Item, CallError>> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    /// [`next`](Self::next) for code that is not async.
    pub fn blocking_next(&mut self) -> Option<Result<A::Item, CallError>> {
        blocking::wait(self.next()).unwrap_or_else(|_| Some(Err(Failure::WouldBlock.into())))
    }

    /// How the call ended; `None` while it goes on.
    pub fn outcome(&self) -> Option<Outcome> {
        self.raw.outcome()
    }

    /// How many times initial requests of the call, or of its present attempt, were sent again
    /// ([`crate::Client::resend`]).
    pub fn resent(&self) -> u32 {
        self.raw.resent()
    }

    /// How many attempts were made, hedged ones included: more than one only if its client makes calls again
    /// ([`crate::Client::retry`], [`crate::Client::hedge`]).
    pub fn attempts(&self) -> u32 {
        self.raw.attempts()
    }

    /// The tree of hops, as far as it is known now.
    pub fn trace(&self) -> Trace {
        self.raw.trace()
    }

    /// Gives the call up: its servers are told to stop, and drop its handlers where they wait.
    #[doc(alias = "cancel")]
    pub fn abort(self) {
        self.raw.abort();
    }

    /// Gives the call up and waits until nothing of it runs any more: [`stop_within`](Self::stop_within) 10 seconds.
    ///
    /// # Errors
    ///
    /// What runs on then.
    pub async fn stop(self) -> Result<(), StillRunning> {
        self.stop_within(GRACE).await
    }

    /// Gives the call up and waits until nothing of it runs any more, but at most for so long. A server that is silent for the
    /// call's ping timeout is not waited for: its branch is among those that have not said whether they have stopped.
    ///
    /// Handlers that wait are dropped. This waits for those that are not: one that is just being polled, to its next `.await`;
    /// what is [shielded](crate::RequestInfo::shield), and blocking handlers. It does not wait for tasks that handlers have started,
    /// nor for what a handler does after its request has ended: by its last answer, at a deadline, or as its server was closed.
    ///
    /// A server counts as gone, with all that it ran, when its address refuses connections or another one answers there. Where an
    /// address is not that of the process, but of a proxy or a load balancer in front of it, that may be wrong. What it had handed on
    /// before tells of itself if this endpoint listens; else that is not known, and such a request is among those that have not said
    /// so ([`UnstoppedRequest::gone`](crate::UnstoppedRequest)).
    ///
    /// Calls that a handler makes ([`RequestInfo::call`](crate::RequestInfo::call)) are aborted with its request, which counts as running
    /// until nothing of them does: for ten minutes at most, and unless 1,024 requests of its server wait for that already.
    ///
    /// # Errors
    ///
    /// What runs on then: each handler with its method, its server and the requests that led to it, as its server has said last;
    /// and, named in the same way, each request of which nobody has said in this time whether it has stopped.
    pub async fn stop_within(self, grace: Duration) -> Result<(), StillRunning> {
        self.raw.stop_within(grace).await
    }

    /// Whether the answers of each branch are delivered in order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.raw.shared().options.in_order
    }

    /// The next answer as it came.
    pub(crate) fn poll_raw(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<RawAnswer, CallError>>> {
        self.raw.poll_answer(cx)
    }

    /// That an answer cannot be read, and whose it is.
    pub(crate) fn unreadable(&self, request: RequestId, error: CodecError) -> CallError {
        self.raw.shared().unreadable(request, error)
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<A::Item, CallError>>> {
        let next = self.raw.poll_answer(cx);
        next.map(|next| {
            next.map(|answer| {
                let RawAnswer {
                    request, payload, ..
                } = answer?;
                C::decode(payload).map_err(|error| self.unreadable(request, error))
            })
        })
    }
}

impl<T: Send + 'static, C: Codec<T>> Call<Many<T>, C> {
    /// Waits for the end of the call and returns all answers.
    ///
    /// # Errors
    ///
    /// The first status or failure; the rest of the call is aborted then.
    pub async fn collect(mut self) -> Result<Vec<T>, CallError> {
        let mut answers = Vec::new();
        while let Some(answer) = self.next().await {
            answers.push(answer?);
        }
        Ok(answers)
    }

    /// Waits for the end of the call and returns all that came of it: answers of some servers stay, though others have failed. With
    /// [`Client::tolerant`](crate::Client::tolerant) the loss of a server does not end the call, either.
    pub async fn collect_all(mut self) -> Collected<T> {
        let (mut answers, mut errors) = (Vec::new(), Vec::new());
        while let Some(answer) = self.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => errors.push(error),
            }
        }
        Collected { answers, errors }
    }

    /// [`collect`](Self::collect) for code that is not async.
    ///
    /// # Errors
    ///
    /// As `collect`, and on a thread of an async runtime.
    pub fn blocking_collect(self) -> Result<Vec<T>, CallError> {
        blocking::wait(self.collect()).unwrap_or_else(|_| Err(Failure::WouldBlock.into()))
    }
}

impl<T: Send + 'static, C: Codec<T>> Call<One<T>, C> {
    /// Waits for the answer; the call can be asked for its trace afterwards.
    ///
    /// # Errors
    ///
    /// The status that came in its place, or why the call failed.
    pub async fn answer(&mut self) -> Result<T, CallError> {
        self.next()
            .await
            .unwrap_or_else(|| Err(Failure::NoAnswer.into()))
    }

    /// Waits for the answer, in code that is not async.
    ///
    /// # Errors
    ///
    /// As [`answer`](Self::answer), and on a thread of an async runtime.
    pub fn blocking_answer(mut self) -> Result<T, CallError> {
        blocking::wait(self.answer()).unwrap_or_else(|_| Err(Failure::WouldBlock.into()))
    }
}

impl<T: Send + 'static, C: Codec<T> + 'static> IntoFuture for Call<One<T>, C> {
    type Output = Result<T, CallError>;
    type IntoFuture = AnswerFuture<T, C>;

    fn into_future(self) -> AnswerFuture<T, C> {
        AnswerFuture(self)
    }
}

/// The one answer of a call.
#[must_use = "futures do nothing unless they are awaited"]
pub struct AnswerFuture<T, C = Postcard>(Call<One<T>, C>);

impl<T: Send + 'static, C: Codec<T>> Future for AnswerFuture<T, C> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0
            .poll_item(cx)
            .map(|next| next.unwrap_or_else(|| Err(Failure::NoAnswer.into())))
    }
}

impl<T, C> fmt::Debug for AnswerFuture<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<A: Answers, C: Codec<A::Item>> Stream for Call<A, C> {
    type Item = Result<A::Item, CallError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx)
    }
}

impl<A, C> fmt::Debug for Call<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
