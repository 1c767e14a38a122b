//! `wallaby-graph query` and `wallaby-graph explain`: one query.

use super::{Cli, StoreFolder};
use crate::census::Meter;
use crate::client::Client;
use crate::output;
use crate::query::{Form, Query};
use crate::table;
use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use std::time::Instant;
use wallaby::Address;

/// Which query about what.
#[derive(Debug, Args)]
struct Which {
    /// is1 to is7
    #[arg(value_name = "QUERY", value_parser = ["is1", "is2", "is3", "is4", "is5", "is6", "is7"])]
    query: String,
    /// The person that is1, is2 and is3 are about
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    person: Option<i64>,
    /// The message that is4 to is7 are about
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    message: Option<i64>,
}

/// A query for its rows.
#[derive(Debug, Args)]
pub(super) struct Ask {
    #[command(flatten)]
    which: Which,
    /// Ask by plain calls, one for each vertex, in place of one multi-hop call
    #[arg(long)]
    rpc: bool,
    /// Print a line of JSON for each row
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    of: StoreFolder,
}

/// A query for its tree.
#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    of: StoreFolder,
}

impl Which {
    fn parse(&self) -> anyhow::Result<Query> {
        let about_person = matches!(self.query.as_str(), "is1" | "is2" | "is3");
        let id = match (about_person, self.person, self.message) {
            (true, Some(id), None) | (false, None, Some(id)) => id,
            (true, ..) => return Err(self.wrong("person")),
            (false, ..) => return Err(self.wrong("message")),
        };
        Query::new(&self.query, id).with_context(|| format!("there is no query {}", self.query))
    }

    fn wrong(&self, about: &str) -> anyhow::Error {
        let sentence = format!(
            "{} is about a {about}: --{about} ID, nothing else",
            self.query
        );
        Cli::command()
            .error(ErrorKind::ArgumentConflict, sentence)
            .into()
    }
}

impl Ask {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let query = self.which.parse()?;
        let client = self.of.client().await?;
        let form = match self.rpc {
            true => Form::Rpc,
            false => Form::Dpc,
        };
        let outcome = query.ask(form, &client).await?;
        if outcome.rows.is_empty() {
            eprintln!("no rows");
        }
        match self.json {
            true => output::text(&table::json(&outcome.rows))?,
            false => output::text(&table::draw(query.columns(), &outcome.rows))?,
        }
        Ok(())
    }
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let query = self.which.parse()?;
        output::text(&explain(query, &self.of.client().await?).await?)?;
        Ok(())
    }
}

/// A query's tree, and what it takes beside plain calls.
pub(super) async fn explain(query: Query, client: &Client) -> anyhow::Result<String> {
    let mut sentences = String::new();
    for form in [Form::Dpc, Form::Rpc] {
        // The first time connects servers that have never talked to each other.
        query.ask(form, client).await?;
        let meter = Meter::begin(client).await?;
        let begun = Instant::now();
        let rows = query.ask(form, client).await?.rows.len();
        let took = format!("{:.1?}", begun.elapsed());
        let messages = meter.end(client).await?;
        sentences += &format!(
            "{form}: {rows} rows in {took} by {} messages, {} of them at the client\n",
            messages.all, messages.client
        );
    }
    let traced = query.ask(Form::Dpc, &client.clone().traced()).await?;
    let trace = traced.trace.context("the call was not traced")?;
    let servers = client.placement().servers();
    let name = |address: &Address| {
        let number = servers.iter().position(|server| server == address);
        number.map_or_else(
            || address.to_string(),
            |number| format!("server {}", number + 1),
        )
    };
    Ok(format!(
        "{}\n{} hops, {} deep, in {}\n{sentences}",
        trace.draw(name),
        trace.hops.len(),
        trace.depth(),
        format_args!("{:.1?}", trace.elapsed),
    ))
}
