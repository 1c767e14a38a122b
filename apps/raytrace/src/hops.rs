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
use std::collections::VecDeque;
use wallaby::{Address, Code, Many, Request, Status};

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

/// What leaves a server.
enum Message {
    Light(Vec<Contribution>),
    Paths(u16, Vec<Path>),
    Shadows(u16, Vec<Shadow>),
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
            breathe(number, request.is_cancelled()).await?;
            let (world, part) = (&loaded.world, &loaded.part);
            let advanced = part.advance(world, &job, some.iter().copied(), [], &mut onward);
            advanced.map_err(no_such_triangle)?;
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
            breathe(number, request.is_cancelled()).await?;
            let (world, part) = (&loaded.world, &loaded.part);
            let advanced = part.advance(world, &job, [], some.iter().copied(), &mut onward);
            advanced.map_err(no_such_triangle)?;
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
        for (part, probes) in elsewhere {
            for some in probes.chunks(batch.max(1) as usize) {
                let target = hops::nearest(some.to_vec(), batch);
                request.delegate(loaded.server(part)?, target).await?;
            }
        }
        if !certain.is_empty() {
            request.respond(certain).await?;
        }
        Ok(())
    }
}

/// Between two lots of rays others have their turn, and a call that was given up ends.
async fn breathe(number: usize, is_cancelled: bool) -> Result<(), Status> {
    if number > 0 {
        tokio::task::yield_now().await;
        if is_cancelled {
            return Err(Status::new(Code::Cancelled, "the picture was given up"));
        }
    }
    Ok(())
}

/// Sends what becomes of a request's rays: the last message is a tail call.
async fn hand_on(
    loaded: &Loaded,
    request: Request<Many<Vec<Contribution>>>,
    job: Job,
    mut onward: Onward,
) -> Result<(), Status> {
    onward.join();
    let batch = job.batch.max(1) as usize;
    let mut messages = VecDeque::new();
    if !onward.light.is_empty() {
        messages.push_back(Message::Light(onward.light));
    }
    for (part, shadows) in onward.shadows {
        let some = shadows
            .chunks(batch)
            .map(|some| Message::Shadows(part, some.to_vec()));
        messages.extend(some);
    }
    for (part, paths) in onward.paths {
        let some = paths
            .chunks(batch)
            .map(|some| Message::Paths(part, some.to_vec()));
        messages.extend(some);
    }
    let last = messages.pop_back();
    for message in messages {
        match message {
            Message::Light(light) => request.reply(light).await?,
            Message::Shadows(part, shadows) => {
                request
                    .delegate(loaded.server(part)?, hops::shadow(job, shadows))
                    .await?;
            }
            Message::Paths(part, paths) => {
                request
                    .delegate(loaded.server(part)?, hops::bounce(job, paths))
                    .await?;
            }
        }
    }
    let server = |part: u16| -> Result<Address, Status> { loaded.server(part).cloned() };
    match last {
        None => {}
        Some(Message::Light(light)) => request.respond(light).await?,
        Some(Message::Shadows(part, shadows)) => {
            let target = hops::shadow(job, shadows);
            request.forward(server(part)?, target).await?;
        }
        Some(Message::Paths(part, paths)) => {
            let target = hops::bounce(job, paths);
            request.forward(server(part)?, target).await?;
        }
    }
    Ok(())
}

fn no_such_triangle(error: NoSuchTriangle) -> Status {
    Status::new(Code::InvalidArgument, error.to_string())
}
