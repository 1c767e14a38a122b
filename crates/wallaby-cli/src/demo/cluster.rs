//! The cluster of the demo: server processes on this machine, this very program started again.

use super::serve::Ready;
use super::sockets::Sockets;
use crate::progress::Progress;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;
use wallaby_program::child::{self, this_program};

/// How the servers of a cluster are to be.
pub(crate) struct Plan<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) servers: u32,
    pub(crate) link: Duration,
    /// Where its servers listen.
    pub(crate) sockets: &'a Sockets,
}

/// All server processes. They end with this value, and with this process.
pub(crate) struct Cluster {
    documents: child::Cluster<Ready>,
    index: child::Cluster<Ready>,
}

/// One server process.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) process: u32,
    pub(crate) ready: Ready,
}

impl Cluster {
    /// Starts the document servers, and when they are ready the index server.
    pub(crate) async fn start(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let read = |line: &str| Ok(serde_json::from_str(line)?);
        let documents = (1..=plan.servers).map(|number| {
            let arguments = [
                "documents".into(),
                "--docs".into(),
                plan.folder.into(),
                "--shard".into(),
                format!("{number}/{}", plan.servers).into(),
            ];
            plan.program(format!("documents {number}"), &arguments)
        });
        let mut progress = Progress::new("starting servers");
        let all = u64::from(plan.servers) + 1;
        progress.set(0, all);
        let documents: child::Cluster<Ready> = child::Cluster::start(documents, read).await?;
        progress.set(all - 1, all);
        let addresses: Vec<&str> = documents.said().iter().map(Ready::address).collect();
        let arguments = [
            "index".into(),
            "--documents".into(),
            addresses.join(",").into(),
        ];
        let index = plan.program("index".to_owned(), &arguments);
        let index = child::Cluster::start([index], read).await?;
        progress.set(all, all);
        Ok(Self { documents, index })
    }

    /// All servers; the last one is the index server.
    pub(crate) fn servers(&mut self) -> Vec<Server> {
        let mut servers = Vec::new();
        for cluster in [&mut self.documents, &mut self.index] {
            let said = cluster.said().to_vec();
            let each = cluster.children().iter().zip(said);
            servers.extend(each.map(|(child, ready)| Server {
                name: child.name().to_owned(),
                process: child.id().unwrap_or_default(),
                ready,
            }));
        }
        servers
    }

    /// Waits until the process of a server has ended though nobody asked it to, and says which, and how.
    pub(crate) async fn first_ended(&mut self) -> String {
        tokio::select! {
            ended = self.documents.first_ended() => ended,
            ended = self.index.first_ended() => ended,
        }
    }
}

impl Plan<'_> {
    /// How a server is started.
    pub(crate) fn program(
        &self,
        name: String,
        arguments: &[OsString],
    ) -> anyhow::Result<(String, Command)> {
        let mut command = this_program()?;
        command.args(["demo", "serve"]).args(arguments);
        command.args(["--listen", &self.sockets.address(&name)]);
        command.args(["--link", &format!("{}us", self.link.as_micros())]);
        command.args(["--child-of", &std::process::id().to_string()]);
        if let Some(folder) = self.sockets.certificate(&name)? {
            command.arg("--tls").arg(folder);
        }
        Ok((name, command))
    }
}
