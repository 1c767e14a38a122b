//! Messages above 64 KiB travel in parts, and others overtake them.

use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Charge, Connection, ConnectionError, ConnectionLimits, Event, SendRefusal,
};
use wallaby_proto::wire::{Message, Response};

use crate::protocol::frames::with_body;
use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, messages, method, written};
use crate::protocol::samples::response;
use crate::protocol::strategies::config;

const KIB: usize = 1024;

/// A response whose payload tells its number and size.
fn numbered(index: u32, size: usize) -> Response {
    let pattern = index.to_le_bytes().into_iter().cycle().enumerate();
    let payload: Bytes = pattern
        .take(size)
        .map(|(place, byte)| byte ^ (place / 251) as u8)
        .collect();
    Response {
        index,
        last: false,
        payload,
        ..response(&[0])
    }
}

fn send(connection: &mut Connection, response: Response) -> Result<(), SendRefusal> {
    connection.send_response(&response, Charge::Free).map(drop)
}

/// Carries all that Bob has to say to Alice, in pieces of at most `most` bytes, and her credit back.
fn drain(pair: &mut Pair, most: usize) -> Vec<Message> {
    let mut arrived = Vec::new();
    while !pair.bob.is_idle() {
        arrived.extend(messages(pair.carry_to_alice(most).expect("legal bytes")));
        pair.carry_to_bob(usize::MAX).expect("credit");
    }
    arrived
}

proptest! {
    #![proptest_config(config(40))]

    /// Large and small ones together, cut anywhere: each arrives once and whole; small ones keep their order.
    #[test]
    fn large_and_small_messages_arrive_equal(
        sizes in vec(prop_oneof![3 => 0..200usize, 1 => 60 * KIB..70 * KIB, 1 => 70 * KIB..400 * KIB], 1..12),
        most in prop_oneof![100..2000usize, 10_000..100_000usize],
        streams in 1..5u32,
    ) {
        let mut pair = Pair::open(ConnectionLimits { streams, ..ConnectionLimits::default() });
        let mut sent: Vec<Message> = Vec::new();
        for (index, size) in sizes.into_iter().enumerate() {
            let response = numbered(index as u32, size);
            send(&mut pair.bob, response.clone()).expect("room");
            sent.push(Message::Response(response));
        }
        let mut arrived = drain(&mut pair, most);
        let small = |messages: &[Message]| -> Vec<u32> {
            messages.iter().filter(|message| size_of(message) <= 64 * KIB).map(index_of).collect()
        };
        prop_assert_eq!(small(&arrived), small(&sent));
        arrived.sort_by_key(index_of);
        prop_assert!(arrived == sent, "all arrived as they were sent");
    }
}

fn size_of(message: &Message) -> usize {
    let Message::Response(response) = message else {
        panic!("responses only")
    };
    response.payload.len()
}

fn index_of(message: &Message) -> u32 {
    let Message::Response(response) = message else {
        panic!("responses only")
    };
    response.index
}

#[test]
fn a_small_message_waits_behind_little() {
    let mut pair = Pair::open(ConnectionLimits::default());
    send(&mut pair.bob, numbered(0, 4 << 20)).expect("room");
    let before = pair.bob.output().len();
    assert!(
        before <= 64 * KIB,
        "{before} bytes of parts are written ahead"
    );
    send(&mut pair.bob, numbered(1, 10)).expect("room");
    let arrived = messages(pair.carry_to_alice(usize::MAX).expect("legal bytes"));
    assert_eq!(arrived.iter().map(index_of).collect::<Vec<_>>(), [1]);
    assert_eq!(drain(&mut pair, usize::MAX).len(), 1);
}

