//! Stores whose files are not as they were written: what a crash leaves is whole, all else is told.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::{network, store};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use wallaby_graph::fact::Fact;
use wallaby_graph::facts::Damage;
use wallaby_graph::model::Insert;
use wallaby_graph::placement::{Seat, partition};
use wallaby_graph::store::Store;

/// One partition of a small store: some facts were loaded, some inserted.
struct Sample {
    scratch: TempDir,
    store: Store,
    seat: Seat,
    file: PathBuf,
    /// When its server had closed it.
    bytes: Vec<u8>,
    /// As a server leaves it that is killed.
    killed: Vec<u8>,
    facts: Vec<Fact>,
}

impl Sample {
    fn new() -> Self {
        let inserts = network(12, 31);
        let (loaded, inserted) = inserts.split_at(inserts.len() / 2);
        let facts = |of: &[Insert], number: u32| -> Vec<Fact> {
            let facts = of.iter().cloned().flat_map(Insert::facts);
            let here = |fact: &Fact| partition(fact.vertex()) == number;
            facts.filter(here).collect()
        };
        let is_message = |fact: &Fact| matches!(fact, Fact::Message(_));
        let both = |number: &u32| {
            let (loaded, inserted) = (facts(loaded, *number), facts(inserted, *number));
            loaded.len() >= 2 && inserted.len() >= 3 && inserted.iter().any(is_message)
        };
        let number = (0..256).find(both).unwrap();
        let (scratch, store) = store(loaded);
        let seat: Seat = format!("{}/256", number + 1).parse().unwrap();
        let mut part = store.open(seat).unwrap();
        for fact in facts(inserted, number) {
            part.learn(fact).unwrap();
        }
        let file = scratch.path().join(format!("{number:03}.redb"));
        let killed = fs::read(&file).unwrap();
        drop(part);
        Self {
            scratch,
            store,
            seat,
            bytes: fs::read(&file).unwrap(),
            killed,
            file,
            facts: facts(&inserts, number),
        }
    }

    /// Opens the store with these bytes in the file: whether it is damaged. If it is not, all facts are there.
    fn is_damaged(&self, bytes: &[u8]) -> bool {
        fs::write(&self.file, bytes).unwrap();
        match self.store.open(self.seat) {
            Ok(part) => {
                for fact in &self.facts {
                    assert_eq!(part.shard().is_new(fact), Ok(false), "{fact:?}");
                }
                false
            }
            Err(error) => {
                let damage = error.downcast::<Damage>().unwrap();
                assert_eq!(damage.file, self.file);
                let said = damage.to_string();
                assert!(said.contains("load the graph again"), "{said}");
                true
            }
        }
    }
}

#[test]
fn a_file_with_a_changed_byte_is_damaged_or_has_all_facts() {
    let sample = Sample::new();
    for whole in [&sample.bytes, &sample.killed] {
        assert!(!sample.is_damaged(whole));
        let mut damaged = 0;
        // The headers, and some of all else, of which most is empty.
        for at in (0..512).chain((512..whole.len()).step_by(127)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            damaged += usize::from(sample.is_damaged(&bytes));
        }
        assert!(damaged > 20, "{damaged}");
    }
}

#[test]
fn a_file_that_was_cut_is_damaged_or_has_all_facts() {
    let sample = Sample::new();
    for whole in [&sample.bytes, &sample.killed] {
        for length in (0..whole.len()).step_by(509) {
            sample.is_damaged(&whole[..length]);
        }
        assert!(sample.is_damaged(&[]));
        assert!(sample.is_damaged(&whole[..5000]));
    }
}

#[test]
fn a_changed_fact_is_damage() {
    let sample = Sample::new();
    let gone = sample.facts.iter().find_map(|fact| match fact {
        Fact::Message(message) => Some(message.content.clone()),
        _ => None,
    });
    let gone = gone.unwrap();
    let length = gone.len();
    let places = sample.bytes.windows(length);
    let is_there = |(at, window): (usize, &[u8])| (window == gone.as_bytes()).then_some(at);
    let mut bytes = sample.bytes.clone();
    for at in places.enumerate().filter_map(is_there) {
        bytes[at] ^= 1;
    }
    assert!(sample.is_damaged(&bytes));
}

#[test]
fn a_file_of_another_partition_or_an_older_one_or_none_is_damage() {
    let sample = Sample::new();
    let folder = sample.scratch.path();
    let other = fs::read(folder.join("255.redb")).unwrap();
    assert!(sample.is_damaged(&other));
    let (empty, _) = store(&[]);
    let name = sample.file.file_name().unwrap();
    let empty = fs::read(empty.path().join(name)).unwrap();
    assert!(sample.is_damaged(&empty));
    fs::remove_file(&sample.file).unwrap();
    let said = sample.store.open(sample.seat).unwrap_err().to_string();
    assert!(said.contains("is damaged: there is no such file"), "{said}");
    assert!(!sample.file.exists());
}

#[test]
fn a_page_that_is_none_is_told_and_one_of_another_version_too() {
    let (scratch, _) = store(&network(5, 33));
    let page = scratch.path().join("graph.json");
    let bytes = fs::read(&page).unwrap();
    for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&page, &bytes[..length]).unwrap();
        let error = format!("{:#}", Store::find(scratch.path()).unwrap_err());
        assert!(error.contains("graph.json is no use: "), "{error}");
        assert!(error.contains("wallaby-graph load --replace"), "{error}");
    }
    fs::write(&page, r#"{"version":1,"partitions":256,"source":""}"#).unwrap();
    let error = format!("{:#}", Store::find(scratch.path()).unwrap_err());
    assert!(error.contains("version 1, expected 3"), "{error}");
}
