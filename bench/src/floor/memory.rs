//! Floors in shared memory: a message is copied there, and whoever sleeps is woken by a futex; or both sides keep looking.
//!
//! Everybody has a slot for a message of each other, a word whose bits say which of them are full, and one that says
//! whether it sleeps. The client makes the memory; servers open it by the client's process.

use super::blocking::spawn;
use super::server::pass_on;
use super::{Iterate, await_departure, check_answer, departure};
use crate::patience::{Lost, within};
use crate::plan::{CLIENT, PREFIX, Targets};
use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{process, thread};

/// How whoever has nothing to do waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// By a futex.
    Sleeping,
    /// By looking again.
    Spinning,
}

/// As many as a word has bits.
const MOST: usize = 64;

/// Apart, so that two sides do not write to one line of the cache.
const LINE: usize = 128;

/// In front of everybody's lines: how many there are, and how many bytes a message has at most.
const HEADER: usize = LINE;

/// Whose messages are there, and whether it sleeps.
const LINES: usize = 2 * LINE;

/// In front of a message: whether it is there, and how long it is.
const SLOT: usize = LINE;

/// Memory that all processes of a run have.
struct Memory {
    start: *mut u8,
    bytes: usize,
    /// The servers, and last the client.
    everybody: usize,
    most: usize,
}

// SAFETY: it owns its mapping, which is the same for all threads.
unsafe impl Send for Memory {}
// SAFETY: numbers in it are used as atomics, and a message by one side at a time: see `full`.
unsafe impl Sync for Memory {}

fn size(everybody: usize, most: usize) -> usize {
    HEADER + everybody * LINES + everybody * everybody * slot(most)
}

fn slot(most: usize) -> usize {
    SLOT + most.next_multiple_of(LINE)
}

impl Memory {
    /// New memory, and where other processes find it while the file is open.
    fn create(everybody: usize, most: usize) -> Result<(Self, OwnedFd, String)> {
        ensure!(everybody <= MOST, "at most {MOST} processes are possible");
        // SAFETY: the name ends with a zero, and lives through the call.
        let file = unsafe { libc::memfd_create(c"floor".as_ptr(), libc::MFD_CLOEXEC) };
        ensure!(file >= 0, io::Error::last_os_error());
        // SAFETY: it was opened above, and nobody else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
        let bytes = size(everybody, most);
        file.set_len(bytes as u64)?;
        let memory = Self::map(&file, bytes, everybody, most)?;
        memory.word(0).store(everybody as u64, Ordering::Relaxed);
        memory.word(8).store(most as u64, Ordering::Release);
        let path = format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd());
        Ok((memory, file.into(), path))
    }

    fn open(path: &str) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let bytes = usize::try_from(file.metadata()?.len())?;
        let mut memory = Self::map(&file, bytes, 0, 0)?;
        memory.most = memory.word(8).load(Ordering::Acquire) as usize;
        memory.everybody = memory.word(0).load(Ordering::Relaxed) as usize;
        ensure!(bytes == size(memory.everybody, memory.most), "another size");
        Ok(memory)
    }

    fn map(file: &File, bytes: usize, everybody: usize, most: usize) -> Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: the system picks a place where nothing is.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
        ensure!(start != libc::MAP_FAILED, io::Error::last_os_error());
        Ok(Self {
            start: start.cast(),
            bytes,
            everybody,
            most,
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes);
        // SAFETY: it is within the mapping, aligned, lives as long, and is used as an atomic everywhere.
        unsafe { &*self.start.add(at).cast() }
    }

    /// Whose messages to this one are there.
    fn arrived(&self, whose: usize) -> &AtomicU64 {
        self.word(HEADER + whose * LINES)
    }

    /// 1 while this one sleeps.
    fn sleeps(&self, whose: usize) -> &AtomicU32 {
        let word: *const AtomicU64 = self.word(HEADER + whose * LINES + LINE);
        // SAFETY: half of a word that is used as nothing else.
        unsafe { &*word.cast() }
    }

    fn slot(&self, to: usize, from: usize) -> usize {
        HEADER + self.everybody * LINES + (to * self.everybody + from) * slot(self.most)
    }

    /// 0, or 1 more than the length of the message from this one to that one. Who finds 0 may write it, the other may read it.
    fn full(&self, to: usize, from: usize) -> &AtomicU64 {
        self.word(self.slot(to, from))
    }

    /// Puts a message there, and wakes whom it is for; `false` if there is no room.
    fn put(&self, to: usize, from: usize, message: &[u8]) -> bool {
        let full = self.full(to, from);
        if full.load(Ordering::Acquire) != 0 {
            return false;
        }
        assert!(message.len() <= self.most);
        // SAFETY: there is room for so much, and nobody else uses it now.
        unsafe {
            let place = self.start.add(self.slot(to, from) + SLOT);
            place.copy_from_nonoverlapping(message.as_ptr(), message.len());
        }
        full.store(message.len() as u64 + 1, Ordering::Release);
        self.arrived(to).fetch_or(1 << from, Ordering::SeqCst);
        let sleeps = self.sleeps(to);
        if sleeps.load(Ordering::SeqCst) == 1 && sleeps.swap(0, Ordering::SeqCst) == 1 {
            futex(sleeps, libc::FUTEX_WAKE, 1);
        }
        true
    }

    /// Takes a message that is there.
    fn take(&self, to: usize, from: usize, message: &mut Vec<u8>) -> Result<()> {
        let full = self.full(to, from);
        let len = full.load(Ordering::Acquire).checked_sub(1);
        let len = len.context("no message is there")? as usize;
        ensure!(len <= self.most, "a message of {len} bytes is too long");
        message.resize(len, 0);
        // SAFETY: there are so many bytes at both places, and nobody else uses them now.
        unsafe {
            let place = self.start.add(self.slot(to, from) + SLOT);
            place.copy_to_nonoverlapping(message.as_mut_ptr(), len);
        }
        full.store(0, Ordering::Release);
        Ok(())
    }

    /// Wakes this one for nothing.
    fn wake(&self, whose: usize) {
        self.sleeps(whose).store(0, Ordering::SeqCst);
        futex(self.sleeps(whose), libc::FUTEX_WAKE, 1);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and whoever borrowed it has borrowed this value.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let no_time = ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call. Its result does not matter: who waits looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, no_time) };
}

