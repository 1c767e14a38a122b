//! Rows as a table for people, or a line of JSON each for programs.

use serde_json::Value;

/// Longer values are cut in a table.
const WIDEST: usize = 48;

/// A table with its head, several lines, each ended.
pub fn draw(columns: &[&str], rows: &[Vec<Value>]) -> String {
    let head = columns.iter().map(|column| (*column).to_owned()).collect();
    let lines: Vec<Vec<String>> = std::iter::once(head)
        .chain(rows.iter().map(|row| row.iter().map(shown).collect()))
        .collect();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A line of JSON for each row.
pub fn json(rows: &[Vec<Value>]) -> String {
    let lines = rows
        .iter()
        .map(|row| Value::from(row.clone()).to_string() + "\n");
    lines.collect()
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match text.chars().count() > WIDEST {
        true => text.chars().take(WIDEST - 1).chain(['…']).collect(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_as_wide_as_their_widest_value() {
        let rows = [
            vec![json!(7), json!("Inés"), json!(true)],
            vec![json!(12_345), json!("x\ty"), json!(false)],
        ];
        let drawn = draw(&["id", "name", "knows"], &rows);
        assert_eq!(
            drawn,
            "id     name  knows\n7      Inés  true\n12345  x y   false\n"
        );
        assert_eq!(super::json(&rows[..1]), "[7,\"Inés\",true]\n");
        assert!(draw(&["a"], &[vec![json!("y".repeat(60))]]).ends_with("y…\n"));
        assert_eq!(draw(&["a"], &[]), "a\n");
    }
}
