//! What a call yields in place of an answer.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::{CodecError, Failure};
use crate::{Address, Code, RequestId, Status};

/// What a call yields in place of an answer.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// A handler or the framework reported an error in place of an answer. The call goes on: there may be more answers.
    #[error(transparent)]
    Status(#[from] Status),
    /// An answer cannot be decoded. The call goes on.
    #[error(transparent)]
    Decode(Box<UnreadableAnswer>),
    /// The call has failed. Nothing more comes.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl CallError {
    /// An answer to this request cannot be decoded.
    pub fn unreadable(request: RequestId, error: CodecError) -> Self {
        UnreadableAnswer::new(request, error).into()
    }

    /// The status, if it is one, if the last attempt of a retried call ended with one, or if an interceptor refused the
    /// request with one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            Self::Failed(Failure::Attempts(failed)) => failed.last.status(),
            Self::Failed(Failure::Intercepted { status, .. }) => Some(status),
            _ => None,
        }
    }

    /// What kind of error it is, whatever reports it.
    ///
    /// ```
    /// # use wallaby_proto::{Code, Status, error::CallError};
    /// # fn example(error: CallError) -> Result<(), Status> {
    /// match error.code() {
    ///     Code::NotFound => Ok(()),
    ///     Code::Unavailable | Code::DeadlineExceeded => Err(Status::unavailable("try again")),
    ///     _ => Err(error.into()),
    /// }
    /// # }
    /// ```
    pub fn code(&self) -> Code {
        match self {
            Self::Status(status) => status.code(),
            Self::Decode(_) => Code::Internal,
            Self::Failed(failure) => failure.code(),
        }
    }

    /// The server that this is about, where it is known: who reports a status or could not be reached, who was asked in vain,
    /// or where the lost request was last known to be.
    pub fn server(&self) -> Option<&Address> {
        match self {
            Self::Status(status) => status.server(),
            Self::Failed(failure) => failure.server(),
            Self::Decode(answer) => answer.server.as_ref(),
        }
    }

    /// The request that a status, or what cannot be read, came from.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::Status(status) => status.request(),
            Self::Decode(answer) => Some(answer.request),
            Self::Failed(_) => None,
        }
    }

    /// The failure, if the call has failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// So that a handler that calls other servers can use `?` on their answers. A status keeps its code. It is about the handler's own
/// request from then on, and its text says where it came from.
impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        match error {
            // It becomes the answer of the handler's own request, at its server: the text tells where this came from.
            CallError::Status(status) => {
                let place = match (status.method(), status.server()) {
                    (Some(method), Some(server)) => format!(" ({method} at {server})"),
                    (None, Some(server)) => format!(" (at {server})"),
                    (_, None) => String::new(),
                };
                Self::new(status.code(), format!("{}{place}", status.message()))
            }
            error => {
                // It may name a "request 0", too, which is another one.
                let text = format!("a call that the handler made failed: {error}");
                Self::new(error.code(), text)
            }
        }
    }
}

/// So that a handler can use `?` on calls that it begins.
impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        CallError::from(failure).into()
    }
}

/// An answer that cannot be decoded: whose it is, as far as that is known, and why.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub struct UnreadableAnswer {
    /// The request that it answers.
    pub request: RequestId,
    /// The method that this calls.
    pub method: Option<Arc<str>>,
    /// The server that was asked.
    pub server: Option<Address>,
    /// Why.
    pub error: CodecError,
}

impl UnreadableAnswer {
    /// An answer to this request, of which no more is known.
    pub fn new(request: RequestId, error: CodecError) -> Self {
        Self {
            request,
            method: None,
            server: None,
            error,
        }
    }

    /// What kind of error it is: that of the codec.
    pub fn code(&self) -> Code {
        self.error.code()
    }
}

impl fmt::Display for UnreadableAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.method {
            Some(method) => write!(f, "{method} (request {})", self.request)?,
            None => write!(f, "request {}", self.request)?,
        }
        if let Some(server) = &self.server {
            write!(f, " at {server}")?;
        }
        write!(f, " sent an answer that cannot be read: {}", self.error)
    }
}

impl From<UnreadableAnswer> for CallError {
    fn from(answer: UnreadableAnswer) -> Self {
        Self::Decode(Box::new(answer))
    }
}

crate::debug_as_text!(CallError, UnreadableAnswer);
