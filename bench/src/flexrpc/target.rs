//! What rows are compared with, and what is promised of them.

use super::experiment::Figure;
use crate::row::Row;
use crate::target::Target;

/// The system whose time a row's is compared with.
pub(super) fn reference(row: &Row) -> Option<&'static str> {
    (row.system != "libtirpc").then_some("libtirpc")
}

/// The floor of a row: bare sockets in the same pattern.
pub(super) fn floor_of(row: &Row) -> Option<&'static str> {
    match row.system.as_str() {
        system if system.starts_with("floor") => None,
        system if system.ends_with("-parallel") => Some("floor-parallel"),
        "wallaby-gathered" => Some("floor-serial"),
        system if system.ends_with("-serial") => Some("floor-serial"),
        _ if row.link_mbit.is_some() => Some("floor-parallel"),
        _ => Some("floor"),
    }
}

/// How many times the time of `other` that of `row` is: the median, or with several callers the time for each call.
pub(super) fn ratio(row: &Row, other: &Row) -> Option<f64> {
    let is_shared =
        row.bench == Figure::Callers.name() || row.bench == Figure::MulticastCallers.name();
    match is_shared {
        true => Some(other.ops_per_s? / row.ops_per_s.filter(|rate| *rate > 0.0)?),
        false => crate::ratio::of_medians(row, other),
    }
}

/// From where on the message that is passed on beats those that are sent side by side.
pub(super) fn crossing(figure: &[&Row]) -> Option<String> {
    let of = |system: &str, n| figure.iter().find(|row| row.system == system && row.n == n);
    let mut ns: Vec<u64> = figure.iter().map(|row| row.n).collect();
    ns.dedup();
    let wins = |n: &&u64| {
        let serial = of("wallaby-serial", **n).zip(of("wallaby-parallel", **n));
        serial.is_some_and(|(serial, parallel)| {
            ratio(serial, parallel).is_some_and(|ratio| ratio < 1.0)
        })
    };
    figure.iter().find(|row| row.system == "wallaby-serial")?;
    let name = figure.first().map_or("", |row| row.bench.as_str());
    let axis = Figure::ALL
        .into_iter()
        .find(|known| known.name() == name)?
        .axis();
    let last = ns.iter().rev().take_while(wins).last();
    Some(match last {
        Some(n) => format!("Serial multicast is faster than parallel from {n} {axis} on."),
        None => "Parallel multicast is faster at the end of this range.".into(),
    })
}

/// The targets that rows of one run have something to say about.
pub(super) fn targets(rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for transport in ["udp", "tcp"] {
        for system in [
            "wallaby-onc-blocking",
            "wallaby-onc",
            "wallaby-polling",
            "wallaby",
        ] {
            let below = |row: &Row| row.n < KIB;
            targets.extend(single(rows, system, transport, "below 1 KiB", 1.05, below));
            let above = |row: &Row| row.n >= KIB;
            targets.extend(single(rows, system, transport, "from 1 KiB on", 1.0, above));
        }
    }
    targets.extend(emulation(rows));
    for figure in [Figure::Sizes, Figure::MulticastCallers] {
        targets.extend(serial(rows, figure));
    }
    targets
}

/// The worst of a system's ratios to libtirpc.
fn single(
    rows: &[Row],
    system: &str,
    transport: &str,
    sizes: &str,
    most: f64,
    counts: impl Fn(&Row) -> bool,
) -> Option<Target> {
    let is_meant = |row: &&Row| {
        row.bench == Figure::Single.name()
            && row.system == system
            && row.transport == transport
            && counts(row)
    };
    let mine: Vec<&Row> = rows.iter().filter(is_meant).collect();
    let ratios = mine
        .iter()
        .filter_map(|row| ratio(row, crate::ratio::other(row, rows, "libtirpc")?));
    let measured = ratios.reduce(f64::max)?;
    Some(Target {
        what: format!("{system} at most {most} × libtirpc, single calls {sizes}"),
        condition: format!("{transport}, {}, the worst", mine.first()?.placement()),
        measured,
        least: 0.0,
        most,
    })
}

