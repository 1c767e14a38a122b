//! Processes of this very program, started again.
//!
//! A [`Child`] says something by a line of its standard output, is told something by a line of its standard input, and ends
//! when that does: so it never outlives who started it. [`Parent`] is the child's side.

use anyhow::{Context, bail};
use std::fmt::Display;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines, Stdin, stdin};
use tokio::process::{ChildStdin, ChildStdout, Command};

/// A process that ends with this value, if not before.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: tokio::process::Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// Who has started this process.
#[derive(Debug)]
pub struct Parent(BufReader<Stdin>);

/// This very program, to be started again.
///
/// # Errors
///
/// If its file cannot be found.
pub fn this_program() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("this program's own file can't be found")?;
    Ok(Command::new(program))
}

impl Child {
    /// Starts a process; `name` is what errors call it.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(name: impl Into<String>, command: &mut Command) -> anyhow::Result<Self> {
        let name = name.into();
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches this process alone, which ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut process = process.with_context(|| format!("{name} can't be started"))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{name} has no standard input and output");
        };
        Ok(Self {
            name,
            process,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, unless it has ended.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The next line that it says.
    ///
    /// # Errors
    ///
    /// If it ends instead.
    pub async fn line(&mut self) -> anyhow::Result<String> {
        let line = self.output.next_line().await;
        let line = line.with_context(|| format!("{} can't be read", self.name))?;
        line.with_context(|| format!("{} has ended, though more was expected of it", self.name))
    }

    /// Tells it a line.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub async fn tell(&mut self, line: impl Display) -> anyhow::Result<()> {
        let told = self.input.write_all(format!("{line}\n").as_bytes()).await;
        told.with_context(|| format!("{} has ended", self.name))
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    ///
    /// If the system does not say.
    pub fn ended(&mut self) -> io::Result<Option<String>> {
        let status = self.process.try_wait()?;
        Ok(status.map(|status| format!("{} {}", self.name, ending(status))))
    }

    /// Kills it: it can do nothing about it, not even close a connection. It is gone when this returns.
    ///
    /// # Errors
    ///
    /// If the system does not do it.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.process.kill().await
    }

    /// Lets it end what it does, and waits for that.
    pub async fn end(mut self) {
        drop(self.input);
        // It has ended in any case: nothing more can be done about it.
        let _ = self.process.wait().await;
    }
}

/// Waits until one of them has ended by itself, and says which, and how.
pub async fn first_ended(children: &mut [Child]) -> String {
    loop {
        for child in &mut *children {
            if let Ok(Some(ended)) = child.ended() {
                return ended;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How a process ended, for people.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

impl Parent {
    /// Of this process.
    pub fn of_this() -> Self {
        Self(BufReader::new(stdin()))
    }

    /// The next line that it tells; empty if it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        Ok(line)
    }

    /// Waits until it wants this process to end, or is gone.
    pub async fn gone(mut self) {
        // Whatever comes, its end is the signal.
        let _ = self.0.read_to_end(&mut Vec::new()).await;
    }
}

/// Ends this process when the one that started it, `parent`, ends for whatever reason.
///
/// # Errors
///
/// If it has ended already, or the system does not do it.
pub fn die_with(parent: u32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory of ours.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if result != 0 {
            return Err(io::Error::last_os_error())
                .context("this process can't be tied to its parent");
        }
    }
    // The parent may have ended before the request was made.
    anyhow::ensure!(
        std::os::unix::process::parent_id() == parent,
        "the process that started this one has ended"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_told_apart() {
        assert_eq!(ending(ExitStatus::from_raw(256)), "ended with status 1");
        assert_eq!(ending(ExitStatus::from_raw(9)), "was killed by signal 9");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_child_is_told_things_and_ends_with_its_input() -> anyhow::Result<()> {
        let mut child = Child::start("cat", &mut Command::new("cat"))?;
        child.tell("hello").await?;
        assert_eq!(child.line().await?, "hello");
        assert_eq!(child.ended()?, None);
        child.end().await;

        let mut killed = Child::start("cat", &mut Command::new("cat"))?;
        killed.kill().await?;
        assert_eq!(
            first_ended(&mut [killed]).await,
            "cat was killed by signal 9"
        );
        Ok(())
    }
}
