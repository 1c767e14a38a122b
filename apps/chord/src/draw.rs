//! The ring, and the way of a lookup, drawn for people.

use crate::id::RingId;
use crate::message::Found;
use crate::node::Tables;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use wallaby::{Address, Trace};

/// How many characters the ring has when it is drawn as a line.
const LINE: usize = 48;

/// The nodes that a lookup came by, each a line with its place on the ring, cut open where the lookup began.
pub fn way(key: &str, id: RingId, found: &Found, trace: Option<&Trace>) -> String {
    let mut out = format!("'{key}' is at {id}\n\n");
    let no_trail = Vec::new();
    let trail = found.trail.as_ref().unwrap_or(&no_trail);
    let Some(begin) = trail.first() else {
        return out;
    };
    let mut hosts: Vec<&Address> = trail.iter().map(|peer| &peer.host).collect();
    hosts.sort();
    hosts.dedup();
    let _ = writeln!(
        out,
        "{:4}  {:16}  {:LINE$}  {:>10}  {:>9}  {:>9}  endpoint",
        "hop", "node", "the ring, from the first node on", "of it left", "arrived", "ran"
    );
    for (number, peer) in trail.iter().enumerate() {
        let line = line_of(begin.id, id, peer.id);
        let left = match number + 1 == trail.len() {
            true => "owner".to_owned(),
            false => share(peer.id.distance_to(id)),
        };
        // The trail has a node for each request of the call, one after the other.
        let hop = trace.and_then(|trace| trace.hops.get(number));
        let timing = hop.and_then(|hop| hop.timing);
        let time = |time: Option<Duration>| {
            time.map_or_else(|| "–".to_owned(), |time| format!("{} µs", time.as_micros()))
        };
        let _ = writeln!(
            out,
            "{number:4}  {}  {line}  {left:>10}  {:>9}  {:>9}  {}",
            peer.id,
            time(timing.map(|timing| timing.arrived)),
            time(timing.map(|timing| timing.ran)),
            peer.host,
        );
    }
    let _ = writeln!(out, "\n{} hops over {} endpoints", found.hops, hosts.len());
    out
}

/// A ring: a circle, and how nodes and keys are shared among endpoints.
pub fn ring(tables: &[Tables]) -> String {
    let mut out = circle(tables);
    let mut hosts: BTreeMap<&Address, (usize, usize)> = BTreeMap::new();
    for node in tables {
        let (nodes, keys) = hosts.entry(&node.peer.host).or_default();
        *nodes += 1;
        *keys += node.own_keys;
    }
    let _ = writeln!(
        out,
        "\n{:32}  {:>6}  {:>6}  {:>6}",
        "endpoint", "nodes", "owned", "drawn as"
    );
    for ((host, (nodes, keys)), letter) in hosts.iter().zip(letters()) {
        let host = host.to_string();
        let _ = writeln!(out, "{host:32}  {nodes:6}  {keys:6}  {letter:>6}");
    }
    out
}

/// Nodes as the letters of their endpoints, place 0 at the top, clockwise.
fn circle(tables: &[Tables]) -> String {
    const ROWS: usize = 17;
    const COLUMNS: usize = 2 * ROWS;
    let mut hosts: Vec<&Address> = tables.iter().map(|node| &node.peer.host).collect();
    hosts.sort();
    hosts.dedup();
    let mut rows = vec![vec![' '; COLUMNS + 1]; ROWS + 1];
    let mut put = |id: RingId, what: char| {
        let turn = id.0 as f64 / 2f64.powi(64) * std::f64::consts::TAU;
        let (radius, middle) = (ROWS as f64 / 2.0, COLUMNS as f64 / 2.0);
        let row = radius - radius * turn.cos();
        let column = middle + middle * turn.sin();
        let cell = rows
            .get_mut(row.round() as usize)
            .and_then(|row| row.get_mut(column.round() as usize));
        if let Some(cell) = cell {
            *cell = what;
        }
    };
    for step in 0..256u64 {
        put(RingId(step << 56), '·');
    }
    for node in tables {
        let at = hosts.iter().position(|host| **host == node.peer.host);
        put(node.peer.id, letters().nth(at.unwrap_or(0)).unwrap_or('*'));
    }
    let lines = rows.into_iter().map(|row| {
        let line: String = row.into_iter().collect();
        format!("   {}\n", line.trim_end())
    });
    lines.collect()
}

fn letters() -> impl Iterator<Item = char> {
    ('A'..='Z').chain('a'..='z').chain(std::iter::repeat('*'))
}

/// The ring as a line that begins at a node: a lookup's way so far, where it is, and where it has to go.
fn line_of(begin: RingId, goal: RingId, at: RingId) -> String {
    let cell = |id: RingId| ((u128::from(begin.distance_to(id)) * LINE as u128) >> 64) as usize;
    let cells = (0..LINE).map(|number| match number {
        _ if number == cell(at) => '●',
        _ if number == cell(goal) => '◆',
        _ if number < cell(at) => '─',
        _ => '·',
    });
    cells.collect()
}

/// A share of the ring, as a power of two.
fn share(distance: u64) -> String {
    match distance {
        0 => "0".to_owned(),
        _ => format!("2^-{:.1}", 64.0 - (distance as f64).log2()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Peer;

    fn peer(id: u64) -> Peer {
        Peer {
            id: RingId(id),
            host: format!("mem://{}", id % 3).parse().unwrap(),
        }
    }

    #[test]
    fn the_way_leads_to_the_owner() {
        let quarter = 1 << 62;
        let found = Found {
            owner: peer(3 * quarter),
            span: None,
            hops: 2,
            trail: Some(vec![peer(0), peer(quarter), peer(3 * quarter)]),
            value: None,
            copies: 0,
        };
        let drawn = way("k", RingId(2 * quarter), &found, None);
        let lines: Vec<&str> = drawn.lines().skip(3).collect();
        assert!(lines[0].contains("●·······················◆·"), "{drawn}");
        assert!(lines[0].contains("2^-1.0"), "{drawn}");
        assert!(lines[1].contains("────────────●···········◆·"), "{drawn}");
        assert!(lines[2].contains("owner"), "{drawn}");
        assert!(drawn.ends_with("2 hops over 2 endpoints\n"), "{drawn}");
    }

    #[test]
    fn the_ring_shows_every_endpoint() {
        let members: Vec<Peer> = (0..8).map(|number| peer(number << 61)).collect();
        let tables: Vec<Tables> = members
            .iter()
            .map(|peer| {
                let config = crate::node::Config::default();
                crate::node::Node::settled(peer.clone(), &members, config).tables()
            })
            .collect();
        let drawn = ring(&tables);
        for letter in ['A', 'B', 'C'] {
            assert!(
                drawn.lines().take(18).any(|line| line.contains(letter)),
                "{drawn}"
            );
        }
    }
}
