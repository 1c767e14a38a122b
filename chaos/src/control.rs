//! What the director and its processes tell each other: an instruction or an announcement a line, as JSON.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use wallaby_bench::Transport;

use crate::plan::{Planned, Shape};

/// What a process is told on its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The process that starts it.
    pub(crate) parent: u32,
    pub(crate) name: String,
    /// Where all servers are reached.
    pub(crate) servers: Vec<String>,
    /// Where a server is reached that lies.
    pub(crate) hostile: Option<String>,
    /// Whether servers limit what comes of a request.
    pub(crate) budgets: bool,
    /// How calls are watched over.
    pub(crate) watch: Watch,
    pub(crate) role: Role,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Role {
    Server {
        entrance: Entrance,
        journal: PathBuf,
    },
    Client {
        number: u8,
        incarnation: u16,
        /// None: an initiator that can't be dialled.
        entrance: Option<Entrance>,
        log: PathBuf,
    },
    Proxy {
        /// Where others send to, and where that is passed on to.
        front: String,
        target: String,
        /// What happens to datagrams.
        losses: Losses,
        seed: u64,
    },
    Hostile(Hostility),
}

/// What a process does that keeps to no rule.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hostility {
    pub(crate) seed: u64,
    /// Where it serves; None: a client.
    pub(crate) listen: Option<String>,
    /// Honest servers, where they are reached by sockets.
    pub(crate) targets: Vec<String>,
    /// Where they are asked to share memory.
    pub(crate) rings: Vec<String>,
    /// Node ids of honest endpoints.
    pub(crate) nodes: Vec<u64>,
    /// Its own host, which nobody is to be led to.
    pub(crate) ip: String,
    /// What of all that can be done.
    pub(crate) attacks: Vec<String>,
    /// How often: twice as often for 2.
    pub(crate) rate: f64,
}

/// Where an endpoint listens, and where others reach it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entrance {
    pub(crate) listen: String,
    /// Besides: a unix socket, where the other one takes no bytes of strangers.
    pub(crate) door: Option<String>,
    pub(crate) advertise: Option<String>,
}

/// How calls are watched over.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Watch {
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Duration,
}

/// What a proxy does to datagrams, in a thousand, each way.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Losses {
    pub(crate) dropped: u32,
    pub(crate) duplicated: u32,
    pub(crate) reordered: u32,
    pub(crate) corrupted: u32,
}

impl Losses {
    /// The same for all.
    pub(crate) fn each(per_mille: u32) -> Self {
        Self {
            dropped: per_mille,
            duplicated: per_mille,
            reordered: per_mille,
            corrupted: per_mille,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Instruction {
    /// Makes calls, so many at a time, until told to rest.
    Load(Load),
    /// Calls along every pair of servers until each pair has completed once: what is left of connections that were hurt is
    /// noticed and replaced.
    Touch,
    /// Finishes the calls that are outstanding.
    Rest,
    /// Makes one call along these servers; the last of them says that it has begun and then goes on.
    Hold { servers: Vec<u8> },
    /// Makes calls along random servers, so many hops each, as fast as they go.
    Measure {
        seed: u64,
        hops: u8,
        calls: u32,
        workers: u16,
    },
    /// Tells how it is.
    Report,
}

/// What calls a client makes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) seed: u64,
    pub(crate) workers: u16,
    pub(crate) transport: Transport,
    /// Some calls are given up halfway.
    pub(crate) aborts: bool,
    /// Longest work of most handlers, and of few, in microseconds.
    pub(crate) work_us: u32,
    pub(crate) long_work_us: u32,
    /// Calls besides, at a time, that take long.
    pub(crate) lasting: u16,
    /// Calls besides, at a time, whose last server lies: no more is asked of them than that they end.
    pub(crate) baits: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Announcement {
    /// It serves, or can call.
    Ready,
    /// No call is outstanding. The next one would have this number.
    Resting {
        next: u32,
    },
    /// It has tried every pair of servers; why calls along some of them never completed.
    Touched {
        failures: Vec<String>,
    },
    /// The call that is held is under way.
    Holding,
    /// It has ended.
    Released {
        at: u64,
        outcome: Outcome,
    },
    Measured(Measured),
    Health(Health),
}

/// A call that has ended, as its initiator saw it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CallRecord {
    pub(crate) shape: Shape,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) deadline: Duration,
    pub(crate) planned: Vec<Planned>,
    /// Answers that were delivered: request, number.
    pub(crate) delivered: Vec<(u64, u16)>,
    /// Answers whose bytes were not what was sent.
    pub(crate) damaged: u64,
    /// Code and words of statuses.
    pub(crate) statuses: Vec<String>,
    pub(crate) outcome: Outcome,
    /// How long after an abort the initiator knew that all had stopped.
    pub(crate) settled: Option<Duration>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Complete,
    /// A request or an answer is lost.
    Lost {
        kind: String,
        /// Addresses of the request's server and of those on the way to it, as far as known.
        servers: Vec<String>,
        words: String,
    },
    /// The first request never left.
    NotSent {
        words: String,
    },
    Deadline {
        words: String,
    },
    Aborted,
    Other {
        words: String,
    },
}

/// Calls that were made as fast as they go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) calls: u64,
    /// Calls that did not complete with their one answer, with their words.
    pub(crate) failed: u64,
    pub(crate) failures: Vec<String>,
    pub(crate) seconds: f64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) max_us: u64,
}

/// What a process knows of itself, when nothing runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Tasks of its runtime.
    pub(crate) tasks: u64,
    /// Calls that have begun and not ended.
    pub(crate) calls: u64,
    /// Handlers that run, and requests that wait for one.
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    /// Of requests that came here.
    pub(crate) remembered: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) panics: u64,
    /// Which incarnation of an endpoint it is.
    pub(crate) node: u64,
    /// What a proxy did, or an endpoint counted.
    pub(crate) counted: BTreeMap<String, u64>,
}

impl Health {
    /// Whether nothing is left of calls that are over.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_at_rest() && self.remembered + self.kept_bytes == 0
    }

    /// Whether nothing runs, whatever is remembered.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.calls + self.running + self.waiting == 0
    }
}

/// Says something to the director.
pub(crate) fn announce(announcement: &Announcement) -> Result<()> {
    let mut line = serde_json::to_string(announcement)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush().context("the director has gone")
}
