//! Networks that lose in known ways: repair, congestion, giving up, closing.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionLimits, Event};
use wallaby_proto::datagram::{Cause, GateSettings, SessionId};
use wallaby_proto::wire::Message;

use crate::chance::Random;
use crate::datagram::messages::{method, node, request, response};
use crate::datagram::session::pair;
use crate::datagram::world::{Happening, Network, World, address, seeds};

const SHORT: Duration = Duration::from_millis(1);

fn send(world: &mut World, session: SessionId, sequence: u64, len: usize) {
    let mut request = request(node(1), sequence, vec![7; len].into());
    let session = world.gate(1).session(session).expect("open");
    session.send_request(&mut request, &method()).expect("room");
}

fn arrived(events: &[Happening]) -> Vec<u64> {
    let sequence = |event: &Happening| match &event.1 {
        Ok(Event::Message(Message::Request(request))) => Some(request.call.sequence),
        _ => None,
    };
    events.iter().filter_map(sequence).collect()
}

/// Loses whatever is sent now.
fn lose(world: &mut World) {
    world.network.lost = 100;
    world.transmit();
    world.network.lost = 0;
}

#[test]
fn what_is_lost_at_the_end_is_sent_again_soon() {
    let (mut world, at_1, _) = pair();
    (1..20).for_each(|sequence| {
        send(&mut world, at_1, sequence, 100);
        world.pass(Duration::from_millis(20));
    });
    send(&mut world, at_1, 20, 100);
    lose(&mut world);
    world.start_log();
    let until = world.now + Duration::from_millis(40);
    let mut found = Vec::new();
    while found.is_empty() {
        assert!(world.step(until), "it is sent again");
        found = arrived(&world.events(2));
    }
    assert_eq!(found, [20]);
    let log = world.log.take().expect("it was started");
    let probes = log.iter().filter(|sent| sent.from == address(1));
    assert_eq!(probes.count(), 1, "the first probe has brought it");
}

#[test]
fn what_is_lost_on_the_way_is_noticed_by_what_follows() {
    let (mut world, at_1, _) = pair();
    (1..20).for_each(|sequence| {
        send(&mut world, at_1, sequence, 100);
        world.pass(Duration::from_millis(20));
    });
    send(&mut world, at_1, 20, 100);
    lose(&mut world);
    let mut order = Vec::new();
    for sequence in 21..=25 {
        send(&mut world, at_1, sequence, 100);
        order.extend(arrived(&world.pass(Duration::from_micros(110)).1));
    }
    order.extend(arrived(&world.pass(SHORT).1));
    order.sort_unstable();
    assert_eq!(order, [20, 21, 22, 23, 24, 25], "within two milliseconds");
}

#[test]
fn a_lost_acknowledgement_makes_no_second_delivery() {
    let (mut world, at_1, at_2) = pair();
    send(&mut world, at_1, 1, 100);
    assert!(world.step(world.now + SHORT));
    world.pass(Duration::from_micros(10));
    world.network.lost = 100;
    world.pass(Duration::from_millis(12)); // the acknowledgement is lost
    world.network.lost = 0;
    let (_, events) = world.pass(Duration::from_secs(5));
    assert_eq!(arrived(&events), [], "it had arrived before, and only then");
    assert!(world.gate(1).session(at_1).expect("open").is_idle());
    let counters = world.gate(2).session(at_2).expect("open").counters();
    assert_eq!(counters.messages_received, 1);
}

/// Nothing went one way for seconds, and both sides have slowed down. Who is heard first again has lost all that it
/// acknowledged meanwhile, and says it anew: the other goes on then, and not with its next probe.
#[test]
fn a_way_that_is_open_again_is_used_again_by_both() {
    for later in [0, 300, 600, 900, 1200] {
        let (mut world, at_1, at_2) = pair();
        let begun = world.now;
        let cut = begun + Duration::from_secs(4);
        world.cut.insert((address(2), address(1)), cut);
        let (mut sequence, mut at_server) = (0, Vec::new());
        let mut heard = None;
        while heard.is_none_or(|heard| world.now < heard + Duration::from_millis(20)) {
            if world.now < cut {
                sequence += 1;
                send(&mut world, at_1, sequence, 1000);
            }
            // The sides probe at different times.
            if world.now == begun + Duration::from_millis(later) {
                let response = response(node(1), 1, vec![7; 100].into());
                let session = world.gate(2).session(at_2).expect("open");
                session
                    .send_response(&response, Charge::Free)
                    .expect("room");
            }
            let (at_client, events) = world.pass(Duration::from_millis(10));
            at_server.extend(arrived(&events));
            if heard.is_none() && !at_client.is_empty() {
                heard = Some(world.now);
            }
            assert!(world.now < cut + Duration::from_secs(3), "it is heard");
        }
        at_server.sort_unstable();
        let missing = (1..=sequence).filter(|number| !at_server.contains(number));
        assert_eq!(missing.count(), 0, "{later} ms later");
    }
}

