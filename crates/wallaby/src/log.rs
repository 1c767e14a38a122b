//! Whether anybody listens to what is logged: what makes up events stays out of the way of calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::level_filters::LevelFilter;

/// Whether a subscriber may want events and spans of level DEBUG.
pub(crate) fn debugs() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// Lets one event a second through, and says how many it has held back since the last: what peers can cause must not fill
/// the log.
#[derive(Debug, Default)]
pub(crate) struct Sparse {
    /// When the next one may pass, in milliseconds of the endpoint.
    next: AtomicU64,
    held_back: AtomicU64,
}

impl Sparse {
    /// Whether an event may be logged now, so long after the endpoint was made; then, how many were not.
    pub(crate) fn pass(&self, now: Duration) -> Option<u64> {
        let now = now.as_millis() as u64;
        let next = self.next.load(Ordering::Relaxed);
        let passes = now >= next
            && self
                .next
                .compare_exchange(next, now + 1000, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if passes {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_a_second_passes() {
        let sparse = Sparse::default();
        let at = Duration::from_millis;
        assert_eq!(sparse.pass(at(5)), Some(0));
        assert_eq!(sparse.pass(at(5)), None);
        assert_eq!(sparse.pass(at(1004)), None);
        assert_eq!(sparse.pass(at(1005)), Some(2));
        assert_eq!(sparse.pass(at(9000)), Some(0));
    }
}
