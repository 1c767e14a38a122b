//! To which of the machine's addresses a datagram came, so that its reply leaves from there.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use nix::cmsg_space;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};

/// The way of a datagram, which its reply takes back: clients don't take a reply from another address than they called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// A socket bound to this address is to tell of the ways of its datagrams.
pub(crate) fn ask_for_ways(socket: &impl AsFd, bound: SocketAddr) -> io::Result<()> {
    match bound {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

/// Receives a datagram on a socket that is bound to `local`, and tells of ways.
pub(crate) fn receive(
    socket: &impl AsRawFd,
    local: SocketAddr,
    buffer: &mut [u8],
) -> io::Result<(usize, Way)> {
    let mut parts = [IoSliceMut::new(buffer)];
    // Linux gives either; a socket for IPv6 gets datagrams over IPv4 with addresses that are mapped.
    let mut told = cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut told),
        MsgFlags::empty(),
    )?;
    let peer = received.address.as_ref().and_then(peer_address);
    let peer = peer.ok_or_else(|| io::Error::other("a datagram without an address"))?;
    let mut local = local;
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                let octets = info.ipi_spec_dst.s_addr.to_ne_bytes();
                local.set_ip(IpAddr::from(octets));
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                local.set_ip(IpAddr::from(info.ipi6_addr.s6_addr));
            }
            _ => {}
        }
    }
    Ok((received.bytes, Way { peer, local }))
}

/// Sends a datagram back on its way.
pub(crate) fn send(socket: &impl AsRawFd, datagram: &[u8], way: Way) -> io::Result<()> {
    let to = SockaddrStorage::from(way.peer);
    let parts = [IoSlice::new(datagram)];
    let descriptor = socket.as_raw_fd();
    let send = |from: &[ControlMessage<'_>]| {
        sendmsg(descriptor, &parts, from, MsgFlags::empty(), Some(&to))
    };
    // The system picks the interface.
    match way.local.ip() {
        IpAddr::V4(local) => {
            let address = libc::in_addr {
                s_addr: u32::from_ne_bytes(local.octets()),
            };
            send(&[ControlMessage::Ipv4PacketInfo(&libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: address,
                ipi_addr: libc::in_addr { s_addr: 0 },
            })])
        }
        IpAddr::V6(local) => send(&[ControlMessage::Ipv6PacketInfo(&libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr {
                s6_addr: local.octets(),
            },
            ipi6_ifindex: 0,
        })]),
    }?;
    Ok(())
}

fn peer_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(address), _) => Some((*address).into()),
        (_, Some(address)) => Some((*address).into()),
        _ => None,
    }
}
