//! Chains in random worlds: what one comes to is what a sequential execution comes to, or an error; no link is executed twice,
//! unless the chain was made again and the link's server had died since, or the link was stopped in the middle.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use turmoil::{Builder, Sim};
use wallaby::{Address, CallError, Code, Endpoint, One, Request, Status};
use wallaby_chain::{
    Answer, Chain, ChainError, Chains, Exception, Hop, Merge, Run, State, Step, pipe, start,
};

use crate::faults::{self, Fault};
use crate::random::Random;

const PORT: u16 = 4000;
const PING: (u64, u64) = (100, 500);
const SILENCE: u64 = 2_000;

/// How much time a chain has, and how much its servers have to come to rest afterwards, in milliseconds.
const DEADLINE: u64 = 15_000;
const REST: u64 = 15_000;

/// What a chain that was caught comes to.
const CAUGHT: &str = "caught";

#[wallaby::service(package = "test")]
trait Work {
    /// The text with the server's name behind it.
    async fn link(tag: u32, text: String) -> String;
    /// The same by a chain of two links that the server starts, and does not know from any other request.
    async fn composed(tag: u32, text: String) -> String;
    /// The second of these links.
    async fn second(text: String) -> String;
    /// Refuses.
    async fn refuse(tag: u32, text: String) -> String;
}

/// A link of a chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Link {
    host: usize,
    /// No other has it.
    tag: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Kind {
    Plain,
    /// The second link of its chain is at that host.
    Composed(usize),
    Refuses,
}

/// A part of a chain, one after the other.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Part {
    Link(Link),
    Split { branches: Vec<Vec<Link>>, at: usize },
}

#[derive(Debug)]
struct Plan {
    hosts: usize,
    first: Link,
    rest: Vec<Part>,
    /// Where exceptions are caught, if they are.
    catch: Option<usize>,
    /// How long a link takes, in milliseconds.
    takes: u64,
    listens: bool,
    latency: (u64, u64),
    faults: Vec<(u64, Fault)>,
    abort: Option<u64>,
    /// How often it may be made again, before it is walked.
    retries: u32,
}

impl Plan {
    fn random(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x63_6861_696e);
        let hosts = random.between(1..=5) as usize;
        let (mut tags, refusing) = (0, random.one_in(5));
        let mut link = |random: &mut Random| {
            tags += 1;
            Link {
                host: random.index(hosts),
                tag: tags,
                kind: match random.between(0..=9) {
                    0 | 1 => Kind::Composed(random.index(hosts)),
                    2 if refusing => Kind::Refuses,
                    _ => Kind::Plain,
                },
            }
        };
        let first = link(random);
        let rest = (0..random.between(0..=5)).map(|_| match random.one_in(3) {
            false => Part::Link(link(random)),
            true => Part::Split {
                branches: (0..random.between(1..=3))
                    .map(|_| (0..random.between(1..=3)).map(|_| link(random)).collect())
                    .collect(),
                at: random.index(hosts),
            },
        });
        let rest = rest.collect();
        let low = random.between(1..=10);
        Self {
            hosts,
            first,
            rest,
            catch: random.one_in(3).then(|| random.index(hosts)),
            takes: random.between(0..=60),
            listens: random.one_in(2),
            latency: (low, low + random.between(0..=10)),
            faults: faults::random(hosts, random),
            abort: random.one_in(15).then(|| random.between(0..=600)),
            retries: [0, 0, 1, 3][random.index(4)],
        }
    }

    fn links(&self) -> Vec<&Link> {
        let mut links = vec![&self.first];
        for part in &self.rest {
            match part {
                Part::Link(link) => links.push(link),
                Part::Split { branches, .. } => links.extend(branches.iter().flatten()),
            }
        }
        links
    }

    fn refuses(&self) -> bool {
        self.links().iter().any(|link| link.kind == Kind::Refuses)
    }

    /// What a sequential execution comes to; `None` if a link refuses.
    fn expected(&self) -> Option<String> {
        let mut text = after(&self.first, "text")?;
        for part in &self.rest {
            text = match part {
                Part::Link(link) => after(link, &text)?,
                Part::Split { branches, .. } => {
                    let mut of_branch = |branch: &Vec<Link>| {
                        let mut links = branch.iter();
                        links.try_fold(text.clone(), |text, link| after(link, &text))
                    };
                    let texts: Option<Vec<String>> = branches.iter().map(&mut of_branch).collect();
                    joined(&texts?)
                }
            };
        }
        Some(text)
    }
}

