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

/// Faces that meet at a flatter angle than this are one round surface: the cosine of 40 degrees.
const ROUND: f64 = 0.766;
/// A point with more faces than this is the tip of something, or an attack.
const MOST_AROUND: usize = 64;

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
        let around = Around::new(&self);
        let point = |index: u32| self.points.get(index as usize).copied().unwrap_or_default();
        let normal = |index: u32| {
            self.normals
                .get(index as usize)
                .copied()
                .unwrap_or_default()
        };
        let triangle = |(index, face): (u32, &Face)| Triangle {
            corners: face.points.map(point),
            normals: match face.normals {
                Some(normals) => normals.map(normal),
                None => face.points.map(|point| around.normal(&self, face, point)),
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

    fn across(&self, face: &Face) -> DVec3 {
        let point = |index: u32| self.points.get(index as usize).copied().unwrap_or_default();
        let [a, b, c] = face.points.map(point);
        (b - a).cross(c - a)
    }
}

/// Which faces are around each point.
struct Around {
    /// Where the faces of a point begin in the list.
    begins: Vec<u32>,
    faces: Vec<u32>,
}

impl Around {
    fn new(mesh: &Mesh) -> Self {
        let mut begins = vec![0u32; mesh.points.len() + 1];
        let points = |face: &Face| face.points.map(|point| point as usize);
        for point in mesh.faces.iter().flat_map(points) {
            if let Some(count) = begins.get_mut(point + 1) {
                *count += 1;
            }
        }
        for at in 1..begins.len() {
            begins[at] += begins[at - 1];
        }
        let mut next = begins.clone();
        let mut faces = vec![0u32; begins.last().copied().unwrap_or(0) as usize];
        for (number, face) in (0u32..).zip(&mesh.faces) {
            for point in points(face) {
                if let Some(at) = next.get_mut(point) {
                    if let Some(place) = faces.get_mut(*at as usize) {
                        *place = number;
                    }
                    *at += 1;
                }
            }
        }
        Self { begins, faces }
    }

    /// The direction that the surface faces at a point of a face: of all faces there that are nearly in one plane with it.
    fn normal(&self, mesh: &Mesh, face: &Face, point: u32) -> Vec3 {
        let own = mesh.across(face).normalize_or_zero();
        let point = point as usize;
        let range = match (self.begins.get(point), self.begins.get(point + 1)) {
            (Some(begin), Some(end)) => *begin as usize..*end as usize,
            _ => return own.as_vec3(),
        };
        if range.len() > MOST_AROUND {
            return own.as_vec3();
        }
        let mut sum = DVec3::ZERO;
        for number in self.faces.get(range).unwrap_or_default() {
            let Some(other) = mesh.faces.get(*number as usize) else {
                continue;
            };
            let across = mesh.across(other);
            if across.normalize_or_zero().dot(own) > ROUND {
                sum += across;
            }
        }
        sum.normalize_or(own).as_vec3()
    }
}
