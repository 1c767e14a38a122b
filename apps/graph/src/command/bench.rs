//! `wallaby-graph bench`: how long queries take, as multi-hop calls and as plain calls.

use super::StoreFolder;
use crate::census::{self, Messages, Meter, Sample};
use crate::client::Client;
use crate::query::{Form, Query};
use crate::source::generated::Chance;
use crate::table;
use anyhow::{Context, ensure};
use clap::Args;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const QUERIES: [&str; 7] = ["is1", "is2", "is3", "is4", "is5", "is6", "is7"];
const FORMS: [Form; 2] = [Form::Dpc, Form::Rpc];
/// The two forms take turns, so that what else the machine does meets both.
const ROUNDS: usize = 10;

/// What is measured.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Which queries, separated by commas
    #[arg(long, value_name = "QUERY,...", value_delimiter = ',', default_values = QUERIES, value_parser = QUERIES)]
    queries: Vec<String>,
    /// How often each is asked in each form
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    times: u32,
    /// How many are asked at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    at_once: u32,
    /// Which persons and messages: the same number chooses the same
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print a line of JSON for each query and form
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    of: StoreFolder,
}

/// What came of one query in one form.
#[derive(Default)]
struct Measured {
    times: Vec<Duration>,
    elapsed: Duration,
}

impl Bench {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        const SAMPLE: u32 = 1000;
        const COLUMNS: [&str; 8] = [
            "query",
            "form",
            "p50",
            "p99",
            "queries/s",
            "messages",
            "at client",
            "p50 of RPC's",
        ];
        let client = self.of.client().await?;
        let sample = census::sample(&client, SAMPLE).await?;
        let mut lines = Vec::new();
        for name in &self.queries {
            let queries = self.choose(name, &sample)?;
            let messages = count(&client, &queries).await?;
            let mut measured = [Measured::default(), Measured::default()];
            for round in queries.chunks(queries.len().div_ceil(ROUNDS)) {
                for (form, measured) in FORMS.into_iter().zip(&mut measured) {
                    measured.round(form, round, self.at_once, &client).await?;
                }
            }
            let rpc = measured[1].percentile(50);
            for ((form, measured), messages) in FORMS.into_iter().zip(&mut measured).zip(messages) {
                let (p50, p99) = (measured.percentile(50), measured.percentile(99));
                let each = |sum: u64| format!("{:.1}", sum as f64 / queries.len() as f64);
                lines.push(vec![
                    Value::from(name.as_str()),
                    form.to_string().into(),
                    format!("{p50:.1?}").into(),
                    format!("{p99:.1?}").into(),
                    format!("{:.0}", measured.per_second()).into(),
                    each(messages.all).into(),
                    each(messages.client).into(),
                    format!("{:.0} %", p50.as_secs_f64() / rpc.as_secs_f64() * 100.0).into(),
                ]);
            }
        }
        match self.json {
            true => print!("{}", table::json(&lines)),
            false => print!("{}", table::draw(&COLUMNS, &lines)),
        }
        Ok(())
    }

    /// Which persons or messages a query is asked about.
    fn choose(&self, name: &str, sample: &Sample) -> anyhow::Result<Vec<Query>> {
        let about_person = matches!(name, "is1" | "is2" | "is3");
        let ids: Vec<i64> = match about_person {
            true => sample.persons.iter().map(|id| id.0).collect(),
            false => sample.messages.iter().map(|id| id.0).collect(),
        };
        ensure!(!ids.is_empty(), "the graph is empty");
        let mut chance = Chance(self.seed);
        (0..self.times)
            .map(|_| {
                let id = chance.find(&ids).copied().unwrap_or_default();
                Query::new(name, id).with_context(|| format!("there is no query {name}"))
            })
            .collect()
    }
}

/// The messages that the queries take in each form.
async fn count(client: &Client, queries: &[Query]) -> anyhow::Result<[Messages; 2]> {
    let mut counted = Vec::new();
    for form in FORMS {
        // Connects who has not talked to each other yet.
        for query in queries {
            query.ask(form, client).await?;
        }
        let meter = Meter::begin(client).await?;
        for query in queries {
            query.ask(form, client).await?;
        }
        counted.push(meter.end(client).await?);
    }
    counted.try_into().ok().context("two forms are counted")
}

impl Measured {
    async fn round(
        &mut self,
        form: Form,
        queries: &[Query],
        at_once: u32,
        client: &Client,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut workers = JoinSet::new();
        for part in queries.chunks(queries.len().div_ceil(at_once as usize)) {
            workers.spawn(ask_all(form, part.to_vec(), client.clone()));
        }
        while let Some(times) = workers.join_next().await {
            self.times.extend(times.context("a worker ended")??);
        }
        self.elapsed += begun.elapsed();
        Ok(())
    }

    fn percentile(&mut self, percent: usize) -> Duration {
        self.times.sort();
        let at = self.times.len() * percent / 100;
        let time = self.times.get(at).or(self.times.last());
        time.copied().unwrap_or_default()
    }

    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Asks one after the other; how long each took.
async fn ask_all(
    form: Form,
    queries: Vec<Query>,
    client: Client,
) -> Result<Vec<Duration>, wallaby::CallError> {
    let mut times = Vec::with_capacity(queries.len());
    for query in queries {
        let begun = Instant::now();
        query.ask(form, &client).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}
