//! `wallaby-graph demo`: the whole thing in one line.

use super::Servers;
use super::ask::explain;
use super::load::load;
use crate::client::Client;
use crate::query::{Form, Query};
use crate::source::Source;
use crate::{census, output};
use anyhow::Context;
use clap::Args;
use tempfile::TempDir;
use wallaby_program::output::line;

/// How large it is.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// How many persons
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    persons: u32,
    #[command(flatten)]
    servers: Servers,
}

impl Demo {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        const SEED: u64 = 1;
        let scratch = TempDir::with_prefix("wallaby-graph-")?;
        let (store, _) = load(&Source::Generated(self.persons, SEED), scratch.path())?;
        line(store.describe())?;
        let processes = self.servers.start(scratch.path()).await?;
        let client = processes.running().client().await?;
        for query in interesting(&client).await? {
            let outcome = query.ask(Form::Dpc, &client).await?;
            line(format_args!("\n$ wallaby-graph query {query}"))?;
            output::print_rows(outcome.columns, &outcome.rows, false)?;
            line(format_args!("\n$ wallaby-graph explain {query}"))?;
            explain(query, &client).await?;
        }
        processes.end().await;
        Ok(())
    }
}

/// A person's latest messages, and the replies to a message: of some, those with most rows.
async fn interesting(client: &Client) -> anyhow::Result<[Query; 2]> {
    const TRIED: u32 = 100;
    let sample = census::report(client, TRIED).await?;
    let persons = sample.persons.into_iter().map(Query::Is2);
    let messages = sample.messages.into_iter().map(Query::Is7);
    Ok([
        longest(client, persons).await?,
        longest(client, messages).await?,
    ])
}

async fn longest(client: &Client, of: impl Iterator<Item = Query>) -> anyhow::Result<Query> {
    let mut longest = None;
    for query in of {
        let rows = query.ask(Form::Dpc, client).await?.rows.len();
        if longest.is_none_or(|(most, _)| rows > most) {
            longest = Some((rows, query));
        }
    }
    let (_, query) = longest.context("the graph is empty")?;
    Ok(query)
}
