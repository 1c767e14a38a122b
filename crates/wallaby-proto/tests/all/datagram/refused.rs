//! Datagrams that are refused: each is counted for its reason, and the session goes on.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionError, ConnectionLimits, Event};
use wallaby_proto::datagram::{Cause, GateCounters, GateSettings, MAX_MESSAGE, SessionId};
use wallaby_proto::wire::Message;

use crate::datagram::hostile::reseal;
use crate::datagram::messages::{method, node, ping, request, response};
use crate::datagram::session::pair;
use crate::datagram::world::{Flying, Network, World, address};

const LATER: Duration = Duration::from_secs(1);

/// A pair, and the bytes that any packet of node 1 in its session begins with.
fn known_session() -> (World, SessionId, Vec<u8>) {
    let (mut world, at_1, _) = pair();
    world.start_log();
    send(&mut world, at_1, 1);
    world.pass(LATER);
    let log = world.take_log();
    let packet = log.iter().find(|sent| sent.from == address(1));
    let mut bytes = packet.expect("the request").bytes[..9].to_vec();
    assert_eq!(bytes[0] & 0xf0, 0x10, "a packet of an open session");
    bytes[0] = 0x10;
    (world, at_1, bytes)
}

fn send(world: &mut World, session: SessionId, sequence: u64) {
    let session = world.gate(1).session(session).expect("open");
    let mut message = request(node(1), sequence, Bytes::from_static(b"work"));
    session.send_request(&mut message, &method()).expect("room");
}

/// Gives gate 2 a datagram that has so many bytes in front of its checksum.
fn give(world: &mut World, from: SocketAddr, bytes: &[u8]) {
    let mut bytes = [bytes, &[0; 4]].concat();
    reseal(&mut bytes);
    let now = world.now;
    world.gate(2).handle_datagram(now, from, bytes.into());
}

/// What gate 2 has counted since `before`, of what may be refused.
fn counted(world: &mut World, before: GateCounters) -> [u64; 6] {
    let now = world.gate(2).counters();
    [
        now.corrupt - before.corrupt,
        now.malformed - before.malformed,
        now.duplicate - before.duplicate,
        now.overrun - before.overrun,
        now.stray - before.stray,
        now.unknown - before.unknown,
    ]
}

#[test]
fn each_packet_that_is_refused_counts_once_for_its_reason() {
    let (mut world, at_1, packet) = known_session();
    let before = world.gate(2).counters();
    let numbered = |number: u8, rest: &[u8]| [&packet[..], &[number], rest].concat();
    for count in 1..=3 {
        let now = world.now;
        let damaged = Bytes::copy_from_slice(&numbered(99, &[0; 8]));
        world.gate(2).handle_datagram(now, address(1), damaged);
        // A kind of datagram that there is not, and a message that ends before its length.
        give(&mut world, address(1), &[0x77; 20]);
        give(&mut world, address(1), &numbered(50 + count, &[0x10, 9]));
        // The first packet once more.
        give(&mut world, address(1), &numbered(0, &[0]));
        // A message far beyond those that may wait for others.
        let far = [0x10, 0xff, 0xff, 0x7f, 1, 0];
        give(&mut world, address(1), &numbered(60 + count, &far));
        give(&mut world, address(77), &numbered(70 + count, &[0]));
        let mut unknown = numbered(1, &[0]);
        unknown[5] ^= 0xff;
        give(&mut world, address(1), &unknown);
        let count = u64::from(count);
        let expected = [count, 2 * count, count, count, count, count];
        assert_eq!(counted(&mut world, before), expected);
    }
    world.pass(LATER);
    send(&mut world, at_1, 2);
    let (events_1, events_2) = world.pass(LATER);
    assert!(events_1.iter().all(|event| event.1.is_ok()), "{events_1:?}");
    let is_message = |event: &_| matches!(event, (_, Ok(Event::Message(_))));
    assert!(events_2.iter().any(is_message), "{events_2:?}");
}

#[test]
fn who_says_that_a_session_is_gone_without_having_it_is_stray() {
    let (mut world, at_1, _) = pair();
    let before = world.gate(2).counters();
    for count in 1..=2 {
        let mut gone = vec![4];
        gone.extend([1; 16]);
        give(&mut world, address(1), &gone);
        assert_eq!(counted(&mut world, before), [0, 0, 0, 0, count, 0]);
    }
    send(&mut world, at_1, 1);
    let (_, events) = world.pass(LATER);
    assert!(!events.is_empty() && events.iter().all(|event| event.1.is_ok()));
}

/// A client that has asked, and the challenge that answers it, which has not arrived.
fn challenged() -> (World, SessionId, Flying) {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let now = world.now;
    let dialled = world.gate(1).dial(now, address(2), None).expect("room");
    world.start_log();
    world.transmit();
    assert!(world.step(now + LATER), "the ask arrives");
    let log = world.take_log();
    let challenge = log.iter().find(|sent| sent.from == address(2));
    let challenge = challenge.expect("the answer to the ask").clone();
    (world, dialled, challenge)
}

#[test]
fn a_challenge_counts_only_from_where_it_was_asked_for_and_who_asked() {
    let (mut world, dialled, challenge) = challenged();
    let now = world.now;
    let bytes = Bytes::from(challenge.bytes);
    assert_eq!(world.gate(2).counters().sent, 1, "the challenge");
    for count in 1..=2 {
        let client = world.gate(1);
        client.handle_datagram(now, address(77), bytes.clone());
        assert_eq!(client.counters().stray, count);
        assert_eq!(client.poll_event(), None);
        let other = world.gate(2);
        let before = other.counters().unknown;
        other.handle_datagram(now, address(1), bytes.clone());
        assert_eq!(other.counters().unknown, before + 1);
    }
    let (events, _) = world.pass(LATER);
    assert!(
        matches!(events[..], [(id, Ok(Event::Opened(_)))] if id == dialled),
        "{events:?}"
    );
}

