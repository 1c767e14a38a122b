//! Endpoints as processes of their own: this very program, started again.
//!
//! A process says its address when it listens, is told where the others are, says a second line when it serves, and ends with who
//! started it.

use crate::host::Host;
use crate::id::RingId;
use crate::message::Peer;
use crate::node::Config;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;
use wallaby::{Address, Endpoint};
use wallaby_program::child::{Cluster, Parent, this_program};
use wallaby_program::{output, page};

/// What processes talk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Transport {
    /// TCP on this machine.
    Tcp,
    /// UDP on this machine.
    Udp,
}

/// A ring that is to be started.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Plan {
    /// How many processes
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub processes: u16,
    /// How many nodes they host together
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub nodes: u64,
    /// What they talk over
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub transport: Transport,
    /// Emulate a network: every message takes so long, as in 250us or 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    pub link: Duration,
    /// Where the nodes are on the ring, and what is chosen by chance: the same number chooses the same
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
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

/// So many nodes of a ring that begins on these endpoints, by place. Two nodes of one place are one.
pub fn members(hosts: &[Address], nodes: u64, seed: u64) -> Vec<Peer> {
    let nodes = (0..nodes).zip(hosts.iter().cycle());
    let mut members: Vec<Peer> = nodes
        .map(|(number, host)| Peer {
            id: RingId::of_node(seed, number),
            host: host.clone(),
        })
        .collect();
    members.sort();
    members.dedup_by_key(|peer| peer.id);
    members
}

impl Processes {
    /// Starts processes that host a ring.
    ///
    /// # Errors
    ///
    /// If one of them does not come up; what is wrong it says on standard error.
    pub async fn start(plan: &Plan) -> anyhow::Result<Self> {
        let told = serde_json::to_string(plan)?;
        let program = |number| {
            let mut command = this_program()?;
            command.args(["serve", &told]);
            Ok((format!("process {number}"), command))
        };
        let programs = (1..=plan.processes).map(program);
        let mut cluster = Cluster::start(programs, |line| Ok(line.parse()?)).await?;
        let hosts: Vec<Address> = cluster.said().to_vec();
        cluster.tell(&hosts).await?;
        let link_us = u64::try_from(plan.link.as_micros())?;
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

/// One such process, until who started it wants it to end; `plan` is the ring, as JSON.
///
/// # Errors
///
/// If it cannot listen, or is told nonsense.
pub async fn serve(plan: &str) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let plan: Plan = serde_json::from_str(plan)?;
    let endpoint = endpoint(plan.transport, plan.link).await?;
    let address = endpoint.address().context("it does not listen")?.clone();
    output::line(&address)?;
    let mut parent = Parent::of_this();
    let hosts: Vec<Address> = serde_json::from_str(&parent.line().await?)?;
    let host = Host::serve(&endpoint, address, Config::default())?;
    host.settle(&members(&hosts, plan.nodes, plan.seed));
    // A round for so many nodes that leaves a machine time for other things.
    let period = Duration::from_millis(plan.nodes.clamp(200, 60_000));
    let upkeep = tokio::spawn(host.keep_up(period));
    output::line("serving")?;
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
        endpoint(over, Duration::from_micros(self.link_us)).await
    }
}

/// An endpoint that listens at any free port of this machine.
async fn endpoint(over: Transport, link: Duration) -> anyhow::Result<Endpoint> {
    let listen = match over {
        Transport::Tcp => "tcp://127.0.0.1:0",
        Transport::Udp => "udp://127.0.0.1:0",
    };
    let endpoint = Endpoint::builder().listen(listen);
    Ok(wallaby_link::emulate(endpoint, link, None)?.bind().await?)
}
