//! The command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use wallaby::{Address, Endpoint};
use wallaby_chain::{ChainCode, Repository};
use wallaby_program::child::Parent;
use wallaby_program::ending::{interrupted, unless_interrupted};
use wallaby_program::output::line;
use wallaby_program::scratch::Scratch;

use crate::copy::{By, Copier, FUNCTIONS};
use crate::measure::Measure;
use crate::nfs::{Export, Patience, caller};
use crate::server::{Replica, Serve};
use crate::yard::{Plan, Stand, check, enter};

const EXAMPLES: &str = "\
Examples:
  wallaby-storage up                                  three NFS servers, one the backup of another, and how to copy between them
  wallaby-storage copy unix:///a.sock song unix:///b.sock song            straight from server to server
  wallaby-storage copy unix:///a.sock song unix:///b.sock song --by calls the same through this client
  wallaby-storage measure                             both ways, over the network of the paper, beside what links alone take

Servers are nfs-ganesha; up and measure need root, and run them in a network of their own.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 nobody reads the output any more.";

/// Files of NFS servers that know nothing of Wallaby, copied and replicated by chains
#[derive(Debug, Parser)]
#[command(name = "wallaby-storage", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Servers on this machine, until Ctrl-C
    Up(Up),
    /// Copy a file from one server to another
    Copy(Copy),
    /// Copy by plain calls and by chains, over an emulated wide-area network
    Measure(Measure),
    /// Say whether servers can be run here
    Check,
    /// A sidecar, as up and measure start it
    #[command(hide = true)]
    Serve(Serve),
}

#[derive(Debug, Args)]
struct Up {
    /// Where the servers' files are, in folders a, b and c [default: empty ones, gone at the end]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Copy {
    /// The sidecar before the server that has the file
    from: Address,
    /// The file's name there, at the root of what is exported
    source: String,
    /// The sidecar before the server that is to have it
    to: Address,
    /// The file's name there
    target: String,
    /// How it comes there
    #[arg(long, value_enum, default_value = "chain")]
    by: By,
    /// Parts of the file under way at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    window: u16,
    /// Where servers reach this client: for the function that a chain needs, and to answer. Without, the function travels with each
    /// part of the file, and answers come by way of the servers [default: a unix socket, if the first server is at one]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// How long a server is waited for that is gone
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    patience: Duration,
}

impl Cli {
    /// Does it.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Up(up) => {
                enter()?;
                up.run().await?;
            }
            Command::Copy(copy) => unless_interrupted(copy.run()).await?,
            Command::Measure(measure) => {
                enter()?;
                unless_interrupted(measure.run()).await?;
            }
            Command::Check => {
                check()?;
                line("servers can be run here")?;
            }
            Command::Serve(serve) => serve.run().await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Up {
    async fn run(self) -> anyhow::Result<()> {
        let scratch = Scratch::create("wallaby-storage")?;
        let data = self.data.as_deref().unwrap_or(scratch.path());
        let mut stands = unless_interrupted(Self::start(&std::path::absolute(data)?)).await?;
        tokio::select! {
            done = serve_commands(&mut stands) => done?,
            asked = interrupted() => drop(asked?),
        }
        for (_, stand) in stands {
            stand.end().await;
        }
        Ok(())
    }

    /// Starts the servers, and says where they are.
    async fn start(data: &Path) -> anyhow::Result<[(&'static str, Stand); 3]> {
        let a = Stand::start(data, (1, "a"), Plan::default()).await?;
        let c = Stand::start(data, (3, "c"), Plan::default()).await?;
        let c_at = c.at()?.clone();
        let replicas = [true, false].map(|is_composed| Replica {
            backup: c_at.clone(),
            is_composed,
        });
        let replicas = replicas.to_vec();
        let b = Stand::start(
            data,
            (2, "b"),
            Plan {
                replicas,
                ..Plan::default()
            },
        )
        .await?;
        for (name, stand) in [("a", &a), ("b", &b), ("c", &c)] {
            line(format_args!(
                "{name:6} {}  {}",
                stand.at()?,
                stand.files.display()
            ))?;
        }
        for (how, primary) in ["as one chain", "as two chains"]
            .iter()
            .zip(&b.told()?.primaries)
        {
            line(format_args!(
                "b + c  {primary}  what b is told to write c writes as well, {how}"
            ))?;
        }
        line("kill NAME, start NAME, kill sidecar NAME, start sidecar NAME; until Ctrl-C")?;
        Ok([("a", a), ("b", b), ("c", c)])
    }
}

/// Does what the lines of the standard input say.
async fn serve_commands(stands: &mut [(&str, Stand)]) -> anyhow::Result<()> {
    let mut input = Parent::of_this();
    loop {
        let told = input.line().await?;
        let words: Vec<&str> = told.split_whitespace().collect();
        if told.is_empty() {
            std::future::pending::<()>().await; // nobody will tell more
        }
        let (&name, what) = words.split_last().unwrap_or((&"", &[]));
        let stand = stands.iter_mut().find(|(known, _)| *known == name);
        let done = match (stand, what) {
            (Some((_, stand)), ["kill"]) => stand.kill_nfs().await,
            (Some((_, stand)), ["start"]) => stand.start_nfs().await,
            (Some((_, stand)), ["kill", "sidecar"]) => stand.kill_sidecar().await,
            (Some((_, stand)), ["start", "sidecar"]) => stand.start_sidecar().await,
            _ => Err(anyhow::anyhow!(
                "expected kill or start, perhaps sidecar, and a, b or c"
            )),
        };
        match done {
            Ok(()) => line(format_args!("done: {}", told.trim()))?,
            Err(error) => line(format_args!("failed: {}: {error:#}", told.trim()))?,
        }
    }
}

impl Copy {
    async fn run(self) -> anyhow::Result<()> {
        for name in [&self.source, &self.target] {
            if name.is_empty() || name.len() > 200 || name.contains('/') {
                bail!("{name:?} is no name: expected 1 to 200 bytes without /");
            }
        }
        let scratch = Scratch::create("wallaby-storage")?;
        let socket = || format!("unix://{}/client", scratch.path().display());
        let listen = self.listen.as_ref().map(ToString::to_string);
        let listen = listen.or_else(|| (self.from.scheme() == "unix").then(socket));
        let repository = Repository::new();
        let (endpoint, functions) = match listen {
            Some(listen) => {
                let builder = Endpoint::builder().serve(repository.service());
                let endpoint = builder.listen(&listen).bind().await?;
                let here = endpoint.address().context("it listens")?.clone();
                (endpoint, repository.keep(FUNCTIONS)?.at(here))
            }
            None => (Endpoint::client()?, ChainCode::new(FUNCTIONS)),
        };
        let copier = Copier {
            caller: caller(&endpoint)?,
            functions,
            by: self.by,
            window: self.window.into(),
            patience: Patience(self.patience),
        };
        let mount = |server| Export::mount(copier.caller.clone(), server, copier.patience);
        let (from, to) = tokio::try_join!(mount(&self.from), mount(&self.to))?;
        let copied = copier
            .copy((&from, &self.source), (&to, &self.target))
            .await?;
        line(format_args!(
            "{} bytes copied, moved in {:.1?}",
            copied.bytes, copied.moving
        ))
    }
}
