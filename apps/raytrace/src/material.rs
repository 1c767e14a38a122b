//! What surfaces are made of.

use glam::DVec3;
use serde::{Deserialize, Serialize};

/// A material.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Material {
    /// The light that it gives off, from both sides: red, green, blue. Such a surface scatters none.
    pub emission: DVec3,
    /// What it does with light that falls on it.
    pub finish: Finish,
}

/// What a surface does with light.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Finish {
    /// Scatters so much of each colour evenly.
    Matt(DVec3),
    /// The same under a clear coat that reflects a little, more at flat angles.
    Glazed(DVec3),
    /// Reflects so much of each colour.
    Mirror(DVec3),
    /// Lets light through.
    Glass {
        /// How much of each colour passes at a time.
        tint: DVec3,
        /// The refractive index, as of glass against air.
        index: f64,
    },
}

impl Material {
    /// One that gives off no light.
    pub fn new(finish: Finish) -> Self {
        Self {
            emission: DVec3::ZERO,
            finish,
        }
    }

    /// A lamp.
    pub fn lamp(emission: DVec3) -> Self {
        Self {
            emission,
            finish: Finish::Matt(DVec3::ZERO),
        }
    }

    /// Whether it gives off light.
    pub fn is_lamp(&self) -> bool {
        self.emission.max_element() > 0.0
    }
}

impl Default for Material {
    /// Of what has no material: light grey, matt.
    fn default() -> Self {
        Self::new(Finish::Matt(DVec3::splat(0.75)))
    }
}

/// How much of the light a surface between two media reflects, for the cosine of the angle at which it comes and the
/// ratio of the refractive indexes; unpolarised light (Fresnel).
pub fn reflectance(cosine: f64, ratio: f64) -> f64 {
    let sine = ratio * ratio * (1.0 - cosine * cosine);
    if sine >= 1.0 {
        return 1.0;
    }
    let through = (1.0 - sine).sqrt();
    let along = (cosine - ratio * through) / (cosine + ratio * through);
    let across = (ratio * cosine - through) / (ratio * cosine + through);
    (along * along + across * across) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glass_reflects_four_percent_straight_on_and_all_at_flat_angles() {
        assert!((reflectance(1.0, 1.0 / 1.5) - 0.04).abs() < 1e-9);
        assert!((reflectance(1e-9, 1.0 / 1.5) - 1.0).abs() < 1e-6);
        // From within, beyond the critical angle of 41.8 degrees.
        assert!((reflectance(0.7, 1.5) - 1.0).abs() < 1e-9);
    }
}
