//! What a stream is, where streams come in, and the trait of transports from outside.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use wallaby_proto::OtherAddress;

#[cfg(target_os = "linux")]
use super::datagrams::DatagramNetwork;
use super::datagrams::DatagramSocket;
use super::identity::Identity;
use super::names::Connector;
use crate::error::BindError;
use crate::panics::carried;

/// A way to move bytes between endpoints that is not part of Wallaby, named by the schemes of its addresses: see
/// [`crate::Builder::transport`].
///
/// A transport only moves bytes, in both directions and in order, and says who the peer is as far as it has proven that.
/// Framing, the handshake of endpoints, credit and keep-alive come above it, as over TCP. What its addresses mean is its own
/// affair. Peers can name any, so finding out where one leads must not cost much; where it is `HOST:PORT`, a [`Connector`] sees
/// to that.
///
/// # Example
///
/// A transport that is nothing but TCP under another name. One that is not makes a [`ReadHalf`] and a [`WriteHalf`], as
/// `docs/extending.md` shows:
///
/// ```
/// use std::io;
/// use std::sync::Arc;
/// use std::task::{Context, Poll, ready};
///
/// use tokio::net::TcpListener;
/// use wallaby::OtherAddress;
/// use wallaby::transport::{Accepted, Connector, Dialled, Listened, Listener, Stream, Transport};
///
/// struct Plain;
///
/// #[derive(Debug)]
/// struct Listening(TcpListener);
///
/// impl Listener for Listening {
///     fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
///         let (accepted, _) = ready!(self.0.poll_accept(cx))?;
///         Poll::Ready(Ok(Accepted::Open(Stream::tcp(accepted)?)))
///     }
/// }
///
/// impl Transport for Plain {
///     fn schemes(&self) -> &[&str] {
///         &["plain"]
///     }
///
///     fn dial<'a>(&'a self, to: &'a OtherAddress, by: Connector<'a>) -> Dialled<'a> {
///         Box::pin(async move { Stream::tcp(by.tcp(to.text()).await?) })
///     }
///
///     fn listen<'a>(&'a self, at: &'a OtherAddress) -> Listened<'a> {
///         Box::pin(async {
///             let listener = TcpListener::bind(at.text()).await?;
///             let text = listener.local_addr()?.to_string();
///             let here = OtherAddress::new(at.scheme(), &text).map_err(io::Error::other)?;
///             Ok((Box::new(Listening(listener)) as Box<dyn Listener>, here))
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = wallaby::Endpoint::builder().transport(Arc::new(Plain)).listen("plain://127.0.0.1:0").bind().await?;
/// let client = wallaby::Endpoint::builder().transport(Arc::new(Plain)).bind().await?;
/// client.connect(server.address().expect("it listens")).await?;
/// # Ok(())
/// # }
/// ```
pub trait Transport: Send + Sync + 'static {
    /// The schemes of the addresses that it dials and listens at, as in [`OtherAddress::new`].
    fn schemes(&self) -> &[&str];

    /// Opens a stream to who listens there, if it is over TCP by this connector. The future is dropped when the dial takes too long
    /// ([`crate::Builder::dial_timeout`]).
    ///
    /// An error of the kind `InvalidData` or `PermissionDenied` says that somebody answers there, but that one side does not
    /// understand or trust the other ([`crate::ConnectError::Rejected`]); `ConnectionRefused` and `NotFound`, that nobody
    /// listens.
    fn dial<'a>(&'a self, to: &'a OtherAddress, by: Connector<'a>) -> Dialled<'a>;

    /// Listens; with the address as others see it.
    fn listen<'a>(&'a self, at: &'a OtherAddress) -> Listened<'a>;
}

/// A stream that is being dialled.
pub type Dialled<'a> = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>>;

/// A listener that is being made.
pub type Listened<'a> =
    Pin<Box<dyn Future<Output = io::Result<(Box<dyn Listener>, OtherAddress)>> + Send + 'a>>;

/// A stream that has come in.
#[non_exhaustive]
pub enum Accepted {
    /// It is open.
    Open(Stream),
    /// Its transport has to do something first, as a handshake. That is driven in a task of its own and blocks nobody; it has its
    /// place among the [strangers](crate::Builder::strangers), and is dropped when that is lost. An error is logged and counted
    /// ([`crate::Metrics::accepts_failed`]).
    Opening(Opening),
}

/// What opens a stream that has come in.
pub type Opening = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open(_) => "Open",
            Self::Opening(_) => "Opening",
        })
    }
}

/// Where streams come in. Dropped when its endpoint is closed.
pub trait Listener: Send + fmt::Debug {
    /// The next stream. After an error it is asked again a little later.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>>;
}

/// The receiving end of a stream; one task owns it.
pub trait ReadHalf: Send + fmt::Debug {
    /// Appends what is there, as far as it fits the spare room of `input`, which has some; zero bytes mean that the peer sends
    /// nothing more.
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>>;
}

/// The sending end of a stream; any thread may write to it, one at a time, and nobody waits in it.
pub trait WriteHalf: Send + Sync + fmt::Debug {
    /// Writes as much as fits now: an error of the kind `WouldBlock` if that is nothing, never `Ok(0)`, which ends the stream. Bytes
    /// that it takes count as sent: they are never given back, and may arrive even if the stream breaks.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ready when something may fit again, after a write that did not fit. Only the task that reads waits for it.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ends the stream in both directions; what was written still arrives.
    fn shutdown(&self);
}

