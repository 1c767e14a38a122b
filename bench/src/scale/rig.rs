//! A server's process and what its client needs: where all systems of this benchmark stand.

use super::server::{PAUSES, STACK};
use crate::fleet::{Fleet, Launcher, ServerConfig, Transport, folder};
use crate::harness::Traffic;
use crate::on_wallaby::{self, addresses, runtime};
use crate::patience::block_on;
use crate::process::{release_memory, resident};
use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;
use wallaby::{Address, Client, Endpoint, ExecutorConfig, Limits, Schedule};
use wallaby_program::scratch::Scratch;

/// What all systems over one transport have in common.
pub(super) struct Place<'launcher> {
    pub(super) launcher: &'launcher Launcher,
    pub(super) transport: Transport,
    pub(super) payload: usize,
    pub(super) ping: Duration,
}

/// A server, connected with nobody yet, and the runtime of its client.
pub(super) struct Rig {
    pub(super) fleet: Fleet,
    pub(super) runtime: Runtime,
    pub(super) server: Address,
    ping: Duration,
    // Its sockets go last.
    _folder: Scratch,
}

impl Rig {
    pub(super) fn start(place: &Place<'_>) -> Result<Self> {
        let folder = folder()?;
        let mut fleet = only_server(place, STACK, &folder)?;
        fleet.connect(None)?;
        let server = addresses(fleet.addresses())?.swap_remove(0);
        Ok(Self {
            fleet,
            runtime: runtime()?,
            server,
            ping: place.ping,
            _folder: folder,
        })
    }

    /// An endpoint of the client, which does not listen.
    pub(super) fn endpoint(&self) -> Result<Endpoint> {
        let builder = limited(Endpoint::builder()).ping(self.ping, self.ping * 10);
        Ok(self.runtime.block_on(builder.bind())?)
    }

    pub(super) fn client(&self, endpoint: &Endpoint) -> Client {
        Client::new(endpoint, self.server.clone())
    }

    /// Runs work in a task of its own, as programs do it.
    pub(super) fn run<T, W>(&self, limit: Duration, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let task = self.runtime.spawn(work);
        block_on(&self.runtime, limit, self.fleet.lost(), async {
            task.await?
        })
    }

    /// What is resident now, of this process and of the server.
    pub(super) fn memory(&self) -> Result<Memory> {
        Memory::now(&self.fleet)
    }

    /// The server's longest pause, in microseconds.
    pub(super) fn server_pause(&self, client: &Client) -> Result<f64> {
        let client = client.clone();
        let answer = self.run(PATIENCE, async move {
            Ok(client.call(&PAUSES, (Bytes::new(),)).await?)
        })?;
        let longest = answer.first_chunk().context("an answer without a time")?;
        let longest = Duration::from_nanos(u64::from_le_bytes(*longest));
        Ok(crate::comparison::micros(longest))
    }

    /// What the server and these endpoints have sent.
    pub(super) fn traffic(&mut self, endpoints: &[Endpoint]) -> Result<Option<Traffic>> {
        let mut sum = self.fleet.traffic()?;
        for endpoint in endpoints {
            let own = endpoint.metrics();
            sum.messages += own.messages_sent;
            sum.bytes += own.bytes_sent;
            sum.client_messages += own.messages_sent + own.messages_received;
        }
        Ok(Some(sum))
    }
}

/// The process of the one server, which knows by `stack` what it is.
pub(super) fn only_server(place: &Place<'_>, stack: &str, folder: &Scratch) -> Result<Fleet> {
    let config = ServerConfig {
        stack: stack.into(),
        transport: place.transport,
        index: 0,
        link: Duration::ZERO,
        bandwidth: None,
        folder: folder.path().to_owned(),
        parent: std::process::id(),
    };
    Fleet::start(place.launcher, 1, &config)
}

/// Bytes that are resident.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) client: u64,
    pub(super) server: u64,
}

impl Memory {
    /// Of this process and of the server, when nothing that was freed is kept.
    pub(super) fn now(fleet: &Fleet) -> Result<Self> {
        release_memory();
        let server = fleet.processes();
        let server = server.first().context("there is no server")?;
        Ok(Self {
            client: resident(std::process::id())?,
            server: resident(*server)?,
        })
    }

    /// What each of `n` units has added to an earlier state, at the client and at the server. Few of them say nothing:
    /// memory is resident in pages, and taken in pieces of many.
    pub(super) fn since(self, before: Self, n: usize) -> (Option<f64>, Option<f64>) {
        let each = |after: u64, before: u64| {
            let grown = after.saturating_sub(before) as f64 / n.max(1) as f64;
            (n >= ENOUGH).then(|| grown.round())
        };
        (
            each(self.client, before.client),
            each(self.server, before.server),
        )
    }
}

/// The server's endpoint.
pub(super) fn builder(config: &ServerConfig) -> Result<wallaby::Builder> {
    Ok(limited(on_wallaby::builder(config, "server")?))
}

/// It takes as many of everything as this benchmark asks for.
fn limited(builder: wallaby::Builder) -> wallaby::Builder {
    let mut limits = Limits::default();
    limits.calls = MOST;
    limits.connections = MOST;
    let executor = ExecutorConfig {
        concurrency: MOST,
        queue: MOST,
        schedule: Schedule::Fifo,
    };
    builder
        .limits(limits)
        .executor(executor)
        .remember(MOST, 16 << 20)
        .default_deadline(LIFETIME)
}

/// A message that says how many like it are to be held.
pub(super) fn message(hold: usize, payload: usize) -> Bytes {
    let mut message = BytesMut::with_capacity(payload);
    message.put_u64_le(hold as u64);
    message.resize(payload, 0x77);
    message.freeze()
}

/// More than is ever asked for.
const MOST: usize = 8_000_000;
/// Calls outlive the run.
const LIFETIME: Duration = Duration::from_secs(6 * 3_600);
/// Fewer units than this are too few to measure their memory.
const ENOUGH: usize = 5_000;
/// Whatever takes longer is given up.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
