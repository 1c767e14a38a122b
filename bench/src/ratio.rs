//! What a result is compared with.

use crate::row::Row;

/// The floor a row is compared with: the same pattern of messages on tokio's sockets, or for the polling driver on those that
/// wait as it does, measured in the same run: blocking ones over UDP, else an epoll; over shared memory a futex, or nothing
/// where it never waits. The other floors are compared with those on blocking sockets, and these with nothing.
pub fn floor<'rows>(row: &Row, rows: &'rows [Row]) -> Option<&'rows Row> {
    let names: &[&str] = match row.system.as_str() {
        _ if row.bench.starts_with("flexrpc-") => flexrpc_floor(row),
        "floor-forward" | "floor-sequential" | "floor-parallel" | "simulated-dpc"
        | "simulated-rpc" => &[],
        "floor-forward-tokio" | "floor-forward-epoll" => &["floor-forward"],
        "floor-sequential-tokio" | "floor-sequential-epoll" => &["floor-sequential"],
        "floor-parallel-tokio" | "floor-parallel-epoll" => &["floor-parallel"],
        "wallaby-polling-busy-dpc" => &["floor-forward-spinning"],
        "wallaby-polling-busy-rpc" => &["floor-sequential-spinning", "floor-parallel-spinning"],
        name if name.ends_with("-dpc") && row.transport == "shm" => &["floor-forward-futex"],
        name if name.ends_with("-rpc") && row.transport == "shm" => {
            &["floor-sequential-futex", "floor-parallel-futex"]
        }
        "wallaby-dpc" => &["floor-forward-tokio"],
        // These wait in a blocking receive over datagrams, and for several sockets otherwise, as their floors do.
        "wallaby-polling-dpc" if row.transport == "udp" => &["floor-forward"],
        "wallaby-polling-rpc" if row.transport == "udp" => &["floor-sequential", "floor-parallel"],
        "wallaby-polling-dpc" | "wallaby-polling-epoll-dpc" => &["floor-forward-epoll"],
        "wallaby-polling-rpc" | "wallaby-polling-epoll-rpc" => {
            &["floor-sequential-epoll", "floor-parallel-epoll"]
        }
        name if name.ends_with("-forward") => &["floor-forward-tokio"],
        // All others, peers included, make calls.
        _ => &["floor-sequential-tokio", "floor-parallel-tokio"],
    };
    names.iter().find_map(|name| other(row, rows, name))
}

/// Bare sockets that send to one server, to several side by side, or to the first, which passes it on.
fn flexrpc_floor(row: &Row) -> &'static [&'static str] {
    match row.system.as_str() {
        system if system.starts_with("floor") => &[],
        "wallaby-serial" => &["floor-serial"],
        _ if row.link_mbit.is_some() => &["floor-parallel"],
        _ => &["floor"],
    }
}

/// The row of libtirpc, where it was measured beside.
pub fn tirpc<'rows>(row: &Row, rows: &'rows [Row]) -> Option<&'rows Row> {
    const NAME: &str = "libtirpc";
    other(row, rows, NAME).filter(|_| row.system != NAME)
}

/// For a row of `wallaby-dpc` that of `wallaby-rpc`, and so for the polling driver and for chains: the same work by calls.
pub fn calls<'rows>(row: &Row, rows: &'rows [Row]) -> Option<&'rows Row> {
    let calls = match row.system.as_str() {
        "wallaby-dpc" => "wallaby-rpc",
        "wallaby-polling-dpc" => "wallaby-polling-rpc",
        "wallaby-polling-epoll-dpc" => "wallaby-polling-epoll-rpc",
        "wallaby-polling-busy-dpc" => "wallaby-polling-busy-rpc",
        "simulated-dpc" => "simulated-rpc",
        name if name.starts_with("chain") => "calls",
        _ => return None,
    };
    other(row, rows, calls)
}

/// For a row of something beside something else, as small calls beside large messages, that of the same alone.
pub fn alone<'rows>(row: &Row, rows: &'rows [Row]) -> Option<&'rows Row> {
    let (system, _) = row.system.split_once('+')?;
    let quiet = Row {
        n: 0,
        ..row.clone()
    };
    other(row, rows, system).or_else(|| other(&quiet, rows, system))
}

