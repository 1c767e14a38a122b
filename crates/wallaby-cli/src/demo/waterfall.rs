//! A timeline as an SVG picture for the page: a row a hop, bars for its work, lines for its messages.

use super::html::escape;
use super::timeline::{HopRow, Timeline, Work};
use crate::time::show_micros;
use std::fmt::Write;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 1060.0;
const ROW: f64 = 28.0;
const HEAD: f64 = 26.0;
const BAR: f64 = 12.0;
/// A bar that stands for microseconds among milliseconds must still be seen.
const NARROWEST: f64 = 3.0;
/// More hops are counted, not drawn.
const MOST_ROWS: usize = 60;

/// Draws a timeline; `scale_us` is the time that the whole width stands for, so that two pictures can be compared.
pub(crate) fn draw(timeline: &Timeline, scale_us: f64) -> String {
    let rows = timeline.hops.len().min(MOST_ROWS);
    let picture = Picture {
        timeline,
        scale_us: scale_us.max(timeline.elapsed_us).max(f64::MIN_POSITIVE),
    };
    let height =
        HEAD + ROW * (rows + 1) as f64 + if rows < timeline.hops.len() { ROW } else { 8.0 };
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="the hops over time">"#
    );
    out.push('\n');
    picture.axis(&mut out, height);
    picture.client(&mut out);
    for hop in 0..rows {
        picture.hop(&mut out, hop);
    }
    if rows < timeline.hops.len() {
        let more = timeline.hops.len() - rows;
        let _ = writeln!(
            out,
            r#"<text class="quiet" x="0" y="{}">… and {more} more hops</text>"#,
            height - 10.0
        );
    }
    out.push_str("</svg>\n");
    out
}

struct Picture<'a> {
    timeline: &'a Timeline,
    scale_us: f64,
}

