//! FlexRPC's figures 4 to 8 anew: single calls and multicast beside libtirpc, which is Linux' SunRPC, and bare sockets.
//!
//! An operation is a call whose argument has `payload` bytes and whose answer has none, as in the paper. Where to start:
//! *experiment* has the figures and what is measured for each, *callee* the servers, and each of the other files one
//! way to call them.

mod callee;
mod experiment;
mod floor;
mod line;
mod on_onc;
mod on_polling;
mod on_tirpc;
mod on_wallaby;

use crate::comparison::{micros, round};
use crate::fleet::{Fleet, Launcher, ServerConfig, Transport, folder};
use crate::harness::{Latencies, Measurement, Progress, Schedule, System, measure};
use crate::process::Pinned;
use crate::row::Row;
use crate::tirpc;
use anyhow::{Context, Result, ensure};
use callee::Callee;
use experiment::{Subject, subjects};
use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::process;
use std::rc::Rc;
use std::time::Duration;
use wallaby_program::scratch::Scratch;

pub(crate) use callee::serve;
pub use experiment::Figure;

/// What to measure.
#[derive(Clone, Debug)]
pub struct FlexrpcOptions {
    /// The figures, in one run.
    pub figures: Vec<Figure>,
    /// Only systems with these names; none: all.
    pub only: Vec<String>,
    /// The processor for the client and all servers; none: the operating system places them.
    pub pin: Option<u32>,
    /// Of the link that all that a process sends shares, where several servers are called; in bits per second.
    pub bandwidth: NonZeroU64,
    /// Rounds; each system has one turn in each.
    pub rounds: u32,
    /// About how long a turn takes.
    pub turn: Duration,
    /// Of the order of turns.
    pub seed: u64,
    /// How servers are started; none: this program with the command `bench-server`.
    pub launcher: Option<Launcher>,
}

impl Default for FlexrpcOptions {
    fn default() -> Self {
        Self {
            figures: Figure::ALL.to_vec(),
            only: Vec::new(),
            pin: None,
            bandwidth: GIGABIT,
            rounds: 10,
            turn: Duration::from_millis(20),
            seed: 1,
            launcher: None,
        }
    }
}

/// One gigabit per second.
pub const GIGABIT: NonZeroU64 = NonZeroU64::new(1_000_000_000).expect("it is not zero");

/// What a run found out.
#[derive(Clone, Debug)]
pub struct Flexrpc {
    /// A row for each system and point of each figure.
    pub rows: Vec<Row>,
    /// What could not be measured, and what to install for it.
    pub skipped: Vec<String>,
}

/// What is not measured here, and what to install for it.
fn missing() -> Vec<String> {
    let tried = folder().and_then(|folder| tirpc::prepare(folder.path()));
    let told = tried.map_err(|error| format!("libtirpc is skipped: {error:#}"));
    told.err().into_iter().collect()
}

/// Measures the figures, all systems interleaved in one run.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn flexrpc(options: &FlexrpcOptions, progress: impl FnMut(Progress<'_>)) -> Result<Flexrpc> {
    ensure!(options.rounds > 0, "at least one round is needed");
    let skipped = missing();
    let wanted = |subject: &Subject| {
        let is_there = subject.callee != Callee::Tirpc || skipped.is_empty();
        is_there
            && (options.only.is_empty() || options.only.iter().any(|name| name == subject.system))
    };
    let all = options.figures.iter().flat_map(|figure| subjects(*figure));
    let subjects: Vec<Subject> = all.filter(wanted).collect();
    ensure!(
        !subjects.is_empty(),
        "nothing to measure: no system has such a name"
    );
    // Before anything is started, since threads and processes run where their parent does.
    let _pinned = options.pin.map(Pinned::to).transpose()?;
    let mut cluster = Cluster::new(options)?;
    let mut systems: Vec<Box<dyn System>> = Vec::new();
    for subject in &subjects {
        let client = cluster.client(subject)?;
        systems.push(Box::new(Point {
            subject: subject.clone(),
            client,
        }));
    }
    let schedule = Schedule {
        rounds: options.rounds,
        turn: options.turn,
        least: 10,
        seed: options.seed,
    };
    let results = measure(&mut systems, &schedule, progress)?;
    let rows = subjects.iter().zip(results);
    let rows = rows.map(|(subject, result)| row(subject, options, &result));
    Ok(Flexrpc {
        rows: rows.collect(),
        skipped,
    })
}

