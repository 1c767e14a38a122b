//! Calls that are random trees, over links that lose datagrams: each completes with exactly the answers that its tree says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby::polling::{Builder, CallKey, Endpoint, Event, RawRequest, RequestKey, Sizes};
use wallaby::{Address, MethodDefinition, SendError, Status};

use super::world::{Faults, Link, World};

fn method() -> Arc<MethodDefinition> {
    Arc::new(MethodDefinition::new("test.Tree/grow", "raw", 0, 0).expect("a name"))
}

/// What a request does, one after the other. As bytes: each act is its kind, a number, and for some a length and bytes.
#[derive(Debug, Clone)]
enum Act {
    Reply(u16),
    Delegate(u8, Vec<Self>),
    /// It is put aside for so many milliseconds.
    Hold(u16),
    Respond(u16),
    Forward(u8, Vec<Self>),
    Fail(u16),
}

fn encode(acts: &[Act]) -> Vec<u8> {
    let mut out = Vec::new();
    let put = |out: &mut Vec<u8>, kind: u8, number: u16| {
        out.push(kind);
        out.extend_from_slice(&number.to_be_bytes());
    };
    for act in acts {
        match act {
            Act::Reply(number) => put(&mut out, 0, *number),
            Act::Hold(millis) => put(&mut out, 1, *millis),
            Act::Respond(number) => put(&mut out, 2, *number),
            Act::Fail(number) => put(&mut out, 3, *number),
            Act::Delegate(to, acts) | Act::Forward(to, acts) => {
                let kind = if matches!(act, Act::Delegate(..)) {
                    5
                } else {
                    6
                };
                put(&mut out, kind, u16::from(*to));
                let inner = encode(acts);
                out.extend_from_slice(&(inner.len() as u16).to_be_bytes());
                out.extend_from_slice(&inner);
            }
        }
    }
    out
}

/// The answers of a tree, and how many statuses.
fn expected(acts: &[Act], answers: &mut Vec<u16>) -> u64 {
    let mut statuses = 0;
    for act in acts {
        match act {
            Act::Reply(number) | Act::Respond(number) => answers.push(*number),
            Act::Delegate(_, acts) | Act::Forward(_, acts) => statuses += expected(acts, answers),
            Act::Fail(_) => statuses += 1,
            Act::Hold(_) => {}
        }
    }
    statuses
}

/// Random acts of a request. Before a failure comes a pause: what is held back then would not be sent.
fn grow(world: &World, servers: u64, depth: u32, next: &mut u16) -> Vec<Act> {
    let mut acts = Vec::new();
    let number = |next: &mut u16| {
        *next += 1;
        *next
    };
    for _ in 0..world.random(4) {
        acts.push(match world.random(4) {
            0 => Act::Hold(world.random(40) as u16),
            1 if depth > 0 => {
                let to = world.random(servers) as u8;
                Act::Delegate(to, grow(world, servers, depth - 1, next))
            }
            _ => Act::Reply(number(next)),
        });
    }
    match world.random(8) {
        0 | 1 => acts.push(Act::Respond(number(next))),
        2 | 3 if depth > 0 => {
            let to = world.random(servers) as u8;
            acts.push(Act::Forward(to, grow(world, servers, depth - 1, next)));
        }
        4 => acts.extend([Act::Hold(1), Act::Fail(number(next))]),
        _ => {}
    }
    acts
}

/// Requests that are put aside, with what is left to do, and when they go on.
type Aside = Rc<RefCell<Vec<(Duration, RequestKey, Vec<u8>)>>>;

/// Carries out acts until the request ends or is put aside.
fn act(
    mut request: RawRequest<'_>,
    acts: &[u8],
    servers: &[Address],
    (world, aside): (&World, &Aside),
) -> Result<(), Status> {
    let mut acts = acts;
    while let [kind, high, low, rest @ ..] = acts {
        let number = u16::from_be_bytes([*high, *low]);
        acts = rest;
        let answer = Bytes::copy_from_slice(&number.to_be_bytes());
        match kind {
            0 => request.reply(answer)?,
            1 => {
                let due = world.now() + Duration::from_millis(number.into());
                let key = request.hold();
                aside.borrow_mut().push((due, key, acts.to_vec()));
                return Ok(());
            }
            2 => return Ok(request.respond(answer)?),
            3 => {
                // Once it was put aside, no handler is there that could return it.
                request.fail(&Status::new(wallaby::Code::Aborted, number.to_string()));
                return Ok(());
            }
            kind => {
                let (length, rest) = acts.split_at(2);
                let length = u16::from_be_bytes([length[0], length[1]]) as usize;
                let (inner, rest) = rest.split_at(length);
                acts = rest;
                let to = servers[number as usize].clone();
                let inner = Bytes::copy_from_slice(inner);
                match kind {
                    5 => request.delegate(to, &method(), inner)?,
                    _ => return Ok(request.forward(to, &method(), inner)?),
                }
            }
        }
    }
    Ok(())
}

