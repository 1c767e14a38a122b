//! What moves bytes, picked by the address's scheme.
//!
//! Wallaby's own transports are `tcp:`, `udp:`, `unix:`, `shm:` and `mem:`. Others come in from outside by the trait
//! [`Transport`], streams only; `wallaby-tls` is one. A transport only moves bytes, and says by an [`Identity`] what it has
//! proven of the peer: handlers see that beside the peer's node id ([`crate::RequestInfo::identity`]).

// Framing, handshake and credit are `wallaby_proto::connection`; over datagrams (`udp`) all that and more is
// `wallaby_proto::datagram`.

#[cfg(target_os = "linux")]
pub(crate) mod bare;
#[cfg(target_os = "linux")]
pub(crate) mod connecting;
mod foreign;
mod identity;
#[cfg(target_os = "linux")]
pub(crate) mod inbox;
mod mem;
#[cfg(target_os = "linux")]
pub(crate) mod outbox;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
#[cfg(feature = "turmoil")]
mod simulated;
#[cfg_attr(windows, path = "socket_windows.rs")]
mod socket;
#[cfg_attr(not(target_os = "linux"), path = "no_udp.rs")]
pub(crate) mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
#[cfg(unix)]
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream, lookup_host};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use wallaby_proto::{Address, AddressError};

pub(crate) use self::foreign::Transports;
pub use self::foreign::{
    Accepted, Dialled, Listened, Listener, ReadHalf, Stream, Transport, WriteHalf,
};
pub use self::identity::{Identity, Name, Proven};
#[cfg(target_os = "linux")]
pub(crate) use self::socket::receive;

use crate::error::BindError;

/// The schemes of Wallaby's own transports on this system, besides `mem:`.
pub(crate) const SCHEMES: &str = if cfg!(target_os = "linux") {
    "tcp://, udp://, unix://, shm://"
} else if cfg!(unix) {
    "tcp://, unix://"
} else {
    "tcp://"
};

/// The same without `://`, and with `mem`.
pub(crate) const OWN: &[&str] = if cfg!(target_os = "linux") {
    &["mem", "tcp", "udp", "unix", "shm"]
} else if cfg!(unix) {
    &["mem", "tcp", "unix"]
} else {
    &["mem", "tcp"]
};

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
pub(crate) enum StreamReader {
    Socket(socket::Reader),
    Mem(mem::Reader),
    #[cfg(target_os = "linux")]
    Shm(shm::Reader),
    #[cfg(feature = "turmoil")]
    Simulated(simulated::Half),
    Foreign(Box<dyn ReadHalf>),
}

/// The sending end of a stream; anybody may write to it without waiting.
#[derive(Debug)]
pub(crate) enum StreamWriter {
    Socket(socket::Writer),
    Mem(mem::Writer),
    #[cfg(target_os = "linux")]
    Shm(shm::Writer),
    #[cfg(feature = "turmoil")]
    Simulated(simulated::Half),
    Foreign(Box<dyn WriteHalf>),
}

/// An open stream, and who is at its other end.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) reader: StreamReader,
    pub(crate) writer: StreamWriter,
    pub(crate) identity: Identity,
}

/// A stream that has come in.
pub(crate) enum IncomingStream {
    Open(Opened),
    /// Its transport has to do something first.
    Opening(Accepted),
}

/// Where streams come in.
#[derive(Debug)]
pub(crate) enum StreamListener {
    Tcp(TcpListener),
    #[cfg(unix)]
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
    Foreign(Box<dyn Listener>),
}

/// Where peers come in.
#[derive(Debug)]
pub(crate) enum Entrance {
    Streams(StreamListener),
    Datagrams(udp::Socket),
}

/// The file of a unix socket, removed with its listener.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

#[cfg(unix)]
impl SocketFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.into())
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already; nothing depends on it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl From<StreamListener> for Entrance {
    fn from(listener: StreamListener) -> Self {
        Self::Streams(listener)
    }
}

impl StreamReader {
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
            Self::Foreign(half) => half.poll_read(cx, input),
        }
    }
}