/// What a link makes of a text.
fn after(link: &Link, text: &str) -> Option<String> {
    match link.kind {
        Kind::Plain => Some(format!("{text}.{}", link.host)),
        Kind::Composed(second) => Some(format!("{text}.{}.{second}", link.host)),
        Kind::Refuses => None,
    }
}

fn joined(texts: &[String]) -> String {
    format!("[{}]", texts.join("|"))
}

fn hop(link: &Link, text: String) -> Hop {
    let (to, arguments) = (address(link.host), (link.tag, text));
    match link.kind {
        Kind::Plain => Hop::to(to, &work::LINK, arguments),
        Kind::Composed(_) => Hop::to(to, &work::COMPOSED, arguments),
        Kind::Refuses => Hop::to(to, &work::REFUSE, arguments),
    }
}

fn state(rest: &[Part]) -> Result<State, Status> {
    State::new().with("rest", &rest.to_vec())
}

/// Goes on with what is left.
fn go_on(rest: &[Part], text: String) -> Result<Step, Status> {
    let Some((part, rest)) = rest.split_first() else {
        return Step::end(&text);
    };
    match part {
        Part::Link(link) => Ok(hop(link, text).then("run", state(rest)?).into()),
        Part::Split { branches, at } => {
            let hop = |branch: &Vec<Link>| {
                let (first, others) = branch.split_first().ok_or(Status::internal("a link"))?;
                let others: Vec<Part> = others.iter().cloned().map(Part::Link).collect();
                Ok(hop(first, text.clone()).then("run", state(&others)?))
            };
            let hops: Result<Vec<Hop>, Status> = branches.iter().map(hop).collect();
            Ok(Step::split(
                hops?,
                Merge::at(address(*at), "join", state(rest)?),
            ))
        }
    }
}

fn functions() -> Chains {
    Chains::new()
        .function("run", |state: State, answer: Answer| {
            go_on(&state.get::<Vec<Part>>("rest")?, answer.read()?)
        })
        .merging("join", |state: State, results: Vec<Answer>| {
            let texts: Result<Vec<String>, Status> = results.iter().map(Answer::read).collect();
            go_on(&state.get::<Vec<Part>>("rest")?, joined(&texts?))
        })
        .catching("rescue", |_: State, _: Exception| {
            Step::end(&CAUGHT.to_owned())
        })
}

#[derive(Debug, Default)]
struct Log {
    /// How often each link was executed, by its tag.
    executed: BTreeMap<u32, u32>,
    /// And to its end.
    finished: BTreeMap<u32, u32>,
    /// How often each host has died.
    died: BTreeMap<usize, u32>,
    attempts: u32,
    /// It was walked in vain, as a link could not be called.
    broken: bool,
    /// Handlers that run, by their hosts.
    running: BTreeMap<usize, usize>,
    end: Option<Result<String, CallError>>,
    dropped: bool,
}

/// How often what was seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) violations: Vec<String>,
    complete: u64,
    merged: u64,
    composed: u64,
    despite_faults: u64,
    made_again: u64,
    broken: u64,
    refused: u64,
    caught: u64,
    failed: u64,
    dropped: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.complete += other.complete;
        self.merged += other.merged;
        self.composed += other.composed;
        self.despite_faults += other.despite_faults;
        self.made_again += other.made_again;
        self.broken += other.broken;
        self.refused += other.refused;
        self.caught += other.caught;
        self.failed += other.failed;
        self.dropped += other.dropped;
    }

    /// What should be seen at least once in many worlds.
    pub(crate) fn least(&self) -> [(&'static str, u64); 10] {
        [
            ("a chain that comes to its end", self.complete),
            ("one that splits and merges", self.merged),
            ("one with a chain of a server inside", self.composed),
            (
                "one that comes to its end despite faults",
                self.despite_faults,
            ),
            ("one that was made again for that", self.made_again),
            ("one whose broken link is named", self.broken),
            ("one whose exception its caller is told", self.refused),
            ("one whose exception is caught", self.caught),
            ("one that is lost", self.failed),
            ("one that is given up", self.dropped),
        ]
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} chains complete ({} merged, {} composed, {} despite faults, {} of them made again), \
             {} refused, {} caught, {} lost ({} at a link that is known), {} given up",
            self.complete,
            self.merged,
            self.composed,
            self.despite_faults,
            self.made_again,
            self.refused,
            self.caught,
            self.failed,
            self.broken,
            self.dropped
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
    for index in 0..world.plan.hosts {
        let world = world.clone();
        sim.host(name(index), move || world.clone().serve(index));
    }
    let initiator = world.clone();
    sim.host(name(world.plan.hosts), move || initiator.clone().call());
    let mut broken = world.drive(&mut sim);
    let mut seen = world.judge();
    seen.violations.append(&mut broken);
    if print {
        println!("{:#?}", world.log());
    }
    seen
}

