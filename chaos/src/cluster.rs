//! The processes of a run: servers, clients and proxies, each at its place, one incarnation at a time.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wallaby_bench::Transport;
use wallaby_program::scratch::Scratch;

use crate::audit::Books;
use crate::child::{Child, Usage};
use crate::control::{CallRecord, Config, Entrance, Health, Losses, Role, Watch};
use crate::harm::Harm;
use crate::journal;
use crate::moment::{self, SECOND};
use crate::network::{Choice, Network};

/// What a cluster is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) transport: Transport,
    pub(crate) network: Choice,
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) watch: Watch,
    /// What proxies do before each UDP address; None: no proxies.
    pub(crate) losses: Option<Losses>,
    pub(crate) seed: u64,
    /// Which one of the director's clusters it is.
    pub(crate) lane: usize,
    /// Among processes that lie.
    pub(crate) hostile: bool,
    /// Servers limit what comes of a request.
    pub(crate) budgets: bool,
}

/// A place for a process. Servers come first, then clients.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) child: Option<Child>,
    pub(crate) incarnation: u16,
    /// When it started, what it held then, and what it held when it had rested for the first time.
    pub(crate) since: u64,
    pub(crate) fresh: Usage,
    pub(crate) fresh_tasks: u64,
    pub(crate) rested: Option<Usage>,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) seats: Vec<Seat>,
    pub(crate) servers: usize,
    proxies: Vec<Child>,
    folder: Scratch,
}

impl Cluster {
    pub(crate) async fn start(settings: Settings) -> Result<Self> {
        let folder = Scratch::create_in(&scratch(), "wallaby-chaos")?;
        let hosts = settings.servers + settings.clients;
        let network = Network::new(
            settings.network,
            settings.transport,
            hosts,
            settings.lane,
            folder.path(),
        )
        .await?;
        let mut cluster = Self {
            network,
            seats: Vec::new(),
            servers: settings.servers,
            proxies: Vec::new(),
            folder,
        };
        let addresses: Vec<String> = (0..settings.servers)
            .map(|host| cluster.network.address(host))
            .collect();
        for host in 0..hosts {
            cluster.seat(host, settings, addresses.clone()).await?;
        }
        Ok(cluster)
    }

    /// Starts the process of a host, and its proxy before it.
    async fn seat(&mut self, host: usize, settings: Settings, servers: Vec<String>) -> Result<()> {
        let is_server = host < self.servers;
        let number = host - if is_server { 0 } else { self.servers };
        // Every other client does not listen.
        let listens = is_server || number.is_multiple_of(2);
        let losses = settings.losses.filter(|_| listens);
        let (mut entrance, front) = self.network.entrance(host, losses.is_some());
        if settings.hostile && is_server {
            entrance.door = self.network.door(host);
        }
        let mut config = Config {
            parent: std::process::id(),
            name: format!("proxy {host}"),
            servers,
            hostile: settings.hostile.then(|| self.liar(settings)),
            budgets: settings.budgets,
            watch: settings.watch,
            role: self.role(host, number, listens.then_some(entrance))?,
        };
        let role = config.role.clone();
        if let Some((losses, front)) = losses.zip(front) {
            config.role = Role::Proxy {
                front: front.front,
                target: front.target,
                losses,
                seed: settings.seed ^ (host as u64 + 1).wrapping_mul(0xa076_1d64_78bd_642f),
            };
            self.proxies
                .push(Child::start(&self.network, host, &config).await?);
            config.role = role;
        }
        config.name = match is_server {
            true => format!("server {number}"),
            false => format!("client {number}"),
        };
        self.seats.push(Seat {
            name: config.name.clone(),
            config,
            child: None,
            incarnation: 0,
            since: 0,
            fresh: Usage::default(),
            fresh_tasks: 0,
            rested: None,
        });
        self.begin(host).await
    }

    /// Where the server is reached that lies.
    pub(crate) fn liar(&self, settings: Settings) -> String {
        let host = settings.servers + settings.clients;
        let door = self.network.door(host);
        door.unwrap_or_else(|| self.network.address(host))
    }

    fn role(&self, host: usize, number: usize, entrance: Option<Entrance>) -> Result<Role> {
        let books = self.books(host);
        if host >= self.servers {
            return Ok(Role::Client {
                number: u8::try_from(number)?,
                incarnation: 0,
                entrance,
                log: books,
            });
        }
        Ok(Role::Server {
            entrance: entrance.context("servers listen")?,
            journal: books,
        })
    }

    /// Where the process of a seat writes down what it does.
    pub(crate) fn books(&self, seat: usize) -> PathBuf {
        self.folder.path().join(format!("{seat}.log"))
    }

    /// All that was written down since this was last asked. Nobody may have a call.
    pub(crate) fn take_books(&self, harms: Vec<Harm>, calm: u64) -> Result<Books> {
        let mut books = Books {
            harms,
            calm,
            first_client: self.servers,
            ..Books::default()
        };
        for server in 0..self.servers {
            books.journals.push(journal::take(&self.books(server))?);
            books.addresses.push(self.network.address(server));
        }
        for client in self.clients() {
            for line in journal::take_lines(&self.books(client))? {
                let call: CallRecord = serde_json::from_str(&line)
                    .with_context(|| format!("a client wrote {line:?}"))?;
                books.calls.push((client, call));
            }
            if let Role::Client { entrance: None, .. } = &self.seats[client].config.role {
                books.relayed.push(client);
            }
        }
        Ok(books)
    }

