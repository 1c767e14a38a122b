//! Random choices that a seed repeats.

use std::time::Duration;

/// A generator that is quick enough to stand between two operations that are measured.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high)
    }

    /// A time between two of so many events a second that know nothing of each other (a Poisson process).
    pub fn pause(&mut self, per_second: f64) -> Duration {
        // Never 1, so the logarithm is finite.
        let seconds = -(1.0 - self.0.f64()).ln() / per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// True in so many of a thousand cases.
    pub fn per_mille(&mut self, cases: u32) -> bool {
        self.0.u32(..1000) < cases
    }

    /// Puts the items into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }

    /// Moves `count` randomly chosen items (all, if there are fewer) to the front.
    pub fn choose<T>(&mut self, items: &mut [T], count: usize) {
        for index in 0..count.min(items.len()) {
            items.swap(index, self.0.usize(index..items.len()));
        }
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
