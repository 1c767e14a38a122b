//! What must never be, by what handlers and callers saw.

use std::collections::BTreeMap;
use std::fmt;

use wallaby::{CallError, RequestId};

use crate::plan::{CallPlan, Fault, Plan};
use crate::tasks::Answer;

/// What happened in a world.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// How often the handler of a call's task was started.
    pub(crate) started: BTreeMap<(usize, u32), u64>,
    pub(crate) calls: BTreeMap<usize, Seen>,
    /// Of each host at the end: what it remembers of requests, live calls left out.
    pub(crate) left: BTreeMap<usize, usize>,
    pub(crate) faults: u64,
    /// The first fault, in milliseconds.
    pub(crate) first_fault: Option<u64>,
    /// Why the simulation itself gave up.
    pub(crate) broken: Option<String>,
    pub(crate) print: bool,
}

/// What the application saw of a call.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) answers: Vec<Answer>,
    pub(crate) statuses: u64,
    /// When and how it ended.
    pub(crate) end: Option<(u64, End)>,
    /// Nothing of it runs any more, as far as its initiator can know.
    pub(crate) settled: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// With how many statuses.
    Complete(u64),
    Deadline,
    Failed(String),
    Aborted,
    /// Its host crashed.
    Gone,
}

/// What the oracle says of a world, or of many.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

const COUNTED: [&str; 9] = [
    "calls",
    "complete",
    "complete, with statuses",
    "failed",
    "over the deadline",
    "aborted",
    "initiator crashed",
    "answers",
    "faults",
];

/// How much later than its deadline a call may end, in milliseconds.
const MARGIN: u64 = 50;

impl Log {
    pub(crate) fn note(&mut self, now: u64, what: impl FnOnce() -> String) {
        if self.print {
            println!("{now:>6} ms  {}", what());
        }
    }

    /// Whether a call goes on, or is being wound down.
    pub(crate) fn is_busy(&self) -> bool {
        self.calls.values().any(|seen| !seen.settled)
    }

    /// A handler begins.
    pub(crate) fn started(&mut self, now: u64, task: (usize, u32), request: RequestId) {
        *self.started.entry(task).or_default() += 1;
        self.note(now, || {
            format!("call {}: task {} begins as {request}", task.0, task.1)
        });
    }

    /// The application got something.
    pub(crate) fn arrived(&mut self, now: u64, call: usize, next: Result<Answer, CallError>) {
        let seen = self.calls.entry(call).or_default();
        match next {
            Ok(answer) => seen.answers.push(answer),
            Err(error) => {
                seen.statuses += u64::from(error.status().is_some());
                self.note(now, || format!("call {call}: {error}"));
            }
        }
    }

    /// A call is over for its application.
    pub(crate) fn ended(&mut self, now: u64, call: usize, how: End) {
        self.note(now, || format!("call {call} ends: {how:?}"));
        self.calls.entry(call).or_default().end = Some((now, how));
    }

    pub(crate) fn judge(&self, plan: &Plan) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.count("faults", self.faults);
        if let Some(why) = &self.broken {
            verdict.violate(format!("the simulation gave up: {why}"));
        }
        for (&(call, task), &times) in &self.started {
            if times > 1 {
                verdict.violate(format!(
                    "the handler of call {call}, task {task} ran {times} times"
                ));
            }
        }
        for (&host, &left) in &self.left {
            if left > 0 {
                verdict.violate(format!("host {host} still remembers {left} requests"));
            }
        }
        for (index, call) in plan.calls.iter().enumerate() {
            if let Some(seen) = self.calls.get(&index) {
                verdict.count("calls", 1);
                self.judge_call(index, call, seen, &mut verdict);
            }
        }
        verdict
    }

    fn judge_call(&self, index: usize, call: &CallPlan, seen: &Seen, verdict: &mut Verdict) {
        let mut violate = |what: String| verdict.violations.push(format!("call {index}: {what}"));
        let expected = call.task.answers();
        let mut numbers: Vec<u32> = seen.answers.iter().map(|answer| answer.number).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            violate(format!("answers were delivered twice: {numbers:?}"));
        }
        if let Some(foreign) = numbers.iter().find(|number| !expected.contains(number)) {
            violate(format!("answer {foreign} is not its own"));
        }
        if !seen.answers.iter().all(Answer::is_whole) {
            violate("an answer arrived other than it was sent".into());
        }
        let Some((end, how)) = &seen.end else {
            return violate("it never ended".into());
        };
        if *how != End::Gone && *end > call.at + call.deadline + MARGIN {
            violate(format!("it ended at {end} ms, after its deadline"));
        }
        match how {
            End::Complete(statuses) => {
                let all = numbers.len() == expected.len();
                if *statuses == 0 && (!all || call.task.has_errors()) {
                    violate(format!(
                        "complete, but {} of {} answers are here",
                        numbers.len(),
                        expected.len()
                    ));
                }
                if *statuses != seen.statuses {
                    violate(format!(
                        "{statuses} statuses, but {} were seen",
                        seen.statuses
                    ));
                }
                let calm = self.first_fault.is_none_or(|fault| fault > *end);
                if *statuses > 0 && calm && !call.task.has_errors() {
                    violate("statuses, but nothing failed".into());
                }
                verdict.count(
                    match statuses {
                        0 => "complete",
                        _ => "complete, with statuses",
                    },
                    1,
                );
                verdict.count("answers", numbers.len() as u64);
            }
            End::Failed(why) => {
                if self.first_fault.is_none_or(|fault| fault > *end) {
                    violate(format!("failed, but nothing had happened: {why}"));
                }
                verdict.count("failed", 1);
            }
            End::Deadline => {
                if *end + MARGIN < call.at + call.deadline {
                    violate(format!("its deadline came at {end} ms, too early"));
                }
                verdict.count("over the deadline", 1);
            }
            End::Aborted => verdict.count("aborted", 1),
            End::Gone => verdict.count("initiator crashed", 1),
        }
    }
}

impl Verdict {
    fn violate(&mut self, what: String) {
        self.violations.push(what);
    }

    fn count(&mut self, what: &'static str, more: u64) {
        *self.counts.entry(what).or_default() += more;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.violations.extend(other.violations.iter().cloned());
        for (what, more) in &other.counts {
            self.count(what, *more);
        }
    }

    /// What many worlds together must have had.
    pub(crate) fn least(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTED
            .iter()
            .map(|what| (*what, self.counts.get(what).copied().unwrap_or(0)))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in self.least() {
            write!(f, "{count} {what}, ")?;
        }
        write!(f, "{} violations", self.violations.len())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash(host, long) => write!(f, "host {host} crashes for {long} ms"),
            Self::Cut(one, other, long) => write!(f, "{one} and {other} are cut for {long} ms"),
            Self::CutOneWay(one, other, long) => {
                write!(f, "the way from {one} to {other} is cut for {long} ms")
            }
            Self::Hold(one, other, long) => {
                write!(f, "{one} and {other} are held up for {long} ms")
            }
        }
    }
}
