//! `wallaby bench`: the benchmarks of the crate `wallaby-bench`, from the command line.

use crate::progress::Progress;
use crate::thesis::Thesis;
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use std::fs::File;
use std::io::{BufReader, stdin};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;
use wallaby_bench::flexrpc::{Figure, flexrpc};
use wallaby_bench::{
    ChainsOptions, ChainsPart, FanoutOptions, FlexrpcOptions, HopsOptions, LargeOptions, Row,
    RunOptions, ScaleOptions, ThroughputOptions, Transport, picture, row, table,
};
use wallaby_program::output::text;

/// Which benchmark.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Latency over the number of servers in sequence: forwarded calls, plain RPC, raw sockets
    Hops {
        /// How many servers in sequence
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,2,4,10"
        )]
        hops: Vec<usize>,
        /// Servers to draw those of each operation from [default: two more than it needs]
        #[arg(long, value_name = "NUMBER")]
        servers: Option<usize>,
        #[command(flatten)]
        apart: Apart,
        #[command(flatten)]
        common: Common,
    },
    /// Latency over the degree of fan-out: one server, then several in parallel
    Fanout {
        /// How many servers in parallel
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,2,5,10,20"
        )]
        fanout: Vec<usize>,
        /// Servers to draw those of each operation from [default: two more than it needs]
        #[arg(long, value_name = "NUMBER")]
        servers: Option<usize>,
        #[command(flatten)]
        common: Common,
    },
    /// Latency of small calls alone, and while large messages travel over the same connection
    Large {
        /// KiB of each large message
        #[arg(long, value_name = "KIB", default_value_t = 16 * 1024)]
        large: usize,
        #[command(flatten)]
        apart: Apart,
        #[command(flatten)]
        common: Common,
    },
    /// Calls per second of one server, with several under way
    Throughput {
        /// How many calls under way
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,8,64,512"
        )]
        calls: Vec<usize>,
        #[command(flatten)]
        apart: Apart,
        #[command(flatten)]
        common: Common,
    },
    /// What many live calls, connections, and requests in one call cost: processor time of each operation, memory of each
    /// call or connection, and the longest pauses
    Scale {
        /// How many live calls; 0: leave that out
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,1000,100000,1000000"
        )]
        calls: Vec<usize>,
        /// How many connections with one server; 0: leave that out
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,100,10000"
        )]
        connections: Vec<usize>,
        /// How many requests in a call; 0: leave that out
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "100,1000,10000"
        )]
        requests: Vec<usize>,
        /// How often servers are asked about live calls; up to 10 s, memory is read when all of them have been
        #[arg(long, value_name = "PERIOD", default_value = "60s", value_parser = humantime::parse_duration)]
        ping: Duration,
        #[command(flatten)]
        common: Common,
    },
    /// The DPC thesis' evaluation anew: hops, fan-out, rays and queries; load; and a simulated cluster
    Thesis(Thesis),
    /// FlexRPC's figures 4 to 8: single calls and multicast beside libtirpc (SunRPC) and raw sockets
    Flexrpc {
        /// Which figures of the paper
        #[arg(
            long,
            value_name = "FIGURE,...",
            value_delimiter = ',',
            default_value = "4,6,7,8a,8b"
        )]
        figure: Vec<Figure>,
        /// Limit what each process sends in multicasts, as its network link would: 1g, 100m
        #[arg(long, value_name = "BITS", default_value = "1g", value_parser = bandwidth)]
        bandwidth: NonZeroU64,
        /// Put the client and all servers on this processor [default: the system places them]
        #[arg(long, value_name = "CPU")]
        pin: Option<u32>,
        /// Rounds; in each, every system has one turn
        #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Measure only these systems, by their names in the table [default: all]
        #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
        only: Vec<String>,
        /// Print a line of JSON for each result
        #[arg(long)]
        json: bool,
    },
    /// Chains beside plain calls: by links, by the size of their state, a chain inside another; beside chains that do harm; and what
    /// their functions cost
    Chains {
        /// What of that: links, state, composition, hostile, functions
        #[arg(
            long,
            value_name = "NAME,...",
            value_delimiter = ',',
            default_value = "links,state,composition,hostile,functions"
        )]
        part: Vec<ChainsPart>,
        /// How many links
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,2,3,5,10"
        )]
        links: Vec<usize>,
        /// Bytes of state
        #[arg(
            long,
            value_name = "BYTES,...",
            value_delimiter = ',',
            default_value = "0,4000,15000,50000,100000,150000"
        )]
        state: Vec<usize>,
        /// Delay every message on its way, as a link would
        #[arg(long, value_name = "DELAY", default_value = "20ms", value_parser = wallaby_link::parse_delay)]
        link: Duration,
        /// Limit what each endpoint sends, as its network link would, where states are measured
        #[arg(long, value_name = "BITS", default_value = "50m", value_parser = bandwidth)]
        bandwidth: NonZeroU64,
        /// Rounds; in each, every system has one turn
        #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Print a line of JSON for each result
        #[arg(long)]
        json: bool,
    },
    /// Draw what --json has printed as an SVG: a panel for each benchmark and transport, a line for each system
    Picture {
        /// Lines of JSON [default: standard input]
        rows: Option<PathBuf>,
        /// What to draw: p50, p99, cpu (processor time), rate (operations a second), floor (median over the floor's)
        #[arg(long = "show", value_name = "FIGURE", default_value = "p50")]
        figure: picture::Figure,
    },
}

