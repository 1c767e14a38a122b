//! Longer datagrams to peers on the same host, where they come through.

use std::collections::BTreeMap;
use std::time::Duration;

use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{ConnectionLimits, Event, NamedBy};
use wallaby_proto::datagram::{GateSettings, LOOPBACK_DATAGRAM, SessionId};
use wallaby_proto::wire::Message;

use crate::datagram::messages::{method, node, request};
use crate::datagram::world::{Flying, Network, World, address, seeds};

const SHORT: usize = 1200;
const LONG: usize = LOOPBACK_DATAGRAM;

/// Two gates that may send long datagrams, and the session between them, as each of them names it.
fn pair(ends: [u64; 2], network: Network) -> (World, [SessionId; 2]) {
    let settings = GateSettings {
        loopback: LONG,
        ..GateSettings::default()
    };
    let mut world = World::new(1, network);
    for end in ends {
        world.start(end, end, ConnectionLimits::default(), settings);
    }
    let now = world.now;
    let gate = world.gate(ends[0]);
    gate.dial(now, address(ends[1]), None).expect("room");
    pass(&mut world, Duration::from_secs(1));
    let ids = ends.map(|end| match world.events(end)[..] {
        [(id, Ok(Event::Opened(_)))] => id,
        ref events => panic!("{events:?}"),
    });
    (world, ids)
}

/// A short ask says nothing of the way: what follows it does. Where only short datagrams come through, no session begins.
#[test]
fn the_way_to_an_address_that_a_peer_has_named_is_tried_once_it_is_proven() {
    for (longest, opens) in [(SHORT, true), (SHORT - 1, false)] {
        let network = Network {
            longest,
            ..Network::default()
        };
        let mut world = World::pair(network, GateSettings::default());
        let now = world.now;
        let gate = world.gate(1);
        let dialled = gate.dial_named(now, address(2), Some(node(2)), NamedBy::Peer);
        let id = dialled.expect("room");
        let (events, _) = world.pass(Duration::from_millis(10));
        assert!(
            matches!(events[..], [(_, Ok(Event::Opened(_)))]),
            "{events:?}"
        );
        send(&mut world, 1, id, 1, 10);
        let (_, events) = world.pass(Duration::from_secs(5));
        assert_eq!(!events.is_empty(), opens, "{events:?}");
    }
}

fn pass(world: &mut World, time: Duration) {
    let until = world.now + time;
    while world.step(until) {}
    world.now = until;
}

/// A request of so many bytes, and what was sent until nothing more happened for a while.
fn exchange(
    world: &mut World,
    ends: [u64; 2],
    session: SessionId,
    sequence: u64,
    len: usize,
) -> Vec<Flying> {
    world.start_log();
    send(world, ends[0], session, sequence, len);
    pass(world, Duration::from_secs(2));
    assert_eq!(arrived(world, ends[1]), [(sequence, len)]);
    world.take_log()
}

fn send(world: &mut World, from: u64, session: SessionId, sequence: u64, len: usize) {
    let mut request = request(node(from), sequence, vec![7; len].into());
    let session = world.gate(from).session(session).expect("open");
    session.send_request(&mut request, &method()).expect("room");
}

fn arrived(world: &mut World, at: u64) -> Vec<(u64, usize)> {
    let of = |event| match event {
        (_, Ok(Event::Message(Message::Request(request)))) => {
            Some((request.call.sequence, request.payload.len()))
        }
        _ => None,
    };
    world.events(at).into_iter().filter_map(of).collect()
}

fn lengths(log: &[Flying], from: u64) -> Vec<usize> {
    let sent = log.iter().filter(|sent| sent.from == address(from));
    sent.map(|sent| sent.bytes.len()).collect()
}

