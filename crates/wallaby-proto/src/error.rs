//! What can go wrong with connections, calls and what handlers send, one type an operation.
//!
//! The text of an error is whole: it says what its cause says. So the cause is not its `source()` as well, or who prints
//! the chain of sources would read it twice; it is a field (with `r#`, which says so to thiserror).

mod attempts;
mod call;
mod connect;
mod failure;
mod send;
mod still_running;

use thiserror::Error;

pub use self::attempts::{AttemptsFailed, FailedAttempt, NoMore};
pub use self::call::{CallError, UnreadableAnswer};
pub use self::connect::ConnectError;
pub use self::failure::Failure;
pub use self::send::SendError;
pub use self::still_running::{StillRunning, UnstoppedRequest};
use crate::datagram::MAX_MESSAGE;
use crate::{Code, Status};

/// What everybody is told of an endpoint that was closed.
pub const CLOSED: &str = "the endpoint was closed";

/// The status of a request whose handler is gone with its endpoint: it was not executed.
pub fn handler_gone() -> Status {
    Status::new(Code::Unavailable, CLOSED)
}

/// What is said of a body whose call has ended.
pub const CALL_ENDED: &str = "its call has ended";

/// Why an endpoint was closed though nobody has asked for that. Requests may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
#[non_exhaustive]
pub enum Breakdown {
    /// Something has panicked inside of it, which is a bug.
    #[error("the endpoint was closed: something has panicked in it, which is a bug")]
    Panicked,
    /// The runtime that it was made in has ended.
    #[error("the endpoint was closed: the runtime that it was made in has ended")]
    RuntimeEnded,
}

impl Breakdown {
    /// What kind of error it is.
    pub fn code(self) -> Code {
        match self {
            Self::Panicked => Code::Internal,
            Self::RuntimeEnded => Code::Cancelled,
        }
    }

    /// With what requests end there.
    pub fn status(self) -> Status {
        Status::new(self.code(), self.to_string())
    }
}

/// What to do about a message that is too large, where another transport would carry it.
pub fn hint(limit: u64, datagrams: bool) -> &'static str {
    if datagrams && limit == MAX_MESSAGE as u64 {
        " over udp: (tcp:, unix: and shm: carry larger ones)"
    } else {
        ""
    }
}

/// A payload that a codec could not write or read.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{codec}: {what}")]
pub struct CodecError {
    codec: &'static str,
    what: String,
}

impl CodecError {
    /// An error of the codec with this name.
    pub fn new(codec: &'static str, what: impl Into<String>) -> Self {
        Self {
            codec,
            what: what.into(),
        }
    }

    /// What kind of error it is: always [`Code::Internal`].
    pub fn code(&self) -> Code {
        Code::Internal
    }
}

/// Why a service was not registered.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The method is registered already.
    #[error("method {name} is registered already")]
    Taken {
        /// Its name.
        name: String,
    },
    /// The name belongs to the framework.
    #[error("{name}: names that begin with \"wallaby.\" are reserved")]
    Reserved {
        /// The name.
        name: String,
    },
    /// The endpoint was closed.
    #[error("{}", CLOSED)]
    Closed,
}

impl ServeError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Taken { .. } => Code::AlreadyExists,
            Self::Reserved { .. } => Code::InvalidArgument,
            Self::Closed => Code::Cancelled,
        }
    }
}

crate::debug_as_text!(CodecError, ServeError);
