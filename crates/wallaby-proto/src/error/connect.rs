//! Why there is no connection to a server.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::connection::{ConnectionError, DialBackoff, Dials};
use crate::{Address, Code, NodeId};

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

/// The other end of a connection, for messages.
fn other_end(server: &Option<Address>) -> &dyn fmt::Display {
    match server {
        Some(server) => server,
        None => &"a peer",
    }
}

crate::debug_as_text!(ConnectError);
