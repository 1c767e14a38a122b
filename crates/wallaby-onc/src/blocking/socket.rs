//! Blocking sockets for records: TCP and unix, with waits that end.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::record::Records;
use crate::stream::receive_into;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Reads what is there, waiting for it as long as [`Stream::limit_reads`] says.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Tcp(stream) => { stream }.read(buffer),
                Self::Unix(stream) => { stream }.read(buffer),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Reads what is there, for records; elsewhere at first if it is not much.
    pub(super) fn read_records(
        &self,
        records: &mut Records,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let Some((room, most)) = records.room() else {
            let length = self.read(buffer)?;
            records.handle_input(buffer.get(..length).unwrap_or_default());
            return Ok(length);
        };
        receive_into(self, room, most)
    }

    /// Writes a record, and what it has elsewhere, in one call of the system if it takes it. How many bytes it took comes
    /// with the error.
    ///
    /// `again` is asked before each other call, and told if the one before took too long: an error of it is the end.
    pub(super) fn write_record(
        &self,
        record: &[u8],
        elsewhere: &[u8],
        again: impl FnMut(Option<io::Error>) -> io::Result<()>,
    ) -> Result<(), (usize, io::Error)> {
        let mut parts = [record, elsewhere].map(IoSlice::new);
        let parts = match elsewhere {
            [] => &mut parts[..1],
            _ => &mut parts[..],
        };
        let mut sent = 0;
        self.write_all(parts, &mut sent, again)
            .map_err(|error| (sent, error))
    }

    fn write_all(
        &self,
        mut left: &mut [IoSlice<'_>],
        sent: &mut usize,
        mut again: impl FnMut(Option<io::Error>) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            match self.write_some(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    *sent += count;
                    IoSlice::advance_slices(&mut left, count);
                    if left.is_empty() {
                        return Ok(());
                    }
                    again(None)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => again(None)?,
                Err(error) if is_timeout(&error) => again(Some(error))?,
                Err(error) => return Err(error),
            }
        }
    }

    fn write_some(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, parts) {
            (Self::Tcp(stream), [part]) => { stream }.write(part),
            (Self::Unix(stream), [part]) => { stream }.write(part),
            (Self::Tcp(stream), _) => { stream }.write_vectored(parts),
            (Self::Unix(stream), _) => { stream }.write_vectored(parts),
        }
    }

    /// How long a read waits at most.
    pub(super) fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(settable(limit))),
            Self::Unix(stream) => stream.set_read_timeout(Some(settable(limit))),
        }
    }

    /// How long a write waits at most until the peer takes something.
    pub(super) fn limit_writes(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(settable(limit))),
            Self::Unix(stream) => stream.set_write_timeout(Some(settable(limit))),
        }
    }

    /// Ends a direction, or both: whoever waits for it is woken.
    pub(super) fn shut_down(&self, how: Shutdown) {
        // It may have ended, which is as good.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
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

/// A wait that a socket can be told: 0 would be for ever, and so would be less than it counts in.
pub(super) fn settable(limit: Duration) -> Duration {
    limit.clamp(Duration::from_micros(1), LONGEST)
}

/// Whether a wait was over before anything came.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// More than any system counts is refused.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_another_part_of_a_record_is_written_its_sender_is_asked() {
        let (socket, peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap(); // each call takes what there is room for
        let stream = Stream::Unix(socket);
        let message = vec![7; 4 << 20];
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let (sent, error) = stream
            .write_record(&message, &message, |_| Err(late()))
            .unwrap_err();
        assert!(0 < sent && sent < message.len());
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let mut asked = 0;
        let mut read_some = |_| {
            asked += 1;
            (&peer).read(&mut vec![0; 1 << 20]).map(drop)
        };
        stream
            .write_record(&message, &message, &mut read_some)
            .unwrap();
        assert!(asked > 1);
    }
}
