//! What happens in a world, as lists: nodes, calls, faults. A seed names one; a failing one is shrunk item by item.

use std::fmt;
use std::time::Duration;

use wallaby_proto::wire::Heartbeats;

use crate::random::Random;
use crate::workload::{Finale, Hop, Shape};

/// One world, fully described.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What the network and the nodes draw their random numbers from.
    pub seed: u64,
    /// The nodes; requests name them by their place here.
    pub nodes: Vec<NodePlan>,
    /// The calls.
    pub calls: Vec<CallPlan>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How links behave while nothing goes wrong.
    pub links: LinkPlan,
}

/// One node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePlan {
    /// How others reach it.
    pub(crate) reach: Reach,
    /// Whether it is reached by datagrams; else by connections.
    pub(crate) udp: bool,
    /// By how many millionths its clock is fast (or slow, if negative).
    pub(crate) drift: i64,
    /// Most requests that are remembered there.
    pub(crate) requests: usize,
    /// Most handlers that run there at a time, if these are few: then there is a short queue.
    pub(crate) places: Option<usize>,
    /// Whether it keeps responses to send them again.
    pub(crate) keeps: bool,
    /// Whether the windows that it grants are small.
    pub(crate) narrow: bool,
    /// Whether its handlers go on for a moment after they were told to stop.
    pub(crate) tardy: bool,
    /// Whether it is set as the tokio driver sets its endpoints, else as the polling driver does.
    pub(crate) tokio: bool,
    /// Whether interceptors decide of each request when it may wait for its turn, as only the tokio driver has them.
    pub(crate) intercepted: bool,
}

/// How a node can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It listens.
    Open,
    /// It only makes calls and says so.
    Silent,
    /// It only makes calls, and states an address at which nobody gets an answer.
    Walled,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPlan {
    pub(crate) initiator: u32,
    pub(crate) at: Duration,
    pub(crate) roots: Vec<Hop>,
    pub(crate) deadline: Duration,
    pub(crate) ping_period: Duration,
    pub(crate) timeout: Duration,
    /// How long a handler may make no progress.
    pub(crate) stall: Option<Duration>,
    /// Whether it goes on without what is lost.
    pub(crate) tolerant: bool,
    /// Whether its servers show unasked that they live.
    pub(crate) heartbeats: bool,
    /// How often its initial requests may be sent again.
    pub(crate) resends: u32,
    /// How long the application leaves an answer lying before it takes it.
    pub(crate) appetite: Duration,
    /// When the application gives the call up.
    pub(crate) abort: Option<Duration>,
}

impl CallPlan {
    /// Twice in its timeout its servers show that they live, if they do so unasked.
    pub(crate) fn heartbeats(&self) -> Option<Heartbeats> {
        self.heartbeats.then(|| Heartbeats {
            every: self.timeout / 2,
            timeout: self.timeout,
            hop: self.ping_period / 8,
        })
    }

    /// After so long who lives has told what it knows, or is asked.
    pub(crate) fn round(&self) -> Duration {
        let told = self
            .heartbeats()
            .map(|told| told.every + (told.timeout - told.every) / 4);
        told.map_or(self.ping_period, |told| told.max(self.ping_period))
    }

    /// The servers of all its hops, a bit each.
    pub(crate) fn servers(&self) -> u64 {
        let roots = self.roots.iter();
        roots.fold(0, |marks, root| marks | root.servers())
    }
}

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A node's incarnation ends; perhaps another one starts at its address.
    Crash {
        /// Which.
        node: u32,
        /// When.
        at: Duration,
        /// How long after.
        restart: Option<Duration>,
        /// In which way.
        manner: Manner,
    },
    /// A node finishes what it has begun, and begins nothing: no call is lost by that.
    Drain {
        /// Which.
        node: u32,
        /// When.
        at: Duration,
    },
    /// Nothing runs at a node; what arrives waits.
    Stall {
        /// Which.
        node: u32,
        /// When.
        at: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Nothing passes from some nodes to others.
    Partition {
        /// A bit for each sender.
        from: u64,
        /// A bit for each receiver.
        to: u64,
        /// Whether the way back is closed, too.
        both: bool,
        /// When.
        at: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// All connections between two nodes break; what was under way is lost from some byte on. Sessions are hung up by
    /// `a`.
    Cut {
        /// One of them.
        a: u32,
        /// The other.
        b: u32,
        /// When.
        at: Duration,
    },
}

/// How an incarnation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The process is killed: its connections end.
    Killed,
    /// The whole machine is gone: its peers are not told.
    Machine,
    /// The application closes the endpoint, and its process ends. Of one that is stopped then it is killed.
    Closed,
}

