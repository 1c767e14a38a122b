//! A chain through three services that do not know each other, beside plain calls of the same.

use super::Transport;
use super::cluster::Plan;
use super::links::{self, Link, Quote};
use super::sequence::{Message, beside, draw};
use super::serve::Ready;
use super::sockets::Sockets;
use crate::time::{show, show_micros};
use anyhow::Context;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};
use wallaby::{Address, Call, CallError, Endpoint, One, Trace};
use wallaby_chain::{ChainCode, Hop, State, start};
use wallaby_program::child::Cluster;
use wallaby_program::output;

/// The delay of each message, unless a link was asked for.
const LINK: Duration = Duration::from_millis(20);
/// How often each way is gone, besides a first time that makes connections.
const ROUNDS: u32 = 9;

/// What the client brings. It runs at the servers, on what they have answered.
const CODE: &str = r#"// wallaby: rhai 1
fn count(state, text) {             // at the archive
    next(state.counter, [text], "choose", state)
}

fn choose(state, words) {           // at the counter: the longest word
    state.word = "";
    for word in words {
        if word.len() > state.word.len() { state.word = word; }
    }
    next(state.quotes, [state.word], "tell", state)
}

fn tell(state, quotes) {            // at the quotes: one of another document
    for quote in quotes {
        if quote.path != state.path {
            let place = `${quote.path}:${quote.line}`;
            return end(`${state.path} is about “${state.word}”. ${place} says: ${quote.text}`);
        }
    }
    end(`Only ${state.path} says “${state.word}”.`)
}
"#;

/// A chain beside plain calls.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chained {
    pub(crate) document: String,
    /// The emulated delay of every message.
    pub(crate) link_us: f64,
    /// What the client brought.
    pub(crate) code: &'static str,
    pub(crate) servers: Vec<Server>,
    pub(crate) answer: String,
    /// Whether both ways came to the same each time.
    pub(crate) same_answers: bool,
    /// How often each way was gone.
    pub(crate) rounds: u32,
    pub(crate) chain: Way,
    pub(crate) calls: Way,
}

/// A server of the chain.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: Address,
    pub(crate) process: u32,
}

/// One way, the time it took that was the median.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Way {
    pub(crate) p50_us: f64,
    pub(crate) messages: Vec<Message>,
}

/// Who goes both ways.
struct Client {
    endpoint: Endpoint,
    servers: Vec<Server>,
    document: String,
    deadline: Duration,
}

/// What one way came to.
struct Outcome {
    answer: String,
    way: Way,
}

/// Starts the three servers, asks about this document both ways, in turns, and ends them.
pub(crate) async fn compare(
    folder: &Path,
    document: &str,
    link: Duration,
    rounds: u32,
) -> anyhow::Result<Chained> {
    let link = if link.is_zero() { LINK } else { link };
    // Unix sockets prove who brings code.
    let sockets = Sockets::new(Transport::Unix)?;
    let plan = Plan {
        folder,
        servers: 0,
        link,
        sockets: &sockets,
    };
    let mut cluster = start_servers(&plan).await?;
    let client = Client::new(&plan, &mut cluster, document).await?;
    let rounds = rounds.min(ROUNDS);
    let (mut chains, mut calls) = (Vec::new(), Vec::new());
    client.by_chain().await?;
    client.by_calls().await?;
    for _ in 0..rounds {
        chains.push(client.by_chain().await?);
        calls.push(client.by_calls().await?);
    }
    let answer = chains
        .first()
        .map_or_else(String::new, |first| first.answer.clone());
    let same_answers = (chains.iter().chain(&calls)).all(|outcome| outcome.answer == answer);
    let chained = Chained {
        document: document.to_owned(),
        link_us: link.as_secs_f64() * 1e6,
        code: CODE,
        answer,
        same_answers,
        rounds,
        chain: median(chains).context("a chain")?,
        calls: median(calls).context("calls")?,
        servers: client.servers,
    };
    cluster.end().await;
    Ok(chained)
}

async fn start_servers(plan: &Plan<'_>) -> anyhow::Result<Cluster<Ready>> {
    let program = |link: Link| {
        let arguments = ["link", link.name(), "--docs"].map(Into::into);
        let arguments: Vec<_> = arguments.into_iter().chain([plan.folder.into()]).collect();
        plan.program(link.name().to_owned(), &arguments)
    };
    let read = |line: &str| Ok(serde_json::from_str(line)?);
    Cluster::start(Link::ALL.map(program), read).await
}

/// Of whole outcomes, by their latency: crates of statistics know numbers only.
fn median(mut outcomes: Vec<Outcome>) -> Option<Way> {
    outcomes.sort_by(|a, b| a.way.p50_us.total_cmp(&b.way.p50_us));
    let middle = outcomes.len() / 2;
    outcomes.into_iter().nth(middle).map(|outcome| outcome.way)
}

impl Client {
    async fn new(
        plan: &Plan<'_>,
        cluster: &mut Cluster<Ready>,
        document: &str,
    ) -> anyhow::Result<Self> {
        let builder = super::endpoint(plan.link, None)?;
        let endpoint = builder.listen(&plan.sockets.address("client")).bind().await;
        let said = cluster.said().to_vec();
        let each = Link::ALL.into_iter().zip(cluster.children()).zip(said);
        let servers = each.map(|((link, child), ready)| {
            Ok(Server {
                name: link.name(),
                address: ready.address().parse()?,
                process: child.id().unwrap_or_default(),
            })
        });
        Ok(Self {
            endpoint: endpoint.context("the client's endpoint can't be made")?,
            servers: servers.collect::<anyhow::Result<_>>()?,
            document: document.to_owned(),
            deadline: Duration::from_secs(2).max(plan.link * 40),
        })
    }

