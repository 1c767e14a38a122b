//! Latency of small calls while large messages travel over the same connection.

use crate::comparison::{RunOptions, micros, round};
use crate::fleet::{Fleet, Launcher, ServerConfig, Transport, folder};
use crate::harness::{Latencies, Measurement, Progress, Schedule, System, Traffic, measure};
use crate::on_wallaby::{Caller, Flow};
use crate::pattern::{Pattern, Routes, Shape};
use crate::plan::least_payload;
use crate::process::Pinned;
use crate::row::Row;
use crate::stack::{Client, Own, Stack};
use anyhow::{Result, ensure};
use std::cell::RefCell;
use std::process;
use std::rc::Rc;
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug)]
pub struct LargeOptions {
    /// The size of the large messages, in KiB.
    pub large: usize,
    /// How. The stacks and the number of servers are not asked for here: one Wallaby server does.
    pub run: RunOptions,
}

impl Default for LargeOptions {
    fn default() -> Self {
        Self {
            large: 16 * 1024,
            run: RunOptions {
                // Long enough for a dozen large messages.
                turn: Duration::from_millis(200),
                ..RunOptions::default()
            },
        }
    }
}

/// What happens beside the small calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Large messages, and on which connection.
    Large(Flow, Connection),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// That of the small calls.
    Shared,
    /// One of their own, between the same two processes: what is left are the costs of sharing processors.
    Apart,
}

const ALL: [Beside; 5] = [
    Beside::Nothing,
    Beside::Large(Flow::Requests, Connection::Shared),
    Beside::Large(Flow::Answers, Connection::Shared),
    Beside::Large(Flow::Requests, Connection::Apart),
    Beside::Large(Flow::Answers, Connection::Apart),
];

impl Beside {
    /// The name in a result row.
    fn system(self) -> &'static str {
        match self {
            Self::Nothing => "wallaby-rpc",
            Self::Large(Flow::Requests, Connection::Shared) => "wallaby-rpc+requests",
            Self::Large(Flow::Answers, Connection::Shared) => "wallaby-rpc+answers",
            Self::Large(Flow::Requests, Connection::Apart) => "wallaby-rpc+requests-apart",
            Self::Large(Flow::Answers, Connection::Apart) => "wallaby-rpc+answers-apart",
        }
    }
}