/// How links behave while nothing goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkPlan {
    /// Shortest time on the way.
    pub(crate) latency: Duration,
    /// Up to so much more.
    pub(crate) jitter: Duration,
    /// In how many of a million cases something takes much longer.
    pub(crate) spikes: u32,
    /// How much longer, at most.
    pub(crate) spike: Duration,
    /// In how many of a million cases a connection's bytes arrive in pieces cut anywhere.
    pub(crate) pieces: u32,
    /// In how many of a million cases a datagram is lost.
    pub(crate) loss: u32,
    /// In how many of a million cases it arrives twice.
    pub(crate) duplication: u32,
    /// In how many of a million cases it is damaged.
    pub(crate) corruption: u32,
    /// In how many of a million cases a request comes a second time out of its session, as from one that filters nothing.
    pub(crate) echoes: u32,
    /// In how many of a million cases what needs no credit (a ping, a pong, an end) is lost, as where there was no room for it.
    pub(crate) words_lost: u32,
    /// Bytes that nobody acknowledges for so long end a connection.
    pub(crate) patience: Duration,
    /// Bytes a second.
    pub(crate) bandwidth: u64,
    /// Bytes that a connection takes before its reader has read them.
    pub(crate) buffer: usize,
}

/// Room for all requests that a world has.
pub(crate) const ROOMY: usize = 10_000;

/// Bytes a second that hold nothing up.
const WIDE: u64 = 1 << 30;

/// A buffer that few worlds fill.
const ROOMY_BUFFER: usize = 1 << 20;

/// No handler waits for longer between two acts, but those that are stuck.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

const MS: Duration = Duration::from_millis(1);

impl NodePlan {
    /// Whether there is room for whatever comes.
    pub(crate) fn is_roomy(&self) -> bool {
        self.requests >= ROOMY && self.places.is_none()
    }
}

impl Plan {
    /// Whether nothing is lost in this world for good: every call must come to a good end.
    pub(crate) fn is_calm(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.all(|fault| matches!(fault, Fault::Drain { .. }))
    }

