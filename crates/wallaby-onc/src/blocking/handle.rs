//! Handles: a connection, or a socket for datagrams, and the one call on it (FlexRPC, section IV-B).

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, UnixAddr, connect, recv,
    send as sys_send, sendmsg, socket,
};
use rustix::io::{FdFlags, fcntl_setfd};

use super::pool::Options;
use super::socket::{Stream, is_timeout, settable};
use crate::client::{Arrived, arrived, arrived_in};
use crate::failure::{Lost, NoReply};
use crate::message::Reply;
use crate::peer::Peer;
use crate::record::{HEADER, MAX_FRAGMENT, Records};
use crate::udp;

/// How much is read at a time.
const READ: usize = 64 << 10;

/// A way to a server that has one call at a time.
#[derive(Debug)]
pub(super) struct Handle {
    way: Way,
    /// How long the socket's reads wait now.
    wait: Duration,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
enum Way {
    Stream { stream: Stream, records: Records },
    Datagrams { socket: UdpSocket, limit: usize },
}

/// What became of a call.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) outcome: Result<Reply, NoReply>,
    /// Nothing of this call, or of the ones before it, can still come: the handle can be used again.
    pub(super) is_clean: bool,
    /// The connection is gone, and so are its like.
    pub(super) is_gone: bool,
    /// How often the call was sent.
    pub(super) sent: u32,
    /// Replies that were not this call's.
    pub(super) strangers: u64,
}

impl Done {
    fn new(outcome: Result<Reply, NoReply>) -> Self {
        Self {
            is_clean: outcome.is_ok(),
            outcome,
            is_gone: false,
            sent: 1,
            strangers: 0,
        }
    }

    fn gone(error: NoReply) -> Self {
        Self {
            is_gone: true,
            ..Self::new(Err(error))
        }
    }
}

/// A call that is made.
#[derive(Debug)]
pub(super) struct Calling<'call> {
    pub(super) xid: u32,
    /// The message as a record, at least up to the arguments.
    pub(super) record: &'call [u8],
    /// Those of its arguments that are elsewhere.
    pub(super) arguments: &'call [u8],
    pub(super) time: Time,
    /// When it is sent: at once if no connection has to be made.
    pub(super) now: Instant,
}

/// The time that a call has. The clock is read when it begins, and then only if something does not go well at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    pub(super) begin: Instant,
    pub(super) limit: Duration,
    pub(super) end: Instant,
}

impl Time {
    /// The time of a call that begins now.
    pub(super) fn new(limit: Duration) -> Self {
        let begin = Instant::now();
        let end = begin.checked_add(limit).unwrap_or(begin + LONGEST);
        Self { begin, limit, end }
    }

    pub(super) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// As good as never.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

impl Calling<'_> {
    /// The message, at least up to the arguments.
    fn message(&self) -> &[u8] {
        self.record.get(HEADER..).unwrap_or_default()
    }

    fn length(&self) -> usize {
        self.message().len() + self.arguments.len()
    }

    fn timed_out(&self, sent: u32) -> NoReply {
        let after = self.time.limit;
        NoReply::TimedOut { after, sent }
    }
}

