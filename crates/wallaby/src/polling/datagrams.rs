//! What an endpoint sends and receives by: datagrams, a way to wait for them, and the time.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Something that carries datagrams and tells the time: a UDP socket ([`Udp`](super::Udp)), or in its place a network stack in user
/// space, or a network that is only simulated, with a clock to fit.
///
/// Datagrams may be lost, doubled, late and damaged; the protocol repairs that. They may have up to 65,507 bytes.
pub trait Datagrams {
    /// The time since any fixed moment. It never goes backwards.
    fn now(&self) -> Duration;

    /// Where others reach it.
    fn local(&self) -> SocketAddr;

    /// Hands over a datagram to be sent.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room now: it is handed over again later. Any other error counts as a datagram that was
    /// lost.
    fn send(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()>;

    /// As [`send`](Self::send), but more is most likely sent at once: it may be kept until [`flush`](Self::flush), so that several
    /// leave together. Nothing is kept by default.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    fn gather(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send(datagram, to)
    }

    /// Sends what was kept.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room now: what is left is still kept, and nothing is sent or gathered before this is called
    /// again. Any other error counts as datagrams that were lost.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Receives as many datagrams as are there, but may stop at a [`batch`](Self::batch); if there are none, waits for the first
    /// one for at most `wait`, and may return earlier. If something was not sent for want of room (`full`), it need not wait
    /// longer than until there may be room again. Returns how many there are.
    ///
    /// # Errors
    ///
    /// If nothing can be received any more.
    fn receive(&mut self, wait: Duration, full: bool) -> io::Result<usize>;

    /// Fewer datagrams than this say that no more were there.
    fn batch(&self) -> usize;

    /// One of the datagrams that were received last, and who sent it; `None` if there are not so many.
    fn received(&self, index: usize) -> Option<(&[u8], SocketAddr)>;

    /// What becomes readable when datagrams arrive, and writable when there is room again: endpoints that have streams, too,
    /// wait for it beside them, and then receive without waiting. Without one (the default) such endpoints look for
    /// datagrams every millisecond.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Where a datagram that was sent could not be delivered, as the network says; `None` if there is no such news.
    fn take_unreachable(&mut self) -> Option<SocketAddr> {
        None
    }
}
