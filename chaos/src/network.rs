//! Where processes are: all on the loopback interface, or each host in a network namespace of its own, whose links can
//! be cut.
//!
//! Namespaces have no names here: the director holds them open by file descriptors and nothing of them outlives it.
//! A link is cut by telling one host a hardware address for the other that nobody has: what it sends leaves, and is lost
//! without a word, one way only.

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use wallaby_bench::Transport;

use crate::control::Entrance;

/// Hosts of a network at most.
const MOST_HOSTS: usize = 250;
const PORT: u16 = 7000;

/// What kind of network to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// Namespaces where that is possible, else loopback
    Auto,
    /// A namespace for each process: links can be cut
    Namespaces,
    /// The loopback interface: no links to be cut
    Loopback,
}

/// The network that processes are connected by.
#[derive(Debug)]
pub(crate) struct Network {
    transport: Transport,
    folder: PathBuf,
    /// Where its hosts begin among those of all the director's networks.
    first: usize,
    /// Of each host, if they have any; the switch between them is in the first one.
    spaces: Vec<File>,
    /// Why links can't be cut.
    pub(crate) whole: Option<String>,
}

/// An address with a proxy before it.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(crate) front: String,
    pub(crate) target: String,
}

impl Network {
    /// A network of so many hosts. Unix sockets and those where memory is shared are in `folder`.
    pub(crate) async fn new(
        choice: Choice,
        transport: Transport,
        hosts: usize,
        lane: usize,
        folder: &Path,
    ) -> Result<Self> {
        // On loopback all networks of the director share addresses.
        let fits = hosts * (lane + 1) <= MOST_HOSTS;
        ensure!(fits, "{hosts} processes are too many");
        let mut network = Self {
            transport,
            folder: folder.to_owned(),
            first: lane * hosts,
            spaces: Vec::new(),
            whole: None,
        };
        if matches!(transport, Transport::Unix | Transport::Shm) {
            let what = network.words();
            ensure!(
                choice != Choice::Namespaces,
                "{what} do not cross network namespaces: use tcp or udp"
            );
            network.whole = Some(format!("{what} have no links"));
            return Ok(network);
        }
        if choice == Choice::Loopback {
            network.whole = Some("the loopback interface was asked for".to_owned());
            return Ok(network);
        }
        match network.separate(hosts).await {
            Ok(()) => Ok(network),
            Err(error) if choice == Choice::Auto => {
                network.spaces.clear();
                network.whole = Some(format!("no network namespaces here: {error:#}"));
                Ok(network)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives each host a namespace with a link to a switch.
    async fn separate(&mut self, hosts: usize) -> Result<()> {
        for _ in 0..=hosts {
            self.spaces.push(new_space()?);
        }
        let (hub, spaces) = self.spaces.split_first().context("there is a hub")?;
        let mut batch = "link add switch type bridge\nlink set switch up\n".to_owned();
        for (host, space) in spaces.iter().enumerate() {
            batch += &format!(
                "link add port{host} type veth peer name eth0 netns {}\n\
                 link set port{host} master switch up\n",
                path(space)
            );
        }
        ip(hub, &batch).await?;
        for (host, space) in spaces.iter().enumerate() {
            let mut batch = format!(
                "link set lo up\nlink set eth0 address {}\naddr add {}/16 dev eth0\nlink set eth0 up\n",
                hardware(host),
                self.host(host)
            );
            for other in (0..hosts).filter(|other| *other != host) {
                batch += &self.neighbour(other, true);
            }
            ip(space, &batch).await?;
        }
        Ok(())
    }

    pub(crate) fn can_cut(&self) -> bool {
        !self.spaces.is_empty()
    }

    /// File descriptors that a process holds for a connection.
    pub(crate) fn descriptors(&self) -> u64 {
        match self.transport {
            Transport::Shm => 3, // a socket and two bells
            Transport::Tcp | Transport::Udp | Transport::Unix => 1,
        }
    }

    /// What is said about this network.
    pub(crate) fn words(&self) -> &'static str {
        match (self.can_cut(), self.transport) {
            (true, _) => "a network namespace for each process",
            (false, Transport::Unix) => "unix sockets",
            (false, Transport::Shm) => "processes that share memory",
            (false, _) => "the loopback interface",
        }
    }

    /// Lets what `from` sends to `to` arrive, or be lost.
    pub(crate) async fn set_link(&self, from: usize, to: usize, up: bool) -> Result<()> {
        self.set_links(from, &[to], up).await
    }

    /// The same of several links from one host, at once.
    pub(crate) async fn set_links(&self, from: usize, to: &[usize], up: bool) -> Result<()> {
        let Some(space) = self.spaces.get(from + 1) else {
            bail!("there are no links to be cut");
        };
        let neighbours: String = to.iter().map(|to| self.neighbour(*to, up)).collect();
        ip(space, &neighbours).await
    }

    fn neighbour(&self, host: usize, up: bool) -> String {
        let hardware = match up {
            true => hardware(host),
            false => "02:00:00:00:ff:ff".to_owned(), // nobody's
        };
        let address = self.host(host);
        format!("neigh replace {address} lladdr {hardware} dev eth0 nud permanent\n")
    }

    pub(crate) fn host(&self, host: usize) -> String {
        if self.can_cut() {
            return format!("10.77.0.{}", host + 1);
        }
        // The whole of 127/8 is this machine: a corner of its own for each director, so that nobody takes the address
        // of a server while it is down.
        let [.., high, low] = std::process::id().to_be_bytes();
        format!("127.{}.{low}.{}", 64 + high % 128, self.first + host + 1)
    }

    /// The address that others use for this host.
    pub(crate) fn address(&self, host: usize) -> String {
        match self.transport {
            transport @ (Transport::Unix | Transport::Shm) => {
                format!("{transport}://{}/{host}.sock", self.folder.display())
            }
            transport => format!("{transport}://{}:{PORT}", self.host(host)),
        }
    }

    /// A unix socket of this host, where there are no other sockets to be reached by.
    pub(crate) fn door(&self, host: usize) -> Option<String> {
        let door = || format!("unix://{}/{host}.door", self.folder.display());
        (self.transport == Transport::Shm).then(door)
    }

    /// Where an endpoint of this host listens, and the proxy before it if there is to be one.
    pub(crate) fn entrance(&self, host: usize, proxied: bool) -> (Entrance, Option<Front>) {
        let address = self.address(host);
        if !proxied {
            let entrance = Entrance {
                listen: address,
                door: None,
                advertise: None,
            };
            return (entrance, None);
        }
        let target = format!("{}:{}", self.host(host), PORT + 1);
        let entrance = Entrance {
            listen: format!("{}://{target}", self.transport),
            door: None,
            advertise: Some(address),
        };
        let front = format!("{}:{PORT}", self.host(host));
        (entrance, Some(Front { front, target }))
    }

    /// This program, to be run at a host.
    pub(crate) fn command(&self, host: usize) -> Result<Command> {
        let program = std::env::current_exe().context("can't find the program to start again")?;
        let Some(space) = self.spaces.get(host + 1) else {
            return Ok(Command::new(program));
        };
        let mut command = enter(space);
        command.arg(program);
        Ok(command)
    }
}

fn hardware(host: usize) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

/// A network namespace without anything in it.
fn new_space() -> Result<File> {
    let made = std::thread::spawn(|| {
        // It changes the network of this thread alone, which ends here.
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    });
    match made.join() {
        Ok(made) => made.context("unshare (root may)"),
        Err(_) => bail!("a thread panicked"),
    }
}

fn path(space: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), space.as_raw_fd())
}

/// Runs what follows in a namespace, as the same process.
fn enter(space: &File) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(space)));
    command
}

/// Runs commands of `ip` in a namespace.
async fn ip(space: &File, batch: &str) -> Result<()> {
    let mut process = enter(space)
        .args(["ip", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("nsenter (Debian: util-linux)")?;
    let mut input = process.stdin.take().context("ip has an input")?;
    let written = input.write_all(batch.as_bytes()).await;
    drop(input);
    let output = process.wait_with_output().await?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip (Debian: iproute2): {words}");
    Ok(written?)
}
