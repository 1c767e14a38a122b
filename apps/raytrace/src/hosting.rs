//! How servers get their parts of a scene.

use crate::client::Client;
use crate::server::Server;
use crate::triangle::Triangle;
use crate::world::World;
use wallaby::{Address, CallError, Status};

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
        Self::begin(self, number, triangles, world, servers)
    }

    async fn add(&self, triangles: Vec<Triangle>) -> Result<(), Status> {
        Self::add(self, &triangles)
    }

    /// Takes a while for many triangles: on a thread of its own.
    fn ready(&self) -> Result<(), Status> {
        Self::ready(self)
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
