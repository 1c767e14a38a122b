//! Who may open a session: cookies, restarts, other versions and nodes, limits.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{ConnectionError, ConnectionLimits, Event};
use wallaby_proto::datagram::{Cause, GateSettings, SessionId};
use wallaby_proto::wire::Message;

use crate::datagram::messages::{hello, method, node, request};
use crate::datagram::session::pair;
use crate::datagram::world::{Flying, Happening, Network, World, address};

const SHORT: Duration = Duration::from_millis(1);

/// How the one session ended that something happened to.
fn cause(events: &[Happening]) -> Cause {
    match events {
        [(_, Err(ended))] => ended.cause.clone(),
        events => panic!("{events:?}"),
    }
}

fn messages(events: &[Happening]) -> usize {
    let message = |event: &&Happening| matches!(event.1, Ok(Event::Message(_)));
    events.iter().filter(message).count()
}

fn dial(world: &mut World, from: u64, to: u64) -> SessionId {
    let now = world.now;
    world.gate(from).dial(now, address(to), None).expect("room")
}

fn send(world: &mut World, from: u64, session: SessionId, sequence: u64) {
    send_as(world, from, from, session, sequence);
}

/// Sends a request of this incarnation from this address.
fn send_as(world: &mut World, incarnation: u64, from: u64, session: SessionId, sequence: u64) {
    let mut request = request(node(incarnation), sequence, Bytes::from_static(b"work"));
    let session = world.gate(from).session(session).expect("open");
    session.send_request(&mut request, &method()).expect("room");
}

#[test]
fn the_expected_node_is_reached_or_nobody() {
    for (expected, opens) in [(2, true), (3, false)] {
        let mut world = World::pair(Network::default(), GateSettings::default());
        let now = world.now;
        world
            .gate(1)
            .dial(now, address(2), Some(node(expected)))
            .expect("room");
        let (events, others) = world.pass(Duration::from_secs(1));
        if opens {
            assert!(matches!(&events[..], [(_, Ok(Event::Opened(peer)))] if peer.node == node(2)));
        } else {
            let error = ConnectionError::WrongNode {
                expected: node(3),
                found: node(2),
            };
            assert_eq!(cause(&events), Cause::Handshake(error));
            assert!(others.is_empty(), "nothing was sent to it");
        }
    }
}

#[test]
fn the_acceptor_sees_whom_the_dialer_expects_and_who_it_is() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let now = world.now;
    let at_1 = world
        .gate(1)
        .dial(now, address(2), Some(node(2)))
        .expect("room");
    let (_, events) = world.pass(SHORT);
    let [(at_2, Ok(Event::Opened(peer)))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((peer.node, peer.expected), (node(1), Some(node(2))));
    let at_2 = *at_2;
    assert_eq!(world.gate(2).peek(at_2).expect("open").remote(), address(1));
    let theirs = world
        .gate(1)
        .peek(at_1)
        .expect("open")
        .peer()
        .expect("open")
        .node;
    assert_eq!(theirs, node(2));
}

#[test]
fn another_version_is_told() {
    let mut world = World::new(1, Network::default());
    let mut newer = hello(node(2), ConnectionLimits::default());
    newer.versions = (7, 9);
    world.start(1, 1, ConnectionLimits::default(), GateSettings::default());
    world.start_as(2, newer, GateSettings::default());
    dial(&mut world, 1, 2);
    let (events, others) = world.pass(Duration::from_secs(1));
    let Cause::Handshake(ConnectionError::Version { theirs, .. }) = cause(&events) else {
        panic!("{events:?}")
    };
    assert_eq!(theirs, (7, 9));
    assert!(others.is_empty());
}

#[test]
fn nobody_there_is_told_after_a_while_and_at_once_if_the_network_knows() {
    let mut world = World::new(1, Network::default());
    world.start(1, 1, ConnectionLimits::default(), GateSettings::default());
    dial(&mut world, 1, 2);
    world.start_log();
    world.pass(Duration::from_millis(9_900));
    let (events, _) = world.pass(Duration::from_millis(200));
    assert!(matches!(cause(&events), Cause::NoAnswer(_)), "{events:?}");
    let asks = world.take_log().len();
    assert!((45..=55).contains(&asks), "{asks} asks");

    dial(&mut world, 1, 2);
    world.transmit();
    let now = world.now;
    world.gate(1).handle_unreachable(now, address(2));
    assert_eq!(cause(&world.events(1)), Cause::Unreachable);
    assert!(world.gate(1).is_empty());
}

