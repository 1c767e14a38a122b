//! What a handler holds: a request, and what it can do with it.

mod delegation;
mod info;
mod raw;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;

use wallaby_proto::{Address, Status};

pub use self::delegation::Delegation;
use self::delegation::Departure;
pub use self::info::{RequestInfo, token};
pub use self::raw::RawRequest;
use crate::blocking;
use crate::body::Attached;
use crate::codec::{Codec, Postcard};
use crate::error::SendError;
use crate::handling::Keep;
use crate::intercept::{DelegatedRequest, Intent};
use crate::method::{Answers, Many, One, Target};

/// A request to a method that answers `A`: what a handler holds, and what it can do with it.
///
/// `Request<One<T>>` has [`respond`](Request::respond) and [`forward`](Request::forward), which consume it;
/// `Request<Many<T>>` can also [`reply`](Request::reply) and [`delegate`](Request::delegate) any number of times, and
/// ends when it is dropped.
pub struct Request<A, C = Postcard> {
    raw: RawRequest,
    types: PhantomData<fn() -> (A, C)>,
}

impl<A: Answers, C> Request<A, C> {
    pub(crate) fn new(raw: RawRequest) -> Self {
        Self {
            raw,
            types: PhantomData,
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        self.raw.handling.keep()
    }

    /// The request with payloads as bytes.
    pub fn into_raw(self) -> RawRequest {
        self.raw
    }

    /// Ends the request with a status.
    pub fn fail(self, status: &Status) {
        self.raw.fail(status);
    }
}

impl<A, C> Deref for Request<A, C> {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.raw
    }
}

impl<A: Answers, C: Codec<A::Item>> Request<A, C> {
    /// Sends the answer, the last one if there may be several, and ends the request.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, is too large, or the request has ended.
    pub fn respond(
        self,
        answer: A::Item,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<A, C> {
        Departure::of(self.raw, answer_of::<A::Item, C>(&answer), true)
    }

    /// [`respond`](Self::respond) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `respond`, and on a thread of an async runtime.
    pub fn blocking_respond(self, answer: A::Item) -> Result<(), SendError> {
        block(self.respond(answer))
    }
}

impl<T: Send + 'static, C: Codec<T>> Request<One<T>, C> {
    /// Hands the work to another server, which answers the initiator directly, and ends the request: a tail call.
    ///
    /// What becomes of it only the initiator learns: if it is certainly not delivered, this endpoint answers in its name
    /// with the status `Unavailable`; if it is lost later, the call fails. Who would choose another server instead asks for
    /// the connection first ([`Endpoint::connect`](crate::Endpoint::connect)).
    ///
    /// # Errors
    ///
    /// If the request cannot be encoded, is too large, too deep in the tree, or has ended.
    #[doc(alias = "delegate")]
    pub fn forward(
        self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
    ) -> Delegation<RawRequest> {
        Delegation::of(self.raw, target_at(server.into(), target), true)
    }

    /// [`forward`](Self::forward) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `forward`, and on a thread of an async runtime.
    pub fn blocking_forward(
        self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
    ) -> Result<(), SendError> {
        block(self.forward(server, target))
    }
}

impl<T: Send + 'static, C: Codec<T>> Request<Many<T>, C> {
    /// Sends an answer to the initiator; more may follow.
    ///
    /// Answers arrive in any order if they are large or come from several servers. The latest is held back until the handler waits for
    /// something or goes on, as it might be the last; if the handler returns an error before that, the status takes its place.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, is too large, or the request has ended.
    pub fn reply(
        &self,
        answer: T,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<'_, T, C> {
        Departure::of(&self.raw, answer_of::<T, C>(&answer), false)
    }

    /// Like [`reply`](Self::reply), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `reply`, or if there is no credit or room now.
    pub fn try_reply(&self, answer: T) -> Result<(), SendError> {
        self.raw.try_reply(C::encode(&answer)?)
    }

    /// Hands work to another server, which answers the initiator directly; more may follow.
    ///
    /// A server that cannot be reached shows as a status among the call's answers. It leaves when the handler waits for something or
    /// goes on, as [`reply`](Self::reply) says; if the handler returns an error before that, the status takes its place.
    ///
    /// # Errors
    ///
    /// If the request cannot be encoded, is too large, too deep in the tree, or has ended.
    pub fn delegate<B: Answers<Item = T>>(
        &self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Delegation<&RawRequest> {
        Delegation::of(&self.raw, target_at(server.into(), target), false)
    }

    /// Like [`delegate`](Self::delegate), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `delegate`, or if there is no credit or room now.
    pub fn try_delegate<B: Answers<Item = T>>(
        &self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        let onward = target_at(server.into(), target)?;
        self.raw.handling.try_send(onward.into())
    }

    /// Hands the rest of the work to another server and ends the request: a tail call. What becomes of it only the
    /// initiator learns, as of all that is delegated.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate).
    pub fn forward<B: Answers<Item = T>>(
        self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Delegation<RawRequest> {
        Delegation::of(self.raw, target_at(server.into(), target), true)
    }

    /// Sends the message that is held back because it might be the last one.
    pub async fn flush(&self) {
        self.raw.flush().await;
    }

    /// [`reply`](Self::reply) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `reply`, and on a thread of an async runtime.
    pub fn blocking_reply(&self, answer: T) -> Result<(), SendError> {
        block(self.reply(answer))
    }

    /// [`delegate`](Self::delegate) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `delegate`, and on a thread of an async runtime.
    pub fn blocking_delegate<B: Answers<Item = T>>(
        &self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        block(self.delegate(server, target))
    }

    /// [`forward`](Self::forward) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `forward`, and on a thread of an async runtime.
    pub fn blocking_forward<B: Answers<Item = T>>(
        self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        block(self.forward(server, target))
    }
}

impl<A, C> fmt::Debug for Request<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

fn answer_of<T, C: Codec<T>>(answer: &T) -> Result<Intent, SendError> {
    Ok(Intent::answer(C::encode(answer)?))
}

fn target_at<A, C>(server: Address, target: Target<A, C>) -> Result<DelegatedRequest, SendError> {
    let mut to = DelegatedRequest::new(server, target.definition, target.payload?);
    to.body = target.body.map(Attached::new);
    Ok(to)
}

fn block(sending: impl Future<Output = Result<(), SendError>>) -> Result<(), SendError> {
    let stopped =
        || SendError::Refused("a blocking send inside an async runtime would stop it".into());
    blocking::wait(sending).unwrap_or_else(|_| Err(stopped()))
}
