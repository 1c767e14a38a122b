//! `wallaby-raytrace up`: servers with a scene until they are told to end.

use super::settings::{Servers, WhichScene};
use crate::output;
use crate::process;
use anyhow::{Context, bail};
use clap::Args;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

/// Which servers with which scene.
#[derive(Debug, Args)]
pub(super) struct Up {
    #[command(flatten)]
    scene: WhichScene,
    #[command(flatten)]
    servers: Servers,
    /// Where it is written down who they are, for 'render --at'
    #[arg(long, value_name = "FILE", default_value = "raytrace-servers.json")]
    page: PathBuf,
}

impl Up {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let start = async {
            let (world, parts) = self.scene.load(self.servers.servers, None).await?;
            self.servers.start(world, parts).await
        };
        let mut ready = tokio::select! {
            ready = start => ready?,
            asked = interrupted() => return asked,
        };
        process::announce(&self.page, ready.client.servers(), self.servers.link)?;
        output::line(format_args!(
            "{}: {} triangles",
            ready.world.name, ready.world.triangles
        ))?;
        let ids = ready
            .processes
            .as_ref()
            .map(process::Processes::ids)
            .unwrap_or_default();
        for (server, id) in ready.client.servers().iter().zip(ids) {
            output::line(format_args!("  {server} (process {id})"))?;
        }
        if !self.servers.link.is_zero() {
            output::line(format_args!(
                "every message takes {:?}, as on a network",
                self.servers.link
            ))?;
        }
        output::line(format_args!(
            "serving until Ctrl-C; try: wallaby-raytrace render --at {}",
            self.page.display()
        ))?;
        let ended = match &mut ready.processes {
            Some(processes) => tokio::select! {
                ended = processes.ended() => Some(ended),
                asked = interrupted() => { asked?; None }
            },
            None => None,
        };
        process::withdraw(&self.page, ready.client.servers());
        ready.end().await;
        match ended {
            Some(ended) => bail!("{ended}"),
            None => Ok(()),
        }
    }
}

/// Waits until the program is asked to end: Ctrl-C, or `kill`.
pub(super) async fn interrupted() -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("signals can't be listened to");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
