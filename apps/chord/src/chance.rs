//! Choices that a seed repeats (SplitMix64).

/// A sequence of numbers made of a seed.
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`, or 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_number() % (end as u64).max(1)) as usize
    }

    /// One of them, if there are any.
    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}