/// Bare sockets get what the emulated link has, a third of it each.
fn emulation(rows: &[Row]) -> Option<Target> {
    let largest = last(rows, Figure::Sizes, "floor-parallel")?;
    Some(Target {
        what: "bare sockets side by side get their share of the emulated link, within 2 %".into(),
        condition: format!("{} bytes to 3 servers, {}", largest.n, largest.placement()),
        measured: share(largest)? * 3.0,
        least: 0.98,
        most: 1.02,
    })
}

/// Passing on uses one link for all, where sending side by side uses it once for each.
fn serial(rows: &[Row], figure: Figure) -> Vec<Target> {
    let pair = last(rows, figure, "wallaby-serial").zip(last(rows, figure, "wallaby-parallel"));
    let Some((serial, parallel)) = pair else {
        return Vec::new();
    };
    let condition = format!("n = {}, {}", serial.n, serial.placement());
    let of_link = share(serial).map(|measured| Target {
        what: format!(
            "serial multicast at least 95 % of one link ({})",
            figure.name()
        ),
        condition: condition.clone(),
        measured,
        least: 0.95,
        most: 1.02,
    });
    let rates = serial
        .ops_per_s
        .zip(parallel.ops_per_s.filter(|rate| *rate > 0.0));
    let gain = rates.map(|(serial, parallel)| Target {
        what: format!(
            "serial multicast at least 2.6 × parallel ({})",
            figure.name()
        ),
        condition,
        measured: serial / parallel,
        least: 2.6,
        most: f64::INFINITY,
    });
    of_link.into_iter().chain(gain).collect()
}

fn last<'rows>(rows: &'rows [Row], figure: Figure, system: &str) -> Option<&'rows Row> {
    let of = rows
        .iter()
        .filter(|row| row.bench == figure.name() && row.system == system);
    of.max_by_key(|row| row.n)
}

/// How much of one link's bandwidth reaches each server.
fn share(row: &Row) -> Option<f64> {
    let bits = row.ops_per_s? * row.payload as f64 * 8.0;
    Some(bits / (row.link_mbit? as f64 * 1e6))
}

const KIB: u64 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    fn row(figure: Figure, system: &str, n: u64, p50_us: f64) -> Row {
        Row {
            bench: figure.name().into(),
            payload: n,
            link_mbit: (figure != Figure::Single).then_some(1_000),
            ops_per_s: Some(1e6 / p50_us),
            ..sample(system, "tcp", n, p50_us)
        }
    }

    #[test]
    fn the_worst_single_call_counts() {
        let single = |system, n, p50_us| row(Figure::Single, system, n, p50_us);
        let rows = [
            single("libtirpc", 0, 10.0),
            single("wallaby", 0, 10.4),
            single("libtirpc", 1_024, 10.0),
            single("wallaby", 1_024, 9.0),
            single("libtirpc", 2_048, 10.0),
            single("wallaby", 2_048, 11.0),
        ];
        let targets = targets(&rows);
        let found: Vec<_> = targets
            .iter()
            .map(|target| (target.measured, target.is_met()))
            .collect();
        assert_eq!(found, [(1.04, true), (1.1, false)]);
    }

    #[test]
    fn multicast_is_held_against_the_link() {
        let megabyte = 1 << 20;
        let link_us = megabyte as f64 * 8.0 / 1_000.0;
        let sizes = |system, times| row(Figure::Sizes, system, megabyte, link_us * times);
        let rows = [
            sizes("floor-parallel", 3.0),
            sizes("wallaby-parallel", 3.1),
            sizes("wallaby-serial", 1.02),
        ];
        let met: Vec<_> = targets(&rows).iter().map(Target::is_met).collect();
        assert_eq!(met, [true, true, true]);
        let rows: Vec<&Row> = rows.iter().collect();
        let crossing = crossing(&rows).unwrap();
        assert!(crossing.contains("from 1048576 bytes"), "{crossing}");
    }
}
