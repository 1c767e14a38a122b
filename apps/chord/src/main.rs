//! The program `wallaby-chord`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_chord::command::Cli;
use wallaby_program::ending::status;

// One thread: the processes of a ring share the machine's cores already.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    status(Cli::parse().run().await)
}
