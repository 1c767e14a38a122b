//! Why a call has no answer.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use thiserror::Error;

use crate::message::{Procedure, Refusal};
use crate::peer::Peer;
use crate::record::RecordTooLong;
use crate::xdr::{DecodeError, EncodeError};

/// A call has no answer.
#[derive(Debug)]
pub struct RpcError {
    /// What was called.
    pub procedure: Procedure,
    /// Who was called, where the channel knows.
    pub peer: Option<Box<Peer>>,
    /// Why there is no answer.
    pub reason: Reason,
}

impl RpcError {
    /// Whether the procedure may have been executed, or may still be: whoever calls again has to think of it.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        match &self.reason {
            Reason::Arguments(_) => false,
            // The server says that it did not execute anything, but for a failure in the midst of it.
            Reason::Refused(refusal) => {
                matches!(
                    refusal,
                    Refusal::Accept(crate::AcceptError::SystemError) | Refusal::Silent
                )
            }
            Reason::NoReply(error) => error.may_have_run(),
            Reason::Results(_) | Reason::Channel(_) => true,
        }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            procedure,
            peer,
            reason,
        } = self;
        match peer {
            Some(peer) => write!(formatter, "{procedure} at {peer}: {reason}"),
            None => write!(formatter, "{procedure}: {reason}"),
        }
    }
}

/// Its text says all: whoever prints a chain of causes would print the same twice.
impl Error for RpcError {}

/// Why a call has no answer: what went wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Reason {
    /// The server refused.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The interface has no bytes for the arguments. Nothing was sent.
    #[error("the arguments cannot be sent: {0}")]
    Arguments(#[from] EncodeError),
    /// The bytes of the reply are no such answer.
    #[error("the reply is malformed: {0}")]
    Results(#[from] DecodeError),
    /// A channel of this crate brought no reply.
    #[error("{0}")]
    NoReply(#[from] NoReply),
    /// A channel that is no part of this crate brought no reply.
    #[error("there is no reply: {0}")]
    Channel(Box<dyn Error + Send + Sync>),
}

/// Why a call over a socket has no reply.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NoReply {
    /// There is no connection. Nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// As many calls are outstanding as may be. Nothing was sent.
    #[error(
        "{limit} calls are outstanding, and `ClientOptions::max_calls` allows no more; nothing was sent"
    )]
    TooManyCalls {
        /// The limit.
        limit: usize,
    },
    /// As many bytes wait to be sent as may. Nothing of this call was sent.
    #[error(
        "{limit} bytes or more wait to be sent, and `ClientOptions::max_unsent` allows no more; nothing was sent"
    )]
    TooMuchUnsent {
        /// The limit.
        limit: usize,
    },
    /// The call does not fit into a datagram, or into the largest record. Nothing was sent.
    #[error("the call has {found} bytes where at most {limit} can be sent; nothing was sent")]
    TooLong {
        /// The limit: of a datagram, or `ClientOptions::max_record`.
        limit: usize,
        /// The call's length.
        found: usize,
    },
    /// The connection ended before any byte of the call left.
    #[error("the connection ended before the call was sent: {why}")]
    NotSent {
        /// Why it ended.
        why: Lost,
    },
    /// The connection ended when bytes of the call may have left: it is unknown whether the procedure ran. Such a call is
    /// never sent again.
    #[error("the connection ended before the reply; it is unknown whether the call ran: {why}")]
    Unknown {
        /// Why it ended.
        why: Lost,
    },
    /// The peer's machine says that nobody receives datagrams at that port. An earlier transmission may have been received.
    #[error("nobody receives at that address (sent {sent} times, unknown whether it ran): {error}")]
    Unreachable {
        /// How often the call was sent.
        sent: u32,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// No reply came in time. It is unknown whether the procedure ran, or will.
    #[error("no reply within {after:?} (sent {sent} times, unknown whether it ran)")]
    TimedOut {
        /// The time that the call had.
        after: Duration,
        /// How often it was sent.
        sent: u32,
    },
    /// The peer sent something with this call's number that is no reply.
    #[error("what came back is no reply: {0}")]
    Malformed(#[source] DecodeError),
    /// The system cannot send: the socket is of no use any more.
    #[error("cannot send: {0}")]
    Send(#[source] io::Error),
}

impl NoReply {
    /// Whether the procedure may have been executed, or may still be.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Connect(_)
            | Self::TooManyCalls { .. }
            | Self::TooMuchUnsent { .. }
            | Self::TooLong { .. }
            | Self::NotSent { .. } => false,
            Self::TimedOut { sent, .. } => *sent > 0,
            Self::Unknown { .. }
            | Self::Unreachable { .. }
            | Self::Malformed(_)
            | Self::Send(_) => true,
        }
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lost {
    /// The peer ended it.
    #[error("the peer closed it")]
    Closed,
    /// The system ended it.
    #[error("{message}")]
    Io {
        /// What kind of error.
        kind: io::ErrorKind,
        /// What the system says.
        message: String,
    },
    /// The peer sent a record that is longer than allowed.
    #[error("its peer misbehaves: {0}")]
    Record(#[from] RecordTooLong),
    /// The channel itself was closed here.
    #[error("the channel was closed")]
    Here,
}

impl From<&io::Error> for Lost {
    fn from(error: &io::Error) -> Self {
        Self::Io {
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}
