//! The command line.

mod ask;
mod demo;
mod ring;
mod up;

use crate::client::Client;
use crate::process::{self, Plan, Processes, Ring, Transport};
use anyhow::ensure;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use wallaby_program::ending::unless_interrupted;

const EXAMPLES: &str = "\
Examples:
  wallaby-chord demo                                     a ring of 500 nodes, some keys, and the way of a lookup
  wallaby-chord up --processes 4 --nodes 1000            a ring that stays until Ctrl-C; then, elsewhere:
  wallaby-chord put wallaby jumps && wallaby-chord get wallaby
  wallaby-chord explain wallaby                          the hops as they ran, beside the lookup by iteration
  wallaby-chord ring                                     who is where

Exit status: 0 done, 1 failed; of 'get': no such key; of 'ring': it is not one ring. 2 wrong usage, 130 interrupted,
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
    /// Draw the hops of a lookup as they ran
    Explain(ask::Explain),
    /// Draw the ring, and say what is wrong with it
    Ring(ring::Show),
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
    /// Emulate a network: every message takes so long, as in 250us or 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
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
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            // These end in order when they are asked to.
            Command::Up(up) => up.run().await.map(|()| ExitCode::SUCCESS),
            Command::Serve(serve) => {
                process::serve(&serve.listen, Duration::from_micros(serve.link_us)).await?;
                Ok(ExitCode::SUCCESS)
            }
            command => unless_interrupted(command.run()).await,
        }
    }
}

impl Command {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(demo) => demo.run().await?,
            Self::Put(put) => put.run().await?,
            Self::Get(get) => return get.run().await,
            Self::Explain(explain) => explain.run().await?,
            Self::Ring(ring) => return ring.run().await,
            Self::Up(_) | Self::Serve(_) => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Page {
    async fn client(&self) -> anyhow::Result<Client> {
        let ring = Ring::find(&self.at)?;
        let endpoint = ring.endpoint().await?;
        let mut lives = false;
        for host in &ring.hosts {
            lives |= endpoint.connect(host).await.is_ok();
        }
        ensure!(
            lives,
            "the ring that {} tells of is gone: start one with 'wallaby-chord up'",
            self.at.display()
        );
        // Another seed for each client: puts are told apart by what it leads to.
        Ok(Client::new(endpoint, &ring.hosts, fastrand::u64(..)))
    }
}

impl Size {
    async fn start(&self) -> anyhow::Result<Processes> {
        Processes::start(&Plan {
            processes: self.processes.into(),
            nodes: self.nodes,
            seed: self.seed,
            // A round for so many nodes that leaves a machine time for other things.
            period: Duration::from_millis(self.nodes.clamp(200, 60_000)),
            transport: self.transport,
            link: self.link,
        })
        .await
    }
}
