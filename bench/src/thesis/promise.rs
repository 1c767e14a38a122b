//! What is promised of the thesis' workloads, and whether results keep it.

use super::tables::hops;
use crate::ratio::calls;
use crate::row::Row;

/// A promise and what was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Promise {
    pub(crate) what: String,
    pub(crate) place: String,
    pub(crate) found: String,
    pub(crate) kept: bool,
}

/// The promises that these rows say something about.
pub(crate) fn of(rows: &[Row]) -> Vec<Promise> {
    let Some(first) = rows.first() else {
        return Vec::new();
    };
    if rows.iter().any(|row| row.split.is_some()) {
        return Vec::new(); // the same once more, in the company of a meter
    }
    if first.bench.starts_with("load-") {
        return throughput(rows);
    }
    match (first.simulated.as_deref(), first.link_us) {
        (Some("wallaby"), 0) => predicted(rows),
        (Some(_), _) => Vec::new(),
        (None, 0) => [messages(rows), at_once(rows)].concat(),
        (None, _) => delayed(rows),
    }
}

/// Table 6.3: messages of a multi-hop call, those at its client, and of plain calls.
fn messages(rows: &[Row]) -> Vec<Promise> {
    let mut promises = Vec::new();
    for (query, all, client, plain) in TABLE_6_3 {
        // Over UDP some are repeated, so what is counted there says less.
        let of = |row: &&Row| {
            row.bench == query && row.transport == "unix" && row.system == "wallaby-dpc"
        };
        let Some((dpc, rpc)) = rows
            .iter()
            .find(of)
            .and_then(|row| Some((row, calls(row, rows)?)))
        else {
            continue;
        };
        let whole = |count: Option<f64>| count.unwrap_or(f64::INFINITY).round();
        let found = (
            whole(dpc.messages),
            whole(dpc.client_messages),
            whole(rpc.messages),
        );
        promises.push(Promise {
            what: format!(
                "{} in {all} messages, {client} at the client",
                query.to_uppercase()
            ),
            place: format!("table 6.3; plain calls {plain}"),
            found: format!("{}, {}; {}", found.0, found.1, found.2),
            kept: found.0 <= all && found.1 <= client && found.2 <= plain,
        });
    }
    promises
}

/// Never slower than plain calls.
fn at_once(rows: &[Row]) -> Vec<Promise> {
    let mut promises = Vec::new();
    for (what, one_hop, most) in [
        ("DPC never slower than RPC for two hops or more", false, 1.0),
        ("DPC at most 3 % slower than RPC for one hop", true, 1.03),
    ] {
        let mut transports: Vec<&str> = rows.iter().map(|row| row.transport.as_str()).collect();
        transports.dedup();
        transports.sort_unstable();
        transports.dedup();
        for transport in transports {
            let of = |row: &&Row| row.transport == transport && (hops(row) == 1) == one_hop;
            let ratios = rows.iter().filter(of).filter_map(|row| {
                let rpc = calls(row, rows)?;
                Some((row.p50_us / rpc.p50_us, row))
            });
            let Some((worst, row)) = ratios.max_by(|a, b| a.0.total_cmp(&b.0)) else {
                continue;
            };
            promises.push(Promise {
                what: what.into(),
                place: format!("{transport}, {}", row.placement()),
                found: format!("{worst:.2} at most ({} n={})", row.bench, row.n),
                kept: worst <= most,
            });
        }
    }
    promises
}

/// h + 1 links against 2h.
fn delayed(rows: &[Row]) -> Vec<Promise> {
    let link = rows.first().map_or(0, |row| row.link_us);
    let of = rows.iter().filter(|row| row.system == "wallaby-dpc");
    let off = of.map(|row| {
        let expected = (hops(row) + 1) as f64 * row.link_us as f64;
        (row.p50_us / expected - 1.0, row)
    });
    let Some((worst, row)) = off.max_by(|a, b| a.0.abs().total_cmp(&b.0.abs())) else {
        return Vec::new();
    };
    vec![Promise {
        what: "DPC within 3 % of h + 1 link delays".into(),
        place: format!("links of {} ms", link as f64 / 1_000.0),
        found: format!(
            "{:+.1} % at most ({} n={})",
            worst * 100.0,
            row.bench,
            row.n
        ),
        // Promised for 1 ms; below that what is on the way besides shows.
        kept: worst.abs() <= 0.03,
    }]
}

