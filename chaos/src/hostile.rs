//! Honest clients and servers among peers that lie: first without these, then with them, and what is different then.
//!
//! | part | what it is |
//! |---|---|
//! | `attackers` | the process of a hostile client or server, and the list of attacks |
//! | `identity` | attacks of who claims to be somebody else, listens for what is for others, or talks nonsense |
//! | `memory`, `work` | of who makes others keep things, or work |
//! | `addresses` | of who leads honest servers to others |
//! | `host` | what a hostile server does to those that call it |
//! | `ground` | what all attacks have |
//! | `line`, `datagrams`, `wire` | connections, sessions and bytes, by hand |

mod addresses;
mod attackers;
mod datagrams;
mod ground;
mod host;
mod identity;
mod line;
mod memory;
mod wire;
mod work;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use wallaby::Budgets;
use wallaby_bench::Transport;

pub(crate) use self::attackers::{ATTACKS, attend, names};
pub(crate) use self::host::manners as server_attacks;
use crate::audit::{Books, Closed, Findings, MARGIN, audit};
use crate::child::{Child, PATIENCE};
use crate::cluster::{Cluster, Settings};
use crate::control::{Announcement, Config, Hostility, Instruction, Load, Role, Watch};
use crate::moment;
use crate::network::Choice;
use crate::plan::{Number, Shape};

/// What servers set that are open to strangers; all else is the default. No honest call here needs a tenth of it.
pub(crate) const MOST: Budgets = Budgets {
    requests: 1_000,
    responses: 10_000,
    bytes: 64 << 20,
    depth: 64,
};

/// Calls to the hostile server that ended later than their deadline, and a margin.
pub(crate) const LATE: &str = "calls to the hostile server: too late";
/// Requests of hostile trees that servers began long after their deadline.
pub(crate) const OVERDUE: &str = "runs after their deadline";
/// Messages about calls of others, which nobody should have got.
const STOLEN: &str = "told of others";
/// What came where nobody had asked for anything.
const VICTIM_BYTES: &str = "bytes at the victim";
const VICTIM_DIALS: &str = "dials at the victim";
/// Attacks that should have been ended, and were not.
const UNSTOPPED: &str = "peers that nobody stopped";

/// The defaults.
const WATCH: Watch = Watch {
    period: Duration::from_millis(500),
    timeout: Duration::from_secs(5),
    deadline: Duration::from_secs(30),
};
/// The books are compared so often.
const ROUND: Duration = Duration::from_secs(20);
/// How long it may take until nothing is left of what hostile peers have asked for.
const REST: Duration = Duration::from_secs(60);
/// Attacks whose calls say that they may last, so that they are remembered for longer.
const LONG_CALLS: [&str; 2] = ["hanging", "ping-settings"];
/// A handler's last line may follow the end of its call.
const LAST_LINES: Duration = Duration::from_millis(300);
/// Slower than this many times is too slow.
const SLOWER: f64 = 3.0;
/// Percentiles of fewer calls say nothing.
const ENOUGH: usize = 300;
/// Faster than this is never too slow, in milliseconds: of less the scheduler decides.
const QUICK_MS: f64 = 20.0;
/// What a process may hold besides what it holds without hostile peers.
const MEMORY_KIB: u64 = 512 << 10;
/// Hostile processes, each with a victim's addresses.
const VICTIMS: f64 = 2.0;
/// How often an endpoint dials an address that peers have named, and how many bytes it sends there over UDP, in a second.
const DIALS_A_SECOND: f64 = 1.0;
const BYTES_A_SECOND: f64 = 240.0;

