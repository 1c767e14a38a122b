//! One server of several, as a client knows it: how many of its calls are under way there, and whether it can be reached.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wallaby_proto::Address;

use crate::call::{CallEnd, CallWatch, Outcome};
use crate::error::Failure;
use crate::timer::Instant;

/// How long a server is left out that cannot be connected to: at first, and at the most.
const LEFT_OUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A server, and what is known of it.
pub(super) struct Place {
    address: Address,
    under_way: AtomicUsize,
    absent: Mutex<Option<Absent>>,
}

/// It could not be reached.
struct Absent {
    until: Instant,
    /// How long it is left out if it cannot be reached again.
    next: Duration,
    /// A call has gone there since the time was over.
    tried: bool,
}

impl Place {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            under_way: AtomicUsize::new(0),
            absent: Mutex::new(None),
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    pub(super) fn is_left_out(&self, now: Instant) -> bool {
        let absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        absent.as_ref().is_some_and(|absent| now < absent.until)
    }

    /// Many calls find that out at the same time: they count once.
    pub(super) fn leave_out(&self, now: Instant) {
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        if absent
            .as_ref()
            .is_some_and(|absent| !absent.tried && now < absent.until)
        {
            return;
        }
        let time = absent.as_ref().map_or(LEFT_OUT.0, |absent| absent.next);
        *absent = Some(Absent {
            until: now + time,
            next: LEFT_OUT.1.min(time * 2),
            tried: false,
        });
    }

    /// A call goes there. The first after it was left out is to show whether it is back: the others wait for that for a while, or
    /// all would go at once to the one that has nothing to do.
    pub(super) fn choose(&self, now: Instant) {
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(absent) = absent.as_mut().filter(|absent| now >= absent.until) {
            absent.tried = true;
            absent.until = now + LEFT_OUT.0;
        }
    }

    fn note_end(&self, end: &CallEnd) {
        let is_absent = match &end.outcome {
            Outcome::Failed(Failure::NotSent { error, .. }) => error.is_about_server(),
            _ => end.turned_away,
        };
        if is_absent {
            self.leave_out(Instant::now());
        } else if end.status.is_some() || matches!(end.outcome, Outcome::Complete { .. }) {
            self.note_answer(Instant::now());
        }
    }

    /// It has answered. While it is left out that may be the answer to a call of before.
    fn note_answer(&self, now: Instant) {
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        absent.take_if(|absent| absent.tried || now >= absent.until);
    }
}

/// A call that is under way at a server, until this is dropped.
pub(crate) struct Visit(Arc<Place>);

impl Visit {
    pub(super) fn begin(place: Arc<Place>) -> Self {
        place.under_way.fetch_add(1, Ordering::Relaxed);
        Self(place)
    }

    /// Where it is.
    pub(crate) fn server(&self) -> &Address {
        &self.0.address
    }

    /// Lasts until the call has ended, which is told of the server.
    pub(crate) fn watch(self: Arc<Self>) -> CallWatch {
        CallWatch(Arc::new(move |end| self.0.note_end(end)))
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Visit").field(self.server()).finish()
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_reached_is_left_out_for_longer_each_time() {
        let place = Place::new("mem://place".parse().expect("an address"));
        let mut now = Instant::now();
        let mut times = Vec::new();
        for _ in 0..7 {
            assert!(!place.is_left_out(now));
            place.leave_out(now);
            place.leave_out(now); // by another call
            let seconds =
                (1..).find(|second| !place.is_left_out(now + Duration::from_secs(*second)));
            let seconds = seconds.expect("it ends");
            times.push(seconds);
            now += Duration::from_secs(seconds);
        }
        assert_eq!(times, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn one_call_a_second_shows_whether_a_server_is_back() {
        let place = Place::new("mem://place".parse().expect("an address"));
        let second = Duration::from_secs(1);
        let mut now = Instant::now();
        place.leave_out(now);
        place.note_answer(now); // of a call of before
        assert!(place.is_left_out(now));
        now += second;
        assert!(!place.is_left_out(now));
        place.choose(now);
        assert!(place.is_left_out(now), "the others wait");
        assert!(!place.is_left_out(now + second), "but for a while only");
        place.leave_out(now); // it is not
        assert!(place.is_left_out(now + second));
        now += 2 * second;
        place.choose(now);
        place.note_answer(now);
        assert!(!place.is_left_out(now), "it is back");
        place.leave_out(now);
        assert!(
            !place.is_left_out(now + second),
            "and was away for the first time"
        );
    }
}
