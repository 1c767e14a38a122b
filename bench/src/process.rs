//! What the operating system is asked about processes: where they run, what they use.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::ClockId;
use nix::unistd::Pid;
use std::time::Duration;

/// Keeps the calling thread, and the threads and processes it starts, on one processor until dropped.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
    // What is restored at the end is this thread's placement.
    _not_send: std::marker::PhantomData<*const ()>,
}

/// The calling thread, to the operating system.
const THIS_THREAD: Pid = Pid::from_raw(0);

impl Pinned {
    /// Pins the calling thread to processor `cpu`.
    ///
    /// # Errors
    /// There is no such processor, or this process may not use it.
    pub fn to(cpu: u32) -> Result<Self> {
        let before = sched_getaffinity(THIS_THREAD);
        let before = before.context("this thread's processors can't be read")?;
        let mut only = CpuSet::new();
        only.set(usize::try_from(cpu)?)
            .with_context(|| format!("there is no processor {cpu}"))?;
        sched_setaffinity(THIS_THREAD, &only)
            .with_context(|| format!("can't run on processor {cpu}"))?;
        Ok(Self {
            before,
            _not_send: std::marker::PhantomData,
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before; should it be forbidden by now there is nothing better to do than to stay.
        let _ = sched_setaffinity(THIS_THREAD, &self.before);
    }
}

/// The processor time that a process has used so far, all its threads together, those that ended included.
///
/// # Errors
/// There is no such process.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(pid)?));
    let time = clock
        .and_then(ClockId::now)
        .with_context(|| format!("process {pid} has no processor clock any more: has it ended?"))?;
    Ok(time.into())
}

/// The processor time that the calling thread has used so far.
///
/// # Errors
/// The operating system does not count it.
pub fn thread_time() -> Result<Duration> {
    let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now();
    Ok(time.context("a thread's time can't be read")?.into())
}

/// How many bytes of a process are resident.
///
/// # Errors
/// There is no such process, or no file that says so.
pub fn resident(pid: u32) -> Result<u64> {
    Ok(Status::of(pid)?.number("VmRSS") * 1024)
}

/// What the operating system says of a process, in lines.
#[derive(Debug)]
pub struct Status(String);

impl Status {
    /// Of a process that runs.
    ///
    /// # Errors
    /// There is none.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path);
        Ok(Self(
            status.with_context(|| format!("{path} can't be read"))?,
        ))
    }

    /// The number in the line of this name, such as `Threads`, or in KiB `VmRSS`; 0 if there is none.
    pub fn number(&self, name: &str) -> u64 {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(':'));
        let line = lines.find(|(found, _)| *found == name);
        let number = line.and_then(|(_, value)| value.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_default()
    }
}

/// Gives back to the operating system what was freed, so that it does not count as resident, nor hide what is taken next.
pub fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a plain integer, and only what was freed is given back.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets this process, and those that it starts from now on, have so many files open; says how many are possible then.
///
/// # Errors
/// The operating system does not say.
pub fn allow_files(files: u64) -> Result<u64> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let (now, most) = limit.context("the limit of files can't be read")?;
    if now >= files {
        return Ok(now);
    }
    // Only privileged processes may raise the second number; all may raise the first up to it.
    for (now, most) in [(files, most.max(files)), (most.min(files), most)] {
        if setrlimit(Resource::RLIMIT_NOFILE, now, most).is_ok() {
            return Ok(now);
        }
    }
    Ok(now)
}

/// Asks the operating system to wake the calling thread when it should be, instead of a little later together with others.
pub(crate) fn wake_exactly() {
    // Where it does not, threads are woken later.
    let _ = nix::sys::prctl::set_timerslack(1);
}

#[cfg(test)]
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
    fn numbers_are_found_in_the_status_of_a_process() {
        let status = Status("Name:\twallaby\nVmRSS:\t   5120 kB\nThreads:\t3\n".to_owned());
        assert_eq!(status.number("VmRSS"), 5120);
        assert_eq!(status.number("Threads"), 3);
        assert_eq!(status.number("VmSwap"), 0);
    }

    #[test]
    fn files_that_are_allowed_already_stay_so() {
        assert!(allow_files(1).unwrap() >= 1);
    }

    #[test]
    fn pinning_ends_with_the_guard() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(THIS_THREAD).unwrap();
            let first = (0..CpuSet::count())
                .find(|index| before.is_set(*index).unwrap())
                .unwrap();
            let mut only = CpuSet::new();
            only.set(first).unwrap();
            let pinned = Pinned::to(first as u32).unwrap();
            assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), only);
            drop(pinned);
            assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), before);
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
