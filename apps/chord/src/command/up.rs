//! `wallaby-chord up`: a ring that stays until it is told to end.

use super::{Page, Size};
use clap::Args;
use wallaby_program::ending::interrupted;
use wallaby_program::{output, page};

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
        let ring = processes.ring().clone();
        page::announce(&self.page.at, &ring)?;
        output::line(format_args!(
            "a ring of {} nodes in {} processes; {} says where:",
            self.size.nodes,
            ring.hosts.len(),
            self.page.at.display()
        ))?;
        for host in &ring.hosts {
            output::line(format_args!("  {host}"))?;
        }
        if !self.size.link.is_zero() {
            let link = self.size.link;
            output::line(format_args!(
                "every message takes {link:?}, as on a network"
            ))?;
        }
        output::line("it stays until Ctrl-C; try: wallaby-chord explain wallaby")?;
        tokio::select! {
            // The others go on: that is what a ring is for.
            ended = processes.ended() => {
                eprintln!("{ended}; the others go on");
                interrupted().await?;
            }
            asked = interrupted() => drop(asked?),
        }
        page::withdraw(&self.page.at, &ring);
        processes.end().await;
        Ok(())
    }
}
