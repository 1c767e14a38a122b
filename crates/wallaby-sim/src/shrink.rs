//! A plan that fails, made small: fewer calls, faults and nodes, smaller trees, simpler links.

use std::time::Duration;

use crate::oracle::Rule;
use crate::plan::{Fault, Plan, ROOMY, Reach};
use crate::world::{Options, run};

/// Most worlds that are tried.
const TRIES: usize = 1500;

/// A plan found by [`shrink`].
#[derive(Debug, Clone, PartialEq)]
pub struct Shrunk {
    /// The plan.
    pub plan: Plan,
    /// How many worlds were tried to find it.
    pub tries: usize,
}

/// The smallest plan found that still breaks the rule that `plan` breaks first; `None` if it breaks none.
pub fn shrink(plan: &Plan, options: Options) -> Option<Shrunk> {
    let options = Options {
        log: false,
        ..options
    };
    let rule = broken_rule(plan, options)?;
    let mut search = Search {
        plan: plan.clone(),
        options,
        rule,
        tries: 1,
    };
    while search.pass() {}
    Some(Shrunk {
        plan: search.plan,
        tries: search.tries,
    })
}

fn broken_rule(plan: &Plan, options: Options) -> Option<Rule> {
    run(plan, options)
        .violations
        .first()
        .map(|violation| violation.rule)
}

struct Search {
    plan: Plan,
    options: Options,
    rule: Rule,
    tries: usize,
}

impl Search {
    /// Tries each simplification once, the coarse ones first; whether any was kept.
    fn pass(&mut self) -> bool {
        let mut smaller = false;
        smaller |= self.each(
            |plan| plan.calls.len(),
            |plan, index| {
                plan.calls.remove(index);
            },
        );
        smaller |= self.each(
            |plan| plan.faults.len(),
            |plan, index| {
                plan.faults.remove(index);
            },
        );
        for call in (0..self.plan.calls.len()).rev() {
            smaller |= self.each(
                |plan| {
                    plan.calls
                        .get(call)
                        .map_or(0, |call| call.roots.len().saturating_sub(1))
                },
                |plan, index| {
                    plan.calls[call].roots.remove(index);
                },
            );
            smaller |= self.trees(call);
            smaller |= self.attempt(|plan| plan.calls[call].abort = None);
            smaller |= self.attempt(|plan| plan.calls[call].stall = None);
            smaller |= self.attempt(|plan| plan.calls[call].resends = 0);
            smaller |= self.attempt(|plan| plan.calls[call].tolerant = false);
            smaller |= self.attempt(|plan| plan.calls[call].heartbeats = false);
            smaller |= self.attempt(|plan| plan.calls[call].appetite = Duration::ZERO);
            smaller |= self.attempt(|plan| plan.calls[call].at = Duration::ZERO);
        }
        for node in 0..self.plan.nodes.len() {
            smaller |= self.attempt(|plan| plan.nodes[node].drift = 0);
            smaller |= self.attempt(|plan| plan.nodes[node].narrow = false);
            smaller |= self.attempt(|plan| plan.nodes[node].tardy = false);
            smaller |= self.attempt(|plan| plan.nodes[node].tokio = false);
            smaller |= self.attempt(|plan| plan.nodes[node].intercepted = false);
            smaller |= self.attempt(|plan| plan.nodes[node].udp = false);
            smaller |= self.attempt(|plan| plan.nodes[node].requests = ROOMY);
            smaller |= self.attempt(|plan| plan.nodes[node].places = None);
            smaller |= self.attempt(|plan| plan.nodes[node].reach = Reach::Open);
        }
        smaller |= self.nodes();
        smaller |= self.attempt(|plan| plan.links.spikes = 0);
        smaller |= self.attempt(|plan| plan.links.pieces = 0);
        smaller |= self.attempt(|plan| plan.links.loss = 0);
        smaller |= self.attempt(|plan| plan.links.duplication = 0);
        smaller |= self.attempt(|plan| plan.links.corruption = 0);
        smaller |= self.attempt(|plan| plan.links.echoes = 0);
        smaller |= self.attempt(|plan| plan.links.jitter = Duration::ZERO);
        smaller |= self.attempt(|plan| plan.links.bandwidth = 1 << 30);
        smaller |= self.attempt(|plan| plan.links.buffer = 1 << 20);
        smaller
    }

    /// Removes items one by one, from the last on.
    fn each(&mut self, count: impl Fn(&Plan) -> usize, remove: impl Fn(&mut Plan, usize)) -> bool {
        let mut smaller = false;
        for index in (0..count(&self.plan)).rev() {
            smaller |= self.attempt(|plan| remove(plan, index));
        }
        smaller
    }

    /// Simplifies the trees of a call.
    fn trees(&mut self, call: usize) -> bool {
        let mut smaller = false;
        for root in 0..self.plan.calls[call].roots.len() {
            let mut index = 0;
            loop {
                let mut plan = self.plan.clone();
                if plan.calls[call].roots[root].simplify(index).is_some() {
                    break;
                }
                match self.is_kept(plan) {
                    true => smaller = true,
                    false => index += 1,
                }
            }
        }
        smaller
    }

    /// Removes nodes that nothing names; the last ones first, since others are named by their place.
    fn nodes(&mut self) -> bool {
        let mut smaller = false;
        while self.plan.nodes.len() > 1 {
            let last = 1 << (self.plan.nodes.len() - 1);
            let calls = self.plan.calls.iter();
            let mut named = calls.flat_map(|call| {
                let initiator = 1 << call.initiator;
                call.roots
                    .iter()
                    .map(move |root| initiator | root.servers())
            });
            let crashes = |fault: &Fault| {
                !matches!(fault, Fault::Partition { .. }) && fault.nodes() & last != 0
            };
            if named.any(|nodes| nodes & last != 0) || self.plan.faults.iter().any(crashes) {
                return smaller;
            }
            if !self.attempt(|plan| plan.nodes.truncate(plan.nodes.len() - 1)) {
                return smaller;
            }
            smaller = true;
        }
        smaller
    }

    /// Keeps a simpler plan if it breaks the same rule.
    fn attempt(&mut self, simplify: impl FnOnce(&mut Plan)) -> bool {
        let mut plan = self.plan.clone();
        simplify(&mut plan);
        plan != self.plan && self.is_kept(plan)
    }

    fn is_kept(&mut self, plan: Plan) -> bool {
        if self.tries >= TRIES {
            return false;
        }
        self.tries += 1;
        let breaks = broken_rule(&plan, self.options) == Some(self.rule);
        if breaks {
            self.plan = plan;
        }
        breaks
    }
}
