//! `wallaby demo serve`: one server of the demo, which the demo starts. It says that it serves by a line of JSON, and ends with
//! who started it.

use super::documents::{self, Shard, Skipped};
use super::index::IndexBuilder;
use super::links::{self, Link};
use super::services::{self, DocumentServer, Held, Holdings, IndexServer, Meter};
use anyhow::Context;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use wallaby::{Address, Builder, Endpoint};
use wallaby_program::child::{Parent, die_with};
use wallaby_program::output::line;

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
    /// Serve one of the services that the chain goes through
    Link {
        /// Which one
        service: Link,
        /// The folder of text files
        #[arg(long, value_name = "DIR")]
        docs: PathBuf,
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
    /// End when this process does
    #[arg(long, value_name = "PROCESS")]
    child_of: u32,
}

/// What a server says when it serves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) address: String,
    /// How many documents it holds, or has indexed.
    pub(crate) documents: u64,
    /// How many different words it has indexed.
    pub(crate) words: u64,
    pub(crate) bytes: u64,
    pub(crate) skipped: Skipped,
}

impl Ready {
    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Serve {
    /// Serves until who started this process wants it to end.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (Self::Documents { listening, .. }
        | Self::Index { listening, .. }
        | Self::Link { listening, .. }) = &self;
        // Even if this process is stopped, and reads nothing.
        die_with(listening.child_of)?;
        let (endpoint, ready) = match &self {
            Self::Documents {
                docs,
                shard,
                listening,
            } => serve_documents(docs, *shard, listening).await?,
            Self::Index {
                documents,
                listening,
            } => serve_index(documents, listening).await?,
            Self::Link {
                service,
                docs,
                listening,
            } => serve_link(*service, docs, listening).await?,
        };
        line(serde_json::to_string(&ready)?)?;
        Parent::of_this().gone().await;
        endpoint.close();
        Ok(())
    }
}

impl Listening {
    /// An endpoint that tells its counts, and the address it listens at.
    async fn bind(&self) -> anyhow::Result<(Endpoint, Address)> {
        let (endpoint, address) = self.bind_with(|builder| builder).await?;
        endpoint.serve(services::counters::service(Meter(endpoint.clone())))?;
        Ok((endpoint, address))
    }

    async fn bind_with(
        &self,
        more: impl FnOnce(Builder) -> Builder,
    ) -> anyhow::Result<(Endpoint, Address)> {
        let builder = super::endpoint(self.link, self.tls.as_deref())?;
        let builder = more(builder.listen(&self.listen.to_string()));
        let endpoint = builder.bind().await?;
        let address = endpoint.address().cloned();
        let address = address.context("an endpoint that was to listen does not")?;
        Ok((endpoint, address))
    }
}

async fn serve_documents(
    folder: &std::path::Path,
    shard: Shard,
    listening: &Listening,
) -> anyhow::Result<(Endpoint, Ready)> {
    let (endpoint, address) = listening.bind().await?;
    let (documents, skipped) = documents::read(folder, shard)?;
    let ready = Ready {
        address: address.to_string(),
        documents: documents.len() as u64,
        bytes: documents
            .iter()
            .map(|document| document.text.len() as u64)
            .sum(),
        words: 0,
        skipped: skipped.clone(),
    };
    let documents = documents.into_iter().map(Held::from).collect();
    let server = DocumentServer {
        address,
        documents,
        skipped,
    };
    endpoint.serve(services::documents::service(server))?;
    Ok((endpoint, ready))
}

async fn serve_index(
    servers: &[Address],
    listening: &Listening,
) -> anyhow::Result<(Endpoint, Ready)> {
    let (endpoint, address) = listening.bind().await?;
    let holdings = holdings(&endpoint, servers).await?;
    let mut index = IndexBuilder::default();
    for (number, server) in (0..).zip(servers) {
        let mut words = services::documents::at(&endpoint, server)
            .deadline(GATHERING)
            .words();
        while let Some(document) = words.next().await {
            let document = document.with_context(|| format!("document server {server}"))?;
            index.add(number, document.document, document.words);
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
    Ok((endpoint, ready))
}

async fn serve_link(
    link: Link,
    folder: &std::path::Path,
    listening: &Listening,
) -> anyhow::Result<(Endpoint, Ready)> {
    let service = link.service(folder)?;
    let chained = |builder: Builder| links::with_chains(builder.serve(service));
    let (endpoint, address) = listening.bind_with(chained).await?;
    let ready = Ready {
        address: address.to_string(),
        ..Ready::default()
    };
    Ok((endpoint, ready))
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
