//! The program `wallaby-graph`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_graph::command::Cli;
use wallaby_program::ending::status;

// One thread: servers share the machine's cores already.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    status(Cli::parse().run().await)
}
