//! Two rings of bytes in shared memory, one a direction: each has one producer and one consumer.
//!
//! How far they are is told in shared memory as two numbers that only grow: the *tail*, bytes that were put in, and the
//! *head*, bytes that were taken out. Each side believes only what it keeps itself of its own number, and checks the other's
//! whenever it uses it. What the peer makes of the bytes meanwhile is its own affair: they are copied out before they are
//! looked at.
//!
//! Who waits says so in shared memory, then looks once more: so whoever put something in (or took something out) and sees
//! nobody waiting needs not wake anybody. One of the two sees the other, since each writes before it reads.
//!
//! ```text
//! byte   0  128  256  384  512  640  768  896      4096         4096 + capacity
//!        |  |    |    |    |  as before, of the    | bytes of    | bytes of
//!        |  |    |    |    |  acceptor's ring      | the         | the
//!        |  |    |    writer waits                 | dialler's   | acceptor's
//!        |  |    reader waits                      | ring        | ring
//!        |  head
//!        tail                                 what is between is zero
//! ```
//!
//! Each number is a `u64` in a line of its own, so that the two sides write to different lines of the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use bytes::BytesMut;
use thiserror::Error;

use super::memory::{Memory, WORD};
use crate::transport::RING;

/// Where the rings' bytes begin.
const DATA: usize = 4096;

/// Words from one number to the next: processors fetch cache lines of 64 bytes in pairs.
const LINE: usize = 128 / WORD;

/// What the peer has written into shared memory is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the peer broke the shared memory: {used} bytes cannot be in a ring of {capacity}")]
pub(super) struct Broken {
    /// What its number says.
    used: u64,
    capacity: u64,
}

/// Which of the two processes this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Dialler,
    Acceptor,
}

/// The end that puts bytes in.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    tail: u64,
    /// As it was when last looked at.
    head: u64,
    announced: bool,
}

/// The end that takes bytes out.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
    head: u64,
    announced: bool,
}

#[derive(Debug)]
struct Ring {
    memory: Arc<Memory>,
    /// First word of its numbers.
    numbers: usize,
    /// Where its bytes begin, in bytes.
    data: usize,
    capacity: u64,
}

/// Whether a ring may have this capacity, in bytes.
pub(super) fn is_possible(capacity: usize) -> bool {
    capacity.is_power_of_two() && RING.contains(&capacity)
}

/// How much memory two rings of this capacity take, in bytes.
pub(super) fn size(capacity: usize) -> usize {
    DATA + 2 * capacity
}

/// The ends that one side holds of the rings in new memory.
///
/// # Panics
///
/// If the memory has not the [`size`] for this capacity, or that [is not possible](is_possible).
pub(super) fn ends(memory: Memory, capacity: usize, side: Side) -> (Producer, Consumer) {
    assert!(is_possible(capacity));
    assert_eq!(memory.len() * WORD, size(capacity));
    let memory = Arc::new(memory);
    let ring = |number: usize| Ring {
        memory: Arc::clone(&memory),
        numbers: number * 4 * LINE,
        data: DATA + number * capacity,
        capacity: capacity as u64,
    };
    let (out, into) = match side {
        Side::Dialler => (0, 1),
        Side::Acceptor => (1, 0),
    };
    let producer = Producer {
        ring: ring(out),
        tail: 0,
        head: 0,
        announced: false,
    };
    let consumer = Consumer {
        ring: ring(into),
        head: 0,
        announced: false,
    };
    (producer, consumer)
}

impl Producer {
    /// Puts in as much as fits. Afterwards ask whether to [wake the reader](Self::wakes_reader).
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let mut room = self.ring.capacity - self.ring.used(self.tail, self.head)?;
        if room < bytes.len() as u64 {
            room = self.room()?;
        }
        let bytes = &bytes[..bytes.len().min(room as usize)];
        let ring = &self.ring;
        let (at, before_end) = ring.position(self.tail);
        let (first, second) = bytes.split_at(bytes.len().min(before_end));
        ring.memory.store(at, first);
        if !second.is_empty() {
            ring.memory.store(ring.data, second);
        }
        self.tail = self.tail.wrapping_add(bytes.len() as u64);
        self.ring.tail().store(self.tail, Ordering::Release);
        Ok(bytes.len())
    }

    /// How many bytes fit now.
    pub(super) fn room(&mut self) -> Result<u64, Broken> {
        self.head = self.ring.head().load(Ordering::Acquire);
        Ok(self.ring.capacity - self.ring.used(self.tail, self.head)?)
    }

    /// Whether the reader waits and must be woken; it is taken to be awake from now on.
    pub(super) fn wakes_reader(&self) -> bool {
        take(self.ring.reader_waits())
    }

    /// Says that this side is about to wait for room, so that it must look once more; `false` if it has said so already.
    pub(super) fn announce(&mut self) -> bool {
        announce(self.ring.writer_waits(), &mut self.announced)
    }

    /// It was woken, or does not wait any more.
    pub(super) fn withdraw(&mut self) {
        withdraw(self.ring.writer_waits(), &mut self.announced);
    }
}

