//! Latency over throughput where every process is client and server (figure 6.7).
//!
//! First each form is driven as hard as it can be, to learn how much that is. Then both get the same loads: operations
//! begin at the times of a Poisson process, whether or not others are done, and their time counts from then.

use crate::comparison::{RunOptions, check, micros, round};
use crate::fleet::{Fleet, Launcher, LoadOrder, ServerConfig, Transport, folder};
use crate::harness::{Latencies, Progress};
use crate::pattern::{Form, Pattern, Query, Shape, THESIS_SERVERS};
use crate::process::{Pinned, processor_time};
use crate::random::Random;
use crate::row::Row;
use crate::stack::{Own, Stack};
use anyhow::{Context, Result, ensure};
use std::process;
use std::time::{Duration, Instant};
use wallaby_program::scratch::Scratch;

/// What to measure.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The queries.
    pub queries: Vec<Query>,
    /// The loads, in percent of what plain calls can do at most.
    pub loads: Vec<u64>,
    /// Operations that each process keeps under way to learn what the most is.
    pub under_way: usize,
    /// How. A turn is how long a load lasts; stacks, systems and links are not asked for.
    pub run: RunOptions,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            queries: vec![Query::Is2, Query::Is7],
            loads: vec![20, 40, 60, 80, 90],
            under_way: 8,
            run: RunOptions {
                transports: vec![Transport::Unix],
                servers: Some(THESIS_SERVERS),
                rounds: 3,
                turn: Duration::from_secs(1),
                ..RunOptions::default()
            },
        }
    }
}

/// Measures latency and throughput of queries under load.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn load(options: &LoadOptions, mut progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    let run = &options.run;
    let patterns: Vec<Pattern> = options
        .queries
        .iter()
        .flat_map(|query| FORMS.map(|form| Pattern::of(Shape::Query(*query), form)))
        .collect();
    let servers = check(&patterns, run)?;
    ensure!(servers > 2, "each of at least 3 processes calls the others");
    ensure!(
        (1..=MOST_UNDER_WAY).contains(&options.under_way),
        "1 to {MOST_UNDER_WAY} operations can be under way at a process"
    );
    ensure!(
        run.turn <= LONGEST_TURN,
        "a load lasts {} s at most",
        LONGEST_TURN.as_secs()
    );
    ensure!(
        options.loads.iter().all(|load| (1..=200).contains(load)),
        "loads are from 1 to 200 percent"
    );
    let _pinned = run.pin.map(Pinned::to).transpose()?;
    let mut rows = Vec::new();
    let turns = (1 + options.loads.len()) * patterns.len() * run.rounds as usize;
    let total = (turns * run.transports.len()) as u64;
    let mut done = 0;
    for &transport in &run.transports {
        let mut cluster = Cluster::start(transport, servers, run)?;
        let mut tell = |name: &str| {
            progress(Progress {
                done,
                total,
                system: name,
                warming_up: false,
            });
            done += 1;
        };
        rows.extend(cluster.measure(&patterns, options, &mut tell)?);
    }
    Ok(rows)
}

/// Both forms; plain calls first, for loads are shares of what they can do.
const FORMS: [Form; 2] = [Form::Calls, Form::Multihop];

/// Processes, each of which is client and server.
struct Cluster<'run> {
    fleet: Fleet,
    transport: Transport,
    run: &'run RunOptions,
    _folder: Scratch,
}

/// What was seen of a pattern under some load.
struct Seen {
    pattern: Pattern,
    /// In percent; none: as much as possible.
    share: Option<u64>,
    per_second: Option<f64>,
    latencies: Latencies,
    refused: u64,
    cpu: Duration,
    elapsed: Duration,
}

impl<'run> Cluster<'run> {
    fn start(transport: Transport, servers: usize, run: &'run RunOptions) -> Result<Self> {
        let launcher = match &run.launcher {
            Some(launcher) => launcher.clone(),
            None => Launcher::this_program()?,
        };
        let folder = folder()?;
        let config = ServerConfig {
            stack: Own::Wallaby.name().into(),
            transport,
            index: 0,
            link: Duration::ZERO,
            bandwidth: None,
            folder: folder.path().to_owned(),
            parent: process::id(),
        };
        let mut fleet = Fleet::start(&launcher, servers, &config)?;
        fleet.connect(None)?;
        Ok(Self {
            fleet,
            transport,
            run,
            _folder: folder,
        })
    }

