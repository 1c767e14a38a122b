//! Result rows as a chart: an SVG with a line for each system, absolute and as ratios.

use crate::ratio::{of_medians, other};
use crate::row::Row;
use std::fmt::Write;

/// How rows are drawn.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What the chart says.
    pub title: String,
    /// What `n` counts.
    pub x_axis: String,
    /// The systems that may be the measure of the ratios: the first of them that was measured is.
    pub references: Vec<String>,
}

impl Chart {
    /// The chart of [`crate::hops()`].
    pub fn hops() -> Self {
        Self {
            title: "Latency over the number of servers in sequence".into(),
            x_axis: "servers in sequence".into(),
            references: ["wallaby-rpc", "floor-sequential-tokio", "floor-sequential"]
                .map(Into::into)
                .into(),
        }
    }

    /// The chart of [`crate::fanout()`].
    pub fn fanout() -> Self {
        Self {
            title: "Latency of two hops over the degree of fan-out".into(),
            x_axis: "servers in parallel on the second hop".into(),
            references: ["wallaby-rpc", "floor-parallel-tokio", "floor-parallel"]
                .map(Into::into)
                .into(),
        }
    }

    /// The chart as an SVG document. Each transport has a row of two panels: medians, and their ratio to the reference.
    pub fn svg(&self, rows: &[Row]) -> String {
        let transports = distinct(rows.iter().map(|row| row.transport.as_str()));
        let systems = distinct(rows.iter().map(|row| row.system.as_str()));
        let reference = self
            .references
            .iter()
            .find(|name| systems.contains(&name.as_str()));
        let (mut svg, top) =
            Svg::headed(&self.title, &conditions(rows), &systems, transports.len());
        for (index, transport) in transports.iter().enumerate() {
            let rows: Vec<&Row> = rows
                .iter()
                .filter(|row| row.transport == *transport)
                .collect();
            let absolute = series(&systems, &rows, |row| Some(row.p50_us));
            let title = format!("{transport}: median latency in {}", unit(&absolute).1);
            let left = Panel::at(0, index, top, title, &self.x_axis);
            left.draw(&mut svg, &scaled(absolute), None);
            if let Some(reference) = reference {
                let all: Vec<Row> = rows.iter().map(|row| (*row).clone()).collect();
                let ratio = |row: &Row| of_medians(row, other(row, &all, reference)?);
                let title = format!("{transport}: median relative to {reference}");
                let right = Panel::at(1, index, top, title, &self.x_axis);
                right.draw(&mut svg, &series(&systems, &rows, ratio), Some(1.0));
            }
        }
        svg.finish()
    }
}

/// A system's line.
pub(crate) struct Series<'rows> {
    pub(crate) system: &'rows str,
    pub(crate) points: Vec<Point>,
}

pub(crate) struct Point {
    pub(crate) n: f64,
    pub(crate) value: f64,
    /// Shown when the pointer rests on it.
    pub(crate) detail: String,
}

pub(crate) fn series<'rows>(
    systems: &[&'rows str],
    rows: &[&Row],
    value: impl Fn(&Row) -> Option<f64>,
) -> Vec<Series<'rows>> {
    let points = |system: &str| {
        let mut points: Vec<Point> = rows
            .iter()
            .filter(|row| row.system == system)
            .filter_map(|row| {
                Some(Point {
                    n: row.n as f64,
                    value: value(row)?,
                    detail: detail(row),
                })
            })
            .collect();
        points.sort_by(|a, b| a.n.total_cmp(&b.n));
        points
    };
    systems
        .iter()
        .map(|system| Series {
            system,
            points: points(system),
        })
        .collect()
}

pub(crate) fn detail(row: &Row) -> String {
    format!(
        "{} n={}: p50 {:.1} µs, p99 {:.1} µs, CPU {:.1} µs",
        row.system, row.n, row.p50_us, row.p99_us, row.cpu_us_per_op
    )
}

