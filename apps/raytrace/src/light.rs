//! Where light comes from: triangles that give it off, and the sky.

use crate::chance::{Chance, Dimension};
use crate::material::Material;
use crate::triangle::Triangle;
use glam::DVec3;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// The sky around a scene, seen where nothing else is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sky {
    /// Its light right above.
    pub zenith: DVec3,
    /// At the horizon.
    pub horizon: DVec3,
    /// Below the horizon.
    pub ground: DVec3,
}

/// All that gives off light.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lights {
    lamps: Vec<Lamp>,
}

/// A triangle that gives off light.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Lamp {
    corners: [DVec3; 3],
    emission: DVec3,
    /// The share of all lamps' light that this one and those before it have.
    share: f64,
}

/// Light that may fall on a point from one direction, if nothing is in between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incident {
    /// Where it comes from; of length 1.
    pub direction: DVec3,
    /// How far away that is.
    pub distance: f64,
    /// Its strength on a surface that faces it, over the likelihood that this direction is chosen.
    pub light: DVec3,
}

impl Sky {
    /// Only darkness.
    pub const DARK: Self = Self {
        zenith: DVec3::ZERO,
        horizon: DVec3::ZERO,
        ground: DVec3::ZERO,
    };

    /// What is seen in a direction.
    pub fn light(&self, direction: DVec3, up: DVec3) -> DVec3 {
        let height = direction.dot(up);
        match height > 0.0 {
            true => self.horizon.lerp(self.zenith, height.sqrt()),
            false => self.horizon.lerp(self.ground, (-height * 8.0).min(1.0)),
        }
    }
}

impl Lights {
    /// The lamps among triangles. A lamp is chosen as often as it gives off light.
    pub fn among<'a>(
        triangles: impl IntoIterator<Item = &'a Triangle>,
        materials: &[Material],
    ) -> Self {
        let mut sum = 0.0;
        let mut lamps = Vec::new();
        for triangle in triangles {
            let material = materials.get(triangle.material as usize);
            let Some(material) = material.filter(|material| material.is_lamp()) else {
                continue;
            };
            let area = triangle.across().length() / 2.0;
            let power = area * material.emission.element_sum();
            if power > 0.0 && power.is_finite() {
                sum += power;
                lamps.push(Lamp {
                    corners: triangle.corners,
                    emission: material.emission,
                    share: sum,
                });
            }
        }
        lamps.iter_mut().for_each(|lamp| lamp.share /= sum);
        Self { lamps }
    }

    /// How many lamps.
    pub fn len(&self) -> usize {
        self.lamps.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lamps.is_empty()
    }

    /// Light from one of the lamps that may fall on a point.
    pub fn choose(&self, at: DVec3, chance: Chance, bounce: u16) -> Option<Incident> {
        let draw = |dimension| chance.draw(bounce, dimension);
        let (u, v) = (draw(Dimension::LightU), draw(Dimension::LightV));
        self.lamp(draw(Dimension::Light), u, v, at)
    }

    fn lamp(&self, which: f64, u: f64, v: f64, at: DVec3) -> Option<Incident> {
        let chosen = self.lamps.partition_point(|lamp| lamp.share <= which);
        let lamp = self.lamps.get(chosen)?;
        let before = chosen
            .checked_sub(1)
            .and_then(|before| self.lamps.get(before));
        let likelihood = lamp.share - before.map_or(0.0, |before| before.share);
        let [a, b, c] = lamp.corners;
        let root = u.sqrt();
        let point = a * (1.0 - root) + b * (root * (1.0 - v)) + c * (root * v);
        let across = (b - a).cross(c - a);
        let to = point - at;
        let distance = to.length();
        let direction = to / distance;
        let facing = across.dot(direction).abs() / 2.0; // the cosine there, times the area
        let light = lamp.emission * (facing / (distance * distance * likelihood));
        let is_light = distance > 0.0 && light.is_finite();
        is_light.then_some(Incident {
            direction,
            distance,
            light,
        })
    }
}

/// A direction at an angle with this cosine to an axis, turned around it by so much of a circle.
pub fn around(axis: DVec3, cosine: f64, turn: f64) -> DVec3 {
    let (across, other) = axis.any_orthonormal_pair();
    let sine = (1.0 - cosine * cosine).max(0.0).sqrt();
    let angle = TAU * turn;
    let way = across * libm::cos(angle) + other * libm::sin(angle);
    (axis * cosine + way * sine).normalize_or(axis)
}