    /// The world that a seed names.
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut next = |purpose| random_fork(&mut random, purpose);
        let links = LinkPlan::random(&mut next(1));
        let nodes = random_nodes(&mut next(2));
        let patient = links.loss > 0 && nodes.iter().any(|node| node.udp);
        let calls = random_calls(&nodes, patient, &mut next(3));
        let faults = random_faults(&nodes, &calls, &mut next(4));
        let mut plan = Self {
            seed,
            nodes,
            calls,
            faults,
            links,
        };
        plan.add_tolerance(&mut next(10));
        plan.add_heartbeats(&mut next(15));
        let mut random = next(5);
        if random.one_in(8) {
            plan.add_scene(&mut random);
        }
        let mut random = next(6);
        let crash = random.one_in(16);
        if crash {
            plan.add_crash(&mut random);
        }
        let mut random = next(8);
        let lost_end = random.one_in(16);
        if lost_end {
            plan.add_lost_end(&mut random);
        }
        let mut random = next(9);
        let queues = random.one_in(8);
        if queues && !crash && !lost_end {
            plan.add_queues(&mut random);
        }
        let mut random = next(11);
        let survivor = random.one_in(16) && !crash && !lost_end && !queues;
        if survivor {
            plan.add_survivor(&mut random);
        }
        let mut random = next(12);
        if random.one_in(16) && !crash && !lost_end && !queues && !survivor {
            plan.add_close(&mut random);
        }
        if plan.faults.is_empty() && next(14).one_in(16) {
            plan.links.words_lost = 3_000;
        }
        let mut random = next(16);
        if random.one_in(3) {
            plan.add_bodies(&mut random);
        }
        plan.add_drains(&mut next(17));
        plan.add_interceptors(&mut next(18));
        plan
    }

    /// A node or two are drained, for good.
    fn add_drains(&mut self, random: &mut Random) {
        if !random.one_in(8) {
            return;
        }
        for _ in 0..random.between(1, 2) {
            let node = random.below(self.nodes.len() as u64) as u32;
            let at = random.millis(0, self.end().as_millis() as u64 + 300);
            self.faults.push(Fault::Drain { node, at });
        }
    }

    /// Somebody is around the requests of some nodes.
    fn add_interceptors(&mut self, random: &mut Random) {
        for node in self.nodes.iter_mut().filter(|node| node.tokio) {
            node.intercepted = random.one_in(4);
        }
    }

    /// Bodies follow some requests, where there are streams for them. Those of one that is sent again can be read once.
    fn add_bodies(&mut self, random: &mut Random) {
        if self.nodes.iter().any(|node| node.udp) {
            return;
        }
        for call in self.calls.iter_mut().filter(|call| call.resends == 0) {
            let mut left = 4;
            call.roots
                .iter_mut()
                .for_each(|root| root.add_bodies(&mut left, random));
        }
    }

    /// No bodies follow requests.
    pub(crate) fn drop_bodies(&mut self) {
        let roots = self.calls.iter_mut().flat_map(|call| &mut call.roots);
        roots.for_each(Hop::drop_bodies);
    }

    /// Some calls go on without what is lost of them. Their applications take at once what they are told, so that each loss is
    /// judged when it is found.
    fn add_tolerance(&mut self, random: &mut Random) {
        for call in &mut self.calls {
            if random.one_in(6) && call.resends == 0 {
                (call.tolerant, call.appetite) = (true, Duration::ZERO);
            }
        }
    }

    /// Some calls do not ask.
    fn add_heartbeats(&mut self, random: &mut Random) {
        for call in &mut self.calls {
            if random.one_in(6) {
                // As seldom as by default.
                call.heartbeats = true;
                call.ping_period = call.ping_period.min(call.timeout / 12);
            }
        }
    }

    /// Some servers run few handlers at a time.
    fn add_queues(&mut self, random: &mut Random) {
        for node in &mut self.nodes {
            node.places = (random.one_in(2)).then(|| random.between(1, 3) as usize);
        }
    }

    /// Three servers, if there are so many.
    fn three(&self, random: &mut Random) -> Option<[u32; 3]> {
        let servers = self
            .nodes
            .iter()
            .filter(|node| node.reach == Reach::Open)
            .count() as u64;
        let [home, near, far] =
            [0, 1, 2].map(|turn| ((random.below(servers) + turn) % servers) as u32);
        let apart = servers >= 3 && home != near && near != far && far != home;
        apart.then_some([home, near, far])
    }

    /// A server dies while it works at a call and nothing else goes wrong: then it is known exactly when that has to be told.
    fn add_crash(&mut self, random: &mut Random) {
        let Some([home, near, far]) = self.three(random) else {
            return;
        };
        self.links = self.links.quick();
        for node in &mut self.nodes {
            node.requests = ROOMY;
        }
        let begin = self.end() + 500 * MS;
        let work = Hop::waiting(far, LONGEST_WAIT);
        self.calls.push(CallPlan {
            initiator: home,
            at: begin,
            roots: vec![match random.one_in(3) {
                true => work,
                false => Hop::sending_on(near, work),
            }],
            deadline: Duration::from_secs(30),
            ping_period: 50 * MS,
            timeout: 250 * MS * random.between(1, 2) as u32,
            stall: None,
            tolerant: false,
            heartbeats: false,
            resends: 0,
            appetite: Duration::ZERO,
            abort: None,
        });
        self.faults = vec![Fault::Crash {
            node: far,
            at: begin + Duration::from_micros(random.below(300_000)),
            restart: random.one_in(2).then(|| random.millis(0, 1000)),
            manner: Manner::random(random),
        }];
    }

    /// A server delegates twice and is gone before anybody asks it. The end of its second child takes its manifest along, and is
    /// lost with its connection: only who sent that can still tell how the branch above ended.
    pub(crate) fn add_lost_end(&mut self, random: &mut Random) {
        let Some([home, near, far]) = self.three(random) else {
            return;
        };
        self.links = self.links.quick();
        for node in &mut self.nodes {
            (node.requests, node.udp) = (ROOMY, false);
        }
        let begin = self.end() + 500 * MS;
        let call = |at, root| CallPlan {
            initiator: home,
            at,
            roots: vec![root],
            deadline: Duration::from_secs(30),
            ping_period: 250 * MS,
            timeout: 1250 * MS,
            stall: None,
            tolerant: false,
            heartbeats: false,
            resends: 0,
            appetite: Duration::ZERO,
            abort: None,
        };
        let mut last = Hop::waiting(far, MS);
        last.task.number = 2;
        let mut root = Hop::sending_on(near, Hop::waiting(far, MS));
        root.task.finale = Finale::Forward(last);
        // The first call sees to it that the connections are there.
        let first = Hop::sending_on(near, Hop::waiting(far, MS));
        let second = begin + 500 * MS;
        self.calls.extend([call(begin, first), call(second, root)]);
        let cut = second + random.millis(120, 200);
        self.faults = vec![
            Fault::Partition {
                from: 1 << far,
                to: 1 << home,
                both: false,
                at: second,
                lasts: cut + MS - second,
            },
            Fault::Crash {
                node: near,
                at: second + random.millis(60, 110),
                restart: None,
                manner: Manner::Killed,
            },
            Fault::Cut {
                a: far,
                b: home,
                at: cut,
            },
        ];
    }

    /// A server hands a call on and dies before its initiator has asked where the call went: only who has it now can tell. Nothing
    /// else goes wrong, so the call must not fail if that one has all of it.
    fn add_survivor(&mut self, random: &mut Random) {
        let Some([home, near, far]) = self.three(random) else {
            return;
        };
        self.links = self.links.quick();
        for node in &mut self.nodes {
            node.requests = ROOMY;
        }
        let begin = self.end() + 500 * MS;
        let call = |at, roots| CallPlan {
            initiator: home,
            at,
            roots,
            deadline: Duration::from_secs(30),
            ping_period: 250 * MS,
            timeout: 1250 * MS,
            stall: None,
            tolerant: false,
            heartbeats: false,
            resends: 0,
            appetite: Duration::ZERO,
            abort: None,
        };
        let work = || Hop::waiting(far, Duration::from_secs(2));
        let mut root = match random.one_in(3) {
            true => Hop::sending_on(near, work()),
            false => Hop::waiting(near, Duration::ZERO),
        };
        let mut last = match random.one_in(2) {
            true => work(),
            // Who has it from there has handed it on, and is done.
            false => {
                let mut last = Hop::waiting(far, Duration::ZERO);
                let mut end = Hop::waiting(home, Duration::from_secs(2));
                end.task.number = 3;
                last.task.finale = Finale::Forward(end);
                last
            }
        };
        last.task.number = 2;
        root.task.finale = Finale::Forward(last);
        // The first call sees to it that the connections are there, for some.
        if random.one_in(2) {
            let first = Hop::sending_on(near, Hop::waiting(far, MS));
            self.calls.push(call(begin, vec![first]));
        }
        let second = begin + 500 * MS;
        self.calls.push(call(second, vec![root]));
        self.faults = vec![Fault::Crash {
            node: near,
            at: second + Duration::from_micros(random.below(400_000)),
            restart: random.one_in(2).then(|| random.millis(0, 500)),
            manner: match random.one_in(3) {
                true => Manner::Closed,
                false => Manner::Killed,
            },
        }];
    }

    /// A server is closed in the moment in which requests come to it, one or several at a time, while it has a place for one or for
    /// all, and nothing else goes wrong.
    fn add_close(&mut self, random: &mut Random) {
        let Some([home, near, far]) = self.three(random) else {
            return;
        };
        self.links = self.links.quick();
        let places = random.one_in(2).then_some(1);
        for node in &mut self.nodes {
            node.requests = ROOMY;
        }
        self.nodes[far as usize].places = places;
        let begin = self.end() + 500 * MS;
        let call = |at, root| CallPlan {
            initiator: home,
            at,
            roots: vec![root],
            deadline: Duration::from_secs(30),
            ping_period: 250 * MS,
            timeout: 1250 * MS,
            stall: None,
            tolerant: false,
            heartbeats: false,
            resends: 0,
            appetite: Duration::ZERO,
            abort: None,
        };
        // The first call sees to it that the connections are there.
        let first = Hop::sending_on(near, Hop::waiting(far, MS));
        self.calls.extend([
            call(begin, first),
            call(begin + 100 * MS, Hop::waiting(far, MS)),
        ]);
        let second = begin + 500 * MS;
        for turn in 0..random.between(1, 4) as u32 {
            let work = Hop::waiting(far, Duration::from_secs(2));
            let root = match random.one_in(3) {
                true => Hop::sending_on(near, work),
                false => work,
            };
            self.calls.push(call(second + turn * MS / 2, root));
        }
        let within = self.links.longest() * 4;
        self.faults = vec![Fault::Crash {
            node: far,
            at: second + Duration::from_micros(random.below(within.as_micros() as u64)),
            restart: random.one_in(2).then(|| random.millis(0, 500)),
            manner: Manner::Closed,
        }];
    }

    /// Calls and faults that meet in a way that chance alone rarely brings about.
    fn add_scene(&mut self, random: &mut Random) {
        let Some([home, near, far]) = self.three(random) else {
            return;
        };
        let begin = self.end() + 500 * MS;
        let call = |after: u64, root: Hop| CallPlan {
            initiator: home,
            at: begin + after as u32 * MS,
            roots: vec![root],
            deadline: Duration::from_secs(30),
            ping_period: 50 * MS,
            timeout: 250 * MS,
            stall: None,
            tolerant: false,
            heartbeats: false,
            resends: 0,
            appetite: Duration::ZERO,
            abort: None,
        };
        let given_up = |call: CallPlan| CallPlan {
            abort: Some(20 * MS),
            ..call
        };
        let long = || Hop::waiting(far, Duration::from_secs(5));
        let scene = random.below(4);
        if scene == 0 {
            // A session ends while its other end cannot be told, and learns of it when it goes on.
            self.nodes[far as usize].udp = true;
            self.calls.push(CallPlan {
                timeout: Duration::from_secs(3),
                ..call(0, Hop::waiting(far, Duration::from_secs(4)))
            });
            self.faults.push(Fault::Partition {
                from: 1 << far,
                to: 1 << home,
                both: false,
                at: begin + 200 * MS,
                lasts: 2000 * MS,
            });
            let (a, b, at) = (far, home, begin + 210 * MS);
            self.faults.push(Fault::Cut { a, b, at });
        } else if scene == 1 {
            // A request that is held back comes when its call is over, and all have forgotten it.
            let onward = || Hop::sending_on(near, long());
            // A first datagram that is lost twice is not silence.
            let patient = |call: CallPlan| CallPlan {
                timeout: 500 * MS,
                ..call
            };
            self.calls.extend([
                patient(call(0, Hop::sending_on(near, Hop::waiting(far, MS)))),
                given_up(call(300, onward())),
                patient(call(1000, Hop::waiting(far, MS))),
            ]);
            self.faults.push(Fault::Partition {
                from: 1 << near,
                to: 1 << far,
                both: false,
                at: begin + 290 * MS,
                lasts: random.millis(850, 1500),
            });
        } else if scene == 2 {
            // A process is stopped for so long that its peer gives their session up, for want of an acknowledgement of the
            // answer; the next call begins when it has read that, and nothing has told it yet. No other fault excuses it.
            self.nodes[far as usize].udp = true;
            let (node, at) = (home, begin + 500 * MS);
            let lasts = random.millis(15_000, 20_000);
            self.calls.extend([
                call(0, Hop::waiting(far, Duration::from_secs(1))),
                CallPlan {
                    at: at + lasts + Duration::from_micros(1),
                    ..call(0, Hop::waiting(far, MS))
                },
            ]);
            self.faults = vec![Fault::Stall { node, at, lasts }];
        } else {
            // A handler runs on whose initiator could not tell it that its call is over.
            self.calls.extend([
                given_up(call(300, long())),
                call(720, Hop::waiting(far, MS)),
            ]);
            let at = begin + 300 * MS + self.links.latency * 4 + self.links.jitter * 2;
            self.faults.push(Fault::Partition {
                from: 1 << home,
                to: 1 << far,
                both: true,
                at,
                lasts: 380 * MS,
            });
            let at = at + 370 * MS;
            let (a, b) = (home, far);
            self.faults.push(Fault::Cut { a, b, at });
        }
    }

    /// When its last call has begun and its last fault has struck.
    pub(crate) fn end(&self) -> Duration {
        let calls = self.calls.iter().map(|call| call.at);
        let faults = self.faults.iter().map(|fault| match fault {
            Fault::Crash { at, restart, .. } => *at + restart.unwrap_or_default(),
            Fault::Drain { at, .. } | Fault::Cut { at, .. } => *at,
            Fault::Stall { .. } | Fault::Partition { .. } => fault.end(),
        });
        calls.chain(faults).max().unwrap_or_default()
    }
}

