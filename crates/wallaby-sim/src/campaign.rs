//! Many seeds, on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::coverage::{Coverage, Point};
use crate::oracle::{Verdict, Violation};
use crate::plan::Plan;
use crate::world::{Options, Report, run};

/// Fewer seeds than this need not reach everything.
const ENOUGH: u64 = 10_000;

/// What many worlds came to.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// How many seeds were run.
    pub seeds: u64,
    /// They were worlds of one kind, which do not reach everything.
    pub one_kind: bool,
    /// Calls by outcome.
    pub outcomes: BTreeMap<Verdict, u64>,
    /// Faults that the plans hold, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// What was exercised.
    pub coverage: Coverage,
    /// Seeds that failed, with what was wrong first.
    pub failed: BTreeMap<u64, Violation>,
    /// Virtual time.
    pub lasted: Duration,
    /// Real time.
    pub took: Duration,
}

/// The one object that `--json` prints.
#[derive(Debug, Serialize)]
struct Json<'a> {
    seeds: u64,
    calls: u64,
    completed: u64,
    failed: u64,
    aborted: u64,
    deadline: u64,
    too_large: u64,
    initiator_gone: u64,
    violations: Vec<JsonViolation>,
    faults: &'a BTreeMap<&'static str, u64>,
    coverage: BTreeMap<&'static str, u64>,
    uncovered: Vec<&'static str>,
    virtual_s: f64,
    wall_s: f64,
}

#[derive(Debug, Serialize)]
struct JsonViolation {
    seed: u64,
    rule: String,
    what: String,
}

impl Summary {
    /// Runs seeds `from` to `from + seeds` on all cores; `progress` is told how many are done.
    pub fn of(from: u64, seeds: u64, options: Options, progress: impl Fn(u64) + Sync) -> Self {
        let begin = Instant::now();
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let sum = Mutex::new(Self {
            seeds,
            one_kind: options.kind.is_some(),
            ..Self::default()
        });
        let work = || {
            let mut own = Self::default();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= seeds {
                    break;
                }
                let seed = from.wrapping_add(index);
                let plan = options.plan(seed);
                own.add(seed, &plan, &run(&plan, options));
                progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
            let mut sum = sum
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            sum.merge(own);
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
        let mut sum = sum
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        sum.took = begin.elapsed();
        sum
    }

    fn add(&mut self, seed: u64, plan: &Plan, report: &Report) {
        for outcome in &report.outcomes {
            *self.outcomes.entry(*outcome).or_default() += 1;
        }
        for fault in &plan.faults {
            *self.faults.entry(fault.kind()).or_default() += 1;
        }
        self.coverage.add(&report.coverage);
        self.failed.extend(
            report
                .violations
                .first()
                .map(|violation| (seed, violation.clone())),
        );
        self.lasted += report.lasted;
    }

    fn merge(&mut self, other: Self) {
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        self.coverage.add(&other.coverage);
        self.failed.extend(other.failed);
        self.lasted += other.lasted;
    }

    /// Points that should have been reached by so many seeds.
    pub fn uncovered(&self) -> Vec<Point> {
        self.coverage.uncovered().collect()
    }

    /// Whether no rule was broken and, with enough seeds, everything was reached.
    pub fn is_good(&self) -> bool {
        self.failed.is_empty()
            && (self.one_kind || self.seeds < ENOUGH || self.uncovered().is_empty())
    }

    fn count(&self, wanted: impl Fn(Verdict) -> bool) -> u64 {
        self.outcomes
            .iter()
            .filter(|(outcome, _)| wanted(**outcome))
            .map(|(_, count)| count)
            .sum()
    }

    /// All of it as one JSON object.
    ///
    /// # Errors
    ///
    /// None in practice: it has no maps with keys other than text.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let violations = self.failed.iter().map(|(seed, violation)| JsonViolation {
            seed: *seed,
            rule: format!("{:?}", violation.rule),
            what: violation.what.clone(),
        });
        serde_json::to_string(&Json {
            seeds: self.seeds,
            calls: self.count(|_| true),
            completed: self.count(|outcome| matches!(outcome, Verdict::Complete { .. })),
            failed: self.count(|outcome| outcome == Verdict::Failed),
            aborted: self.count(|outcome| outcome == Verdict::Aborted),
            deadline: self.count(|outcome| outcome == Verdict::Deadline),
            too_large: self.count(|outcome| outcome == Verdict::TooLarge),
            initiator_gone: self.count(|outcome| outcome == Verdict::InitiatorGone),
            violations: violations.collect(),
            faults: &self.faults,
            coverage: Point::ALL
                .iter()
                .map(|point| (point.words(), self.coverage.count(*point)))
                .collect(),
            uncovered: self.coverage.uncovered().map(Point::words).collect(),
            virtual_s: self.lasted.as_secs_f64(),
            wall_s: self.took.as_secs_f64(),
        })
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} seeds, {} calls", self.seeds, self.count(|_| true))?;
        for (outcome, count) in &self.outcomes {
            let words = match outcome {
                Verdict::Complete { statuses: false } => "complete",
                Verdict::Complete { statuses: true } => "complete, with statuses",
                Verdict::Failed => "failed",
                Verdict::Aborted => "aborted",
                Verdict::Deadline => "deadline",
                Verdict::TooLarge => "too large to be sent",
                Verdict::InitiatorGone => "initiator gone",
            };
            writeln!(f, "{count:>10}  {words}")?;
        }
        writeln!(f, "faults planned")?;
        for (kind, count) in &self.faults {
            writeln!(f, "{count:>10}  {kind}")?;
        }
        writeln!(f, "reached")?;
        for point in Point::ALL {
            writeln!(f, "{:>10}  {}", self.coverage.count(*point), point.words())?;
        }
        let (lasted, took) = (self.lasted.as_secs_f64(), self.took.as_secs_f64());
        writeln!(
            f,
            "{} violations, {} points not reached",
            self.failed.len(),
            self.uncovered().len()
        )?;
        writeln!(f, "{lasted:.0} virtual seconds in {took:.1} s")
    }
}
