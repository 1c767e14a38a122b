//! Why a stream of items ends before it is whole.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use wallaby_proto::items::ItemError;
use wallaby_proto::{Address, Code, NodeId, Status};

use crate::body::BodyError;
use crate::codec::CodecError;
use crate::method::sealed::Followed;

/// Why a stream of items ends before it is whole: at which item, of which method, and who sent it.
///
/// It becomes the [`Status`] of a handler that returns it.
#[derive(Clone, PartialEq, Eq)]
pub struct StreamError {
    item: u64,
    origin: Option<Arc<StreamOrigin>>,
    kind: StreamErrorKind,
}

/// What is wrong with a stream of items.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamErrorKind {
    /// Its bytes end too early: its sender, its call or its connection has ended, or its source cannot be read.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The bytes are no item: too long a one, a length that is none, or the end inside an item.
    #[error(transparent)]
    Item(#[from] ItemError),
    /// The item cannot be decoded.
    #[error("it cannot be decoded: {0}")]
    Decode(CodecError),
    /// A blocking read on a thread of an async runtime, which it would stop.
    #[error("a blocking read inside an async runtime would stop it")]
    WouldBlock,
}

impl From<CodecError> for StreamErrorKind {
    fn from(error: CodecError) -> Self {
        Self::Decode(error)
    }
}

/// Where a stream comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamOrigin {
    method: Arc<str>,
    peer: Option<NodeId>,
    server: Option<Address>,
}

impl StreamOrigin {
    pub(super) fn of(request: &dyn Followed) -> Self {
        let (peer, server) = request.sender();
        Self {
            method: request.method(),
            peer,
            server,
        }
    }
}

impl fmt::Display for StreamOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " of {}", self.method)?;
        match (&self.server, self.peer) {
            (Some(server), _) => write!(f, ", from {server}"),
            (None, Some(peer)) => write!(f, ", from {peer}"),
            (None, None) => Ok(()),
        }
    }
}

impl StreamError {
    pub(super) fn new(item: u64, origin: Option<Arc<StreamOrigin>>, kind: StreamErrorKind) -> Self {
        Self { item, origin, kind }
    }

    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match &self.kind {
            StreamErrorKind::Body(broken) => broken.code(),
            StreamErrorKind::Item(ItemError::TooLarge { .. }) => Code::ResourceExhausted,
            StreamErrorKind::Item(_) | StreamErrorKind::Decode(_) => Code::InvalidArgument,
            StreamErrorKind::WouldBlock => Code::Internal,
        }
    }

    /// How many items came before.
    pub fn item(&self) -> u64 {
        self.item
    }

    /// What is wrong.
    pub fn kind(&self) -> &StreamErrorKind {
        &self.kind
    }

    /// The method, `package.Service/method`, if the stream came from a peer.
    pub fn method(&self) -> Option<&str> {
        self.origin.as_ref().map(|origin| &*origin.method)
    }

    /// Who sent it: the initiator, or the server before.
    pub fn peer(&self) -> Option<NodeId> {
        self.origin.as_ref()?.peer
    }

    /// Where that one is reached, if it listens.
    pub fn server(&self) -> Option<&Address> {
        self.origin.as_ref()?.server.as_ref()
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {} of the stream", self.item)?;
        if let Some(origin) = &self.origin {
            origin.fmt(f)?;
        }
        write!(f, ": {}", self.kind)
    }
}

// Its kind is part of the text, and so no source.
impl std::error::Error for StreamError {}

impl From<StreamError> for Status {
    fn from(error: StreamError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

wallaby_proto::debug_as_text!(StreamError);
