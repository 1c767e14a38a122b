//! What many of something cost: live calls, connections, requests in one call.
//!
//! Each number of them is a system of its own with a server's process of its own; all are set up before the first turn, and
//! then take turns. What each unit keeps of memory is read where it was set up, from what the kernel says is resident.

mod calls;
mod connections;
mod floor;
mod pauses;
mod requests;
mod rig;
mod server;

use crate::comparison::{RunOptions, micros, round};
use crate::fleet::{Launcher, ServerConfig, Transport};
use crate::harness::{Latencies, Measurement, Progress, Schedule, System, Traffic, measure};
use crate::process::{self, Pinned};
use crate::row::{Row, Scale};
use anyhow::{Context, Result, ensure};
use rig::Place;
use std::time::Duration;

/// What to measure: Wallaby, and connections on bare sockets as well. Nothing else here has calls that last.
#[derive(Clone, Debug)]
pub struct ScaleOptions {
    /// The numbers of calls that are live.
    pub calls: Vec<usize>,
    /// The numbers of connections of one server, each with a client endpoint of its own.
    pub connections: Vec<usize>,
    /// The numbers of requests in one call.
    pub requests: Vec<usize>,
    /// How often the servers of live calls are asked about them; silence counts after ten times that.
    pub ping: Duration,
    /// How.
    pub run: RunOptions,
}

impl Default for ScaleOptions {
    fn default() -> Self {
        Self {
            calls: vec![1, 1_000, 100_000, 1_000_000],
            connections: vec![1, 100, 10_000],
            requests: vec![100, 1_000, 10_000],
            ping: Duration::from_secs(60),
            run: RunOptions {
                transports: vec![Transport::Unix],
                turn: Duration::from_millis(200),
                ..RunOptions::default()
            },
        }
    }
}

/// Runs the server of this name until its client has gone; `None` if there is no such server here.
pub(crate) fn serve(config: &ServerConfig) -> Option<Result<()>> {
    match config.stack.as_str() {
        server::STACK => Some(server::serve(config)),
        floor::STACK => Some(floor::serve(config)),
        _ => None,
    }
}

/// A system that is measured while it has many of something.
trait Many: System {
    /// What it is about: the last part of the benchmark's name.
    fn about(&self) -> &'static str;

    /// Whose it is.
    fn system(&self) -> &'static str {
        "wallaby"
    }

    /// How many of it.
    fn n(&self) -> usize;

    /// Forgets what was noted while it was set up, but for that.
    fn figures(&mut self) -> Result<Scale>;
}

/// Measures what a message costs with `n` live calls, connections, or requests in one call, what each of them takes of
/// memory, and how long whatever happens at a time keeps the processor.
///
/// # Errors
/// Options that can't be measured, files that the system does not allow to be open, and whatever fails while measuring.
pub fn scale(options: &ScaleOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    check(options)?;
    let _pinned = options.run.pin.map(Pinned::to).transpose()?;
    let launcher = match &options.run.launcher {
        Some(launcher) => launcher.clone(),
        None => Launcher::this_program()?,
    };
    let mut rows = Vec::new();
    let mut shown = progress;
    for &transport in &options.run.transports {
        let place = Place {
            launcher: &launcher,
            transport,
            payload: options.run.payload,
            ping: options.ping,
        };
        rows.extend(over(&place, options, &mut shown)?);
    }
    Ok(rows)
}

fn check(options: &ScaleOptions) -> Result<()> {
    let all = || {
        let lists = [&options.calls, &options.connections, &options.requests];
        lists.into_iter().flatten().copied()
    };
    ensure!(
        all().next().is_some(),
        "nothing to measure: no numbers were given"
    );
    ensure!(all().all(|n| n > 0), "0 can't be measured");
    let most = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(0);
    ensure!(
        most(&options.calls) <= MOST_CALLS && most(&options.connections) <= MOST_CONNECTIONS,
        "at most {MOST_CALLS} live calls and {MOST_CONNECTIONS} connections are possible"
    );
    ensure!(
        most(&options.requests) <= MOST_REQUESTS,
        "at most {MOST_REQUESTS} requests in a call are possible"
    );
    let payload = options.run.payload;
    ensure!(
        (LEAST_PAYLOAD..=MOST_PAYLOAD).contains(&payload),
        "a payload of {payload} bytes is not possible: it takes {LEAST_PAYLOAD} to {MOST_PAYLOAD}"
    );
    ensure!(options.run.rounds > 0, "at least one round is needed");
    ensure!(
        options
            .run
            .transports
            .iter()
            .all(|&transport| transport != Transport::Shm
                || most(&options.connections) <= MOST_RINGS),
        "each connection over shm takes {RING_KIB} KiB of memory: at most {MOST_RINGS} are possible"
    );
    let files = options.connections.iter().sum::<usize>() + SPARE_FILES;
    let allowed = process::allow_files(files as u64)?;
    ensure!(
        allowed >= files as u64,
        "{files} files must be open at a time, and the system allows {allowed}: raise it (ulimit -n {files}), or measure fewer connections"
    );
    Ok(())
}

