//! What a gate and its sessions tell their driver: counts, whether there is something to send, what has arrived.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::{Carrier, Mark};
use wallaby_proto::connection::{Charge, ConnectionLimits, Event};
use wallaby_proto::datagram::{GateSettings, MAX_MESSAGE};
use wallaby_proto::wire::Message;

use crate::datagram::messages::{method, node, ping, request, response};
use crate::datagram::session::pair;
use crate::datagram::world::{Flying, Network, World, address};

const LATER: Duration = Duration::from_secs(1);

fn payload(len: usize) -> Bytes {
    vec![7; len].into()
}

#[test]
fn what_came_and_went_is_counted() {
    let (mut world, at_1, at_2) = pair();
    let before = [1, 2].map(|at| world.gate(at).counters());
    let sessions = |world: &mut World| {
        [(1, at_1), (2, at_2)].map(|(at, id)| world.gate(at).session(id).expect("open").counters())
    };
    let opened = sessions(&mut world);
    world.start_log();
    for sequence in 1..=3 {
        let session = world.gate(1).session(at_1).expect("open");
        let mut message = request(node(1), sequence, payload(100));
        session.send_request(&mut message, &method()).expect("room");
        session
            .send_control(Message::Ping(ping(node(1), sequence)))
            .expect("room");
        let session = world.gate(2).session(at_2).expect("open");
        let message = response(node(1), sequence, payload(50));
        session
            .send_response(&message, Charge::Counted)
            .expect("room");
        world.pass(LATER);
    }
    let log = world.take_log();
    let now = sessions(&mut world);
    for (side, other, messages) in [(0, 1, 6), (1, 0, 3)] {
        let from: Vec<_> = (log.iter())
            .filter(|sent| sent.from == address(side as u64 + 1))
            .collect();
        let gate = world.gate(side as u64 + 1).counters();
        assert_eq!(gate.sent - before[side].sent, from.len() as u64);
        let gate = world.gate(other as u64 + 1).counters();
        assert_eq!(gate.received - before[other].received, from.len() as u64);
        let bytes: usize = from.iter().map(|sent| sent.bytes.len()).sum();
        let (to, of) = (now[other], now[side]);
        assert_eq!(of.bytes_sent - opened[side].bytes_sent, bytes as u64);
        assert_eq!(
            to.bytes_received - opened[other].bytes_received,
            bytes as u64
        );
        assert_eq!(of.messages_sent - opened[side].messages_sent, messages);
        assert_eq!(
            to.messages_received - opened[other].messages_received,
            messages
        );
    }
}

#[test]
fn a_challenge_that_is_not_asked_for_is_stray() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let now = world.now;
    world.gate(1).dial(now, address(2), None).expect("room");
    world.start_log();
    while world.step(now + LATER) {}
    let log = world.take_log();
    let challenge = log.iter().find(|sent| sent.from == address(2));
    let challenge = challenge.expect("the answer to the ask").clone();
    for count in 1..=2 {
        world.fly(challenge.clone());
        world.pass(LATER);
        assert_eq!(world.gate(1).counters().stray, count);
    }
}

#[test]
fn there_is_output_until_all_is_sent() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    assert!(!world.gate(1).has_output());
    let now = world.now;
    world.gate(1).dial(now, address(2), None).expect("room");
    assert!(world.gate(1).has_output(), "an ask");
    let mut bytes = Vec::new();
    let gate = world.gate(1);
    while gate.poll_transmit(now, &mut bytes).is_some() {}
    assert!(!gate.has_output());
    world.fly(Flying {
        to: address(2),
        from: address(1),
        bytes,
    });
    world.transmit();
    assert!(!world.gate(2).has_output());
    let until = world.now + Duration::from_micros(50);
    assert!(world.step(until), "the ask arrives");
    assert!(world.gate(2).has_output(), "a challenge");
    world.transmit();
    assert!(!world.gate(2).has_output());
}

#[test]
fn a_session_is_asked_for_output_only_if_it_may_have_some() {
    let (mut world, at_1, at_2) = pair();
    world.pass(LATER);
    let all = ConnectionLimits::default().requests as usize / MAX_MESSAGE;
    for (requests, is_much) in [(1, false), (all, true)] {
        let gate = world.gate(2);
        for _ in 0..requests {
            assert_eq!(gate.grant_request(at_2, MAX_MESSAGE), Some(()));
        }
        assert_eq!(gate.has_output(), is_much, "credit for {requests} requests");
    }
    world.pass(LATER);
    let session = world.gate(1).session(at_1).expect("open");
    let mut message = request(node(1), 1, payload(10));
    session.send_request(&mut message, &method()).expect("room");
    while world.events(2).is_empty() {
        let until = world.now + LATER;
        assert!(world.step(until), "the request arrives");
    }
    let gate = world.gate(2);
    assert!(!gate.has_output(), "its acknowledgement may wait");
    assert!(gate.next_timeout().is_some(), "until then");
    let nobody = world.gate(1).grant_request(at_2, 10);
    assert_eq!(nobody, None);
}

