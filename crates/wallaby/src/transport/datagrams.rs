//! Datagrams from outside: what carries those of `udp:` in place of the operating system's sockets.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

/// A network that carries the datagrams of `udp:` addresses in place of the operating system's: a stack in user space, a tunnel, or
/// one that is only simulated. See [`crate::Builder::datagrams`]; for the polling driver it is
/// [`polling::Datagrams`](crate::polling::Datagrams).
///
/// Datagrams may be lost, doubled, late and damaged; the protocol repairs that. They may have up to 65,507 bytes.
pub trait DatagramNetwork: Send + Sync + 'static {
    /// A socket at this address: of port 0 for any port, of an unspecified IP address for one from which others are dialled. It is
    /// called on a thread of the endpoint's runtime, and must not wait.
    ///
    /// # Errors
    ///
    /// If there can be none.
    fn bind(&self, at: SocketAddr) -> io::Result<Box<dyn DatagramSocket>>;
}

/// A socket of such a network. One task receives from it, any thread sends, one at a time. Dropped when its endpoint is closed.
/// Its methods must not wait, nor call or drop their endpoint: that hangs.
pub trait DatagramSocket: Send + Sync + fmt::Debug {
    /// Where others reach it.
    fn local(&self) -> SocketAddr;

    /// Receives the next datagram into `buffer`, which has room for any: how many bytes it has, and who sent it.
    ///
    /// # Errors
    ///
    /// News of a datagram that was sent. It is called again at once, and after many errors in a row every 20 ms, until it is pending or
    /// receives something: a socket that is broken for good should stay pending.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>>;

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room now: it is sent again later. Any other error counts as a datagram that was lost.
    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()>;

    /// Ready when there may be room again, after a datagram for which there was none. Only the task that receives waits for it.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Where a datagram that was sent could not be delivered, as the network says, each told once; `None` if there is no such news.
    fn take_unreachable(&self) -> Option<SocketAddr> {
        None
    }
}
