//! `wallaby-graph up`: a cluster that serves a store until it is told to end.

use super::{Servers, StoreFolder};
use crate::store::Store;
use crate::{census, output, process};
use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

/// Which cluster.
#[derive(Debug, Args)]
pub(super) struct Up {
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    of: StoreFolder,
}

impl Up {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let folder = &self.of.store;
        Store::find(folder)?.with_context(|| process::nothing_in(folder))?;
        let mut processes = self.servers.start(folder).await?;
        processes.running().announce(folder)?;
        let client = processes.running().client().await?;
        let report = census::report(&client, 1).await?;
        output::print(report.counts)?;
        for server in client.placement().servers() {
            output::print(format_args!("  {server}"))?;
        }
        if !self.servers.link.is_zero() {
            let link = self.servers.link;
            output::print(format_args!(
                "every message takes {link:?}, as on a network"
            ))?;
        }
        if let Some(person) = report.persons.first() {
            output::print(format_args!(
                "serving until Ctrl-C; try: wallaby-graph query is2 --person {person}"
            ))?;
        }
        let ended = tokio::select! {
            ended = processes.ended() => Some(ended),
            asked = interrupted() => { asked?; None }
        };
        process::withdraw(folder);
        processes.end().await;
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
