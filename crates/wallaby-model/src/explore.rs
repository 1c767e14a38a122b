//! Runs an exploration and tells what was found.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, DiscoveryClassification, HasDiscoveries, Model};

use crate::scope::Scope;
use crate::world::World;

/// What an exploration found.
#[derive(Debug, Clone)]
pub struct Explored {
    /// How many calls.
    pub trees: usize,
    /// Different states of the whole.
    pub states: usize,
    /// States reached, the same ones included.
    pub steps: usize,
    /// The longest way to a state.
    pub depth: usize,
    /// States of single endpoints, and inputs that were run on them.
    pub endpoints: (usize, usize),
    /// How long it took.
    pub time: Duration,
    /// What does not hold: the property, and a run that shows it.
    pub violations: Vec<(&'static str, String)>,
    /// What should have happened in some run, and happened in none.
    pub missing: Vec<&'static str>,
}

/// Explores all runs of a scope, up to the first violation.
pub fn explore(scope: Scope) -> Explored {
    let start = Instant::now();
    let trees = scope.trees.len();
    let checker = World::new(scope)
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let mut violations = Vec::new();
    let mut missing = Vec::new();
    let discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match (checker.discovery_classification(property.name), found) {
            (DiscoveryClassification::Counterexample, Some(path)) => {
                let run = path.clone().into_vec();
                violations.push((property.name, checker.model().tell(run)));
            }
            (DiscoveryClassification::Example, None) => missing.push(property.name),
            _ => {}
        }
    }
    Explored {
        trees,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        endpoints: checker.model().endpoint_states(),
        time: start.elapsed(),
        violations,
        missing,
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trees,
            states,
            steps,
            depth,
            endpoints,
            time,
            ..
        } = self;
        write!(
            f,
            "{trees} trees: {states} states, {steps} steps, depth {depth}, {:.1} s ({} states of endpoints, {} inputs)",
            time.as_secs_f64(),
            endpoints.0,
            endpoints.1
        )?;
        self.missing
            .iter()
            .try_for_each(|missing| write!(f, "; never: {missing}"))
    }
}
