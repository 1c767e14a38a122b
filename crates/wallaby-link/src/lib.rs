//! Emulated links: waiting for an instant to within a few microseconds, and a [`DelayLine`] that keeps messages back
//! for a fixed time, or as long as a link of limited bandwidth needs ([`Pacer`]).
//!
//! The timers of an asynchronous runtime tick once a millisecond and the kernel's own default is another 50 µs late.
//! That is far too coarse for links as they are found in a data centre, hence a clock of our own. Below about 250 µs
//! one way the cost of waking up a thread begins to show; such links belong into a simulator.
//!
//! [`emulate`] puts an endpoint of Wallaby at such a link, and a [`Wan`] several at sites, between which a [`Topology`] says what
//! links there are. Apart from endpoints, start at [`sleep_until`] if the thread may block, at [`DelayLine`] if it may not.
//! [`parse_delay`] reads a link's delay from a command line.

mod emulated;
mod pacer;
mod span;
mod wan;

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use pacer::PACKET;

pub use emulated::emulate;
pub use pacer::Pacer;
pub use span::{DelayError, parse_delay};
pub use wan::{Topology, TopologyError, Wan, Way};

/// Blocks the thread until `deadline`, and not longer than a few microseconds more on a machine that is not overloaded.
///
/// It sleeps for most of the time and is busy only for the last stretch, whose length it learns per thread from how
/// late the kernel wakes it, and which is never longer than 60 µs. While busy it lets other threads of the core go
/// first. The first call of a thread asks the kernel to no longer round the thread's timers.
pub fn sleep_until(deadline: Instant) {
    let mut remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        return;
    }
    let margin = MARGIN.with(Cell::get);
    if remaining > margin {
        nap(remaining - margin);
        let lateness = Instant::now().saturating_duration_since(deadline - margin);
        MARGIN.with(|cell| cell.set(learn_margin(margin, lateness)));
        remaining = deadline.saturating_duration_since(Instant::now());
    }
    while !remaining.is_zero() {
        // A yield takes as long as this; nearer to the deadline it would only make us late.
        if remaining > CLOSE {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        remaining = deadline.saturating_duration_since(Instant::now());
    }
}

