//! How servers get their parts of a scene.

use crate::client::Client;
use crate::part::Part;
use crate::server::{Loaded, Receiving, Server, State, check, not_now};
use crate::triangle::Triangle;
use crate::world::World;
use std::sync::{Arc, PoisonError};
use wallaby::{Address, CallError, Code, Status};

/// Hosts a part of a scene.
#[wallaby::service(package = "raytrace")]
pub trait Hosting {
    /// Announces a part of so many triangles, what is known of the whole scene, and who has the parts of it.
    async fn begin(number: u16, triangles: u32, world: World, servers: Vec<Address>);
    /// Some of the triangles.
    async fn add(triangles: Vec<Triangle>);
    /// These were all: prepares them.
    async fn ready();
}

#[wallaby::serve]
impl Hosting for Server {
    async fn begin(
        &self,
        number: u16,
        triangles: u32,
        world: World,
        servers: Vec<Address>,
    ) -> Result<(), Status> {
        let (parts, count) = (world.map.0.len(), servers.len());
        let what = format_args!("part {number} of a scene in {parts} parts for {count} servers");
        check(usize::from(number) < count && count == parts, what)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Empty) {
            let what = "this server has a scene already";
            return Err(Status::new(Code::AlreadyExists, what));
        }
        *state = State::Receiving(Box::new(Receiving {
            number,
            expected: triangles as usize,
            triangles: Vec::new(),
            world,
            servers,
        }));
        Ok(())
    }

    async fn add(&self, triangles: Vec<Triangle>) -> Result<(), Status> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State::Receiving(receiving) = &mut *state else {
            return Err(not_now("no triangles were announced"));
        };
        let count = receiving.triangles.len() + triangles.len();
        let expected = receiving.expected;
        let what = format_args!("{count} triangles, but {expected} were announced");
        check(count <= expected, what)?;
        receiving.triangles.extend(triangles);
        Ok(())
    }

    /// Takes a while for many triangles: on a thread of its own.
    fn ready(&self) -> Result<(), Status> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let receiving = match std::mem::replace(&mut *state, State::Empty) {
            State::Receiving(all) if all.triangles.len() == all.expected => all,
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

/// Gives each server its part.
///
/// # Errors
///
/// If one of them does not take it.
pub async fn distribute(
    client: &Client,
    world: &World,
    parts: Vec<Vec<Triangle>>,
) -> Result<(), CallError> {
    /// About a megabyte.
    const TRIANGLES: usize = 8192;
    for (number, part) in (0u16..).zip(parts) {
        let host = hosting::within(client.server(number));
        let servers = client.servers().to_vec();
        host.begin(number, part.len() as u32, world.clone(), servers)
            .await?;
        for some in part.chunks(TRIANGLES) {
            host.add(some.to_vec()).await?;
        }
    }
    // All prepare theirs at the same time.
    let all = 0..client.servers().len() as u16;
    let ready: Vec<_> = all
        .map(|number| hosting::within(client.server(number)).ready())
        .collect();
    for ready in ready {
        ready.await?;
    }
    Ok(())
}
