//! Scenes that are made up, of any size: a room with spheres, and hills by a lake.

use super::Scene;
use crate::camera::Camera;
use crate::light::{Sky, Sun};
use crate::material::{Finish, Material};
use crate::triangle::Triangle;
use glam::DVec3;

/// What can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// A room with a lamp and spheres of glass, gold and glazed clay.
    Box,
    /// Hills by a lake, in the sun.
    Hills,
}

impl Model {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Box, Self::Hills]
            .into_iter()
            .find(|model| model.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Box => "box",
            Self::Hills => "hills",
        }
    }

    /// How many triangles it has if nobody says.
    pub fn triangles(self) -> u32 {
        match self {
            Self::Box => 60_000,
            Self::Hills => 200_000,
        }
    }

    /// A scene of about so many triangles.
    pub fn make(self, triangles: u32) -> Scene {
        let mut scene = Scene {
            name: self.name().to_owned(),
            triangles: Vec::new(),
            materials: Vec::new(),
            sky: None,
            camera: None,
            notes: Vec::new(),
        };
        match self {
            Self::Box => make_box(&mut scene, triangles),
            Self::Hills => make_hills(&mut scene, triangles),
        }
        scene
    }
}

fn make_box(scene: &mut Scene, triangles: u32) {
    let matt = |r, g, b| Material::new(Finish::Matt(DVec3::new(r, g, b)));
    let glazed = |r, g, b| Material::new(Finish::Glazed(DVec3::new(r, g, b)));
    scene.materials = vec![
        matt(0.78, 0.76, 0.72),                                      // 0: walls
        glazed(0.68, 0.16, 0.09),                                    // 1: to the left
        glazed(0.10, 0.30, 0.46),                                    // 2: to the right
        Material::lamp(DVec3::new(9.6, 7.9, 5.7)),                   // 3: lamp
        Material::new(Finish::Mirror(DVec3::new(0.96, 0.77, 0.44))), // 4: gold
        Material::new(Finish::Glass {
            tint: DVec3::splat(0.98),
            index: 1.5,
        }), // 5: glass
        glazed(0.05, 0.33, 0.27),                                    // 6: green clay
        glazed(0.80, 0.52, 0.10),                                    // 7: yellow clay
        glazed(0.62, 0.60, 0.58),                                    // 8: floor
    ];
    // Three quarters of the triangles are in the spheres.
    let cells = (f64::from(triangles) / 40.0).sqrt().max(1.0) as u32;
    let (w, h, d) = (3.0, 2.0, 2.6);
    let corner = DVec3::new(-w / 2.0, 0.0, -d / 2.0);
    let (x, y, z) = (DVec3::X * w, DVec3::Y * h, DVec3::Z * d);
    scene.add_sheet(corner, z, x, cells, 8);
    scene.add_sheet(corner + y, x, z, cells, 0);
    scene.add_sheet(corner, x, y, cells, 0);
    scene.add_sheet(corner, y, z, cells, 1);
    scene.add_sheet(corner + x, z, y, cells, 2);
    let lamp = DVec3::new(-0.6, h - 0.004, -0.5);
    scene.add_sheet(lamp, DVec3::X * 1.2, DVec3::Z * 0.9, cells.min(4), 3);
    let fine = (f64::from(triangles) / 64.0).sqrt().max(2.0) as u32;
    for (at, radius, share, material) in [
        ([-0.60, 0.52, -0.40], 0.52, 1.0, 4),
        ([0.52, 0.42, 0.20], 0.42, 1.2, 5),
        ([-0.22, 0.22, 0.52], 0.22, 0.7, 6),
        ([0.78, 0.34, -0.72], 0.34, 0.7, 1),
        ([0.08, 0.13, 0.86], 0.13, 0.6, 7),
        ([-0.93, 0.17, 0.36], 0.17, 0.6, 2),
        ([0.02, 0.19, -0.35], 0.19, 0.6, 8),
    ] {
        let fine = (f64::from(fine) * share).max(2.0) as u32;
        add_sphere(scene, DVec3::from(at), radius, fine, material);
    }
    scene.camera = Some(Camera {
        from: DVec3::new(0.0, 0.95, 5.1),
        to: DVec3::new(0.0, 0.82, 0.0),
        degrees: 25.0,
    });
}

