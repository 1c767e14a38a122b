//! Rounds of load: first with faults, then without, then nothing; after each the books are compared.

use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use wallaby_bench::Transport;
use wallaby_bench::random::Random;

use crate::audit::{Closed, Findings, audit};
use crate::child::PATIENCE;
use crate::cluster::{Cluster, Settings};
use crate::control::{Announcement, Instruction, Load, Losses, Role, Watch};
use crate::harm::{Fault, Harm};
use crate::moment::{self, MILLI};
use crate::network::Choice;

/// How calls are watched over: short enough for a test, with room for a machine that has other things to do.
pub(crate) const WATCH: Watch = Watch {
    period: Duration::from_millis(100),
    timeout: Duration::from_secs(1),
    deadline: Duration::from_secs(8),
};
/// The longest stop, or cut.
const LONGEST_MS: u64 = 2200;
/// Things that are wrong at a time, at most.
const MOST_AT_A_TIME: usize = 3;
/// Records of requests whose initiator is gone are kept for the gc timeout of the slowest settings.
const REST: Duration = Duration::from_secs(20);

/// Violations of a round that are told at once; all are in the report.
const MOST_TOLD: usize = 3;

/// What a churn is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) transport: Transport,
    pub(crate) network: Choice,
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) workers: u16,
    /// What happens to datagrams, in a thousand.
    pub(crate) loss: u32,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: &'static str,
    pub(crate) seed: u64,
    pub(crate) transport: Transport,
    pub(crate) network: &'static str,
    /// Why links were not cut.
    pub(crate) links_not_cut: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) rounds: u64,
    pub(crate) calls: u64,
    pub(crate) faults: BTreeMap<Fault, u64>,
    #[serde(flatten)]
    pub(crate) findings: Findings,
    /// What proxies did to datagrams.
    pub(crate) datagrams: BTreeMap<String, u64>,
    /// How late timers of the director were at most. Where it is much, violations may say more of the machine.
    pub(crate) late_ms: f64,
    pub(crate) violations: Vec<String>,
}

/// A run in progress.
struct Churn {
    options: Options,
    cluster: Cluster,
    random: Random,
    closed: Closed,
    /// Of this round.
    harms: Vec<Harm>,
    /// When which of them ends.
    due: Vec<(u64, usize)>,
    faults: BTreeMap<Fault, u64>,
    /// How much later than it wanted to the director woke up: how busy the machine was.
    late: u64,
}

/// Runs rounds for as long as asked; `tell` hears how it goes.
pub(crate) async fn run(options: Options, mut tell: impl FnMut(&str)) -> Result<Report> {
    let is_udp = options.transport == Transport::Udp;
    let settings = Settings {
        transport: options.transport,
        network: options.network,
        servers: options.servers,
        clients: options.clients,
        watch: WATCH,
        losses: (is_udp && options.loss > 0).then(|| Losses::each(options.loss)),
        seed: options.seed,
        lane: 0,
        hostile: false,
        budgets: false,
    };
    let start = moment::now();
    let cluster = Cluster::start(settings).await?;
    let mut churn = Churn {
        options,
        cluster,
        random: Random::new(options.seed),
        closed: Closed::default(),
        harms: Vec::new(),
        due: Vec::new(),
        faults: BTreeMap::new(),
        late: 0,
    };
    if let Some(why) = &churn.cluster.network.whole {
        tell(&format!("links are NOT cut in this run: {why}"));
    }
    let mut findings = Findings::default();
    let mut rounds = 0;
    let length = options.seconds * 1000 * MILLI;
    while rounds == 0 || moment::now() - start + ROUND_MS * MILLI < length {
        let left = length.saturating_sub(moment::now() - start) / MILLI;
        let found = churn.round(rounds, left).await?;
        rounds += 1;
        let (calls, faults): (u64, u64) = (found.outcomes.values().sum(), churn.harms.len() as u64);
        tell(&format!(
            "round {rounds}: {faults} faults, {calls} calls, {} without a fault, {} violations",
            found.calm_calls,
            found.violations.len()
        ));
        found
            .violations
            .iter()
            .take(MOST_TOLD)
            .for_each(|words| tell(words));
        findings.add(found);
    }
    Ok(Report {
        command: "run",
        seed: options.seed,
        transport: options.transport,
        network: churn.cluster.network.words(),
        links_not_cut: churn.cluster.network.whole.clone(),
        seconds: (moment::now() - start) as f64 / 1e9,
        rounds,
        calls: findings.outcomes.values().sum(),
        faults: churn.faults,
        late_ms: moment::millis(churn.late),
        violations: std::mem::take(&mut findings.violations),
        findings,
        datagrams: churn.cluster.proxied().await?,
    })
}

