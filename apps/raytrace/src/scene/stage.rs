//! The stage for a scene that has no light of its own: a floor, a lamp, a sky, and where to look from.

use super::Scene;
use crate::camera::Camera;
use crate::light::{Lights, Sky};
use crate::material::{Finish, Material};
use crate::ray::{Bounds, Line, Ray};
use crate::triangle::Triangle;
use glam::{DVec3, Vec3};

impl Scene {
    /// The scene with what its picture needs: a floor, a soft light and a sky if it has no light, and a nicer material than none.
    /// Triangles are only added, at the end.
    #[must_use]
    pub fn staged(mut self, up: DVec3) -> Self {
        if self.sky.is_some() || !Lights::among(&self.triangles, &self.materials).is_empty() {
            return self;
        }
        if self.materials.len() == 1 {
            self.materials[0] = Material::new(Finish::Glazed(DVec3::new(0.58, 0.15, 0.07)));
        }
        let bounds = self.bounds();
        let camera = overview(&self, up);
        self.camera = Some(camera);
        self.add_floor(&bounds, up);
        self.add_soft_light(&bounds, up, &camera);
        self.sky = Some(Sky {
            zenith: DVec3::new(0.14, 0.20, 0.34),
            horizon: DVec3::new(0.42, 0.44, 0.47),
            ground: DVec3::new(0.25, 0.24, 0.22),
        });
        self
    }

    fn material(&mut self, material: Material) -> u32 {
        self.materials.push(material);
        (self.materials.len() - 1) as u32
    }

    pub(super) fn add_triangle(&mut self, corners: [DVec3; 3], normals: [Vec3; 3], material: u32) {
        self.triangles.push(Triangle {
            corners,
            normals,
            material,
            index: self.triangles.len() as u32,
        });
    }

    /// A flat four-cornered surface, of `cells` by `cells` pieces: so that a part of the scene has only its part of it.
    pub(super) fn add_sheet(
        &mut self,
        corner: DVec3,
        one: DVec3,
        other: DVec3,
        cells: u32,
        material: u32,
    ) {
        let step = 1.0 / f64::from(cells);
        let point =
            |i: u32, j: u32| corner + one * (f64::from(i) * step) + other * (f64::from(j) * step);
        for (i, j) in (0..cells).flat_map(|i| (0..cells).map(move |j| (i, j))) {
            let [a, b, c, d] = [
                point(i, j),
                point(i + 1, j),
                point(i + 1, j + 1),
                point(i, j + 1),
            ];
            self.add_triangle([a, b, c], [Vec3::ZERO; 3], material);
            self.add_triangle([a, c, d], [Vec3::ZERO; 3], material);
        }
    }

    fn add_floor(&mut self, bounds: &Bounds, up: DVec3) {
        const CELLS: u32 = 64;
        let size = bounds.size().length();
        let (one, other) = up.any_orthonormal_pair();
        let middle = bounds.center() - up * (height_of(bounds, up) / 2.0);
        let reach = 40.0 * size;
        let material = Material::new(Finish::Matt(DVec3::new(0.50, 0.49, 0.47)));
        let material = self.material(material);
        let corner = middle - (one + other) * reach;
        let (one, other) = (one * (2.0 * reach), other * (2.0 * reach));
        self.add_sheet(corner, one, other, CELLS, material);
    }

    /// A bright square above, to the left of the camera.
    fn add_soft_light(&mut self, bounds: &Bounds, up: DVec3, camera: &Camera) {
        let size = bounds.size().length();
        let center = bounds.center();
        let back = (camera.from - center)
            .reject_from(up)
            .normalize_or(up.any_orthonormal_vector());
        let left = back.cross(up);
        let at = center + (up * 1.5 + left * 1.1 + back * 0.5) * size;
        let ahead = (center - at).normalize_or(-up);
        let across = ahead.any_orthonormal_vector();
        let down = ahead.cross(across);
        let side = size * 0.8;
        let material = self.material(Material::lamp(DVec3::new(15.0, 13.4, 11.2)));
        let corner = at - (across + down) * (side / 2.0);
        self.add_sheet(corner, across * side, down * side, 1, material);
    }
}

/// Where a scene is well seen from: what is lit from within, from its open side; what is not, from before, to the right
/// and above.
pub fn overview(scene: &Scene, up: DVec3) -> Camera {
    const DEGREES: f64 = 34.0;
    let bounds = scene.bounds();
    let center = bounds.center();
    let half = libm::tan(DEGREES.to_radians() / 2.0);
    let from = if Lights::among(&scene.triangles, &scene.materials).is_empty() {
        let ahead = if up == DVec3::Z {
            DVec3::NEG_Y
        } else {
            DVec3::Z
        };
        let way = ahead + up.cross(ahead) * 0.55 + up * 0.42;
        let radius = bounds.size().length() / 2.0;
        way.normalize_or(DVec3::Z) * (radius * 0.9 / half)
    } else {
        let side = open_side(scene, center, up);
        let depth = (bounds.size() * side).length();
        let width = (bounds.size() * side.cross(up)).length();
        side * (depth / 2.0 + 0.54 * height_of(&bounds, up).max(width) / half)
    };
    Camera {
        from: center + from,
        to: center,
        degrees: DEGREES,
    }
}

fn height_of(bounds: &Bounds, up: DVec3) -> f64 {
    bounds.size().dot(up.abs())
}

/// The side on which nothing is seen from the middle.
fn open_side(scene: &Scene, center: DVec3, up: DVec3) -> DVec3 {
    let sides = [
        DVec3::Z,
        DVec3::NEG_Z,
        DVec3::X,
        DVec3::NEG_X,
        DVec3::Y,
        DVec3::NEG_Y,
    ];
    let is_open = |side: &DVec3| {
        let (origin, direction) = (center, *side);
        let ray = Ray { origin, direction };
        let line = Line::new(&ray);
        let mut triangles = scene.triangles.iter();
        triangles.all(|triangle| triangle.hit(&ray, &line).is_none())
    };
    let mut level = sides.into_iter().filter(|side| side.dot(up).abs() < 0.5);
    level.find(is_open).unwrap_or(DVec3::Z)
}
