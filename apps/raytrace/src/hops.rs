//! A picture as multi-hop calls: rays hop from part to part, paths from bounce to bounce.
//!
//! ```text
//!   client ──▶ bounce ──┬─▶ shadow ──▶ shadow ──▶ client      a request for each part that rays go to next
//!                       ├─▶ bounce ──┬─▶ shadow ──▶ client
//!                       │            └─▶ bounce ──▶ …
//!                       └─▶ client                            the light that was found until here
//! ```
//!
//! This is figure 6.3 (b) of the thesis: shadow rays run beside the next bounce, nothing waits for anything, and all light
//! goes straight to the client.

use crate::part::{NoSuchTriangle, Onward};
use crate::path::{Job, Path, Shadow};
use crate::picture::Contribution;
use crate::search::{Search, Step};
use crate::server::{Loaded, RAYS_IN_A_ROW, Server, check_count, check_job};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wallaby::{Many, Request, Status};

/// A ray that looks for its nearest hit, for its own sake.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Tells it from others of the same call.
    pub number: u32,
    /// The ray on its way.
    pub search: Search,
}

/// The hops.
#[wallaby::service(package = "raytrace")]
pub trait Hops {
    /// At the part that paths come to: finds what they hit, and what becomes of them there.
    async fn bounce(job: Job, paths: Vec<Path>) -> Many<Vec<Contribution>>;
    /// At the part that shadow rays come to: their light, if nothing is in the way.
    async fn shadow(job: Job, shadows: Vec<Shadow>) -> Many<Vec<Contribution>>;
    /// At the part that rays come to: their nearest hits, without anything else. `batch`: so many rays a message.
    async fn nearest(probes: Vec<Probe>, batch: u32) -> Many<Vec<Probe>>;
}

#[wallaby::serve]
impl Hops for Server {
    async fn bounce(
        &self,
        request: Request<Many<Vec<Contribution>>>,
        job: Job,
        paths: Vec<Path>,
    ) -> Result<(), Status> {
        check_count(paths.len())?;
        check_job(&job)?;
        let loaded = self.loaded()?;
        let mut onward = Onward::default();
        for (number, some) in paths.chunks(RAYS_IN_A_ROW).enumerate() {
            breathe(number).await;
            let (world, part) = (&loaded.world, &loaded.part);
            part.advance(world, &job, some.iter().copied(), [], &mut onward)?;
        }
        hand_on(&loaded, request, job, onward).await
    }

    async fn shadow(
        &self,
        request: Request<Many<Vec<Contribution>>>,
        job: Job,
        shadows: Vec<Shadow>,
    ) -> Result<(), Status> {
        check_count(shadows.len())?;
        let loaded = self.loaded()?;
        let mut onward = Onward::default();
        for (number, some) in shadows.chunks(RAYS_IN_A_ROW).enumerate() {
            breathe(number).await;
            let (world, part) = (&loaded.world, &loaded.part);
            part.advance(world, &job, [], some.iter().copied(), &mut onward)?;
        }
        hand_on(&loaded, request, job, onward).await
    }

    async fn nearest(
        &self,
        request: Request<Many<Vec<Probe>>>,
        probes: Vec<Probe>,
        batch: u32,
    ) -> Result<(), Status> {
        check_count(probes.len())?;
        let loaded = self.loaded()?;
        let mut certain = Vec::new();
        let mut elsewhere: BTreeMap<u16, Vec<Probe>> = BTreeMap::new();
        for mut probe in probes {
            match loaded.part.follow(&mut probe.search, &loaded.world.map) {
                Step::Visit(part) => elsewhere.entry(part).or_default().push(probe),
                Step::Found(_) | Step::Missed => certain.push(probe),
            }
        }
        if !certain.is_empty() {
            request.reply(certain).await?;
        }
        for (part, probes) in elsewhere {
            for some in probes.chunks(batch.max(1) as usize) {
                let target = hops::nearest(some.to_vec(), batch);
                request.delegate(loaded.server(part)?, target).await?;
            }
        }
        Ok(())
    }
}

/// Between two lots of rays others have their turn, and a call that was given up ends.
pub(crate) async fn breathe(number: usize) {
    if number > 0 {
        tokio::task::yield_now().await;
    }
}

/// Sends what becomes of a request's rays. The last message is the tail call: it takes along how many there were.
async fn hand_on(
    loaded: &Loaded,
    request: Request<Many<Vec<Contribution>>>,
    job: Job,
    mut onward: Onward,
) -> Result<(), Status> {
    onward.join();
    let batch = job.batch.max(1) as usize;
    if !onward.light.is_empty() {
        request.reply(onward.light).await?;
    }
    for (part, shadows) in onward.shadows {
        let server = loaded.server(part)?;
        for some in shadows.chunks(batch) {
            let target = hops::shadow(job, some.to_vec());
            request.delegate(server, target).await?;
        }
    }
    for (part, paths) in onward.paths {
        let server = loaded.server(part)?;
        for some in paths.chunks(batch) {
            let target = hops::bounce(job, some.to_vec());
            request.delegate(server, target).await?;
        }
    }
    Ok(())
}

impl From<NoSuchTriangle> for Status {
    fn from(error: NoSuchTriangle) -> Self {
        Self::invalid_argument(error.to_string())
    }
}
