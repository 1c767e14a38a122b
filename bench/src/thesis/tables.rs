//! Rows of this chapter as tables in Markdown: both forms of the same work side by side.

use crate::ratio::{calls, floor};
use crate::row::Row;
use std::fmt::Write;

/// What an operation takes, of both forms.
pub(crate) fn latency(rows: &[Row]) -> String {
    let mut text = String::new();
    for transport in distinct(rows.iter().map(|row| row.transport.as_str())) {
        let of: Vec<&Row> = rows
            .iter()
            .filter(|row| row.transport == transport)
            .collect();
        let measured = of.first().filter(|row| row.simulated.is_none());
        let link = measured.map_or(0, |row| row.link_us);
        // Writing to a string can't fail.
        let _ = writeln!(text, "**{}**\n", title(of.first().copied()));
        text.push_str(match link {
            0 => {
                "| | messages (client) | calls | p50 µs | calls | DPC / RPC | × floor | calls × floor | CPU µs (client) | calls |\n\
                 |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            }
            _ => {
                "| | links on the way | calls | p50 in links | calls | DPC / RPC | floor in links | calls' floor |\n\
                 |---|---:|---:|---:|---:|---:|---:|---:|\n"
            }
        });
        for dpc in of.iter().filter(|row| row.system.ends_with("-dpc")) {
            let Some(rpc) = calls(dpc, rows) else {
                continue;
            };
            text.push_str(&match link {
                0 => at_once(dpc, rpc, rows),
                _ => delayed(dpc, rpc, rows),
            });
        }
        text.push('\n');
    }
    text
}

/// Latency over throughput, of both forms.
pub(crate) fn load(rows: &[Row]) -> String {
    let mut text = String::new();
    for (bench, transport) in distinct(rows.iter().map(|row| (&*row.bench, &*row.transport))) {
        let of: Vec<&Row> = rows
            .iter()
            .filter(|row| row.bench == bench && row.transport == transport)
            .collect();
        let _ = writeln!(text, "**{bench}, {}**\n", title(of.first().copied()));
        text.push_str(
            "| load | offered/s | done/s | calls | p50 µs | calls | p99 µs | calls | p99, DPC / RPC | CPU µs | calls |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for dpc in of.iter().filter(|row| row.system.ends_with("-dpc")) {
            let other = |row: &&&Row| row.n == dpc.n && row.system.ends_with("-rpc");
            let Some(rpc) = of.iter().find(other) else {
                continue;
            };
            let share = match dpc.n {
                0 => "as much as can be".to_owned(),
                share => format!("{share} %"),
            };
            let _ = writeln!(
                text,
                "| {share} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} |",
                dpc.offered_per_s
                    .map_or_else(String::new, |rate| format!("{rate:.0}")),
                dpc.ops_per_s.unwrap_or(0.0),
                rpc.ops_per_s.unwrap_or(0.0),
                dpc.p50_us,
                rpc.p50_us,
                dpc.p99_us,
                rpc.p99_us,
                dpc.p99_us / rpc.p99_us,
                dpc.cpu_us_per_op,
                rpc.cpu_us_per_op,
            );
        }
        text.push('\n');
    }
    text
}

/// A line of a table without emulated links.
fn at_once(dpc: &Row, rpc: &Row, rows: &[Row]) -> String {
    let count = |count: Option<f64>| count.map_or_else(String::new, |count| format!("{count:.0}"));
    let over_floor = |row: &Row| {
        let floor = floor(row, rows).filter(|floor| floor.p50_us > 0.0);
        floor.map_or_else(String::new, |floor| {
            format!("{:.2}", row.p50_us / floor.p50_us)
        })
    };
    let client = |row: &Row| row.client_cpu_us.unwrap_or(0.0);
    format!(
        "| {} | {} ({}) | {} | {:.1} | {:.1} | {:.2} | {} | {} | {:.1} ({:.1}) | {:.1} ({:.1}) |\n",
        name(dpc),
        count(dpc.messages),
        count(dpc.client_messages),
        count(rpc.messages),
        dpc.p50_us,
        rpc.p50_us,
        dpc.p50_us / rpc.p50_us,
        over_floor(dpc),
        over_floor(rpc),
        dpc.cpu_us_per_op,
        client(dpc),
        rpc.cpu_us_per_op,
        client(rpc),
    )
}

/// A line of a table of emulated links: figures in the delay of one.
fn delayed(dpc: &Row, rpc: &Row, rows: &[Row]) -> String {
    let hops = hops(dpc);
    let links = |micros: f64| micros / dpc.link_us as f64;
    let floor = |row: &Row, system: &[&str]| {
        let same = |other: &&Row| other.comparable(row) && system.contains(&other.system.as_str());
        let floor = rows.iter().find(same);
        floor.map_or_else(String::new, |floor| format!("{:.3}", links(floor.p50_us)))
    };
    format!(
        "| {} | {} | {} | {:.3} | {:.3} | {:.3} | {} | {} |\n",
        name(dpc),
        hops + 1,
        2 * hops,
        links(dpc.p50_us),
        links(rpc.p50_us),
        dpc.p50_us / rpc.p50_us,
        floor(dpc, &["floor-forward"]),
        floor(rpc, &["floor-sequential", "floor-parallel"]),
    )
}

/// How many servers are visited in sequence.
pub(crate) fn hops(row: &Row) -> u64 {
    match row.bench.as_str() {
        "fanout" => 2,
        "rays" => row.n + 1,
        _ => row.n,
    }
}

/// Queries by their names, others with their parameter.
pub(super) fn name(row: &Row) -> String {
    match row.bench.as_str() {
        "hops" | "fanout" | "rays" => format!("{} {}", row.bench, row.n),
        query => query.to_uppercase(),
    }
}

pub(super) fn title(row: Option<&Row>) -> String {
    let Some(row) = row else {
        return "nothing".into();
    };
    if let Some(costs) = &row.simulated {
        let sites = match row.link_us {
            0 => String::new(),
            link => format!(", sites {} ms apart", link as f64 / 1_000.0),
        };
        return format!("SIMULATED with the costs of {costs}, not measured{sites}");
    }
    let link = match row.link_us {
        0 => String::new(),
        link => format!(", links of {} ms one way", link as f64 / 1_000.0),
    };
    format!(
        "over {}, {}{link}, {} rounds",
        row.transport,
        row.placement(),
        row.rounds
    )
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn forms_stand_side_by_side() {
        let mut rows = vec![
            sample("floor-forward-tokio", "unix", 2, 8.0),
            sample("wallaby-dpc", "unix", 2, 12.0),
            sample("wallaby-rpc", "unix", 2, 16.0),
        ];
        let text = latency(&rows);
        assert!(
            text.contains("| hops 2 | 3 () | 3 | 12.0 | 16.0 | 0.75 | 1.50 |"),
            "{text}"
        );
        for row in &mut rows {
            (row.link_us, row.bench) = (4, "is5".into());
        }
        rows[0].system = "floor-forward".into();
        let text = latency(&rows);
        assert!(
            text.contains("| IS5 | 3 | 4 | 3.000 | 4.000 | 0.750 | 2.000 |  |"),
            "{text}"
        );
    }

    #[test]
    fn what_is_simulated_says_so() {
        let mut row = sample("simulated-dpc", "model", 1, 9.5);
        row.simulated = Some("thesis".into());
        let calls = Row {
            system: "simulated-rpc".into(),
            ..row.clone()
        };
        assert!(
            latency(&[row.clone(), calls.clone()]).contains("SIMULATED with the costs of thesis")
        );
        assert!(load(&[row, calls]).contains("SIMULATED"));
    }
}
