//! Why a call failed.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{AttemptsFailed, Breakdown, CLOSED, CodecError, ConnectError, hint};
use crate::call::initiator::LimitReached;
use crate::call::missing::{Missing, brief};
use crate::call::watch::{FailureKind, Loss};
use crate::wire::{ContinuationError, MetadataError};
use crate::{Address, AddressError, Code, RequestId, Status};

/// Why a call failed: terminal, nothing changes it.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The request was never sent, so nothing was executed for it.
    #[error("request {request} was not sent: {error}")]
    NotSent {
        /// Which.
        request: RequestId,
        /// Why.
        error: ConnectError,
    },
    /// The request is longer than a message may be; it was not sent.
    #[error(
        "request {request} of {size} bytes was not sent to {server}: at most {limit} are allowed{}",
        hint(*limit, server.is_udp())
    )]
    TooLarge {
        /// Which.
        request: RequestId,
        /// For whom.
        server: Address,
        /// Its payload, in bytes.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The arguments cannot be encoded; nothing was sent.
    #[error("cannot encode the arguments: {0}")]
    Codec(CodecError),
    /// The metadata that the call was to have are too many, or one has no key; nothing was sent.
    #[error("the call was not made: {0}")]
    Metadata(MetadataError),
    /// The continuation that the call was to have is too long; nothing was sent.
    #[error("the call was not made: {0}")]
    Continuation(ContinuationError),
    /// The server was named by text that is no address; nothing was sent.
    #[error("the call was not made: {0}")]
    Address(AddressError),
    /// The request was refused on this side; it was not sent.
    #[error("request {request} was not sent to {server}: {reason}")]
    Refused {
        /// Which.
        request: RequestId,
        /// For whom.
        server: Address,
        /// Why.
        reason: String,
    },
    /// The server is older than something that the request has; it was not sent.
    #[error("request {request} was not sent: {server} does not understand {what}, which it has")]
    NotUnderstood {
        /// Which.
        request: RequestId,
        /// For whom.
        server: Address,
        /// What it has.
        what: &'static str,
    },
    /// An interceptor of this endpoint's calls refused the request; it was not sent.
    #[error(
        "the request of {method} to {server} was not sent, an interceptor refused it: {status}"
    )]
    Intercepted {
        /// For whom it was.
        server: Address,
        /// What was asked for.
        method: Arc<str>,
        /// Why.
        status: Box<Status>,
    },
    /// The deadline passed. Requests may have been executed.
    #[error("no end within {:?}; missing: {missing}", brief(*after))]
    Deadline {
        /// How much time the call had.
        after: Duration,
        /// What had not come, with all that is known of it.
        missing: Missing,
    },
    /// A status ended the call and aborted the rest of its tree, as the caller wanted
    /// ([`CallOptions::fail_fast`](crate::endpoint::CallOptions::fail_fast)). It has said why.
    #[error("a status has ended the call, which was to fail fast")]
    FailedFast,
    /// A request, or an answer, is lost: what is known of it, and whether anything may have been executed.
    #[error("the call cannot complete: {0}")]
    Lost(Box<Loss>),
    /// A further request was to be sent, and the call has as many as it may. See [`Failure::limit_reached`].
    #[error("the call cannot go on: {0}")]
    LimitReached(LimitReached),
    /// This endpoint has as many calls as it may; nothing was sent.
    #[error("{limit} calls are live already: no more are allowed")]
    TooManyCalls {
        /// The limit.
        limit: usize,
    },
    /// The endpoint was closed.
    #[error("{}", CLOSED)]
    Closed,
    /// The endpoint was closed, as it could not go on.
    #[error(transparent)]
    BrokenDown(Breakdown),
    /// A request was to be sent, but its call takes no more.
    #[error("the call takes no more requests: it was closed, or has ended")]
    CallClosed,
    /// The call was aborted by its initiator.
    #[error("the call was aborted{}", still(missing))]
    Aborted {
        /// What had not come.
        missing: Missing,
    },
    /// The call completed without the one answer that its method promises.
    #[error("the call completed without an answer")]
    NoAnswer,
    /// A blocking form was used where it would stop an async runtime.
    #[error(
        "a blocking call inside an async runtime would stop it: use the async form or a thread of its own"
    )]
    WouldBlock,
    /// Nothing of a pipelined message was sent to this server, for certain.
    #[error("nothing was sent to {server}: {reason}")]
    NotPassedOn {
        /// Which.
        server: Address,
        /// Why.
        reason: String,
    },
    /// A pipelined message was not sent: no line can be made of these servers.
    #[error("no message can go down this line: {reason}")]
    NoLine {
        /// Why.
        reason: String,
    },
    /// All attempts of a call that may be made again have failed, or no further one was made.
    #[error(transparent)]
    Attempts(Box<AttemptsFailed>),
}

