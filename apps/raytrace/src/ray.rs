//! Rays, and boxes around what they may hit.
//!
//! A box is entered and left at distances that are rounded in a way that never contradicts a larger box: the numbers of
//! a box inside another one lie within those of the other, exactly, since rounding keeps order. So it does not matter
//! for what is hit how triangles were put into boxes, or into parts of a scene.

use glam::DVec3;
use serde::{Deserialize, Serialize};

/// A ray.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ray {
    /// Where it begins.
    pub origin: DVec3,
    /// Where it goes; of length 1.
    pub direction: DVec3,
}

/// A box with sides along the axes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// The least coordinates.
    pub low: DVec3,
    /// The greatest.
    pub high: DVec3,
}

/// A ray made ready for many boxes.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    origin: DVec3,
    /// One over the direction.
    inverse: DVec3,
    /// Axes along which it does not move.
    still: [bool; 3],
}

impl Ray {
    /// Where it is after a distance.
    pub fn at(&self, distance: f64) -> DVec3 {
        self.origin + self.direction * distance
    }
}

impl Bounds {
    /// The box around nothing.
    pub const EMPTY: Self = Self {
        low: DVec3::INFINITY,
        high: DVec3::NEG_INFINITY,
    };

    /// The box around points.
    pub fn around(points: impl IntoIterator<Item = DVec3>) -> Self {
        let with = |bounds: Self, point: DVec3| Self {
            low: bounds.low.min(point),
            high: bounds.high.max(point),
        };
        points.into_iter().fold(Self::EMPTY, with)
    }

    /// The box around both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }

    /// Larger by so much on every side.
    #[must_use]
    pub fn padded(self, by: f64) -> Self {
        Self {
            low: self.low - DVec3::splat(by),
            high: self.high + DVec3::splat(by),
        }
    }

    /// Its lengths along the axes; 0 for the box around nothing.
    pub fn size(&self) -> DVec3 {
        (self.high - self.low).max(DVec3::ZERO)
    }

    /// Its middle.
    pub fn center(&self) -> DVec3 {
        (self.low + self.high) * 0.5
    }
}

impl Line {
    /// Of a ray.
    pub fn new(ray: &Ray) -> Self {
        // Less than this its inverse is not a number to reckon with.
        const STILL: f64 = 1e-300;
        let direction = ray.direction.to_array();
        Self {
            origin: ray.origin,
            inverse: ray.direction.recip(),
            still: direction.map(|along| along.abs() < STILL),
        }
    }

    /// The distances at which a box is entered and left, a little too wide; `None` if it is missed or behind.
    pub fn crossing(&self, bounds: &Bounds) -> Option<(f64, f64)> {
        const LOWER: f64 = 1.0 - 1e-9;
        const HIGHER: f64 = 1.0 + 1e-9;
        let (mut enter, mut leave) = (f64::NEG_INFINITY, f64::INFINITY);
        for axis in 0..3 {
            let (low, high, origin) = (bounds.low[axis], bounds.high[axis], self.origin[axis]);
            if self.still[axis] {
                if origin < low || origin > high {
                    return None;
                }
                continue;
            }
            let inverse = self.inverse[axis];
            let (near, far) = ((low - origin) * inverse, (high - origin) * inverse);
            let (near, far) = match inverse < 0.0 {
                true => (far, near),
                false => (near, far),
            };
            enter = enter.max(near);
            leave = leave.min(far);
        }
        // Each of these keeps order, too.
        enter *= if enter > 0.0 { LOWER } else { HIGHER };
        leave *= if leave > 0.0 { HIGHER } else { LOWER };
        (enter <= leave && leave >= 0.0).then_some((enter, leave))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_hit_from_outside_and_inside() {
        let bounds = Bounds {
            low: DVec3::ZERO,
            high: DVec3::ONE,
        };
        let crossing = |origin: [f64; 3], direction: [f64; 3]| {
            let (origin, direction) = (DVec3::from(origin), DVec3::from(direction));
            Line::new(&Ray { origin, direction }).crossing(&bounds)
        };
        let (enter, leave) = crossing([-1.0, 0.5, 0.5], [1.0, 0.0, 0.0]).unwrap();
        assert!((enter - 1.0).abs() < 1e-8 && (leave - 2.0).abs() < 1e-8);
        let (enter, leave) = crossing([0.5, 0.5, 0.5], [0.0, -1.0, 0.0]).unwrap();
        assert!(enter < 0.0 && (leave - 0.5).abs() < 1e-8);
        // Along a side, which a division by zero would make nothing of.
        assert!(crossing([0.0, 0.0, -1.0], [0.0, 0.0, 1.0]).is_some());
        assert!(crossing([-1.0, 0.5, 0.5], [-1.0, 0.0, 0.0]).is_none());
        assert!(crossing([-1.0, 2.0, 0.5], [1.0, 0.0, 0.0]).is_none());
    }

    #[test]
    fn nothing_is_never_hit() {
        let ray = Ray {
            origin: DVec3::ZERO,
            direction: DVec3::X,
        };
        assert!(Line::new(&ray).crossing(&Bounds::EMPTY).is_none());
    }
}
