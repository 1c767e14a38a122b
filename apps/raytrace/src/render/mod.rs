//! Pictures, made in three ways that give the same bytes: by multi-hop calls, by plain calls, and without servers.

pub mod dpc;
pub mod local;
pub mod rpc;

use crate::camera::{Camera, Lens};
use crate::chance::{Chance, Dimension};
use crate::path::{Job, Path};
use crate::picture::{Contribution, Picture};
use crate::search::Step;
use crate::world::World;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use wallaby::CallError;

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

/// Makes a picture of batches of paths, some at a time; `trace` finds all light of one, whose paths begin at this part. `watch` is
/// told whenever the picture has grown.
async fn render<F>(
    world: &World,
    settings: &Settings,
    watch: &mut dyn FnMut(&Picture),
    trace: impl Fn(u16, Vec<Path>) -> F,
) -> Result<Picture, CallError>
where
    F: Future<Output = Result<Vec<Contribution>, CallError>> + Send + 'static,
{
    let most = (settings.under_way / settings.job.batch.max(1)).max(1) as usize;
    let mut picture = Picture::new(settings.width, settings.height);
    let mut batches = Batches {
        paths: settings.camera_paths(world),
        waiting: BTreeMap::new(),
        world,
    };
    let mut running = JoinSet::new();
    loop {
        while running.len() < most
            && let Some((part, paths)) = batches.next()
        {
            let count = paths.len() as u64;
            match part {
                Some(part) => {
                    let light = trace(part, paths);
                    running.spawn(async move { Ok::<_, CallError>((light.await?, count)) });
                }
                None => grow(
                    &mut picture,
                    paths.iter().map(|path| path.missed(world)),
                    count,
                ),
            }
        }
        let (light, count) = match running.join_next().await {
            None => return Ok(picture),
            Some(Ok(traced)) => traced?,
            // A task that panicked panics here: it is this program's own mistake.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        };
        grow(&mut picture, light, count);
        watch(&picture);
    }
}

fn grow(picture: &mut Picture, light: impl IntoIterator<Item = Contribution>, paths: u64) {
    for contribution in light {
        // Light for a pixel that does not exist would be a server's mistake; there is nothing to add it to.
        let _ = picture.add(contribution);
    }
    picture.count(paths);
}

/// Paths of a picture in batches that begin at the same part; or at none, since they hit nothing.
struct Batches<'a> {
    paths: CameraPaths,
    waiting: BTreeMap<Option<u16>, Vec<Path>>,
    world: &'a World,
}

impl Batches<'_> {
    fn next(&mut self) -> Option<(Option<u16>, Vec<Path>)> {
        let batch = self.paths.settings.job.batch.max(1) as usize;
        for path in self.paths.by_ref() {
            let part = match path.search.step(&self.world.map) {
                Step::Visit(part) => Some(part),
                Step::Found(_) | Step::Missed => None,
            };
            let paths = self.waiting.entry(part).or_default();
            paths.push(path);
            if paths.len() >= batch {
                return Some((part, std::mem::take(paths)));
            }
        }
        self.waiting.pop_first()
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
        let Settings { width, height, .. } = self.settings;
        if width == 0 || height == 0 {
            return None;
        }
        while self.sample < self.settings.samples {
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
