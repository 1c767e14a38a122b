//! When a time from now is over.

use std::time::Duration;

use std::future::pending;

use tokio::time::{Instant, sleep_until};

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

/// Waits until then; for ever, if there is no such time.
pub(crate) async fn rings(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => sleep_until(alarm).await,
        None => pending().await,
    }
}
