//! The program `wallaby-chord`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_chord::command::Cli;
use wallaby_chord::output::Gone;

fn main() -> ExitCode {
    /// As a shell tells it of a program that was ended for that, by SIGPIPE.
    const NOBODY_READS: u8 = 141;
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) if error.is::<Gone>() => ExitCode::from(NOBODY_READS),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
