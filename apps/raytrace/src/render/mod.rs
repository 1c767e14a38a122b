//! Pictures, made in three ways that give the same bytes: by multi-hop calls, by plain calls, and without servers.

pub mod dpc;
pub mod local;
pub mod rpc;

use crate::camera::{Camera, Lens};
use crate::chance::{Chance, Dimension};
use crate::path::{Job, Path};
use crate::picture::Picture;
use crate::world::World;
use std::fmt;

/// What picture is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Paths for each pixel.
    pub samples: u32,
    /// Where it is taken from; the scene's own camera if not said.
    pub camera: Option<Camera>,
    /// What all paths have in common.
    pub job: Job,
    /// How many paths may be under way at a time: this bounds memory, here and at the servers.
    pub under_way: u32,
}

/// How a picture is made by servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Rays hop from server to server.
    Dpc,
    /// The client asks each server in turn.
    Rpc,
}

/// Told whenever a picture has grown.
pub trait Watch {
    /// The picture until now.
    fn grown(&mut self, picture: &Picture);
}

impl<F: FnMut(&Picture)> Watch for F {
    fn grown(&mut self, picture: &Picture) {
        self(picture);
    }
}

/// The paths of a picture at the camera: all pixels once, then all of them again; in squares, so that paths that follow
/// each other have much of their way in common.
#[derive(Clone, Debug)]
pub struct CameraPaths {
    lens: Lens,
    settings: Settings,
    sample: u32,
    /// The square's corner, and the pixel within it.
    corner: (u32, u32),
    within: u32,
}

const SQUARE: u32 = 16;

impl Settings {
    /// How many paths the picture takes.
    pub fn paths(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height) * u64::from(self.samples)
    }

    /// How many messages of rays may be under way.
    pub fn calls(&self) -> usize {
        (self.under_way / self.job.batch.max(1)).max(1) as usize
    }

    /// The paths at the camera.
    pub fn camera_paths(&self, world: &World) -> CameraPaths {
        let camera = self.camera.unwrap_or(world.camera);
        CameraPaths {
            lens: camera.lens(self.width, self.height, world.up),
            settings: *self,
            sample: 0,
            corner: (0, 0),
            within: 0,
        }
    }
}

impl CameraPaths {
    /// The path of a sample of a pixel.
    pub fn path(&self, x: u32, y: u32, sample: u32) -> Path {
        let pixel = y * self.settings.width + x;
        let chance = Chance::new(self.settings.job.seed, pixel, sample);
        let across = f64::from(x) + chance.draw(0, Dimension::Across);
        let down = f64::from(y) + chance.draw(0, Dimension::Down);
        Path::new(pixel, sample, self.lens.ray(across, down))
    }

    fn step(&mut self) {
        self.within += 1;
        if self.within < SQUARE * SQUARE {
            return;
        }
        self.within = 0;
        self.corner.0 += SQUARE;
        if self.corner.0 >= self.settings.width {
            self.corner = (0, self.corner.1 + SQUARE);
        }
        if self.corner.1 >= self.settings.height {
            self.corner = (0, 0);
            self.sample += 1;
        }
    }
}

impl Iterator for CameraPaths {
    type Item = Path;

    fn next(&mut self) -> Option<Path> {
        let Settings {
            width,
            height,
            samples,
            ..
        } = self.settings;
        if width == 0 || height == 0 {
            return None;
        }
        while self.sample < samples {
            let x = self.corner.0 + self.within % SQUARE;
            let y = self.corner.1 + self.within / SQUARE;
            let sample = self.sample;
            self.step();
            if x < width && y < height {
                return Some(self.path(x, y, sample));
            }
        }
        None
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dpc => "DPC",
            Self::Rpc => "RPC",
        })
    }
}
