//! Standard output, which may be a pipe whose reader has had enough: that ends a command, and is no mistake.

use std::fmt::Display;
use std::io::{self, Write};

/// Nobody reads the output any more, which needs no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads the output any more")]
pub struct Gone;

/// Writes a line, or several.
///
/// # Errors
///
/// [`Gone`], or what the system says.
pub fn line(line: impl Display) -> anyhow::Result<()> {
    text(format_args!("{line}\n"))
}

/// Writes text that has its ends of lines already.
///
/// # Errors
///
/// As for [`line()`].
pub fn text(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = write!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Gone.into(),
        _ => error.into(),
    })
}
