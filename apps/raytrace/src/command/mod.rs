//! The command line.

mod bench;
mod check;
mod explain;
mod render;
mod settings;
mod up;

use crate::process;
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  wallaby-raytrace render                                    a room with spheres, by four servers, into picture.png
  wallaby-raytrace render hills --samples 256 --size 960x540
  wallaby-raytrace render spot.obj --servers 9 --out spot.png
  wallaby-raytrace explain                                   one path of light, and the calls that it is made of
  wallaby-raytrace up spot.obj --servers 4                   servers that stay; then, elsewhere:
  wallaby-raytrace render --at raytrace-servers.json
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
    /// Start servers with a scene, for others to make pictures with, until Ctrl-C
    Up(up::Up),
    /// Follow one path of light, and draw the tree of its calls as it ran
    Explain(explain::Explain),
    /// Compare the nearest hits of rays with files of expected ones
    Check(check::Check),
    /// Measure multi-hop calls beside plain calls: single paths by their bounces, and whole pictures
    Bench(bench::Bench),
    /// One server, which the other commands start
    #[command(hide = true)]
    Serve(Serve),
}

#[derive(Debug, Args)]
struct Serve {
    #[arg(long)]
    listen: String,
    #[arg(long, default_value_t = 0)]
    link_us: u64,
}

impl Cli {
    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// If it fails: why, for the user.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        // One thread for messages: the servers share the machine's cores already.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("the runtime can't be started")?;
        let result = runtime.block_on(self.command.run());
        // A thread that still reads must not keep the program alive.
        runtime.shutdown_background();
        result
    }
}

impl Command {
    async fn run(self) -> anyhow::Result<ExitCode> {
        const INTERRUPTED: u8 = 130;
        if matches!(self, Self::Up(_) | Self::Serve(_)) {
            return self.run_to_end().await;
        }
        // Servers and folders that were made on the way go when the command is dropped.
        tokio::select! {
            biased;
            result = self.run_to_end() => result,
            asked = up::interrupted() => asked.map(|()| ExitCode::from(INTERRUPTED)),
        }
    }

    async fn run_to_end(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Render(render) => render.run().await?,
            Self::Up(up) => up.run().await?,
            Self::Explain(explain) => explain.run().await?,
            Self::Check(check) => return check.run().await,
            Self::Bench(bench) => bench.run().await?,
            Self::Serve(serve) => {
                process::serve(&serve.listen, Duration::from_micros(serve.link_us)).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
