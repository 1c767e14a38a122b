//! Endpoints as processes of their own: this very program, started again.
//!
//! A process prints its address when it listens, reads its [`Setup`] from its standard input, prints a second line when it
//! serves, and ends when its standard input does: so it never outlives who started it.

use crate::host::Host;
use crate::id::RingId;
use crate::message::Peer;
use crate::node::Config;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use wallaby::{Address, Endpoint};

/// What processes talk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// TCP on this machine.
    Tcp,
    /// Sockets in a folder.
    Unix,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Its processes.
    pub hosts: Vec<Address>,
    /// How long each message is on its way, where a network is emulated.
    pub link: Duration,
}

#[derive(Serialize, Deserialize)]
struct Page {
    hosts: Vec<Address>,
    link_us: u64,
}

/// Processes that host a ring. They end with [`Processes::end`], with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    running: Vec<Process>,
    plan: Plan,
    started: usize,
    /// The sockets, if they are files.
    sockets: Option<PathBuf>,
}

#[derive(Debug)]
struct Process {
    address: Address,
    child: Child,
    /// It ends when this is closed.
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
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

impl Plan {
    /// A round for so many nodes that leaves a machine time for other things.
    pub fn period_for(nodes: u64) -> Duration {
        Duration::from_millis(nodes.clamp(200, 60_000))
    }
}

impl Processes {
    /// Starts processes that host a ring.
    ///
    /// # Errors
    ///
    /// If one of them does not come up; what is wrong it says on standard error.
    pub async fn start(plan: Plan) -> anyhow::Result<Self> {
        let sockets = match plan.transport {
            Transport::Unix => Some(make_sockets()?),
            Transport::Tcp | Transport::Udp => None,
        };
        let mut processes = Self {
            running: Vec::new(),
            started: 0,
            sockets,
            plan,
        };
        for _ in 0..processes.plan.processes {
            let process = processes.spawn().await?;
            processes.running.push(process);
        }
        let setup = processes.setup(processes.plan.nodes);
        for process in &mut processes.running {
            process.tell(&setup).await?;
        }
        for process in &mut processes.running {
            process.line().await?;
        }
        Ok(processes)
    }

    /// Starts another process, without nodes.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn add(&mut self) -> anyhow::Result<Address> {
        let mut process = self.spawn().await?;
        process.tell(&self.setup(0)).await?;
        process.line().await?;
        let address = process.address.clone();
        self.running.push(process);
        Ok(address)
    }

    /// Kills a process: it can do nothing about it, not even close a connection.
    ///
    /// # Errors
    ///
    /// If there is none at this address.
    pub async fn kill(&mut self, address: &Address) -> anyhow::Result<()> {
        let mut all = self.running.iter();
        let at = all.position(|process| process.address == *address);
        let at = at.with_context(|| format!("no process is at {address}"))?;
        let mut process = self.running.swap_remove(at);
        process.child.kill().await?;
        Ok(())
    }

    /// Where they are.
    pub fn hosts(&self) -> Vec<Address> {
        let running = self.running.iter();
        running.map(|process| process.address.clone()).collect()
    }

    /// Where the ring is, and how far away.
    pub fn ring(&self) -> Ring {
        Ring {
            hosts: self.hosts(),
            link: self.plan.link,
        }
    }

