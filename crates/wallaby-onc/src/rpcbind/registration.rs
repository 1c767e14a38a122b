//! Keeps a server registered for as long as it lives.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::interface::Rpcb;
use super::interface::rpcbind::rpcbind_3;
use super::{PROGRAM, Rpcbind, netid};
use crate::auth::OpaqueAuth;
use crate::failure::RpcError;
use crate::message::{CallBody, MessageBody, Procedure, RpcMessage};
use crate::peer::Peer;
use crate::record::{self, MAX_FRAGMENT};
use crate::server::Server;
use crate::xdr::{self, Text};

/// How long a registration that is dropped waits for rpcbind, each time.
const DROPPED: Duration = Duration::from_millis(500);

/// A server is registered with rpcbind until this is dropped, all of its programs at all of its addresses.
///
/// [`unregister`](Self::unregister) says what goes wrong at the end. Dropping does the same as far as it goes, and blocks
/// for it, as a program that ends wants it; a process that is killed stays registered.
#[derive(Debug)]
pub struct Registration {
    rpcbind: Rpcbind,
    /// Program, version, network id.
    registered: Vec<(u32, u32, &'static str)>,
}

/// Why a server is not registered. Nothing of it is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotRegistered {
    /// A call failed.
    #[error("cannot register with rpcbind: {0}")]
    Call(#[from] RpcError),
    /// rpcbind refuses.
    #[error(
        "rpcbind refuses program {program} version {version} at {at}: somebody else's is registered, or its table is full"
    )]
    Refused {
        /// The program.
        program: u32,
        /// Its version.
        version: u32,
        /// The address that was to be registered.
        at: Peer,
    },
}

impl Registration {
    /// Registers what a server serves, where it listens now. What was registered for the same programs and networks
    /// before, mostly by a life of this server that was killed, is replaced.
    ///
    /// # Errors
    /// rpcbind is not there, or refuses.
    pub async fn new(server: &Server, rpcbind: Rpcbind) -> Result<Self, NotRegistered> {
        let mut registration = Self {
            rpcbind,
            registered: Vec::new(),
        };
        for at in addresses(server) {
            for (program, version) in server.programs().served() {
                registration.add(program, version, &at).await?;
            }
        }
        Ok(registration)
    }

    async fn add(&mut self, program: u32, version: u32, at: &Peer) -> Result<(), NotRegistered> {
        let netid = netid(at);
        self.rpcbind.unset(program, version, Some(netid)).await?;
        if !self.rpcbind.set(program, version, at).await? {
            let at = at.clone();
            return Err(NotRegistered::Refused {
                program,
                version,
                at,
            });
        }
        self.registered.push((program, version, netid));
        Ok(())
    }

    /// Ends the registration.
    ///
    /// # Errors
    /// rpcbind is not there any more. Dropping this has tried once more then.
    pub async fn unregister(mut self) -> Result<(), RpcError> {
        while let Some(&(program, version, netid)) = self.registered.last() {
            self.rpcbind.unset(program, version, Some(netid)).await?;
            self.registered.pop();
        }
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(peer) = self.rpcbind.peer() else {
            return;
        };
        for (program, version, netid) in self.registered.drain(..) {
            if unset(&peer, program, version, netid).is_err() {
                // The rest would wait as long for nothing.
                return;
            }
        }
    }
}

/// Where a server listens, once for each network: a socket that takes both, IPv6 and IPv4, counts twice.
pub(super) fn addresses(server: &Server) -> Vec<Peer> {
    let both = |address: SocketAddr| -> Vec<SocketAddr> {
        let four = (Ipv4Addr::UNSPECIFIED, address.port()).into();
        match address.ip() == Ipv6Addr::UNSPECIFIED {
            true => vec![address, four],
            false => vec![address],
        }
    };
    let mut addresses: Vec<Peer> = Vec::new();
    for peer in server.addresses() {
        match peer {
            Peer::Tcp(address) => addresses.extend(both(address).into_iter().map(Peer::Tcp)),
            Peer::Udp(address) => addresses.extend(both(address).into_iter().map(Peer::Udp)),
            Peer::Unix(_) => addresses.push(peer),
        }
    }
    // rpcbind has room for one a network.
    let mut seen = Vec::new();
    addresses.retain(|peer| {
        let is_new = !seen.contains(&netid(peer));
        seen.push(netid(peer));
        is_new
    });
    addresses
}

/// Forgets a program, without a runtime: what a destructor can do.
fn unset(peer: &Peer, program: u32, version: u32, netid: &str) -> io::Result<()> {
    let arguments = xdr::encode(&Rpcb {
        program_number: program,
        version_number: version,
        netid: netid.into(),
        address: Text::default(),
        owner: Text::default(),
    });
    let call = RpcMessage {
        xid: getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?,
        body: MessageBody::Call(CallBody {
            procedure: Procedure {
                program: PROGRAM,
                version: rpcbind_3::VERSION,
                number: rpcbind_3::UNSET,
            },
            credential: OpaqueAuth::none(),
            verifier: OpaqueAuth::none(),
            arguments: arguments.map_err(io::Error::other)?,
        }),
    };
    exchange(peer, &call.encode().map_err(io::Error::other)?)
}

/// Sends a call, and waits for a sign that it was read.
fn exchange(peer: &Peer, call: &Bytes) -> io::Result<()> {
    let mut reply = [0; 4];
    let mut out = BytesMut::new();
    record::write(call, MAX_FRAGMENT, &mut out);
    match peer {
        Peer::Tcp(address) => {
            let mut stream = TcpStream::connect_timeout(address, DROPPED)?;
            stream.set_read_timeout(Some(DROPPED))?;
            stream.write_all(&out)?;
            stream.read_exact(&mut reply)
        }
        Peer::Unix(path) => {
            let mut stream = UnixStream::connect(path.as_deref().unwrap_or("".as_ref()))?;
            stream.set_read_timeout(Some(DROPPED))?;
            stream.set_write_timeout(Some(DROPPED))?;
            stream.write_all(&out)?;
            stream.read_exact(&mut reply)
        }
        Peer::Udp(address) => {
            let any: SocketAddr = match address {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(any)?;
            socket.connect(address)?;
            socket.set_read_timeout(Some(DROPPED))?;
            socket.send(call)?;
            socket.recv(&mut reply).map(drop)
        }
    }
}
