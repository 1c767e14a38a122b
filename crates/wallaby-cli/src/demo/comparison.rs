//! What the two ways of asking cost, as numbers and as a table.

use crate::time::{show, show_micros};
use console::{Alignment, pad_str, style};
use indicatif::HumanCount;
use serde::Serialize;
use std::time::Duration;

/// Messages and bytes, counted at one process or summed over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

impl Traffic {
    /// What came on top of `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            messages_sent: self.messages_sent.saturating_sub(earlier.messages_sent),
            messages_received: self
                .messages_received
                .saturating_sub(earlier.messages_received),
            bytes_sent: self.bytes_sent.saturating_sub(earlier.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(earlier.bytes_received),
        }
    }
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            messages_sent: self.messages_sent + other.messages_sent,
            messages_received: self.messages_received + other.messages_received,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
        }
    }
}

/// What many queries of one kind took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) latencies: Vec<Duration>,
    pub(crate) client: Traffic,
    /// Over all processes.
    pub(crate) cluster: Traffic,
}

/// What one query costs: latencies in microseconds, the rest as means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Cost {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) client_messages_sent: f64,
    pub(crate) client_messages_received: f64,
    pub(crate) client_bytes: f64,
    pub(crate) messages: f64,
    pub(crate) bytes: f64,
}

impl Measured {
    /// The cost of one query, if the traffic is that of `counted` queries.
    pub(crate) fn cost(&self, counted: u64) -> Cost {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let mean = |sum: u64| sum as f64 / counted.max(1) as f64;
        Cost {
            p50_us: percentile(&sorted, 50),
            p99_us: percentile(&sorted, 99),
            client_messages_sent: mean(self.client.messages_sent),
            client_messages_received: mean(self.client.messages_received),
            client_bytes: mean(self.client.bytes_sent + self.client.bytes_received),
            messages: mean(self.cluster.messages_sent),
            bytes: mean(self.cluster.bytes_sent),
        }
    }
}

/// The nearest-rank percentile, in microseconds. Not by a histogram, as in the benchmarks: one more crate to compile.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted
        .get(rank - 1)
        .map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

/// The same queries, asked in two ways.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    /// How many queries of each kind were measured.
    pub(crate) queries: u64,
    /// Whether both ways found the same in every query.
    pub(crate) same_answers: bool,
    pub(crate) dpc: Cost,
    pub(crate) rpc: Cost,
}

/// What the columns are called.
pub(crate) const DPC: &str = "one call of two hops";
pub(crate) const RPC: &str = "plain RPC";

/// One line of the table: what, and for both ways the number as text and the number.
pub(crate) struct Line {
    pub(crate) what: &'static str,
    pub(crate) dpc: String,
    pub(crate) rpc: String,
    /// The first as a part of the second.
    pub(crate) ratio: f64,
}