/// What a run is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) transport: Transport,
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) workers: u16,
    pub(crate) rate: f64,
    /// What is done; empty: everything.
    pub(crate) attacks: Vec<String>,
    /// One after the other.
    pub(crate) each: bool,
    /// Whether servers set [`MOST`].
    pub(crate) budgets: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: &'static str,
    pub(crate) seed: u64,
    pub(crate) transport: Transport,
    pub(crate) seconds: f64,
    pub(crate) calls: u64,
    /// The first is without hostile peers.
    pub(crate) phases: Vec<Phase>,
    pub(crate) late_ms: f64,
    pub(crate) violations: Vec<String>,
}

/// A part of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    #[serde(flatten)]
    pub(crate) findings: Findings,
    /// Of calls whose messages are all small, and of the others.
    pub(crate) small: Latency,
    pub(crate) large: Latency,
    /// The most that each honest process held.
    pub(crate) peak_mib: BTreeMap<String, u64>,
    /// Processor time, in cores.
    pub(crate) honest_cores: f64,
    pub(crate) hostile_cores: f64,
    /// What hostile processes did, and what they counted.
    pub(crate) done: BTreeMap<String, u64>,
    /// Honest calls to the hostile server.
    pub(crate) baits: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) calls: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Latency {
    fn of(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        let at = |per_mille: usize| {
            let index = (nanos.len() * per_mille / 1000).min(nanos.len().max(1) - 1);
            moment::millis(nanos.get(index).copied().unwrap_or_default())
        };
        Self {
            calls: nanos.len(),
            p50_ms: at(500),
            p99_ms: at(990),
            max_ms: at(1000),
        }
    }
}

struct Run {
    options: Options,
    settings: Settings,
    cluster: Cluster,
    closed: Closed,
    rounds: u64,
    late: u64,
    violations: Vec<String>,
}

/// What was true when a phase began.
struct Before {
    at: u64,
    worked: Duration,
    baits: BTreeMap<String, u64>,
}

/// Runs the phases; `tell` hears how it goes.
pub(crate) async fn run(options: Options, mut tell: impl FnMut(&str)) -> Result<Report> {
    let all = names();
    for name in &options.attacks {
        ensure!(
            all.contains(&name.as_str()),
            "there is no attack {name}: see --list"
        );
    }
    let settings = Settings {
        transport: options.transport,
        network: Choice::Loopback,
        servers: options.servers,
        clients: options.clients,
        watch: WATCH,
        losses: None,
        seed: options.seed,
        lane: 0,
        hostile: true,
        budgets: options.budgets,
    };
    let chosen = match &options.attacks[..] {
        [] => all.into_iter().map(str::to_owned).collect(),
        chosen => chosen.to_vec(),
    };
    let phases: Vec<Vec<String>> = match options.each {
        true => chosen.into_iter().map(|name| vec![name]).collect(),
        false => vec![chosen],
    };
    let start = moment::now();
    let mut run = Run {
        cluster: Cluster::start(settings).await?,
        options,
        settings,
        closed: Closed::default(),
        rounds: 0,
        late: 0,
        violations: Vec::new(),
    };
    let length = Duration::from_secs(run.options.seconds);
    let calm = (length / 4).clamp(Duration::from_secs(5), Duration::from_secs(120));
    let length = length.saturating_sub(calm).max(Duration::from_secs(5));
    let first = run.phase(Vec::new(), calm, None, &mut tell).await?;
    let mut done = vec![first];
    for attacks in phases {
        let phase = run.phase(attacks, length, done.first(), &mut tell).await?;
        done.push(phase);
    }
    let calls = done
        .iter()
        .flat_map(|phase| phase.findings.outcomes.values());
    Ok(Report {
        command: "hostile",
        seed: run.options.seed,
        transport: run.options.transport,
        seconds: (moment::now() - start) as f64 / 1e9,
        calls: calls.sum(),
        phases: done,
        late_ms: moment::millis(run.late),
        violations: run.violations,
    })
}