impl Picture<'_> {
    fn x(&self, time_us: f64) -> f64 {
        LEFT + (time_us / self.scale_us).clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    fn axis(&self, out: &mut String, height: f64) {
        let step = round_step(self.scale_us / 8.0);
        for tick in 0..=(self.scale_us / step) as u32 {
            let (time, bottom) = (f64::from(tick) * step, height - 6.0);
            let (x, label) = (
                self.x(time),
                if tick == 0 {
                    "0".to_owned()
                } else {
                    show_micros(time)
                },
            );
            let _ = writeln!(
                out,
                r#"<line class="tick" x1="{x:.1}" x2="{x:.1}" y1="20" y2="{bottom}"/>"#
            );
            let _ = writeln!(
                out,
                r#"<text class="quiet" x="{x:.1}" y="13" text-anchor="middle">{label}</text>"#
            );
        }
    }

    /// The first row: the client waits, and answers arrive.
    fn client(&self, out: &mut String) {
        let (y, end) = (HEAD + ROW / 2.0, self.x(self.timeline.elapsed_us));
        let time = show_micros(self.timeline.elapsed_us);
        let _ = write!(
            out,
            r#"<g class="hop"><title>the client, from its request to the last answer: {time}</title>"#
        );
        self.stripe(out, y);
        let _ = write!(out, r#"<text x="0" y="{}">client</text>"#, y + 4.5);
        let (top, width) = (y - BAR / 2.0, end - LEFT);
        let _ = write!(
            out,
            r#"<rect class="call" x="{LEFT}" y="{top}" width="{width:.1}" height="{BAR}" rx="3"/>"#
        );
        for answered in self.timeline.hops.iter().filter_map(|hop| hop.answered_us) {
            let _ = write!(
                out,
                r#"<circle class="answer" cx="{:.1}" cy="{y}" r="2.6"/>"#,
                self.x(answered)
            );
        }
        out.push_str("</g>\n");
    }

    fn hop(&self, out: &mut String, hop: usize) {
        let row = &self.timeline.hops[hop];
        let y = self.middle(hop);
        let _ = write!(
            out,
            r#"<g class="hop"><title>{}</title>"#,
            escape(&hover(row))
        );
        self.stripe(out, y);
        let indent = 14.0 * (self.timeline.depth(hop) + 1) as f64;
        let (base, method, server) = (y + 4.5, escape(&row.method), escape(&row.server));
        let _ = write!(
            out,
            r#"<text x="{indent}" y="{base}">{method} <tspan class="quiet">{server}</tspan></text>"#
        );
        self.request(out, hop, y);
        if let Some(work) = row.work {
            self.work(out, work, y);
        }
        if let Some(answered) = row.answered_us {
            self.answer(out, row.work, answered, y);
        }
        out.push_str("</g>\n");
    }

    /// The way of a request: down from its sender's row, then over to when it arrived.
    fn request(&self, out: &mut String, hop: usize, y: f64) {
        let Some(work) = self.timeline.hops[hop].work else {
            return;
        };
        let (from, to) = (self.x(self.timeline.sent_us(hop)), self.x(work.arrived_us));
        let sender = self.timeline.hops[hop]
            .parent
            .map_or(HEAD + ROW / 2.0, |parent| self.middle(parent));
        let (start, bend) = (sender + BAR / 2.0, (to - from).clamp(0.0, 8.0));
        let (above, after) = (y - bend, from + bend);
        let _ = write!(
            out,
            r#"<path class="going" d="M{from:.1} {start}V{above:.1}Q{from:.1} {y} {after:.1} {y}H{to:.1}"/>"#
        );
        tip(out, "going-tip", to, y);
    }

    fn work(&self, out: &mut String, work: Work, y: f64) {
        let mut bar = |class: &str, from: f64, to: f64, narrowest: f64| {
            let (x, width, top) = (
                self.x(from),
                (self.x(to) - self.x(from)).max(narrowest),
                y - BAR / 2.0,
            );
            let _ = write!(
                out,
                r#"<rect class="{class}" x="{x:.1}" y="{top}" width="{width:.1}" height="{BAR}" rx="2"/>"#
            );
        };
        if work.queued_us > 0.0 {
            bar("queue", work.arrived_us, work.started_us(), 0.5);
        }
        bar("run", work.started_us(), work.ended_us(), NARROWEST);
    }

    fn answer(&self, out: &mut String, work: Option<Work>, answered: f64, y: f64) {
        let from = work.map_or(answered, |work| work.ended_us());
        let (x1, x2) = (self.x(from) + NARROWEST, self.x(answered));
        if x2 > x1 {
            let _ = write!(
                out,
                r#"<line class="coming" x1="{x1:.1}" x2="{x2:.1}" y1="{y}" y2="{y}"/>"#
            );
        }
        tip(out, "coming-tip", x2, y);
    }

    /// Makes the whole row react to the pointer.
    fn stripe(&self, out: &mut String, y: f64) {
        let top = y - ROW / 2.0;
        let _ = write!(
            out,
            r#"<rect class="stripe" x="0" y="{top}" width="{WIDTH}" height="{ROW}"/>"#
        );
    }

    fn middle(&self, hop: usize) -> f64 {
        HEAD + ROW * (hop + 1) as f64 + ROW / 2.0
    }
}

fn tip(out: &mut String, class: &str, x: f64, y: f64) {
    let (back, up, down) = (x - 6.0, y - 3.5, y + 3.5);
    let _ = write!(
        out,
        r#"<path class="{class}" d="M{x:.1} {y}L{back:.1} {up}V{down}Z"/>"#
    );
}

/// Everything known about a hop, for when the pointer rests on it.
fn hover(row: &HopRow) -> String {
    let mut out = format!("{} at {}, request {}", row.method, row.server, row.path);
    match row.work {
        Some(work) => {
            let _ = write!(out, "\narrived at {}", show_micros(work.arrived_us));
            let _ = write!(
                out,
                "\nqueued {}, ran {}",
                show_micros(work.queued_us),
                show_micros(work.ran_us)
            );
        }
        None => out.push_str("\nno report of its work came"),
    }
    if row.delegated > 0 {
        let _ = write!(out, "\nhanded on to {} others", row.delegated);
    }
    if let Some(answered) = row.answered_us {
        let _ = write!(out, "\nanswer at the client at {}", show_micros(answered));
    }
    out
}

/// The step of 1, 2 or 5 times a power of ten next above.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::super::timeline::example;
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(
            [660.0, 0.3, 1.0, 5.1].map(round_step),
            [1000.0, 0.5, 1.0, 10.0]
        );
    }

    #[test]
    fn every_hop_has_a_row_a_bar_and_a_text_to_hover() {
        let drawn = draw(&example(), 4_000.0);
        assert_eq!(drawn.matches("<g class=\"hop\">").count(), 5);
        assert_eq!(drawn.matches("class=\"run\"").count(), 3);
        assert_eq!(drawn.matches("class=\"going\"").count(), 3);
        assert!(drawn.contains("handed on to 3 others"));
        assert!(drawn.contains("no report of its work came"));
        assert_eq!(drawn.matches("<g").count(), drawn.matches("</g>").count());
    }

    #[test]
    fn odd_timelines_draw_too() {
        draw(&Timeline::default(), 0.0);
        let mut timeline = example();
        timeline.elapsed_us = 0.0;
        assert!(!draw(&timeline, 0.0).contains("NaN"));
        timeline.hops[1].server = "<script>\"&".to_owned();
        assert!(draw(&timeline, 1.0).contains("&lt;script&gt;&quot;&amp;"));
        timeline.hops = vec![timeline.hops[0].clone(); 100];
        assert!(draw(&timeline, 1.0).contains("… and 40 more hops"));
    }
}
