//! The commands of the program: what they are asked, how they run, what is printed.

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand};
use std::time::{Duration, Instant};
use wallaby_bench::Transport;
use wallaby_program::ending::unless_interrupted;
use wallaby_program::output;

use crate::network::Choice;
use crate::{churn, detect, hostile, loss, process, report};

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load on a cluster whose processes are killed and stopped and whose links are cut
    Run(Run),
    /// Measure how long it takes until a call fails whose server is gone
    Detect(Detect),
    /// Calls over UDP while datagrams are dropped, doubled, overtaken and damaged
    Loss(Loss),
    /// Honest clients and servers among peers that break every rule they can
    Hostile(Hostile),
    /// A process of one of the above, which starts it itself
    #[command(hide = true)]
    Process {
        /// What it is told, as JSON
        config: String,
    },
}

/// How to run a cluster.
#[derive(Debug, Args)]
pub struct Run {
    /// What is drawn at random is drawn from this; a new one if not given
    #[arg(long)]
    seed: Option<u64>,
    /// For about how long; at least one round
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// tcp, udp, unix or shm
    #[arg(long, default_value = "tcp")]
    transport: Transport,
    /// Where processes are
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    network: Choice,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=60))]
    /// Servers
    servers: u8,
    /// Clients; every other one does not listen
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=60))]
    clients: u8,
    /// Calls that each client has outstanding
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Over UDP: of a thousand datagrams so many are dropped, doubled, overtaken, damaged
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=500))]
    loss: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How to be among hostile peers.
#[derive(Debug, Args)]
#[command(after_help = HOSTILE)]
pub struct Hostile {
    /// What is drawn at random is drawn from this; a new one if not given
    #[arg(long)]
    seed: Option<u64>,
    /// For about how long; a quarter of it, two minutes at most, is without hostile peers
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// tcp, udp, unix or shm
    #[arg(long, default_value = "tcp")]
    transport: Transport,
    /// Honest servers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=20))]
    servers: u8,
    /// Honest clients; every other one does not listen
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    clients: u8,
    /// Calls that each honest client has outstanding
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// How often attacks come: twice as often for 2
    #[arg(long, default_value_t = 1.0)]
    rate: f64,
    /// Only this attack; may be said several times
    #[arg(long = "attack", value_name = "NAME")]
    attacks: Vec<String>,
    /// Servers with nothing but defaults: what comes of a request is not limited by `max_budgets`
    #[arg(long)]
    no_budgets: bool,
    /// One attack after the other, each for as long as all would take
    #[arg(long)]
    each: bool,
    /// Say what attacks there are, and do nothing
    #[arg(long)]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const HOSTILE: &str = "\
A hostile client and a hostile server do all attacks at once (--list), at sockets of this machine only. Honest calls
must not fail, nor become three times as slow; no honest process may hold more memory than its limits allow, nor be
led to send anything to who has not asked for it. Otherwise the exit status is 1.

Examples:
  wallaby-chaos hostile --transport udp --seconds 600   ten minutes over UDP
  wallaby-chaos hostile --attack bomb --attack deaf     two of the attacks, to see which one it was
  wallaby-chaos hostile --each --seconds 10             each by itself, to see what each one costs";

/// How to measure detection.
#[derive(Debug, Args)]
pub struct Detect {
    /// How often each kind
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// tcp, udp, unix or shm
    #[arg(long, default_value = "tcp")]
    transport: Transport,
    /// Where processes are
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    network: Choice,
    /// How many victims at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=20))]
    lanes: u8,
    /// How often servers are asked, in milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..))]
    period_ms: u64,
    /// How long silence may last, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(20..))]
    timeout_ms: u64,
    /// How much later than the limit is still well, in milliseconds: what a busy machine needs to wake somebody up
    #[arg(long, default_value_t = 50)]
    margin_ms: u64,
    /// When victims are hurt is drawn from this; a new one if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How to measure calls over a lossy network.
#[derive(Debug, Args)]
pub struct Loss {
    /// Calls of each number of hops
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Numbers of hops
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u8).range(1..=16))]
    hops: Vec<u8>,
    /// Of a thousand datagrams so many are dropped, doubled, overtaken, damaged
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=500))]
    loss: u32,
    /// Calls outstanding
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// What is drawn at random is drawn from this; a new one if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Does it; whether all was well.
    ///
    /// # Errors
    /// What kept it from being done, or [`Interrupted`](wallaby_program::ending::Interrupted).
    pub fn run(self) -> Result<bool> {
        // Processes die with the thread that started them: there is only this one.
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
        };
        match self {
            Self::Process { config } => process::run(&config).map(|()| true),
            Self::Run(run) => runtime()?.block_on(unless_interrupted(run.run())),
            Self::Hostile(hostile) => runtime()?.block_on(unless_interrupted(hostile.run())),
            Self::Detect(detect) => runtime()?.block_on(unless_interrupted(detect.run())),
            Self::Loss(loss) => runtime()?.block_on(unless_interrupted(loss.run())),
        }
    }
}

