//! `wallaby-chord churn`: load while nodes join and leave, and nodes and processes crash; then the books are compared.

use super::ring::{report, survey};
use super::{Size, span};
use crate::census::problems;
use crate::chance::Chance;
use crate::churn::{Books, Faults};
use crate::output;
use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How much is going on.
#[derive(Debug, Args)]
pub(super) struct Churn {
    #[command(flatten)]
    size: Size,
    /// For how long
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How many changes there are a second: joins, leaves, crashes
    #[arg(long, value_name = "R", default_value_t = 5.0)]
    rate: f64,
    /// How many keys there are
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    keys: u16,
    /// How many clients look up at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: u8,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
}

impl Churn {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.rate.is_finite() && (0.0..=1000.0).contains(&self.rate),
            "--rate is {}: 0 to 1000 changes a second are possible",
            self.rate
        );
        let seed = self.size.seed;
        let processes = self.size.start().await?;
        let setup = processes.setup(self.size.nodes);
        let mut faults = Faults::new(processes, setup.members(), Chance(seed)).await?;
        let books = Arc::new(Books::new(self.keys.into()));
        self.fill(&books, &faults).await?;
        let progress = bar(self.seconds);
        let mut clients = JoinSet::new();
        let end = Instant::now() + Duration::from_secs(self.seconds);
        for number in 0..self.clients {
            let client = faults.client(seed ^ (u64::from(number) << 32)).await?;
            let (books, hosts) = (Arc::clone(&books), faults.hosts());
            clients.spawn(async move { books.load(client, hosts, number.into(), end).await });
        }
        let pause = Duration::from_secs_f64(1.0 / self.rate.max(0.001));
        let mut changes = tokio::time::interval(pause);
        changes.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while Instant::now() < end {
            let late = tokio::time::sleep_until(end.into());
            tokio::select! {
                _ = changes.tick() => if self.rate > 0.0 { faults.change().await? },
                () = late => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            progress.set_position(self.seconds.saturating_sub(left.as_secs()));
            progress.set_message(faults.to_string());
        }
        while let Some(ended) = clients.join_next().await {
            ended.context("a client ended")?;
        }
        progress.set_message("the ring heals");
        let healed = faults.wait_until_healed().await?;
        let client = faults.client(seed).await?;
        let lost = books.check_all(&client).await;
        progress.finish_and_clear();
        let (tables, _) = survey(&client).await;
        let problems = problems(&tables);
        report(&problems);
        let code = self.print(&books, &faults, &lost, problems.len(), healed)?;
        faults.end().await;
        Ok(code)
    }

    /// Every key gets a value, so that none may be missing.
    async fn fill(&self, books: &Arc<Books>, faults: &Faults) -> anyhow::Result<()> {
        let client = faults.client(self.size.seed).await?;
        for key in 0..self.keys {
            books.put(&client, key.into()).await;
        }
        let failed = books.tally().failed;
        anyhow::ensure!(failed == 0, "{failed} puts failed before anything changed");
        Ok(())
    }

    fn print(
        &self,
        books: &Books,
        faults: &Faults,
        lost: &[String],
        problems: usize,
        healed: Option<Duration>,
    ) -> anyhow::Result<ExitCode> {
        let tally = books.tally();
        let is_well =
            lost.is_empty() && tally.wrong.is_empty() && problems == 0 && healed.is_some();
        for wrong in tally.wrong.iter().take(10) {
            eprintln!("wrong: {wrong}");
        }
        for key in lost.iter().take(10) {
            eprintln!("lost: {key}");
        }
        if self.json {
            let hops: Vec<u64> = tally.hops.clone();
            output::line(format_args!(
                "{}",
                json!({
                    "seconds": self.seconds, "seed": self.size.seed, "processes": self.size.processes,
                    "nodes": faults.nodes(), "joins": faults.joins, "leaves": faults.leaves,
                    "crashes": faults.crashes, "kills": faults.kills,
                    "gets": tally.gets, "puts": tally.puts, "failed": tally.failed, "retried": tally.retried,
                    "wrong": tally.wrong.len(), "lost": lost.len(), "problems": problems, "hops": hops,
                })
            ))?;
        } else {
            output::line(format_args!("seed {}", self.size.seed))?;
            output::line(format_args!("changes: {faults}"))?;
            output::line(format_args!(
                "lookups: {} gets, {} puts; {} needed further attempts, {} failed",
                tally.gets, tally.puts, tally.retried, tally.failed
            ))?;
            output::line(format_args!(
                "wrong answers: {}; lost keys: {} of {}",
                tally.wrong.len(),
                lost.len(),
                self.keys
            ))?;
            match healed {
                Some(took) => {
                    output::line(format_args!("one ring again after {}", span::show(took)))?
                }
                None => output::line(format_args!("the ring did not heal in 200 rounds"))?,
            }
            output::text(&histogram(&tally.hops))?;
        }
        Ok(match is_well {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn bar(seconds: u64) -> ProgressBar {
    let bar = ProgressBar::new(seconds);
    // The template is a literal that is tried in every run.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} s  {msg}") {
        bar.set_style(style);
    }
    bar
}

/// How many lookups took how many hops.
fn histogram(hops: &[u64]) -> String {
    const WIDEST: u64 = 50;
    let most = hops.iter().copied().max().unwrap_or(0).max(1);
    let lines = hops.iter().enumerate().map(|(number, lookups)| {
        let width = (lookups * WIDEST).div_ceil(most);
        format!(
            "{number:4} hops {lookups:8}  {}\n",
            "█".repeat(width as usize)
        )
    });
    lines.collect()
}