#[test]
fn a_full_link_is_used_well_and_its_losses_shrink_the_window() {
    // 10 MB/s, a round trip of 4 ms: 40 kB are under way at best; 60 kB more wait before the link drops.
    let rate = 10_000_000;
    let network = Network {
        delay: Duration::from_millis(2),
        bandwidth: Some((rate, 60_000)),
        ..Network::default()
    };
    let mut world = World::pair(network, GateSettings::default());
    let (at_1, at_2) = world.open();
    let (mut sequence, mut bytes, mut windows) = (0, 0u64, Vec::new());
    let start = world.now;
    let time = Duration::from_secs(5);
    while world.now < start + time {
        while world.gate(1).session(at_1).expect("open").takes_requests() {
            sequence += 1;
            send(&mut world, at_1, sequence, 8000);
        }
        let (_, events) = world.pass(SHORT);
        let count = arrived(&events).len() as u64;
        bytes += count * 8000;
        let session = world.gate(2).session(at_2).expect("open");
        (0..count).for_each(|_| session.grant_request(8000));
        windows.push(world.gate(1).peek(at_1).expect("open").path().window);
    }
    let share = bytes * 100 / (rate * time.as_secs());
    assert!(share >= 85, "{share} % of what the link carries");
    assert!(world.dropped > 0, "the link was full");
    let later = &windows[500..];
    let (least, most) = (later.iter().min(), later.iter().max());
    assert!(
        most < Some(&160_000),
        "{most:?}: it stays near what the link holds"
    );
    let shrunk = later
        .windows(2)
        .filter(|pair| pair[1] < pair[0] * 2 / 3)
        .count();
    assert!(
        shrunk >= 2,
        "{shrunk} times it was halved, down to {least:?}"
    );
}

#[test]
fn losses_at_random_slow_it_down_but_do_not_stop_it() {
    for (lost, least) in [(1, 5000), (5, 2000), (30, 30)] {
        let network = Network {
            lost,
            duplicated: lost,
            jitter: Duration::from_micros(50),
            ..Network::default()
        };
        let mut world = World::pair(Network::default(), GateSettings::default());
        let (at_1, at_2) = world.open();
        world.network = network;
        let (mut sequence, mut count) = (0, 0);
        for _ in 0..200 {
            while world.gate(1).session(at_1).expect("open").takes_requests() {
                sequence += 1;
                send(&mut world, at_1, sequence, 1000);
            }
            let (_, events) = world.pass(SHORT);
            let arrived = arrived(&events).len();
            let session = world.gate(2).session(at_2).expect("open");
            (0..arrived).for_each(|_| session.grant_request(1000));
            count += arrived;
        }
        assert!(count >= least, "{count} messages in 200 ms at {lost} %");
    }
}

#[test]
fn silence_ends_a_session_and_says_what_is_unknown() {
    let settings = GateSettings {
        patience: Duration::from_secs(3),
        ..GateSettings::default()
    };
    let mut world = World::pair(Network::default(), settings);
    let (at_1, _) = world.open();
    send(&mut world, at_1, 1, 100);
    world.pass(Duration::from_secs(1));
    world.network.lost = 100;
    // More than the window takes at a time: some are not sent at all.
    (2..=100).for_each(|sequence| send(&mut world, at_1, sequence, 1000));
    let (events, _) = world.pass(Duration::from_millis(2900));
    assert!(events.is_empty(), "{events:?}");
    let (events, _) = world.pass(Duration::from_millis(200));
    let [(id, Err(ended))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*id, at_1);
    let Cause::Silent { silent, probes } = ended.cause else {
        panic!("{ended}")
    };
    assert_eq!(silent, Duration::from_secs(3));
    assert!((10..=16).contains(&probes), "{probes}");
    assert_eq!(ended.pending.len(), 99);
    let sent = ended.pending.iter().filter(|pending| pending.sent).count();
    assert!(
        (5..50).contains(&sent),
        "{sent} may have arrived, the others have not"
    );
    assert!(world.gate(1).session(at_1).is_none());
}

