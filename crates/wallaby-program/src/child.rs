//! Processes of this very program, started again.
//!
//! A [`Child`] says something by a line of its standard output, is told something by a line of its standard input, and ends
//! when that does: so it never outlives who started it. [`Parent`] is the child's side.

use anyhow::{Context, bail};
use serde::Serialize;
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

/// Processes that are started together, each with what it has said when it was up. They end with [`Cluster::end`], with this
/// value, and with this program.
#[derive(Debug)]
pub struct Cluster<A> {
    children: Vec<Child>,
    said: Vec<A>,
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

impl<A> Cluster<A> {
    /// Starts processes, each with the name that errors call it, and waits until each has said a line, such as its address, which
    /// `read` understands.
    ///
    /// # Errors
    ///
    /// If one of them does not come up, or says something else. What is wrong it tells on standard error.
    pub async fn start(
        commands: impl IntoIterator<Item = anyhow::Result<(String, Command)>>,
        read: impl Fn(&str) -> anyhow::Result<A>,
    ) -> anyhow::Result<Self> {
        // All first, so that they come up at the same time.
        let mut children = Vec::new();
        for command in commands {
            let (name, mut command) = command?;
            children.push(Child::start(name, &mut command)?);
        }
        let mut said = Vec::with_capacity(children.len());
        for child in &mut children {
            let line = child.line().await?;
            let read = read(&line);
            said.push(read.with_context(|| format!("{} said '{line}'", child.name))?);
        }
        Ok(Self { children, said })
    }

    /// What they said when they were up, such as their addresses, in the order of the commands.
    pub fn said(&self) -> &[A] {
        &self.said
    }

    /// The processes, in the order of the commands.
    pub fn children(&mut self) -> &mut [Child] {
        &mut self.children
    }

    /// Tells all of them the same, as a line of JSON, and waits until each has said another line, which it returns.
    ///
    /// # Errors
    ///
    /// If one of them ends instead.
    pub async fn tell(&mut self, what: &impl Serialize) -> anyhow::Result<Vec<String>> {
        let line = serde_json::to_string(what)?;
        for child in &mut self.children {
            child.tell(&line).await?;
        }
        let mut said = Vec::with_capacity(self.children.len());
        for child in &mut self.children {
            said.push(child.line().await?);
        }
        Ok(said)
    }

    /// Waits until one of them has ended by itself, and says which, and how.
    pub async fn first_ended(&mut self) -> String {
        loop {
            for child in &mut self.children {
                if let Ok(Some(ended)) = child.ended() {
                    return ended;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Lets them end what they do, one after the other, and waits for that.
    pub async fn end(self) {
        for child in self.children {
            child.end().await;
        }
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
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::SIGKILL)
        .context("this process can't be tied to its parent")?;
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
        Ok(())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn processes_are_started_and_told_together() -> anyhow::Result<()> {
        let echo = |number: u32| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo {number}; cat")]);
            Ok((format!("process {number}"), command))
        };
        let read = |line: &str| Ok(line.parse::<u32>()?);
        let mut cluster = Cluster::start((1..=3).map(echo), read).await?;
        assert_eq!(cluster.said(), [1, 2, 3]);
        assert_eq!(cluster.tell(&["hello"]).await?, [r#"["hello"]"#; 3]);
        cluster.children()[1].kill().await?;
        assert_eq!(
            cluster.first_ended().await,
            "process 2 was killed by signal 9"
        );
        cluster.end().await;

        let silent = Ok(("nobody".to_owned(), Command::new("true")));
        let failed = Cluster::start([silent], read).await;
        assert_eq!(
            failed.err().map(|error| error.to_string()).as_deref(),
            Some("nobody has ended, though more was expected of it")
        );
        Ok(())
    }
}
