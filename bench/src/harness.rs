//! Measuring: rounds of all systems interleaved in one run, so that whatever disturbs the machine disturbs all alike.

use crate::meter::Spent;
use crate::process::processor_time;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// One system with one workload: what is measured.
pub trait System {
    /// How progress and errors name it.
    fn name(&self) -> String;

    /// Brings it to where a running system is: connections open, caches filled.
    ///
    /// # Errors
    /// The system's.
    fn warm_up(&mut self) -> Result<()>;

    /// Called before the operations of a turn, for what goes on beside them.
    ///
    /// # Errors
    /// The system's.
    fn begin_turn(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called after the operations of a turn: the next system is to be alone.
    ///
    /// # Errors
    /// The system's.
    fn end_turn(&mut self) -> Result<()> {
        Ok(())
    }

    /// How many operations are under way at a time.
    fn under_way(&self) -> u64 {
        1
    }

    /// Runs operations, so many under way as it says, and records how long each took.
    ///
    /// # Errors
    /// The system's, or no answer within a bounded time.
    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()>;

    /// The processes that serve it, besides this one.
    fn processes(&self) -> Vec<u32>;

    /// What was sent so far since the system started, if it counts.
    ///
    /// # Errors
    /// The system's.
    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(None)
    }
}

/// Messages and bytes that a system counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages sent by anybody.
    pub messages: u64,
    /// Messages the client sent or received.
    pub client_messages: u64,
    /// Bytes sent by anybody.
    pub bytes: u64,
    /// What the servers' processors did, where that is measured.
    #[serde(default)]
    pub servers_spent: Spent,
    /// What the client's did.
    #[serde(default)]
    pub client_spent: Spent,
}

/// Latencies of operations, to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// No latencies yet.
    ///
    /// # Errors
    /// Never in practice: the bounds are constants.
    pub fn new() -> Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, LONGEST_NANOSECONDS, 3)?))
    }

    /// Records one; what is longer than ten minutes counts as ten minutes.
    pub fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanoseconds);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that this fraction (0 to 1) of the operations did not exceed.
    pub fn quantile(&self, fraction: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(fraction))
    }
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Rounds; in each, every system has one turn, in random order.
    pub rounds: u32,
    /// About how long a turn takes.
    pub turn: Duration,
    /// The fewest operations in a turn, however long they take.
    pub least: u64,
    /// Of the order of turns.
    pub seed: u64,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress<'run> {
    /// Turns done, those of the warm-up included.
    pub done: u64,
    /// Turns in all.
    pub total: u64,
    /// The system whose turn it is.
    pub system: &'run str,
    /// Whether this still is the warm-up.
    pub warming_up: bool,
}

/// What was found out about one system.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Latencies of all rounds.
    pub latencies: Latencies,
    /// Processor time of this process and the system's own, per operation.
    pub cpu_per_operation: Duration,
    /// That of this process alone, per operation: what the client does.
    pub client_cpu_per_operation: Duration,
    /// The rounds it is from.
    pub rounds: u32,
    /// The operations it is from.
    pub operations: u64,
    /// How long these took.
    pub elapsed: Duration,
    /// What the system counted over these operations.
    pub traffic: Option<Traffic>,
}

