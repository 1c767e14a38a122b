//! The stacks against one another on the same patterns of messages.

use crate::fleet::{Fleet, Launcher, MOST_SERVERS, ServerConfig, Transport, folder};
use crate::floor::LARGEST_PAYLOAD;
use crate::harness::{Measurement, Progress, Schedule, System, Traffic, measure};
use crate::meter::Spent;
use crate::pattern::{Pattern, Routes};
use crate::plan::{can_be_laid_out, least_payload};
use crate::process::Pinned;
use crate::row::{Parts, Row, Split};
use crate::stack::{Own, Stack};
use crate::workload::Workload;
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::process;
use std::rc::Rc;
use std::time::Duration;

/// What all comparisons have in common.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The transports, compared in one run.
    pub transports: Vec<Transport>,
    /// The stacks, compared in one run. A stack is left out where it can't do what is measured.
    pub stacks: Vec<&'static dyn Stack>,
    /// Only systems with these names, `wallaby-dpc` for one; none: all of the stacks.
    pub only: Vec<String>,
    /// The processor for the client and all servers; none: the operating system places them.
    pub pin: Option<u32>,
    /// The processor for all servers; none: where `pin` says. Stacks that keep their processors busy are only measured where
    /// the client has one and the only server has another.
    pub server_pin: Option<u32>,
    /// Emulated one-way delay of each message.
    pub link: Duration,
    /// Bytes of payload in each message.
    pub payload: usize,
    /// Servers to choose from for each request; none: for each operation two more than it needs.
    pub servers: Option<usize>,
    /// Rounds; each system has one turn in each.
    pub rounds: u32,
    /// About how long a turn takes.
    pub turn: Duration,
    /// The fewest operations in a turn, however long they take.
    pub least: u64,
    /// Of all random choices.
    pub seed: u64,
    /// How servers are started; none: this program with the command `bench-server`.
    pub launcher: Option<Launcher>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            transports: vec![Transport::Unix, Transport::Tcp],
            stacks: Own::ALL.to_vec(),
            only: Vec::new(),
            pin: None,
            server_pin: None,
            link: Duration::ZERO,
            payload: 100,
            servers: None,
            rounds: 20,
            turn: Duration::from_millis(40),
            least: 10,
            seed: 1,
            launcher: None,
        }
    }
}

