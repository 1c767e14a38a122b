//! How long delegated requests waited on their way: it counts as time of their call.

use std::time::Duration;

use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{ConnectionLimits, Event, Features, Hello};
use wallaby_proto::wire::{Message, Request};

use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{alice, bob};

/// What is told of a request may be as old as this.
const COARSE: Duration = Duration::from_millis(10);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A pair whose receiver has these features.
fn pair(features: Features) -> Pair {
    let at_bob = Hello {
        features,
        ..hello(bob(), ConnectionLimits::default())
    };
    let mut pair = Pair::closed(hello(alice(), ConnectionLimits::default()), at_bob);
    pair.carry_to_bob(usize::MAX).expect("a good hello");
    pair.carry_to_alice(usize::MAX).expect("a good hello");
    pair
}

/// A request of this depth that has a second.
fn with_deadline(depth: u32, payload: usize) -> Request {
    Request {
        depth,
        deadline: Some(ms(1_000)),
        ..request(payload)
    }
}

/// Alice sends a request when her clock shows `sent`, and Bob reads it when his shows `read`: how long it has waited.
fn wait(pair: &mut Pair, mut request: Request, sent: u64, read: u64) -> Duration {
    if pair.alice.tells_time(&request) {
        pair.alice.set_time(ms(sent));
    }
    pair.alice
        .send_request(&mut request, &method())
        .expect("room");
    if pair.bob.wants_time() {
        pair.bob.set_time(ms(read));
    }
    loop {
        for event in pair.carry_to_bob(usize::MAX).expect("legal bytes") {
            if let Event::Message(Message::Request(request)) = event {
                let time = request.time(Duration::ZERO);
                let stated = request.deadline.unwrap_or_default();
                assert_eq!(time, stated.saturating_sub(request.waited));
                return request.waited;
            }
        }
        pair.carry_all_to_alice();
    }
}

#[test]
fn what_a_delegated_request_waits_counts() {
    let mut pair = pair(Features::TIME);
    // Bob's clock is an hour ahead, and the way takes a millisecond at least. Only now does he look at his clock.
    let at_bob = 3_600_001;
    assert_eq!(wait(&mut pair, with_deadline(1, 0), 0, at_bob), ms(0));
    assert_eq!(wait(&mut pair, with_deadline(1, 0), 20, at_bob + 20), ms(0));
    let waited = wait(&mut pair, with_deadline(1, 0), 40, at_bob + 440);
    assert!(
        waited <= ms(400) && waited + COARSE + ms(1) > ms(400),
        "{waited:?}"
    );
    // The time is not told again so soon: it is certain only that it has waited for so long.
    let waited = wait(&mut pair, with_deadline(1, 0), 49, at_bob + 549);
    assert!(
        waited <= ms(500) && waited + COARSE + ms(1) > ms(500),
        "{waited:?}"
    );
    let waited = wait(&mut pair, with_deadline(1, 0), 60, at_bob + 5_060);
    assert!(waited > ms(4_900), "longer than it had time: {waited:?}");
    assert_eq!(
        wait(&mut pair, with_deadline(1, 0), 6_000, at_bob + 6_000),
        ms(0)
    );
}

#[test]
fn a_large_request_waits_as_well() {
    let mut pair = pair(Features::TIME);
    for sent in [0, 20] {
        wait(&mut pair, with_deadline(1, 0), sent, sent);
    }
    let waited = wait(&mut pair, with_deadline(1, 100_000), 40, 540);
    assert!(waited > ms(480), "{waited:?}");
}

#[test]
fn only_what_servers_pass_on_is_timed() {
    let mut pair = pair(Features::TIME);
    for sent in [0, 20, 40] {
        wait(&mut pair, with_deadline(1, 0), sent, sent);
    }
    // An initiator stops its call by its own clock, and one without a deadline has all the time.
    assert_eq!(wait(&mut pair, with_deadline(0, 0), 60, 560), ms(0));
    let endless = Request {
        deadline: None,
        ..with_deadline(1, 0)
    };
    assert_eq!(wait(&mut pair, endless, 80, 580), ms(0));
}

#[test]
fn who_does_not_want_to_know_is_told_nothing() {
    for features in [Features::default(), Features::AGE] {
        let mut pair = pair(features);
        let mut request = with_deadline(1, 0);
        assert!(!pair.alice.tells_time(&request));
        pair.alice.set_time(ms(5));
        let send = |pair: &mut Pair, request: &mut Request| {
            let sent = pair.alice.send_request(request, &method());
            sent.expect("room");
            written(&mut pair.alice).len()
        };
        let first = send(&mut pair, &mut request.clone());
        pair.alice.set_time(ms(500));
        assert!(
            send(&mut pair, &mut request) < first,
            "nothing but the request"
        );
    }
    assert!(Features::AGE.and(Features::TIME).contains(Features::TIME));
}

/// All that Bob reads now, when his clock shows `read`: how long the requests of these sizes have waited.
fn waits(pair: &mut Pair, most: usize, read: u64) -> Vec<(usize, Duration)> {
    pair.bob.set_time(ms(read));
    let mut waits = Vec::new();
    let events = pair.carry_to_bob(most).expect("legal bytes");
    for event in events {
        if let Event::Message(Message::Request(request)) = event {
            waits.push((request.payload.len(), request.waited));
        }
    }
    waits
}

#[test]
fn a_large_request_is_timed_from_its_first_part_on() {
    let mut pair = pair(Features::TIME);
    for sent in [0, 20] {
        wait(&mut pair, with_deadline(1, 0), sent, sent);
    }
    let send = |pair: &mut Pair, payload, sent| {
        pair.alice.set_time(ms(sent));
        let sent = (pair.alice).send_request(&mut with_deadline(1, payload), &method());
        sent.expect("room");
    };
    send(&mut pair, 200_000, 40);
    assert_eq!(waits(&mut pair, 1_000, 40), [], "some of the first");
    // The parts of these follow the small one.
    for payload in [200_001, 200_002, 200_003, 200_004] {
        send(&mut pair, payload, 60);
    }
    send(&mut pair, 1, 5_000);
    let mut found = Vec::new();
    while found.len() < 6 {
        found.extend(waits(&mut pair, usize::MAX, 5_000));
        pair.carry_all_to_alice();
    }
    found.sort();
    assert_eq!(found[0], (1, ms(0)), "a small one that came at once");
    for (payload, waited) in found[1..].iter().copied() {
        let sent = ms(if payload == 200_000 { 40 } else { 60 });
        let since = ms(5_000) - sent;
        let told = waited <= since && waited + COARSE + ms(3) > since;
        assert!(told, "{payload} waited {waited:?} of {since:?}");
    }
    // What was told again ahead of large ones is not taken for the time of small ones.
    assert_eq!(wait(&mut pair, with_deadline(1, 2), 5_005, 5_005), ms(0));
}
