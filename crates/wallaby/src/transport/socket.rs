//! Stream sockets, registered for reading only.
//!
//! tokio's own streams ask for readiness in both directions, and on a unix socket every message that the peer takes off
//! makes the sender writable once more: a wake-up for nothing per message. Here a writer tries at once and asks to be
//! woken only while the socket is full.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, BytesMut};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::foreign::{ReadHalf, WriteHalf};

/// A connected, nonblocking stream socket.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Reader(Arc<AsyncFd<Socket>>);

/// The sending end.
#[derive(Debug)]
pub(crate) struct Writer {
    socket: Arc<AsyncFd<Socket>>,
    /// Registered for writing, while the socket is full.
    full: Mutex<Option<AsyncFd<Socket>>>,
}

/// The two ends of a TCP connection; small messages leave at once.
///
/// Acknowledgements wait for data to go along with, or for the kernel's timer: where messages flow in one direction, as
/// forwarded requests do, one for each of them would cost as much as the message.
pub(super) fn tcp(stream: tokio::net::TcpStream) -> io::Result<(Reader, Writer)> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    stream.set_quickack(false)?;
    split(Socket::Tcp(stream.into_std()?))
}

/// The two ends of a unix connection.
pub(super) fn unix(stream: tokio::net::UnixStream) -> io::Result<(Reader, Writer)> {
    split(Socket::Unix(stream.into_std()?))
}

fn split(socket: Socket) -> io::Result<(Reader, Writer)> {
    let socket = Arc::new(register(socket, Interest::READABLE)?);
    Ok((
        Reader(Arc::clone(&socket)),
        Writer {
            socket,
            full: Mutex::default(),
        },
    ))
}

fn register(socket: Socket, interest: Interest) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: a `Socket` owns its file descriptor, which stays open and the same until the `AsyncFd` that owns the
    // `Socket` is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

impl ReadHalf for Reader {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let room = input.spare_capacity_mut().len();
            match receive(ready.get_inner().as_raw_fd(), input) {
                Ok(read) => {
                    if read > 0 && read < room {
                        // The socket is empty now: the next look can wait for its next message.
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Receives into the spare room of `input`, which need not be initialised.
pub(crate) fn receive(socket: RawFd, input: &mut BytesMut) -> io::Result<usize> {
    let spare = input.spare_capacity_mut();
    // SAFETY: `spare` is writable memory of this length that nobody else uses, and `recv` writes at most so much.
    let read = unsafe { libc::recv(socket, spare.as_mut_ptr().cast(), spare.len(), 0) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: `recv` has initialised the first `read` bytes of the spare room.
    unsafe { input.advance_mut(read) };
    Ok(read)
}

impl WriteHalf for Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.socket.get_ref() {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            Socket::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        if full.is_none() {
            let again = self.socket.get_ref().try_clone()?;
            *full = Some(register(again, Interest::WRITABLE)?);
        }
        if let Some(registered) = full.as_ref() {
            ready!(registered.poll_write_ready(cx))?.clear_ready();
        }
        *full = None;
        Poll::Ready(Ok(()))
    }

    fn shutdown(&self) {
        // An error means that the peer was faster.
        let _ = match self.socket.get_ref() {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Socket {
    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}