/// A sphere, made of the eight faces of an octahedron, each of `fine` rows.
fn add_sphere(scene: &mut Scene, at: DVec3, radius: f64, fine: u32, material: u32) {
    let signs = [1.0, -1.0];
    for (sx, sy, sz) in signs.into_iter().flat_map(|sx| {
        signs
            .into_iter()
            .flat_map(move |sy| signs.into_iter().map(move |sz| (sx, sy, sz)))
    }) {
        let point = |i: u32, j: u32| {
            let (x, y) = (f64::from(i), f64::from(j));
            let z = f64::from(fine) - x - y;
            DVec3::new(sx * x, sy * y, sz * z).normalize_or(DVec3::Y)
        };
        let mut add = |mut corners: [DVec3; 3]| {
            // The corners turn the same way in every second octant.
            if sx * sy * sz < 0.0 {
                corners.swap(1, 2);
            }
            let normals = corners.map(|corner| corner.as_vec3());
            scene.add_triangle(
                corners.map(|corner| at + corner * radius),
                normals,
                material,
            );
        };
        for (i, j) in (0..fine).flat_map(|i| (0..fine - i).map(move |j| (i, j))) {
            add([point(i, j), point(i + 1, j), point(i, j + 1)]);
            if i + j + 2 <= fine {
                add([point(i + 1, j), point(i + 1, j + 1), point(i, j + 1)]);
            }
        }
    }
}

/// Half the length of the land, and how high the lake stands.
const REACH: f64 = 10.0;
const LAKE: f64 = 0.42;

fn make_hills(scene: &mut Scene, triangles: u32) {
    let matt = |r, g, b| Material::new(Finish::Matt(DVec3::new(r, g, b)));
    scene.materials = vec![
        matt(0.13, 0.145, 0.05),                                      // 0: grass
        matt(0.30, 0.26, 0.21),                                       // 1: rock
        matt(0.88, 0.89, 0.92),                                       // 2: snow
        matt(0.36, 0.31, 0.19),                                       // 3: sand
        Material::new(Finish::Glazed(DVec3::new(0.01, 0.045, 0.06))), // 4: water
    ];
    let cells = (f64::from(triangles) / 2.2).sqrt().max(2.0) as u32;
    let step = 2.0 * REACH / f64::from(cells);
    // Finer before the camera than far away.
    let across = |i: u32| {
        let share = 2.0 * f64::from(i) / f64::from(cells) - 1.0;
        REACH * share * (0.45 + 0.55 * share.abs())
    };
    let along = |j: u32| {
        let share = 1.0 - f64::from(j) / f64::from(cells);
        REACH - 2.0 * REACH * share * (0.2 + 0.8 * share)
    };
    let point = |i: u32, j: u32| {
        let (x, z) = (across(i), along(j));
        DVec3::new(x, height(x, z), z)
    };
    let normal = |at: DVec3| {
        let slope = |dx: f64, dz: f64| height(at.x + dx, at.z + dz) - height(at.x - dx, at.z - dz);
        let half = step / 2.0;
        DVec3::new(-slope(half, 0.0) / step, 1.0, -slope(0.0, half) / step).normalize_or(DVec3::Y)
    };
    for (i, j) in (0..cells).flat_map(|i| (0..cells).map(move |j| (i, j))) {
        let [a, b, c, d] = [
            point(i, j),
            point(i, j + 1),
            point(i + 1, j + 1),
            point(i + 1, j),
        ];
        for corners in [[a, b, c], [a, c, d]] {
            let normals = corners.map(normal);
            let middle = (corners[0] + corners[1] + corners[2]) / 3.0;
            let upright = (normals[0].y + normals[1].y + normals[2].y) / 3.0;
            let material = cover(middle, upright);
            scene.triangles.push(Triangle {
                corners,
                normals: normals.map(|normal| normal.as_vec3()),
                material,
                index: scene.triangles.len() as u32,
            });
        }
    }
    let corner = DVec3::new(-REACH, LAKE, -REACH);
    let cells = (cells / 8).max(1);
    scene.add_sheet(
        corner,
        DVec3::Z * 2.0 * REACH,
        DVec3::X * 2.0 * REACH,
        cells,
        4,
    );
    scene.sky = Some(Sky {
        zenith: DVec3::new(0.10, 0.22, 0.55),
        horizon: DVec3::new(0.66, 0.70, 0.74),
        ground: DVec3::new(0.55, 0.52, 0.48),
        sun: Some(Sun {
            direction: DVec3::new(-0.62, 0.36, -0.30).normalize_or(DVec3::Y),
            irradiance: DVec3::new(5.2, 4.0, 2.7),
            cosine: 0.9999,
        }),
    });
    scene.camera = Some(Camera {
        from: DVec3::new(1.2, 1.25, 9.2),
        to: DVec3::new(-0.3, 0.85, 0.0),
        degrees: 34.0,
    });
}

