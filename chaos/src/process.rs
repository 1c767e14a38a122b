//! What servers and clients have in common: an endpoint, and a director that instructs them.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use wallaby::{Address, Builder, Endpoint};

use crate::client;
use crate::control::{Announcement, Config, Entrance, Health, Instruction, Role, announce};
use crate::{hostile, proxy, server};

/// Runs one of the processes that the director starts, until the director has gone.
///
/// # Errors
/// The arguments are not the director's, or what the process met with.
pub(crate) fn run(config: &str) -> Result<()> {
    let config: Config =
        serde_json::from_str(config).context("only the director starts this command")?;
    wallaby_program::child::die_with(config.parent)?;
    // Every other server has two threads: both schedulers of tokio get their share of faults.
    let threaded = config.name.bytes().last().is_some_and(|last| last % 2 == 1);
    let mut builder = match threaded {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match &config.role {
            Role::Server { entrance, journal } => server::serve(&config, entrance, journal).await,
            Role::Client { .. } => client::attend(&config).await,
            Role::Proxy {
                front,
                target,
                losses,
                seed,
            } => proxy::pass(front, target, *losses, *seed).await,
            Role::Hostile(hostility) => hostile::attend(hostility).await,
        }
    })
}

pub(crate) fn addresses<'a>(servers: impl IntoIterator<Item = &'a String>) -> Result<Vec<Address>> {
    let parse = |server: &String| server.parse::<Address>();
    let addresses: Result<Vec<_>, _> = servers.into_iter().map(parse).collect();
    Ok(addresses?)
}

/// An endpoint as the director wants it.
pub(crate) fn builder(config: &Config, entrance: Option<&Entrance>) -> Result<Builder> {
    let watch = config.watch;
    let mut builder = Endpoint::builder()
        .ping(watch.period, watch.timeout)
        .default_deadline(watch.deadline)
        .dial_timeout(watch.timeout);
    if config.budgets {
        builder = builder.max_budgets(hostile::MOST);
    }
    if let Some(entrance) = entrance {
        builder = builder.listen(&entrance.listen);
        if let Some(door) = &entrance.door {
            builder = builder.listen(door);
        }
        if let Some(advertise) = &entrance.advertise {
            builder = builder.advertise(advertise.parse()?);
        }
    }
    Ok(builder)
}

/// The director's instructions.
pub(crate) struct Instructions(Lines<BufReader<Stdin>>);

impl Instructions {
    pub(crate) fn new() -> Self {
        Self(BufReader::new(tokio::io::stdin()).lines())
    }

    /// The next one; None when the director has gone.
    pub(crate) async fn next(&mut self) -> Result<Option<Instruction>> {
        let Some(line) = self.0.next_line().await? else {
            return Ok(None);
        };
        let instruction = serde_json::from_str(&line);
        Ok(Some(
            instruction.with_context(|| format!("{line:?} is no instruction"))?,
        ))
    }
}

/// Tells how this endpoint is whenever asked, and what was counted besides.
pub(crate) async fn attend_reports(
    endpoint: &Endpoint,
    counted: impl Fn() -> (String, u64),
) -> Result<()> {
    let mut instructions = Instructions::new();
    announce(&Announcement::Ready)?;
    while let Some(instruction) = instructions.next().await? {
        match instruction {
            Instruction::Report => {
                let mut health = health(endpoint);
                health.counted.extend([counted()]);
                announce(&Announcement::Health(health))?;
            }
            other => bail!("a server can't {other:?}"),
        }
    }
    Ok(())
}

pub(crate) fn health(endpoint: &Endpoint) -> Health {
    let metrics = endpoint.metrics();
    let remembered = endpoint.remembered();
    let wallaby::Load { running, waiting } = endpoint.load();
    let over = metrics.calls_completed + metrics.calls_failed + metrics.calls_aborted;
    let counted = [
        ("requests", metrics.requests_received),
        ("relayed", metrics.relayed),
        ("duplicate requests", metrics.requests_dropped),
        ("duplicate answers", metrics.duplicates_dropped),
        ("connections opened", metrics.connections_opened),
        ("connections ended", metrics.connections_ended),
    ];
    Health {
        tasks: tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks() as u64,
        calls: metrics.calls_started.saturating_sub(over),
        running: running as u64,
        waiting: waiting as u64,
        remembered: (remembered.requests + remembered.calls) as u64,
        kept_bytes: remembered.kept_bytes,
        panics: metrics.panics,
        node: endpoint.node().get(),
        counted: counted.map(|(name, count)| (name.to_owned(), count)).into(),
    }
}
