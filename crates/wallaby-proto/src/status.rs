//! An error that a handler or the framework reports in place of an answer.

use std::sync::Arc;
use std::{fmt, io};

use bytes::{BufMut, Bytes, BytesMut};

use crate::address::Address;
use crate::call::watch::Loss;
use crate::id::RequestId;
use crate::varint::{self, Reader, WireError};

/// Longest message of a status in bytes; a longer one is cut at a character's border.
pub const MAX_STATUS_MESSAGE: usize = 4096;

/// What kind of error a [`Status`] is: 1 to 16 as in gRPC, the rest is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Code {
    /// The caller or a deadline cancelled the work.
    Cancelled = 1,
    /// Nothing better is known.
    Unknown = 2,
    /// An argument can never be right.
    InvalidArgument = 3,
    /// The deadline passed before the work was done.
    DeadlineExceeded = 4,
    /// What was asked for does not exist.
    NotFound = 5,
    /// What was to be created exists.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A limit, a queue or a budget is exhausted.
    ResourceExhausted = 8,
    /// The system is not in the state that the work needs.
    FailedPrecondition = 9,
    /// The work was given up, for instance over a conflict.
    Aborted = 10,
    /// An argument is past the valid range.
    OutOfRange = 11,
    /// No such method here.
    Unimplemented = 12,
    /// An invariant broke.
    Internal = 13,
    /// A server cannot be reached or does not take work now.
    Unavailable = 14,
    /// Data is lost or corrupt for good.
    DataLoss = 15,
    /// The caller did not prove who it is.
    Unauthenticated = 16,
    /// A handler that owed one answer ended without it.
    Unanswered = 17,
    /// A handler panicked.
    Panicked = 18,
    /// Both sides know the method, but with other types or another codec.
    Mismatch = 19,
    /// A server was closed while the request ran there: how much of it was done is not known.
    Unfinished = 20,
}

impl Code {
    const ALL: [Self; 20] = [
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
        Self::Unanswered,
        Self::Panicked,
        Self::Mismatch,
        Self::Unfinished,
    ];

    /// The code with this number; a number from a newer version is [`Code::Unknown`].
    pub fn from_number(number: u8) -> Self {
        usize::from(number)
            .checked_sub(1)
            .and_then(|index| Self::ALL.get(index))
            .copied()
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid argument",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::PermissionDenied => "permission denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::FailedPrecondition => "failed precondition",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out of range",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data loss",
            Self::Unauthenticated => "unauthenticated",
            Self::Unanswered => "unanswered",
            Self::Panicked => "panicked",
            Self::Mismatch => "mismatch",
            Self::Unfinished => "unfinished",
        })
    }
}

/// An error that a handler or the framework reports: what, in words, and where in the call's tree.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: String,
    request: Option<RequestId>,
    server: Option<Address>,
    method: Option<Arc<str>>,
    loss: Option<Arc<Loss>>,
    not_executed: bool,
}

impl Status {
    /// A status with this code and message; where it happened is filled in on its way.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_STATUS_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_STATUS_MESSAGE));
        }
        Self {
            code,
            message,
            request: None,
            server: None,
            method: None,
            loss: None,
            not_executed: false,
        }
    }

    /// The same with another message.
    #[must_use]
    pub fn with_message(&self, message: impl Into<String>) -> Self {
        Self {
            message: Self::new(self.code, message).message,
            ..self.clone()
        }
    }

    /// What kind of error it is.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What happened, in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request that ended with this status: its path is the way of hops to it. `None` before it has travelled.
    pub fn request(&self) -> Option<RequestId> {
        self.request
    }

    /// The server that reports, or the one that could not be reached; `None` where it has no address.
    pub fn server(&self) -> Option<&Address> {
        self.server.as_ref()
    }

    /// The method of the request that ended with this status; `None` before it has travelled, and where the server did not say.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// What is lost of a branch, in place of its answers: told by this endpoint, in a call that goes on without it
    /// ([`CallOptions::tolerant`](crate::endpoint::CallOptions::tolerant)). The branch may have been executed.
    pub(crate) fn lost(loss: Arc<Loss>) -> Self {
        Self {
            loss: Some(Arc::clone(&loss)),
            ..Self::new(Code::Unavailable, loss.to_string())
                .at(loss.request)
                .by(loss.server.address.as_ref())
                .called(loss.method.as_ref())
        }
    }

    /// What was lost, if this status stands for what is missing of a branch of a call that goes on without it: nobody has sent it,
    /// and the branch may have been executed.
    pub fn loss(&self) -> Option<&Loss> {
        self.loss.as_deref()
    }

    /// Whether the request that it is about was certainly not executed, as who would have sent it or its server says: it did not
    /// reach its server, or that shut down before it began. So it may be made again elsewhere, whatever it does.
    pub fn is_not_executed(&self) -> bool {
        self.not_executed
    }

    /// Whether the server that was called has turned the call away: it takes no more requests, and nothing of the call was executed.
    pub fn turns_away(&self) -> bool {
        let of = |request| turns_away(request, self.not_executed);
        self.request.is_some_and(of)
    }

    /// Says that the request was certainly not executed.
    #[must_use]
    pub(crate) fn not_executed(mut self, not_executed: bool) -> Self {
        self.not_executed = not_executed;
        self
    }

    /// Says at which request this happened.
    #[must_use]
    pub fn at(mut self, request: RequestId) -> Self {
        self.request = Some(request);
        self
    }

    /// Says which server this is about, unless that is known already.
    #[must_use]
    pub fn by(mut self, server: Option<&Address>) -> Self {
        if self.server.is_none() {
            self.server = server.cloned();
        }
        self
    }

    /// Says what was called.
    pub(crate) fn called(mut self, method: Option<&Arc<str>>) -> Self {
        self.method = method.cloned();
        self
    }

    /// The payload of a response that is a status. The request is not in it: the response names it.
    pub fn to_payload(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.message.len() + 32);
        out.put_u8(self.code as u8);
        varint::put_bytes(&mut out, self.message.as_bytes());
        if let Some(server) = &self.server {
            server.put(&mut out);
        }
        out.freeze()
    }

    /// Reads the payload of a response that is a status.
    ///
    /// # Errors
    ///
    /// If the bytes are no status.
    pub fn from_payload(payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(payload);
        let code = Code::from_number(reader.u8("status")?);
        let message = reader.str(MAX_STATUS_MESSAGE, "status")?.to_owned();
        let server = if reader.is_empty() {
            None
        } else {
            Some(Address::read(&mut reader)?)
        };
        reader.finish("status")?;
        Ok(Self {
            code,
            message,
            request: None,
            server,
            method: None,
            loss: None,
            not_executed: false,
        })
    }
}

