//! Time: one thread of the process that wakes tasks and endpoints when their time has come.
//!
//! The timers of the async runtime would do, but a runtime that has them reads the clock each time it goes to sleep and
//! wakes up, which a call of some microseconds pays for several times. So a runtime without timers (`enable_io` alone)
//! is enough for Wallaby. Deadlines are almost never reached; setting and dropping them is what must be cheap.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;
#[cfg(not(feature = "turmoil"))]
pub(crate) use std::time::Instant;
#[cfg(feature = "turmoil")]
pub(crate) use tokio::time::Instant; // the system's clock, except in simulations

use wallaby_proto::wire::PingSettings;

use crate::driver::shared::Inner;
use crate::panics::contain;

/// A time that an application states, as it can be added to the present one: nobody waits for the end of what is longer.
pub(crate) fn bounded(time: Duration) -> Duration {
    time.min(PingSettings::LONGEST)
}

/// A moment that time is counted from, for what asks for the time with every datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch {
    instant: Instant,
    #[cfg(not(feature = "turmoil"))]
    nanoseconds: u64,
}

impl Epoch {
    pub(crate) fn now() -> Self {
        Self {
            instant: Instant::now(),
            #[cfg(not(feature = "turmoil"))]
            nanoseconds: monotonic(),
        }
    }

    /// The moment so long after it.
    pub(crate) fn after(&self, time: Duration) -> Instant {
        self.instant + time
    }

    /// How long ago it was.
    #[cfg(not(feature = "turmoil"))]
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(monotonic().saturating_sub(self.nanoseconds))
    }

    #[cfg(feature = "turmoil")]
    pub(crate) fn elapsed(&self) -> Duration {
        self.instant.elapsed()
    }
}

/// The system's monotonic clock, in nanoseconds: an [`Instant`] of it costs several times as much.
#[cfg(unix)]
pub(crate) fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure outlives the call, which fills it in; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The time since it was first asked for, where there is no quicker way.
#[cfg(not(unix))]
pub(crate) fn monotonic() -> u64 {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    START.elapsed().as_nanos() as u64
}

static TIMER: LazyLock<&'static Timer> = LazyLock::new(Timer::start);

/// When something is due, and a number that makes it unique.
pub(crate) type Key = (Instant, u64);

#[derive(Default)]
struct Timer {
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Alarms {
    pub(crate) by_time: BTreeMap<Key, Target>,
    count: u64,
    thread: Thread,
}

/// What the timer's thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Thread {
    /// It looks at the alarms before it sleeps.
    #[default]
    Awake,
    /// It sleeps until then, or until it is woken: then it need not be woken for anything later. Where one alarm takes the
    /// place of another for each datagram, that would cost more than the datagram.
    Asleep(Option<Instant>),
}

impl Thread {
    /// Whether it must be woken for an alarm at this time.
    fn oversleeps(self, at: Instant) -> bool {
        match self {
            Self::Awake => false,
            Self::Asleep(until) => until.is_none_or(|until| at < until),
        }
    }
}

pub(crate) enum Target {
    Task(Waker),
    Endpoint(Weak<Inner>),
}

/// Calls [`Inner::alarm`] at this time, on the timer's thread.
pub(crate) fn wake_endpoint(endpoint: Weak<Inner>, at: Instant) {
    set(at, Target::Endpoint(endpoint));
}

fn set(at: Instant, target: Target) -> Key {
    #[cfg(feature = "turmoil")]
    let target = match crate::simulation::set_alarm(at, target) {
        Ok(key) => return key,
        Err(target) => target,
    };
    TIMER.set(at, target)
}

/// Does something with the alarms that are set.
fn with_alarms<R>(act: impl Fn(&mut BTreeMap<Key, Target>) -> R) -> R {
    #[cfg(feature = "turmoil")]
    if let Some(result) = crate::simulation::with_alarms(&act) {
        return result;
    }
    act(&mut TIMER.lock().by_time)
}

/// A future that is ready from this time on.
pub(crate) fn sleep_until(at: Instant) -> Sleep {
    Sleep { at, alarm: None }
}

/// Waits for so long, also where the runtime has no timers.
#[doc(hidden)]
pub async fn sleep(time: Duration) {
    sleep_until(Instant::now() + bounded(time)).await;
}

/// The output of `future`, or `None` if it is not there by this time.
pub(crate) async fn timeout_at<F: Future>(at: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut sleep = sleep_until(at);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| None),
    })
    .await
}

/// See [`sleep_until`].
#[derive(Debug)]
pub(crate) struct Sleep {
    at: Instant,
    alarm: Option<Key>,
}