/// What all benchmarks take.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// What messages are carried by, compared in one run: unix, tcp, udp, shm
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "unix,tcp"
    )]
    transport: Vec<Transport>,
    /// Put the client and all servers on this processor [default: the system places them]
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    /// Delay every message on its way, as a link would: 250us, 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    link: Duration,
    /// Rounds; in each, every system has one turn
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes of payload in each message
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    payload: usize,
    /// Measure only these systems, by their names in the table [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Print a line of JSON for each result
    #[arg(long)]
    json: bool,
}

/// What those take that may have a processor for each side.
#[derive(Debug, Args)]
pub(crate) struct Apart {
    /// Put servers on this processor, apart from a client that --pin puts on another. What keeps its processor busy is only
    /// measured with one server
    #[arg(long, value_name = "CPU")]
    server_pin: Option<u32>,
}

impl Bench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut progress = Progress::new("measuring");
        let mut show = |now: wallaby_bench::Progress<'_>| progress.set(now.done, now.total);
        match self {
            Self::Hops {
                hops,
                servers,
                apart,
                common,
            } => {
                let run = common.options(RunOptions {
                    servers,
                    server_pin: apart.server_pin,
                    ..RunOptions::default()
                });
                let rows = wallaby_bench::hops(&HopsOptions { hops, run }, &mut show)?;
                drop(progress);
                common.show(&rows)
            }
            Self::Fanout {
                fanout,
                servers,
                common,
            } => {
                let run = common.options(RunOptions {
                    servers,
                    ..RunOptions::default()
                });
                let rows = wallaby_bench::fanout(&FanoutOptions { fanout, run }, &mut show)?;
                drop(progress);
                common.show(&rows)
            }
            Self::Large {
                large,
                apart,
                common,
            } => {
                let run = RunOptions {
                    server_pin: apart.server_pin,
                    ..common.options(LargeOptions::default().run)
                };
                let options = LargeOptions { large, run };
                let rows = wallaby_bench::large(&options, &mut show)?;
                drop(progress);
                common.show(&rows)
            }
            Self::Throughput {
                calls,
                apart,
                common,
            } => {
                let run = RunOptions {
                    server_pin: apart.server_pin,
                    ..common.options(ThroughputOptions::default().run)
                };
                let options = ThroughputOptions { calls, run };
                let rows = wallaby_bench::throughput(&options, &mut show)?;
                drop(progress);
                common.show(&rows)
            }
            Self::Scale {
                calls,
                connections,
                requests,
                ping,
                common,
            } => {
                let some = |numbers: Vec<usize>| match numbers[..] {
                    [0] => Vec::new(),
                    _ => numbers,
                };
                let options = ScaleOptions {
                    calls: some(calls),
                    connections: some(connections),
                    requests: some(requests),
                    ping,
                    run: common.options(ScaleOptions::default().run),
                };
                let rows = wallaby_bench::scale(&options, &mut show)?;
                drop(progress);
                common.show(&rows)
            }
            Self::Thesis(thesis) => {
                drop(progress);
                thesis.run()
            }
            Self::Flexrpc {
                figure,
                bandwidth,
                pin,
                rounds,
                only,
                json,
            } => {
                let options = FlexrpcOptions {
                    figures: figure,
                    only,
                    pin,
                    bandwidth,
                    rounds,
                    ..FlexrpcOptions::default()
                };
                let results = flexrpc(&options, &mut show)?;
                drop(progress);
                for skipped in &results.skipped {
                    eprintln!("{skipped}");
                }
                show_rows(&results.rows, json)
            }
            Self::Chains {
                part,
                links,
                state,
                link,
                bandwidth,
                rounds,
                json,
            } => {
                let options = ChainsOptions {
                    parts: part,
                    links,
                    states: state,
                    link,
                    bandwidth,
                    rounds,
                    ..ChainsOptions::default()
                };
                let rows = wallaby_bench::chains(&options, &mut show)?;
                drop(progress);
                show_rows(&rows, json)
            }
            Self::Picture { rows, figure } => {
                drop(progress);
                text(picture::svg(&read_rows(rows.as_ref())?, figure)?)
            }
        }
    }
}

