//! The floor of many connections: as many sockets, over which tokio tasks echo messages and do nothing else.
//!
//! What it costs more with many of them is what the system's sockets and the runtime's registrations no longer find in the
//! caches; no framework can have less.

use super::Many;
use super::pauses::Pauses;
use super::rig::{Memory, PATIENCE, Place, only_server};
use crate::comparison::micros;
use crate::fleet::{Control, Fleet, ServerConfig, Transport, folder};
use crate::harness::{Latencies, System, Traffic};
use crate::on_wallaby::runtime;
use crate::patience::block_on;
use crate::row::Scale;
use anyhow::{Context, Result, bail, ensure};
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use wallaby_program::scratch::Scratch;

/// The name by which the server's process knows what it is.
pub(crate) const STACK: &str = "floor-scale";

/// Runs a server until its client has gone.
pub(crate) fn serve(config: &ServerConfig) -> Result<()> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let mut control = Control;
    match config.transport {
        Transport::Tcp => {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            control.exchange_addresses(&listener.local_addr()?.to_string())?;
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            runtime.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    // Where it can't be set it is only slower.
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(echo(stream));
                }
            });
        }
        Transport::Unix => {
            let path = config.folder.join("floor");
            let listener = UnixListener::bind(&path)?;
            control.exchange_addresses(&path.display().to_string())?;
            runtime.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(echo(stream));
                }
            });
        }
        Transport::Udp | Transport::Shm => bail!("there is no such floor"),
    }
    let attending = thread::spawn(move || control.attend(Traffic::default));
    runtime.block_on(async {
        let waiting = tokio::task::spawn_blocking(move || attending.join());
        match waiting.await? {
            Ok(ended) => ended,
            Err(_) => bail!("the thread that reads instructions panicked"),
        }
    })
}

/// Sends back what comes until nothing does.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    let mut buffer = [0; 512];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

/// See the module.
pub(super) struct Sockets {
    fleet: Fleet,
    runtime: Runtime,
    caller: Caller,
    /// Before there was a socket, and when all were connected.
    memory: [Memory; 2],
    sent: u64,
    payload: usize,
    // Its socket goes last.
    _folder: Scratch,
}

impl Sockets {
    /// `None` over transports without sockets of their own for each connection.
    pub(super) fn set_up(place: &Place<'_>, n: usize) -> Result<Option<Self>> {
        if !matches!(place.transport, Transport::Tcp | Transport::Unix) {
            return Ok(None);
        }
        let folder = folder()?;
        let mut fleet = only_server(place, STACK, &folder)?;
        fleet.connect(None)?;
        let address = fleet.addresses().first().context("there is no server")?;
        let address = address.clone();
        let runtime = runtime()?;
        let before = Memory::now(&fleet)?;
        let limit = PATIENCE;
        let streams = block_on(&runtime, limit, fleet.lost(), async {
            let mut streams = Vec::with_capacity(n);
            for _ in 0..n {
                streams.push(Stream::connect(place.transport, &address).await?);
            }
            Ok(streams)
        })?;
        let mut caller = Caller {
            streams,
            message: vec![0x77; place.payload],
            answer: vec![0; place.payload],
            next: 0,
            pauses: Pauses::new()?,
        };
        block_on(&runtime, limit, fleet.lost(), caller.turn(n as u64))?;
        let connected = Memory::now(&fleet)?;
        Ok(Some(Self {
            fleet,
            runtime,
            caller,
            memory: [before, connected],
            sent: 0,
            payload: place.payload,
            _folder: folder,
        }))
    }
}

impl System for Sockets {
    fn name(&self) -> String {
        format!("{} sockets", self.caller.streams.len())
    }

    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        let turn = self.caller.turn(operations);
        let taken = block_on(&self.runtime, PATIENCE, self.fleet.lost(), turn)?;
        taken.into_iter().for_each(|each| latencies.record(each));
        self.sent += 2 * operations;
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(Some(Traffic {
            messages: self.sent,
            client_messages: self.sent,
            bytes: self.sent * self.payload as u64,
            ..Traffic::default()
        }))
    }
}

impl Many for Sockets {
    fn about(&self) -> &'static str {
        "connections"
    }

    fn system(&self) -> &'static str {
        "floor-tokio"
    }

    fn n(&self) -> usize {
        self.caller.streams.len()
    }

    fn figures(&mut self) -> Result<Scale> {
        let [before, connected] = self.memory;
        let (client_bytes, server_bytes) = connected.since(before, self.n());
        Ok(Scale {
            client_bytes,
            server_bytes,
            longest_us: Some(micros(self.caller.pauses.longest())),
            p9999_us: Some(micros(self.caller.pauses.nearly_longest())),
            ..Scale::default()
        })
    }
}

struct Caller {
    streams: Vec<Stream>,
    message: Vec<u8>,
    answer: Vec<u8>,
    next: usize,
    pauses: Pauses,
}

impl Caller {
    async fn turn(&mut self, operations: u64) -> Result<Vec<Duration>> {
        let mut taken = Vec::with_capacity(usize::try_from(operations)?);
        self.pauses.skip()?;
        for _ in 0..operations {
            let stream = &mut self.streams[self.next];
            let start = Instant::now();
            stream.exchange(&self.message, &mut self.answer).await?;
            ensure!(self.answer == self.message, "another message was echoed");
            taken.push(start.elapsed());
            self.next = (self.next + 1) % self.streams.len();
            self.pauses.step()?;
        }
        Ok(taken)
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    async fn connect(transport: Transport, address: &str) -> Result<Self> {
        if transport == Transport::Unix {
            // One that does not wait is refused while the server has not accepted those before.
            let stream = std::os::unix::net::UnixStream::connect(address)?;
            stream.set_nonblocking(true)?;
            return Ok(Self::Unix(UnixStream::from_std(stream)?));
        }
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    async fn exchange(&mut self, message: &[u8], answer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.write_all(message).await?;
                stream.read_exact(answer).await.map(drop)
            }
            Self::Unix(stream) => {
                stream.write_all(message).await?;
                stream.read_exact(answer).await.map(drop)
            }
        }
    }
}