impl Sleep {
    fn cancel(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            // What a waker drops may be anything: not under the timer's lock.
            let removed = with_alarms(|alarms| alarms.remove(&alarm));
            drop(removed);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at <= Instant::now() {
            self.cancel();
            return Poll::Ready(());
        }
        let is_set = self.alarm.is_some_and(|alarm| {
            with_alarms(|alarms| match alarms.get(&alarm) {
                Some(Target::Task(waker)) => waker.will_wake(cx.waker()),
                _ => false,
            })
        });
        if !is_set {
            self.cancel();
            self.alarm = Some(set(self.at, Target::Task(cx.waker().clone())));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Timer {
    fn start() -> &'static Self {
        let timer: &'static Self = Box::leak(Box::default());
        let thread = thread::Builder::new().name("wallaby-timer".into());
        if let Err(error) = thread.spawn(|| timer.run()) {
            tracing::error!(%error, "the system gives no thread for timers: deadlines are not watched");
        }
        timer
    }

    fn lock(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, at: Instant, target: Target) -> Key {
        let mut alarms = self.lock();
        let key = alarms.add(at, target);
        let oversleeps = alarms.thread.oversleeps(at);
        if oversleeps {
            alarms.thread = Thread::Awake;
        }
        drop(alarms);
        if oversleeps {
            self.changed.notify_one();
        }
        key
    }

    fn run(&self) {
        let mut alarms = self.lock();
        loop {
            let now = Instant::now();
            let next = alarms.by_time.first_key_value().map(|(key, _)| key.0);
            alarms.thread = match next {
                Some(next) if next <= now => Thread::Awake,
                next => Thread::Asleep(next),
            };
            alarms = match next {
                Some(next) if next <= now => {
                    let due = alarms.by_time.pop_first();
                    drop(alarms);
                    if let Some((_, target)) = due {
                        contain("a waker, or what an endpoint had", || target.wake(now));
                    }
                    self.lock()
                }
                Some(next) => {
                    self.changed
                        .wait_timeout(alarms, next - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .changed
                    .wait(alarms)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Alarms {
    pub(crate) fn add(&mut self, at: Instant, target: Target) -> Key {
        self.count += 1;
        let key = (at, self.count);
        self.by_time.insert(key, target);
        key
    }
}

impl Target {
    pub(crate) fn wake(self, now: Instant) {
        match self {
            Self::Task(waker) => waker.wake(),
            Self::Endpoint(endpoint) => {
                if let Some(endpoint) = endpoint.upgrade() {
                    endpoint.alarm(now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as it likes");
        }
    }

    #[test]
    fn a_waker_that_panics_ends_no_other_timers() {
        let mut first = sleep_until(Instant::now() + Duration::from_millis(1));
        let waker = Waker::from(Arc::new(Panics));
        assert!(
            Pin::new(&mut first)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let (told, hears) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for _ in 0..3 {
                let _ = crate::blocking::wait(sleep(Duration::from_millis(5)));
            }
            let _ = told.send(());
        });
        assert_eq!(hears.recv_timeout(Duration::from_secs(30)), Ok(()));
    }

    #[test]
    fn time_since_an_epoch_is_that_of_the_clock() {
        let before = Instant::now();
        let epoch = Epoch::now();
        let moment = epoch.after(epoch.elapsed());
        assert!(before <= moment && moment <= Instant::now());
        assert!(epoch.elapsed() <= epoch.elapsed(), "it never goes back");
    }

    #[test]
    fn what_is_due_is_ready_at_once() {
        let mut sleep = sleep_until(Instant::now());
        assert!(
            Pin::new(&mut sleep)
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        );
    }

    #[test]
    fn a_dropped_sleep_leaves_nothing_behind() {
        let far = Instant::now() + Duration::from_secs(86_400);
        let woken = Arc::new(Woken::default());
        let mut sleep = sleep_until(far);
        let waker = Waker::from(Arc::clone(&woken));
        assert!(
            Pin::new(&mut sleep)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        assert!(
            Pin::new(&mut sleep)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let alarm = sleep.alarm.expect("it was set");
        assert!(TIMER.lock().by_time.contains_key(&alarm));
        drop(sleep);
        assert!(!TIMER.lock().by_time.contains_key(&alarm));
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_thread_is_woken_only_for_what_it_would_oversleep() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert!(!Thread::Awake.oversleeps(now));
        assert!(Thread::Asleep(None).oversleeps(later));
        assert!(Thread::Asleep(Some(later)).oversleeps(now));
        assert!(!Thread::Asleep(Some(now)).oversleeps(later));
        assert!(!Thread::Asleep(Some(now)).oversleeps(now));
    }

    #[test]
    fn an_output_in_time_is_kept_and_a_late_one_is_not() {
        let late = timeout_at(
            Instant::now() + Duration::from_millis(1),
            std::future::pending::<()>(),
        );
        assert_eq!(crate::blocking::wait(late), Ok(None));
        let in_time = timeout_at(
            Instant::now() + Duration::from_secs(60),
            std::future::ready(7),
        );
        assert_eq!(crate::blocking::wait(in_time), Ok(Some(7)));
    }
}