/// A link with a constant one-way delay: what is sent comes out after that time, in the order it was sent.
///
/// A thread of its own calls the function given to [`DelayLine::new`] with each item when it is due. The mean delay is
/// held at what was asked for: the line measures by how much it is late and starts so much earlier.
///
/// Like on a real link, what is under way arrives even if the sender is gone: dropping the line only means that nothing
/// more is sent. The thread delivers the rest, drops the function and ends. [`DelayLine::finish`] waits for that.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use wallaby_link::DelayLine;
///
/// let (arrivals, inbox) = mpsc::channel();
/// let line = DelayLine::new(Duration::from_millis(1), move |item| {
///     let _ = arrivals.send(item);
/// })?;
/// line.send("first").map_err(|refused| refused.to_string())?;
/// line.send("second").map_err(|refused| refused.to_string())?;
/// line.finish();
/// assert_eq!(inbox.iter().collect::<Vec<_>>(), ["first", "second"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DelayLine<T> {
    delay: Duration,
    piece: usize,
    shared: Arc<SharedQueue<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> DelayLine<T> {
    /// How many items may be under way unless [`DelayLine::with_capacity`] says otherwise.
    pub const DEFAULT_CAPACITY: usize = 65_536;

    /// Starts a line that calls `deliver` with each item `delay` after it was sent.
    ///
    /// # Errors
    /// The operating system refused another thread.
    pub fn new(delay: Duration, deliver: impl FnMut(T) + Send + 'static) -> io::Result<Self> {
        Self::with_capacity(delay, Self::DEFAULT_CAPACITY, deliver)
    }

    /// Like [`DelayLine::new`], with a limit of its own on how many items may be under way.
    ///
    /// # Errors
    /// The operating system refused another thread.
    pub fn with_capacity(
        delay: Duration,
        capacity: usize,
        deliver: impl FnMut(T) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start(delay, None, capacity, deliver)
    }

    /// Like [`DelayLine::new`], over a link that takes only so many bits a second. An item arrives when its last byte has
    /// left, and then after the delay; what is handed over by [`DelayLine::send_bytes`] counts.
    ///
    /// # Errors
    /// The operating system refused another thread.
    pub fn with_bandwidth(
        delay: Duration,
        bits_per_second: NonZeroU64,
        deliver: impl FnMut(T) + Send + 'static,
    ) -> io::Result<Self> {
        let pacer = Pacer::new(bits_per_second);
        Self::start(delay, Some(pacer), Self::DEFAULT_CAPACITY, deliver)
    }

    pub(crate) fn start(
        delay: Duration,
        pacer: Option<Pacer>,
        capacity: usize,
        deliver: impl FnMut(T) + Send + 'static,
    ) -> io::Result<Self> {
        // Where pieces follow one another without pause, being busy before each would be busy all the time. Who is late
        // delivers what is due by then, and the bandwidth stays what it is.
        let wait = match pacer {
            Some(_) => nap_until,
            None => sleep_until,
        };
        let piece = pacer.as_ref().map_or(usize::MAX, Pacer::piece);
        let shared = Arc::new(SharedQueue::new(capacity, pacer));
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("wallaby-link".into())
            .spawn(move || run(&for_thread, wait, deliver))?;
        Ok(Self {
            delay,
            piece,
            shared,
            thread: Some(thread),
        })
    }

    /// The most bytes that are sensibly one item, where the bandwidth is limited: see [`Pacer::piece`].
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// So many bytes in items of sensible length: an end that is shorter than a packet goes with what is before it.
    pub fn pieces(&self, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (most, mut start) = (self.piece, 0);
        std::iter::from_fn(move || {
            let left = bytes - start;
            let len = if left < most.saturating_add(PACKET) {
                left
            } else {
                most
            };
            let piece = start..start + len;
            start = piece.end;
            (len > 0).then_some(piece)
        })
    }

    /// Sends an item that takes no bandwidth. Never waits, so it may be called from asynchronous code.
    ///
    /// # Errors
    /// The line is full, or its function has panicked; the item comes back with the error.
    pub fn send(&self, item: T) -> Result<(), Refused<T>> {
        self.send_bytes(item, 0)
    }

    /// Sends an item of so many bytes. Never waits, so it may be called from asynchronous code.
    ///
    /// # Errors
    /// The line is full, or its function has panicked; the item comes back with the error.
    pub fn send_bytes(&self, item: T, bytes: usize) -> Result<(), Refused<T>> {
        let mut queue = self.shared.lock();
        if queue.stopped {
            return Err(Refused::Stopped(item));
        }
        if queue.items.len() >= queue.capacity {
            return Err(Refused::Full(item));
        }
        // The clock is read under the lock, so that the order of the queue is the order of the times.
        let now = Instant::now();
        let left = match &mut queue.pacer {
            Some(pacer) => pacer.departure(bytes, now),
            None => now,
        };
        queue.items.push_back((left + self.delay, item));
        let wake = std::mem::replace(&mut queue.idle, false);
        drop(queue);
        if wake {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// The delay that was asked for.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Waits until everything under way has been delivered and the thread has ended.
    pub fn finish(mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the delivery function was reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl<T> Drop for DelayLine<T> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<T> fmt::Debug for DelayLine<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DelayLine")
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

/// Why a [`DelayLine`] did not take an item, with the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// As many items as it may hold are under way; try again later or drop it, as a network would.
    Full(T),
    /// The delivery function has panicked, nothing will be delivered any more.
    Stopped(T),
}

impl<T> Refused<T> {
    /// The item that was not taken.
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Stopped(item) => item,
        }
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Full(_) => "the delay line is full",
            Self::Stopped(_) => "the delay line has stopped because its delivery function panicked",
        })
    }
}

impl<T: fmt::Debug> std::error::Error for Refused<T> {}

/// What a line and its thread share.
struct SharedQueue<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

struct Queue<T> {
    items: VecDeque<(Instant, T)>,
    capacity: usize,
    pacer: Option<Pacer>,
    /// The thread waits for a change; else a send can save the system call that would wake it.
    idle: bool,
    /// Nothing more will be sent.
    closed: bool,
    /// The thread is gone.
    stopped: bool,
}

