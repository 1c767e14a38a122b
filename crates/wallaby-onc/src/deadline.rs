//! When a time from now is over.

use std::time::Duration;

use tokio::time::Instant;

/// As good as never: later than any program runs, and early enough for every clock.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a time that begins now, however long.
pub(crate) fn end_of(time: Duration) -> Instant {
    after(Instant::now(), time)
}

/// The end of a time that began then, however long.
pub(crate) fn after(began: Instant, time: Duration) -> Instant {
    began.checked_add(time).unwrap_or_else(|| began + NEVER)
}
