//! Rows of this chapter as charts.

use crate::chart::{Bar, Bars, Panel, Point, Series, Style, Svg, distinct};
use crate::row::Row;

/// Latency over hops, fan-out and bounces as lines, and of the queries as bars, with processor time below it: figures 6.1,
/// 6.2 and 6.4 to 6.6.
pub(crate) fn latency(rows: &[Row]) -> String {
    let transports = distinct(rows.iter().map(|row| row.transport.as_str()));
    let mut sheet = Sheet::new(rows, 3 * transports.len());
    for (index, transport) in transports.iter().enumerate() {
        let of: Vec<&Row> = rows
            .iter()
            .filter(|row| row.transport == *transport)
            .collect();
        let row = 3 * index;
        let (micros, unit) = unit(&of);
        let mut lines = |column, line, bench: &str, axis: &str| {
            let of: Vec<&Row> = of
                .iter()
                .filter(|row| row.bench == bench)
                .copied()
                .collect();
            let title = format!("{transport}: {bench}, median in {unit}");
            let value = |row: &Row| (row.n as f64, row.p50_us / micros);
            sheet.lines((column, row + line), title, axis, &of, value);
        };
        lines(0, 0, "hops", "servers in sequence");
        lines(1, 0, "fanout", "servers in parallel on the second hop");
        lines(0, 1, "rays", "bounces");
        let queries: Vec<&Row> = of.iter().filter(|row| is_query(row)).copied().collect();
        let title = format!("{transport}: queries, median in {unit}");
        sheet.bars((1, row + 1), title, &queries, |row| {
            vec![row.p50_us / micros]
        });
        let title = format!("{transport}: queries, processor time in µs, the client's below");
        sheet.bars((0, row + 2), title, &queries, |row| {
            let client = row.client_cpu_us.unwrap_or(0.0);
            vec![client, row.cpu_us_per_op - client]
        });
        let title = format!("{transport}: queries, messages, the client's below");
        sheet.bars((1, row + 2), title, &queries, |row| {
            let (all, client) = (
                row.messages.unwrap_or(0.0),
                row.client_messages.unwrap_or(0.0),
            );
            vec![client, all - client]
        });
    }
    sheet.finish()
}

/// Latency over throughput: figure 6.7.
pub(crate) fn load(rows: &[Row]) -> String {
    let offered: Vec<Row> = rows.iter().filter(|row| row.n > 0).cloned().collect();
    let panels = distinct(offered.iter().map(|row| (&*row.transport, &*row.bench)));
    let mut sheet = Sheet::new(&offered, panels.len());
    for (index, (transport, bench)) in panels.iter().enumerate() {
        let of: Vec<&Row> = offered
            .iter()
            .filter(|row| row.transport == *transport && row.bench == *bench)
            .collect();
        let (micros, unit) = unit(&of);
        let done = |row: &Row| row.ops_per_s.unwrap_or(0.0) / 1_000.0;
        let axis = "thousands of operations done a second";
        let title = format!("{transport}, {bench}: median in {unit}");
        sheet.lines((0, index), title, axis, &of, |row| {
            (done(row), row.p50_us / micros)
        });
        let title = format!("{transport}, {bench}: 99th percentile in {unit}");
        sheet.lines((1, index), title, axis, &of, |row| {
            (done(row), row.p99_us / micros)
        });
    }
    sheet.finish()
}

/// Panels in two columns below a legend.
pub(super) struct Sheet<'rows> {
    svg: Svg,
    systems: Vec<&'rows str>,
    top: f64,
}

impl<'rows> Sheet<'rows> {
    pub(super) fn new(rows: &'rows [Row], panels: usize) -> Self {
        let systems = distinct(rows.iter().map(|row| row.system.as_str()));
        let note = match rows.iter().find_map(|row| row.simulated.as_ref()) {
            Some(costs) => {
                format!("SIMULATED with the costs of {costs}: nothing of this was measured")
            }
            None => crate::chart::conditions(rows),
        };
        let (svg, top) = Svg::headed("Chapter 6 of the DPC thesis anew", &note, &systems, panels);
        Self { svg, systems, top }
    }

    /// The drawing, when all is in it.
    pub(super) fn finish(self) -> String {
        self.svg.finish()
    }

    fn lines(
        &mut self,
        (column, row): (usize, usize),
        title: String,
        axis: &str,
        rows: &[&Row],
        value: impl Fn(&Row) -> (f64, f64),
    ) {
        let line = |system: &&'rows str| {
            let of = rows.iter().filter(|row| row.system == *system);
            let mut points: Vec<Point> = of
                .map(|row| {
                    let (n, value) = value(row);
                    Point {
                        n,
                        value,
                        detail: crate::chart::detail(row),
                    }
                })
                .collect();
            points.sort_by(|a, b| a.n.total_cmp(&b.n));
            Series { system, points }
        };
        let series: Vec<Series<'_>> = self.systems.iter().map(line).collect();
        Panel::at(column, row, self.top, title, axis).draw(&mut self.svg, &series, None);
    }

    pub(super) fn bars(
        &mut self,
        (column, row): (usize, usize),
        title: String,
        rows: &[&Row],
        parts: impl Fn(&Row) -> Vec<f64>,
    ) {
        // Floors are in the lines beside them; here the two forms are compared.
        let own = |row: &&&Row| !row.system.starts_with("floor");
        let bars: Vec<Bar> = rows
            .iter()
            .filter(own)
            .map(|row| {
                let index = self.systems.iter().position(|system| *system == row.system);
                Bar {
                    group: row.bench.to_uppercase(),
                    colour: Style::of(&row.system, index.unwrap_or(0)).colour,
                    parts: parts(row),
                    detail: crate::chart::detail(row),
                }
            })
            .collect();
        let panel = Panel::at(column, row, self.top, title, "");
        Bars { panel, bars }.draw(&mut self.svg);
    }
}

/// The rows of each transport.
pub(super) fn transports(rows: &[Row]) -> Vec<Vec<Row>> {
    let of = |transport: &str| {
        let own = rows.iter().filter(|row| row.transport == transport);
        own.cloned().collect()
    };
    let transports = distinct(rows.iter().map(|row| row.transport.as_str()));
    transports.into_iter().map(of).collect()
}

fn is_query(row: &Row) -> bool {
    row.bench.starts_with("is")
}

/// Microseconds per unit, and its name.
fn unit(rows: &[&Row]) -> (f64, &'static str) {
    match rows.iter().any(|row| row.p50_us >= 5_000.0) {
        true => (1_000.0, "ms"),
        false => (1.0, "µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn lines_and_bars_are_drawn_and_simulations_marked() {
        let mut rows = Vec::new();
        for (bench, n) in [
            ("hops", 1),
            ("hops", 2),
            ("rays", 1),
            ("is2", 4),
            ("is7", 3),
        ] {
            for system in ["simulated-dpc", "simulated-rpc"] {
                rows.push(Row {
                    bench: bench.into(),
                    client_cpu_us: Some(2.0),
                    simulated: Some("thesis".into()),
                    ..sample(system, "model", n, 10.0)
                });
            }
        }
        let svg = latency(&rows);
        assert!(svg.contains("SIMULATED with the costs of thesis"));
        assert_eq!(
            svg.matches("<rect x=").count(),
            4 * (1 + 2 + 2),
            "bars and their parts"
        );
        assert!(svg.contains(">IS7<"));
        assert!(load(&rows).ends_with("</svg>\n"));
    }
}
