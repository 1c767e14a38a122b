//! What moves bytes, picked by the address's scheme.
//!
//! Wallaby's own transports are `tcp:`, `udp:`, `unix:`, `shm:` and `mem:`. Others come in from outside by the trait
//! [`Transport`]; `wallaby-tls` is one. A transport only moves bytes, and says by an [`Identity`] what it has
//! proven of the peer: handlers see that beside the peer's node id ([`crate::RequestInfo::identity`]). What carries the datagrams
//! of `udp:` may come from outside as well: see [`DatagramNetwork`]. What all of them carry can be seen, delayed or changed: see
//! [`Wrap`].

// Framing, handshake and credit are `wallaby_proto::connection`; over datagrams (`udp`) all that and more is
// `wallaby_proto::datagram`.

#[cfg(target_os = "linux")]
pub(crate) mod bare;
#[cfg(target_os = "linux")]
pub(crate) mod connecting;
mod datagrams;
mod foreign;
mod identity;
#[cfg(target_os = "linux")]
pub(crate) mod inbox;
mod mem;
pub(crate) mod names;
#[cfg(target_os = "linux")]
pub(crate) mod outbox;
mod reading;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
#[cfg(feature = "turmoil")]
mod simulated;
#[cfg_attr(windows, path = "socket_windows.rs")]
mod socket;
#[cfg(target_os = "linux")]
pub(crate) mod turned_udp;
#[cfg_attr(not(target_os = "linux"), path = "no_udp.rs")]
pub(crate) mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
#[cfg(unix)]
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use wallaby_proto::endpoint::StreamEnd;
use wallaby_proto::{Address, OtherAddress};

pub use self::datagrams::{DatagramNetwork, DatagramSocket};
pub(crate) use self::foreign::Transports;
pub use self::foreign::{
    Accepted, Dialled, Listened, Listener, Opening, ReadHalf, Stream, Transport, Wrap, WriteHalf,
};
pub use self::identity::{Identity, Name, Proven};
pub use self::names::Connector;
pub(crate) use self::reading::{PAUSE, ReadRoom};
#[cfg(target_os = "linux")]
pub(crate) use self::socket::receive;

use crate::error::BindError;
use crate::panics::carried_by;

/// The schemes of Wallaby's own transports on this system.
pub(crate) const SCHEMES: &str = if cfg!(target_os = "linux") {
    "tcp://, udp://, unix://, shm://, mem://"
} else if cfg!(unix) {
    "tcp://, unix://, mem://"
} else {
    "tcp://, mem://"
};

/// The same without `://`.
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

/// Where peers come in.
#[derive(Debug)]
pub(crate) enum Entrance {
    Streams(Box<dyn Listener>),
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

impl Entrance {
    fn streams(listener: impl Listener + 'static) -> Self {
        Self::Streams(Box::new(listener))
    }
}

impl Listener for TcpListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (stream, _) = ready!(Self::poll_accept(self, cx))?;
        Poll::Ready(Stream::tcp(stream).map(Accepted::Open))
    }
}

#[cfg(unix)]
impl Listener for UnixListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (stream, _) = ready!(Self::poll_accept(self, cx))?;
        Poll::Ready(unix(stream).map(Accepted::Open))
    }
}

/// A listener that has a socket file.
#[cfg(unix)]
#[derive(Debug)]
struct AtFile<L> {
    // Removed first: once nobody listens, another endpoint may put its own there.
    _file: SocketFile,
    listener: L,
}

