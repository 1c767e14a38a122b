//! `wallaby demo`: a search engine on a cluster of processes, by calls of two hops and by plain RPC.
//!
//! From the words of a text to the cluster: [`words`], [`snippet`] and [`concordance`] read a document, [`documents`]
//! finds them, [`index`] ranks them; [`services`] are what the processes offer each other, [`serve`] runs one of them,
//! [`cluster`] all. [`query`] asks, [`measure`] asks many times, [`run`] is the whole job, [`search`] and
//! [`interactive`] are its smaller forms. What comes out is a [`report`], shown by [`show`] and [`tree`].

pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod comparison;
pub(crate) mod concordance;
pub(crate) mod documents;
pub(crate) mod event;
pub(crate) mod failure;
pub(crate) mod index;
pub(crate) mod interactive;
pub(crate) mod measure;
pub(crate) mod query;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod services;
pub(crate) mod show;
pub(crate) mod snippet;
pub(crate) mod sockets;
pub(crate) mod timeline;
pub(crate) mod trace;
pub(crate) mod tree;
pub(crate) mod words;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use std::path::Path;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  wallaby demo                                 search the repository that you are in
  wallaby demo --docs ~/notes --link 1ms tree  search your notes for “tree” as if over a network
  wallaby demo -- serve                        search for a word that is also a command

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

const SERVE_EXAMPLES: &str = "\
Each server prints its address when it is ready, as one line. A cluster by hand:
  wallaby demo serve documents --docs ~/notes --shard 1/2 --listen tcp://127.0.0.1:4001 &
  wallaby demo serve documents --docs ~/notes --shard 2/2 --listen tcp://127.0.0.1:4002 &
  wallaby demo serve index --documents tcp://127.0.0.1:4001,tcp://127.0.0.1:4002 --listen tcp://127.0.0.1:4000 &
  wallaby demo search --index tcp://127.0.0.1:4000 tree";

/// `wallaby demo` and what follows it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Demo {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: run::Options,
}

/// The parts of the demo that can be started by hand.
#[derive(Debug, Subcommand)]
enum Part {
    /// Run one server of the demo
    #[command(subcommand, after_help = SERVE_EXAMPLES)]
    Serve(serve::Serve),
    /// Search by servers that were started by hand
    #[command(after_help = SERVE_EXAMPLES)]
    Search(search::Search),
}

/// What the processes of the demo talk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Tcp,
    Unix,
    Shm,
    /// TCP with mutual TLS, by certificates made for the run
    Tls,
}

impl Demo {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // One thread: the processes of the cluster share the machine's cores already.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("the runtime can't be started")?;
        let result = runtime.block_on(async {
            match self.part {
                Some(Part::Serve(serve)) => serve.run().await,
                Some(Part::Search(search)) => search.run().await,
                None => self.options.run().await,
            }
        });
        // A thread that waits for a line of input must not keep the program alive.
        runtime.shutdown_background();
        result
    }
}

/// An endpoint of the demo, before it is bound: its link delayed, and patient enough for such a link.
/// With a folder of certificates it can talk over TLS.
fn endpoint(link: Duration, tls: Option<&Path>) -> anyhow::Result<wallaby::Builder> {
    const DIALLING: Duration = Duration::from_secs(2);
    let builder = wallaby::Endpoint::builder().dial_timeout(DIALLING.max(link * 10));
    let builder = wallaby_link::emulate(builder, link, None)?;
    Ok(match tls {
        Some(folder) => builder.transport(certificates::transport(folder)?),
        None => builder,
    })
}
