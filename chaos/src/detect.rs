//! How long it takes from the moment that a server is hurt until the call that it works for has failed.

use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;
use wallaby_bench::Transport;
use wallaby_bench::random::Random;

use crate::child::PATIENCE;
use crate::cluster::{Cluster, Settings};
use crate::control::{Announcement, Instruction, Outcome, Watch};
use crate::moment::{self, millis};
use crate::network::Choice;

/// No call ends by its deadline here.
const DEADLINE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) times: u32,
    pub(crate) transport: Transport,
    pub(crate) network: Choice,
    /// Victims at a time, each in a cluster of its own.
    pub(crate) lanes: usize,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) margin: Duration,
}

/// What happens to the server of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Killed; its connection is reset and nobody listens there any more.
    Killed,
    /// Killed; another incarnation listens at its address as soon as that can be.
    Replaced,
    /// Stopped; its connection stays open.
    Stopped,
    /// Alive, but nothing passes between it and all others.
    CutOff,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Killed, Self::Replaced, Self::Stopped, Self::CutOff];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Replaced => "killed and restarted",
            Self::Stopped => "stopped",
            Self::CutOff => "cut off",
        }
    }
}

/// Which server is hurt, how and when.
#[derive(Debug, Clone, Copy)]
struct Trial {
    kind: Kind,
    /// The last hop of its call.
    hop: u8,
    /// Before the client has asked for the first time, so that it has never reached a server below the first hop.
    early: bool,
}

impl Trial {
    const HOPS: [u8; 3] = [1, 2, 4];

    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            for hop in Self::HOPS {
                let early = false;
                all.push(Self { kind, hop, early });
            }
            if matches!(kind, Kind::Killed | Kind::Replaced) {
                for hop in &Self::HOPS[1..] {
                    let (hop, early) = (*hop, true);
                    all.push(Self { kind, hop, early });
                }
            }
        }
        all
    }

    /// A ping period, and a tenth to find it out, where the end of a connection and a refused dial tell of it, three where the client has never reached the
    /// server, else the timeout and one period; from the first ping on, which is due after a period and an eighth.
    fn limit(self, options: Options) -> Duration {
        let is_told = options.transport != Transport::Udp;
        let limit = match self.kind {
            Kind::Killed | Kind::Replaced if is_told && !self.early => options.period * 11 / 10,
            Kind::Killed | Kind::Replaced if is_told => 3 * options.period,
            _ => options.timeout + options.period,
        };
        match self.early {
            true => limit + options.period * 9 / 8,
            false => limit,
        }
    }

    fn words(self) -> String {
        let early = if self.early { ", not asked yet" } else { "" };
        format!("{} at hop {}{early}", self.kind.words(), self.hop)
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: &'static str,
    pub(crate) seed: u64,
    pub(crate) transport: Transport,
    pub(crate) network: &'static str,
    pub(crate) links_not_cut: Option<String>,
    pub(crate) period_ms: u64,
    pub(crate) timeout_ms: u64,
    pub(crate) margin_ms: u64,
    pub(crate) rows: Vec<Row>,
    pub(crate) violations: Vec<String>,
}

/// A kind of harm, at one hop of a call.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) hop: u8,
    /// The client had never reached the server.
    pub(crate) early: bool,
    pub(crate) times: u64,
    pub(crate) limit_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// How many took longer than the limit, margin aside.
    pub(crate) over: u64,
}

/// Four servers and a client: one server is the victim, the others forward to it if the call has several hops.
struct Lane {
    cluster: Cluster,
    random: Random,
    period: Duration,
    /// When its victim was killed last.
    killed: Option<Instant>,
}

/// Between two deaths at one address: who dies again within the second may be dialled no more in it, and calls that have failed ask
/// for another second whether anything of them still runs.
const BETWEEN: Duration = Duration::from_millis(2500);

/// Calls that may fail before one is under way.
const MOST_TRIES: usize = 5;
const VICTIM: usize = 0;
const RELAYS: [usize; 3] = [1, 2, 3];
const CLIENT: usize = 4;

/// Measures each kind at each hop.
pub(crate) async fn run(options: Options) -> Result<Report> {
    let mut lanes = Vec::new();
    for lane in 0..options.lanes.min(options.times as usize) {
        let settings = Settings {
            transport: options.transport,
            network: options.network,
            servers: CLIENT,
            clients: 1,
            watch: Watch {
                period: options.period,
                timeout: options.timeout,
                deadline: DEADLINE,
            },
            losses: None,
            seed: options.seed,
            lane,
            hostile: false,
            budgets: false,
        };
        lanes.push(Lane {
            cluster: Cluster::start(settings).await?,
            random: Random::new(options.seed ^ (lane as u64 + 1).wrapping_mul(0x8cb9_2ba7)),
            period: options.period,
            killed: None,
        });
    }
    let network = lanes[0].cluster.network.words();
    let links_not_cut = lanes[0].cluster.network.whole.clone();
    let (mut rows, mut violations) = (Vec::new(), Vec::new());
    for trial in Trial::all() {
        if trial.kind == Kind::CutOff && links_not_cut.is_some() {
            continue;
        }
        let (taken, back) = measure(lanes, trial, options.times).await?;
        lanes = back;
        let row = row(trial, taken, options);
        let limit = row.limit_ms + options.margin.as_secs_f64() * 1e3;
        if row.max_ms > limit {
            violations.push(format!(
                "{}: detected after {:.0} ms, {limit:.0} at most were expected",
                trial.words(),
                row.max_ms
            ));
        }
        eprintln!(
            "{}: {} times, {:.0} ms at most",
            trial.words(),
            row.times,
            row.max_ms
        );
        rows.push(row);
    }
    Ok(Report {
        command: "detect",
        seed: options.seed,
        transport: options.transport,
        network,
        links_not_cut,
        period_ms: options.period.as_millis() as u64,
        timeout_ms: options.timeout.as_millis() as u64,
        margin_ms: options.margin.as_millis() as u64,
        rows,
        violations,
    })
}

