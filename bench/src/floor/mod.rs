//! Floors: the same patterns of messages by bare loops on raw sockets. No framework can be faster than these.
//!
//! A message is a length (on streams) and the payload, which names the servers that are still to be visited. All
//! connections are made before anything is measured. [`blocking`] has a thread for each connection, so that receiving
//! a message costs one system call and nothing has to be polled; [`epoll`] has one thread that waits for all of them;
//! [`on_tokio`] has one thread and tokio. What they share is in [`server`] and [`caller`], and here what all clients do.
//! [`memory`] is on no sockets at all.

pub(crate) mod blocking;
mod caller;
pub(crate) mod epoll;
mod memory;
mod message;
pub(crate) mod on_tokio;
mod server;
pub(crate) mod socket;

use crate::fleet::{Control, Fleet, Peers, ServerConfig, Transport};
use crate::harness::{Latencies, Traffic};
use crate::patience::Lost;
use crate::pattern::{Pattern, Routes, Shape};
use crate::plan::{CLIENT, PREFIX, Plan, operation};
use crate::stack::Client;
use anyhow::{Context, Result, bail, ensure};
pub(crate) use memory::Waiting;
use message::Frames;
use socket::{Listener, Stream};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use wallaby_link::sleep_until;

/// On which sockets the loops are, or how they wait for shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loops {
    Blocking,
    Epoll,
    Tokio,
    Memory(memory::Waiting),
}

/// Runs a server until its client has gone.
pub(crate) fn serve(loops: Loops, config: &ServerConfig) -> Result<()> {
    if let Loops::Memory(waiting) = loops {
        return serve_memory(waiting, config);
    }
    match config.transport {
        Transport::Udp => serve_datagrams(loops, config),
        Transport::Tcp | Transport::Unix | Transport::Shm => serve_streams(loops, config),
    }
}

fn serve_memory(waiting: memory::Waiting, config: &ServerConfig) -> Result<()> {
    let mut control = Control;
    let peers = control.exchange_addresses(&config.index.to_string())?;
    let path = peers
        .client
        .context("the client does not say where the memory is")?;
    memory::serve(&path, config.index, waiting, config.link)?;
    control.attend(Traffic::default)
}

fn serve_streams(loops: Loops, config: &ServerConfig) -> Result<()> {
    let listener = Listener::bind(config)?;
    let mut control = Control;
    let peers = control.exchange_addresses(&listener.address()?)?;
    let outlets = connect_to_others(config, &peers)?;
    match loops {
        Loops::Tokio => on_tokio::serve_streams(listener, outlets, config.link)?,
        Loops::Blocking => blocking::serve_streams(listener, outlets, config.link)?,
        Loops::Epoll => epoll::serve_streams(listener, outlets, config.link)?,
        Loops::Memory(_) => bail!("these loops are on no sockets"),
    }
    control.attend(Traffic::default)
}

fn serve_datagrams(loops: Loops, config: &ServerConfig) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut control = Control;
    let peers = control.exchange_addresses(&socket.local_addr()?.to_string())?;
    let directory = Directory::new(&peers)?;
    match loops {
        Loops::Tokio => on_tokio::serve_datagrams(socket, directory, config.link)?,
        Loops::Blocking => blocking::serve_datagrams(socket, directory, config.link)?,
        Loops::Epoll => epoll::serve_datagrams(socket, directory, config.link)?,
        Loops::Memory(_) => bail!("these loops are on no sockets"),
    }
    control.attend(Traffic::default)
}

/// A connection to every other server, in their order; none to oneself.
fn connect_to_others(config: &ServerConfig, peers: &Peers) -> Result<Vec<Option<Stream>>> {
    let connect = |(index, address): (usize, &String)| {
        let other = index != usize::from(config.index);
        other
            .then(|| Stream::connect(config.transport, address, config.index))
            .transpose()
    };
    peers.servers.iter().enumerate().map(connect).collect()
}

/// Where everybody is, for datagrams.
#[derive(Debug)]
pub(crate) struct Directory {
    servers: Vec<SocketAddr>,
    client: Option<SocketAddr>,
}

