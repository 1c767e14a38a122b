//! `wallaby chain`: runs a chain that a file describes, or walks it.

mod file;
mod run;
mod step;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::remote::{Way, block_on};

#[derive(Debug, Subcommand)]
pub(crate) enum Chain {
    /// Run it at its servers, and show what its functions log and tell
    Run(Which),
    /// Walk it from here: show each link and each function before its turn comes, and let it be changed
    Step(Which),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file, in TOML:
  first = { server = \"tcp://127.0.0.1:4000\", method = \"example.Mail/fetch\", arguments = [7] }
  functions = \"glue.rhai\"       # beside this file; or a module of WebAssembly. Without it, servers have the functions
  then = \"advertise\"            # runs on the first answer. Without it, that is the end
  [state]                       # values that functions are given
  tries = 3
  [links.ads]                   # and methods
  server = \"tcp://127.0.0.1:4001\"
  method = \"example.Ads/pick\"

Types come from the servers, which are asked before the chain begins. 'step' reads a letter for each stop: n the next one, e edit
it first ($EDITOR, in JSON), c go on to the end, q end here. Where standard input is no terminal, it goes on.
Functions that are WebAssembly it runs if the program was built with the feature 'wasm'.
What the chain comes to goes to standard output, all else to standard error.
Exit status: 0 if it has come to its end, 1 if it has not begun, 2 if the command line is wrong, 4 if it has failed.")]
pub(crate) struct Which {
    /// The file that says what the chain is
    file: PathBuf,
    #[command(flatten)]
    way: Way,
}

impl Chain {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            match self {
                Self::Run(which) => run::run(&which).await,
                Self::Step(which) => step::step(&which).await,
            }
        })
    }
}