impl Consumer {
    /// Appends what is there, as far as it fits the spare room of `output`. Afterwards ask whether to
    /// [wake the writer](Self::wakes_writer).
    pub(super) fn read(&mut self, output: &mut BytesMut) -> Result<usize, Broken> {
        let tail = self.ring.tail().load(Ordering::Acquire);
        let used = self.ring.used(tail, self.head)? as usize; // the capacity is at most so large
        let len = used.min(output.capacity() - output.len());
        if len == 0 {
            return Ok(0);
        }
        let ring = &self.ring;
        let (at, before_end) = ring.position(self.head);
        let first = len.min(before_end);
        ring.memory.append(at, first, output);
        if first < len {
            ring.memory.append(ring.data, len - first, output);
        }
        self.head = self.head.wrapping_add(len as u64);
        self.ring.head().store(self.head, Ordering::Release);
        Ok(len)
    }

    /// Whether nothing is there.
    pub(super) fn is_empty(&self) -> Result<bool, Broken> {
        let tail = self.ring.tail().load(Ordering::Acquire);
        Ok(self.ring.used(tail, self.head)? == 0)
    }

    /// Whether the writer waits and must be woken; it is taken to be awake from now on.
    pub(super) fn wakes_writer(&self) -> bool {
        take(self.ring.writer_waits())
    }

    /// Says that this side is about to wait for bytes, so that it must look once more; `false` if it has said so already.
    pub(super) fn announce(&mut self) -> bool {
        announce(self.ring.reader_waits(), &mut self.announced)
    }

    /// It was woken, or does not wait any more.
    pub(super) fn withdraw(&mut self) {
        withdraw(self.ring.reader_waits(), &mut self.announced);
    }
}

fn announce(waits: &AtomicU64, announced: &mut bool) -> bool {
    if *announced {
        return false;
    }
    *announced = true;
    waits.store(1, Ordering::Relaxed);
    // Before the look that follows: see `take`.
    fence(Ordering::SeqCst);
    true
}

fn withdraw(waits: &AtomicU64, announced: &mut bool) {
    if *announced {
        *announced = false;
        waits.store(0, Ordering::Relaxed);
    }
}

fn take(waits: &AtomicU64) -> bool {
    // After what was put in or taken out: see `announce`.
    fence(Ordering::SeqCst);
    if waits.load(Ordering::Relaxed) == 0 {
        return false;
    }
    waits.store(0, Ordering::Relaxed);
    true
}

impl Ring {
    fn tail(&self) -> &AtomicU64 {
        &self.memory[self.numbers]
    }

    fn head(&self) -> &AtomicU64 {
        &self.memory[self.numbers + LINE]
    }

    fn reader_waits(&self) -> &AtomicU64 {
        &self.memory[self.numbers + 2 * LINE]
    }

    fn writer_waits(&self) -> &AtomicU64 {
        &self.memory[self.numbers + 3 * LINE]
    }

    /// Where in the memory a byte of the stream is, and how many follow it before the ring begins anew.
    fn position(&self, number: u64) -> (usize, usize) {
        let at = number & (self.capacity - 1);
        (self.data + at as usize, (self.capacity - at) as usize)
    }

