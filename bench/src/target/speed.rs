//! What is promised of speed in particular: each figure near that of its floor, whichever driver and transport it is of.

use super::{Target, condition};
use crate::ratio::{calls, fewest, floor, of_medians, of_processor_times, of_tails};
use crate::row::Row;

/// The targets that rows of one run have something to say about.
pub fn of(rows: &[Row]) -> Vec<Target> {
    let rules = [
        one_hop,
        tail_of_one_hop,
        forwarded,
        fewer_messages,
        in_shared_memory,
        while_busy,
        spread,
        many_under_way,
        many_of_something,
        memory_of_a_call,
        no_pause,
    ];
    rules
        .iter()
        .flat_map(|rule| rows.iter().filter_map(|row| rule(row, rows)))
        .collect()
}

/// Only what happens on one processor, on links that are not there, can be held against a floor.
fn is_bare(row: &Row, bench: &str) -> bool {
    row.bench == bench && row.pin.is_some() && row.server_pin.is_none() && row.link_us == 0
}

fn at_most(row: &Row, what: String, measured: f64, most: f64) -> Target {
    Target {
        what,
        condition: condition(row),
        measured,
        least: 0.0,
        most,
    }
}

fn near_the_floor(row: &Row, rows: &[Row], most: f64) -> Option<Target> {
    let floor = floor(row, rows)?;
    let what = format!("p50 of {} at most {most:.2} × {}", row.system, floor.system);
    Some(at_most(row, what, of_medians(row, floor)?, most))
}

fn one_hop(row: &Row, rows: &[Row]) -> Option<Target> {
    if !is_bare(row, "hops") || row.n != 1 {
        return None;
    }
    match (row.system.as_str(), row.transport.as_str()) {
        ("wallaby-polling-dpc", "udp") => near_the_floor(row, rows, 1.2),
        ("wallaby-dpc" | "wallaby-polling-dpc" | "wallaby-polling-epoll-dpc", _) => {
            near_the_floor(row, rows, 1.1)
        }
        _ => None,
    }
}

fn tail_of_one_hop(row: &Row, rows: &[Row]) -> Option<Target> {
    let wanted = is_bare(row, "hops") && row.n == 1 && row.system == "wallaby-dpc";
    let floor = floor(row, rows).filter(|_| wanted)?;
    let what = format!("p99 of {} at most 1.30 × {}", row.system, floor.system);
    Some(at_most(row, what, of_tails(row, floor)?, 1.3))
}

fn forwarded(row: &Row, rows: &[Row]) -> Option<Target> {
    if !is_bare(row, "hops") || row.n < 2 || row.transport != "udp" {
        return None;
    }
    match row.system.as_str() {
        "wallaby-dpc" => near_the_floor(row, rows, 1.15),
        "wallaby-polling-dpc" => near_the_floor(row, rows, 1.22),
        _ => None,
    }
}

/// What is saved by fewer messages. Over TCP on one host that is little at first: one-way connections lose the
/// acknowledgements that ride on answers.
fn fewer_messages(row: &Row, rows: &[Row]) -> Option<Target> {
    if !is_bare(row, "hops") {
        return None;
    }
    let most = match (row.transport.as_str(), row.n) {
        ("udp" | "unix", 2) => 0.84,
        ("udp" | "unix", 4) => 0.74,
        ("udp" | "unix", 10) => 0.68,
        ("tcp", 2) => 1.05,
        ("tcp", 4 | 10) => 1.0,
        _ => return None,
    };
    let calls = calls(row, rows)?;
    let what = format!("p50 of {} at most {most:.2} × {}", row.system, calls.system);
    Some(at_most(row, what, of_medians(row, calls)?, most))
}

fn in_shared_memory(row: &Row, _: &[Row]) -> Option<Target> {
    let wanted = is_bare(row, "hops")
        && row.transport == "shm"
        && row.system.starts_with("wallaby-polling-dpc");
    let most = match row.n {
        1 => 5.0,
        10 => 55.0,
        _ => return None,
    };
    let what = format!("p50 of {} at most {most} µs", row.system);
    wanted.then(|| at_most(row, what, row.p50_us, most))
}

/// Where neither side ever sleeps.
fn while_busy(row: &Row, _: &[Row]) -> Option<Target> {
    let wanted = row.bench == "hops"
        && row.n == 1
        && row.transport == "shm"
        && row.system == "wallaby-polling-busy-dpc";
    let what = format!("p50 of {} at most 1 µs", row.system);
    wanted.then(|| at_most(row, what, row.p50_us, 1.0))
}