    fn measure(
        &mut self,
        patterns: &[Pattern],
        options: &LoadOptions,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Vec<Row>> {
        let mut seen = Vec::new();
        for &pattern in patterns {
            seen.push(Seen::nothing(pattern, None, None)?);
        }
        let mut random = Random::new(self.run.seed);
        // Connections are opened by what is not counted.
        for most in &seen {
            self.turn(
                &mut Seen::nothing(most.pattern, None, None)?,
                options,
                &mut random,
            )?;
        }
        self.rounds(&mut seen, options, &mut random, tell)?;
        let mut loads = Vec::new();
        for pattern in patterns {
            let of = |most: &&Seen| {
                most.pattern.shape() == pattern.shape() && most.pattern.form() == Form::Calls
            };
            let most = seen.iter().find(of).context("nothing was measured")?;
            for &share in &options.loads {
                let per_second = most.throughput() * share as f64 / 100.0;
                loads.push(Seen::nothing(*pattern, Some(share), Some(per_second))?);
            }
        }
        self.rounds(&mut loads, options, &mut random, tell)?;
        seen.extend(loads);
        let mut rows: Vec<Row> = seen.iter().map(|seen| self.row(seen, options)).collect();
        rows.sort_by(|a, b| (&a.bench, a.n).cmp(&(&b.bench, b.n)));
        Ok(rows)
    }

    /// So many rounds; in each, all take turns in random order.
    fn rounds(
        &mut self,
        seen: &mut [Seen],
        options: &LoadOptions,
        random: &mut Random,
        tell: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..seen.len()).collect();
        for _ in 0..self.run.rounds {
            random.shuffle(&mut order);
            for &index in &order {
                tell(&seen[index].pattern.to_string());
                self.turn(&mut seen[index], options, random)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self, seen: &mut Seen, options: &LoadOptions, random: &mut Random) -> Result<()> {
        let under_way = match seen.per_second {
            Some(_) => MOST_UNDER_WAY,
            None => options.under_way,
        };
        let order = LoadOrder {
            pattern: seen.pattern,
            payload: self.run.payload,
            per_second: seen.per_second,
            under_way,
            time: self.run.turn,
            seed: random.between(0, u64::MAX - 1),
        };
        let (before, start) = (self.processor_time()?, Instant::now());
        let loaded = self.fleet.load(&order)?;
        // What is over only after the time was begun in it, so both are counted.
        seen.elapsed += start.elapsed().max(self.run.turn);
        seen.cpu += self.processor_time()?.saturating_sub(before);
        seen.refused += loaded.refused;
        for latency in loaded.latencies {
            seen.latencies.record(Duration::from_nanos(latency));
        }
        Ok(())
    }

    fn processor_time(&self) -> Result<Duration> {
        self.fleet.processes().into_iter().map(processor_time).sum()
    }

    fn row(&self, seen: &Seen, options: &LoadOptions) -> Row {
        let cpu = seen.cpu.as_nanos() / u128::from(seen.latencies.count().max(1));
        let cpu = Duration::from_nanos(u64::try_from(cpu).unwrap_or(u64::MAX));
        Row {
            bench: format!("load-{}", seen.pattern.bench()),
            system: match seen.pattern.form() {
                Form::Multihop => "wallaby-dpc".into(),
                Form::Calls => "wallaby-rpc".into(),
            },
            transport: self.transport.to_string(),
            n: seen.share.unwrap_or(0),
            payload: options.run.payload as u64,
            pin: self.run.pin,
            rounds: u64::from(self.run.rounds),
            p50_us: micros(seen.latencies.quantile(0.5)),
            p99_us: micros(seen.latencies.quantile(0.99)),
            cpu_us_per_op: micros(cpu),
            offered_per_s: seen.per_second.map(round),
            refused: seen.per_second.map(|_| seen.refused),
            ops_per_s: Some(round(seen.throughput())),
            ..Row::default()
        }
    }
}

impl Seen {
    fn nothing(pattern: Pattern, share: Option<u64>, per_second: Option<f64>) -> Result<Self> {
        Ok(Self {
            pattern,
            share,
            per_second,
            latencies: Latencies::new()?,
            refused: 0,
            cpu: Duration::ZERO,
            elapsed: Duration::ZERO,
        })
    }

    fn throughput(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What is more than this at one process is refused: then the load is too much.
const MOST_UNDER_WAY: usize = 256;
/// Servers are given up that say nothing for twice as long.
const LONGEST_TURN: Duration = Duration::from_secs(10);
