//! `wallaby-graph bench`: how long queries take, as multi-hop calls and as plain calls.

use super::{Servers, StoreFolder, client};
use crate::census::{self, Messages, Meter, Sample};
use crate::client::Client;
use crate::output;
use crate::process::{self, Processes, Transport};
use crate::query::{Form, Query};
use crate::source::generated::Chance;
use crate::store::Store;
use crate::table;
use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const QUERIES: [&str; 7] = ["is1", "is2", "is3", "is4", "is5", "is6", "is7"];
const FORMS: [Form; 2] = [Form::Dpc, Form::Rpc];
/// The two forms take turns, so that what else the machine does meets both.
const ROUNDS: usize = 10;
/// How often a query is asked in all: twice in each form to count its messages, once to trace it, once in each form for its
/// time.
const ASKED: u64 = 7;

/// What is measured.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Which queries, separated by commas
    #[arg(long, value_name = "QUERY,...", value_delimiter = ',', default_values = QUERIES, value_parser = QUERIES)]
    queries: Vec<String>,
    /// How often each is asked in each form [default: 2000, over emulated links 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    times: Option<u32>,
    /// How many are asked at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    at_once: u32,
    /// Which persons and messages: the same number chooses the same
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Start servers for this alone, with emulated links: every message takes so long, as in 250us or 1ms
    #[arg(long, value_name = "DELAY", value_parser = wallaby::link::parse_delay)]
    link: Option<Duration>,
    /// How many servers are started with --link [default: 4]
    #[arg(long, value_name = "N", requires = "link", value_parser = clap::value_parser!(u32).range(1..=256))]
    servers: Option<u32>,
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
    /// How many times as long as its links alone each took, in hundredths of a percent.
    over_links: Vec<u64>,
}

/// A query to be asked.
#[derive(Clone, Copy)]
struct Asked {
    query: Query,
    /// How many links its messages take one after the other in each form, as far as its tree tells.
    links: [u32; 2],
}

impl Bench {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (client, processes, link) = match self.link {
            None => {
                let running = process::find(&self.of.store)?;
                (self.of.client().await?, None, running.link())
            }
            Some(link) => {
                let processes = self.start(link).await?;
                (client(&processes.running()).await?, Some(processes), link)
            }
        };
        let lines = self.measure_all(&client, link).await?;
        if let Some(processes) = processes {
            processes.end().await;
        }
        match self.json {
            true => output::text(&table::json(&lines))?,
            false => output::text(&table::draw(columns(link), &lines))?,
        }
        if !self.json && !link.is_zero() {
            output::line(format_args!(
                "\nlinks: how many of {link:?} an answer takes one after the other, h + 1 against 2h for h hops;"
            ))?;
            output::line(format_args!(
                "over them: what the median is longer than these alone, for all else that is done"
            ))?;
        }
        Ok(())
    }

    /// Servers for this alone, on the store that nobody else may serve meanwhile.
    async fn start(&self, link: Duration) -> anyhow::Result<Processes> {
        let (store, shown) = (&self.of.store, self.of.store.display());
        ensure!(
            self.of.client().await.is_err(),
            "a cluster serves {shown}: end it first, or measure that one: leave --link out here and start it with 'up --link'"
        );
        Store::find(store)?.with_context(|| {
            format!("nothing was loaded into {shown}: 'wallaby-graph load' does that")
        })?;
        let servers = Servers {
            count: self.servers.unwrap_or(4),
            transport: Transport::Tcp,
            link,
        };
        servers.start(store).await
    }

    async fn measure_all(
        &self,
        client: &Client,
        link: Duration,
    ) -> anyhow::Result<Vec<Vec<Value>>> {
        const SAMPLE: u32 = 1000;
        let sample = census::sample(client, SAMPLE).await?;
        let mut lines = Vec::new();
        let bar = progress(self.queries.len() as u64 * u64::from(self.times(link)) * ASKED);
        for name in &self.queries {
            bar.set_message(name.clone());
            let chosen = self.choose(name, &sample, link)?;
            lines.extend(self.measure(name, &chosen, client, link, &bar).await?);
        }
        bar.finish_and_clear();
        Ok(lines)
    }

    /// A line for each form of one query.
    async fn measure(
        &self,
        name: &str,
        queries: &[Query],
        client: &Client,
        link: Duration,
        bar: &ProgressBar,
    ) -> anyhow::Result<[Vec<Value>; 2]> {
        let messages = count(client, queries, bar).await?;
        let queries = trace(client, queries, bar).await?;
        let mut measured = [Measured::default(), Measured::default()];
        for round in queries.chunks(queries.len().div_ceil(ROUNDS)) {
            for (form, measured) in FORMS.into_iter().zip(&mut measured) {
                measured
                    .round(form, round, self.at_once, client, link)
                    .await?;
                bar.inc(round.len() as u64);
            }
        }
        let rpc = measured[1].percentile(50);
        let mut line = |form: usize| {
            let (messages, measured) = (&messages[form], &mut measured[form]);
            let (p50, p99) = (measured.percentile(50), measured.percentile(99));
            let each = |sum: u64| format!("{:.1}", sum as f64 / queries.len() as f64);
            let mut line = vec![
                Value::from(name),
                FORMS[form].to_string().into(),
                format!("{p50:.1?}").into(),
                format!("{p99:.1?}").into(),
                format!("{:.0}", measured.per_second()).into(),
                each(messages.all).into(),
                each(messages.client).into(),
                format!("{:.0} %", p50.as_secs_f64() / rpc.as_secs_f64() * 100.0).into(),
            ];
            if !link.is_zero() {
                let links = queries.iter().map(|asked| u64::from(asked.links[form]));
                line.push(each(links.sum()).into());
                line.push(format!("{:+.1} %", measured.over_links()).into());
            }
            line
        };
        Ok([line(0), line(1)])
    }

    fn times(&self, link: Duration) -> u32 {
        self.times.unwrap_or(match link.is_zero() {
            true => 2000,
            false => 100,
        })
    }

    /// Which persons or messages a query is asked about.
    fn choose(&self, name: &str, sample: &Sample, link: Duration) -> anyhow::Result<Vec<Query>> {
        let about_person = matches!(name, "is1" | "is2" | "is3");
        let ids: Vec<i64> = match about_person {
            true => sample.persons.iter().map(|id| id.0).collect(),
            false => sample.messages.iter().map(|id| id.0).collect(),
        };
        ensure!(!ids.is_empty(), "the graph is empty");
        let mut chance = Chance(self.seed);
        (0..self.times(link))
            .map(|_| {
                let id = chance.find(&ids).copied().unwrap_or_default();
                Query::new(name, id).with_context(|| format!("there is no query {name}"))
            })
            .collect()
    }
}

