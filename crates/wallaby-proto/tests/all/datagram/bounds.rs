//! What a peer can make a session hold.

use std::time::Duration;

use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{ConnectionError, ConnectionLimits, SendRefusal};
use wallaby_proto::datagram::{Cause, GateSettings};
use wallaby_proto::wire::Message;

use crate::datagram::hostile::reseal;
use crate::datagram::messages::{method, node, ping, request};
use crate::datagram::world::{Happening, Network, World};

const LATER: Duration = Duration::from_millis(50);

/// Two gates that take so many bytes of requests.
fn world(requests: u64) -> World {
    let mut world = World::new(1, Network::default());
    let limits = ConnectionLimits {
        requests,
        ..ConnectionLimits::default()
    };
    world.start(1, 1, limits, GateSettings::default());
    world.start(2, 2, limits, GateSettings::default());
    world
}

/// A hello that says 10,001 says 16,383 when it arrives.
fn exaggerate(datagram: &mut [u8]) {
    let at = datagram
        .windows(3)
        .position(|bytes| bytes == [8, 0x91, 0x4e]);
    if let Some(at) = at {
        datagram[at + 1..at + 3].copy_from_slice(&[0xff, 0x7f]);
        reseal(datagram);
    }
}

#[test]
fn who_keeps_to_the_window_is_blocked_and_not_accused() {
    let mut world = world(10_000);
    let (at_1, at_2) = world.open();
    let mut sequence = 0;
    for _ in 0..20 {
        let session = world.gate(1).session(at_1).expect("open");
        loop {
            sequence += 1;
            let mut sent = request(node(1), sequence, vec![1; 936].into());
            match session.send_request(&mut sent, &method()) {
                Ok(_) => {}
                Err(SendRefusal::Blocked) => break,
                Err(error) => panic!("{error}"),
            }
        }
        world.pass(LATER);
        let session = world.gate(2).session(at_2).expect("it goes on");
        (0..10).for_each(|_| session.grant_request(936));
        world.pass(LATER);
    }
    assert!(sequence > 190, "{sequence}");
}

#[test]
fn requests_beyond_the_window_end_the_session_at_both_sides() {
    let mut world = world(10_001);
    world.tamper = Some(exaggerate);
    let (at_1, _) = world.open();
    for (sequence, len) in [(1, 5_000), (2, 5_000), (3, 5_000), (4, 65_000)] {
        let mut sent = request(node(1), sequence, vec![1; len].into());
        let session = world.gate(1).session(at_1).expect("open");
        session.send_request(&mut sent, &method()).expect("room");
    }
    let (at_1, at_2) = world.pass(LATER);
    let ended = |events: Vec<Happening>| {
        let ends = events.into_iter().filter_map(|(_, event)| event.err());
        ends.map(|ended| ended.cause).collect::<Vec<_>>()
    };
    let error = ConnectionError::Overdrawn { what: "requests" };
    assert_eq!(ended(at_1), [Cause::Closed(error.to_string())]);
    assert_eq!(ended(at_2), [Cause::Broken(error)]);
}

#[test]
fn who_acknowledges_nothing_is_not_sent_ever_more() {
    let mut world = world(10_000);
    let (_, at_2) = world.open();
    let session = world.gate(2).session(at_2).expect("open");
    let sent = (1..100_000)
        .take_while(|number| {
            session
                .send_control(Message::Ping(ping(node(1), *number)))
                .is_ok()
        })
        .count();
    assert!(sent < 4096, "{sent} that were not acknowledged");
}
