//! `wallaby demo serve`: one server of the demo, started by hand or by the demo itself.

use super::documents::{self, Shard, Skipped};
use super::event::{Ready, Teller};
use super::index::IndexBuilder;
use super::services::{self, DocumentServer, Held, Holdings, IndexServer, Meter};
use anyhow::Context;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use wallaby::{Address, Endpoint};
use wallaby_program::child::die_with;
use wallaby_program::ending::interrupted;

/// How long a document server may take to tell what it holds.
const GATHERING: Duration = Duration::from_secs(120);

/// Which server.
#[derive(Debug, Subcommand)]
pub(crate) enum Serve {
    /// Serve documents: a folder's text files, or one of several parts of them
    Documents {
        /// The folder of text files
        #[arg(long, value_name = "DIR")]
        docs: PathBuf,
        /// Which part of them: 2/4 is the second of four
        #[arg(long, value_name = "I/N", default_value_t = Shard::WHOLE)]
        shard: Shard,
        #[command(flatten)]
        listening: Listening,
    },
    /// Serve the index of what document servers hold; it asks them for their words when it starts
    Index {
        /// The document servers' addresses, separated by commas
        #[arg(
            long,
            value_name = "ADDRESS,...",
            value_delimiter = ',',
            required = true
        )]
        documents: Vec<Address>,
        #[command(flatten)]
        listening: Listening,
    },
}

/// Where and how a server listens.
#[derive(Debug, Args)]
pub(crate) struct Listening {
    /// The address to listen at: tcp://HOST:PORT (port 0: any), unix:///PATH, shm:///PATH or, with --tls, tls://HOST:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "tcp://127.0.0.1:0")]
    listen: Address,
    /// Delay everything that this server sends, as a link would: 250us, 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    link: Duration,
    /// Talk over mutual TLS, by roots.pem, certificate.pem and key.pem in this folder
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// End when this process does, which reads events from standard output
    #[arg(long, value_name = "PROCESS", hide = true)]
    child_of: Option<u32>,
}

impl Serve {
    /// Serves until the process is asked to end.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let listening = match &self {
            Self::Documents { listening, .. } | Self::Index { listening, .. } => listening,
        };
        if let Some(parent) = listening.child_of {
            die_with(parent)?;
        }
        let endpoint = match &self {
            Self::Documents {
                docs,
                shard,
                listening,
            } => serve_documents(docs, *shard, listening).await?,
            Self::Index {
                documents,
                listening,
            } => serve_index(documents, listening).await?,
        };
        interrupted().await?;
        endpoint.close();
        Ok(())
    }
}

impl Listening {
    /// An endpoint that tells its counts, and the address it listens at.
    async fn bind(&self) -> anyhow::Result<(Endpoint, Address)> {
        let endpoint = super::endpoint(self.link, self.tls.as_deref())?
            .listen(&self.listen.to_string())
            .bind()
            .await?;
        let address = endpoint
            .address()
            .context("an endpoint that was to listen does not")?
            .clone();
        endpoint.serve(services::counters::service(Meter(endpoint.clone())))?;
        Ok((endpoint, address))
    }

    fn teller(&self, what: &'static str) -> Teller {
        Teller::new(self.child_of.is_some(), what)
    }
}

async fn serve_documents(
    folder: &std::path::Path,
    shard: Shard,
    listening: &Listening,
) -> anyhow::Result<Endpoint> {
    let (endpoint, address) = listening.bind().await?;
    let mut teller = listening.teller("reading documents");
    let (documents, skipped) =
        documents::read(folder, shard, |done, total| teller.progress(done, total))?;
    let ready = Ready {
        address: address.to_string(),
        documents: documents.len() as u64,
        bytes: documents
            .iter()
            .map(|document| document.text.len() as u64)
            .sum(),
        skipped: skipped.clone(),
        ..Ready::default()
    };
    let documents = documents.into_iter().map(Held::from).collect();
    let server = DocumentServer {
        address,
        documents,
        skipped,
    };
    endpoint.serve(services::documents::service(server))?;
    teller.ready(ready)?;
    Ok(endpoint)
}

async fn serve_index(servers: &[Address], listening: &Listening) -> anyhow::Result<Endpoint> {
    let (endpoint, address) = listening.bind().await?;
    let mut teller = listening.teller("indexing documents");
    let holdings = holdings(&endpoint, servers).await?;
    let total = holdings.iter().map(|held| held.documents).sum();
    let mut index = IndexBuilder::default();
    let mut done = 0;
    teller.progress(done, total);
    for (number, server) in (0..).zip(servers) {
        let mut words = services::documents::at(&endpoint, server)
            .deadline(GATHERING)
            .words();
        while let Some(document) = words.next().await {
            let document = document.with_context(|| format!("document server {server}"))?;
            index.add(number, document.document, document.words);
            done += 1;
            teller.progress(done, total);
        }
    }
    let words = index.finish();
    let mut ready = Ready {
        address: address.to_string(),
        documents: words.documents(),
        words: words.words(),
        bytes: holdings.iter().map(|held| held.bytes).sum(),
        skipped: Skipped::default(),
    };
    holdings
        .iter()
        .for_each(|held| ready.skipped += &held.skipped);
    endpoint.serve(services::index::service(IndexServer {
        words,
        servers: servers.to_vec(),
    }))?;
    teller.ready(ready)?;
    Ok(endpoint)
}

/// What each server holds; the first that can't tell is an error that names it.
async fn holdings(endpoint: &Endpoint, servers: &[Address]) -> anyhow::Result<Vec<Holdings>> {
    let mut holdings = Vec::with_capacity(servers.len());
    for server in servers {
        let held = services::documents::at(endpoint, server)
            .deadline(GATHERING)
            .holdings()
            .await;
        holdings.push(held.with_context(|| format!("document server {server}"))?);
    }
    Ok(holdings)
}
