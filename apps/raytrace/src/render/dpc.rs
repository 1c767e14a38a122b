//! A picture by multi-hop calls: one call for each batch of paths, whose light comes from wherever it is found.

use super::Settings;
use crate::client::Client;
use crate::hops::hops;
use crate::lost::Lost;
use crate::path::{Job, Path};
use crate::picture::{Contribution, Picture, join};
use crate::search::Step;
use crate::world::World;
use wallaby::{Budget, CallError, Failure, LimitReached, Trace};

/// Makes a picture.
///
/// # Errors
///
/// If a server fails: which, and by which way the rays came to it. All other calls are given up then.
pub async fn render(
    client: &Client,
    world: &World,
    settings: &Settings,
    watch: &mut dyn FnMut(&Picture),
) -> Result<Picture, Lost> {
    let trace = |part, paths| trace(client.clone(), settings.job, part, paths);
    let picture = super::render(world, settings, watch, trace).await;
    picture.map_err(|error| Lost::new(client, &error))
}

/// All light of some paths that begin at one part.
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
) -> Result<Vec<Contribution>, CallError> {
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
    Ok(light)
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