fn spread(row: &Row, rows: &[Row]) -> Option<Target> {
    let wanted = is_bare(row, "fanout")
        && row.transport == "udp"
        && row.n == 10
        && row.system == "wallaby-polling-dpc";
    wanted.then(|| near_the_floor(row, rows, 1.25))?
}

fn many_under_way(row: &Row, _: &[Row]) -> Option<Target> {
    let wanted = is_bare(row, "throughput")
        && row.n == 64
        && row.payload == 100
        && row.system.starts_with("wallaby-");
    let least = match row.transport.as_str() {
        "udp" => 0.5,
        "unix" | "tcp" => 1.5,
        _ => return None,
    };
    let measured = row.ops_per_s? / 1e6;
    wanted.then(|| Target {
        what: format!("{} at least {least} million calls a second", row.system),
        condition: condition(row),
        measured,
        least,
        most: f64::INFINITY,
    })
}

fn many_of_something(row: &Row, rows: &[Row]) -> Option<Target> {
    if row.system != "wallaby" {
        return None;
    }
    let fewest = fewest(row, rows)?;
    let what = format!(
        "CPU of an operation with many {} at most 1.30 × with {}",
        row.bench.trim_start_matches("scale-"),
        fewest.n
    );
    Some(at_most(row, what, of_processor_times(row, fewest)?, 1.3))
}

fn memory_of_a_call(row: &Row, _: &[Row]) -> Option<Target> {
    let bytes = row.scale?.client_bytes?;
    let what = "memory of a live call at its initiator at most 500 bytes".into();
    (row.bench == "scale-calls").then(|| at_most(row, what, bytes, 500.0))
}

fn no_pause(row: &Row, rows: &[Row]) -> Option<Target> {
    fewest(row, rows)?;
    let scale = row.scale?;
    let longest = scale
        .longest_us?
        .max(scale.server_longest_us.unwrap_or(0.0))
        / 1e3;
    let what = "no pause longer than 10 ms".into();
    (row.system == "wallaby").then(|| at_most(row, what, longest, 10.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Scale;
    use crate::row::tests::sample;

    fn measured(rows: &[Row]) -> Vec<(f64, bool)> {
        of(rows)
            .iter()
            .map(|target| (target.measured, target.is_met()))
            .collect()
    }

    #[test]
    fn one_hop_is_held_against_the_floor_that_waits_as_it_does() {
        let rows = [
            sample("floor-forward", "udp", 1, 10.0),
            sample("floor-forward-tokio", "udp", 1, 12.0),
            sample("wallaby-polling-dpc", "udp", 1, 11.5),
            sample("wallaby-dpc", "udp", 1, 15.0),
        ];
        let expected = [(1.15, true), (1.25, false), (1.25, true)];
        assert_eq!(measured(&rows), expected, "two medians, then a tail");
    }

    #[test]
    fn what_forwarding_saves_depends_on_the_transport() {
        let rows = |transport| {
            [
                sample("wallaby-rpc", transport, 2, 100.0),
                sample("wallaby-dpc", transport, 2, 90.0),
            ]
        };
        assert_eq!(measured(&rows("unix")), [(0.9, false)]);
        assert_eq!(measured(&rows("tcp")), [(0.9, true)]);
    }

    #[test]
    fn links_and_other_processors_are_not_held_against_floors() {
        let free = |system| Row {
            pin: None,
            ..sample(system, "udp", 1, 10.0)
        };
        assert_eq!(
            measured(&[free("floor-forward-tokio"), free("wallaby-dpc")]),
            []
        );
    }

    #[test]
    fn calls_a_second_are_counted_in_millions() {
        let row = |transport| Row {
            bench: "throughput".into(),
            ops_per_s: Some(1.2e6),
            ..sample("wallaby-rpc", transport, 64, 40.0)
        };
        assert_eq!(
            measured(&[row("tcp"), row("udp")]),
            [(1.2, false), (1.2, true)]
        );
    }

    #[test]
    fn many_of_something_are_held_against_the_fewest() {
        let row = |n, cpu, bytes| Row {
            bench: "scale-calls".into(),
            cpu_us_per_op: cpu,
            scale: Some(Scale {
                client_bytes: bytes,
                longest_us: Some(400.0),
                server_longest_us: Some(12_000.0),
                ..Scale::default()
            }),
            ..sample("wallaby", "unix", n, 9.0)
        };
        let rows = [row(1, 10.0, None), row(1_000_000, 12.5, Some(489.0))];
        assert_eq!(
            measured(&rows),
            [(1.25, true), (489.0, true), (12.0, false)]
        );
    }
}
