//! Rows as a table or as lines of JSON.

use serde_json::Value;
use wallaby_program::output::{line, table, text};

/// Writes rows for people, or for programs: a line of JSON for each.
pub fn print_rows(columns: &[&str], rows: &[Vec<Value>], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let mut rows = rows.iter();
        return rows.try_for_each(|row| line(Value::from(row.clone())));
    }
    let rows = rows.iter().map(|row| row.iter().map(shown));
    text(table(0..0, columns, rows))
}

/// A value in a cell: one line, and the beginning of a long one.
fn shown(value: &Value) -> String {
    const WIDEST: usize = 48;
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    let one_line = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().map(one_line).take(WIDEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_has_one_line_that_is_not_too_long() {
        assert_eq!(shown(&json!("x\ty")), "x y");
        assert_eq!(shown(&json!(7)), "7");
        assert!(shown(&json!("é".repeat(60))).ends_with("é…"));
    }
}
