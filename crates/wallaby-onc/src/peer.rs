//! Addresses that ONC RPC is spoken over.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An address, and how messages travel to it. Shown as `tcp:127.0.0.1:2049`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Records over TCP.
    Tcp(SocketAddr),
    /// Datagrams.
    Udp(SocketAddr),
    /// Records over a unix socket; callers mostly have no path of their own.
    Unix(Option<PathBuf>),
}

impl Peer {
    /// The IP address and port, where it has them.
    #[must_use]
    pub fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) | Self::Udp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Whether it is on this machine: a unix socket, or a loopback address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self.socket_address() {
            Some(address) => address.ip().to_canonical().is_loopback(),
            None => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "tcp:{address}"),
            Self::Udp(address) => write!(formatter, "udp:{address}"),
            Self::Unix(Some(path)) => write!(formatter, "unix:{}", path.display()),
            Self::Unix(None) => formatter.write_str("unix:"),
        }
    }
}

/// Where a call came from, as the system says it, not the caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The caller's address.
    pub peer: Peer,
    /// The address that it called. Where a server listens on all addresses, this is the one that was used.
    pub local: Peer,
    /// The user, of a caller over a unix socket.
    pub uid: Option<u32>,
}