/// For a row of many of something that of the fewest which were measured in the same run.
pub fn fewest<'rows>(row: &Row, rows: &'rows [Row]) -> Option<&'rows Row> {
    row.scale?;
    let alike = |other: &&Row| {
        let as_many = Row {
            n: row.n,
            ..Row::clone(other)
        };
        other.system == row.system && as_many.comparable(row)
    };
    let fewest = rows.iter().filter(alike).min_by_key(|other| other.n)?;
    (fewest.n < row.n).then_some(fewest)
}

/// How many times the processor time of an operation of `other` that of `row` is.
pub fn of_processor_times(row: &Row, other: &Row) -> Option<f64> {
    (other.cpu_us_per_op > 0.0).then(|| row.cpu_us_per_op / other.cpu_us_per_op)
}

/// The row of another system that was measured under the same conditions.
pub fn other<'rows>(row: &Row, rows: &'rows [Row], system: &str) -> Option<&'rows Row> {
    rows.iter()
        .find(|other| other.system == system && other.comparable(row))
}

/// How many times the median of `other` the median of `row` is; where several call at a time, of the time for each call.
pub fn of_medians(row: &Row, other: &Row) -> Option<f64> {
    if row.bench.ends_with("-callers") {
        return Some(other.ops_per_s? / row.ops_per_s.filter(|rate| *rate > 0.0)?);
    }
    (other.p50_us > 0.0).then(|| row.p50_us / other.p50_us)
}

/// How many times the 99th percentile of `other` that of `row` is.
pub fn of_tails(row: &Row, other: &Row) -> Option<f64> {
    (other.p99_us > 0.0).then(|| row.p99_us / other.p99_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    #[test]
    fn a_row_is_compared_with_its_own_pattern_and_transport() {
        let rows = [
            sample("floor-forward-tokio", "tcp", 2, 20.0),
            sample("floor-forward-tokio", "unix", 1, 8.0),
            sample("floor-forward-tokio", "unix", 2, 16.0),
            sample("wallaby-rpc", "unix", 2, 30.0),
            sample("wallaby-dpc", "unix", 2, 20.0),
        ];
        let dpc = &rows[4];
        let floor = floor(dpc, &rows).unwrap();
        assert_eq!(of_medians(dpc, floor), Some(1.25));
        assert_eq!(calls(dpc, &rows), Some(&rows[3]));
        assert_eq!(super::floor(&rows[3], &rows), None);
    }

    #[test]
    fn flexrpc_is_compared_with_its_floor_and_with_libtirpc() {
        let row = |system: &str, p50_us| Row {
            bench: "flexrpc-single".into(),
            ..sample(system, "udp", 1_024, p50_us)
        };
        let rows = [
            row("floor", 10.0),
            row("libtirpc", 16.0),
            row("wallaby-onc", 12.0),
        ];
        let ratios = |other: &Row| (floor(other, &rows).cloned(), tirpc(other, &rows).cloned());
        assert_eq!(
            ratios(&rows[2]),
            (Some(rows[0].clone()), Some(rows[1].clone()))
        );
        assert_eq!(ratios(&rows[1]), (Some(rows[0].clone()), None));
        assert_eq!(ratios(&rows[0]), (None, Some(rows[1].clone())));
    }

    #[test]
    fn several_callers_are_compared_by_the_time_for_each_call() {
        let row = |rate| Row {
            bench: "flexrpc-callers".into(),
            ops_per_s: Some(rate),
            ..sample("floor", "tcp", 4, 10.0)
        };
        assert_eq!(of_medians(&row(100.0), &row(150.0)), Some(1.5));
    }

    #[test]
    fn calls_beside_large_messages_are_compared_with_calls_alone() {
        let rows = [
            sample("wallaby-rpc", "tcp", 0, 12.0),
            sample("wallaby-rpc", "unix", 0, 10.0),
            sample("wallaby-rpc+answers", "unix", 16_384, 15.0),
        ];
        let quiet = alone(&rows[2], &rows).unwrap();
        assert_eq!(of_tails(&rows[2], quiet), Some(1.5));
        assert_eq!(alone(quiet, &rows), None);
    }
}
