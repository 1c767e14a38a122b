//! To which of the machine's addresses a datagram came, so that its reply leaves from there.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use nix::cmsg_space;
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvfrom, recvmsg, sendmsg,
    sendto, setsockopt, sockopt,
};

/// The way of a datagram, which its reply takes back: clients don't take a reply from another address than they called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// The address that a socket is bound to: how its datagrams are received, and sent back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    local: SocketAddr,
    /// The system tells of each datagram to which address it came: there may be several.
    is_told: bool,
}

impl Bound {
    /// Of a socket that was bound to `asked`, a port that is free included.
    pub(crate) fn new(
        socket: &impl AsFd,
        asked: SocketAddr,
        local: SocketAddr,
    ) -> io::Result<Self> {
        let is_told = is_several(asked.ip());
        match asked {
            _ if !is_told => {}
            SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?,
        }
        Ok(Self { local, is_told })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Receives a datagram.
    pub(crate) fn receive(
        &self,
        socket: &impl AsRawFd,
        buffer: &mut [u8],
    ) -> io::Result<(usize, Way)> {
        if self.is_told {
            return TOLD.with_borrow_mut(|told| receive(socket, self.local, buffer, told));
        }
        let (length, peer) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), buffer)?;
        let peer = peer.as_ref().and_then(peer_address).ok_or_else(nobody)?;
        let local = self.local;
        Ok((length, Way { peer, local }))
    }

    /// Sends a datagram back on its way.
    pub(crate) fn send(&self, socket: &impl AsRawFd, datagram: &[u8], way: Way) -> io::Result<()> {
        if self.is_told {
            return send(socket, datagram, way);
        }
        let (descriptor, to) = (socket.as_raw_fd(), SockaddrStorage::from(way.peer));
        sendto(descriptor, datagram, &to, MsgFlags::empty())?;
        Ok(())
    }
}

/// Whether what comes to this address may have come to several of the machine's.
fn is_several(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    address.is_unspecified() || address.is_multicast() || is_broadcast
}

thread_local! {
    /// What the system tells of a datagram.
    static TOLD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn nobody() -> io::Error {
    io::Error::other("a datagram without an address")
}

/// Receives a datagram on a socket that tells of ways.
fn receive(
    socket: &impl AsRawFd,
    local: SocketAddr,
    buffer: &mut [u8],
    told: &mut Vec<u8>,
) -> io::Result<(usize, Way)> {
    let mut parts = [IoSliceMut::new(buffer)];
    // Linux gives either; a socket for IPv6 gets datagrams over IPv4 with addresses that are mapped.
    if told.capacity() == 0 {
        *told = cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
    }
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(told),
        MsgFlags::empty(),
    )?;
    let peer = received.address.as_ref().and_then(peer_address);
    let peer = peer.ok_or_else(nobody)?;
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

/// Sends a datagram back, from the address that it came to.
fn send(socket: &impl AsRawFd, datagram: &[u8], way: Way) -> io::Result<()> {
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
