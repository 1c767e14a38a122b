//! The command line.

mod ask;
mod bench;
mod churn;
mod demo;
mod ring;
mod span;
mod up;

use crate::client::Client;
use crate::process::{self, Plan, Processes, Ring, Transport};
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  wallaby-chord demo                                     a ring of 500 nodes, some keys, and the way of a lookup
  wallaby-chord up --processes 4 --nodes 1000            a ring that stays until Ctrl-C; then, elsewhere:
  wallaby-chord put wallaby jumps && wallaby-chord get wallaby
  wallaby-chord explain wallaby                          the hops as they ran, beside the lookup by iteration
  wallaby-chord ring                                     who is where
  wallaby-chord churn --processes 6 --nodes 200 --seconds 60 --rate 5
  wallaby-chord bench --link 1ms

Exit status: 0 done, 1 failed; of 'get': no such key; of 'churn': a key was lost, an answer was wrong, or the ring did not
heal; of 'ring': it is not one ring. 2 wrong usage, 130 interrupted,
141 nobody reads the output any more.";

/// Lookup in a ring: Chord on Wallaby
#[derive(Debug, Parser)]
#[command(name = "wallaby-chord", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A ring, some keys, and the way of a lookup: everything goes when it is over
    Demo(demo::Demo),
    /// Host a ring until Ctrl-C
    Up(up::Up),
    /// Give a key a value
    Put(ask::Put),
    /// The value of a key
    Get(ask::Get),
    /// Which node owns a key
    Lookup(ask::Lookup),
    /// Draw the hops of a lookup as they ran
    Explain(ask::Explain),
    /// Draw the ring, and say what is wrong with it
    Ring(ring::Ring),
    /// Look things up while nodes join and leave, and nodes and processes crash
    Churn(churn::Churn),
    /// Measure lookups by delegation and by iteration
    Bench(bench::Bench),
    /// One process of a ring, which the other commands start
    #[command(hide = true)]
    Serve(Serve),
}

/// Which ring is asked.
#[derive(Debug, Args)]
struct Page {
    /// The file that tells where the ring is; 'up' writes it
    #[arg(long, value_name = "FILE", default_value = "chord-ring.json")]
    at: PathBuf,
}

/// A ring that is to be started.
#[derive(Debug, Args)]
struct Size {
    /// How many processes
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: u16,
    /// How many nodes they host together
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: u64,
    /// What they talk over
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// How long a round of maintenance takes [default: 1 ms a node, but not below 200 ms]
    #[arg(long, value_name = "TIME", value_parser = span::parse_period)]
    period: Option<Duration>,
    /// Emulate a network: every message takes so long, as in 250us or 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby::link::parse_delay)]
    link: Duration,
    /// Where the nodes are on the ring, and what is chosen by chance: the same number chooses the same
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Args)]
struct Serve {
    #[arg(long)]
    listen: String,
    #[arg(long, default_value_t = 0)]
    link_us: u64,
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// If it fails: why, for the user.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // One thread: the processes of a ring share the machine's cores already.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("the runtime can't be started")?;
        let result = runtime.block_on(self.command.run());
        // A thread that waits for a line of input must not keep the program alive.
        runtime.shutdown_background();
        result
    }
}

impl Command {
    async fn run(self) -> anyhow::Result<ExitCode> {
        const INTERRUPTED: u8 = 130;
        if matches!(self, Self::Up(_) | Self::Serve(_)) {
            return self.run_to_end().await;
        }
        // Processes that were started on the way go when the command is dropped.
        tokio::select! {
            biased;
            result = self.run_to_end() => result,
            asked = up::interrupted() => asked.map(|()| ExitCode::from(INTERRUPTED)),
        }
    }

    async fn run_to_end(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(demo) => demo.run().await?,
            Self::Up(up) => up.run().await?,
            Self::Put(put) => put.run().await?,
            Self::Get(get) => return get.run().await,
            Self::Lookup(lookup) => lookup.run().await?,
            Self::Explain(explain) => explain.run().await?,
            Self::Ring(ring) => return ring.run().await,
            Self::Churn(churn) => return churn.run().await,
            Self::Bench(bench) => bench.run().await?,
            Self::Serve(serve) => {
                let link = Duration::from_micros(serve.link_us);
                process::serve(&serve.listen, link).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Page {
    async fn client(&self) -> anyhow::Result<Client> {
        let Ring { hosts, link } = process::find(&self.at)?;
        let endpoint = process::client_endpoint(&hosts, link).await?;
        let mut lives = false;
        for host in &hosts {
            lives |= endpoint.connect(host).await.is_ok();
        }
        anyhow::ensure!(
            lives,
            "the ring that {} tells of is gone: start one with 'wallaby-chord up'",
            self.at.display()
        );
        Ok(Client::new(endpoint, &hosts, random()))
    }
}

impl Size {
    async fn start(&self) -> anyhow::Result<Processes> {
        let period = self.period.unwrap_or_else(|| Plan::period_for(self.nodes));
        Processes::start(Plan {
            processes: self.processes.into(),
            nodes: self.nodes,
            seed: self.seed,
            period,
            transport: self.transport,
            link: self.link,
        })
        .await
    }
}

/// Another number in each process: puts are told apart by what it leads to.
fn random() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(std::process::id())
}
