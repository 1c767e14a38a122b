//! Servers as processes of their own.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use tokio::sync::mpsc;

/// A front and the shards that it asks.
pub(super) struct Tree {
    pub(super) front: Process,
    pub(super) shards: Vec<Process>,
}

impl Tree {
    pub(super) fn start(system: &str) -> Result<Self> {
        let shards = (0..3).map(|_| Process::start(&[system, "shard"]));
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let mut arguments = vec![system, "front"];
        arguments.extend(shards.iter().map(|shard| shard.address.as_str()));
        let front = Process::start(&arguments)?;
        Ok(Self { front, shards })
    }
}

/// A process that serves. It ends with this value. Not a child of wallaby-program: servers of all systems are stopped and shut down
/// here, too, and write nothing on this terminal.
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    pub(super) address: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("fault-server").args(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().context("it has no standard output")?;
        let stdin = child.stdin.take();
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(!line.is_empty(), "a server has ended at once");
        Ok(Self {
            child,
            stdin,
            address: line.trim().to_owned(),
        })
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.wait_for_end()
    }

    /// SIGSTOP: it is there, and does nothing any more.
    pub(super) fn freeze(&self) -> Result<()> {
        let id = self.child.id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &id]).status()?;
        ensure!(stopped.success(), "the process cannot be stopped");
        Ok(())
    }

    /// It takes no new requests, finishes what it has and ends.
    pub(super) fn shut_down(&mut self) -> Result<()> {
        let mut stdin = self.stdin.take().context("it was told before")?;
        Ok(stdin.write_all(b"end\n")?)
    }

    pub(super) fn wait_for_end(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.kill();
    }
}

/// Waits until this process is told to end, or who has started it is gone.
pub(super) async fn told_to_end() {
    let (said, mut heard) = mpsc::channel::<()>(1);
    std::thread::spawn(move || {
        let _line = std::io::stdin().lines().next();
        drop(said);
    });
    heard.recv().await;
}
