//! A call's tree of hops, drawn for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use wallaby::{Address, Hop, Trace};

/// More hops are counted, not drawn.
const MOST: usize = 120;

/// Draws a tree; servers are called by `name`. What answers the client ends with an arrow.
pub fn draw(trace: &Trace, name: impl Fn(&Address) -> String) -> String {
    let mut below: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
    for (index, hop) in trace.hops.iter().enumerate() {
        // Parents stand before their children; whatever does not is drawn at the top.
        let parent = hop.parent.filter(|parent| *parent < index);
        below.entry(parent).or_default().push(index);
    }
    let mut lines = Vec::new();
    // What is still to be drawn, with the strokes before it.
    let tops = below.get(&None).map_or(&[][..], Vec::as_slice);
    let mut open: Vec<(usize, String, bool)> = with_strokes(tops, "");
    while let Some((at, before, is_last)) = open.pop() {
        let hop = &trace.hops[at];
        let stroke = if is_last { "└─ " } else { "├─ " };
        let server = hop.server.as_ref().map_or_else(|| "?".to_owned(), &name);
        lines.push((
            format!("{before}{stroke}{} at {server}", method(hop)),
            times(hop),
        ));
        let inner = format!("{before}{}", if is_last { "   " } else { "│  " });
        let children = below.get(&Some(at)).map_or(&[][..], Vec::as_slice);
        open.extend(with_strokes(children, &inner));
    }
    let all = lines.len();
    lines.truncate(MOST);
    let width = lines
        .iter()
        .map(|(label, _)| label.chars().count())
        .max()
        .unwrap_or(0);
    let mut out = String::from("client\n");
    for (label, times) in &lines {
        let _ = writeln!(out, "{label:width$}  {times}");
    }
    if all > MOST {
        let _ = writeln!(out, "… and {} more hops", all - MOST);
    }
    out
}

/// How deep the tree is, in hops.
pub fn depth(trace: &Trace) -> usize {
    let mut depths: Vec<usize> = Vec::new();
    for (index, hop) in trace.hops.iter().enumerate() {
        let parent = hop.parent.filter(|parent| *parent < index);
        let above = parent
            .and_then(|parent| depths.get(parent))
            .copied()
            .unwrap_or(0);
        depths.push(above + 1);
    }
    depths.into_iter().max().unwrap_or(0)
}

/// The last one first, as it is taken from the end.
fn with_strokes(hops: &[usize], before: &str) -> Vec<(usize, String, bool)> {
    let last = hops.len().saturating_sub(1);
    let all = hops.iter().enumerate();
    all.map(|(number, hop)| (*hop, before.to_owned(), number == last))
        .rev()
        .collect()
}

/// Without its package and service.
fn method(hop: &Hop) -> &str {
    let method = hop.method.as_deref().unwrap_or("?");
    method.rsplit_once('/').map_or(method, |(_, method)| method)
}

fn times(hop: &Hop) -> String {
    let ran = hop.timing.map(|timing| {
        format!(
            "arrived {:>8}, ran {:>8}",
            show(timing.arrived),
            show(timing.ran)
        )
    });
    let answered = hop.answered.map(|at| format!(" ─▶ client {:>8}", show(at)));
    ran.unwrap_or_default() + &answered.unwrap_or_default()
}

/// A time with three digits.
pub fn show(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    let (value, unit) = match micros {
        _ if micros < 1e3 => (micros, "µs"),
        _ if micros < 1e6 => (micros / 1e3, "ms"),
        _ => (micros / 1e6, "s"),
    };
    match value {
        _ if value < 10.0 => format!("{value:.2} {unit}"),
        _ if value < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(parent: Option<usize>, method: &str) -> Hop {
        Hop {
            path: String::new(),
            hop: 0,
            parent,
            server: "mem://1".parse().ok(),
            node: None,
            method: Some(format!("raytrace.Hops/{method}")),
            responses: 0,
            delegated: 0,
            timing: None,
            answered: None,
        }
    }

    #[test]
    fn children_stand_below_who_sent_them() {
        let trace = Trace {
            call: wallaby::CallId {
                initiator: wallaby::NodeId::new(1).unwrap(),
                sequence: 1,
            },
            elapsed: Duration::from_millis(2),
            hops: vec![
                hop(None, "a"),
                hop(Some(0), "b"),
                hop(Some(0), "c"),
                hop(Some(1), "d"),
            ],
        };
        let drawn = draw(&trace, |_| "s".to_owned());
        let lines: Vec<&str> = drawn.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "client",
                "└─ a at s",
                "   ├─ b at s",
                "   │  └─ d at s",
                "   └─ c at s"
            ]
        );
        assert_eq!(depth(&trace), 3);
    }

    #[test]
    fn times_have_three_digits() {
        for (micros, shown) in [(1, "1.00 µs"), (12_345, "12.3 ms"), (2_500_000, "2.50 s")] {
            assert_eq!(show(Duration::from_micros(micros)), shown);
        }
    }
}
