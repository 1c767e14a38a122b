//! What can go wrong with connections, calls and what handlers send, one type an operation.
//!
//! The text of an error is whole: it says what its cause says. So the cause is not its `source()` as well, or who prints
//! the chain of sources would read it twice; it is a field (with `r#`, which says so to thiserror).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::call::allowance::Exhausted;
use crate::call::initiator::LimitReached;
use crate::call::missing::{Missing, brief, named};
use crate::call::watch::{FailureKind, Location, Loss, Step};
use crate::connection::{ConnectionError, DialBackoff, Dials};
use crate::datagram::MAX_MESSAGE;
use crate::wire::{ContinuationError, MetadataError};
use crate::{Address, AddressError, CallId, Code, NodeId, RequestId, Status};

/// What everybody is told of an endpoint that was closed.
pub const CLOSED: &str = "the endpoint was closed";

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

/// Why there is no connection to a server.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens there, as its host or the network says.
    #[error("cannot connect to {server}: {reason}")]
    Refused {
        /// Where.
        server: Address,
        /// What the system said.
        reason: String,
    },
    /// Nobody could be reached there.
    #[error("cannot connect to {server}: {reason}")]
    Unreachable {
        /// Where.
        server: Address,
        /// What the system said.
        reason: String,
    },
    /// There is no socket to dial it from: this process or its machine has no more of them, or the one that there was has failed.
    #[error("cannot connect to {server}: no socket for that here: {reason}")]
    Local {
        /// Where.
        server: Address,
        /// What the system said.
        reason: String,
    },
    /// Somebody answers there, but the transport's own handshake failed: one side does not trust or understand the other.
    #[error("cannot connect to {server}: {reason}")]
    Rejected {
        /// Where.
        server: Address,
        /// What the transport said.
        reason: String,
    },
    /// Nobody answered in time.
    #[error("cannot connect to {server}: no answer within {after:?}")]
    TimedOut {
        /// Where.
        server: Address,
        /// How long was waited.
        after: Duration,
    },
    /// A peer has named it, and such an address is not dialled now.
    #[error("{server} is not dialled now: {source}")]
    Held {
        /// Where.
        server: Address,
        /// Why.
        r#source: DialBackoff,
    },
    /// The handshake failed.
    #[error("cannot connect to {}: {source}", other_end(server))]
    Handshake {
        /// Where; `None` of a connection that came in from who states no address.
        server: Option<Address>,
        /// Why.
        r#source: ConnectionError,
    },
    /// The server closed the connection during the handshake.
    #[error("{} closed the connection: {reason}", other_end(server))]
    Closed {
        /// Where; `None` of a connection that came in from who states no address.
        server: Option<Address>,
        /// What it said, or what the system said.
        reason: String,
    },
    /// This endpoint has as many connections as it may, and all are in use.
    #[error("cannot connect to {server}: all {limit} connections are in use")]
    TooMany {
        /// Where.
        server: Address,
        /// The limit.
        limit: usize,
    },
    /// This endpoint does not dial such addresses ([`crate::dial::DialPolicy`]).
    #[error("not connecting to {server}: this endpoint's dial policy forbids it")]
    Forbidden {
        /// Where.
        server: Address,
    },
    /// No transport for this scheme.
    #[error(
        "cannot connect to {server}: no transport for its scheme here (`Builder::transport` adds one from outside)"
    )]
    NoTransport {
        /// Where.
        server: Address,
    },
}

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
}

impl SendError {
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
            error => Self::new(error.code(), error.to_string()),
        }
    }
}

/// So that a handler can use `?` on calls that it begins.
impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        CallError::from(failure).into()
    }
}

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
    /// Whether something was lost on the way, so that the same call may succeed if it is made again. It may have been executed.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Refused { .. } => true,
            Self::Lost(loss) => loss.may_pass(),
            Self::Attempts(failed) => failed.last.failure().is_some_and(Self::is_loss),
            _ => false,
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
}

impl ConnectError {
    /// Whether this says something of the server, or the network, and not of this endpoint alone.
    pub fn is_about_server(&self) -> bool {
        !matches!(
            self,
            Self::Local { .. }
                | Self::Held { .. }
                | Self::TooMany { .. }
                | Self::Forbidden { .. }
                | Self::NoTransport { .. }
        )
    }

    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused { .. }
            | Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Handshake { .. }
            | Self::Closed { .. } => Code::Unavailable,
            Self::Local { .. } | Self::Held { .. } | Self::TooMany { .. } => {
                Code::ResourceExhausted
            }
            Self::Rejected { .. } => Code::Unauthenticated,
            Self::Forbidden { .. } => Code::PermissionDenied,
            Self::NoTransport { .. } => Code::FailedPrecondition,
        }
    }
}

