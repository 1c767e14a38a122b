//! `wallaby demo`: a search engine on a cluster of processes, by calls of two hops and by plain RPC; then a chain.
//!
//! From the words of a text to the cluster: [`words`], [`snippet`] and [`concordance`] read a document, [`documents`]
//! finds them, [`index`] ranks them; [`services`] are what the processes offer each other, [`serve`] runs one of them,
//! [`cluster`] all. [`query`] asks, [`measure`] asks many times, [`run`] is the whole job. What comes out is a [`report`],
//! shown by [`show`]. [`chain`] goes through three other services, the [`links`], and [`sequence`] draws its messages.

pub(crate) mod certificates;
pub(crate) mod chain;
pub(crate) mod cluster;
pub(crate) mod comparison;
pub(crate) mod concordance;
pub(crate) mod documents;
pub(crate) mod failure;
pub(crate) mod index;
pub(crate) mod links;
pub(crate) mod measure;
pub(crate) mod query;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sequence;
pub(crate) mod serve;
pub(crate) mod services;
pub(crate) mod show;
pub(crate) mod snippet;
pub(crate) mod sockets;
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

/// `wallaby demo` and what follows it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Demo {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: run::Options,
}

/// The parts of the demo that it starts itself.
#[derive(Debug, Subcommand)]
enum Part {
    /// One server of the demo
    #[command(subcommand, hide = true)]
    Serve(serve::Serve),
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
                None => self.options.run().await,
            }
        });
        // The thread of a server that waits for its input must not keep the program alive.
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
