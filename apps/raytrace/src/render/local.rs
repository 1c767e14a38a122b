//! The same picture within this process: all parts are here, and threads share the paths.

use super::Settings;
use crate::part::{Onward, Part};
use crate::picture::Picture;
use crate::search::Map;
use crate::triangle::Triangle;
use crate::world::World;
use std::sync::Arc;
use tokio::task::spawn_blocking;
use wallaby::CallError;

/// A scene in one part.
#[derive(Debug)]
pub struct Local {
    world: World,
    part: Part,
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
}

/// Makes a picture, on as many threads as it has batches under way.
///
/// # Errors
///
/// Never: no server can fail.
pub async fn render(
    scene: Arc<Local>,
    settings: &Settings,
    watch: &mut dyn FnMut(&Picture),
) -> Result<Picture, CallError> {
    let job = settings.job;
    let trace = |_, paths| {
        let scene = Arc::clone(&scene);
        let traced = spawn_blocking(move || {
            let mut onward = Onward::default();
            // All triangles are in this part: none can be missing.
            let advanced = scene
                .part
                .advance(&scene.world, &job, paths, [], &mut onward);
            debug_assert_eq!(advanced, Ok(()));
            onward.join();
            onward.light
        });
        async {
            let traced = traced.await;
            Ok(traced.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
        }
    };
    super::render(&scene.world, settings, watch, trace).await
}
