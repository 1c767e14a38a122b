//! Lookups take about half of log2 n hops, and always find the owner.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::census::problems;
use crate::world::World;
use fastrand::Rng;
use wallaby_chord::id::RingId;
use wallaby_chord::node::Config;

/// The owner of a place: the first node from there on.
fn owner(nodes: &[RingId], id: RingId) -> RingId {
    let at = nodes.partition_point(|node| *node < id);
    *nodes.get(at).unwrap_or(&nodes[0])
}

/// Mean and longest number of hops of random lookups.
fn hops(nodes: u64, lookups: u32) -> (f64, u32) {
    let mut world = World::settled(7, 8, nodes, Config::default());
    let ids = world.ids();
    let mut chance = Rng::with_seed(nodes);
    let (mut sum, mut most) = (0, 0);
    for _ in 0..lookups {
        let id = RingId(chance.u64(..));
        let start = *chance.choice(&ids).unwrap();
        let found = world.walk(start, id).unwrap();
        assert_eq!(found.owner.id, owner(&ids, id));
        assert_eq!(found.trail.unwrap().len() as u32, found.hops + 1);
        sum += found.hops;
        most = most.max(found.hops);
    }
    (f64::from(sum) / f64::from(lookups), most)
}

#[test]
fn hops_grow_with_half_the_logarithm() {
    println!("nodes  hops  1/2 log2 n  most");
    for bits in [4, 6, 8, 10, 12] {
        let nodes = 1 << bits;
        let (mean, most) = hops(nodes, 4000);
        let half = f64::from(bits) / 2.0;
        println!("{nodes:5}  {mean:4.2}  {half:10.1}  {most:4}");
        // Chord's paper counts the nodes up to the one before the owner, so the last hop comes on top; nodes that
        // have the owner among their successors save some.
        assert!((mean - half).abs() < 1.0, "{nodes} nodes: {mean} hops");
        assert!(most <= bits + 4, "{nodes} nodes: {most} hops");
    }
    let (small, large) = (hops(1 << 6, 4000).0, hops(1 << 12, 4000).0);
    // Six bits more are three hops more.
    assert!((large - small - 3.0).abs() < 0.4, "{small} to {large}");
}

#[test]
fn rings_of_any_size_are_whole_from_the_start() {
    for nodes in [1, 2, 3, 5, 17, 100] {
        let mut world = World::settled(3, 4, nodes, Config::default());
        assert_eq!(problems(&world.tables()), []);
        let ids = world.ids();
        for start in &ids {
            for id in ids.iter().flat_map(|id| [id.0, id.0.wrapping_add(1)]) {
                let found = world.walk(*start, RingId(id)).unwrap();
                assert_eq!(found.owner.id, owner(&ids, RingId(id)));
            }
        }
    }
}