impl Directory {
    fn new(peers: &Peers) -> Result<Self> {
        let servers: Result<_, _> = peers
            .servers
            .iter()
            .map(|address| address.parse())
            .collect();
        let client = peers.client.as_deref().map(str::parse).transpose()?;
        Ok(Self {
            servers: servers?,
            client,
        })
    }

    pub(crate) fn of(&self, target: u8) -> Result<SocketAddr> {
        let address = match target {
            CLIENT => self.client,
            server => self.servers.get(usize::from(server)).copied(),
        };
        address.with_context(|| format!("no address of {target}"))
    }
}

/// When a message that is handed over now leaves on a link with this delay; none: at once.
pub(crate) fn departure(link: Duration) -> Option<Instant> {
    (!link.is_zero()).then(|| Instant::now() + link)
}

/// Waits for the departure. In a floor nothing else is to be done meanwhile, so even an asynchronous loop may block.
pub(crate) fn await_departure(departure: Option<Instant>) {
    if let Some(departure) = departure {
        sleep_until(departure);
    }
}

/// The client's side of a floor.
pub(crate) struct Floor {
    fleet: Fleet,
    side: Side,
    plan: Plan,
    operation: u64,
    pool: u8,
    /// Of a message, prefix included.
    size: usize,
    /// The loops send what the pattern says and nothing else.
    sent: Traffic,
}

enum Side {
    Blocking(blocking::Caller),
    Epoll(epoll::Caller),
    Tokio(on_tokio::Caller),
    Memory(memory::Caller),
}

impl Floor {
    pub(crate) fn connect(
        loops: Loops,
        mut fleet: Fleet,
        config: &ServerConfig,
        payload: usize,
    ) -> Result<Self> {
        let servers = fleet.addresses().len();
        let side = if let Loops::Memory(waiting) = loops {
            let (caller, path) = memory::Caller::new(servers, payload, waiting, config.link)?;
            fleet.connect(Some(path))?;
            Side::Memory(caller)
        } else if config.transport == Transport::Udp {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            let peers = Peers {
                servers: fleet.addresses().to_vec(),
                client: Some(socket.local_addr()?.to_string()),
            };
            fleet.connect(peers.client.clone())?;
            Side::with_datagrams(loops, config, socket, Directory::new(&peers)?)?
        } else {
            fleet.connect(None)?;
            let connect = |address: &String| Stream::connect(config.transport, address, CLIENT);
            let streams: Result<_> = fleet.addresses().iter().map(connect).collect();
            Side::with_streams(loops, config, streams?, payload)?
        };
        Ok(Self {
            pool: u8::try_from(servers)?,
            fleet,
            side,
            plan: Plan::new(payload),
            operation: 0,
            size: match config.transport {
                Transport::Udp | Transport::Shm => payload,
                Transport::Tcp | Transport::Unix => PREFIX + payload,
            },
            sent: Traffic::default(),
        })
    }
}

impl Side {
    fn with_streams(
        loops: Loops,
        config: &ServerConfig,
        streams: Vec<Stream>,
        payload: usize,
    ) -> Result<Self> {
        Ok(match loops {
            Loops::Tokio => Self::Tokio(on_tokio::Caller::with_streams(
                streams,
                payload,
                config.link,
            )?),
            Loops::Blocking => Self::Blocking(blocking::Caller::with_streams(
                streams,
                payload,
                config.link,
            )),
            Loops::Epoll => {
                Self::Epoll(epoll::Caller::with_streams(streams, payload, config.link)?)
            }
            Loops::Memory(_) => bail!("these loops are on no sockets"),
        })
    }

    fn with_datagrams(
        loops: Loops,
        config: &ServerConfig,
        socket: UdpSocket,
        directory: Directory,
    ) -> Result<Self> {
        Ok(match loops {
            Loops::Tokio => Self::Tokio(on_tokio::Caller::with_datagrams(
                socket,
                directory,
                config.link,
            )?),
            Loops::Blocking => Self::Blocking(blocking::Caller::with_datagrams(
                socket,
                directory,
                config.link,
            )),
            Loops::Epoll => Self::Epoll(epoll::Caller::with_datagrams(
                socket,
                directory,
                config.link,
            )?),
            Loops::Memory(_) => bail!("these loops are on no sockets"),
        })
    }