/// Calls that watch their servers every 100 ms must not take a way that was cut for servers that are dead, once it is not
/// any more.
#[test]
fn a_way_that_was_cut_is_found_again_soon() {
    for seed in 0..20 {
        let mut world = World::new(seed, Network::default());
        (1..=2).for_each(|at| {
            world.start(at, at, ConnectionLimits::default(), GateSettings::default())
        });
        let (at_1, _) = world.open();
        world.network.lost = 100;
        // More than the window takes: what comes later has to wait behind what was lost.
        (1..=20).for_each(|sequence| send(&mut world, at_1, sequence, 1000));
        world.pass(Duration::from_millis(1500 + 100 * seed));
        world.network.lost = 0;
        let (_, events) = world.pass(Duration::from_millis(300));
        let mut arrived = arrived(&events);
        arrived.sort_unstable();
        assert_eq!(arrived, (1..=20).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// Round trips that took as long as the peer was stopped say nothing about the way: what is lost later is missed as soon
/// as ever.
#[test]
fn a_peer_that_was_stopped_does_not_slow_down_what_follows() {
    let (mut world, at_1, _) = pair();
    for sequence in 1..=3 {
        world.network.delay = Duration::from_secs(1);
        send(&mut world, at_1, sequence, 100);
        world.pass(Duration::from_secs(3));
        world.network.delay = Network::default().delay;
    }
    world.network.lost = 100;
    (4..=20).for_each(|sequence| send(&mut world, at_1, sequence, 1000));
    world.pass(Duration::from_millis(10));
    world.network.lost = 0;
    let (_, events) = world.pass(Duration::from_millis(300));
    assert_eq!(arrived(&events).len(), 17);
}

#[test]
fn retransmissions_can_be_limited_too() {
    let settings = GateSettings {
        probes: 3,
        ..GateSettings::default()
    };
    let mut world = World::pair(Network::default(), settings);
    let (at_1, _) = world.open();
    world.network.lost = 100;
    send(&mut world, at_1, 1, 100);
    let (events, _) = world.pass(Duration::from_secs(2));
    let [(_, Err(ended))] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(
        matches!(ended.cause, Cause::Silent { probes: 3, .. }),
        "{ended}"
    );
}

#[test]
fn a_dead_peer_of_an_idle_session_is_noticed() {
    let (mut world, at_1, _) = pair();
    world.gates.remove(&crate::datagram::world::address(2));
    let (events, _) = world.pass(Duration::from_secs(60 + 11));
    assert!(
        matches!(&events[..], [(id, Err(_))] if *id == at_1),
        "{events:?}"
    );
}

#[test]
fn who_was_asleep_does_not_blame_the_others() {
    let (mut world, at_1, at_2) = pair();
    send(&mut world, at_1, 1, 100);
    world.transmit();
    world.now += Duration::from_secs(60); // the timer is a minute late
    let now = world.now;
    world.gate(1).handle_timeout(now);
    world.gate(2).handle_timeout(now);
    let (events_1, events_2) = world.pass(Duration::from_secs(1));
    assert!(events_1.is_empty(), "{events_1:?}");
    assert_eq!(arrived(&events_2), [1]);
    assert!(world.gate(2).session(at_2).is_some());
}

#[test]
fn closing_is_told_through_losses() {
    for seed in 0..50 {
        let mut world = World::new(seed, Network::default());
        (1..=2).for_each(|at| {
            world.start(at, at, ConnectionLimits::default(), GateSettings::default())
        });
        let (at_1, _) = world.open();
        world.network.lost = 30;
        world.gate(1).session(at_1).expect("open").close("done");
        let (events_1, events_2) = world.pass(Duration::from_secs(2));
        assert!(events_1.is_empty(), "{events_1:?}");
        let told = matches!(&events_2[..], [(_, Err(ended))]
            if ended.cause == Cause::Closed("done".into()));
        assert!(told, "seed {seed}: {events_2:?}");
        assert!(world.gate(1).is_empty() && world.gate(2).is_empty());
    }
}

#[test]
fn a_first_message_waits_for_the_handshake_only_as_long_as_that_is_lost() {
    for seed in 0..50 {
        let network = Network {
            lost: 30,
            ..Network::default()
        };
        let mut world = World::new(seed, network);
        (1..=2).for_each(|at| {
            world.start(at, at, ConnectionLimits::default(), GateSettings::default())
        });
        let now = world.now;
        let to = crate::datagram::world::address(2);
        let at_1 = world.gate(1).dial(now, to, None).expect("room");
        let mut count = 0;
        for _ in 0..10_000 {
            let (events_1, events_2) = world.pass(SHORT);
            for (id, event) in events_1 {
                if let Ok(Event::Opened(_)) = event {
                    // More than fits beside the hello.
                    assert_eq!(id, at_1);
                    send(&mut world, at_1, 1, 50_000);
                    send(&mut world, at_1, 2, 10);
                }
            }
            count += arrived(&events_2).len();
            if count == 2 {
                break;
            }
        }
        assert_eq!(count, 2, "seed {seed}");
    }
}

#[test]
fn what_is_overtaken_is_not_lost() {
    let (mut world, at_1, at_2) = pair();
    world.network.jitter = Duration::from_micros(500);
    let mut lost = [0, 0, 0];
    for (round, lost) in lost.iter_mut().enumerate() {
        for step in 1..=500 {
            (0..8).for_each(|one| {
                let sequence = (round * 500 + step) as u64 * 8 + one;
                send(&mut world, at_1, sequence, 1000);
            });
            let (_, events) = world.pass(Duration::from_micros(500));
            let session = world.gate(2).session(at_2).expect("open");
            (arrived(&events).iter()).for_each(|_| session.grant_request(1000));
        }
        *lost = world.gate(1).peek(at_1).expect("open").path().lost;
    }
    let of_4000 = lost[2] - lost[1];
    assert!(
        of_4000 < 100,
        "{of_4000} of 4000 datagrams, once it is known: {lost:?}"
    );
}

#[test]
fn acknowledgements_get_short_again_after_losses() {
    let (mut world, at_1, at_2) = pair();
    let answer = |world: &mut World, sequences: Vec<u64>| {
        for sequence in sequences {
            let answer = response(node(1), sequence, Bytes::from_static(&[7; 100]));
            let session = world.gate(2).session(at_2).expect("open");
            session
                .send_response(&answer, Charge::Free)
                .expect("not counted");
        }
    };
    for sequence in 1..=300 {
        world.network.lost = if sequence < 250 { 20 } else { 0 };
        if sequence == 290 {
            world.start_log();
        }
        send(&mut world, at_1, sequence, 100);
        for _ in 0..20 {
            let (_, events) = world.pass(SHORT);
            answer(&mut world, arrived(&events));
        }
    }
    let longest = world.take_log().iter().map(|sent| sent.bytes.len()).max();
    assert!(longest < Some(145), "{longest:?}");
}

#[test]
fn payloads_are_not_copied_out_of_a_datagram() {
    let (mut world, at_1, _) = pair();
    send(&mut world, at_1, 1, 500);
    let now = world.now;
    let mut bytes = Vec::new();
    let transmit = world
        .gate(1)
        .poll_transmit(now, &mut bytes)
        .expect("a datagram");
    assert_eq!(transmit.len, bytes.len());
    let datagram = Bytes::from(bytes);
    let from = crate::datagram::world::address(1);
    world.gate(2).handle_datagram(now, from, datagram.clone());
    let payloads = world
        .events(2)
        .into_iter()
        .filter_map(|(_, event)| match event {
            Ok(Event::Message(Message::Request(request))) => Some(request.payload),
            _ => None,
        });
    for payload in payloads {
        assert!(datagram.as_ptr_range().contains(&payload.as_ptr()));
    }
}

/// Calls take silence for a failure: it must not come of a few losses in a row alone.
#[test]
fn nothing_waits_for_long_where_a_tenth_is_lost() {
    let mut longest = Duration::ZERO;
    for seed in seeds(8) {
        let mut world = World::pair(Network::default(), GateSettings::default());
        world.random = Random(seed);
        let (at_1, at_2) = world.open();
        world.network = Network {
            lost: 10,
            jitter: Duration::from_millis(20),
            ..Network::default()
        };
        let mut sent = BTreeMap::new();
        for sequence in 1..5000 {
            let session = world.gate(1).session(at_1).expect("open");
            if session.takes_requests() {
                let len = if sequence % 5 == 0 { 2_000 } else { 100 };
                send(&mut world, at_1, sequence, len);
                sent.insert(sequence, world.now);
            }
            let (_, events) = world.pass(Duration::from_millis(20));
            for sequence in arrived(&events) {
                let session = world.gate(2).session(at_2).expect("open");
                session.grant_request(if sequence % 5 == 0 { 2_000 } else { 100 });
                longest = longest.max(world.now - sent.remove(&sequence).expect("sent once"));
            }
        }
        let oldest = sent.first_key_value().map(|(_, at)| world.now - *at);
        longest = longest.max(oldest.unwrap_or_default());
    }
    assert!(longest < Duration::from_millis(400), "{longest:?}");
}
