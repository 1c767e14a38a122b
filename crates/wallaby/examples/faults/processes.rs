//! Servers as processes of their own.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;
use wallaby::{Address, Endpoint, ExecutorConfig};

use crate::Failed;
use crate::services::{MyIndex, MyShelf, index, shelf};

/// A process that serves; it ends with this value.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: Address,
}

impl Process {
    /// Starts this program with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, Failed> {
        let mut program = Command::new(std::env::current_exe()?);
        program.args(arguments).stderr(Stdio::null());
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("it has no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().parse()?;
        Ok(Self { child, address })
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<(), Failed> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Kills it, and starts another one at its address.
    pub(crate) fn restart(&mut self) -> Result<(), Failed> {
        self.kill()?;
        *self = Self::start(&["shelf", "--at", &self.address.to_string()])?;
        Ok(())
    }

    /// SIGSTOP: the process is there, and does nothing any more.
    pub(crate) fn freeze(&self) -> Result<(), Failed> {
        let mut kill = Command::new("kill");
        let status = kill
            .args(["-STOP", &self.child.id().to_string()])
            .status()?;
        match status.success() {
            true => Ok(()),
            false => Err("the process cannot be stopped".into()),
        }
    }

    /// Has it `close` or `drain` its endpoint.
    pub(crate) fn say(&mut self, what: &str) -> Result<(), Failed> {
        let stdin = self
            .child
            .stdin
            .as_mut()
            .ok_or("it has no standard input")?;
        Ok(writeln!(stdin, "{what}")?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// An index and its three shelves.
pub(crate) struct Library {
    pub(crate) index: Process,
    pub(crate) shelves: Vec<Process>,
}

impl Library {
    pub(crate) fn start() -> Result<Self, Failed> {
        let shelves = (0..3).map(|_| Process::start(&["shelf"]));
        let shelves = shelves.collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<String> = shelves.iter().map(|s| s.address.to_string()).collect();
        let mut arguments = vec!["index"];
        arguments.extend(addresses.iter().map(String::as_str));
        let index = Process::start(&arguments)?;
        Ok(Self { index, shelves })
    }
}

/// An address at which nobody listens.
pub(crate) fn free_address() -> Result<Address, Failed> {
    let socket = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok(format!("tcp://{socket}").parse()?)
}

/// Is an index or a shelf, until the standard input says what else to do or ends.
pub(crate) async fn serve(role: &str, arguments: &[String]) -> Result<(), Failed> {
    let mut builder = Endpoint::builder();
    let mut listen = "tcp://127.0.0.1:0";
    match (role, arguments) {
        ("index", shelves) => {
            let shelves = shelves.iter().map(|shelf| shelf.parse());
            let shelves = shelves.collect::<Result<Vec<_>, _>>()?;
            builder = builder.serve(index::service(MyIndex { shelves }));
        }
        ("shelf", arguments) => {
            builder = builder.serve(shelf::service(MyShelf));
            match arguments {
                [] => {}
                [narrow] if narrow == "--narrow" => {
                    let executor = ExecutorConfig {
                        concurrency: 1,
                        queue: 0,
                        ..Default::default()
                    };
                    builder = builder.executor(executor);
                }
                [at, address] if at == "--at" => listen = address,
                other => return Err(format!("unknown arguments {other:?}").into()),
            }
        }
        (role, _) => return Err(format!("expected index or shelf, got {role:?}").into()),
    }
    let endpoint = builder.listen(listen).bind().await?;
    println!("{}", endpoint.address().ok_or("it does not listen")?);
    std::io::stdout().flush()?;
    match next_line().await.as_deref() {
        Some("close") => {
            endpoint.close();
            // What it has said leaves with the process.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Some("drain") => endpoint.drain(Duration::from_secs(10)).await?,
        _ => {}
    }
    Ok(())
}

/// What comes on the standard input; `None` at its end.
async fn next_line() -> Option<String> {
    let (said, mut heard) = mpsc::channel(1);
    std::thread::spawn(move || {
        let line = std::io::stdin().lines().next();
        let _ = said.blocking_send(line.and_then(Result::ok));
    });
    heard.recv().await.flatten()
}
