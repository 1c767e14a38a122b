//! Rows as tables: a line for each system and point, with what it is of libtirpc's time and of its floor's.

use super::experiment::Figure;
use super::target::{crossing, floor_of, ratio, reference};
use crate::row::Row;
use std::fmt::Write;

/// The rows as tables for the terminal.
pub fn render(rows: &[Row]) -> String {
    write_all(rows, |title, lines, output| {
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
        let widths: Vec<usize> = (0..COLUMNS).filter_map(width).collect();
        let _ = writeln!(output, "{title}\n");
        for line in lines {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, &width))| match column {
                SYSTEM => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let cells: Vec<String> = cells.collect();
            let _ = writeln!(output, "{}", cells.join("  ").trim_end());
        }
        output.push('\n');
    })
}

/// The rows as tables in Markdown.
pub fn markdown(rows: &[Row]) -> String {
    write_all(rows, |title, lines, output| {
        let _ = writeln!(output, "**{title}**\n");
        for (index, line) in lines.iter().enumerate() {
            let _ = writeln!(output, "| {} |", line.join(" | "));
            if index == 0 {
                output.push_str("|---:|:---|---:|---:|---:|---:|---:|---:|---:|\n");
            }
        }
        output.push('\n');
    })
}

/// Writing to a string can't fail, so the results of that are ignored here.
fn write_all(rows: &[Row], write: impl Fn(&str, &[[String; COLUMNS]], &mut String)) -> String {
    let mut output = String::new();
    for figure in Figure::ALL {
        for transport in ["udp", "tcp"] {
            let belongs = |row: &&Row| row.bench == figure.name() && row.transport == transport;
            let mut group: Vec<&Row> = rows.iter().filter(belongs).collect();
            let Some(first) = group.first() else {
                continue;
            };
            let mut title = format!("{} over {transport}, {}", figure.title(), first.placement());
            if let Some(mbit) = first.link_mbit {
                let _ = write!(title, ", each process's link {mbit} Mbit/s");
            }
            group.sort_by_key(|row| row.n); // stable: within one n as they were measured
            let head = HEADINGS.map(|heading| match heading {
                "n" => figure.axis().to_owned(),
                other => other.to_owned(),
            });
            let lines = std::iter::once(head).chain(group.iter().map(|row| line(row, rows)));
            let lines: Vec<[String; COLUMNS]> = lines.collect();
            write(&title, &lines, &mut output);
            if let Some(crossing) = crossing(&group) {
                let _ = writeln!(output, "{crossing}\n");
            }
        }
    }
    output
}

fn line(row: &Row, rows: &[Row]) -> [String; COLUMNS] {
    let of = |other: Option<&str>| {
        let other = other.and_then(|name| crate::ratio::other(row, rows, name));
        let ratio = other.and_then(|other| ratio(row, other));
        ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
    };
    let bytes = row.ops_per_s.unwrap_or_default() * row.payload as f64;
    let of_link = row.link_mbit.map(|mbit| bytes * 8.0 / (mbit as f64 * 1e4));
    [
        row.n.to_string(),
        row.system.clone(),
        format!("{:.1}", row.p50_us),
        format!("{:.1}", row.p99_us),
        format!("{:.1}", row.cpu_us_per_op),
        format!("{:.1}", bytes / 1e6),
        of_link
            .map(|percent| format!("{percent:.1} %"))
            .unwrap_or_default(),
        of(reference(row)),
        of(floor_of(row)),
    ]
}

const COLUMNS: usize = 9;
const SYSTEM: usize = 1;
const HEADINGS: [&str; COLUMNS] = [
    "n",
    "system",
    "p50 µs",
    "p99 µs",
    "CPU µs",
    "MB/s",
    "of the link",
    "× libtirpc",
    "× floor",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn a_line_has_both_ratios() {
        let row = |system: &str, p50_us| Row {
            bench: "flexrpc-single".into(),
            payload: 1_024,
            ops_per_s: Some(1e6 / p50_us),
            ..sample(system, "udp", 1_024, p50_us)
        };
        let rows = [
            row("floor", 10.0),
            row("libtirpc", 16.0),
            row("wallaby-onc", 12.0),
        ];
        let text = markdown(&rows);
        assert!(
            text.contains("Single calls (figures 4 and 5) over udp, all on processor 0"),
            "{text}"
        );
        assert!(
            text.contains("| 1024 | wallaby-onc | 12.0 | 24.0 | 10.8 | 85.3 |  | 0.75 | 1.20 |"),
            "{text}"
        );
        assert!(render(&rows).contains("0.75"));
    }
}
