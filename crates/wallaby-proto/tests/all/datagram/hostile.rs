//! Bytes that nobody would send, and strangers who send them: nothing panics, ends a session, or is worth sending.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Address;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionLimits, Event, Hello, NamedBy};
use wallaby_proto::datagram::{Cause, GateSettings, SessionId};
use wallaby_proto::wire::Message;

use crate::chance::Random;
use crate::datagram::messages::{hello, method, node, request, response};
use crate::datagram::session::pair;
use crate::datagram::world::{Flying, Network, World, address, seeds};

const SHORT: Duration = Duration::from_millis(1);

/// CRC32C, bit by bit: another one than the code's own.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 {
                (sum >> 1) ^ 0x82f6_3b78
            } else {
                sum >> 1
            };
        }
    }
    !sum
}

/// Makes the checksum of a changed datagram fit again.
pub(crate) fn reseal(bytes: &mut [u8]) {
    let body = bytes.len() - 4;
    let sum = checksum(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum.to_be_bytes());
}

/// A conversation with all kinds of datagrams in it.
fn recorded(large: usize) -> (World, SessionId, SessionId, Vec<Flying>) {
    let mut world = World::pair(Network::default(), GateSettings::default());
    world.start_log();
    let (at_1, at_2) = world.open();
    for sequence in 1..=5 {
        let len = if sequence == 3 { large } else { 50 };
        let mut sent = request(node(1), sequence, vec![1; len].into());
        let session = world.gate(1).session(at_1).expect("open");
        session.send_request(&mut sent, &method()).expect("room");
        world.pass(Duration::from_millis(20));
        let session = world.gate(2).session(at_2).expect("open");
        session.grant_request(len);
        session.grant_call(request(node(1), 1, Bytes::new()).call, 1, 10);
        let answer = response(node(1), sequence, vec![2; 50].into());
        session
            .send_response(&answer, Charge::Counted)
            .expect("room");
        world.pass(Duration::from_millis(20));
    }
    let log = world.take_log();
    world.start_log();
    (world, at_1, at_2, log)
}

#[test]
fn changed_datagrams_never_panic_and_end_no_session_that_goes_on() {
    for seed in seeds(20) {
        println!("WALLABY_SEED={seed}");
        let (mut world, _, _, log) = recorded(5000);
        let mut random = Random(seed);
        for _ in 0..2000 {
            let mut changed = log[random.below(log.len() as u64) as usize].clone();
            match random.below(4) {
                0 => changed
                    .bytes
                    .truncate(4 + random.below(changed.bytes.len() as u64 - 4) as usize),
                1 => changed.bytes.extend([random.next() as u8; 9]),
                _ => {}
            }
            for _ in 0..random.below(4) {
                // Near the front is where the structure is; numbers at their limits are where bugs are.
                let reach = if random.percent(70) { 40 } else { 2000 };
                let at = random.below(reach) as usize % changed.bytes.len();
                changed.bytes[at] = match random.below(4) {
                    0 => 0xff,
                    1 => 0,
                    2 => 0x80,
                    _ => random.next() as u8,
                };
            }
            reseal(&mut changed.bytes);
            let (from, now) = (changed.from, world.now);
            if let Some(gate) = world.gates.get_mut(&changed.to) {
                gate.handle_datagram(now, from, Bytes::from(changed.bytes));
            }
            if random.percent(10) {
                world.pass(SHORT);
            }
        }
        world.pass(Duration::from_secs(100));
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    for seed in seeds(20) {
        println!("WALLABY_SEED={seed}");
        let mut random = Random(seed);
        let (mut world, ..) = recorded(10);
        for _ in 0..5000 {
            let len = random.below(60) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = [1, 2, 3, 4, 0x10, 0x11, 0x12, 0x13][random.below(8) as usize];
            }
            bytes.extend([0; 4]);
            if random.percent(90) {
                reseal(&mut bytes);
            }
            let now = world.now;
            world
                .gate(2)
                .handle_datagram(now, address(1 + random.below(3)), bytes.into());
            world.events(2);
        }
        world.transmit();
    }
}

