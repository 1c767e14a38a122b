//! The servers of a benchmark: each a process of its own, started from this very program, gone with it.
//!
//! A server reads one instruction a line from its standard input and answers on its standard output:
//! it announces its address, is told everybody's, says when it is connected, and reports its traffic when asked. It may be
//! told to begin operations itself, too.

use crate::harness::Traffic;
use crate::patience::Lost;
use crate::pattern::Pattern;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use std::{env, fmt, io, process, thread};
use wallaby_program::scratch::Scratch;

/// More servers than this are refused: with threads on all their connections they would swamp the machine.
pub const MOST_SERVERS: usize = 64;

/// How servers are started.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// What makes it call [`crate::server_main`] with the arguments that follow.
    pub arguments: Vec<OsString>,
}

impl Launcher {
    /// This very program with the hidden command `bench-server`.
    ///
    /// # Errors
    /// The operating system does not say which program this is.
    pub fn this_program() -> Result<Self> {
        Ok(Self {
            program: env::current_exe().context("can't find the program to start servers with")?,
            arguments: vec!["bench-server".into()],
        })
    }
}

/// How messages are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Unix stream sockets.
    Unix,
    /// TCP on the loopback interface.
    Tcp,
    /// UDP on the loopback interface.
    Udp,
    /// Shared memory.
    Shm,
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Shm => "shm",
        })
    }
}

impl FromStr for Transport {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "unix" => Self::Unix,
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "shm" => Self::Shm,
            other => bail!("unknown transport {other:?}: choose unix, tcp, udp or shm"),
        })
    }
}

/// What a server is told on its command line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Of which stack, by [`crate::stack::Stack::name`].
    pub stack: String,
    /// How it receives messages.
    pub transport: Transport,
    /// Its place in the fleet.
    pub index: u8,
    /// The emulated one-way delay of what it sends.
    pub link: Duration,
    /// The emulated bandwidth of the link that all it sends shares, in bits per second; none: as fast as it goes.
    #[serde(default)]
    pub bandwidth: Option<NonZeroU64>,
    /// For sockets and other files of this run.
    pub folder: PathBuf,
    /// The process that starts it.
    pub parent: u32,
}

impl ServerConfig {
    /// Where this server's unix socket is.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}-{}", self.stack, self.index))
    }
}

/// Everybody's addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peers {
    /// Of the servers, in order.
    pub servers: Vec<String>,
    /// Where answers go, if servers don't learn it from a connection: the client, or who takes them to it.
    pub client: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Instruction {
    Connect(Peers),
    Report,
    Load(LoadOrder),
}

#[derive(Debug, Serialize, Deserialize)]
enum Announcement {
    Listening(String),
    Connected,
    Traffic(Traffic),
    Loaded(Loaded),
}

/// Operations that a server is to begin itself, as a client of all others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LoadOrder {
    /// What one of them does.
    pub(crate) pattern: Pattern,
    /// Bytes of payload in each message.
    pub(crate) payload: usize,
    /// How many are begun a second, at random times; none: another one whenever one is done.
    pub(crate) per_second: Option<f64>,
    /// The most that are under way at a time.
    pub(crate) under_way: usize,
    /// For how long.
    pub(crate) time: Duration,
    /// Of the times and the servers.
    pub(crate) seed: u64,
}

/// What became of the operations of a [`LoadOrder`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Loaded {
    /// How long each took from when it should have begun, in nanoseconds.
    pub(crate) latencies: Vec<u64>,
    /// How many could not begin in their time, because as many as may be were under way.
    pub(crate) refused: u64,
}

/// Running servers; they are killed when this is dropped.
#[derive(Debug)]
pub struct Fleet {
    servers: Vec<Server>,
    addresses: Vec<String>,
    lost: Lost,
}