/// Measures every pattern on every stack over every transport, interleaved.
pub(crate) fn compare(
    patterns: &[Pattern],
    options: &RunOptions,
    progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Row>> {
    let servers = check(patterns, options)?;
    // Before anything is started, since threads and processes run where their parent does.
    let _pinned = options.pin.map(Pinned::to).transpose()?;
    let launcher = match &options.launcher {
        Some(launcher) => launcher.clone(),
        None => Launcher::this_program()?,
    };
    let wanted =
        |name: &&str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut systems: Vec<Box<dyn System>> = Vec::new();
    let mut subjects = Vec::new();
    let mut folders = Vec::new();
    for &transport in &options.transports {
        let folder = folder()?;
        for &stack in &options.stacks {
            let crowded = stack.keeps_busy() && !are_apart(options, servers);
            if crowded || !options.link.is_zero() && !stack.emulates_links(transport) {
                continue;
            }
            let named = patterns.iter().filter_map(|&pattern| {
                let system = stack.system(transport, pattern, options.payload);
                Some((pattern, system.filter(&wanted)?))
            });
            let named: Vec<(Pattern, &str)> = named.collect();
            if named.is_empty() {
                continue;
            }
            let config = ServerConfig {
                stack: stack.name().into(),
                transport,
                index: 0,
                link: options.link,
                bandwidth: None,
                folder: folder.path().to_owned(),
                parent: process::id(),
            };
            let client = stack
                .prepare(&config)
                .and_then(|()| {
                    let _elsewhere = options.server_pin.map(Pinned::to).transpose()?;
                    Fleet::start(&launcher, servers, &config)
                })
                .and_then(|fleet| stack.connect(fleet, &config, options.payload))
                .with_context(|| {
                    format!(
                        "can't start the servers of {} over {transport}",
                        stack.name()
                    )
                })?;
            let client = Rc::new(RefCell::new(client));
            for (pattern, system) in named {
                let seed = options.seed ^ (systems.len() as u64) << 32;
                subjects.push((system, transport, pattern));
                systems.push(Box::new(Workload {
                    system,
                    transport,
                    pattern,
                    link: options.link,
                    routes: Routes::new(u8::try_from(pool(pattern, options, servers))?, seed),
                    client: Rc::clone(&client),
                }));
            }
        }
        folders.push(folder);
    }
    ensure!(
        !systems.is_empty(),
        "nothing to measure: no stack can do that, or none has a system of that name"
    );
    let schedule = Schedule {
        rounds: options.rounds,
        turn: options.turn,
        least: options.least,
        seed: options.seed,
    };
    let results = measure(&mut systems, &schedule, progress)?;
    let rows = subjects
        .into_iter()
        .zip(results)
        .map(|((system, transport, pattern), result)| {
            row(system, transport, pattern, options, &result)
        });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by_key(|row| row.n); // stable: within one n as they were asked for
    Ok(rows)
}

/// Whether the client and the server each have a processor of their own.
fn are_apart(options: &RunOptions, servers: usize) -> bool {
    let placed = options.pin.zip(options.server_pin);
    servers == 1 && placed.is_some_and(|(client, server)| client != server)
}

/// Refuses what can't be measured; yields how many servers there are to be.
pub(crate) fn check(patterns: &[Pattern], options: &RunOptions) -> Result<usize> {
    let wished = patterns.iter().map(|pattern| pattern.servers()).max();
    let needed = patterns.iter().map(|pattern| pattern.least_servers());
    let needed = needed.max().unwrap_or(0);
    ensure!(
        needed > 0,
        "nothing to measure: no numbers of servers were given"
    );
    ensure!(
        patterns.iter().all(|pattern| pattern.n() > 0),
        "0 can't be measured"
    );
    ensure!(
        needed <= MOST_SERVERS,
        "{needed} servers are needed, {MOST_SERVERS} are possible"
    );
    let servers = options
        .servers
        .unwrap_or_else(|| MOST_SERVERS.min(wished.unwrap_or(0) + SPARE_SERVERS));
    ensure!(
        servers >= needed,
        "{needed} servers are needed to choose from, not {servers}"
    );
    ensure!(
        servers <= MOST_SERVERS,
        "{servers} servers are too many, {MOST_SERVERS} are possible"
    );
    ensure!(
        patterns.iter().copied().all(can_be_laid_out),
        "more servers than a message can name"
    );
    let least = patterns.iter().copied().map(least_payload).max();
    let least = least.unwrap_or_default();
    let payload = options.payload;
    ensure!(
        (least..=LARGEST_PAYLOAD).contains(&payload),
        "a payload of {payload} bytes is not possible: it takes {least} to {LARGEST_PAYLOAD} with {needed} servers"
    );
    ensure!(options.rounds > 0, "at least one round is needed");
    ensure!(
        options.link <= LONGEST_LINK,
        "a link of more than {} s is not possible",
        LONGEST_LINK.as_secs()
    );
    Ok(servers)
}

/// Out of how many of all servers those of an operation are drawn.
fn pool(pattern: Pattern, options: &RunOptions, servers: usize) -> usize {
    match options.servers {
        Some(_) => servers,
        None => servers.min(pattern.servers() + SPARE_SERVERS),
    }
}

fn row(
    system: &str,
    transport: Transport,
    pattern: Pattern,
    options: &RunOptions,
    result: &Measurement,
) -> Row {
    let per_operation = |count: fn(&Traffic) -> u64| {
        let count = result.traffic.as_ref().map(count)?;
        Some(round(count as f64 / result.operations.max(1) as f64))
    };
    Row {
        bench: pattern.bench().into(),
        system: system.into(),
        transport: transport.to_string(),
        n: pattern.n() as u64,
        payload: options.payload as u64,
        link_us: u64::try_from(options.link.as_micros()).unwrap_or(u64::MAX),
        pin: options.pin,
        link_mbit: None,
        server_pin: options.server_pin,
        rounds: u64::from(result.rounds),
        p50_us: micros(result.latencies.quantile(0.5)),
        p99_us: micros(result.latencies.quantile(0.99)),
        cpu_us_per_op: micros(result.cpu_per_operation),
        client_cpu_us: Some(micros(result.client_cpu_per_operation)),
        split: split(result),
        ops_per_s: matches!(pattern, Pattern::Concurrent { .. })
            .then(|| round(result.operations as f64 / result.elapsed.as_secs_f64())),
        messages: per_operation(|traffic| traffic.messages),
        client_messages: per_operation(|traffic| traffic.client_messages),
        bytes: per_operation(|traffic| traffic.bytes),
        ..Row::default()
    }
}

/// Whose the processor time is, if a meter has run.
fn split(result: &Measurement) -> Option<Split> {
    let traffic = result.traffic.as_ref()?;
    let (client, servers) = (traffic.client_spent, traffic.servers_spent);
    if client.clock == 0 {
        return None;
    }
    let operations = result.operations.max(1) as f64;
    let each = |nanoseconds: u64| nanoseconds as f64 / 1_000.0 / operations;
    let parts = |all: Duration, spent: Spent| {
        let known = spent.application + spent.interface + spent.clock;
        let all = all.as_nanos() as f64 / 1_000.0;
        Parts {
            protocol_us: round((all - each(known)).max(0.0)),
            interface_us: round(each(spent.interface)),
            application_us: round(each(spent.application)),
        }
    };
    let of_servers = result
        .cpu_per_operation
        .saturating_sub(result.client_cpu_per_operation);
    Some(Split {
        client: parts(result.client_cpu_per_operation, client),
        servers: parts(of_servers, servers),
        clock_us: round(each(client.clock + servers.clock)),
    })
}

pub(crate) fn micros(duration: Duration) -> f64 {
    round(duration.as_nanos() as f64 / 1_000.0)
}

/// To hundredths: more digits only say that nobody thought about them.
pub(crate) fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// So that an operation does not always take the same servers.
const SPARE_SERVERS: usize = 2;
const LONGEST_LINK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Shape;

    #[test]
    fn servers_are_drawn_out_of_two_more_than_an_operation_needs() {
        let mut options = RunOptions::default();
        let patterns = [1, 10].map(|servers| Pattern::Multihop(Shape::Chain { servers }));
        let servers = check(&patterns, &options).unwrap();
        let pools = |options: &RunOptions| patterns.map(|one| pool(one, options, servers));
        assert_eq!((servers, pools(&options)), (12, [3, 12]));
        options.servers = Some(12);
        assert_eq!(pools(&options), [12, 12]);
    }

    fn refused(patterns: &[Pattern], change: impl FnOnce(&mut RunOptions)) -> String {
        let mut options = RunOptions::default();
        change(&mut options);
        check(patterns, &options).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let chain = |servers| Pattern::Multihop(Shape::Chain { servers });
        let ten = [chain(10)];
        assert!(check(&ten, &RunOptions::default()).is_ok());
        assert!(refused(&[], |_| ()).contains("nothing to measure"));
        assert!(refused(&[chain(0)], |_| ()).contains("nothing to measure"));
        assert!(refused(&[chain(65)], |_| ()).contains("it takes 138 to 1048576"));
        assert!(
            refused(&ten, |options| options.servers = Some(1)).contains("2 servers are needed")
        );
        assert!(refused(&ten, |options| options.servers = Some(99)).contains("too many"));
        assert!(refused(&ten, |options| options.payload = 19).contains("it takes 28 to 1048576"));
        assert!(refused(&ten, |options| options.link = Duration::from_secs(60)).contains("link"));
        assert!(refused(&ten, |options| options.rounds = 0).contains("round"));
    }
}