/// Measures the systems in interleaved rounds; the results are in the order of the systems.
///
/// # Errors
/// The first error of any system, with its name.
pub fn measure(
    systems: &mut [Box<dyn System + '_>],
    schedule: &Schedule,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Measurement>> {
    ensure!(schedule.rounds > 0, "at least one round is needed");
    let names: Vec<String> = systems.iter().map(|system| system.name()).collect();
    let total = systems.len() as u64 * (u64::from(schedule.rounds) + 1);
    let mut done = 0;
    let mut report = |index: usize, warming_up: bool| {
        progress(Progress {
            done,
            total,
            system: &names[index],
            warming_up,
        });
        done += 1;
    };

    let mut turns = Vec::with_capacity(systems.len());
    for (index, system) in systems.iter_mut().enumerate() {
        report(index, true);
        turns.push(Turns::begin(system.as_mut(), schedule).with_context(|| names[index].clone())?);
    }
    let mut order: Vec<usize> = (0..systems.len()).collect();
    let mut random = Random::new(schedule.seed);
    for _ in 0..schedule.rounds {
        random.shuffle(&mut order);
        for &index in &order {
            report(index, false);
            turns[index]
                .take(systems[index].as_mut())
                .with_context(|| names[index].clone())?;
        }
    }
    Ok(turns
        .into_iter()
        .map(|turns| turns.finish(schedule.rounds))
        .collect())
}

/// The turns of one system so far.
struct Turns {
    operations: u64,
    latencies: Latencies,
    cpu: Cpu,
    elapsed: Duration,
    traffic: Option<Traffic>,
}

/// Processor time.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    client: Duration,
    servers: Duration,
}

impl Turns {
    /// Warms the system up and finds out how many operations make a turn.
    fn begin(system: &mut dyn System, schedule: &Schedule) -> Result<Self> {
        let Schedule { turn, least, .. } = *schedule;
        system.warm_up().context("in the warm-up")?;
        let under_way = system.under_way().max(1);
        let operations_within = |time: Duration, each: Duration| {
            let operations = time.as_nanos() / each.as_nanos().max(1);
            let least = least.max(LEAST_EACH * under_way);
            u64::try_from(operations)
                .unwrap_or(u64::MAX)
                .clamp(least, MOST_OPERATIONS.max(least))
        };
        let mut trial = Latencies::new()?;
        system.begin_turn()?;
        // How long an operation takes: the median, which outliers leave alone; but it says nothing where several are
        // under way.
        let mut pace = |operations: u64| {
            let start = Instant::now();
            system.run(operations, &mut trial)?;
            let mean = start.elapsed().as_nanos() / u128::from(operations.max(1));
            anyhow::Ok(match under_way {
                1 => trial.quantile(0.5),
                _ => Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)),
            })
        };
        let each = pace(least.max(under_way))?;
        let each = pace(operations_within(turn / 4, each))?;
        system.end_turn()?;
        Ok(Self {
            operations: operations_within(turn, each),
            latencies: Latencies::new()?,
            cpu: Cpu::default(),
            elapsed: Duration::ZERO,
            traffic: None,
        })
    }

    fn take(&mut self, system: &mut dyn System) -> Result<()> {
        system.begin_turn()?;
        // The systems before have emptied the caches: that is not what is measured.
        let settling = SETTLING_OPERATIONS.max(system.under_way());
        system.run(settling, &mut Latencies::new()?)?;
        let traffic = system.traffic()?;
        let (cpu, start) = (self::cpu(system)?, Instant::now());
        system.run(self.operations, &mut self.latencies)?;
        self.elapsed += start.elapsed();
        self.cpu.add(cpu, self::cpu(system)?);
        if let (Some(before), Some(after)) = (traffic, system.traffic()?) {
            self.traffic.get_or_insert_default().add(before, after);
        }
        system.end_turn()
    }

    fn finish(self, rounds: u32) -> Measurement {
        let operations = self.latencies.count();
        let per_operation = |cpu: Duration| {
            let cpu = cpu.as_nanos() / u128::from(operations.max(1));
            Duration::from_nanos(u64::try_from(cpu).unwrap_or(u64::MAX))
        };
        Measurement {
            latencies: self.latencies,
            cpu_per_operation: per_operation(self.cpu.client + self.cpu.servers),
            client_cpu_per_operation: per_operation(self.cpu.client),
            rounds,
            operations,
            elapsed: self.elapsed,
            traffic: self.traffic,
        }
    }
}

impl Traffic {
    /// Adds what went by between two readings.
    fn add(&mut self, before: Self, after: Self) {
        self.messages += after.messages.saturating_sub(before.messages);
        self.client_messages += after.client_messages.saturating_sub(before.client_messages);
        self.bytes += after.bytes.saturating_sub(before.bytes);
        self.servers_spent += after.servers_spent.since(before.servers_spent);
        self.client_spent += after.client_spent.since(before.client_spent);
    }
}

impl Cpu {
    /// Adds what was used between two readings.
    fn add(&mut self, before: Self, after: Self) {
        self.client += after.client.saturating_sub(before.client);
        self.servers += after.servers.saturating_sub(before.servers);
    }
}

/// Processor time of this process and of all that serve the system.
fn cpu(system: &dyn System) -> Result<Cpu> {
    let mut servers = Duration::ZERO;
    for pid in system.processes() {
        servers += processor_time(pid)?;
    }
    let client = processor_time(std::process::id())?;
    Ok(Cpu { client, servers })
}