/// What covers the land there.
fn cover(at: DVec3, upright: f64) -> u32 {
    let ragged = 0.25 * noise(at.x * 3.1, at.z * 3.1, 11);
    let fine = 0.05 * noise(at.x * 9.0, at.z * 9.0, 12);
    match at.y {
        y if y < LAKE + 0.02 + fine => 3,
        y if y + ragged > 2.05 && upright > 0.55 => 2,
        y if upright < 0.72 || y + ragged > 1.75 => 1,
        _ => 0,
    }
}

/// The land: noise of ever smaller waves, ridges where it crosses its mean, flat before the camera.
fn height(x: f64, z: f64) -> f64 {
    let (mut sum, mut wave, mut strength) = (0.0, 0.22, 1.0);
    for octave in 0..7 {
        let ridge = 1.0 - (2.0 * noise(x * wave, z * wave, octave) - 1.0).abs();
        sum += ridge * ridge * strength;
        wave *= 2.07;
        strength *= 0.46;
    }
    let far = ((7.5 - z) / 13.0).clamp(0.0, 1.0);
    0.12 + sum * (0.30 + 1.35 * far * far)
}

/// A smooth surface of random heights from 0 to 1.
fn noise(x: f64, z: f64, octave: u32) -> f64 {
    let (i, j) = (x.floor(), z.floor());
    let smooth = |t: f64| t * t * t * (t * (t * 6.0 - 15.0) + 10.0);
    let (u, v) = (smooth(x - i), smooth(z - j));
    let at = |di: i64, dj: i64| lattice(i as i64 + di, j as i64 + dj, octave);
    let near = at(0, 0) * (1.0 - u) + at(1, 0) * u;
    let far = at(0, 1) * (1.0 - u) + at(1, 1) * u;
    near * (1.0 - v) + far * v
}

fn lattice(i: i64, j: i64, octave: u32) -> f64 {
    let place = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (j as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ u64::from(octave).wrapping_mul(0x1656_67b1_9e37_79f9);
    let mixed = (place ^ place >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed >> 40) as f64 / (1u64 << 24) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use glam::Vec3;

    #[test]
    fn scenes_have_about_as_many_triangles_as_were_asked_for() {
        for model in [Model::Box, Model::Hills] {
            for asked in [500, 5000, 60_000] {
                let made = model.make(asked).triangles.len() as f64;
                let asked = f64::from(asked);
                assert!(
                    (0.5..1.6).contains(&(made / asked)),
                    "{model:?}: {made} for {asked}"
                );
            }
        }
    }

    #[test]
    fn surfaces_face_where_their_corners_say() {
        for model in [Model::Box, Model::Hills] {
            for triangle in model.make(2000).triangles {
                let across = triangle.across().as_vec3();
                let [a, b, c] = triangle.normals;
                let told = a + b + c;
                assert!(told == Vec3::ZERO || across.dot(told) > 0.0, "{triangle:?}");
            }
        }
    }
}
