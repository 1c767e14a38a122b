//! How long it takes from the moment that a server is hurt until the call that it works for has failed.

use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Duration;
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
    /// Killed; another life listens at its address as soon as that can be.
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

    /// Three ping periods where the end of a connection tells of it, else the timeout and one period.
    fn limit(self, options: Options) -> Duration {
        let is_told = options.transport != Transport::Udp;
        match self {
            Self::Killed | Self::Replaced if is_told => 3 * options.period,
            _ => options.timeout + options.period,
        }
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

/// A kind of harm, at the first or second hop of a call.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) hop: u8,
    pub(crate) times: u64,
    pub(crate) limit_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// How many took longer than the limit, margin aside.
    pub(crate) over: u64,
}

/// Two servers and a client: the second server is the victim, the first one forwards to it if the call has two hops.
struct Lane {
    cluster: Cluster,
    random: Random,
    period: Duration,
}

/// Calls that may fail before one is under way.
const MOST_TRIES: usize = 5;
const RELAY: usize = 0;
const VICTIM: usize = 1;
const CLIENT: usize = 2;

/// Measures each kind at each hop.
pub(crate) async fn run(options: Options) -> Result<Report> {
    let mut lanes = Vec::new();
    for lane in 0..options.lanes.min(options.times as usize) {
        let settings = Settings {
            transport: options.transport,
            network: options.network,
            servers: 2,
            clients: 1,
            watch: Watch {
                period: options.period,
                timeout: options.timeout,
                deadline: DEADLINE,
            },
            losses: None,
            seed: options.seed,
            lane,
        };
        lanes.push(Lane {
            cluster: Cluster::start(settings).await?,
            random: Random::new(options.seed ^ (lane as u64 + 1).wrapping_mul(0x8cb9_2ba7)),
            period: options.period,
        });
    }
    let network = lanes[0].cluster.network.words();
    let links_not_cut = lanes[0].cluster.network.whole.clone();
    let (mut rows, mut violations) = (Vec::new(), Vec::new());
    for (kind, hop) in Kind::ALL
        .into_iter()
        .flat_map(|kind| [(kind, 1), (kind, 2)])
    {
        if kind == Kind::CutOff && links_not_cut.is_some() {
            continue;
        }
        let (taken, back) = measure(lanes, kind, hop, options.times).await?;
        lanes = back;
        let row = row(kind, hop, taken, options);
        let limit = row.limit_ms + options.margin.as_secs_f64() * 1e3;
        if row.max_ms > limit {
            violations.push(format!(
                "{} at hop {hop}: detected after {:.0} ms, {limit:.0} at most were expected",
                kind.words(),
                row.max_ms
            ));
        }
        eprintln!(
            "{} at hop {hop}: {} times, {:.0} ms at most",
            kind.words(),
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
async fn measure(
    lanes: Vec<Lane>,
    kind: Kind,
    hop: u8,
    times: u32,
) -> Result<(Vec<u64>, Vec<Lane>)> {
    let count = lanes.len() as u32;
    let mut tasks = Vec::new();
    for (index, mut lane) in (0..).zip(lanes) {
        // The remainder is shared among the first lanes.
        let times = times / count + u32::from(index < times % count);
        tasks.push(tokio::spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..times {
                taken.push(lane.trial(kind, hop).await?);
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

fn row(kind: Kind, hop: u8, mut taken: Vec<u64>, options: Options) -> Row {
    taken.sort_unstable();
    let at = |percent: usize| {
        let index = (taken.len() * percent / 100).min(taken.len() - 1);
        millis(taken[index])
    };
    let limit = kind.limit(options);
    let over = taken.iter().filter(|time| **time > limit.as_nanos() as u64);
    Row {
        kind,
        hop,
        times: taken.len() as u64,
        limit_ms: limit.as_secs_f64() * 1e3,
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
        over: over.count() as u64,
    }
}

impl Lane {
    /// One call whose last server is hurt while it works, at a random time between two pings.
    async fn trial(&mut self, kind: Kind, hop: u8) -> Result<u64> {
        let servers = match hop {
            1 => vec![VICTIM as u8],
            _ => vec![RELAY as u8, VICTIM as u8],
        };
        self.hold(servers).await?;
        let period = self.period.as_micros() as u64;
        let wait = self.random.between(period, 3 * period);
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
            Kind::Killed => self.cluster.kill(VICTIM).await,
            Kind::Replaced => {
                self.cluster.kill(VICTIM).await?;
                self.cluster.begin(VICTIM).await
            }
            Kind::Stopped => {
                self.cluster.child(VICTIM)?.set_stopped(true);
                Ok(())
            }
            Kind::CutOff => self.set_links(false).await,
        }
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

    async fn set_links(&self, up: bool) -> Result<()> {
        for other in [RELAY, CLIENT] {
            self.cluster.network.set_link(VICTIM, other, up).await?;
            self.cluster.network.set_link(other, VICTIM, up).await?;
        }
        Ok(())
    }
}
