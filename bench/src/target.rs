//! What the project promises of its figures, and whether results keep it.

pub mod speed;

use crate::ratio::{alone, calls, floor, of_medians, of_tails};
use crate::row::Row;

/// A promise and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// What is promised, the limit included.
    pub what: String,
    /// Under which conditions.
    pub condition: String,
    /// The ratio that was measured.
    pub measured: f64,
    /// The least it may be.
    pub least: f64,
    /// The most it may be.
    pub most: f64,
}

impl Target {
    /// Whether the promise is kept.
    pub fn is_met(&self) -> bool {
        (self.least..=self.most).contains(&self.measured)
    }
}

/// The targets that rows of one run have something to say about.
pub fn of(rows: &[Row]) -> Vec<Target> {
    let rules = [near_the_floor, below_calls, half_of_the_links, undisturbed];
    rules
        .iter()
        .flat_map(|rule| rows.iter().filter_map(|row| rule(row, rows)))
        .collect()
}

/// A call costs little more than its messages.
fn near_the_floor(row: &Row, rows: &[Row]) -> Option<Target> {
    let is_stream = row.transport == "unix" || row.transport == "tcp";
    let wanted = row.bench == "hops" && row.pin.is_some() && row.link_us == 0 && is_stream;
    let ratio = of_medians(row, floor(row, rows)?)?;
    (wanted && row.system == "wallaby-dpc").then(|| Target {
        what: format!("p50 of DPC at most {MOST_OF_FLOOR} × tokio floor"),
        condition: condition(row),
        measured: ratio,
        least: 0.0,
        most: MOST_OF_FLOOR,
    })
}

/// Fewer messages must show. TCP on one machine gains little by them: one-way connections lose the acknowledgements
/// that ride on answers.
fn below_calls(row: &Row, rows: &[Row]) -> Option<Target> {
    let wanted = row.bench == "hops"
        && row.pin.is_some()
        && row.link_us == 0
        && row.transport == "unix"
        && row.system == "wallaby-dpc"
        && row.n > 1;
    let ratio = of_medians(row, calls(row, rows)?)?;
    wanted.then(|| Target {
        what: "p50 of DPC below that of RPC".into(),
        condition: condition(row),
        measured: ratio,
        least: 0.0,
        most: 1.0,
    })
}

/// Over real distances the number of messages in sequence is all that counts.
fn half_of_the_links(row: &Row, rows: &[Row]) -> Option<Target> {
    let wanted = row.bench == "hops" && row.link_us >= 1_000 && row.n > 1;
    let ratio = of_medians(row, calls(row, rows)?)?;
    let expected = (row.n + 1) as f64 / (2 * row.n) as f64;
    wanted.then(|| Target {
        what: format!(
            "p50 of DPC within {} % of {expected:.3} × RPC",
            OFF_BY * 100.0
        ),
        condition: condition(row),
        measured: ratio,
        least: expected * (1.0 - OFF_BY),
        most: expected * (1.0 + OFF_BY),
    })
}

/// Small messages do not wait for large ones on their connection. What becomes of them where the large ones have another
/// connection is up to the operating system.
fn undisturbed(row: &Row, rows: &[Row]) -> Option<Target> {
    let ratio = of_tails(row, alone(row, rows)?)?;
    (!row.system.ends_with("-apart")).then(|| Target {
        what: format!("p99 of {} at most {MOST_OF_ALONE} × alone", row.system),
        condition: condition(row),
        measured: ratio,
        least: 0.0,
        most: MOST_OF_ALONE,
    })
}

fn condition(row: &Row) -> String {
    match row.bench.as_str() {
        "large" => format!("{}, {}", row.transport, row.placement()),
        _ => format!("{}, n = {}, {}", row.transport, row.n, row.placement()),
    }
}

const MOST_OF_FLOOR: f64 = 1.35;
const OFF_BY: f64 = 0.03;
const MOST_OF_ALONE: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    fn measured(rows: &[Row]) -> Vec<(f64, bool)> {
        of(rows)
            .iter()
            .map(|target| (target.measured, target.is_met()))
            .collect()
    }

    #[test]
    fn forwarded_calls_are_held_against_floor_and_calls() {
        let rows = [
            sample("floor-forward-tokio", "unix", 2, 16.0),
            sample("wallaby-dpc", "unix", 2, 24.0),
            sample("wallaby-rpc", "unix", 2, 32.0),
        ];
        assert_eq!(measured(&rows), [(1.5, false), (0.75, true)]);
    }

    #[test]
    fn over_a_link_the_ratio_is_that_of_the_messages() {
        let link = |system: &str, p50_us| Row {
            link_us: 1_000,
            ..sample(system, "tcp", 4, p50_us)
        };
        let rows = [link("wallaby-dpc", 5_000.0), link("wallaby-rpc", 8_000.0)];
        assert_eq!(measured(&rows), [(0.625, true)]);
        let rows = [link("wallaby-dpc", 4_800.0), link("wallaby-rpc", 8_000.0)];
        assert_eq!(
            measured(&rows),
            [(0.6, false)],
            "too good to be true is wrong too"
        );
    }

    #[test]
    fn small_calls_are_held_against_themselves() {
        let large = |system: &str, n, p50_us| Row {
            bench: "large".into(),
            server_pin: Some(1),
            ..sample(system, "tcp", n, p50_us)
        };
        let rows = [
            large("wallaby-rpc", 0, 10.0),
            large("wallaby-rpc+answers", 16_384, 15.0),
            large("wallaby-rpc+answers-apart", 16_384, 90.0),
        ];
        assert_eq!(measured(&rows), [(1.5, true)]);
    }
}
