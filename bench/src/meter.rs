//! Whose processor time it is: the application's, that of the calls it makes of Wallaby's interface, or that of what works
//! in the background.
//!
//! As in figure 6.6 of the thesis, what decides is who is on the stack: a handler or an operation is the application; from
//! there on, whatever runs until a call of the interface returns is the interface's, however deep it goes; and what no
//! application waits for at that moment (reading, decoding, timers, the runtime, most of writing) is the protocol's.
//!
//! The thread's processor clock is read at each border, so that it does not matter who else is on the processor. Reading it
//! takes time itself; that is measured, too, taken out and told as [`Spent::clock`].

use crate::process::thread_time;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::AddAssign;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Processor time of a process but for what works in the background, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// The application's own.
    pub application: u64,
    /// That of calls of the interface.
    pub interface: u64,
    /// That of reading the clock, wherever it was.
    pub clock: u64,
}

/// Who is on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Background,
    Application,
    Interface,
}

/// Whether this process measures; then what a reading of the clock takes is known.
static ON: AtomicBool = AtomicBool::new(false);
static READING: AtomicU64 = AtomicU64::new(0);
static APPLICATION: AtomicU64 = AtomicU64::new(0);
static INTERFACE: AtomicU64 = AtomicU64::new(0);
static CLOCK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Who has been on this thread's stack since when.
    static NOW: Cell<(Part, Duration)> = const { Cell::new((Part::Background, Duration::ZERO)) };
}

/// Measures until [`Measuring`] is dropped.
pub(crate) fn begin() -> Measuring {
    if READING.load(Relaxed) == 0 {
        READING.store(cost_of_reading(), Relaxed);
    }
    ON.store(true, Relaxed);
    Measuring
}

/// While this lives it is measured.
pub(crate) struct Measuring;

impl Drop for Measuring {
    fn drop(&mut self) {
        ON.store(false, Relaxed);
    }
}

/// What was spent so far.
pub(crate) fn spent() -> Spent {
    Spent {
        application: APPLICATION.load(Relaxed),
        interface: INTERFACE.load(Relaxed),
        clock: CLOCK.load(Relaxed),
    }
}

/// Work of the application: what it spends outside of the interface is its own.
pub(crate) async fn application<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| during(Part::Application, || work.as_mut().poll(context))).await
}

/// A call of the interface that may have to wait.
pub(crate) async fn interface<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    poll_fn(|context| during(Part::Interface, || call.as_mut().poll(context))).await
}

/// A call of the interface that never waits.
pub(crate) fn at_interface<T>(call: impl FnOnce() -> T) -> T {
    during(Part::Interface, call)
}

fn during<T>(part: Part, work: impl FnOnce() -> T) -> T {
    if !ON.load(Relaxed) {
        return work();
    }
    let before = switch(part);
    let result = work();
    switch(before);
    result
}

/// From here on it is this part that is on the stack; which one it was.
fn switch(part: Part) -> Part {
    // Where the operating system has no such clock nothing is measured at all, and the benchmark says so.
    let time = thread_time().unwrap_or_default();
    let (before, since) = NOW.replace((part, time));
    let reading = READING.load(Relaxed);
    let spent = nanoseconds(time.saturating_sub(since)).saturating_sub(reading);
    match before {
        Part::Background => 0,
        Part::Application => APPLICATION.fetch_add(spent, Relaxed),
        Part::Interface => INTERFACE.fetch_add(spent, Relaxed),
    };
    CLOCK.fetch_add(reading, Relaxed);
    before
}

/// What a reading takes, by the clock itself: the least of some rounds, since nothing makes it quicker than it is.
fn cost_of_reading() -> u64 {
    const ROUNDS: u32 = 20;
    const READINGS: u32 = 200;
    let round = |_| {
        let begun = thread_time().unwrap_or_default();
        let end = (0..READINGS).fold(begun, |_, _| thread_time().unwrap_or_default());
        nanoseconds(end.saturating_sub(begun)) / u64::from(READINGS)
    };
    (0..ROUNDS).map(round).min().unwrap_or(0)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Spent {
    /// What was spent between two readings.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            application: self.application.saturating_sub(before.application),
            interface: self.interface.saturating_sub(before.interface),
            clock: self.clock.saturating_sub(before.clock),
        }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.application += other.application;
        self.interface += other.interface;
        self.clock += other.clock;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// One test, since what is measured is the whole process'.
    #[test]
    fn each_part_is_charged_what_it_used_itself() {
        const MILLISECOND: Duration = Duration::from_millis(1);
        // Keeps the processor busy for so long, by the thread's own clock.
        let work = |time: Duration| {
            let end = thread_time().unwrap() + time;
            while thread_time().unwrap() < end {
                std::hint::spin_loop();
            }
        };
        let handler = async {
            work(3 * MILLISECOND);
            interface(async { work(5 * MILLISECOND) }).await;
            at_interface(|| work(7 * MILLISECOND));
        };
        let runtime = crate::on_wallaby::runtime().unwrap();
        let unmeasured = spent();
        runtime.block_on(application(async { work(MILLISECOND) }));
        assert_eq!(spent(), unmeasured, "nobody measures yet");
        let measuring = begin();
        runtime.block_on(async {
            work(2 * MILLISECOND);
            application(handler).await;
        });
        drop(measuring);
        let spent = spent().since(unmeasured);
        let millis = |nanoseconds: u64| nanoseconds / 1_000_000;
        // The clock is the thread's own, so nobody else can make these longer; less than one millisecond is the meter's.
        assert_eq!(millis(spent.application), 3, "{spent:?}");
        assert_eq!(millis(spent.interface), 12, "{spent:?}");
        assert_eq!(spent.clock % 6, 0, "three parts have six borders");
    }
}
