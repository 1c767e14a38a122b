//! A UDP socket for who has no runtime: [`crate::polling`] waits in the call that receives.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use super::bare;
use super::inbox::Inbox;
use super::outbox::Outbox;
use crate::polling::Datagrams;
use crate::timer::monotonic;

/// A wait above this is one of this length: whoever waits looks again.
const LONGEST: Duration = Duration::from_secs(3600);

/// Datagrams that are received one by one before it is found out whether there are more at a time: then all are received
/// together, as long as there are.
const ALONE: u8 = 4;

/// A UDP socket of the operating system, and its monotonic clock.
///
/// Where it has to wait, it waits in the call that receives, without asking first. How long such a call waits is a setting
/// of the socket in ticks of the kernel's clock, 1 to 10 ms; what has to be more exact waits by `ppoll`, unless datagrams come
/// in quick succession: then the next one will most likely end the wait, and if it does not, that is noticed a tick or two
/// late, once.
///
/// Datagrams that come one at a time are received by a call that does less than the one for many.
///
/// The socket of an endpoint that listens elsewhere is opened when the first datagram is sent.
pub struct Udp {
    socket: Option<UdpSocket>,
    local: SocketAddr,
    /// What `now` counts from.
    epoch: u64,
    tick: Duration,
    /// How long the socket waits at the moment; zero is for ever.
    timeout: Duration,
    /// The last wait was ended by a datagram.
    busy: bool,
    /// So many are received one by one: the socket was found empty, or with one datagram and no more, and so the next ones most
    /// likely come alone, too.
    alone: u8,
    /// There may be news of datagrams that were sent.
    news: bool,
    inbox: Inbox,
    /// What was gathered; there is none before anything was.
    outbox: Option<Outbox>,
}

impl Udp {
    /// A socket at this address; port 0 for any.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let mut udp = Self::unbound();
        udp.open(address)?;
        Ok(udp)
    }

    /// No socket yet.
    pub(crate) fn unbound() -> Self {
        Self {
            local: (Ipv4Addr::UNSPECIFIED, 0).into(),
            inbox: Inbox::new(),
            socket: None,
            epoch: monotonic(),
            tick: tick(),
            timeout: Duration::ZERO,
            busy: false,
            alone: 0,
            news: false,
            outbox: None,
        }
    }

    fn open(&mut self, address: SocketAddr) -> io::Result<&UdpSocket> {
        let socket = bare::bind(address, true)?;
        self.local = socket.local_addr()?;
        Ok(self.socket.insert(socket))
    }

    /// The socket of an endpoint that listens elsewhere.
    #[cold]
    fn open_for(&mut self, to: SocketAddr) -> io::Result<&UdpSocket> {
        self.open(match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        })
    }

    fn has_gathered(&self) -> bool {
        self.outbox
            .as_ref()
            .is_some_and(|outbox| !outbox.is_empty())
    }

    /// One system call: `Ok(0)` if nothing came.
    fn receive_with(&mut self, flags: libc::c_int) -> io::Result<usize> {
        let Some(socket) = &self.socket else {
            return Ok(0);
        };
        let received = if self.alone > 0 {
            self.alone -= 1;
            let flags = flags & !libc::MSG_WAITFORONE;
            self.inbox.receive_one(socket, flags)
        } else {
            let received = self.inbox.receive(socket, flags);
            received.map(|_| {
                if self.inbox.len() == 1 {
                    self.alone = ALONE;
                }
            })
        };
        let Err(error) = received else {
            return Ok(self.inbox.len());
        };
        self.alone = ALONE;
        match error.raw_os_error() {
            // The news of a datagram that was sent (see `take_unreachable`), or nothing for as long as was to be waited.
            Some(
                libc::EAGAIN
                | libc::EINTR
                | libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EMSGSIZE
                | libc::EHOSTDOWN
                | libc::ENETDOWN
                | libc::ENOBUFS
                | libc::EPERM
                | libc::EACCES
                | libc::ENOPROTOOPT
                | libc::EPROTO,
            ) => {
                self.news |= error.kind() != io::ErrorKind::WouldBlock;
                Ok(0)
            }
            _ => Err(error),
        }
    }

    /// Waits until there may be something to receive, or for so long. A signal ends it.
    fn poll(&self, wait: Duration, full: bool) -> io::Result<()> {
        let writable = if full { libc::POLLOUT } else { 0 };
        let mut socket = libc::pollfd {
            fd: self.socket.as_ref().map_or(-1, UdpSocket::as_raw_fd), // of none nothing is told
            events: libc::POLLIN | writable,
            revents: 0,
        };
        let time = libc::timespec {
            tv_sec: wait.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(wait.subsec_nanos()),
        };
        // SAFETY: both structures outlive the call; there is one, as it says.
        let polled = unsafe { libc::ppoll(&raw mut socket, 1, &raw const time, std::ptr::null()) };
        if polled >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }

    /// The socket waits no longer than this, but not much less either; whether it can be told so.
    fn set_timeout(&mut self, wait: Duration) -> io::Result<bool> {
        // The kernel's timers may be late by a tick, or by an eighth of a long time.
        let exact = wait.saturating_sub(wait / 8 + self.tick);
        let most = if exact >= self.tick {
            exact
        } else if self.busy && wait >= self.tick / 4 {
            self.tick
        } else {
            return Ok(false);
        };
        if self.timeout.is_zero() || self.timeout > most || self.timeout < most / 4 {
            let time = libc::timeval {
                tv_sec: most.as_secs() as libc::time_t,
                tv_usec: most.subsec_micros() as libc::suseconds_t,
            };
            let Some(socket) = self.socket.as_ref().map(UdpSocket::as_raw_fd) else {
                return Ok(false);
            };
            bare::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, time)?;
            self.timeout = most;
        }
        Ok(true)
    }
}