/// Measures calls of one hop, one after the other: alone, and while large requests or large answers flow without pause
/// over the same connection, or over another one between the same two processes.
///
/// In the rows `n` is the size of the large messages in KiB, 0 where there are none; `ops_per_s` counts the small calls;
/// `messages` and `bytes` are those of everything that was sent meanwhile, per small call.
///
/// # Errors
/// Options that can't be measured, and whatever fails while measuring.
pub fn large(options: &LargeOptions, progress: impl FnMut(Progress<'_>)) -> Result<Vec<Row>> {
    check(options)?;
    let run = &options.run;
    // Before anything is started, since threads and processes run where their parent does.
    let _pinned = run.pin.map(Pinned::to).transpose()?;
    let launcher = match &run.launcher {
        Some(launcher) => launcher.clone(),
        None => Launcher::this_program()?,
    };
    let mut systems: Vec<Box<dyn System>> = Vec::new();
    let mut subjects = Vec::new();
    let mut folders = Vec::new();
    for &transport in &run.transports {
        let folder = folder()?;
        let config = ServerConfig {
            stack: Own::Wallaby.name().into(),
            transport,
            index: 0,
            link: run.link,
            bandwidth: None,
            folder: folder.path().to_owned(),
            parent: process::id(),
        };
        let caller = start(&launcher, &config, options)?;
        let caller = Rc::new(RefCell::new(caller));
        let wanted = |beside: &Beside| {
            run.only.is_empty() || run.only.iter().any(|only| only == beside.system())
        };
        for beside in ALL.into_iter().filter(wanted) {
            subjects.push((transport, beside));
            systems.push(Box::new(Small {
                transport,
                beside,
                size: options.large * KIB,
                routes: Routes::new(1, run.seed),
                caller: Rc::clone(&caller),
            }));
        }
        folders.push(folder);
    }
    ensure!(
        !systems.is_empty(),
        "nothing to measure: no system has such a name"
    );
    let schedule = Schedule {
        rounds: run.rounds,
        turn: run.turn,
        least: run.least,
        seed: run.seed,
    };
    let results = measure(&mut systems, &schedule, progress)?;
    let rows = subjects.into_iter().zip(results);
    Ok(rows
        .map(|((transport, beside), result)| row(transport, beside, options, &result))
        .collect())
}

/// The server and its client, which may have processors of their own.
fn start(launcher: &Launcher, config: &ServerConfig, options: &LargeOptions) -> Result<Caller> {
    let payload = options.run.payload;
    let fleet = {
        let _elsewhere = options.run.server_pin.map(Pinned::to).transpose()?;
        Fleet::start(launcher, 1, config)?
    };
    Caller::connect(fleet, config, payload)
}

/// Refuses what can't be measured.
fn check(options: &LargeOptions) -> Result<()> {
    let (large, run) = (options.large, &options.run);
    ensure!(
        (1..=LARGEST).contains(&large),
        "large messages of {large} KiB are not possible: it takes 1 to {LARGEST}"
    );
    let least = least_payload(ONE_HOP);
    ensure!(
        (least..=KIB).contains(&run.payload),
        "small calls of {} bytes are not possible: it takes {least} to {KIB}",
        run.payload
    );
    ensure!(
        run.transports.iter().all(|one| *one != Transport::Udp),
        "messages over udp have at most 64 KiB: choose tcp or unix"
    );
    Ok(())
}

/// Small calls, beside whatever there is.
struct Small {
    transport: Transport,
    beside: Beside,
    size: usize,
    routes: Routes,
    caller: Rc<RefCell<Caller>>,
}

impl System for Small {
    fn name(&self) -> String {
        format!("{} {}", self.beside.system(), self.transport)
    }

    fn warm_up(&mut self) -> Result<()> {
        self.caller.borrow_mut().warm_up()
    }

    fn begin_turn(&mut self) -> Result<()> {
        match self.beside {
            Beside::Nothing => Ok(()),
            Beside::Large(flow, connection) => {
                let apart = connection == Connection::Apart;
                let mut caller = self.caller.borrow_mut();
                caller.begin_flow(flow, self.size, apart, PATIENCE)
            }
        }
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        let mut caller = self.caller.borrow_mut();
        caller.run(ONE_HOP, &mut self.routes, operations, PATIENCE, latencies)
    }

    fn end_turn(&mut self) -> Result<()> {
        self.caller.borrow_mut().end_flow(PATIENCE)
    }

    fn processes(&self) -> Vec<u32> {
        self.caller.borrow().processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        // All that is sent passes the client, and asking the server would take longer than a large message.
        Ok(Some(self.caller.borrow().own_traffic()))
    }
}

fn row(transport: Transport, beside: Beside, options: &LargeOptions, result: &Measurement) -> Row {
    let run = &options.run;
    let operations = result.operations.max(1) as f64;
    let traffic = result.traffic.unwrap_or_default();
    let n = match beside {
        Beside::Nothing => 0,
        Beside::Large(..) => options.large,
    };
    Row {
        bench: "large".into(),
        system: beside.system().into(),
        transport: transport.to_string(),
        n: n as u64,
        payload: run.payload as u64,
        link_us: u64::try_from(run.link.as_micros()).unwrap_or(u64::MAX),
        link_mbit: None,
        pin: run.pin,
        server_pin: run.server_pin,
        rounds: u64::from(result.rounds),
        p50_us: micros(result.latencies.quantile(0.5)),
        p99_us: micros(result.latencies.quantile(0.99)),
        cpu_us_per_op: micros(result.cpu_per_operation),
        ops_per_s: Some(round(operations / result.elapsed.as_secs_f64())),
        messages: Some(round(traffic.messages as f64 / operations)),
        client_messages: Some(round(traffic.client_messages as f64 / operations)),
        bytes: Some(round(traffic.bytes as f64 / operations)),
        ..Row::default()
    }
}

const ONE_HOP: Pattern = Pattern::Multihop(Shape::Chain { servers: 1 });
const KIB: usize = 1024;
/// What a message may have by default.
const LARGEST: usize = 16 * 1024;
/// A turn that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut LargeOptions)) -> String {
        let mut options = LargeOptions::default();
        change(&mut options);
        check(&options).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(check(&LargeOptions::default()).is_ok());
        assert!(refused(|options| options.large = 0).contains("1 to 16384"));
        assert!(refused(|options| options.large = 16_385).contains("1 to 16384"));
        assert!(refused(|options| options.run.payload = 1 << 20).contains("small calls"));
        assert!(refused(|options| options.run.transports = vec![Transport::Udp]).contains("udp"));
    }
}
