//! Messages down lines of servers in random worlds: whatever breaks, what the initiator is told of each server is true.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use turmoil::{Builder, Sim};
use wallaby::{
    Address, Body, CallError, Endpoint, Forwarding, Limits, One, PipelineSettings, Request, Status,
    TargetOutcome,
};

use crate::faults::{self, Fault};
use crate::random::Random;

const PORT: u16 = 4000;
const PING: (u64, u64) = (100, 500);
const SILENCE: u64 = 2_000;

/// How much time a message has, and how much its servers have to come to rest afterwards, in milliseconds.
const DEADLINE: u64 = 15_000;
const REST: u64 = 15_000;

/// What a server reports has arrived after so long, if it arrives, in milliseconds.
const TRAVEL: u64 = 200;

#[wallaby::service(package = "test")]
trait Store {
    /// Answers how long the arguments and the body are.
    async fn put(what: Vec<u8>) -> u64;
}

/// All that happens in one world.
#[derive(Debug)]
struct Plan {
    servers: Vec<Manner>,
    /// One of the places in the line is nobody's.
    missing: Option<usize>,
    store: bool,
    arguments: usize,
    /// Chunks of the body, each after so many milliseconds.
    chunks: Vec<(u64, usize)>,
    /// How far a server's handler and the next server may be apart.
    window: u64,
    /// The initiator listens.
    listens: bool,
    latency: (u64, u64),
    faults: Vec<(u64, Fault)>,
    /// The application gives the call up.
    abort: Option<u64>,
}

/// What a handler does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    /// Reads all, and waits so long for each chunk.
    Reads(u64),
    /// Answers at once and reads nothing.
    Ignores,
    /// Ends with a status at once.
    Refuses,
    /// Takes the body, reads nothing, and never ends by itself.
    Stalls,
    /// Nobody serves the method.
    Idles,
}

impl Plan {
    fn random(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x6c69_6e65);
        let servers: Vec<_> = (0..random.between(1..=6))
            .map(|_| match random.between(0..=11) {
                11 if random.one_in(4) => Manner::Stalls,
                0 => Manner::Ignores,
                1 => Manner::Refuses,
                2 => Manner::Idles,
                3..=5 => Manner::Reads(random.between(1..=30)),
                _ => Manner::Reads(0),
            })
            .collect();
        let chunks = (0..random.between(0..=40))
            .map(|_| (random.between(0..=40), random.between(0..=20_000) as usize))
            .collect();
        let hosts = servers.len();
        let low = random.between(1..=10);
        Self {
            missing: random.one_in(6).then(|| random.index(hosts)),
            store: random.one_in(3),
            arguments: match random.one_in(3) {
                true => random.between(16_000..=60_000) as usize,
                false => random.index(100),
            },
            chunks,
            window: match random.one_in(3) {
                true => random.between(10_000..=100_000),
                false => Limits::default().call,
            },
            listens: random.one_in(2),
            latency: (low, low + random.between(0..=10)),
            faults: faults::random(hosts, random),
            abort: random.one_in(12).then(|| random.between(0..=600)),
            servers,
        }
    }

    fn is_calm(&self) -> bool {
        self.faults.is_empty() && self.abort.is_none()
    }

    fn crashes(&self, server: usize) -> bool {
        let crash = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Crash(at) if *at == server);
        self.faults.iter().any(crash)
    }

    fn stalls(&self) -> bool {
        self.servers.contains(&Manner::Stalls)
    }

    /// Whether what a server reports surely reaches the initiator: nothing happens to the network, or to this server.
    fn is_heard(&self, server: usize) -> bool {
        let network =
            |(_, fault): &(u64, Fault)| !matches!(fault, Fault::Crash(_) | Fault::Restart(_));
        !self.faults.iter().any(network) && !self.crashes(server)
    }

    fn bytes(&self) -> u64 {
        let body: usize = self.chunks.iter().map(|(_, len)| len).sum();
        (self.arguments + body) as u64
    }
}