    fn run(&mut self, limit: Duration, lost: &Lost, job: &mut dyn Iterate) -> Result<()> {
        match self {
            Self::Blocking(caller) => caller.run(limit, lost, job),
            Self::Epoll(caller) => caller.run(limit, lost, job),
            Self::Tokio(caller) => caller.run(limit, lost, job),
            Self::Memory(caller) => caller.run(limit, lost, job),
        }
    }
}

impl Client for Floor {
    fn warm_up(&mut self) -> Result<()> {
        let mut job = EveryPair {
            plan: &mut self.plan,
            operation: &mut self.operation,
            pool: self.pool,
            next: 0,
        };
        self.side
            .run(Duration::from_secs(60), self.fleet.lost(), &mut job)
    }

    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let messages = operations * pattern.messages() as u64;
        self.sent.messages += messages;
        self.sent.client_messages += operations * pattern.client_messages() as u64;
        self.sent.bytes += messages * self.size as u64;
        if let Pattern::Concurrent { calls } = pattern {
            let Side::Tokio(caller) = &mut self.side else {
                bail!("these loops have one operation under way at a time");
            };
            self.operation += 1;
            self.plan.draw(pattern, routes, self.operation);
            let lost = self.fleet.lost();
            return caller.run_concurrently(limit, lost, &self.plan, calls, operations, latencies);
        }
        let job = &mut Measured {
            plan: &mut self.plan,
            operation: &mut self.operation,
            pattern,
            routes,
            left: operations,
            latencies,
            start: None,
        };
        self.side.run(limit, self.fleet.lost(), job)
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(Some(self.sent))
    }
}

/// Operations one after the other, whoever carries them out.
trait Iterate {
    /// The former operation, if there was one, is done; what is the next? None: that was all.
    fn next(&mut self) -> Option<(&Plan, u64)>;
}

/// Operations whose latencies are recorded.
struct Measured<'run> {
    plan: &'run mut Plan,
    operation: &'run mut u64,
    pattern: Pattern,
    routes: &'run mut Routes,
    left: u64,
    latencies: &'run mut Latencies,
    start: Option<Instant>,
}

impl Iterate for Measured<'_> {
    fn next(&mut self) -> Option<(&Plan, u64)> {
        if let Some(start) = self.start.take() {
            self.latencies.record(start.elapsed());
        }
        self.left = self.left.checked_sub(1)?;
        *self.operation += 1;
        self.plan.draw(self.pattern, self.routes, *self.operation);
        self.start = Some(Instant::now());
        Some((self.plan, *self.operation))
    }
}

/// A message over each connection that there is: the client's, and from each server to each.
struct EveryPair<'run> {
    plan: &'run mut Plan,
    operation: &'run mut u64,
    pool: u8,
    next: u32,
}

impl Iterate for EveryPair<'_> {
    fn next(&mut self) -> Option<(&Plan, u64)> {
        let pool = u32::from(self.pool);
        let (first, second) = (self.next / pool, self.next % pool);
        if first >= pool {
            return None;
        }
        self.next += 1;
        *self.operation += 1;
        let route = [first as u8, second as u8]; // both below the pool's size, which is a byte
        let route = if first == second {
            &route[..1]
        } else {
            &route[..]
        };
        self.plan.lay(
            Pattern::Multihop(Shape::Chain {
                servers: route.len(),
            }),
            route,
            *self.operation,
        );
        Some((self.plan, *self.operation))
    }
}

/// Checks that an answer belongs to the operation that waits for it.
fn check_answer(payload: &[u8], expected: u64) -> Result<()> {
    ensure!(
        operation(payload).is_none_or(|operation| operation == expected),
        "an answer to another operation came back"
    );
    Ok(())
}

/// The payload of the next whole frame is checked; whether there was one.
fn check_frame(frames: &mut Frames, expected: u64) -> Result<bool> {
    let Some(frame) = frames.take()? else {
        return Ok(false);
    };
    check_answer(&frame[PREFIX..], expected)?;
    Ok(true)
}

/// The largest payload that servers have room for, and the largest of a datagram.
pub(crate) const LARGEST_PAYLOAD: usize = 1 << 20;
pub(crate) const LARGEST_DATAGRAM: usize = 65_507;
