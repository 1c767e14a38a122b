//! `wallaby-graph bench`: how long queries take, as multi-hop calls and as plain calls.

use super::StoreFolder;
use crate::census::{self, Meter};
use crate::client::Client;
use crate::output;
use crate::query::{Form, Query};
use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;
use std::time::Instant;

const COLUMNS: [&str; 7] = [
    "query",
    "form",
    "p50",
    "p99",
    "messages",
    "at client",
    "links",
];

/// What is measured.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Which queries, separated by commas
    #[arg(long, value_name = "QUERY,...", value_delimiter = ',', default_values = Query::NAMES, value_parser = Query::NAMES)]
    queries: Vec<String>,
    /// How often each is asked in each form
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,
    /// Print a line of JSON for each query and form
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    of: StoreFolder,
}

impl Bench {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.of.client().await?;
        let mut lines = Vec::new();
        for name in &self.queries {
            let queries = self.choose(name, &client).await?;
            for form in Form::BOTH {
                let measured = measure(form, &queries, &client).await?;
                let mut line: Vec<Value> = vec![name.as_str().into(), form.to_string().into()];
                line.extend(measured.map(Value::from));
                lines.push(line);
            }
        }
        output::print_rows(&COLUMNS, &lines, self.json)
    }

    /// The query about some persons or messages, over and over.
    async fn choose(&self, name: &str, client: &Client) -> anyhow::Result<Vec<Query>> {
        let sample = census::report(client, self.times).await?;
        let about = |id| Query::new(name, id).context("there is no such query");
        let ids: Vec<i64> = match about(0)?.parts() {
            (_, "person", _) => sample.persons.iter().map(|id| id.0).collect(),
            _ => sample.messages.iter().map(|id| id.0).collect(),
        };
        ensure!(!ids.is_empty(), "the graph is empty");
        let ids = ids.into_iter().cycle().take(self.times as usize);
        ids.map(about).collect()
    }
}

/// Queries that are asked one after the other: times, messages, and on how many links one after the other an answer waits.
async fn measure(form: Form, queries: &[Query], client: &Client) -> anyhow::Result<[String; 5]> {
    let tracing = client.clone().traced();
    let mut links = 0;
    for query in queries {
        // Connects who has not talked to each other yet, too.
        query.ask(form, client).await?;
        let traced = query.ask(Form::Dpc, &tracing).await?.trace;
        let hops = traced.context("the call was not traced")?.depth();
        links += match form {
            Form::Dpc => hops + 1,
            Form::Rpc => 2 * hops,
        };
    }
    let mut times = Vec::new();
    let meter = Meter::begin(client).await?;
    for query in queries {
        let begun = Instant::now();
        query.ask(form, client).await?;
        times.push(begun.elapsed());
    }
    let messages = meter.end(client).await?;
    times.sort();
    let percentile = |percent| format!("{:.1?}", times[times.len() * percent / 100]);
    let each = |sum: usize| format!("{:.1}", sum as f64 / queries.len() as f64);
    Ok([
        percentile(50),
        percentile(99),
        each(messages.all as usize),
        each(messages.client as usize),
        each(links),
    ])
}