/// The thesis' reductions, in the cluster that is not there.
fn predicted(rows: &[Row]) -> Vec<Promise> {
    let promised = [
        ("hops", 2, 18.0),
        ("hops", 10, 42.0),
        ("is2", 4, 49.0),
        ("is3", 2, 24.0),
        ("is7", 3, 44.0),
        ("rays", 10, 48.0),
    ];
    let mut promises = Vec::new();
    for (bench, n, least) in promised {
        let of = |row: &&Row| row.bench == bench && row.n == n && row.system == "simulated-dpc";
        let pair = rows
            .iter()
            .find(of)
            .and_then(|row| Some((row, calls(row, rows)?)));
        let Some((dpc, rpc)) = pair else { continue };
        let reduction = 100.0 * (1.0 - dpc.p50_us / rpc.p50_us);
        promises.push(Promise {
            what: format!("{bench} n={n}: at least {least} % less than calls"),
            place: "SIMULATED".into(),
            found: format!("{reduction:.1} %"),
            kept: reduction >= least,
        });
    }
    promises
}

/// As much done as by plain calls, and sooner.
fn throughput(rows: &[Row]) -> Vec<Promise> {
    let mut promises = Vec::new();
    for dpc in rows.iter().filter(|row| row.system.ends_with("-dpc")) {
        let Some(rpc) = calls(dpc, rows) else {
            continue;
        };
        let place = match &dpc.simulated {
            Some(_) => "SIMULATED".to_owned(),
            None => format!("{}, {}", dpc.transport, dpc.placement()),
        };
        if dpc.n == 0 {
            let ratio = dpc.ops_per_s.unwrap_or(0.0) / rpc.ops_per_s.unwrap_or(f64::INFINITY);
            promises.push(Promise {
                what: format!("{}: as much as RPC can do at most", dpc.bench),
                place,
                found: format!("{ratio:.2} times"),
                kept: ratio >= 1.0,
            });
        } else if dpc.n <= 80 {
            let ratio = dpc.p99_us / rpc.p99_us;
            promises.push(Promise {
                what: format!("{} at {} %: p99 below RPC's", dpc.bench, dpc.n),
                place,
                found: format!("{ratio:.2} times"),
                kept: ratio < 1.0,
            });
        }
    }
    promises
}

const TABLE_6_3: [(&str, f64, f64, f64); 8] = [
    ("is1", 4.0, 4.0, 4.0),
    ("is2", 61.0, 21.0, 82.0),
    ("is3", 22.0, 12.0, 22.0),
    ("is4", 2.0, 2.0, 2.0),
    ("is5", 3.0, 2.0, 4.0),
    ("is6a", 6.0, 3.0, 8.0),
    ("is6b", 7.0, 3.0, 10.0),
    ("is7", 54.0, 23.0, 66.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn a_slower_call_keeps_no_promise() {
        let rows = |factor: f64| {
            vec![
                sample("wallaby-dpc", "unix", 2, 10.0 * factor),
                sample("wallaby-rpc", "unix", 2, 10.0),
            ]
        };
        assert!(of(&rows(0.8)).iter().all(|promise| promise.kept));
        assert!(of(&rows(1.01)).iter().all(|promise| !promise.kept));
    }

    #[test]
    fn links_are_counted() {
        let mut row = sample("wallaby-dpc", "unix", 3, 4_100.0);
        row.link_us = 1_000;
        assert!(of(&[row.clone()])[0].kept);
        row.p50_us = 4_200.0;
        assert!(!of(&[row])[0].kept);
    }
}
