//! The tree of hops, drawn for a terminal: who asked whom, and when.

use super::timeline::{HopRow, Timeline};
use crate::time::show_micros;
use console::{measure_text_width, pad_str, style, truncate_str};
use std::fmt::Write;

/// More hops are counted, not drawn.
const MOST_ROWS: usize = 40;
/// Where the bars are too narrow to tell anything, and where they are wide enough.
const BARS: std::ops::RangeInclusive<usize> = 12..=60;
const FIGURES: usize = 9;

/// Draws a timeline in `width` columns, several lines, each ended.
pub(crate) fn draw(timeline: &Timeline, width: usize) -> String {
    let rows = timeline.hops.len().min(MOST_ROWS);
    let labels: Vec<String> = (0..rows).map(|hop| label(timeline, hop)).collect();
    let label_width = widest(&labels).max("client".len());
    let server_width = widest(timeline.hops.iter().map(|hop| &hop.server)).min(40);
    let rest = label_width + server_width + 3 * FIGURES + 6;
    let bars = width.saturating_sub(rest).clamp(*BARS.start(), *BARS.end());

    let mut out = String::new();
    let mut line = |label: &str, server: &str, bar: &str, figures: [String; 3]| {
        let _ = write!(
            out,
            "{}  {}  {bar} ",
            pad(label, label_width),
            pad(server, server_width)
        );
        for figure in figures {
            let figure = pad_str(&figure, FIGURES, console::Alignment::Right, None).into_owned();
            let _ = write!(out, "{figure}");
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    };
    line(
        "client",
        "",
        &axis(timeline, bars),
        ["queued", "ran", "answered"].map(str::to_owned),
    );
    for (hop, label) in labels.iter().enumerate() {
        let row = &timeline.hops[hop];
        line(label, &row.server, &bar(timeline, hop, bars), figures(row));
    }
    if timeline.hops.len() > rows {
        let _ = writeln!(out, "… and {} more hops", timeline.hops.len() - rows);
    }
    out
}

/// What the marks in the bars mean.
pub(crate) fn legend() -> String {
    format!(
        "{} on its way   {} queued   {} running   {} answer on its way",
        GOING, QUEUED, RUNNING, COMING
    )
}

const GOING: char = '·';
const QUEUED: char = '░';
const RUNNING: char = '█';
const COMING: char = '─';

fn label(timeline: &Timeline, hop: usize) -> String {
    let mut branches = Vec::new();
    let mut at = Some(hop);
    while let Some(here) = at {
        let last = timeline.is_last_child(here);
        branches.push(match (here == hop, last) {
            (true, true) => "└─ ",
            (true, false) => "├─ ",
            (false, true) => "   ",
            (false, false) => "│  ",
        });
        at = timeline.hops[here].parent.filter(|parent| *parent < here);
    }
    branches.reverse();
    format!("{}{}", branches.concat(), timeline.hops[hop].method)
}

/// Begin and end of the time that the bars show.
fn axis(timeline: &Timeline, width: usize) -> String {
    let end = show_micros(timeline.elapsed_us);
    let line = "┄".repeat(width.saturating_sub(measure_text_width(&end) + 3));
    style(pad(&format!("0 {line} {end}"), width))
        .dim()
        .to_string()
}

fn bar(timeline: &Timeline, hop: usize, width: usize) -> String {
    let column = |time: f64| {
        let part = if timeline.elapsed_us > 0.0 {
            (time / timeline.elapsed_us).clamp(0.0, 1.0)
        } else {
            0.0
        };
        ((part * width as f64) as usize).min(width - 1)
    };
    let row = &timeline.hops[hop];
    let mut cells = vec![' '; width];
    let mut fill =
        |from: f64, to: f64, mark: char| cells[column(from)..=column(to.max(from))].fill(mark);
    let sent = timeline.sent_us(hop);
    if let Some(work) = row.work {
        // Later marks win: that something ran matters more than that it travelled.
        if let Some(answered) = row.answered_us {
            fill(work.ended_us(), answered, COMING);
        }
        fill(sent, work.arrived_us, GOING);
        if work.queued_us > 0.0 {
            fill(work.arrived_us, work.started_us(), QUEUED);
        }
        fill(work.started_us(), work.ended_us(), RUNNING);
    } else if let Some(answered) = row.answered_us {
        fill(sent, answered, GOING);
    }
    paint(&cells)
}

/// Colours runs of the same mark; without colours the marks alone tell the story.
fn paint(cells: &[char]) -> String {
    cells
        .chunk_by(|a, b| a == b)
        .map(|run| {
            let text: String = run.iter().collect();
            match run[0] {
                QUEUED => style(text).yellow().to_string(),
                RUNNING => style(text).green().to_string(),
                COMING => style(text).cyan().to_string(),
                _ => style(text).dim().to_string(),
            }
        })
        .collect()
}

fn figures(row: &HopRow) -> [String; 3] {
    let time = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), show_micros);
    [
        time(row.work.map(|work| work.queued_us)),
        time(row.work.map(|work| work.ran_us)),
        time(row.answered_us),
    ]
}

fn pad(text: &str, width: usize) -> String {
    pad_str(
        &truncate_str(text, width, "…"),
        width,
        console::Alignment::Left,
        None,
    )
    .into_owned()
}

fn widest<'a>(texts: impl IntoIterator<Item = &'a String>) -> usize {
    texts
        .into_iter()
        .map(|text| measure_text_width(text))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::timeline::example;
    use super::*;

    fn plain(timeline: &Timeline, width: usize) -> String {
        console::strip_ansi_codes(&draw(timeline, width)).into_owned()
    }

    #[test]
    fn draws_the_tree() {
        let drawn = plain(&example(), 92);
        assert_eq!(drawn.lines().count(), 5, "{drawn}");
        assert!(
            drawn.contains("└─ Documents/excerpt  documents 3"),
            "{drawn}"
        );
        assert!(drawn.contains("10 µs    40 µs  3.15 ms"), "{drawn}");
    }

    #[test]
    fn bars_follow_the_times() {
        let timeline = example();
        let lookup = console::strip_ansi_codes(&bar(&timeline, 0, 33)).into_owned();
        assert_eq!(lookup.trim_end(), "··········██");
        let excerpt = console::strip_ansi_codes(&bar(&timeline, 1, 33)).into_owned();
        assert_eq!(excerpt.trim_end(), "           ··········█──────────");
        let unreported = console::strip_ansi_codes(&bar(&timeline, 3, 33)).into_owned();
        assert!(unreported.contains("····") && !unreported.contains('█'));
    }

    #[test]
    fn fits_any_width_and_any_size() {
        let mut timeline = example();
        for width in [0, 1, 40, 400] {
            assert_eq!(plain(&timeline, width).lines().count(), 5);
        }
        let more: Vec<_> = (0..100).map(|_| timeline.hops[1].clone()).collect();
        timeline.hops.extend(more);
        assert!(plain(&timeline, 80).ends_with("… and 64 more hops\n"));
        timeline.elapsed_us = 0.0;
        plain(&timeline, 80);
        assert_eq!(plain(&Timeline::default(), 80).lines().count(), 1);
    }
}
