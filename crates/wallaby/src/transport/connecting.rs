//! Stream sockets that are connected without waiting for it.

use std::io;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// A nonblocking socket and whether it is connected: if not, it is writable once that is decided.
pub(crate) type Connecting = (OwnedFd, bool);

/// Begins a TCP connection.
pub(crate) fn tcp(to: SocketAddr) -> io::Result<Connecting> {
    // SAFETY: a plain C structure for which zero bytes are valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let (family, len) = match to {
        SocketAddr::V4(to) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(to.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is large enough and aligned for any address.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(v4) };
            (libc::AF_INET, size_of_val(&v4))
        }
        SocketAddr::V6(to) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: to.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: to.ip().octets(),
                },
                sin6_scope_id: to.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in6>().write(v6) };
            (libc::AF_INET6, size_of_val(&v6))
        }
    };
    // SAFETY: `name` holds an address of this length.
    unsafe { connect(family, (&raw const name).cast(), len) }
}

/// Begins a connection to a unix socket. It is decided at once; one whose queue is full is `WouldBlock`.
pub(crate) fn unix(path: &Path) -> io::Result<Connecting> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: a plain C structure for which zero bytes are valid.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let path = path.as_os_str().as_bytes();
    if path.len() >= name.sun_path.len() {
        let why = "the path is longer than that of a socket may be";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (place, byte) in name.sun_path.iter_mut().zip(path) {
        *place = *byte as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1;
    // SAFETY: `name` holds an address of this length.
    unsafe { connect(libc::AF_UNIX, (&raw const name).cast(), len) }
}

/// Whether a unix socket's file is there and nobody listens on it any more.
pub(crate) fn is_abandoned(path: &Path) -> bool {
    unix(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// # Safety
///
/// `name` must point to an address of this family and length.
unsafe fn connect(
    family: libc::c_int,
    name: *const libc::sockaddr,
    len: usize,
) -> io::Result<Connecting> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: this call takes numbers only.
    let socket = unsafe { libc::socket(family, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is a descriptor that was opened above, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the caller vouches for `name`, which is only read during the call.
    if unsafe { libc::connect(socket.as_raw_fd(), name, len as libc::socklen_t) } == 0 {
        return Ok((socket, true));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINPROGRESS | libc::EINTR) => Ok((socket, false)),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_file_without_a_listener_is_abandoned() {
        let name = format!("wallaby-connecting-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        assert!(!is_abandoned(&path), "there is no file");
        std::fs::write(&path, "").expect("a file");
        // The system says the same of a file that is no socket: who asks has to look.
        assert!(is_abandoned(&path));
        std::fs::remove_file(&path).expect("it is there");
        let listener = UnixListener::bind(&path).expect("a socket");
        assert!(!is_abandoned(&path));
        drop(listener);
        assert!(is_abandoned(&path));
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let error = unix(Path::new(&"x".repeat(200))).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn both_families_are_dialled() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue; // there is no IPv6 here
            };
            let address = listener.local_addr().expect("it is bound");
            let (socket, _) = tcp(address).expect("it begins");
            let stream = std::net::TcpStream::from(socket);
            let (_, from) = listener.accept().expect("it comes");
            assert_eq!(stream.local_addr().expect("it has one"), from);
        }
    }
}
