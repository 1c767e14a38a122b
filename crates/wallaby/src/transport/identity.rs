//! Who a peer is, as far as its transport has proven it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;

/// What the transport of a connection has proven of its peer. Node ids are not part of it: anybody can claim any.
///
/// ```
/// use wallaby::transport::{Identity, Name};
/// use wallaby::{Code, RawRequest, Status};
///
/// /// Only who has this name in its certificate may go on.
/// fn check(request: &RawRequest) -> Result<(), Status> {
///     let admin = Name::Dns("admin.example".into());
///     match request.identity().names().contains(&admin) {
///         true => Ok(()),
///         false => Err(Status::new(Code::PermissionDenied, format!("not for {}", request.identity()))),
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Identity {
    /// Who it is.
    pub peer: Proven,
    /// Whether nobody on the way can read or change what is sent.
    pub encrypted: bool,
    /// Where the other end of its connection is, for those who read logs and for limits: that of a proxy, perhaps. `None` where
    /// connections have no such address.
    pub address: Option<SocketAddr>,
}

/// Who a peer is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Proven {
    /// Anybody: the transport proves nothing, or was not asked to.
    #[default]
    Nothing,
    /// An endpoint of this process.
    ThisProcess,
    /// A process of this host, as its kernel says: when it connected or listened.
    LocalUser {
        /// Its effective user.
        uid: u32,
        /// The process; it may have handed its socket on.
        pid: Option<u32>,
    },
    /// It has the key of a certificate that this endpoint trusts.
    Certificate {
        /// The names in it.
        names: Vec<Name>,
        /// The certificates that it has shown, its own first, as DER.
        chain: Arc<[Bytes]>,
    },
    /// It has shown in another way, by a key or a token for instance, that it has these names.
    Names(Vec<Name>),
}

/// A name that a peer has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Name {
    /// A host name in lower case, or with `*` in place of its first part.
    Dns(String),
    /// An URI, as SPIFFE uses them.
    Uri(String),
    /// An IP address.
    Ip(IpAddr),
}

impl Identity {
    /// Of this peer.
    pub fn new(peer: Proven, encrypted: bool) -> Self {
        Self {
            peer,
            encrypted,
            address: None,
        }
    }

    /// The other end of its connection is there.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// The names that it has shown to have, by a certificate or in another way; none if it has shown none.
    pub fn names(&self) -> &[Name] {
        match &self.peer {
            Proven::Certificate { names, .. } | Proven::Names(names) => names,
            _ => &[],
        }
    }

    /// Of who is at the other end of a unix socket.
    #[cfg(unix)]
    pub(crate) fn of_local(stream: &tokio::net::UnixStream) -> Self {
        let peer = stream.peer_cred().map(|peer| Proven::LocalUser {
            uid: peer.uid(),
            pid: peer.pid().and_then(|pid| u32::try_from(pid).ok()),
        });
        Self::new(peer.unwrap_or_default(), false)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.peer {
            Proven::Nothing => f.write_str("somebody unknown"),
            Proven::ThisProcess => f.write_str("an endpoint of this process"),
            Proven::LocalUser { uid, pid: None } => write!(f, "user {uid}"),
            Proven::LocalUser {
                uid,
                pid: Some(pid),
            } => write!(f, "user {uid}, process {pid}"),
            Proven::Certificate { names, .. } if names.is_empty() => {
                f.write_str("a certificate without names")
            }
            Proven::Names(names) if names.is_empty() => f.write_str("somebody without names"),
            Proven::Certificate { names, .. } | Proven::Names(names) => {
                for (index, name) in names.iter().enumerate() {
                    write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Uri(uri) => f.write_str(uri),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}
