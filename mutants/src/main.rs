//! Tests all mutants of wallaby-proto that cargo-mutants lists, from one build.
//!
//! | module | what it does |
//! |---|---|
//! | `mutant` | what cargo-mutants would change |
//! | `instrument` | writes all changes into the sources, each behind a switch |
//! | `tree` | compiles them, and leaves out what does not compile |
//! | `run` | runs on each mutant the tests that reach it |
//! | `results` | what became of them |
//!
//! `scripts/mutants.sh` prepares what this needs; docs/mutants.md says what is found.

mod instrument;
mod mutant;
mod results;
mod run;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};

use crate::mutant::Mutant;
use crate::results::{Outcome, Results};
use crate::run::Test;
use crate::tree::{Built, Tree};

const USAGE: &str = "\
wallaby-mutants run ROOT TREE RESULT JOBS [BEFORE]
    tests the mutants of ROOT that RESULT does not have, in its copy TREE; of BEFORE, a result, only what survived
wallaby-mutants alone ROOT TREE RESULT
    compiles those that need it one at a time
wallaby-mutants summary RESULT
    counts, and lists what survived or was not run";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", root, tree, result, jobs, ref before @ ..] => {
            let before = before.first().map(Path::new);
            run(
                &Tree::new(root, tree),
                Path::new(result),
                jobs.parse()?,
                before,
            )
        }
        ["alone", root, tree, result] => alone(&Tree::new(root, tree), Path::new(result)),
        ["summary", result] => summary(Path::new(result)),
        _ => bail!("{USAGE}"),
    }
}

fn summary(result: &Path) -> Result<()> {
    let known = results::read(result)?;
    let open = known
        .iter()
        .filter(|(_, outcome)| outcome.survives() || outcome.is_alone());
    for (name, outcome) in open {
        println!("{name}\t{outcome}");
    }
    eprint!("{}", results::summary(&known));
    Ok(())
}

fn run(tree: &Tree, result: &Path, jobs: usize, before: Option<&Path>) -> Result<()> {
    let mut mutants = tree.mutants()?;
    if let Some(before) = before {
        let before = results::read(before)?;
        let survived = before.iter().filter(|(_, outcome)| outcome.survives());
        let survived: BTreeSet<String> = survived.map(|(name, _)| lineless(name)).collect();
        mutants.retain(|mutant| survived.contains(&lineless(&mutant.name)));
    }
    let results = Results::open(result)?;
    let built = tree.build(&mutants, &results)?;
    for (number, mutant) in mutants.iter().enumerate() {
        if results.before(&mutant.name).is_none()
            && let Some(why) = built.left_out(number)
        {
            results.add(&mutant.name, why, "")?;
        }
    }
    let tests = run::tests(&tree.package(), &built.programs)?;
    eprintln!(
        "mutants: {} with a switch, {} tests",
        built.placed.len(),
        tests.len()
    );
    test(
        tree,
        &mutants,
        &wanted(&mutants, &built, &results),
        &tests,
        jobs,
        &results,
    )
}

/// A mutant's name without its line and column, which move when something else is changed.
fn lineless(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    let file = parts.next().unwrap_or_default();
    format!("{file}:{}", parts.nth(2).unwrap_or_default())
}

/// Which have not been tested yet, in an order that makes a sample of what has been run at any time.
fn wanted(mutants: &[Mutant], built: &Built, results: &Results) -> Vec<usize> {
    let all = built.placed.iter().copied();
    let mut wanted: Vec<usize> = all
        .filter(|number| results.before(&mutants[*number].name).is_none())
        .collect();
    wanted.sort_by_key(|number| (number % 64 * 27 % 64, *number));
    wanted
}

fn test(
    tree: &Tree,
    mutants: &[Mutant],
    wanted: &[usize],
    tests: &[Test],
    jobs: usize,
    results: &Results,
) -> Result<()> {
    let mut reaching: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        for number in &test.reached {
            reaching.entry(*number).or_default().push(test);
        }
    }
    let folder = tree.package();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(number) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let tests = reaching.get(number).map_or(&[][..], |tests| tests);
            let (outcome, test) = run::run(&folder, *number, tests)?;
            results.add(&mutants[*number].name, outcome, &test)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn alone(tree: &Tree, result: &Path) -> Result<()> {
    let results = Results::open(result)?;
    for mutant in tree.mutants()? {
        if !results.before(&mutant.name).is_some_and(Outcome::is_alone) {
            continue;
        }
        let (outcome, test) = match tree.alone(&mutant)? {
            Some(programs) => run::run_all(&tree.package(), &programs)?,
            None => (Outcome::Refused, String::new()),
        };
        results.add(&mutant.name, outcome, &test)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_known_again_on_another_line() {
        let names = [
            "a/b.rs:1:22: replace + with - in C::d",
            "a/b.rs:3:5: replace + with - in C::d",
        ];
        assert_eq!(lineless(names[0]), lineless(names[1]));
        assert_eq!(lineless(names[0]), "a/b.rs: replace + with - in C::d");
    }
}
