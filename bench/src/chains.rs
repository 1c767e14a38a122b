//! Chains beside plain calls of the same servers: by the number of links, by the size of their state, with a chain inside; beside chains
//! that do harm; and what their functions cost.
//!
//! Client and servers are endpoints of this process, all on one thread: at links of milliseconds that makes no difference. *world* has
//! them and what they do, *hostile* who disturbs them, *functions* what is measured without messages.

mod functions;
mod hostile;
mod world;

use crate::comparison::{micros, round};
use crate::harness::{Latencies, Measurement, Progress, Schedule, System, measure};
use crate::row::Row;
use anyhow::{Result, bail, ensure};
use hostile::Hostile;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use world::{Does, World};

/// The parts of the benchmark of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A chain beside plain calls, over the number of links.
    Links,
    /// The same with two links (the paper's figure 10), over the bytes of its state.
    State,
    /// A link that has its work done at another server by a chain of its own, which becomes a part of the caller's or does not
    /// (figure 13).
    Composition,
    /// A chain of two links, alone, and beside chains of somebody else that do harm at the first of its servers.
    Hostile,
    /// The cost of functions (figure 8): compiling and running them by their size, and a chain of one link on this machine.
    Functions,
}

/// The settings of the benchmark.
#[derive(Clone, Debug)]
pub struct ChainsOptions {
    /// The parts, in one run.
    pub parts: Vec<Part>,
    /// Numbers of links.
    pub links: Vec<usize>,
    /// Bytes of state.
    pub states: Vec<usize>,
    /// Emulated one-way delay of each message.
    pub link: Duration,
    /// The rate of the link that all messages of a process share, for [`Part::State`]; in bits per second.
    pub bandwidth: NonZeroU64,
    /// Rounds; each system has one turn in each.
    pub rounds: u32,
    /// About how long a turn takes, unless two operations take longer.
    pub turn: Duration,
    /// The seed of the order of turns.
    pub seed: u64,
}

impl Default for ChainsOptions {
    fn default() -> Self {
        Self {
            parts: Part::ALL.to_vec(),
            links: vec![1, 2, 3, 5, 10],
            states: vec![0, 4_000, 15_000, 50_000, 100_000, 150_000],
            link: Duration::from_millis(20),
            bandwidth: NonZeroU64::new(50_000_000).expect("it is not zero"),
            rounds: 5,
            turn: Duration::from_millis(50),
            seed: 1,
        }
    }
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Links,
        Self::State,
        Self::Composition,
        Self::Hostile,
        Self::Functions,
    ];

    /// Its name in result rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Links => "chains-links",
            Self::State => "chains-state",
            Self::Composition => "chains-composition",
            Self::Hostile => "chains-hostile",
            Self::Functions => "chains-functions",
        }
    }
}

impl FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = |part: &&Self| part.name().strip_prefix("chains-") == Some(name);
        match Self::ALL.iter().find(names) {
            Some(part) => Ok(*part),
            None => {
                bail!(
                    "there is no part {name:?}: choose links, state, composition, hostile or functions"
                )
            }
        }
    }
}

/// Measures chains, all systems interleaved in one run. Over links, `ideal_us` of a row is what the links themselves take.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn chains(options: &ChainsOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    ensure!(options.rounds > 0, "at least one round is needed");
    ensure!(
        options
            .links
            .iter()
            .all(|links| (1..=MOST_LINKS).contains(links)),
        "a chain of so many links can't be measured: 1 to {MOST_LINKS} are possible"
    );
    ensure!(
        options.states.iter().all(|bytes| *bytes <= MOST_STATE),
        "a state of so many bytes can't be measured: {MOST_STATE} may travel at most"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = Rc::new(runtime?);
    let mut points = Vec::new();
    for part in &options.parts {
        points.extend(self::points(*part, options, &runtime)?);
    }
    ensure!(!points.is_empty(), "nothing to measure");
    let mut rows: Vec<Row> = points.iter().map(|point| point.row.clone()).collect();
    let mut systems: Vec<Box<dyn System>> = Vec::new();
    for point in points {
        systems.push(Box::new(point));
    }
    let schedule = Schedule {
        rounds: options.rounds,
        turn: options.turn,
        least: 2,
        seed: options.seed,
    };
    let results = measure(&mut systems, &schedule, progress)?;
    rows.iter_mut()
        .zip(&results)
        .for_each(|(row, result)| fill(row, result));
    say_crossing(&mut rows);
    Ok(rows)
}

fn fill(row: &mut Row, result: &Measurement) {
    row.rounds = u64::from(result.rounds);
    row.p50_us = micros(result.latencies.quantile(0.5));
    row.p99_us = micros(result.latencies.quantile(0.99));
    row.cpu_us_per_op = micros(result.cpu_per_operation);
}