#[test]
fn messages_are_numbered_and_acknowledged_in_order() {
    let (mut world, at_1, _) = pair();
    let first = world.gate(1).session(at_1).expect("open").acknowledged();
    for sequence in 1..=3 {
        let session = world.gate(1).session(at_1).expect("open");
        let mut message = request(node(1), sequence, payload(10));
        let mark = session.send_request(&mut message, &method()).expect("room");
        assert_eq!(mark, Mark::Written(first + sequence));
        world.pass(LATER);
        let session = world.gate(1).session(at_1).expect("open");
        assert_eq!(session.acknowledged(), first + sequence);
    }
}

/// Those in pieces, too: until the last of them was sent, the message has not left.
#[test]
fn what_was_sent_has_left_though_nobody_acknowledges_it() {
    let (mut world, at_1, _) = pair();
    let session = world.gate(1).session(at_1).expect("open");
    let first = session.left();
    assert_eq!(first, session.acknowledged());
    for (sequence, len) in [(1, 10), (2, 30_000), (3, 10)] {
        let mut message = request(node(1), sequence, payload(len));
        let session = world.gate(1).session(at_1).expect("open");
        session.send_request(&mut message, &method()).expect("room");
        assert_eq!(session.left(), first, "before a datagram was asked for");
    }
    // The window takes not all of it: the large one leaves only as some of it is acknowledged, and the small one behind it
    // counts as having left together with it.
    world.transmit();
    assert_eq!(world.gate(1).session(at_1).expect("open").left(), first + 1);
    world.pass(LATER);
    let session = world.gate(1).session(at_1).expect("open");
    assert_eq!(
        (session.left(), session.acknowledged()),
        (first + 3, first + 3)
    );
    // Nobody is there any more.
    let mut message = request(node(1), 4, payload(10));
    session.send_request(&mut message, &method()).expect("room");
    world.transmit();
    let session = world.gate(1).session(at_1).expect("open");
    assert_eq!(
        (session.left(), session.acknowledged()),
        (first + 4, first + 3)
    );
    // What its window keeps back does not wait for it for ever.
    let mut message = request(node(1), 5, payload(60_000));
    session.send_request(&mut message, &method()).expect("room");
    world.tamper = Some(|datagram| datagram[0] ^= 0xff);
    world.transmit();
    let left = |world: &mut World| world.gate(1).session(at_1).expect("open").left();
    assert_eq!(left(&mut world), first + 4);
    world.pass(Duration::from_secs(2));
    assert_eq!(left(&mut world), first + 5, "five probes were in vain");
}

#[test]
fn messages_of_exactly_the_longest_length_arrive() {
    for message in [100, 1000, 5000] {
        let limits = ConnectionLimits {
            message,
            ..ConnectionLimits::default()
        };
        let mut world = World::new(1, Network::default());
        world.start(1, 1, limits, GateSettings::default());
        world.start(2, 2, limits, GateSettings::default());
        let (at_1, at_2) = world.open();
        let session = world.gate(1).session(at_1).expect("open");
        let mut long = request(node(1), 1, payload(message as usize));
        session.send_request(&mut long, &method()).expect("room");
        let session = world.gate(2).session(at_2).expect("open");
        let long = response(node(1), 1, payload(message as usize));
        session.send_response(&long, Charge::Counted).expect("room");
        let (at_1, at_2) = world.pass(LATER);
        for events in [at_1, at_2] {
            let is_message = |event: &_| matches!(event, (_, Ok(Event::Message(_))));
            assert!(events.iter().any(is_message), "{message}: {events:?}");
        }
    }
}

#[test]
fn datagrams_are_as_long_as_they_may_be_and_no_longer() {
    let (mut world, at_1, _) = pair();
    let mut longest = 0;
    for (sequence, len) in (1..).zip(1050..1200) {
        let session = world.gate(1).session(at_1).expect("open");
        let mut message = request(node(1), sequence, payload(len));
        session.send_request(&mut message, &method()).expect("room");
        world.start_log();
        world.pass(LATER);
        let log = world.take_log();
        longest = log
            .iter()
            .map(|sent| sent.bytes.len())
            .max()
            .max(Some(longest))
            .unwrap_or(0);
    }
    let most = GateSettings::default().datagram;
    assert!((most - 20..=most).contains(&longest), "{longest}");
}
