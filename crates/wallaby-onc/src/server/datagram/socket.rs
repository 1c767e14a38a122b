//! A UDP socket that knows to which of the machine's addresses a datagram came, and answers from there.

use std::io;
use std::net::SocketAddr;

use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::udp::{Bound, Way};

pub(in crate::server) struct Socket {
    socket: UdpSocket,
    bound: Bound,
}

impl Socket {
    pub(in crate::server) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        let bound = Bound::new(&socket, address, socket.local_addr()?)?;
        Ok(Self { socket, bound })
    }

    pub(in crate::server) fn local_addr(&self) -> SocketAddr {
        self.bound.local_addr()
    }

    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
        let receive = || self.bound.receive(&self.socket, buffer);
        self.socket.async_io(Interest::READABLE, receive).await
    }

    pub(super) async fn send(&self, datagram: &[u8], way: Way) -> io::Result<()> {
        let send = || self.bound.send(&self.socket, datagram, way);
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}
