//! `wallaby-graph query` and `wallaby-graph explain`: one query.

use super::{Cli, StoreFolder};
use crate::census::Meter;
use crate::client::Client;
use crate::output;
use crate::query::{Form, Query};
use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use std::time::Instant;
use wallaby::Address;
use wallaby_program::output::line;

/// Which query about what.
#[derive(Debug, Args)]
struct Which {
    /// is1 to is7
    #[arg(value_name = "QUERY", value_parser = Query::NAMES)]
    query: String,
    /// The person that is1, is2 and is3 are about
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    person: Option<i64>,
    /// The message that is4 to is7 are about
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    message: Option<i64>,
    #[command(flatten)]
    of: StoreFolder,
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
}

/// A query for its tree.
#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    which: Which,
}

impl Which {
    fn parse(&self) -> anyhow::Result<Query> {
        let id = self.person.or(self.message).unwrap_or_default();
        let query = Query::new(&self.query, id).context("there is no such query")?;
        let (name, about, _) = query.parts();
        match (about, self.person, self.message) {
            ("person", Some(_), None) | ("message", None, Some(_)) => Ok(query),
            _ => {
                let usage = format!("{name} is about a {about}: --{about} ID, nothing else");
                let kind = ErrorKind::ArgumentConflict;
                Err(Cli::command().error(kind, usage).into())
            }
        }
    }
}

impl Ask {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let query = self.which.parse()?;
        let client = self.which.of.client().await?;
        let form = match self.rpc {
            true => Form::Rpc,
            false => Form::Dpc,
        };
        let outcome = query.ask(form, &client).await?;
        if outcome.rows.is_empty() {
            eprintln!("no rows");
        }
        output::print_rows(outcome.columns, &outcome.rows, self.json)
    }
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        explain(self.which.parse()?, &self.which.of.client().await?).await
    }
}

/// Draws a query's tree, and tells what it takes beside plain calls.
pub(super) async fn explain(query: Query, client: &Client) -> anyhow::Result<()> {
    let mut sentences = Vec::new();
    for form in Form::BOTH {
        // The first time connects servers that have never talked to each other.
        query.ask(form, client).await?;
        let meter = Meter::begin(client).await?;
        let begun = Instant::now();
        let rows = query.ask(form, client).await?.rows.len();
        let took = begun.elapsed();
        let messages = meter.end(client).await?;
        let (all, at_client) = (messages.all, messages.client);
        sentences.push(format!(
            "{form}: {rows} rows in {took:.1?} by {all} messages, {at_client} of them at the client"
        ));
    }
    let traced = query.ask(Form::Dpc, &client.clone().traced()).await?;
    let trace = traced.trace.context("the call was not traced")?;
    let servers = client.placement().servers();
    let name = |address: &Address| match servers.iter().position(|server| server == address) {
        Some(number) => format!("server {}", number + 1),
        None => address.to_string(),
    };
    line(trace.draw(name))?;
    let (hops, depth) = (trace.hops.len(), trace.depth());
    let took = trace.elapsed;
    line(format_args!("{hops} hops, {depth} deep, in {took:.1?}"))?;
    line(sentences.join("\n"))
}