    fn at(&self, link: Link) -> Address {
        self.servers[link as usize].address.clone()
    }

    /// One call, which goes from server to server.
    async fn by_chain(&self) -> anyhow::Result<Outcome> {
        let state = State::new()
            .with("path", &self.document)?
            .link("counter", self.at(Link::Counter), &links::counter::FREQUENT)?
            .link("quotes", self.at(Link::Quotes), &links::quotes::FIND)?;
        let begin = (self.document.clone(),);
        let first = Hop::to(self.at(Link::Archive), &links::archive::BEGIN, begin)
            .then(ChainCode::new(CODE).function("count"), state);
        let began = Instant::now();
        let caller = self.endpoint.caller().deadline(self.deadline).traced();
        let mut call = start::<String>(first).call(caller)?;
        let answer = call.answer().await.context("the chain")?;
        self.outcome(answer, began.elapsed(), [(Duration::ZERO, call.trace())])
    }

    /// Three calls, and what the code does is done here.
    async fn by_calls(&self) -> anyhow::Result<Outcome> {
        let began = Instant::now();
        let mut traces = Vec::new();
        let archive = links::archive::at(&self.endpoint, self.at(Link::Archive))
            .deadline(self.deadline)
            .traced();
        let text = answer(archive.begin(self.document.clone()), began, &mut traces).await?;
        let counter = links::counter::at(&self.endpoint, self.at(Link::Counter))
            .deadline(self.deadline)
            .traced();
        let words = answer(counter.frequent(text), began, &mut traces).await?;
        let word = longest(words);
        let quotes = links::quotes::at(&self.endpoint, self.at(Link::Quotes))
            .deadline(self.deadline)
            .traced();
        let quotes = answer(quotes.find(word.clone()), began, &mut traces).await?;
        let answer = tell(&self.document, &word, &quotes);
        self.outcome(answer, began.elapsed(), traces)
    }

    /// What it came to, and the messages of calls that began at these times.
    fn outcome(
        &self,
        answer: String,
        elapsed: Duration,
        traces: impl IntoIterator<Item = (Duration, Trace)>,
    ) -> anyhow::Result<Outcome> {
        const CLIENT: &str = "client";
        let name = |address: &Option<Address>| {
            let server =
                (self.servers.iter()).find(|server| Some(&server.address) == address.as_ref());
            server.map_or(CLIENT, |server| server.name).to_owned()
        };
        let mut messages = Vec::new();
        for (begin, trace) in traces {
            let mut from = CLIENT.to_owned();
            for hop in &trace.hops {
                let arrived = hop
                    .timing
                    .context("a hop has not told when it ran")?
                    .arrived;
                let to = name(&hop.server);
                messages.push(Message {
                    from: std::mem::replace(&mut from, to.clone()),
                    to,
                    at_us: (begin + arrived).as_secs_f64() * 1e6,
                });
            }
            messages.push(Message {
                from,
                to: CLIENT.to_owned(),
                at_us: (begin + trace.elapsed).as_secs_f64() * 1e6,
            });
        }
        let p50_us = elapsed.as_secs_f64() * 1e6;
        Ok(Outcome {
            answer,
            way: Way { p50_us, messages },
        })
    }
}

async fn answer<T: Send + 'static>(
    mut call: Call<One<T>>,
    began: Instant,
    traces: &mut Vec<(Duration, Trace)>,
) -> Result<T, CallError>
where
    wallaby::codec::Postcard: wallaby::codec::Codec<T>,
{
    let begin = began.elapsed();
    let answer = call.answer().await?;
    traces.push((begin, call.trace()));
    Ok(answer)
}

/// As the function `choose`.
fn longest(words: Vec<String>) -> String {
    let longer =
        |longest: String, word: String| match word.chars().count() > longest.chars().count() {
            true => word,
            false => longest,
        };
    words.into_iter().fold(String::new(), longer)
}

/// As the function of this name.
fn tell(path: &str, word: &str, quotes: &[Quote]) -> String {
    match quotes.iter().find(|quote| quote.path != path) {
        Some(Quote {
            path: other,
            line,
            text,
        }) => {
            format!("{path} is about “{word}”. {other}:{line} says: {text}")
        }
        None => format!("Only {path} says “{word}”."),
    }
}

impl Chained {
    /// The servers, for people.
    pub(crate) fn servers(&self) -> String {
        let rows = self.servers.iter().map(|server| {
            let (name, process) = (&server.name, server.process);
            [
                format!("  {name}"),
                server.address.to_string(),
                format!("process {process}"),
            ]
        });
        output::table(0..0, &[], rows)
    }

    /// What took how long, as a picture.
    pub(crate) fn picture(&self) -> String {
        let hosts = ["client", "archive", "counter", "quotes"];
        let [chain, calls] =
            [("One chain", &self.chain), ("Three calls", &self.calls)].map(|(what, way)| {
                let title = format!(
                    "{what}: {} messages, {}",
                    way.messages.len(),
                    show_micros(way.p50_us)
                );
                draw(&title, &hosts, &way.messages)
            });
        beside(&chain, &calls)
    }

    /// What the numbers are, in words.
    pub(crate) fn note(&self) -> String {
        let link = Duration::from_secs_f64(self.link_us / 1e6);
        let ideal = |way: &Way| show(link * way.messages.len() as u32);
        format!(
            "Each message is {} on its way, so these take {} and {} at least. Medians of {} each, taken in turns.",
            show(link),
            ideal(&self.chain),
            ideal(&self.calls),
            self.rounds
        )
    }
}