/// How much of what goes on at a time, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Of the argument.
    bytes: usize,
    /// Who call at the same time, each one call after the other.
    callers: usize,
    way: Way,
}

/// The calling patterns of the paper's figure 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To one server.
    Single,
    /// To so many, one after the other.
    Consecutive(usize),
    /// To so many at once.
    Parallel(usize),
    /// To the first of so many, which passes it on while it arrives.
    Serial(usize),
}

/// A client, connected to its servers.
trait Caller {
    /// Makes so many calls, as the load says, and records how long each took.
    fn run(
        &mut self,
        load: &Load,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()>;

    /// The servers' processes.
    fn processes(&self) -> Vec<u32>;
}

/// Clients by what they are connected to: subjects of the same kind share one, of which one runs at a time.
struct Cluster<'run> {
    options: &'run FlexrpcOptions,
    launcher: Launcher,
    folder: Scratch,
    clients: HashMap<(Callee, Transport, Link), Shared>,
}

type Shared = Rc<RefCell<Box<dyn Caller>>>;

/// Whether the links of client and servers are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    Free,
    Limited,
}

impl<'run> Cluster<'run> {
    fn new(options: &'run FlexrpcOptions) -> Result<Self> {
        let launcher = options.launcher.clone();
        Ok(Self {
            options,
            launcher: launcher.map_or_else(Launcher::this_program, Ok)?,
            folder: folder()?,
            clients: HashMap::new(),
        })
    }

    fn client(&mut self, subject: &Subject) -> Result<Shared> {
        let key = (subject.callee, subject.transport, subject.link);
        if let Some(client) = self.clients.get(&key) {
            return Ok(Rc::clone(client));
        }
        let config = ServerConfig {
            stack: subject.callee.name().into(),
            transport: subject.transport,
            index: 0,
            link: Duration::ZERO,
            bandwidth: (subject.link == Link::Limited).then_some(self.options.bandwidth),
            folder: self.folder.path().to_owned(),
            parent: process::id(),
        };
        if subject.callee == Callee::Tirpc {
            tirpc::prepare(self.folder.path())?;
        }
        let servers = match subject.link {
            Link::Free => 1,
            Link::Limited => MOST_DEGREE,
        };
        let connected = Fleet::start(&self.launcher, servers, &config)
            .and_then(|fleet| subject.callee.connect(fleet, &config));
        let client = connected.with_context(|| {
            let (system, transport) = (subject.system, subject.transport);
            format!("can't start the servers of {system} over {transport}")
        })?;
        let client = Rc::new(RefCell::new(client));
        self.clients.insert(key, Rc::clone(&client));
        Ok(client)
    }
}

/// A point of a figure, as a system that the harness measures.
struct Point {
    subject: Subject,
    client: Shared,
}

impl System for Point {
    fn name(&self) -> String {
        let Subject {
            system,
            transport,
            n,
            ..
        } = &self.subject;
        format!("{system} {transport} n={n}")
    }

    fn warm_up(&mut self) -> Result<()> {
        let once = self.under_way();
        self.run(once, &mut Latencies::new()?)
    }

    fn under_way(&self) -> u64 {
        self.subject.load.callers as u64
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        let load = &self.subject.load;
        self.client
            .borrow_mut()
            .run(load, operations, PATIENCE, latencies)
    }

    fn processes(&self) -> Vec<u32> {
        self.client.borrow().processes()
    }
}

fn row(subject: &Subject, options: &FlexrpcOptions, result: &Measurement) -> Row {
    let mbit = options.bandwidth.get() / 1_000_000;
    Row {
        bench: subject.figure.name().into(),
        system: subject.system.into(),
        transport: subject.transport.to_string(),
        n: subject.n,
        payload: subject.load.bytes as u64,
        link_us: 0,
        link_mbit: (subject.link == Link::Limited).then_some(mbit),
        pin: options.pin,
        server_pin: None,
        rounds: u64::from(result.rounds),
        p50_us: micros(result.latencies.quantile(0.5)),
        p99_us: micros(result.latencies.quantile(0.99)),
        cpu_us_per_op: micros(result.cpu_per_operation),
        ops_per_s: Some(round(
            result.operations as f64 / result.elapsed.as_secs_f64(),
        )),
        ..Row::default()
    }
}

/// Servers in the largest multicast.
const MOST_DEGREE: usize = 8;
/// How long a turn may take at most.
const PATIENCE: Duration = Duration::from_secs(60);