/// The messages that the queries take in each form.
async fn count(
    client: &Client,
    queries: &[Query],
    bar: &ProgressBar,
) -> anyhow::Result<[Messages; 2]> {
    let mut counted = Vec::new();
    for form in FORMS {
        // Connects who has not talked to each other yet.
        for query in queries {
            query.ask(form, client).await?;
            bar.inc(1);
        }
        let meter = Meter::begin(client).await?;
        for query in queries {
            query.ask(form, client).await?;
            bar.inc(1);
        }
        counted.push(meter.end(client).await?);
    }
    counted.try_into().ok().context("two forms are counted")
}

/// How deep the tree of each query is, and so how many links its messages take.
async fn trace(
    client: &Client,
    queries: &[Query],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Asked>> {
    let client = client.clone().traced();
    let mut traced = Vec::with_capacity(queries.len());
    for &query in queries {
        let outcome = query.ask(Form::Dpc, &client).await?;
        let tree = outcome.trace.context("the call was not traced")?;
        let hops = u32::try_from(tree.depth())?.max(1);
        traced.push(Asked {
            query,
            links: [hops + 1, 2 * hops],
        });
        bar.inc(1);
    }
    Ok(traced)
}

fn columns(link: Duration) -> &'static [&'static str] {
    const COLUMNS: [&str; 10] = [
        "query",
        "form",
        "p50",
        "p99",
        "queries/s",
        "messages",
        "at client",
        "p50 of RPC's",
        "links",
        "over them",
    ];
    match link.is_zero() {
        true => &COLUMNS[..8],
        false => &COLUMNS,
    }
}

fn progress(asked: u64) -> ProgressBar {
    let bar = ProgressBar::new(asked);
    bar.set_style(
        ProgressStyle::with_template("{msg} {bar:40.green/dim} {percent} %, {eta} to go")
            .map(|style| style.progress_chars("━━╌"))
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

impl Measured {
    async fn round(
        &mut self,
        form: Form,
        queries: &[Asked],
        at_once: u32,
        client: &Client,
        link: Duration,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut workers = JoinSet::new();
        for part in queries.chunks(queries.len().div_ceil(at_once as usize)) {
            workers.spawn(ask_all(form, part.to_vec(), client.clone()));
        }
        while let Some(times) = workers.join_next().await {
            for (time, links) in times.context("a worker ended")?? {
                self.times.push(time);
                let alone = u128::max((link * links).as_nanos(), 1);
                let over = time.as_nanos() * 10_000 / alone;
                self.over_links
                    .push(u64::try_from(over).unwrap_or(u64::MAX));
            }
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

    /// By how many percent the median is longer than its links.
    fn over_links(&mut self) -> f64 {
        self.over_links.sort();
        let middle = self.over_links.get(self.over_links.len() / 2);
        middle.copied().unwrap_or_default() as f64 / 100.0 - 100.0
    }

    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Asks one after the other; how long each took, and how many links.
async fn ask_all(
    form: Form,
    queries: Vec<Asked>,
    client: Client,
) -> Result<Vec<(Duration, u32)>, wallaby::CallError> {
    let mut times = Vec::with_capacity(queries.len());
    for Asked { query, links } in queries {
        let begun = Instant::now();
        query.ask(form, &client).await?;
        let links = match form {
            Form::Dpc => links[0],
            Form::Rpc => links[1],
        };
        times.push((begun.elapsed(), links));
    }
    Ok(times)
}
