//! How wide what is drawn may be.

/// How many columns there are to draw in.
pub(crate) fn width() -> usize {
    const WITHOUT_TERMINAL: usize = 110;
    match console::Term::stdout().size_checked() {
        Some((_, columns)) => usize::from(columns),
        None => WITHOUT_TERMINAL,
    }
}