/// Microseconds per unit, and the unit's name: milliseconds where the numbers would get long.
fn unit(series: &[Series<'_>]) -> (f64, &'static str) {
    if greatest(series) >= 5_000.0 {
        (1_000.0, "ms")
    } else {
        (1.0, "µs")
    }
}

fn scaled(mut series: Vec<Series<'_>>) -> Vec<Series<'_>> {
    let (micros, _) = unit(&series);
    for point in series.iter_mut().flat_map(|series| &mut series.points) {
        point.value /= micros;
    }
    series
}

fn greatest(series: &[Series<'_>]) -> f64 {
    let values = series
        .iter()
        .flat_map(|series| &series.points)
        .map(|point| point.value);
    values.filter(|value| value.is_finite()).fold(0.0, f64::max)
}

pub(crate) fn conditions(rows: &[Row]) -> String {
    let Some(row) = rows.first() else {
        return "no results".into();
    };
    let mut text = format!("{}-byte payloads, each server a process", row.payload);
    // Writing to a string can't fail.
    let _ = write!(text, ", {}", row.placement());
    if row.link_us > 0 {
        let _ = write!(
            text,
            ", emulated links of {} ms one way",
            row.link_us as f64 / 1_000.0
        );
    }
    let _ = write!(text, ", {} rounds interleaved in one run", row.rounds);
    text
}

pub(crate) fn distinct<T: PartialEq>(names: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

pub(crate) fn legend(svg: &mut Svg, systems: &[&str], y: f64) {
    for (index, system) in systems.iter().enumerate() {
        let x = MARGIN
            + (index % LEGEND_COLUMNS) as f64 * (WIDTH - 2.0 * MARGIN) / LEGEND_COLUMNS as f64;
        let y = y + (index / LEGEND_COLUMNS) as f64 * 22.0;
        let style = Style::of(system, index);
        svg.line((x, y), (x + 30.0, y), &style.stroke());
        svg.circle((x + 15.0, y), style.colour, system);
        svg.text(x + 38.0, y + 4.0, "label", system);
    }
}

/// How a system's line looks: its own in colours, the floors in greys, dashed where they block, dotted where they wait by an epoll.
pub(crate) struct Style {
    pub(crate) colour: &'static str,
    width: f64,
    dashes: &'static str,
}

impl Style {
    pub(crate) fn of(system: &str, index: usize) -> Self {
        let (colour, width, dashes) = match system {
            "wallaby-dpc" | "wallaby-split-dpc" | "simulated-dpc" => ("#0f766e", 2.6, ""),
            "wallaby-rpc" | "wallaby-split-rpc" | "simulated-rpc" => ("#d97706", 2.6, ""),
            "wallaby-polling-dpc" => ("#0b3d91", 2.6, ""),
            "wallaby-polling-rpc" => ("#a21caf", 2.6, ""),
            "wallaby-polling-epoll-dpc" => ("#0b3d91", 1.8, "6 3"),
            "wallaby-polling-epoll-rpc" => ("#a21caf", 1.8, "6 3"),
            "wallaby-polling-busy-dpc" => ("#0b3d91", 1.8, "2 2"),
            "wallaby-polling-busy-rpc" => ("#a21caf", 1.8, "2 2"),
            "wallaby" | "wallaby-serial" => ("#0f766e", 2.6, ""),
            "wallaby-parallel" => ("#d97706", 2.6, ""),
            "wallaby-polling" => ("#0b3d91", 2.6, ""),
            "wallaby-onc-blocking" => ("#a21caf", 2.6, ""),
            "wallaby-onc" => ("#a21caf", 1.8, "6 3"),
            "libtirpc" => ("#b91c1c", 2.0, ""),
            "floor" | "floor-serial" => ("#5b8f8a", 1.6, "4 3"),
            "floor-forward-tokio" => ("#5b8f8a", 1.6, ""),
            "floor-sequential-tokio" | "floor-parallel-tokio" => ("#b58a5a", 1.6, ""),
            "floor-forward-epoll" => ("#5b8f8a", 1.6, "2 2"),
            "floor-sequential-epoll" | "floor-parallel-epoll" => ("#b58a5a", 1.6, "2 2"),
            "floor-forward-futex" | "floor-forward-spinning" => ("#5b8f8a", 1.6, "6 2"),
            "floor-sequential-futex" | "floor-sequential-spinning" => ("#b58a5a", 1.6, "6 2"),
            "floor-forward" => ("#5b8f8a", 1.6, "4 3"),
            "floor-sequential" | "floor-parallel" => ("#b58a5a", 1.6, "4 3"),
            _ => (PEERS[index % PEERS.len()], 2.0, ""),
        };
        Self {
            colour,
            width,
            dashes,
        }
    }

    fn stroke(&self) -> String {
        format!(
            r#"stroke="{}" stroke-width="{}" stroke-dasharray="{}" stroke-linejoin="round""#,
            self.colour, self.width, self.dashes
        )
    }
}

/// Axes and lines at a place in the document.
pub(crate) struct Panel<'chart> {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) title: String,
    pub(crate) x_axis: &'chart str,
    /// Whether the points stand at equal distances: where `n` doubles from one to the next.
    pub(crate) steps: bool,
}

impl<'chart> Panel<'chart> {
    /// The panel of a column and a row below what stands above all.
    pub(crate) fn at(
        column: usize,
        row: usize,
        top: f64,
        title: String,
        x_axis: &'chart str,
    ) -> Self {
        Self {
            x: [MARGIN, WIDTH / 2.0][column.min(1)] + 46.0,
            y: top + row as f64 * PANEL_PITCH,
            title,
            x_axis,
            steps: false,
        }
    }

    /// Horizontal lines at these values, the last of which is the top.
    fn grid(&self, svg: &mut Svg, ticks: &[f64], emphasised: Option<f64>) {
        let top = ticks.last().copied().unwrap_or(1.0);
        svg.text(self.x, self.y - 12.0, "panel", &self.title);
        for &tick in ticks {
            let y = self.y + PANEL_HEIGHT * (1.0 - tick / top);
            let strong = emphasised.is_some_and(|value| (value - tick).abs() < 1e-9);
            let stroke = if strong {
                r##"stroke="#94a3b8""##
            } else {
                r##"stroke="#e5e9ee""##
            };
            svg.line((self.x, y), (self.x + PANEL_WIDTH, y), stroke);
            svg.text(self.x - 8.0, y + 4.0, "tick y", &number(tick));
        }
    }

    pub(crate) fn draw(&self, svg: &mut Svg, series: &[Series<'_>], emphasised: Option<f64>) {
        let ticks = ticks(greatest(series));
        let top = ticks.last().copied().unwrap_or(1.0);
        let mut ns: Vec<f64> = series
            .iter()
            .flat_map(|series| &series.points)
            .map(|point| point.n)
            .collect();
        ns.sort_by(f64::total_cmp);
        ns.dedup();
        let most = ns.last().copied().unwrap_or(1.0).max(1.0);
        let along = |n: f64| match self.steps {
            true => {
                let before = ns.iter().filter(|other| **other < n).count();
                before as f64 / ns.len().saturating_sub(1).max(1) as f64
            }
            false => n / most,
        };
        let place = |n: f64, value: f64| {
            (
                self.x + along(n) * (PANEL_WIDTH - 14.0),
                self.y + PANEL_HEIGHT * (1.0 - value / top),
            )
        };
        self.grid(svg, &ticks, emphasised);
        let crowded = ns.len() > MOST_LABELS && !self.steps;
        let mut labels = if crowded {
            self::ticks(most)
        } else {
            ns.clone()
        };
        labels.retain(|n| *n <= most);
        for n in labels {
            let (x, y) = place(n, 0.0);
            svg.line((x, y), (x, y + 4.0), r##"stroke="#94a3b8""##);
            svg.text(x, y + 18.0, "tick x", &count(n));
        }
        let middle = self.x + PANEL_WIDTH / 2.0;
        svg.text(middle, self.y + PANEL_HEIGHT + 36.0, "tick x", self.x_axis);
        for (index, line) in series.iter().enumerate() {
            let style = Style::of(line.system, index);
            let places: Vec<(f64, f64)> = line
                .points
                .iter()
                .map(|point| place(point.n, point.value))
                .collect();
            svg.path(&places, &style.stroke());
            for (at, point) in places.iter().zip(&line.points) {
                svg.circle(*at, style.colour, &point.detail);
            }
        }
    }
}

/// Bars in groups.
pub(crate) struct Bars<'chart> {
    pub(crate) panel: Panel<'chart>,
    pub(crate) bars: Vec<Bar>,
}

/// A bar of parts on top of each other.
pub(crate) struct Bar {
    pub(crate) group: String,
    pub(crate) colour: &'static str,
    pub(crate) parts: Vec<f64>,
    /// Shown when the pointer rests on it.
    pub(crate) detail: String,
}

impl Bars<'_> {
    pub(crate) fn draw(&self, svg: &mut Svg) {
        let panel = &self.panel;
        let sums = self.bars.iter().map(|bar| bar.parts.iter().sum());
        let ticks = ticks(sums.fold(0.0, f64::max));
        let top = ticks.last().copied().unwrap_or(1.0);
        panel.grid(svg, &ticks, None);
        let groups = distinct(self.bars.iter().map(|bar| bar.group.as_str()));
        let width = PANEL_WIDTH / groups.len().max(1) as f64;
        for (index, group) in groups.iter().enumerate() {
            let x = panel.x + index as f64 * width;
            svg.text(
                x + width / 2.0,
                panel.y + PANEL_HEIGHT + 18.0,
                "tick x",
                group,
            );
            let of: Vec<&Bar> = self.bars.iter().filter(|bar| bar.group == *group).collect();
            let each = width * 0.8 / of.len() as f64;
            for (place, bar) in of.iter().enumerate() {
                let left = x + width * 0.1 + place as f64 * each;
                let mut y = panel.y + PANEL_HEIGHT;
                for (part, value) in bar.parts.iter().enumerate() {
                    let height = PANEL_HEIGHT * value.max(0.0) / top;
                    y -= height;
                    // What is stacked on top is paler.
                    let opacity = if part == 0 { 1.0 } else { 0.45 };
                    let fill = format!(r#"fill="{}" fill-opacity="{opacity}""#, bar.colour);
                    svg.bar((left, y), (each * 0.92, height), &fill, &bar.detail);
                }
            }
        }
    }
}

/// Round numbers from 0 to at least `greatest`, some six of them.
fn ticks(greatest: f64) -> Vec<f64> {
    let greatest = if greatest > 0.0 { greatest } else { 1.0 };
    let rough = greatest / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = step
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(power * 10.0);
    let count = (greatest / step - 1e-9).ceil().max(1.0) as u32;
    (0..=count).map(|index| f64::from(index) * step).collect()
}

/// A number of things, large ones in units of 1,024.
fn count(n: f64) -> String {
    const KIB: f64 = 1_024.0;
    match n {
        n if n >= KIB * KIB && n % (KIB * KIB) == 0.0 => format!("{} Mi", number(n / KIB / KIB)),
        n if n >= KIB && n % KIB == 0.0 => format!("{} Ki", number(n / KIB)),
        n => number(n),
    }
}

/// Without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A document that grows. Writing to a string can't fail, so the results of that are ignored here.
pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self(format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif">
<style>
.title {{ font-size: 19px; font-weight: 600; fill: #0f172a }}
.note {{ font-size: 13px; fill: #64748b }}
.panel {{ font-size: 13.5px; font-weight: 600; fill: #334155 }}
.label {{ font-size: 13px; fill: #334155 }}
.tick {{ font-size: 12px; fill: #64748b }}
.x {{ text-anchor: middle }}
.y {{ text-anchor: end }}
</style>
<rect width="100%" height="100%" fill="#ffffff"/>
"##
        ))
    }

    /// A document with room for so many rows of panels, and where these begin.
    pub(crate) fn headed(title: &str, note: &str, systems: &[&str], rows: usize) -> (Self, f64) {
        let top = MARGIN + 90.0 + 22.0 * systems.len().div_ceil(LEGEND_COLUMNS) as f64;
        let mut svg = Self::new(WIDTH, top + rows as f64 * PANEL_PITCH + 8.0);
        svg.text(MARGIN, MARGIN + 18.0, "title", title);
        svg.text(MARGIN, MARGIN + 38.0, "note", note);
        legend(&mut svg, systems, MARGIN + 62.0);
        (svg, top)
    }

    fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, title: &str) {
        let title = escape(title);
        let _ = writeln!(
            self.0,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" {fill}><title>{title}</title></rect>"#
        );
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.0,
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.0,
            r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" {stroke}/>"#
        );
    }

    fn path(&mut self, places: &[(f64, f64)], stroke: &str) {
        let mut command = 'M';
        let mut path = String::new();
        for (x, y) in places {
            let _ = write!(path, "{command}{x:.1} {y:.1}");
            command = 'L';
        }
        if !path.is_empty() {
            let _ = writeln!(self.0, r#"<path d="{path}" fill="none" {stroke}/>"#);
        }
    }

    fn circle(&mut self, at: (f64, f64), colour: &str, title: &str) {
        let ((x, y), title) = (at, escape(title));
        let _ = writeln!(
            self.0,
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="3.6" fill="{colour}" stroke="#ffffff" stroke-width="1.2"><title>{title}</title></circle>"##
        );
    }

    pub(crate) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const PEERS: [&str; 9] = [
    "#2563eb", "#be185d", "#7c3aed", "#4d7c0f", "#0891b2", "#b91c1c", "#a16207", "#475569",
    "#c026d3",
];
pub(crate) const WIDTH: f64 = 1_040.0;
pub(crate) const MARGIN: f64 = 28.0;
pub(crate) const LEGEND_COLUMNS: usize = 4;
/// More places than these on an axis are not named one by one.
const MOST_LABELS: usize = 8;
const PANEL_WIDTH: f64 = 420.0;
const PANEL_HEIGHT: f64 = 260.0;
pub(crate) const PANEL_PITCH: f64 = PANEL_HEIGHT + 92.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn ticks_are_round_and_reach_the_top() {
        assert_eq!(ticks(97.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(5.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(ticks(0.0).first(), Some(&0.0));
        for greatest in [0.07, 1.3, 12.0, 999.0, 1e6] {
            let ticks = ticks(greatest);
            assert!(
                ticks[ticks.len() - 1] >= greatest * 0.999 && ticks.len() < 9,
                "{ticks:?}"
            );
        }
    }

    #[test]
    fn every_system_has_a_line_in_both_panels() {
        let rows: Vec<Row> = [
            ("wallaby-dpc", 1.0),
            ("wallaby-rpc", 1.5),
            ("a <peer>", 2.0),
        ]
        .iter()
        .flat_map(|(system, factor)| {
            [1, 2, 4].map(|n| sample(system, "unix", n, factor * 10.0 * n as f64))
        })
        .collect();
        let svg = Chart::hops().svg(&rows);
        assert_eq!(svg.matches("fill=\"none\"").count(), 6);
        assert!(svg.contains("a &lt;peer&gt;") && !svg.contains("a <peer>"));
        assert!(svg.contains("median relative to wallaby-rpc"));
    }

    #[test]
    fn no_rows_are_no_panic() {
        assert!(Chart::fanout().svg(&[]).contains("no results"));
    }
}