#[test]
fn parts_wait_for_credit_and_small_messages_do_not() {
    let limits = ConnectionLimits {
        parts: 64 << 10,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    send(&mut pair.bob, numbered(0, 4 << 20)).expect("room");
    let ahead = written(&mut pair.bob).len();
    assert!(
        (64 * KIB..=97 * KIB).contains(&ahead),
        "{ahead} bytes without credit"
    );
    assert!(!pair.bob.is_idle() && pair.bob.output().is_empty());
    send(&mut pair.bob, numbered(1, 10)).expect("room");
    assert!(!pair.bob.output().is_empty());
}

#[test]
fn large_messages_take_turns() {
    let mut pair = Pair::open(ConnectionLimits::default());
    for index in 0..3 {
        send(
            &mut pair.bob,
            numbered(index, (300 - 100 * index as usize) * KIB),
        )
        .expect("room");
    }
    let arrived = drain(&mut pair, usize::MAX);
    assert_eq!(
        arrived.iter().map(index_of).collect::<Vec<_>>(),
        [2, 1, 0],
        "the shortest is done first"
    );
}

#[test]
fn no_more_streams_than_the_peer_takes() {
    let mut pair = Pair::open(ConnectionLimits {
        streams: 2,
        ..ConnectionLimits::default()
    });
    for index in 0..3 {
        send(
            &mut pair.bob,
            numbered(index, (300 - 100 * index as usize) * KIB),
        )
        .expect("room");
    }
    let arrived = drain(&mut pair, usize::MAX);
    assert_eq!(
        arrived.iter().map(index_of).collect::<Vec<_>>(),
        [1, 0, 2],
        "the third waits for a place"
    );
}

#[test]
fn more_streams_than_were_allowed_are_refused() {
    let mut pair = Pair::open(ConnectionLimits {
        streams: 1,
        ..ConnectionLimits::default()
    });
    let part = |stream: u8| [&[6, 0, 0, 0x04, stream, 0x80, 0x80, 0x08, 0x11][..], b"x"].concat();
    assert_eq!(pair.bob_reads(&part(1)), Ok(vec![]));
    let error = pair.bob_reads(&part(2)).expect_err("one is allowed");
    assert!(
        error
            .to_string()
            .contains("more messages in parts than were allowed"),
        "{error}"
    );
}

#[test]
fn small_messages_without_end_do_not_starve_large_ones() {
    let mut pair = Pair::open(ConnectionLimits::default());
    send(&mut pair.bob, numbered(0, 200 * KIB)).expect("room");
    let mut arrived = Vec::new();
    for index in 1..2000 {
        // The transport takes less than is added: the output never gets short.
        while pair.bob.output().len() < 100 * KIB {
            send(&mut pair.bob, numbered(index, 30 * KIB)).expect("room");
        }
        arrived.extend(messages(
            pair.carry_to_alice(20 * KIB).expect("legal bytes"),
        ));
        pair.carry_to_bob(usize::MAX).expect("credit");
        if arrived.iter().any(|message| index_of(message) == 0) {
            return;
        }
    }
    panic!("the large message never arrived");
}

#[test]
fn the_largest_message_passes_and_a_larger_one_is_refused_by_its_sender() {
    let limits = ConnectionLimits {
        message: 200_000,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    send(&mut pair.bob, numbered(0, 200_000)).expect("exactly the limit");
    assert_eq!(
        drain(&mut pair, usize::MAX),
        [Message::Response(numbered(0, 200_000))]
    );
    let too_large = SendRefusal::TooLarge {
        size: 200_001,
        limit: 200_000,
    };
    assert_eq!(send(&mut pair.bob, numbered(1, 200_001)), Err(too_large));
    let refusal = pair
        .alice
        .send_request(&mut request(200_001), &method())
        .expect_err("too large");
    assert_eq!(refusal, too_large);
    assert!(pair.bob.is_idle() && pair.alice.is_idle());
}

/// What Bob writes where Alice takes large messages, as `limits` say, and how another Alice takes it who does not.
fn read_by_another(size: usize, limits: ConnectionLimits) -> Vec<Event> {
    let mut generous = Pair::open(ConnectionLimits {
        parts: 1 << 30,
        ..ConnectionLimits::default()
    });
    send(&mut generous.bob, numbered(0, size)).expect("room");
    send(&mut generous.bob, numbered(1, 10)).expect("room");
    let bytes = written(&mut generous.bob);
    let mut strict = Pair::open(limits);
    let mut input = bytes.as_slice().into();
    let mut events = Vec::new();
    while let Some(event) = strict.alice.handle_input(&mut input).expect("legal bytes") {
        events.push(event);
    }
    events
}

#[test]
fn a_larger_one_is_told_at_the_receiver_and_the_connection_goes_on() {
    let limits = ConnectionLimits {
        message: 1000,
        ..ConnectionLimits::default()
    };
    for size in [1001, 60 * KIB, 65 * KIB, 300 * KIB, 4 << 20] {
        let mut events = read_by_another(size, limits);
        events.sort_by_key(|event| matches!(event, Event::Message(_))); // the small one may have overtaken it
        let [
            Event::TooLarge {
                message,
                size: total,
            },
            Event::Message(next),
        ] = &events[..]
        else {
            panic!("{size} bytes were not too large")
        };
        assert_eq!(
            *message,
            Message::Response(Response {
                payload: Bytes::new(),
                ..numbered(0, 0)
            })
        );
        assert!((size as u64..size as u64 + 40).contains(total), "{total}");
        assert_eq!(index_of(next), 1, "the other message is not touched");
    }
}

#[test]
fn a_message_in_parts_that_does_not_grow_is_stalled() {
    let mut pair = Pair::open(ConnectionLimits {
        parts: 1 << 30,
        ..ConnectionLimits::default()
    });
    send(&mut pair.bob, numbered(0, 200 * KIB)).expect("room");
    pair.carry_to_alice(40 * KIB).expect("legal bytes");
    let seconds = Duration::from_secs;
    assert_eq!(pair.alice.check_stalled(seconds(10)), Ok(()), "just now");
    pair.carry_to_alice(40 * KIB).expect("legal bytes");
    assert_eq!(pair.alice.check_stalled(seconds(20)), Ok(()), "it grew");
    let stalled = pair.alice.check_stalled(seconds(30));
    assert_eq!(stalled, Err(ConnectionError::Stalled { rate: 16_384 }));
}

#[test]
fn malformed_parts_are_refused() {
    let ping = [1, 7, 0, 0, 0, 0, 0, 0, 0, 9, 1, 0, 0, 0]; // a whole one
    let in_parts = |total: &[u8]| [&[0][..], total, &[0x13], &ping].concat();
    let [whole, impossible] = [&[14][..], &[0x80, 0x80, 0x80, 0x10]].map(|total| {
        let body = in_parts(total);
        [&[body.len() as u8, 0, 0, 0x04], &body[..]].concat()
    });
    let cases: [(&[u8], &str); 6] = [
        (&[1, 0, 0, 0x04, 0], "part"),
        (&[3, 0, 0, 0x04, 0, 9, 0x11], "nothing in it"),
        (
            &[6, 0, 0, 0x04, 0, 2, 0x11, 1, 2, 3],
            "more bytes than its message has",
        ),
        (
            &[4, 0, 0, 0x04, 0, 1, 0x77, 1],
            "no request and no response",
        ),
        (&whole, "no request and no response"),
        (&impossible, "no request and no response"),
    ];
    for (bytes, reason) in cases {
        let error = Pair::open(ConnectionLimits::default())
            .bob_reads(bytes)
            .expect_err(reason);
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn large_messages_wait_while_one_of_the_largest_size_is_not_written() {
    let mut pair = Pair::open(ConnectionLimits {
        message: 1 << 20,
        ..ConnectionLimits::default()
    });
    let counted = |pair: &mut Pair, index| {
        let response = numbered(index, 600 * KIB);
        pair.bob.send_response(&response, Charge::Counted).map(drop)
    };
    assert_eq!(counted(&mut pair, 0), Ok(()));
    assert_eq!(counted(&mut pair, 1), Err(SendRefusal::Blocked));
    drain(&mut pair, usize::MAX);
    assert_eq!(counted(&mut pair, 1), Ok(()));
}

/// Sends what Bob has to say to Alice and her credit back, `round_trip` later by Bob's clock; how much he had written.
fn turn(pair: &mut Pair, now: &mut Duration, round_trip: Duration) -> usize {
    pair.bob.set_time(*now);
    let ahead = pair.carry_all_to_alice();
    *now += round_trip;
    pair.bob.set_time(*now);
    pair.carry_to_bob(usize::MAX).expect("credit");
    ahead
}

#[test]
fn beside_small_messages_few_parts_are_under_way() {
    let mut pair = Pair::open(ConnectionLimits::default());
    send(&mut pair.bob, numbered(0, 10)).expect("room");
    send(&mut pair.bob, numbered(1, 4 << 20)).expect("room");
    let (mut now, loopback) = (Duration::ZERO, Duration::from_micros(20));
    for _ in 0..100 {
        let ahead = turn(&mut pair, &mut now, loopback);
        assert!(ahead <= 10 * KIB, "{ahead} bytes of parts are under way");
    }
    // A megabyte later no small message is about any more.
    while turn(&mut pair, &mut now, loopback) < 10 * KIB {
        assert!(!pair.bob.is_idle(), "it was slow to its end");
    }
    // A request that arrives says nothing yet; an answer that is sent brings the short parts back.
    pair.alice
        .send_request(&mut request(10), &method())
        .expect("room");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    turn(&mut pair, &mut now, loopback);
    assert!(turn(&mut pair, &mut now, loopback) >= 10 * KIB);
    send(&mut pair.bob, numbered(2, 10)).expect("room");
    turn(&mut pair, &mut now, loopback);
    assert!(turn(&mut pair, &mut now, loopback) <= 10 * KIB);
}

/// How many bytes of parts are written at once when so much is to be sent.
fn written_ahead(connection: &mut Connection, size: usize) -> usize {
    send(connection, numbered(0, size)).expect("room");
    connection.output().len()
}

#[test]
fn small_answers_to_large_messages_do_not_slow_the_next_ones_down() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let first = written_ahead(&mut pair.bob, 300 * KIB);
    assert!(first >= 32 * KIB, "{first} bytes at once");
    for _ in 0..3 {
        drain(&mut pair, usize::MAX);
        send(&mut pair.alice, numbered(1, 10)).expect("room");
        let answer = pair.carry_to_bob(usize::MAX).expect("legal bytes");
        assert_eq!(messages(answer).len(), 1);
        let next = written_ahead(&mut pair.bob, 300 * KIB);
        assert!(next >= 32 * KIB, "{next} bytes at once");
    }
    send(&mut pair.bob, numbered(2, 10)).expect("room");
    drain(&mut pair, usize::MAX);
    let beside = written_ahead(&mut pair.bob, 300 * KIB);
    assert!(
        beside < 8 * KIB,
        "{beside} bytes at once beside a small one"
    );
}

#[test]
fn requests_ahead_of_bodies_are_no_small_messages() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut request = with_body();
    pair.alice
        .send_request(&mut request, &method())
        .expect("room");
    written(&mut pair.alice);
    let ahead = written_ahead(&mut pair.alice, 300 * KIB);
    assert!(ahead >= 32 * KIB, "{ahead} bytes at once");
}

#[test]
fn on_a_long_way_more_parts_are_under_way() {
    let mut pair = Pair::open(ConnectionLimits::default());
    send(&mut pair.bob, numbered(0, 10)).expect("room");
    send(&mut pair.bob, numbered(1, 4 << 20)).expect("room");
    let (mut now, wide_area) = (Duration::ZERO, Duration::from_millis(2));
    turn(&mut pair, &mut now, wide_area);
    let ahead = turn(&mut pair, &mut now, wide_area);
    assert!(ahead > 100 * KIB, "only {ahead} bytes in 2 ms");
}

#[test]
fn without_a_clock_large_messages_arrive_too() {
    let mut pair = Pair::open(ConnectionLimits::default());
    send(&mut pair.bob, numbered(0, 10)).expect("room");
    send(&mut pair.bob, numbered(1, 1 << 20)).expect("room");
    assert_eq!(drain(&mut pair, usize::MAX).len(), 2);
}

/// Whatever window a receiver announces: it grants before a sender that keeps parts few has to stop.
#[test]
fn a_receiver_with_a_wide_window_grants_little_by_little() {
    let limits = ConnectionLimits {
        parts: 64 << 20,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    send(&mut pair.bob, numbered(0, 10)).expect("room");
    send(&mut pair.bob, numbered(1, 256 * KIB)).expect("room");
    for _ in 0..256 * KIB / (4 * KIB) {
        pair.carry_all_to_alice();
        pair.carry_to_bob(usize::MAX).expect("credit");
    }
    assert!(pair.bob.is_idle(), "all parts were sent");
}

/// Sequences are told by the difference to the request before: one in parts, which others overtake, tells all of it.
#[test]
fn requests_that_overtake_each_other_keep_their_calls() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut send = |sequence, size| {
        let mut request = request(size);
        request.call.sequence = sequence;
        request.oldest = sequence;
        let sent = pair.alice.send_request(&mut request, &method());
        sent.expect("room");
    };
    send(1000, 10);
    send(2000, 300 * KIB);
    send(3000, 10);
    send(2500, 10);
    let mut sequences = Vec::new();
    while !pair.alice.is_idle() {
        for message in messages(pair.carry_to_bob(usize::MAX).expect("legal bytes")) {
            sequences.push(message.call().sequence);
        }
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert_eq!(sequences, [1000, 3000, 2500, 2000]);
}
