//! Servers as processes of their own: this very program, started again.
//!
//! A server says its address when it listens, is told the addresses of all servers, says a second line when it serves, and
//! ends with who started it.

use crate::client::Client;
use crate::placement::{Placement, Seat};
use crate::server::Server;
use crate::store::Store;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wallaby::{Address, Endpoint};
use wallaby_program::child::{Cluster, Parent, this_program};
use wallaby_program::page;

/// Where servers and clients listen.
const LOCAL: &str = "tcp://127.0.0.1:0";

/// Servers as processes. They end with [`Processes::end`], with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    cluster: Cluster<Address>,
    running: Running,
}

/// Where a running cluster is: a page in its store's folder, for the programs that ask it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    servers: Vec<Address>,
    /// How long a message is on its way, in microseconds, where a network is emulated.
    link_us: u64,
}

impl Processes {
    /// Starts so many servers on the store in a folder; what each sends is delayed by `link`, to emulate a network.
    pub async fn start(folder: &Path, servers: u32, link: Duration) -> anyhow::Result<Self> {
        let link_us = u64::try_from(link.as_micros())?;
        let program = |seat| {
            let mut command = this_program()?;
            command.arg("serve").arg("--store").arg(folder);
            command.args(["--seat", &format!("{seat}"), "--listen", LOCAL]);
            command.args(["--link-us", &link_us.to_string()]);
            Ok((format!("server {seat}"), command))
        };
        let programs = Seat::all(servers).map(program);
        let mut cluster = Cluster::start(programs, |line| Ok(line.parse()?)).await?;
        let servers: Vec<Address> = cluster.said().to_vec();
        cluster.tell(&servers).await?;
        let running = Running { servers, link_us };
        Ok(Self { cluster, running })
    }

    /// Where they are.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Waits until one of them has ended by itself, and says which.
    pub async fn ended(&mut self) -> String {
        self.cluster.first_ended().await
    }

    /// Ends all servers when what they are doing is done.
    pub async fn end(self) {
        self.cluster.end().await;
    }
}

/// One such process, until who started it wants it to end.
pub async fn serve(folder: &Path, seat: Seat, listen: &str, link: Duration) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let store = Store::find(folder)?.with_context(|| nothing_in(folder))?;
    let endpoint = Endpoint::builder().listen(listen);
    let endpoint = wallaby_link::emulate(endpoint, link, None)?.bind().await?;
    let address = endpoint.address().context("it does not listen")?;
    println!("{address}");
    let mut parent = Parent::of_this();
    let line = parent.line().await?;
    let addresses: Vec<Address> = serde_json::from_str(&line).context("no addresses were told")?;
    let placement = Placement::new(addresses).context("there are no servers")?;
    let server = Server::serve(&endpoint, &store, seat, placement)?;
    println!("serving");
    parent.gone().await;
    // Who still waits for an answer after that learns that the server is gone.
    let _ = endpoint.drain(PATIENCE).await;
    server.close();
    Ok(())
}

/// What is wrong with a folder that is no store.
pub fn nothing_in(folder: &Path) -> String {
    let folder = folder.display();
    format!("nothing was loaded into {folder}: 'wallaby-graph load' does that")
}

impl Running {
    /// Where the cluster of a store is.
    pub fn find(folder: &Path) -> anyhow::Result<Self> {
        page::find(&page_of(folder))?.with_context(|| {
            let folder = folder.display();
            format!("no cluster serves {folder}: start one with 'wallaby-graph up'")
        })
    }

    /// Writes down where the cluster of a store is.
    pub fn announce(&self, folder: &Path) -> anyhow::Result<()> {
        page::announce(&page_of(folder), self)
    }

    /// It is gone.
    pub fn withdraw(&self, folder: &Path) {
        page::withdraw(&page_of(folder), self);
    }

    /// A client of this cluster, as far away from the servers as these from each other.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let placement = Placement::new(self.servers.clone()).context("there are no servers")?;
        let link = Duration::from_micros(self.link_us);
        let endpoint = wallaby_link::emulate(Endpoint::builder().listen(LOCAL), link, None)?;
        Ok(Client::new(endpoint.bind().await?, placement))
    }
}

fn page_of(folder: &Path) -> PathBuf {
    folder.join("cluster.json")
}
