//! Every input of the corpus through its target, also cut short, and inputs that a fixed seed makes of them and of nothing.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use wallaby_fuzz::TARGETS;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(corpora().join(target)).expect("every target has a corpus");
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a readable folder").path();
            let bytes = fs::read(&path).expect("a readable file");
            (path, bytes)
        })
        .collect();
    inputs.sort();
    let seeds = wallaby_fuzz::seeds(target).expect("the golden vectors");
    inputs.extend(seeds.into_iter().map(|(name, bytes)| (name.into(), bytes)));
    inputs
}

/// Else nothing would be left of it if the vectors were written otherwise.
#[test]
fn the_golden_vectors_are_inputs() {
    for (target, least) in [("frames", 50), ("message", 40), ("status", 0)] {
        let seeds = wallaby_fuzz::seeds(target).expect("the golden vectors");
        assert!(seeds.len() >= least, "{target}: {}", seeds.len());
    }
    let seeds = wallaby_fuzz::seeds("message").expect("the golden vectors");
    let is_one =
        |(name, bytes): &(String, Vec<u8>)| name == "request-direct" && bytes.ends_with(b"hop");
    assert!(seeds.iter().any(is_one), "{seeds:?}");
}

#[test]
fn the_corpus_is_replayed() {
    for target in TARGETS {
        for (path, bytes) in corpus(target.name) {
            println!("{}", path.display());
            (target.run)(&bytes);
            (target.run)(&bytes[..bytes.len() / 2]);
        }
    }
}

#[test]
fn what_a_seed_makes_is_run() {
    for target in TARGETS {
        let mut runner = TestRunner::new(Config {
            cases: MADE,
            rng_seed: RngSeed::Fixed(1),
            failure_persistence: None,
            ..Config::default()
        });
        let named = corpus(target.name).into_iter().map(|(_, bytes)| bytes);
        let inputs = prop_oneof![near(named.collect()), vec(any::<u8>(), 0..LONGEST)];
        let run = runner.run(&inputs, |bytes| {
            (target.run)(&bytes);
            Ok(())
        });
        if let Err(error) = run {
            panic!("{}: {error}", target.name);
        }
    }
}

/// One of these inputs, but for a few places: there stand other bytes, or what another one has somewhere.
fn near(named: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let piece = (select(named.clone()), any::<Index>()).prop_map(|(other, from)| {
        let from = from.index(other.len() + 1);
        other[from..].to_vec()
    });
    let added = prop_oneof![vec(any::<u8>(), 0..8), piece];
    let edit = (any::<Index>(), 0..4_usize, added);
    (select(named), vec(edit, 1..8)).prop_map(|(mut bytes, edits)| {
        for (place, removed, added) in edits {
            let from = place.index(bytes.len() + 1);
            let to = bytes.len().min(from + removed);
            bytes.splice(from..to, added);
        }
        bytes
    })
}

/// Inputs for each target.
const MADE: u32 = 1_000;
const LONGEST: usize = 600;

#[test]
fn every_corpus_has_a_target() {
    for entry in fs::read_dir(corpora()).expect("a corpus") {
        let name = entry.expect("a readable folder").file_name();
        assert!(
            TARGETS.iter().any(|target| *target.name == *name),
            "{name:?}"
        );
    }
}
