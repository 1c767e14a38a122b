//! Datagrams that are sent many at a time: those of one length to one peer as one that the kernel cuts again (GSO), those to
//! several peers in one system call.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use super::bare;

/// What is gathered at most before it is sent: so many bytes, but for the last datagram, and so many runs.
const FULL: (usize, usize) = (64 * 1024, 16);

/// Most bytes and datagrams that the kernel cuts apart.
const JOINED: (usize, usize) = (65_507, 64);

/// Datagrams of one length, but for the last one, which may be shorter, to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DatagramRun {
    to: SocketAddr,
    /// Where it lies in the outbox.
    start: usize,
    end: usize,
    /// How long its datagrams are.
    segment: usize,
}

impl DatagramRun {
    fn is_single(&self) -> bool {
        self.end - self.start <= self.segment
    }
}

/// Datagrams that wait to be sent, in this order.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    runs: Vec<DatagramRun>,
    /// How many of them were sent.
    sent: usize,
    /// Datagrams up to this length are joined: longer ones were refused.
    longest_joined: usize,
    /// Something was not sent, or there was news of what was sent before.
    trouble: bool,
}

/// What sends datagrams.
trait System {
    /// Sends a datagram.
    fn send_one(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()>;

    /// Sends several runs, of which all but the first may have to wait: how many were sent.
    fn send_runs(&mut self, runs: &[DatagramRun], bytes: &[u8]) -> io::Result<usize>;
}

impl Outbox {
    /// For what is sent through this socket.
    pub(crate) fn new(socket: &UdpSocket) -> Self {
        // A kernel that does not know this option would send runs as they are.
        let off: libc::c_int = 0;
        let known = bare::set_option(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, off);
        Self::joining(if known.is_ok() { JOINED.0 } else { 0 })
    }

    /// For what is sent one by one.
    pub(crate) fn unjoined() -> Self {
        Self::joining(0)
    }

    fn joining(longest_joined: usize) -> Self {
        Self {
            bytes: Vec::new(),
            runs: Vec::new(),
            sent: 0,
            longest_joined,
            trouble: false,
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether so much waits that it should be sent before there is more.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL.0 || self.runs.len() >= FULL.1
    }

    /// Where the next datagram is appended; then see [`Outbox::push`].
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The last `len` bytes of the buffer are a datagram to this peer.
    pub(crate) fn push(&mut self, to: SocketAddr, len: usize) {
        let end = self.bytes.len();
        if let Some(last) = self.runs.last_mut()
            && last.to == to
            && len <= last.segment
            && last.segment <= self.longest_joined
            && last.may_take(end - last.start)
        {
            last.end = end;
            return;
        }
        let start = end - len;
        self.runs.push(DatagramRun {
            to,
            start,
            end,
            segment: len,
        });
    }

    /// Sends what waits; an error that says no more than that a datagram was lost is not told. `WouldBlock` if there is no
    /// room now: the rest still waits.
    pub(crate) fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.send_by(&mut &*socket)
    }

    /// Sends what waits one by one. `WouldBlock` as [`Outbox::send`].
    pub(crate) fn send_each(
        &mut self,
        send: impl FnMut(&[u8], SocketAddr) -> io::Result<()>,
    ) -> io::Result<()> {
        self.send_by(&mut Each(send))
    }

    /// Whether the system has told an error since this was last asked: there may be news of datagrams.
    pub(crate) fn take_trouble(&mut self) -> bool {
        std::mem::take(&mut self.trouble)
    }

    fn send_by(&mut self, system: &mut impl System) -> io::Result<()> {
        while self.sent < self.runs.len() {
            let runs = &self.runs[self.sent..];
            if let [only] = runs
                && only.is_single()
            {
                self.send_apart(system)?; // nearly always
                continue;
            }
            match system.send_runs(runs, &self.bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    self.trouble = true;
                    self.note_refusal(&error);
                    self.send_apart(system)?;
                }
                Ok(sent) => self.sent += sent,
            }
        }
        self.bytes.clear();
        self.runs.clear();
        self.sent = 0;
        Ok(())
    }