/// About how long a round takes: faults, settling, calm, rest.
const ROUND_MS: u64 = 16_000;

impl Churn {
    async fn round(&mut self, round: u64, left_ms: u64) -> Result<Findings> {
        // A short run has one short round; in long ones each is long enough to matter and short enough to compare.
        let faulty_ms = (left_ms / 2).clamp(2_000, 12_000);
        self.harms.clear();
        self.load(round * 2, true).await?;
        self.do_harm(Duration::from_millis(faulty_ms), round * 2)
            .await?;
        let unreachable = self.settle().await?;
        let calm = moment::now();
        self.load(round * 2 + 1, false).await?;
        tokio::time::sleep(Duration::from_millis((faulty_ms / 4).max(1_000))).await;
        let next = self.silence().await?;
        let leaks = self.cluster.rest(REST).await?;
        let books = self.cluster.take_books(self.harms.clone(), calm)?;
        let mut findings = audit(&books, WATCH, &self.closed);
        findings.violations.extend(unreachable);
        findings.violations.extend(leaks);
        for (client, incarnation, next) in next {
            for earlier in 0..incarnation {
                self.closed.close(client, earlier, u32::MAX);
            }
            self.closed.close(client, incarnation, next);
        }
        if let Some(words) = self.cluster.lost()? {
            bail!("{words} without having been killed");
        }
        Ok(findings)
    }

    async fn load(&mut self, part: u64, aborts: bool) -> Result<()> {
        for seat in self.cluster.clients() {
            let instruction = self.load_of(seat, part, aborts);
            self.cluster.child(seat)?.instruct(&instruction).await?;
        }
        Ok(())
    }

    fn load_of(&self, seat: usize, part: u64, aborts: bool) -> Instruction {
        let incarnation = u64::from(self.cluster.seats[seat].incarnation);
        let own = (seat as u64) << 48 | incarnation << 32 | part;
        Instruction::Load(Load {
            seed: self.options.seed ^ own.wrapping_mul(0x2545_f491_4f6c_dd1d),
            workers: self.options.workers,
            transport: self.options.transport,
            aborts,
            work_us: 20_000,
            long_work_us: WATCH.timeout.as_micros() as u32 * 3 / 2,
            lasting: 0,
            baits: 0,
        })
    }

    /// Waits until no client has a call; the number of the next call of each.
    async fn silence(&mut self) -> Result<Vec<(u8, u16, u32)>> {
        for seat in self.cluster.clients() {
            let client = self.cluster.child(seat)?;
            client.instruct(&Instruction::Rest).await?;
        }
        let mut next_numbers = Vec::new();
        for seat in self.cluster.clients() {
            let announcement = self.cluster.child(seat)?.listen(PATIENCE).await?;
            let Announcement::Resting { next } = announcement else {
                bail!("a client said {announcement:?} instead of that it rests");
            };
            if let Role::Client {
                number,
                incarnation,
                ..
            } = self.cluster.seats[seat].config.role
            {
                next_numbers.push((number, incarnation, next));
            }
        }
        Ok(next_numbers)
    }

    /// Faults for so long, one after the other and some at the same time; all is mended when this returns.
    async fn do_harm(&mut self, time: Duration, part: u64) -> Result<()> {
        let end = moment::now() + time.as_nanos() as u64;
        let mut next = moment::now() + self.random.between(100, 500) * MILLI;
        loop {
            let now = moment::now();
            let mend = self.due.iter().map(|(at, _)| *at).min();
            let strike = (now < end).then_some(next);
            let Some(wake) = mend.into_iter().chain(strike).min() else {
                return Ok(());
            };
            if wake > now {
                tokio::time::sleep(Duration::from_nanos(wake - now)).await;
                self.late = self.late.max(moment::now().saturating_sub(wake));
            } else if mend == Some(wake) {
                self.mend(wake, part).await?;
            } else {
                next = now + self.random.between(50, 600) * MILLI;
                if self.due.len() < MOST_AT_A_TIME {
                    self.strike().await?;
                }
            }
        }
    }