impl Handle {
    pub(super) fn open(server: &Peer, options: &Options, within: Duration) -> io::Result<Self> {
        let way = match server {
            Peer::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, settable(within))?;
                stream.set_nodelay(true)?;
                Way::stream(Stream::Tcp(stream), options)
            }
            Peer::Unix(path) => {
                let path = path.as_deref().unwrap_or("".as_ref());
                Way::stream(Stream::Unix(connect_unix(path, within)?), options)
            }
            Peer::Udp(address) => Way::datagrams(*address)?,
        };
        Ok(Self {
            way,
            wait: Duration::ZERO,
            buffer: vec![0; READ].into(),
        })
    }

    pub(super) fn call(&mut self, call: &Calling<'_>, options: &Options) -> Done {
        let limit = match &self.way {
            Way::Stream { .. } => options.max_record.min(MAX_FRAGMENT),
            Way::Datagrams { limit, .. } => *limit,
        };
        let found = call.length();
        if found > limit {
            return Done {
                is_clean: true,
                sent: 0,
                ..Done::new(Err(NoReply::TooLong { limit, found }))
            };
        }
        match &self.way {
            Way::Stream { .. } => self.call_over_stream(call),
            Way::Datagrams { .. } => self.call_over_datagrams(call, options),
        }
    }

    /// Whether its peer has ended it, or sent what nobody asked for, while it was not used.
    pub(super) fn is_stale(&self) -> bool {
        let Way::Stream { stream, .. } = &self.way else {
            return false;
        };
        let look = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let mut byte = [0];
        match recv(stream.as_fd().as_raw_fd(), &mut byte, look) {
            Ok(_) => true,
            Err(error) => error != Errno::EAGAIN,
        }
    }

    fn call_over_stream(&mut self, call: &Calling<'_>) -> Done {
        if let Err(error) = self.limit_reads(call.time.end.saturating_duration_since(call.now)) {
            return Done::gone(NoReply::NotSent {
                why: Lost::from(&error),
            });
        }
        let Way::Stream { stream, .. } = &self.way else {
            return Done::new(Err(NoReply::Send(io::ErrorKind::Unsupported.into())));
        };
        let wait = &mut self.wait;
        let again = |_| match call.time.left() {
            left if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
            left => limit_reads(wait, stream, left),
        };
        if let Err((sent, error)) = stream.write_record(call.record, call.arguments, again) {
            let why = Lost::from(&error);
            return match sent {
                _ if is_timeout(&error) => Done::new(Err(call.timed_out(1))),
                0 => Done::gone(NoReply::NotSent { why }),
                _ => Done::gone(NoReply::Unknown { why }),
            };
        }
        let mut strangers = 0;
        let done = loop {
            let record = match self.next_record(call) {
                Ok(record) => record,
                Err(done) => break done,
            };
            match arrived(record) {
                Arrived::Reply(xid, reply) if xid == call.xid => break Done::new(Ok(reply)),
                Arrived::Malformed(xid, error) if xid == call.xid => {
                    break Done::new(Err(NoReply::Malformed(error)));
                }
                _ => strangers += 1,
            }
        };
        Done { strangers, ..done }
    }

    fn next_record(&mut self, call: &Calling<'_>) -> Result<Bytes, Done> {
        let lost = |why| Done::gone(NoReply::Unknown { why });
        let mut is_first = true;
        loop {
            let Way::Stream { stream, records } = &mut self.way else {
                return Err(lost(Lost::Here));
            };
            if let Some(record) = records.poll_record().map_err(|error| lost(error.into()))? {
                return Ok(record);
            }
            // The socket would wait as long again for each part of an answer.
            if !std::mem::take(&mut is_first) {
                limit_reads(&mut self.wait, stream, call.time.left())
                    .map_err(|error| lost(Lost::from(&error)))?;
            }
            match stream.read_records(records, &mut self.buffer) {
                Ok(0) => return Err(lost(Lost::Closed)),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {
                    if call.time.left().is_zero() {
                        return Err(Done::new(Err(call.timed_out(1))));
                    }
                }
                Err(error) => return Err(lost(Lost::from(&error))),
            }
        }
    }

    fn call_over_datagrams(&mut self, call: &Calling<'_>, options: &Options) -> Done {
        let mut again = options.retransmit_after.max(SHORTEST_WAIT);
        let (mut sent, mut strangers, mut now) = (0, 0, call.now);
        let outcome = loop {
            let Way::Datagrams { socket, .. } = &self.way else {
                break Err(NoReply::Send(io::ErrorKind::Unsupported.into()));
            };
            if let Err(error) = send(socket, call) {
                break Err(unreachable(error, sent));
            }
            sent += 1;
            let next = now
                .checked_add(again)
                .map_or(call.time.end, |next| next.min(call.time.end));
            let wait = next.saturating_duration_since(now);
            match self.await_reply(call, (wait, next), sent, &mut strangers) {
                Ok(Some(reply)) => break Ok(reply),
                Ok(None) if next >= call.time.end => break Err(call.timed_out(sent)),
                Ok(None) => {
                    again = again.saturating_mul(2).min(options.retransmit_at_most);
                    now = Instant::now();
                }
                Err(error) => break Err(error),
            }
        };
        Done {
            // What was sent more than once may be answered more than once.
            is_clean: outcome.is_ok() && sent == 1,
            sent,
            strangers,
            ..Done::new(outcome)
        }
    }

    /// The reply, if it comes within that time, which ends then.
    fn await_reply(
        &mut self,
        call: &Calling<'_>,
        (mut wait, until): (Duration, Instant),
        sent: u32,
        strangers: &mut u64,
    ) -> Result<Option<Reply>, NoReply> {
        loop {
            self.limit_reads(wait).map_err(NoReply::Send)?;
            let Way::Datagrams { socket, .. } = &self.way else {
                return Ok(None);
            };
            match socket.recv(&mut self.buffer) {
                Ok(length) => {
                    let datagram = self.buffer.get(..length).unwrap_or_default();
                    match arrived_in(datagram) {
                        Arrived::Reply(xid, reply) if xid == call.xid => return Ok(Some(reply)),
                        _ => *strangers += 1,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(unreachable(error, sent)),
            }
            wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Ok(None);
            }
        }
    }

    fn limit_reads(&mut self, limit: Duration) -> io::Result<()> {
        match &self.way {
            Way::Stream { stream, .. } => limit_reads(&mut self.wait, stream, limit),
            Way::Datagrams { socket, .. } => {
                if !fits(self.wait, limit) {
                    socket.set_read_timeout(Some(settable(limit)))?;
                    self.wait = limit;
                }
                Ok(())
            }
        }
    }
}

