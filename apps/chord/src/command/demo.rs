//! `wallaby-chord demo`: the whole thing in one line.

use super::{Size, ask, ring};
use crate::client::{Client, Form};
use crate::draw;
use clap::Args;
use wallaby_program::output;

/// How large it is.
#[derive(Debug, Args)]
pub(super) struct Demo {
    #[command(flatten)]
    size: Size,
}

impl Demo {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut processes = self.size.start().await?;
        let ring = processes.ring();
        let client = Client::new(ring.endpoint().await?, &ring.hosts, self.size.seed);
        for (key, value) in [
            ("wallaby", "jumps"),
            ("chord", "1, 3, 5"),
            ("ring", "round"),
        ] {
            let put = client.put(key, value.into()).await?;
            output::line(format_args!("$ wallaby-chord put {key} '{value}'"))?;
            output::line(format_args!(
                "{} nodes keep it, from {} on",
                put.found.copies, put.found.owner
            ))?;
        }
        output::line("\n$ wallaby-chord ring")?;
        let (tables, _) = ring::survey(&client).await;
        output::text(draw::ring(&tables))?;
        output::line(format_args!("\none ring of {} nodes", tables.len()))?;
        output::line("\n$ wallaby-chord explain wallaby")?;
        output::text(ask::explain(&client, "wallaby").await?)?;
        if let Some(owner) = client.get("wallaby", Form::Delegation).await.ok()
            && self.size.processes > 1
        {
            let host = owner.found.owner.host;
            processes.kill(&host).await?;
            let got = client.get("wallaby", Form::Delegation).await?;
            let value = got.found.value.unwrap_or_default();
            output::line(
                "\nkilled the process of its owner, with all its nodes; right after that:",
            )?;
            output::line(format_args!(
                "$ wallaby-chord get wallaby\n{}",
                String::from_utf8_lossy(&value)
            ))?;
            output::line(format_args!(
                "({} attempts, from {})",
                got.attempts, got.found.owner
            ))?;
        }
        processes.end().await;
        Ok(())
    }
}
