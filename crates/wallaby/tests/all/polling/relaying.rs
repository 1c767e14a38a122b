//! Initiators that cannot be dialled: answers come back along the way their requests went, or wait for another one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use wallaby::codec::Postcard;
use wallaby::polling::{Builder, Call, CallOptions, Endpoint, Event, Limits};
use wallaby::{Address, Many};

use super::alone::{LONG, work};
use super::world::{Link, World};

type Words = Call<Many<String>, Postcard>;

/// Nobody is there.
fn elsewhere() -> Address {
    "udp://10.9.9.9:9".parse().expect("an address")
}

/// An initiator whose address leads nowhere.
fn initiator(world: &World, builder: Builder) -> Endpoint<Link> {
    world.bind(builder.advertise(elsewhere()))
}

fn begin(client: &mut Endpoint<Link>, at: Address) -> Words {
    let call = client.call(at, work::many("hop".into()), &CallOptions::default());
    call.expect("it is sent")
}

/// Answers some words by itself and hands the rest on.
fn link(world: &World, next: Option<Address>, words: usize) -> Endpoint<Link> {
    let mut server = world.bind(Endpoint::builder());
    let served = server.serve(&work::MANY, move |mut request, (what,)| {
        for word in 0..words {
            request.reply(&format!("{what} {word}"))?;
        }
        if let Some(next) = &next {
            request.forward(next.clone(), work::many(format!("{what}.")))?;
        }
        Ok(())
    });
    served.expect("no other has its name");
    server
}

/// The answers of the one call that there is, if it is complete.
fn answers(world: &World, all: &mut [&mut Endpoint<Link>], call: &Words) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        match world.event(all, 0, LONG) {
            Some(Event::Answer(answer)) => found.push(call.read(answer).expect("a word")),
            Some(Event::Complete { statuses: 0, .. }) => break,
            other => panic!("{other:?} after {found:?}"),
        }
    }
    found.sort();
    found
}

#[test]
fn answers_come_back_along_the_way_of_their_requests() {
    let world = World::new(70);
    let mut client = initiator(&world, Endpoint::builder());
    let mut last = link(&world, None, 40);
    let mut middle = link(&world, Some(last.address()), 30);
    let mut first = link(&world, Some(middle.address()), 20);
    for _ in 0..3 {
        let call = begin(&mut client, first.address());
        let all = &mut [&mut client, &mut first, &mut middle, &mut last];
        assert_eq!(answers(&world, all, &call).len(), 90);
    }
    assert!(first.metrics().relayed >= 3 * 70, "{:?}", first.metrics());
    assert!(middle.metrics().relayed >= 3 * 40, "{:?}", middle.metrics());
    assert_eq!(
        first.metrics().undeliverable + middle.metrics().undeliverable,
        0
    );
}

