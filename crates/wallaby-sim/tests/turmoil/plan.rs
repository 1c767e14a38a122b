//! A world as lists, drawn from its seed.

use crate::random::Random;
use crate::tasks::{Shape, Task};

/// All that a world does; times are in milliseconds since its beginning.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The listening ones come first.
    pub(crate) hosts: Vec<Host>,
    /// Shortest and longest delay of a message.
    pub(crate) latency: (u64, u64),
    pub(crate) calls: Vec<CallPlan>,
    pub(crate) faults: Vec<(u64, Fault)>,
    /// For so long after the last call and fault servers may remember requests; `None` if it is not looked at.
    pub(crate) rest: Option<u64>,
}

/// How a host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Tcp,
    Udp,
    /// It only calls: answers come back the way its requests went.
    Client,
}

#[derive(Debug)]
pub(crate) struct CallPlan {
    pub(crate) at: u64,
    /// Index of the host that makes it, and of the one that gets its request.
    pub(crate) from: usize,
    pub(crate) to: u32,
    pub(crate) task: Task,
    pub(crate) deadline: u64,
    /// The application gives it up after so long.
    pub(crate) abort: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The host's process dies; it comes back after so long.
    Crash(usize, u64),
    /// Nothing passes between two hosts for so long, and what was under way is lost.
    Cut(usize, usize, u64),
    /// The same in one direction.
    CutOneWay(usize, usize, u64),
    /// What is sent between two hosts arrives after so long.
    Hold(usize, usize, u64),
}

/// Ping period and timeout of all calls.
pub(crate) const PING: (u64, u64) = (100, 500);

/// The default ping period, twice the default timeout, and some.
const FORGOTTEN: u64 = 11_000;

/// The end of a connection, noticed late, makes servers remember for as long again.
const FORGOTTEN_AFTER_FAULTS: u64 = 3 * FORGOTTEN;

/// Calls and faults begin within this time.
pub(crate) const BUSY: u64 = 4_000;

impl Plan {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let servers = random.between(2..=5);
        let over_udp = random.one_in(3);
        let mut hosts: Vec<Host> = (0..servers)
            .map(|_| match over_udp {
                true if random.one_in(2) => Host::Udp,
                _ => Host::Tcp,
            })
            .collect();
        hosts.extend((0..random.between(0..=2)).map(|_| Host::Client));
        let calm = random.one_in(3);
        let low = random.between(1..=10);
        let latency = (low, low + random.between(0..=20));
        let shape = Shape {
            servers: servers as u32,
            depth: random.between(0..=4) as u32,
            wait: random.between(0..=800),
            padding: if over_udp { 4_000 } else { 150_000 },
            errors: random.one_in(3),
        };
        let calls = (0..random.between(1..=12))
            .map(|_| CallPlan {
                at: random.between(0..=BUSY),
                from: random.index(hosts.len()),
                to: random.index(servers as usize) as u32,
                task: Task::random(&mut 0, shape, &mut random),
                deadline: match random.one_in(10) {
                    true => random.between(20..=400),
                    false => 60_000,
                },
                abort: random.one_in(8).then(|| random.between(0..=500)),
            })
            .collect();
        let faults = match calm {
            true => Vec::new(),
            false => (0..random.between(1..=5))
                .map(|_| {
                    (
                        random.between(0..=BUSY),
                        Fault::random(hosts.len(), &mut random),
                    )
                })
                .collect(),
        };
        let rest = match calm {
            true => Some(FORGOTTEN),
            false => random.one_in(6).then_some(FORGOTTEN_AFTER_FAULTS),
        };
        Self {
            hosts,
            latency,
            calls,
            faults,
            rest,
        }
    }
}

impl Fault {
    fn random(hosts: usize, random: &mut Random) -> Self {
        let one = random.index(hosts);
        let other = (one + 1 + random.index(hosts - 1)) % hosts;
        let long = random.between(20..=3_000);
        match random.between(0..=4) {
            0 | 1 => Self::Crash(one, long),
            2 => Self::Cut(one, other, long),
            3 => Self::CutOneWay(one, other, long),
            _ => Self::Hold(one, other, long / 4),
        }
    }
}
