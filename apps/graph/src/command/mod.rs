//! The command line.

mod ask;
mod check;
mod demo;
mod load;
mod up;

use crate::client::Client;
use crate::placement::Seat;
use crate::process::{self, Processes, Running};
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use wallaby_program::ending::unless_interrupted;

const EXAMPLES: &str = "\
Examples:
  wallaby-graph demo                                    a small graph, four servers, some queries
  wallaby-graph load sf0.003 && wallaby-graph up        LDBC's data, served until Ctrl-C; then, elsewhere:
  wallaby-graph query is2 --person 4398046511316
  wallaby-graph explain is7 --message 274877911677
  wallaby-graph check expected.jsonl.gz --data sf0.003

Exit status: 0 done, 1 failed or not as expected, 2 wrong usage, 130 interrupted,
141 nobody reads the output any more.";

/// A distributed social graph: LDBC's interactive short reads as multi-hop calls
#[derive(Debug, Parser)]
#[command(name = "wallaby-graph", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A small made-up graph, four servers, and what the queries find: everything goes when it is over
    Demo(demo::Demo),
    /// Load a data set into a store, once
    Load(load::Load),
    /// Serve a store until Ctrl-C
    Up(up::Up),
    /// Ask the servers
    Query(ask::Ask),
    /// Ask the servers and draw the call's tree as it ran
    Explain(ask::Explain),
    /// Compare the results of queries with files of expected ones
    Check(check::Check),
    /// One server, which the other commands start
    #[command(hide = true)]
    Serve {
        #[command(flatten)]
        at: StoreFolder,
        #[arg(long)]
        seat: Seat,
        #[arg(long)]
        listen: String,
        #[arg(long, default_value_t = 0)]
        link_us: u64,
    },
}

/// Where a store is.
#[derive(Debug, Args)]
struct StoreFolder {
    /// The folder of the store
    #[arg(long, value_name = "DIR", default_value = "graph-store")]
    store: PathBuf,
}

/// Servers that are to be started.
#[derive(Clone, Copy, Debug, Args)]
struct Servers {
    /// How many server processes
    #[arg(long = "servers", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    count: u32,
    /// Emulate a network: every message takes so long, as in 250us or 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    link: Duration,
}

impl Cli {
    /// Does what was asked for.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            // These end in order when they are asked to.
            command @ (Command::Up(_) | Command::Serve { .. }) => command.run().await,
            command => unless_interrupted(command.run()).await,
        }
    }
}

impl Command {
    async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(demo) => demo.run().await?,
            Self::Load(load) => load.run()?,
            Self::Up(up) => up.run().await?,
            Self::Query(ask) => ask.run().await?,
            Self::Explain(explain) => explain.run().await?,
            Self::Check(check) => return check.run().await,
            Self::Serve {
                at,
                seat,
                listen,
                link_us,
            } => {
                let link = Duration::from_micros(link_us);
                process::serve(&at.store, seat, &listen, link).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl StoreFolder {
    /// A client of the cluster that serves this store.
    async fn client(&self) -> anyhow::Result<Client> {
        let gone = || {
            let store = self.store.display();
            format!("the cluster that served {store} is gone: start it with 'wallaby-graph up'")
        };
        let client = Running::find(&self.store)?.client().await?;
        for server in client.placement().servers() {
            client.endpoint().connect(server).await.with_context(gone)?;
        }
        Ok(client)
    }
}

impl Servers {
    /// Starts them on the store in a folder.
    async fn start(self, folder: &Path) -> anyhow::Result<Processes> {
        Processes::start(folder, self.count, self.link).await
    }
}
