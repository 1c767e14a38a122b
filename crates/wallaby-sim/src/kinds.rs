//! Worlds of one kind: of all that may go wrong only this does, so it is known what may come of it.

use std::time::Duration;

use clap::ValueEnum;

use crate::plan::{CallPlan, Fault, Manner, NodePlan, Plan, ROOMY, Reach};
use crate::random::Random;
use crate::workload::Hop;

const MS: Duration = Duration::from_millis(1);

/// Within which faults strike, once calls have begun.
const SPAN: u64 = 800;

/// What goes wrong in a world. Where it is said of initiators or servers, calls are made by nodes that handle nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// Nothing, and no call is given up: every call must come to a good end, be its handlers slower than its timeout, its messages
    /// large and its links slow.
    Calm,
    /// Of twelve pings and pongs one is lost on its way, and of twelve ends.
    LostWords,
    /// All is datagrams, which overtake each other, are lost, and come twice; so do requests.
    Datagrams,
    /// Servers crash.
    Crashes,
    /// Servers crash and come back.
    Restarts,
    /// Connections of initiators with servers are cut.
    Cuts,
    /// Connections are cut, servers crash and come back.
    CutsAndCrashes,
    /// Initiators stand still for a while.
    Pauses,
    /// Calls are given up.
    Aborts,
    /// Calls are given up, servers crash and come back.
    AbortsAndCrashes,
    /// Two of three initiators crash.
    DeadInitiators,
    /// A manifest is lost with the end that took it along, and who had it before is gone.
    LostEnd,
}

impl Kind {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// The world of this kind that a seed names.
    pub fn plan(self, seed: u64) -> Plan {
        let mut plan = calm(seed);
        let mut random = Random::new(seed).fork(13);
        if self == Self::Calm {
            return plan;
        }
        plan.links.words_lost = 0;
        if self == Self::LostEnd {
            plan.calls.clear();
            plan.add_lost_end(&mut random);
            // Nobody is told, so nobody takes the call for lost before the end has come.
            for fault in &mut plan.faults {
                if let Fault::Crash { manner, .. } = fault {
                    *manner = Manner::Machine;
                }
            }
            return plan;
        }
        let servers = plan.servers();
        let homes = match self {
            Self::DeadInitiators => 3,
            _ => random.between(1, 3) as u32,
        };
        let first = plan.add_initiators(homes, &mut random);
        let home = |random: &mut Random| first + random.below(u64::from(homes)) as u32;
        let server = |random: &mut Random| random.below(u64::from(servers)) as u32;
        let mut faults = Vec::new();
        let at = |random: &mut Random| random.millis(0, SPAN);
        let (cuts, crashes, restarts) = match self {
            Self::Cuts => (6, 0, false),
            Self::CutsAndCrashes => (5, 2, true),
            Self::Crashes => (0, 2, false),
            Self::Restarts | Self::AbortsAndCrashes => (0, 3, true),
            _ => (0, 0, false),
        };
        for _ in 0..cuts {
            let (a, b) = (home(&mut random), server(&mut random));
            let at = at(&mut random);
            faults.push(Fault::Cut { a, b, at });
        }
        for _ in 0..crashes {
            let node = server(&mut random);
            let (at, manner) = (at(&mut random), Manner::Killed);
            let restart = restarts.then(|| random.millis(1, 300));
            faults.push(Fault::Crash {
                node,
                at,
                restart,
                manner,
            });
        }
        match self {
            Self::LostWords => {
                plan.links.words_lost = 80_000;
                // Those that keep responses are set to give up initiators as soon as may be: here nobody may be given up.
                plan.nodes.iter_mut().for_each(|node| node.keeps = false);
            }
            Self::Datagrams => {
                for node in &mut plan.nodes {
                    node.udp = true;
                }
                (plan.links.loss, plan.links.duplication) = (20_000, 100_000);
                (plan.links.echoes, plan.links.jitter) = (100_000, 20 * MS);
            }
            Self::Cuts | Self::CutsAndCrashes => {
                for node in &mut plan.nodes {
                    (node.udp, node.keeps) = (false, true);
                }
            }
            Self::Pauses => {
                faults.push(Fault::Stall {
                    node: home(&mut random),
                    at: at(&mut random),
                    lasts: random.millis(100, 700),
                });
                // What they could not be told meanwhile is told again, and they do not fall silent for long enough to be given up.
                plan.nodes.iter_mut().for_each(|node| node.keeps = true);
                for call in &mut plan.calls {
                    call.ping_period = 250 * MS;
                }
            }
            Self::Aborts | Self::AbortsAndCrashes => {
                // Each message fits everywhere, and something of each call is sent.
                plan.links = plan.links.quick();
                for node in &mut plan.nodes {
                    (node.udp, node.narrow) = (false, false);
                }
                for call in plan.calls.iter_mut().skip(1) {
                    call.abort = Some(random.millis(50, 600));
                }
            }
            Self::DeadInitiators => faults.extend((first..first + 2).map(|node| Fault::Crash {
                node,
                at: at(&mut random),
                restart: None,
                manner: Manner::Killed,
            })),
            _ => {}
        }
        plan.faults = faults;
        if plan.nodes.iter().any(|node| node.udp) {
            plan.drop_bodies();
        }
        plan
    }
}

/// A world in which nothing goes wrong and no call is given up.
fn calm(seed: u64) -> Plan {
    let mut plan = Plan::random(seed);
    plan.faults.clear();
    for node in &mut plan.nodes {
        (node.requests, node.places) = (ROOMY, None);
    }
    plan.calls
        .retain(|call| !call.roots.iter().any(Hop::is_stuck));
    for call in &mut plan.calls {
        call.abort = None;
        call.deadline = call.deadline.max(Duration::from_secs(60));
    }
    plan
}

impl Plan {
    fn servers(&self) -> u32 {
        let open = self.nodes.iter().filter(|node| node.reach == Reach::Open);
        open.count() as u32
    }

    /// All calls are made by so many more nodes, which handle nothing: the first of them. They are asked often enough that what is
    /// lost is no silence, and begin within a moment.
    fn add_initiators(&mut self, count: u32, random: &mut Random) -> u32 {
        let first = self.nodes.len() as u32;
        let (udp, drift) = (self.nodes[0].udp, self.nodes[0].drift);
        self.nodes.extend((0..count).map(|_| NodePlan {
            reach: Reach::Open,
            udp,
            drift,
            requests: ROOMY,
            places: None,
            keeps: true,
            narrow: false,
            tardy: false,
            tokio: random.one_in(2),
            intercepted: false,
        }));
        for call in &mut self.calls {
            *call = CallPlan {
                initiator: first + random.below(u64::from(count)) as u32,
                at: random.millis(0, SPAN),
                ping_period: call.ping_period.min(150 * MS),
                timeout: call.timeout.max(1500 * MS),
                tolerant: false,
                resends: 0,
                ..call.clone()
            };
        }
        first
    }
}
