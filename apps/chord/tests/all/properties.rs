//! Spans of the ring, and rings that come together from whatever joins.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::census::{Problem, problems};
use crate::world::World;
use proptest::prelude::*;
use std::collections::BTreeSet;
use wallaby_chord::id::{RingId, Span};
use wallaby_chord::node::Config;

/// Places near each other and at both ends of the numbers, so that spans touch and wrap.
fn place() -> impl Strategy<Value = RingId> {
    prop_oneof![0..4u64, (u64::MAX - 3)..=u64::MAX, any::<u64>()].prop_map(RingId)
}

proptest! {
    #[test]
    fn a_span_is_what_one_comes_by_clockwise(after in place(), to in place(), id in place()) {
        // Counted the other way, from the last place back.
        let behind = |id: RingId| u128::from(id.distance_to(to));
        let length = match after.distance_to(to) {
            0 => 1u128 << 64,
            length => length.into(),
        };
        prop_assert_eq!(Span { after, to }.contains(id), behind(id) < length);
    }

    #[test]
    fn two_spans_make_the_ring(one in place(), other in place(), id in place()) {
        prop_assume!(one != other);
        let there = Span { after: one, to: other }.contains(id);
        let back = Span { after: other, to: one }.contains(id);
        prop_assert!(there != back);
    }

    #[test]
    fn between_leaves_both_ends_out(after in place(), before in place(), id in place()) {
        let between = id.is_between(after, before);
        prop_assert_eq!(between, Span { after, to: before }.contains(id) && id != before);
        prop_assert!(!(between && (id == after && after != before)));
        prop_assert!(!before.is_between(after, before));
    }

    #[test]
    fn fingers_are_powers_of_two_away(id in place(), number in 0..RingId::BITS) {
        prop_assert_eq!(id.distance_to(id.finger(number)), 1 << number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nodes join a few at a time, whenever they like; some leave, some crash; in the end it is one ring, in which every
    /// place is found from everywhere.
    #[test]
    fn rings_come_together(
        seed in any::<u64>(),
        waves in prop::collection::vec((1..8usize, 0..6u32), 1..6),
        leaves in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        crashes in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let mut world = World::new(seed, 4, Config::default());
        let mut number = 0;
        for (joining, rounds) in waves {
            for _ in 0..joining {
                world.join(RingId::of_node(seed, number), number as usize);
                number += 1;
            }
            for _ in 0..rounds {
                world.round();
            }
        }
        for _ in 0..60 {
            world.round();
        }
        let all: BTreeSet<RingId> = (0..number).map(|number| RingId::of_node(seed, number)).collect();
        prop_assert_eq!(world.ids(), all.into_iter().collect::<Vec<_>>(), "all have joined");
        prop_assert_eq!(problems(&world.tables()), vec![]);
        for index in leaves {
            let ids = world.ids();
            if ids.len() > 1 {
                world.leave(*index.get(&ids));
            }
        }
        for index in crashes {
            let ids = world.ids();
            if ids.len() > 1 {
                world.crash(*index.get(&ids));
            }
        }
        for _ in 0..60 {
            world.round();
        }
        prop_assert_eq!(problems(&world.tables()), vec![]);
        let ids = world.ids();
        for start in &ids {
            for id in &ids {
                prop_assert_eq!(world.walk(*start, *id).unwrap().owner.id, *id);
            }
        }
    }
}

#[test]
fn what_is_wrong_with_a_ring_is_told() {
    let world = World::settled(1, 2, 6, Config::default());
    let mut tables = world.tables();
    let peers: Vec<_> = tables.iter().map(|node| node.peer.clone()).collect();
    // Every second node knows the next but one: two rings of three.
    for (at, node) in tables.iter_mut().enumerate() {
        node.successors = vec![peers[(at + 2) % 6].clone()];
    }
    let found = problems(&tables);
    assert!(
        found.contains(&Problem::Loop {
            visited: 3,
            nodes: 6
        }),
        "{found:?}"
    );
    let wrong = found
        .iter()
        .filter(|problem| matches!(problem, Problem::Successor { .. }));
    assert_eq!(wrong.count(), 6);

    let mut tables = world.tables();
    tables[2].predecessor = None;
    tables[3].peer.id = tables[4].peer.id;
    tables[3].peer.host = "mem://elsewhere".parse().unwrap();
    let texts: Vec<String> = problems(&tables).iter().map(ToString::to_string).collect();
    assert!(
        texts
            .iter()
            .any(|text| text.contains("nobody for its predecessor")),
        "{texts:?}"
    );
    assert!(
        texts.iter().any(|text| text.contains("have one place")),
        "{texts:?}"
    );
}