impl Run {
    /// Load for so long, with these attacks; what is worse than without them is a violation.
    async fn phase(
        &mut self,
        attacks: Vec<String>,
        length: Duration,
        calm: Option<&Phase>,
        tell: &mut impl FnMut(&str),
    ) -> Result<Phase> {
        let name = match &attacks[..] {
            [] => "without hostile peers".to_owned(),
            [one] => one.clone(),
            several => format!("{} attacks at once", several.len()),
        };
        tell(&format!("{name}, {} s", length.as_secs()));
        for seat in &self.cluster.seats {
            seat.child.as_ref().context("all run")?.forget_peak()?;
        }
        let mut overdue = self.counted(OVERDUE).await?;
        let before = Before {
            at: moment::now(),
            worked: self.worked()?,
            baits: self.baits().await?,
        };
        let mut hostile = self.hostile(&attacks).await?;
        let mut findings = Findings::default();
        let (mut small, mut large) = (Vec::new(), Vec::new());
        let end = moment::now() + length.as_nanos() as u64;
        while moment::now() < end {
            let left = Duration::from_nanos(end - moment::now());
            let books = self.round(left.min(ROUND), !attacks.is_empty()).await?;
            for (_, call) in &books.calls {
                let took = call.ended.saturating_sub(call.begun);
                match call.shape {
                    Shape::LargeAnswers | Shape::LargeRequest => large.push(took),
                    Shape::Lasting => {}
                    _ => small.push(took),
                }
            }
            let found = audit(&books, WATCH, &self.closed);
            let calls: u64 = found.outcomes.values().sum();
            let wrong = found.violations.len();
            let peak = self.peaks()?.into_values().max().unwrap_or_default();
            tell(&format!(
                "  {calls} calls, {wrong} violations, at most {peak} MiB a process"
            ));
            found
                .violations
                .iter()
                .take(3)
                .for_each(|words| tell(words));
            findings.add(found);
            self.close(&books);
        }
        let mut done = BTreeMap::new();
        let mut hostile_worked = Duration::ZERO;
        for child in &mut hostile {
            for (what, count) in child.health().await?.counted {
                *done.entry(what).or_default() += count;
            }
            hostile_worked += child.worked()?;
        }
        let (seconds, worked) = (
            (moment::now() - before.at) as f64 / 1e9,
            self.worked()? - before.worked,
        );
        overdue = self.counted(OVERDUE).await? - overdue;
        done.insert(OVERDUE.to_owned(), overdue);
        let mut baits = self.baits().await?;
        for (outcome, count) in before.baits {
            baits.entry(outcome).and_modify(|now| *now -= count);
        }
        let phase = Phase {
            seconds,
            small: Latency::of(small),
            large: Latency::of(large),
            peak_mib: self.peaks()?,
            honest_cores: worked.as_secs_f64() / seconds,
            hostile_cores: hostile_worked.as_secs_f64() / seconds,
            done,
            baits,
            findings,
            name,
        };
        let mut wrong = phase.findings.violations.clone();
        if let Some(calm) = calm {
            wrong.extend(self.compare(calm, &phase));
        }
        for mut child in hostile {
            child.kill().await?;
        }
        // What honest calls leave behind is looked at in other runs, and takes its time to be forgotten.
        let is_long = |name: &String| LONG_CALLS.contains(&name.as_str());
        // What is remembered of calls with timeouts of minutes is remembered for minutes; but nothing of them runs.
        let soon = !attacks.iter().any(is_long);
        if !attacks.is_empty() {
            wrong.extend(self.cluster.settle(REST, soon).await?);
        }
        if let Some(words) = self.cluster.lost()? {
            bail!("{words} during {}", phase.name);
        }
        for seat in 0..self.cluster.seats.len() {
            self.cluster.seats[seat].rested = None;
            if !wrong.is_empty() || !soon {
                // What one attack has left behind is not to be held against the next one.
                self.cluster.kill(seat).await?;
                self.cluster.begin(seat).await?;
            }
        }
        let name = &phase.name;
        self.violations
            .extend(wrong.into_iter().map(|words| format!("{name}: {words}")));
        Ok(phase)
    }