struct Forest {
    world: World,
    servers: Vec<Endpoint<Link>>,
    addresses: Vec<Address>,
    aside: Vec<Aside>,
}

/// With a tenth of all datagrams lost, a handshake may take longer than is waited for one by default.
fn patient() -> Builder {
    Endpoint::builder().dial_timeout(Duration::from_secs(20))
}

impl Forest {
    fn new(seed: u64, servers: usize) -> Self {
        let world = World::new(seed);
        let mut servers: Vec<_> = (0..servers).map(|_| world.bind(patient())).collect();
        let addresses: Vec<Address> = servers.iter().map(|server| server.address()).collect();
        let mut all = Vec::new();
        for server in &mut servers {
            let aside = Aside::default();
            all.push(aside.clone());
            let (world, addresses) = (world.clone(), addresses.clone());
            server
                .serve_raw(method(), move |request, payload| {
                    act(request, &payload, &addresses, (&world, &aside))
                })
                .expect("no other has its name");
        }
        Self {
            world,
            servers,
            addresses,
            aside: all,
        }
    }

    /// Lets requests go on whose pauses are over; returns when the next one is.
    fn resume(&mut self) -> Duration {
        let now = self.world.now();
        let mut next = Duration::from_secs(1);
        for (server, aside) in self.servers.iter_mut().zip(&self.aside) {
            let due: Vec<_> = aside
                .borrow_mut()
                .extract_if(.., |(due, ..)| *due <= now)
                .collect();
            for (_, key, acts) in due {
                if let Some(request) = server.request(key) {
                    act(request, &acts, &self.addresses, (&self.world, aside))
                        .expect("it can be sent");
                }
            }
            let soonest = aside.borrow().iter().map(|(due, ..)| *due).min();
            next = next.min(soonest.map_or(next, |due| due - now));
        }
        next
    }

    fn step(&mut self) {
        let next = self.resume();
        let mut servers: Vec<&mut Endpoint<Link>> = self.servers.iter_mut().collect();
        self.world.step(&mut servers, next);
    }
}

