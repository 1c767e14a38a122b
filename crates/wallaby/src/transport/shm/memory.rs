//! Memory shared with another process, and all that needs `unsafe` to use it.
//!
//! The other process may change any byte at any time. So nobody gets a reference to plain bytes: the memory is words that
//! are read and written as atomics, and what is in them is copied before anybody looks at it.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, BytesMut};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();

/// The file's size is final: pages that are mapped stay within it.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Nobody maps it for writing any more or takes pages out of it, and nobody adds further seals.
const PAGES: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// Why a file cannot be shared memory.
#[derive(Debug, Error)]
pub(super) enum MemoryError {
    #[error("it is not sealed against becoming smaller or larger, or not memory at all")]
    NotSealed,
    #[error("it is not made of ordinary pages")]
    NotOrdinary,
    #[error("it has {actual} bytes, not {expected}")]
    WrongSize { actual: u64, expected: usize },
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<Errno> for MemoryError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Memory that another process may have mapped, too.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it owns its mapping, which is the same for all threads, and shows it as atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory of zeros, to be shared as the file that is returned with it. Its size is sealed.
    pub(super) fn create(bytes: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create("wallaby", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create("wallaby", flags), // before Linux 6.3
            result => result,
        }?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SIZE)?;
        Ok((Self::map(&file, bytes)?, file))
    }

    /// Memory that a peer has created.
    ///
    /// To touch a page beyond the end of its file kills a process. So the file's size must be sealed before it is looked at.
    pub(super) fn adopt(file: impl AsFd, bytes: usize) -> Result<Self, MemoryError> {
        match rustix::fs::fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(SIZE) => {}
            Ok(_) | Err(Errno::INVAL) => return Err(MemoryError::NotSealed),
            Err(error) => return Err(error.into()),
        }
        // Huge pages are there when they are touched or the process is killed; these can be had beforehand.
        if rustix::fs::fstatfs(&file)?.f_type as i128 != libc::TMPFS_MAGIC as i128 {
            return Err(MemoryError::NotOrdinary);
        }
        let actual = rustix::fs::fstat(&file)?.st_size as u64;
        if actual != bytes as u64 {
            return Err(MemoryError::WrongSize {
                actual,
                expected: bytes,
            });
        }
        Ok(Self::map(&file, bytes)?)
    }

    /// From now on all of its pages are there, and stay: to touch one that the system has no memory for kills, too. To be
    /// done when both sides have mapped it.
    pub(super) fn fix(file: impl AsFd) -> Result<(), MemoryError> {
        match rustix::fs::fcntl_add_seals(&file, PAGES) {
            Ok(()) | Err(Errno::PERM) => {} // the peer was faster
            Err(error) => return Err(error.into()),
        }
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SIZE | PAGES) {
            return Err(MemoryError::NotSealed);
        }
        let bytes = rustix::fs::fstat(&file)?.st_size as u64;
        Ok(rustix::fs::fallocate(
            &file,
            FallocateFlags::empty(),
            0,
            bytes,
        )?)
    }

    fn map(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the system picks a place where nothing is; only this value knows it.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            words: bytes / WORD,
        })
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, aligned to a page, as long as this value lives. Every bit pattern is a word.
        // They may change at any time, as atomics may; what others do to them from outside is like a thread that uses
        // atomics, too.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and whoever borrowed it has borrowed this value.
        // An error would mean that it is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * WORD) };
    }
}

/// Copies bytes into words, from byte `at` on.
///
/// # Panics
///
/// If they reach beyond the words.
pub(super) fn store(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let lead = bytes.len().min(at.next_multiple_of(WORD) - at);
    let (first, bytes) = bytes.split_at(lead);
    if !first.is_empty() {
        merge(&words[at / WORD], at % WORD, first);
    }
    let words = &words[at.div_ceil(WORD)..];
    let (whole, last) = bytes.as_chunks();
    let (places, rest) = words.split_at(whole.len());
    for (word, bytes) in places.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !last.is_empty() {
        merge(&rest[0], 0, last);
    }
}

/// Replaces some bytes of a word that nobody else writes.
fn merge(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut whole = word.load(Ordering::Relaxed).to_ne_bytes();
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
}

/// Appends the `len` bytes that begin at byte `at` of the words.
///
/// # Panics
///
/// If they reach beyond the words or the output's capacity.
pub(super) fn append(words: &[AtomicU64], at: usize, len: usize, output: &mut BytesMut) {
    load(words, at, &mut output.spare_capacity_mut()[..len]);
    // SAFETY: `load` has initialised all of these bytes.
    unsafe { output.advance_mut(len) };
}