fn random_fork(random: &mut Random, purpose: u64) -> Random {
    random.fork(purpose)
}

impl LinkPlan {
    /// The same links while hardly anything delays what they carry.
    pub(crate) fn quick(self) -> Self {
        Self {
            latency: self.latency.min(MS),
            jitter: self.jitter.min(MS),
            spikes: 0,
            loss: 0,
            corruption: 0,
            bandwidth: WIDE,
            buffer: ROOMY_BUFFER,
            ..self
        }
    }

    /// Longest time on the way, where nothing has to wait.
    pub(crate) fn longest(&self) -> Duration {
        let spike = if self.spikes > 0 {
            self.spike
        } else {
            Duration::ZERO
        };
        self.latency + self.jitter + spike + MS
    }

    /// Whether next to nothing has to wait for what goes before it.
    pub(crate) fn is_wide(&self) -> bool {
        self.bandwidth >= WIDE && self.buffer >= ROOMY_BUFFER
    }

    fn random(random: &mut Random) -> Self {
        let fast = random.one_in(3);
        let lossy = random.one_in(2);
        Self {
            latency: Duration::from_micros(if fast {
                random.between(5, 100)
            } else {
                random.between(100, 10_000)
            }),
            jitter: if fast {
                random.millis(0, 1)
            } else {
                random.millis(0, 20)
            },
            spikes: if random.one_in(2) {
                random.below(50_000) as u32
            } else {
                0
            },
            spike: random.millis(5, 100),
            pieces: if random.one_in(2) {
                random.below(400_000) as u32
            } else {
                0
            },
            loss: if lossy {
                random.below(60_000) as u32
            } else {
                0
            },
            duplication: if lossy {
                random.below(100_000) as u32
            } else {
                0
            },
            corruption: if lossy {
                random.below(20_000) as u32
            } else {
                0
            },
            echoes: if random.one_in(8) { 50_000 } else { 0 },
            words_lost: 0,
            // A little more than the protocol's own, or as long as operating systems take.
            patience: Duration::from_secs(if random.one_in(3) { 900 } else { 12 }),
            bandwidth: if random.one_in(3) {
                random.between(1 << 20, 16 << 20)
            } else {
                WIDE
            },
            buffer: if random.one_in(3) {
                random.between(4 << 10, 64 << 10) as usize
            } else {
                ROOMY_BUFFER
            },
        }
    }
}

