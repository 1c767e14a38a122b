//! Where scenes come from: files, generators, and the stage that is set for what has no light of its own.

pub mod generated;
pub mod input;
pub mod mesh;
pub mod mtl;
pub mod obj;
pub mod stage;

use crate::camera::Camera;
use crate::light::{Lights, Sky};
use crate::material::Material;
use crate::part::split;
use crate::ray::Bounds;
use crate::search::Map;
use crate::triangle::Triangle;
use crate::world::World;
use glam::DVec3;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// How much of a file is taken. Beyond, reading it is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Triangles of a scene. Default 16 million: about 4 GB of memory.
    pub triangles: u32,
    /// Bytes of a file, uncompressed. Default 4 GiB.
    pub bytes: u64,
    /// Bytes of a line of text. Default 1 MiB.
    pub line: usize,
    /// Triangles that give off light: every server knows all of them. Default 65,536.
    pub lamps: usize,
    /// Materials: every server knows all of them. Default 65,536.
    pub materials: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            triangles: 16_000_000,
            bytes: 4 << 30,
            line: 1 << 20,
            lamps: 65_536,
            materials: 65_536,
        }
    }
}

/// Why there is no scene.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SceneError {
    /// A file cannot be read.
    #[error("{path} can't be read")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file says what cannot be.
    #[error("{place}: {what}")]
    Wrong {
        /// The file, and the line or the element in it.
        place: String,
        /// What was expected, and what is there.
        what: String,
    },
    /// There is too much of something.
    #[error("{place}: more than {limit} {what}: no more are taken")]
    TooMuch {
        /// Where that shows.
        place: String,
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The file's kind is not known.
    #[error("{0}: neither .obj nor .obj.gz, nor 'box'")]
    Unknown(PathBuf),
    /// There is nothing in it.
    #[error("{0} has no triangles")]
    Empty(String),
}

/// Where a scene comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file: .obj, perhaps .gz.
    File(PathBuf),
    /// Made up, of about so many triangles.
    Generated(u32),
}

/// A scene.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What it is called, for people.
    pub name: String,
    /// Its triangles, in the order of the file.
    pub triangles: Vec<Triangle>,
    /// What they are made of.
    pub materials: Vec<Material>,
    /// What is around it, if it says so.
    pub sky: Option<Sky>,
    /// Where it is seen from, if it says so.
    pub camera: Option<Camera>,
    /// What a user should know: such as a library of materials that is missing.
    pub notes: Vec<String>,
}

impl Source {
    /// Reads or makes the scene, as it is: for its picture it still has to be [`staged`](Scene::staged).
    ///
    /// # Errors
    ///
    /// If it cannot be read, with the place in the file.
    pub fn load(&self, limits: &Limits) -> Result<Scene, SceneError> {
        let scene = match self {
            Self::Generated(triangles) => {
                if *triangles > limits.triangles {
                    return Err(SceneError::TooMuch {
                        place: format!("{}:{triangles}", generated::NAME),
                        what: "triangles",
                        limit: limits.triangles.into(),
                    });
                }
                generated::make(*triangles)
            }
            Self::File(path) if is_obj(path) => obj::read(path, limits)?,
            Self::File(path) => return Err(SceneError::Unknown(path.clone())),
        };
        if scene.triangles.is_empty() {
            return Err(SceneError::Empty(scene.name));
        }
        Ok(scene)
    }
}

/// By the ending of the file's name.
fn is_obj(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    name.strip_suffix(".gz").unwrap_or(&name).ends_with(".obj")
}

impl FromStr for Source {
    type Err = String;

    /// A path, or `box`, or `box:TRIANGLES`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, triangles) = text.split_once(':').unwrap_or((text, ""));
        if name != generated::NAME {
            return Ok(Self::File(text.into()));
        }
        if text == name {
            return Ok(Self::Generated(generated::TRIANGLES));
        }
        let count = triangles.parse().ok().filter(|count| *count > 0);
        let count = count.ok_or_else(|| format!("'{triangles}' is no number of triangles"))?;
        Ok(Self::Generated(count))
    }
}

impl Scene {
    /// The box around it.
    pub fn bounds(&self) -> Bounds {
        Bounds::around(self.triangles.iter().flat_map(|triangle| triangle.corners))
    }

    /// Splits it into parts for so many servers.
    ///
    /// # Errors
    ///
    /// If more of it gives off light than every server can know of.
    pub fn split(
        self,
        parts: u16,
        up: DVec3,
        limits: &Limits,
    ) -> Result<(World, Vec<Vec<Triangle>>), SceneError> {
        let lights = Lights::among(&self.triangles, &self.materials);
        for (what, count, limit) in [
            ("triangles that give off light", lights.len(), limits.lamps),
            ("materials", self.materials.len(), limits.materials),
        ] {
            if count > limit {
                return Err(SceneError::TooMuch {
                    place: self.name,
                    what,
                    limit: limit as u64,
                });
            }
        }
        let camera = self.camera;
        let camera = camera.unwrap_or_else(|| stage::overview(&self, up));
        let nudge = 1e-7 * self.bounds().size().length();
        let triangles = self.triangles.len() as u32;
        let parts = split(self.triangles, parts);
        let bounds = |part: &Vec<Triangle>| {
            let union = |bounds: Bounds, triangle: &Triangle| bounds.union(triangle.bounds());
            part.iter().fold(Bounds::EMPTY, union)
        };
        let world = World {
            name: self.name,
            triangles,
            map: Map(parts.iter().map(bounds).collect()),
            materials: self.materials,
            lights,
            sky: self.sky.unwrap_or(Sky::DARK),
            up,
            nudge,
            camera,
        };
        Ok((world, parts))
    }
}
