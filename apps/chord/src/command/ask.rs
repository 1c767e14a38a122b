//! `wallaby-chord put`, `get` and `explain`: one key.

use super::Page;
use crate::client::{Answered, Client, Form};
use crate::draw;
use crate::id::RingId;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use wallaby_program::output;

/// A key and its value.
#[derive(Debug, Args)]
pub(super) struct Put {
    key: String,
    value: String,
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
    /// Print a line of JSON, which says who owns it, too
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
        output::line(format_args!(
            "{} nodes keep it, from {} on; {} hops, {:.1?}",
            found.copies, found.owner, found.hops, answered.took
        ))
    }
}

impl Get {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.page.client().await?;
        let form = match self.iterative {
            true => Form::Iteration,
            false => Form::Delegation,
        };
        let answered = client.get(&self.key, form).await?;
        report_misses(&answered);
        let found = &answered.found;
        let value = found.value.as_deref().map(String::from_utf8_lossy);
        if self.json {
            output::line(json!({
                "key": self.key,
                "value": value,
                "owner": found.owner.id.to_string(),
                "at": found.owner.host.to_string(),
                "hops": found.hops,
                "attempts": answered.attempts,
                "us": answered.took.as_secs_f64() * 1e6,
            }))?;
        } else if let Some(value) = &value {
            output::line(value)?;
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

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.page.client().await?;
        output::text(explain(&client, &self.key).await?)
    }
}

/// How a lookup went, several lines, and what it takes by iteration.
pub(super) async fn explain(client: &Client, key: &str) -> anyhow::Result<String> {
    let id = RingId::of_key(key);
    let seed = fastrand::u64(..);
    let ask = async |form| {
        // Of one seed, so that both begin at the same node.
        let client = Client::new(client.endpoint().clone(), client.hosts(), seed).traced();
        // The first time connects endpoints that have never talked to each other.
        client.owner(id, form).await?;
        anyhow::Ok(client.owner(id, form).await?)
    };
    let delegated = ask(Form::Delegation).await?;
    let iterated = ask(Form::Iteration).await?;
    report_misses(&delegated);
    let mut text = draw::way(key, id, &delegated.found, delegated.trace.as_ref());
    let mut tell = |form: &str, answered: &Answered, messages, at_client| {
        let (hops, took) = (answered.found.hops, answered.took);
        text += &format!(
            "by {form}: {hops} hops in {took:.1?}, {messages} messages, {at_client} of them at the client\n"
        );
    };
    tell("delegation", &delegated, delegated.found.hops + 2, 2);
    let messages = 2 * (iterated.found.hops + 1);
    tell("iteration", &iterated, messages, messages);
    Ok(text)
}

/// Attempts that failed are said, even if another one succeeded.
fn report_misses(answered: &Answered) {
    for miss in &answered.misses {
        eprintln!("an attempt failed: {miss}");
    }
}
