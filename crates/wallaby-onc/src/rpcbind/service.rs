//! The procedures of an rpcbind, in versions 2, 3 and 4.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};

use super::directory::{Shared, asked_netid, is_local, merged, registrable};
use super::forward::Forwarded;
use super::interface::rpcbind::{port_mapper, rpcbind_3, rpcbind_4};
use super::interface::{
    AddressDescription, AddressDescriptionEntry, PROTOCOL_TCP, PROTOCOL_UDP, PortCall,
    PortCallResult, PortMapping, PortMappingEntry, RemoteCall, RemoteResult, Rpcb, RpcbEntry,
    StatisticsOfVersions, TransportAddress,
};
use super::statistics::Asked;
use super::{netid, parse, universal_address};
use crate::auth::{AuthError, Principal};
use crate::message::{Procedure, Refusal};
use crate::peer::Peer;
use crate::service::{Program, Programs};
use crate::xdr::Text;

/// `CALLIT` of versions 2 and 3, `BCAST` of version 4.
const CALLIT: u32 = port_mapper::CALLIT;

pub(super) fn programs(directory: &Arc<Shared>) -> Programs {
    Programs::new()
        .with(Counted {
            inner: port_mapper::Service(Two(Arc::clone(directory))),
            directory: Arc::clone(directory),
            asked: Asked::Two,
        })
        .with(Counted {
            inner: rpcbind_3::Service(Three(Arc::clone(directory))),
            directory: Arc::clone(directory),
            asked: Asked::Three,
        })
        .with(Counted {
            inner: rpcbind_4::Service(Four(Arc::clone(directory))),
            directory: Arc::clone(directory),
            asked: Asked::Four,
        })
}

/// Counts calls, and keeps silent where nobody wants to hear of failures (RFC 1833, sections 2.2.1 and 3.2): who asks all
/// machines of a network at once would hear from each.
struct Counted<S> {
    inner: S,
    directory: Arc<Shared>,
    asked: Asked,
}

impl<S: Program> Program for Counted<S> {
    const PROGRAM: u32 = S::PROGRAM;
    const VERSION: u32 = S::VERSION;
    const PROCEDURES: &'static [u32] = S::PROCEDURES;

    async fn handle(
        &self,
        caller: &Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> Result<Bytes, Refusal> {
        self.directory.counting().called(self.asked, procedure);
        let answer = self.inner.handle(caller, procedure, arguments).await;
        match procedure {
            CALLIT => answer.map_err(|_| Refusal::Silent),
            _ => answer,
        }
    }
}

struct Two(Arc<Shared>);
struct Three(Arc<Shared>);
struct Four(Arc<Shared>);

/// Only this machine's programs are registered, and by this machine's callers.
fn local_only(caller: &Principal) -> Result<(), Refusal> {
    match is_local(caller) {
        true => Ok(()),
        false => Err(AuthError::TooWeak.into()),
    }
}

/// How version 2 numbers networks.
fn protocol_netid(protocol: u32) -> Option<&'static str> {
    match protocol {
        PROTOCOL_TCP => Some("tcp"),
        PROTOCOL_UDP => Some("udp"),
        _ => None,
    }
}

impl port_mapper::Server for Two {
    async fn nothing(&self, _: &Principal) -> Result<(), Refusal> {
        Ok(())
    }

    async fn set(&self, caller: &Principal, wanted: PortMapping) -> Result<bool, Refusal> {
        local_only(caller)?;
        let port = u16::try_from(wanted.port).ok().filter(|port| *port != 0);
        let (Some(netid), Some(port)) = (protocol_netid(wanted.protocol), port) else {
            return Ok(false);
        };
        let address = SocketAddr::from(([0, 0, 0, 0], port));
        let at = match netid {
            "tcp" => Peer::Tcp(address),
            _ => Peer::Udp(address),
        };
        let set = self
            .0
            .set(caller, wanted.program_number, wanted.version_number, at);
        if set {
            self.0.counting().set(Asked::Two);
        }
        Ok(set)
    }

