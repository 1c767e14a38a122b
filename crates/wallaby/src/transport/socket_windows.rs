//! TCP connections by tokio's own streams, where file descriptors cannot be registered one way.

use std::io;
use std::net::Shutdown;
use std::os::windows::io::AsSocket;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::net::TcpStream;

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Reader(Arc<TcpStream>);

/// The sending end.
#[derive(Debug)]
pub(crate) struct Writer(Arc<TcpStream>);

/// The two ends of a TCP connection; small messages leave at once.
pub(super) fn tcp(stream: TcpStream) -> io::Result<(Reader, Writer)> {
    stream.set_nodelay(true)?;
    let stream = Arc::new(stream);
    Ok((Reader(Arc::clone(&stream)), Writer(stream)))
}

impl Reader {
    /// Appends what is there, as far as it fits the spare room of `input`; zero bytes mean that nothing more comes.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(input) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}

impl Writer {
    /// Writes as much as fits now.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    /// Ready when something may fit again; only after a write that did not fit.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_write_ready(cx)
    }

    /// Ends the connection in both directions; what was written still arrives.
    pub(super) fn shutdown(&self) {
        let socket = self.0.as_socket().try_clone_to_owned();
        // An error means that the peer was faster.
        let _ = socket.map(|socket| std::net::TcpStream::from(socket).shutdown(Shutdown::Both));
    }
}