fn random_nodes(random: &mut Random) -> Vec<NodePlan> {
    let servers = random.between(1, 7);
    let clients = random.below(4);
    let skewed = random.one_in(2);
    // Connections only, both, datagrams only.
    let datagrams = random.below(3);
    let mut drivers = random.fork(0x746f_6b69);
    (0..servers + clients)
        .map(|node| NodePlan {
            reach: match node < servers {
                true => Reach::Open,
                false if random.one_in(2) => Reach::Silent,
                false => Reach::Walled,
            },
            udp: datagrams == 2 || datagrams == 1 && random.one_in(2),
            drift: if skewed {
                random.between(0, 100_000) as i64 - 50_000
            } else {
                0
            },
            requests: if random.one_in(6) {
                random.between(1, 8) as usize
            } else {
                ROOMY
            },
            places: None,
            keeps: random.one_in(2),
            narrow: random.one_in(4),
            tardy: random.one_in(4),
            tokio: drivers.one_in(2),
            intercepted: false,
        })
        .collect()
}

fn random_calls(nodes: &[NodePlan], patient: bool, random: &mut Random) -> Vec<CallPlan> {
    let count = random.between(1, 8);
    let span = random.between(1, 2000);
    let servers = nodes
        .iter()
        .filter(|node| node.reach == Reach::Open)
        .count() as u32;
    let shape = Shape {
        nodes: servers,
        depth: 0,
        fanout: random.between(1, 5) as u32,
        replies: random.below(4) as u32,
        messages: random.between(1, 40) as u32,
        // Some handlers are slower than any timeout.
        wait: *pick(&[0, 3, 50, 400, LONGEST_WAIT.as_millis() as u64], random),
        stuck: *pick(&[0, 0, 0, 40], random),
        large: *pick(&[0, 0, 200, 20], random),
    };
    // What is lost is sent again, which takes a while: shorter timeouts would mistake that for silence.
    let period = random.millis(if patient { 150 } else { 50 }, 250);
    let timeout = period * random.between(if patient { 8 } else { 5 }, 10) as u32;
    let mut resends = random.fork(7);
    (0..count)
        .map(|_| {
            let mut number = 0;
            let (chain, ladder) = (random.one_in(5), random.one_in(20));
            let roots = match random.below(8) {
                0 => random.between(2, 4),
                _ => 1,
            };
            let roots: Vec<Hop> = (0..roots)
                .map(|_| {
                    if ladder {
                        // Deeper than a path of sixteen bytes, which folds then.
                        let depth = random.between(14, 24) as u32;
                        Hop::ladder(Shape { depth, ..shape }, &mut number, random)
                    } else if chain {
                        let depth = random.between(1, 40) as u32;
                        Hop::chain(Shape { depth, ..shape }, &mut number, random)
                    } else {
                        // Some are deeper than a path of sixteen bytes, which folds then.
                        let depth = if random.one_in(6) {
                            24
                        } else {
                            random.below(7) as u32
                        };
                        Hop::random(Shape { depth, ..shape }, &mut number, random)
                    }
                })
                .collect();
            let work = roots
                .iter()
                .map(Hop::longest_wait)
                .max()
                .unwrap_or_default();
            let work = work.min(4 * LONGEST_WAIT);
            let generous = work * 2 + timeout * 10 + Duration::from_secs(20);
            CallPlan {
                initiator: match nodes.len() as u64 - u64::from(servers) {
                    clients if clients > 0 && random.one_in(2) => {
                        servers + random.below(clients) as u32
                    }
                    _ => random.below(nodes.len() as u64) as u32,
                },
                at: random.millis(0, span),
                roots,
                deadline: if random.one_in(10) {
                    random.millis(1, 300)
                } else {
                    generous
                },
                ping_period: period,
                timeout,
                stall: random
                    .one_in(3)
                    .then(|| LONGEST_WAIT + random.millis(1000, 3000)),
                tolerant: false,
                heartbeats: false,
                resends: match resends.below(24) {
                    again @ 1..=3 => again as u32,
                    _ => 0,
                },
                appetite: if random.one_in(5) {
                    random.millis(1, 50)
                } else {
                    Duration::ZERO
                },
                abort: random.one_in(5).then(|| random.millis(0, 300)),
            }
        })
        .collect()
}