#[test]
fn a_forged_unreachable_ends_no_open_session() {
    let (mut world, at_1, _) = pair();
    for _ in 0..100 {
        let now = world.now;
        world.gate(1).handle_unreachable(now, address(2));
        let (events, _) = world.pass(SHORT);
        assert!(events.is_empty(), "{events:?}");
    }
    assert!(world.gate(1).session(at_1).is_some());
}

#[test]
fn a_restarted_server_is_noticed_with_the_first_message_and_never_gets_it() {
    let (mut world, at_1, _) = pair();
    send(&mut world, 1, at_1, 1);
    world.pass(Duration::from_secs(1));
    world.start(2, 20, ConnectionLimits::default(), GateSettings::default());
    send(&mut world, 1, at_1, 2);
    let (events, others) = world.pass(SHORT);
    let expected = Cause::Restarted {
        was: node(2),
        now: node(20),
    };
    assert_eq!(cause(&events), expected);
    let [(_, Err(ended))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        ended.pending.len(),
        1,
        "only the second one was not acknowledged"
    );
    assert!(ended.pending[0].sent);
    assert!(others.is_empty(), "{others:?}");
    world.pass(Duration::from_secs(30));
    assert_eq!(messages(&world.events(2)), 0);
}

#[test]
fn a_restarted_client_ends_its_former_sessions() {
    let (mut world, _, at_2) = pair();
    world.start(1, 10, ConnectionLimits::default(), GateSettings::default());
    dial(&mut world, 1, 2);
    let (_, events) = world.pass(SHORT);
    let [(ended, Err(error)), (opened, Ok(Event::Opened(peer)))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((*ended, peer.node), (at_2, node(10)));
    assert_ne!(*opened, at_2);
    let expected = Cause::Restarted {
        was: node(1),
        now: node(10),
    };
    assert_eq!(error.cause, expected);
}

#[test]
fn a_former_incarnation_that_comes_late_opens_nothing_and_ends_nothing() {
    // Incarnation 1 is about to open a session with a request; its datagrams are held up on the way.
    let mut world = World::pair(Network::default(), GateSettings::default());
    let at_1 = dial(&mut world, 1, 2);
    while world.events(1).is_empty() {
        assert!(world.step(world.now + SHORT));
    }
    send(&mut world, 1, at_1, 1);
    let late = held_up(&mut world, 1);
    assert!(!late.is_empty());
    // Incarnation 10 takes its place and talks to the server.
    world.pass(SHORT);
    world.start(1, 10, ConnectionLimits::default(), GateSettings::default());
    let at_1 = dial(&mut world, 1, 2);
    let (_, events) = world.pass(SHORT);
    assert!(matches!(events[..], [(_, Ok(Event::Opened(_)))]));
    late.into_iter().for_each(|datagram| world.fly(datagram));
    let (events_1, events_2) = world.pass(SHORT);
    assert!(events_1.is_empty() && events_2.is_empty(), "{events_2:?}");
    send_as(&mut world, 10, 1, at_1, 2);
    let (_, events) = world.pass(SHORT);
    assert_eq!(
        messages(&events),
        1,
        "the new incarnation's session lives on"
    );
}

/// Takes the datagrams that a gate sends now off the network.
fn held_up(world: &mut World, at: u64) -> Vec<Flying> {
    let now = world.now;
    let mut datagrams = Vec::new();
    loop {
        let mut bytes = Vec::new();
        let Some(transmit) = world.gate(at).poll_transmit(now, &mut bytes) else {
            return datagrams;
        };
        datagrams.push(Flying {
            to: transmit.to,
            from: address(at),
            bytes,
        });
    }
}

#[test]
fn nothing_of_an_ended_session_is_accepted_again() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    world.start_log();
    let at_1 = dial(&mut world, 1, 2);
    world.pass(SHORT);
    for sequence in 1..=10 {
        send(&mut world, 1, at_1, sequence);
        let (_, events) = world.pass(SHORT);
        assert_eq!(messages(&events), 1);
    }
    world.gate(1).session(at_1).expect("open").close("done");
    world.pass(Duration::from_secs(2));
    assert!(world.gate(2).is_empty());
    let log = world.take_log();
    // Soon, when its cookie would still be good, and later; and to the next incarnation.
    for wait in [0, 5, 60] {
        world.pass(Duration::from_secs(wait));
        log.iter().for_each(|datagram| world.fly(datagram.clone()));
        let (events_1, events_2) = world.pass(SHORT);
        assert!(events_1.is_empty() && events_2.is_empty(), "{events_2:?}");
    }
    world.start(2, 20, ConnectionLimits::default(), GateSettings::default());
    log.into_iter().for_each(|datagram| world.fly(datagram));
    let (_, events) = world.pass(SHORT);
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn asking_leaves_no_state() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    dial(&mut world, 1, 2);
    let mut asks = held_up(&mut world, 1);
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].bytes.len(), 1200);
    world.gates.remove(&address(1));
    for _ in 0..1000 {
        asks[0].from = address(66);
        world.fly(asks[0].clone());
        world.pass(Duration::from_micros(200));
    }
    assert!(world.gate(2).is_empty());
    assert_eq!(world.gate(2).counters().challenged, 1000);
}