impl Comparison {
    /// The table's lines.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let line = |what, dpc: f64, rpc: f64, write: fn(f64) -> String| Line {
            what,
            dpc: write(dpc),
            rpc: write(rpc),
            ratio: dpc / rpc,
        };
        let (dpc, rpc) = (&self.dpc, &self.rpc);
        vec![
            line("latency, p50", dpc.p50_us, rpc.p50_us, show_micros),
            line("latency, p99", dpc.p99_us, rpc.p99_us, show_micros),
            line(
                "messages the client sent",
                dpc.client_messages_sent,
                rpc.client_messages_sent,
                mean,
            ),
            line(
                "messages the client handled",
                dpc.client_messages_received,
                rpc.client_messages_received,
                mean,
            ),
            line(
                "messages of all processes",
                dpc.messages,
                rpc.messages,
                mean,
            ),
            line(
                "bytes to and from the client",
                dpc.client_bytes,
                rpc.client_bytes,
                whole,
            ),
            line("bytes of all processes", dpc.bytes, rpc.bytes, whole),
        ]
    }

    /// What the numbers are, in words.
    pub(crate) fn note(&self, link: Duration) -> String {
        let link = if link.is_zero() {
            String::new()
        } else {
            format!(", each message {} on its way", show(link))
        };
        let queries = if self.queries == 1 {
            "1 query".to_owned()
        } else {
            format!("{} queries", self.queries)
        };
        format!(
            "{queries} of each kind, taken in turns{link}. Per query; messages and bytes are what the endpoints \
             counted on their connections, those of all processes counted once, where they were sent."
        )
    }

    /// The table for a terminal.
    pub(crate) fn table(&self) -> String {
        const NUMBER: usize = 12;
        let row = |what: &str, [dpc, rpc, ratio]: [&str; 3]| {
            let right =
                |text: &str, width| pad_str(text, width, Alignment::Right, None).into_owned();
            let what = pad_str(what, 30, Alignment::Left, None);
            format!(
                "{what}{}{}{}\n",
                right(dpc, DPC.len() + 2),
                right(rpc, NUMBER),
                right(ratio, 9)
            )
        };
        let mut out = style(row("", [DPC, RPC, "ratio"])).bold().to_string();
        for line in self.lines() {
            out += &row(line.what, [&line.dpc, &line.rpc, &ratio(line.ratio)]);
        }
        out
    }
}

/// A ratio as text; none where there is nothing to compare with.
pub(crate) fn ratio(ratio: f64) -> String {
    if ratio.is_finite() {
        format!("{ratio:.2}")
    } else {
        "–".to_owned()
    }
}

fn mean(number: f64) -> String {
    format!("{number:.1}")
}

fn whole(number: f64) -> String {
    HumanCount(number.round() as u64).to_string()
}

/// A comparison for the tests of everything that shows one.
#[cfg(test)]
pub(crate) fn example() -> Comparison {
    let dpc = Cost {
        p50_us: 3_120.0,
        p99_us: 4_000.0,
        client_messages_sent: 1.0,
        client_messages_received: 10.0,
        client_bytes: 2_340.4,
        messages: 21.0,
        bytes: 3_000.0,
    };
    let rpc = Cost {
        p50_us: 4_160.0,
        client_messages_sent: 11.0,
        client_messages_received: 11.0,
        ..dpc
    };
    Comparison {
        queries: 240,
        same_answers: true,
        dpc,
        rpc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let sorted: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(
            (percentile(&sorted, 50), percentile(&sorted, 99)),
            (100.0, 198.0)
        );
        assert_eq!(percentile(&sorted[..1], 99), 1.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn costs_are_means_over_the_queries() {
        let client = Traffic {
            messages_sent: 4,
            messages_received: 12,
            bytes_sent: 100,
            bytes_received: 300,
        };
        let measured = Measured {
            latencies: vec![Duration::from_micros(3), Duration::from_micros(1)],
            client,
            cluster: client + client,
        };
        let cost = measured.cost(2);
        assert_eq!((cost.p50_us, cost.p99_us), (1.0, 3.0));
        assert_eq!(
            (cost.client_messages_sent, cost.client_messages_received),
            (2.0, 6.0)
        );
        assert_eq!(
            (cost.client_bytes, cost.messages, cost.bytes),
            (200.0, 4.0, 100.0)
        );
        assert_eq!(Measured::default().cost(0), Cost::default());
    }

    #[test]
    fn the_table_lines_up() {
        let table = console::strip_ansi_codes(&example().table()).into_owned();
        let widths: Vec<_> = table.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [widths[0]; 8], "{table}");
        assert!(table.contains("3.12 ms     4.16 ms     0.75"), "{table}");
        assert!(table.contains("2,340"), "{table}");
    }

    #[test]
    fn nothing_divided_by_nothing_is_no_ratio() {
        assert_eq!(ratio(f64::NAN), "–");
        assert_eq!(whole(1_234_567.0), "1,234,567");
        assert_eq!(whole(12.0), "12");
    }
}
