//! A client: makes calls, several at a time, and writes down how each of them ended.

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use wallaby::{Address, Answers, Call, CallError, Client, Endpoint, Failure, FailureKind};
use wallaby_bench::random::Random;

use crate::control::{
    Announcement, CallRecord, Config, Instruction, Load, Measured, Outcome, Role, Watch, announce,
};
use crate::journal::Journal;
use crate::moment;
use crate::plan::{self, Drawing, Number, Receipt, Shape, Step};
use crate::process::{self, Instructions};
use crate::server::counter;
use crate::{audit, hostile};

/// Calls that have gone wrong and are told in words.
const MOST_WORDS: usize = 20;
/// Calls along a pair of servers before it counts as unreachable.
const MOST_TOUCHES: usize = 10;
/// How long a call takes that takes long.
const LASTING_MS: u32 = 2_000;
/// How long it waits for handlers that go on: as long as it takes.
const LONGEST_STOP: Duration = Duration::from_secs(3600);
/// Of calls to servers that lie.
const BAIT_DEADLINE: Duration = Duration::from_secs(2);

struct Caller {
    endpoint: Endpoint,
    servers: Vec<Address>,
    watch: Watch,
    log: Journal,
    number: u8,
    incarnation: u16,
    next: AtomicU32,
    /// The server that lies, and how calls to it ended.
    liar: Option<Address>,
    baits: Mutex<BTreeMap<String, u64>>,
}

/// How a call ended, with all that came before.
struct Ended {
    receipts: Vec<Receipt>,
    statuses: Vec<String>,
    outcome: Outcome,
    settled: Option<Duration>,
}

/// Calls that go on until they are told to rest.
struct Loading {
    stop: Arc<AtomicBool>,
    workers: JoinSet<()>,
}

/// Does what the director says until it has gone.
pub(crate) async fn attend(config: &Config) -> Result<()> {
    let Role::Client {
        number,
        incarnation,
        entrance,
        log,
    } = &config.role
    else {
        bail!("{} is no client", config.name);
    };
    let caller = Arc::new(Caller {
        endpoint: process::builder(config, entrance.as_ref())?.bind().await?,
        servers: process::addresses(&config.servers)?,
        watch: config.watch,
        log: Journal::open(log)?,
        number: *number,
        incarnation: *incarnation,
        next: AtomicU32::new(0),
        liar: process::addresses(&config.hostile)?.pop(),
        baits: Mutex::default(),
    });
    let mut loading: Option<Loading> = None;
    let mut instructions = Instructions::new();
    announce(&Announcement::Ready)?;
    while let Some(instruction) = instructions.next().await? {
        match instruction {
            Instruction::Load(load) => loading = Some(caller.load(load)),
            Instruction::Touch => {
                let failures = Arc::clone(&caller).touch().await;
                announce(&Announcement::Touched { failures })?;
            }
            Instruction::Rest => {
                if let Some(loading) = loading.take() {
                    loading.stop.store(true, Ordering::Relaxed);
                    loading.workers.join_all().await;
                }
                let next = caller.next.load(Ordering::Relaxed);
                announce(&Announcement::Resting { next })?;
            }
            Instruction::Hold { servers } => caller.hold(&servers).await?,
            Instruction::Measure {
                seed,
                hops,
                calls,
                workers,
            } => {
                let measured = Arc::clone(&caller).measure(seed, hops, calls, workers);
                announce(&Announcement::Measured(measured.await))?;
            }
            Instruction::Report => {
                let mut health = process::health(&caller.endpoint);
                health.counted.extend(caller.baited());
                announce(&Announcement::Health(health))?;
            }
        }
    }
    Ok(())
}