impl Common {
    fn options(&self, defaults: RunOptions) -> RunOptions {
        RunOptions {
            transports: self.transport.clone(),
            only: self.only.clone(),
            pin: self.pin,
            link: self.link,
            payload: self.payload,
            rounds: self.rounds,
            ..defaults
        }
    }

    fn show(&self, rows: &[Row]) -> anyhow::Result<()> {
        show_rows(rows, self.json)
    }
}

/// Prints rows as tables, or as lines of JSON.
pub(crate) fn show_rows(rows: &[Row], json: bool) -> anyhow::Result<()> {
    if !json {
        return text(table::markdown(rows));
    }
    let mut lines = Vec::new();
    row::write(rows, &mut lines)?;
    text(String::from_utf8_lossy(&lines))
}

/// Rows that `--json` has printed, from a file or standard input.
fn read_rows(file: Option<&PathBuf>) -> anyhow::Result<Vec<Row>> {
    let Some(file) = file else {
        return row::read(stdin().lock());
    };
    let opened = File::open(file).map_err(anyhow::Error::from);
    let rows = opened.and_then(|opened| row::read(BufReader::new(opened)));
    rows.with_context(|| format!("{} can't be read", file.display()))
}

/// Reads `100m` or `2.5g`, in bits per second.
fn bandwidth(text: &str) -> anyhow::Result<NonZeroU64> {
    const MOST: u64 = 1_000_000_000_000;
    let bits = parse_size::parse_size(text)?;
    ensure!(
        bits <= MOST,
        "a link of more than 1,000 gigabits a second is not possible"
    );
    NonZeroU64::new(bits).context("nothing gets through a link without bandwidth")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_have_units() {
        let bits = |text| bandwidth(text).map(NonZeroU64::get).ok();
        assert_eq!(bits("1g"), Some(1_000_000_000));
        assert_eq!(bits("2.5 g"), Some(2_500_000_000));
        assert_eq!(bits("100m"), Some(100_000_000));
        for text in ["", "g", "1x", "-1g", "0m", "2000g", "1.2.3g"] {
            assert_eq!(bits(text), None, "{text}");
        }
    }
}
