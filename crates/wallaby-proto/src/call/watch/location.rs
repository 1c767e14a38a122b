//! Where requests are, and who says so.

use std::fmt;

use crate::address::Address;
use crate::id::NodeId;
use crate::wire::{Child, HandledBy};

/// Where a request is handled, as far as known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Location {
    /// The server's address.
    pub address: Option<Address>,
    /// The server's incarnation.
    pub node: Option<NodeId>,
}

/// Who sent a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// The other end of the connection; empty if the message was relayed.
    pub location: Location,
    /// No other connection with that node is open: all that it sent over earlier ones has been read.
    pub alone: bool,
}

impl Location {
    /// A server at this address, of which no incarnation is known.
    pub fn at(address: Address) -> Self {
        Self {
            address: Some(address),
            node: None,
        }
    }

    /// Whether a ping can be sent there.
    pub fn is_known(&self) -> bool {
        self.address.is_some() || self.node.is_some()
    }

    /// Adds what somebody else knows; what it says wins.
    pub(super) fn learn(&mut self, other: &Self) {
        if other.node.is_some() {
            self.node = other.node;
        }
        if other.address.is_some() {
            self.address.clone_from(&other.address);
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, self.node) {
            (Some(address), _) => address.fmt(f),
            (None, Some(node)) => write!(f, "node {node}"),
            (None, None) => f.write_str("an unknown server"),
        }
    }
}

impl Child {
    pub(super) fn location(&self) -> Location {
        Location {
            address: Some(self.server.clone()),
            node: self.node,
        }
    }
}

impl HandledBy {
    pub(crate) fn location(&self) -> Location {
        Location {
            address: self.server.clone(),
            node: Some(self.node),
        }
    }
}
