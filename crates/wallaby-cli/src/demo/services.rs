//! The services of the demo: an index that hands queries on, and document servers that answer them.

use super::concordance::Concordance;
use super::documents::{Document, Skipped};
use super::index::Index as Words;
use super::snippet::Snippet;
use super::words::normal;
use serde::{Deserialize, Serialize};
use wallaby::{Address, Code, Endpoint, Many, Request, Status};

/// A document that contains a word, as the server that holds it tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Excerpt {
    pub(crate) server: Address,
    pub(crate) document: u32,
    /// The document's place among those that match, 0 is the best.
    pub(crate) rank: u32,
    pub(crate) path: String,
    pub(crate) title: String,
    /// How often the word occurs.
    pub(crate) count: u32,
    pub(crate) snippet: Snippet,
}

/// Where a document that contains a word is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hit {
    pub(crate) server: Address,
    pub(crate) document: u32,
    pub(crate) count: u32,
}

/// A document's words and how often each occurs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DocumentWords {
    pub(crate) document: u32,
    pub(crate) words: Vec<(String, u32)>,
}

/// How much a server holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holdings {
    pub(crate) documents: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
}

/// What an endpoint has sent and received since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

/// Knows which words occur in which documents.
#[wallaby::service(package = "demo")]
pub(crate) trait Index {
    /// The best documents for a word. They answer themselves.
    async fn lookup(word: String, limit: u32) -> Many<Excerpt>;
    /// Where the best documents for a word are: for clients that ask them one by one.
    async fn find(word: String, limit: u32) -> Vec<Hit>;
    /// Words worth a query, each found in about so many documents.
    async fn examples(count: u32, matches: u32) -> Vec<String>;
}

/// Holds documents.
#[wallaby::service(package = "demo")]
pub(crate) trait Documents {
    /// What a document says about a word.
    async fn excerpt(document: u32, word: String, rank: u32) -> Excerpt;
    /// The words of every document.
    async fn words() -> Many<DocumentWords>;
    /// How much there is.
    async fn holdings() -> Holdings;
}

/// Tells what an endpoint has counted.
#[wallaby::service(package = "demo")]
pub(crate) trait Counters {
    async fn read() -> Counts;
}

/// The index server.
pub(crate) struct IndexServer {
    pub(crate) words: Words,
    /// The document servers, in the order of their numbers in the index.
    pub(crate) servers: Vec<Address>,
}

#[wallaby::serve]
impl Index for IndexServer {
    async fn lookup(
        &self,
        request: Request<Many<Excerpt>>,
        word: String,
        limit: u32,
    ) -> Result<(), Status> {
        let mut unreachable = Unreachable::default();
        for (rank, hit) in (0..).zip(self.hits(&word, limit)) {
            let excerpt = documents::excerpt(hit.document, word.clone(), rank);
            if let Err(error) = request.delegate(&hit.server, excerpt).await {
                unreachable.add(&hit.server, error.into());
            }
        }
        unreachable.into_result()
    }

    async fn find(&self, word: String, limit: u32) -> Vec<Hit> {
        self.hits(&word, limit).collect()
    }

    async fn examples(&self, count: u32, matches: u32) -> Vec<String> {
        self.words.examples(count, matches)
    }
}

impl IndexServer {
    fn hits(&self, word: &str, limit: u32) -> impl Iterator<Item = Hit> {
        self.words.find(word, limit).iter().map(|posting| Hit {
            server: self.servers[posting.server as usize].clone(),
            document: posting.document,
            count: posting.count,
        })
    }
}

/// The document servers that a query could not be handed to. The others answer all the same.
#[derive(Default)]
struct Unreachable(Vec<(Address, u32, Status)>);

impl Unreachable {
    fn add(&mut self, server: &Address, why: Status) {
        match self.0.iter_mut().find(|(known, ..)| known == server) {
            Some((_, documents, _)) => *documents += 1,
            None => self.0.push((server.clone(), 1, why)),
        }
    }

    fn into_result(self) -> Result<(), Status> {
        let Some((_, _, first)) = self.0.first() else {
            return Ok(());
        };
        let code = first.code();
        let sentences: Vec<String> = self
            .0
            .iter()
            .map(|(server, documents, why)| {
                format!(
                    "document server {server} can't be reached ({documents} missing): {}",
                    why.message()
                )
            })
            .collect();
        Err(Status::new(code, sentences.join("; ")))
    }
}

/// A document server.
pub(crate) struct DocumentServer {
    pub(crate) address: Address,
    pub(crate) documents: Vec<Held>,
    pub(crate) skipped: Skipped,
}

/// A document, ready to be asked about.
pub(crate) struct Held {
    title: String,
    document: Document,
    words: Concordance,
}

impl From<Document> for Held {
    fn from(document: Document) -> Self {
        Self {
            title: document.title(),
            words: Concordance::of(&document.text),
            document,
        }
    }
}

#[wallaby::serve]
impl Documents for DocumentServer {
    async fn excerpt(&self, document: u32, word: String, rank: u32) -> Result<Excerpt, Status> {
        let Some(held) = self.documents.get(document as usize) else {
            return Err(Status::new(
                Code::NotFound,
                format!("{} has no document {document}", self.address),
            ));
        };
        let word = normal(&word);
        Ok(Excerpt {
            server: self.address.clone(),
            document,
            rank,
            path: held.document.path.clone(),
            title: held.title.clone(),
            count: held.words.count(&word),
            snippet: held.words.snippet(&held.document.text, &word),
        })
    }

    async fn words(&self, request: Request<Many<DocumentWords>>) -> Result<(), Status> {
        for (document, held) in (0..).zip(&self.documents) {
            request
                .reply(DocumentWords {
                    document,
                    words: held.words.counts(),
                })
                .await?;
        }
        Ok(())
    }

    async fn holdings(&self) -> Holdings {
        Holdings {
            documents: self.documents.len() as u64,
            bytes: self
                .documents
                .iter()
                .map(|held| held.document.text.len() as u64)
                .sum(),
            skipped: self.skipped.clone(),
        }
    }
}

/// Tells the counts of one endpoint.
pub(crate) struct Meter(pub(crate) Endpoint);

#[wallaby::serve]
impl Counters for Meter {
    async fn read(&self) -> Counts {
        counts(&self.0)
    }
}

/// What an endpoint has counted so far.
pub(crate) fn counts(endpoint: &Endpoint) -> Counts {
    let metrics = endpoint.metrics();
    Counts {
        messages_sent: metrics.messages_sent,
        messages_received: metrics.messages_received,
        bytes_sent: metrics.bytes_sent,
        bytes_received: metrics.bytes_received,
    }
}
