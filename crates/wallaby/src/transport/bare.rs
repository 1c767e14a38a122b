//! The operating system's sockets: options, how UDP sockets are set up, and what the network says of datagrams that were sent.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

/// What the kernel is asked to keep until it is read, in bytes; it may give less.
const RECEIVE_BUFFER: libc::c_int = 4 * 1024 * 1024;

/// Most news in a row that are looked through for one that matters.
const NEWS: usize = 64;

/// A socket at this address; port 0 for any. With `joined`, what it receives may be several datagrams: see [`super::inbox::Inbox`].
pub(crate) fn bind(address: SocketAddr, joined: bool) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let number = socket.as_raw_fd();
    set_option(number, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
    // Several of one sender come as one, where the kernel can do that: see `Inbox`.
    let on: libc::c_int = 1;
    if joined {
        let _ = set_option(number, libc::SOL_UDP, libc::UDP_GRO, on);
    }
    // What routers and hosts say of datagrams that cannot be delivered is kept: see `take_unreachable`.
    match socket.local_addr()? {
        SocketAddr::V4(_) => set_option(number, libc::IPPROTO_IP, libc::IP_RECVERR, on)?,
        SocketAddr::V6(_) => set_option(number, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, on)?,
    }
    Ok(socket)
}

/// Sends a datagram.
pub(crate) fn send(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
    match socket.send_to(datagram, to) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            // The error may be one of a datagram sent before; it is told once.
            socket.send_to(datagram, to).map(drop)
        }
        result => result.map(drop),
    }
}

/// Where a datagram of this socket could not be delivered, as the network says; `None` if there is no such news.
pub(crate) fn take_unreachable(socket: &UdpSocket) -> Option<SocketAddr> {
    for _ in 0..NEWS {
        // Other news are of the datagram's size, for example.
        if let (Some(to), true) = receive_news(socket.as_raw_fd())? {
            return Some(to);
        }
    }
    None
}

pub(crate) fn set_option<T>(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is read during the call only, and it is as long as the call says.
    let result = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// What has gone wrong with a socket since it was asked last.
pub(crate) fn take_error(socket: RawFd) -> io::Result<Option<io::Error>> {
    let mut number: libc::c_int = 0;
    let mut len = size_of_val(&number) as libc::socklen_t;
    // SAFETY: both outlive the call, which writes at most so many bytes.
    let done = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut number).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((number != 0).then(|| io::Error::from_raw_os_error(number)))
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

/// Writes an address as the system wants it; how long it is.
pub(crate) fn put_address(name: &mut libc::sockaddr_storage, to: SocketAddr) -> libc::socklen_t {
    match to {
        SocketAddr::V4(to) => {
            // SAFETY: `sockaddr_storage` is large enough and aligned for each, and zero bytes are valid for it.
            let name = unsafe { &mut *(&raw mut *name).cast::<libc::sockaddr_in>() };
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_port = to.port().to_be();
            name.sin_addr.s_addr = to.ip().to_bits().to_be();
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(to) => {
            // SAFETY: as above.
            let name = unsafe { &mut *(&raw mut *name).cast::<libc::sockaddr_in6>() };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = to.port().to_be();
            name.sin6_addr.s6_addr = to.ip().octets();
            name.sin6_flowinfo = to.flowinfo();
            name.sin6_scope_id = to.scope_id();
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// What the system has written as an address.
pub(crate) fn address(to: &libc::sockaddr_storage) -> Option<SocketAddr> {
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
