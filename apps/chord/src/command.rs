//! The command line.

use crate::client::{Answered, Client, Form};
use crate::draw;
use crate::id::RingId;
use crate::process::{self, Plan, Processes, Ring};
use anyhow::ensure;
use clap::{Args, Parser, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wallaby_program::ending::{interrupted, unless_interrupted};
use wallaby_program::output::{line, text};
use wallaby_program::page;

const EXAMPLES: &str = "\
Examples:
  wallaby-chord demo                                     a ring of 500 nodes, some keys, and the way of a lookup
  wallaby-chord up --processes 4 --nodes 1000            a ring that stays until Ctrl-C; then, elsewhere:
  wallaby-chord put wallaby jumps && wallaby-chord get wallaby
  wallaby-chord explain wallaby                          the hops as they ran, beside the lookup by iteration

Exit status: 0 done, 1 failed; of 'get': no such key. 2 wrong usage, 130 interrupted, 141 nobody reads the output any more.";

/// Lookup in a ring: Chord on Wallaby
#[derive(Debug, Parser)]
#[command(name = "wallaby-chord", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The file that tells where the ring is; 'up' writes it
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "chord-ring.json"
    )]
    at: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A ring, some keys, and the way of a lookup: everything goes when it is over
    Demo(Plan),
    /// Host a ring until Ctrl-C
    Up(Plan),
    /// Give a key a value
    Put { key: String, value: String },
    /// The value of a key
    Get(Get),
    /// Draw the hops of a lookup as they ran
    Explain { key: String },
    /// One process of a ring, which the other commands start
    #[command(hide = true)]
    Serve { plan: String },
}

