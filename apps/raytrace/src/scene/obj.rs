//! Wavefront's .obj files: points, normals, faces, materials. What else is in them makes no difference to a picture. Not by the crate
//! `tobj`: errors name the file and the line, and limits hold while it is read.

use super::input::{Input, number, shown};
use super::mesh::Mesh;
use super::{Limits, Scene, SceneError, mtl};
use crate::material::Material;
use glam::DVec3;
use std::collections::HashMap;
use std::path::Path;

/// A file on its way to a mesh.
struct Reading {
    mesh: Mesh,
    /// Places of materials by name.
    materials: HashMap<String, u32>,
    material: u32,
    notes: Vec<String>,
}

/// Reads a file.
///
/// # Errors
///
/// If it cannot be read, with the line.
pub fn read(path: &Path, limits: &Limits) -> Result<Scene, SceneError> {
    let mut input = Input::open(path, limits)?;
    let mut reading = Reading {
        mesh: Mesh {
            materials: vec![Material::default()],
            ..Mesh::default()
        },
        materials: HashMap::new(),
        material: 0,
        notes: Vec::new(),
    };
    let (mut line, mut more) = (String::new(), String::new());
    while input.line(&mut line)? {
        while line.ends_with('\\') && input.line(&mut more)? {
            line.pop();
            line.push_str(&more);
            if line.len() > limits.line {
                return Err(input.too_much("bytes in a line", limits.line as u64));
            }
        }
        reading.take(&line, &input)?;
    }
    Ok(reading
        .mesh
        .finish(path.display().to_string(), reading.notes))
}

impl Reading {
    fn take(&mut self, line: &str, input: &Input) -> Result<(), SceneError> {
        let text = line.split('#').next().unwrap_or_default().trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let wrong = |what: String| input.wrong(format!("{word}: {what}"));
        match word {
            "v" => {
                let point = point(rest).map_err(wrong)?;
                self.room(self.mesh.points.len(), "points", input)?;
                self.mesh.points.push(point);
            }
            "vn" => {
                let normal = point(rest).map_err(wrong)?;
                self.room(self.mesh.normals.len(), "normals", input)?;
                self.mesh.normals.push(normal.normalize_or_zero().as_vec3());
            }
            "f" => {
                let corners: Result<Vec<_>, String> = rest
                    .split_whitespace()
                    .map(|corner| self.corner(corner))
                    .collect();
                let corners = corners.map_err(wrong)?;
                if corners.len() < 3 {
                    let found = corners.len();
                    return Err(wrong(format!(
                        "expected three or more corners, found {found}"
                    )));
                }
                if !self.mesh.add(&corners, self.material, input.limits()) {
                    return Err(input.too_much("triangles", input.limits().triangles.into()));
                }
            }
            "usemtl" => self.material = self.named(rest.trim(), input),
            "mtllib" => self.library(rest.trim(), input)?,
            _ => {}
        }
        Ok(())
    }

    /// A mesh has about half as many points as triangles; six times as many is more than any needs.
    fn room(&self, count: usize, what: &'static str, input: &Input) -> Result<(), SceneError> {
        let most = (u64::from(input.limits().triangles) * 3).min(u32::MAX.into());
        match (count as u64) < most {
            true => Ok(()),
            false => Err(input.too_much(what, most)),
        }
    }

    /// A corner of a face: `point`, `point/texture`, `point//normal` or `point/texture/normal`.
    fn corner(&self, text: &str) -> Result<(u32, Option<u32>), String> {
        let mut parts = text.split('/');
        let point = index(
            parts.next().unwrap_or_default(),
            self.mesh.points.len(),
            "points",
        )?;
        let normal = parts.nth(1).filter(|normal| !normal.is_empty());
        let normal = normal.map(|normal| index(normal, self.mesh.normals.len(), "normals"));
        Ok((point, normal.transpose()?))
    }

    fn named(&mut self, name: &str, input: &Input) -> u32 {
        let place = self.materials.get(name).copied();
        place.unwrap_or_else(|| {
            let place = input.place();
            self.note(format!("{place}: there is no material '{}'", shown(name)));
            self.materials.insert(name.to_owned(), 0);
            0
        })
    }

    /// A missing library is not worth refusing a mesh: only its colours are.
    fn library(&mut self, name: &str, input: &Input) -> Result<(), SceneError> {
        let folder = input.path().parent().unwrap_or(Path::new("."));
        let read = match mtl::read(&folder.join(name), input.limits()) {
            Err(SceneError::Read { path, source }) => {
                let place = input.place();
                self.note(format!(
                    "{place}: no materials from {}: {source}",
                    path.display()
                ));
                return Ok(());
            }
            read => read?,
        };
        for (name, material) in read {
            if self.mesh.materials.len() >= input.limits().materials {
                return Err(input.too_much("materials", input.limits().materials as u64));
            }
            self.materials
                .insert(name, self.mesh.materials.len() as u32);
            self.mesh.materials.push(material);
        }
        Ok(())
    }

    fn note(&mut self, note: String) {
        const MOST: usize = 10;
        if self.notes.len() < MOST {
            self.notes.push(note);
        }
    }
}

fn point(text: &str) -> Result<DVec3, String> {
    let mut words = text.split_whitespace();
    let mut coordinate = || match words.next() {
        Some(word) => number(word),
        None => Err(format!("expected three numbers, found '{}'", shown(text))),
    };
    Ok(DVec3::new(coordinate()?, coordinate()?, coordinate()?))
}

/// The place that an index means: from 1, or from the end backwards if it is negative.
fn index(text: &str, count: usize, of: &str) -> Result<u32, String> {
    let index: i64 = text
        .parse()
        .map_err(|_| format!("'{}' is no index", shown(text)))?;
    let place = match index {
        1.. => index - 1,
        _ => index.saturating_add(count as i64),
    };
    let is_place = index != 0 && place >= 0 && place < count as i64;
    let place = u32::try_from(place).ok().filter(|_| is_place);
    place.ok_or_else(|| format!("index {index}, but there are {count} {of} until here"))
}
