//! A process that the director has started, and what the system says about it.

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::Serialize;
use std::time::Duration;
use wallaby_bench::process::{Status, processor_time};

use crate::control::{Announcement, Config, Health, Instruction};
use crate::network::Network;

/// How long a process that is not stopped may take to answer its director, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Child {
    process: wallaby_program::child::Child,
    pid: i32,
}

/// What a process holds of the system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) fds: u64,
    pub(crate) threads: u64,
    pub(crate) rss_kib: u64,
    /// The most that it ever was, or since [`Child::forget_peak`].
    pub(crate) peak_kib: u64,
}

impl Child {
    /// Starts a process at a host; it is ready when this returns.
    pub(crate) async fn start(network: &Network, host: usize, config: &Config) -> Result<Self> {
        let mut command = network.command(host)?;
        command.arg("process").arg(serde_json::to_string(config)?);
        let process = wallaby_program::child::Child::start(config.name.clone(), &mut command)?;
        let pid = i32::try_from(process.id().context("it has ended")?)?;
        let mut child = Self { process, pid };
        match child.listen(PATIENCE).await? {
            Announcement::Ready => Ok(child),
            other => bail!("{} said {other:?} instead of that it is ready", config.name),
        }
    }

    pub(crate) async fn instruct(&mut self, instruction: &Instruction) -> Result<()> {
        let line = serde_json::to_string(instruction)?;
        self.process.tell(line).await
    }

    /// The next thing that it says.
    pub(crate) async fn listen(&mut self, within: Duration) -> Result<Announcement> {
        let line = tokio::time::timeout(within, self.process.line()).await;
        let name = self.process.name();
        let line = line.with_context(|| format!("{name} is silent for {within:?}"))??;
        serde_json::from_str(&line).with_context(|| format!("{name} said {line:?}"))
    }

    pub(crate) async fn health(&mut self) -> Result<Health> {
        self.instruct(&Instruction::Report).await?;
        match self.listen(PATIENCE).await? {
            Announcement::Health(health) => Ok(health),
            other => bail!(
                "{} said {other:?} instead of how it is",
                self.process.name()
            ),
        }
    }

    /// Stops the process as it is, or lets it go on.
    pub(crate) fn set_stopped(&self, stopped: bool) {
        let signal = if stopped { SIGSTOP } else { SIGCONT };
        // The process has not been waited for, so its id is still its own; if it has ended, that shows elsewhere.
        let _ = kill(Pid::from_raw(self.pid), signal);
    }

    /// Ends the process by SIGKILL; it is gone when this returns.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        Ok(self.process.ended()?)
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let folder = format!("/proc/{}", self.pid);
        let gone = || format!("{} has ended", self.process.name());
        let fds = std::fs::read_dir(format!("{folder}/fd")).with_context(gone)?;
        let status = Status::of(self.pid.cast_unsigned()).with_context(gone)?;
        Ok(Usage {
            fds: fds.count() as u64,
            threads: status.number("Threads"),
            rss_kib: status.number("VmRSS"),
            peak_kib: status.number("VmHWM"),
        })
    }

    /// From now on the peak of its memory is that of what comes.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.pid);
        std::fs::write(&path, "5").with_context(|| format!("can't write to {path}"))
    }

    /// Processor time that it has used so far.
    pub(crate) fn worked(&self) -> Result<Duration> {
        processor_time(self.pid.cast_unsigned())
    }
}
