//! UDP sockets, registered for reading only, as stream sockets are.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::datagrams::DatagramSocket;
pub(crate) use super::inbox::Inbox;
pub(crate) use super::outbox::Outbox;
use super::{Transports, bare};
use crate::panics::{carried, polled};

/// A nonblocking UDP socket that is not bound to a peer.
#[derive(Debug)]
pub(crate) enum Socket {
    System(System),
    Foreign(Box<dyn DatagramSocket>),
}

/// One of the operating system's.
#[derive(Debug)]
pub(crate) struct System {
    socket: AsyncFd<UdpSocket>,
    local: SocketAddr,
    /// Registered for writing, while the socket is full.
    full: Mutex<Option<AsyncFd<UdpSocket>>>,
}

impl Socket {
    /// A socket at this address, as these say; port 0 for any.
    pub(crate) fn bind(at: SocketAddr, transports: &Transports) -> io::Result<Self> {
        let foreign = || -> Option<io::Result<Box<dyn DatagramSocket>>> {
            if let Some(network) = transports.network() {
                return Some(network.bind(at));
            }
            #[cfg(feature = "turmoil")]
            if turmoil::in_simulation() {
                let socket = super::simulated::Socket::bind(at);
                return Some(socket.map(|socket| Box::new(socket) as _));
            }
            None
        };
        let one_by_one = || {
            let system = || System::bind(at, false).map(|socket| Box::new(socket) as _);
            foreign().unwrap_or_else(system)
        };
        match transports.wrap_datagrams(one_by_one).or_else(foreign) {
            Some(socket) => socket.map(Self::Foreign),
            None => System::bind(at, true).map(Self::System),
        }
    }

    /// A socket from which this address can be reached.
    pub(crate) fn towards(to: SocketAddr, transports: &Transports) -> io::Result<Self> {
        let any = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        Self::bind(any, transports)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            Self::System(socket) => socket.local,
            Self::Foreign(socket) => socket.local(),
        }
    }

    /// Where what is sent through it is gathered.
    pub(crate) fn outbox(&self) -> Outbox {
        match self {
            Self::System(socket) => Outbox::new(socket.socket.get_ref()),
            Self::Foreign(_) => Outbox::unjoined(),
        }
    }

    /// Receives the next datagrams, as many as there are.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        inbox: &mut Inbox,
    ) -> Poll<io::Result<()>> {
        match self {
            Self::System(socket) => socket.poll_receive(cx, inbox),
            Self::Foreign(socket) => inbox.put(|room| polled(|| socket.poll_receive(cx, room))),
        }
    }

    /// Sends what was gathered. `WouldBlock` if there is no room now: the rest is still there.
    pub(crate) fn send_all(&self, outbox: &mut Outbox) -> io::Result<()> {
        match self {
            Self::System(socket) => outbox.send(socket.socket.get_ref()),
            Self::Foreign(socket) => {
                outbox.send_each(|datagram, to| carried(|| socket.try_send(datagram, to)))
            }
        }
    }

    /// Ready when something may fit again; only after a datagram that did not fit.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::System(socket) => socket.poll_writable(cx),
            Self::Foreign(socket) => polled(|| socket.poll_writable(cx)),
        }
    }

    /// Where a datagram of this socket could not be delivered, as the network says; `None` if there is no such news.
    pub(crate) fn take_unreachable(&self) -> Option<SocketAddr> {
        match self {
            Self::System(socket) => socket.take_unreachable(),
            Self::Foreign(socket) => carried(|| Ok(socket.take_unreachable())).ok()?,
        }
    }
}

impl System {
    /// With `joined`, several datagrams may be received as one.
    fn bind(address: SocketAddr, joined: bool) -> io::Result<Self> {
        let socket = bare::bind(address, joined)?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
            local,
            full: Mutex::default(),
        })
    }

    fn poll_receive(&self, cx: &mut Context<'_>, inbox: &mut Inbox) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match inbox.receive(ready.get_inner(), libc::MSG_DONTWAIT) {
                Ok(more) => {
                    if !more {
                        ready.clear_ready(); // so that nobody has to ask the system once more
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        if full.is_none() {
            let again = self.socket.get_ref().try_clone()?;
            *full = Some(register(again, Interest::WRITABLE)?);
        }
        if let Some(registered) = full.as_ref() {
            ready!(registered.poll_write_ready(cx))?.clear_ready();
        }
        *full = None;
        Poll::Ready(Ok(()))
    }

    fn take_unreachable(&self) -> Option<SocketAddr> {
        bare::take_unreachable(self.socket.get_ref())
    }
}

/// For who sees each datagram: see [`super::Wrap`].
impl DatagramSocket for System {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match ready.get_inner().recv_from(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return Poll::Ready(received),
            }
        }
    }

    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        bare::send(self.socket.get_ref(), datagram, to)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_writable(self, cx)
    }

    fn take_unreachable(&self) -> Option<SocketAddr> {
        Self::take_unreachable(self)
    }
}

fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: a `UdpSocket` owns its file descriptor, which stays open and the same until the `AsyncFd` that owns the
    // `UdpSocket` is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}