    async fn unset(&self, caller: &Principal, wanted: PortMapping) -> Result<bool, Refusal> {
        local_only(caller)?;
        let (program, version) = (wanted.program_number, wanted.version_number);
        let is_meant = |netid: &str| ["tcp", "udp"].contains(&netid);
        let unset = self.0.unset(caller, program, version, is_meant);
        if unset {
            self.0.counting().unset(Asked::Two);
        }
        Ok(unset)
    }

    async fn getport(&self, _: &Principal, wanted: PortMapping) -> Result<u32, Refusal> {
        let Some(netid) = protocol_netid(wanted.protocol) else {
            return Ok(0);
        };
        let of = (wanted.program_number, wanted.version_number);
        let found = self.0.find(of.0, of.1, netid, true);
        self.0
            .counting()
            .looked_up(Asked::Two, of, netid, found.is_some());
        let address = found.and_then(|peer| peer.socket_address());
        Ok(address.map_or(0, |address| address.port().into()))
    }

    async fn dump(&self, _: &Principal) -> Result<Vec<PortMappingEntry>, Refusal> {
        let mappings = self.0.mappings().into_iter().filter_map(|mapping| {
            let peer = mapping.peer()?;
            let mapping = super::client::port_mapping(mapping.program, mapping.version, &peer)?;
            Some(PortMappingEntry { mapping })
        });
        Ok(mappings.collect())
    }

    async fn callit(&self, caller: &Principal, call: PortCall) -> Result<PortCallResult, Refusal> {
        let call = Forwarded {
            procedure: Procedure {
                program: call.program_number,
                version: call.version_number,
                number: call.procedure_number,
            },
            arguments: call.arguments,
            indirect: false,
        };
        let (at, results) = self.0.forward(caller, Asked::Two, call).await?;
        let port = at.socket_address().map_or(0, |address| address.port());
        Ok(PortCallResult {
            port: port.into(),
            results,
        })
    }
}

impl Shared {
    fn register(&self, caller: &Principal, asked: Asked, wanted: &Rpcb) -> Result<bool, Refusal> {
        local_only(caller)?;
        let at = registrable(&wanted.netid.to_string(), &wanted.address.to_string());
        let Some(at) = at else {
            return Ok(false);
        };
        let set = self.set(caller, wanted.program_number, wanted.version_number, at);
        if set {
            self.counting().set(asked);
        }
        Ok(set)
    }

    fn forget(&self, caller: &Principal, asked: Asked, wanted: &Rpcb) -> Result<bool, Refusal> {
        local_only(caller)?;
        let (program, version) = (wanted.program_number, wanted.version_number);
        let is_meant = |netid: &str| wanted.netid.is_empty() || wanted.netid == *netid;
        let unset = self.unset(caller, program, version, is_meant);
        if unset {
            self.counting().unset(asked);
        }
        Ok(unset)
    }

    fn look_up(&self, caller: &Principal, asked: Asked, wanted: &Rpcb, any_version: bool) -> Text {
        let named = wanted.netid.to_string();
        let netid = asked_netid(caller, &named);
        let of = (wanted.program_number, wanted.version_number);
        let found = self.find(of.0, of.1, netid, any_version);
        self.counting().looked_up(asked, of, netid, found.is_some());
        match found {
            Some(at) => universal_address(&merged(&at, caller.origin.as_ref())).into(),
            None => Text::default(),
        }
    }

    fn entries(&self) -> Vec<RpcbEntry> {
        let mappings = self.mappings().into_iter().map(|mapping| Rpcb {
            program_number: mapping.program,
            version_number: mapping.version,
            netid: mapping.netid.into(),
            address: mapping.address.into(),
            owner: mapping.owner.into(),
        });
        mappings.map(|mapping| RpcbEntry { mapping }).collect()
    }

    async fn pass(
        &self,
        caller: &Principal,
        asked: Asked,
        call: RemoteCall,
        indirect: bool,
    ) -> Result<RemoteResult, Refusal> {
        let call = Forwarded {
            procedure: Procedure {
                program: call.program_number,
                version: call.version_number,
                number: call.procedure_number,
            },
            arguments: call.arguments,
            indirect,
        };
        let (at, results) = self.forward(caller, asked, call).await?;
        Ok(RemoteResult {
            address: universal_address(&at).into(),
            results,
        })
    }

