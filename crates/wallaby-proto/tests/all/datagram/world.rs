//! A network of gates in virtual time, from one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::{ConnectionLimits, Event, Hello};
use wallaby_proto::datagram::{Gate, GateSettings, SessionEnd, SessionId};

use crate::chance::Random;
use crate::datagram::messages::{hello, node};

/// How the network treats datagrams; shares in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    pub(crate) delay: Duration,
    /// Up to so much is added to the delay of each, at random: so they overtake each other.
    pub(crate) jitter: Duration,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
    /// Bytes a second in each direction between two addresses, and how many bytes wait before more are dropped.
    pub(crate) bandwidth: Option<(u64, u64)>,
    /// Longer datagrams are dropped.
    pub(crate) longest: usize,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(50),
            jitter: Duration::ZERO,
            lost: 0,
            duplicated: 0,
            corrupted: 0,
            bandwidth: None,
            longest: usize::MAX,
        }
    }
}

/// A datagram on the network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flying {
    pub(crate) to: SocketAddr,
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// What happened to a session of a gate.
pub(crate) type Happening = (SessionId, Result<Event, Box<SessionEnd>>);

/// Gates at addresses, and what flies between them.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    pub(crate) network: Network,
    pub(crate) gates: BTreeMap<SocketAddr, Gate>,
    flying: BinaryHeap<Reverse<(Duration, u64, Flying)>>,
    count: u64,
    /// When a direction between two addresses has sent all it has.
    busy: BTreeMap<(SocketAddr, SocketAddr), Duration>,
    /// Directions that carry nothing until then.
    pub(crate) cut: BTreeMap<(SocketAddr, SocketAddr), Duration>,
    /// Processes that are stopped until then: what arrives waits for them.
    pub(crate) stopped: BTreeMap<SocketAddr, Duration>,
    /// All that was sent, if somebody wants to know.
    pub(crate) log: Option<Vec<Flying>>,
    /// What the bandwidth had no room for.
    pub(crate) dropped: u64,
    /// Changes each datagram on its way.
    pub(crate) tamper: Option<fn(&mut [u8])>,
}

/// The address of a node: from 101 on they are all on one host.
pub(crate) fn address(number: u64) -> SocketAddr {
    let network = if number > 100 { 127 } else { 10 };
    SocketAddr::from(([network, 0, 0, number as u8], 4000))
}

impl World {
    pub(crate) fn new(seed: u64, network: Network) -> Self {
        Self {
            now: Duration::from_secs(1000),
            random: Random(seed),
            network,
            gates: BTreeMap::new(),
            flying: BinaryHeap::new(),
            count: 0,
            busy: BTreeMap::new(),
            cut: BTreeMap::new(),
            stopped: BTreeMap::new(),
            log: None,
            dropped: 0,
            tamper: None,
        }
    }

    /// Two gates, at addresses 1 and 2, of nodes 1 and 2.
    pub(crate) fn pair(network: Network, settings: GateSettings) -> Self {
        let mut world = Self::new(1, network);
        world.start(1, 1, ConnectionLimits::default(), settings);
        world.start(2, 2, ConnectionLimits::default(), settings);
        world
    }

    /// Starts an incarnation at an address, in place of the one that was there.
    pub(crate) fn start(
        &mut self,
        at: u64,
        incarnation: u64,
        limits: ConnectionLimits,
        settings: GateSettings,
    ) {
        self.start_as(at, hello(node(incarnation), limits), settings);
    }

