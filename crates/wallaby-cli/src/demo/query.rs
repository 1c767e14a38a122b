//! The client: one query, asked by one call of two hops or by plain calls, and what came of it.

use super::failure;
use super::report::{Answer, Found};
use super::services::{self, Excerpt, Hit};
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};
use wallaby::{Address, Call, CallError, Endpoint, One, Trace};

/// Asks the index server.
pub(crate) struct Searcher {
    pub(crate) endpoint: Endpoint,
    pub(crate) index: Address,
    pub(crate) deadline: Duration,
    /// How many documents are wanted for a word.
    pub(crate) limit: u32,
    /// What servers are called.
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
    /// Of a call that was traced.
    pub(crate) trace: Option<Trace>,
}

impl Searcher {
    /// One call: the index server hands it on to the documents, which answer this client directly.
    pub(crate) async fn by_delegation(&self, word: &str, traced: bool) -> Outcome {
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let mut call = self.index(traced).lookup(word.to_owned(), self.limit);
        let mut inquiry = None;
        let mut failure = None;
        let mut doubts = pin!(tokio::time::sleep_until(self.doubts(begin).into()));
        loop {
            let answer = tokio::select! {
                biased;
                answer = call.next() => answer,
                () = &mut doubts, if inquiry.is_none() => {
                    inquiry = Some(self.index(false).find(word.to_owned(), self.limit));
                    continue;
                }
            };
            match answer {
                None => break,
                Some(Ok(excerpt)) => outcome.excerpts.push(excerpt),
                Some(Err(error)) if error.failure().is_none() => {
                    outcome.errors.push(failure::of_call(&error))
                }
                Some(Err(error)) => failure = Some(error),
            }
        }
        outcome.elapsed = begin.elapsed();
        if traced {
            outcome.trace = Some(call.trace());
        }
        if let Some(error) = failure {
            let error = self.explain(&error, inquiry, &outcome).await;
            outcome.errors.push(error);
        }
        outcome.finished()
    }

    /// As with any RPC: a call for the list, then one for each document, all at once.
    pub(crate) async fn by_plain_calls(&self, word: &str) -> Outcome {
        let begin = Instant::now();
        let mut outcome = Outcome::default();
        let find = self.index(false).find(word.to_owned(), self.limit);
        let hits = match find.await {
            Ok(hits) => hits,
            Err(error) => {
                outcome
                    .errors
                    .push(failure::at(&error, &self.name(&self.index), &self.index));
                Vec::new()
            }
        };
        let calls: Vec<_> = (0..)
            .zip(&hits)
            .map(|(rank, hit)| self.excerpt(hit, word, rank))
            .collect();
        for (call, hit) in calls.into_iter().zip(&hits) {
            match call.await {
                Ok(excerpt) => outcome.excerpts.push(excerpt),
                Err(error) => {
                    outcome
                        .errors
                        .push(failure::at(&error, &self.name(&hit.server), &hit.server))
                }
            }
        }
        outcome.elapsed = begin.elapsed();
        outcome.finished()
    }

    /// Words worth a query.
    pub(crate) async fn examples(&self, count: u32) -> anyhow::Result<Vec<String>> {
        let examples = self.index(false).examples(count, self.limit).await;
        examples.map_err(|error| {
            anyhow::anyhow!(failure::at(&error, &self.name(&self.index), &self.index))
        })
    }

    fn index(&self, traced: bool) -> services::index::Client {
        let client = services::index::at(&self.endpoint, &self.index).deadline(self.deadline);
        if traced { client.traced() } else { client }
    }

    fn excerpt(&self, hit: &Hit, word: &str, rank: u32) -> Call<One<Excerpt>> {
        let client = services::documents::at(&self.endpoint, &hit.server).deadline(self.deadline);
        client.excerpt(hit.document, word.to_owned(), rank)
    }

    /// A server as people know it.
    pub(crate) fn name(&self, server: &Address) -> String {
        self.names
            .get(server)
            .map_or_else(|| server.to_string(), |name| format!("{name} ({server})"))
    }

    pub(crate) fn short_name(&self, server: &Address) -> String {
        self.names
            .get(server)
            .cloned()
            .unwrap_or_else(|| server.to_string())
    }

    /// When a query takes so long that it will probably fail: time enough to ask whom it waits for.
    fn doubts(&self, begin: Instant) -> Instant {
        const MOST: Duration = Duration::from_millis(300);
        begin + self.deadline.saturating_sub(MOST.min(self.deadline / 4))
    }

    /// Why a call failed. It doesn't know itself which documents it waits for; the index does, which was asked for them
    /// by an `inquiry` shortly before the deadline.
    async fn explain(
        &self,
        error: &CallError,
        inquiry: Option<Call<One<Vec<Hit>>>>,
        outcome: &Outcome,
    ) -> String {
        let sentence = failure::of_call(error);
        let Some(mut inquiry) = inquiry else {
            return sentence;
        };
        let Ok(Ok(hits)) = tokio::time::timeout(Duration::from_millis(50), inquiry.answer()).await
        else {
            return format!(
                "{sentence}: the index server {} does not answer",
                self.name(&self.index)
            );
        };
        let mut silent = failure::silent(&hits, &outcome.excerpts);
        // Those that could not even be asked have been named.
        silent.retain(|server, _| {
            !outcome
                .errors
                .iter()
                .any(|error| error.contains(&server.to_string()))
        });
        let silent: Vec<String> = silent
            .into_iter()
            .map(|(server, missing)| format!("{} ({missing} missing)", self.name(server)))
            .collect();
        if silent.is_empty() {
            sentence
        } else {
            format!("{sentence}: no answer from {}", silent.join(", "))
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
            elapsed_us: outcome.elapsed.as_secs_f64() * 1e6,
        }
    }
}

impl Outcome {
    fn finished(mut self) -> Self {
        self.excerpts.sort_by_key(|excerpt| excerpt.rank);
        self.errors = failure::once(self.errors);
        self
    }
}
