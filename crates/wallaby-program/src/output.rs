//! Standard output, which may be a pipe whose reader has had enough: that ends a command, and is no mistake. Tables for it.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use std::fmt::Display;
use std::io::{self, Write};
use std::ops::RangeBounds;

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

/// Rows as a table for people, a line each, under their heads if there are any. Columns begin at the left; those in `numbers` end at
/// the right, as numbers do.
pub fn table<Row>(
    numbers: impl RangeBounds<usize>,
    heads: &[&str],
    rows: impl IntoIterator<Item = Row>,
) -> String
where
    Row: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_preset(NOTHING);
    if !heads.is_empty() {
        table.set_header(heads);
    }
    for row in rows {
        table.add_row(row);
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_at_the_left_and_numbers_end_at_the_right() {
        let rows = [["one", "7", "x"], ["three", "128", "y"]].map(|row| row.map(str::to_owned));
        let expected = "name   bytes  of\none        7   x\nthree    128   y\n";
        assert_eq!(table(1.., &["name", "bytes", "of"], rows.clone()), expected);
        assert_eq!(table(0..0, &[], rows), "one    7    x\nthree  128  y\n");
    }
}
