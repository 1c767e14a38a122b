//! A call's tree of hops, drawn for people.

use std::fmt::{self, Write};
use std::time::Duration;

use super::{Trace, TracedHop};
use crate::Address;

/// More hops are counted, not drawn.
const MOST: usize = 100;

impl Trace {
    /// Its tree, drawn: a line a hop, each ended, with its server as `name` calls it, and when it arrived, waited, ran and was
    /// answered, as far as that is known; below it, marked by a dot, the parts of its time that it tells apart. Of more than 100 hops
    /// the rest is counted.
    pub fn draw(&self, name: impl Fn(&Address) -> String) -> String {
        let order = in_tree_order(&self.hops);
        let mut rows = vec![Row {
            label: "client".to_owned(),
            server: String::new(),
            times: ["arrived", "queued", "ran", "answered"].map(str::to_owned),
        }];
        for hop in &order[..order.len().min(MOST)] {
            let server = self.hops[*hop].server.as_ref();
            rows.push(Row {
                label: label(&self.hops, *hop),
                server: server.map_or_else(|| "?".to_owned(), |server| in_a_line(&name(server))),
                times: times(&self.hops[*hop]),
            });
            rows.extend(parts(&self.hops, *hop));
        }
        let width = |text: fn(&Row) -> &String| {
            let widths = rows.iter().map(|row| text(row).chars().count());
            widths.max().unwrap_or(0)
        };
        let (label_width, server_width) = (width(|row| &row.label), width(|row| &row.server));
        let mut out = String::new();
        for Row {
            label,
            server,
            times: [arrived, queued, ran, answered],
        } in &rows
        {
            let line = format!(
                "{label:label_width$}  {server:server_width$} {arrived:>10} {queued:>10} {ran:>10} {answered:>10}"
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        if order.len() > MOST {
            let _ = writeln!(out, "… and {} more hops", order.len() - MOST);
        }
        out
    }

    /// How deep its tree is, in hops.
    pub fn depth(&self) -> usize {
        let depths = (0..self.hops.len()).map(|hop| ancestors(&self.hops, hop).count());
        depths.max().unwrap_or(0)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(Address::to_string))
    }
}

/// Each hop right below the one that sent it, before that one's next.
fn in_tree_order(hops: &[TracedHop]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..hops.len()).collect();
    order.sort_by_cached_key(|hop| {
        let mut way: Vec<usize> = ancestors(hops, *hop).collect();
        way.reverse();
        way
    });
    order
}

/// A hop, the one that sent it, and so on. Parents stand before their children.
fn ancestors(hops: &[TracedHop], hop: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(hop), |hop| {
        hops[*hop].parent.filter(|parent| parent < hop)
    })
}

/// A line of the drawing.
struct Row {
    label: String,
    server: String,
    times: [String; 4],
}

fn label(hops: &[TracedHop], hop: usize) -> String {
    let branch = match is_last_child(hops, hop) {
        true => "└─ ",
        false => "├─ ",
    };
    let method = hops[hop].method.as_deref().unwrap_or("?");
    // Without its package.
    let method = method.split_once('.').map_or(method, |(_, method)| method);
    let above = hops[hop].parent.filter(|parent| *parent < hop);
    format!("{}{branch}{}", stems(hops, above), in_a_line(method))
}

/// What stands before the children of a hop: the lines of its own later siblings, and of those above it.
fn stems(hops: &[TracedHop], hop: Option<usize>) -> String {
    let above = hop.into_iter().flat_map(|hop| ancestors(hops, hop));
    let mut stems: Vec<&str> = above
        .map(|at| match is_last_child(hops, at) {
            true => "   ",
            false => "│  ",
        })
        .collect();
    stems.reverse();
    stems.concat()
}

/// A line for each part of its time that a hop tells apart.
fn parts(hops: &[TracedHop], hop: usize) -> impl Iterator<Item = Row> + '_ {
    hops[hop].parts.iter().map(move |part| Row {
        label: format!("{}· {}", stems(hops, Some(hop)), in_a_line(&part.name)),
        server: String::new(),
        times: [String::new(), String::new(), show(part.took), String::new()],
    })
}

