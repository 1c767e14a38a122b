//! What a connection tells: what arrived, why it must be closed, why a message was not accepted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use super::hello::Hello;
use super::methods::MethodDefinition;
use crate::Code;
use crate::id::{CallId, NodeId};
use crate::numbers::MAX_REASON;
use crate::varint::Reader;
use crate::wire::{Message, WireError};

/// What arrived.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// The handshake is done; the peer is who it says, as far as the transport proves.
    Opened(Arc<Hello>),
    /// The peer will call this method by this number; numbers count up from 0.
    Method(u32, MethodDefinition),
    /// A message.
    Message(Message),
    /// The beginning of a message above the limit; its payload is incomplete and the rest is dropped.
    TooLarge {
        /// The message, without its payload.
        message: Message,
        /// Its length in bytes, header included.
        size: u64,
    },
    /// Something of the body with this number, whose request came before.
    Body(u64, BodyEvent),
    /// Something that was refused may be accepted now.
    Credit(Granted),
    /// The peer sends nothing new; it had received so many messages.
    GoingAway {
        /// Messages received by the peer.
        received: u64,
        /// The peer is closed now, and has handled so many bytes of this connection: nothing that stands behind them.
        read: Option<u64>,
    },
    /// The peer closes the connection and says why.
    Closed(String),
}

/// What came of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyEvent {
    /// Bytes; more may come.
    Bytes(Bytes),
    /// It is whole.
    Whole,
    /// Its sender can't go on; why, in its words.
    Broken(String),
}

/// A reason that a peer gives, as far as it is told: in one line, as it stands in logs.
pub(crate) fn told(reason: &[u8]) -> String {
    let told = &reason[..reason.len().min(MAX_REASON)];
    String::from_utf8_lossy(told).replace(char::is_control, " ")
}

/// A reason as far as it is told to a peer.
pub(crate) fn telling(reason: &str) -> &[u8] {
    &reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON)]
}

/// The peer sends nothing new. How much it has read stands behind, if it `may` tell that.
pub(crate) fn going_away(body: &[u8], may: bool) -> Result<Event, WireError> {
    let what = "going away";
    let mut reader = Reader::new(body);
    let received = reader.varint(what)?;
    let read = match may && !reader.is_empty() {
        true => Some(reader.varint(what)?),
        false => None,
    };
    reader.finish(what)?;
    Ok(Event::GoingAway { received, read })
}

/// For what there is credit or room again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granted {
    /// Requests.
    Requests,
    /// Parts of large messages and of bodies.
    Parts,
    /// Answers of this call.
    Call(CallId),
    /// A body; or its receiver wants no more of it.
    Body,
    /// Whatever has credit: the peer has acknowledged something.
    Room,
}

/// Why a connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer sent bytes that are no message.
    #[error("malformed bytes: {0}")]
    Malformed(WireError),
    /// The first bytes are none of an endpoint's: those of another protocol, or of TLS where only one end has it.
    #[error("another protocol answers, or only one end uses TLS: malformed bytes: {0}")]
    Foreign(WireError),
    /// The two sides have no version in common.
    #[error("the peer speaks versions {theirs:?} of the protocol, this side {ours:?}")]
    Version {
        /// Lowest and highest of this side.
        ours: (u8, u8),
        /// Lowest and highest of the peer.
        theirs: (u8, u8),
    },
    /// Another incarnation answers at this address than the one that was meant: both sides close the connection.
    #[error("expected node {expected}, but node {found} answers")]
    WrongNode {
        /// Whom the dialler wanted.
        expected: NodeId,
        /// Who is there.
        found: NodeId,
    },
    /// A frame that is out of place.
    #[error("frame kind {kind:#04x} {when}")]
    OutOfPlace {
        /// Its number.
        kind: u8,
        /// Why it is.
        when: &'static str,
    },
    /// The peer does not keep to what the transport says that carries its bytes.
    #[error("the peer does not keep to what its transport says: {reason}")]
    Transport {
        /// What that says of it.
        reason: String,
    },
    /// The peer sent more than it was granted: see *Credit* in `docs/protocol.md`.
    #[error("the peer sent more {what} than it was granted")]
    Overdrawn {
        /// Of what.
        what: &'static str,
    },
    /// An unfinished message grew too slowly: see [`PartialLimits`](super::bounds::PartialLimits).
    #[error("an unfinished message is stalled: it gains less than {rate} bytes a second")]
    Stalled {
        /// What it must gain at least.
        rate: u64,
    },
    /// Unfinished messages of all connections took too much room for too long, and those of this one took most: see
    /// [`PartialLimits`](super::bounds::PartialLimits).
    #[error(
        "there is no room for unfinished messages, and this connection, which holds {held} bytes of them, holds most or has waited for too long"
    )]
    Crowding {
        /// Bytes that have arrived of its unfinished messages.
        held: u64,
    },
    /// The peer read nothing, or hardly anything, of what waits for it: see [`KeepAlive::look`](crate::connection::KeepAlive::look).
    #[error("the peer read too little in {silence:?}: {waiting} bytes still wait for it")]
    Unread {
        /// Bytes of output.
        waiting: usize,
        /// For how long.
        silence: Duration,
    },
    /// The peer gave no sign of life, though it was asked: see [`KeepAlive`](crate::connection::KeepAlive).
    #[error("nothing was heard from the peer for {silence:?}, though it was asked")]
    Silent {
        /// For how long.
        silence: Duration,
    },
}

impl ConnectionError {
    /// Whether the peer is at fault: it has sent what the protocol or its transport does not say, or more than it may. A peer that is
    /// slow, has stopped or has started anew, and a bad way to it, never look like that.
    pub fn is_violation(&self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::Foreign(_)
            | Self::Version { .. }
            | Self::OutOfPlace { .. }
            | Self::Transport { .. }
            | Self::Overdrawn { .. }
            | Self::Crowding { .. } => true,
            Self::WrongNode { .. }
            | Self::Stalled { .. }
            | Self::Unread { .. }
            | Self::Silent { .. } => false,
        }
    }

    /// What kind of error it is: [`Code::FailedPrecondition`] if the two sides do not speak the same, else [`Code::Unavailable`].
    pub fn code(&self) -> Code {
        match self {
            Self::Foreign(_) | Self::Version { .. } => Code::FailedPrecondition,
            _ => Code::Unavailable,
        }
    }
}

impl From<WireError> for ConnectionError {
    fn from(error: WireError) -> Self {
        Self::Malformed(error)
    }
}

/// Why a message was not accepted for sending; the connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendRefusal {
    /// The handshake is not done yet, or the connection is being closed.
    #[error("the connection is not open")]
    NotOpen,
    /// There is no credit or no room for it now; [`Event::Credit`] or writing output changes that.
    #[error("no credit for it now")]
    Blocked,
    /// It is longer than the peer, this side, or datagrams take.
    #[error("a message of {size} bytes, but the peer takes at most {limit}")]
    TooLarge {
        /// Its payload, in bytes.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The peer takes no more method names on this connection, or two have the same hash.
    #[error("no name is left for its method on this connection")]
    NoMethodName,
    /// A request with a body, where messages may overtake each other.
    #[error("a body can't follow a request over udp: (over tcp:, unix:, shm: and mem: it can)")]
    NoBodies,
    /// The peer is older than something that the request has.
    #[error("the server does not understand {what}, which the request has")]
    NotUnderstood {
        /// What.
        what: &'static str,
    },
}