impl Fleet {
    /// Starts `count` servers like `config`, without connecting them yet.
    pub(crate) fn start(launcher: &Launcher, count: usize, config: &ServerConfig) -> Result<Self> {
        ensure!(count > 0, "at least one server is needed");
        ensure!(
            count <= MOST_SERVERS,
            "{count} servers are too many, {MOST_SERVERS} are possible"
        );
        let mut fleet = Self {
            servers: Vec::with_capacity(count),
            addresses: Vec::with_capacity(count),
            lost: Lost::default(),
        };
        for index in 0..count {
            let config = ServerConfig {
                index: u8::try_from(index)?,
                ..config.clone()
            };
            let server = Server::start(launcher, &config, Lost::clone(&fleet.lost))?;
            fleet.servers.push(server);
        }
        for server in &mut fleet.servers {
            match server.listen()? {
                Announcement::Listening(address) => fleet.addresses.push(address),
                other => bail!("{server} said {other:?} instead of its address"),
            }
        }
        Ok(fleet)
    }

    /// What the servers announced as their addresses, in order.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Who is gone, if anybody is.
    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Tells every server where the others are, and `client` for [`Peers::client`]; waits until they are connected.
    ///
    /// # Errors
    /// A server fails, or takes too long.
    pub fn connect(&mut self, client: Option<String>) -> Result<()> {
        let peers = Peers {
            servers: self.addresses.clone(),
            client,
        };
        for server in &mut self.servers {
            server.instruct(&Instruction::Connect(peers.clone()))?;
        }
        for server in &mut self.servers {
            match server.listen()? {
                Announcement::Connected => (),
                other => bail!("{server} said {other:?} instead of that it is connected"),
            }
        }
        Ok(())
    }

    /// What the servers counted, all together.
    pub(crate) fn traffic(&mut self) -> Result<Traffic> {
        let mut sum = Traffic::default();
        for server in &mut self.servers {
            server.instruct(&Instruction::Report)?;
            match server.listen()? {
                Announcement::Traffic(traffic) => {
                    sum.messages += traffic.messages;
                    sum.bytes += traffic.bytes;
                    sum.servers_spent += traffic.servers_spent;
                }
                other => bail!("{server} said {other:?} instead of its traffic"),
            }
        }
        Ok(sum)
    }

    /// Lets every server carry out its part of a load; what became of all of it.
    pub(crate) fn load(&mut self, order: &LoadOrder) -> Result<Loaded> {
        let servers = self.servers.len() as u64;
        for (index, server) in (0..).zip(&mut self.servers) {
            let order = LoadOrder {
                per_second: order.per_second.map(|all| all / servers as f64),
                seed: order.seed.wrapping_mul(servers).wrapping_add(index),
                ..order.clone()
            };
            server.instruct(&Instruction::Load(order))?;
        }
        let mut sum = Loaded::default();
        for server in &mut self.servers {
            match server.listen()? {
                Announcement::Loaded(mut loaded) => {
                    sum.latencies.append(&mut loaded.latencies);
                    sum.refused += loaded.refused;
                }
                other => bail!("{server} said {other:?} instead of what it did"),
            }
        }
        Ok(sum)
    }

    /// The servers' process ids.
    pub fn processes(&self) -> Vec<u32> {
        self.servers
            .iter()
            .map(|server| server.process.id())
            .collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // All first, so that they end at the same time; an error means that it has already ended.
        for server in &mut self.servers {
            let _ = server.process.kill();
        }
        for server in &mut self.servers {
            let _ = server.process.wait();
        }
    }
}

/// Not a child of wallaby-program, which is for programs on tokio: who measures waits on its own thread, with a time limit, so
/// that no runtime takes the processor on which it measures.
#[derive(Debug)]
struct Server {
    name: String,
    process: Child,
    instructions: ChildStdin,
    announcements: Receiver<io::Result<String>>,
}

impl Server {
    fn start(launcher: &Launcher, config: &ServerConfig, lost: Lost) -> Result<Self> {
        let mut process = Command::new(&launcher.program)
            .args(&launcher.arguments)
            .arg(serde_json::to_string(config)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("can't start {} as a server", launcher.program.display()))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (instructions, output) = pipes.ok_or_else(|| anyhow!("a server has no pipes"))?;
        let (lines, announcements) = sync_channel(1);
        let server = Self {
            name: format!(
                "server {} ({}, process {})",
                config.index,
                config.stack,
                process.id()
            ),
            process,
            instructions,
            announcements,
        };
        let name = server.name.clone();
        // A thread waits for the lines, so that reading one can have a time limit, and notices the end.
        thread::Builder::new()
            .name("bench-control".into())
            .spawn(move || {
                for line in BufReader::new(output).lines() {
                    if lines.send(line).is_err() {
                        return;
                    }
                }
                let _ = lost.set(name); // the first one that is lost is enough
            })?;
        Ok(server)
    }

