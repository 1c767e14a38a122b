//! `wallaby-raytrace explain`: one path of light, and the tree of its calls.

use super::settings::{Ready, Servers, WhichPicture, WhichScene};
use crate::path::Path;
use crate::render::{dpc, rpc};
use clap::Args;
use std::time::Instant;
use wallaby_program::output;

/// Which path.
#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    scene: WhichScene,
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    picture: WhichPicture,
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (world, parts) = self.scene.load(self.servers.servers).await?;
        let ready = self.servers.start(world, parts).await?;
        let path = self.choose(&ready).await?;
        let job = self.picture.settings().job;
        let Ready { client, world, .. } = &ready;
        // The first time connects servers that have never talked to each other.
        dpc::explain(client, world, job, path).await?;
        let (_, trace) = dpc::explain(client, world, job, path).await?;
        let width = self.picture.size.0;
        output::line(format_args!(
            "pixel {}x{}, path {}",
            path.pixel % width,
            path.pixel / width,
            path.sample
        ))?;
        match trace {
            None => output::line(format_args!(
                "it hits nothing, which the client sees by itself"
            ))?,
            Some(trace) => {
                output::text(trace.draw(|server| client.name(server)))?;
                let (hops, depth) = (trace.hops.len(), trace.depth());
                let answers: u64 = trace.hops.iter().map(|hop| hop.responses).sum();
                output::line(format_args!(
                    "\n{hops} hops, {depth} deep: {} messages, {} of them at the client, in {:.1?}",
                    hops as u64 + answers,
                    1 + answers,
                    trace.elapsed
                ))?;
            }
        }
        // Of each hop a request, and an answer where there is light; a plain call is both, and comes back to the client.
        let begun = Instant::now();
        let calls = rpc::explain(client, world, job, path).await?;
        let took = begun.elapsed();
        output::line(format_args!(
            "by plain calls: {} messages, all of them at the client, in {took:.1?}",
            2 * calls
        ))?;
        ready.end().await;
        Ok(())
    }

    /// Of some paths in a row below the middle the one with most hops.
    async fn choose(&self, ready: &Ready) -> anyhow::Result<Path> {
        const TRIED: u32 = 40;
        let settings = self.picture.settings();
        let paths = settings.camera_paths(&ready.world);
        let y = settings.height * 3 / 5;
        let mut best = (0, paths.path(settings.width / 2, y, 0));
        for x in (0..TRIED).map(|number| number * settings.width / TRIED) {
            let path = paths.path(x, y, 0);
            let calls = rpc::explain(&ready.client, &ready.world, settings.job, path).await?;
            if calls > best.0 {
                best = (calls, path);
            }
        }
        Ok(best.1)
    }
}
