//! What moves bytes, picked by the address's scheme: streams, and datagrams in [`udp`].
//!
//! A transport only moves bytes. Framing, handshake and credit are `wallaby_proto::connection`; over datagrams all that
//! and more is `wallaby_proto::datagram`.

pub(crate) mod bare;
pub(crate) mod connecting;
pub(crate) mod inbox;
mod mem;
pub(crate) mod outbox;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
#[cfg(feature = "turmoil")]
mod simulated;
mod socket;
pub(crate) mod udp;

use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};
use wallaby_proto::{Address, AddressError};

pub(crate) use self::socket::receive;

use crate::error::BindError;

/// How many bytes a ring in shared memory may hold, one a direction: a power of two within this.
pub(crate) const RING: RangeInclusive<usize> = 4 << 10..=16 << 20;

/// How many it holds if nobody says.
pub(crate) const DEFAULT_RING: usize = 256 << 10;

/// The capacity that is meant by so many bytes.
pub(crate) fn ring_capacity(bytes: usize) -> usize {
    let (least, most) = RING.into_inner();
    bytes.clamp(least, most).next_power_of_two()
}

/// The receiving end of a stream; one task owns it.
#[derive(Debug)]
pub(crate) enum ReadHalf {
    Socket(socket::Reader),
    Mem(mem::Reader),
    #[cfg(target_os = "linux")]
    Shm(shm::Reader),
    #[cfg(feature = "turmoil")]
    Simulated(simulated::Half),
}

/// The sending end of a stream; anybody may write to it without waiting.
#[derive(Debug)]
pub(crate) enum WriteHalf {
    Socket(socket::Writer),
    Mem(mem::Writer),
    #[cfg(target_os = "linux")]
    Shm(shm::Writer),
    #[cfg(feature = "turmoil")]
    Simulated(simulated::Half),
}

/// Where streams come in.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix {
        // Removed first: once nobody listens, another endpoint may put its own there.
        _file: SocketFile,
        listener: UnixListener,
    },
    Mem(mem::Listener),
    #[cfg(target_os = "linux")]
    Shm {
        _file: SocketFile,
        listener: shm::Listener,
    },
    #[cfg(feature = "turmoil")]
    Simulated(simulated::Listener),
}

/// Where peers come in.
#[derive(Debug)]
pub(crate) enum Entrance {
    Streams(Listener),
    Datagrams(udp::Socket),
}

/// The file of a unix socket, removed with its listener.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl SocketFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.into())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already; nothing depends on it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl From<Listener> for Entrance {
    fn from(listener: Listener) -> Self {
        Self::Streams(listener)
    }
}

impl ReadHalf {
    /// Appends what is there, as far as it fits the spare room of `input`; zero bytes mean that the peer sends nothing
    /// more.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Socket(reader) => reader.poll_read(cx, input),
            Self::Mem(reader) => reader.poll_read(cx, input),
            #[cfg(target_os = "linux")]
            Self::Shm(reader) => reader.poll_read(cx, input),
            #[cfg(feature = "turmoil")]
            Self::Simulated(half) => half.poll_read(cx, input),
        }
    }
}

impl WriteHalf {
    /// Writes as much as fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(writer) => writer.try_write(bytes),
            Self::Mem(writer) => writer.try_write(bytes),
            #[cfg(target_os = "linux")]
            Self::Shm(writer) => writer.try_write(bytes),
            #[cfg(feature = "turmoil")]
            Self::Simulated(half) => half.try_write(bytes),
        }
    }

    /// Ready when something may fit again, after a write that did not fit. Only the task that reads may wait.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket(writer) => writer.poll_writable(cx),
            Self::Mem(writer) => writer.poll_writable(cx),
            #[cfg(target_os = "linux")]
            Self::Shm(writer) => writer.poll_writable(cx),
            #[cfg(feature = "turmoil")]
            Self::Simulated(half) => half.poll_writable(cx),
        }
    }

    /// Ends the stream in both directions; what was written still arrives.
    pub(crate) fn shutdown(&self) {
        match self {
            Self::Socket(writer) => writer.shutdown(),
            Self::Mem(writer) => writer.shutdown(),
            #[cfg(target_os = "linux")]
            Self::Shm(writer) => writer.shutdown(),
            #[cfg(feature = "turmoil")]
            Self::Simulated(half) => half.shutdown(),
        }
    }
}

impl Listener {
    /// The next stream.
    pub(crate) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(ReadHalf, WriteHalf)>> {
        Poll::Ready(match self {
            Self::Tcp(listener) => ready!(listener.poll_accept(cx))
                .and_then(|(stream, _)| socket::tcp(stream).map(sockets)),
            Self::Unix { listener, .. } => ready!(listener.poll_accept(cx))
                .and_then(|(stream, _)| socket::unix(stream).map(sockets)),
            Self::Mem(listener) => ready!(listener.poll_accept(cx)).map(mems),
            #[cfg(target_os = "linux")]
            Self::Shm { listener, .. } => ready!(listener.poll_accept(cx)).map(shms),
            #[cfg(feature = "turmoil")]
            Self::Simulated(listener) => ready!(listener.poll_accept(cx)).map(simulated),
        })
    }
}