fn random_faults(nodes: &[NodePlan], calls: &[CallPlan], random: &mut Random) -> Vec<Fault> {
    // A third of the worlds is calm: there every call must come to a good end.
    let count = match random.below(3) {
        0 => 0,
        1 => random.between(1, 2),
        _ => random.between(1, 6),
    };
    let span = calls.iter().map(|call| call.at).max().unwrap_or_default() + 600 * MS;
    let kinds = random.between(1, 15);
    let mut faults = Vec::new();
    while faults.len() < count as usize {
        let at = Duration::from_micros(random.below(span.as_micros() as u64));
        let node = match random.one_in(3) {
            true => calls[random.below(calls.len() as u64) as usize].initiator,
            false => random.below(nodes.len() as u64) as u32,
        };
        let kind = random.below(4);
        if kinds & 1 << kind == 0 {
            continue;
        }
        faults.push(match kind {
            0 => Fault::Crash {
                node,
                at,
                restart: (!random.one_in(3)).then(|| random.millis(0, 1500)),
                manner: Manner::random(random),
            },
            1 => Fault::Stall {
                node,
                at,
                lasts: random_span(random),
            },
            2 => Fault::Partition {
                from: 1 << node | random.next() & mask(nodes.len()),
                to: mask(nodes.len()) & !(1 << node) & random.next(),
                both: random.one_in(2),
                at,
                lasts: random_span(random),
            },
            _ => Fault::Cut {
                a: node,
                b: random.below(nodes.len() as u64) as u32,
                at,
            },
        });
    }
    faults
}

