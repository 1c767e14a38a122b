//! The program `wallaby-chord`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_chord::command::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
