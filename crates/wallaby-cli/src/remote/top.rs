//! `wallaby top`: how much endpoints have to do, live.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{DecimalBytes, HumanCount, HumanDuration};
use serde_json::{Value, json};
use wallaby::reflection::{LOAD, LoadReport};
use wallaby::{Address, CallError, Client, Code};
use wallaby_program::output;

use super::{Way, block_on};
use crate::output::{Exit, json_line, plain};
use crate::time::parse_nonzero;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby top tcp://127.0.0.1:4000 tcp://127.0.0.1:4001
  wallaby top tcp://127.0.0.1:4000 --every 10s
  wallaby top tcp://127.0.0.1:4000 --once --json | jq .waiting

'running' are handlers, 'waiting' requests that wait for one, 'calls' those that the endpoint has made itself and that have not
ended. What has '/s' is of the time since the last look; at first, and with --once, of all the time since the endpoint was made.
Exit status: with --once 0 if all have answered and 1 if not; 2 if the command line is wrong.")]
pub(crate) struct Top {
    /// The servers, as for `wallaby list`
    #[arg(required = true)]
    addresses: Vec<Address>,
    #[command(flatten)]
    way: Way,
    /// How often they are asked
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_nonzero)]
    every: Duration,
    /// Ask once
    #[arg(long)]
    once: bool,
    /// Say it in JSON, a line for each endpoint each time
    #[arg(long)]
    json: bool,
}

/// An endpoint, and what it said last.
struct Watched {
    address: Address,
    client: Client,
    last: Option<LoadReport>,
}

/// What an endpoint says, or why it says nothing.
type Seen = Result<Row, String>;

/// An endpoint now.
struct Row {
    report: LoadReport,
    /// What the report is compared with, if the endpoint has said something before.
    before: Option<LoadReport>,
}

/// How long an endpoint may take to answer, at least.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);

impl Top {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            let endpoint = self.way.endpoint(&self.addresses).await?;
            // One that has too much to do to answer holds up no other for long.
            let time = match self.once {
                true => self.way.deadline,
                false => self.way.deadline.min(self.every.max(SHORTEST_LOOK)),
            };
            let addresses = self.addresses.iter();
            let mut watched: Vec<Watched> = addresses
                .map(|address| Watched {
                    address: address.clone(),
                    client: self.way.client(&endpoint, address).deadline(time),
                    last: None,
                })
                .collect();
            loop {
                let next = Instant::now() + self.every;
                let seen = look(&mut watched).await;
                self.show(&watched, &seen)?;
                if self.once {
                    return match seen.iter().all(Result::is_ok) {
                        true => Ok(()),
                        false => Err(Exit(1).into()),
                    };
                }
                tokio::time::sleep_until(next.into()).await;
            }
        })
    }

    fn show(&self, watched: &[Watched], seen: &[Seen]) -> anyhow::Result<()> {
        if self.json {
            let each = watched.iter().zip(seen);
            return (each.into_iter())
                .try_for_each(|(watched, seen)| json_line(&told(&watched.address, seen)));
        }
        let addresses: Vec<String> = (watched.iter())
            .map(|watched| plain(&watched.address.to_string()))
            .collect();
        let table = table(&addresses, seen);
        if !self.once && std::io::stdout().is_terminal() {
            console::Term::stdout().clear_screen()?;
        }
        output::text(table)
    }
}

/// Asks all of them at once.
async fn look(watched: &mut [Watched]) -> Vec<Seen> {
    let calls: Vec<_> = (watched.iter())
        .map(|watched| watched.client.call(&LOAD, ()))
        .collect();
    let mut seen = Vec::new();
    for (watched, call) in watched.iter_mut().zip(calls) {
        let told = call.await.map_err(|error| explain(&error));
        let told = told.and_then(|text| {
            LoadReport::parse(&text).map_err(|_| "it describes its load in other words".to_owned())
        });
        let before = match &told {
            // Another incarnation has counted anew.
            Ok(report) => watched
                .last
                .replace(report.clone())
                .filter(|last| last.node == report.node),
            Err(_) => watched.last.take(),
        };
        seen.push(told.map(|report| Row { report, before }));
    }
    seen
}

/// Why an endpoint does not say how much it has to do.
fn explain(error: &CallError) -> String {
    match error.code() {
        Code::Unimplemented => {
            "does not tell: reflection is switched off there, or it has none".into()
        }
        Code::Unavailable if matches!(error, CallError::Status(_)) => "shuts down".into(),
        _ => error.to_string(),
    }
}

impl Row {
    /// How much a counter has grown in a second.
    fn rate(&self, count: impl Fn(&LoadReport) -> u64) -> f64 {
        let (before, since) = match &self.before {
            Some(before) => (count(before), before.up),
            None => (0, 0.0),
        };
        let time = (self.report.up - since).max(f64::EPSILON);
        count(&self.report).saturating_sub(before) as f64 / time
    }