/// All lanes at the same time; how long it took each time, in nanoseconds.
async fn measure(lanes: Vec<Lane>, trial: Trial, times: u32) -> Result<(Vec<u64>, Vec<Lane>)> {
    let count = lanes.len() as u32;
    let mut tasks = Vec::new();
    for (index, mut lane) in (0..).zip(lanes) {
        // The remainder is shared among the first lanes.
        let times = times / count + u32::from(index < times % count);
        tasks.push(tokio::spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..times {
                taken.push(lane.run(trial).await?);
            }
            anyhow::Ok((taken, lane))
        }));
    }
    let (mut all, mut lanes) = (Vec::new(), Vec::new());
    for task in tasks {
        let (taken, lane) = task.await??;
        all.extend(taken);
        lanes.push(lane);
    }
    Ok((all, lanes))
}

fn row(trial: Trial, mut taken: Vec<u64>, options: Options) -> Row {
    taken.sort_unstable();
    let at = |percent: usize| {
        let index = (taken.len() * percent / 100).min(taken.len() - 1);
        millis(taken[index])
    };
    let limit = trial.limit(options);
    let over = taken.iter().filter(|time| **time > limit.as_nanos() as u64);
    Row {
        kind: trial.kind,
        hop: trial.hop,
        early: trial.early,
        times: taken.len() as u64,
        limit_ms: limit.as_secs_f64() * 1e3,
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
        over: over.count() as u64,
    }
}

impl Lane {
    /// One call whose last server is hurt while it works, at a random time between two pings or before the first one.
    async fn run(&mut self, trial: Trial) -> Result<u64> {
        let Trial { kind, hop, early } = trial;
        let relays = RELAYS[..usize::from(hop) - 1].iter();
        let servers = relays.chain(&[VICTIM]).map(|server| *server as u8);
        if let Some(last) = self.killed {
            tokio::time::sleep_until(last + BETWEEN).await;
        }
        self.hold(servers.collect()).await?;
        let period = self.period.as_micros() as u64;
        let wait = match early {
            true => self.random.between(0, period / 2),
            false => self.random.between(period, 3 * period),
        };
        tokio::time::sleep(Duration::from_micros(wait)).await;
        let since = moment::now();
        self.hurt(kind).await?;
        let released = self.cluster.child(CLIENT)?.listen(PATIENCE).await?;
        self.mend(kind).await?;
        match released {
            Announcement::Released {
                at,
                outcome: Outcome::Lost { .. },
            } => Ok(at.saturating_sub(since)),
            other => bail!(
                "a call whose server was {} ended so: {other:?}",
                kind.words()
            ),
        }
    }

    /// Begins a call and waits until its last server has answered once. Nobody tells the peers of a UDP socket that its
    /// process has ended: the first call afterwards may fail.
    async fn hold(&mut self, servers: Vec<u8>) -> Result<()> {
        let client = self.cluster.child(CLIENT)?;
        let mut said = None;
        for _ in 0..MOST_TRIES {
            let instruction = Instruction::Hold {
                servers: servers.clone(),
            };
            client.instruct(&instruction).await?;
            match client.listen(PATIENCE).await? {
                Announcement::Holding => return Ok(()),
                other => said = Some(other),
            }
        }
        bail!("the client said {said:?} instead of that its call is under way")
    }

    async fn hurt(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Killed => self.kill().await,
            Kind::Replaced => {
                self.kill().await?;
                self.cluster.begin(VICTIM).await
            }
            Kind::Stopped => {
                self.cluster.child(VICTIM)?.set_stopped(true);
                Ok(())
            }
            Kind::CutOff => self.set_links(false).await,
        }
    }

    async fn kill(&mut self) -> Result<()> {
        self.killed = Some(Instant::now());
        self.cluster.kill(VICTIM).await
    }

    async fn mend(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Killed => self.cluster.begin(VICTIM).await,
            Kind::Replaced => Ok(()),
            Kind::Stopped => {
                self.cluster.child(VICTIM)?.set_stopped(false);
                Ok(())
            }
            Kind::CutOff => self.set_links(true).await,
        }
    }

    /// What the server sends is lost first, all at once: the rest may take as long as programs do that are started for it.
    async fn set_links(&self, up: bool) -> Result<()> {
        let network = &self.cluster.network;
        let others: Vec<usize> = RELAYS.into_iter().chain([CLIENT]).collect();
        network.set_links(VICTIM, &others, up).await?;
        for other in others {
            network.set_link(other, VICTIM, up).await?;
        }
        Ok(())
    }
}
