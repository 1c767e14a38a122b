//! The same picture within this process: all parts are here, and threads share the paths.

use super::{Settings, Watch};
use crate::part::{Onward, Part};
use crate::picture::Picture;
use crate::search::Map;
use crate::triangle::Triangle;
use crate::world::World;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// A scene in one part.
#[derive(Debug)]
pub struct Local {
    world: World,
    part: Part,
}

/// Tells threads to end when it goes: so a picture that is given up costs nothing more.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Local {
    /// Of all triangles of a scene, however it was split.
    pub fn new(world: World, triangles: Vec<Triangle>) -> Self {
        let part = Part::new(0, triangles);
        let map = Map(vec![part.bounds()]);
        Self {
            world: World { map, ..world },
            part,
        }
    }

    /// What is known of the scene.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The only part.
    pub fn part(&self) -> &Part {
        &self.part
    }
}

/// Makes a picture, on as many threads as there are processors.
pub async fn render(scene: Arc<Local>, settings: &Settings, watch: &mut dyn Watch) -> Picture {
    let paths = Arc::new(Mutex::new(settings.camera_paths(&scene.world)));
    let stop = Stop(Arc::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (done, mut arriving) = mpsc::channel::<(Onward, u64)>(2 * threads);
    for _ in 0..threads {
        let (scene, paths) = (Arc::clone(&scene), Arc::clone(&paths));
        let (done, stop) = (done.clone(), Arc::clone(&stop.0));
        let (job, batch) = (settings.job, settings.job.batch.max(1) as usize);
        // They end by themselves: with the last path, or when nobody takes what they find.
        drop(tokio::task::spawn_blocking(move || {
            while !stop.load(Ordering::Relaxed) {
                let some: Vec<_> = {
                    let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
                    paths.by_ref().take(batch).collect()
                };
                let count = some.len() as u64;
                let mut onward = Onward::default();
                // All triangles are in this part: none can be missing.
                let advanced = scene
                    .part
                    .advance(&scene.world, &job, some, [], &mut onward);
                debug_assert_eq!(advanced, Ok(()));
                onward.join();
                if count == 0 || done.blocking_send((onward, count)).is_err() {
                    return;
                }
            }
        }));
    }
    drop(done);
    let mut picture = Picture::new(settings.width, settings.height);
    while let Some((onward, count)) = arriving.recv().await {
        for contribution in onward.light {
            // Every path of this picture has a pixel of it.
            let _ = picture.add(contribution);
        }
        picture.count(count);
        watch.grown(&picture);
    }
    drop(stop);
    picture
}