    /// Bytes in the ring, at most its capacity.
    fn used(&self, tail: u64, head: u64) -> Result<u64, Broken> {
        let used = tail.wrapping_sub(head);
        let capacity = self.capacity;
        if used > capacity {
            return Err(Broken { used, capacity });
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::sync::{Condvar, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    const LEAST: usize = *RING.start();

    struct Rings {
        dialler: (Producer, Consumer),
        acceptor: (Producer, Consumer),
        /// As who lies sees it.
        memory: Memory,
    }

    fn rings(capacity: usize) -> Rings {
        let bytes = size(capacity);
        let (memory, file) = Memory::create(bytes).expect("memory");
        let [one, other] = [0; 2].map(|_| Memory::adopt(&file, bytes).expect("the same"));
        Rings {
            dialler: ends(one, capacity, Side::Dialler),
            acceptor: ends(other, capacity, Side::Acceptor),
            memory,
        }
    }

    /// What the byte at a place of a stream is.
    fn byte(place: u64) -> u8 {
        (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn stream(from: u64, len: usize) -> Vec<u8> {
        (from..from + len as u64).map(byte).collect()
    }

    fn read(consumer: &mut Consumer, room: usize) -> Vec<u8> {
        let mut output = BytesMut::with_capacity(room);
        let room = output.capacity();
        let len = consumer.read(&mut output).expect("an honest peer");
        assert_eq!(len, output.len());
        assert!(len <= room);
        output.to_vec()
    }

    #[test]
    fn each_side_reads_what_the_other_writes() {
        let mut rings = rings(LEAST);
        assert_eq!(rings.dialler.0.write(b"to you"), Ok(6));
        assert_eq!(rings.acceptor.0.write(b"and back"), Ok(8));
        assert_eq!(read(&mut rings.acceptor.1, 100), b"to you");
        assert_eq!(read(&mut rings.dialler.1, 100), b"and back");
        assert_eq!(read(&mut rings.acceptor.1, 100), b"");
    }

    #[test]
    fn a_full_ring_takes_nothing_until_something_is_taken_out() {
        let mut rings = rings(LEAST);
        let (out, into) = (&mut rings.dialler.0, &mut rings.acceptor.1);
        let bytes = stream(0, LEAST + 100);
        assert_eq!(out.write(&bytes), Ok(LEAST), "what fits");
        assert_eq!(out.write(&bytes), Ok(0));
        assert_eq!(out.room(), Ok(0));
        assert_eq!(read(into, 8), bytes[..8]);
        assert_eq!(out.room(), Ok(8));
        assert_eq!(out.write(&bytes[LEAST..]), Ok(8));
        let mut rest = read(into, LEAST);
        rest.extend(read(into, LEAST));
        assert_eq!(rest, bytes[8..LEAST + 8]);
    }

    #[test]
    fn bytes_survive_the_end_of_the_ring_and_of_the_numbers() {
        let seed = 1;
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        for start in [0, u64::MAX - 3 * LEAST as u64 - 5] {
            let mut rings = rings(LEAST);
            let (out, into) = (&mut rings.dialler.0, &mut rings.acceptor.1);
            (out.tail, out.head, into.head) = (start, start, start);
            out.ring.tail().store(start, Ordering::Relaxed);
            out.ring.head().store(start, Ordering::Relaxed);
            let (mut written, mut taken) = (0, 0);
            while taken < 20 * LEAST as u64 {
                let len = random.usize(..2 * LEAST);
                written += out.write(&stream(written, len)).expect("an honest peer") as u64;
                let bytes = read(into, random.usize(..2 * LEAST));
                assert_eq!(bytes, stream(taken, bytes.len()));
                taken += bytes.len() as u64;
            }
        }
    }

    #[test]
    fn numbers_that_cannot_be_end_the_connection() {
        let capacity = LEAST as u64;
        let honest = || {
            let mut rings = rings(LEAST);
            let mut output = BytesMut::with_capacity(100);
            rings.dialler.0.write(b"0123456789").expect("honest so far");
            rings.acceptor.1.read(&mut output).expect("honest so far");
            assert_eq!(output.len(), 10);
            rings
        };
        for tail in [capacity + 11, u64::MAX, 1 << 63, 9, 0] {
            let mut rings = honest();
            rings.memory[0].store(tail, Ordering::Relaxed);
            let used = tail.wrapping_sub(10);
            let broken = Err(Broken { used, capacity });
            let mut output = BytesMut::with_capacity(100);
            assert_eq!(rings.acceptor.1.read(&mut output), broken, "{tail}");
            assert!(output.is_empty());
        }
        let behind = 9u64.wrapping_sub(capacity);
        for head in [11, capacity, u64::MAX - capacity, 1 << 63, behind] {
            let mut rings = honest();
            rings.memory[LINE].store(head, Ordering::Relaxed);
            let used = 10u64.wrapping_sub(head);
            let broken = Broken { used, capacity };
            assert_eq!(rings.dialler.0.room(), Err(broken), "{head}");
            let bytes = vec![0; LEAST];
            assert_eq!(rings.dialler.0.write(&bytes), Err(broken), "{head}");
        }
    }

    #[test]
    fn a_side_believes_only_itself_of_its_own_number() {
        let mut rings = rings(LEAST);
        rings.dialler.0.write(b"one").expect("room");
        rings.memory[0].store(1 << 40, Ordering::Relaxed);
        rings.memory[LINE].store(0, Ordering::Relaxed);
        rings.dialler.0.write(b"two").expect("room");
        assert_eq!(read(&mut rings.acceptor.1, 100), b"onetwo");
        rings.memory[LINE].store(1 << 40, Ordering::Relaxed);
        assert_eq!(read(&mut rings.acceptor.1, 100), b"");
    }

    /// A peer that writes anything anywhere, all the time, cannot do more than end the connection or invent bytes.
    #[test]
    fn a_peer_may_change_everything_while_it_is_used() {
        let seed = 2;
        println!("seed {seed}");
        let (memory, file) = Memory::create(size(LEAST)).expect("memory");
        let side = |side| {
            let same = Memory::adopt(&file, size(LEAST)).expect("the same");
            ends(same, LEAST, side)
        };
        let (mut broken, mut whole) = (0, 0);
        let done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Rng::with_seed(seed);
                while !done.load(Ordering::Relaxed) {
                    let lie = match random.usize(..4) {
                        0 => random.u64(..),
                        1 => 0,
                        _ => random.u64(..4 * LEAST as u64),
                    };
                    let word = match random.usize(..2) {
                        0 => random.usize(..2) * LINE,
                        _ => random.usize(..memory.len()),
                    };
                    memory[word].store(lie, Ordering::Relaxed);
                }
            });
            let mut random = Rng::with_seed(!seed);
            let bytes = stream(0, 2 * LEAST);
            let mut output = BytesMut::with_capacity(2 * LEAST);
            let ((mut out, _), (_, mut into)) = (side(Side::Dialler), side(Side::Acceptor));
            // Until enough of each was seen; a few thousand rounds.
            while broken < 1000 || whole < 1000 {
                let written = out.write(&bytes[..random.usize(..2 * LEAST)]);
                output.clear();
                let read = into.read(&mut output);
                for result in [written, read] {
                    match result {
                        Ok(len) => {
                            assert!(len <= LEAST);
                            whole += 1;
                        }
                        Err(Broken { used, capacity }) => {
                            assert!(used > capacity);
                            broken += 1;
                        }
                    }
                }
                assert_eq!(output.len(), read.unwrap_or(0));
                // The connection has ended; the next one begins where the lies are plausible.
                if written.is_err() {
                    out = side(Side::Dialler).0;
                }
                if read.is_err() {
                    into = side(Side::Acceptor).1;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    /// What wakes a thread.
    #[derive(Default)]
    struct Bell {
        rung: Mutex<bool>,
        heard: Condvar,
    }

    impl Bell {
        fn ring(&self) {
            *self.rung.lock().expect("not poisoned") = true;
            self.heard.notify_one();
        }

        fn wait(&self) {
            let rung = self.rung.lock().expect("not poisoned");
            let limit = Duration::from_secs(20);
            let waited = self.heard.wait_timeout_while(rung, limit, |rung| !*rung);
            let (mut rung, waited) = waited.expect("not poisoned");
            assert!(!waited.timed_out(), "nobody rings: a wake-up was lost");
            *rung = false;
        }
    }

    #[test]
    fn two_threads_that_sleep_lose_no_wake_up() {
        let given = std::env::var("WALLABY_SEED").map(|seed| seed.parse().expect("a number"));
        let seeds = given.map_or(0..8, |seed: u64| seed..seed + 1);
        for seed in seeds {
            println!("to repeat: WALLABY_SEED={seed}");
            let Rings {
                dialler: (mut out, _),
                acceptor: (_, mut into),
                ..
            } = rings(LEAST);
            let (reader, writer) = (Bell::default(), Bell::default());
            let most = [3, 64, 2 * LEAST][seed as usize % 3];
            let total = 2_000 * most.min(400) as u64;
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut random, mut written) = (Rng::with_seed(seed), 0);
                    while written < total {
                        let len = (random.usize(..most) + 1).min((total - written) as usize);
                        let len = out.write(&stream(written, len)).expect("an honest peer");
                        if out.wakes_reader() {
                            reader.ring();
                        }
                        written += len as u64;
                        if len > 0 {
                            out.withdraw();
                        } else if !out.announce() {
                            writer.wait();
                            out.withdraw();
                        }
                        if random.usize(..64) == 0 {
                            thread::yield_now();
                        }
                    }
                });
                let (mut random, mut taken) = (Rng::with_seed(!seed), 0);
                while taken < total {
                    let bytes = read(&mut into, random.usize(..most) + 1);
                    assert_eq!(bytes, stream(taken, bytes.len()), "at {taken}");
                    taken += bytes.len() as u64;
                    if !bytes.is_empty() {
                        into.withdraw();
                        if into.wakes_writer() {
                            writer.ring();
                        }
                    } else if !into.announce() {
                        reader.wait();
                        into.withdraw();
                    }
                    if random.usize(..64) == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    }

    /// Where two threads meet again and again, to go on at the same time.
    #[derive(Default)]
    struct Meeting(AtomicU64);

    impl Meeting {
        fn wait(&self, times: &mut u64) {
            *times += 1;
            self.0.fetch_add(1, Ordering::AcqRel);
            let mut looks = 0u32;
            while self.0.load(Ordering::Acquire) < 2 * *times {
                looks += 1;
                match looks % 1_000 {
                    0 => thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        }
    }

    /// Processors put off what they store until later loads are done: without fences, who is about to wait and who has to
    /// wake it do not see each other now and then.
    fn one_sees_the_other(
        mut prepare: impl FnMut(),
        mut waits: impl FnMut() -> bool,
        mut wakes: impl FnMut() -> bool + Send,
    ) {
        const ROUNDS: u64 = 100_000;
        // Where processors are busy with other things, fewer have to do.
        let end = Instant::now() + Duration::from_secs(1);
        let meeting = Meeting::default();
        let (seen, last) = (AtomicU64::new(0), AtomicU64::new(ROUNDS));
        // One of them comes a bit later, each time by another bit.
        let hold_back = |round: u64| (0..round % 64).for_each(|_| std::hint::spin_loop());
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut times, mut round) = (0, 0);
                while round < last.load(Ordering::Relaxed) {
                    round += 1;
                    meeting.wait(&mut times);
                    hold_back(round);
                    if wakes() {
                        seen.store(round, Ordering::Relaxed);
                    }
                    meeting.wait(&mut times);
                }
            });
            let (mut times, mut round, mut lost) = (0, 0, 0);
            while round < last.load(Ordering::Relaxed) {
                round += 1;
                prepare();
                if Instant::now() >= end {
                    last.store(round, Ordering::Relaxed);
                }
                meeting.wait(&mut times);
                hold_back(round / 64);
                let looked = waits();
                meeting.wait(&mut times);
                lost += u64::from(!looked && seen.load(Ordering::Relaxed) != round);
            }
            assert_eq!(lost, 0, "neither saw the other, in {round} rounds");
        });
    }

    // One test, so that the two have the processors for themselves.
    #[test]
    fn who_waits_is_seen_or_sees() {
        let mut rings = rings(LEAST);
        let (out, into) = (&mut rings.dialler.0, Mutex::new(&mut rings.acceptor.1));
        let output = Mutex::new(BytesMut::with_capacity(LEAST));
        let take = |into: &mut Consumer, first: fn(&mut Consumer)| {
            let mut output = output.lock().expect("one thread");
            output.clear();
            first(into);
            into.read(&mut output).expect("an honest peer") > 0
        };
        one_sees_the_other(
            || {
                let mut into = into.lock().expect("one thread");
                take(&mut into, Consumer::withdraw);
            },
            || {
                let mut into = into.lock().expect("one thread");
                take(&mut into, |into| _ = into.announce())
            },
            || out.write(b"1").expect("room") == 1 && out.wakes_reader(),
        );

        let out = Mutex::new(out);
        one_sees_the_other(
            || {
                let mut out = out.lock().expect("one thread");
                out.withdraw();
                out.write(&[0; LEAST]).expect("an honest peer");
            },
            || {
                let mut out = out.lock().expect("one thread");
                out.announce();
                out.room().expect("an honest peer") > 0
            },
            || {
                let mut into = into.lock().expect("one thread");
                take(&mut into, |_| ()) && into.wakes_writer()
            },
        );
    }

    #[test]
    fn nobody_is_woken_who_does_not_wait() {
        let mut rings = rings(LEAST);
        let (out, into) = (&mut rings.dialler.0, &mut rings.acceptor.1);
        out.write(b"one").expect("room");
        assert!(!out.wakes_reader(), "nobody waits");
        read(into, 100);
        assert!(into.announce());
        assert!(!into.announce(), "once is enough");
        out.write(b"two").expect("room");
        assert!(out.wakes_reader());
        assert!(!out.wakes_reader(), "it is awake now");
        into.withdraw();
        assert!(into.announce());
        into.withdraw();
        assert!(!out.wakes_reader(), "it did not sleep after all");

        out.write(&[0; LEAST]).expect("an honest peer");
        assert!(out.announce());
        read(into, 100);
        assert!(into.wakes_writer());
        assert!(!into.wakes_writer());
    }
}
