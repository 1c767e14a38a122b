//! `wallaby-graph bench`: how long queries take, as multi-hop calls and as plain calls.

use super::StoreFolder;
use crate::census::{self, Meter, Sample};
use crate::client::Client;
use crate::output;
use crate::query::{Form, Query};
use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;
use std::time::{Duration, Instant};

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
        const SAMPLE: u32 = 1000;
        let client = self.of.client().await?;
        let sample = census::sample(&client, SAMPLE).await?;
        let mut lines = Vec::new();
        for name in &self.queries {
            let queries = choose(name, self.times, &sample)?;
            let hops = hops(&queries, &client).await?;
            for form in Form::BOTH {
                let mut line = vec![name.as_str().into(), form.to_string().into()];
                line.extend(measure(form, &queries, &client).await?);
                // On how many links an answer waits, one after the other.
                line.push(each(
                    queries.len(),
                    match form {
                        Form::Dpc => hops + queries.len(),
                        Form::Rpc => 2 * hops,
                    },
                ));
                lines.push(line);
            }
        }
        output::print_rows(&COLUMNS, &lines, self.json)
    }
}

/// Which persons or messages a query is asked about.
fn choose(name: &str, times: u32, sample: &Sample) -> anyhow::Result<Vec<Query>> {
    let about = |id| Query::new(name, id).context("there is no such query");
    let ids: Vec<i64> = match about(0)?.about() {
        ("person", _) => sample.persons.iter().map(|id| id.0).collect(),
        _ => sample.messages.iter().map(|id| id.0).collect(),
    };
    ensure!(!ids.is_empty(), "the graph is empty");
    ids.into_iter()
        .cycle()
        .take(times as usize)
        .map(about)
        .collect()
}

/// How deep the trees of the queries are, together.
async fn hops(queries: &[Query], client: &Client) -> anyhow::Result<usize> {
    let client = client.clone().traced();
    let mut hops = 0;
    for query in queries {
        let outcome = query.ask(Form::Dpc, &client).await?;
        hops += outcome.trace.context("the call was not traced")?.depth();
    }
    Ok(hops)
}

/// Times and messages of queries that are asked one after the other.
async fn measure(form: Form, queries: &[Query], client: &Client) -> anyhow::Result<[Value; 4]> {
    let mut times = Vec::new();
    // Connects who has not talked to each other yet.
    ask_all(form, queries, client, &mut times).await?;
    times.clear();
    let meter = Meter::begin(client).await?;
    ask_all(form, queries, client, &mut times).await?;
    let messages = meter.end(client).await?;
    times.sort();
    let percentile = |percent| format!("{:.1?}", times[times.len() * percent / 100]).into();
    Ok([
        percentile(50),
        percentile(99),
        each(queries.len(), messages.all as usize),
        each(queries.len(), messages.client as usize),
    ])
}

async fn ask_all(
    form: Form,
    queries: &[Query],
    client: &Client,
    times: &mut Vec<Duration>,
) -> anyhow::Result<()> {
    for query in queries {
        let begun = Instant::now();
        query.ask(form, client).await?;
        times.push(begun.elapsed());
    }
    Ok(())
}

fn each(of: usize, sum: usize) -> Value {
    format!("{:.1}", sum as f64 / of as f64).into()
}
