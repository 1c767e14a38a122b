//! What the operating system is asked about processes: where they run, what they use, with whom they die.

use anyhow::{Context, Result, bail};
use std::time::Duration;

/// Keeps the calling thread, and the threads and processes it starts, on one processor until dropped.
#[derive(Debug)]
pub struct Pinned {
    #[cfg(target_os = "linux")]
    before: libc::cpu_set_t,
    // What is restored at the end is this thread's placement.
    _not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(target_os = "linux")]
impl Pinned {
    /// Pins the calling thread to processor `cpu`.
    ///
    /// # Errors
    /// There is no such processor, or this process may not use it.
    pub fn to(cpu: u32) -> Result<Self> {
        let before = affinity().context("this thread's processors can't be read")?;
        let index = usize::try_from(cpu)?;
        if index >= usize::try_from(libc::CPU_SETSIZE)? {
            bail!("there is no processor {cpu}");
        }
        // SAFETY: an all-zero set is a valid, empty one; the index was checked against the set's size.
        let only = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(index, &mut set);
            set
        };
        set_affinity(&only).with_context(|| format!("can't run on processor {cpu}"))?;
        Ok(Self {
            before,
            _not_send: std::marker::PhantomData,
        })
    }
}

#[cfg(not(target_os = "linux"))]
impl Pinned {
    /// Pins the calling thread to processor `cpu`.
    ///
    /// # Errors
    /// Always: only known for Linux.
    pub fn to(_cpu: u32) -> Result<Self> {
        bail!("pinning to a processor is only supported on Linux")
    }
}

#[cfg(target_os = "linux")]
impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before; should it be forbidden by now there is nothing better to do than to stay.
        let _ = set_affinity(&self.before);
    }
}

#[cfg(target_os = "linux")]
fn affinity() -> std::io::Result<libc::cpu_set_t> {
    // SAFETY: an all-zero set is valid, and the call writes at most the size it is told.
    let (result, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let result = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (result, set)
    };
    if result == 0 {
        Ok(set)
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(target_os = "linux")]
fn set_affinity(set: &libc::cpu_set_t) -> std::io::Result<()> {
    // SAFETY: the set lives through the call, which only reads it.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// The processor time that a process has used so far, all its threads together, those that ended included.
///
/// # Errors
/// There is no such process.
#[cfg(target_os = "linux")]
pub fn processor_time(pid: u32) -> Result<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both pointers are to live variables of the right type.
    let result = unsafe {
        match libc::clock_getcpuclockid(libc::pid_t::try_from(pid)?, &mut clock) {
            0 => libc::clock_gettime(clock, &mut time),
            error => error,
        }
    };
    if result != 0 {
        bail!("process {pid} has no processor clock any more: has it ended?");
    }
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}

/// The processor time that a process has used so far.
///
/// # Errors
/// Always: only known for Linux.
#[cfg(not(target_os = "linux"))]
pub fn processor_time(_pid: u32) -> Result<Duration> {
    bail!("processor time of other processes is only supported on Linux")
}

/// The processor time that the calling thread has used so far.
///
/// # Errors
/// The operating system does not count it.
#[cfg(unix)]
pub fn thread_time() -> Result<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live variable of the right type.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0 {
        return Err(std::io::Error::last_os_error()).context("a thread's time can't be read");
    }
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}

/// The processor time that the calling thread has used so far.
///
/// # Errors
/// Always: only known for Unix.
#[cfg(not(unix))]
pub fn thread_time() -> Result<Duration> {
    bail!("the processor time of a thread is only supported on Unix")
}

/// How many bytes of a process are resident.
///
/// # Errors
/// There is no such process, or no file that says so.
pub fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("{path} can't be read"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.with_context(|| format!("{path} does not say what is resident"))?;
    Ok(kib.trim().parse::<u64>()? * 1024)
}

/// Gives back to the operating system what was freed, so that it does not count as resident, nor hide what is taken next.
pub fn release_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes a plain integer, and only what was freed is given back.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets this process, and those that it starts from now on, have so many files open; says how many are possible then.
///
/// # Errors
/// The operating system does not say.
#[cfg(unix)]
pub fn allow_files(files: u64) -> Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live variable of the right type.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(std::io::Error::last_os_error()).context("the limit of files can't be read");
    }
    if limit.rlim_cur >= files {
        return Ok(limit.rlim_cur);
    }
    let wanted = libc::rlimit {
        rlim_cur: files,
        rlim_max: limit.rlim_max.max(files),
    };
    let most = libc::rlimit {
        rlim_cur: limit.rlim_max.min(files),
        ..limit
    };
    // Only privileged processes may raise the second number; all may raise the first up to it.
    for changed in [wanted, most] {
        // SAFETY: the pointer is to a live variable, which the call only reads.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &changed) } == 0 {
            return Ok(changed.rlim_cur);
        }
    }
    Ok(limit.rlim_cur)
}

/// Lets this process have so many files open.
///
/// # Errors
/// Always: only known for Unix.
#[cfg(not(unix))]
pub fn allow_files(_files: u64) -> Result<u64> {
    bail!("the limit of files is only known on Unix")
}

/// Asks the operating system to wake the calling thread when it should be, instead of a little later together with others.
pub(crate) fn wake_exactly() {
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes plain integers and only changes when this thread is woken.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1)
    };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn processor_time_counts_this_process() {
        let before = processor_time(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while processor_time(std::process::id()).unwrap() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }

    #[test]
    fn the_time_of_a_thread_is_its_own() {
        let spin = || {
            let before = thread_time().unwrap();
            while thread_time().unwrap() < before + Duration::from_millis(5) {
                std::hint::spin_loop();
            }
        };
        let other = std::thread::spawn(|| thread_time().unwrap());
        spin();
        assert!(other.join().unwrap() < Duration::from_millis(5));
        assert!(thread_time().unwrap() >= Duration::from_millis(5));
    }

    #[test]
    fn memory_that_is_written_to_is_resident() {
        let before = resident(std::process::id()).unwrap();
        let taken = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident(std::process::id()).unwrap();
        assert!(after >= before + (32 << 20), "{before} and {after}");
        drop(taken);
        release_memory();
        assert!(resident(u32::MAX).is_err());
    }

    #[test]
    fn files_that_are_allowed_already_stay_so() {
        assert!(allow_files(1).unwrap() >= 1);
    }

    #[test]
    fn pinning_ends_with_the_guard() {
        std::thread::spawn(|| {
            let count = |set: &libc::cpu_set_t| {
                // SAFETY: only reads the set it is given.
                unsafe { libc::CPU_COUNT(set) }
            };
            let before = affinity().unwrap();
            // SAFETY: the index is below the set's size.
            let first = (0..libc::CPU_SETSIZE as usize)
                .find(|index| unsafe { libc::CPU_ISSET(*index, &before) })
                .unwrap();
            let pinned = Pinned::to(first as u32).unwrap();
            assert_eq!(count(&affinity().unwrap()), 1);
            drop(pinned);
            assert_eq!(count(&affinity().unwrap()), count(&before));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        assert!(Pinned::to(1_000_000).is_err());
        assert!(Pinned::to(1_000).is_err());
    }
}
