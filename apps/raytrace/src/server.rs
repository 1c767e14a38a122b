//! One server: a part of a scene, and what its handlers do with it.

use crate::hops::hops;
use crate::hosting::hosting;
use crate::part::Part;
use crate::path::Job;
use crate::steps::steps;
use crate::triangle::Triangle;
use crate::world::World;
use anyhow::Context;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use wallaby::{Address, Endpoint, ExecutorConfig, Schedule, Status};

/// More rays than this in a request are refused.
pub const MOST_RAYS: usize = 65_536;
/// Paths that may touch more surfaces than this are refused.
pub const MOST_BOUNCES: u16 = 256;
/// Between so many rays a server looks after its other requests.
pub const RAYS_IN_A_ROW: usize = 512;

/// A server. One value serves all services: see [`serve`](Self::serve).
#[derive(Debug)]
pub struct Server {
    pub(crate) state: RwLock<State>,
}

#[derive(Debug)]
pub(crate) enum State {
    /// It has no scene yet.
    Empty,
    /// Triangles come.
    Receiving(Box<Receiving>),
    /// It serves.
    Ready(Arc<Loaded>),
}

/// A part that is on its way here.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) number: u16,
    pub(crate) expected: usize,
    pub(crate) triangles: Vec<Triangle>,
    pub(crate) world: World,
    pub(crate) servers: Vec<Address>,
}

/// A part of a scene, ready for rays.
#[derive(Debug)]
pub struct Loaded {
    /// What is known of the whole scene.
    pub world: World,
    /// The part.
    pub part: Part,
    pub(crate) servers: Vec<Address>,
}

impl Server {
    /// An endpoint for a server. Calls that are under way go before new ones, since each of them holds rays; all that the
    /// client lets be under way has room.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub async fn endpoint(listen: &str, link_delay: Duration) -> anyhow::Result<Endpoint> {
        // A server that is busy with rays is slow to accept.
        const DIAL: Duration = Duration::from_secs(10);
        let executor = ExecutorConfig {
            concurrency: 1 << 17,
            queue: 1 << 17,
            schedule: Schedule::OldestCall,
        };
        let builder = Endpoint::builder().listen(listen).executor(executor);
        let builder = builder.remember(1 << 18, 16 << 20).dial_timeout(DIAL);
        wallaby_link::emulate(builder, link_delay, None)?
            .bind()
            .await
            .with_context(|| format!("a server can't listen at {listen}"))
    }

    /// Serves on an endpoint; it gets its part of a scene by calls.
    ///
    /// # Errors
    ///
    /// If the endpoint serves one already.
    pub fn serve(endpoint: &Endpoint) -> anyhow::Result<Arc<Self>> {
        let server = Arc::new(Self {
            state: RwLock::new(State::Empty),
        });
        for service in [
            hosting::service(Arc::clone(&server)),
            hops::service(Arc::clone(&server)),
            steps::service(Arc::clone(&server)),
        ] {
            let served = endpoint.serve(service);
            served.context("this endpoint serves a scene already")?;
        }
        Ok(server)
    }

    /// Its part.
    ///
    /// # Errors
    ///
    /// The status `FailedPrecondition` if it has none yet.
    pub fn loaded(&self) -> Result<Arc<Loaded>, Status> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(loaded) => Ok(Arc::clone(loaded)),
            _ => Err(not_now("this server has no scene yet")),
        }
    }
}

impl Loaded {
    /// The server of a part.
    ///
    /// # Errors
    ///
    /// The status `InvalidArgument` if there is no such part.
    pub fn server(&self, part: u16) -> Result<&Address, Status> {
        let (server, parts) = (self.servers.get(usize::from(part)), self.servers.len());
        server.ok_or_else(|| {
            Status::invalid_argument(format!("there is no part {part}: the scene has {parts}"))
        })
    }
}

/// Refuses work that is larger than any client here asks for.
///
/// # Errors
///
/// The status `InvalidArgument`.
pub fn check_job(job: &Job) -> Result<(), Status> {
    let what = format_args!("{} bounces: at most {MOST_BOUNCES} are taken", job.bounces);
    check(job.bounces <= MOST_BOUNCES, what)
}

/// Refuses requests that are larger than any client here makes.
///
/// # Errors
///
/// The status `InvalidArgument`.
pub fn check_count(rays: usize) -> Result<(), Status> {
    let what = format_args!("{rays} rays in a request: at most {MOST_RAYS} are taken");
    check(rays <= MOST_RAYS, what)
}

pub(crate) fn check(is_right: bool, what: std::fmt::Arguments<'_>) -> Result<(), Status> {
    match is_right {
        true => Ok(()),
        false => Err(Status::invalid_argument(what.to_string())),
    }
}

pub(crate) fn not_now(what: &str) -> Status {
    Status::failed_precondition(what)
}