fn over(
    place: &Place<'_>,
    options: &ScaleOptions,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Row>> {
    let mut subjects: Vec<Box<dyn Many>> = Vec::new();
    for &n in &options.calls {
        let live = calls::LiveCalls::set_up(place, n);
        subjects.push(Box::new(live.with_context(|| format!("{n} live calls"))?));
    }
    for &n in &options.connections {
        let open = connections::Connections::set_up(place, n);
        subjects.push(Box::new(open.with_context(|| format!("{n} connections"))?));
    }
    for &n in &options.requests {
        let large = requests::Requests::set_up(place, n);
        subjects.push(Box::new(
            large.with_context(|| format!("calls of {n} requests"))?,
        ));
    }
    let mut rows = in_turns(place, options, subjects, &mut progress)?;
    // Afterwards, since systems often allow a process no more files than one of the two needs.
    let mut subjects: Vec<Box<dyn Many>> = Vec::new();
    for &n in &options.connections {
        let bare = floor::Sockets::set_up(place, n);
        if let Some(bare) = bare.with_context(|| format!("{n} sockets"))? {
            subjects.push(Box::new(bare));
        }
    }
    if !subjects.is_empty() {
        rows.extend(in_turns(place, options, subjects, &mut progress)?);
    }
    rows.sort_by(|one, other| (&one.bench, one.n).cmp(&(&other.bench, other.n)));
    Ok(rows)
}

fn in_turns(
    place: &Place<'_>,
    options: &ScaleOptions,
    mut subjects: Vec<Box<dyn Many>>,
    progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Row>> {
    let schedule = Schedule {
        rounds: options.run.rounds,
        turn: options.run.turn,
        seed: options.run.seed,
        least: options.run.least,
    };
    let mut systems: Vec<Box<dyn System + '_>> = Vec::new();
    for subject in &mut subjects {
        systems.push(Box::new(Lent(subject.as_mut())));
    }
    let results = measure(&mut systems, &schedule, progress)?;
    drop(systems);
    let rows = subjects.iter_mut().zip(results);
    rows.map(|(subject, result)| row(place, options, subject.as_mut(), &result))
        .collect()
}

/// A subject as the harness takes systems.
struct Lent<'subject>(&'subject mut dyn Many);

impl System for Lent<'_> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn warm_up(&mut self) -> Result<()> {
        self.0.warm_up()
    }

    fn under_way(&self) -> u64 {
        self.0.under_way()
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        self.0.run(operations, latencies)
    }

    fn processes(&self) -> Vec<u32> {
        self.0.processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        self.0.traffic()
    }
}

fn row(
    place: &Place<'_>,
    options: &ScaleOptions,
    subject: &mut dyn Many,
    result: &Measurement,
) -> Result<Row> {
    let per_operation = |count: fn(&Traffic) -> u64| {
        let count = result.traffic.as_ref().map(count)?;
        Some(round(count as f64 / result.operations.max(1) as f64))
    };
    Ok(Row {
        bench: format!("scale-{}", subject.about()),
        system: subject.system().into(),
        transport: place.transport.to_string(),
        n: subject.n() as u64,
        payload: options.run.payload as u64,
        pin: options.run.pin,
        rounds: u64::from(result.rounds),
        p50_us: micros(result.latencies.quantile(0.5)),
        p99_us: micros(result.latencies.quantile(0.99)),
        cpu_us_per_op: micros(result.cpu_per_operation),
        ops_per_s: Some(round(
            result.operations as f64 / result.elapsed.as_secs_f64(),
        )),
        messages: per_operation(|traffic| traffic.messages),
        client_messages: per_operation(|traffic| traffic.client_messages),
        bytes: per_operation(|traffic| traffic.bytes),
        scale: Some(subject.figures()?),
        ..Row::default()
    })
}

const MOST_CALLS: usize = 4_000_000;
const MOST_CONNECTIONS: usize = 20_000;
/// A call's budget, less what its requests could lead to.
const MOST_REQUESTS: usize = 60_000;
/// How many calls are held goes along.
const LEAST_PAYLOAD: usize = 8;
const MOST_PAYLOAD: usize = 16 << 10;
/// Each way, as a connection has them by default, and its page of positions.
const RING_KIB: usize = 516;
const MOST_RINGS: usize = 1_000;
/// Of the program itself, its servers' pipes and its runtimes.
const SPARE_FILES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut ScaleOptions)) -> String {
        let mut options = ScaleOptions {
            connections: vec![1],
            ..ScaleOptions::default()
        };
        assert!(check(&options).is_ok());
        change(&mut options);
        check(&options).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(refused(|options| options.calls = vec![0]).contains('0'));
        assert!(refused(|options| options.calls = vec![MOST_CALLS + 1]).contains("live calls"));
        assert!(refused(|options| options.connections = vec![20_001]).contains("connections"));
        assert!(refused(|options| options.requests = vec![60_001]).contains("requests"));
        assert!(refused(|options| options.run.payload = 7).contains("7 bytes"));
        assert!(refused(|options| options.run.rounds = 0).contains("round"));
        let empty = refused(|options| {
            (options.calls, options.connections, options.requests) = Default::default();
        });
        assert!(empty.contains("nothing to measure"));
        let rings = refused(|options| {
            options.connections = vec![10_000];
            options.run.transports = vec![Transport::Shm];
        });
        assert!(rings.contains("KiB"));
    }
}