/// One of those that share the memory.
struct Participant {
    memory: Arc<Memory>,
    me: usize,
    waiting: Waiting,
    /// Whose messages are there and were not taken.
    arrived: u64,
    /// Messages that had to be taken before something could be sent.
    early: VecDeque<(usize, Vec<u8>)>,
    /// It is to give up.
    over: Arc<AtomicBool>,
}

impl Participant {
    fn new(memory: Memory, me: usize, waiting: Waiting) -> Self {
        Self {
            memory: Arc::new(memory),
            me,
            waiting,
            arrived: 0,
            early: VecDeque::new(),
            over: Arc::default(),
        }
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        while !self.memory.put(to, self.me, message) {
            ensure!(!self.over.load(Ordering::Relaxed), "interrupted");
            // Whoever is to make room may wait for room itself.
            self.arrived |= self.look();
            while let Some(from) = self.next_arrived() {
                let mut message = Vec::new();
                self.memory.take(self.me, from, &mut message)?;
                self.early.push_back((from, message));
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// The next message, and whose it is.
    fn receive(&mut self, message: &mut Vec<u8>) -> Result<usize> {
        if let Some((from, early)) = self.early.pop_front() {
            *message = early;
            return Ok(from);
        }
        loop {
            if let Some(from) = self.next_arrived() {
                self.memory.take(self.me, from, message)?;
                return Ok(from);
            }
            ensure!(!self.over.load(Ordering::Relaxed), "interrupted");
            self.arrived = self.look();
            if self.arrived == 0 {
                self.wait();
            }
        }
    }

    fn next_arrived(&mut self) -> Option<usize> {
        let from = self.arrived.trailing_zeros() as usize;
        self.arrived &= self.arrived.wrapping_sub(1);
        (from < MOST).then_some(from)
    }

    fn look(&self) -> u64 {
        let arrived = self.memory.arrived(self.me);
        match arrived.load(Ordering::Relaxed) {
            0 => 0,
            _ => arrived.swap(0, Ordering::SeqCst),
        }
    }

    fn wait(&self) {
        if self.waiting == Waiting::Spinning {
            return std::hint::spin_loop();
        }
        let sleeps = self.memory.sleeps(self.me);
        sleeps.store(1, Ordering::SeqCst);
        let nothing = self.memory.arrived(self.me).load(Ordering::SeqCst) == 0;
        if nothing && !self.over.load(Ordering::SeqCst) {
            futex(sleeps, libc::FUTEX_WAIT, 1);
        }
        sleeps.store(0, Ordering::SeqCst);
    }
}

/// Starts a thread with the bare loop of the server with this index.
pub(crate) fn serve(path: &str, me: u8, waiting: Waiting, link: Duration) -> Result<()> {
    let memory = Memory::open(path).with_context(|| format!("can't open {path}"))?;
    let client = memory.everybody - 1;
    let mut participant = Participant::new(memory, usize::from(me), waiting);
    spawn(move || {
        let mut payload = Vec::new();
        let mut targets = Targets::default();
        loop {
            participant.receive(&mut payload)?;
            pass_on(&mut payload, 0, &mut targets, link, |target, payload| {
                let to = match target {
                    CLIENT => client,
                    server => usize::from(server),
                };
                ensure!(to <= client, "there is no server {to}");
                participant.send(to, payload)
            })?;
        }
    })
}

/// The client's side.
pub(crate) struct Caller {
    participant: Participant,
    link: Duration,
    answer: Vec<u8>,
    /// Other processes find the memory by it.
    _file: OwnedFd,
}

impl Caller {
    /// Also where servers find the memory.
    pub(crate) fn new(
        servers: usize,
        payload: usize,
        waiting: Waiting,
        link: Duration,
    ) -> Result<(Self, String)> {
        let (memory, file, path) = Memory::create(servers + 1, payload)?;
        let caller = Self {
            participant: Participant::new(memory, servers, waiting),
            link,
            answer: Vec::with_capacity(payload),
            _file: file,
        };
        Ok((caller, path))
    }

    pub(super) fn run(
        &mut self,
        limit: Duration,
        lost: &Lost,
        job: &mut dyn Iterate,
    ) -> Result<()> {
        let participant = &self.participant;
        let (over, memory) = (
            Arc::clone(&participant.over),
            Arc::clone(&participant.memory),
        );
        let me = participant.me;
        let alarm = move || {
            over.store(true, Ordering::SeqCst);
            memory.wake(me);
        };
        within(limit, lost, alarm, || {
            while let Some((plan, operation)) = job.next() {
                for phase in plan.phases() {
                    await_departure(departure(self.link));
                    for (place, &server) in phase.to.iter().enumerate() {
                        let payload = &phase.frame(place)[PREFIX..];
                        self.participant.send(usize::from(server), payload)?;
                    }
                    for _ in &phase.from {
                        self.participant.receive(&mut self.answer)?;
                        check_answer(&self.answer, operation)?;
                    }
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both send more than there are slots for, and neither waits for ever.
    #[test]
    fn messages_pass_between_those_that_sleep_and_those_that_spin() {
        for waiting in [Waiting::Sleeping, Waiting::Spinning] {
            let (memory, _file, path) = Memory::create(2, 1_000).unwrap();
            let other = Memory::open(&path).unwrap();
            thread::scope(|scope| {
                for (memory, me) in [(memory, 0), (other, 1)] {
                    scope.spawn(move || {
                        let mut participant = Participant::new(memory, me, waiting);
                        let (mut message, mut next) = (Vec::new(), 0);
                        for number in 0..2_000_u32 {
                            participant.send(1 - me, &number.to_le_bytes()).unwrap();
                            if number % 3 != 0 {
                                participant.receive(&mut message).unwrap();
                                assert_eq!(message, u32::to_le_bytes(next));
                                next += 1;
                            }
                        }
                        for next in next..2_000 {
                            participant.receive(&mut message).unwrap();
                            assert_eq!(message, next.to_le_bytes());
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn who_gives_up_is_woken() {
        let (memory, _file, _path) = Memory::create(1, 10).unwrap();
        let mut participant = Participant::new(memory, 0, Waiting::Sleeping);
        let (over, memory) = (
            Arc::clone(&participant.over),
            Arc::clone(&participant.memory),
        );
        thread::scope(|scope| {
            scope.spawn(move || {
                while memory.sleeps(0).load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                over.store(true, Ordering::SeqCst);
                memory.wake(0);
            });
            let error = participant.receive(&mut Vec::new()).unwrap_err();
            assert_eq!(error.to_string(), "interrupted");
        });
    }
}