    /// All addresses of a version, in the caller's family of networks.
    fn descriptions(&self, caller: &Principal, wanted: &Rpcb) -> Vec<AddressDescriptionEntry> {
        let origin = caller.origin.as_ref();
        let family = origin.map(|origin| family(netid(&origin.peer)));
        let all = self.find_all(wanted.program_number, wanted.version_number);
        let all = all.into_iter().map(|at| describe(&merged(&at, origin)));
        let of_family = all.filter(|each| family.is_none_or(|family| each.family == *family));
        of_family
            .map(|description| AddressDescriptionEntry { description })
            .collect()
    }
}

impl rpcbind_3::Server for Three {
    async fn nothing(&self, _: &Principal) -> Result<(), Refusal> {
        Ok(())
    }

    async fn set(&self, caller: &Principal, wanted: Rpcb) -> Result<bool, Refusal> {
        self.0.register(caller, Asked::Three, &wanted)
    }

    async fn unset(&self, caller: &Principal, wanted: Rpcb) -> Result<bool, Refusal> {
        self.0.forget(caller, Asked::Three, &wanted)
    }

    async fn getaddr(&self, caller: &Principal, wanted: Rpcb) -> Result<Text, Refusal> {
        Ok(self.0.look_up(caller, Asked::Three, &wanted, true))
    }

    async fn dump(&self, _: &Principal) -> Result<Vec<RpcbEntry>, Refusal> {
        Ok(self.0.entries())
    }

    async fn callit(&self, caller: &Principal, call: RemoteCall) -> Result<RemoteResult, Refusal> {
        self.0.pass(caller, Asked::Three, call, false).await
    }

    async fn gettime(&self, _: &Principal) -> Result<u32, Refusal> {
        Ok(seconds())
    }

    async fn uaddr2_taddr(
        &self,
        caller: &Principal,
        address: Text,
    ) -> Result<TransportAddress, Refusal> {
        Ok(transport_address(caller, &address))
    }

    async fn taddr2_uaddr(
        &self,
        _: &Principal,
        address: TransportAddress,
    ) -> Result<Text, Refusal> {
        Ok(text_of(&address.bytes).into())
    }
}

impl rpcbind_4::Server for Four {
    async fn nothing(&self, _: &Principal) -> Result<(), Refusal> {
        Ok(())
    }

    async fn set(&self, caller: &Principal, wanted: Rpcb) -> Result<bool, Refusal> {
        self.0.register(caller, Asked::Four, &wanted)
    }

    async fn unset(&self, caller: &Principal, wanted: Rpcb) -> Result<bool, Refusal> {
        self.0.forget(caller, Asked::Four, &wanted)
    }

    async fn getaddr(&self, caller: &Principal, wanted: Rpcb) -> Result<Text, Refusal> {
        Ok(self.0.look_up(caller, Asked::Four, &wanted, true))
    }

    async fn dump(&self, _: &Principal) -> Result<Vec<RpcbEntry>, Refusal> {
        Ok(self.0.entries())
    }

    async fn bcast(&self, caller: &Principal, call: RemoteCall) -> Result<RemoteResult, Refusal> {
        self.0.pass(caller, Asked::Four, call, false).await
    }

    async fn gettime(&self, _: &Principal) -> Result<u32, Refusal> {
        Ok(seconds())
    }

    async fn uaddr2_taddr(
        &self,
        caller: &Principal,
        address: Text,
    ) -> Result<TransportAddress, Refusal> {
        Ok(transport_address(caller, &address))
    }

    async fn taddr2_uaddr(
        &self,
        _: &Principal,
        address: TransportAddress,
    ) -> Result<Text, Refusal> {
        Ok(text_of(&address.bytes).into())
    }

    async fn getversaddr(&self, caller: &Principal, wanted: Rpcb) -> Result<Text, Refusal> {
        Ok(self.0.look_up(caller, Asked::Four, &wanted, false))
    }

    async fn indirect(
        &self,
        caller: &Principal,
        call: RemoteCall,
    ) -> Result<RemoteResult, Refusal> {
        self.0.pass(caller, Asked::Four, call, true).await
    }