impl<T> SharedQueue<T> {
    fn new(capacity: usize, pacer: Option<Pacer>) -> Self {
        Self {
            queue: Mutex::new(Queue {
                items: VecDeque::new(),
                capacity,
                pacer,
                idle: false,
                closed: false,
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// No code of a user runs under this lock, so a poisoned one guards a queue that is whole.
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// The next item and when it is due; `None` when the line is closed and empty.
    fn next(&self) -> Option<(Instant, T)> {
        let mut queue = self.lock();
        loop {
            if let Some(item) = queue.items.pop_front() {
                return Some(item);
            }
            if queue.closed {
                return None;
            }
            queue.idle = true;
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn run<T>(shared: &SharedQueue<T>, wait: fn(Instant), mut deliver: impl FnMut(T)) {
    let _stopped = StopOnExit(shared);
    let mut bias = Bias::default();
    while let Some((due, item)) = shared.next() {
        wait(bias.advance(due));
        bias.learn(due, Instant::now());
        deliver(item);
    }
}

/// Refuses further items when the thread ends, also by a panic of the delivery function.
struct StopOnExit<'line, T>(&'line SharedQueue<T>);

impl<T> Drop for StopOnExit<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.stopped = true;
        let undelivered = std::mem::take(&mut queue.items);
        drop(queue);
        drop(undelivered); // outside of the lock: dropping an item may run anything
    }
}

/// By how much deliveries are late on average, and hence how much earlier to aim.
#[derive(Default)]
struct Bias {
    nanoseconds: i64,
}

impl Bias {
    fn advance(&self, due: Instant) -> Instant {
        let early = Duration::from_nanos(self.nanoseconds.unsigned_abs());
        due.checked_sub(early).unwrap_or(due)
    }

    fn learn(&mut self, due: Instant, delivered: Instant) {
        let late = delivered.saturating_duration_since(due).as_nanos();
        let early = due.saturating_duration_since(delivered).as_nanos();
        let limit = MAX_MARGIN.as_nanos();
        // One hiccup of the machine says nothing about the next delivery: it counts as the limit at most.
        let error = late.min(limit) as i64 - early.min(limit) as i64;
        self.nanoseconds = (self.nanoseconds + error / 16).clamp(0, limit as i64);
    }
}

/// The busy stretch before a deadline is never longer than this.
const MAX_MARGIN: Duration = Duration::from_micros(60);
/// Even a kernel that is always in time needs this long to switch to us.
const MIN_MARGIN: Duration = Duration::from_micros(2);
/// Nearer to the deadline than this, a yield to others is not worth it.
const CLOSE: Duration = Duration::from_nanos(1_500);

thread_local! {
    /// How much before the deadline this thread wants to be woken.
    static MARGIN: Cell<Duration> = const { Cell::new(Duration::from_micros(20)) };
    #[cfg(target_os = "linux")]
    static EXACT_TIMERS: Cell<bool> = const { Cell::new(false) };
}

/// Blocks the thread until `deadline`, or for a few microseconds more: it is not busy before.
fn nap_until(deadline: Instant) {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if !remaining.is_zero() {
        nap(remaining);
    }
}

/// Follows the lateness of wake-ups: quickly up and slowly down, since too short a margin makes us late and too long a
/// one only costs a little processor time.
fn learn_margin(margin: Duration, lateness: Duration) -> Duration {
    let wanted = lateness.min(MAX_MARGIN) + MIN_MARGIN;
    let next = if wanted > margin {
        margin + (wanted - margin) / 4
    } else {
        margin - (margin - wanted) / 64
    };
    next.clamp(MIN_MARGIN, MAX_MARGIN)
}

#[cfg(target_os = "linux")]
fn nap(duration: Duration) {
    if !EXACT_TIMERS.with(|cell| cell.replace(true)) {
        // SAFETY: PR_SET_TIMERSLACK takes plain integers and only changes this thread's timers. Should it fail, the
        // margin learns the slack.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
    }
    let mut remaining = libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    };
    // A signal ends the system call early and leaves in `remaining` how long is left.
    loop {
        let wanted = remaining;
        // SAFETY: both pointers are to timespecs that live through the call.
        let error =
            unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &wanted, &mut remaining) };
        if error != libc::EINTR {
            return;
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn nap(duration: Duration) {
    thread::sleep(duration);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SHORT: Duration = Duration::from_micros(300);

    #[test]
    fn never_returns_before_the_deadline() {
        for delay in [0, 1, 50, 400, 1_200].map(Duration::from_micros) {
            let deadline = Instant::now() + delay;
            sleep_until(deadline);
            assert!(Instant::now() >= deadline);
        }
    }

    #[test]
    fn a_deadline_in_the_past_is_no_wait() {
        let now = Instant::now();
        sleep_until(now.checked_sub(SHORT).unwrap_or(now));
    }

    #[test]
    fn keeps_the_order() {
        let (arrivals, inbox) = mpsc::channel();
        let line = DelayLine::new(SHORT, move |item| arrivals.send(item).unwrap()).unwrap();
        for number in 0..500 {
            line.send(number).unwrap();
        }
        let arrived: Vec<u32> = inbox.iter().take(500).collect();
        assert_eq!(arrived, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_limited_line_keeps_order_and_takes_its_time() {
        let (arrivals, inbox) = mpsc::channel();
        let megabyte_a_second = NonZeroU64::new(8_000_000).unwrap();
        let begin = Instant::now();
        let line = DelayLine::with_bandwidth(Duration::ZERO, megabyte_a_second, move |item| {
            arrivals.send((item, Instant::now())).unwrap();
        });
        let line = line.unwrap();
        assert_eq!(line.piece(), 1_500);
        let ends = |bytes| {
            line.pieces(bytes)
                .map(|piece| piece.end)
                .collect::<Vec<_>>()
        };
        assert_eq!(ends(0), [0; 0]);
        assert_eq!(ends(2_999), [2_999]);
        assert_eq!(ends(4_499), [1_500, 4_499]);
        assert_eq!(ends(4_500), [1_500, 3_000, 4_500]);
        for number in 0..100 {
            line.send_bytes(number, 100).unwrap();
        }
        line.finish();
        let (items, times): (Vec<u32>, Vec<Instant>) = inbox.iter().unzip();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        // It may aim a little earlier, never for less than that.
        assert!(times[99] >= begin + Duration::from_millis(10) - MAX_MARGIN);
    }

    #[test]
    fn an_idle_line_wakes_up_again() {
        let (arrivals, inbox) = mpsc::channel();
        let line =
            DelayLine::new(Duration::ZERO, move |item| arrivals.send(item).unwrap()).unwrap();
        for number in 0..200 {
            line.send(number).unwrap();
            assert_eq!(inbox.recv(), Ok(number));
        }
    }

    #[test]
    fn what_is_under_way_arrives_after_the_drop() {
        let (arrivals, inbox) = mpsc::channel();
        let line = DelayLine::new(SHORT, move |item| arrivals.send(item).unwrap()).unwrap();
        line.send('a').unwrap();
        line.send('b').unwrap();
        drop(line);
        // The end of the iteration shows that the thread has dropped its function.
        assert_eq!(inbox.iter().collect::<String>(), "ab");
    }

    #[test]
    fn finish_waits_for_the_rest() {
        let (arrivals, inbox) = mpsc::channel();
        let line = DelayLine::new(SHORT, move |item| arrivals.send(item).unwrap()).unwrap();
        line.send(1).unwrap();
        line.finish();
        assert_eq!(inbox.try_iter().collect::<Vec<_>>(), [1]);
        assert_eq!(inbox.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn a_full_line_gives_the_item_back() {
        let (entered, inside) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let line = DelayLine::with_capacity(Duration::ZERO, 1, move |_: u32| {
            entered.send(()).unwrap();
            let _ = released.recv();
        })
        .unwrap();
        line.send(1).unwrap();
        inside.recv().unwrap(); // the first is being delivered, so the queue is empty
        line.send(2).unwrap();
        assert_eq!(line.send(3), Err(Refused::Full(3)));
        drop(release);
        line.finish();
    }

    #[test]
    fn a_panic_of_the_function_stops_the_line() {
        struct Signal(mpsc::Sender<()>);
        impl Drop for Signal {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (gone, wait) = mpsc::channel();
        let signal = Signal(gone);
        let line = DelayLine::new(Duration::ZERO, move |_: u32| {
            let _held = &signal;
            panic!("as the test wants it");
        })
        .unwrap();
        line.send(1).unwrap();
        wait.recv().unwrap();
        // The function's captures are dropped after the queue was marked, so this is not a race.
        assert_eq!(line.send(2).map_err(Refused::into_item), Err(2));
    }

    #[test]
    fn the_margin_follows_the_lateness_within_its_bounds() {
        let mut margin = Duration::from_micros(20);
        for _ in 0..100 {
            margin = learn_margin(margin, Duration::from_millis(5));
        }
        assert!(margin > Duration::from_micros(59) && margin <= MAX_MARGIN);
        for _ in 0..2_000 {
            margin = learn_margin(margin, Duration::from_micros(4));
        }
        assert!(margin >= MIN_MARGIN && margin < Duration::from_micros(7));
    }
}