#[test]
fn strangers_cannot_end_or_use_a_session() {
    for seed in seeds(5) {
        println!("WALLABY_SEED={seed}");
        let (mut world, at_1, at_2, log) = recorded(5000);
        let mut random = Random(seed);
        // The stranger has seen no session id, but knows the rest and forges the addresses.
        for _ in 0..5000 {
            let mut forged = log[random.below(log.len() as u64) as usize].clone();
            let ids = match forged.bytes[0] {
                1 => 7..15,
                2 | 3 => 1..25,
                _ => 1..9,
            };
            ids.for_each(|at| forged.bytes[at] = random.next() as u8);
            if random.percent(10) {
                forged.bytes = vec![4; 21]; // "gone"
                (1..17).for_each(|at| forged.bytes[at] = random.next() as u8);
            }
            reseal(&mut forged.bytes);
            world.fly(forged);
            if random.percent(10) {
                let (events_1, events_2) = world.pass(SHORT);
                assert!(events_1.is_empty(), "{events_1:?}");
                assert!(events_2.is_empty(), "{events_2:?}");
            }
        }
        // Nor does one who has the ids, but another address.
        for datagram in log {
            let from = address(77);
            world.fly(Flying { from, ..datagram });
        }
        let (events_1, events_2) = world.pass(SHORT);
        assert!(
            events_1.is_empty() && events_2.is_empty(),
            "{events_1:?} {events_2:?}"
        );
        assert_eq!((world.gate(1).len(), world.gate(2).len()), (1, 1));
        let session = world.gate(1).session(at_1).expect("open");
        let mut sent = request(node(1), 9, Bytes::from_static(b"still there?"));
        session.send_request(&mut sent, &method()).expect("room");
        let (_, events) = world.pass(SHORT);
        let arrived = |event: &(SessionId, _)| matches!(event, (id, Ok(Event::Message(Message::Request(_)))) if *id == at_2);
        assert!(events.iter().any(arrived), "{events:?}");
    }
}

/// Its address is proven, but what it says of itself cannot be read.
#[test]
fn who_says_nothing_legal_of_himself_opens_nothing() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    world.start_log();
    let now = world.now;
    world.gate(1).dial(now, address(2), None).expect("room");
    while world.events(1).is_empty() {
        assert!(world.step(now + SHORT), "a challenge comes");
    }
    world
        .cut
        .insert((address(1), address(2)), now + Duration::from_secs(1));
    world.transmit();
    let log = world.log.take().expect("it was started");
    let mut open = log.last().expect("an open").clone();
    assert_eq!(open.bytes[0], 3);
    world.cut.clear();
    // Kind, two ids, when it was issued, the length of the hello, and the lowest version in it.
    open.bytes[1 + 8 + 8 + 8 + 1] ^= 0xff;
    reseal(&mut open.bytes);
    let now = world.now;
    world
        .gate(2)
        .handle_datagram(now, open.from, open.bytes.into());
    assert_eq!(world.gate(2).counters().malformed, 1);
    assert!(world.gate(2).is_empty() && world.events(2).is_empty());
}

#[test]
fn a_session_belongs_to_its_addresses() {
    let (mut world, at_1, _) = pair();
    let mut sent = request(node(1), 1, Bytes::from_static(b"work"));
    let session = world.gate(1).session(at_1).expect("open");
    session.send_request(&mut sent, &method()).expect("room");
    let (now, mut bytes) = (world.now, Vec::new());
    let transmit = world.gate(1).poll_transmit(now, &mut bytes);
    assert_eq!(transmit.expect("a datagram").to, address(2));
    let datagram = Bytes::from(bytes);
    let server = world.gate(2);
    server.handle_datagram(now, address(77), datagram.clone());
    assert!(server.poll_event().is_none());
    assert_eq!(server.counters().stray, 1);
    server.handle_datagram(now, address(1), datagram);
    assert!(server.poll_event().is_some());
}

#[test]
fn no_address_is_sent_more_than_three_times_what_it_sent_before_it_proved_itself() {
    for seed in seeds(5) {
        println!("WALLABY_SEED={seed}");
        let (mut world, _, _, log) = recorded(5000);
        let mut random = Random(seed);
        let mut received: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        let mut sent: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        world.start_log();
        for _ in 0..20_000 {
            // Whatever it is: whole, cut off, or from somebody who tries.
            let mut bytes = log[random.below(log.len() as u64) as usize].bytes.clone();
            if random.percent(30) {
                bytes.truncate(5 + random.below(bytes.len() as u64 - 5) as usize);
                reseal(&mut bytes);
            }
            let victim = address(100 + random.below(10));
            *received.entry(victim).or_default() += bytes.len();
            let now = world.now;
            world.gate(2).handle_datagram(now, victim, bytes.into());
            if random.percent(10) {
                world.pass(SHORT);
            }
        }
        world.pass(Duration::from_secs(100));
        for datagram in world.take_log() {
            *sent.entry(datagram.to).or_default() += datagram.bytes.len();
        }
        for (victim, received) in received {
            let sent = sent.get(&victim).copied().unwrap_or(0);
            assert!(sent > 0, "it is answered");
            assert!(sent <= 3 * received, "{sent} for {received}");
        }
    }
}

