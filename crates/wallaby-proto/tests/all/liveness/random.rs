//! Random worlds: every call ends, and what is said of it is true.

use std::collections::BTreeMap;

use crate::chance::Random;
use crate::liveness::world::{Act, Ending, Event, Faults, Plan, Shape, World};

const WORLDS: u64 = 150;

/// What happens in a kind of world.
struct Workload {
    machines: usize,
    initiators: usize,
    calls: u64,
    shape: Shape,
    faults: Faults,
    crashes: u64,
    restarts: bool,
    cuts: u64,
    stalls: u64,
    aborts: u64,
    /// Percent of calls that are long chains.
    chains: u64,
    /// Milliseconds within which it all happens.
    time: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            machines: 5,
            initiators: 1,
            calls: 3,
            shape: Shape {
                servers: (1, 5),
                depth: 3,
                fanout: 3,
                act: 400,
                bulk: 0,
            },
            faults: Faults {
                delay: 80,
                repair: true,
                timeout: 500,
                ..Faults::default()
            },
            crashes: 0,
            restarts: false,
            cuts: 0,
            stalls: 0,
            aborts: 0,
            chains: 20,
            time: 600,
        }
    }
}

/// Runs worlds of a kind; returns what happened in all of them together.
fn run(name: &str, workload: &Workload) -> BTreeMap<&'static str, u64> {
    let cases = match std::env::var("WALLABY_CASES") {
        Ok(times) => (WORLDS as f64 * times.parse::<f64>().expect("a number")).ceil() as u64,
        Err(_) => WORLDS,
    };
    let seeds = match std::env::var("WALLABY_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..cases,
    };
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        let told = format!("{name}: WALLABY_SEED={seed} repeats it");
        let note = Note(told);
        let world = live(seed, workload);
        for (what, count) in &world.oracle.counts {
            *counts.entry(what).or_default() += count;
        }
        std::mem::forget(note);
    }
    println!("{name}: {counts:?}");
    counts
}

/// Tells the seed of a world in which something went wrong.
struct Note(String);

impl Drop for Note {
    fn drop(&mut self) {
        eprintln!("{}", self.0);
    }
}

fn live(seed: u64, workload: &Workload) -> World {
    let mut world = World::new(seed, workload.machines, workload.faults);
    let mut random = Random(seed ^ 0x5eed);
    let shape = workload.shape;
    for _ in 0..workload.calls {
        let machine = random.below(workload.initiators as u64) as usize;
        let roots = if random.one_in(4) { 2 } else { 1 };
        let plans = (0..roots)
            .map(|_| {
                let plan = match random.percent(workload.chains) {
                    true => Plan::chain(
                        2 + random.below(12) as u32,
                        random.below(60),
                        shape,
                        &mut random,
                    ),
                    false => Plan::random(shape, &mut random),
                };
                (shape.server(&mut random), plan)
            })
            .collect();
        let at = random.below(workload.time);
        world.plan(at, Event::Call { machine, plans });
    }
    let time = workload.time + 600;
    for _ in 0..workload.crashes {
        let machine = shape.server(&mut random);
        let at = random.below(time);
        world.plan(at, Event::Crash { machine });
        if workload.restarts {
            world.plan(at + 1 + random.below(300), Event::Restart { machine });
        }
    }
    for _ in 0..workload.cuts {
        let one = random.below(workload.initiators as u64) as usize;
        let between = (one, shape.server(&mut random));
        world.plan(random.below(time), Event::Cut { between });
    }
    for _ in 0..workload.stalls {
        let machine = random.below(workload.initiators as u64) as usize;
        let stall = Event::Stall {
            machine,
            time: 100 + random.below(900),
        };
        world.plan(random.below(time), stall);
    }
    for _ in 0..workload.aborts {
        let machine = random.below(workload.initiators as u64) as usize;
        world.plan(random.below(time), Event::Abort { machine });
    }
    world.run();
    world.check_end();
    world
}

#[test]
fn without_faults_every_call_completes() {
    let counts = run("no faults", &Workload::default());
    assert_eq!(counts["completed"], counts["calls"]);
    assert!(counts["pings"] > 0 && counts["announcements"] > 0);
}

#[test]
fn slow_and_lost_control_messages_fail_no_call() {
    let workload = Workload {
        faults: Faults {
            delay: 120,
            control_loss: 15,
            end_loss: 20,
            repair: true,
            timeout: 1200,
            ..Faults::default()
        },
        ..Workload::default()
    };
    let counts = run("lost control", &workload);
    assert_eq!(counts["completed"], counts["calls"]);
    assert!(counts["answers lost"] > 0);
}