impl Datagrams for Udp {
    fn now(&self) -> Duration {
        Duration::from_nanos(monotonic().saturating_sub(self.epoch))
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn send(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if self.has_gathered() {
            return self.gather(datagram, to); // behind those
        }
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.open_for(to)?,
        };
        match socket.send_to(datagram, to) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // The error may be one of a datagram sent before; it is told once.
                let again = socket.send_to(datagram, to).map(drop);
                self.news = true;
                again
            }
            result => result.map(drop),
        }
    }

    fn gather(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if self.socket.is_none() {
            self.open_for(to)?;
        }
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let outbox = match &mut self.outbox {
            Some(outbox) => outbox,
            none => none.insert(Outbox::new(socket)),
        };
        if outbox.is_full() {
            outbox.send(socket)?;
        }
        outbox.buffer().extend_from_slice(datagram);
        outbox.push(to, datagram.len());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let (Some(outbox), Some(socket)) = (&mut self.outbox, &self.socket) else {
            return Ok(());
        };
        let sent = outbox.send(socket);
        self.news |= outbox.take_trouble();
        sent
    }

    fn receive(&mut self, wait: Duration, full: bool) -> io::Result<usize> {
        let wait = wait.min(LONGEST);
        if wait.is_zero() {
            return self.receive_with(libc::MSG_DONTWAIT);
        }
        let received = if !full && self.set_timeout(wait)? {
            self.receive_with(libc::MSG_WAITFORONE)
        } else {
            self.poll(wait, full)?;
            self.receive_with(libc::MSG_DONTWAIT)
        }?;
        self.busy = received > 0;
        Ok(received)
    }

    fn batch(&self) -> usize {
        self.inbox.batch()
    }

    fn received(&self, index: usize) -> Option<(&[u8], SocketAddr)> {
        self.inbox.get(index)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(UdpSocket::as_fd)
    }

    fn take_unreachable(&mut self) -> Option<SocketAddr> {
        if !self.news {
            return None;
        }
        let found = bare::take_unreachable(self.socket.as_ref()?);
        self.news = found.is_some();
        found
    }
}

impl fmt::Debug for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Udp({})", self.local)
    }
}

