//! Endpoints as processes of their own: this very program, started again.
//!
//! A process says its address when it listens, is told its [`Setup`], says a second line when it serves, and ends with who
//! started it.

use crate::host::Host;
use crate::id::RingId;
use crate::message::Peer;
use crate::node::Config;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;
use wallaby::{Address, Endpoint};
use wallaby_program::child::{Cluster, Parent, this_program};
use wallaby_program::page;

/// What processes talk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// TCP on this machine.
    Tcp,
    /// UDP on this machine.
    Udp,
}

/// The ring that processes begin with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Where they are.
    pub hosts: Vec<Address>,
    /// How many nodes they have together.
    pub nodes: u64,
    /// What the places of the nodes are made of.
    pub seed: u64,
    /// How long a round of maintenance takes, in milliseconds.
    pub period_ms: u64,
}

/// How processes are started.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many.
    pub processes: usize,
    /// How many nodes they host together.
    pub nodes: u64,
    /// What the places of the nodes are made of.
    pub seed: u64,
    /// How long a round of maintenance takes.
    pub period: Duration,
    /// What they talk over.
    pub transport: Transport,
    /// How long each message is on its way.
    pub link: Duration,
}

/// Where a ring is: a page for the programs that ask it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Its processes.
    pub hosts: Vec<Address>,
    /// How long each message is on its way, in microseconds, where a network is emulated.
    pub link_us: u64,
}

/// Processes that host a ring. They end with [`Processes::end`], with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    cluster: Cluster<Address>,
    ring: Ring,
}

impl Setup {
    /// The nodes of the ring at its beginning, by place. Two nodes of one place are one.
    pub fn members(&self) -> Vec<Peer> {
        let nodes = (0..self.nodes).zip(self.hosts.iter().cycle());
        let mut members: Vec<Peer> = nodes
            .map(|(number, host)| Peer {
                id: RingId::of_node(self.seed, number),
                host: host.clone(),
            })
            .collect();
        members.sort();
        members.dedup_by_key(|peer| peer.id);
        members
    }
}

impl Processes {
    /// Starts processes that host a ring.
    ///
    /// # Errors
    ///
    /// If one of them does not come up; what is wrong it says on standard error.
    pub async fn start(plan: &Plan) -> anyhow::Result<Self> {
        let link_us = u64::try_from(plan.link.as_micros())?;
        let program = |number| {
            let mut command = this_program()?;
            command.args(["serve", "--listen", anywhere(plan.transport)]);
            command.args(["--link-us", &link_us.to_string()]);
            Ok((format!("process {number}"), command))
        };
        let programs = (1..=plan.processes).map(program);
        let mut cluster = Cluster::start(programs, |line| Ok(line.parse()?)).await?;
        let hosts: Vec<Address> = cluster.said().to_vec();
        let setup = Setup {
            hosts: hosts.clone(),
            nodes: plan.nodes,
            seed: plan.seed,
            period_ms: u64::try_from(plan.period.as_millis())?,
        };
        cluster.tell(&setup).await?;
        let ring = Ring { hosts, link_us };
        Ok(Self { cluster, ring })
    }

    /// Where the ring is, and how far away.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Kills a process: it can do nothing about it, not even close a connection.
    ///
    /// # Errors
    ///
    /// If there is none at this address.
    pub async fn kill(&mut self, address: &Address) -> anyhow::Result<()> {
        let at = self.ring.hosts.iter().position(|host| host == address);
        let child = at.and_then(|at| self.cluster.children().get_mut(at));
        let child = child.with_context(|| format!("no process is at {address}"))?;
        Ok(child.kill().await?)
    }

    /// Waits until one of them has ended by itself, and says which.
    pub async fn ended(&mut self) -> String {
        self.cluster.first_ended().await
    }

    /// Ends all of them.
    pub async fn end(self) {
        self.cluster.end().await;
    }
}

/// One such process, until who started it wants it to end.
///
/// # Errors
///
/// If it cannot listen, or is told nonsense.
pub async fn serve(listen: &str, link: Duration) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let endpoint = Endpoint::builder().listen(listen);
    let endpoint = wallaby_link::emulate(endpoint, link, None)?.bind().await?;
    let address = endpoint.address().context("it does not listen")?.clone();
    println!("{address}");
    let mut parent = Parent::of_this();
    let setup: Setup = serde_json::from_str(&parent.line().await?).context("no ring was told")?;
    let host = Host::serve(&endpoint, address, Config::default())?;
    host.meet(&setup.hosts);
    host.settle(&setup.members());
    let upkeep = tokio::spawn(host.keep_up(Duration::from_millis(setup.period_ms)));
    println!("serving");
    parent.gone().await;
    upkeep.abort();
    // Who still waits for an answer after that learns that the process is gone.
    let _ = endpoint.drain(PATIENCE).await;
    Ok(())
}

impl Ring {
    /// The ring that a page tells of.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn find(at: &Path) -> anyhow::Result<Self> {
        let ring: Option<Self> = page::find(at)?;
        let at = at.display();
        let ring = ring
            .with_context(|| format!("{at} tells of no ring: start one with 'wallaby-chord up'"))?;
        ensure!(!ring.hosts.is_empty(), "{at} names no endpoint");
        Ok(ring)
    }

    /// An endpoint for a client of it, as far away from its processes as these from each other.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub async fn endpoint(&self) -> anyhow::Result<Endpoint> {
        let over = match self.hosts.first() {
            Some(Address::Udp(_)) => Transport::Udp,
            _ => Transport::Tcp,
        };
        let link = Duration::from_micros(self.link_us);
        let endpoint = Endpoint::builder().listen(anywhere(over));
        Ok(wallaby_link::emulate(endpoint, link, None)?.bind().await?)
    }
}

/// Any free port of this machine.
fn anywhere(over: Transport) -> &'static str {
    match over {
        Transport::Tcp => "tcp://127.0.0.1:0",
        Transport::Udp => "udp://127.0.0.1:0",
    }
}