/// With so many bytes of state calls are as quick as the chain: the line through what was measured of it says so.
fn say_crossing(rows: &mut [Row]) {
    let name = Part::State.name();
    let of_chains = |row: &&Row| row.bench == name && row.system != CALLS;
    let points = rows.iter().filter(of_chains);
    let points: Vec<_> = points.map(|row| (row.payload as f64, row.p50_us)).collect();
    let mean =
        |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (bytes, time) = (mean(|point| point.0), mean(|point| point.1));
    let both = points
        .iter()
        .map(|point| (point.0 - bytes) * (point.1 - time))
        .sum::<f64>();
    let slope = both
        / points
            .iter()
            .map(|point| (point.0 - bytes).powi(2))
            .sum::<f64>();
    if slope > 0.0 {
        let calls = rows
            .iter_mut()
            .filter(|row| row.bench == name && row.system == CALLS);
        calls.for_each(|row| row.crossing_bytes = Some(round(bytes + (row.p50_us - time) / slope)));
    }
}

/// One system with one workload: its row, without what is measured, and an operation.
struct Point {
    row: Row,
    operation: Box<dyn FnMut() -> Result<()>>,
    /// Who does harm meanwhile.
    beside: Option<Hostile>,
}

impl System for Point {
    fn name(&self) -> String {
        format!("{} {} n={}", self.row.bench, self.row.system, self.row.n)
    }

    fn warm_up(&mut self) -> Result<()> {
        (self.operation)()
    }

    fn begin_turn(&mut self) -> Result<()> {
        self.beside.iter_mut().for_each(Hostile::begin);
        Ok(())
    }

