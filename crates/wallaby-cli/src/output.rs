//! Standard output, which may be a terminal, a file, or a pipe whose reader has had enough.

use std::io::{self, Write};

/// Writes text and passes on what went wrong; a reader that is gone is such an error, see [`is_gone`].
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Whether an error says that nobody reads the output any more, which needs no words.
pub(crate) fn is_gone(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// How many columns there are to draw in.
pub(crate) fn width() -> usize {
    const WITHOUT_TERMINAL: usize = 110;
    match console::Term::stdout().size_checked() {
        Some((_, columns)) => usize::from(columns),
        None => WITHOUT_TERMINAL,
    }
}
