//! Result rows as a table for the terminal.

use crate::ratio::{alone, calls, fewest, floor, of_medians, of_processor_times, of_tails};
use crate::row::Row;
use std::fmt::Write;

/// The rows as tables, one for each set of conditions but `n`, with their ratios.
pub fn render(rows: &[Row]) -> String {
    let mut output = String::new();
    for (index, title) in titles(rows).iter().enumerate() {
        if index > 0 {
            output.push('\n');
        }
        output.push_str(title);
        output.push_str("\n\n");
        let group: Vec<&Row> = rows
            .iter()
            .filter(|row| self::title(row) == *title)
            .collect();
        lay_out(&lines(&group, rows), &mut output);
    }
    output
}

/// The rows as tables in Markdown, like [`render`].
pub fn markdown(rows: &[Row]) -> String {
    let mut output = String::new();
    for title in titles(rows) {
        let group: Vec<&Row> = rows
            .iter()
            .filter(|row| self::title(row) == title)
            .collect();
        let lines = lines(&group, rows);
        let columns = used_columns(&lines);
        let row = |line: &[String; COLUMNS]| {
            let cells: Vec<&str> = columns.iter().map(|&column| &*line[column]).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<&str> = columns
            .iter()
            .map(|&column| alignment(HEADINGS[column]))
            .collect();
        output.push_str(&format!("**{title}**\n\n"));
        output.push_str(&row(&lines[0]));
        output.push_str(&format!("|{}|\n", rule.join("|")));
        // Empty lines only part the numbers of servers on a terminal.
        let filled = |line: &&[String; COLUMNS]| line.iter().any(|cell| !cell.is_empty());
        lines[1..]
            .iter()
            .filter(filled)
            .for_each(|line| output.push_str(&row(line)));
        output.push('\n');
    }
    output.truncate(output.trim_end().len());
    output.push('\n');
    output
}

fn alignment(heading: &str) -> &'static str {
    match heading {
        "system" => "---",
        _ => "---:",
    }
}

fn titles(rows: &[Row]) -> Vec<String> {
    let mut titles = Vec::new();
    for title in rows.iter().map(title) {
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    titles
}

fn title(row: &Row) -> String {
    let mut title = format!(
        "{} over {}, {}-byte payloads, ",
        row.bench, row.transport, row.payload
    );
    title.push_str(&row.placement());
    if row.link_us > 0 {
        // Writing to a string can't fail.
        let _ = write!(
            title,
            ", links of {} ms one way",
            row.link_us as f64 / 1_000.0
        );
    }
    let _ = write!(title, ", {} rounds", row.rounds);
    title
}

const COLUMNS: usize = 18;
const HEADINGS: [&str; COLUMNS] = [
    "n",
    "system",
    "p50 µs",
    "p99 µs",
    "CPU µs",
    "messages",
    "× floor",
    "DPC / RPC",
    "calls/s",
    "MiB/s",
    "p99 × alone",
    "CPU × fewest",
    "client B",
    "server B",
    "endpoint B",
    "p99.99 step µs",
    "longest µs",
    "server's µs",
];

fn lines(group: &[&Row], rows: &[Row]) -> Vec<[String; COLUMNS]> {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    let mut former = None;
    for row in group {
        if former.is_some_and(|n| n != row.n) {
            lines.push(Default::default());
        }
        let cell = |figure: Option<f64>, digits: usize| {
            figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
        };
        let scale = row.scale.unwrap_or_default();
        let ratio = |other: Option<&Row>| cell(other.and_then(|other| of_medians(row, other)), 2);
        let n = if former == Some(row.n) {
            String::new()
        } else {
            row.n.to_string()
        };
        lines.push([
            n,
            row.system.clone(),
            format!("{:.1}", row.p50_us),
            format!("{:.1}", row.p99_us),
            format!("{:.1}", row.cpu_us_per_op),
            cell(row.messages, 1),
            ratio(floor(row, rows)),
            ratio(calls(row, rows)),
            cell(row.ops_per_s.filter(|_| row.bench == "throughput"), 0),
            cell(mebibytes_per_second(row), 0),
            cell(alone(row, rows).and_then(|other| of_tails(row, other)), 2),
            cell(
                fewest(row, rows).and_then(|other| of_processor_times(row, other)),
                2,
            ),
            cell(scale.client_bytes, 0),
            cell(scale.server_bytes, 0),
            cell(scale.endpoint_bytes, 0),
            cell(scale.p9999_us, 0),
            cell(scale.longest_us, 0),
            cell(scale.server_longest_us, 0),
        ]);
        former = Some(row.n);
    }
    lines
}

/// All that was sent, where throughput was measured.
fn mebibytes_per_second(row: &Row) -> Option<f64> {
    Some(row.bytes? * row.ops_per_s? / 1_048_576.0)
}

/// Those in which anything stands.
fn used_columns(lines: &[[String; COLUMNS]]) -> Vec<usize> {
    let used = |column: &usize| lines.iter().skip(1).any(|line| !line[*column].is_empty());
    (0..COLUMNS).filter(used).collect()
}

/// Pads every column to its widest cell: names to the left, numbers to the right.
fn lay_out(lines: &[[String; COLUMNS]], output: &mut String) {
    let columns = used_columns(lines);
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    for line in lines {
        let mut text = String::new();
        for &column in &columns {
            let (cell, width) = (&line[column], width(column));
            let _ = if HEADINGS[column] == "system" {
                write!(text, "  {cell:<width$}")
            } else {
                write!(text, "  {cell:>width$}")
            };
        }
        output.push_str(text.trim_end());
        output.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn a_table_shows_ratios_to_floors_and_calls() {
        let rows = [
            sample("floor-forward-tokio", "unix", 1, 8.0),
            sample("floor-forward-tokio", "unix", 2, 16.0),
            sample("wallaby-dpc", "unix", 2, 20.0),
            sample("wallaby-rpc", "unix", 2, 25.0),
        ];
        let expected = "\
hops over unix, 100-byte payloads, all on processor 0, 20 rounds

  n  system               p50 µs  p99 µs  CPU µs  messages  × floor  DPC / RPC
  1  floor-forward-tokio     8.0    16.0     7.2       3.0

  2  floor-forward-tokio    16.0    32.0    14.4       3.0
     wallaby-dpc            20.0    40.0    18.0       3.0     1.25       0.80
     wallaby-rpc            25.0    50.0    22.5       3.0
";
        assert_eq!(render(&rows), expected);
    }

    #[test]
    fn markdown_has_the_same_cells() {
        let rows = [
            sample("floor-forward-tokio", "unix", 1, 8.0),
            sample("floor-forward-tokio", "unix", 2, 16.0),
            sample("wallaby-dpc", "unix", 2, 20.0),
        ];
        let expected = "\
**hops over unix, 100-byte payloads, all on processor 0, 20 rounds**

| n | system | p50 µs | p99 µs | CPU µs | messages | × floor |
|---:|---|---:|---:|---:|---:|---:|
| 1 | floor-forward-tokio | 8.0 | 16.0 | 7.2 | 3.0 |  |
| 2 | floor-forward-tokio | 16.0 | 32.0 | 14.4 | 3.0 |  |
|  | wallaby-dpc | 20.0 | 40.0 | 18.0 | 3.0 | 1.25 |
";
        assert_eq!(markdown(&rows), expected);
    }

    #[test]
    fn transports_have_tables_of_their_own() {
        let rows = [
            sample("floor-forward", "unix", 1, 5.0),
            sample("floor-forward", "tcp", 1, 7.0),
        ];
        assert_eq!(render(&rows).matches("hops over").count(), 2);
    }
}