/// A constructor for each code.
macro_rules! constructors {
    ($($name:ident => $code:ident,)*) => {
        impl Status {
            $(
                #[doc = concat!("A status with [`Code::", stringify!($code), "`].")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    cancelled => Cancelled,
    unknown => Unknown,
    invalid_argument => InvalidArgument,
    deadline_exceeded => DeadlineExceeded,
    not_found => NotFound,
    already_exists => AlreadyExists,
    permission_denied => PermissionDenied,
    resource_exhausted => ResourceExhausted,
    failed_precondition => FailedPrecondition,
    aborted => Aborted,
    out_of_range => OutOfRange,
    unimplemented => Unimplemented,
    internal => Internal,
    unavailable => Unavailable,
    data_loss => DataLoss,
    unauthenticated => Unauthenticated,
    unanswered => Unanswered,
    panicked => Panicked,
    mismatch => Mismatch,
    unfinished => Unfinished,
}

/// So that handlers can use `?` on what reads and writes. Errors that say nothing of the caller's request are
/// [`Code::Unknown`].
impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        let code = match error.kind() {
            Kind::NotFound => Code::NotFound,
            Kind::AlreadyExists => Code::AlreadyExists,
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Code::PermissionDenied,
            Kind::InvalidInput | Kind::InvalidFilename => Code::InvalidArgument,
            Kind::InvalidData | Kind::UnexpectedEof => Code::DataLoss,
            Kind::TimedOut => Code::DeadlineExceeded,
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge | Kind::OutOfMemory => {
                Code::ResourceExhausted
            }
            Kind::Unsupported => Code::Unimplemented,
            Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::AddrNotAvailable
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::ResourceBusy
            | Kind::WouldBlock => Code::Unavailable,
            _ => Code::Unknown,
        };
        Self::new(code, error.to_string())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        if self.loss.is_some() {
            return Ok(()); // it has said where
        }
        let method = self.method.as_ref();
        let to = method.map_or_else(String::new, |method| format!(" to {method}"));
        match (&self.request, &self.server) {
            (Some(request), Some(server)) => write!(f, " (request {request}{to} at {server})"),
            (Some(request), None) => write!(f, " (request {request}{to})"),
            (None, Some(server)) => write!(f, " (at {server})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Status {}

crate::debug_as_text!(Status);

/// Whether a call is turned away by the status of this request: only that of its first one says that nothing of it was executed.
pub(crate) fn turns_away(request: RequestId, not_executed: bool) -> bool {
    not_executed && request == RequestId::FIRST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_says_what_kind_it_is() {
        let kinds = [
            (io::ErrorKind::NotFound, Code::NotFound),
            (io::ErrorKind::ConnectionReset, Code::Unavailable),
            (io::ErrorKind::StorageFull, Code::ResourceExhausted),
            (io::ErrorKind::Other, Code::Unknown),
        ];
        for (kind, code) in kinds {
            let status = Status::from(io::Error::new(kind, "the disk"));
            assert_eq!((status.code(), status.message()), (code, "the disk"));
        }
        assert_eq!(Status::not_found("x"), Status::new(Code::NotFound, "x"));
    }

    #[test]
    fn survives_as_a_payload() {
        let status = Status::new(Code::Unavailable, "connection refused");
        assert_eq!(
            Status::from_payload(&status.to_payload()),
            Ok(status.clone())
        );
        let status = status.by("tcp://127.0.0.1:1".parse().ok().as_ref());
        assert_eq!(Status::from_payload(&status.to_payload()), Ok(status));
    }

    #[test]
    fn codes_keep_their_numbers() {
        for (index, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index + 1);
            assert_eq!(Code::from_number(code as u8), code);
        }
        assert_eq!(Code::from_number(0), Code::Unknown);
        assert_eq!(Code::from_number(200), Code::Unknown);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let status = Status::new(Code::Internal, "ä".repeat(MAX_STATUS_MESSAGE));
        assert_eq!(status.message().len(), MAX_STATUS_MESSAGE);
        assert_eq!(Status::from_payload(&status.to_payload()), Ok(status));
    }
}