impl Failure {
    /// A call was aborted, and what it had not got is not known.
    pub fn aborted() -> Self {
        Self::Aborted {
            missing: Missing::default(),
        }
    }

    /// Whether something was lost on the way, so that the same call may succeed if it is made again. It may have been executed.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Refused { .. } => true,
            Self::Lost(loss) => loss.may_pass(),
            Self::Attempts(failed) => failed.last.failure().is_some_and(Self::is_loss),
            _ => false,
        }
    }

    /// What was lost, if that ended the call, or its last attempt.
    pub fn loss(&self) -> Option<&Loss> {
        match self {
            Self::Lost(loss) => Some(loss),
            Self::Attempts(failed) => failed.last.failure()?.loss(),
            _ => None,
        }
    }

    /// The limit of its own endpoint that the call has reached, if it ended by that: whether a request is known that led to so much,
    /// as of [`Failure::Lost`], or not.
    pub fn limit_reached(&self) -> Option<LimitReached> {
        match self {
            Self::LimitReached(limit) => Some(*limit),
            Self::Lost(loss) => match loss.kind {
                FailureKind::LimitReached(limit) => Some(limit),
                _ => None,
            },
            _ => None,
        }
    }

    /// What kind of error it is. What was lost is [`Code::Unavailable`], whether or not it may have been executed.
    pub fn code(&self) -> Code {
        match self {
            Self::NotSent { error, .. } => error.code(),
            Self::TooLarge { .. } | Self::TooManyCalls { .. } | Self::LimitReached(_) => {
                Code::ResourceExhausted
            }
            Self::Codec(error) => error.code(),
            Self::Address(error) => error.code(),
            Self::NoAnswer => Code::Internal,
            Self::Metadata(error) => error.code(),
            Self::Continuation(error) => error.code(),
            Self::Lost(loss) => loss.code(),
            Self::Refused { .. } | Self::NotPassedOn { .. } => Code::Unavailable,
            Self::NotUnderstood { .. } => Code::Mismatch,
            Self::Intercepted { status, .. } => status.code(),
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::Closed | Self::Aborted { .. } | Self::FailedFast => Code::Cancelled,
            Self::BrokenDown(why) => why.code(),
            Self::CallClosed => Code::FailedPrecondition,
            Self::WouldBlock => Code::FailedPrecondition,
            Self::NoLine { .. } => Code::InvalidArgument,
            Self::Attempts(failed) => failed.code(),
        }
    }

    /// What the call had not got when it ended, if it was made and did not end by itself.
    pub fn missing(&self) -> Option<&Missing> {
        match self {
            Self::Deadline { missing, .. } | Self::Aborted { missing } => Some(missing),
            Self::Lost(loss) => Some(&loss.missing),
            Self::Attempts(failed) => failed.last.failure()?.missing(),
            _ => None,
        }
    }

    /// The server that it is about, where it is known; see [`CallError::server`](super::CallError::server).
    pub fn server(&self) -> Option<&Address> {
        match self {
            Self::NotSent { error, .. } => error.server(),
            Self::TooLarge { server, .. }
            | Self::Refused { server, .. }
            | Self::NotUnderstood { server, .. }
            | Self::NotPassedOn { server, .. } => Some(server),
            Self::Lost(loss) => {
                let known = loss.server.address.as_ref();
                known.or_else(|| loss.missing.server())
            }
            Self::Deadline { missing, .. } | Self::Aborted { missing } => missing.server(),
            Self::Attempts(failed) => failed.last.server(),
            _ => None,
        }
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}

impl From<MetadataError> for Failure {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

/// What had not come when a call was aborted.
fn still(missing: &Missing) -> String {
    match missing.is_empty() {
        true => String::new(),
        false => format!("; missing: {missing}"),
    }
}

crate::debug_as_text!(Failure);