/// What really happened at a server.
#[derive(Debug, Default, Clone)]
struct Truth {
    started: bool,
    running: usize,
    answered: Option<u64>,
    /// When its handler has answered or failed, in milliseconds.
    reported: Option<u64>,
}

#[derive(Debug, Default)]
struct Log {
    servers: BTreeMap<usize, Truth>,
    delivered: Vec<(usize, Result<u64, CallError>)>,
    outcomes: Option<Vec<TargetOutcome>>,
    /// When they were told.
    ended: u64,
    dropped: bool,
}

/// How often what was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) violations: Vec<String>,
    answered: u64,
    failed: u64,
    not_delivered: u64,
    unknown: u64,
    dropped: u64,
    /// One answered that stands behind or before one of which nothing is known.
    beside_unknown: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.not_delivered += other.not_delivered;
        self.unknown += other.unknown;
        self.dropped += other.dropped;
        self.beside_unknown += other.beside_unknown;
    }

    /// What should be seen at least once in many worlds.
    pub(crate) fn least(&self) -> [(&'static str, u64); 6] {
        [
            ("a server of a line that answers", self.answered),
            ("one that reports an error", self.failed),
            ("one that got nothing", self.not_delivered),
            ("one of which nothing is known", self.unknown),
            ("a line that is given up", self.dropped),
            (
                "one that answers beside an unknown one",
                self.beside_unknown,
            ),
        ]
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} servers of lines answered, {} failed, {} got nothing, {} unknown; {} lines given up",
            self.answered, self.failed, self.not_delivered, self.unknown, self.dropped
        )
    }
}

#[derive(Clone)]
struct World {
    plan: Arc<Plan>,
    log: Arc<Mutex<Log>>,
}

pub(crate) fn run(seed: u64, print: bool) -> Seen {
    let plan = Arc::new(Plan::random(seed));
    if print {
        println!("{plan:#?}");
    }
    let log = Arc::default();
    let world = World { plan, log };
    wallaby::simulation::seed(seed);
    let (low, high) = world.plan.latency;
    let mut sim = Builder::new()
        .rng_seed(seed)
        .epoch(std::time::UNIX_EPOCH)
        .simulation_duration(Duration::from_millis(4 * (DEADLINE + REST)))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_millis(low))
        .max_message_latency(Duration::from_millis(high))
        .tcp_capacity(4096)
        .build();
    for index in 0..world.plan.servers.len() {
        let world = world.clone();
        sim.host(name(index), move || world.clone().serve(index));
    }
    let initiator = world.clone();
    sim.host(name(world.plan.servers.len()), move || {
        initiator.clone().call()
    });
    let mut broken = world.drive(&mut sim);
    let mut seen = world.judge();
    seen.violations.append(&mut broken);
    if print {
        println!("{:#?}", world.log());
    }
    seen
}

fn name(host: usize) -> String {
    format!("line{host}")
}

fn now() -> u64 {
    turmoil::sim_elapsed().unwrap_or_default().as_millis() as u64
}

fn address(host: usize) -> Address {
    Address::Tcp(SocketAddr::new(turmoil::lookup(name(host)), PORT))
}

/// Chunks that the plan says, each when it says.
struct Source {
    chunks: std::vec::IntoIter<(u64, usize)>,
    wait: Option<(Pin<Box<tokio::time::Sleep>>, usize)>,
}

impl Stream for Source {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.wait.is_none() {
            let Some((wait, len)) = self.chunks.next() else {
                return Poll::Ready(None);
            };
            let sleep = tokio::time::sleep(Duration::from_millis(wait));
            self.wait = Some((Box::pin(sleep), len));
        }
        let Some((sleep, len)) = &mut self.wait else {
            return Poll::Ready(None);
        };
        let len = *len;
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.wait = None;
        Poll::Ready(Some(Ok(vec![7; len].into())))
    }
}

