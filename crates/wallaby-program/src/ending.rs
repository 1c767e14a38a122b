//! How programs end: by signals, or with a status.

use crate::output::Gone;
use anyhow::Context;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// The user, or the system, asked the program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Waits until the program is asked to end: Ctrl-C, `kill`, or the terminal is gone.
///
/// # Errors
///
/// If signals cannot be listened to.
pub async fn interrupted() -> anyhow::Result<Interrupted> {
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

/// Does some work, which is dropped when the program is asked to end, with all that it has started.
///
/// # Errors
///
/// What the work says, or [`Interrupted`].
pub async fn unless_interrupted<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        result = work => result,
        asked = interrupted() => Err(asked?.into()),
    }
}

/// What a program exits with: 130 if it was interrupted, 141 if nobody read its output, 2 for wrong usage, which clap tells,
/// and 1 for other errors, which are told here.
pub fn status(result: anyhow::Result<ExitCode>) -> ExitCode {
    const INTERRUPTED: u8 = 130;
    /// As a shell tells it of a program that was ended for that, by SIGPIPE.
    const NOBODY_READS: u8 = 141;
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if error.is::<Interrupted>() {
        return ExitCode::from(INTERRUPTED);
    }
    if error.is::<Gone>() {
        return ExitCode::from(NOBODY_READS);
    }
    match error.downcast::<clap::Error>() {
        Ok(usage) => usage.exit(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
