//! How long delegated requests waited on their way: it counts as time of their call.

use std::time::Duration;

use wallaby_proto::connection::{Event, Features, Hello, Limits};
use wallaby_proto::wire::{Message, Request};

use crate::limits::request;
use crate::pair::{Pair, hello, method, written};
use crate::samples::{alice, bob};

/// What is told of a request may be as old as this.
const COARSE: Duration = Duration::from_millis(10);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A pair whose receiver has these features.
fn pair(features: Features) -> Pair {
    let at_bob = Hello {
        features,
        ..hello(bob(), Limits::default())
    };
    let mut pair = Pair::closed(hello(alice(), Limits::default()), at_bob);
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