#[test]
fn a_cookie_works_only_where_it_was_sent() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let at_1 = dial(&mut world, 1, 2);
    while world.events(1).is_empty() {
        assert!(world.step(world.now + SHORT));
    }
    send(&mut world, 1, at_1, 1);
    for mut stolen in held_up(&mut world, 1) {
        stolen.from = address(66);
        world.fly(stolen);
    }
    world.pass(Duration::from_micros(200));
    assert!(world.gate(2).is_empty());
    assert_eq!(world.gate(2).counters().unknown, 1);
    let (_, events) = world.pass(Duration::from_secs(1));
    assert_eq!(messages(&events), 1, "its owner's works");
}

#[test]
fn no_more_sessions_than_allowed() {
    let settings = GateSettings {
        sessions: 2,
        ..GateSettings::default()
    };
    let mut world = World::new(1, Network::default());
    (1..=4).for_each(|incarnation| {
        world.start(
            incarnation,
            incarnation,
            ConnectionLimits::default(),
            settings,
        )
    });
    let ids: Vec<_> = (1..=3).map(|from| dial(&mut world, from, 4)).collect();
    let until = world.now + SHORT;
    while world.step(until) {}
    assert_eq!(world.gate(4).len(), 2);
    assert_eq!(world.gate(4).counters().refused, 1);
    let refused = |event: &Happening| matches!(&event.1, Err(ended) if ended.cause == Cause::Forgotten(node(4)));
    let told = (1..=3).filter(|at| world.events(*at).iter().any(refused));
    assert_eq!(told.count(), 1, "who is refused learns it at once");
    // A place that is free again is given away again.
    let (at, id) = (1..=3)
        .zip(ids)
        .find(|(at, _)| !world.gate(*at).is_empty())
        .expect("one is open");
    world.gate(at).session(id).expect("open").close("done");
    world.pass(SHORT);
    let free = (1..=3).find(|other| *other != at && world.gate(*other).is_empty());
    dial(&mut world, free.expect("the refused one"), 4);
    world.pass(SHORT);
    assert_eq!(world.gate(4).len(), 2);

    let now = world.now;
    let mut dialled = 0;
    while world.gate(4).dial(now, address(9), None).is_ok() {
        dialled += 1;
    }
    assert_eq!(dialled, 2);
    let error = world.gate(4).dial(now, address(9), None).expect_err("full");
    assert_eq!(
        error.to_string(),
        "2 sessions are open, more are not allowed"
    );
}

#[test]
fn both_sides_may_open_a_session_at_the_same_time() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let (a, b) = (dial(&mut world, 1, 2), dial(&mut world, 2, 1));
    let (events_1, events_2) = world.pass(SHORT);
    assert_eq!((events_1.len(), events_2.len()), (2, 2));
    send(&mut world, 1, a, 1);
    send(&mut world, 2, b, 1);
    let (events_1, events_2) = world.pass(SHORT);
    assert_eq!((messages(&events_1), messages(&events_2)), (1, 1));
    for event in events_1.into_iter().chain(events_2) {
        if let (_, Ok(Event::Message(Message::Request(request)))) = event {
            assert_eq!(request.payload, "work");
        }
    }
}
