//! A UDP socket that knows to which of the machine's addresses a datagram came, and answers from there.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use crate::udp::{self, Bound, Way};

pub(in crate::server) struct Socket {
    socket: udp::Socket,
    bound: Bound,
}

impl Socket {
    pub(in crate::server) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let bound = Bound::new(&socket, address, socket.local_addr()?)?;
        let socket = udp::Socket::new(socket)?;
        Ok(Self { socket, bound })
    }

    pub(in crate::server) fn local_addr(&self) -> SocketAddr {
        self.bound.local_addr()
    }

    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
        let receive = |socket: &UdpSocket| self.bound.receive(socket, buffer);
        self.socket.receive(receive).await
    }

    /// Sends at once, if there is room.
    pub(super) fn try_send(&self, datagram: &[u8], way: Way) -> io::Result<()> {
        self.bound.send(self.socket.get_ref(), datagram, way)
    }

    pub(super) async fn send(&self, datagram: &[u8], way: Way) -> io::Result<()> {
        let send = |socket: &UdpSocket| self.bound.send(socket, datagram, way);
        self.socket.send(send).await
    }
}
