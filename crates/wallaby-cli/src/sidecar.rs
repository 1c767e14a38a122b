//! `wallaby sidecar`: what unmodified servers serve, as methods of Wallaby.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use wallaby_program::output;
use wallaby_sidecar::{Config, Sidecar};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby sidecar --config sidecar.toml             until SIGINT or SIGTERM
  wallaby sidecar --config sidecar.toml --check     reads the file only

A file for a server of HTTP:
  listen = [\"tcp://127.0.0.1:4000\"]
  [[http]]
  name = \"Files\"
  server = \"http://127.0.0.1:8000\"
Then 'wallaby call tcp://127.0.0.1:4000 http.Files/get '\"/\"'' gets its first page.

Exit status: 0 at the end, 1 if the file is wrong or it cannot listen.")]
pub(crate) struct Run {
    /// What it is told (docs/sidecar.md)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Say whether the file is right, and do nothing else
    #[arg(long)]
    check: bool,
    /// At its end, wait so long for requests that are under way
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    drain: Duration,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let config = read(&self.config)?;
        if self.check {
            return output::line("it is right");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread();
        { runtime }
            .enable_all()
            .build()?
            .block_on(serve(config, self.drain))
    }
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let file = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    Config::parse(&text).with_context(|| file.to_string())
}

async fn serve(config: Config, drain: Duration) -> anyhow::Result<()> {
    // Before anybody knows that there is something to end.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let sidecar = Sidecar::start(config).await?;
    let address = sidecar.endpoint().address().context("it listens nowhere")?;
    output::line(format!("sidecar listens at {address}"))?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(sidecar.endpoint().drain(drain).await?)
}