impl Way {
    fn stream(stream: Stream, options: &Options) -> Self {
        let records = Records::new(options.max_record);
        Self::Stream { stream, records }
    }

    fn datagrams(server: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        // The system drops what comes from elsewhere, and tells us when nobody is there.
        socket.connect(server)?;
        let limit = udp::max_payload(server);
        Ok(Self::Datagrams { socket, limit })
    }
}

/// A connection to a unix socket; a server that accepts nothing is waited for no longer than this.
fn connect_unix(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let name = path.as_os_str().as_bytes();
    // To the system, these would be the names of other sockets.
    if name.is_empty() || name.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let address = UnixAddr::new(path)?;
    let socket = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    let stream = UnixStream::from(socket);
    let begin = Instant::now();
    loop {
        // The limit of writes is that of connecting, too.
        let left = within.saturating_sub(begin.elapsed());
        stream.set_write_timeout(Some(settable(left)))?;
        match connect(stream.as_raw_fd(), &address) {
            Ok(()) => return Ok(stream),
            Err(Errno::EINTR) if !left.is_zero() => {}
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Where a socket can be made so at once, no process that is started meanwhile inherits it.
#[cfg(target_os = "linux")]
const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const FLAGS: SockFlag = SockFlag::empty();

/// Lets a stream's reads, and writes, wait so long, if they do not wait about as long already.
fn limit_reads(now: &mut Duration, stream: &Stream, limit: Duration) -> io::Result<()> {
    if fits(*now, limit) {
        return Ok(());
    }
    stream.limit_reads(limit)?;
    stream.limit_writes(limit)?;
    *now = limit;
    Ok(())
}

/// Whether a socket that waits so long need not be told anew: to do so is a call of the system, and calls of a client
/// mostly have the same time. A wait that is over too early is begun again.
fn fits(now: Duration, limit: Duration) -> bool {
    now <= limit.saturating_add(limit / 64) && now >= limit / 2 && !now.is_zero()
}

fn send(socket: &UdpSocket, call: &Calling<'_>) -> io::Result<()> {
    let (socket, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let parts = [call.message(), call.arguments].map(IoSlice::new);
    let in_parts = || sendmsg::<SockaddrStorage>(socket, &parts, &[], flags, None);
    let send = || match call.arguments {
        [] => sys_send(socket, call.message(), flags),
        _ => in_parts(),
    };
    match send() {
        Ok(_) => Ok(()),
        // The answer to an earlier datagram, in place of sending this one.
        Err(Errno::ECONNREFUSED | Errno::EINTR) => Ok(send().map(drop)?),
        Err(error) => Err(error.into()),
    }
}

fn unreachable(error: io::Error, sent: u32) -> NoReply {
    match error.kind() {
        io::ErrorKind::ConnectionRefused if sent > 0 => NoReply::Unreachable { sent, error },
        _ => NoReply::Send(error),
    }
}

const SHORTEST_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn open(path: &Path) -> io::Result<Handle> {
        let server = Peer::Unix(Some(path.to_owned()));
        Handle::open(&server, &Options::default(), Duration::from_millis(1))
    }

    #[test]
    #[cfg(target_os = "linux")] // others refuse what does not fit into a queue
    fn connecting_to_a_unix_socket_that_accepts_nothing_ends() {
        use nix::sys::socket::{Backlog, listen};
        let name = format!("wallaby-onc-full-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let queued = open(&path);
        let late = open(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(queued.is_ok(), "the queue holds one");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_no_path_is_no_other_socket() {
        for name in ["", "\0name", "/tmp/a\0b"] {
            let error = open(name.as_ref()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
