//! Memory shared with another process, and all that needs `unsafe` to use it.
//!
//! The other process may change any byte at any time. So nobody gets a reference to plain bytes: the memory is words that
//! are read and written as atomics, and what is in them is copied before anybody looks at it.

use std::ffi::c_void;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

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
        // A signal makes it begin anew.
        Ok(rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        })?)
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

impl Memory {
    /// Copies bytes into it, from byte `at` on.
    ///
    /// # Panics
    ///
    /// If they reach beyond its end.
    pub(super) fn store(&self, at: usize, bytes: &[u8]) {
        let to = self.place(at, bytes.len());
        // SAFETY: so many bytes are there at both places, and nobody has references to plain bytes of this memory.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Appends the `len` bytes of it that begin at byte `at`.
    ///
    /// # Panics
    ///
    /// If they reach beyond its end or the output's capacity.
    pub(super) fn append(&self, at: usize, len: usize, output: &mut BytesMut) {
        let from = self.place(at, len);
        let room = &mut output.spare_capacity_mut()[..len];
        // SAFETY: as above; the copy initialises so many bytes of the output's spare room.
        unsafe {
            copy(from, room.as_mut_ptr().cast(), len);
            output.advance_mut(len);
        }
    }

    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let bytes = self.words * WORD;
        assert!(at <= bytes && len <= bytes - at, "{len} bytes at {at}");
        // SAFETY: this is within what is mapped, or at its end.
        unsafe { self.start.as_ptr().cast::<u8>().add(at) }
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

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

static COPY: Copy = libc::memcpy;

/// Copies bytes that another process may change meanwhile.
///
/// What the compiler knows to be a copy it may leave out, and look at the source later or twice. So it must not know: the
/// pointer is read as if it could change, and what it calls is foreign code, like the other process.
///
/// # Safety
///
/// As for any copy, but that one of the two may be shared memory.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: it is always this function, and the caller knows what it is called with.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), len) };
}

/// Registers a descriptor with the runtime, for reading.
pub(super) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open and the same until the `AsyncFd` that owns it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
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
        let (memory, _file) = Memory::create(PAGE).expect("memory");
        let bytes: Vec<u8> = (1..=40).collect();
        for at in [0, 1, 7, 8, 100, PAGE - 40, PAGE - 3, PAGE] {
            for len in 0..=40.min(PAGE - at) {
                memory
                    .iter()
                    .for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                memory.store(at, &bytes[..len]);
                let mut expected = [0xff; PAGE];
                expected[at..at + len].copy_from_slice(&bytes[..len]);
                let mut all = BytesMut::with_capacity(PAGE);
                memory.append(0, PAGE, &mut all);
                assert!(all[..] == expected[..], "{len} at {at}");
                let mut some = BytesMut::with_capacity(44);
                some.put_slice(b"kept");
                memory.append(at, len, &mut some);
                assert_eq!(&some[..4], b"kept");
                assert_eq!(some[4..], bytes[..len], "{len} at {at}");
            }
        }
    }

    #[test]
    fn nothing_is_copied_beyond_an_end() {
        let (memory, _file) = Memory::create(PAGE).expect("memory");
        let panics = |run: &dyn Fn()| {
            let run = std::panic::AssertUnwindSafe(run);
            assert!(std::panic::catch_unwind(run).is_err());
        };
        panics(&|| memory.store(PAGE - 1, b"ab"));
        panics(&|| memory.store(PAGE + 1, b""));
        panics(&|| memory.store(usize::MAX, b"ab"));
        panics(&|| memory.append(PAGE - 1, 2, &mut BytesMut::with_capacity(8)));
        panics(&|| memory.append(0, usize::MAX, &mut BytesMut::with_capacity(8)));
        panics(&|| memory.append(0, 8, &mut BytesMut::new()));
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
