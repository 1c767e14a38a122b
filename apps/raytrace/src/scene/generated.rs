//! A scene that is made up, of any size: a room with a lamp and spheres of glass, gold and glazed clay.

use super::Scene;
use crate::camera::Camera;
use crate::material::{Finish, Material};
use glam::DVec3;

/// Its name.
pub const NAME: &str = "box";
/// How many triangles it has if nobody says.
pub const TRIANGLES: u32 = 60_000;

/// The scene, of about so many triangles.
pub fn make(triangles: u32) -> Scene {
    let mut scene = Scene {
        name: NAME.to_owned(),
        triangles: Vec::new(),
        materials: Vec::new(),
        sky: None,
        camera: None,
        notes: Vec::new(),
    };
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
        add_sphere(&mut scene, DVec3::from(at), radius, fine, material);
    }
    scene.camera = Some(Camera {
        from: DVec3::new(0.0, 0.95, 5.1),
        to: DVec3::new(0.0, 0.82, 0.0),
        degrees: 25.0,
    });
    scene
}

/// A sphere, made of the eight faces of an octahedron, each of `fine` rows.
fn add_sphere(scene: &mut Scene, at: DVec3, radius: f64, fine: u32, material: u32) {
    for octant in 0..8 {
        let sign = |bit| if octant & bit == 0 { 1.0 } else { -1.0 };
        let (sx, sy, sz) = (sign(4), sign(2), sign(1));
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