    /// Their process ids, of those that run.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.running.iter().filter_map(|process| process.child.id())
    }

    /// The ring that they began with.
    pub fn setup(&self, nodes: u64) -> Setup {
        Setup {
            hosts: self.hosts(),
            nodes,
            seed: self.plan.seed,
            period_ms: self.plan.period.as_millis().try_into().unwrap_or(u64::MAX),
        }
    }

    /// Waits until one of them has ended by itself, and says which.
    pub async fn ended(&mut self) -> String {
        loop {
            for process in &mut self.running {
                if let Ok(Some(status)) = process.child.try_wait() {
                    return format!("the process at {} has ended ({status})", process.address);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends all of them.
    pub async fn end(mut self) {
        for process in self.running.drain(..) {
            let Process {
                mut child, input, ..
            } = process;
            drop(input);
            // It has ended in any case: nothing more can be done about it.
            let _ = child.wait().await;
        }
    }

    async fn spawn(&mut self) -> anyhow::Result<Process> {
        self.started += 1;
        let listen = match (self.plan.transport, &self.sockets) {
            (Transport::Unix, Some(folder)) => {
                format!("unix://{}/host-{}.sock", folder.display(), self.started)
            }
            (Transport::Udp, _) => "udp://127.0.0.1:0".to_owned(),
            _ => "tcp://127.0.0.1:0".to_owned(),
        };
        let program = std::env::current_exe().context("this program's own file can't be found")?;
        let child = Command::new(program)
            .args(["serve", "--listen", &listen])
            .args(["--link-us", &self.plan.link.as_micros().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches this process alone, which ends the others in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.context("a process can't be started")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a process has no standard input and output");
        };
        let mut output = BufReader::new(output).lines();
        let line = next_line(&mut output).await?;
        let address = line
            .parse()
            .with_context(|| format!("'{line}' is no address"))?;
        Ok(Process {
            address,
            child,
            input,
            output,
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(folder) = &self.sockets {
            // What can't be removed is a few empty files for the system to clean up.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Process {
    async fn tell(&mut self, setup: &Setup) -> anyhow::Result<()> {
        let line = serde_json::to_string(setup)? + "\n";
        let told = self.input.write_all(line.as_bytes()).await;
        told.with_context(|| format!("the process at {} has ended", self.address))
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let line = next_line(&mut self.output).await;
        line.with_context(|| format!("the process at {} did not come up", self.address))
    }
}

async fn next_line(output: &mut Lines<BufReader<ChildStdout>>) -> anyhow::Result<String> {
    let line = output
        .next_line()
        .await
        .context("a process can't be read")?;
    line.context("a process has ended before it was ready")
}

/// One such process, until its standard input ends.
///
/// # Errors
///
/// If it cannot listen, or is told nonsense.
pub async fn serve(listen: &str, link: Duration) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let endpoint = Endpoint::builder()
        .listen(listen)
        .link_delay(link)
        .bind()
        .await?;
    let address = endpoint.address().context("it does not listen")?.clone();
    println!("{address}");
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).await?;
    let setup: Setup = serde_json::from_str(&line).context("no ring was told")?;
    let host = Host::serve(&endpoint, address, Config::default())?;
    host.meet(&setup.hosts);
    host.settle(&setup.members());
    let upkeep = tokio::spawn(host.keep_up(Duration::from_millis(setup.period_ms)));
    println!("serving");
    // Whatever comes, its end is the signal.
    let _ = input.read_to_end(&mut Vec::new()).await;
    upkeep.abort();
    // Who still waits for an answer after that learns that the process is gone.
    let _ = endpoint.drain(PATIENCE).await;
    Ok(())
}

/// An endpoint for a client of these hosts, reached as they are.
///
/// # Errors
///
/// If it cannot listen.
pub async fn client_endpoint(hosts: &[Address], link: Duration) -> anyhow::Result<Endpoint> {
    let listen = match hosts.first() {
        Some(Address::Udp(_)) => "udp://127.0.0.1:0".to_owned(),
        Some(Address::Unix(host)) => {
            let folder = Path::new(&**host).parent().unwrap_or(Path::new("/"));
            let client = format!("client-{}.sock", std::process::id());
            format!("unix://{}", folder.join(client).display())
        }
        _ => "tcp://127.0.0.1:0".to_owned(),
    };
    Ok(Endpoint::builder()
        .listen(&listen)
        .link_delay(link)
        .bind()
        .await?)
}

/// Writes down where a ring is, for the programs that ask it.
///
/// # Errors
///
/// If that cannot be written.
pub fn announce(page: &Path, ring: &Ring) -> anyhow::Result<()> {
    let told = Page {
        hosts: ring.hosts.clone(),
        link_us: u64::try_from(ring.link.as_micros()).unwrap_or(u64::MAX),
    };
    std::fs::write(page, serde_json::to_vec_pretty(&told)?)
        .with_context(|| format!("{} can't be written", page.display()))
}

/// The ring is gone. A page that tells of another one by now stays.
pub fn withdraw(page: &Path, ring: &Ring) {
    if find(page).is_ok_and(|told| told == *ring) {
        // If the page stays, who reads it finds nobody there, and says so.
        let _ = std::fs::remove_file(page);
    }
}

/// Where the ring is that a page tells of.
///
/// # Errors
///
/// If there is none.
pub fn find(page: &Path) -> anyhow::Result<Ring> {
    let told = match std::fs::read(page) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "{} tells of no ring: start one with 'wallaby-chord up'",
            page.display()
        ),
        read => read.and_then(|page| Ok(serde_json::from_slice::<Page>(&page)?)),
    };
    let Page { hosts, link_us } =
        told.with_context(|| format!("{} can't be read", page.display()))?;
    ensure!(!hosts.is_empty(), "{} names no endpoint", page.display());
    Ok(Ring {
        hosts,
        link: Duration::from_micros(link_us),
    })
}

fn make_sockets() -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("wallaby-chord-{}", std::process::id()));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.with_context(|| format!("the folder {} for sockets can't be made", folder.display()))?;
    Ok(folder)
}
