//! `wallaby-chord put`, `get`, `lookup` and `explain`: one key.

use super::{Page, span};
use crate::client::{Answered, Client, Form};
use crate::draw;
use crate::id::RingId;
use crate::message::Found;
use crate::output;
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// A key and its value.
#[derive(Debug, Args)]
pub(super) struct Put {
    key: String,
    value: String,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    page: Page,
}

/// A key.
#[derive(Debug, Args)]
pub(super) struct Get {
    key: String,
    /// Ask node after node, in place of one call that they forward
    #[arg(long)]
    iterative: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    page: Page,
}

/// A key.
#[derive(Debug, Args)]
pub(super) struct Lookup {
    key: String,
    /// Ask node after node, in place of one call that they forward
    #[arg(long)]
    iterative: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    page: Page,
}

/// A key.
#[derive(Debug, Args)]
pub(super) struct Explain {
    key: String,
    #[command(flatten)]
    page: Page,
}

impl Put {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.page.client().await?;
        let answered = client.put(&self.key, self.value.into_bytes()).await?;
        report_misses(&answered);
        let found = &answered.found;
        match self.json {
            true => {
                let copies = found.copies;
                output::line(format_args!(
                    "{}",
                    with(&answered, &self.key, &[("copies", json!(copies))])
                ))?;
            }
            false => output::line(format_args!(
                "{} nodes keep it, from {} on; {} hops, {}",
                found.copies,
                found.owner,
                found.hops,
                span::show(answered.took)
            ))?,
        }
        Ok(())
    }
}

impl Get {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.page.client().await?;
        let answered = client.get(&self.key, form(self.iterative)).await?;
        report_misses(&answered);
        let value = answered.found.value.as_deref();
        if self.json {
            let value = value.map(String::from_utf8_lossy);
            output::line(format_args!(
                "{}",
                with(&answered, &self.key, &[("value", json!(value))])
            ))?;
        } else if let Some(value) = value {
            let mut output = std::io::stdout().lock();
            output.write_all(value)?;
            output.write_all(b"\n")?;
        }
        match value {
            Some(_) => Ok(ExitCode::SUCCESS),
            None => {
                eprintln!("'{}' has no value", self.key);
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

impl Lookup {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.page.client().await?;
        let id = RingId::of_key(&self.key);
        let answered = client.owner(id, form(self.iterative)).await?;
        report_misses(&answered);
        match self.json {
            true => output::line(format_args!("{}", with(&answered, &self.key, &[])))?,
            false => output::line(format_args!(
                "'{}' is at {id}, owned by {}; {} hops, {}",
                self.key,
                answered.found.owner,
                answered.found.hops,
                span::show(answered.took)
            ))?,
        }
        Ok(())
    }
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.page.client().await?;
        output::text(&explain(&client, &self.key).await?)?;
        Ok(())
    }
}

/// How a lookup went, several lines, and what it takes by iteration.
pub(super) async fn explain(client: &Client, key: &str) -> anyhow::Result<String> {
    let id = RingId::of_key(key);
    let seed = super::random();
    let mut answers = Vec::new();
    for form in [Form::Delegation, Form::Iteration] {
        // Of one seed, so that both begin at the same node.
        let client = Client::new(client.endpoint().clone(), client.hosts(), seed).traced();
        // The first time connects endpoints that have never talked to each other.
        client.owner(id, form).await?;
        answers.push(client.owner(id, form).await?);
    }
    let [delegated, iterated] = &answers[..] else {
        anyhow::bail!("two forms are asked");
    };
    report_misses(delegated);
    let mut text = draw::way(key, id, &delegated.found, delegated.trace.as_ref());
    for (name, answered) in [("delegation", delegated), ("iteration", iterated)] {
        let hops = answered.found.hops;
        let messages = match name {
            "delegation" => hops + 2,
            _ => 2 * (hops + 1),
        };
        text += &format!(
            "by {name}: {hops} hops in {}, {messages} messages, {} of them at the client\n",
            span::show(answered.took),
            if name == "delegation" { 2 } else { messages },
        );
    }
    Ok(text)
}

fn form(iterative: bool) -> Form {
    match iterative {
        true => Form::Iteration,
        false => Form::Delegation,
    }
}

/// Attempts that failed are said, even if another one succeeded.
fn report_misses(answered: &Answered) {
    for miss in &answered.misses {
        eprintln!("an attempt failed: {miss}");
    }
}

fn with(answered: &Answered, key: &str, more: &[(&str, serde_json::Value)]) -> serde_json::Value {
    let Found { owner, hops, .. } = &answered.found;
    let mut line = json!({
        "key": key,
        "id": RingId::of_key(key).to_string(),
        "owner": owner.id.to_string(),
        "at": owner.host.to_string(),
        "hops": hops,
        "attempts": answered.attempts,
        "us": answered.took.as_secs_f64() * 1e6,
    });
    for (name, value) in more {
        if let Some(object) = line.as_object_mut() {
            object.insert((*name).to_owned(), value.clone());
        }
    }
    line
}
