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
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (settings.under_way / settings.job.batch.max(1)) as usize;
    let most = most.max(processors); // where batches are large, too
    let mut picture = Picture::new(settings.width, settings.height);
    let mut batches = Batches {
        paths: settings.camera_paths(world),
        waiting: BTreeMap::new(),
        world,
    };
    let mut running: JoinSet<Result<(Vec<Contribution>, u64), CallError>> = JoinSet::new();
    loop {
        while running.len() < most
            && let Some((part, paths)) = batches.next()
        {
            let count = paths.len() as u64;
            if let Some(part) = part {
                let light = trace(part, paths);
                running.spawn(async move { Ok((light.await?, count)) });
            } else {
                let light: Vec<_> = paths.iter().map(|path| path.missed(world)).collect();
                running.spawn(async move { Ok((light, count)) });
            }
        }
        let (light, count) = match running.join_next().await {
            None => return Ok(picture),
            Some(Ok(traced)) => traced?,
            // A task that panicked panics here: it is this program's own mistake.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        };
        for contribution in light {
            // Light for a pixel that does not exist would be a server's mistake; there is nothing to add it to.
            let _ = picture.add(contribution);
        }
        picture.count(count);
        watch(&picture);
    }
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
    /// How many places of squares came before, some of them beyond the picture.
    before: u64,
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
            before: 0,
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
}

impl Iterator for CameraPaths {
    type Item = Path;

    fn next(&mut self) -> Option<Path> {
        let Settings { width, height, .. } = self.settings;
        let across = u64::from(width.div_ceil(SQUARE));
        let squares = across * u64::from(height.div_ceil(SQUARE));
        let places = u64::from(SQUARE * SQUARE);
        loop {
            let (square, within) = (self.before / places, (self.before % places) as u32);
            let sample = square.checked_div(squares)?;
            if sample >= self.settings.samples.into() {
                return None;
            }
            self.before += 1;
            let square = square % squares;
            let x = (square % across) as u32 * SQUARE + within % SQUARE;
            let y = (square / across) as u32 * SQUARE + within / SQUARE;
            if x < width && y < height {
                return Some(self.path(x, y, sample as u32));
            }
        }
    }
}
