//! `wallaby-graph up`: a cluster that serves a store until it is told to end.

use super::{Servers, StoreFolder};
use crate::store::Store;
use crate::{census, process};
use anyhow::{Context, bail};
use clap::Args;
use wallaby_program::ending::interrupted;
use wallaby_program::output::line;

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
        line(report.counts)?;
        for server in client.placement().servers() {
            line(format_args!("  {server}"))?;
        }
        if !self.servers.link.is_zero() {
            let link = self.servers.link;
            line(format_args!(
                "every message takes {link:?}, as on a network"
            ))?;
        }
        if let Some(person) = report.persons.first() {
            line(format_args!(
                "serving until Ctrl-C; try: wallaby-graph query is2 --person {person}"
            ))?;
        }
        let ended = tokio::select! {
            ended = processes.ended() => Some(ended),
            asked = interrupted() => {
                asked?;
                None
            }
        };
        processes.running().withdraw(folder);
        processes.end().await;
        match ended {
            Some(ended) => bail!("{ended}"),
            None => Ok(()),
        }
    }
}
