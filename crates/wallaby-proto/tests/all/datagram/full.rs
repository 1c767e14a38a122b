//! What a session sends where nothing is acknowledged, and where several have much to send.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionLimits, Event, SendRefusal};
use wallaby_proto::datagram::{GateSettings, IdHasher, LOOPBACK_DATAGRAM, SessionId};
use wallaby_proto::wire::Message;

use crate::datagram::messages::{method, node, ping, request, response};
use crate::datagram::session::pair;
use crate::datagram::world::{Network, World, address};

const LATER: Duration = Duration::from_secs(1);

fn send(
    world: &mut World,
    session: SessionId,
    sequence: u64,
    len: usize,
) -> Result<(), SendRefusal> {
    let session = world.gate(1).session(session).expect("open");
    let mut message = request(node(1), sequence, vec![7; len].into());
    session.send_request(&mut message, &method()).map(drop)
}

/// Cuts both directions of a pair for so long.
fn cut(world: &mut World, time: Duration) {
    let until = world.now + time;
    world.cut.insert((address(1), address(2)), until);
    world.cut.insert((address(2), address(1)), until);
}

/// Numbers run out before bytes do: those who need no credit have some of their own, and so has the session itself.
#[test]
fn of_many_small_messages_requests_stop_first_then_all_but_what_concerns_the_session() {
    let settings = GateSettings {
        patience: Duration::from_secs(1000),
        ..GateSettings::default()
    };
    let limits = ConnectionLimits {
        requests: u64::MAX,
        ..ConnectionLimits::default()
    };
    let mut world = World::new(1, Network::default());
    world.start(1, 1, limits, settings);
    world.start(2, 2, limits, settings);
    let (at_1, at_2) = world.open();
    cut(&mut world, LATER);
    let mut requests = 0;
    while send(&mut world, at_1, requests + 1, 0).is_ok() {
        requests += 1;
    }
    let session = world.gate(1).session(at_1).expect("open");
    assert!(!session.takes_output() && !session.takes_requests());
    assert!(!session.takes_responses(request(node(3), 1, Bytes::new()).call));
    let mut controls = 0;
    let mut control = |session: &mut wallaby_proto::datagram::Session| {
        controls += 1;
        session.send_control(Message::Ping(ping(node(1), controls)))
    };
    while control(session).is_ok() {}
    assert_eq!(requests, 3072, "three quarters of the numbers");
    assert_eq!(controls - 1, 768, "three quarters of the rest");
    let refused = session.send_response(&response(node(3), 1, Bytes::new()), Charge::Free);
    assert_eq!(
        refused,
        Err(SendRefusal::Blocked),
        "not even uncounted ones"
    );
    for _ in 0..1000 {
        session.go_away();
    }
    assert_eq!(
        session.pending().count(),
        4096,
        "and no more than there are"
    );
    let (events_1, events_2) = world.pass(10 * LATER);
    let is_credit = |event: &_| matches!(event, (_, Ok(Event::Credit(_))));
    assert!(events_1.iter().any(is_credit), "requests may go on");
    let is_going = |event: &&_| matches!(event, (id, Ok(Event::GoingAway { .. })) if *id == at_2);
    assert_eq!(events_2.iter().filter(is_going).count(), 256);
    let session = world.gate(1).session(at_1).expect("open");
    assert!(session.takes_output() && session.is_idle());
}

#[test]
fn a_session_is_idle_when_all_is_acknowledged_and_takes_output_until_it_is_congested() {
    let (mut world, at_1, _) = pair();
    assert!(world.gate(1).session(at_1).expect("open").is_idle());
    send(&mut world, at_1, 1, 10).expect("room");
    let session = world.gate(1).session(at_1).expect("open");
    assert!(!session.is_idle() && session.takes_output());
    world.pass(LATER);
    assert!(world.gate(1).session(at_1).expect("open").is_idle());
}

#[test]
fn the_credit_of_calls_that_are_over_is_forgotten() {
    let limits = ConnectionLimits {
        call: 1000,
        ..ConnectionLimits::default()
    };
    let mut world = World::new(1, Network::default());
    world.start(1, 1, limits, GateSettings::default());
    world.start(2, 2, limits, GateSettings::default());
    let (_, at_2) = world.open();
    let session = world.gate(2).session(at_2).expect("open");
    let answer = |sequence| response(node(1), sequence, vec![7; 1000].into());
    for sequence in [5, 6] {
        session
            .send_response(&answer(sequence), Charge::Counted)
            .expect("room");
        let refused = session.send_response(&answer(sequence), Charge::Counted);
        assert_eq!(refused, Err(SendRefusal::Blocked));
        assert!(!session.takes_responses(answer(sequence).call));
    }
    session.forget_calls(answer(6).call);
    assert!(session.takes_responses(answer(5).call));
    assert!(!session.takes_responses(answer(6).call), "it goes on");
}

