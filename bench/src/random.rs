//! Random choices that a seed repeats.

use std::time::Duration;

/// A small generator (SplitMix64): quick enough to stand between two operations that are measured.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of a product is uniform enough for bounds this small.
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(usize::try_from(high - low).unwrap_or(usize::MAX - 1) + 1) as u64
    }

    /// A time between two of so many events a second that know nothing of each other (a Poisson process).
    pub fn pause(&mut self, per_second: f64) -> Duration {
        // 53 bits, so never 1: the logarithm is finite.
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let seconds = -(1.0 - uniform).ln() / per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// True in so many of a thousand cases.
    pub fn per_mille(&mut self, cases: u32) -> bool {
        self.below(1000) < cases as usize
    }

    /// Puts the items into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.choose(items, items.len());
    }

    /// Moves `count` randomly chosen items (all, if there are fewer) to the front.
    pub fn choose<T>(&mut self, items: &mut [T], count: usize) {
        for index in 0..count.min(items.len()) {
            let other = index + self.below(items.len() - index);
            items.swap(index, other);
        }
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_every_item_about_as_often() {
        let mut random = Random::new(7);
        let mut items: Vec<usize> = (0..10).collect();
        let mut counts = [0; 10];
        for _ in 0..10_000 {
            random.choose(&mut items, 3);
            items[..3].iter().for_each(|&item| counts[item] += 1);
        }
        assert!(
            counts.iter().all(|count| (2_700..3_300).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn pauses_are_as_long_and_as_uneven_as_of_a_poisson_process() {
        let mut random = Random::new(3);
        let pauses: Vec<f64> = (0..50_000)
            .map(|_| random.pause(1_000.0).as_secs_f64() * 1_000.0)
            .collect();
        let mean = pauses.iter().sum::<f64>() / pauses.len() as f64;
        let longer = pauses.iter().filter(|pause| **pause > 2.0).count() as f64;
        assert!((0.98..1.02).contains(&mean), "{mean}");
        let share = longer / pauses.len() as f64; // e^-2
        assert!((0.129..0.142).contains(&share), "{share}");
        assert_eq!(random.pause(0.0), Duration::MAX);
    }

    #[test]
    fn choosing_loses_nothing() {
        let mut items: Vec<usize> = (0..5).collect();
        Random::new(1).choose(&mut items, 9);
        items.sort_unstable();
        assert_eq!(items, [0, 1, 2, 3, 4]);
    }
}
