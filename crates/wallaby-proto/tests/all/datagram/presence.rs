//! A peer that was silent is asked whether it is still there, before a request is spent on an incarnation that may be over.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{ConnectionLimits, Event};
use wallaby_proto::datagram::{Cause, GateSettings, SessionId};

use crate::datagram::messages::{method, node, request};
use crate::datagram::session::pair;
use crate::datagram::world::{Happening, Network, World, address};

/// Longer than any round trip here, shorter than silence that counts.
const SHORT: Duration = Duration::from_millis(1);

/// Silence that does not count yet, and one that does.
const FRESH: Duration = Duration::from_millis(100);
const STALE: Duration = Duration::from_millis(101);

/// How long requests wait at most.
const ASKING: Duration = Duration::from_millis(500);

fn confirm(world: &mut World, session: SessionId) -> bool {
    let now = world.now;
    let session = world.gate(1).session(session).expect("open");
    session.confirm(now)
}

/// So long after the peer was asked for the last time, and has answered.
fn silent_for(silence: Duration, network: Network) -> (World, SessionId) {
    let settings = GateSettings {
        confirm_after: FRESH,
        ..GateSettings::default()
    };
    let mut world = World::pair(network, settings);
    let (at_1, _) = world.open();
    world.pass(Duration::from_secs(1));
    let asked = world.now;
    assert!(!confirm(&mut world, at_1), "it was silent for a second");
    while world.step(asked + silence) {}
    assert!(is_credit(&world.events(1)));
    world.now = asked + silence;
    (world, at_1)
}

fn is_credit(events: &[Happening]) -> bool {
    matches!(events, [(_, Ok(Event::Credit(_)))])
}

#[test]
fn a_peer_that_was_heard_lately_is_not_asked() {
    let (mut world, at_1) = silent_for(FRESH, Network::default());
    world.start_log();
    assert!(confirm(&mut world, at_1));
    world.pass(SHORT);
    assert!(world.take_log().is_empty());
}

#[test]
fn one_that_was_silent_is_asked_once_and_answers_at_once() {
    let (mut world, at_1) = silent_for(STALE, Network::default());
    world.start_log();
    for _ in 0..3 {
        assert!(!confirm(&mut world, at_1));
    }
    let (events, others) = world.pass(SHORT);
    assert!(is_credit(&events) && others.is_empty(), "{events:?}");
    assert!(confirm(&mut world, at_1));
    assert_eq!(world.take_log().len(), 2, "a question and its answer");
}

/// A request that waits would only be late where a round trip takes long and silence is nothing special.
#[test]
fn silence_is_measured_in_round_trips() {
    let slow = Network {
        delay: Duration::from_millis(50),
        ..Network::default()
    };
    let (mut world, at_1) = silent_for(Duration::from_millis(750), slow);
    assert!(confirm(&mut world, at_1), "eight take 800 ms");
    let (mut world, at_1) = silent_for(Duration::from_millis(900), slow);
    assert!(!confirm(&mut world, at_1));
}

#[test]
fn a_restart_is_noticed_before_anything_is_sent_to_the_new_incarnation() {
    let (mut world, at_1) = silent_for(STALE, Network::default());
    world.start(2, 20, ConnectionLimits::default(), GateSettings::default());
    assert!(!confirm(&mut world, at_1));
    let (events, others) = world.pass(SHORT);
    let [(_, Err(ended))] = &events[..] else {
        panic!("{events:?}")
    };
    let (was, now) = (node(2), node(20));
    assert_eq!(ended.cause, Cause::Restarted { was, now });
    assert!(ended.pending.is_empty() && others.is_empty());
}

/// Nobody answers: that is for the calls to find out, which know how long they want to wait.
#[test]
fn requests_do_not_wait_for_ever() {
    let (mut world, at_1) = silent_for(STALE, Network::default());
    let cut = (address(1), address(2));
    let (begun, end) = (world.now, world.now + 4 * ASKING);
    world.cut.insert(cut, end);
    assert!(!confirm(&mut world, at_1));
    let told = loop {
        assert!(world.step(end), "it is told");
        let events = world.events(1);
        if !events.is_empty() {
            assert!(is_credit(&events), "{events:?}");
            break world.now;
        }
        assert!(!confirm(&mut world, at_1));
    };
    assert_eq!(told - begun, ASKING);
    assert!(confirm(&mut world, at_1));
    // It is there again, and from now on asked again.
    let (events, _) = world.pass(8 * ASKING);
    assert!(events.is_empty(), "{events:?}");
    assert!(!confirm(&mut world, at_1));
}

#[test]
fn the_question_is_repeated_if_it_is_lost() {
    let (mut world, at_1) = silent_for(STALE, Network::default());
    let cut = (address(1), address(2));
    world.cut.insert(cut, world.now + SHORT);
    assert!(!confirm(&mut world, at_1));
    let (events, _) = world.pass(ASKING / 4);
    assert!(is_credit(&events), "{events:?}");
}