impl Run {
    async fn run(self) -> Result<bool> {
        let seed = seed(self.seed)?;
        eprintln!("seed {seed}");
        let options = churn::Options {
            seed,
            seconds: self.seconds,
            transport: self.transport,
            network: self.network,
            servers: self.servers.into(),
            clients: self.clients.into(),
            workers: self.workers,
            loss: self.loss,
        };
        let report = churn::run(options, teller()).await?;
        let mut text = report::churn(&report);
        let command = format!(
            "wallaby-chaos run --seed {seed} --transport {} --seconds {}",
            self.transport, self.seconds
        );
        report::violations(&report.violations, &command, &mut text);
        print(&report, &text, self.json)?;
        Ok(report.violations.is_empty())
    }
}

impl Hostile {
    async fn run(self) -> Result<bool> {
        if self.list {
            print(&hostile::names(), &report::attacks(), self.json)?;
            return Ok(true);
        }
        ensure!(
            self.rate > 0.0 && self.rate <= 100.0,
            "a rate is above 0 and at most 100"
        );
        let seed = seed(self.seed)?;
        eprintln!("seed {seed}");
        let options = hostile::Options {
            seed,
            seconds: self.seconds,
            transport: self.transport,
            servers: self.servers.into(),
            clients: self.clients.into(),
            workers: self.workers,
            rate: self.rate,
            attacks: self.attacks,
            each: self.each,
            budgets: !self.no_budgets,
        };
        let report = hostile::run(options, teller()).await?;
        let mut text = report::hostile(&report);
        let command = format!(
            "wallaby-chaos hostile --seed {seed} --transport {} --seconds {}",
            self.transport, self.seconds
        );
        report::violations(&report.violations, &command, &mut text);
        if !report.violations.is_empty() && !self.each {
            text.push_str("which attack it was: the same with --each, or with --attack NAME\n");
        }
        print(&report, &text, self.json)?;
        Ok(report.violations.is_empty())
    }
}

impl Detect {
    async fn run(self) -> Result<bool> {
        let seed = seed(self.seed)?;
        eprintln!("seed {seed}");
        let report = detect::run(detect::Options {
            seed,
            times: self.times,
            transport: self.transport,
            network: self.network,
            lanes: self.lanes.into(),
            period: Duration::from_millis(self.period_ms),
            timeout: Duration::from_millis(self.timeout_ms),
            margin: Duration::from_millis(self.margin_ms),
        })
        .await?;
        let mut text = report::detect(&report);
        let command = format!(
            "wallaby-chaos detect --seed {seed} --transport {}",
            self.transport
        );
        report::violations(&report.violations, &command, &mut text);
        print(&report, &text, self.json)?;
        Ok(report.violations.is_empty())
    }
}

impl Loss {
    async fn run(self) -> Result<bool> {
        let seed = seed(self.seed)?;
        eprintln!("seed {seed}");
        let report = loss::run(loss::Options {
            seed,
            calls: self.calls,
            hops: self.hops,
            loss: self.loss,
            workers: self.workers,
        })
        .await?;
        let mut text = report::loss(&report);
        let command = format!("wallaby-chaos loss --seed {seed} --calls {}", self.calls);
        report::violations(&report.violations, &command, &mut text);
        print(&report, &text, self.json)?;
        Ok(report.violations.is_empty())
    }
}

/// Says how it goes, and when.
fn teller() -> impl FnMut(&str) {
    let start = Instant::now();
    move |words: &str| {
        let seconds = start.elapsed().as_secs();
        for line in words.lines() {
            eprintln!("{seconds:4} s  {line}");
        }
    }
}

fn seed(given: Option<u64>) -> Result<u64> {
    if let Some(seed) = given {
        return Ok(seed);
    }
    let mut bytes = [0; 4]; // short enough to be typed again
    if let Err(error) = getrandom::fill(&mut bytes) {
        bail!("no random numbers from the operating system: {error}");
    }
    Ok(u32::from_le_bytes(bytes).into())
}

fn print(report: &impl serde::Serialize, text: &str, json: bool) -> Result<()> {
    match json {
        true => output::line(serde_json::to_string(report)?),
        false => output::text(text),
    }
}
