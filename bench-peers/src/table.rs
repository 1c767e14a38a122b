//! Result rows as tables with a line for each system: so many of them are easier to compare that way.

use std::cmp::Ordering;
use wallaby_bench::Row;

/// Medians and processor time, over the number of servers.
pub(crate) fn latency(rows: &[Row]) -> String {
    let all: Vec<&Row> = rows.iter().collect();
    let quick_first = |a: f64, b: f64| a.total_cmp(&b);
    let median = |row: &Row| Some(row.p50_us);
    let tail = |row: &Row| Some(row.p99_us);
    let cpu = |row: &Row| Some(row.cpu_us_per_op);
    [
        matrix("Median, µs", &all, median, quick_first),
        matrix("99th percentile, µs", &all, tail, quick_first),
        matrix("Processor time per operation, µs", &all, cpu, quick_first),
    ]
    .join("\n")
}

/// Calls per second and processor time, over the number of calls under way, for each size of payload.
pub(crate) fn throughput(rows: &[Row]) -> String {
    let mut payloads: Vec<u64> = rows.iter().map(|row| row.payload).collect();
    payloads.dedup();
    let many_first = |a: f64, b: f64| b.total_cmp(&a);
    let of_payload = |payload: u64| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.payload == payload).collect();
        let title = |what| format!("{what}, payloads of {payload} bytes");
        let cpu = |row: &Row| Some(row.cpu_us_per_op);
        let per_second = matrix(
            &title("Calls per second"),
            &rows,
            |row| row.ops_per_s,
            many_first,
        );
        let quick_first = |a: f64, b: f64| a.total_cmp(&b);
        let cpu = matrix(
            &title("Processor time per call, µs"),
            &rows,
            cpu,
            quick_first,
        );
        format!("{per_second}\n{cpu}")
    };
    let tables: Vec<String> = payloads.into_iter().map(of_payload).collect();
    tables.join("\n")
}

/// A line for each system and transport, a column for each `n`; in the order of the last column.
fn matrix(
    title: &str,
    rows: &[&Row],
    figure: impl Fn(&Row) -> Option<f64>,
    order: impl Fn(f64, f64) -> Ordering,
) -> String {
    let mut columns: Vec<u64> = rows.iter().map(|row| row.n).collect();
    columns.sort_unstable();
    columns.dedup();
    let mut lines: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let line = (row.system.as_str(), row.transport.as_str());
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let cell = |(system, transport): (&str, &str), n: u64| {
        let row = rows
            .iter()
            .find(|row| row.system == system && row.transport == transport && row.n == n);
        row.and_then(|row| figure(row))
    };
    if let Some(&last) = columns.last() {
        lines.sort_by(|a, b| match (cell(*a, last), cell(*b, last)) {
            (Some(a), Some(b)) => order(a, b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
    }
    let headings: Vec<String> = columns.iter().map(|n| format!("n = {n}")).collect();
    let mut text = format!(
        "**{title}**\n\n| system | | {} |\n|---|---|{}\n",
        headings.join(" | "),
        "---:|".repeat(columns.len())
    );
    for line in lines {
        let (system, transport) = line;
        let cells: Vec<String> = columns.iter().map(|&n| show(cell(line, n))).collect();
        let bold = if system.starts_with("wallaby") {
            "**"
        } else {
            ""
        };
        text.push_str(&format!(
            "| {bold}{system}{bold} | {transport} | {} |\n",
            cells.join(" | ")
        ));
    }
    text
}

/// Three digits say all there is to say.
fn show(figure: Option<f64>) -> String {
    match figure {
        None => String::new(),
        Some(figure) if figure >= 100.0 => format!("{figure:.0}"),
        Some(figure) => format!("{figure:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, n: u64, p50_us: f64) -> Row {
        let line = format!(
            r#"{{"bench":"hops","system":"{system}","transport":"tcp","n":{n},"payload":100,"link_us":0,
            "pin":0,"rounds":3,"p50_us":{p50_us},"p99_us":1.0,"cpu_us_per_op":1.0}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_line_for_each_system_the_quickest_first() {
        let rows = [
            row("slow", 1, 9.0),
            row("slow", 4, 123.4),
            row("wallaby-dpc", 4, 40.0),
        ];
        let expected = "\
**Median, µs**

| system | | n = 1 | n = 4 |
|---|---|---:|---:|
| **wallaby-dpc** | tcp |  | 40.0 |
| slow | tcp | 9.0 | 123 |
";
        let text = latency(&rows);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn payloads_have_tables_of_their_own() {
        let rows = [0, 100].map(|payload| Row {
            payload,
            ops_per_s: Some(1_000.0),
            ..row("peer", 8, 1.0)
        });
        let text = throughput(&rows);
        assert_eq!(text.matches("Calls per second").count(), 2);
        assert!(text.contains("| peer | tcp | 1000 |"), "{text}");
    }
}