impl World {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn builder() -> wallaby::Builder {
        let silence = Duration::from_millis(SILENCE);
        Endpoint::builder().keep_alive(silence / 4, silence)
    }

    async fn serve(self, index: usize) -> turmoil::Result {
        if self.plan.missing == Some(index) {
            return std::future::pending().await;
        }
        let mut limits = Limits::default();
        limits.call = self.plan.window;
        let address = address(index).to_string();
        let mut builder = Self::builder().limits(limits).listen(&address);
        if self.plan.servers[index] != Manner::Idles {
            builder = builder.serve(store::service(Server(self.clone(), index)));
        }
        let _endpoint = builder.bind().await?;
        std::future::pending().await
    }

    async fn call(self) -> turmoil::Result {
        let plan = &self.plan;
        let mut builder = Self::builder();
        if plan.listens {
            builder = builder.listen(&address(plan.servers.len()).to_string());
        }
        let endpoint = builder.bind().await?;
        let settings = PipelineSettings {
            forwarding: match plan.store {
                true => Forwarding::StoreAndForward,
                false => Forwarding::CutThrough,
            },
            ..PipelineSettings::default()
        };
        let source = Source {
            chunks: plan.chunks.clone().into_iter(),
            wait: None,
        };
        let target = store::put(vec![7; plan.arguments]).with_body(Body::from_stream(source));
        let (period, timeout) = PING;
        let mut call = endpoint
            .caller()
            .deadline(Duration::from_millis(DEADLINE))
            .ping(
                Duration::from_millis(period),
                Duration::from_millis(timeout),
            )
            .pipeline_with(&settings, (0..plan.servers.len()).map(address), target);
        let abort = plan.abort.map(Duration::from_millis);
        let abort = tokio::time::Instant::now() + abort.unwrap_or(Duration::MAX / 4);
        loop {
            tokio::select! {
                biased;
                next = call.next() => match next {
                    Some(next) => self.log().delivered.push((next.target, next.answer)),
                    None => break,
                },
                () = tokio::time::sleep_until(abort) => {
                    self.log().dropped = true;
                    break;
                }
            }
        }
        self.note_end(call.outcomes());
        drop(call);
        std::future::pending().await
    }

    fn note_end(&self, outcomes: Vec<TargetOutcome>) {
        let mut log = self.log();
        log.outcomes = Some(outcomes);
        log.ended = now();
    }

    /// Lets the time pass and the faults happen, until the call is over and nothing runs, or for too long.
    fn drive(&self, sim: &mut Sim<'_>) -> Vec<String> {
        let mut faults = self.plan.faults.iter().peekable();
        let mut over = None;
        for now in 0..2 * DEADLINE + REST {
            while let Some((_, fault)) = faults.next_if(|(at, _)| *at <= now) {
                self.apply(sim, *fault);
            }
            if let Err(error) = sim.step() {
                return vec![format!("it broke: {error}")];
            }
            let log = self.log();
            let since = match (log.outcomes.is_some(), over) {
                (true, None) => *over.insert(now),
                (true, Some(since)) => since,
                (false, _) => continue,
            };
            let runs = log.servers.values().any(|truth| truth.running > 0);
            if !runs && faults.peek().is_none() {
                return Vec::new();
            }
            if runs && now > since + REST && faults.peek().is_none() {
                return vec!["handlers run on after the call".to_owned()];
            }
        }
        vec!["it does not end".to_owned()]
    }

    fn apply(&self, sim: &mut Sim<'_>, fault: Fault) {
        if let Some(host) = fault.ends() {
            self.log().servers.entry(host).or_default().running = 0;
        }
        fault.happen(sim, name);
    }

