//! Everything a run of the demo found out, as plain data: what the terminal and programs get.

use super::chain::Chained;
use super::comparison::Comparison;
use super::documents::Skipped;
use super::snippet::Snippet;
use serde::Serialize;

/// One run of the demo.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) collection: Collection,
    /// The emulated delay of every message.
    pub(crate) link_us: f64,
    pub(crate) answers: Vec<Answer>,
    /// Missing if there was nothing to ask for.
    pub(crate) comparison: Option<Comparison>,
    /// One query by a call of two hops.
    pub(crate) traced: Option<Traced>,
    /// A chain beside plain calls.
    pub(crate) chain: Option<Chained>,
}

/// What is searched.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Collection {
    pub(crate) folder: String,
    pub(crate) documents: u64,
    pub(crate) words: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
    pub(crate) servers: Vec<ServerInfo>,
}

/// One process of the cluster.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ServerInfo {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) process: u32,
}

/// What was found for one word.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Answer {
    pub(crate) word: String,
    /// Best first.
    pub(crate) documents: Vec<Found>,
    /// What went wrong, each a sentence that names the server.
    pub(crate) errors: Vec<String>,
    pub(crate) elapsed_us: f64,
}

/// A document that contains the word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) title: String,
    pub(crate) server: String,
    /// How often the word occurs.
    pub(crate) count: u32,
    pub(crate) snippet: Snippet,
}

/// A query whose call was traced.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Traced {
    pub(crate) word: String,
    pub(crate) elapsed_us: f64,
    /// Its tree of hops, drawn.
    pub(crate) tree: String,
}
