//! Messages, names and addresses as both kinds of endpoints use them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use wallaby_proto::call::watch::{Location, Source};
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::wire::{Child, Message};
use wallaby_proto::{Address, CallId, NodeId, Token};

use crate::local::Digest;

/// The initiator's number among the endpoints.
pub(crate) const CLIENT: u8 = 0;

/// What all requests call.
pub(crate) static METHOD: LazyLock<Arc<MethodDefinition>> = LazyLock::new(|| {
    let method = MethodDefinition::new("model/handle", "", 0, 0);
    Arc::new(method.expect("a name"))
});

/// The call's token.
pub(crate) fn token() -> Token {
    Token::new(7)
}

/// A message, with the digest by which it is compared.
#[derive(Clone)]
pub(crate) struct Letter {
    pub(crate) message: Arc<Message>,
    digest: Digest,
}

impl Letter {
    pub(crate) fn new(message: Message) -> Self {
        Self {
            digest: Digest::of(&message),
            message: Arc::new(message),
        }
    }

    /// Whether it is a ping or a pong.
    pub(crate) fn is_control(&self) -> bool {
        matches!(*self.message, Message::Ping(_) | Message::Pong(_))
    }
}

impl PartialEq for Letter {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Letter {}

impl PartialOrd for Letter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Letter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.digest.cmp(&other.digest)
    }
}

impl Hash for Letter {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}

/// Inputs are told apart by their `Debug` output: it says all that there is.
impl fmt::Debug for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.fmt(f)
    }
}

/// For the reader.
impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.message {
            Message::Request(request) => write!(f, "request {}", request.id),
            Message::Response(response) => {
                write!(f, "response {}[{}]", response.request, response.index)?;
                f.write_str(if response.status { " (a status)" } else { "" })
            }
            Message::End(end) => write!(f, "end of {} {:?}", end.request, end.facts),
            Message::Ping(ping) if ping.abort => write!(f, "abort {}", ping.request),
            Message::Ping(ping) => write!(f, "ping {} missing {:?}", ping.request, ping.missing),
            Message::Pong(pong) => {
                let kind = if pong.announced {
                    "announcement"
                } else {
                    "pong"
                };
                write!(f, "{kind} {} {:?}", pong.request, pong.progress)
            }
            Message::Trace(_) => f.write_str("trace"),
        }
    }
}

pub(crate) fn node(endpoint: u8) -> NodeId {
    NodeId::new(u64::from(endpoint) + 1).expect("not zero")
}

pub(crate) fn endpoint_of(node: NodeId) -> u8 {
    (node.get() - 1) as u8
}

pub(crate) fn address(endpoint: u8) -> Address {
    Address::Mem(format!("{endpoint}").into())
}

pub(crate) fn child(endpoint: u8) -> Child {
    Child {
        server: address(endpoint),
        node: Some(node(endpoint)),
    }
}

pub(crate) fn source(endpoint: u8) -> Source {
    Source {
        location: Location {
            address: Some(address(endpoint)),
            node: Some(node(endpoint)),
        },
        alone: true,
    }
}

pub(crate) fn call() -> CallId {
    CallId {
        initiator: node(CLIENT),
        sequence: 1,
    }
}