#[test]
fn datagrams_overtake_each_other_and_arrive_twice() {
    let workload = Workload {
        faults: Faults {
            delay: 150,
            datagrams: true,
            repair: true,
            timeout: 500,
            ..Faults::default()
        },
        ..Workload::default()
    };
    let counts = run("datagrams", &workload);
    assert_eq!(counts["completed"], counts["calls"]);
    assert!(counts["duplicates dropped"] > 0);
}

#[test]
fn large_answers_are_waited_for() {
    let workload = Workload {
        shape: Shape {
            bulk: 1500,
            ..Workload::default().shape
        },
        ..Workload::default()
    };
    let counts = run("large answers", &workload);
    assert_eq!(counts["completed"], counts["calls"]);
}

#[test]
fn calls_end_when_servers_crash() {
    let workload = Workload {
        crashes: 2,
        ..Workload::default()
    };
    let counts = run("crashes", &workload);
    assert!(counts["failed: silent"] > 0 && counts["completed"] > 0);
}

#[test]
fn calls_end_when_servers_crash_and_come_back() {
    let workload = Workload {
        crashes: 3,
        restarts: true,
        ..Workload::default()
    };
    let counts = run("restarts", &workload);
    assert!(counts["failed: silent"] > 0 && counts["completed"] > 0);
}

#[test]
fn answers_lost_with_their_connection_are_sent_again() {
    let workload = Workload {
        cuts: 6,
        ..Workload::default()
    };
    let counts = run("cut connections", &workload);
    assert!(counts["responses sent again"] > 0);
}

#[test]
fn cut_connections_and_crashes_together() {
    let workload = Workload {
        cuts: 5,
        crashes: 2,
        restarts: true,
        shape: Shape {
            bulk: 300,
            ..Workload::default().shape
        },
        ..Workload::default()
    };
    let counts = run("cuts and crashes", &workload);
    assert!(counts["sessions cut"] > 0 && counts["crashes"] > 0);
}

#[test]
fn a_paused_initiator_fails_no_call() {
    let workload = Workload {
        stalls: 2,
        ..Workload::default()
    };
    let counts = run("pauses", &workload);
    assert_eq!(counts["completed"], counts["calls"]);
}

#[test]
fn aborted_calls_become_quiet() {
    let workload = Workload {
        aborts: 3,
        calls: 4,
        ..Workload::default()
    };
    let counts = run("aborts", &workload);
    assert_eq!(counts["quiet"], counts["aborted"]);
    assert_eq!(counts["completed"] + counts["aborted"], counts["calls"]);
    assert!(counts["handlers stopped"] > 0);
}

#[test]
fn aborts_and_crashes_together() {
    let workload = Workload {
        aborts: 2,
        crashes: 2,
        restarts: true,
        ..Workload::default()
    };
    run("aborts and crashes", &workload);
}

#[test]
fn several_initiators_with_many_calls() {
    let workload = Workload {
        machines: 7,
        initiators: 3,
        calls: 24,
        crashes: 1,
        restarts: true,
        shape: Shape {
            servers: (3, 7),
            ..Workload::default().shape
        },
        ..Workload::default()
    };
    run("several initiators", &workload);
}

/// A server delegates twice and is gone; its manifest travels to the second child, whose end takes it along and is lost with its
/// connection. That child's server still holds it, and tells all of it when the connection has ended (PROTOCOL-NOTES 12, 17).
#[test]
fn a_manifest_that_was_carried_is_told_with_the_end_that_was_lost() {
    let faults = Faults {
        delay: 1,
        end_loss: 100,
        repair: true,
        timeout: 500,
        ..Faults::default()
    };
    let mut world = World::new(1, 4, faults);
    let (initiator, parent, answers, ends) = (0, 1, 2, 3);
    let answer = Plan {
        acts: vec![],
        ending: Ending::Respond(0),
    };
    let plan = Plan {
        acts: vec![(0, Act::Delegate(answers, answer))],
        ending: Ending::Forward(ends, Box::default()),
    };
    let call = Event::Call {
        machine: initiator,
        plans: vec![(parent, plan)],
    };
    world.plan(0, call);
    // Before anybody asks it.
    world.plan(90, Event::Crash { machine: parent });
    let between = (initiator, ends);
    world.plan(150, Event::Cut { between });
    world.run();
    world.check_end();
    assert_eq!(world.oracle.counts["answers lost"], 1);
    assert_eq!(world.oracle.counts.get("completed"), Some(&1));
}

#[test]
fn servers_stop_when_the_initiator_is_dead() {
    let workload = Workload {
        machines: 6,
        initiators: 2,
        calls: 6,
        crashes: 2,
        shape: Shape {
            servers: (0, 6),
            act: 3000,
            ..Workload::default().shape
        },
        ..Workload::default()
    };
    let counts = run("dead initiators", &workload);
    assert!(counts["handlers stopped"] > 0);
}
