//! The client: one query, asked by one call of two hops or by plain calls, and what came of it.

use super::report::{Answer, Found};
use super::services::{self, Excerpt, Hit};
use super::timeline::Timeline;
use super::{failure, trace};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use wallaby::{Address, CallError, Endpoint, One};

/// Asks the index server.
pub(crate) struct Searcher {
    pub(crate) endpoint: Endpoint,
    pub(crate) index: Address,
    pub(crate) deadline: Duration,
    /// How many documents are wanted for a word.
    pub(crate) limit: u32,
    /// What servers are called; others go by their address.
    pub(crate) names: BTreeMap<Address, String>,
}

/// What came of a query.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Best first.
    pub(crate) excerpts: Vec<Excerpt>,
    /// Sentences that name the server.
    pub(crate) errors: Vec<String>,
    pub(crate) elapsed: Duration,
    pub(crate) timeline: Timeline,
}

impl Searcher {
    /// One call: the index server hands it on to the documents, which answer this client directly.
    pub(crate) async fn by_delegation(&self, word: &str, traced: bool) -> Outcome {
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let mut call = self.index(traced).lookup(word.to_owned(), self.limit);
        let mut failure = None;
        while let Some(answer) = call.next().await {
            match answer {
                Ok(excerpt) => outcome.excerpts.push(excerpt),
                Err(error) if error.failure().is_none() => outcome.errors.push(failure::of_call(&error)),
                Err(error) => failure = Some(error),
            }
        }
        outcome.elapsed = begin.elapsed();
        if traced {
            outcome.timeline = self.timeline(&call.trace(), Duration::ZERO);
        }
        if let Some(error) = failure {
            let error = self.explain(&error, word, &outcome.excerpts).await;
            outcome.errors.push(error);
        }
        outcome.sorted()
    }

    /// As with any RPC: a call for the list, then one for each document, all at once.
    pub(crate) async fn by_plain_calls(&self, word: &str, traced: bool) -> Outcome {
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let mut find = self.index(traced).find(word.to_owned(), self.limit);
        let hits = match find.answer().await {
            Ok(hits) => hits,
            Err(error) => {
                outcome.errors.push(failure::at(&error, &self.name(&self.index)));
                Vec::new()
            }
        };
        let mut timelines = vec![(Duration::ZERO, traced.then(|| find.trace()))];
        let begun = begin.elapsed();
        let mut calls: Vec<_> = (0..).zip(&hits).map(|(rank, hit)| self.excerpt(hit, word, rank, traced)).collect();
        for (call, hit) in calls.iter_mut().zip(&hits) {
            match call.answer().await {
                Ok(excerpt) => outcome.excerpts.push(excerpt),
                Err(error) => outcome.errors.push(failure::at(&error, &self.name(&hit.server))),
            }
        }
        outcome.elapsed = begin.elapsed();
        timelines.extend(calls.iter().map(|call| (begun, traced.then(|| call.trace()))));
        for (begun, trace) in timelines {
            if let Some(trace) = trace {
                outcome.timeline.append(self.timeline(&trace, begun));
            }
        }
        outcome.timeline.elapsed_us = trace::micros(outcome.elapsed);
        outcome.sorted()
    }

    /// Words worth a query.
    pub(crate) async fn examples(&self, count: u32) -> anyhow::Result<Vec<String>> {
        let examples = self.index(false).examples(count, self.limit).await;
        examples.map_err(|error| anyhow::anyhow!(failure::at(&error, &self.name(&self.index))))
    }

    fn index(&self, traced: bool) -> services::index::Client {
        let client = services::index::at(&self.endpoint, &self.index).deadline(self.deadline);
        if traced { client.traced() } else { client }
    }

    fn excerpt(&self, hit: &Hit, word: &str, rank: u32, traced: bool) -> wallaby::Call<One<Excerpt>> {
        let client = services::documents::at(&self.endpoint, &hit.server).deadline(self.deadline);
        let client = if traced { client.traced() } else { client };
        client.excerpt(hit.document, word.to_owned(), rank)
    }

    /// A server as people know it.
    pub(crate) fn name(&self, server: &Address) -> String {
        self.names.get(server).map_or_else(|| server.to_string(), |name| format!("{name} ({server})"))
    }

    fn short_name(&self, server: &Address) -> String {
        self.names.get(server).cloned().unwrap_or_else(|| server.to_string())
    }

    fn timeline(&self, trace: &wallaby::Trace, begun: Duration) -> Timeline {
        trace::timeline(trace, begun, |server| self.short_name(server))
    }

    /// Why a call failed. The call itself may not know which documents it waits for; the index does.
    async fn explain(&self, error: &CallError, word: &str, found: &[Excerpt]) -> String {
        let sentence = failure::of_call(error);
        /// Whoever lives answers this at once; the user has waited long enough.
        const PATIENCE: Duration = Duration::from_millis(300);
        let index = services::index::at(&self.endpoint, &self.index).deadline(PATIENCE);
        match index.find(word.to_owned(), self.limit).await {
            Ok(hits) => {
                let silent = silent(&hits, found).into_iter().map(|(server, missing)| {
                    format!("{} ({missing} missing)", self.name(server))
                });
                let silent: Vec<String> = silent.collect();
                match silent.is_empty() {
                    true => sentence,
                    false => format!("{sentence}: no answer from {}", silent.join(", ")),
                }
            }
            Err(_) => format!("{sentence}: no answer from the index server {}", self.name(&self.index)),
        }
    }

    /// An outcome as part of the report.
    pub(crate) fn answer(&self, word: &str, outcome: &Outcome) -> Answer {
        let found = |excerpt: &Excerpt| Found {
            path: excerpt.path.clone(),
            title: excerpt.title.clone(),
            server: self.short_name(&excerpt.server),
            count: excerpt.count,
            snippet: excerpt.snippet.clone(),
        };
        Answer {
            word: word.to_owned(),
            documents: outcome.excerpts.iter().map(found).collect(),
            errors: outcome.errors.clone(),
            elapsed_us: trace::micros(outcome.elapsed),
        }
    }
}

/// The servers that owe answers, and how many.
fn silent<'a>(hits: &'a [Hit], found: &[Excerpt]) -> BTreeMap<&'a Address, usize> {
    let mut silent = BTreeMap::new();
    for hit in hits {
        if !found.iter().any(|excerpt| (&excerpt.server, excerpt.document) == (&hit.server, hit.document)) {
            *silent.entry(&hit.server).or_default() += 1;
        }
    }
    silent
}

impl Outcome {
    fn sorted(mut self) -> Self {
        self.excerpts.sort_by_key(|excerpt| excerpt.rank);
        self
    }
}