/// An open stream, and who is at its other end.
#[derive(Debug)]
pub struct Stream {
    pub(crate) reader: Box<dyn ReadHalf>,
    pub(crate) writer: Box<dyn WriteHalf>,
    pub(crate) identity: Identity,
}

impl Stream {
    /// A stream of these halves, whose peer has proven this.
    pub fn new(
        reader: impl ReadHalf + 'static,
        writer: impl WriteHalf + 'static,
        identity: Identity,
    ) -> Self {
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            identity,
        }
    }

    /// A stream over a connected socket, for transports that do something before or beside TCP: its peer has proven its address, no
    /// more. [`map_reader`](Self::map_reader) and [`map_writer`](Self::map_writer) put other ends before the socket.
    ///
    /// # Errors
    ///
    /// If the socket cannot be set up; one that has ended already fails as it is read.
    pub fn tcp(stream: tokio::net::TcpStream) -> io::Result<Self> {
        let identity = match stream.peer_addr() {
            Ok(address) => Identity::default().at(address),
            Err(_) => Identity::default(), // it has ended: who reads it finds out
        };
        super::socket::tcp(stream).map(|(reader, writer)| Self::new(reader, writer, identity))
    }

    /// The same stream with another receiving end, which is made of the one that it has.
    pub fn map_reader<R: ReadHalf + 'static>(
        self,
        wrap: impl FnOnce(Box<dyn ReadHalf>) -> R,
    ) -> Self {
        let reader = Box::new(wrap(self.reader));
        Self { reader, ..self }
    }

    /// The same stream with another sending end, which is made of the one that it has.
    pub fn map_writer<W: WriteHalf + 'static>(
        self,
        wrap: impl FnOnce(Box<dyn WriteHalf>) -> W,
    ) -> Self {
        let writer = Box::new(wrap(self.writer));
        Self { writer, ..self }
    }
}

/// What stands between an endpoint and its transports, whichever they are: it sees, delays, counts or changes all bytes. See
/// [`crate::Builder::wrap_transports`]; `wallaby-link`, which emulates links, is one.
///
/// It is asked on a thread of the endpoint's runtime, and must not wait.
pub trait Wrap: Send + Sync + 'static {
    /// What is used in place of a stream that was dialled or has come in: see [`Stream::map_reader`] and [`Stream::map_writer`].
    fn stream(&self, stream: Stream) -> Stream {
        stream
    }

    /// What is used in place of a socket for datagrams. It receives and sends one datagram at a time: a wrapped socket of the
    /// operating system does without that system's ways to move several at once.
    fn datagrams(&self, socket: Box<dyn DatagramSocket>) -> Box<dyn DatagramSocket> {
        socket
    }
}

/// What carries bytes for an endpoint and is not part of Wallaby.
#[derive(Clone, Default)]
pub(crate) struct Transports {
    of_streams: Vec<Arc<dyn Transport>>,
    #[cfg(target_os = "linux")]
    network: Option<Arc<dyn DatagramNetwork>>,
    wraps: Vec<Arc<dyn Wrap>>,
}

impl Transports {
    pub(crate) fn add(&mut self, transport: Arc<dyn Transport>) {
        self.of_streams.push(transport);
    }

    pub(crate) fn add_wrap(&mut self, wrap: Arc<dyn Wrap>) {
        self.wraps.push(wrap);
    }

    /// What is used in place of a stream.
    pub(crate) fn wrap(&self, stream: Stream) -> io::Result<Stream> {
        let wraps = self.wraps.iter();
        carried(|| Ok(wraps.fold(stream, |stream, wrap| wrap.stream(stream))))
    }

    /// What is used in place of a socket for datagrams, if it is to be another.
    #[cfg(target_os = "linux")]
    pub(crate) fn wrap_datagrams(
        &self,
        socket: impl FnOnce() -> io::Result<Box<dyn DatagramSocket>>,
    ) -> Option<io::Result<Box<dyn DatagramSocket>>> {
        let wraps = self.wraps.iter();
        let wrapped = |socket| wraps.fold(socket, |socket, wrap| wrap.datagrams(socket));
        (!self.wraps.is_empty())
            .then(|| socket().and_then(|socket| carried(|| Ok(wrapped(socket)))))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn carry_datagrams(&mut self, network: Arc<dyn DatagramNetwork>) {
        self.network = Some(network);
    }

    /// What carries datagrams in place of the system.
    #[cfg(target_os = "linux")]
    pub(crate) fn network(&self) -> Option<&dyn DatagramNetwork> {
        self.network.as_deref()
    }

    /// Each scheme must be possible, and have one transport.
    pub(crate) fn check(&self) -> Result<(), BindError> {
        let schemes: Vec<_> = self
            .of_streams
            .iter()
            .flat_map(|one| one.schemes())
            .collect();
        for (index, scheme) in schemes.iter().enumerate() {
            let why = if let Err(error) = OtherAddress::new(scheme, "text") {
                error.to_string()
            } else if schemes[..index].contains(scheme) {
                "another transport has it".into()
            } else {
                continue;
            };
            return Err(BindError::Transport {
                scheme: (**scheme).into(),
                why,
            });
        }
        Ok(())
    }

    /// Their schemes.
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &str> {
        self.of_streams
            .iter()
            .flat_map(|one| one.schemes())
            .copied()
    }

    /// The one for such addresses.
    pub(crate) fn of(&self, address: &OtherAddress) -> Option<&dyn Transport> {
        let scheme = address.scheme();
        let mut all = self.of_streams.iter();
        all.find(|one| one.schemes().contains(&scheme))
            .map(|found| &**found)
    }
}
