//! The program `wallaby-raytrace`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_raytrace::command::Cli;
use wallaby_raytrace::lost::Lost;

fn main() -> ExitCode {
    /// A server failed.
    const LOST: u8 = 3;
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(usage) => usage.exit(),
            Err(error) => {
                eprintln!("error: {error:#}");
                match error.is::<Lost>() {
                    true => ExitCode::from(LOST),
                    false => ExitCode::FAILURE,
                }
            }
        },
    }
}
