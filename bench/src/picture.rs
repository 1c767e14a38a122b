//! Result rows as a picture: a panel for each benchmark and transport, a line for each system.

use crate::ratio::{floor, of_medians};
use crate::row::Row;
use anyhow::{Result, bail, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::str::FromStr;

/// What the lines show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The median of the latency.
    Median,
    /// Its 99th percentile.
    Tail,
    /// Processor time of an operation.
    Processor,
    /// Operations a second.
    Rate,
    /// How many times the floor's median.
    OverFloor,
}

impl Figure {
    fn of(self, row: &Row, rows: &[Row]) -> Option<f64> {
        match self {
            Self::Median => Some(row.p50_us),
            Self::Tail => Some(row.p99_us),
            Self::Processor => Some(row.cpu_us_per_op),
            Self::Rate => row.ops_per_s,
            Self::OverFloor => of_medians(row, floor(row, rows)?),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Median => "median, µs",
            Self::Tail => "99th percentile, µs",
            Self::Processor => "processor time, µs",
            Self::Rate => "operations a second",
            Self::OverFloor => "median, × floor",
        }
    }
}

impl FromStr for Figure {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "p50" => Self::Median,
            "p99" => Self::Tail,
            "cpu" => Self::Processor,
            "rate" => Self::Rate,
            "floor" => Self::OverFloor,
            other => bail!("nothing is called {other:?}: choose p50, p99, cpu, rate or floor"),
        })
    }
}

/// The rows as an SVG document.
///
/// # Errors
/// No row has such a figure.
pub fn svg(rows: &[Row], figure: Figure) -> Result<String> {
    let picture = Picture::of(rows, figure);
    ensure!(
        !picture.panels.is_empty(),
        "no row says anything of this: {}",
        figure.title()
    );
    let mut document = String::new();
    picture.draw(&mut document)?;
    Ok(document)
}

struct Picture<'rows> {
    figure: Figure,
    systems: Vec<&'rows str>,
    panels: Vec<Panel>,
}

/// Points at places that stand side by side, whatever the distance of their numbers.
struct Panel {
    title: String,
    places: Vec<String>,
    points: Vec<Point>,
}

struct Point {
    system: usize,
    place: usize,
    value: f64,
}

type Area<'document> = DrawingArea<SVGBackend<'document>, Shift>;

impl<'rows> Picture<'rows> {
    fn of(rows: &'rows [Row], figure: Figure) -> Self {
        let (mut systems, mut titles, mut panels) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let Some(value) = figure.of(row, rows) else {
                continue;
            };
            let (title, place) = spot(row, rows);
            let index = position(&mut titles, title.clone());
            if index == panels.len() {
                panels.push(Panel {
                    title,
                    places: Vec::new(),
                    points: Vec::new(),
                });
            }
            let panel = &mut panels[index];
            panel.points.push(Point {
                system: position(&mut systems, row.system.as_str()),
                place: position(&mut panel.places, place),
                value,
            });
        }
        Self {
            figure,
            systems,
            panels,
        }
    }

    fn draw(&self, document: &mut String) -> Result<()> {
        let legend = LINE * (self.systems.len().div_ceil(NAMES) as u32 + 1);
        let lines = self.panels.len().div_ceil(COLUMNS);
        let size = (WIDTH, legend + PANEL_HEIGHT * lines as u32);
        let root = SVGBackend::with_string(document, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, below) = root.split_vertically(legend);
        self.draw_legend(&top)?;
        for (panel, area) in self.panels.iter().zip(below.split_evenly((lines, COLUMNS))) {
            self.draw_panel(panel, &area)?;
        }
        Ok(root.present()?)
    }

    fn draw_legend(&self, area: &Area<'_>) -> Result<()> {
        for (index, system) in self.systems.iter().enumerate() {
            let x = MARGIN + (index % NAMES) as i32 * (WIDTH / NAMES as u32) as i32;
            let y = (index / NAMES + 1) as i32 * LINE as i32;
            let line = vec![(x, y), (x + SAMPLE, y)];
            area.draw(&PathElement::new(line, self.style(index)))?;
            area.draw(&Text::new(*system, (x + SAMPLE + 8, y - 6), FONT))?;
        }
        Ok(())
    }

    fn draw_panel(&self, panel: &Panel, area: &Area<'_>) -> Result<()> {
        let values = panel.points.iter().map(|point| point.value);
        let top = match values.fold(0.0, f64::max) {
            0.0 => 1.0,
            greatest => greatest * 1.05,
        };
        let places = panel.places.len();
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, FONT)
            .margin(MARGIN)
            .x_label_area_size(LINE)
            .y_label_area_size(4 * LINE)
            .build_cartesian_2d(-1..places as i32, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(places + 2)
            .x_label_formatter(&|place| {
                let place = usize::try_from(*place).ok();
                let label = place.and_then(|place| panel.places.get(place));
                label.cloned().unwrap_or_default()
            })
            .y_desc(self.figure.title())
            .draw()?;
        for index in 0..self.systems.len() {
            let own = panel.points.iter().filter(|point| point.system == index);
            let line = own.map(|point| (point.place as i32, point.value));
            let line: Vec<_> = line.collect();
            if !line.is_empty() {
                chart.draw_series(LineSeries::new(line, self.style(index)).point_size(3))?;
            }
        }
        Ok(())
    }

    /// Floors are thin, so that they do not hide what is compared with them.
    fn style(&self, system: usize) -> ShapeStyle {
        let width = match self.systems[system].starts_with("floor") {
            true => 1,
            false => 3,
        };
        Palette99::pick(system).filled().stroke_width(width)
    }
}

