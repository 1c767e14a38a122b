//! UDP sockets, registered for reading only, as stream sockets are.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What the kernel is asked to keep until it is read, in bytes; it may give less.
const RECEIVE_BUFFER: libc::c_int = 4 * 1024 * 1024;

/// A nonblocking UDP socket that is not bound to a peer.
#[derive(Debug)]
pub(crate) enum Socket {
    System(System),
    #[cfg(feature = "turmoil")]
    Simulated(super::simulated::Socket),
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
    /// A socket at this address; port 0 for any.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "turmoil")]
        if turmoil::in_simulation() {
            return super::simulated::Socket::bind(address).map(Self::Simulated);
        }
        System::bind(address).map(Self::System)
    }

    /// A socket from which this address can be reached.
    pub(crate) fn towards(to: SocketAddr) -> io::Result<Self> {
        Self::bind(match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        })
    }

    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            Self::System(socket) => socket.local,
            #[cfg(feature = "turmoil")]
            Self::Simulated(socket) => socket.local(),
        }
    }

    /// Whether datagrams of this socket may get to this address.
    pub(crate) fn reaches(&self, to: SocketAddr) -> bool {
        let (here, there) = (self.local().ip(), to.ip());
        here.is_ipv4() == there.is_ipv4()
            && (here.is_unspecified() || here.is_loopback() == there.is_loopback())
    }

    /// The next datagram: its length and its sender.
    pub(crate) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        match self {
            Self::System(socket) => socket.poll_receive(cx, buffer),
            #[cfg(feature = "turmoil")]
            Self::Simulated(socket) => socket.poll_receive(cx, buffer),
        }
    }

    /// Sends a datagram.
    pub(crate) fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        match self {
            Self::System(socket) => socket.send(datagram, to),
            #[cfg(feature = "turmoil")]
            Self::Simulated(socket) => socket.send(datagram, to),
        }
    }

    /// Ready when something may fit again; only after a datagram that did not fit.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::System(socket) => socket.poll_writable(cx),
            #[cfg(feature = "turmoil")]
            Self::Simulated(_) => Poll::Ready(Ok(())),
        }
    }

    /// Where a datagram of this socket could not be delivered, as the network says; `None` if there is no such news.
    pub(crate) fn take_unreachable(&self) -> Option<SocketAddr> {
        match self {
            Self::System(socket) => socket.take_unreachable(),
            #[cfg(feature = "turmoil")]
            Self::Simulated(_) => None,
        }
    }
}

impl System {
    fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        set_option(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            RECEIVE_BUFFER,
        )?;
        // What routers and hosts say of datagrams that cannot be delivered is kept: see `poll_unreachable`.
        match local {
            SocketAddr::V4(_) => {
                set_option(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
            }
            SocketAddr::V6(_) => set_option(
                socket.as_raw_fd(),
                libc::IPPROTO_IPV6,
                libc::IPV6_RECVERR,
                1,
            )?,
        }
        Ok(Self {
            socket: register(socket, Interest::READABLE)?,
            local,
            full: Mutex::default(),
        })
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match ready.get_inner().recv_from(buffer) {
                Ok(received) => return Poll::Ready(Ok(received)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        let socket = self.socket.get_ref();
        match socket.send_to(datagram, to) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // The error may be one of a datagram sent before; it is told once.
                socket.send_to(datagram, to).map(drop)
            }
            result => result.map(drop),
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
        for _ in 0..NEWS {
            // Other news are of the datagram's size, for example.
            if let (Some(to), true) = receive_news(self.socket.get_ref().as_raw_fd())? {
                return Some(to);
            }
        }
        None
    }
}

/// Most news in a row that are looked through for one that matters.
const NEWS: usize = 64;

fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: a `UdpSocket` owns its file descriptor, which stays open and the same until the `AsyncFd` that owns the
    // `UdpSocket` is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

fn set_option(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is read during the call only, and it is as long as the call says.
    let result = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// One item of the socket's queue of errors: whose datagram it is about, and whether that could not be reached.
fn receive_news(socket: RawFd) -> Option<(Option<SocketAddr>, bool)> {
    // SAFETY: all of these are plain C structures for which zero bytes are valid.
    let (mut to, mut header, mut control): (libc::sockaddr_storage, libc::msghdr, [u64; 64]) =
        unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut to).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to `to` and `control`, with their lengths, and both outlive the call.
    if unsafe { libc::recvmsg(socket, &raw mut header, flags) } < 0 {
        return None;
    }
    let mut unreachable = false;
    // SAFETY: `recvmsg` has filled in the header and what it points to; the macros stay within that.
    unsafe {
        let mut item = libc::CMSG_FIRSTHDR(&raw const header);
        while !item.is_null() {
            let kind = ((*item).cmsg_level, (*item).cmsg_type);
            if kind == (libc::IPPROTO_IP, libc::IP_RECVERR)
                || kind == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            {
                let error = libc::CMSG_DATA(item).cast::<libc::sock_extended_err>();
                let number = error.read_unaligned().ee_errno as libc::c_int;
                unreachable |= matches!(
                    number,
                    libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH
                );
            }
            item = libc::CMSG_NXTHDR(&raw const header, item);
        }
    }
    Some((address(&to), unreachable))
}

fn address(to: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(to.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is, and `sockaddr_storage` is large enough and aligned for each.
            let to = unsafe { *(&raw const *to).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(to.sin_addr.s_addr));
            Some((ip, u16::from_be(to.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let to = unsafe { *(&raw const *to).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(to.sin6_addr.s6_addr);
            Some((ip, u16::from_be(to.sin6_port)).into())
        }
        _ => None,
    }
}