const LONGEST_NANOSECONDS: u64 = 600_000_000_000;
/// Where several are under way, so many in the place of each.
const LEAST_EACH: u64 = 2;
const MOST_OPERATIONS: u64 = 1_000_000;
const SETTLING_OPERATIONS: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Records which system ran when; its operations take as long as it says.
    struct Fake<'log> {
        name: &'static str,
        each: Duration,
        runs: &'log RefCell<Vec<(&'static str, u64)>>,
    }

    impl System for Fake<'_> {
        fn name(&self) -> String {
            self.name.into()
        }

        fn warm_up(&mut self) -> Result<()> {
            ensure!(self.each > Duration::ZERO, "broken");
            Ok(())
        }

        fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
            self.runs.borrow_mut().push((self.name, operations));
            for _ in 0..operations {
                latencies.record(self.each);
            }
            Ok(())
        }

        fn processes(&self) -> Vec<u32> {
            Vec::new()
        }

        fn traffic(&mut self) -> Result<Option<Traffic>> {
            let operations = self
                .runs
                .borrow()
                .iter()
                .filter(|run| run.0 == self.name)
                .map(|run| run.1)
                .sum::<u64>();
            Ok(Some(Traffic {
                messages: 2 * operations,
                client_messages: operations,
                bytes: 100 * operations,
                ..Traffic::default()
            }))
        }
    }

    fn schedule() -> Schedule {
        Schedule {
            rounds: 3,
            turn: Duration::from_millis(1),
            least: 10,
            seed: 1,
        }
    }

    #[test]
    fn each_round_has_every_system_once() {
        let runs = RefCell::new(Vec::new());
        let fake = |name, micros| {
            Box::new(Fake {
                name,
                each: Duration::from_micros(micros),
                runs: &runs,
            })
        };
        let mut systems: Vec<Box<dyn System>> = vec![fake("fast", 10), fake("slow", 1_000)];
        let mut turns = 0;
        let results = measure(&mut systems, &schedule(), |progress| {
            turns += 1;
            assert_eq!(progress.total, 8);
        })
        .unwrap();
        drop(systems);
        assert_eq!(turns, 8);
        let fast = results[0].operations;
        assert!((290..=300).contains(&fast), "{fast}");
        assert_eq!(results[1].operations, 30, "at least ten a turn");
        let p50 = results[0].latencies.quantile(0.5).as_nanos() as i64;
        assert!((p50 - 10_000).abs() <= 10);
        assert_eq!(
            results[0].traffic,
            Some(Traffic {
                messages: 2 * fast,
                client_messages: fast,
                bytes: 100 * fast,
                ..Traffic::default()
            })
        );
        let measured: Vec<_> = runs.into_inner().into_iter().skip(4).collect();
        for round in measured.chunks(4) {
            assert!(
                round.iter().any(|run| run.0 == "fast") && round.iter().any(|run| run.0 == "slow")
            );
        }
    }

    /// Has many operations under way, and says that each takes less time than its share.
    struct Hasty;

    impl System for Hasty {
        fn name(&self) -> String {
            "hasty".into()
        }

        fn warm_up(&mut self) -> Result<()> {
            Ok(())
        }

        fn under_way(&self) -> u64 {
            100
        }

        fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
            let end = Instant::now() + Duration::from_micros(20 * operations);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            (0..operations).for_each(|_| latencies.record(Duration::from_micros(1)));
            Ok(())
        }

        fn processes(&self) -> Vec<u32> {
            Vec::new()
        }
    }

    #[test]
    fn a_turn_of_many_at_a_time_is_as_long_as_others() {
        let mut systems: Vec<Box<dyn System>> = vec![Box::new(Hasty)];
        let results = measure(&mut systems, &schedule(), |_| ()).unwrap();
        let least = LEAST_EACH * 100;
        assert_eq!(
            results[0].operations,
            3 * least,
            "fifty would do for the time"
        );
    }

    #[test]
    fn an_error_names_the_system() {
        let runs = RefCell::new(Vec::new());
        let mut systems: Vec<Box<dyn System>> = vec![Box::new(Fake {
            name: "dead",
            each: Duration::ZERO,
            runs: &runs,
        })];
        let error = measure(&mut systems, &schedule(), |_| ()).unwrap_err();
        assert_eq!(format!("{error:#}"), "dead: in the warm-up: broken");
    }
}
