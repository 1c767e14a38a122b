//! Processor time of the queries by whose it is: figure 6.6.

use super::draw::Sheet;
use super::latency::{LatencyOptions, latency};
use super::tables::name;
use crate::comparison::RunOptions;
use crate::harness::Progress;
use crate::row::{Parts, Row, Split};
use crate::stack::Own;
use anyhow::Result;
use std::fmt::Write;

/// What to split unless somebody says otherwise: the queries, beside the same without the meter.
pub fn split_options() -> LatencyOptions {
    let all = LatencyOptions::default();
    LatencyOptions {
        hops: Vec::new(),
        fanout: Vec::new(),
        bounces: Vec::new(),
        run: RunOptions {
            stacks: vec![&Own::Wallaby, &Own::WallabySplit],
            ..all.run
        },
        ..all
    }
}

/// Measures whose the processor time of each operation is, of the client and of the servers.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn split(options: &LatencyOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    latency(options, progress)
}

/// Rows of [`split`] as tables in Markdown: both forms of the same work below each other.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let transports = super::draw::transports(rows);
    for transport in transports {
        // Writing to a string can't fail.
        let _ = writeln!(text, "**{}**\n", super::tables::title(transport.first()));
        text.push_str(
            "| | form | µs in all | client: protocol | interface | application | servers: protocol | interface | application \
             | without the meter | off by |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for row in &transport {
            if let Some(split) = &row.split {
                text.push_str(&line(row, split, rows));
            }
        }
        text.push('\n');
    }
    text
}

fn line(row: &Row, split: &Split, rows: &[Row]) -> String {
    let (form, unmetered) = match row.system.ends_with("-dpc") {
        true => ("DPC", "wallaby-dpc"),
        false => ("RPC", "wallaby-rpc"),
    };
    let all = split.client.sum() + split.servers.sum();
    let without = crate::ratio::other(row, rows, unmetered).map(|row| row.cpu_us_per_op);
    let off = without.map(|without| format!("{:+.0} %", (all / without - 1.0) * 100.0));
    let parts = |parts: &Parts| {
        format!(
            "{:.1} | {:.1} | {:.1}",
            parts.protocol_us, parts.interface_us, parts.application_us
        )
    };
    format!(
        "| {} | {form} | {all:.1} | {} | {} | {} | {} |\n",
        name(row),
        parts(&split.client),
        parts(&split.servers),
        without.map_or_else(String::new, |without| format!("{without:.1}")),
        off.unwrap_or_default(),
    )
}

/// Rows of [`split`] as charts: everybody's, the client's and the servers' processor time, the protocol's lowest.
pub(crate) fn draw(rows: &[Row]) -> String {
    let split: Vec<Row> = rows
        .iter()
        .filter(|row| row.split.is_some())
        .cloned()
        .collect();
    let transports = super::draw::transports(&split);
    // Two rows of panels, in the first of which one is left out.
    let mut sheet = Sheet::new(&split, 2 * transports.len());
    for (index, of) in transports.iter().enumerate() {
        let transport = of.first().map_or("", |row| row.transport.as_str());
        let of: Vec<&Row> = of.iter().collect();
        let mut bars = |place, whose: &str, parts: fn(&Split) -> Parts| {
            let title = format!(
                "{transport}: {whose}, processor time in µs: protocol, interface, application"
            );
            sheet.bars(place, title, &of, |row| {
                let parts = row.split.as_ref().map(parts).unwrap_or_default();
                vec![parts.protocol_us, parts.interface_us, parts.application_us]
            });
        };
        bars((0, 2 * index), "all", |split| split.client + split.servers);
        bars((0, 2 * index + 1), "client", |split| split.client);
        bars((1, 2 * index + 1), "servers", |split| split.servers);
    }
    sheet.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    fn rows() -> Vec<Row> {
        let parts = |scale: f64| Parts {
            protocol_us: 4.0 * scale,
            interface_us: 2.0 * scale,
            application_us: scale,
        };
        let split = Split {
            client: parts(1.0),
            servers: parts(3.0),
            clock_us: 0.5,
        };
        let row = |system: &str, split| Row {
            bench: "is2".into(),
            cpu_us_per_op: 25.0,
            split,
            ..sample(system, "unix", 4, 20.0)
        };
        vec![
            row("wallaby-dpc", None),
            row("wallaby-split-dpc", Some(split)),
        ]
    }

    #[test]
    fn parts_stand_beside_what_is_used_without_the_meter() {
        let text = table(&rows());
        let line = "| IS2 | DPC | 28.0 | 4.0 | 2.0 | 1.0 | 12.0 | 6.0 | 3.0 | 25.0 | +12 % |";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("| IS2 |").count(), 1, "{text}");
    }

    #[test]
    fn every_part_is_drawn() {
        let svg = draw(&rows());
        assert_eq!(svg.matches("<rect x=").count(), 3 * 3, "{svg}");
    }
}
