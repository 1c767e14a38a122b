//! Stores whose files are not as they were written: what a crash leaves is cut off, all else is told.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod common;

use common::{network, store};
use std::fs;
use std::path::PathBuf;
use wallaby_graph::fact::Fact;
use wallaby_graph::log::{Damage, Extent, Unfinished};
use wallaby_graph::model::Insert;
use wallaby_graph::placement::{Seat, partition};
use wallaby_graph::scratch::Scratch;
use wallaby_graph::store::{Part, Store};

/// One partition of a small store: some facts were loaded, some inserted.
struct Sample {
    _scratch: Scratch,
    store: Store,
    seat: Seat,
    file: PathBuf,
    bytes: Vec<u8>,
    facts: Vec<Fact>,
    /// Where the beginning and each fact end.
    ends: Vec<usize>,
    /// How many of the ends were loaded.
    loaded: usize,
}

impl Sample {
    fn new() -> Self {
        let inserts = network(12, 31);
        let (loaded, inserted) = inserts.split_at(inserts.len() / 2);
        let here = |insert: &Insert, number| {
            let facts = insert.clone().facts().into_iter();
            facts.filter(move |fact| partition(fact.vertex()) == number)
        };
        let facts = |of: &[Insert], number| -> Vec<Fact> {
            of.iter().flat_map(|insert| here(insert, number)).collect()
        };
        // One that has both, and whose every byte is soon tried.
        let both =
            |number: &u32| facts(loaded, *number).len() >= 2 && facts(inserted, *number).len() >= 3;
        let length = |number: &u32| ends(*number, &facts(loaded, *number)).pop();
        let number = (0..256).filter(both).min_by_key(length).unwrap();
        let (scratch, store) = store(loaded);
        let seat: Seat = format!("{}/256", number + 1).parse().unwrap();
        let mut part = store.open(seat).unwrap();
        let inserted = facts(inserted, number);
        for fact in &inserted {
            part.learn(fact.clone()).unwrap();
        }
        drop(part);
        let facts = [facts(loaded, number), inserted.clone()].concat();
        let file = scratch.path().join(format!("{number:03}.log"));
        let mut sample = Self {
            _scratch: scratch,
            store,
            seat,
            bytes: fs::read(&file).unwrap(),
            file,
            ends: ends(number, &facts),
            loaded: 1 + facts.len() - inserted.len(),
            facts,
        };
        sample.forget_after(2);
        sample
    }

    /// Leaves so many of the facts that were inserted: a file of which every byte can be tried.
    fn forget_after(&mut self, inserted: usize) {
        let left = (self.loaded + inserted).min(self.ends.len());
        self.ends.truncate(left);
        self.facts.truncate(left - 1);
        self.bytes.truncate(self.ends[left - 1]);
    }

    fn loaded_bytes(&self) -> usize {
        self.ends[self.loaded - 1]
    }

    /// Opens the store with these bytes in the file; what is in it then must be as many facts as the result says.
    fn open(&self, bytes: &[u8]) -> Result<(usize, Vec<Unfinished>), Damage> {
        fs::write(&self.file, bytes).unwrap();
        let part = match self.store.open(self.seat) {
            Ok(part) => part,
            Err(error) => {
                assert_eq!(fs::read(&self.file).unwrap(), bytes, "damage stays");
                return Err(error.downcast().unwrap());
            }
        };
        let known = |fact: &&Fact| part.shard().is_new(fact) == Ok(false);
        let facts = self.facts.iter().take_while(known).count();
        assert!(!self.facts[facts..].iter().any(|fact| known(&fact)));
        let left = fs::read(&self.file).unwrap();
        assert_eq!(left, self.bytes[..self.ends[facts]]);
        Ok((facts, part.unfinished().to_vec()))
    }
}

/// Where the beginning of a file and each of its facts end.
fn ends(partition: u32, facts: &[Fact]) -> Vec<usize> {
    let (_, mut extent) = Extent::begin(partition);
    let mut ends = vec![extent.length as usize];
    for fact in facts {
        extent = extent.append(fact).unwrap().1;
        ends.push(extent.length as usize);
    }
    ends
}

#[test]
fn a_file_cut_anywhere_loses_nothing_but_an_insert_that_was_being_written() {
    let sample = Sample::new();
    for length in 0..=sample.bytes.len() {
        let opened = sample.open(&sample.bytes[..length]);
        if length < sample.loaded_bytes() {
            let damage = opened.unwrap_err();
            assert_eq!(damage.file, sample.file);
            assert_eq!(damage.offset, length as u64);
            let said = damage.to_string();
            assert!(said.contains("load the graph again"), "{said}");
            assert!(!said.contains("truncate"), "{said}");
            continue;
        }
        let (facts, unfinished) = opened.unwrap();
        let end = sample.ends[facts];
        assert!(sample.ends.get(facts + 1).is_none_or(|next| *next > length));
        let expected = (end < length).then(|| Unfinished {
            file: sample.file.clone(),
            end: end as u64,
            bytes: (length - end) as u64,
        });
        assert_eq!(unfinished, Vec::from_iter(expected), "{length} bytes");
    }
}

