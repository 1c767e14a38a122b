//! Random numbers that do not depend on who draws them, or when: each is a hash of where it is needed.
//!
//! A stream of random numbers would give another picture for another order of work. Here the number for a dimension of
//! a bounce of a sample of a pixel is always the same.

/// What is drawn at a bounce, one dimension each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Where in the pixel the ray goes through, across.
    Across,
    /// The same, down.
    Down,
    /// Which light a shadow ray goes to.
    Light,
    /// Where on that light, the first coordinate.
    LightU,
    /// The second one.
    LightV,
    /// Where the next ray goes to, the first coordinate.
    WayU,
    /// The second one.
    WayV,
    /// Whether it is reflected, refracted or scattered.
    Lobe,
    /// Whether the path goes on.
    Survival,
}

/// Powers of the inverse of the root of x^10 = x + 1: multiples of them fill nine dimensions evenly ("generalised
/// golden ratios", Roberts 2018).
const EVEN: [f64; 9] = [
    0.929_570_128_232,
    0.864_100_623_301,
    0.803_242_127_208,
    0.746_669_887_190,
    0.694_082_022_782,
    0.645_197_914_921,
    0.599_756_708_508,
    0.557_515_920_436,
    0.518_250_145_651,
];

/// What all numbers of one path have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chance {
    pixel: u64,
    sample: u32,
}

impl Chance {
    /// For a sample of a pixel, in the picture with this seed.
    pub fn new(seed: u64, pixel: u32, sample: u32) -> Self {
        let pixel = mix(mix(seed) ^ u64::from(pixel));
        Self { pixel, sample }
    }

    /// A number from 0, below 1.
    ///
    /// At the first bounce those of a pixel's samples are spread evenly, which makes for less noise; later ones only
    /// look random.
    pub fn draw(self, bounce: u16, dimension: Dimension) -> f64 {
        let place = u64::from(bounce) << 8 | dimension as u64;
        if bounce > 0 {
            return unit(mix(mix(self.pixel ^ place) ^ u64::from(self.sample)));
        }
        let turned = unit(mix(self.pixel ^ place));
        let even = EVEN[dimension as usize] * f64::from(self.sample);
        (turned + even).fract()
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014), after a step of its counter.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_their_range() {
        for (bounce, most) in [(0, 0.01), (3, 0.05)] {
            let draw = |sample| Chance::new(7, 3, sample).draw(bounce, Dimension::WayU);
            let numbers: Vec<f64> = (0..1000).map(draw).collect();
            assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
            let mean = numbers.iter().sum::<f64>() / 1000.0;
            assert!((mean - 0.5).abs() < most, "{mean} at bounce {bounce}");
        }
    }

    #[test]
    fn every_part_of_the_place_matters() {
        let base = Chance::new(1, 2, 3).draw(4, Dimension::Light);
        for other in [
            Chance::new(2, 2, 3).draw(4, Dimension::Light),
            Chance::new(1, 3, 3).draw(4, Dimension::Light),
            Chance::new(1, 2, 4).draw(4, Dimension::Light),
            Chance::new(1, 2, 3).draw(5, Dimension::Light),
            Chance::new(1, 2, 3).draw(4, Dimension::LightU),
        ] {
            assert!((base - other).abs() > f64::EPSILON);
        }
    }
}