#[derive(Debug, Args)]
struct Get {
    key: String,
    /// Ask node after node, in place of one call that they forward
    #[arg(long)]
    iterative: bool,
    /// Print a line of JSON, which says who owns it, too
    #[arg(long)]
    json: bool,
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// If it fails: why, for the user.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let at = &self.at;
        match self.command {
            // These end in order when they are asked to.
            Command::Up(plan) => up(&plan, at).await?,
            Command::Serve { plan } => process::serve(&plan).await?,
            Command::Demo(plan) => unless_interrupted(demo(&plan)).await?,
            Command::Put { key, value } => unless_interrupted(put(&key, value, at)).await?,
            Command::Get(get) => return unless_interrupted(get.run(at)).await,
            Command::Explain { key } => {
                let explained = async { explain(&client(at).await?, &key).await };
                text(unless_interrupted(explained).await?)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn demo(plan: &Plan) -> anyhow::Result<()> {
    let mut processes = Processes::start(plan).await?;
    let ring = processes.ring();
    let client = Client::new(ring.endpoint().await?, &ring.hosts, plan.seed);
    for (key, value) in [
        ("wallaby", "jumps"),
        ("chord", "1, 3, 5"),
        ("ring", "round"),
    ] {
        let put = client.put(key, value.into()).await?.found;
        line(format_args!("$ wallaby-chord put {key} '{value}'"))?;
        line(format_args!(
            "{} nodes keep it, from {} on",
            put.copies, put.owner
        ))?;
    }
    line("\n$ wallaby-chord explain wallaby")?;
    text(explain(&client, "wallaby").await?)?;
    if plan.processes > 1 {
        let owner = client.get("wallaby", Form::Delegation).await?.found.owner;
        processes.kill(&owner.host).await?;
        let got = client.get("wallaby", Form::Delegation).await?;
        line("\nkilled the process of its owner, with all its nodes; right after that:")?;
        let value = got.found.value.unwrap_or_default();
        let value = String::from_utf8_lossy(&value);
        line(format_args!("$ wallaby-chord get wallaby\n{value}"))?;
        let (attempts, owner) = (got.attempts, got.found.owner);
        line(format_args!("({attempts} attempts, from {owner})"))?;
    }
    processes.end().await;
    Ok(())
}

async fn up(plan: &Plan, at: &Path) -> anyhow::Result<()> {
    let mut processes = unless_interrupted(Processes::start(plan)).await?;
    let ring = processes.ring().clone();
    page::announce(at, &ring)?;
    let (nodes, hosts, at_shown) = (plan.nodes, ring.hosts.len(), at.display());
    line(format_args!(
        "a ring of {nodes} nodes in {hosts} processes; {at_shown} says where"
    ))?;
    line("it stays until Ctrl-C; try: wallaby-chord explain wallaby")?;
    tokio::select! {
        // The others go on: that is what a ring is for.
        ended = processes.ended() => {
            eprintln!("{ended}; the others go on");
            interrupted().await?;
        }
        asked = interrupted() => drop(asked?),
    }
    page::withdraw(at, &ring);
    processes.end().await;
    Ok(())
}

async fn put(key: &str, value: String, at: &Path) -> anyhow::Result<()> {
    let answered = client(at).await?.put(key, value.into_bytes()).await?;
    report_misses(&answered);
    let found = &answered.found;
    line(format_args!(
        "{} nodes keep it, from {} on; {} hops, {:.1?}",
        found.copies, found.owner, found.hops, answered.took
    ))
}

impl Get {
    async fn run(self, at: &Path) -> anyhow::Result<ExitCode> {
        let form = match self.iterative {
            true => Form::Iteration,
            false => Form::Delegation,
        };
        let answered = client(at).await?.get(&self.key, form).await?;
        report_misses(&answered);
        let found = &answered.found;
        let value = found.value.as_deref().map(String::from_utf8_lossy);
        if self.json {
            line(json!({
                "key": self.key,
                "value": value,
                "owner": found.owner.id.to_string(),
                "at": found.owner.host.to_string(),
                "hops": found.hops,
                "attempts": answered.attempts,
                "us": answered.took.as_secs_f64() * 1e6,
            }))?;
        } else if let Some(value) = &value {
            line(value)?;
        }
        match value {
            Some(_) => Ok(ExitCode::SUCCESS),
            None => {
                eprintln!("'{}' has no value", self.key);
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// How a lookup went, several lines, and what it takes by iteration.
async fn explain(client: &Client, key: &str) -> anyhow::Result<String> {
    let id = RingId::of_key(key);
    let seed = fastrand::u64(..);
    let ask = async |form| {
        // Of one seed, so that both begin at the same node.
        let client = Client::new(client.endpoint().clone(), client.hosts(), seed).traced();
        // The first time connects endpoints that have never talked to each other.
        client.owner(id, form).await?;
        anyhow::Ok(client.owner(id, form).await?)
    };
    let delegated = ask(Form::Delegation).await?;
    let iterated = ask(Form::Iteration).await?;
    report_misses(&delegated);
    let mut text = draw::way(key, id, &delegated.found, delegated.trace.as_ref());
    let mut tell = |form: &str, answered: &Answered, messages, at_client| {
        let (hops, took) = (answered.found.hops, answered.took);
        text += &format!(
            "by {form}: {hops} hops in {took:.1?}, {messages} messages, {at_client} of them at the client\n"
        );
    };
    tell("delegation", &delegated, delegated.found.hops + 2, 2);
    let messages = 2 * (iterated.found.hops + 1);
    tell("iteration", &iterated, messages, messages);
    Ok(text)
}

/// A client of the ring that a page tells of.
async fn client(at: &Path) -> anyhow::Result<Client> {
    let ring = Ring::find(at)?;
    let endpoint = ring.endpoint().await?;
    let mut lives = false;
    for host in &ring.hosts {
        lives |= endpoint.connect(host).await.is_ok();
    }
    ensure!(
        lives,
        "the ring that {} tells of is gone: start one with 'wallaby-chord up'",
        at.display()
    );
    // Another seed for each client: puts are told apart by what it leads to.
    Ok(Client::new(endpoint, &ring.hosts, fastrand::u64(..)))
}

/// Attempts that failed are said, even if another one succeeded.
fn report_misses(answered: &Answered) {
    for miss in &answered.misses {
        eprintln!("an attempt failed: {miss}");
    }
}
