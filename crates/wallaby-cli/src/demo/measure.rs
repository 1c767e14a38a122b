//! The same queries in two ways, many times: how long they take and what they send.

use super::comparison::{Comparison, Measured, Traffic};
use super::query::{Outcome, Searcher};
use super::report::Traced;
use super::services::{self, Counts, Excerpt, counts};
use crate::progress::Progress;
use std::time::{Duration, Instant};
use wallaby::Address;

/// How many times each word is asked before anything is measured: connections are made, code is paged in.
const WARM_UP: u32 = 2;
/// How many times each word is asked to count messages and bytes, which hardly vary.
const COUNTED: u32 = 3;
/// How many traced queries the one that is shown is chosen from.
const TRACED: usize = 5;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// How many times each word is asked in each way,
    pub(crate) rounds: u32,
    /// unless that takes longer.
    pub(crate) at_most: Duration,
}

/// Both ways of asking.
#[derive(Clone, Copy)]
enum Way {
    Delegation,
    PlainCalls,
}

/// Measures a cluster.
pub(crate) struct Meters<'a> {
    pub(crate) searcher: &'a Searcher,
    /// Every server, to be asked for its counts.
    pub(crate) servers: Vec<Address>,
}

impl Meters<'_> {
    /// Asks for all words in both ways, in turns.
    pub(crate) async fn compare(
        &self,
        words: &[String],
        effort: Effort,
    ) -> anyhow::Result<Comparison> {
        let mut progress = Progress::new("measuring");
        let (mut dpc, mut rpc) = (Measured::default(), Measured::default());
        let mut same_answers = true;
        progress.set(0, u64::from(effort.rounds));
        for round in 0..WARM_UP {
            self.round(
                round,
                words,
                &mut Measured::default(),
                &mut Measured::default(),
            )
            .await?;
        }
        let begin = Instant::now();
        for round in 0..effort.rounds {
            progress.set(u64::from(round), u64::from(effort.rounds));
            same_answers &= self.round(round, words, &mut dpc, &mut rpc).await?;
            if begin.elapsed() > effort.at_most {
                break;
            }
        }
        (dpc.client, dpc.cluster) = self.count(Way::Delegation, words).await?;
        (rpc.client, rpc.cluster) = self.count(Way::PlainCalls, words).await?;
        progress.set(u64::from(effort.rounds), u64::from(effort.rounds));
        let counted = u64::from(COUNTED) * words.len() as u64;
        Ok(Comparison {
            queries: dpc.latencies.len() as u64,
            same_answers,
            dpc: dpc.cost(counted),
            rpc: rpc.cost(counted),
        })
    }

    /// Every word once in each way; whether both found the same.
    async fn round(
        &self,
        round: u32,
        words: &[String],
        dpc: &mut Measured,
        rpc: &mut Measured,
    ) -> anyhow::Result<bool> {
        let mut same = true;
        for (turn, word) in (round..).zip(words) {
            let mut order = [Way::Delegation, Way::PlainCalls];
            // Who comes second finds the caches warm: take turns in that too.
            if turn % 2 == 1 {
                order.reverse();
            }
            let mut found: Vec<Vec<Excerpt>> = Vec::with_capacity(2);
            for way in order {
                let outcome = self.ask(way, word).await?;
                match way {
                    Way::Delegation => dpc.latencies.push(outcome.elapsed),
                    Way::PlainCalls => rpc.latencies.push(outcome.elapsed),
                }
                found.push(outcome.excerpts);
            }
            same &= found[0] == found[1];
        }
        Ok(same)
    }

    async fn ask(&self, way: Way, word: &str) -> anyhow::Result<Outcome> {
        let outcome = match way {
            Way::Delegation => self.searcher.by_delegation(word, false).await,
            Way::PlainCalls => self.searcher.by_plain_calls(word).await,
        };
        whole(word, outcome)
    }

    /// What the queries add to the counts of the client, and of all processes.
    async fn count(&self, way: Way, words: &[String]) -> anyhow::Result<(Traffic, Traffic)> {
        // Reading the counts is counted as well: two readings in a row tell how much that is.
        let idle = self.read().await?;
        let before = self.read().await?;
        let client_before = traffic(counts(&self.searcher.endpoint));
        for word in words.iter().cycle().take(words.len() * COUNTED as usize) {
            self.ask(way, word).await?;
        }
        let client = traffic(counts(&self.searcher.endpoint)).since(client_before);
        let after = self.read().await?;
        let reading = before.since(idle);
        Ok((client, client + after.since(before).since(reading)))
    }

    /// The counts of all servers, summed.
    async fn read(&self) -> anyhow::Result<Traffic> {
        let mut sum = Traffic::default();
        for server in &self.servers {
            let counters = services::counters::at(&self.searcher.endpoint, server)
                .deadline(self.searcher.deadline);
            let read = counters.read().await;
            let read =
                read.map_err(|error| anyhow::anyhow!("{}: {error}", self.searcher.name(server)))?;
            sum = sum + traffic(read);
        }
        Ok(sum)
    }

    /// One query, traced: of several the one that took the median time.
    pub(crate) async fn trace(&self, word: &str) -> anyhow::Result<Traced> {
        let mut traces = Vec::with_capacity(TRACED);
        for _ in 0..TRACED {
            let outcome = self.searcher.by_delegation(word, true).await;
            traces.extend(whole(word, outcome)?.trace);
        }
        traces.sort_by_key(|trace| trace.elapsed);
        let trace = traces.swap_remove(TRACED / 2);
        Ok(Traced {
            word: word.to_owned(),
            elapsed_us: trace.elapsed.as_secs_f64() * 1e6,
            tree: trace.draw(|server| self.searcher.short_name(server)),
        })
    }
}

/// An outcome without errors.
fn whole(word: &str, outcome: Outcome) -> anyhow::Result<Outcome> {
    match outcome.errors.first() {
        Some(error) => anyhow::bail!("{word}: {error}"),
        None => Ok(outcome),
    }
}

fn traffic(counts: Counts) -> Traffic {
    Traffic {
        messages_sent: counts.messages_sent,
        messages_received: counts.messages_received,
        bytes_sent: counts.bytes_sent,
        bytes_received: counts.bytes_received,
    }
}
