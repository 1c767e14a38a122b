//! The way of a lookup, drawn for people.

use crate::id::RingId;
use crate::message::Found;
use std::collections::BTreeSet;
use std::time::Duration;
use wallaby::{Address, Trace};
use wallaby_program::output::table;

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
    let rows = trail.iter().enumerate().map(|(number, peer)| {
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
        [
            number.to_string(),
            peer.id.to_string(),
            line_of(begin.id, id, peer.id),
            left,
            time(timing.map(|timing| timing.arrived)),
            time(timing.map(|timing| timing.ran)),
            peer.host.to_string(),
        ]
    });
    let heads = [
        "hop",
        "node",
        "the ring, from the first node on",
        "of it left",
        "arrived",
        "ran",
        "endpoint",
    ];
    out += &table(0..0, &heads, rows);
    let hosts: BTreeSet<&Address> = trail.iter().map(|peer| &peer.host).collect();
    let (hops, hosts) = (found.hops, hosts.len());
    out += &format!("\n{hops} hops over {hosts} endpoints\n");
    out
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
}
