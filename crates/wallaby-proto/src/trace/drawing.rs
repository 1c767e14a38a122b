//! A call's tree of hops, drawn for people.

use std::fmt::{self, Write};
use std::time::Duration;

use super::{Hop, Trace};
use crate::Address;

/// More hops are counted, not drawn.
const MOST: usize = 100;

impl Trace {
    /// Its tree, drawn: a line a hop, each ended, with its server as `name` calls it, and when it arrived, waited, ran and was
    /// answered, as far as that is known. Of more than 100 hops the rest is counted.
    pub fn draw(&self, name: impl Fn(&Address) -> String) -> String {
        let order = in_tree_order(&self.hops);
        let shown = &order[..order.len().min(MOST)];
        let labels: Vec<String> = shown.iter().map(|hop| label(&self.hops, *hop)).collect();
        let servers: Vec<String> = shown
            .iter()
            .map(|hop| {
                let server = self.hops[*hop].server.as_ref();
                server.map_or_else(|| "?".to_owned(), |server| in_a_line(&name(server)))
            })
            .collect();
        let width = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max();
        let label_width = width(&labels).unwrap_or(0).max("client".len());
        let server_width = width(&servers).unwrap_or(0);
        let mut out = String::new();
        let mut line = |label: &str, server: &str, times: [String; 4]| {
            let [arrived, queued, ran, answered] = times;
            let _ = writeln!(
                out,
                "{label:label_width$}  {server:server_width$} {arrived:>10} {queued:>10} {ran:>10} {answered:>10}"
            );
        };
        line(
            "client",
            "",
            ["arrived", "queued", "ran", "answered"].map(str::to_owned),
        );
        for ((hop, label), server) in shown.iter().zip(&labels).zip(&servers) {
            line(label, server, times(&self.hops[*hop]));
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
fn in_tree_order(hops: &[Hop]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..hops.len()).collect();
    order.sort_by_cached_key(|hop| {
        let mut way: Vec<usize> = ancestors(hops, *hop).collect();
        way.reverse();
        way
    });
    order
}

/// A hop, the one that sent it, and so on. Parents stand before their children.
fn ancestors(hops: &[Hop], hop: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(hop), |hop| {
        hops[*hop].parent.filter(|parent| parent < hop)
    })
}

fn label(hops: &[Hop], hop: usize) -> String {
    let mut parts: Vec<&str> = ancestors(hops, hop)
        .map(|at| match (at == hop, is_last_child(hops, at)) {
            (true, true) => "└─ ",
            (true, false) => "├─ ",
            (false, true) => "   ",
            (false, false) => "│  ",
        })
        .collect();
    parts.reverse();
    let method = hops[hop].method.as_deref().unwrap_or("?");
    // Without its package.
    let method = method.split_once('.').map_or(method, |(_, method)| method);
    format!("{}{}", parts.concat(), in_a_line(method))
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

fn is_last_child(hops: &[Hop], hop: usize) -> bool {
    let later = hops.iter().skip(hop + 1);
    later
        .filter(|other| other.parent == hops[hop].parent)
        .count()
        == 0
}

fn times(hop: &Hop) -> [String; 4] {
    let show = |time: Option<Duration>| time.map_or_else(|| "–".to_owned(), show);
    [
        show(hop.timing.map(|timing| timing.arrived)),
        show(hop.timing.map(|timing| timing.queued)),
        show(hop.timing.map(|timing| timing.ran)),
        show(hop.answered),
    ]
}

/// A time with three digits.
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

    fn hop(path: &str, parent: Option<usize>, method: &str) -> Hop {
        Hop {
            path: path.to_owned(),
            hop: 0,
            parent,
            server: "mem://1".parse().ok(),
            node: None,
            method: Some(format!("graph.{method}")),
            responses: 0,
            delegated: 0,
            timing: None,
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
