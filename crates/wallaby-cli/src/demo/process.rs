//! Processes that never outlive the one that started them, and the signals that end it.

use anyhow::Context;
use std::process::ExitStatus;
use tokio::signal::unix::{SignalKind, signal};

/// The user (or the system) asked the program to end.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Ends this process when the one that started it, `parent`, ends for whatever reason.
pub(crate) fn die_with(parent: u32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory of ours.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if result != 0 {
            return Err(std::io::Error::last_os_error())
                .context("this process can't be tied to its parent");
        }
    }
    // The parent may have ended before the request was made.
    anyhow::ensure!(
        std::os::unix::process::parent_id() == parent,
        "the process that started this one has ended"
    );
    Ok(())
}

/// Waits until the program is asked to end: Ctrl-C, `kill`, or the terminal is gone.
pub(crate) async fn interrupted() -> anyhow::Result<Interrupted> {
    let listen = |kind| signal(kind).context("signals can't be listened to");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(Interrupted)
}

/// How a process ended, for people.
pub(crate) fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn endings_are_told_apart() {
        assert_eq!(ending(ExitStatus::from_raw(256)), "ended with status 1");
        assert_eq!(ending(ExitStatus::from_raw(9)), "was killed by signal 9");
    }
}