    /// The first run that waits was not taken.
    fn note_refusal(&mut self, error: &io::Error) {
        let run = &self.runs[self.sent];
        if !run.is_single() && is_refusal(error) {
            tracing::debug!(to = %run.to, segment = run.segment, %error, "datagrams are not joined");
            self.longest_joined = self.longest_joined.min(run.segment - 1);
        }
    }

    /// Sends the datagrams of the first run that waits one by one.
    fn send_apart(&mut self, system: &mut impl System) -> io::Result<()> {
        let run = &mut self.runs[self.sent];
        while run.start < run.end {
            let end = run.end.min(run.start + run.segment);
            match system.send_one(&self.bytes[run.start..end], run.to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // As if lost.
                Err(error) => tracing::debug!(to = %run.to, %error, "a datagram was not sent"),
                Ok(()) => {}
            }
            run.start = end;
        }
        self.sent += 1;
        Ok(())
    }
}

impl DatagramRun {
    /// Whether it may take another datagram, and be so long then: a shorter one is the last.
    fn may_take(&self, len: usize) -> bool {
        let before = self.end - self.start;
        before.is_multiple_of(self.segment) && len <= JOINED.0 && before < JOINED.1 * self.segment
    }
}

/// Whether the kernel or the way to the peer does not take joined datagrams, or none that are so long.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP)
    )
}

impl System for &UdpSocket {
    fn send_one(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        bare::send(self, datagram, to)
    }