#[test]
fn many_small_messages_fill_datagrams_and_none_is_too_long() {
    let (mut world, at_1, at_2) = pair();
    let most = GateSettings::default().datagram;
    let mut sequence = 0;
    for len in 1..60 {
        world.start_log();
        for _ in 0..150 {
            sequence += 1;
            send(&mut world, at_1, sequence, len).expect("room");
        }
        world.pass(LATER);
        let log = world.take_log();
        let longest = log.iter().map(|sent| sent.bytes.len()).max();
        assert!(longest <= Some(most), "{longest:?}");
        assert!(longest > Some(most - len - 40), "{longest:?} with {len}");
        let session = world.gate(2).session(at_2).expect("open");
        (0..150).for_each(|_| session.grant_request(len));
        world.pass(LATER);
    }
}

/// Asks, probes of longer datagrams, and what is padded to the length of others count like all that is sent.
#[test]
fn a_session_counts_every_byte_that_it_sends() {
    let settings = GateSettings {
        loopback: LOOPBACK_DATAGRAM,
        ..GateSettings::default()
    };
    let mut world = World::new(1, Network::default());
    for end in [101, 102, 103] {
        world.start(end, end, ConnectionLimits::default(), settings);
    }
    let now = world.now;
    world.start_log();
    let [first, dialled] = [103, 102].map(|to| {
        let gate = world.gate(101);
        gate.dial(now, address(to), None).expect("room")
    });
    // The first two asks are lost.
    let until = now + Duration::from_millis(150);
    world.cut.insert((address(101), address(102)), until);
    for sequence in 1..=4 {
        let until = world.now + LATER;
        while world.step(until) {}
        world.now = until;
        // The other session's datagrams stand before those of this one.
        for id in [first, dialled] {
            let session = world.gate(101).session(id).expect("open");
            let mut message = request(node(101), sequence, vec![7; 20_000].into());
            session.send_request(&mut message, &method()).expect("room");
        }
    }
    let until = world.now + LATER;
    while world.step(until) {}
    let log = world.take_log();
    let ends = (address(101), address(102));
    let sent = (log.iter()).filter(|sent| (sent.from, sent.to) == ends);
    assert!(sent.clone().any(|sent| sent.bytes.len() > 20_000));
    let bytes: usize = sent.map(|sent| sent.bytes.len()).sum();
    let counters = world.gate(101).session(dialled).expect("open").counters();
    assert_eq!(counters.bytes_sent, bytes as u64);
}

#[test]
fn sessions_with_much_to_send_take_turns_of_sixteen_datagrams() {
    let mut world = World::new(1, Network::default());
    (1..=3).for_each(|incarnation| {
        world.start(
            incarnation,
            incarnation,
            ConnectionLimits::default(),
            GateSettings::default(),
        )
    });
    let now = world.now;
    let ids = [2, 3].map(|to| world.gate(1).dial(now, address(to), None).expect("room"));
    // Until their windows are large.
    let mut sequence = 0;
    for _ in 0..8 {
        let until = world.now + LATER;
        while world.step(until) {}
        world.now = until;
        for (id, to) in ids.into_iter().zip([2, 3]) {
            sequence += 1;
            send(&mut world, id, sequence, 60_000).expect("room");
            let accepted = world.events(to).into_iter().map(|event| event.0).next();
            if let Some(accepted) = accepted {
                let session = world.gate(to).session(accepted).expect("open");
                session.grant_request(60_000);
            }
        }
    }
    world.start_log();
    world.transmit();
    let log = world.take_log();
    let to: Vec<_> = log
        .iter()
        .filter(|sent| sent.from == address(1))
        .map(|sent| sent.to)
        .collect();
    let rows: Vec<usize> = to
        .chunk_by(|one, other| one == other)
        .map(<[_]>::len)
        .collect();
    assert_eq!(rows[..4], [16; 4], "{rows:?}");
    assert_eq!(to.len(), rows.iter().sum());
}