    async fn getaddrlist(
        &self,
        caller: &Principal,
        wanted: Rpcb,
    ) -> Result<Vec<AddressDescriptionEntry>, Refusal> {
        Ok(self.0.descriptions(caller, &wanted))
    }

    async fn getstat(&self, _: &Principal) -> Result<StatisticsOfVersions, Refusal> {
        Ok(self.0.counting().now())
    }
}

/// The seconds since 1970, as long as they fit.
fn seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
    })
}

fn family(netid: &str) -> &'static str {
    match netid {
        "tcp" | "udp" => "inet",
        "tcp6" | "udp6" => "inet6",
        _ => "loopback",
    }
}

fn describe(at: &Peer) -> AddressDescription {
    const WITHOUT_CONNECTIONS: u32 = 1;
    const ORDERLY: u32 = 3;
    let netid = netid(at);
    let (semantics, protocol) = match at {
        Peer::Udp(_) => (WITHOUT_CONNECTIONS, "udp"),
        Peer::Tcp(_) => (ORDERLY, "tcp"),
        Peer::Unix(_) => (ORDERLY, "-"),
    };
    AddressDescription {
        address: universal_address(at).into(),
        netid: netid.into(),
        semantics,
        family: family(netid).into(),
        protocol: protocol.into(),
    }
}

/// How long the system's structures for addresses are.
const SOCKADDR_IN: usize = 16;
const SOCKADDR_UN: usize = 110;
const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A universal address of the caller's network as Linux has it in memory; nothing, if it is none.
fn transport_address(caller: &Principal, address: &Text) -> TransportAddress {
    let netid = asked_netid(caller, "");
    let mut bytes = BytesMut::new();
    match parse(netid, &address.to_string()) {
        Some(Peer::Tcp(SocketAddr::V4(address)) | Peer::Udp(SocketAddr::V4(address))) => {
            bytes.put_u16_ne(AF_INET);
            bytes.put_u16(address.port());
            bytes.put_slice(&address.ip().octets());
            bytes.put_bytes(0, SOCKADDR_IN - bytes.len());
        }
        Some(Peer::Tcp(SocketAddr::V6(address)) | Peer::Udp(SocketAddr::V6(address))) => {
            bytes.put_u16_ne(AF_INET6);
            bytes.put_u16(address.port());
            bytes.put_u32(address.flowinfo());
            bytes.put_slice(&address.ip().octets());
            bytes.put_u32_ne(address.scope_id());
        }
        Some(Peer::Unix(_)) if address.len() < SOCKADDR_UN - 2 => {
            bytes.put_u16_ne(AF_UNIX);
            bytes.put_slice(address);
            bytes.put_bytes(0, SOCKADDR_UN - bytes.len());
        }
        Some(Peer::Unix(_)) | None => {}
    }
    TransportAddress {
        // A few bytes.
        max_length: bytes.len() as u32,
        bytes: bytes.freeze(),
    }
}

/// The universal address of an address as Linux has it in memory; empty, if it is none.
fn text_of(bytes: &[u8]) -> String {
    let Some((family, rest)) = bytes.split_first_chunk() else {
        return String::new();
    };
    let port_and =
        |rest: &[u8]| -> Option<u16> { rest.first_chunk().copied().map(u16::from_be_bytes) };
    let address: Option<SocketAddr> = match u16::from_ne_bytes(*family) {
        AF_INET => port_and(rest).and_then(|port| {
            let ip: [u8; 4] = *rest.get(2..)?.first_chunk()?;
            Some((ip, port).into())
        }),
        AF_INET6 => port_and(rest).and_then(|port| {
            let ip: [u8; 16] = *rest.get(6..)?.first_chunk()?;
            Some((ip, port).into())
        }),
        AF_UNIX => {
            let path = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            return String::from_utf8_lossy(path).into_owned();
        }
        _ => None,
    };
    address.map_or_else(String::new, |address| {
        let [high, low] = address.port().to_be_bytes();
        format!("{}.{high}.{low}", address.ip())
    })
}
