//! What is counted of a call's branches once one of them is lost: so that no further loss looks at all of them again.

use std::collections::HashMap;

use crate::call::branches::Branch;
use crate::id::{Path, PathHasher, Token};

/// Counts of a call's branches, and those of which nobody says that they exist but that they came of another one.
#[derive(Debug)]
pub(super) struct BranchCounts {
    counts: Counts,
    /// What was counted of each branch, by position.
    counted: Vec<Counted>,
    /// Positions of branches that were not expected when they were counted first, by the place of their parent.
    orphans: HashMap<Path, Vec<u32>, PathHasher>,
}

/// How many branches there are of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Nothing of them is waited for.
    pub(super) settled: u32,
    /// Their facts are known.
    pub(super) ended: u32,
    /// Some branch is known to have led to another one, or to have gone on elsewhere.
    pub(super) went_on: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    settled: bool,
    ended: bool,
    /// It is among the orphans, or was.
    placed: bool,
}

impl BranchCounts {
    /// Nothing is counted yet.
    pub(super) fn new(token: Token) -> Self {
        Self {
            counts: Counts::default(),
            counted: Vec::new(),
            orphans: HashMap::with_hasher(PathHasher(token)),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// A branch is there, or has changed. `parent` is the place of the one that has it as a child, as far as known.
    pub(super) fn count(&mut self, position: u32, branch: &Branch, parent: Option<Path>) {
        let place = position as usize;
        if place >= self.counted.len() {
            self.counted.resize(place + 1, Counted::default());
        }
        if let (false, Some(parent)) = (branch.expected, parent) {
            self.note_orphan(place, parent);
        }
        let before = self.counted[place];
        let now = Counted {
            settled: branch.is_settled(),
            ended: branch.facts.is_some(),
            ..before
        };
        self.counted[place] = now;
        let counts = &mut self.counts;
        counts.settled = counts.settled + u32::from(now.settled) - u32::from(before.settled);
        counts.ended = counts.ended + u32::from(now.ended) - u32::from(before.ended);
        counts.went_on |= branch.parent.is_some()
            || branch.hop > 0
            || branch.facts.is_some_and(|facts| facts.requests > 0);
    }

    /// Who has a branch as a child became known.
    pub(super) fn note_parent(&mut self, position: u32, parent: Path) {
        self.counts.went_on = true;
        // One that was not counted yet will be with its parent.
        if (position as usize) < self.counted.len() {
            self.note_orphan(position as usize, parent);
        }
    }

    /// Those that were not expected and came of the branch at this place; some may be by now. They are forgotten.
    pub(super) fn take_orphans(&mut self, parent: &Path) -> Vec<u32> {
        self.orphans.remove(parent).unwrap_or_default()
    }

    fn note_orphan(&mut self, place: usize, parent: Path) {
        if !std::mem::replace(&mut self.counted[place].placed, true) {
            self.orphans.entry(parent).or_default().push(place as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::call::chance::Random;
    use crate::call::initiator::Initiator;
    use crate::id::{CallId, NodeId, RequestId};
    use crate::manifest::Facts;
    use crate::wire::{Budgets, End, Response};

    fn call() -> CallId {
        CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence: 1,
        }
    }

    fn response(path: Path, hop: u32, index: u32) -> Response {
        Response {
            call: call(),
            distance: 0,
            request: RequestId { path, hop },
            token: None,
            index,
            last: false,
            manifest: None,
            status: false,
            compressed: false,
            options: None,
            payload: Bytes::new(),
        }
    }

    /// Looks at all branches.
    fn counted(initiator: &Initiator) -> Counts {
        let branches = || (0..initiator.branch_count()).filter_map(|at| initiator.branch_at(at));
        Counts {
            settled: branches().filter(|branch| branch.is_settled()).count() as u32,
            ended: branches().filter(|branch| branch.facts.is_some()).count() as u32,
            went_on: branches().any(|branch| {
                branch.parent.is_some()
                    || branch.hop > 0
                    || branch.facts.is_some_and(|facts| facts.requests > 0)
            }),
        }
    }

    /// What was heard of that a lost branch led to is expected, whoever said so and when.
    fn lose(initiator: &mut Initiator, position: u32) {
        let again = initiator.branch_at(position).is_some_and(|at| at.lost);
        let complete = initiator.is_complete();
        initiator.give_up(position).expect("within the budget");
        for child in 0..initiator.branch_count() {
            let below = initiator.parent_of(child) == Some(position);
            let expected = initiator.branch_at(child).is_some_and(|at| at.expected);
            assert!(again || complete || !below || expected, "{child}");
        }
    }

    /// Trees that are wider and deeper than paths can say, of which parts arrive in any order, and parts are lost.
    #[test]
    fn counts_are_those_of_who_looks_at_all_branches() {
        for seed in 0..300 {
            let mut random = Random(seed);
            let token = Token::new(5);
            let mut initiator = Initiator::new(call(), token, Budgets::default());
            let root = initiator.send().expect("within the budget").path;
            initiator.close();
            initiator.note_changes();
            let mut paths = vec![root];
            for _ in 0..60 {
                let parent = paths[paths.len() - 1 - random.index(3.min(paths.len()))];
                paths.push(parent.child(random.below(2) as u32, call(), token));
            }
            for _ in 0..200 {
                let path = paths[random.index(paths.len())];
                let known = initiator.find(&path);
                let number = random.below(2) as u32;
                match (random.below(6), known) {
                    (0, _) => {
                        let hop = u32::from(random.below(20) == 0);
                        let _ = initiator.handle_response(&response(path, hop, number));
                    }
                    (1, Some(_)) => drop(initiator.handle_end(&End {
                        call: call(),
                        distance: 0,
                        token: None,
                        request: RequestId { path, hop: 0 },
                        facts: Facts {
                            requests: random.below(3) as u32,
                            responses: 2,
                        },
                        manifest: None,
                        options: None,
                    })),
                    (2, Some(position)) => drop(initiator.discover(position, number)),
                    (3, Some(position)) => lose(&mut initiator, position),
                    (4, _) => drop(initiator.next_change()),
                    (5, Some(position)) if random.below(4) == 0 => initiator.forget_end(position),
                    _ => {}
                }
                if random.below(3) == 0 {
                    assert_eq!(initiator.counts(), counted(&initiator), "seed {seed}");
                }
            }
        }
    }
}