#[cfg(unix)]
impl<L: Listener> Listener for AtFile<L> {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        self.listener.poll_accept(cx)
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
    by: Connector<'_>,
) -> Option<io::Result<Stream>> {
    #[cfg(feature = "turmoil")]
    if let (Address::Tcp(socket), true) = (server, turmoil::in_simulation()) {
        return Some(simulated::dial(*socket).await);
    }
    Some(match server {
        Address::Tcp(socket) => TcpStream::connect(socket).await.and_then(Stream::tcp),
        #[cfg(unix)]
        Address::Unix(path) => UnixStream::connect(&**path).await.and_then(unix),
        Address::Mem(name) => mem::dial(name).await,
        #[cfg(target_os = "linux")]
        Address::Shm(path) => shm::dial(path, ring).await,
        Address::Other(host) if server.has_host_name() => by.open(host.text()).await,
        Address::Other(other) => carried_by(transports.of(other)?.dial(other, by)).await,
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
    let (entrance, here) = match &address {
        #[cfg(feature = "turmoil")]
        Address::Tcp(socket) if turmoil::in_simulation() => {
            let (listener, socket) = simulated::listen(*socket).await.map_err(failed)?;
            (Entrance::streams(listener), Address::Tcp(socket))
        }
        Address::Tcp(socket) => {
            let listener = TcpListener::bind(socket).await.map_err(failed)?;
            let socket = listener.local_addr().map_err(failed)?;
            (Entrance::streams(listener), Address::Tcp(socket))
        }
        Address::Udp(socket) => {
            let socket = udp::Socket::bind(*socket, transports).map_err(failed)?;
            let here = Address::Udp(socket.local());
            (Entrance::Datagrams(socket), here)
        }
        #[cfg(unix)]
        Address::Unix(path) => {
            let listener = at_file(path, UnixListener::bind).map_err(failed)?;
            (Entrance::streams(listener), address.clone())
        }
        #[cfg(target_os = "linux")]
        Address::Shm(path) => {
            let listener = at_file(path, shm::ShmListener::bind).map_err(failed)?;
            (Entrance::streams(listener), address.clone())
        }
        Address::Mem(name) => {
            let listener = mem::listen(name).map_err(failed)?;
            (Entrance::streams(listener), address.clone())
        }
        Address::Other(other) => {
            let Some(transport) = transports.of(other) else {
                return Err(BindError::NoTransport { address });
            };
            let (listener, here) = transport.listen(other).await.map_err(failed)?;
            (Entrance::Streams(listener), Address::Other(here))
        }
        _ => return Err(BindError::NoTransport { address }),
    };
    Ok((entrance, here))
}

/// Whether the peer does not keep to what the transport says, as far as that tells it.
pub(crate) fn is_broken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// How a stream has ended of which this came.
pub(crate) fn end_of(error: &io::Error) -> StreamEnd {
    let reason = format!("cannot read: {error}");
    match is_broken(error) {
        true => StreamEnd::Broken(reason),
        false => StreamEnd::Lost(reason),
    }
}

/// What others are told: the address that was given for that, or the first that is listened at. Port 0 stands for the one that is
/// listened at over the same scheme, as who takes a free one does not know it before. Nobody else can dial `0.0.0.0` or `::`, whatever
/// the scheme: who tried would reach itself. In their place comes the address from which this host sends to other networks. Where
/// it has no way there others are told nothing, and a warning says so.
///
/// # Errors
///
/// Port 0 where nothing is listened at over that scheme.
pub(crate) fn advertised(
    given: Option<Address>,
    listened: &[Address],
) -> Result<Option<Address>, BindError> {
    let given = given.map(|given| with_port(given, listened)).transpose()?;
    let here = given.or_else(|| listened.first().cloned());
    Ok(here.and_then(|here| told(here, outward)))
}

fn with_port(given: Address, listened: &[Address]) -> Result<Address, BindError> {
    let text = given.to_string();
    let Some(host) = text.strip_suffix(":0") else {
        return Ok(given);
    };
    let mut listened = listened.iter().filter_map(|here| {
        let text = here.to_string();
        let port: u16 = text.rsplit_once(':')?.1.parse().ok()?;
        (here.scheme() == given.scheme()).then_some(port)
    });
    match (given.scheme(), listened.next()) {
        ("unix" | "shm" | "mem", _) => Ok(given), // a name that ends so
        (_, Some(port)) => Ok(format!("{host}:{port}").parse()?),
        ("tcp" | "udp", None) => Err(BindError::Advertise { address: given }),
        (_, None) => Ok(given), // who knows what it means there
    }
}

fn told(here: Address, outward: impl Fn(IpAddr) -> Option<IpAddr>) -> Option<Address> {
    let socket = match &here {
        Address::Tcp(socket) | Address::Udp(socket) => Some(*socket),
        Address::Other(other) => other.socket(),
        _ => None,
    };
    let Some(socket) = socket.filter(|socket| socket.ip().to_canonical().is_unspecified()) else {
        return Some(here);
    };
    let outward = outward(socket.ip()).map(|ip| SocketAddr::new(ip, socket.port()));
    let told = outward.and_then(|socket| match &here {
        Address::Udp(_) => Some(Address::Udp(socket)),
        Address::Other(other) => {
            let same = OtherAddress::new(other.scheme(), &socket.to_string());
            same.ok().map(Address::Other)
        }
        _ => Some(Address::Tcp(socket)),
    });
    match &told {
        Some(told) => {
            tracing::info!(%here, %told, "others are told this address; Builder::advertise sets another");
        }
        None => tracing::warn!(
            %here,
            "nobody can dial this address, so others are told none, and answers come by relays: set Builder::advertise"
        ),
    }
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

/// An address from text: that of a host's name is the first one found.
async fn resolve(text: &str) -> Result<Address, BindError> {
    let address: Address = text.parse()?;
    let name = match &address {
        Address::Other(name) if address.has_host_name() => name.text(),
        _ => return Ok(address),
    };
    let resolve = |source| BindError::Resolve {
        address: text.into(),
        source,
    };
    let found = names::look_up(name, names::MOST, false);
    let found = found.await.map_err(resolve)?;
    match found.first() {
        Some(first) if address.is_udp() => Ok(Address::Udp(*first)),
        Some(first) => Ok(Address::Tcp(*first)),
        None => Err(resolve(io::ErrorKind::AddrNotAvailable.into())),
    }
}

/// Listens at a path, whose file goes with the listener.
#[cfg(unix)]
fn at_file<'a, L>(
    path: &'a str,
    bind: impl Fn(&'a Path) -> io::Result<L>,
) -> io::Result<AtFile<L>> {
    let path = Path::new(path);
    let listener = listen_unix(path, bind)?;
    let _file = SocketFile::new(path);
    Ok(AtFile { _file, listener })
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

#[cfg(unix)]
fn unix(stream: UnixStream) -> io::Result<Stream> {
    let identity = Identity::of_local(&stream);
    socket::unix(stream).map(|(reader, writer)| Stream::new(reader, writer, identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_0_stands_for_the_one_that_is_listened_at() {
        let parse = |text: &str| text.parse::<Address>().expect("an address");
        let listened = ["udp://127.0.0.1:7", "tcp://127.0.0.1:8", "unix:///a:9"].map(parse);
        for (given, expected) in [
            ("tcp://192.0.2.9:0", "tcp://192.0.2.9:8"),
            ("tcp://index.example:0", "tcp://index.example:8"),
            ("udp://[2001:db8::1]:0", "udp://[2001:db8::1]:7"),
            ("tcp://192.0.2.9:80", "tcp://192.0.2.9:80"),
            ("unix:///b:0", "unix:///b:0"),
            ("vsock://3:0", "vsock://3:0"),
        ] {
            let told = advertised(Some(parse(given)), &listened);
            assert_eq!(told.expect("it has a port"), Some(parse(expected)));
        }
        let nothing = advertised(Some(parse("tcp://192.0.2.9:0")), &listened[..1]);
        let error = nothing.expect_err("no port");
        assert!(matches!(error, BindError::Advertise { .. }), "{error}");
    }

    #[test]
    fn what_nobody_can_dial_is_never_told() {
        let outward = |any: IpAddr| match any {
            IpAddr::V4(_) => Some(IpAddr::from([192, 0, 2, 7])),
            IpAddr::V6(_) => Some(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7])),
        };
        for (here, others) in [
            ("tcp://0.0.0.0:1", "tcp://192.0.2.7:1"),
            ("udp://0.0.0.0:1", "udp://192.0.2.7:1"),
            ("tls://0.0.0.0:1", "tls://192.0.2.7:1"),
            ("tls://[::]:1", "tls://[2001:db8::7]:1"),
            ("tcp://[::]:1", "tcp://[2001:db8::7]:1"),
            ("tcp://[::ffff:0.0.0.0]:1", "tcp://[2001:db8::7]:1"),
        ] {
            let here: Address = here.parse().expect("an address");
            let told_here = |outward| told(here.clone(), outward).map(|told| told.to_string());
            assert_eq!(
                told_here(&outward as &dyn Fn(_) -> _).as_deref(),
                Some(others)
            );
            assert_eq!(told_here(&|_| None), None, "a host without networks");
        }
        for here in [
            "tls://192.0.2.9:1",
            "tls://index.example:1",
            "unix:///0.0.0.0:1",
        ] {
            let here: Address = here.parse().expect("an address");
            assert_eq!(told(here.clone(), |_| None), Some(here));
        }
    }
}
