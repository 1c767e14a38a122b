//! Where a picture is taken from.

use crate::ray::Ray;
use glam::DVec3;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A camera.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Camera {
    /// Where it is.
    pub from: DVec3,
    /// What is in the middle of the picture.
    pub to: DVec3,
    /// How many degrees the picture is high.
    pub degrees: f64,
}

/// The rays of a camera through the pixels of a picture.
#[derive(Clone, Copy, Debug)]
pub struct Lens {
    from: DVec3,
    /// To the upper left corner, one pixel to the right, one down.
    corner: DVec3,
    right: DVec3,
    down: DVec3,
}

impl Camera {
    /// Its rays, for a picture of so many pixels, with this direction upwards.
    pub fn lens(&self, width: u32, height: u32, up: DVec3) -> Lens {
        let ahead = (self.to - self.from).normalize_or(DVec3::NEG_Z);
        let right = ahead.cross(up);
        // Looking straight up or down, any side is the right one.
        let right = right
            .try_normalize()
            .unwrap_or_else(|| ahead.any_orthonormal_vector());
        let down = ahead.cross(right);
        let half = libm::tan(self.degrees.to_radians() / 2.0);
        let pixel = 2.0 * half / f64::from(height.max(1));
        let (right, down) = (right * pixel, down * pixel);
        let middle = right * (f64::from(width) / 2.0) + down * (f64::from(height) / 2.0);
        Lens {
            from: self.from,
            corner: ahead - middle,
            right,
            down,
        }
    }
}

impl Lens {
    /// The ray through a point of the picture, in pixels from its upper left corner.
    pub fn ray(&self, across: f64, down: f64) -> Ray {
        let direction = self.corner + self.right * across + self.down * down;
        Ray {
            origin: self.from,
            direction: direction.normalize_or(DVec3::NEG_Z),
        }
    }
}

impl FromStr for Camera {
    type Err = String;

    /// `X,Y,Z/X,Y,Z/DEGREES`: where it is, where it looks, and how high the picture is; 40 degrees if not said.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is no camera: expected FROM/TO or FROM/TO/DEGREES, as in 0,1,5/0,1,0/40"
            )
        };
        let mut parts = text.split('/');
        let mut point = || parse_point(parts.next()?);
        let (from, to) = (point().ok_or_else(wrong)?, point().ok_or_else(wrong)?);
        let degrees = match parts.next() {
            Some(degrees) => degrees.trim().parse().map_err(|_| wrong())?,
            None => 40.0,
        };
        if parts.next().is_some() || from == to {
            return Err(wrong());
        }
        if !(1.0..=170.0).contains(&degrees) {
            return Err(format!("a picture is 1 to 170 degrees high, not {degrees}"));
        }
        Ok(Self { from, to, degrees })
    }
}

/// `X,Y,Z`.
fn parse_point(text: &str) -> Option<DVec3> {
    let mut numbers = text.split(',').map(|number| number.trim().parse::<f64>());
    let mut number = || numbers.next()?.ok().filter(|number| number.is_finite());
    let point = DVec3::new(number()?, number()?, number()?);
    numbers.next().is_none().then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cameras_are_read() {
        let camera: Camera = "1,2,-3.5/0,0,0/25".parse().unwrap();
        assert_eq!(camera.from, DVec3::new(1.0, 2.0, -3.5));
        for wrong in [
            "",
            "1,2,3",
            "1,2/0,0,0",
            "1,2,3/1,2,3",
            "1,2,3/0,0,NaN",
            "1,2,3/0,0,0/180",
            "1,2,3,4/0,0,0",
        ] {
            assert!(wrong.parse::<Camera>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_middle_of_the_picture_is_straight_ahead() {
        let camera: Camera = "0,0,5/0,0,0/90".parse().unwrap();
        let lens = camera.lens(200, 100, DVec3::Y);
        assert!((lens.ray(100.0, 50.0).direction - DVec3::NEG_Z).length() < 1e-12);
        // 90 degrees high: the upper edge is 45 degrees up.
        let top = lens.ray(100.0, 0.0).direction;
        assert!((top.y - 0.5f64.sqrt()).abs() < 1e-12, "{top}");
        assert!(lens.ray(200.0, 50.0).direction.x > 0.0);
    }
}
