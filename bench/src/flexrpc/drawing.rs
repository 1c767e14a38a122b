//! The figures as one SVG.

use super::experiment::Figure;
use crate::chart::{
    LEGEND_COLUMNS, MARGIN, PANEL_PITCH, Panel, Series, Svg, WIDTH, distinct, legend, series,
};
use crate::row::Row;

/// A panel for each figure and transport, two in a row.
pub fn svg(rows: &[Row]) -> String {
    let systems = distinct(rows.iter().map(|row| row.system.as_str()));
    let panels: Vec<Plot> = PANELS
        .iter()
        .filter(|plot| plot.has(rows))
        .copied()
        .collect();
    let top = MARGIN + 90.0 + 22.0 * systems.len().div_ceil(LEGEND_COLUMNS) as f64;
    let height = top + panels.len().div_ceil(2) as f64 * PANEL_PITCH + 8.0;
    let mut svg = Svg::new(WIDTH, height);
    svg.text(
        MARGIN,
        MARGIN + 18.0,
        "title",
        "FlexRPC's figures 4 to 8 anew",
    );
    svg.text(MARGIN, MARGIN + 38.0, "note", &conditions(rows));
    legend(&mut svg, &systems, MARGIN + 62.0);
    for (index, plot) in panels.iter().enumerate() {
        let panel = Panel {
            x: MARGIN + 46.0 + (index % 2) as f64 * (WIDTH / 2.0 - MARGIN),
            y: top + (index / 2) as f64 * PANEL_PITCH,
            title: plot.title.to_owned(),
            x_axis: plot.figure.axis(),
            steps: matches!(plot.figure, Figure::Single | Figure::Sizes),
        };
        panel.draw(&mut svg, &plot.series(&systems, rows), None);
    }
    svg.finish()
}

/// What a panel shows.
#[derive(Clone, Copy)]
struct Plot {
    figure: Figure,
    transport: &'static str,
    title: &'static str,
    value: fn(&Row) -> Option<f64>,
    /// Sizes above are left out, so that those below can be told apart.
    most: u64,
}

impl Plot {
    fn shows(&self, row: &Row) -> bool {
        row.bench == self.figure.name() && row.transport == self.transport && row.n <= self.most
    }

    fn has(&self, rows: &[Row]) -> bool {
        rows.iter().any(|row| self.shows(row))
    }

    fn series<'rows>(&self, systems: &[&'rows str], rows: &[Row]) -> Vec<Series<'rows>> {
        let rows: Vec<&Row> = rows.iter().filter(|row| self.shows(row)).collect();
        series(systems, &rows, self.value)
    }
}

fn conditions(rows: &[Row]) -> String {
    let Some(row) = rows.first() else {
        return "no results".into();
    };
    let link = rows.iter().find_map(|row| row.link_mbit);
    let link = link.map(|mbit| format!(", multicast over links of {mbit} Mbit/s"));
    format!(
        "answers without bytes, each server a process, {}{}, {} rounds interleaved in one run",
        row.placement(),
        link.unwrap_or_default(),
        row.rounds
    )
}

fn latency(row: &Row) -> Option<f64> {
    Some(row.p50_us)
}

fn bandwidth(row: &Row) -> Option<f64> {
    Some(row.ops_per_s? * row.payload as f64 / 1e6)
}

const PANELS: [Plot; 7] = [
    Plot {
        figure: Figure::Single,
        transport: "udp",
        title: "4: single calls over udp, median in µs",
        value: latency,
        most: 16 * 1_024,
    },
    Plot {
        figure: Figure::Single,
        transport: "tcp",
        title: "4: single calls over tcp, median in µs",
        value: latency,
        most: 16 * 1_024,
    },
    Plot {
        figure: Figure::Single,
        transport: "tcp",
        title: "5: single calls over tcp, MB/s",
        value: bandwidth,
        most: u64::MAX,
    },
    Plot {
        figure: Figure::Callers,
        transport: "tcp",
        title: "6: 16 KiB from several callers over tcp, MB/s together",
        value: bandwidth,
        most: u64::MAX,
    },
    Plot {
        figure: Figure::Sizes,
        transport: "tcp",
        title: "7: to 3 servers, MB/s at each",
        value: bandwidth,
        most: u64::MAX,
    },
    Plot {
        figure: Figure::MulticastCallers,
        transport: "tcp",
        title: "8 (a): 32 KiB to 3 servers, MB/s at each",
        value: bandwidth,
        most: u64::MAX,
    },
    Plot {
        figure: Figure::Degree,
        transport: "tcp",
        title: "8 (b): 32 KiB, MB/s at each server",
        value: bandwidth,
        most: u64::MAX,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn what_was_measured_is_drawn() {
        let row = |n| Row {
            bench: "flexrpc-single".into(),
            payload: n,
            ops_per_s: Some(1_000.0),
            ..sample("libtirpc", "tcp", n, 20.0)
        };
        let drawn = svg(&[row(1_024), row(1_048_576)]);
        assert!(drawn.contains("4: single calls over tcp") && drawn.contains("5: single calls"));
        assert!(
            !drawn.contains("over udp") && drawn.contains(">1 Mi<"),
            "{drawn}"
        );
    }
}
