//! What every server and the client know of a scene besides its triangles.

use crate::camera::Camera;
use crate::light::{Lights, Sky};
use crate::material::Material;
use crate::search::Map;
use glam::DVec3;
use serde::{Deserialize, Serialize};

/// All of a scene except for its triangles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct World {
    /// What it is called, for people.
    pub name: String,
    /// How many triangles it has.
    pub triangles: u32,
    /// Where its parts are.
    pub map: Map,
    /// What its triangles are made of.
    pub materials: Vec<Material>,
    /// Triangles that give off light.
    pub lights: Lights,
    /// What is around it.
    pub sky: Sky,
    /// Which direction is up; of length 1.
    pub up: DVec3,
    /// How far from a surface the next ray begins, so that it does not hit the same surface again.
    pub nudge: f64,
    /// Where pictures are taken from if nobody says.
    pub camera: Camera,
}
