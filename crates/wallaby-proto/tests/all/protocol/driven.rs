//! What a connection tells its driver: what waits, what has left, and when the time is of use.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    BodyRefusal, Charge, ConnectionError, ConnectionLimits, Event, Mark, SendRefusal,
};
use wallaby_proto::wire::{Message, MessageOptions, ReplyTo, Request, Response};

use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, messages, method, written};
use crate::protocol::samples::response;

const LARGE: usize = 100 * 1024;

fn answer(payload: usize) -> Response {
    let payload = vec![7; payload].into();
    Response {
        payload,
        ..response(&[0])
    }
}

fn payload_of(message: &Message) -> usize {
    match message {
        Message::Request(request) => request.payload.len(),
        Message::Response(response) => response.payload.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mark_is_where_a_message_ends_in_the_output() {
    let mut pair = Pair::open(ConnectionLimits::default());
    written(&mut pair.bob);
    let before = pair.bob.counters().bytes_sent;
    assert!(before > 0, "the hello");
    let mut marks = Vec::new();
    for payload in [10, 1000] {
        let mark = pair.bob.send_response(&answer(payload), Charge::Free);
        marks.push(mark.expect("room"));
    }
    let waits = pair.bob.waiting() as u64;
    let Mark::Written(first) = marks[0] else {
        panic!("{marks:?}")
    };
    assert!(before + 10 < first && first < before + 100, "{first}");
    assert_eq!(marks[1], Mark::Written(before + waits));
    written(&mut pair.bob);
    assert_eq!(pair.bob.counters().bytes_sent, before + waits);
}

#[test]
fn what_has_left_in_parts_is_told_once_with_its_place() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mark = pair.bob.send_response(&answer(LARGE), Charge::Free);
        let Ok(Mark::Parts(stream)) = mark else {
            panic!("it travels in parts")
        };
        streams.push(stream);
    }
    let mut left = Vec::new();
    for _ in 0..100 {
        pair.carry_to_alice(usize::MAX).expect("legal bytes");
        left.extend(std::iter::from_fn(|| pair.bob.next_left()));
        pair.carry_to_bob(usize::MAX).expect("credit");
    }
    assert!(pair.bob.is_idle());
    let told: Vec<u64> = left.iter().map(|(stream, _)| *stream).collect();
    assert_eq!(told, streams);
    let all = pair.bob.counters().bytes_sent;
    assert!(
        left[0].1 > LARGE as u64 && left[0].1 < left[1].1,
        "{left:?}"
    );
    assert_eq!(left[1].1, all, "with the last byte of the last part");
}

#[test]
fn the_time_is_wanted_while_large_messages_leave() {
    let mut pair = Pair::open(ConnectionLimits::default());
    assert!(!pair.bob.wants_time());
    pair.bob
        .send_response(&answer(100), Charge::Free)
        .expect("room");
    assert!(!pair.bob.wants_time(), "small ones keep no pace");
    pair.bob
        .send_response(&answer(LARGE), Charge::Free)
        .expect("room");
    assert!(pair.bob.wants_time());
    pair.bob.set_time(Duration::from_secs(1));
    for _ in 0..100 {
        pair.carry_to_alice(usize::MAX).expect("legal bytes");
        if pair.bob.is_idle() {
            break;
        }
        pair.carry_to_bob(usize::MAX).expect("credit");
    }
    assert!(pair.bob.is_idle());
}

#[test]
fn a_body_is_wanted_until_it_ends() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut sent = Request {
        reply_to: ReplyTo::Peer,
        options: Some(Box::new(MessageOptions {
            body: Some(0),
            ..MessageOptions::default()
        })),
        ..request(0)
    };
    pair.alice.send_request(&mut sent, &method()).expect("room");
    let options = sent.options.expect("its own");
    let number = options.body.expect("a number");
    assert!(pair.alice.wants_body(number) && !pair.alice.wants_body(number + 1));
    let mut chunk = Bytes::from_static(b"all of it");
    pair.alice.send_body(number, &mut chunk).expect("room");
    assert!(chunk.is_empty() && pair.alice.wants_body(number));
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    pair.alice.end_body(number, Ok(())).expect("room");
    assert!(!pair.alice.wants_body(number));
    let again = pair
        .alice
        .send_body(number, &mut Bytes::from_static(b"more"));
    assert_eq!(again, Err(BodyRefusal::Stopped));
}

#[test]
fn a_message_that_hangs_is_noticed() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut seconds = 0;
    let mut check = |pair: &mut Pair| {
        seconds += 10;
        pair.alice.check_stalled(Duration::from_secs(seconds))
    };
    check(&mut pair).expect("nothing has begun");
    pair.bob
        .send_response(&answer(LARGE), Charge::Free)
        .expect("room");
    pair.carry_to_alice(LARGE / 2).expect("legal bytes");
    check(&mut pair).expect("it has grown");
    let stalled = check(&mut pair);
    assert!(matches!(stalled, Err(ConnectionError::Stalled { .. })));
    let mut arrived = Vec::new();
    for _ in 0..100 {
        arrived.extend(pair.carry_to_alice(usize::MAX).expect("legal bytes"));
    }
    assert!(matches!(arrived[..], [Event::Message(_)]));
    check(&mut pair).expect("it is whole");
}

#[test]
fn messages_of_exactly_the_longest_length_arrive() {
    for message in [1000, 65_535, 65_536, 65_537, LARGE] {
        let limits = ConnectionLimits {
            message: message as u64,
            ..ConnectionLimits::default()
        };
        let mut pair = Pair::open(limits);
        let long = vec![7; message];
        let mut sent = request(message);
        pair.alice.send_request(&mut sent, &method()).expect("room");
        pair.bob
            .send_response(&answer(message), Charge::Free)
            .expect("room");
        let (mut to_alice, mut to_bob) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            to_bob.extend(pair.carry_to_bob(usize::MAX).expect("legal bytes"));
            to_alice.extend(pair.carry_to_alice(usize::MAX).expect("legal bytes"));
        }
        let arrived: Vec<Message> = messages(to_bob)
            .into_iter()
            .chain(messages(to_alice))
            .collect();
        let lengths: Vec<usize> = arrived.iter().map(payload_of).collect();
        assert_eq!(lengths, [long.len(); 2]);
        for counters in [pair.alice.counters(), pair.bob.counters()] {
            assert_eq!((counters.messages_sent, counters.messages_received), (1, 1));
        }
        let more = pair.bob.send_response(&answer(message + 1), Charge::Free);
        assert!(
            matches!(more, Err(SendRefusal::TooLarge { .. })),
            "{more:?}"
        );
    }
}
