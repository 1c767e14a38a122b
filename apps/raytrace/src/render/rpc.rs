//! The same picture by plain calls: the client asks each part in turn, and sends what comes back to where it goes on.

use super::Settings;
use crate::client::Client;
use crate::lost::Lost;
use crate::path::{Job, Path, Shadow};
use crate::picture::{Contribution, Picture, join};
use crate::search::Step;
use crate::steps::steps;
use crate::world::World;
use tokio::task::JoinSet;
use wallaby::CallError;

/// Makes a picture.
///
/// # Errors
///
/// If a server fails: which.
pub async fn render(
    client: &Client,
    world: &World,
    settings: &Settings,
    watch: &mut dyn FnMut(&Picture),
) -> Result<Picture, Lost> {
    let trace = |part, paths| {
        let traced = trace(client.clone(), settings.job, part, paths);
        async { Ok(traced.await?.0) }
    };
    let picture = super::render(world, settings, watch, trace).await;
    picture.map_err(|error| Lost::new(client, &error))
}

/// One path, alone: how many calls it took.
///
/// # Errors
///
/// If a server fails.
pub async fn explain(client: &Client, world: &World, job: Job, path: Path) -> Result<u64, Lost> {
    let Step::Visit(part) = path.search.step(&world.map) else {
        return Ok(0);
    };
    let traced = trace(client.clone(), job, part, vec![path]).await;
    let (_, calls) = traced.map_err(|error| Lost::new(client, &error))?;
    Ok(calls)
}

/// All light of some paths that begin at one part, and how many calls it took.
async fn trace(
    client: Client,
    job: Job,
    part: u16,
    paths: Vec<Path>,
) -> Result<(Vec<Contribution>, u64), CallError> {
    let ask = |part, paths: &[Path], shadows: &[Shadow]| {
        let server = steps::within(client.server(part));
        server.advance(job, paths.to_vec(), shadows.to_vec())
    };
    let batch = job.batch.max(1) as usize;
    let (mut light, mut calls) = (Vec::new(), 1);
    let mut running = JoinSet::new();
    running.spawn(ask(part, &paths, &[]).into_future());
    while let Some(answer) = running.join_next().await {
        let onward =
            answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        light.extend(onward.light);
        // Shadow rays beside the next bounce, as with hops.
        for (part, shadows) in onward.shadows {
            for some in shadows.chunks(batch) {
                running.spawn(ask(part, &[], some).into_future());
                calls += 1;
            }
        }
        for (part, paths) in onward.paths {
            for some in paths.chunks(batch) {
                running.spawn(ask(part, some, &[]).into_future());
                calls += 1;
            }
        }
    }
    join(&mut light);
    Ok((light, calls))
}
