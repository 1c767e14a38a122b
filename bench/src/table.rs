//! Result rows as tables in Markdown, for terminals and pages alike.

use crate::ratio::{alone, calls, fewest, floor, of_medians, of_processor_times, of_tails, tirpc};
use crate::row::Row;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

/// The rows as tables, one for all that ran under the same conditions, with their ratios.
pub fn markdown(rows: &[Row]) -> String {
    let mut titles: Vec<String> = Vec::new();
    for title in rows.iter().map(Row::conditions) {
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    let sections = titles.iter().map(|title| {
        let of = rows.iter().filter(|row| row.conditions() == *title);
        let table = table(&of.collect::<Vec<_>>(), rows);
        format!("**{title}**\n\n{}\n", table.trim_fmt())
    });
    sections.collect::<Vec<_>>().join("\n")
}

/// A line for each row of a group, without the columns in which nothing would stand.
fn table(group: &[&Row], rows: &[Row]) -> Table {
    let used = |column: &&Column| {
        let figures = group.iter().map(|row| (column.figure)(row, rows));
        figures.flatten().next().is_some()
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(used).collect();
    let mut table = Table::new();
    let headings = columns.iter().map(|column| column.heading);
    table
        .load_preset(ASCII_MARKDOWN)
        .set_header(NAMES.into_iter().chain(headings));
    for row in group {
        let names = [
            row.bench.clone(),
            row.n.to_string(),
            row.payload.to_string(),
            row.system.clone(),
        ];
        let figures = columns.iter().map(|column| column.cell(row, rows));
        table.add_row(names.into_iter().chain(figures));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if !NAMES.get(index).is_some_and(|name| TEXTS.contains(name)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

const NAMES: [&str; 4] = ["bench", "n", "bytes", "system"];
const TEXTS: [&str; 2] = ["bench", "system"];

struct Column {
    heading: &'static str,
    /// Behind the point.
    digits: usize,
    figure: fn(&Row, &[Row]) -> Option<f64>,
}

impl Column {
    fn cell(&self, row: &Row, rows: &[Row]) -> String {
        let digits = self.digits;
        let figure = (self.figure)(row, rows);
        figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
    }
}

const fn column(
    heading: &'static str,
    digits: usize,
    figure: fn(&Row, &[Row]) -> Option<f64>,
) -> Column {
    Column {
        heading,
        digits,
        figure,
    }
}

const COLUMNS: &[Column] = &[
    column("p50 µs", 1, |row, _| Some(row.p50_us)),
    column("p99 µs", 1, |row, _| Some(row.p99_us)),
    column("CPU µs", 1, |row, _| Some(row.cpu_us_per_op)),
    column("client CPU µs", 1, |row, _| row.client_cpu_us),
    column("messages", 1, |row, _| row.messages),
    column("client messages", 1, |row, _| row.client_messages),
    column("× floor", 2, |row, rows| {
        of_medians(row, floor(row, rows)?)
    }),
    column("DPC / RPC", 2, |row, rows| {
        of_medians(row, calls(row, rows)?)
    }),
    column("× libtirpc", 2, |row, rows| {
        of_medians(row, tirpc(row, rows)?)
    }),
    column("p50 in links", 3, |row, _| {
        (row.link_us > 0).then(|| row.p50_us / row.link_us as f64)
    }),
    column("ideal µs", 0, |row, _| row.ideal_us),
    column("× ideal", 3, |row, _| Some(row.p50_us / row.ideal_us?)),
    column("crossing at bytes", 0, |row, _| row.crossing_bytes),
    column("offered/s", 0, |row, _| row.offered_per_s),
    column("done/s", 0, |row, _| row.ops_per_s),
    column("payload MB/s", 1, |row, _| {
        let rate = row
            .ops_per_s
            .filter(|_| row.bench.starts_with("flexrpc-"))?;
        Some(rate * row.payload as f64 / 1e6)
    }),
    column("sent MiB/s", 0, |row, _| {
        Some(row.bytes? * row.ops_per_s? / 1_048_576.0)
    }),
    column("% of the link", 1, |row, _| {
        let bits = row.ops_per_s? * row.payload as f64 * 8.0;
        Some(bits / (row.link_mbit? as f64 * 1e4))
    }),
    column("p99 × alone", 2, |row, rows| {
        of_tails(row, alone(row, rows)?)
    }),
    column("CPU × fewest", 2, |row, rows| {
        of_processor_times(row, fewest(row, rows)?)
    }),
    column("client B", 0, |row, _| row.scale?.client_bytes),
    column("server B", 0, |row, _| row.scale?.server_bytes),
    column("endpoint B", 0, |row, _| row.scale?.endpoint_bytes),
    column("p99.99 step µs", 0, |row, _| row.scale?.p9999_us),
    column("longest µs", 0, |row, _| row.scale?.longest_us),
    column("server's µs", 0, |row, _| row.scale?.server_longest_us),
    column("client: protocol", 1, |row, _| {
        Some(row.split?.client.protocol_us)
    }),
    column("interface", 1, |row, _| {
        Some(row.split?.client.interface_us)
    }),
    column("application", 1, |row, _| {
        Some(row.split?.client.application_us)
    }),
    column("servers: protocol", 1, |row, _| {
        Some(row.split?.servers.protocol_us)
    }),
    column("interface", 1, |row, _| {
        Some(row.split?.servers.interface_us)
    }),
    column("application", 1, |row, _| {
        Some(row.split?.servers.application_us)
    }),
];

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
**over unix, all on processor 0, 20 rounds**

| bench | n | bytes | system              | p50 µs | p99 µs | CPU µs | messages | × floor | DPC / RPC |
|-------|---|-------|---------------------|--------|--------|--------|----------|---------|-----------|
| hops  | 1 |   100 | floor-forward-tokio |    8.0 |   16.0 |    7.2 |      3.0 |         |           |
| hops  | 2 |   100 | floor-forward-tokio |   16.0 |   32.0 |   14.4 |      3.0 |         |           |
| hops  | 2 |   100 | wallaby-dpc         |   20.0 |   40.0 |   18.0 |      3.0 |    1.25 |      0.80 |
| hops  | 2 |   100 | wallaby-rpc         |   25.0 |   50.0 |   22.5 |      3.0 |         |           |
";
        assert_eq!(markdown(&rows), expected);
    }

    #[test]
    fn transports_have_tables_of_their_own() {
        let rows = [
            sample("floor-forward", "unix", 1, 5.0),
            sample("floor-forward", "tcp", 1, 7.0),
        ];
        assert_eq!(markdown(&rows).matches("**over ").count(), 2);
    }

    #[test]
    fn over_links_latency_is_counted_in_them() {
        let row = Row {
            link_us: 4,
            ..sample("wallaby-dpc", "unix", 2, 12.0)
        };
        let text = markdown(&[row]);
        assert!(text.contains("links of 0.004 ms one way"), "{text}");
        assert!(
            text.contains("p50 in links") && text.contains("3.000"),
            "{text}"
        );
    }

    #[test]
    fn what_is_simulated_says_so() {
        let row = Row {
            simulated: Some("thesis".into()),
            ..sample("simulated-dpc", "model", 1, 9.5)
        };
        assert!(markdown(&[row]).contains("SIMULATED with the costs of thesis"));
    }
}