#[test]
fn a_timer_that_nothing_needs_any_more_is_put_off() {
    let (mut world, at_1, _) = pair();
    send(&mut world, at_1, 1, 10).expect("room");
    let until = world.now + LATER;
    while !world.gate(1).session(at_1).expect("open").is_idle() {
        assert!(world.step(until), "it is acknowledged");
        world.transmit();
    }
    let (now, gate) = (world.now, world.gate(1));
    let stale = gate.next_timeout().expect("one");
    assert!(stale < now + LATER, "that of the request");
    gate.put_off_timers(now);
    assert_eq!(gate.next_timeout(), Some(stale), "it is not due by then");
    gate.put_off_timers(now + LATER);
    let next = gate.next_timeout().expect("one");
    assert!(next > now + 50 * LATER, "when it has been idle for long");
}

/// Ids are random already, so they are spread as they are.
#[test]
fn sessions_are_spread_over_a_table_by_their_ids() {
    let build = BuildHasherDefault::<IdHasher>::default();
    for id in [0, 1, 7, 0x0123_4567_89ab_cdef, u64::MAX] {
        assert_eq!(build.hash_one(id), id);
    }
    let of = |bytes: &[u8]| {
        let mut hasher = build.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    };
    let hashes = [of(&[1, 2]), of(&[2, 1]), of(&[3, 1]), of(&[1, 3]), of(&[])];
    let different: std::collections::BTreeSet<u64> = hashes.into();
    assert_eq!(different.len(), hashes.len());
}

/// What is in a datagram does not depend on what stands before it.
#[test]
fn a_datagram_is_the_same_wherever_it_is_written() {
    let sent = |before: usize| {
        let (mut world, at_1, _) = pair();
        for sequence in 1..=3 {
            send(&mut world, at_1, sequence, 7000).expect("room");
        }
        let now = world.now;
        std::iter::from_fn(|| {
            let mut out = vec![0; before];
            let transmit = world.gate(1).poll_transmit(now, &mut out)?;
            let datagram = out.split_off(before);
            assert_eq!(transmit.len, datagram.len());
            Some(datagram)
        })
        .collect::<Vec<_>>()
    };
    let fresh = sent(0);
    assert!(fresh.len() > 5);
    for before in [1, 1000, 9000] {
        assert!(sent(before) == fresh, "behind {before} bytes");
    }
}

#[test]
fn who_was_congested_hears_once_that_he_may_go_on() {
    let settings = GateSettings {
        unacknowledged: 1000,
        ..GateSettings::default()
    };
    let mut world = World::pair(Network::default(), settings);
    let (at_1, _) = world.open();
    let session = world.gate(1).session(at_1).expect("open");
    let message = response(node(3), 1, vec![7; 1000].into());
    session.send_response(&message, Charge::Free).expect("room");
    assert!(!session.takes_output());
    let (events, _) = world.pass(LATER);
    assert!(
        matches!(events[..], [(id, Ok(Event::Credit(_)))] if id == at_1),
        "{events:?}"
    );
    assert!(world.gate(1).session(at_1).expect("open").takes_output());
}

/// A client that has just learnt who the server is, and what it sends then: all of it says once more who asks.
fn opening(loopback: usize, len: usize) -> (World, Vec<Vec<u8>>) {
    let settings = GateSettings {
        loopback,
        ..GateSettings::default()
    };
    let mut world = World::new(1, Network::default());
    for end in [101, 102] {
        world.start(end, end, ConnectionLimits::default(), settings);
    }
    let now = world.now;
    let gate = world.gate(101);
    let dialled = gate.dial(now, address(102), None).expect("room");
    while world.events(101).is_empty() {
        assert!(world.step(now + LATER), "a challenge comes");
    }
    world.start_log();
    let session = world.gate(101).session(dialled).expect("it is known");
    let mut message = request(node(101), 1, vec![7; len].into());
    session.send_request(&mut message, &method()).expect("room");
    let log = world.take_log();
    let sent = log.into_iter().map(|sent| sent.bytes).collect();
    (world, sent)
}

#[test]
fn a_first_message_leaves_in_pieces_beside_the_hello_unless_they_were_too_many() {
    const OPEN: u8 = 3;
    for (len, at_once) in [(100, true), (5000, true), (60_000, false)] {
        for loopback in [GateSettings::default().datagram, LOOPBACK_DATAGRAM] {
            let (mut world, sent) = opening(loopback, len);
            assert!(
                sent.iter()
                    .all(|bytes| bytes[0] == OPEN && bytes.len() <= 1200)
            );
            let bytes: usize = sent.iter().map(Vec::len).sum();
            assert_eq!(bytes > len, at_once, "{bytes} bytes for {len}");
            let until = world.now + LATER;
            while world.step(until) {}
            let is_message = |event: &_| matches!(event, (_, Ok(Event::Message(_))));
            assert!(world.events(102).iter().any(is_message), "{len}");
        }
    }
}
