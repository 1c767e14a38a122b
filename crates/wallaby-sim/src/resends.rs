//! Calls whose requests may be sent again (thesis 7.3): what must never be for them.
//!
//! Of such a call more than one execution may be about, so nothing is told from what its servers release. What its tasks
//! say is enough: a handler runs once in each attempt, and a call that is complete without a status has delivered each
//! answer of its trees exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wallaby_proto::{CallId, NodeId, Path, RequestId};

use crate::oracle::{Rule, Verdict, Violation};
use crate::plan::{CallPlan, NodePlan, Plan};
use crate::workload::Hop;

/// All calls whose requests may be sent again.
#[derive(Debug, Default)]
pub(crate) struct Resends {
    calls: BTreeMap<CallId, ResentCall>,
    violations: Vec<Violation>,
}

#[derive(Debug)]
struct ResentCall {
    /// The answers of its trees; `None` if one of its handlers is to fail.
    answers: Option<BTreeSet<u32>>,
    started: BTreeSet<(RequestId, u32)>,
    delivered: BTreeSet<(Path, u32)>,
    said: BTreeSet<u32>,
    /// How many requests were sent again.
    times: u32,
    /// Some work of it ended with a status, perhaps in an attempt that was given up.
    statuses: bool,
    outcome: Option<Verdict>,
    /// One of its handlers never ends.
    stuck: bool,
}

impl Resends {
    pub(crate) fn begin(&mut self, call: CallId, plan: &CallPlan) {
        let mut answers = BTreeSet::new();
        let all = plan.roots.iter().all(|root| root.add_answers(&mut answers));
        let resent = ResentCall {
            answers: all.then_some(answers),
            started: BTreeSet::new(),
            delivered: BTreeSet::new(),
            said: BTreeSet::new(),
            times: 0,
            statuses: false,
            outcome: None,
            stuck: plan.roots.iter().any(Hop::is_stuck),
        };
        self.calls.insert(call, resent);
    }

    pub(crate) fn knows(&self, call: CallId) -> bool {
        self.calls.contains_key(&call)
    }

    /// A request is sent in this attempt.
    pub(crate) fn again(&mut self, call: CallId, attempt: u32) {
        if let Some(resent) = self.calls.get_mut(&call) {
            resent.times = resent.times.max(attempt);
        }
    }

    /// Work of a call ends with a status.
    pub(crate) fn status(&mut self, call: CallId) {
        if let Some(resent) = self.calls.get_mut(&call) {
            resent.statuses = true;
        }
    }

    /// Whether the executions of a call may contradict each other: one of them was refused something.
    pub(crate) fn may_differ(&self, call: CallId) -> bool {
        let resent = self.calls.get(&call);
        resent.is_some_and(|resent| resent.times > 0 && resent.statuses)
    }

    /// A server takes a request up.
    pub(crate) fn started(&mut self, now: Duration, call: CallId, id: RequestId, attempt: u32) {
        if let Some(resent) = self.calls.get_mut(&call) {
            let invented = attempt > resent.times;
            if !resent.started.insert((id, attempt)) || invented {
                let what = format!("attempt {attempt} of request {id} of {call}");
                self.violate(now, Rule::TwiceRun, what);
            }
        }
    }

    /// The application gets a response: this answer, or a status.
    pub(crate) fn delivered(
        &mut self,
        now: Duration,
        call: CallId,
        (path, index): (Path, u32),
        answer: Option<u32>,
    ) {
        let Some(resent) = self.calls.get_mut(&call) else {
            return;
        };
        let over = resent.outcome;
        let fresh = answer.is_none_or(|answer| resent.said.insert(answer) || resent.differs());
        if !resent.delivered.insert((path, index)) || !fresh {
            let what = format!("response {index} of {path} of {call}, answer {answer:?}");
            self.violate(now, Rule::TwiceDelivered, what);
        } else if let Some(outcome) = over {
            let what = format!("response {index} of {path} of {call} after {outcome:?}");
            self.violate(now, Rule::OutcomeChanged, what);
        }
    }

    /// The application learns how a call ended.
    pub(crate) fn ended(&mut self, now: Duration, call: CallId, outcome: Verdict) {
        let Some(resent) = self.calls.get_mut(&call) else {
            return;
        };
        if let Some(before) = resent.outcome.replace(outcome) {
            let what = format!("{call}: {before:?}, then {outcome:?}");
            self.violate(now, Rule::OutcomeChanged, what);
        } else if outcome == (Verdict::Complete { statuses: false }) {
            match &resent.answers {
                Some(answers) if *answers == resent.said => {}
                Some(answers) => {
                    let missing: Vec<_> = answers.difference(&resent.said).collect();
                    let what = format!("{call} without the answers {missing:?}");
                    self.violate(now, Rule::EarlyCompletion, what);
                }
                None => {
                    let what = format!("{call} is complete and tells of no status");
                    self.violate(now, Rule::LostStatus, what);
                }
            }
        }
    }

    /// A node's incarnation is over, and so are its calls; whether there were any.
    pub(crate) fn initiator_gone(&mut self, initiator: NodeId) -> bool {
        let mut any = false;
        for (call, resent) in &mut self.calls {
            if call.initiator == initiator {
                any |= resent.outcome.is_none();
                resent.outcome.get_or_insert(Verdict::InitiatorGone);
            }
        }
        any
    }

    /// Nothing happens any more: all calls must have ended, and where nothing went wrong none of them may have failed.
    pub(crate) fn at_rest(&mut self, now: Duration, plan: &Plan) {
        let calm = plan.is_calm() && plan.nodes.iter().all(NodePlan::is_roomy);
        let failed = |(call, resent): (&CallId, &ResentCall)| {
            let failed = resent.outcome == Some(Verdict::Failed) && !resent.stuck;
            (failed && calm).then_some(*call)
        };
        let failed: Vec<_> = self.calls.iter().filter_map(failed).collect();
        for call in failed {
            self.violate(now, Rule::FalseFailure, call.to_string());
        }
        let open =
            |(call, resent): (&CallId, &ResentCall)| resent.outcome.is_none().then_some(*call);
        let open: Vec<_> = self.calls.iter().filter_map(open).collect();
        for call in open {
            self.violate(now, Rule::NeverEnded, call.to_string());
        }
    }

    pub(crate) fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.violations)
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Verdict> {
        self.calls.values().filter_map(|resent| resent.outcome)
    }

    fn violate(&mut self, at: Duration, rule: Rule, what: String) {
        self.violations.push(Violation { at, rule, what });
    }
}

impl ResentCall {
    /// Whether its executions may contradict each other.
    fn differs(&self) -> bool {
        self.times > 0 && self.statuses
    }
}