/// Runs some calls at a time, each with one or two initial requests, and checks all of their answers.
fn run(seed: u64, faults: Faults) {
    println!("seed {seed}");
    let mut forest = Forest::new(seed, 4);
    forest.world.set_faults(faults);
    let world = forest.world.clone();
    let mut wanted: BTreeMap<CallKey, (Vec<u16>, u64)> = BTreeMap::new();
    let mut got: BTreeMap<CallKey, Vec<u16>> = BTreeMap::new();
    for _ in 0..12 {
        let call = forest.servers[0]
            .begin(&Default::default())
            .expect("there is room");
        let (mut next, mut answers, mut statuses) = (0, Vec::new(), 0);
        for _ in 0..1 + world.random(2) {
            let tree = grow(&world, 4, 3, &mut next);
            statuses += expected(&tree, &mut answers);
            let to = forest.addresses[world.random(4) as usize].clone();
            let payload = encode(&tree).into();
            forest.servers[0]
                .send(call, to, &method(), payload)
                .expect("it is sent");
        }
        forest.servers[0].close_call(call);
        answers.sort_unstable();
        wanted.insert(call, (answers, statuses));
    }
    let end = world.now() + Duration::from_secs(60);
    while !wanted.is_empty() {
        assert!(
            world.now() < end,
            "seed {seed}: {wanted:?} do not end, {got:?}"
        );
        while let Some(event) = forest.servers[0].next_event() {
            match event {
                Event::Answer(answer) => {
                    let call = answer.call;
                    match answer.payload() {
                        Ok(payload) => {
                            let number = u16::from_be_bytes([payload[0], payload[1]]);
                            got.entry(call).or_default().push(number);
                        }
                        Err(status) => println!("{call:?}: {status}"),
                    }
                }
                Event::Complete { call, statuses } => {
                    let mut got = got.remove(&call).unwrap_or_default();
                    got.sort_unstable();
                    let wanted = wanted.remove(&call).expect("it ends once");
                    assert_eq!((got, statuses), wanted, "seed {seed}");
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        forest.step();
    }
    // What servers remember of calls that are over goes, and so do the requests that are put aside.
    assert!(
        forest
            .servers
            .iter()
            .all(|server| server.sizes().requests == 0)
    );
    assert_eq!(forest.servers[0].sizes().calls, 0);
}

#[test]
fn trees_complete_with_all_their_answers() {
    for seed in 0..60 {
        run(seed, Faults::default());
    }
}

#[test]
fn trees_complete_though_datagrams_are_lost_doubled_damaged_and_late() {
    for seed in 0..60 {
        run(
            seed,
            Faults {
                lost: 100,
                doubled: 50,
                damaged: 20,
                jitter: 3000,
                full: 100,
            },
        );
    }
}

#[test]
fn trees_complete_though_sockets_have_no_room() {
    for seed in 0..60 {
        let full = 200 + seed * 10;
        run(
            seed,
            Faults {
                full,
                ..Faults::default()
            },
        );
    }
}

/// In half a second much is lost, and calls with a short patience fail, but all end, and nothing stays behind.
#[test]
fn what_cannot_complete_fails_and_nothing_stays_behind() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut forest = Forest::new(seed, 4);
        let world = forest.world.clone();
        let options = wallaby::polling::CallOptions::default();
        let (mut open, mut next) = (0, 0);
        for _ in 0..8 {
            let tree = grow(&world, 4, 3, &mut next);
            let to = forest.addresses[world.random(4) as usize].clone();
            forest.servers[0]
                .call_raw(to, &method(), encode(&tree).into(), &options)
                .expect("it is sent");
            open += 1;
        }
        let lonely = forest.addresses[1 + world.random(3) as usize].clone();
        let cut_at = Duration::from_millis(world.random(100));
        let mut cut = false;
        let end = Duration::from_secs(120);
        while open > 0 {
            assert!(world.now() < end, "seed {seed}: {open} calls do not end");
            if !cut && world.now() >= cut_at {
                world.cut(&lonely, true);
                cut = true;
            }
            while let Some(event) = forest.servers[0].next_event() {
                open -= u32::from(matches!(
                    event,
                    Event::Complete { .. } | Event::Failed { .. }
                ));
            }
            forest.step();
        }
        // Servers that were cut off learn it too: nobody asks about their requests any more.
        world.cut(&lonely, false);
        let end = world.now() + Duration::from_secs(60);
        while world.now() < end {
            while forest
                .servers
                .iter_mut()
                .any(|server| server.next_event().is_some())
            {}
            forest.step();
        }
        for server in &forest.servers {
            let Sizes {
                calls,
                requests: held,
                ..
            } = server.sizes();
            assert_eq!((calls, held), (0, 0), "seed {seed}");
        }
    }
}

/// A handler may not send more once too much waits, and is told so.
#[test]
fn what_waits_for_a_peer_is_bounded() {
    let world = World::new(1);
    let mut limits = wallaby::polling::Limits::default();
    limits.waiting = 4000;
    let mut server = world.bind(Endpoint::builder().limits(limits));
    let mut client = world.bind(Endpoint::builder());
    let nowhere = Address::Udp(([10, 0, 0, 9], 1).into());
    let full = Rc::new(RefCell::new(0));
    let noted = full.clone();
    server
        .serve_raw(method(), move |mut request, _| {
            for _ in 0..10 {
                let delegated = request.delegate(nowhere.clone(), &method(), vec![0; 1000].into());
                if delegated == Err(SendError::Full) {
                    *noted.borrow_mut() += 1;
                }
            }
            Ok(())
        })
        .expect("no other has its name");
    let to = server.address();
    client
        .call_raw(to, &method(), Bytes::new(), &Default::default())
        .expect("it is sent");
    let mut statuses = 0;
    loop {
        let event = world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(10));
        match event.expect("it ends") {
            Event::Answer(answer) => {
                let error = answer.payload().expect_err("nobody is there");
                let status = error.status().expect("a status");
                assert_eq!(status.code(), wallaby::Code::Unavailable);
                statuses += 1;
            }
            Event::Complete { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    // One was held back each time, until the next one came.
    assert_eq!((statuses, *full.borrow()), (4, 6));
}
