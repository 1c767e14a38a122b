//! Triangles, and where rays hit them.

use crate::ray::{Bounds, Line, Ray};
use glam::{DVec3, Vec3};
use serde::{Deserialize, Serialize};

/// A triangle of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Triangle {
    /// Its corners.
    pub corners: [DVec3; 3],
    /// The directions that the surface faces at its corners; zero where it is flat.
    pub normals: [Vec3; 3],
    /// What it is made of: a place in the scene's list of materials.
    pub material: u32,
    /// Its place in the scene, in the order of the file.
    pub index: u32,
}

/// Where a ray goes through the plane of a triangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The distance along the ray.
    pub distance: f64,
    /// How near it is to the second corner.
    pub u: f64,
    /// How near it is to the third corner.
    pub v: f64,
}

/// How far beyond an edge counts as inside, so that no ray slips between two triangles.
const EDGE: f64 = 1e-11;

impl Triangle {
    /// The box around it, a little larger.
    pub fn bounds(&self) -> Bounds {
        let bounds = Bounds::around(self.corners);
        let largest = bounds.low.abs().max(bounds.high.abs()).max_element();
        bounds.padded(1e-9 * (largest + bounds.size().max_element()))
    }

    /// Its middle.
    pub fn center(&self) -> DVec3 {
        (self.corners[0] + self.corners[1] + self.corners[2]) / 3.0
    }

    /// Across the plane of the triangle, as long as twice its area.
    pub fn across(&self) -> DVec3 {
        let [a, b, c] = self.corners;
        (b - a).cross(c - a)
    }

    /// Where the ray hits it (Möller and Trumbore, 1997), if it does in front of its origin.
    ///
    /// A hit lies within the triangle's own box, as [`Line::crossing`] reckons. So all boxes around that one are entered
    /// no later than it is hit, and whoever searches them in whatever order finds it. Only of rays nearly along a
    /// triangle's plane hits are lost by that, where the distance is mere noise.
    pub fn hit(&self, ray: &Ray, line: &Line) -> Option<Crossing> {
        let [a, b, c] = self.corners;
        let (edge_b, edge_c) = (b - a, c - a);
        let across = ray.direction.cross(edge_c);
        let inverse = 1.0 / edge_b.dot(across);
        let from = ray.origin - a;
        let u = from.dot(across) * inverse;
        // Written so that what is no number is no hit.
        if !(-EDGE..=1.0 + EDGE).contains(&u) {
            return None;
        }
        let other = from.cross(edge_b);
        let v = ray.direction.dot(other) * inverse;
        let distance = edge_c.dot(other) * inverse;
        if !(v >= -EDGE && u + v <= 1.0 + EDGE && distance > 0.0 && distance < f64::INFINITY) {
            return None;
        }
        let (enter, leave) = line.crossing(&self.bounds())?;
        let within = enter <= distance && distance <= leave;
        within.then_some(Crossing { distance, u, v })
    }

    /// The direction that the surface faces, of length 1, on the side that `seen` looks at it from; as its plane says and
    /// as its corners say. The second is the first where it would face away.
    pub fn normals_seen(&self, crossing: &Crossing, seen: DVec3) -> (DVec3, DVec3) {
        let flat = self.across().normalize_or(DVec3::Y);
        let flat = if flat.dot(seen) > 0.0 { -flat } else { flat };
        let Crossing { u, v, .. } = *crossing;
        let [a, b, c] = self.normals.map(Vec3::as_dvec3);
        let smooth = (a * (1.0 - u - v) + b * u + c * v).normalize_or(flat);
        let smooth = if smooth.dot(flat) < 0.0 {
            -smooth
        } else {
            smooth
        };
        match smooth.dot(seen) < 0.0 {
            true => (flat, smooth),
            false => (flat, flat),
        }
    }
}
