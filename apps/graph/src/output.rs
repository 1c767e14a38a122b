//! Standard output, which may be a pipe whose reader has had enough: that ends a command, and is no mistake.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// Nobody reads the output any more, which needs no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl Error for Gone {}

/// Writes a line.
///
/// # Errors
///
/// [`Gone`], or what the system says.
pub fn line(line: fmt::Arguments<'_>) -> anyhow::Result<()> {
    written(writeln!(io::stdout(), "{line}"))
}

/// Writes text that is lines already.
///
/// # Errors
///
/// As for [`line()`].
pub fn text(text: &str) -> anyhow::Result<()> {
    written(io::stdout().write_all(text.as_bytes()))
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Gone.into(),
        _ => error.into(),
    })
}
