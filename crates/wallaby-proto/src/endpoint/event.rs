//! What an endpoint tells its application and its shell.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::bodies::{InBody, OutBody};
use super::sockets::SocketId;
use crate::call::watch::Loss;
use crate::connection::MethodDefinition;
use crate::error::{CallError, CodecError, ConnectError, Failure};
use crate::slot_map::SlotKey;
use crate::trace::Trace;
use crate::{Address, CallId, Code, ConnId, RequestId, Status};

/// A call of this endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey(pub(super) u64);

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request that is handled here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub(super) SlotKey);

impl RequestKey {
    /// The request with this number.
    pub fn from_number(number: u64) -> Self {
        Self(SlotKey::from_number(number))
    }

    /// Its place among those that are handled: less than the number that ever were at once, and of no other one.
    pub fn slot(self) -> usize {
        self.0.slot()
    }
}

/// What is to be done outside, or happened to the application's calls and requests.
#[derive(Debug)]
pub enum Output {
    /// A request came, there is a place for it, and it is to be handled: see
    /// [`Endpoint::take_request`](super::Endpoint::take_request).
    Run(RequestKey),
    /// There are answers of a call, or it has ended: told once until [`Endpoint::next_answer`](super::Endpoint::next_answer) has
    /// no more.
    Call(CallKey),
    /// A connection has taken an initial request that [`Endpoint::is_sent`](super::Endpoint::is_sent) was asked about, or its call
    /// has ended.
    Sent(CallKey),
    /// A call has ended of which [`Endpoint::report_end`](super::Endpoint::report_end) was said.
    Ended(CallKey, Box<ReportedEnd>),
    /// Nothing of a call runs any more, as far as its servers can be reached: told of calls that are kept
    /// ([`Shell::keep_ended`](super::Shell::keep_ended)), and of those that somebody
    /// [waits for](super::Endpoint::wait_for_stop). Of these it is also told that they were waited for as long as was said.
    Settled(CallKey),
    /// The endpoint [is drained](super::Endpoint::is_drained). Told again if it was otherwise meanwhile, as when somebody had to be refused.
    Drained,
    /// A request that was put aside has ended: it was aborted, or had no time left. Its initiator is told this in its name.
    Stopped(RequestKey, Box<Status>),
    /// A handler goes on for longer than [`Config::grace`](super::Config::grace) after its request was stopped: others have its place,
    /// and an operator should know.
    Stuck(Box<StuckHandler>),
    /// A call that has ended has lost a part, as nothing was heard of a server: an operator should know. Of many such calls ten a
    /// second are told, and how many were left out before each; of one that goes on without what is lost the first loss.
    Lost(Box<Loss>, u64),
    /// A message of a request has got its place in the call's tree and leaves: told of those that
    /// [`Endpoint::report_places`](super::Endpoint::report_places) was said of.
    Placed(RequestKey, Box<Placed>),
    /// No message of this direction waits any more of a request: see [`Endpoint::waits`](super::Endpoint::waits).
    Room(RequestKey, Lane),
    /// A message of a request may be taken, one of which was refused before for want of room
    /// ([`SendError::Full`](crate::error::SendError::Full)), or the request has ended. It is told once, whatever was refused to it
    /// meanwhile, and in the order in which requests were refused something: whoever is refused again comes last again. Where very many
    /// were, they are told up to a tenth of a second late.
    Space(RequestKey),
    /// A connection that [`Endpoint::connect`](super::Endpoint::connect) waits for is open, or why it is not.
    Connected(ConnId, Result<(), Box<ConnectError>>),
    /// There is something to read of a body that follows a request: told once until
    /// [`Endpoint::read_body`](super::Endpoint::read_body) has had nothing, and when its request is stopped.
    Body(InBody),
    /// More of a body may be written, or it may be ended, or nobody wants more of it: told once until
    /// [`Endpoint::write_body`](super::Endpoint::write_body) or [`Endpoint::end_body`](super::Endpoint::end_body) was blocked.
    BodyRoom(OutBody),
    /// A stream is to be opened to an address: if that fails, see
    /// [`Endpoint::handle_dial_failed`](super::Endpoint::handle_dial_failed).
    Dial(ConnId, Box<Address>),
    /// A UDP socket is to be opened from which this address is reached: something was dialled that no other one reaches. What it
    /// is to send waits until it is taken; if it cannot be opened, see
    /// [`Endpoint::handle_socket_failed`](super::Endpoint::handle_socket_failed).
    Socket(SocketId, SocketAddr),
    /// A stream has something to write: told once until [`Endpoint::handle_written`](super::Endpoint::handle_written).
    Write(ConnId),
    /// A UDP socket has datagrams to send: told once until
    /// [`Endpoint::poll_datagram`](super::Endpoint::poll_datagram) has no more of it, and after all else.
    Datagrams(SocketId),
    /// A stream has ended or is ended here: nothing more is heard of it. These are its last words.
    Close(ConnId, Box<Closed>),
}

