//! How long delegated requests waited on their way: it counts as time of their call.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{ConnectionLimits, Event, Features, Hello};
use wallaby_proto::datagram::{GateSettings, SessionId};
use wallaby_proto::wire::{Message, Request};

use crate::datagram::messages::{hello, method, node, request};
use crate::datagram::world::{Network, World};

/// Longer than any round trip here.
const SHORT: Duration = Duration::from_millis(100);

fn pair(features: Features) -> (World, SessionId) {
    let mut world = World::new(1, Network::default());
    for number in [1, 2] {
        let hello = Hello {
            features,
            ..hello(node(number), ConnectionLimits::default())
        };
        world.start_as(number, hello, GateSettings::default());
    }
    let (at_1, _) = world.open();
    (world, at_1)
}

/// A request of this depth that has ten seconds is sent when it has waited at its sender: how long that was, as far as its
/// receiver knows.
fn wait(
    world: &mut World,
    at_1: SessionId,
    sequence: u64,
    depth: u32,
    waits: Duration,
) -> Duration {
    let mut request = Request {
        depth,
        deadline: Some(Duration::from_secs(10)),
        ..request(node(1), sequence, Bytes::new())
    };
    let now = world.now;
    let session = world.gate(1).session(at_1).expect("open");
    assert!(session.confirm(now));
    session.send_request(&mut request, &method()).expect("room");
    world.now += waits;
    for (_, event) in world.pass(SHORT).1 {
        if let Ok(Event::Message(Message::Request(request))) = event {
            return request.waited;
        }
    }
    panic!("it arrives")
}

#[test]
fn what_a_delegated_request_waits_counts() {
    let (mut world, at_1) = pair(Features::TIME);
    let none = Duration::ZERO;
    // The first one introduces its method, the second one is the quickest.
    for sequence in [1, 2] {
        assert_eq!(wait(&mut world, at_1, sequence, 1, none), none);
    }
    let second = Duration::from_secs(1);
    let waited = wait(&mut world, at_1, 3, 1, second);
    assert!(
        waited.abs_diff(second) < Duration::from_millis(5),
        "{waited:?}"
    );
    assert_eq!(wait(&mut world, at_1, 4, 1, none), none);
    assert_eq!(
        wait(&mut world, at_1, 5, 0, second),
        none,
        "an initiator's own"
    );
}

#[test]
fn who_does_not_want_to_know_is_told_nothing() {
    let (mut world, at_1) = pair(Features::default());
    for (sequence, seconds) in [(1, 0), (2, 0), (3, 1)] {
        let waits = Duration::from_secs(seconds);
        assert_eq!(wait(&mut world, at_1, sequence, 1, waits), Duration::ZERO);
    }
}
