//! What an endpoint tells its application.

use std::marker::PhantomData;

use wallaby_proto::endpoint::{CallKey, IncomingAnswer, RequestKey};
use wallaby_proto::trace::Trace;
use wallaby_proto::{Address, Status};

use super::bodies::BodyKey;
use crate::codec::Codec;
use crate::error::{CallError, ConnectError, Failure, StillRunning};
use crate::method::Answers;

/// What happened. Each call comes to [`Complete`](Self::Complete) or [`Failed`](Self::Failed), and then nothing more comes of it but
/// [`Settled`](Self::Settled).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An answer of a call, or a status in place of one.
    Answer(IncomingAnswer),
    /// A [traced](wallaby_proto::endpoint::CallOptions::traced) call is about to end: its tree of hops.
    Trace {
        /// Which.
        call: CallKey,
        /// The tree.
        trace: Box<Trace>,
    },
    /// A call is complete: everything that was to come has come.
    Complete {
        /// Which.
        call: CallKey,
        /// How many of its answers were statuses.
        statuses: u64,
    },
    /// A call has failed.
    Failed {
        /// Which.
        call: CallKey,
        /// Why.
        failure: Box<Failure>,
    },
    /// Nothing runs any more of a call that was [stopped](super::Endpoint::stop_within), or the time for that is over. It comes after
    /// the end of the call.
    Settled {
        /// Which.
        call: CallKey,
        /// What runs on, or has not said that it has stopped.
        stopped: Result<(), Box<StillRunning>>,
    },
    /// A server is connected that [`connect`](super::Endpoint::connect) was said of, or why it is not: told once, however often
    /// that was said meanwhile.
    Connected {
        /// Which.
        server: Address,
        /// Whether it is.
        result: Result<(), Box<ConnectError>>,
    },
    /// More has come of the body that follows a request, or it has ended: told when [`Body::try_next`](crate::Body::try_next) has had
    /// nothing before.
    Body {
        /// The request, which may have ended meanwhile.
        request: RequestKey,
    },
    /// There is room for more of a body that found none, or nobody wants more of it.
    BodyRoom {
        /// Which: [`BodyWriter::key`](super::BodyWriter::key).
        body: BodyKey,
    },
    /// There may be room for what a request that was put aside sends, to which something was refused for want of it before
    /// ([`SendError::Full`](crate::SendError::Full)). Requests are told of room in the order in which they were refused something, and
    /// whoever is refused again comes last again. Where very many were, they are told up to a tenth of a second late.
    Room {
        /// Which.
        request: RequestKey,
    },
    /// A request that was put aside has ended: it was aborted, or had no time left. It cannot be answered any more.
    Stopped {
        /// Which.
        request: RequestKey,
        /// What its initiator is told in its name.
        status: Box<Status>,
    },
}

/// A call of a method whose types are known.
pub struct Call<A, C> {
    key: CallKey,
    types: PhantomData<fn() -> (A, C)>,
}

impl<A: Answers, C: Codec<A::Item>> Call<A, C> {
    pub(super) fn new(key: CallKey) -> Self {
        Self {
            key,
            types: PhantomData,
        }
    }

    /// Which call it is.
    pub fn key(&self) -> CallKey {
        self.key
    }

    /// Whether this is an answer of this call.
    pub fn owns(&self, answer: &IncomingAnswer) -> bool {
        answer.call == self.key
    }

    /// An answer of this call.
    ///
    /// # Errors
    ///
    /// The status that came in its place, or that it cannot be read. [`Endpoint::read`](super::Endpoint::read) also says then which
    /// server's it is.
    pub fn read(&self, answer: IncomingAnswer) -> Result<A::Item, CallError> {
        let request = answer.request;
        let payload = answer.payload()?;
        C::decode(payload).map_err(|error| CallError::unreadable(request, error))
    }
}

impl<A, C> Clone for Call<A, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, C> Copy for Call<A, C> {}

impl<A, C> std::fmt::Debug for Call<A, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call({})", self.key)
    }
}