/// Often short, now and then longer than any timeout.
fn random_span(random: &mut Random) -> Duration {
    if random.one_in(4) {
        random.millis(500, 4000)
    } else {
        random.millis(1, 300)
    }
}

fn mask(nodes: usize) -> u64 {
    u64::MAX >> (64 - nodes)
}

fn pick<'a, T>(items: &'a [T], random: &mut Random) -> &'a T {
    &items[random.below(items.len() as u64) as usize]
}

impl Manner {
    fn random(random: &mut Random) -> Self {
        *pick(&[Self::Killed, Self::Machine, Self::Closed], random)
    }
}

impl Fault {
    /// What kind of fault it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Crash { manner, .. } => match manner {
                Manner::Killed => "process crash",
                Manner::Machine => "machine crash",
                Manner::Closed => "close",
            },
            Self::Drain { .. } => "drain",
            Self::Stall { .. } => "stall",
            Self::Partition { both: true, .. } => "partition",
            Self::Partition { both: false, .. } => "one-way partition",
            Self::Cut { .. } => "cut connection",
        }
    }

    /// When it begins.
    pub(crate) fn at(&self) -> Duration {
        match self {
            Self::Crash { at, .. }
            | Self::Drain { at, .. }
            | Self::Stall { at, .. }
            | Self::Partition { at, .. }
            | Self::Cut { at, .. } => *at,
        }
    }

    /// A bit for each node that it concerns.
    pub(crate) fn nodes(&self) -> u64 {
        match self {
            Self::Crash { node, .. } | Self::Drain { node, .. } | Self::Stall { node, .. } => {
                1 << node
            }
            Self::Partition { from, to, .. } => from | to,
            Self::Cut { a, b, .. } => 1 << a | 1 << b,
        }
    }

    /// When its effects are over.
    pub(crate) fn end(&self) -> Duration {
        match self {
            Self::Crash { .. } | Self::Drain { .. } | Self::Cut { .. } => Duration::MAX,
            Self::Stall { at, lasts, .. } | Self::Partition { at, lasts, .. } => *at + *lasts,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkPlan {
            latency,
            jitter,
            spikes,
            spike,
            pieces,
            loss,
            duplication,
            corruption,
            echoes,
            words_lost,
            patience,
            bandwidth,
            buffer,
        } = self.links;
        writeln!(
            f,
            "links: {latency:?} to {:?}, {spikes} ppm up to {spike:?} more, {pieces} ppm in pieces, {bandwidth} bytes/s, \
             {buffer} bytes buffered, given up after {patience:?}; datagrams: {loss} ppm lost, {duplication} ppm twice, {corruption} ppm damaged; \
             {echoes} ppm of requests echoed; {words_lost} ppm of pings, pongs and ends lost",
            latency + jitter
        )?;
        for (index, node) in self.nodes.iter().enumerate() {
            let reach = match node.reach {
                Reach::Open => "listens",
                Reach::Silent => "does not listen",
                Reach::Walled => "cannot be dialled",
            };
            let udp = if node.udp { "udp" } else { "tcp" };
            let narrow = if node.narrow { ", small windows" } else { "" };
            let tardy = if node.tardy { ", stops late" } else { "" };
            let tokio = match (node.tokio, node.intercepted) {
                (false, _) => "",
                (true, false) => ", set as on tokio",
                (true, true) => ", set as on tokio, with interceptors",
            };
            let (drift, requests) = (node.drift, node.requests);
            let places = match node.places {
                Some(places) => format!(", {places} handlers at a time"),
                None => String::new(),
            };
            writeln!(
                f,
                "node n{index}: {udp}, {reach}, clock {drift:+} ppm, {requests} requests remembered{places}{narrow}{tardy}{tokio}"
            )?;
        }
        for (index, call) in self.calls.iter().enumerate() {
            let CallPlan {
                initiator,
                at,
                deadline,
                ping_period,
                timeout,
                appetite,
                ..
            } = call;
            writeln!(
                f,
                "call c{index}: n{initiator} at {at:?}, deadline {deadline:?}, ping {ping_period:?}/{timeout:?}, answers \
                 taken after {appetite:?}"
            )?;
            if let Some(stall) = call.stall {
                writeln!(f, "  fails if a handler makes no progress for {stall:?}")?;
            }
            if call.tolerant {
                writeln!(f, "  goes on without what is lost")?;
            }
            if let Some(heartbeats) = call.heartbeats() {
                writeln!(
                    f,
                    "  is told each {:?} that its servers live",
                    heartbeats.every
                )?;
            }
            if call.resends > 0 {
                let resends = call.resends;
                writeln!(
                    f,
                    "  is sent again up to {resends} times if something is lost"
                )?;
            }
            if let Some(abort) = call.abort {
                writeln!(f, "  aborted after {abort:?}")?;
            }
            for root in &call.roots {
                writeln!(f, "  {root}")?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "fault: {fault}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}: ", self.kind(), self.at())?;
        match self {
            Self::Crash {
                node,
                restart: Some(after),
                ..
            } => write!(f, "n{node}, again after {after:?}"),
            Self::Crash {
                node,
                restart: None,
                ..
            } => write!(f, "n{node}, for good"),
            Self::Drain { node, .. } => write!(f, "n{node}"),
            Self::Stall { node, lasts, .. } => write!(f, "n{node} for {lasts:?}"),
            Self::Partition {
                from, to, lasts, ..
            } => {
                write!(f, "{} to {} for {lasts:?}", Marks(*from), Marks(*to))
            }
            Self::Cut { a, b, .. } => write!(f, "n{a} and n{b}"),
        }
    }
}

/// A set of nodes, shown as a list.
struct Marks(u64);

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = (0..64)
            .filter(|node| self.0 & 1 << node != 0)
            .map(|node| format!("n{node}"))
            .collect();
        f.write_str(&names.join(","))
    }
}
