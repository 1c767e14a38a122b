//! Dialling, listening, and the handshake.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};
use tokio::net::{TcpListener, TcpStream};
use wallaby::OtherAddress;
use wallaby::transport::{
    Accepted, Connector, Dialled, Identity, Listened, Listener, Proven, Stream, Transport,
};

use crate::credentials::{Builder, Credentials};
use crate::names;
use crate::stream;

/// The scheme of its addresses.
const SCHEME: &str = "tls";

/// Bytes of somebody who was refused that are still read, so that why it was refused gets there.
const LAST_WORDS: usize = 64 * 1024;

/// A transport for addresses `tls://HOST:PORT`: see [the crate](crate).
pub struct Tls {
    credentials: Arc<Credentials>,
}

impl Tls {
    /// Sets one up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(credentials: Credentials) -> Self {
        let credentials = Arc::new(credentials);
        Self { credentials }
    }

    async fn open(&self, to: &OtherAddress, by: Connector<'_>) -> io::Result<Stream> {
        let (host, _) = host_and_port(to.text())?;
        let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
        let config = self.credentials.now().client;
        let config = config.ok_or_else(|| invalid("no roots to verify a server by"))?;
        let socket = by.tcp(to.text()).await?;
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        handshake(socket, connection.into()).await
    }
}

impl Transport for Tls {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn dial<'a>(&'a self, to: &'a OtherAddress, by: Connector<'a>) -> Dialled<'a> {
        Box::pin(self.open(to, by))
    }

    fn listen<'a>(&'a self, at: &'a OtherAddress) -> Listened<'a> {
        Box::pin(async {
            if self.credentials.now().server.is_none() {
                return Err(invalid("a server needs a certificate"));
            }
            let (host, _) = host_and_port(at.text())?;
            let listener = TcpListener::bind(at.text()).await?;
            let local = listener.local_addr()?;
            // Others verify by the name that is given here, not by the address that it stands for.
            let text = match host.parse::<std::net::IpAddr>() {
                Ok(_) => local.to_string(),
                Err(_) => format!("{host}:{}", local.port()),
            };
            let here = OtherAddress::new(SCHEME, &text).map_err(invalid)?;
            let entrance = Entrance {
                listener,
                credentials: Arc::clone(&self.credentials),
            };
            Ok((Box::new(entrance) as Box<dyn Listener>, here))
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Where connections come in.
struct Entrance {
    listener: TcpListener,
    credentials: Arc<Credentials>,
}

impl Listener for Entrance {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (socket, from) = ready!(self.listener.poll_accept(cx))?;
        let config = self.credentials.now().server;
        Poll::Ready(Ok(Accepted::Opening(Box::pin(accept(
            socket, from, config,
        )))))
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listener.fmt(f)
    }
}

async fn accept(
    socket: TcpStream,
    from: SocketAddr,
    config: Option<Arc<ServerConfig>>,
) -> io::Result<Stream> {
    let config = config.ok_or_else(|| invalid("a server needs a certificate"))?;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let opened = handshake(socket, connection.into()).await;
    opened.map_err(|error| io::Error::new(error.kind(), format!("{from}: {error}")))
}

/// Does the handshake; if it fails, the peer learns why.
async fn handshake(socket: TcpStream, mut connection: Connection) -> io::Result<Stream> {
    socket.set_nodelay(true)?;
    match shake_hands(&socket, &mut connection).await {
        Ok(()) => {
            let identity = identity(&connection).at(socket.peer_addr()?);
            let (reader, writer) = stream::split(socket, connection);
            Ok(Stream::new(reader, writer, identity))
        }
        Err(error) => {
            let _ = tell(&socket, &mut connection).await; // it may have gone
            Err(error)
        }
    }
}

async fn shake_hands(socket: &TcpStream, connection: &mut Connection) -> io::Result<()> {
    loop {
        flush(socket, connection).await?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        socket.readable().await?;
        match stream::receive(socket, connection) {
            Ok(0) => {
                let why = "the connection ended during the handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        connection.process_new_packets().map_err(stream::failed)?;
    }
}

/// Writes all that is to be written.
async fn flush(socket: &TcpStream, connection: &mut Connection) -> io::Result<()> {
    while !stream::send(socket, connection)? {
        socket.writable().await?;
    }
    Ok(())
}

/// Sends the alert. What the peer has sent meanwhile is read: else the system would tell it that the connection was reset, and
/// not what was sent last.
async fn tell(socket: &TcpStream, connection: &mut Connection) -> io::Result<()> {
    flush(socket, connection).await?;
    socket2::SockRef::from(socket).shutdown(std::net::Shutdown::Write)?;
    let mut left = LAST_WORDS;
    let mut scratch = [0; 4096];
    while left > 0 {
        socket.readable().await?;
        match socket.try_read(&mut scratch) {
            Ok(0) => break,
            Ok(read) => left = left.saturating_sub(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn identity(connection: &Connection) -> Identity {
    let Some([own, rest @ ..]) = connection.peer_certificates() else {
        return Identity::new(Proven::Nothing, true);
    };
    let chain = [own].into_iter().chain(rest);
    let proven = Proven::Certificate {
        names: names::of(own),
        chain: chain.map(|one| Bytes::copy_from_slice(one)).collect(),
    };
    Identity::new(proven, true)
}

/// `HOST:PORT`, an IPv6 address without its brackets.
fn host_and_port(text: &str) -> io::Result<(&str, u16)> {
    let parts = text.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| invalid("expected tls://HOST:PORT"))?;
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    Ok((inner.unwrap_or(host), port))
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
