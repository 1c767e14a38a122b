//! `wallaby-chord up`: a ring that stays until it is told to end.

use super::{Page, Size};
use crate::output;
use crate::process;
use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

/// Which ring.
#[derive(Debug, Args)]
pub(super) struct Up {
    #[command(flatten)]
    size: Size,
    #[command(flatten)]
    page: Page,
}

impl Up {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut processes = self.size.start().await?;
        let hosts = processes.hosts();
        let ring = processes.ring();
        process::announce(&self.page.at, &ring)?;
        output::line(format_args!(
            "a ring of {} nodes in {} processes; {} says where:",
            processes.setup(self.size.nodes).members().len(),
            hosts.len(),
            self.page.at.display()
        ))?;
        for host in &hosts {
            output::line(format_args!("  {host}"))?;
        }
        if !ring.link.is_zero() {
            output::line(format_args!(
                "every message takes {:?}, as on a network",
                ring.link
            ))?;
        }
        output::line(format_args!(
            "it stays until Ctrl-C; try: wallaby-chord explain wallaby"
        ))?;
        tokio::select! {
            // The others go on: that is what a ring is for.
            ended = processes.ended() => {
                eprintln!("{ended}; the others go on");
                interrupted().await?;
            }
            asked = interrupted() => asked?,
        }
        process::withdraw(&self.page.at, &ring);
        processes.end().await;
        Ok(())
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