    fn instruct(&mut self, instruction: &Instruction) -> Result<()> {
        write_line(&mut self.instructions, instruction).with_context(|| format!("{self} has ended"))
    }

    fn listen(&mut self) -> Result<Announcement> {
        let line = match self.announcements.recv_timeout(PATIENCE) {
            Ok(line) => line.with_context(|| format!("{self} can't be read"))?,
            Err(RecvTimeoutError::Timeout) => {
                bail!("{self} said nothing for {} s", PATIENCE.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("{self} has ended, {}", self.ending()),
        };
        serde_json::from_str(&line).with_context(|| format!("{self} said {line:?}"))
    }

    fn ending(&mut self) -> String {
        // It closed its output a moment ago, so this takes another moment at most, unless it is stuck in its end.
        let _ = self.process.kill();
        self.process
            .wait()
            .map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// A server's side of the conversation.
#[derive(Debug)]
pub struct Control;

impl Control {
    /// Announces the address; the answer is everybody's. Ends the process if the client has gone.
    ///
    /// # Errors
    /// The client says something else.
    pub fn exchange_addresses(&mut self, address: &str) -> Result<Peers> {
        self.announce(&Announcement::Listening(address.to_owned()))?;
        match self.instruction()? {
            Some(Instruction::Connect(peers)) => Ok(peers),
            Some(other) => bail!("was told {other:?} instead of the addresses"),
            None => process::exit(0),
        }
    }

    /// Says that the server is connected, then answers instructions until the client has gone.
    ///
    /// # Errors
    /// The client says what it should not.
    pub fn attend(&mut self, traffic: impl Fn() -> Traffic) -> Result<()> {
        self.attend_loaded(traffic, |_| {
            bail!("was told to begin operations, which it can't")
        })
    }

    /// The same of a server that can begin operations, too.
    pub(crate) fn attend_loaded(
        &mut self,
        traffic: impl Fn() -> Traffic,
        mut load: impl FnMut(&LoadOrder) -> Result<Loaded>,
    ) -> Result<()> {
        self.announce(&Announcement::Connected)?;
        while let Some(instruction) = self.instruction()? {
            match instruction {
                Instruction::Report => self.announce(&Announcement::Traffic(traffic()))?,
                Instruction::Load(order) => self.announce(&Announcement::Loaded(load(&order)?))?,
                Instruction::Connect(_) => bail!("was told the addresses twice"),
            }
        }
        Ok(())
    }

    fn announce(&mut self, announcement: &Announcement) -> Result<()> {
        write_line(io::stdout().lock(), announcement)
    }

    fn instruction(&mut self) -> Result<Option<Instruction>> {
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(
            serde_json::from_str(&line).with_context(|| format!("was told {line:?}"))?,
        ))
    }
}

fn write_line(mut output: impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()?;
    Ok(())
}

/// A folder of this run's own, for sockets.
pub(crate) fn folder() -> Result<Scratch> {
    Scratch::create("wallaby-bench")
}

/// A server that takes longer to start or answer an instruction is given up.
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_written_as_they_are_read() {
        for transport in [
            Transport::Unix,
            Transport::Tcp,
            Transport::Udp,
            Transport::Shm,
        ] {
            assert_eq!(
                transport.to_string().parse::<Transport>().unwrap(),
                transport
            );
        }
        assert!("carrier-pigeon".parse::<Transport>().is_err());
    }

    #[test]
    fn a_program_that_is_no_server_is_a_clear_error() {
        let launcher = Launcher {
            program: "/bin/true".into(),
            arguments: Vec::new(),
        };
        let config = ServerConfig {
            stack: "floor-blocking".into(),
            transport: Transport::Unix,
            index: 0,
            link: Duration::ZERO,
            bandwidth: None,
            folder: env::temp_dir(),
            parent: process::id(),
        };
        let error = Fleet::start(&launcher, 1, &config).unwrap_err().to_string();
        assert!(
            error.contains("server 0") && error.contains("has ended"),
            "{error}"
        );
    }
}