#[test]
fn answers_of_a_call_that_nobody_reads_wait_and_hold_no_other_up() {
    let world = World::new(71);
    let mut client = initiator(&world, Endpoint::builder());
    let mut last = link(&world, None, 30_000);
    let mut first = link(&world, Some(last.address()), 0);
    let slow = begin(&mut client, first.address());
    let end = world.now() + Duration::from_secs(2);
    while world.now() < end {
        world.step(
            &mut [&mut client, &mut first, &mut last],
            Duration::from_millis(5),
        );
    }
    let passed = first.metrics().relayed;
    assert!(
        passed < 30_000,
        "what is not taken is not granted: {passed}"
    );
    // All that was granted of the first call waits; the next one goes by.
    let quick = begin(&mut client, last.address());
    let (mut slow_words, mut quick_words, mut ended) = (0, 0, 0);
    while ended < 2 {
        match world.event(&mut [&mut client, &mut first, &mut last], 0, LONG) {
            Some(Event::Answer(answer)) if slow.owns(&answer) => slow_words += 1,
            Some(Event::Answer(answer)) if quick.owns(&answer) => quick_words += 1,
            Some(Event::Complete { statuses: 0, .. }) => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((slow_words, quick_words), (30_000, 30_000));
}

/// A call whose first server is gone when the second one, which holds its request, answers.
fn cut_off(seed: u64) -> (World, Endpoint<Link>, Endpoint<Link>, Words) {
    let world = World::new(seed);
    let mut client = initiator(&world, Endpoint::builder());
    let mut last = world.bind(Endpoint::builder());
    let aside = Rc::new(RefCell::new(Vec::new()));
    let keys = aside.clone();
    let served = last.serve(&work::MANY, move |request, _| {
        keys.borrow_mut().push(request.hold());
        Ok(())
    });
    served.expect("no other has its name");
    let mut first = link(&world, Some(last.address()), 0);
    let call = begin(&mut client, first.address());
    while aside.borrow().is_empty() {
        world.step(&mut [&mut client, &mut first, &mut last], LONG);
    }
    first.kill();
    world.step(&mut [&mut last], LONG);
    let key = aside.borrow_mut().pop().expect("it came");
    let request = last.request(key).expect("it waits");
    request.respond("late".into()).expect("it waits for a way");
    (world, client, last, call)
}

/// Its answers wait until the initiator connects there for something else, and is asked to prove who it is.
#[test]
fn answers_wait_until_their_initiator_comes_by_another_way() {
    let (world, mut client, mut last, call) = cut_off(72);
    let nothing = world.event(&mut [&mut client, &mut last], 0, Duration::from_millis(400));
    assert_eq!(nothing, None);
    assert_eq!(last.metrics().undeliverable, 0, "it waits");
    let other = begin(&mut client, last.address());
    match world.event(&mut [&mut client, &mut last], 0, LONG) {
        Some(Event::Answer(answer)) => assert!(call.owns(&answer) && !other.owns(&answer)),
        other => panic!("{other:?}"),
    }
    match world.event(&mut [&mut client, &mut last], 0, LONG) {
        Some(Event::Complete { call: of, .. }) => assert_eq!(of, call.key()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_that_nobody_comes_for_are_given_up() {
    let (world, client, mut last, _) = cut_off(73);
    drop(client);
    let begun = world.now();
    while last.metrics().undeliverable == 0 {
        world.step(&mut [&mut last], Duration::from_secs(1));
        assert!(world.now() < begun + Duration::from_secs(15));
    }
    assert!(world.now() > begun + Duration::from_secs(10));
}

/// Each hop tells of itself, through whomever its answers come.
#[test]
fn a_traced_call_tells_its_tree_at_the_end() {
    let world = World::new(74);
    let mut client = initiator(&world, Endpoint::builder());
    let mut last = link(&world, None, 1);
    let mut middle = link(&world, Some(last.address()), 0);
    let mut first = link(&world, Some(middle.address()), 2);
    let mut options = CallOptions::default();
    options.traced = true;
    let call = client.call(first.address(), work::many("hop".into()), &options);
    let call = call.expect("it is sent");
    let servers = [first.address(), middle.address(), last.address()];
    let all = &mut [&mut client, &mut first, &mut middle, &mut last];
    let (mut answers, mut traces) = (0, Vec::new());
    loop {
        match world.event(all, 0, LONG) {
            Some(Event::Answer(_)) => answers += 1,
            Some(Event::Trace { call: of, trace }) => {
                assert_eq!(of, call.key());
                traces.push(*trace);
            }
            Some(Event::Complete { call: of, .. }) if of == call.key() => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((answers, traces.len()), (3, 1));
    let trace = &traces[0];
    let told: Vec<_> = trace.hops.iter().map(|hop| hop.server.clone()).collect();
    assert_eq!(told, servers.map(Some), "{trace:#?}");
    for hop in &trace.hops {
        let timing = hop.timing.expect("it has told");
        assert!(timing.arrived <= trace.elapsed, "{trace:#?}");
        assert_eq!(hop.method.as_deref(), Some(work::MANY.name()));
    }
    assert_eq!(trace.hops.last().map(|hop| hop.responses), Some(3));
    assert!(trace.to_string().contains("answered"), "{trace}");
}

/// Who takes nothing has its share of the room for answers that wait, and leaves the rest to others.
#[test]
fn who_takes_no_answers_leaves_room_for_those_of_others() {
    let world = World::new(75);
    let mut limits = Limits::default();
    limits.waiting = 64 << 10;
    let mut server = world.bind(Endpoint::builder().limits(limits));
    let full = Rc::new(RefCell::new(0));
    let refused = full.clone();
    let served = server.serve(&work::MANY, move |mut request, (count,)| {
        let word = "x".repeat(1000);
        for _ in 0..count.parse().expect("a number") {
            if request.reply(&word).is_err() {
                *refused.borrow_mut() += 1;
            }
        }
        Ok(())
    });
    served.expect("no other has its name");
    let mut narrow = Limits::default();
    narrow.call = 1;
    let mut greedy = world.bind(Endpoint::builder().limits(narrow));
    for _ in 0..20 {
        let call = greedy.call(
            server.address(),
            work::many("30".into()),
            &CallOptions::default(),
        );
        call.expect("it is sent");
    }
    let end = world.now() + Duration::from_millis(300);
    while world.now() < end {
        world.step(&mut [&mut greedy, &mut server], Duration::from_millis(5));
    }
    assert!(*full.borrow() > 0, "there is a limit");
    *full.borrow_mut() = 0;
    let mut narrow = Limits::default();
    narrow.call = 1;
    let mut modest = world.bind(Endpoint::builder().limits(narrow));
    let call = modest.call(
        server.address(),
        work::many("5".into()),
        &CallOptions::default(),
    );
    let call = call.expect("it is sent");
    assert_eq!(
        answers(&world, &mut [&mut modest, &mut server], &call).len(),
        5
    );
    assert_eq!(*full.borrow(), 0, "others have room");
}

/// An endpoint that calls itself waits for its application, too.
#[test]
fn answers_to_oneself_wait_until_they_are_taken() {
    let world = World::new(77);
    let mut limits = Limits::default();
    limits.call = 10_000;
    let mut alone = world.bind(Endpoint::builder().limits(limits));
    let aside = Rc::new(RefCell::new(None));
    let key = aside.clone();
    let served = alone.serve(&work::MANY, move |request, _| {
        *key.borrow_mut() = Some(request.hold());
        Ok(())
    });
    served.expect("no other has its name");
    let own = alone.address();
    let call = begin(&mut alone, own);
    let (mut sent, mut taken, mut has_room) = (0, 0, true);
    while taken < 1000 {
        world.step(&mut [&mut alone], Duration::from_millis(1));
        let held = aside.borrow().filter(|_| has_room);
        if let Some(mut request) = held.and_then(|key| alone.request(key)) {
            has_room = false;
            let before = sent;
            while sent < 1000 && request.reply(bytes::Bytes::from(vec![7; 436])).is_ok() {
                sent += 1;
            }
            assert!(sent - before <= 22, "{} at once", sent - before);
            request.flush();
            match sent {
                1000 => {}
                _ => *aside.borrow_mut() = Some(request.hold()),
            }
        }
        while let Some(event) = alone.next_event() {
            match event {
                Event::Answer(answer) => taken += u32::from(call.owns(&answer)),
                Event::Complete { .. } => assert_eq!(taken, 1000),
                Event::Room { .. } => has_room = true,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A server passes on pings of others, and makes calls of its own, with the same numbers. A ping that finds nobody shows its token
/// to no server of those: they would answer, and that would be passed on.
#[test]
fn pings_of_others_do_not_go_to_servers_of_own_calls() {
    let world = World::new(78);
    let mut client = initiator(&world, Endpoint::builder());
    let mut other = world.bind(Endpoint::builder());
    let mut last = world.bind(Endpoint::builder());
    let came = Rc::new(Cell::new(0));
    for server in [&mut other, &mut last] {
        let came = came.clone();
        let served = server.serve(&work::MANY, move |request, _| {
            came.set(came.get() + 1);
            request.hold();
            Ok(())
        });
        served.expect("no other has its name");
    }
    let mut first = link(&world, Some(last.address()), 0);
    begin(&mut first, other.address());
    begin(&mut client, first.address());
    while came.get() < 2 {
        world.step(&mut [&mut client, &mut first, &mut other, &mut last], LONG);
    }
    // Long enough that the client knows of the last server.
    let asked = world.now() + Duration::from_secs(2);
    while world.now() < asked {
        world.step(&mut [&mut client, &mut first, &mut other, &mut last], LONG);
    }
    drop(last);
    let end = world.now() + Duration::from_secs(8);
    while world.now() < end {
        world.step(&mut [&mut client, &mut first, &mut other], LONG);
    }
    assert_eq!(first.metrics().relayed, 0);
}
