//! The same picture by plain calls: the client asks each part in turn, and sorts what comes back by where it goes on.
//!
//! It has one advantage over hops: rays of different batches that go to the same part wait for each other here, and go
//! there in one message.

use super::{CameraPaths, Settings, Watch};
use crate::client::Client;
use crate::lost::Lost;
use crate::part::Onward;
use crate::path::{Job, Path, Shadow};
use crate::picture::Picture;
use crate::search::Step;
use crate::steps::steps;
use crate::world::World;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use wallaby::CallError;

/// Rays that wait for a part.
#[derive(Default)]
struct Waiting {
    paths: BTreeMap<u16, Vec<Path>>,
    shadows: BTreeMap<u16, Vec<Shadow>>,
}

/// Some rays for one part.
struct Batch {
    part: u16,
    paths: Vec<Path>,
    shadows: Vec<Shadow>,
}

/// Makes a picture.
///
/// # Errors
///
/// If a server fails: which.
pub async fn render(
    client: &Client,
    world: &World,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Picture, Lost> {
    let mut picture = Picture::new(settings.width, settings.height);
    let mut fresh = settings.camera_paths(world);
    let mut waiting = Waiting::default();
    let mut running = JoinSet::new();
    let (batch, most) = (settings.job.batch.max(1) as usize, settings.calls());
    let mut begun = 0u64;
    loop {
        while running.len() < most {
            // Whoever is under way goes first; then new paths, if there is room; then small batches, rather than none.
            let next = match waiting.take(batch, batch) {
                Some(next) => Some(next),
                None if waiting.fill(&mut fresh, settings, world, &mut picture, &mut begun) => {
                    continue;
                }
                None => waiting.take(1, batch),
            };
            let Some(next) = next else { break };
            running.spawn(ask(client.clone(), settings.job, next));
        }
        let onward = match running.join_next().await {
            None => return Ok(picture),
            Some(Ok(Ok(onward))) => onward,
            Some(Ok(Err(error))) => return Err(Lost::new(client, &error)),
            // A task that panicked panics here: it is this program's own mistake.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        };
        for contribution in &onward.light {
            // Light for a pixel that does not exist would be a server's mistake; there is nothing to add it to.
            let _ = picture.add(*contribution);
        }
        waiting.add(onward);
        let done = begun.saturating_sub(waiting.count() as u64 + (running.len() * batch) as u64);
        picture.count(done.saturating_sub(picture.paths()));
        if running.is_empty() && waiting.count() == 0 {
            picture.count(begun.saturating_sub(picture.paths()));
        }
        watch.grown(&picture);
    }
}

async fn ask(client: Client, job: Job, batch: Batch) -> Result<Onward, CallError> {
    let server = steps::within(client.server(batch.part));
    server.advance(job, batch.paths, batch.shadows).await
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
    let mut running = JoinSet::new();
    let first = Batch {
        part,
        paths: vec![path],
        shadows: Vec::new(),
    };
    running.spawn(ask(client.clone(), job, first));
    let mut calls = 1;
    while let Some(answer) = running.join_next().await {
        let answer = answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let onward = answer.map_err(|error| Lost::new(client, &error))?;
        // Shadow rays beside the next bounce, as with hops.
        for (part, shadows) in onward.shadows {
            let paths = Vec::new();
            running.spawn(ask(
                client.clone(),
                job,
                Batch {
                    part,
                    paths,
                    shadows,
                },
            ));
            calls += 1;
        }
        for (part, paths) in onward.paths {
            let shadows = Vec::new();
            running.spawn(ask(
                client.clone(),
                job,
                Batch {
                    part,
                    paths,
                    shadows,
                },
            ));
            calls += 1;
        }
    }
    Ok(calls)
}

impl Waiting {
    fn add(&mut self, onward: Onward) {
        for (part, paths) in onward.paths {
            self.paths.entry(part).or_default().extend(paths);
        }
        for (part, shadows) in onward.shadows {
            self.shadows.entry(part).or_default().extend(shadows);
        }
    }

    fn count(&self) -> usize {
        let paths: usize = self.paths.values().map(Vec::len).sum();
        paths + self.shadows.values().map(Vec::len).sum::<usize>()
    }

    /// Rays for the part that most wait for, if there are at least so many; not more than `most`.
    fn take(&mut self, least: usize, most: usize) -> Option<Batch> {
        let count = |part: &u16| {
            let paths = self.paths.get(part).map_or(0, Vec::len);
            paths + self.shadows.get(part).map_or(0, Vec::len)
        };
        let parts = self.paths.keys().chain(self.shadows.keys());
        let (rays, part) = parts.map(|part| (count(part), *part)).max()?;
        if rays < least.max(1) {
            return None;
        }
        let mut shadows = self.shadows.remove(&part).unwrap_or_default();
        let mut paths = self.paths.remove(&part).unwrap_or_default();
        let later = shadows.split_off(shadows.len().min(most));
        if !later.is_empty() {
            self.shadows.insert(part, later);
        }
        let later = paths.split_off(paths.len().min(most - shadows.len()));
        if !later.is_empty() {
            self.paths.insert(part, later);
        }
        Some(Batch {
            part,
            paths,
            shadows,
        })
    }

    /// Takes new paths until one part has a batch of them; whether there were any.
    fn fill(
        &mut self,
        fresh: &mut CameraPaths,
        settings: &Settings,
        world: &World,
        picture: &mut Picture,
        begun: &mut u64,
    ) -> bool {
        let before = *begun;
        while self.count() < settings.under_way as usize {
            let Some(path) = fresh.next() else { break };
            *begun += 1;
            let Step::Visit(part) = path.search.step(&world.map) else {
                let _ = picture.add(path.missed(world));
                continue;
            };
            let paths = self.paths.entry(part).or_default();
            paths.push(path);
            if paths.len() >= settings.job.batch.max(1) as usize {
                break;
            }
        }
        *begun > before
    }
}