    /// The hostile client and the hostile server, as far as there is something for them to do.
    async fn hostile(&mut self, attacks: &[String]) -> Result<Vec<Child>> {
        let mut nodes = Vec::new();
        for seat in 0..self.cluster.seats.len() {
            nodes.push(self.cluster.child(seat)?.health().await?.node);
        }
        let network = &self.cluster.network;
        let place = self.settings.servers + self.settings.clients;
        let targets = (0..self.settings.servers).map(|host| {
            let door = network.door(host);
            door.unwrap_or_else(|| network.address(host))
        });
        let shares = |host: &usize| network.door(*host).is_some();
        let rings = (0..self.settings.servers).filter(shares);
        let rings = rings.map(|host| network.address(host));
        let hostility = Hostility {
            seed: self.options.seed,
            listen: None,
            targets: targets.collect(),
            rings: rings.collect(),
            nodes,
            ip: network.host(place),
            attacks: attacks.to_vec(),
            rate: self.options.rate,
        };
        let server = Hostility {
            seed: self.options.seed ^ 0x51ed_270b_7a64_3e11,
            listen: Some(self.cluster.liar(self.settings)),
            ..hostility.clone()
        };
        let is_of_client = |name: &String| ATTACKS.iter().any(|attack| attack.name == name);
        let mut children = Vec::new();
        let roles = [
            (
                attacks.iter().any(is_of_client),
                "hostile client",
                hostility,
            ),
            (!attacks.iter().all(is_of_client), "hostile server", server),
        ];
        for (wanted, name, hostility) in roles {
            if !wanted {
                continue;
            }
            let config = Config {
                parent: std::process::id(),
                name: name.to_owned(),
                servers: Vec::new(),
                hostile: None,
                budgets: false,
                watch: WATCH,
                role: Role::Hostile(hostility),
            };
            children.push(Child::start(network, place, &config).await?);
        }
        Ok(children)
    }

    /// Calls for so long; all that was written down of them.
    async fn round(&mut self, length: Duration, baits: bool) -> Result<Books> {
        self.rounds += 1;
        let calm = moment::now();
        for seat in self.cluster.clients() {
            let own = (seat as u64) << 32 | self.rounds;
            let load = Load {
                seed: self.options.seed ^ own.wrapping_mul(0x2545_f491_4f6c_dd1d),
                workers: self.options.workers,
                transport: self.options.transport,
                aborts: false,
                work_us: WORK_US,
                long_work_us: WORK_US,
                lasting: 1,
                baits: u16::from(baits) * BAITS,
            };
            let client = self.cluster.child(seat)?;
            client.instruct(&Instruction::Load(load)).await?;
        }
        let wake = moment::now() + length.as_nanos() as u64;
        tokio::time::sleep(length).await;
        self.late = self.late.max(moment::now().saturating_sub(wake));
        for seat in self.cluster.clients() {
            self.cluster
                .child(seat)?
                .instruct(&Instruction::Rest)
                .await?;
        }
        for seat in self.cluster.clients() {
            let said = self
                .cluster
                .child(seat)?
                .listen(WATCH.deadline + PATIENCE)
                .await?;
            let Announcement::Resting { .. } = said else {
                bail!("a client said {said:?} instead of that it rests");
            };
        }
        tokio::time::sleep(LAST_LINES).await;
        self.cluster.take_books(Vec::new(), calm)
    }

    /// Nothing of these calls may be executed any more.
    fn close(&mut self, books: &Books) {
        for (_, call) in &books.calls {
            if let Some(first) = call.planned.first() {
                self.closed.close_until(Number::unpack(first.id));
            }
        }
    }

    fn worked(&self) -> Result<Duration> {
        let children = self
            .cluster
            .seats
            .iter()
            .filter_map(|seat| seat.child.as_ref());
        children.map(Child::worked).sum()
    }