    /// Starts the process of a seat; it is ready when this returns.
    pub(crate) async fn begin(&mut self, index: usize) -> Result<()> {
        let seat = &mut self.seats[index];
        if let Role::Client { incarnation, .. } = &mut seat.config.role {
            *incarnation = seat.incarnation;
        }
        let mut child = Child::start(&self.network, index, &seat.config).await?;
        seat.fresh = child.usage()?;
        seat.fresh_tasks = child.health().await?.tasks;
        seat.since = moment::now();
        seat.rested = None;
        seat.child = Some(child);
        Ok(())
    }

    /// Kills the process of a seat.
    pub(crate) async fn kill(&mut self, index: usize) -> Result<()> {
        let seat = &mut self.seats[index];
        seat.incarnation += 1;
        match seat.child.take() {
            Some(mut child) => child.kill().await,
            None => Ok(()),
        }
    }

    pub(crate) fn child(&mut self, index: usize) -> Result<&mut Child> {
        let seat = &mut self.seats[index];
        let gone = || format!("{} is not running", seat.name);
        seat.child.as_mut().with_context(gone)
    }

    pub(crate) fn clients(&self) -> std::ops::Range<usize> {
        self.servers..self.seats.len()
    }

    /// What the proxies did to datagrams, all together.
    pub(crate) async fn proxied(&mut self) -> Result<std::collections::BTreeMap<String, u64>> {
        let mut sum = std::collections::BTreeMap::new();
        for proxy in &mut self.proxies {
            for (what, count) in proxy.health().await?.counted {
                *sum.entry(what).or_default() += count;
            }
        }
        Ok(sum)
    }

    /// Whoever has ended without being told to.
    pub(crate) fn lost(&mut self) -> Result<Option<String>> {
        let seats = self.seats.iter_mut().filter_map(|seat| seat.child.as_mut());
        for child in seats.chain(&mut self.proxies) {
            if let Some(words) = child.ended()? {
                return Ok(Some(words));
            }
        }
        Ok(None)
    }

    /// Waits until nothing is left of calls anywhere, then compares what each process holds with what it may hold.
    /// What is wrong comes back as sentences.
    pub(crate) async fn rest(&mut self, within: Duration) -> Result<Vec<String>> {
        self.settle(within, true).await
    }

    /// The same; what is remembered of calls is no matter if they were to take longer than that.
    pub(crate) async fn settle(&mut self, within: Duration, idle: bool) -> Result<Vec<String>> {
        let end = moment::now() + within.as_nanos() as u64;
        let most = self.seats.len() as u64;
        let mut wrong = Vec::new();
        let descriptors = self.network.descriptors();
        for seat in &mut self.seats {
            let Some(child) = &mut seat.child else {
                bail!("{} is not running", seat.name);
            };
            let health = loop {
                let health = child.health().await?;
                let rests = health.is_idle() || !idle && health.is_at_rest();
                if rests || moment::now() >= end {
                    break health;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            let usage = child.usage()?;
            wrong.extend(seat.leaks(&health, usage, most, descriptors, idle));
            // The first rest after some work is what later ones are compared with.
            if seat.rested.is_none() && moment::now() - seat.since > 5 * SECOND {
                seat.rested = Some(usage);
            }
        }
        Ok(wrong)
    }
}

impl Seat {
    /// What this process holds too much of, when nothing runs.
    fn leaks(
        &self,
        health: &Health,
        usage: Usage,
        seats: u64,
        descriptors: u64,
        idle: bool,
    ) -> Vec<String> {
        let name = &self.name;
        let mut wrong = Vec::new();
        if !health.is_at_rest() || idle && !health.is_idle() {
            wrong.push(format!("{name} still has something of calls: {health:?}"));
        }
        if health.panics > 0 {
            wrong.push(format!("handlers of {name} panicked: {}", health.panics));
        }
        // Connections may stay open: to each other process one that it made, and one that the other made.
        let fresh = self.fresh;
        let mut limit = |what: &str, has: u64, may: u64| {
            if has > may {
                wrong.push(format!(
                    "{name} has {has} {what}, {may} at most were expected"
                ));
            }
        };
        let connected = 2 * seats * descriptors;
        limit("file descriptors", usage.fds, fresh.fds + connected + 8);
        // One for timers, and two that read the input: tokio begins another one if the last has not quite ended.
        limit("threads", usage.threads, fresh.threads + 3);
        if idle {
            limit("tasks", health.tasks, self.fresh_tasks + 4 * seats + 8);
        }
        // An answer and some pongs for each request: what runs in a circle shows at once.
        let counted = |what| health.counted.get(what).copied().unwrap_or(0);
        let may = 1000 + 50 * counted("requests");
        limit("messages passed on", counted("relayed"), may);
        if let Some(rested) = self.rested {
            let may = rested.rss_kib + rested.rss_kib / 2 + MEMORY_SLACK_KIB;
            limit("KiB of memory", usage.rss_kib, may);
        }
        wrong
    }
}

/// What allocators keep of a process that has had large messages.
const MEMORY_SLACK_KIB: u64 = 32 << 10;

/// Where folders for journals and sockets are made: in memory if there is such a place. On a disk that is busy with other
/// work a write can take seconds, and a server that writes its journal is silent for as long.
fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    }
}
