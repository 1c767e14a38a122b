//! The command line.

mod check;
mod explain;
mod render;
mod settings;

use crate::process;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;
use wallaby_program::ending::unless_interrupted;

const EXAMPLES: &str = "\
Examples:
  wallaby-raytrace render                                    a room with spheres, by four servers, into picture.png
  wallaby-raytrace render box:1000000 --samples 256 --size 960x540
  wallaby-raytrace render spot.obj --servers 9 --out spot.png
  wallaby-raytrace explain                                   one path of light, and the calls that it is made of
  wallaby-raytrace check spot.rays.jsonl --scene spot.obj

Exit status: 0 done, 1 failed or not as expected, 2 wrong usage, 3 a server failed, 130 interrupted,
141 nobody reads the output any more.";

/// A path tracer over servers: rays hop from one to the next
#[derive(Debug, Parser)]
#[command(name = "wallaby-raytrace", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a picture
    Render(render::Render),
    /// Follow one path of light, and draw the tree of its calls as it ran
    Explain(explain::Explain),
    /// Compare the nearest hits of rays with files of expected ones
    Check(check::Check),
    /// One server, which the other commands start
    #[command(hide = true)]
    Serve {
        #[arg(long, default_value_t = 0)]
        link_us: u64,
    },
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// If it fails: why, for the user.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            // It ends when who started it wants that.
            Command::Serve { link_us } => process::serve(Duration::from_micros(link_us)).await?,
            Command::Render(render) => unless_interrupted(render.run()).await?,
            Command::Explain(explain) => unless_interrupted(explain.run()).await?,
            Command::Check(check) => return unless_interrupted(check.run()).await,
        }
        Ok(ExitCode::SUCCESS)
    }
}