/// Opens a stream to a server; `None` if no transport knows the scheme. Over shared memory its rings hold so many bytes each,
/// a power of two within [`RING`].
pub(crate) async fn dial(
    server: &Address,
    ring: usize,
) -> Option<io::Result<(ReadHalf, WriteHalf)>> {
    #[cfg(feature = "turmoil")]
    if let (Address::Tcp(socket), true) = (server, turmoil::in_simulation()) {
        return Some(simulated::dial(*socket).await.map(simulated));
    }
    Some(match server {
        Address::Tcp(socket) => TcpStream::connect(socket)
            .await
            .and_then(socket::tcp)
            .map(sockets),
        Address::Unix(path) => UnixStream::connect(&**path)
            .await
            .and_then(socket::unix)
            .map(sockets),
        Address::Mem(name) => mem::dial(name).await.map(mems),
        #[cfg(target_os = "linux")]
        Address::Shm(path) => shm::dial(path, ring).await.map(shms),
        _ => return None,
    })
}

/// Listens; returns the address as others see it (port 0 is replaced by the real one).
pub(crate) async fn listen(address: &str) -> Result<(Entrance, Address), BindError> {
    let address = resolve(address).await?;
    let failed = |source| BindError::Listen {
        address: address.clone(),
        source,
    };
    match &address {
        #[cfg(feature = "turmoil")]
        Address::Tcp(socket) if turmoil::in_simulation() => {
            let (listener, socket) = simulated::listen(*socket).await.map_err(failed)?;
            Ok((Listener::Simulated(listener).into(), Address::Tcp(socket)))
        }
        Address::Tcp(socket) => {
            let listener = TcpListener::bind(socket).await.map_err(failed)?;
            let socket = listener.local_addr().map_err(failed)?;
            Ok((Listener::Tcp(listener).into(), Address::Tcp(socket)))
        }
        Address::Udp(socket) => {
            let socket = udp::Socket::bind(*socket).map_err(failed)?;
            let address = Address::Udp(socket.local());
            Ok((Entrance::Datagrams(socket), address))
        }
        Address::Unix(path) => {
            let path = Path::new(&**path);
            let listener = listen_unix(path, UnixListener::bind);
            Ok((
                Listener::Unix {
                    listener: listener.map_err(failed)?,
                    _file: SocketFile::new(path),
                }
                .into(),
                address.clone(),
            ))
        }
        #[cfg(target_os = "linux")]
        Address::Shm(path) => {
            let path = Path::new(&**path);
            let listener = listen_unix(path, shm::Listener::bind);
            Ok((
                Listener::Shm {
                    listener: listener.map_err(failed)?,
                    _file: SocketFile::new(path),
                }
                .into(),
                address.clone(),
            ))
        }
        Address::Mem(name) => {
            let listener = mem::listen(name).map_err(failed)?;
            Ok((Listener::Mem(listener).into(), address.clone()))
        }
        _ => Err(BindError::NoTransport { address }),
    }
}

/// An address from text that may have a host name in place of an IP address.
async fn resolve(text: &str) -> Result<Address, BindError> {
    let error = match text.parse() {
        Ok(address) => return Ok(address),
        Err(error) => error,
    };
    let AddressError::NoSocketAddress { .. } = &error else {
        return Err(error.into());
    };
    type Scheme = fn(std::net::SocketAddr) -> Address;
    let (host, scheme) = match (text.strip_prefix("tcp://"), text.strip_prefix("udp://")) {
        (Some(host), _) => (host, Address::Tcp as Scheme),
        (_, Some(host)) => (host, Address::Udp as Scheme),
        (None, None) => return Err(error.into()),
    };
    #[cfg(feature = "turmoil")]
    if turmoil::in_simulation() {
        let mut found = turmoil::net::lookup_host(host).await.into_iter().flatten();
        return found.next().map(scheme).ok_or_else(|| error.into());
    }
    match lookup_host(host).await.map(|mut found| found.next()) {
        Ok(Some(socket)) => Ok(scheme(socket)),
        Ok(None) => Err(error.into()),
        Err(source) if source.kind() == io::ErrorKind::InvalidInput => Err(error.into()),
        Err(source) => Err(BindError::Resolve {
            address: text.into(),
            source,
        }),
    }
}

/// Listens at a path; a socket file that nobody listens on any more is replaced.
pub(crate) fn listen_unix<'a, L>(
    path: &'a Path,
    bind: impl Fn(&'a Path) -> io::Result<L>,
) -> io::Result<L> {
    match bind(path) {
        // Another file than a socket is somebody's, and not to be removed.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_socket(path) => {
            if !connecting::is_abandoned(path) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            bind(path)
        }
        result => result,
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

fn sockets((read, write): (socket::Reader, socket::Writer)) -> (ReadHalf, WriteHalf) {
    (ReadHalf::Socket(read), WriteHalf::Socket(write))
}

#[cfg(feature = "turmoil")]
fn simulated((read, write): (simulated::Half, simulated::Half)) -> (ReadHalf, WriteHalf) {
    (ReadHalf::Simulated(read), WriteHalf::Simulated(write))
}

#[cfg(target_os = "linux")]
fn shms((read, write): (shm::Reader, shm::Writer)) -> (ReadHalf, WriteHalf) {
    (ReadHalf::Shm(read), WriteHalf::Shm(write))
}

fn mems((read, write): (mem::Reader, mem::Writer)) -> (ReadHalf, WriteHalf) {
    (ReadHalf::Mem(read), WriteHalf::Mem(write))
}
