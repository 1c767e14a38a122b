//! The program `wallaby-raytrace`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_program::ending::status;
use wallaby_raytrace::command::Cli;
use wallaby_raytrace::lost::Lost;

// One thread for messages: the servers share the machine's cores already.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    /// A server failed.
    const LOST: u8 = 3;
    let result = Cli::parse().run().await;
    let is_lost = result.as_ref().is_err_and(|error| error.is::<Lost>());
    match (status(result), is_lost) {
        (_, true) => ExitCode::from(LOST),
        (status, false) => status,
    }
}
