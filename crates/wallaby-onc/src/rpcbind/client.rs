//! Asks an rpcbind, and registers programs with it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use bytes::Bytes;

use super::interface::rpcbind::{port_mapper, rpcbind_3, rpcbind_4};
use super::interface::{PROTOCOL_TCP, PROTOCOL_UDP, PortMapping, Rpcb};
use super::{PORT, SOCKET, netid, parse, universal_address};
use crate::client::{ClientOptions, TcpChannel, UdpChannel, UnixChannel};
use crate::failure::{Reason, RpcError};
use crate::message::{AcceptError, Procedure, Refusal};
use crate::peer::Peer;
use crate::service::Channel;
use crate::xdr::Text;

/// An rpcbind, or a port mapper. It is asked in version 4, 3 or 2, in the latest that it has.
#[derive(Debug, Clone)]
pub struct Rpcbind {
    way: Way,
}

/// A program that is registered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// The program's number.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// How it is reached: `tcp`, `udp`, `tcp6`, `udp6`, `local`, or what the system has besides.
    pub netid: String,
    /// Where: a universal address.
    pub address: String,
    /// Who registered it, as far as rpcbind knows; empty from a port mapper.
    pub owner: String,
}

impl Mapping {
    /// The address, if it is of a network that is known here.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        parse(&self.netid, &self.address)
    }
}

#[derive(Debug, Clone)]
enum Way {
    Udp(UdpChannel),
    Tcp(TcpChannel),
    Unix(UnixChannel),
}

impl Channel for Way {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        match self {
            Self::Udp(channel) => channel.call(procedure, arguments).await,
            Self::Tcp(channel) => channel.call(procedure, arguments).await,
            Self::Unix(channel) => channel.call(procedure, arguments).await,
        }
    }

    fn peer(&self) -> Option<Peer> {
        match self {
            Self::Udp(channel) => channel.peer(),
            Self::Tcp(channel) => channel.peer(),
            Self::Unix(channel) => channel.peer(),
        }
    }
}

impl Rpcbind {
    /// The rpcbind of this machine: over its unix socket, or if there is none, over TCP.
    ///
    /// # Errors
    /// There is no rpcbind.
    pub async fn local() -> io::Result<Self> {
        match Self::over_unix(Path::new(SOCKET), ClientOptions::default()).await {
            Ok(rpcbind) => Ok(rpcbind),
            Err(_) => {
                let address = (Ipv4Addr::LOCALHOST, PORT).into();
                Self::over_tcp(address, ClientOptions::default()).await
            }
        }
    }

