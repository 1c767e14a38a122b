//! Time that all processes of this machine agree on.

/// Nanoseconds since the machine was started: the same clock in every process, never set back.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live variable of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    // Neither is ever negative.
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;

/// Milliseconds, for people.
pub(crate) fn millis(nanos: u64) -> f64 {
    nanos as f64 / MILLI as f64
}