/// How a call has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedEnd {
    /// Its outcome.
    pub outcome: Outcome,
    /// The code of the first status that was among its answers.
    pub status: Option<Code>,
    /// The server that was called takes no more requests, and has not executed this one.
    pub turned_away: bool,
}

impl ReportedEnd {
    /// That of a call which has failed, and had no answers.
    pub fn failed(failure: &Failure) -> Self {
        Self {
            outcome: Outcome::Failed(failure.clone()),
            status: None,
            turned_away: false,
        }
    }
}

/// A handler that goes on for long after its request was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckHandler {
    /// The call that it belongs to.
    pub call: CallId,
    /// The request that it was for.
    pub request: RequestId,
    /// What that called.
    pub method: Option<Arc<MethodDefinition>>,
}

/// Where a message of a request stands in the call's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placed {
    /// An answer, or a status in place of one.
    Answer {
        /// Its number among the answers of its branch.
        index: u32,
        /// Whether it is a status.
        status: bool,
    },
    /// Work for another server.
    Delegation {
        /// What the request is called from now on.
        id: RequestId,
        /// The server.
        server: Address,
    },
}

/// A direction in which a request sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Answers, to the initiator.
    Answers,
    /// Delegations, to other servers.
    Requests,
}

impl Lane {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Answers => Self::Requests,
            Self::Requests => Self::Answers,
        }
    }
}

/// How a stream has ended.
#[derive(Debug)]
pub struct Closed {
    /// What was not written yet: worth one attempt.
    pub last_words: BytesMut,
    /// Why.
    pub why: ConnectError,
}

/// What is next of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An answer, or a status in place of one.
    Answer(IncomingAnswer),
    /// A traced call has ended: its tree of hops. How it ended comes next.
    Trace(Box<Trace>),
    /// The call has ended, and how; nothing more comes of it. Whoever asks again is told the same perhaps.
    Ended(Outcome),
    /// Nothing yet, or the call is not known.
    Pending,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that was to come has come.
    Complete {
        /// How many of its answers were statuses.
        statuses: u64,
    },
    /// It has failed.
    Failed(Failure),
}

/// An answer of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingAnswer {
    /// The call.
    pub call: CallKey,
    /// The request that sent it.
    pub request: RequestId,
    /// Its number among the answers of its branch.
    pub index: u32,
    /// A status came in place of an answer; [`payload`](Self::payload) reads it.
    pub(super) status: bool,
    pub(super) payload: Bytes,
    /// The connection that it came over.
    pub(super) from: Option<ConnId>,
    /// What was called, if it is a status and that is known.
    pub(super) method: Option<Arc<str>>,
    /// The method of the initial request, if it is a status of one.
    pub(super) root: Option<Arc<MethodDefinition>>,
    /// It stands for what is lost of a branch.
    pub(super) loss: Option<Arc<Loss>>,
    /// It is a status, and its request was certainly not executed.
    pub(super) not_executed: bool,
}

impl IncomingAnswer {
    /// What is lost of a branch, if this stands for it in a call that goes on without.
    pub fn loss(&self) -> Option<&Loss> {
        self.loss.as_deref()
    }

    /// The payload.
    ///
    /// # Errors
    ///
    /// The status that came in place of an answer, or [`CallError::Decode`] if that cannot be read.
    pub fn payload(self) -> Result<Bytes, CallError> {
        if !self.status {
            return Ok(self.payload);
        }
        if let Some(loss) = self.loss {
            return Err(CallError::Status(Status::lost(loss)));
        }
        let payload = match self.root {
            Some(root) => root.explain(self.payload),
            None => self.payload,
        };
        match Status::from_payload(&payload) {
            Ok(status) => Err(CallError::Status(
                (status.at(self.request).called(self.method.as_ref()))
                    .not_executed(self.not_executed),
            )),
            Err(error) => Err(CallError::unreadable(
                self.request,
                CodecError::new("status", error.to_string()),
            )),
        }
    }
}

/// A request that is to be handled.
#[derive(Debug)]
pub struct IncomingRequest {
    /// Which of the methods served it calls, in the order in which they were added.
    pub method: usize,
    /// Its arguments.
    pub payload: Bytes,
    /// The body that follows it. From now on it is the shell's, which reads it to its end or
    /// [drops](super::Endpoint::drop_body) it.
    pub body: Option<InBody>,
}
