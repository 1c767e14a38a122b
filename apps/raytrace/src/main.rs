//! The program `wallaby-raytrace`.

use clap::Parser;
use std::process::ExitCode;
use wallaby_raytrace::command::Cli;
use wallaby_raytrace::lost::Lost;
use wallaby_raytrace::output::Gone;

fn main() -> ExitCode {
    /// As a shell tells it of a program that was ended for that, by SIGPIPE.
    const NOBODY_READS: u8 = 141;
    /// A server failed.
    const LOST: u8 = 3;
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) if error.is::<Gone>() => ExitCode::from(NOBODY_READS),
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