    /// Compares what the initiator was told with what happened.
    fn judge(&self) -> Seen {
        let (log, plan) = (self.log(), &self.plan);
        let mut seen = Seen::default();
        let Some(outcomes) = &log.outcomes else {
            return seen;
        };
        seen.dropped = u64::from(log.dropped);
        let unknown = |outcome: &TargetOutcome| matches!(outcome, TargetOutcome::Unknown(_));
        for (target, outcome) in outcomes.iter().enumerate() {
            let truth = log.servers.get(&target).cloned().unwrap_or_default();
            let wrong = match outcome {
                TargetOutcome::Answered => {
                    seen.answered += 1;
                    seen.beside_unknown += u64::from(outcomes.iter().any(unknown));
                    truth.answered.is_none()
                }
                TargetOutcome::Failed(_) => {
                    seen.failed += 1;
                    truth.answered.is_some()
                }
                TargetOutcome::NotDelivered(_) => {
                    seen.not_delivered += 1;
                    truth.started || plan.is_calm() && plan.missing.is_none_or(|at| at > target)
                }
                TargetOutcome::Unknown(_) => {
                    seen.unknown += 1;
                    let told = truth.reported.is_some_and(|at| at + TRAVEL < log.ended);
                    plan.is_calm() && !plan.stalls() || told && plan.is_heard(target)
                }
                TargetOutcome::Pending => !log.dropped,
                _ => true,
            };
            if wrong {
                let what = format!("server {target}: {outcome:?}, but {truth:?}");
                seen.violations.push(what);
            }
            let answers = log.delivered.iter().filter(|(from, _)| *from == target);
            let answers: Vec<_> = answers.map(|(_, answer)| answer).collect();
            let as_told = match (outcome, &answers[..]) {
                (TargetOutcome::Pending, []) => true,
                (TargetOutcome::Answered, [Ok(len)]) => truth.answered == Some(*len),
                (TargetOutcome::Pending | TargetOutcome::Answered, _) => false,
                (_, [Err(_)]) => true,
                _ => false,
            };
            if !as_told {
                let what = format!("server {target}: {outcome:?}, delivered {answers:?}");
                seen.violations.push(what);
            }
        }
        seen
    }
}

struct Server(World, usize);

/// A handler that runs.
struct Running<'a>(&'a World, usize);

impl Running<'_> {
    /// It ends by itself.
    fn report(&self, answer: Option<u64>) {
        let mut log = self.0.log();
        let truth = log.servers.entry(self.1).or_default();
        truth.answered = answer;
        truth.reported = Some(now());
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut log = self.0.log();
        let truth = log.servers.entry(self.1).or_default();
        truth.running = truth.running.saturating_sub(1); // it may have crashed
    }
}

#[wallaby::serve]
impl Store for Server {
    async fn put(&self, request: Request<One<u64>>, what: Vec<u8>) -> Result<(), Status> {
        let Self(world, index) = self;
        {
            let mut log = world.log();
            let truth = log.servers.entry(*index).or_default();
            truth.started = true;
            truth.running += 1;
        }
        let running = Running(world, *index);
        let len = self.read(&request, what.len() as u64).await;
        let len = len.inspect_err(|_| running.report(None))?;
        request.respond(len).await?;
        running.report(Some(len));
        Ok(())
    }
}

impl Server {
    /// Does with a message what is planned; how long it is.
    async fn read(&self, request: &Request<One<u64>>, arguments: u64) -> Result<u64, Status> {
        let Self(world, index) = self;
        let mut len = arguments;
        match world.plan.servers[*index] {
            Manner::Refuses | Manner::Idles => {
                return Err(Status::new(wallaby::Code::NotFound, "as planned"));
            }
            Manner::Ignores => {}
            Manner::Stalls => {
                let _body = request.take_body();
                request.cancelled().await;
            }
            Manner::Reads(wait) => {
                let mut body = request.take_body().expect("it has one");
                while let Some(chunk) = body.next().await {
                    let broken = |error: wallaby::BodyError| {
                        Status::new(wallaby::Code::Aborted, error.to_string())
                    };
                    len += chunk.map_err(broken)?.len() as u64;
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                }
                assert_eq!(len, world.plan.bytes(), "a body that ends ends whole");
            }
        }
        Ok(len)
    }
}