/// The panel of a row, and its place there. Benchmarks of one number each share a panel.
fn spot(row: &Row, rows: &[Row]) -> (String, String) {
    let conditions = row.conditions();
    let all = |holds: fn(&Row, &Row) -> bool| {
        let alike = |other: &&Row| other.bench == row.bench && other.conditions() == conditions;
        rows.iter().filter(alike).all(|other| holds(row, other))
    };
    if all(|row, other| other.n == row.n) {
        return (conditions, format!("{} {}", row.bench, row.n));
    }
    let bytes = match all(|_, other| other.payload == other.n) {
        true => String::new(),
        false => format!(" of {} bytes", row.payload),
    };
    (
        format!("{}{bytes} {conditions}", row.bench),
        row.n.to_string(),
    )
}

/// Where this is among all, of which it is one from now on.
fn position<T: PartialEq>(all: &mut Vec<T>, one: T) -> usize {
    let found = all.iter().position(|other| *other == one);
    found.unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    })
}

const FONT: (&str, u32) = ("sans-serif", 14);
const WIDTH: u32 = 1_400;
const PANEL_HEIGHT: u32 = 340;
const COLUMNS: usize = 2;
/// Names in a line of the legend.
const NAMES: usize = 4;
const LINE: u32 = 22;
const MARGIN: i32 = 12;
const SAMPLE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn every_system_has_a_line_in_the_panel_of_its_transport() {
        let rows: Vec<Row> = ["unix", "tcp"]
            .into_iter()
            .flat_map(|transport| [1, 2, 4].map(|n| sample("wallaby-dpc", transport, n, n as f64)))
            .collect();
        let picture = Picture::of(&rows, Figure::Median);
        assert_eq!(picture.systems, ["wallaby-dpc"]);
        let places: Vec<_> = picture
            .panels
            .iter()
            .map(|panel| &panel.places[..])
            .collect();
        assert_eq!(places, [["1", "2", "4"], ["1", "2", "4"]]);
        let drawn = svg(&rows, Figure::Median).unwrap();
        assert!(drawn.contains("hops of 100 bytes over tcp"), "{drawn}");
        assert_eq!(drawn.matches("wallaby-dpc").count(), 1, "{drawn}");
    }

    #[test]
    fn benchmarks_of_one_number_share_a_panel() {
        let query = |bench: &str, n| Row {
            bench: bench.into(),
            ..sample("wallaby-dpc", "unix", n, 10.0)
        };
        let rows = [query("is1", 1), query("is2", 4)];
        let picture = Picture::of(&rows, Figure::Tail);
        assert_eq!(picture.panels.len(), 1);
        assert_eq!(picture.panels[0].places, ["is1 1", "is2 4"]);
    }

    #[test]
    fn what_took_no_time_is_drawn() {
        assert!(svg(&[sample("wallaby-dpc", "unix", 1, 0.0)], Figure::Median).is_ok());
    }

    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(svg(&[], Figure::Median).is_err());
        let rows = [sample("wallaby-dpc", "unix", 1, 5.0)];
        let error = svg(&rows, Figure::Rate).unwrap_err();
        assert!(error.to_string().contains("operations a second"));
    }
}
