//! A picture by multi-hop calls: one call for each batch of paths, whose light comes from wherever it is found.

use super::{Settings, Watch};
use crate::client::Client;
use crate::hops::hops;
use crate::lost::Lost;
use crate::path::{Job, Path};
use crate::picture::{Contribution, Picture, join};
use crate::search::Step;
use crate::world::World;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use wallaby::{Budget, CallError, Failure, LimitReached, Trace};

/// The calls of a picture.
struct Calls<'a> {
    client: &'a Client,
    job: Job,
    most: usize,
    running: JoinSet<Result<(Vec<Contribution>, u64), CallError>>,
    picture: Picture,
    watch: &'a mut dyn Watch,
}

/// Makes a picture.
///
/// # Errors
///
/// If a server fails: which, and by which way the rays came to it. All other calls are given up then.
pub async fn render(
    client: &Client,
    world: &World,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Picture, Lost> {
    let mut calls = Calls {
        client,
        job: settings.job,
        most: settings.calls(),
        running: JoinSet::new(),
        picture: Picture::new(settings.width, settings.height),
        watch,
    };
    // Paths wait for others that begin at the same part.
    let mut waiting: BTreeMap<u16, Vec<Path>> = BTreeMap::new();
    for path in settings.camera_paths(world) {
        let Step::Visit(part) = path.search.step(&world.map) else {
            calls.take(vec![path.missed(world)], 1);
            continue;
        };
        let paths = waiting.entry(part).or_default();
        paths.push(path);
        if paths.len() >= settings.job.batch.max(1) as usize {
            let paths = std::mem::take(paths);
            calls.begin(part, paths).await?;
        }
    }
    for (part, paths) in waiting {
        if !paths.is_empty() {
            calls.begin(part, paths).await?;
        }
    }
    while !calls.running.is_empty() {
        calls.end_one().await?;
    }
    Ok(calls.picture)
}

impl Calls<'_> {
    /// Begins one, when there is room for it.
    async fn begin(&mut self, part: u16, paths: Vec<Path>) -> Result<(), Lost> {
        while self.running.len() >= self.most {
            self.end_one().await?;
        }
        self.running
            .spawn(trace(self.client.clone(), self.job, part, paths));
        Ok(())
    }

    async fn end_one(&mut self) -> Result<(), Lost> {
        match self.running.join_next().await {
            Some(Ok(Ok((light, paths)))) => self.take(light, paths),
            Some(Ok(Err(error))) => return Err(Lost::new(self.client, &error)),
            // A task that panicked panics here: it is this program's own mistake.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => {}
        }
        Ok(())
    }

    fn take(&mut self, light: Vec<Contribution>, paths: u64) {
        for contribution in light {
            // Light for a pixel that does not exist would be a server's mistake; there is nothing to add it to.
            let _ = self.picture.add(contribution);
        }
        self.picture.count(paths);
        self.watch.grown(&self.picture);
    }
}

/// All light of some paths that begin at one part, and how many they were.
///
/// A call has a budget of branches, and its client room for so many, which paths that scatter in all directions may use up:
/// then it is made again in two halves. So the light is kept until a call is complete.
///
/// # Errors
///
/// If a server fails.
pub async fn trace(
    client: Client,
    job: Job,
    part: u16,
    paths: Vec<Path>,
) -> Result<(Vec<Contribution>, u64), CallError> {
    let count = paths.len() as u64;
    let mut light = Vec::new();
    let mut left = vec![paths];
    while let Some(mut paths) = left.pop() {
        match trace_once(&client, job, part, paths.clone()).await {
            Ok(more) => light.extend(more),
            Err(error) if is_too_wide(&error) && paths.len() > 1 => {
                let half = paths.split_off(paths.len() / 2);
                left.extend([half, paths]);
            }
            Err(error) => return Err(error),
        }
    }
    join(&mut light);
    Ok((light, count))
}

async fn trace_once(
    client: &Client,
    job: Job,
    part: u16,
    paths: Vec<Path>,
) -> Result<Vec<Contribution>, CallError> {
    let mut call = hops::within(client.server(part)).bounce(job, paths);
    let (mut light, mut room) = (Vec::new(), 4096);
    while let Some(more) = call.next().await {
        light.extend(more?);
        // Much of it is for the same pixels: of those one sum is kept.
        if light.len() > room {
            join(&mut light);
            room = room.max(2 * light.len());
        }
    }
    Ok(light)
}

/// Whether a tree has more branches than a call may have, or than its client has room for.
fn is_too_wide(error: &CallError) -> bool {
    let limit = error.failure().and_then(Failure::limit_reached);
    matches!(
        limit,
        Some(
            LimitReached::Branches { .. }
                | LimitReached::Budget {
                    budget: Budget::Requests,
                    ..
                }
        )
    )
}

/// One path as a traced call: its light, and the tree of its hops.
///
/// # Errors
///
/// If a server fails.
pub async fn explain(
    client: &Client,
    world: &World,
    job: Job,
    path: Path,
) -> Result<(Vec<Contribution>, Option<Trace>), Lost> {
    let Step::Visit(part) = path.search.step(&world.map) else {
        return Ok((vec![path.missed(world)], None));
    };
    let traced = client.clone().traced();
    let mut call = hops::within(traced.server(part)).bounce(job, vec![path]);
    let mut light = Vec::new();
    while let Some(more) = call.next().await {
        light.extend(more.map_err(|error| Lost::new(client, &error))?);
    }
    join(&mut light);
    Ok((light, Some(call.trace())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program's calls reach the first limit; `tests/all/servers.rs` has a client that reaches the second one sooner.
    #[test]
    fn what_has_too_many_branches_is_too_wide() {
        let too_wide = |limit| is_too_wide(&CallError::Failed(Failure::LimitReached(limit)));
        let over = |budget| LimitReached::Budget { budget, limit: 9 };
        assert!(too_wide(over(Budget::Requests)));
        assert!(too_wide(LimitReached::Branches { limit: 9 }));
        assert!(!too_wide(over(Budget::Responses)));
        assert!(!is_too_wide(&CallError::Failed(Failure::Closed)));
    }
}
