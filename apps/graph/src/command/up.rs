//! `wallaby-graph up`: a cluster that serves a store until it is told to end.

use super::StoreFolder;
use crate::census;
use crate::client::Client;
use crate::process::{self, Processes, Transport};
use crate::store::Store;
use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use wallaby::Endpoint;

/// Which cluster.
#[derive(Debug, Args)]
pub(super) struct Up {
    /// How many server processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    servers: u32,
    /// What they talk over
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
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
        let mut processes = Processes::start(folder, self.servers, self.transport).await?;
        let placement = processes.placement().clone();
        process::announce(folder, &placement)?;
        let client = Client::new(Endpoint::client()?, placement);
        println!("{}", census::counts(&client).await?);
        for server in client.placement().servers() {
            println!("  {server}");
        }
        if let Some(person) = census::sample(&client, 1).await?.persons.first() {
            println!("serving until Ctrl-C; try: wallaby-graph query is2 --person {person}");
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
