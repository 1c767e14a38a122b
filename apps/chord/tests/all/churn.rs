//! Keys stay findable while nodes join, leave and crash: thousands of virtual rounds, watched by who knows all keys.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::census::problems;
use crate::world::World;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use wallaby_chord::id::RingId;
use wallaby_chord::message::Wish;
use wallaby_chord::node::{Config, Node};
use wallaby_chord::store::Key;

/// What clients know of a key.
#[derive(Default)]
struct Known {
    /// The value of the latest put that was acknowledged.
    latest: Option<u64>,
    /// Values of puts whose end is not known, or that ended without an acknowledgement: each may come to light.
    open: BTreeSet<u64>,
}

enum Asked {
    Get {
        key: usize,
        /// What it may find: what was there when it began, and what came since.
        allowed: BTreeSet<Option<u64>>,
    },
    Put {
        key: usize,
        value: u64,
    },
}

struct Watch {
    world: World,
    chance: Rng,
    keys: Vec<Known>,
    asked: BTreeMap<u64, Asked>,
    putting: BTreeSet<usize>,
    gets: u64,
    puts: u64,
    failed: u64,
    values: u64,
}

impl Watch {
    fn get(&mut self, key: usize) {
        let known = &self.keys[key];
        let mut allowed: BTreeSet<Option<u64>> = known.open.iter().copied().map(Some).collect();
        allowed.insert(known.latest);
        let name = Key::new(&format!("key {key}"));
        let number = self.world.search(name.id, Wish::Get(name));
        self.asked.insert(number, Asked::Get { key, allowed });
    }

    /// One put of a key at a time, so that it is known which one is the latest.
    fn put(&mut self, key: usize) {
        if !self.putting.insert(key) {
            return;
        }
        self.values += 1;
        let value = self.values;
        self.keys[key].open.insert(value);
        for asked in self.asked.values_mut() {
            if let Asked::Get {
                key: other,
                allowed,
            } = asked
                && *other == key
            {
                allowed.insert(Some(value));
            }
        }
        let name = Key::new(&format!("key {key}"));
        let wish = Wish::Put {
            key: name.clone(),
            value: value.to_le_bytes().to_vec(),
            put: self.chance.u64(..),
        };
        let number = self.world.search(name.id, wish);
        self.asked.insert(number, Asked::Put { key, value });
    }

    fn collect(&mut self) {
        for (number, result) in self.world.ended() {
            match (self.asked.remove(&number).unwrap(), result) {
                (Asked::Get { key, allowed }, Ok(found)) => {
                    self.gets += 1;
                    let value = found
                        .value
                        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
                    assert!(
                        allowed.contains(&value),
                        "key {key}: {value:?} in place of {allowed:?}, by {:?}",
                        found.owner
                    );
                }
                (Asked::Put { key, value }, Ok(_)) => {
                    self.puts += 1;
                    self.putting.remove(&key);
                    let known = &mut self.keys[key];
                    known.open.remove(&value);
                    known.latest = Some(value);
                }
                (Asked::Get { .. }, Err(_)) => self.failed += 1,
                (Asked::Put { key, .. }, Err(_)) => {
                    // It stays open, for ever: it may have been done in part.
                    self.failed += 1;
                    self.putting.remove(&key);
                }
            }
        }
    }

    fn load(&mut self) {
        for _ in 0..2 {
            let key = self.chance.usize(..self.keys.len());
            match self.chance.usize(..4) {
                0 => self.put(key),
                _ => self.get(key),
            }
        }
    }

    fn rounds(&mut self, rounds: u32) {
        for _ in 0..rounds {
            self.load();
            self.world.round();
            self.collect();
        }
    }

    /// Its copies are there: all that there should be, and none that was forgotten somewhere.
    fn check_copies(&self) {
        let ids = self.world.ids();
        for (number, known) in self.keys.iter().enumerate() {
            let Some(latest) = known.latest else {
                continue;
            };
            let key = Key::new(&format!("key {number}"));
            let entries = ids
                .iter()
                .filter_map(|id| self.world.node(*id)?.store().find(&key));
            let values: Vec<&[u8]> = entries.map(|entry| &entry.value[..]).collect();
            let is_right = |value: &&[u8]| *value == latest.to_le_bytes();
            let open = known.open.iter().any(|value| *value > latest);
            assert!(
                open || values.iter().all(is_right),
                "key {number}: an old copy"
            );
            let copies = values.len();
            assert!((4..=8).contains(&copies), "key {number}: {copies} copies");
        }
    }

