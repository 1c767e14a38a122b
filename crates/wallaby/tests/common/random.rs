//! Numbers that a seed decides, for the random worlds of turmoil (`crates/wallaby-sim/tests/turmoil`).

use std::ops::RangeInclusive;

/// A small generator (SplitMix64). Not fastrand's, whose numbers may change with its version: a seed makes the same world.
#[derive(Debug, Default)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn one_in(&mut self, cases: u64) -> bool {
        self.next().is_multiple_of(cases)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }
}
