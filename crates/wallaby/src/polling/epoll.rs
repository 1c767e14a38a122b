//! Waiting for several sockets at once.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Most sockets that one look tells of; the others come first at the next.
const BATCH: usize = 64;

/// What is awaited of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Interest {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Interest {
    pub(super) const READABLE: Self = Self {
        readable: true,
        writable: false,
    };

    fn bits(self) -> u32 {
        let readable = if self.readable { libc::EPOLLIN } else { 0 };
        let writable = if self.writable { libc::EPOLLOUT } else { 0 };
        (readable | writable) as u32
    }
}

/// What is known of a socket: an end or an error counts as both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ready {
    /// What it was added with.
    pub(super) token: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// The system's list of sockets that are waited for: what is ready is told until it is no more.
pub(super) struct Epoll {
    list: OwnedFd,
    events: [libc::epoll_event; BATCH],
    found: usize,
    /// The system cannot wait for less than milliseconds.
    coarse: bool,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the call takes a number only.
        let list = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if list < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: it is a descriptor that was opened above, and nobody else has it.
            list: unsafe { OwnedFd::from_raw_fd(list) },
            events: [libc::epoll_event { events: 0, u64: 0 }; BATCH],
            found: 0,
            coarse: false,
        })
    }

    pub(super) fn add(&self, socket: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, interest.bits())
    }

    /// A descriptor that is told of once each time that somebody writes to it, and need not be read.
    pub(super) fn add_bell(&self, bell: RawFd, token: u64) -> io::Result<()> {
        let each = (libc::EPOLLIN | libc::EPOLLET) as u32;
        self.control(libc::EPOLL_CTL_ADD, bell, token, each)
    }

    pub(super) fn change(&self, socket: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, token, interest.bits())
    }

    /// To be called before a descriptor is closed that another process has, too: it would be told of even then.
    pub(super) fn remove(&self, descriptor: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, descriptor, 0, 0)
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: RawFd,
        token: u64,
        events: u32,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the structure outlives the call, which only reads it.
        let done =
            unsafe { libc::epoll_ctl(self.list.as_raw_fd(), operation, socket, &raw mut event) };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until something is ready, at most so long; a signal ends it. What was found is asked for by [`Self::found`].
    pub(super) fn wait(&mut self, most: Duration) -> io::Result<()> {
        self.found = 0;
        let found = self.wait_once(most);
        if found >= 0 {
            self.found = found as usize;
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            // Systems before Linux 5.11, and filters that do not know the call.
            Some(libc::ENOSYS | libc::EPERM) if !self.coarse => {
                self.coarse = true;
                self.wait(most)
            }
            _ => Err(error),
        }
    }

    fn wait_once(&mut self, most: Duration) -> libc::c_long {
        let (list, events) = (self.list.as_raw_fd(), self.events.as_mut_ptr());
        if self.coarse || most.is_zero() {
            let millis = most.as_nanos().div_ceil(1_000_000);
            let millis = libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX);
            // SAFETY: there is room for `BATCH` events, and nobody else refers to it.
            let found = unsafe { libc::epoll_wait(list, events, BATCH as libc::c_int, millis) };
            return libc::c_long::from(found);
        }
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(most.subsec_nanos()),
        };
        let no_signals = std::ptr::null::<libc::sigset_t>();
        // SAFETY: as above; the time outlives the call, and no set of signals is given.
        unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                list,
                events,
                BATCH,
                &raw const time,
                no_signals,
                size_of::<libc::sigset_t>(),
            )
        }
    }

    /// How many sockets were ready at the latest look.
    pub(super) fn len(&self) -> usize {
        self.found
    }

    /// Whether more may have been ready than one look tells.
    pub(super) fn is_full(&self) -> bool {
        self.found == BATCH
    }

    /// One of those that were ready.
    pub(super) fn found(&self, index: usize) -> Option<Ready> {
        let event = self.events[..self.found].get(index)?;
        let (bits, token) = (event.events as libc::c_int, event.u64);
        let ended = bits & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
        Some(Ready {
            token,
            readable: ended || bits & libc::EPOLLIN != 0,
            writable: ended || bits & libc::EPOLLOUT != 0,
        })
    }
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epoll({})", self.list.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn found(epoll: &Epoll) -> Vec<Ready> {
        (0..epoll.len())
            .filter_map(|index| epoll.found(index))
            .collect()
    }

    #[test]
    fn what_is_awaited_is_told_until_it_is_no_more() {
        for coarse in [false, true] {
            let mut epoll = Epoll::new().expect("the system has it");
            epoll.coarse = coarse;
            let (mut here, mut there) = UnixStream::pair().expect("a pair");
            let here_fd = here.as_raw_fd();
            epoll
                .add(here_fd, 7, Interest::READABLE)
                .expect("it is added");
            epoll.wait(Duration::from_micros(10)).expect("it waits");
            assert_eq!(found(&epoll), []);
            there.write_all(&[1]).expect("there is room");
            let ready = Ready {
                token: 7,
                readable: true,
                writable: false,
            };
            for _ in 0..2 {
                epoll.wait(Duration::from_secs(3600)).expect("it waits");
                assert_eq!(found(&epoll), [ready]);
            }
            here.read_exact(&mut [0]).expect("it is there");
            let writable = Interest {
                writable: true,
                readable: false,
            };
            epoll.change(here_fd, 8, writable).expect("it is known");
            epoll.wait(Duration::MAX).expect("it waits");
            let ready = Ready {
                token: 8,
                readable: false,
                writable: true,
            };
            assert_eq!(found(&epoll), [ready]);
            drop(there);
            epoll.wait(Duration::ZERO).expect("it looks");
            let ready = Ready {
                readable: true,
                ..ready
            };
            assert_eq!(found(&epoll), [ready], "an end is both");
        }
    }

    #[test]
    fn each_ring_of_a_bell_is_told_once_until_it_is_removed() {
        let mut epoll = Epoll::new().expect("the system has it");
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).expect("a descriptor");
        // As if another process had it.
        let ringer = bell.try_clone().expect("a second one");
        let ring = || rustix::io::write(&ringer, &1u64.to_ne_bytes()).expect("there is room");
        epoll.add_bell(bell.as_raw_fd(), 7).expect("it is added");
        for _ in 0..10 {
            ring();
            epoll.wait(Duration::from_secs(3600)).expect("it waits");
            let tokens: Vec<u64> = found(&epoll).iter().map(|ready| ready.token).collect();
            assert_eq!(tokens, [7]);
            epoll.wait(Duration::ZERO).expect("it looks");
            assert_eq!(found(&epoll), []);
        }
        epoll.remove(bell.as_raw_fd()).expect("it is known");
        drop(bell);
        ring();
        epoll.wait(Duration::ZERO).expect("it looks");
        assert_eq!(found(&epoll), []);
    }
}
