//! The program `wallaby-graph`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_graph::command::Cli;
use wallaby_graph::output::Gone;

// One thread: servers share the machine's cores already.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    /// As a shell tells it of a program that was ended for that, by SIGPIPE.
    const NOBODY_READS: u8 = 141;
    match Cli::parse().run().await {
        Ok(code) => code,
        Err(error) if error.is::<Gone>() => ExitCode::from(NOBODY_READS),
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(usage) => usage.exit(),
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