impl From<CodecError> for SendError {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}

impl From<MetadataError> for SendError {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

impl From<MetadataError> for Failure {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

/// The other end of a connection, for messages.
fn other_end(server: &Option<Address>) -> &dyn fmt::Display {
    match server {
        Some(server) => server,
        None => &"a peer",
    }
}

/// What had not come when a call was aborted.
fn still(missing: &Missing) -> String {
    match missing.is_empty() {
        true => String::new(),
        false => format!("; missing: {missing}"),
    }
}

impl Failure {
    /// A call was aborted, and what it had not got is not known.
    pub fn aborted() -> Self {
        Self::Aborted {
            missing: Missing::default(),
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

    /// The server that it is about, where it is known; see [`CallError::server`].
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

impl ConnectError {
    /// An address that peers have named is not dialled now. That nobody was there a moment ago is as good as to find nobody.
    pub fn held(server: &Address, source: DialBackoff) -> Self {
        let server = server.clone();
        match source {
            DialBackoff::Refused => Self::Refused {
                server,
                reason: source.to_string(),
            },
            _ => Self::Held { server, source },
        }
    }

    /// An address that peers may have named was dialled in vain.
    pub fn note_in_vain(&self, dials: &mut Dials<Address>, now: Duration, at: &Address) {
        match self {
            Self::Refused { .. } => dials.refused(now, at),
            _ => dials.failed(now, at, self.found()),
        }
    }

    /// Who answered there in place of the incarnation that was wanted.
    fn found(&self) -> Option<NodeId> {
        match self {
            Self::Handshake {
                source: ConnectionError::WrongNode { found, .. },
                ..
            } => Some(*found),
            _ => None,
        }
    }

    /// The server that there is no connection to, where its address is known.
    pub fn server(&self) -> Option<&Address> {
        match self {
            Self::Refused { server, .. }
            | Self::Unreachable { server, .. }
            | Self::Local { server, .. }
            | Self::Rejected { server, .. }
            | Self::TimedOut { server, .. }
            | Self::Held { server, .. }
            | Self::TooMany { server, .. }
            | Self::Forbidden { server }
            | Self::NoTransport { server } => Some(server),
            Self::Handshake { server, .. } | Self::Closed { server, .. } => server.as_ref(),
        }
    }
}

/// Handlers of a call that was given up which have not stopped, and what has not said whether it has.
///
/// Of each at most 8 are named ([`Missing::MOST`](crate::call::missing::Missing::MOST)).
#[derive(Clone, PartialEq, Eq, Default, Error)]
#[error("{}", self.describe())]
#[non_exhaustive]
pub struct StillRunning {
    /// The call.
    pub call: Option<CallId>,
    /// Handlers that go on although they were told to stop, as their servers have said last.
    pub handlers: Vec<UnstoppedRequest>,
    /// How many more there are.
    pub more: u64,
    /// Requests of which nobody has said yet whether they run, or anything that came of them.
    pub unheard: Vec<UnstoppedRequest>,
    /// How many more there are.
    pub more_unheard: u64,
}

/// A request of a call that was given up which has not stopped, or of which nobody has said whether it has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnstoppedRequest {
    /// Which one.
    pub request: RequestId,
    /// What was called, if anybody has told.
    pub method: Option<Arc<str>>,
    /// Where it is, as far as anybody has told.
    pub server: Location,
    /// The requests that led to it, from the initiator on, as far as known.
    pub path: Vec<Step>,
    /// Its server is gone. What that had handed on before may run, and cannot tell of itself, as this endpoint does not listen.
    pub gone: bool,
}

impl StillRunning {
    /// What kind of error it is: always [`Code::DeadlineExceeded`].
    pub fn code(&self) -> Code {
        Code::DeadlineExceeded
    }

    /// Whether nothing runs, and everything has said so that could.
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty() && self.unheard.is_empty()
    }

    /// Those of several calls.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.call = self.call.or(other.call);
        self.handlers.extend(other.handlers);
        self.more += other.more;
        self.unheard.extend(other.unheard);
        self.more_unheard += other.more_unheard;
        self
    }