/// What the kernel's timeouts of sockets are counted in: 1 to 10 ms.
fn tick() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure outlives the call, which fills it in.
    let known = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) } == 0;
    let tick = Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    );
    if known && !tick.is_zero() {
        tick
    } else {
        Duration::from_millis(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn pair() -> (Udp, Udp) {
        let bind = || Udp::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        (bind(), bind())
    }

    #[test]
    fn datagrams_come_in_batches_with_their_senders() {
        let (mut here, mut there) = pair();
        assert_eq!(there.receive(Duration::ZERO, false).expect("receives"), 0);
        assert!(there.received(0).is_none());
        let batch = there.batch();
        for number in 0..ALONE + batch as u8 + 2 {
            here.send(&[number; 3], there.local()).expect("sent");
        }
        here.send(&vec![9; 65_507], there.local()).expect("sent");
        let mut number = 0;
        for expected in [1, 1, 1, 1, batch] {
            let wait = Duration::from_secs(5);
            assert_eq!(there.receive(wait, false).expect("receives"), expected);
            assert_eq!(there.batch(), expected, "there may be more");
            for index in 0..expected {
                let datagram = [number; 3];
                let expected = Some((datagram.as_slice(), here.local()));
                assert_eq!(there.received(index), expected);
                number += 1;
            }
            assert!(there.received(expected).is_none());
        }
        assert_eq!(there.receive(Duration::ZERO, false).expect("receives"), 3);
        assert!(there.batch() > 3, "there were no more");
        assert_eq!(
            there.received(2).map(|(bytes, _)| bytes.len()),
            Some(65_507)
        );
        // A short datagram after a long one is short.
        here.send(&[1], there.local()).expect("sent");
        assert_eq!(
            there
                .receive(Duration::from_secs(5), true)
                .expect("receives"),
            1
        );
        assert_eq!(there.received(0), Some(([1].as_slice(), here.local())));
    }

    #[test]
    fn what_is_gathered_leaves_in_order_and_not_before_it_is_to() {
        let (mut here, mut there) = pair();
        let mut other = Udp::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        for number in 0..5 {
            here.gather(&[number; 100], there.local()).expect("kept");
        }
        here.gather(&[5; 100], other.local()).expect("kept");
        assert_eq!(there.receive(Duration::ZERO, false).expect("receives"), 0);
        here.send(&[6; 50], there.local()).expect("behind those");
        here.flush().expect("sent");
        let mut found = Vec::new();
        while found.len() < 6 {
            let wait = Duration::from_secs(5);
            let received = there.receive(wait, false).expect("receives");
            assert_ne!(received, 0, "{found:?}");
            let datagrams = (0..received).filter_map(|index| there.received(index));
            found.extend(datagrams.map(|(bytes, _)| (bytes[0], bytes.len())));
        }
        let expected = [(0, 100), (1, 100), (2, 100), (3, 100), (4, 100), (6, 50)];
        assert_eq!(found, expected);
        let received = other.receive(Duration::from_secs(5), false);
        assert_eq!(received.expect("receives"), 1);
        assert!(!here.has_gathered());
    }

    #[test]
    fn a_wait_is_over_in_time_however_long_it_is() {
        let (_, mut there) = pair();
        for millis in [1, 3, 30] {
            let wait = Duration::from_millis(millis);
            let begun = there.now();
            while there.now() - begun < wait {
                let left = wait.saturating_sub(there.now() - begun);
                assert_eq!(there.receive(left, false).expect("receives"), 0);
            }
            assert!(there.now() - begun < Duration::from_secs(5));
        }
    }

    #[test]
    fn nobody_at_an_address_is_told() {
        let (mut here, there) = pair();
        let to = there.local();
        drop(there);
        here.send(&[1], to).expect("sent");
        here.receive(Duration::from_millis(1), false)
            .expect("receives");
        assert_eq!(here.take_unreachable(), Some(to));
        assert_eq!(here.take_unreachable(), None);
    }
}
