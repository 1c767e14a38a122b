//! A connected socket, TCP or unix.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use bytes::{BufMut, BytesMut};
use nix::sys::socket::MsgFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::record::RecordReader;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Reads what is there, for records; elsewhere at first if it is not much. `Ok(0)`: the peer ended.
    ///
    /// If that is less than there is room for, it was all: [`Stream::ready`] waits for more without another look, which would
    /// be a call of the system for nothing.
    pub(crate) fn try_read(
        &self,
        records: &mut RecordReader,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        if let Some((room, most)) = records.room() {
            let most = most.min(room.spare_capacity_mut().len());
            return self.try_receive(most, || receive_into(self, room, most));
        }
        let most = buffer.len();
        let length = self.try_receive(most, || {
            Ok(nix::sys::socket::recv(
                self.as_raw_fd(),
                buffer,
                MsgFlags::empty(),
            )?)
        })?;
        records.handle_input(buffer.get(..length).unwrap_or_default());
        Ok(length)
    }

    fn try_receive(
        &self,
        most: usize,
        receive: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut all = None;
        // What the system tells while this reads is not forgotten: tokio compares with what it knew before.
        let read = self.try_io(Interest::READABLE, || match receive()? {
            length if IS_TOLD_ONCE && 0 < length && length < most => {
                all = Some(length);
                Err(io::ErrorKind::WouldBlock.into())
            }
            length => Ok(length),
        });
        all.map_or(read, Ok)
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

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
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

/// Receives at most so many bytes behind those that are there, as far as there is room.
pub(crate) fn receive_into(
    socket: &impl AsFd,
    bytes: &mut BytesMut,
    most: usize,
) -> io::Result<usize> {
    let room = bytes.spare_capacity_mut();
    let most = most.min(room.len());
    let length = loop {
        match recv(socket, &mut room[..most], RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            received => break received?.1,
        }
    };
    let length = length.min(most);
    // SAFETY: the system has written so many bytes there.
    unsafe { bytes.advance_mut(length) };
    Ok(length)
}

/// The system tells of what arrives whenever something does, not as long as something is there (epoll, as tokio uses it).
const IS_TOLD_ONCE: bool = cfg!(target_os = "linux");