impl StreamWriter {
    /// Writes as much as fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(writer) => writer.try_write(bytes),
            Self::Mem(writer) => writer.try_write(bytes),
            #[cfg(target_os = "linux")]
            Self::Shm(writer) => writer.try_write(bytes),
            #[cfg(feature = "turmoil")]
            Self::Simulated(half) => half.try_write(bytes),
            Self::Foreign(half) => half.try_write(bytes),
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
            Self::Foreign(half) => half.poll_writable(cx),
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
            Self::Foreign(half) => half.shutdown(),
        }
    }
}

impl StreamListener {
    /// The next stream.
    pub(crate) fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<IncomingStream>> {
        let opened = match self {
            Self::Foreign(listener) => {
                return listener
                    .poll_accept(cx)
                    .map(|accepted| accepted.map(IncomingStream::Opening));
            }
            Self::Tcp(listener) => {
                ready!(listener.poll_accept(cx)).and_then(|(stream, _)| tcp(stream))
            }
            #[cfg(unix)]
            Self::Unix { listener, .. } => {
                ready!(listener.poll_accept(cx)).and_then(|(stream, _)| unix(stream))
            }
            Self::Mem(listener) => ready!(listener.poll_accept(cx)).map(mems),
            #[cfg(target_os = "linux")]
            Self::Shm { listener, .. } => ready!(listener.poll_accept(cx)).map(shms),
            #[cfg(feature = "turmoil")]
            Self::Simulated(listener) => ready!(listener.poll_accept(cx)).map(simulated),
        };
        Poll::Ready(opened.map(IncomingStream::Open))
    }
}

/// Opens a stream to a server; `None` if no transport knows the scheme. Over shared memory its rings hold so many bytes each,
/// a power of two within [`RING`].
pub(crate) async fn dial(
    server: &Address,
    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "there is no shm:")
    )]
    ring: usize,
    transports: &Transports,
) -> Option<io::Result<Opened>> {
    #[cfg(feature = "turmoil")]
    if let (Address::Tcp(socket), true) = (server, turmoil::in_simulation()) {
        return Some(simulated::dial(*socket).await.map(simulated));
    }
    Some(match server {
        Address::Tcp(socket) => TcpStream::connect(socket).await.and_then(tcp),
        #[cfg(unix)]
        Address::Unix(path) => UnixStream::connect(&**path).await.and_then(unix),
        Address::Mem(name) => mem::dial(name).await.map(mems),
        #[cfg(target_os = "linux")]
        Address::Shm(path) => shm::dial(path, ring).await.map(shms),
        Address::Other(other) => transports.of(other)?.dial(other).await.map(Opened::from),
        _ => return None,
    })
}