#[test]
fn they_are_longer_once_one_of_that_length_has_come_through() {
    let ends = [101, 102];
    let (mut world, [session, _]) = pair(ends, Network::default());
    let small = lengths(&exchange(&mut world, ends, session, 1, 1000), 101);
    assert!(small.iter().all(|len| *len <= SHORT), "{small:?}: no need");

    let first = lengths(&exchange(&mut world, ends, session, 2, 16_384), 101);
    let probes = first.iter().filter(|len| **len == LONG);
    assert_eq!(probes.count(), 1, "{first:?}: one finds out");
    let begun = first.iter().filter(|len| (1000..=SHORT).contains(*len));
    assert!(begun.count() > 1, "{first:?}: the message did not wait");

    let second = lengths(&exchange(&mut world, ends, session, 3, 16_384), 101);
    assert_eq!(second.len(), 1, "{second:?}");
    let third = lengths(&exchange(&mut world, ends, session, 4, 60_000), 101);
    assert_eq!(third.len(), 2, "{third:?}");
}

/// Sixty-four small requests at a time.
fn batch(world: &mut World, ends: [u64; 2], session: SessionId, first: u64) -> Vec<usize> {
    world.start_log();
    for sequence in first..first + 64 {
        send(world, ends[0], session, sequence, 100);
    }
    pass(world, Duration::from_secs(2));
    let expected: Vec<_> = (first..first + 64)
        .map(|sequence| (sequence, 100))
        .collect();
    assert_eq!(arrived(world, ends[1]), expected);
    lengths(&world.take_log(), ends[0])
}

#[test]
fn many_small_messages_at_a_time_share_one() {
    let ends = [101, 102];
    let (mut world, [session, _]) = pair(ends, Network::default());
    let first = batch(&mut world, ends, session, 1);
    let probes = first.iter().filter(|len| **len == LONG);
    assert_eq!(probes.count(), 1, "{first:?}: one finds out");
    let second = batch(&mut world, ends, session, 65);
    assert_eq!(second.len(), 1, "{second:?}");
}

#[test]
fn elsewhere_they_stay_as_every_path_carries_them() {
    let ends = [1, 2];
    let (mut world, [session, _]) = pair(ends, Network::default());
    for sequence in 1..=3 {
        let log = exchange(&mut world, ends, session, sequence, 16_384);
        assert!(log.iter().all(|sent| sent.bytes.len() <= SHORT));
    }
}

#[test]
fn where_they_do_not_come_through_nothing_is_lost_but_a_few_probes() {
    let ends = [101, 102];
    let network = Network {
        longest: 8_192,
        ..Network::default()
    };
    let (mut world, [session, _]) = pair(ends, network);
    let mut probes = 0;
    for sequence in 1..=6 {
        let sent = lengths(&exchange(&mut world, ends, session, sequence, 16_384), 101);
        probes += sent.iter().filter(|len| **len > SHORT).count();
    }
    assert_eq!(probes, 3);
    let path = world.gate(101).peek(session).expect("open").path();
    assert_eq!(path.lost, 0, "what was too long was no congestion");
}

/// Both directions, many messages at a time, whatever the network does, with and without room for long datagrams.
#[test]
fn every_message_arrives_once_while_they_grow() {
    for seed in seeds(40) {
        let network = Network {
            jitter: Duration::from_micros(seed * 37 % 900),
            lost: seed % 20,
            duplicated: seed % 7 * 3,
            longest: if seed % 4 == 0 { 8_192 } else { usize::MAX },
            ..Network::default()
        };
        let ends = [101, 102];
        let (mut world, [dialled, accepted]) = pair(ends, Network::default());
        world.network = network;
        let mut sent = BTreeMap::new();
        for _ in 0..6 {
            for (from, to, session) in [(101, 102, dialled), (102, 101, accepted)] {
                for _ in 0..4 {
                    let len = world.random.below(50_000) as usize;
                    let sequence = sent.len() as u64 + 1;
                    let mut request = request(node(from), sequence, vec![7; len].into());
                    let open = world.gate(from).session(session).expect("open");
                    if open.send_request(&mut request, &method()).is_ok() {
                        sent.insert((to, sequence), len);
                    }
                }
            }
            let pause = Duration::from_millis(world.random.below(20));
            pass(&mut world, pause);
        }
        pass(&mut world, Duration::from_secs(8));
        let mut found = BTreeMap::new();
        for to in ends {
            for (sequence, len) in arrived(&mut world, to) {
                let again = found.insert((to, sequence), len);
                assert_eq!(again, None, "seed {seed}");
            }
        }
        assert_eq!(found, sent, "seed {seed}");
    }
}