fn name(host: usize) -> String {
    format!("chain{host}")
}

fn address(host: usize) -> Address {
    Address::Tcp(SocketAddr::new(turmoil::lookup(name(host)), PORT))
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
        let service = work::service(Server(self, index));
        let builder = Self::builder()
            .listen(&address(index).to_string())
            .serve(service);
        let _endpoint = functions().add_to(builder).bind().await?;
        std::future::pending().await
    }

    fn chain(&self) -> Result<Chain<String>, Status> {
        let plan = &self.plan;
        let first = hop(&plan.first, "text".to_owned()).then("run", state(&plan.rest)?);
        let chain = start::<String>(first);
        Ok(match plan.catch {
            Some(at) => chain.catch(address(at), "rescue", State::new()),
            None => chain,
        })
    }

    async fn call(self) -> turmoil::Result {
        let plan = &self.plan;
        let mut builder = Self::builder();
        if plan.listens {
            builder = builder.listen(&address(plan.hosts).to_string());
        }
        let endpoint = builder.bind().await?;
        let (period, timeout) = PING;
        let caller = endpoint
            .caller()
            .deadline(Duration::from_millis(DEADLINE))
            .ping(
                Duration::from_millis(period),
                Duration::from_millis(timeout),
            );
        let chain = self.chain()?;
        let log = Arc::clone(&self.log);
        let call = async move {
            let log = || log.lock().unwrap_or_else(PoisonError::into_inner);
            if plan.retries == 0 {
                log().attempts = 1;
                return Ok::<_, ChainError>(chain.call(caller)?.await);
            }
            let run = Run::new().retries(plan.retries);
            let mut running = chain.run(caller, run.home(&functions().at_home()))?;
            let answer = running.answer().await;
            let mut log = log();
            (log.attempts, log.broken) = (running.attempts(), running.broken().is_some());
            Ok(answer)
        };
        let abort = plan.abort.map(Duration::from_millis);
        tokio::select! {
            biased;
            end = call => self.log().end = Some(end?),
            () = tokio::time::sleep(abort.unwrap_or(Duration::MAX / 4)) => self.log().dropped = true,
        }
        std::future::pending().await
    }

    /// Lets the time pass and the faults happen, until the chain is over and nothing runs, or for too long.
    fn drive(&self, sim: &mut Sim<'_>) -> Vec<String> {
        let mut faults = self.plan.faults.iter().peekable();
        let mut over = None;
        for now in 0..2 * DEADLINE + REST {
            while let Some((_, fault)) = faults.next_if(|(at, _)| *at <= now) {
                if let Some(host) = fault.ends() {
                    let mut log = self.log();
                    log.running.remove(&host);
                    *log.died.entry(host).or_default() += 1;
                }
                fault.happen(sim, name);
            }
            if let Err(error) = sim.step() {
                return vec![format!("it broke: {error}")];
            }
            let log = self.log();
            let is_over = log.end.is_some() || log.dropped;
            let since = match (is_over, over) {
                (true, None) => *over.insert(now),
                (true, Some(since)) => since,
                (false, _) => continue,
            };
            let runs = log.running.values().any(|running| *running > 0);
            if !runs && faults.peek().is_none() {
                return Vec::new();
            }
            if runs && now > since + REST && faults.peek().is_none() {
                return vec!["links run on after the chain".to_owned()];
            }
        }
        vec!["it does not end".to_owned()]
    }

    /// Compares what the initiator was told with what happened.
    fn judge(&self) -> Seen {
        let (log, plan) = (self.log(), &self.plan);
        let mut seen = Seen::default();
        let mut wrong = |what: String| seen.violations.push(what);
        let most = match plan.retries {
            0 => 1,
            retries => 1 + retries + 1, // at last it is walked
        };
        for (tag, times) in log.executed.iter().filter(|(_, times)| **times > most) {
            wrong(format!("link {tag} was executed {times} times"));
        }
        for (tag, times) in &log.finished {
            let host = plan
                .links()
                .iter()
                .find(|link| link.tag == *tag)
                .map(|link| link.host);
            let died = host.and_then(|host| log.died.get(&host)).copied();
            if *times > 1 + died.unwrap_or_default() {
                wrong(format!("link {tag} was executed to its end {times} times"));
            }
        }
        let is_calm = plan.faults.is_empty();
        let expected = plan.expected();
        match &log.end {
            None => seen.dropped += u64::from(log.dropped),
            Some(Ok(text)) if Some(text) == expected.as_ref() => {
                for link in plan.links() {
                    let times = log.executed.get(&link.tag).copied().unwrap_or_default();
                    if times == 0 || is_calm && times > 1 {
                        wrong(format!("link {} was executed {times} times", link.tag));
                    }
                }
                seen.complete += 1;
                seen.despite_faults += u64::from(!is_calm);
                seen.made_again += u64::from(log.attempts > 1);
                seen.merged += u64::from(text.contains('['));
                let is_composed = |link: &&Link| matches!(link.kind, Kind::Composed(_));
                seen.composed += u64::from(plan.links().iter().any(is_composed));
            }
            Some(Ok(text)) if text == CAUGHT && plan.catch.is_some() => {
                if is_calm && !plan.refuses() {
                    wrong("an exception without a reason was caught".to_owned());
                }
                seen.caught += 1;
            }
            Some(Ok(text)) => wrong(format!("it came to {text:?} in place of {expected:?}")),
            Some(Err(CallError::Status(status))) if status.code() == Code::NotFound => {
                if !plan.refuses() || is_calm && plan.catch.is_some() {
                    wrong(format!("an exception that should not be: {status}"));
                }
                seen.refused += 1;
            }
            Some(Err(error)) => {
                if is_calm {
                    wrong(format!("nothing was wrong, but: {error}"));
                }
                seen.failed += 1;
                seen.broken += u64::from(log.broken);
            }
        }
        seen
    }
}