impl Caller {
    fn load(self: &Arc<Self>, load: Load) -> Loading {
        let Load { seed, .. } = load;
        let stop = Arc::new(AtomicBool::new(false));
        let mut set = JoinSet::new();
        for worker in 0..u64::from(load.workers) {
            let (caller, stop) = (Arc::clone(self), Arc::clone(&stop));
            let mut random = Random::new(seed ^ (worker + 1).wrapping_mul(0x9e6c_63d0_876a_68ef));
            set.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    caller.one_call(load, &mut random).await;
                    let think = Duration::from_micros(random.between(0, 30_000));
                    tokio::time::sleep(think).await;
                }
            });
        }
        for worker in 0..u64::from(load.lasting) {
            let (caller, stop) = (Arc::clone(self), Arc::clone(&stop));
            let mut random = Random::new(seed ^ (worker + 1).wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
            set.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    caller.lasting_call(&mut random).await;
                }
            });
        }
        for worker in 0..u64::from(load.baits) {
            let (caller, stop) = (Arc::clone(self), Arc::clone(&stop));
            let mut random = Random::new(seed ^ (worker + 1).wrapping_mul(0xb5ad_4ece_da1c_e2a9));
            set.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    caller.bait(&mut random).await;
                    let think = Duration::from_micros(random.between(0, 100_000));
                    tokio::time::sleep(think).await;
                }
            });
        }
        Loading { stop, workers: set }
    }

    fn take_number(&self) -> Number {
        Number {
            client: self.number,
            incarnation: self.incarnation,
            call: self.next.fetch_add(1, Ordering::Relaxed),
            node: 0,
        }
    }

    fn client(&self, step: &Step) -> Client {
        let server = &self.servers[usize::from(step.server) % self.servers.len()];
        Client::new(&self.endpoint, server)
    }

    async fn one_call(&self, load: Load, random: &mut Random) {
        let drawing = Drawing {
            servers: self.servers.len() as u8,
            transport: load.transport,
            work_us: load.work_us,
            long_work_us: load.long_work_us,
        };
        let (shape, step) = plan::draw(drawing, self.take_number(), random);
        let give_up = (load.aborts && random.per_mille(30))
            .then(|| Duration::from_micros(random.between(0, 50_000)));
        // Lines with one small answer are what RPC is, and have ways of their own through the runtime.
        let is_rpc = shape == Shape::Line && random.per_mille(700);
        self.make(shape, step, is_rpc, give_up).await;
    }

    /// A call that goes on after its answer, so that there is something to be stopped by who may not.
    async fn lasting_call(&self, random: &mut Random) {
        let mut servers: Vec<u8> = (0..self.servers.len() as u8).collect();
        random.shuffle(&mut servers);
        servers.truncate(2);
        let step = plan::line(self.take_number(), &servers, LASTING_MS);
        self.make(Shape::Lasting, step, false, None).await;
    }

    /// Makes a call and writes down how it ended.
    async fn make(&self, shape: Shape, step: Step, is_rpc: bool, give_up: Option<Duration>) {
        let planned = step.planned();
        let begun = moment::now();
        let client = self.client(&step);
        let sizes: Vec<_> = sizes(&step);
        let ended = match is_rpc {
            true => finish(client.call(&counter::ONE, (step,)), give_up).await,
            false => finish(client.call(&counter::MANY, (step,)), give_up).await,
        };
        let wrong = |receipt: &&Receipt| {
            let size = sizes.iter().find(|(id, _)| *id == receipt.id);
            !receipt.is_intact() || size.is_none_or(|(_, size)| *size != receipt.filler.len())
        };
        let record = CallRecord {
            shape,
            begun,
            ended: moment::now(),
            deadline: self.watch.deadline,
            planned,
            delivered: ended.receipts.iter().map(|r| (r.id, r.index)).collect(),
            damaged: ended.receipts.iter().filter(wrong).count() as u64,
            statuses: ended.statuses,
            outcome: ended.outcome,
            settled: ended.settled,
        };
        if let Ok(mut line) = serde_json::to_string(&record) {
            line.push('\n');
            self.log.write_line(&line);
        }
    }

    /// A call whose last server lies, directly or by honest ones. It may end as it likes, if only it ends.
    async fn bait(&self, random: &mut Random) {
        let Some(liar) = &self.liar else {
            return;
        };
        let honest = self.servers.len();
        let mut servers: Vec<u8> = (0..honest as u8).collect();
        random.shuffle(&mut servers);
        servers.truncate(random.below(3));
        servers.push(honest as u8);
        let number = Number {
            client: Number::UNRECORDED | self.number,
            ..self.take_number()
        };
        let step = plan::line(number, &servers, 0);
        let first = self.servers.get(usize::from(step.server)).unwrap_or(liar);
        let client = Client::new(&self.endpoint, first).deadline(BAIT_DEADLINE);
        let start = Instant::now();
        let mut call = client.call(&counter::MANY, (step,));
        if random.per_mille(500) {
            // Who looks elsewhere meanwhile finds no more than the call's window.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        while call.next().await.is_some() {}
        let took = start.elapsed();
        let outcome = match call.outcome() {
            Some(wallaby::Outcome::Complete { .. }) => "calls to the hostile server: complete",
            _ => "calls to the hostile server: failed",
        };
        let mut baits = self.baits.lock().unwrap_or_else(PoisonError::into_inner);
        *baits.entry(outcome.to_owned()).or_default() += 1;
        if took > BAIT_DEADLINE + audit::MARGIN {
            *baits.entry(hostile::LATE.to_owned()).or_default() += 1;
        }
    }

    fn baited(&self) -> BTreeMap<String, u64> {
        let baits = self.baits.lock().unwrap_or_else(PoisonError::into_inner);
        baits.clone()
    }

    async fn hold(&self, servers: &[u8]) -> Result<()> {
        let step = plan::line(self.take_number(), servers, 600_000);
        let client = self.client(&step);
        let mut call = client.call(&counter::MANY, (step,));
        if let Some(Ok(_)) = call.next().await {
            announce(&Announcement::Holding)?;
        }
        let ended = finish(call, None).await;
        announce(&Announcement::Released {
            at: moment::now(),
            outcome: ended.outcome,
        })
    }

    async fn measure(self: Arc<Self>, seed: u64, hops: u8, calls: u32, workers: u16) -> Measured {
        let left = Arc::new(AtomicU32::new(calls));
        let bad = Arc::new(Mutex::new((0, Vec::new())));
        let start = Instant::now();
        let mut set = JoinSet::new();
        for worker in 0..u64::from(workers) {
            let (caller, left, bad) = (Arc::clone(&self), Arc::clone(&left), Arc::clone(&bad));
            let mut random = Random::new(seed ^ (worker + 1).wrapping_mul(0xd605_1f93_57a4_2b1b));
            set.spawn(async move {
                let mut latencies = Vec::new();
                while take_one(&left) {
                    let begun = Instant::now();
                    let result = caller.along(hops, &mut random).await;
                    latencies.push(begun.elapsed().as_micros() as u64);
                    if let Err(words) = result {
                        let mut bad = bad.lock().unwrap_or_else(PoisonError::into_inner);
                        bad.0 += 1;
                        if bad.1.len() < MOST_WORDS {
                            bad.1.push(words);
                        }
                    }
                }
                latencies
            });
        }
        let mut latencies: Vec<u64> = set.join_all().await.into_iter().flatten().collect();
        latencies.sort_unstable();
        let at = |per_mille: usize| {
            let index = (latencies.len() * per_mille / 1000).min(latencies.len().max(1) - 1);
            latencies.get(index).copied().unwrap_or_default()
        };
        let (failed, failures) = bad.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Measured {
            calls: latencies.len() as u64,
            failed,
            failures,
            seconds: start.elapsed().as_secs_f64(),
            p50_us: at(500),
            p99_us: at(990),
            max_us: at(1000),
        }
    }

    /// Calls along every pair of servers; those that can't be called along, with what was said last.
    async fn touch(self: Arc<Self>) -> Vec<String> {
        let count = self.servers.len() as u8;
        let pairs = (0..count).flat_map(|first| (0..count).map(move |second| [first, second]));
        let mut set = JoinSet::new();
        for pair in pairs.filter(|[first, second]| first != second) {
            let caller = Arc::clone(&self);
            set.spawn(async move {
                let mut said = String::new();
                for _ in 0..MOST_TOUCHES {
                    match caller.pass(&pair).await {
                        Ok(()) => return None,
                        Err(words) => said = words,
                    }
                }
                Some(format!("no call along servers {pair:?} completes: {said}"))
            });
        }
        set.join_all().await.into_iter().flatten().collect()
    }

    /// One call along random servers.
    async fn along(&self, hops: u8, random: &mut Random) -> Result<(), String> {
        let mut servers: Vec<u8> = (0..self.servers.len() as u8).collect();
        random.shuffle(&mut servers);
        servers.truncate(hops.into());
        self.pass(&servers).await
    }

    /// One call along these servers, answered by the last.
    async fn pass(&self, servers: &[u8]) -> Result<(), String> {
        let step = plan::line(self.take_number(), servers, 0);
        let last = step.planned().last().map(|request| request.id);
        let answer = self.client(&step).call(&counter::ONE, (step,)).await;
        match answer {
            Ok(receipt) if Some(receipt.id) == last => Ok(()),
            Ok(receipt) => Err(format!("answered for request {}", receipt.id)),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn take_one(left: &AtomicU32) -> bool {
    let less = |left: u32| left.checked_sub(1);
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    taken.is_ok()
}

fn sizes(step: &Step) -> Vec<(u64, usize)> {
    let mut all = vec![(step.id, step.answer_bytes as usize)];
    all.extend(step.then.iter().flat_map(sizes));
    all
}

/// Takes all answers; gives the call up after a while if that is said.
async fn finish<A>(mut call: Call<A>, give_up: Option<Duration>) -> Ended
where
    A: Answers<Item = Receipt>,
{
    let (mut receipts, mut statuses) = (Vec::new(), Vec::new());
    let patience = tokio::time::sleep(give_up.unwrap_or(Duration::MAX / 4));
    tokio::pin!(patience);
    loop {
        let item = tokio::select! {
            item = call.next() => item,
            () = &mut patience => {
                let start = Instant::now();
                let _ = call.stop_within(LONGEST_STOP).await;
                return Ended {
                    receipts,
                    statuses,
                    outcome: Outcome::Aborted,
                    settled: Some(start.elapsed()),
                };
            }
        };
        match item {
            Some(Ok(receipt)) => receipts.push(receipt),
            Some(Err(CallError::Failed(_))) | None => break,
            Some(Err(CallError::Status(status))) => {
                statuses.push(format!("{:?}: {status}", status.code()));
            }
            Some(Err(other)) => statuses.push(other.to_string()),
        }
    }
    let outcome = match call.outcome() {
        Some(wallaby::Outcome::Complete { .. }) => Outcome::Complete,
        Some(wallaby::Outcome::Failed(failure)) => failed(&failure),
        None => Outcome::Other {
            words: "it yields no more answers and has no outcome".to_owned(),
        },
    };
    Ended {
        receipts,
        statuses,
        outcome,
        settled: None,
    }
}

fn failed(failure: &Failure) -> Outcome {
    let words = failure.to_string();
    match failure {
        Failure::Lost(loss) => {
            let named = std::iter::once(&loss.server).chain(loss.path.iter().map(|s| &s.server));
            Outcome::Lost {
                kind: match &loss.kind {
                    FailureKind::Silent { .. } => "silent",
                    FailureKind::ResponseLost { .. } => "response lost",
                    FailureKind::Stalled { .. } => "stalled",
                    _ => "violation",
                }
                .to_owned(),
                servers: named
                    .filter_map(|location| location.address.as_ref())
                    .map(Address::to_string)
                    .collect(),
                words,
            }
        }
        Failure::NotSent { .. } => Outcome::NotSent { words },
        Failure::Deadline { .. } => Outcome::Deadline { words },
        Failure::Aborted { .. } | Failure::FailedFast => Outcome::Aborted,
        _ => Outcome::Other { words },
    }
}