/// Initialises all of `bytes` with what is in the words from byte `at` on.
fn load(words: &[AtomicU64], at: usize, bytes: &mut [MaybeUninit<u8>]) {
    let lead = bytes.len().min(at.next_multiple_of(WORD) - at);
    let (first, bytes) = bytes.split_at_mut(lead);
    if !first.is_empty() {
        let whole = words[at / WORD].load(Ordering::Relaxed).to_ne_bytes();
        first.write_copy_of_slice(&whole[at % WORD..][..lead]);
    }
    let words = &words[at.div_ceil(WORD)..];
    let (whole, last) = bytes.as_chunks_mut::<WORD>();
    let (places, rest) = words.split_at(whole.len());
    for (word, bytes) in places.iter().zip(whole) {
        bytes.write_copy_of_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    if !last.is_empty() {
        let whole = rest[0].load(Ordering::Relaxed).to_ne_bytes();
        last.write_copy_of_slice(&whole[..last.len()]);
    }
}

/// Registers a descriptor with the runtime, for reading.
pub(super) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open and the same until the `AsyncFd` that owns it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PAGE: usize = 4096;

    fn file(seals: SealFlags, bytes: usize) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::ftruncate(&file, bytes as u64).expect("a size");
        rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
        file
    }

    #[test]
    fn both_mappings_are_the_same_memory_in_all_threads() {
        let (one, file) = Memory::create(2 * PAGE).expect("memory");
        let other = Memory::adopt(&file, 2 * PAGE).expect("the same memory");
        drop(file);
        assert_eq!(one.len(), 2 * PAGE / WORD);
        assert!(one.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        thread::scope(|scope| {
            scope.spawn(|| one[1023].store(7, Ordering::Release));
            while other[1023].load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
        });
        drop(one);
        assert_eq!(other[1023].load(Ordering::Relaxed), 7, "it is still there");
    }

    #[test]
    fn what_could_kill_is_not_mapped() {
        let unsealed = [
            SealFlags::empty(),
            SealFlags::SHRINK,
            SealFlags::GROW | SealFlags::SEAL,
        ];
        for seals in unsealed {
            let refused = Memory::adopt(file(seals, PAGE), PAGE);
            assert!(matches!(refused, Err(MemoryError::NotSealed)), "{seals:?}");
        }
        for bytes in [0, PAGE - 1, PAGE + 1, 2 * PAGE] {
            let refused = Memory::adopt(file(SIZE, bytes), PAGE);
            assert!(
                matches!(refused, Err(MemoryError::WrongSize { actual, .. }) if actual == bytes as u64),
                "{refused:?}"
            );
        }
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty());
        for other in [OwnedFd::from(null), event.expect("a descriptor")] {
            let refused = Memory::adopt(other, PAGE);
            assert!(matches!(refused, Err(MemoryError::NotSealed)));
        }
        // Not every system can make this one.
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = rustix::fs::memfd_create("huge", flags) {
            rustix::fs::ftruncate(&huge, 2 << 20).expect("a size");
            rustix::fs::fcntl_add_seals(&huge, SIZE).expect("sealed");
            let refused = Memory::adopt(huge, 2 << 20);
            assert!(
                matches!(refused, Err(MemoryError::NotOrdinary)),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_file_for_reading_only_is_an_error() {
        let (_memory, file) = Memory::create(PAGE).expect("memory");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let file = std::fs::File::open(path).expect("the same file");
        let refused = Memory::adopt(&file, PAGE);
        assert!(
            matches!(refused, Err(MemoryError::System(_))),
            "{refused:?}"
        );
    }

    #[test]
    fn fixed_memory_keeps_its_pages() {
        let (memory, file) = Memory::create(4 * PAGE).expect("memory");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        memory[0].store(7, Ordering::Relaxed);
        rustix::fs::fallocate(&file, punch, 0, PAGE as u64).expect("not fixed yet");
        assert_eq!(memory[0].load(Ordering::Relaxed), 0);
        Memory::fix(&file).expect("fixed");
        Memory::fix(&file).expect("by the other side, too");
        memory[0].store(7, Ordering::Relaxed);
        rustix::fs::fallocate(&file, punch, 0, PAGE as u64).expect_err("fixed");
        rustix::fs::ftruncate(&file, 0).expect_err("fixed");
        assert_eq!(memory[0].load(Ordering::Relaxed), 7);
        assert_eq!(rustix::fs::fstat(&file).expect("stat").st_blocks, 4 * 8);
        Memory::adopt(&file, 4 * PAGE).expect_err("nobody else maps it");
    }

    #[test]
    fn memory_that_cannot_be_fixed_is_an_error() {
        let file = file(SIZE | SealFlags::SEAL, PAGE);
        Memory::adopt(&file, PAGE).expect("its size is sealed");
        let refused = Memory::fix(&file);
        assert!(
            matches!(refused, Err(MemoryError::NotSealed)),
            "{refused:?}"
        );
    }

    #[test]
    fn bytes_survive_wherever_they_begin_and_leave_others_alone() {
        let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(u64::MAX)).collect();
        for at in 0..20 {
            for len in 0..=40 {
                let bytes: Vec<u8> = (0..len).map(|byte| byte as u8 + 1).collect();
                store(&words, at, &bytes);
                let mut all = BytesMut::with_capacity(64);
                append(&words, 0, 64, &mut all);
                let mut expected = [0xff; 64];
                expected[at..at + len].copy_from_slice(&bytes);
                assert_eq!(all[..], expected[..], "{len} at {at}");
                let mut some = BytesMut::with_capacity(50);
                some.put_slice(b"kept");
                append(&words, at, len, &mut some);
                assert_eq!(&some[..4], b"kept");
                assert_eq!(some[4..], bytes[..], "{len} at {at}");
                store(&words, at, &vec![0xff; len]);
            }
        }
    }

    #[tokio::test]
    async fn a_registered_descriptor_tells_of_each_ring() {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).expect("a descriptor");
        let ringer = bell.try_clone().expect("a second one");
        let bell = register(bell).expect("a runtime");
        for _ in 0..100 {
            rustix::io::write(&ringer, &1u64.to_ne_bytes()).expect("there is room");
            // It is never read: see `Link::poll_rung`.
            bell.readable().await.expect("a runtime").clear_ready();
        }
    }
}
