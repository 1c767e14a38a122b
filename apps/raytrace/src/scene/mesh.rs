//! Points and faces as files have them, on their way to triangles.

use super::{Limits, Scene};
use crate::material::Material;
use crate::triangle::Triangle;
use glam::{DVec3, Vec3};

/// What is read of a file.
#[derive(Debug, Default)]
pub struct Mesh {
    /// The points.
    pub points: Vec<DVec3>,
    /// The directions that surfaces face.
    pub normals: Vec<Vec3>,
    /// The triangles.
    pub faces: Vec<Face>,
    /// What they are made of.
    pub materials: Vec<Material>,
}

/// A triangle by its points.
#[derive(Clone, Copy, Debug)]
pub struct Face {
    /// Places in the list of points.
    pub points: [u32; 3],
    /// Places in the list of normals, if the file says.
    pub normals: Option<[u32; 3]>,
    /// The material's place in the list.
    pub material: u32,
}

/// A face that is as near as this to how the surface faces at a point is a part of something round: the cosine of 40 degrees.
const ROUND: f64 = 0.766;

impl Mesh {
    /// Takes a face of three or more corners as triangles, a fan around the first corner; false if that is too many.
    pub fn add(&mut self, corners: &[(u32, Option<u32>)], material: u32, limits: &Limits) -> bool {
        let Some((first, rest)) = corners.split_first() else {
            return true;
        };
        for pair in rest.windows(2) {
            if self.faces.len() >= limits.triangles as usize {
                return false;
            }
            let of = [*first, pair[0], pair[1]];
            let normals = match of.map(|corner| corner.1) {
                [Some(a), Some(b), Some(c)] => Some([a, b, c]),
                _ => None,
            };
            self.faces.push(Face {
                points: of.map(|corner| corner.0),
                normals,
                material,
            });
        }
        true
    }

    /// The scene of these faces, round where they meet at flat angles and the file does not say how.
    pub fn finish(self, name: String, notes: Vec<String>) -> Scene {
        let point = |index: u32| self.points.get(index as usize).copied().unwrap_or_default();
        let across = |face: &Face| {
            let [a, b, c] = face.points.map(point);
            (b - a).cross(c - a)
        };
        // Where the surface faces at each point: of all faces there, the larger ones more.
        let mut around = vec![DVec3::ZERO; self.points.len()];
        for face in &self.faces {
            for index in face.points {
                if let Some(sum) = around.get_mut(index as usize) {
                    *sum += across(face);
                }
            }
        }
        let round = |face: &Face, index: u32| {
            let own = across(face).normalize_or_zero();
            let all = around.get(index as usize).copied().unwrap_or(own);
            let all = all.normalize_or(own);
            if all.dot(own) > ROUND { all } else { own }.as_vec3()
        };
        let said = |index: u32| self.normals.get(index as usize).copied();
        let triangle = |(index, face): (u32, &Face)| Triangle {
            corners: face.points.map(point),
            normals: match face.normals {
                Some(normals) => normals.map(|index| said(index).unwrap_or_default()),
                None => face.points.map(|index| round(face, index)),
            },
            material: face.material,
            index,
        };
        Scene {
            name,
            triangles: (0..).zip(&self.faces).map(triangle).collect(),
            materials: self.materials,
            sky: None,
            camera: None,
            notes,
        }
    }
}
