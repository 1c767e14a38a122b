//! Time that all processes of this machine agree on.

use nix::time::ClockId;

/// Nanoseconds since the machine was started: the same clock in every process, never set back.
pub(crate) fn now() -> u64 {
    // Every Linux has this clock. Neither number is ever negative.
    let time = ClockId::CLOCK_MONOTONIC.now();
    time.map_or(0, |time| {
        time.tv_sec() as u64 * SECOND + time.tv_nsec() as u64
    })
}

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;

/// Milliseconds, for people.
pub(crate) fn millis(nanos: u64) -> f64 {
    nanos as f64 / MILLI as f64
}
