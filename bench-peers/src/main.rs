//! The program `wallaby-bench-peers`: Wallaby and its peers in the same patterns, measured in turn.

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;
use wallaby_bench::stack::Stack;
use wallaby_bench::{
    FanoutOptions, HopsOptions, Own, Progress, Row, RunOptions, ThroughputOptions, Transport, row,
    server_main, table,
};
use wallaby_bench_peers::faults;
use wallaby_bench_peers::peers::{PEERS, Peer, all_stacks};
use wallaby_bench_peers::throughput::Throughput;

/// Measures Wallaby and bare sockets beside tonic, tarpc, Cap'n Proto, NATS, ONC RPC and Thrift
#[derive(Debug, Parser)]
#[command(name = "wallaby-bench-peers", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  wallaby-bench-peers peers                                    which peers are there, and how they are configured
  wallaby-bench-peers hops --pin 0                             1, 2, 4 and 10 servers in sequence, on one processor
  wallaby-bench-peers hops --pin 0 --only tonic,nats --json    two peers, beside Wallaby and bare sockets
  wallaby-bench-peers fanout --pin 0                           one server, then ten in parallel
  wallaby-bench-peers faults                                   what callers read when something breaks
  wallaby-bench-peers throughput --pin 0 --payload 0,4096      calls per second, 1 to 512 of them under way

A peer that is not installed is skipped, and named; 'scripts/setup.sh peers' installs them all.
Figures mean something on a quiet machine and in a release build: 'make bench-peers ARGS=\"hops --pin 0\"'.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Latency over the number of servers in sequence: calls, and messages passed on where a peer can do that
    Hops {
        /// How many servers in sequence
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "1,2,4,10"
        )]
        hops: Vec<usize>,
        /// Bytes of payload in each message
        #[arg(long, value_name = "BYTES", default_value_t = 100)]
        payload: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Latency of a call of one server, then of several in parallel
    Fanout {
        /// How many servers in parallel
        #[arg(
            long,
            value_name = "NUMBER,...",
            value_delimiter = ',',
            default_value = "10"
        )]
        fanout: Vec<usize>,
        /// Bytes of payload in each message
        #[arg(long, value_name = "BYTES", default_value_t = 100)]
        payload: usize,
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
        /// Bytes of payload in each message
        #[arg(
            long,
            value_name = "BYTES,...",
            value_delimiter = ',',
            default_value = "100"
        )]
        payload: Vec<usize>,
        #[command(flatten)]
        common: Common,
    },
    /// What callers read when something breaks, with tonic and with Wallaby: real processes that are killed, stopped and shut down
    Faults,
    /// List the peers: versions, configurations, and what is missing
    Peers,
    /// A server of the faults, which starts it itself
    #[command(hide = true)]
    FaultServer { arguments: Vec<String> },
    /// A server of a benchmark, which starts it itself
    #[command(hide = true)]
    BenchServer { arguments: Vec<String> },
}

/// What all benchmarks take.
#[derive(Debug, Args)]
struct Common {
    /// Measure only these peers, beside Wallaby and bare sockets [default: all]
    #[arg(long, value_name = "PEER,...", value_delimiter = ',')]
    only: Vec<String>,
    /// What messages are carried by: unix, tcp, udp
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "unix,tcp,udp"
    )]
    transport: Vec<Transport>,
    /// Put the client and all servers on this processor [default: the system places them]
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    /// Rounds; in each, every system has one turn
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print a line of JSON for each result
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> Result<()> {
        match self {
            Self::Hops {
                hops,
                payload,
                common,
            } => {
                let run = common.options(payload, RunOptions::default())?;
                let rows = wallaby_bench::hops(&HopsOptions { hops, run }, show)?;
                common.print(&rows)
            }
            Self::Fanout {
                fanout,
                payload,
                common,
            } => {
                let run = common.options(payload, RunOptions::default())?;
                let rows = wallaby_bench::fanout(&FanoutOptions { fanout, run }, show)?;
                common.print(&rows)
            }
            Self::Throughput {
                calls,
                payload: payloads,
                common,
            } => {
                let run = common.options(0, ThroughputOptions::default().run)?;
                let rows = Throughput { calls, payloads }.measure(&run, &mut show)?;
                common.print(&rows)
            }
            Self::Faults => print(&faults::table()?),
            Self::FaultServer { arguments } => faults::serve(&arguments),
            Self::Peers => print(&PEERS.iter().map(describe).collect::<String>()),
            Self::BenchServer { arguments } => server_main(&all_stacks(), arguments),
        }
    }
}

impl Common {
    fn options(&self, payload: usize, defaults: RunOptions) -> Result<RunOptions> {
        Ok(RunOptions {
            transports: self.transport.clone(),
            stacks: self.stacks()?,
            pin: self.pin,
            payload,
            rounds: self.rounds,
            ..defaults
        })
    }

    /// Wallaby, bare sockets, and the peers that were asked for, as far as they are there.
    fn stacks(&self) -> Result<Vec<&'static dyn Stack>> {
        let names: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
        if let Some(unknown) = self
            .only
            .iter()
            .find(|name| !names.contains(&name.as_str()))
        {
            bail!("there is no peer {unknown:?}: choose {}", names.join(", "));
        }
        let mut stacks = Own::ALL.to_vec();
        for peer in self.peers() {
            if let Some(notice) = peer.notice() {
                eprintln!("{notice}");
            }
            stacks.extend(peer.stacks());
        }
        Ok(stacks)
    }

    fn peers(&self) -> impl Iterator<Item = &'static Peer> {
        PEERS
            .iter()
            .filter(|peer| self.only.is_empty() || self.only.iter().any(|name| name == peer.name))
    }

    fn print(&self, rows: &[Row]) -> Result<()> {
        if !self.json {
            return print(&table::markdown(rows));
        }
        let mut lines = Vec::new();
        for notice in self.peers().filter_map(Peer::notice) {
            serde_json::to_writer(&mut lines, &serde_json::json!({ "skipped": notice }))?;
            lines.push(b'\n');
        }
        row::write(rows, &mut lines)?;
        print(&String::from_utf8_lossy(&lines))
    }
}

/// A peer for the eyes of people.
fn describe(peer: &Peer) -> String {
    let state = match (peer.version(), peer.notice()) {
        (Some(version), _) => version,
        (None, notice) => notice.unwrap_or_default(),
    };
    format!("{}\n    {}\n    {state}\n", peer.name, peer.about)
}

fn print(text: &str) -> Result<()> {
    stdout()
        .write_all(text.as_bytes())
        .context("can't write to standard output")
}

/// How far it is, on standard error: in one line on a terminal, now and then a line elsewhere.
fn show(now: Progress<'_>) {
    let (done, total) = (now.done + 1, now.total);
    if stderr().is_terminal() {
        let end = if done == total { "\n" } else { "" };
        eprint!("\r\x1b[Kmeasuring: {done} of {total}, {}{end}", now.system);
    } else if done % (total / 4).max(1) == 0 {
        eprintln!("measuring: {done} of {total}");
    }
}
