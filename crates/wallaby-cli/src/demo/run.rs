//! `wallaby demo` itself: a cluster, queries in two ways, what they found and what they cost.

use super::cluster::{Cluster, Plan, Server};
use super::measure::{Effort, Meters};
use super::query::Searcher;
use super::report::{Collection, Report, ServerInfo};
use super::sockets::Sockets;
use super::words::{normal, words};
use super::{Transport, chain, documents, show};
use crate::time::{self, show_micros};
use anyhow::{Context, bail};
use clap::Args;
use console::style;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wallaby::Address;
use wallaby_program::ending::unless_interrupted;
use wallaby_program::output::text;

/// How many words are chosen if none are given.
const EXAMPLES: u32 = 6;
/// How many documents of each are shown; the JSON has all.
const SHOWN: usize = 3;
/// How long a query may take, if no link makes it take longer.
const LEAST_DEADLINE: Duration = Duration::from_secs(2);
/// How long a process that has lost its connections may take to be gone.
const DYING: Duration = Duration::from_millis(500);
/// A measurement longer than this tries the patience more than it adds to the figures.
const LONGEST: Duration = Duration::from_secs(10);

/// What the demo takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Search for these words [default: some that the index proposes]
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Search the text files of this folder [default: the repository one is in]
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    /// How many document servers share the documents
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    servers: u32,
    /// How many documents to find for each word
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Delay every message on its way, as a link would: 250us, 1ms, 20ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    link: Duration,
    /// What the processes talk over
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// How many times each word is asked to measure the latency
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Give up a query after this time [default: 2s, or 10 times the link's delay]
    #[arg(long, value_name = "TIME", value_parser = time::parse_nonzero)]
    deadline: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Runs the demo; whatever happens, no process is left behind.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let sockets = Sockets::new(self.transport)?;
        unless_interrupted(self.with(&sockets)).await
    }

    async fn with(&self, sockets: &Sockets) -> anyhow::Result<()> {
        let words = queries(&self.words)?;
        let folder = self
            .docs
            .clone()
            .map_or_else(documents::default_folder, Ok)?;
        documents::check(&folder)?;
        let mut cluster = Cluster::start(&Plan {
            folder: &folder,
            servers: self.servers,
            link: self.link,
            sockets,
        })
        .await?;
        let servers = cluster.servers();
        let result = self.search(&servers, sockets, &folder, words).await;
        let Err(error) = result else { return Ok(()) };
        // If a server has ended on its own, that is why. Its connections are closed a moment before that can be seen.
        let ended = tokio::time::timeout(DYING, cluster.first_ended()).await;
        Err(match ended {
            Ok(ended) => error.context(ended),
            Err(_) => error,
        })
    }

    /// Everything after the cluster's start.
    async fn search(
        &self,
        servers: &[Server],
        sockets: &Sockets,
        folder: &Path,
        words: Vec<String>,
    ) -> anyhow::Result<()> {
        let index = servers.last().context("there is no index server")?;
        let searcher = self.searcher(servers, index, sockets).await?;
        let mut report = Report {
            collection: collection(servers, index, folder.display().to_string()),
            link_us: self.link.as_secs_f64() * 1e6,
            ..Report::default()
        };
        self.say(|| show::collection(&report.collection))?;
        let words = if words.is_empty() {
            searcher.examples(EXAMPLES).await?
        } else {
            words
        };
        self.find(&searcher, &words, &mut report).await?;
        self.measure(&searcher, servers, &words, &mut report)
            .await?;
        self.chain(folder, &mut report).await?;
        self.finish(&report)
    }

    async fn searcher(
        &self,
        servers: &[Server],
        index: &Server,
        sockets: &Sockets,
    ) -> anyhow::Result<Searcher> {
        let tls = sockets.certificate("client")?;
        let builder = super::endpoint(self.link, tls.as_deref())?;
        let endpoint = builder.listen(&sockets.address("client")).bind().await;
        let endpoint = endpoint.context("the client's endpoint can't be made")?;
        let address = |server: &Server| server.ready.address.parse::<Address>();
        let names = servers
            .iter()
            .map(|server| Ok((address(server)?, server.name.clone())));
        Ok(Searcher {
            endpoint,
            index: address(index)?,
            deadline: self
                .deadline
                .unwrap_or_else(|| LEAST_DEADLINE.max(self.link * 10)),
            limit: self.limit,
            names: names.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Asks for each word by one call of two hops.
    async fn find(
        &self,
        searcher: &Searcher,
        words: &[String],
        report: &mut Report,
    ) -> anyhow::Result<()> {
        self.say(|| heading("Each word by one call: to the index server, on to the documents, back to the client"))?;
        for word in words {
            let outcome = searcher.by_delegation(word, false).await;
            let answer = searcher.answer(word, &outcome);
            self.say(|| show::answer(&answer, SHOWN))?;
            report.answers.push(answer);
        }
        if let Some(error) = report
            .answers
            .iter()
            .flat_map(|answer| &answer.errors)
            .next()
        {
            bail!("{error}");
        }
        Ok(())
    }

    /// Asks again in both ways and measures, then traces one query.
    async fn measure(
        &self,
        searcher: &Searcher,
        servers: &[Server],
        words: &[String],
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let most = report
            .answers
            .iter()
            .max_by_key(|answer| answer.documents.len());
        let Some(shown) = most
            .filter(|answer| !answer.documents.is_empty())
            .map(|answer| answer.word.clone())
        else {
            return self.say(|| "There is nothing to measure: no document was found.\n".to_owned());
        };
        let addresses = servers.iter().map(|server| server.ready.address.parse());
        let meters = Meters {
            searcher,
            servers: addresses.collect::<Result<_, _>>()?,
        };
        let effort = Effort {
            rounds: self.rounds,
            at_most: LONGEST,
        };
        let comparison = meters.compare(words, effort).await?;
        anyhow::ensure!(
            comparison.same_answers,
            "the two ways of asking found different documents"
        );
        self.say(|| {
            let heading =
                heading("The same words by that call and by plain RPC, one call for each document");
            let note = style(comparison.note(self.link)).dim();
            format!("{heading}{}\n{note}\n", comparison.table())
        })?;
        report.comparison = Some(comparison);
        let traced = meters.trace(&shown).await?;
        self.say(|| {
            let took = show_micros(traced.elapsed_us);
            let heading = heading(&format!("The call for “{shown}”: {took}"));
            format!("{heading}{}", traced.tree)
        })?;
        report.traced = Some(traced);
        Ok(())
    }

    /// Asks three services about the first document that was found, one after the other: by a chain, and by plain calls.
    async fn chain(&self, folder: &Path, report: &mut Report) -> anyhow::Result<()> {
        let mut documents = report.answers.iter().flat_map(|answer| &answer.documents);
        let Some(document) = documents.next() else {
            return Ok(());
        };
        let chained = chain::compare(folder, &document.path, self.link, self.rounds).await?;
        anyhow::ensure!(
            chained.same_answers,
            "the chain and the calls came to different answers"
        );
        self.say(|| {
            let code = style(chained.code).green();
            format!(
                "{}{}{}{code}{}{}\n{}\n{}\n",
                heading("Three services that do not know each other, and nothing of chains"),
                chained.servers(),
                heading("What the client brings along: it runs where the answers are, and says where they go next"),
                heading("One chain, and the same by three calls"),
                chained.picture(),
                chained.answer,
                style(chained.note()).dim(),
            )
        })?;
        report.chain = Some(chained);
        Ok(())
    }

    /// Prints for programs what they asked for.
    fn finish(&self, report: &Report) -> anyhow::Result<()> {
        match self.json {
            true => text(format!("{}\n", serde_json::to_string(report)?)),
            false => Ok(()),
        }
    }

    /// Prints for people; programs that want JSON get nothing else.
    fn say(&self, words: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json { Ok(()) } else { text(words()) }
    }
}

fn heading(text: &str) -> String {
    format!("\n{}\n", style(text).bold().underlined())
}

fn collection(servers: &[Server], index: &Server, folder: String) -> Collection {
    let server = |server: &Server| ServerInfo {
        name: server.name.clone(),
        address: server.ready.address.clone(),
        process: server.process,
    };
    Collection {
        folder,
        documents: index.ready.documents,
        words: index.ready.words,
        bytes: index.ready.bytes,
        skipped: index.ready.skipped.clone(),
        servers: servers.iter().map(server).collect(),
    }
}

/// The words that the arguments consist of, each once.
fn queries(arguments: &[String]) -> anyhow::Result<Vec<String>> {
    let mut queries: Vec<String> = Vec::new();
    for argument in arguments {
        let before = queries.len();
        for (_, word) in words(argument) {
            let word = normal(word).into_owned();
            if !queries.contains(&word) {
                queries.push(word);
            }
        }
        let repeated = words(argument).next().is_some();
        anyhow::ensure!(
            queries.len() > before || repeated,
            "there is no word to search for in {argument:?}"
        );
    }
    Ok(queries)
}

#[cfg(test)]
mod tests {
    #[test]
    fn arguments_are_taken_apart_into_words() {
        let queries = |arguments: &[&str]| {
            super::queries(
                &arguments
                    .iter()
                    .map(|argument| (*argument).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            queries(&["Hop", "two words", "hop"]).unwrap(),
            ["hop", "two", "words"]
        );
        assert!(
            queries(&["ok", "--!"])
                .unwrap_err()
                .to_string()
                .contains("\"--!\"")
        );
        assert!(queries(&[""]).is_err());
    }
}
