//! What streams go through: the operating system's sockets, nonblocking, or shared memory; and where they come in.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use bytes::BytesMut;
use wallaby_proto::Address;

use crate::error::BindError;
use crate::transport::shm::turned::{self, Connection};
use crate::transport::{Identity, SocketFile, bare, connecting, listen_unix, receive};

/// What the bytes of a stream go through.
#[derive(Debug)]
pub(super) enum Channel {
    Socket(Socket),
    Memory(Box<Connection>),
}

impl Channel {
    /// Begins a connection to an address, whose rings hold so many bytes if it is one over shared memory; whether it is there
    /// already. `None` if no transport here has its scheme.
    pub(super) fn dial(to: &Address, ring: usize) -> Option<io::Result<(Self, bool)>> {
        let socket = |(socket, connected)| (Self::Socket(Socket(socket)), connected);
        let memory = |connection| (Self::Memory(Box::new(connection)), false);
        Some(match to {
            Address::Tcp(to) => connecting::tcp(*to).and_then(|begun| {
                hurry(&begun.0)?;
                Ok(socket(begun))
            }),
            Address::Unix(path) => connecting::unix(Path::new(&**path)).map(socket),
            Address::Shm(path) => Connection::dial(Path::new(&**path), ring).map(memory),
            named if named.has_host_name() => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a polling endpoint looks up no names, which may take long: give it the IP address",
            )),
            _ => return None,
        })
    }

    /// What becomes ready as the connection does, or ends; over a socket, whenever there is something to do.
    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Self::Socket(socket) => socket.descriptor(),
            Self::Memory(connection) => connection.life(),
        }
    }

    /// Appends what is there, as far as it fits the spare room of `input`; zero bytes mean that nothing more comes.
    pub(super) fn read(&mut self, input: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.read(input),
            Self::Memory(connection) => connection.read(input),
        }
    }

    /// Writes as much as fits now.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.write(bytes),
            Self::Memory(connection) => connection.write(bytes),
        }
    }

    /// Ends the connection in both directions; what was written still arrives.
    pub(super) fn shut_down(&mut self) {
        match self {
            Self::Socket(socket) => socket.shut_down(),
            Self::Memory(connection) => connection.shut_down(),
        }
    }
}

/// A connection of the system's.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// What has become of a connection that was begun: an error, or none.
    pub(super) fn take_error(&self) -> io::Result<()> {
        match bare::take_error(self.descriptor())? {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    fn read(&self, input: &mut BytesMut) -> io::Result<usize> {
        receive(self.descriptor(), input)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the bytes are read during the call only, and there are so many.
        let written =
            unsafe { libc::send(self.descriptor(), bytes.as_ptr().cast(), bytes.len(), flags) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn shut_down(&self) {
        // SAFETY: the call takes numbers only. An error means that the peer was faster.
        let _ = unsafe { libc::shutdown(self.descriptor(), libc::SHUT_RDWR) };
    }

    fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Small messages leave at once. Acknowledgements go along with data or wait for the kernel's timer: where messages flow in
/// one direction, one for each would cost as much as the message.
fn hurry(socket: &OwnedFd) -> io::Result<()> {
    let (on, off): (libc::c_int, libc::c_int) = (1, 0);
    let socket = socket.as_raw_fd();
    bare::set_option(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, on)?;
    bare::set_option(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, off)
}

/// Where connections come in.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix {
        // Removed first: once nobody listens, another endpoint may put its own there.
        _file: SocketFile,
        listener: UnixListener,
        /// Who connects is to offer memory.
        memory: bool,
    },
}

impl Listener {
    /// Listens; returns the address as others see it.
    pub(super) fn bind(address: &Address) -> Result<(Self, Address), BindError> {
        let failed = |source| BindError::Listen {
            address: address.clone(),
            source,
        };
        match address {
            Address::Tcp(socket) => {
                let (listener, socket) = bind_tcp(*socket).map_err(failed)?;
                Ok((Self::Tcp(listener), Address::Tcp(socket)))
            }
            Address::Unix(path) | Address::Shm(path) => {
                let path = Path::new(&**path);
                let memory = matches!(address, Address::Shm(_));
                let listener = match memory {
                    true => listen_unix(path, turned::listen).map(UnixListener::from),
                    false => listen_unix(path, UnixListener::bind),
                };
                let listener = listener.map_err(failed)?;
                let file = SocketFile::new(path);
                listener.set_nonblocking(true).map_err(failed)?;
                let listener = Self::Unix {
                    listener,
                    _file: file,
                    memory,
                };
                Ok((listener, address.clone()))
            }
            _ => Err(BindError::NoTransport {
                address: address.clone(),
            }),
        }
    }

    /// The next connection, and who that is; `WouldBlock` if there is none.
    pub(super) fn accept(&self) -> io::Result<(Channel, Identity)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nonblocking(true)?;
                let socket = OwnedFd::from(stream);
                hurry(&socket)?;
                let channel = Channel::Socket(Socket(socket));
                Ok((channel, Identity::default().at(from)))
            }
            Self::Unix {
                listener, memory, ..
            } => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                let channel = match memory {
                    true => Channel::Memory(Box::new(Connection::accepted(stream.into()))),
                    false => Channel::Socket(Socket(stream.into())),
                };
                Ok((channel, Identity::default()))
            }
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Self::Tcp(listener) => listener.as_raw_fd(),
            Self::Unix { listener, .. } => listener.as_raw_fd(),
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}
