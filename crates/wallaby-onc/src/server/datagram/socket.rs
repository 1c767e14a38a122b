//! A UDP socket that knows to which of the machine's addresses a datagram came, and answers from there.

use std::io;
use std::net::SocketAddr;

use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::udp::{self, Way};

pub(in crate::server) struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
}

impl Socket {
    pub(in crate::server) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        udp::ask_for_ways(&socket, address)?;
        let local = socket.local_addr()?;
        Ok(Self { socket, local })
    }

    pub(in crate::server) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
        let receive = || udp::receive(&self.socket, self.local, buffer);
        self.socket.async_io(Interest::READABLE, receive).await
    }

    pub(super) async fn send(&self, datagram: &[u8], way: Way) -> io::Result<()> {
        let send = || udp::send(&self.socket, datagram, way);
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}
