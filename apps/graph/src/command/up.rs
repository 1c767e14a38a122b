//! `wallaby-graph up`: a cluster that serves a store until it is told to end.

use super::{Servers, StoreFolder};
use crate::census;
use crate::client::Client;
use crate::output;
use crate::process;
use crate::store::Store;
use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use wallaby::Endpoint;

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
        Store::find(folder)?.with_context(|| {
            let folder = folder.display();
            format!("nothing was loaded into {folder}: 'wallaby-graph load' does that")
        })?;
        let mut processes = self.servers.start(folder).await?;
        let running = processes.running();
        process::announce(folder, &running)?;
        // One that does not listen: it would leave a socket behind if this process is killed.
        let client = Client::new(Endpoint::client()?, processes.placement().clone());
        output::line(format_args!("{}", census::counts(&client).await?))?;
        for server in client.placement().servers() {
            output::line(format_args!("  {server}"))?;
        }
        if !running.link().is_zero() {
            output::line(format_args!(
                "every message takes {:?}, as on a network",
                running.link()
            ))?;
        }
        if let Some(person) = census::sample(&client, 1).await?.persons.first() {
            output::line(format_args!(
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