    fn requests(&self) -> f64 {
        self.rate(|report| report.metrics.requests_received)
    }

    fn refused(&self) -> f64 {
        self.rate(|report| report.metrics.requests_refused)
    }

    /// Requests that ended with a status.
    fn statuses(&self) -> f64 {
        self.rate(|report| report.metrics.statuses_sent)
    }

    fn failed(&self) -> f64 {
        self.rate(|report| report.metrics.calls_failed)
    }

    fn received(&self) -> f64 {
        self.rate(|report| report.metrics.bytes_received)
    }

    fn sent(&self) -> f64 {
        self.rate(|report| report.metrics.bytes_sent)
    }
}

/// An endpoint in JSON.
fn told(address: &Address, seen: &Seen) -> Value {
    let row = match seen {
        Ok(row) => row,
        Err(error) => return json!({ "address": address.to_string(), "error": error }),
    };
    let report = &row.report;
    json!({
        "address": address.to_string(),
        "node": report.node,
        "up": report.up,
        "running": report.running,
        "waiting": report.waiting,
        "calls": report.calls(),
        "connections": report.connections(),
        "requests_per_second": row.requests(),
        "refused_per_second": row.refused(),
        "statuses_per_second": row.statuses(),
        "failed_calls_per_second": row.failed(),
        "received_bytes_per_second": row.received(),
        "sent_bytes_per_second": row.sent(),
        "metrics": report.metrics,
    })
}

const HEADS: [&str; 12] = [
    "",
    "up",
    "running",
    "waiting",
    "calls",
    "connections",
    "requests/s",
    "refused/s",
    "statuses/s",
    "failed/s",
    "in/s",
    "out/s",
];

/// All of them, a line each, numbers below each other.
fn table(addresses: &[String], seen: &[Seen]) -> String {
    let rows = addresses.iter().zip(seen).map(|(address, seen)| {
        let cells = seen.as_ref().map(cells).into_iter().flatten();
        [address.clone()].into_iter().chain(cells)
    });
    let table = output::table(1.., &HEADS, rows);
    let names = addresses.iter().map(|address| address.chars().count());
    let first = names.max().unwrap_or(0);
    let mut lines = table.lines();
    let mut out = format!("{}\n", lines.next().unwrap_or_default());
    for ((line, address), seen) in lines.zip(addresses).zip(seen) {
        // Why an endpoint says nothing stands where its numbers would.
        out += &match seen {
            Ok(_) => format!("{line}\n"),
            Err(error) => format!("{address:first$}  {}\n", plain(error)),
        };
    }
    out
}

fn cells(row: &Row) -> [String; 11] {
    let count = |number: u64| HumanCount(number).to_string();
    let rate = |number: f64| match number {
        0.0..10.0 if number.fract() != 0.0 => format!("{number:.1}"),
        _ => count(number.round() as u64),
    };
    let bytes = |number: f64| DecimalBytes(number.round() as u64).to_string();
    let report = &row.report;
    [
        format!(
            "{:#}",
            HumanDuration(Duration::try_from_secs_f64(report.up).unwrap_or_default())
        ),
        count(report.running),
        count(report.waiting),
        count(report.calls()),
        count(report.connections()),
        rate(row.requests()),
        rate(row.refused()),
        rate(row.statuses()),
        rate(row.failed()),
        bytes(row.received()),
        bytes(row.sent()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(up: f64, requests: u64) -> LoadReport {
        let metrics =
            json!({ "requests_received": requests, "bytes_sent": 2500, "connections_opened": 5 });
        let told =
            json!({ "node": "n", "up": up, "running": 2, "waiting": 1234, "metrics": metrics });
        LoadReport::parse(&told.to_string()).expect("it may say less")
    }

    #[test]
    fn numbers_stand_below_each_other_and_rates_are_since_the_last_look() {
        let first = Row {
            report: report(10.0, 5),
            before: None,
        };
        let second = Row {
            report: report(200.0, 4100),
            before: Some(report(198.0, 100)),
        };
        let seen = [Ok(first), Ok(second), Err("connection refused".to_owned())];
        let addresses = ["tcp://a:1", "tcp://bb:22", "unix:///c"].map(String::from);
        let expected = [
            "              up  running  waiting  calls  connections  requests/s  refused/s  statuses/s  failed/s  in/s  out/s",
            "tcp://a:1    10s        2    1,234      0            5         0.5          0           0         0   0 B  250 B",
            "tcp://bb:22   3m        2    1,234      0            5       2,000          0           0         0   0 B    0 B",
            "unix:///c    connection refused",
        ];
        assert_eq!(
            table(&addresses, &seen).lines().collect::<Vec<_>>(),
            expected
        );
    }
}