/// Servers say what they called, and where they are: no line of the drawing may look like several.
fn in_a_line(told: &str) -> String {
    let mut out = String::with_capacity(told.len());
    for character in told.chars() {
        match character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            true => out.extend(character.escape_unicode()),
            false => out.push(character),
        }
    }
    out
}

fn is_last_child(hops: &[TracedHop], hop: usize) -> bool {
    let later = hops.iter().skip(hop + 1);
    later
        .filter(|other| other.parent == hops[hop].parent)
        .count()
        == 0
}

fn times(hop: &TracedHop) -> [String; 4] {
    let show = |time: Option<Duration>| time.map_or_else(|| "–".to_owned(), show);
    [
        show(hop.timing.map(|timing| timing.arrived)),
        show(hop.timing.map(|timing| timing.queued)),
        show(hop.timing.map(|timing| timing.ran)),
        show(hop.answered),
    ]
}

/// A time with three digits: crates for it write all of them, and this one depends on few.
fn show(time: Duration) -> String {
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
    use crate::trace::TimingPart;

    fn hop(path: &str, parent: Option<usize>, method: &str) -> TracedHop {
        TracedHop {
            path: path.to_owned(),
            hop: 0,
            parent,
            server: "mem://1".parse().ok(),
            node: None,
            method: Some(format!("graph.{method}")),
            responses: 0,
            delegated: 0,
            timing: None,
            parts: Vec::new(),
            answered: Some(Duration::from_micros(1500)),
        }
    }

    fn example() -> Trace {
        Trace {
            call: crate::CallId {
                initiator: crate::NodeId::new(1).expect("not 0"),
                sequence: 1,
            },
            elapsed: Duration::from_millis(2),
            hops: vec![
                hop("0", None, "Friends/person"),
                hop("0.0", Some(0), "Friends/friends"),
                hop("0.1", Some(0), "Friends/friends"),
                hop("0.0.0", Some(1), "Deeper/one"),
            ],
        }
    }

    #[test]
    fn children_stand_below_who_sent_them() {
        let drawn = example().to_string();
        let starts: Vec<String> = drawn
            .lines()
            .map(|line| {
                line.split("  mem")
                    .next()
                    .unwrap_or_default()
                    .trim_end()
                    .to_owned()
            })
            .collect();
        assert!(starts[0].starts_with("client"), "{drawn}");
        assert_eq!(
            starts[1..],
            [
                "└─ Friends/person",
                "   ├─ Friends/friends",
                "   │  └─ Deeper/one",
                "   └─ Friends/friends",
            ],
            "{drawn}"
        );
        assert!(drawn.contains("1.50 ms"), "{drawn}");
        assert_eq!(example().depth(), 3);
    }

    #[test]
    fn parts_of_its_time_stand_below_a_hop() {
        let mut trace = example();
        trace.hops[1].parts = vec![TimingPart {
            name: "disk".into(),
            took: Duration::from_micros(12),
        }];
        let drawn = trace.to_string();
        let part = drawn.lines().nth(3).expect("below its hop");
        assert!(part.starts_with("   │  · disk"), "{drawn}");
        assert!(part.ends_with("12.0 µs"), "{drawn}");
    }

    #[test]
    fn a_server_cannot_draw_hops_that_are_none() {
        let mut trace = example();
        let forged = "one\n   └─ Friends/forged\u{2028}   └─ Friends/forged  mem://3";
        trace.hops[3].method = Some(format!("graph.Deeper/{forged}"));
        trace.hops[2].server = format!("unix:///a{forged}").parse().ok();
        let drawn = trace.to_string();
        let is_end = |character| matches!(character, '\n' | '\u{2028}');
        let lines: Vec<&str> = drawn.trim_end().split(is_end).collect();
        assert_eq!(lines.len(), 1 + trace.hops.len(), "{drawn}");
        assert!(drawn.contains("Deeper/one\\u{a}"), "{drawn}");
        assert!(drawn.contains("unix:///aone\\u{a}"), "{drawn}");
    }

    #[test]
    fn times_have_three_digits() {
        for (micros, shown) in [(1, "1.00 µs"), (12_345, "12.3 ms"), (2_500_000, "2.50 s")] {
            assert_eq!(show(Duration::from_micros(micros)), shown);
        }
    }
}
