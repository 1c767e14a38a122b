//! `wallaby demo search`: a client of servers that somebody else has started.

use super::query::Searcher;
use super::report::Answer;
use super::timeline::Timeline;
use super::words::words;
use super::{show, tree};
use crate::time;
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use wallaby::Address;
use wallaby_program::output::text;

/// Search for words by servers that were started with `wallaby demo serve`
#[derive(Debug, Args)]
pub(crate) struct Search {
    /// The index server's address
    #[arg(long, value_name = "ADDRESS")]
    index: Address,
    /// The words to search for, one query each
    #[arg(value_name = "WORD", required = true)]
    words: Vec<String>,
    /// Give up a query after this time
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time::parse_nonzero)]
    deadline: Duration,
    /// How many documents to find for each word
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Search by plain RPC instead of calls of two hops
    #[arg(long)]
    rpc: bool,
    /// Draw each query's hops
    #[arg(long)]
    trace: bool,
    /// Delay everything that this client sends, as a link would: 250us, 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    link: Duration,
    /// Talk over mutual TLS, by roots.pem, certificate.pem and key.pem in this folder
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a search prints as JSON.
#[derive(Serialize)]
struct Found {
    answers: Vec<Answer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    traces: Vec<Timeline>,
}

impl Search {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let words = queries(&self.words)?;
        let searcher = self.searcher().await?;
        let mut found = Found {
            answers: Vec::new(),
            traces: Vec::new(),
        };
        for word in words {
            let outcome = match self.rpc {
                true => searcher.by_plain_calls(&word, self.trace).await,
                false => searcher.by_delegation(&word, self.trace).await,
            };
            let answer = searcher.answer(&word, &outcome);
            if !self.json {
                text(show::answer(&answer, usize::MAX))?;
                if self.trace {
                    text(tree::draw(&outcome.timeline, crate::output::width()))?;
                }
            }
            found.answers.push(answer);
            found.traces.extend(self.trace.then_some(outcome.timeline));
        }
        searcher.endpoint.close();
        if self.json {
            text(format!("{}\n", serde_json::to_string(&found)?))?;
        }
        match found
            .answers
            .iter()
            .filter(|answer| !answer.errors.is_empty())
            .count()
        {
            0 => Ok(()),
            1 => bail!("a query was not answered completely"),
            count => bail!("{count} queries were not answered completely"),
        }
    }

    async fn searcher(&self) -> anyhow::Result<Searcher> {
        let mut builder = super::endpoint(self.link, self.tls.as_deref())?;
        if let Some(address) = beside(&self.index) {
            builder = builder.listen(&address);
        }
        let endpoint = builder
            .bind()
            .await
            .context("the client's endpoint can't be made")?;
        Ok(Searcher {
            endpoint,
            index: self.index.clone(),
            deadline: self.deadline,
            limit: self.limit,
            names: BTreeMap::new(),
        })
    }
}

/// Where to listen for answers from the servers of a cluster: on this machine if they are, else nowhere. Without an
/// address answers come back the way the request went, which works from behind any NAT.
fn beside(index: &Address) -> Option<String> {
    match index {
        Address::Tcp(SocketAddr::V4(address)) if address.ip().is_loopback() => {
            Some("tcp://127.0.0.1:0".to_owned())
        }
        Address::Tcp(SocketAddr::V6(address)) if address.ip().is_loopback() => {
            Some("tcp://[::1]:0".to_owned())
        }
        _ => None,
    }
}

/// The words that the arguments consist of, each once.
pub(crate) fn queries(arguments: &[String]) -> anyhow::Result<Vec<String>> {
    let mut queries: Vec<String> = Vec::new();
    for argument in arguments {
        let before = queries.len();
        for (_, word) in words(argument) {
            let word = super::words::normal(word).into_owned();
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