struct Server(World, usize);

/// A handler that runs.
struct Running<'a>(&'a World, usize);

impl<'a> Running<'a> {
    fn new(world: &'a World, host: usize) -> Self {
        *world.log().running.entry(host).or_default() += 1;
        Self(world, host)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut log = self.0.log();
        let running = log.running.entry(self.1).or_default();
        *running = running.saturating_sub(1); // it may have crashed
    }
}

impl Server {
    /// Takes the time that a link takes.
    async fn execute(&self, tag: Option<u32>) {
        let Self(world, host) = self;
        let _running = Running::new(world, *host);
        if let Some(tag) = tag {
            *world.log().executed.entry(tag).or_default() += 1;
        }
        tokio::time::sleep(Duration::from_millis(world.plan.takes)).await;
        if let Some(tag) = tag {
            *world.log().finished.entry(tag).or_default() += 1;
        }
    }

    fn second_of(&self, tag: u32) -> usize {
        let links = self.0.plan.links();
        let kind = links
            .iter()
            .find(|link| link.tag == tag)
            .map(|link| link.kind);
        match kind {
            Some(Kind::Composed(second)) => second,
            _ => self.1,
        }
    }
}

#[wallaby::serve]
impl Work for Server {
    async fn link(&self, tag: u32, text: String) -> String {
        self.execute(Some(tag)).await;
        format!("{text}.{}", self.1)
    }

    async fn composed(
        &self,
        request: Request<One<String>>,
        tag: u32,
        text: String,
    ) -> Result<(), Status> {
        self.execute(Some(tag)).await;
        let second = address(self.second_of(tag));
        let own = address(self.1);
        let chain = pipe(own, &work::SECOND, (text,)).then(second, &work::SECOND);
        chain.forward(request)?.await?;
        Ok(())
    }

    async fn second(&self, text: String) -> String {
        self.execute(None).await;
        format!("{text}.{}", self.1)
    }

    async fn refuse(&self, tag: u32, _: String) -> Result<String, Status> {
        self.execute(Some(tag)).await;
        Err(Status::new(Code::NotFound, "as planned"))
    }
}
