//! Why a handler could not send.

use thiserror::Error;

use super::CodecError;
use crate::call::allowance::Exhausted;
use crate::wire::{ContinuationError, MetadataError};
use crate::{Address, Code, Status};

/// Why a handler could not send.
///
/// Nothing of the message exists then, and what the handler does about it decides how its request ends: it may answer in
/// another way, delegate to somebody else, or return the error, which becomes a status. What consumed the request
/// (`Request::respond`, `Request::forward`) leaves it nothing else to do: if it ignores the error, the
/// request ends with the status that the error would have become. So it does after [`SendError::TooDeep`], unless the
/// handler ends it otherwise, and at once after [`SendError::Exhausted`].
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The value cannot be encoded.
    #[error("cannot encode the value: {0}")]
    Codec(CodecError),
    /// The metadata that a delegation was to have are too many, or one has no key.
    #[error("not delegated: {0}")]
    Metadata(MetadataError),
    /// The continuation that a delegation was to have is too long.
    #[error("not delegated: {0}")]
    Continuation(ContinuationError),
    /// The message is longer than a message may be.
    #[error("a message of {size} bytes to {peer}: at most {limit} are allowed")]
    TooLarge {
        /// Its payload, in bytes.
        size: u64,
        /// The limit.
        limit: u64,
        /// For whom it was.
        peer: String,
    },
    /// The stream whose items are sent as answers, or whose bytes, ends with an error.
    #[error("what is to be sent cannot be read: {0}")]
    Source(String),
    /// There is no credit or room now (only from `try_` forms).
    #[error("no credit or room for it now")]
    Full,
    /// The request has ended: an error, an abort or its deadline ended it.
    #[error("the request has ended: {0}")]
    Ended(String),
    /// The tree of this call may not grow deeper.
    #[error("hop {depth} of the call: at most {limit} are allowed")]
    TooDeep {
        /// How many hops led here.
        depth: u32,
        /// The limit.
        limit: u32,
    },
    /// It would exceed the call's budgets, or what this server lets a request use up. The request has ended with the
    /// status `ResourceExhausted`, so that the call does not look complete.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// This endpoint does not dial such addresses ([`crate::dial::DialPolicy`]).
    #[error("not delegated to {server}: this server's dial policy forbids it")]
    Forbidden {
        /// Where.
        server: Address,
    },
    /// This endpoint has no transport for the scheme of the server's address.
    #[error(
        "not delegated to {server}: no transport for its scheme here (`Builder::transport` adds one from outside)"
    )]
    NoTransport {
        /// Where.
        server: Address,
    },
    /// More than is kept of what one request sends until it is committed (`wallaby::intercept::Hold`). The request ends with a
    /// status, and nothing of it leaves.
    #[error(
        "{messages} messages of {bytes} bytes to be committed: at most {most_messages} messages of {most_bytes} bytes are kept"
    )]
    TooMuchHeld {
        /// How many messages they would be.
        messages: usize,
        /// How many bytes they would have.
        bytes: usize,
        /// How many there may be.
        most_messages: usize,
        /// How many bytes they may have.
        most_bytes: usize,
    },
    /// The next server cannot be reached, or takes no more methods.
    #[error("{0}")]
    Refused(String),
}

impl SendError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Codec(error) => error.code(),
            Self::Metadata(error) => error.code(),
            Self::Continuation(error) => error.code(),
            Self::Exhausted(exhausted) => exhausted.code(),
            Self::TooLarge { .. }
            | Self::Full
            | Self::TooDeep { .. }
            | Self::TooMuchHeld { .. } => Code::ResourceExhausted,
            Self::Ended(_) => Code::Cancelled,
            Self::Source(_) => Code::Aborted,
            Self::Forbidden { .. } => Code::PermissionDenied,
            Self::NoTransport { .. } => Code::FailedPrecondition,
            Self::Refused(_) => Code::Unavailable,
        }
    }

    /// Whether a request ends with this if nothing else is done about it: since the message that was refused was to be the `last` one,
    /// or by itself.
    pub fn is_final(&self, last: bool) -> bool {
        last || matches!(self, Self::TooDeep { .. })
    }
}

impl From<SendError> for Status {
    fn from(error: SendError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<CodecError> for SendError {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}

impl From<MetadataError> for SendError {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

crate::debug_as_text!(SendError);
