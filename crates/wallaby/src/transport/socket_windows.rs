//! TCP connections by tokio's own streams, where file descriptors cannot be registered one way.

use std::io;
use std::net::Shutdown;
use std::os::windows::io::AsSocket;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::net::TcpStream;

use super::foreign::{ReadHalf, WriteHalf};

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

impl ReadHalf for Reader {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(input) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }
}

impl WriteHalf for Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_write_ready(cx)
    }

    fn shutdown(&self) {
        let socket = self.0.as_socket().try_clone_to_owned();
        // An error means that the peer was faster.
        let _ = socket.map(|socket| std::net::TcpStream::from(socket).shutdown(Shutdown::Both));
    }
}
