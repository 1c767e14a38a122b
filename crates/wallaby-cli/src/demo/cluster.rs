//! The cluster of the demo: server processes on this machine, this very program started again.

use super::event::{Event, Ready};
use super::sockets::Sockets;
use crate::progress::Progress;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use wallaby_program::child::ending;

/// A server that says nothing for so long will never be ready.
const SILENCE: Duration = Duration::from_secs(60);

/// How the servers of a cluster are to be.
pub(crate) struct Plan<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) servers: u32,
    pub(crate) link: Duration,
    /// Where its servers listen.
    pub(crate) sockets: &'a Sockets,
}

/// All server processes. They end with [`Cluster::end`], with this value, and with this process.
#[derive(Default)]
pub(crate) struct Cluster {
    servers: Vec<Server>,
}

/// One server process.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) process: u32,
    pub(crate) ready: Ready,
    child: Child,
}

/// A line from a server: which one, and what it told or complained about.
type Line = (usize, Said);

enum Said {
    Event(Event),
    Complaint(String),
    /// It has nothing more to say: it is ending.
    End,
}

impl Cluster {
    /// Starts the document servers, and when they are ready the index server.
    pub(crate) async fn start(&mut self, plan: &Plan<'_>) -> anyhow::Result<()> {
        let (lines, mut said) = mpsc::channel(64);
        for number in 1..=plan.servers {
            let shard = format!("{number}/{}", plan.servers);
            let folder = plan.folder.as_os_str();
            let arguments = [
                "documents".into(),
                "--docs".into(),
                folder.to_owned(),
                "--shard".into(),
                shard.into(),
            ];
            self.spawn(&format!("documents {number}"), plan, &arguments, &lines)?;
        }
        self.all_ready(&mut said, &mut Progress::new("reading documents"))
            .await?;

        let addresses: Vec<&str> = self
            .servers
            .iter()
            .map(|server| server.ready.address.as_str())
            .collect();
        let arguments = [
            "index".into(),
            "--documents".into(),
            addresses.join(",").into(),
        ];
        self.spawn("index", plan, &arguments, &lines)?;
        self.all_ready(&mut said, &mut Progress::new("indexing documents"))
            .await
    }

    fn spawn(
        &mut self,
        name: &str,
        plan: &Plan<'_>,
        arguments: &[OsString],
        lines: &mpsc::Sender<Line>,
    ) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("this program's own file can't be found")?;
        let parent = std::process::id().to_string();
        let link = format!("{}us", plan.link.as_micros());
        let listen = plan.sockets.address(name);
        let tls = plan.sockets.certificate(name)?;
        let tls = tls.map(|folder| ["--tls".into(), folder.into_os_string()]);
        let mut child = Command::new(program)
            .args(["demo", "serve"])
            .args(arguments)
            .args(["--listen", &listen, "--link", &link, "--child-of", &parent])
            .args(tls.into_iter().flatten())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches this process alone, which ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("the {name} server can't be started"))?;
        let number = self.servers.len();
        if let Some(output) = child.stdout.take() {
            tokio::spawn(listen_to(number, output, lines.clone()));
        }
        if let Some(output) = child.stderr.take() {
            tokio::spawn(hear_complaints(
                number,
                name.to_owned(),
                output,
                lines.clone(),
            ));
        }
        let process = child.id().unwrap_or_default();
        self.servers.push(Server {
            name: name.to_owned(),
            process,
            ready: Ready::default(),
            child,
        });
        Ok(())
    }

    /// Waits until every server serves.
    async fn all_ready(
        &mut self,
        said: &mut mpsc::Receiver<Line>,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let starting = self
            .servers
            .iter()
            .filter(|server| !server.is_ready())
            .count();
        let mut counts = BTreeMap::new();
        while self.servers.iter().any(|server| !server.is_ready()) {
            let Ok(Some((number, said))) = tokio::time::timeout(SILENCE, said.recv()).await else {
                let waiting: Vec<_> = self
                    .servers
                    .iter()
                    .filter(|server| !server.is_ready())
                    .collect();
                let names: Vec<_> = waiting.iter().map(|server| server.name.as_str()).collect();
                bail!(
                    "no sign of life from the servers {} for {} s",
                    names.join(", "),
                    SILENCE.as_secs()
                );
            };
            match said {
                Said::Event(Event::Progress { done, total }) => {
                    counts.insert(number, (done, total));
                    // Before all have told how much they have to do, the sum says nothing.
                    if counts.len() == starting {
                        let (done, total) = counts
                            .values()
                            .fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
                        progress.set(done, total);
                    }
                }
                Said::Event(Event::Ready(ready)) => self.servers[number].ready = ready,
                Said::Complaint(line) => progress.note(&line),
                Said::End => return Err(self.servers[number].failed_to_start().await),
            }
        }
        Ok(())
    }

    /// The index server; it is started last.
    pub(crate) fn index(&self) -> Option<&Server> {
        self.servers.last()
    }

    /// All servers.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter()
    }

    /// The servers whose process has ended though nobody asked it to, each with how.
    pub(crate) fn ended(&mut self) -> Vec<String> {
        let ended = |server: &mut Server| match server.child.try_wait() {
            Ok(Some(status)) => Some(format!(
                "{} (process {}) {}",
                server.name,
                server.process,
                ending(status)
            )),
            _ => None,
        };
        self.servers.iter_mut().filter_map(ended).collect()
    }

    /// Ends every process and waits until it is gone.
    pub(crate) async fn end(&mut self) {
        for server in &mut self.servers {
            // Fails only if it has ended by itself. A stopped process ends by this signal too.
            let _ = server.child.start_kill();
        }
        for server in &mut self.servers {
            let _ = server.child.wait().await;
        }
    }
}

impl Server {
    fn is_ready(&self) -> bool {
        !self.ready.address.is_empty()
    }

    async fn failed_to_start(&mut self) -> anyhow::Error {
        let how = match self.child.wait().await {
            Ok(status) => ending(status),
            Err(error) => error.to_string(),
        };
        anyhow::anyhow!("the server {} {how} before it was ready", self.name)
    }
}

async fn listen_to(number: usize, output: impl AsyncRead + Unpin, lines: mpsc::Sender<Line>) {
    let mut output = BufReader::new(output).lines();
    while let Ok(Some(line)) = output.next_line().await {
        if let Ok(event) = serde_json::from_str(&line) {
            // After the start nobody wants to know: that is no error.
            let _ = lines.send((number, Said::Event(event))).await;
        }
    }
}

async fn hear_complaints(
    number: usize,
    name: String,
    output: impl AsyncRead + Unpin,
    lines: mpsc::Sender<Line>,
) {
    let mut output = BufReader::new(output).lines();
    while let Ok(Some(line)) = output.next_line().await {
        let line = format!("{name}: {line}");
        if let Err(mpsc::error::SendError((_, Said::Complaint(line)))) =
            lines.send((number, Said::Complaint(line))).await
        {
            eprintln!("{line}");
        }
    }
    let _ = lines.send((number, Said::End)).await;
}
