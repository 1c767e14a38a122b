//! Giving up on what takes too long, at no cost to what does not.

use anyhow::{Result, anyhow};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Who is gone without whom no answer will come, if anybody; whoever notices says so.
pub type Lost = Arc<OnceLock<String>>;

/// Runs `work`. If it takes longer than `limit`, or somebody is lost, `alarm` is called from another thread to end it.
///
/// Blocking sockets with a timeout of their own, or a runtime with a timer, would pay for it with every message.
///
/// # Errors
/// The work's, with who is lost or that time was up.
pub fn within<T>(
    limit: Duration,
    lost: &Lost,
    alarm: impl FnOnce() + Send,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + limit;
    let left = || end.saturating_duration_since(Instant::now());
    let result = thread::scope(|scope| {
        let (done, wait) = channel::<()>();
        scope.spawn(move || {
            while wait.recv_timeout(left().min(GLANCE)) == Err(RecvTimeoutError::Timeout) {
                if left().is_zero() || lost.get().is_some() {
                    return alarm();
                }
            }
        });
        let result = work();
        drop(done);
        result
    });
    result.map_err(|error| match explain(lost) {
        Some(lost) => error.context(lost),
        None if left().is_zero() => {
            error.context(format!("no answer within {} s", limit.as_secs()))
        }
        None => error,
    })
}

/// Who is lost. A connection may end a moment before anybody has noticed why.
fn explain(lost: &Lost) -> Option<String> {
    let end = Instant::now() + GLANCE;
    while lost.get().is_none() && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    lost.get().map(|who| format!("{who} has ended"))
}

/// Runs asynchronous `work` like [`within`].
///
/// # Errors
/// The work's, with who is lost or that time was up.
pub fn block_on<T>(
    runtime: &Runtime,
    limit: Duration,
    lost: &Lost,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let (alarm, rings) = oneshot::channel();
    let ring = move || {
        let _ = alarm.send(()); // if nobody listens, the work is done
    };
    within(limit, lost, ring, || runtime.block_on(unless(rings, work)))
}

/// Does the work; stops when it rings. That the bell's end is dropped by a run that ended in time means nothing.
async fn unless<T>(
    rings: oneshot::Receiver<()>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let (mut rings, mut work) = (pin!(rings), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(result) = work.as_mut().poll(context) {
            return Poll::Ready(result);
        }
        match rings.as_mut().poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(anyhow!("interrupted"))),
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// How often to look whether anybody is lost.
const GLANCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that only the alarm ends.
    fn hang(limit: Duration, lost: &Lost) -> String {
        let (alarm, rings) = channel();
        let work = || -> Result<()> {
            rings.recv()?;
            Err(anyhow!("interrupted"))
        };
        let error = within(limit, lost, move || alarm.send(()).unwrap(), work).unwrap_err();
        format!("{error:#}")
    }

    #[test]
    fn the_alarm_ends_work_that_hangs() {
        assert_eq!(
            hang(Duration::from_millis(1), &Lost::default()),
            "no answer within 0 s: interrupted"
        );
    }

    #[test]
    fn the_alarm_ends_work_for_which_somebody_is_missing() {
        let lost = Lost::default();
        lost.set("server 3".into()).unwrap();
        assert_eq!(
            hang(Duration::from_secs(3_600), &lost),
            "server 3 has ended: interrupted"
        );
    }

    #[test]
    fn work_that_ends_is_left_alone() {
        let alarm = || panic!("nobody should be alarmed");
        assert_eq!(
            within(Duration::from_secs(60), &Lost::default(), alarm, || Ok(7)).unwrap(),
            7
        );
    }
}