    /// What all honest servers have counted of this, together.
    async fn counted(&mut self, what: &str) -> Result<u64> {
        let mut sum = 0;
        for seat in 0..self.cluster.servers {
            let counted = self.cluster.child(seat)?.health().await?.counted;
            sum += counted.get(what).copied().unwrap_or_default();
        }
        Ok(sum)
    }

    /// How calls to the hostile server ended so far.
    async fn baits(&mut self) -> Result<BTreeMap<String, u64>> {
        let mut all = BTreeMap::new();
        for seat in self.cluster.clients() {
            let counted = self.cluster.child(seat)?.health().await?.counted;
            for (what, count) in counted {
                if what.starts_with("calls to") {
                    *all.entry(what).or_default() += count;
                }
            }
        }
        Ok(all)
    }

    /// The most that each process held, in MiB.
    fn peaks(&self) -> Result<BTreeMap<String, u64>> {
        let seats = self.cluster.seats.iter();
        let peak = |seat: &crate::cluster::Seat| {
            let usage = seat.child.as_ref().context("all run")?.usage()?;
            anyhow::Ok((seat.name.clone(), usage.peak_kib >> 10))
        };
        seats.map(peak).collect()
    }

    /// What is worse than it may be.
    fn compare(&self, calm: &Phase, phase: &Phase) -> Vec<String> {
        let mut wrong = Vec::new();
        for (what, before, now) in [
            ("small", calm.small, phase.small),
            ("large", calm.large, phase.large),
        ] {
            let limit = (SLOWER * before.p99_ms).max(QUICK_MS);
            if before.calls.min(now.calls) >= ENOUGH && now.p99_ms > limit {
                wrong.push(format!(
                    "the p99 of honest calls with {what} messages rose from {:.1} to {:.1} ms, {limit:.1} at most were expected",
                    before.p99_ms, now.p99_ms
                ));
            }
        }
        for (name, peak) in &phase.peak_mib {
            let may = calm.peak_mib.get(name).copied().unwrap_or_default() + (MEMORY_KIB >> 10);
            if *peak > may {
                wrong.push(format!(
                    "{name} held {peak} MiB, {may} at most were expected"
                ));
            }
        }
        let counted = |what: &str| phase.done.get(what).copied().unwrap_or_default();
        let endpoints = self.cluster.seats.len() as f64;
        let dials = counted(VICTIM_DIALS);
        let most = VICTIMS * endpoints * (phase.seconds + 1.0);
        let may = (most * DIALS_A_SECOND) as u64;
        if dials > may {
            wrong.push(format!(
                "{dials} dials at a port where nobody had asked for anything, {may} at most were expected"
            ));
        }
        let bytes = counted(VICTIM_BYTES);
        let may = (most * BYTES_A_SECOND) as u64;
        if bytes > may {
            wrong.push(format!(
                "{bytes} bytes at a port where nobody had asked for anything, {may} at most were expected"
            ));
        }
        let stolen = counted(STOLEN);
        if stolen > 0 {
            wrong.push(format!(
                "strangers were told of others' calls {stolen} times"
            ));
        }
        let unstopped = counted(UNSTOPPED);
        if unstopped > 0 {
            wrong.push(format!(
                "{unstopped} connections of who never reads, or never finishes a message, were not ended"
            ));
        }
        let overdue = counted(OVERDUE);
        if overdue > 0 {
            wrong.push(format!(
                "{overdue} requests of trees began more than {MARGIN:?} after their deadline"
            ));
        }
        let late = phase.baits.get(LATE).copied().unwrap_or_default();
        if late > 0 {
            wrong.push(format!(
                "{late} calls to the hostile server did not end by their deadline"
            ));
        }
        wrong
    }
}

/// Longest work of an honest handler: it is the protocol that is measured.
const WORK_US: u32 = 1_000;
/// Calls to the hostile server that each honest client has outstanding.
const BAITS: u16 = 4;
