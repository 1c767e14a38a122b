//! `wallaby-raytrace explain`: one path of light, and the tree of its calls.

use super::settings::{Ready, Servers, Size, WhichPicture, WhichScene};
use crate::hosting::{Messages, Meter};
use crate::lost::Lost;
use crate::output;
use crate::path::Path;
use crate::render::{dpc, rpc};

use anyhow::ensure;
use clap::Args;
use std::time::{Duration, Instant};

/// Which path.
#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    scene: WhichScene,
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    picture: WhichPicture,
    /// The pixel, from the upper left corner; its path with most hops if not said, of those in the middle row
    #[arg(long, value_name = "XxY")]
    pixel: Option<Size>,
    /// Which of the pixel's paths
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    sample: u32,
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (world, parts) = self
            .scene
            .load(self.servers.servers, self.picture.camera)
            .await?;
        let ready = self.servers.start(world, parts).await?;
        let path = self.choose(&ready).await?;
        let job = self.picture.paths.job();
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
                output::text(&trace.draw(|server| client.name(server)))?;
                let (hops, depth) = (trace.hops.len(), trace.depth());
                output::line(format_args!(
                    "\n{hops} hops, {depth} deep, in {:.1?}",
                    trace.elapsed
                ))?;
            }
        }
        let (by_hops, took) = self.measured(&ready, path, true).await?;
        output::line(format_args!("{}", sentence("DPC", by_hops, took)))?;
        let (by_calls, took) = self.measured(&ready, path, false).await?;
        output::line(format_args!("{}", sentence("RPC", by_calls, took)))?;
        ready.end().await;
        Ok(())
    }

    /// The path that was asked for, or one with many hops.
    async fn choose(&self, ready: &Ready) -> anyhow::Result<Path> {
        const TRIED: u32 = 40;
        let settings = self.picture.settings();
        let paths = settings.camera_paths(&ready.world);
        if let Some(Size(x, y)) = self.pixel {
            ensure!(
                x < settings.width && y < settings.height,
                "there is no pixel {x}x{y} in {}x{}",
                settings.width,
                settings.height
            );
            return Ok(paths.path(x, y, self.sample));
        }
        let y = settings.height * 3 / 5;
        let mut best = (0, paths.path(settings.width / 2, y, self.sample));
        for x in (0..TRIED).map(|number| number * settings.width / TRIED) {
            let path = paths.path(x, y, self.sample);
            let calls = rpc::explain(&ready.client, &ready.world, settings.job, path).await?;
            if calls > best.0 {
                best = (calls, path);
            }
        }
        Ok(best.1)
    }

    async fn measured(
        &self,
        ready: &Ready,
        path: Path,
        by_hops: bool,
    ) -> anyhow::Result<(Messages, Duration)> {
        let Ready { client, world, .. } = ready;
        let job = self.picture.paths.job();
        let lost = |error| Lost::new(client, &error);
        let meter = Meter::begin(client).await.map_err(lost)?;
        let begun = Instant::now();
        match by_hops {
            true => drop(dpc::follow(client, world, job, path).await?),
            false => drop(rpc::explain(client, world, job, path).await?),
        }
        let took = begun.elapsed();
        Ok((meter.end(client).await.map_err(lost)?, took))
    }
}

fn sentence(form: &str, messages: Messages, took: Duration) -> String {
    format!(
        "{form}: {took:.1?} by {} messages, {} of them at the client",
        messages.all, messages.client
    )
}