    fn describe(&self) -> String {
        let running = told(&self.handlers, self.more, "still runs", "still run");
        let unheard = told(
            &self.unheard,
            self.more_unheard,
            "has not said whether it has stopped",
            "have not said whether they have stopped",
        );
        let parts = running.chain(unheard).collect::<Vec<String>>().join("; ");
        match (parts.is_empty(), self.call) {
            (true, _) => "nothing of the call runs any more".to_owned(),
            (false, Some(call)) => format!("call {call} was given up: {parts}"),
            (false, None) => parts,
        }
    }
}

/// Each of these requests, what is told of it, and what led to it.
fn told(
    requests: &[UnstoppedRequest],
    more: u64,
    one: &'static str,
    several: &'static str,
) -> impl Iterator<Item = String> {
    let rest = match more {
        0 => None,
        1 => Some(format!("1 more {one}")),
        more => Some(format!("{more} more {several}")),
    };
    let each = requests.iter().map(move |request| {
        let at = Some(&request.server);
        let name = named(request.request, request.method.as_deref(), at);
        let path: Vec<String> = request.path.iter().map(ToString::to_string).collect();
        let what = match request.gone {
            true => "may have been handed on by its server, which is gone",
            false => one,
        };
        match path.is_empty() {
            true => format!("{name} {what}"),
            false => format!("{name} {what}, reached by {}", path.join(", ")),
        }
    });
    each.chain(rest)
}

/// What became of the attempts of a call.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{}", self.describe())]
#[non_exhaustive]
pub struct AttemptsFailed {
    /// How many attempts were made.
    pub made: u32,
    /// Why no further one followed.
    pub why: NoMore,
    /// How many failed before those that are told of.
    pub untold: u32,
    /// What became of the attempts before the last, in brief: of the latest, if there were very many.
    pub before: Vec<FailedAttempt>,
    /// What became of the last one.
    pub last: CallError,
}

/// An attempt that failed, in brief.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{server}: {error}")]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Which server it went to.
    pub server: Address,
    /// What went wrong.
    pub error: String,
}

/// Why a call is not attempted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoMore {
    /// All attempts that it may have were made.
    #[error("no more are allowed")]
    Limit,
    /// The last one may have been executed, and what may have been is not made again.
    #[error("it may have been executed, and is not to be executed twice")]
    Executed,
    /// The client's budget for further attempts is used up.
    #[error("the retry budget is used up")]
    Budget,
    /// An answer was delivered to the application already.
    #[error("an answer had been delivered already")]
    Delivered,
    /// Its requests were not kept: there was no room (`Limits::kept_call`, `Limits::kept`).
    #[error("there was no room to keep its requests")]
    NotKept,
    /// A status had told how a part of it ended.
    #[error("a status had told how a part of it ended")]
    Status,
    /// No server could be connected to for as long as was to be waited.
    #[error("no server was there for as long as it was to wait")]
    Absent,
    /// No time is left before the deadline.
    #[error("no time is left before the deadline")]
    Deadline,
}

impl FailedAttempt {
    /// An attempt at this server that failed so.
    pub fn new(server: Address, error: String) -> Self {
        Self { server, error }
    }
}

impl AttemptsFailed {
    /// What kind of error it is: that of the last attempt.
    pub fn code(&self) -> Code {
        self.last.code()
    }

    /// So many attempts were made, and the last one ended so; see the fields for the others.
    pub fn new(
        made: u32,
        why: NoMore,
        untold: u32,
        before: Vec<FailedAttempt>,
        last: CallError,
    ) -> Self {
        Self {
            made,
            why,
            untold,
            before,
            last,
        }
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "attempt {} failed, and no other follows, since {}: {}",
            self.made, self.why, self.last
        );
        // The same again and again is told once.
        let mut attempts = (1 + self.untold..).zip(&self.before).peekable();
        while let Some((number, attempt)) = attempts.next() {
            let mut last = number;
            while let Some((next, _)) = attempts.next_if(|(_, other)| *other == attempt) {
                last = next;
            }
            text += &match last {
                _ if last == number => format!("; attempt {number} at {attempt}"),
                _ => format!("; attempts {number} to {last} at {attempt}"),
            };
        }
        text
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

crate::debug_as_text!(
    CodecError,
    ConnectError,
    SendError,
    ServeError,
    CallError,
    UnreadableAnswer,
    Failure,
    StillRunning,
    AttemptsFailed
);