    fn send_runs(&mut self, runs: &[DatagramRun], bytes: &[u8]) -> io::Result<usize> {
        let runs = &runs[..runs.len().min(FULL.1)];
        // SAFETY: these are plain C structures, for which zero bytes are valid.
        let (mut headers, mut names, mut vectors): (
            [libc::mmsghdr; FULL.1],
            [libc::sockaddr_storage; FULL.1],
            [libc::iovec; FULL.1],
        ) = unsafe { std::mem::zeroed() };
        let mut controls = [Control::default(); FULL.1];
        let parts = names.iter_mut().zip(&mut vectors).zip(&mut controls);
        for ((header, run), ((name, vector), control)) in headers.iter_mut().zip(runs).zip(parts) {
            let header = &mut header.msg_hdr;
            header.msg_namelen = bare::put_address(name, run.to);
            header.msg_name = (&raw mut *name).cast();
            vector.iov_base = bytes[run.start..run.end].as_ptr().cast_mut().cast();
            vector.iov_len = run.end - run.start;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            if !run.is_single() {
                put_segment(header, control, run.segment);
            }
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each header points to a name, a vector and perhaps a control block, with their lengths, and each vector to
        // bytes of the outbox; all outlive the call, which only reads them and writes into `headers`.
        let sent = unsafe {
            libc::sendmmsg(
                self.as_raw_fd(),
                headers.as_mut_ptr(),
                runs.len() as libc::c_uint,
                flags as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Room for what tells the kernel where to cut, with its header, aligned.
type Control = [u64; 3];

/// The datagrams of a message are so long.
fn put_segment(header: &mut libc::msghdr, control: &mut Control, segment: usize) {
    header.msg_control = (&raw mut *control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the control block is aligned and has room for one item of two bytes, which is all that is written.
    unsafe {
        let item = libc::CMSG_FIRSTHDR(header);
        (*item).cmsg_level = libc::SOL_UDP;
        (*item).cmsg_type = libc::UDP_SEGMENT;
        (*item).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as _) as _;
        libc::CMSG_DATA(item)
            .cast::<u16>()
            .write_unaligned(segment as u16);
    }
}

/// Something that sends only one by one.
struct Each<F>(F);

impl<F: FnMut(&[u8], SocketAddr) -> io::Result<()>> System for Each<F> {
    fn send_one(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        (self.0)(datagram, to)
    }

    fn send_runs(&mut self, _: &[DatagramRun], _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::transport::inbox::Inbox;

    fn peer(number: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, number).into()
    }

    fn push(outbox: &mut Outbox, to: SocketAddr, datagram: &[u8]) {
        outbox.buffer().extend_from_slice(datagram);
        outbox.push(to, datagram.len());
    }

    /// How datagrams of these lengths to these peers are joined: the bytes and the segment of each run.
    fn joined(longest: usize, datagrams: &[(u16, usize)]) -> Vec<(usize, usize)> {
        let mut outbox = Outbox::joining(longest);
        for &(to, len) in datagrams {
            push(&mut outbox, peer(to), &vec![0; len]);
        }
        let runs = outbox.runs.iter();
        runs.map(|run| (run.end - run.start, run.segment)).collect()
    }

    #[test]
    fn datagrams_of_one_length_to_one_peer_are_joined() {
        let longest = JOINED.0;
        let of_one_length = [(1, 100), (1, 100), (1, 100)];
        assert_eq!(joined(longest, &of_one_length), [(300, 100)]);
        // A shorter one is the last of its run, a longer one is not of it.
        let shorter = [(1, 100), (1, 60), (1, 60)];
        assert_eq!(joined(longest, &shorter), [(160, 100), (60, 60)]);
        assert_eq!(
            joined(longest, &[(1, 60), (1, 100)]),
            [(60, 60), (100, 100)]
        );
        let others = [(1, 100), (2, 100), (2, 100), (1, 100)];
        let expected = [(100, 100), (200, 100), (100, 100)];
        assert_eq!(joined(longest, &others), expected);
        assert_eq!(joined(99, &of_one_length), [(100, 100); 3]);
        // So many and so long as the kernel takes them.
        assert_eq!(joined(longest, &[(1, 10); 65]), [(640, 10), (10, 10)]);
        assert_eq!(
            joined(longest, &[(1, 30_000); 3]),
            [(60_000, 30_000), (30_000, 30_000)]
        );
    }

    fn sockets() -> (UdpSocket, UdpSocket) {
        let bind = || bare::bind((Ipv4Addr::LOCALHOST, 0).into(), true).expect("a socket");
        (bind(), bind())
    }

    /// Datagrams of different contents: so many of one length, and a shorter one.
    fn run(count: u8) -> Vec<Vec<u8>> {
        let mut run: Vec<_> = (0..count).map(|number| vec![number; 1200]).collect();
        run.push(vec![count; 7]);
        run
    }

    /// What comes to a socket, as datagrams.
    fn received(socket: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
        let mut inbox = Inbox::new();
        let mut received = Vec::new();
        while received.len() < count {
            inbox
                .receive(socket, libc::MSG_WAITFORONE)
                .expect("received");
            inbox.take(|_, datagram| received.push(datagram.to_vec()));
        }
        received
    }

    #[test]
    fn a_run_arrives_as_the_datagrams_that_it_was() {
        let (here, _) = sockets();
        // One that does not ask for joined datagrams.
        let there = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let mut outbox = Outbox::new(&here);
        let to = there.local_addr().expect("an address");
        let sent = run(40);
        sent.iter()
            .for_each(|datagram| push(&mut outbox, to, datagram));
        outbox.send(&here).expect("sent");
        assert!(outbox.is_empty() && outbox.buffer().is_empty());
        let mut room = [0; 2000];
        for datagram in &sent {
            let (len, from) = there.recv_from(&mut room).expect("received");
            assert_eq!(&room[..len], datagram);
            assert_eq!(from, here.local_addr().expect("an address"));
        }
    }

    #[test]
    fn several_peers_get_theirs_in_one_call() {
        let (here, one) = sockets();
        let (other, _) = sockets();
        let mut outbox = Outbox::new(&here);
        let to = |socket: &UdpSocket| socket.local_addr().expect("an address");
        let sent = run(3);
        for datagram in &sent {
            push(&mut outbox, to(&one), datagram);
            push(&mut outbox, to(&other), datagram);
            push(&mut outbox, to(&other), datagram);
        }
        outbox.send(&here).expect("sent");
        assert_eq!(received(&one, sent.len()), sent);
        assert_eq!(received(&other, 2 * sent.len()).len(), 2 * sent.len());
    }

    #[test]
    fn what_the_kernel_does_not_take_joined_is_sent_one_by_one() {
        let (here, there) = sockets();
        // Without checksums the kernel does not cut anything.
        let on: libc::c_int = 1;
        bare::set_option(here.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, on)
            .expect("an option");
        let mut outbox = Outbox::new(&here);
        let to = there.local_addr().expect("an address");
        let sent = run(20);
        for _ in 0..2 {
            sent.iter()
                .for_each(|datagram| push(&mut outbox, to, datagram));
            outbox.send(&here).expect("sent");
            assert_eq!(received(&there, sent.len()), sent);
            assert!(outbox.longest_joined < 1200, "it is not tried again");
        }
    }

    #[test]
    fn an_error_of_a_datagram_sent_before_refuses_nothing() {
        let (here, there) = sockets();
        let gone = there.local_addr().expect("an address");
        drop(there);
        let (there, _) = sockets();
        let to = there.local_addr().expect("an address");
        let mut outbox = Outbox::new(&here);
        push(&mut outbox, gone, &[0; 10]);
        outbox.send(&here).expect("sent"); // the answer, that nobody is there, comes at once
        let sent = run(20);
        sent.iter()
            .for_each(|datagram| push(&mut outbox, to, datagram));
        outbox.send(&here).expect("sent");
        assert_eq!(received(&there, sent.len()), sent);
        assert_eq!(outbox.longest_joined, JOINED.0);
    }

    /// A system that takes what it likes.
    struct Moody {
        random: u64,
        /// Joined datagrams that are as long as this are refused.
        refuses_from: usize,
        sent: Vec<(SocketAddr, Vec<u8>)>,
    }

    impl Moody {
        fn below(&mut self, most: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % most
        }

        fn accepts(&mut self) -> io::Result<()> {
            match self.below(4) {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        }
    }

    impl System for Moody {
        fn send_one(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
            self.accepts()?;
            self.sent.push((to, datagram.to_vec()));
            Ok(())
        }

        fn send_runs(&mut self, runs: &[DatagramRun], bytes: &[u8]) -> io::Result<usize> {
            let count = 1 + self.below(runs.len() as u64) as usize;
            for (index, run) in runs[..count].iter().enumerate() {
                let refused = if !run.is_single() && run.segment >= self.refuses_from {
                    Err(io::Error::from_raw_os_error(libc::EINVAL))
                } else {
                    self.accepts()
                };
                match refused {
                    Err(error) if index == 0 => return Err(error),
                    Err(_) => return Ok(index),
                    Ok(()) => {}
                }
                let run_bytes = &bytes[run.start..run.end];
                for datagram in run_bytes.chunks(run.segment) {
                    self.sent.push((run.to, datagram.to_vec()));
                }
            }
            Ok(count)
        }
    }

    /// Whatever the system takes at a time: each datagram is sent once, in order.
    #[test]
    fn nothing_is_lost_or_doubled_by_a_system_that_is_full_or_refuses() {
        for seed in 1..=2000 {
            let mut system = Moody {
                random: 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed),
                refuses_from: 0,
                sent: Vec::new(),
            };
            system.refuses_from = system.below(80) as usize;
            let mut outbox = Outbox::joining(JOINED.0);
            let mut expected = Vec::new();
            for number in 0..system.below(60) {
                let len = 20 + 20 * system.below(3) as usize;
                let to = peer(1 + system.below(2) as u16);
                let datagram = vec![number as u8; len];
                push(&mut outbox, to, &datagram);
                expected.push((to, datagram));
                if system.below(8) == 0 {
                    let _ = outbox.send_by(&mut system);
                }
                while outbox.is_full() && outbox.send_by(&mut system).is_err() {}
            }
            while outbox.send_by(&mut system).is_err() {}
            assert!(outbox.is_empty());
            assert_eq!(system.sent, expected, "seed {seed}");
        }
    }
}
