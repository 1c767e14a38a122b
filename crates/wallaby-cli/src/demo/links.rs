//! Three services that know nothing of each other, nor of chains: the demo's chain goes through them.

use super::concordance::Concordance;
use super::documents::{self, Document, Shard};
use super::words::normal;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::path::Path;
use wallaby::transport::Proven;
use wallaby::{Builder, Code, Service, Status};
use wallaby_chain::Chains;
use wallaby_chain_script::{ScriptLimits, Scripts};

/// How much of a document is its beginning.
const BEGINNING: usize = 8 << 10;
/// How many words are the most frequent ones, and how many quotes the best ones.
const WORDS: usize = 12;
const QUOTES: usize = 3;

/// Where a document says a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quote {
    pub(crate) path: String,
    pub(crate) line: u32,
    pub(crate) text: String,
}

/// Holds documents.
#[wallaby::service(package = "demo")]
pub(crate) trait Archive {
    /// How a document begins.
    async fn begin(path: String) -> String;
}

/// Counts words, of whatever text.
#[wallaby::service(package = "demo")]
pub(crate) trait Counter {
    /// The most frequent words of a text, the most frequent first.
    async fn frequent(text: String) -> Vec<String>;
}

/// Knows who says what.
#[wallaby::service(package = "demo")]
pub(crate) trait Quotes {
    /// The lines that say a word, of the documents that do so most often.
    async fn find(word: String) -> Vec<Quote>;
}

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    Archive,
    Counter,
    Quotes,
}

impl Link {
    /// In the order in which the chain goes through them.
    pub(crate) const ALL: [Self; 3] = [Self::Archive, Self::Counter, Self::Quotes];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Archive => "archive",
            Self::Counter => "counter",
            Self::Quotes => "quotes",
        }
    }

    /// What it serves, of the documents in this folder.
    pub(crate) fn service(self, folder: &Path) -> anyhow::Result<Service> {
        let documents = || Ok::<_, anyhow::Error>(documents::read(folder, Shard::WHOLE)?.0);
        Ok(match self {
            Self::Archive => archive::service(Shelf(documents()?)),
            Self::Counter => counter::service(Reader),
            Self::Quotes => {
                let with_words = |document: Document| (Concordance::of(&document.text), document);
                quotes::service(Treasury(documents()?.into_iter().map(with_words).collect()))
            }
        })
    }
}

/// What makes a server's methods links: this is all that it does for chains. Processes of this machine may bring code, which is those
/// of the demo's user, as its sockets are in a folder of theirs.
pub(crate) fn with_chains(builder: Builder) -> Builder {
    let chains = Chains::new().code(Scripts::new(ScriptLimits::default()), |request| {
        matches!(request.identity().peer, Proven::LocalUser { .. })
    });
    chains.add_to(builder)
}

struct Shelf(Vec<Document>);

#[wallaby::serve]
impl Archive for Shelf {
    async fn begin(&self, path: String) -> Result<String, Status> {
        let found = self.0.iter().find(|document| document.path == path);
        let document =
            found.ok_or_else(|| Status::new(Code::NotFound, format!("there is no {path}")))?;
        let end = document.text.floor_char_boundary(BEGINNING);
        Ok(document.text[..end].to_owned())
    }
}

struct Reader;

#[wallaby::serve]
impl Counter for Reader {
    async fn frequent(&self, text: String) -> Vec<String> {
        let mut counts = Concordance::of(&text).counts();
        counts.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
        counts.truncate(WORDS);
        counts.into_iter().map(|(word, _)| word).collect()
    }
}

struct Treasury(Vec<(Concordance, Document)>);

#[wallaby::serve]
impl Quotes for Treasury {
    async fn find(&self, word: String) -> Vec<Quote> {
        let word = normal(&word);
        let mut best: Vec<_> = (self.0.iter())
            .filter(|(words, _)| words.count(&word) > 0)
            .collect();
        best.sort_by_key(|(words, document)| (Reverse(words.count(&word)), &document.path));
        let quote = |(words, document): &(Concordance, Document)| {
            let snippet = words.snippet(&document.text, &word);
            Quote {
                path: document.path.clone(),
                line: snippet.line,
                text: snippet.text,
            }
        };
        best.into_iter().take(QUOTES).map(quote).collect()
    }
}