    /// Every key is there, with its latest value.
    fn check_all(&mut self) {
        // What is under way may end.
        for _ in 0..100 {
            self.world.round();
            self.collect();
        }
        assert!(
            self.asked.is_empty(),
            "lookups never ended: {}",
            self.asked.len()
        );
        for key in 0..self.keys.len() {
            self.get(key);
        }
        let failed = self.failed;
        for _ in 0..100 {
            self.world.round();
            self.collect();
        }
        assert!(
            self.asked.is_empty(),
            "lookups never ended: {}",
            self.asked.len()
        );
        assert_eq!(
            self.failed, failed,
            "a key cannot be found though nothing moves"
        );
    }
}

fn serving(world: &World) -> Vec<RingId> {
    let ids = world.ids().into_iter();
    ids.filter(|id| world.node(*id).is_some_and(Node::is_serving))
        .collect()
}

/// Rounds until the ring is whole again and has compared its copies.
const REPAIR: u32 = 30;

fn churn(seed: u64, nodes: u64, rounds: u32) -> Watch {
    println!("seed {seed}");
    let config = Config::default();
    let most_in_row = config.replicas - 1;
    let mut watch = Watch {
        world: World::settled(seed, 6, nodes, config),
        chance: Rng::with_seed(!seed),
        keys: (0..100).map(|_| Known::default()).collect(),
        asked: BTreeMap::new(),
        putting: BTreeSet::new(),
        gets: 0,
        puts: 0,
        failed: 0,
        values: 0,
    };
    let mut number = nodes;
    let mut gone: Vec<RingId> = Vec::new();
    let (mut past, mut repaired) = (0, 0);
    watch.rounds(20);
    while past < rounds {
        let ids = serving(&watch.world);
        let lost = match watch.chance.usize(..8) {
            // Several crash in a row: as many as a key may lose.
            0 if ids.len() > nodes as usize / 2 && past >= repaired => {
                let start = watch.chance.usize(..ids.len());
                let row: Vec<RingId> = ids
                    .iter()
                    .cycle()
                    .skip(start)
                    .take(most_in_row)
                    .copied()
                    .collect();
                for id in &row {
                    watch.world.crash(*id);
                }
                gone.extend(row);
                true
            }
            1 if ids.len() > nodes as usize / 2 && past >= repaired => {
                let host = watch.world.hosts()[watch.chance.usize(..6)].clone();
                watch.world.kill(&host);
                true
            }
            // Several join at once, one of them perhaps where one was before.
            2 | 3 if ids.len() < 2 * nodes as usize => {
                for _ in 0..=watch.chance.usize(..4) {
                    number += 1;
                    let host = watch.chance.usize(..6);
                    watch.world.join(RingId::of_node(seed, number), host);
                }
                if let Some(id) = gone.pop().filter(|id| watch.world.node(*id).is_none()) {
                    let host = watch.chance.usize(..6);
                    watch.world.join(id, host);
                }
                false
            }
            4 | 5 if ids.len() > nodes as usize / 2 => {
                for _ in 0..=watch.chance.usize(..2) {
                    let id = ids[watch.chance.usize(..ids.len())];
                    watch.world.leave(id);
                    gone.push(id);
                }
                false
            }
            _ => false,
        };
        if lost {
            // Nodes go on to join and to leave, but no more crash until copies are where they belong again.
            repaired = past + REPAIR;
        }
        let pause = watch.chance.usize(..5) as u32 + 1;
        watch.rounds(pause);
        past += pause;
    }
    watch
}

/// Three of them, or those that `CHURN_SEEDS=FROM..TO` says.
fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("CHURN_SEEDS") else {
        return 1..4;
    };
    let (from, to) = range.split_once("..").unwrap();
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn no_acknowledged_put_is_lost_and_no_answer_is_wrong() {
    for seed in seeds() {
        let mut watch = churn(seed, 32, 800);
        watch.check_all();
        assert_eq!(problems(&watch.world.tables()), [], "the ring heals");
        let all = watch.world.ids();
        assert_eq!(serving(&watch.world), all, "nobody is left outside");
        watch.check_copies();
        println!(
            "{} gets, {} puts, {} failed; {} nodes",
            watch.gets,
            watch.puts,
            watch.failed,
            watch.world.ids().len()
        );
        assert!(watch.gets > 500 && watch.puts > 200);
        // Failures are honest, but they must stay rare.
        assert!(
            watch.failed * 50 < watch.gets + watch.puts,
            "{} failed",
            watch.failed
        );
    }
}