/// Listens; returns the address as others see it (port 0 is replaced by the real one).
pub(crate) async fn listen(
    address: &str,
    transports: &Transports,
) -> Result<(Entrance, Address), BindError> {
    let address = resolve(address).await?;
    let failed = |source| BindError::Listen {
        address: address.clone(),
        source,
    };
    match &address {
        #[cfg(feature = "turmoil")]
        Address::Tcp(socket) if turmoil::in_simulation() => {
            let (listener, socket) = simulated::listen(*socket).await.map_err(failed)?;
            Ok((
                StreamListener::Simulated(listener).into(),
                Address::Tcp(socket),
            ))
        }
        Address::Tcp(socket) => {
            let listener = TcpListener::bind(socket).await.map_err(failed)?;
            let socket = listener.local_addr().map_err(failed)?;
            Ok((StreamListener::Tcp(listener).into(), Address::Tcp(socket)))
        }
        Address::Udp(socket) => {
            let socket = udp::Socket::bind(*socket).map_err(failed)?;
            let address = Address::Udp(socket.local());
            Ok((Entrance::Datagrams(socket), address))
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            let path = Path::new(&**path);
            let listener = listen_unix(path, UnixListener::bind);
            Ok((
                StreamListener::Unix {
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
                StreamListener::Shm {
                    listener: listener.map_err(failed)?,
                    _file: SocketFile::new(path),
                }
                .into(),
                address.clone(),
            ))
        }
        Address::Mem(name) => {
            let listener = mem::listen(name).map_err(failed)?;
            Ok((StreamListener::Mem(listener).into(), address.clone()))
        }
        Address::Other(other) => {
            let Some(transport) = transports.of(other) else {
                return Err(BindError::NoTransport { address });
            };
            let (listener, here) = transport.listen(other).await.map_err(failed)?;
            Ok((
                StreamListener::Foreign(listener).into(),
                Address::Other(here),
            ))
        }
        _ => Err(BindError::NoTransport { address }),
    }
}

/// What others are told of an address that was listened at. Nobody else can dial `0.0.0.0` or `::`; in their place comes the
/// address from which this host sends to other networks. Where it has no way there they stay, and a warning says so.
pub(crate) fn advertised(here: Address) -> Address {
    let (Address::Tcp(socket) | Address::Udp(socket)) = here else {
        return here;
    };
    if !socket.ip().is_unspecified() {
        return here;
    }
    let Some(ip) = outward(socket.ip()) else {
        tracing::warn!(%here, "nobody can dial this address, so answers come by relays: set Builder::advertise");
        return here;
    };
    let told = SocketAddr::new(ip, socket.port());
    let told = match here {
        Address::Udp(_) => Address::Udp(told),
        _ => Address::Tcp(told),
    };
    tracing::info!(%here, %told, "others are told this address; Builder::advertise sets another");
    told
}

/// The address from which this host sends to other networks. Nothing is sent to find it out: the addresses are those of
/// examples (RFC 5737, RFC 3849).
fn outward(any: IpAddr) -> Option<IpAddr> {
    let v4 = (IpAddr::from([0; 4]), IpAddr::from([192, 0, 2, 1]));
    let v6 = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
    // What listens at `::` is reached over both.
    let ways = [any.is_ipv6().then_some((any, v6)), Some(v4)];
    ways.into_iter().flatten().find_map(|(from, to)| {
        let socket = std::net::UdpSocket::bind((from, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
    })
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
#[cfg(unix)]
pub(crate) fn listen_unix<'a, L>(
    path: &'a Path,
    bind: impl Fn(&'a Path) -> io::Result<L>,
) -> io::Result<L> {
    match bind(path) {
        // Another file than a socket is somebody's, and not to be removed.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_socket(path) => {
            if !is_abandoned(path) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            bind(path)
        }
        result => result,
    }
}

#[cfg(target_os = "linux")]
use connecting::is_abandoned;

/// Other systems refuse who comes while the queue is full in the same way as if nobody listened.
#[cfg(all(unix, not(target_os = "linux")))]
fn is_abandoned(_: &Path) -> bool {
    false
}

#[cfg(unix)]
fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

fn tcp(stream: TcpStream) -> io::Result<Opened> {
    socket::tcp(stream).map(|ends| sockets(ends, Identity::default()))
}

#[cfg(unix)]
fn unix(stream: UnixStream) -> io::Result<Opened> {
    let identity = Identity::of_local(&stream);
    socket::unix(stream).map(|ends| sockets(ends, identity))
}

fn sockets((reader, writer): (socket::Reader, socket::Writer), identity: Identity) -> Opened {
    Opened {
        reader: StreamReader::Socket(reader),
        writer: StreamWriter::Socket(writer),
        identity,
    }
}

#[cfg(feature = "turmoil")]
fn simulated((reader, writer): (simulated::Half, simulated::Half)) -> Opened {
    Opened {
        reader: StreamReader::Simulated(reader),
        writer: StreamWriter::Simulated(writer),
        identity: Identity::default(),
    }
}

#[cfg(target_os = "linux")]
fn shms((reader, writer): (shm::Reader, shm::Writer)) -> Opened {
    let identity = reader.identity();
    Opened {
        reader: StreamReader::Shm(reader),
        writer: StreamWriter::Shm(writer),
        identity,
    }
}

fn mems((reader, writer): (mem::Reader, mem::Writer)) -> Opened {
    Opened {
        reader: StreamReader::Mem(reader),
        writer: StreamWriter::Mem(writer),
        identity: Identity::new(Proven::ThisProcess, false),
    }
}

impl From<Stream> for Opened {
    fn from(stream: Stream) -> Self {
        Self {
            reader: StreamReader::Foreign(stream.read),
            writer: StreamWriter::Foreign(stream.write),
            identity: stream.identity,
        }
    }
}