    pub(crate) fn start_as(&mut self, at: u64, hello: Hello, settings: GateSettings) {
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&hello.node.get().to_be_bytes());
        let gate = Gate::new(Arc::new(hello), secret, settings);
        self.gates.insert(address(at), gate);
    }

    pub(crate) fn gate(&mut self, at: u64) -> &mut Gate {
        self.gates.get_mut(&address(at)).expect("a gate")
    }

    /// Sends all that the gates have to send.
    pub(crate) fn transmit(&mut self) {
        let mut sent = Vec::new();
        for (&from, gate) in &mut self.gates {
            if self.stopped.contains_key(&from) {
                continue;
            }
            // One behind the other, as a driver hands them to the system.
            let mut all = Vec::new();
            let mut start = 0;
            while let Some(transmit) = gate.poll_transmit(self.now, &mut all) {
                let bytes = all[start..].to_vec();
                assert_eq!(transmit.len, bytes.len(), "one datagram");
                start = all.len();
                let to = transmit.to;
                sent.push(Flying { to, from, bytes });
            }
        }
        sent.into_iter().for_each(|datagram| self.fly(datagram));
    }

    /// Puts a datagram on the network.
    pub(crate) fn fly(&mut self, mut datagram: Flying) {
        if let Some(tamper) = self.tamper {
            tamper(&mut datagram.bytes);
        }
        if let Some(log) = &mut self.log {
            log.push(datagram.clone());
        }
        if datagram.bytes.len() > self.network.longest {
            return;
        }
        let Some(mut leaves) = self.leaves(&datagram) else {
            self.dropped += 1;
            return;
        };
        let cut = self.cut.get(&(datagram.from, datagram.to));
        if cut.is_some_and(|until| self.now < *until) || self.random.percent(self.network.lost) {
            return;
        }
        leaves += self.network.delay;
        if self.random.percent(self.network.duplicated) {
            self.land(leaves, datagram.clone());
        }
        if self.random.percent(self.network.corrupted) {
            for _ in 0..=self.random.below(4) {
                let at = self.random.below(datagram.bytes.len() as u64) as usize;
                datagram.bytes[at] ^= 1 << self.random.below(8);
            }
        }
        self.land(leaves, datagram);
    }

    fn land(&mut self, at: Duration, datagram: Flying) {
        let jitter = self.network.jitter.as_nanos() as u64;
        let jitter = Duration::from_nanos(self.random.below(jitter + 1));
        self.count += 1;
        self.flying
            .push(Reverse((at + jitter, self.count, datagram)));
    }

    /// When the last byte of a datagram has left; `None` if there is no room for it.
    fn leaves(&mut self, datagram: &Flying) -> Option<Duration> {
        let Some((rate, queue)) = self.network.bandwidth else {
            return Some(self.now);
        };
        let busy = (self.busy)
            .entry((datagram.from, datagram.to))
            .or_insert(self.now);
        let free = (*busy).max(self.now);
        let time = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / rate);
        if free - self.now > time(queue) {
            return None;
        }
        *busy = free + time(datagram.bytes.len() as u64);
        Some(*busy)
    }

    /// Goes on to the next moment at which something happens, but not past `until`; `false` if nothing does before.
    pub(crate) fn step(&mut self, until: Duration) -> bool {
        self.transmit();
        let lands = self.flying.peek().map(|Reverse((at, ..))| *at);
        let timer = (self.gates.iter())
            .filter_map(|(at, gate)| gate.next_timeout().max(self.stopped.get(at).copied()))
            .min();
        let Some(next) = lands.into_iter().chain(timer).min() else {
            return false;
        };
        if next > until {
            return false;
        }
        self.now = self.now.max(next);
        let now = self.now;
        self.stopped.retain(|_, until| *until > now);
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= self.now
        {
            let Some(Reverse((.., datagram))) = self.flying.pop() else {
                break;
            };
            if let Some(until) = self.stopped.get(&datagram.to) {
                self.count += 1;
                self.flying.push(Reverse((*until, self.count, datagram)));
            } else if let Some(gate) = self.gates.get_mut(&datagram.to) {
                gate.handle_datagram(self.now, datagram.from, Bytes::from(datagram.bytes));
            }
        }
        for (at, gate) in &mut self.gates {
            if !self.stopped.contains_key(at) {
                gate.handle_timeout(self.now);
            }
        }
        true
    }

    /// What happened at this address.
    pub(crate) fn events(&mut self, at: u64) -> Vec<Happening> {
        let Some(gate) = self.gates.get_mut(&address(at)) else {
            return Vec::new();
        };
        std::iter::from_fn(|| gate.poll_event()).collect()
    }

    /// Lets so much time pass and returns what happened at both addresses of a pair.
    pub(crate) fn pass(&mut self, time: Duration) -> (Vec<Happening>, Vec<Happening>) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
        (self.events(1), self.events(2))
    }

    /// Opens a session from 1 to 2 on a network that lets it; returns its ids on both sides.
    pub(crate) fn open(&mut self) -> (SessionId, SessionId) {
        let now = self.now;
        let dialled = self.gate(1).dial(now, address(2), None).expect("room");
        let (at_1, at_2) = self.pass(Duration::from_secs(1));
        assert!(
            matches!(at_1[..], [(id, Ok(Event::Opened(_)))] if id == dialled),
            "{at_1:?}"
        );
        let [(accepted, Ok(Event::Opened(_)))] = at_2[..] else {
            panic!("{at_2:?}")
        };
        (dialled, accepted)
    }

    /// Keeps what is sent from now on.
    pub(crate) fn start_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// What was sent since the log was started.
    pub(crate) fn take_log(&mut self) -> Vec<Flying> {
        self.transmit();
        self.log.take().expect("the log was started")
    }
}

/// The seeds that a test runs with: `count` of them, unless the environment says otherwise.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let variable = |name| std::env::var(name).ok();
    let one = variable("WALLABY_SEED").and_then(|seed| seed.parse::<u64>().ok());
    let times = variable("WALLABY_CASES").and_then(|times| times.parse::<f64>().ok());
    match one {
        Some(seed) => seed..seed + 1,
        None => 0..(count as f64 * times.unwrap_or(1.0)).ceil() as u64,
    }
}
