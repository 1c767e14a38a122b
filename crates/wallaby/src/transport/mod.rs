//! Byte streams: what moves the bytes of connections, picked by the address's scheme.
//!
//! A transport only moves bytes. Framing, handshake and credit are `wallaby_proto::connection`.

mod mem;
mod socket;

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};
use wallaby_proto::{Address, AddressError};

use crate::error::BindError;

/// The receiving end of a stream; one task owns it.
#[derive(Debug)]
pub(crate) enum ReadHalf {
    Socket(socket::Reader),
    Mem(mem::Reader),
}

/// The sending end of a stream; anybody may write to it without waiting.
#[derive(Debug)]
pub(crate) enum WriteHalf {
    Socket(socket::Writer),
    Mem(mem::Writer),
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
}

/// The file of a unix socket, removed with its listener.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it already; nothing depends on it.
        let _ = std::fs::remove_file(&self.0);
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
        }
    }
}

impl WriteHalf {
    /// Writes as much as fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(writer) => writer.try_write(bytes),
            Self::Mem(writer) => writer.try_write(bytes),
        }
    }

    /// Ready when something may fit again, after a write that did not fit. One task at a time may wait.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket(writer) => writer.poll_writable(cx),
            Self::Mem(writer) => writer.poll_writable(cx),
        }
    }

    /// Ends the stream in both directions; what was written still arrives.
    pub(crate) fn shutdown(&self) {
        match self {
            Self::Socket(writer) => writer.shutdown(),
            Self::Mem(writer) => writer.shutdown(),
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
        })
    }
}

/// Opens a stream to a server; `None` if no transport knows the scheme.
pub(crate) async fn dial(server: &Address) -> Option<io::Result<(ReadHalf, WriteHalf)>> {
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
        _ => return None,
    })
}

/// Listens; returns the address as others see it (port 0 is replaced by the real one).
pub(crate) async fn listen(address: &str) -> Result<(Listener, Address), BindError> {
    let address = resolve(address).await?;
    let failed = |source| BindError::Listen {
        address: address.clone(),
        source,
    };
    match &address {
        Address::Tcp(socket) => {
            let listener = TcpListener::bind(socket).await.map_err(failed)?;
            let socket = listener.local_addr().map_err(failed)?;
            Ok((Listener::Tcp(listener), Address::Tcp(socket)))
        }
        Address::Unix(path) => {
            let path = Path::new(&**path);
            let listener = listen_unix(path).await.map_err(failed)?;
            Ok((
                Listener::Unix {
                    _file: SocketFile(path.into()),
                    listener,
                },
                address.clone(),
            ))
        }
        Address::Mem(name) => {
            let listener = mem::listen(name).map_err(failed)?;
            Ok((Listener::Mem(listener), address.clone()))
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
    let (AddressError::NoSocketAddress { .. }, Some(host)) = (&error, text.strip_prefix("tcp://"))
    else {
        return Err(error.into());
    };
    match lookup_host(host).await.map(|mut found| found.next()) {
        Ok(Some(socket)) => Ok(Address::Tcp(socket)),
        Ok(None) => Err(error.into()),
        Err(source) if source.kind() == io::ErrorKind::InvalidInput => Err(error.into()),
        Err(source) => Err(BindError::Resolve {
            address: text.into(),
            source,
        }),
    }
}

/// Listens at a path; a socket file that nobody listens on any more is replaced.
async fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        // Another file than a socket is somebody's, and not to be removed.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_socket(path) => {
            match UnixStream::connect(path).await {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?
                }
                _ => return Err(error),
            }
            UnixListener::bind(path)
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

fn mems((read, write): (mem::Reader, mem::Writer)) -> (ReadHalf, WriteHalf) {
    (ReadHalf::Mem(read), WriteHalf::Mem(write))
}
