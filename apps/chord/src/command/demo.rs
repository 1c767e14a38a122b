//! `wallaby-chord demo`: the whole thing in one line.

use super::{Size, ask, ring};
use crate::client::{Client, Form};
use crate::draw;
use crate::process;
use clap::Args;
use std::time::Duration;

/// How large it is.
#[derive(Debug, Args)]
pub(super) struct Demo {
    #[command(flatten)]
    size: Size,
}

impl Demo {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut processes = self.size.start().await?;
        let hosts = processes.hosts();
        let endpoint = process::client_endpoint(&hosts, Duration::ZERO).await?;
        let client = Client::new(endpoint, &hosts, self.size.seed);
        for (key, value) in [
            ("wallaby", "jumps"),
            ("chord", "1, 3, 5"),
            ("ring", "round"),
        ] {
            let put = client.put(key, value.into()).await?;
            println!("$ wallaby-chord put {key} '{value}'");
            println!(
                "{} nodes keep it, from {} on",
                put.found.copies, put.found.owner
            );
        }
        println!("\n$ wallaby-chord ring");
        let (tables, _) = ring::survey(&client).await;
        print!("{}", draw::ring(tables.get(..12).unwrap_or(&tables)));
        println!("… and so on: {} nodes", tables.len());
        println!("\n$ wallaby-chord explain wallaby");
        print!("{}", ask::explain(&client, "wallaby").await?);
        if let Some(owner) = client.get("wallaby", Form::Delegation).await.ok()
            && hosts.len() > 1
        {
            let host = owner.found.owner.host;
            processes.kill(&host).await?;
            let got = client.get("wallaby", Form::Delegation).await?;
            let value = got.found.value.unwrap_or_default();
            println!("\nkilled the process of its owner, with all its nodes; right after that:");
            println!(
                "$ wallaby-chord get wallaby\n{}",
                String::from_utf8_lossy(&value)
            );
            println!("({} attempts, from {})", got.attempts, got.found.owner);
        }
        processes.end().await;
        Ok(())
    }
}