    fn end_turn(&mut self) -> Result<()> {
        self.beside.iter_mut().for_each(Hostile::end);
        Ok(())
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        for _ in 0..operations {
            let begun = Instant::now();
            (self.operation)()?;
            latencies.record(begun.elapsed());
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

fn points(part: Part, options: &ChainsOptions, runtime: &Rc<Runtime>) -> Result<Vec<Point>> {
    let (link, bandwidth) = match part {
        Part::Functions => (Duration::ZERO, None),
        Part::State => (options.link, Some(options.bandwidth)),
        Part::Links | Part::Composition | Part::Hostile => (options.link, None),
    };
    let subjects = subjects(part, options);
    let servers = subjects.iter().map(|(_, does, n)| does.servers(*n)).max();
    let most = (part == Part::Hostile).then_some(hostile::MOST);
    let servers = servers.unwrap_or_default();
    let world = World::start(runtime, servers, (link, bandwidth), most)?;
    let mut points = Vec::new();
    for (system, does, n) in subjects {
        // Each message follows the one before, and the state leaves the client's link before the first of them arrives.
        let links = link * does.messages(n);
        let state = bandwidth.map_or(0.0, |bits| does.state() as f64 * 8e6 / bits.get() as f64);
        let row = Row {
            bench: part.name().into(),
            system: system.into(),
            transport: "unix".into(),
            n: n as u64,
            payload: if part == Part::State {
                does.state()
            } else {
                PAYLOAD
            } as u64,
            link_us: u64::try_from(link.as_micros())?,
            link_mbit: bandwidth.map(|bits| bits.get() / 1_000_000),
            ideal_us: (!link.is_zero()).then(|| round(micros(links) + state)),
            ..Row::default()
        };
        points.push(Point {
            row,
            operation: Box::new(world.operation(does, n)?),
            beside: None,
        });
    }
    match part {
        Part::Functions => points.extend(functions::points()?),
        Part::Hostile => beside_hostile(&world, &mut points)?,
        _ => {}
    }
    Ok(points)
}

/// What is measured alone is measured beside each of those that do harm, too.
fn beside_hostile(world: &Rc<World>, points: &mut Vec<Point>) -> Result<()> {
    let alone = points[0].row.clone();
    for (name, code) in hostile::all()? {
        points.push(Point {
            row: Row {
                system: format!("{}+{name}", alone.system),
                ..alone.clone()
            },
            operation: Box::new(world.operation(HARMLESS, 2)?),
            beside: Some(Hostile::new(world, code)?),
        });
    }
    Ok(())
}

/// The systems of a part: their names, what they do, and with how many links.
fn subjects(part: Part, options: &ChainsOptions) -> Vec<(&'static str, Does, usize)> {
    match part {
        Part::Links => {
            let ways = [
                (CALLS, Does::Calls),
                ("chain-pipe", Does::Pipe),
                ("chain-script", Does::Script),
            ];
            let links = options.links.iter();
            links
                .flat_map(|links| ways.map(|(name, does)| (name, does, *links)))
                .collect()
        }
        Part::State => {
            let chain = |state: &usize| ("chain-native", Does::Native { state: *state }, 2);
            let chains = options.states.iter().map(chain);
            std::iter::once((CALLS, Does::Calls, 2))
                .chain(chains)
                .collect()
        }
        Part::Composition => vec![
            (CALLS, Does::CallsApart, 3),
            ("chain-apart", Does::Apart, 3),
            ("chain-composed", Does::Composed, 3),
        ],
        Part::Hostile => vec![("chain", HARMLESS, 2)],
        Part::Functions => vec![
            (CALLS, Does::Calls, 1),
            ("chain-pipe", Does::Pipe, 1),
            ("chain-native", Does::Native { state: 0 }, 1),
            ("chain-script", Does::Script, 1),
        ],
    }
}

/// What is measured beside those that do harm.
const HARMLESS: Does = Does::Script;
/// Plain calls, in result rows.
const CALLS: &str = "calls";
/// Bytes of each message besides the state.
const PAYLOAD: usize = 100;
const MOST_LINKS: usize = 20;
/// What a server takes, but for names and lengths.
const MOST_STATE: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratio::alone;

    fn brief(parts: &[Part]) -> ChainsOptions {
        ChainsOptions {
            parts: parts.to_vec(),
            links: vec![1, 3],
            states: vec![0, 25_000],
            link: Duration::from_millis(1),
            rounds: 1,
            turn: Duration::from_millis(1),
            ..ChainsOptions::default()
        }
    }

    #[test]
    fn chains_and_calls_take_their_messages() {
        let parts = [Part::Links, Part::State, Part::Composition];
        let rows = chains(&brief(&parts), |_| ()).unwrap();
        let ideal = |bench: &str| {
            let of = rows.iter().filter(|row| row.bench == bench);
            of.map(|row| (row.system.clone(), row.n, row.ideal_us.unwrap_or_default()))
                .collect::<Vec<_>>()
        };
        let expected = [
            ("calls", 1, 2e3),
            ("chain-pipe", 1, 2e3),
            ("chain-script", 1, 2e3),
            ("calls", 3, 6e3),
            ("chain-pipe", 3, 4e3),
            ("chain-script", 3, 4e3),
        ];
        assert_eq!(
            ideal("chains-links"),
            expected.map(|(name, n, us)| (name.into(), n, us))
        );
        let expected = [
            ("calls", 2, 4e3),
            ("chain-native", 2, 3e3),
            ("chain-native", 2, 7e3),
        ];
        assert_eq!(
            ideal("chains-state"),
            expected.map(|(name, n, us)| (name.into(), n, us))
        );
        let expected = [
            ("calls", 3, 6e3),
            ("chain-apart", 3, 5e3),
            ("chain-composed", 3, 4e3),
        ];
        assert_eq!(
            ideal("chains-composition"),
            expected.map(|(name, n, us)| (name.into(), n, us))
        );
        for row in &rows {
            let ideal = row.ideal_us.unwrap_or_default();
            // A delay line aims at the mean: it may be early by as much as it is late otherwise.
            assert!(
                row.p50_us > 0.9 * ideal,
                "no message is quicker than its link: {row:?}"
            );
        }
    }

    #[test]
    fn a_chain_comes_to_its_end_beside_those_that_do_harm() {
        let rows = chains(&brief(&[Part::Hostile]), |_| ()).unwrap();
        assert_eq!(rows[0].system, "chain");
        assert!(rows.len() > 5, "{rows:?}");
        for row in &rows[1..] {
            assert!(row.system.starts_with("chain+"), "{row:?}");
            assert_eq!(alone(row, &rows), Some(&rows[0]));
        }
    }

    #[test]
    fn functions_are_compiled_and_run() {
        let rows = chains(&brief(&[Part::Functions]), |_| ()).unwrap();
        for bench in ["chains-functions", "chains-compile", "chains-run"] {
            assert!(
                rows.iter()
                    .any(|row| row.bench == bench && row.p50_us > 0.0),
                "{rows:?}"
            );
        }
    }

    #[test]
    fn the_crossing_is_where_both_take_the_same() {
        let row = |system: &str, payload, p50_us| Row {
            bench: Part::State.name().into(),
            system: system.into(),
            payload,
            p50_us,
            ..Row::default()
        };
        let mut rows = vec![
            row(CALLS, 0, 80.0),
            row("chain-native", 0, 60.0),
            row("chain-native", 1_000, 70.0),
        ];
        say_crossing(&mut rows);
        assert_eq!(rows[0].crossing_bytes, Some(2_000.0));
        let mut flat = vec![row(CALLS, 0, 80.0), row("chain-native", 0, 60.0)];
        say_crossing(&mut flat);
        assert_eq!(flat[0].crossing_bytes, None, "one size says nothing");
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let refused = |change: fn(&mut ChainsOptions)| {
            let mut options = brief(&[Part::Links]);
            change(&mut options);
            chains(&options, |_| ()).unwrap_err().to_string()
        };
        assert!(refused(|options| options.links = vec![0]).contains("1 to 20"));
        assert!(refused(|options| options.states = vec![2_000_000]).contains("1000000"));
        assert!(refused(|options| options.rounds = 0).contains("one round"));
        assert!(refused(|options| options.parts = vec![]).contains("nothing"));
        assert!(
            "figure"
                .parse::<Part>()
                .unwrap_err()
                .to_string()
                .contains("composition")
        );
    }
}
