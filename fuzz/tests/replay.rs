//! Every input of the corpus, and what comes of it when it is cut short, through its target.

use std::fs;
use std::path::PathBuf;

use wallaby_fuzz::TARGETS;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let entries = fs::read_dir(&folder).expect("every target has a corpus");
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a readable folder").path();
            let bytes = fs::read(&path).expect("a readable file");
            (path, bytes)
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn the_corpus_is_replayed() {
    for target in TARGETS {
        let inputs = corpus(target.name);
        assert!(
            inputs.len() >= 10,
            "{}: {} inputs",
            target.name,
            inputs.len()
        );
        for (path, bytes) in inputs {
            println!("{}", path.display());
            (target.run)(&bytes);
            (target.run)(&bytes[..bytes.len() / 2]);
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in fs::read_dir(folder).expect("a corpus") {
        let name = entry.expect("a readable folder").file_name();
        assert!(
            TARGETS.iter().any(|target| *target.name == *name),
            "{name:?}"
        );
    }
}