    /// The rpcbind at this address, asked over TCP.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn over_tcp(address: SocketAddr, options: ClientOptions) -> io::Result<Self> {
        let channel = TcpChannel::connect(address, options).await?;
        Ok(Self {
            way: Way::Tcp(channel),
        })
    }

    /// The rpcbind at this address, asked over UDP.
    ///
    /// # Errors
    /// There is no socket for it.
    pub async fn over_udp(address: SocketAddr, options: ClientOptions) -> io::Result<Self> {
        let channel = UdpChannel::connect(address, options).await?;
        Ok(Self {
            way: Way::Udp(channel),
        })
    }

    /// The rpcbind of this unix socket.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn over_unix(path: &Path, options: ClientOptions) -> io::Result<Self> {
        let channel = UnixChannel::connect(path, options).await?;
        Ok(Self {
            way: Way::Unix(channel),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.way.peer()
    }

    /// Registers a program at an address. `false`: it refuses, mostly because another address is registered.
    ///
    /// # Errors
    /// The call failed, or was refused: mostly because this is not its machine.
    pub async fn set(&self, program: u32, version: u32, at: &Peer) -> Result<bool, RpcError> {
        let mapping = rpcb(program, version, netid(at), universal_address(at));
        let (four, three) = (self.four(), self.three());
        let later = later(four.set(&mapping), three.set(&mapping)).await;
        match (later, port_mapping(program, version, at)) {
            (Err(error), Some(mapping)) if is_older(&error) => self.two().set(&mapping).await,
            (later, _) => later,
        }
    }

    /// Forgets a program: at one network (`tcp`), or at all. `false`: it is somebody else's. What is not
    /// there is forgotten already, but some say `false` of that, too.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub async fn unset(
        &self,
        program: u32,
        version: u32,
        netid: Option<&str>,
    ) -> Result<bool, RpcError> {
        let mapping = rpcb(program, version, netid.unwrap_or_default(), String::new());
        let (four, three) = (self.four(), self.three());
        match later(four.unset(&mapping), three.unset(&mapping)).await {
            Err(error) if is_older(&error) => {
                let mapping = PortMapping {
                    program_number: program,
                    version_number: version,
                    protocol: 0,
                    port: 0,
                };
                self.two().unset(&mapping).await
            }
            later => later,
        }
    }

    /// The port of a program over IPv4: `tcp` or else `udp`. Asked in version 2, which every rpcbind has.
    ///
    /// If the program is there in other versions only, it may be the port of one of them.
    ///
    /// # Errors
    /// The call failed.
    pub async fn port(
        &self,
        program: u32,
        version: u32,
        tcp: bool,
    ) -> Result<Option<u16>, RpcError> {
        let mapping = PortMapping {
            program_number: program,
            version_number: version,
            protocol: if tcp { PROTOCOL_TCP } else { PROTOCOL_UDP },
            port: 0,
        };
        let port = self.two().getport(&mapping).await?;
        // What is no port is none.
        Ok(u16::try_from(port).ok().filter(|port| *port != 0))
    }

    /// The address of a program, over the transport that rpcbind is asked over; over a unix socket, over `netid`.
    ///
    /// If the program is there in other versions only, it may be the address of one of them.
    ///
    /// # Errors
    /// The call failed; a port mapper has no version for it.
    pub async fn address(
        &self,
        program: u32,
        version: u32,
        netid: &str,
    ) -> Result<Option<Peer>, RpcError> {
        let mapping = rpcb(program, version, netid, String::new());
        let (four, three) = (self.four(), self.three());
        let address = later(four.getaddr(&mapping), three.getaddr(&mapping)).await?;
        Ok(parse(netid, &address.to_string()))
    }

    /// All that is registered.
    ///
    /// # Errors
    /// The call failed.
    pub async fn dump(&self) -> Result<Vec<Mapping>, RpcError> {
        let (four, three) = (self.four(), self.three());
        match later(four.dump(), three.dump()).await {
            Err(error) if is_older(&error) => {
                let entries = self.two().dump().await?;
                Ok(entries
                    .into_iter()
                    .map(|entry| from_port_mapping(&entry.mapping))
                    .collect())
            }
            entries => Ok(entries?
                .into_iter()
                .map(|entry| from_rpcb(&entry.mapping))
                .collect()),
        }
    }

    fn four(&self) -> rpcbind_4::Client<&Way> {
        rpcbind_4::Client(&self.way)
    }

    fn three(&self) -> rpcbind_3::Client<&Way> {
        rpcbind_3::Client(&self.way)
    }

    fn two(&self) -> port_mapper::Client<&Way> {
        port_mapper::Client(&self.way)
    }
}

/// The answer in version 4, or in version 3 where that is the latest.
async fn later<T>(
    four: impl Future<Output = Result<T, RpcError>>,
    three: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    match four.await {
        Err(error) if is_older(&error) => three.await,
        answer => answer,
    }
}

/// Whether the server does not have this version.
fn is_older(error: &RpcError) -> bool {
    matches!(
        error.reason,
        Reason::Refused(Refusal::Accept(AcceptError::ProgramMismatch { .. }))
    )
}

fn rpcb(program: u32, version: u32, netid: &str, address: String) -> Rpcb {
    Rpcb {
        program_number: program,
        version_number: version,
        netid: netid.into(),
        address: address.into(),
        owner: Text::default(),
    }
}

fn from_rpcb(mapping: &Rpcb) -> Mapping {
    Mapping {
        program: mapping.program_number,
        version: mapping.version_number,
        netid: mapping.netid.to_string(),
        address: mapping.address.to_string(),
        owner: mapping.owner.to_string(),
    }
}

fn from_port_mapping(mapping: &PortMapping) -> Mapping {
    let netid = match mapping.protocol {
        PROTOCOL_TCP => "tcp".to_owned(),
        PROTOCOL_UDP => "udp".to_owned(),
        other => other.to_string(),
    };
    let [.., high, low] = mapping.port.to_be_bytes();
    Mapping {
        program: mapping.program_number,
        version: mapping.version_number,
        netid,
        address: format!("0.0.0.0.{high}.{low}"),
        owner: String::new(),
    }
}

/// What version 2 can say of an address: nothing, but over TCP and UDP with IPv4.
pub(super) fn port_mapping(program: u32, version: u32, at: &Peer) -> Option<PortMapping> {
    let protocol = match netid(at) {
        "tcp" => PROTOCOL_TCP,
        "udp" => PROTOCOL_UDP,
        _ => return None,
    };
    Some(PortMapping {
        program_number: program,
        version_number: version,
        protocol,
        port: at.socket_address()?.port().into(),
    })
}
