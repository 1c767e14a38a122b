//! A connected socket, TCP or unix.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::socket::MsgFlags;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Reads what is there. `Ok(0)`: the peer ended.
    ///
    /// If that is less than there is room for, it was all: [`Stream::ready`] waits for more without another look, which would
    /// be a call of the system for nothing.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut all = None;
        let room = buffer.len();
        // What the system tells while this reads is not forgotten: tokio compares with what it knew before.
        let read = self.try_io(Interest::READABLE, || match self.read(buffer)? {
            length if IS_TOLD_ONCE && 0 < length && length < room => {
                all = Some(length);
                Err(io::ErrorKind::WouldBlock.into())
            }
            length => Ok(length),
        });
        all.map_or(read, Ok)
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(nix::sys::socket::recv(
            self.as_raw_fd(),
            buffer,
            MsgFlags::empty(),
        )?)
    }

    fn try_io<T>(
        &self,
        interest: Interest,
        action: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self {
            Self::Tcp(stream) => stream.try_io(interest, action),
            Self::Unix(stream) => stream.try_io(interest, action),
        }
    }

    /// Writes what the system takes now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_parts(&[IoSlice::new(bytes)])
    }

    /// Writes what the system takes now of these bytes, one part after the other.
    pub(crate) fn try_write_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(parts),
            Self::Unix(stream) => stream.try_write_vectored(parts),
        }
    }

    /// Waits until it can be read from, or written to.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<tokio::io::Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

/// The system tells of what arrives whenever something does, not as long as something is there (epoll, as tokio uses it).
const IS_TOLD_ONCE: bool = cfg!(target_os = "linux");
