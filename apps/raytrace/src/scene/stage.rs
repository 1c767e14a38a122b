//! The stage for a scene that has no light of its own: a floor, a lamp, a sky, and where to look from.

use super::{Scene, Staging};
use crate::camera::Camera;
use crate::light::{Lights, Sky};
use crate::material::{Finish, Material};
use crate::part::Part;
use crate::ray::{Bounds, Ray};
use crate::search::{Map, Search, Step};
use crate::triangle::Triangle;
use glam::{DVec3, Vec3};

impl Scene {
    /// The scene with what its picture needs: lamps that were asked for, or a floor and a soft light if there is none, and
    /// a nicer material than none. Triangles are only added, at the end.
    #[must_use]
    pub fn staged(mut self, staging: &Staging) -> Self {
        let has_light = !Lights::among(&self.triangles, &self.materials).is_empty();
        let has_sky = self.sky.is_some();
        let bounds = self.bounds();
        let size = bounds.size().length();
        for (at, strength) in &staging.lamps {
            let radius = size * 0.02;
            // As bright from afar as a small surface of one unit would be.
            let emission = DVec3::splat(*strength / (std::f64::consts::PI * radius * radius));
            let material = self.material(Material::lamp(emission));
            self.add_octahedron(*at, radius, material);
        }
        if !has_light && !has_sky {
            if self.materials.len() == 1 {
                self.materials[0] = Material::new(Finish::Glazed(DVec3::new(0.58, 0.15, 0.07)));
            }
            let camera = overview(&self, staging.up);
            self.camera = Some(camera);
            self.add_floor(&bounds, staging.up);
            if staging.lamps.is_empty() {
                self.add_soft_light(&bounds, staging.up, &camera);
            }
            self.sky = Some(Sky {
                zenith: DVec3::new(0.14, 0.20, 0.34),
                horizon: DVec3::new(0.42, 0.44, 0.47),
                ground: DVec3::new(0.25, 0.24, 0.22),
            });
        }
        if let Some(colour) = staging.sky {
            self.sky = Some(Sky {
                zenith: colour,
                horizon: colour,
                ground: colour,
            });
        }
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

    fn add_octahedron(&mut self, at: DVec3, radius: f64, material: u32) {
        let (x, y, z) = (DVec3::X * radius, DVec3::Y * radius, DVec3::Z * radius);
        for (a, b) in [(x, z), (z, -x), (-x, -z), (-z, x)] {
            for top in [y, -y] {
                self.add_triangle([at + a, at + b, at + top], [Vec3::ZERO; 3], material);
            }
        }
    }

    fn add_floor(&mut self, bounds: &Bounds, up: DVec3) {
        const CELLS: u32 = 64;
        let size = bounds.size().length();
        let (one, other) = up.any_orthonormal_pair();
        let center = bounds.center();
        let below = up.dot(center) - height_of(bounds, up) / 2.0;
        let middle = center + up * (below - up.dot(center));
        let reach = 40.0 * size;
        let material = Material::new(Finish::Matt(DVec3::new(0.50, 0.49, 0.47)));
        let material = self.material(material);
        let corner = middle - (one + other) * reach;
        self.add_sheet(
            corner,
            one * (2.0 * reach),
            other * (2.0 * reach),
            CELLS,
            material,
        );
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
    let has_light = !Lights::among(&scene.triangles, &scene.materials).is_empty();
    let half = libm::tan(DEGREES.to_radians() / 2.0);
    if has_light {
        let side = open_side(scene, &bounds, up);
        let depth = (bounds.size() * side).length();
        let height = height_of(&bounds, up);
        let width = (bounds.size() * side.cross(up)).length();
        let distance = depth / 2.0 + 0.54 * height.max(width) / half;
        return Camera {
            from: center + side * distance,
            to: center,
            degrees: DEGREES,
        };
    }
    let ahead = if up == DVec3::Z {
        DVec3::NEG_Y
    } else {
        DVec3::Z
    };
    let right = up.cross(ahead);
    let way = (ahead + right * 0.55 + up * 0.42).normalize_or(DVec3::Z);
    let radius = bounds.size().length() / 2.0;
    Camera {
        from: center + way * (radius * 0.9 / half),
        to: center,
        degrees: DEGREES,
    }
}

fn height_of(bounds: &Bounds, up: DVec3) -> f64 {
    bounds.size().dot(up.abs())
}

/// The side from which one sees farthest into a scene.
fn open_side(scene: &Scene, bounds: &Bounds, up: DVec3) -> DVec3 {
    let part = Part::new(0, scene.triangles.clone());
    let map = Map(vec![part.bounds()]);
    let sides = [
        DVec3::X,
        DVec3::NEG_X,
        DVec3::Y,
        DVec3::NEG_Y,
        DVec3::Z,
        DVec3::NEG_Z,
    ];
    let level = sides.into_iter().filter(|side| side.dot(up).abs() < 0.5);
    let depth = |side: &DVec3| seen_depth(&part, &map, bounds, *side);
    // Of equal ones the last: from before rather than from behind.
    level
        .max_by(|one, other| depth(one).total_cmp(&depth(other)))
        .unwrap_or(DVec3::Z)
}

/// How far one sees from a side until something is hit, on average; as part of the depth, what is not hit left out.
fn seen_depth(part: &Part, map: &Map, bounds: &Bounds, side: DVec3) -> f64 {
    const GRID: u32 = 16;
    let (size, center) = (bounds.size(), bounds.center());
    let depth = (size * side).length();
    let across = (DVec3::ONE - side.abs()) * size;
    let mut sum = 0.0;
    for (i, j) in (0..GRID).flat_map(|i| (0..GRID).map(move |j| (i, j))) {
        let share = |k: u32| (f64::from(k) + 0.5) / f64::from(GRID) - 0.5;
        // Of the three axes one is that of the side, and counts for nothing.
        let offset = match side.x != 0.0 {
            true => DVec3::new(0.0, share(i), share(j)),
            false => DVec3::new(share(i), share(j), share(j)),
        };
        let origin = center + side * depth + across * offset;
        let mut search = Search::new(Ray {
            origin,
            direction: -side,
        });
        if let Step::Found(hit) = part.follow(&mut search, map) {
            sum += hit.distance - depth / 2.0;
        }
    }
    sum / depth.max(f64::MIN_POSITIVE)
}
