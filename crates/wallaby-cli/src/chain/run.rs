//! `wallaby chain run`: a chain at its servers.

use serde_json::Value;
use wallaby_chain::{ChainEvent, Run};
use wallaby_program::output;

use super::Which;
use super::file::Ready;
use crate::output::{Exit, plain};
use crate::remote::raw;

pub(super) async fn run(which: &Which) -> anyhow::Result<()> {
    let ready = Ready::of(which).await?;
    let asked = Run::new().lines().told();
    let mut running = ready.chain.clone().run(ready.caller.clone(), asked)?;
    while let Some(event) = running.next().await {
        match event {
            Ok(event) => show(&ready, event)?,
            Err(error) => {
                eprintln!("failed: {}", plain(&error.to_string()));
                return Err(Exit(4).into());
            }
        }
    }
    Ok(())
}

/// Says what a chain has said, or has come to.
pub(super) fn show(ready: &Ready, event: ChainEvent<bytes::Bytes>) -> anyhow::Result<()> {
    match event {
        ChainEvent::Line(line) => eprintln!(
            "{} at hop {}: {}",
            plain(&line.chain),
            line.hop,
            plain(&line.text)
        ),
        ChainEvent::Told(told) => {
            // What scripts tell is JSON, what other functions tell may be anything.
            let value = told.value.json::<Value>().map(|value| value.to_string());
            let value = value.unwrap_or_else(|_| raw(told.value.bytes()));
            eprintln!("{} has told: {}", plain(&told.chain), plain(&value));
        }
        ChainEvent::End(end) => output::line(plain(&ready.shown(&end)?))?,
        _ => {}
    }
    Ok(())
}
