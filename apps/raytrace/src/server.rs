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
use wallaby::{Address, Code, Endpoint, ExecutorConfig, Schedule, Status};

/// More rays than this in a request are refused.
pub const MOST_RAYS: usize = 65_536;
/// Paths that may touch more surfaces than this are refused.
pub const MOST_BOUNCES: u16 = 256;
/// Between so many rays a server looks after its other requests.
pub const RAYS_IN_A_ROW: usize = 512;

/// A server. One value serves all services: see [`serve`](Self::serve).
#[derive(Debug)]
pub struct Server {
    state: RwLock<State>,
}

#[derive(Debug)]
enum State {
    /// It has no scene yet.
    Empty,
    /// Triangles come.
    Receiving(Box<Receiving>),
    /// It serves.
    Ready(Arc<Loaded>),
}

/// A part that is on its way here.
#[derive(Debug)]
struct Receiving {
    number: u16,
    expected: usize,
    triangles: Vec<Triangle>,
    world: World,
    servers: Vec<Address>,
}

/// A part of a scene, ready for rays.
#[derive(Debug)]
pub struct Loaded {
    /// What is known of the whole scene.
    pub world: World,
    /// The part.
    pub part: Part,
    servers: Vec<Address>,
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

    /// Makes ready for a part of so many triangles.
    ///
    /// # Errors
    ///
    /// A status if it has a part already, or if there can be no such part.
    pub fn begin(
        &self,
        number: u16,
        expected: u32,
        world: World,
        servers: Vec<Address>,
    ) -> Result<(), Status> {
        if usize::from(number) >= servers.len() || servers.len() != world.map.0.len() {
            let what = format!(
                "part {number} of a scene in {} parts for {} servers",
                world.map.0.len(),
                servers.len()
            );
            return Err(Status::new(Code::InvalidArgument, what));
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Empty) {
            return Err(Status::new(
                Code::AlreadyExists,
                "this server has a scene already",
            ));
        }
        *state = State::Receiving(Box::new(Receiving {
            number,
            expected: expected as usize,
            triangles: Vec::new(),
            world,
            servers,
        }));
        Ok(())
    }

    /// Takes some triangles of its part.
    ///
    /// # Errors
    ///
    /// A status if there are more than were announced.
    pub fn add(&self, more: &[Triangle]) -> Result<(), Status> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State::Receiving(receiving) = &mut *state else {
            return Err(not_now("no triangles were announced"));
        };
        let (count, expected) = (receiving.triangles.len() + more.len(), receiving.expected);
        if count > expected {
            let what = format!("{count} triangles, but {expected} were announced");
            return Err(Status::new(Code::InvalidArgument, what));
        }
        receiving.triangles.extend_from_slice(more);
        Ok(())
    }

    /// All triangles are here: from now on it serves rays.
    ///
    /// # Errors
    ///
    /// A status if some are missing.
    pub fn ready(&self) -> Result<(), Status> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let receiving = match std::mem::replace(&mut *state, State::Empty) {
            State::Receiving(receiving) if receiving.triangles.len() == receiving.expected => {
                receiving
            }
            before => {
                *state = before;
                return Err(not_now("not all triangles of this part are here"));
            }
        };
        *state = State::Ready(Arc::new(Loaded {
            part: Part::new(receiving.number, receiving.triangles),
            world: receiving.world,
            servers: receiving.servers,
        }));
        Ok(())
    }
}

impl Loaded {
    /// The server of a part.
    ///
    /// # Errors
    ///
    /// The status `InvalidArgument` if there is no such part.
    pub fn server(&self, part: u16) -> Result<&Address, Status> {
        let server = self.servers.get(usize::from(part));
        server.ok_or_else(|| {
            let what = format!(
                "there is no part {part}: the scene has {}",
                self.servers.len()
            );
            Status::new(Code::InvalidArgument, what)
        })
    }
}

/// Refuses work that is larger than any client here asks for.
///
/// # Errors
///
/// The status `InvalidArgument`.
pub fn check_job(job: &Job) -> Result<(), Status> {
    match job.bounces <= MOST_BOUNCES {
        true => Ok(()),
        false => {
            let what = format!("{} bounces: at most {MOST_BOUNCES} are taken", job.bounces);
            Err(Status::new(Code::InvalidArgument, what))
        }
    }
}

/// Refuses requests that are larger than any client here makes.
///
/// # Errors
///
/// The status `InvalidArgument`.
pub fn check_count(rays: usize) -> Result<(), Status> {
    match rays <= MOST_RAYS {
        true => Ok(()),
        false => {
            let what = format!("{rays} rays in a request: at most {MOST_RAYS} are taken");
            Err(Status::new(Code::InvalidArgument, what))
        }
    }
}

fn not_now(what: &str) -> Status {
    Status::new(Code::FailedPrecondition, what)
}