#[test]
fn the_smallest_datagram_that_is_answered_is_answered_by_less_than_three_times_as_much() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    for kind in 0..=255u8 {
        for len in 0..40 {
            let mut bytes = vec![kind; 1];
            bytes.extend(vec![1; len]);
            bytes.extend([0; 4]);
            reseal(&mut bytes);
            let size = bytes.len();
            world.start_log();
            let now = world.now;
            world
                .gate(2)
                .handle_datagram(now, address(66), bytes.into());
            let answer: usize = world.take_log().iter().map(|sent| sent.bytes.len()).sum();
            assert!(answer <= 3 * size, "{answer} for {size} of kind {kind}");
        }
    }
}

/// An address that somebody else has named: few asks go there, and short ones.
#[test]
fn an_address_that_a_peer_has_named_is_sent_little_until_it_answers() {
    for (named_by, count, bytes) in [
        (NamedBy::Peer, 6..=6, 6 * 80),
        (NamedBy::Application, 45..=55, 55 * 1200),
    ] {
        let mut world = World::new(1, Network::default());
        world.start(1, 1, ConnectionLimits::default(), GateSettings::default());
        world.start_log();
        let now = world.now;
        let dialled = world
            .gate(1)
            .dial_named(now, address(9), Some(node(9)), named_by);
        dialled.expect("room");
        let (events, _) = world.pass(Duration::from_secs(20));
        assert!(
            matches!(&events[..], [(_, Err(ended))] if matches!(ended.cause, Cause::NoAnswer(_)))
        );
        let sent = world.take_log();
        let all: usize = sent.iter().map(|sent| sent.bytes.len()).sum();
        assert!(count.contains(&sent.len()), "{} asks", sent.len());
        assert!(all <= bytes, "{all} bytes");
    }
}

/// Any hello of this version fits into the answer to a short ask; a shorter ask is not answered.
#[test]
fn an_ask_is_answered_by_at_most_three_times_its_length() {
    let longest = Hello {
        address: Some(Address::Unix("x".repeat(107).into())),
        limits: ConnectionLimits {
            message: u64::MAX,
            requests: u64::MAX,
            call: u64::MAX,
            parts: u64::MAX,
            streams: u32::MAX,
        },
        ..hello(node(2), ConnectionLimits::default())
    };
    let mut world = World::pair(Network::default(), GateSettings::default());
    world.start_as(2, longest, GateSettings::default());
    let now = world.now;
    let gate = world.gate(1);
    let dialled = gate.dial_named(now, address(2), Some(node(2)), NamedBy::Peer);
    dialled.expect("room");
    let (events, _) = world.pass(SHORT);
    assert!(
        matches!(&events[..], [(_, Ok(Event::Opened(_)))]),
        "{events:?}"
    );

    let mut world = World::pair(Network::default(), GateSettings::default());
    for len in 19..=1300 {
        let mut ask = [&[1], &b"WLBY"[..], &[1, 1], &[7; 8]].concat();
        ask.resize(len, 0);
        reseal(&mut ask);
        world.start_log();
        let now = world.now;
        world.gate(2).handle_datagram(now, address(66), ask.into());
        let answered = world.take_log();
        let answer: usize = answered.iter().map(|sent| sent.bytes.len()).sum();
        assert!(answer <= 3 * len, "{answer} for {len}");
        assert_eq!(answer > 0, len >= 24, "{len}");
    }
    assert_eq!(world.gate(2).counters().short, 5);
}

#[test]
fn answers_to_strangers_do_not_pile_up() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let mut bytes = vec![0x10, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0];
    reseal(&mut bytes);
    let now = world.now;
    for _ in 0..1000 {
        let datagram = Bytes::from(bytes.clone());
        world.gate(2).handle_datagram(now, address(66), datagram);
    }
    assert_eq!(world.gate(2).counters().unanswered, 1000 - 256);
    world.start_log();
    assert_eq!(world.take_log().len(), 256);
}

#[test]
fn damage_is_counted_and_repaired() {
    let (mut world, at_1, _) = pair();
    world.network.corrupted = 100;
    let mut sent = request(node(1), 1, Bytes::from_static(b"work"));
    let session = world.gate(1).session(at_1).expect("open");
    session.send_request(&mut sent, &method()).expect("room");
    let (_, events) = world.pass(Duration::from_millis(5));
    assert!(events.is_empty());
    assert_eq!(world.gate(2).counters().corrupt, 1);
    world.network.corrupted = 0;
    let (_, events) = world.pass(Duration::from_secs(1));
    assert!(!events.is_empty());
}