#[test]
fn an_address_where_nobody_listens_is_asked_unless_an_answer_is_waited_for() {
    let (mut world, at_1, _) = pair();
    let asked = |world: &mut World| {
        world.start_log();
        let now = world.now;
        world.gate(1).handle_unreachable(now, address(2));
        world.take_log().len()
    };
    assert_eq!(asked(&mut world), 1, "it is idle");
    world.pass(LATER);
    send(&mut world, at_1, 1);
    world.transmit();
    assert_eq!(asked(&mut world), 0, "a request is under way");
    world.pass(LATER);
    assert_eq!(asked(&mut world), 1, "it has arrived");
}

/// A peer that heeds no limits, in requests that other sessions never send: what it is not charged for is not taken.
#[test]
fn a_session_takes_no_more_payload_than_it_charges() {
    const WINDOW: usize = 1 << 16;
    const HEADER: usize = 2 + 1 + 8 + 8; // flags, sequence, token, the method's hash
    let limits = ConnectionLimits {
        requests: WINDOW as u64,
        ..ConnectionLimits::default()
    };
    let mut world = World::new(1, Network::default());
    world.start(1, 1, ConnectionLimits::default(), GateSettings::default());
    world.start(2, 2, limits, GateSettings::default());
    let (at_1, _) = world.open();
    for sequence in [1, 2] {
        world.start_log(); // the second one does not introduce its method
        send(&mut world, at_1, sequence);
        world.pass(LATER);
    }
    let log = world.take_log();
    let genuine = &(log.iter().find(|sent| sent.from == address(1)))
        .expect("the request")
        .bytes;
    let hash = &genuine[genuine.len() - 16..genuine.len() - 8]; // before "work" and the checksum
    let mut packet = |number: u8, payload: usize| {
        let mut bytes = genuine[..9].to_vec();
        bytes[0] = 0x10;
        bytes.extend([100 + number, 0x10, 50 + number]);
        let len = HEADER + payload;
        bytes.extend([len as u8 | 0x80, (len >> 7) as u8 | 0x80, (len >> 14) as u8]);
        bytes.extend([0x81, 0x02, 2 * number]);
        bytes.extend([number; 8]);
        bytes.extend(hash);
        bytes.resize(bytes.len() + payload, number);
        give(&mut world, address(1), &bytes);
        world.events(2)
    };
    let most = (2 << 16) - HEADER; // that one frame has
    for number in 0..10 {
        let told = packet(number, most);
        let [
            (
                _,
                Ok(Event::TooLarge {
                    message: Message::Request(request),
                    size,
                }),
            ),
        ] = &told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!((request.payload.len(), *size), (0, 2 << 16));
    }
    let told = packet(10, MAX_MESSAGE);
    let [(_, Ok(Event::Message(Message::Request(request))))] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(request.payload.len(), MAX_MESSAGE);
    let told = packet(11, MAX_MESSAGE);
    let [(_, Err(ended))] = &told[..] else {
        panic!("{told:?}")
    };
    let overdrawn = ConnectionError::Overdrawn { what: "requests" };
    assert_eq!(ended.cause, Cause::Broken(overdrawn));
}

/// A peer that was told of another limit than there is.
#[test]
fn a_message_above_the_limit_is_told_without_its_payload_and_with_its_length() {
    const LIMIT: u8 = 0x64;
    const TOLD: u8 = 0x7f;
    let limits = ConnectionLimits {
        message: LIMIT.into(),
        ..ConnectionLimits::default()
    };
    let mut world = World::new(1, Network::default());
    let receiver = GateSettings::default();
    world.start(1, 1, ConnectionLimits::default(), receiver);
    world.start(2, 2, limits, receiver);
    let now = world.now;
    let dialled = world.gate(1).dial(now, address(2), None).expect("room");
    world.start_log();
    world.transmit();
    assert!(world.step(now + LATER), "the ask arrives");
    let log = world.take_log();
    let mut challenge = log.last().expect("a challenge").bytes.clone();
    let at = challenge.iter().rposition(|byte| *byte == LIMIT);
    let end = challenge.len();
    let at = at
        .filter(|at| at + 4 < end)
        .expect("the limit in the hello");
    challenge[at] = TOLD;
    reseal(&mut challenge);
    world
        .gate(1)
        .handle_datagram(now, address(2), challenge.into());
    let session = world.gate(1).session(dialled).expect("open");
    let payload = Bytes::from(vec![7; TOLD.into()]);
    let mut long = request(node(1), 1, payload.clone());
    session.send_request(&mut long, &method()).expect("as told");
    let long = response(node(3), 1, payload);
    session
        .send_response(&long, Charge::Counted)
        .expect("as told");
    session
        .send_control(Message::Ping(ping(node(1), 1)))
        .expect("room");
    let (_, events) = world.pass(LATER);
    let too_large: Vec<(Message, u64)> = (events.into_iter())
        .filter_map(|event| match event.1 {
            Ok(Event::TooLarge { message, size }) => Some((message, size)),
            _ => None,
        })
        .collect();
    assert_eq!(too_large.len(), 2, "{too_large:?}");
    for (message, size) in too_large {
        let header = match &message {
            Message::Request(request) if request.payload.is_empty() => 8..70,
            Message::Response(response) if response.payload.is_empty() => 8..30,
            other => panic!("{other:?}"),
        };
        let header_len = size
            .checked_sub(TOLD.into())
            .expect("more than its payload");
        assert!(header.contains(&header_len), "{header_len} of {message:?}");
    }
}