/// What waited in the socket's buffer while this process was stopped does not say that the peer still has the session: it has
/// given it up, as nothing that it sent was acknowledged.
#[test]
fn what_has_arrived_while_the_process_was_stopped_is_no_sign_of_life() {
    let (mut world, at_1, at_2) = pair();
    let wakes = world.now + Duration::from_secs(20);
    world.stopped.insert(address(1), wakes);
    let session = world.gate(2).session(at_2).expect("open");
    let mut request = request(node(2), 1, Bytes::from_static(b"work"));
    session.send_request(&mut request, &method()).expect("room");
    while world.step(wakes) {}
    let arrived = world.events(1);
    assert_eq!(arrived.len(), 2, "the method and the request: {arrived:?}");
    let given_up = world.events(2);
    let [(_, Err(ended))] = &given_up[..] else {
        panic!("{given_up:?}")
    };
    assert!(matches!(ended.cause, Cause::Silent { .. }), "{ended:?}");

    assert!(!confirm(&mut world, at_1));
    let (events, others) = world.pass(SHORT);
    let [(_, Err(ended))] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(ended.cause, Cause::Forgotten(node(2)));
    assert!(ended.pending.is_empty() && others.is_empty());
}

/// The time in which this process was stopped is none in which the peer did not answer.
#[test]
fn a_question_is_asked_again_by_a_process_that_was_stopped() {
    let (mut world, at_1) = silent_for(STALE, Network::default());
    assert!(!confirm(&mut world, at_1));
    world.start(2, 20, ConnectionLimits::default(), GateSettings::default());
    world
        .cut
        .insert((address(1), address(2)), world.now + SHORT);
    while world.step(world.now + SHORT) {}
    let wakes = world.now + 4 * ASKING;
    world.stopped.insert(address(1), wakes);
    while world.step(wakes) {}
    assert!(!confirm(&mut world, at_1));
    let (events, _) = world.pass(SHORT);
    let [(_, Err(ended))] = &events[..] else {
        panic!("{events:?}")
    };
    let (was, now) = (node(2), node(20));
    assert_eq!(ended.cause, Cause::Restarted { was, now });
}

#[test]
fn a_session_is_asked_for_again_by_a_process_that_was_stopped() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let begun = world.now;
    world.cut.insert((address(1), address(2)), begun + SHORT);
    let dialled = world.gate(1).dial(begun, address(2), None).expect("room");
    while world.step(begun + SHORT) {}
    let wakes = begun + 2 * GateSettings::default().patience;
    world.stopped.insert(address(1), wakes);
    while world.step(wakes) {}
    let (events, _) = world.pass(SHORT);
    assert!(
        matches!(events[..], [(id, Ok(Event::Opened(_)))] if id == dialled),
        "{events:?}"
    );
}

/// A session that was closed tells nothing any more.
#[test]
fn closing_ends_the_question() {
    let (mut world, at_1) = silent_for(STALE, Network::default());
    world.cut.insert((address(1), address(2)), Duration::MAX);
    assert!(!confirm(&mut world, at_1));
    world.gate(1).session(at_1).expect("open").close("enough");
    assert!(confirm(&mut world, at_1), "sending says that it is closed");
    let (events, _) = world.pass(4 * ASKING);
    assert!(events.is_empty(), "{events:?}");
}

/// Who does not ask sends as ever: it is the driver's choice.
#[test]
fn whoever_does_not_confirm_is_not_held_up() {
    let (mut world, at_1, _) = pair();
    world.pass(STALE);
    let session = world.gate(1).session(at_1).expect("open");
    let mut request = request(node(1), 1, Bytes::from_static(b"work"));
    session.send_request(&mut request, &method()).expect("room");
    let (_, arrived) = world.pass(SHORT);
    assert_eq!(arrived.len(), 2, "the method and the request: {arrived:?}");
}

/// Timers of sessions are not moved while they are far; put off, they say when something is really wanted, and no sooner.
#[test]
fn timers_that_nobody_wants_any_more_are_put_off() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let (at_1, _) = world.open();
    world.pass(Duration::from_secs(1));
    let method = method();
    let mut sent = request(node(1), 1, Bytes::new());
    let session = world.gate(1).session(at_1).expect("open");
    session.send_request(&mut sent, &method).expect("taken");
    world.transmit();
    // The request waits for its acknowledgement, until it has come.
    let soon = world.gate(1).next_timeout().expect("it waits");
    assert!(soon < world.now + Duration::from_secs(1));
    let (came, _) = world.pass(SHORT * 100);
    drop(came);
    let kept = world.gate(1).next_timeout();
    world.gate(1).put_off_timers(soon + Duration::from_secs(1));
    let wanted = world
        .gate(1)
        .next_timeout()
        .expect("idle sessions ask in time");
    assert!(kept.is_none_or(|kept| kept <= wanted));
    assert!(wanted > soon + Duration::from_secs(1), "{wanted:?}");
    // Again it changes nothing.
    world.gate(1).put_off_timers(wanted);
    assert_eq!(world.gate(1).next_timeout(), Some(wanted));
}