#[test]
fn what_is_inserted_after_a_cut_is_kept() {
    let sample = Sample::new();
    let last = sample.facts.last().unwrap();
    fs::write(&sample.file, &sample.bytes[..sample.bytes.len() - 1]).unwrap();
    let mut part: Part = sample.store.open(sample.seat).unwrap();
    assert_eq!(part.unfinished().len(), 1);
    part.learn(last.clone()).unwrap();
    drop(part);
    let (facts, unfinished) = sample.open(&sample.bytes).unwrap();
    assert_eq!((facts, unfinished), (sample.facts.len(), Vec::new()));
}

#[test]
fn every_bit_that_changed_is_damage() {
    let sample = Sample::new();
    for at in 0..sample.bytes.len() {
        for bit in 0..8 {
            let mut bytes = sample.bytes.clone();
            bytes[at] ^= 1 << bit;
            let damage = sample.open(&bytes).unwrap_err();
            assert_eq!(damage.file, sample.file);
            // It is found in the record that it is in.
            let end = sample.ends.iter().find(|end| **end > at).unwrap();
            assert!(damage.offset as usize <= at && at < *end, "{damage}");
            let inserted = at >= sample.loaded_bytes();
            assert_eq!(damage.to_string().contains("truncate"), inserted);
        }
    }
}

#[test]
fn a_changed_bit_is_found_though_the_end_is_missing_too() {
    let sample = Sample::new();
    let last = sample.ends[sample.ends.len() - 2];
    let header = 8;
    for at in 0..last + header {
        let mut bytes = sample.bytes[..sample.bytes.len() - 1].to_vec();
        bytes[at] ^= 0x10;
        assert!(sample.open(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn what_a_truncate_gives_up_is_what_was_inserted_later() {
    let sample = Sample::new();
    for lost in sample.loaded - 1..sample.facts.len() {
        let mut bytes = sample.bytes.clone();
        bytes[sample.ends[lost]] ^= 1;
        let damage = sample.open(&bytes).unwrap_err();
        assert_eq!(damage.offset as usize, sample.ends[lost]);
        bytes.truncate(damage.offset as usize);
        assert_eq!(sample.open(&bytes), Ok((lost, Vec::new())));
    }
}

#[test]
fn facts_that_are_gone_doubled_or_exchanged_are_damage() {
    let sample = Sample::new();
    let record = |number: usize| &sample.bytes[sample.ends[number]..sample.ends[number + 1]];
    let before = |number: usize| &sample.bytes[..sample.ends[number]];
    let after = |number: usize| &sample.bytes[sample.ends[number]..];
    for number in 0..sample.facts.len() - 1 {
        let gone = [before(number), after(number + 1)].concat();
        let doubled = [before(number + 1), after(number)].concat();
        let exchanged = [
            before(number),
            record(number + 1),
            record(number),
            after(number + 2),
        ];
        for bytes in [gone, doubled, exchanged.concat()] {
            assert!(sample.open(&bytes).is_err(), "fact {number}");
        }
    }
}

#[test]
fn a_file_of_another_partition_or_graph_or_none_is_damage() {
    let sample = Sample::new();
    let (_other, store) = store(&network(100, 32));
    let name = sample.file.file_name().unwrap();
    let other = fs::read(store.folder().join(name)).unwrap();
    assert!(other.len() > sample.loaded_bytes());
    let said = sample.open(&other).unwrap_err().to_string();
    assert!(said.contains("bytes of facts with the checksum"), "{said}");
    let next = sample.store.folder().join("255.log");
    let damage = sample.open(&fs::read(next).unwrap()).unwrap_err();
    assert_eq!(damage.offset, 8, "{damage}");
    let mut old = sample.bytes.clone();
    old[7] = b'1';
    let said = sample.open(&old).unwrap_err().to_string();
    assert!(said.contains("at byte 7: expected the byte 0x32"), "{said}");
    fs::remove_file(&sample.file).unwrap();
    let said = sample.store.open(sample.seat).unwrap_err().to_string();
    assert!(said.contains("found no such file"), "{said}");
    assert!(!sample.file.exists());
}

#[test]
fn a_page_that_changed_is_told_and_one_of_another_version_too() {
    let (scratch, _) = store(&network(5, 33));
    let page = scratch.path().join("graph.json");
    let bytes = fs::read(&page).unwrap();
    // All that is not one of many lengths and checksums, and some of these.
    for at in (0..250).chain((250..bytes.len()).step_by(37)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&page, damaged).unwrap();
        let error = format!("{:#}", Store::find(scratch.path()).unwrap_err());
        assert!(error.contains("graph.json is no use: it "), "{error}");
        assert!(error.contains("wallaby-graph load --replace"), "{error}");
    }
    fs::write(&page, r#"{"version":1,"partitions":256,"source":""}"#).unwrap();
    let error = format!("{:#}", Store::find(scratch.path()).unwrap_err());
    assert!(error.contains("version 1, expected 2"), "{error}");
}