    /// Does something bad to somebody who is well.
    async fn strike(&mut self) -> Result<()> {
        let fault = match self.random.below(10) {
            0..=3 => Fault::Kill,
            4..=6 => Fault::Stop,
            _ if !self.cluster.network.can_cut() => Fault::Stop,
            7..=8 => Fault::CutBoth,
            _ => Fault::CutOne,
        };
        let Some((seat, other)) = self.victims(fault) else {
            return Ok(());
        };
        // As often shorter as longer than silence may last.
        let timeout = WATCH.timeout.as_millis() as u64;
        let lasting = match (fault, self.random.below(4)) {
            (Fault::Kill, 0) => 0,
            (_, 0..=1) => self.random.between(10, timeout * 9 / 10),
            _ => self.random.between(timeout * 11 / 10, LONGEST_MS),
        };
        let from = moment::now();
        match (fault, other) {
            (Fault::Kill, _) => self.cluster.kill(seat).await?,
            (Fault::Stop, _) => self.cluster.child(seat)?.set_stopped(true),
            (_, Some(other)) => self.set_link(fault, seat, other, false).await?,
            (_, None) => bail!("a link has two ends"),
        }
        *self.faults.entry(fault).or_default() += 1;
        self.due.push((from + lasting * MILLI, self.harms.len()));
        self.harms.push(Harm {
            fault,
            seat,
            other,
            unnoticed: self.options.transport == Transport::Udp,
            from,
            until: u64::MAX,
        });
        Ok(())
    }

    /// Somebody who is well; for a link two. Clients are hurt less often than servers.
    fn victims(&mut self, fault: Fault) -> Option<(usize, Option<usize>)> {
        let is_well = |seat: usize| {
            let hurt = self.due.iter().map(|(_, harm)| self.harms[*harm]);
            !hurt
                .into_iter()
                .any(|harm| harm.seat == seat || harm.other == Some(seat))
        };
        let all = self.cluster.seats.len();
        let mut well: Vec<usize> = (0..all).filter(|seat| is_well(*seat)).collect();
        let is_link = matches!(fault, Fault::CutBoth | Fault::CutOne);
        if !is_link && !self.random.per_mille(150) {
            well.retain(|seat| *seat < self.cluster.servers);
        }
        self.random.shuffle(&mut well);
        match well[..] {
            [seat, other, ..] if is_link => Some((seat, Some(other))),
            [seat, ..] if !is_link => Some((seat, None)),
            _ => None,
        }
    }

    /// Ends what is to end by now.
    async fn mend(&mut self, now: u64, part: u64) -> Result<()> {
        let due = std::mem::take(&mut self.due);
        let (over, due): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at <= now);
        self.due = due;
        for (_, index) in over {
            let Harm {
                fault, seat, other, ..
            } = self.harms[index];
            match (fault, other) {
                (Fault::Kill, _) => {
                    self.cluster.begin(seat).await?;
                    if seat >= self.cluster.servers {
                        let instruction = self.load_of(seat, part, true);
                        self.cluster.child(seat)?.instruct(&instruction).await?;
                    }
                }
                (Fault::Stop, _) => self.cluster.child(seat)?.set_stopped(false),
                (_, Some(other)) => self.set_link(fault, seat, other, true).await?,
                (_, None) => bail!("a link has two ends"),
            }
            self.harms[index].until = moment::now();
        }
        Ok(())
    }

    async fn set_link(&self, fault: Fault, from: usize, to: usize, up: bool) -> Result<()> {
        self.cluster.network.set_link(from, to, up).await?;
        if fault == Fault::CutBoth {
            self.cluster.network.set_link(to, from, up).await?;
        }
        Ok(())
    }

    /// All is mended: now what was sent into dead links must be sent again, and what failed must have failed.
    async fn settle(&mut self) -> Result<Vec<String>> {
        self.silence().await?;
        let felt = self.harms.iter().map(Harm::felt_until);
        let felt = felt.filter(|until| *until < u64::MAX).max();
        let left = felt.unwrap_or_default().saturating_sub(moment::now());
        tokio::time::sleep(Duration::from_nanos(left)).await;
        let mut wrong = Vec::new();
        for seat in self.cluster.clients() {
            let client = self.cluster.child(seat)?;
            client.instruct(&Instruction::Touch).await?;
        }
        for seat in self.cluster.clients() {
            match self.cluster.child(seat)?.listen(PATIENCE).await? {
                Announcement::Touched { failures } => wrong.extend(failures),
                other => bail!("a client said {other:?} instead of whom it reaches"),
            }
        }
        Ok(wrong)
    }
}
