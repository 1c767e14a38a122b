//! Bodies follow their requests: every byte, in order, no more than was granted, and each has one end.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    BodyEvent, BodyRefusal, Connection, ConnectionError, ConnectionLimits, Event, MAX_BODIES,
    SendRefusal,
};
use wallaby_proto::wire::{Message, Request};

use crate::protocol::frames::with_body;
use crate::protocol::pair::{Pair, method, written};
use crate::protocol::strategies::config;

/// The request of a body, sent; the body's number.
fn begin(connection: &mut Connection) -> u64 {
    let mut request = with_body();
    connection
        .send_request(&mut request, &method())
        .expect("room");
    number(&request)
}

fn number(request: &Request) -> u64 {
    let options = request.options.as_ref().expect("options");
    options.body.expect("a body")
}

fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len).map(|place| (place / 7 + seed) as u8).collect()
}

/// What arrived of each body.
#[derive(Debug, Default, Clone, PartialEq)]
struct Arrived {
    bytes: Vec<u8>,
    end: Option<Result<(), String>>,
}

/// Takes what happened to bodies at Bob, who takes all that comes.
fn take(pair: &mut Pair, events: Vec<Event>, bodies: &mut Vec<Arrived>) {
    for event in events {
        match event {
            Event::Message(Message::Request(request)) => {
                assert_eq!(number(&request), bodies.len() as u64);
                bodies.push(Arrived::default());
            }
            Event::Body(number, event) => {
                let body = &mut bodies[number as usize];
                assert_eq!(body.end, None, "nothing after the end");
                match event {
                    BodyEvent::Bytes(bytes) => {
                        body.bytes.extend_from_slice(&bytes);
                        pair.bob.grant_body(number, bytes.len() as u64);
                    }
                    BodyEvent::Whole => body.end = Some(Ok(())),
                    BodyEvent::Broken(why) => body.end = Some(Err(why)),
                }
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(config(40))]

    /// Several bodies beside each other, through windows of any size, cut anywhere.
    #[test]
    fn every_byte_arrives_in_order(
        sizes in vec(prop_oneof![0..10usize, 1000..300_000usize], 1..6),
        chunk in prop_oneof![1..2000usize, 100_000..500_000usize],
        most in prop_oneof![500..3000usize, 10_000..100_000usize],
        call in prop_oneof![1..5000u64, Just(1 << 20)],
        streams in 1..4u32,
    ) {
        let sizes: Vec<usize> = sizes.into_iter().map(|size| size.min(call as usize * 40)).collect();
        let mut pair = Pair::open(ConnectionLimits { call, streams, ..ConnectionLimits::default() });
        let mut sending: Vec<(u64, Bytes)> = Vec::new();
        for (seed, size) in sizes.iter().enumerate() {
            sending.push((begin(&mut pair.alice), pattern(*size, seed)));
        }
        let mut bodies = Vec::new();
        while !sending.is_empty() || !pair.alice.is_idle() {
            sending.retain_mut(|(number, rest)| {
                while !rest.is_empty() {
                    let mut next = rest.split_to(rest.len().min(chunk));
                    let sent = pair.alice.send_body(*number, &mut next);
                    if !next.is_empty() {
                        *rest = [&next[..], &rest[..]].concat().into();
                    }
                    match sent {
                        Ok(()) => {}
                        Err(BodyRefusal::Blocked) => return true,
                        Err(BodyRefusal::Stopped) => panic!("nobody stopped it"),
                    }
                }
                pair.alice.end_body(*number, Ok(())).is_err()
            });
            let events = pair.carry_to_bob(most).expect("legal bytes");
            take(&mut pair, events, &mut bodies);
            pair.carry_to_alice(usize::MAX).expect("credit");
        }
        let expected: Vec<_> = sizes.iter().enumerate().map(|(seed, size)| Arrived {
            bytes: pattern(*size, seed).to_vec(),
            end: Some(Ok(())),
        }).collect();
        prop_assert!(bodies == expected, "all bodies arrived as they were sent");
    }
}

#[test]
fn no_more_is_sent_than_was_granted() {
    let limits = ConnectionLimits {
        call: 1000,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    let number = begin(&mut pair.alice);
    let mut chunk = pattern(2500, 0);
    pair.alice.send_body(number, &mut chunk).expect("a window");
    assert_eq!(chunk.len(), 1500);
    written(&mut pair.alice);
    assert_eq!(
        pair.alice.send_body(number, &mut chunk),
        Err(BodyRefusal::Blocked)
    );
    // Nor is the end, as long as something waits; but what is broken need not wait for what comes before.
    let mut other = Pair::open(limits);
    let number = begin(&mut other.alice);
    other.carry_to_bob(usize::MAX).expect("legal bytes");
    other
        .alice
        .send_body(number, &mut pattern(10, 0))
        .expect("a window");
    assert_eq!(
        other.alice.end_body(number, Ok(())),
        Err(BodyRefusal::Blocked)
    );
    other
        .alice
        .end_body(number, Err("no more"))
        .expect("an end");
    let events = other.carry_to_bob(usize::MAX).expect("legal bytes");
    let broken = Event::Body(number, BodyEvent::Broken("no more".into()));
    assert_eq!(events, [broken]);
    assert!(other.alice.is_idle());
}

#[test]
fn a_body_that_nobody_wants_ends() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let number = begin(&mut pair.alice);
    let mut chunk = pattern(1 << 20, 0);
    pair.alice.send_body(number, &mut chunk).expect("a window");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    pair.bob.stop_body(number);
    pair.bob.stop_body(number);
    pair.carry_to_alice(usize::MAX).expect("a stop");
    assert_eq!(
        pair.alice.send_body(number, &mut pattern(1, 0)),
        Err(BodyRefusal::Stopped)
    );
    assert_eq!(
        pair.alice.end_body(number, Ok(())),
        Err(BodyRefusal::Stopped)
    );
    // What was under way is not told, and its number is free again at both sides.
    let events = pair.carry_to_bob(usize::MAX).expect("legal bytes");
    assert_eq!(events, []);
    assert!(pair.alice.is_idle());
    for _ in 0..MAX_BODIES {
        begin(&mut pair.alice);
    }
    pair.carry_to_bob(usize::MAX).expect("all are new");
    // A credit that was under way when it ended harms nobody.
    pair.bob.grant_body(number, 5);
    pair.carry_to_alice(usize::MAX).expect("nothing");
}

#[test]
fn so_many_bodies_at_a_time() {
    let mut pair = Pair::open(ConnectionLimits::default());
    for _ in 0..MAX_BODIES {
        begin(&mut pair.alice);
    }
    let refused = pair.alice.send_request(&mut with_body(), &method());
    assert_eq!(refused, Err(SendRefusal::Blocked));
    pair.alice.end_body(3, Ok(())).expect("an end");
    begin(&mut pair.alice);
}

/// Bytes of the body must not arrive before its request has.
#[test]
fn a_body_waits_for_the_last_part_of_its_request() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut request = Request {
        payload: vec![1; 400_000].into(),
        ..with_body()
    };
    pair.alice
        .send_request(&mut request, &method())
        .expect("room");
    let number = number(&request);
    let mut bodies = Vec::new();
    let mut refused = 0;
    loop {
        match pair.alice.send_body(number, &mut pattern(5, 0)) {
            Ok(()) => break,
            Err(refusal) => assert_eq!(refusal, BodyRefusal::Blocked),
        }
        assert!(pair.alice.end_body(number, Err("early")).is_err());
        refused += 1;
        let events = pair.carry_to_bob(4000).expect("legal bytes");
        take(&mut pair, events, &mut bodies);
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert!(refused > 3);
    while !pair.alice.is_idle() {
        let events = pair.carry_to_bob(4000).expect("legal bytes");
        take(&mut pair, events, &mut bodies);
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert_eq!(bodies[0].bytes, pattern(5, 0));
}

/// Found by fuzzing: the numbers of bodies come in the order in which requests arrive as a whole.
#[test]
fn a_small_request_with_a_body_overtakes_a_large_one() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut large = Request {
        payload: vec![1; 400_000].into(),
        ..with_body()
    };
    pair.alice
        .send_request(&mut large, &method())
        .expect("room");
    let small = begin(&mut pair.alice);
    assert_eq!((number(&large), small), (0, 1));
    let mut arrived = Vec::new();
    while !pair.alice.is_idle() {
        for event in pair.carry_to_bob(10_000).expect("legal bytes") {
            if let Event::Message(Message::Request(request)) = event {
                arrived.push(number(&request));
            }
        }
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert_eq!(arrived, [1, 0]);
    for number in [0, 1] {
        pair.alice.end_body(number, Ok(())).expect("an end");
    }
    let ends = [0, 1].map(|number| Event::Body(number, BodyEvent::Whole));
    assert_eq!(pair.carry_to_bob(usize::MAX).expect("legal bytes"), ends);
}

#[test]
fn a_small_message_does_not_wait_behind_a_body() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let number = begin(&mut pair.alice);
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    let mut chunk = pattern(1 << 20, 0);
    pair.alice.send_body(number, &mut chunk).expect("a window");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    let small = &mut crate::protocol::limits::request(10);
    pair.alice.send_request(small, &method()).expect("room");
    let mut carried = 0;
    loop {
        carried += 1000;
        let events = pair.carry_to_bob(1000).expect("legal bytes");
        if events
            .iter()
            .any(|event| matches!(event, Event::Message(_)))
        {
            break;
        }
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert!(carried < 100_000, "{carried} bytes went first");
}

/// As many bytes of bodies may wait as their windows allow: large messages have a limit of their own.
#[test]
fn a_large_message_is_accepted_beside_bodies() {
    let limits = ConnectionLimits {
        message: 1 << 20,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    for _ in 0..32 {
        let number = begin(&mut pair.alice);
        let mut chunk = pattern(1 << 20, 0);
        pair.alice.send_body(number, &mut chunk).expect("a window");
    }
    let large = &mut crate::protocol::limits::request(500_000);
    pair.alice.send_request(large, &method()).expect("room");
    // Beside each other they still have theirs.
    let another = &mut crate::protocol::limits::request(900_000);
    let refused = pair.alice.send_request(another, &method());
    assert_eq!(refused, Err(SendRefusal::Blocked));
    let mut requests = 0;
    while !pair.alice.is_idle() {
        let events = pair.carry_to_bob(100_000).expect("legal bytes");
        let is_request = |event: &&Event| matches!(event, Event::Message(_));
        requests += events.iter().filter(is_request).count();
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert_eq!(requests, 33);
}

/// However long the chunks are that their senders have: a body has its turn with a little of them.
#[test]
fn a_large_message_takes_turns_with_bodies() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut bodies: Vec<_> = (0..8)
        .map(|_| (begin(&mut pair.alice), pattern(1 << 20, 0)))
        .collect();
    let send = |pair: &mut Pair, bodies: &mut [(u64, Bytes)]| {
        for (number, chunk) in bodies {
            while pair.alice.send_body(*number, chunk) == Ok(()) && !chunk.is_empty() {}
        }
    };
    send(&mut pair, &mut bodies);
    let large = &mut crate::protocol::limits::request(100_000);
    pair.alice.send_request(large, &method()).expect("room");
    let (mut requests, mut before) = (0, 0);
    while requests < 9 {
        for event in pair.carry_to_bob(10_000).expect("legal bytes") {
            match event {
                Event::Message(_) => requests += 1,
                Event::Body(_, BodyEvent::Bytes(bytes)) => before += bytes.len(),
                _ => {}
            }
        }
        pair.carry_to_alice(usize::MAX).expect("credit");
        send(&mut pair, &mut bodies);
    }
    assert!(before < 1_500_000, "{before} bytes of bodies went first");
}

/// The bytes of bodies that these events tell of.
fn told(events: &[Event]) -> Vec<u8> {
    let bytes = events.iter().filter_map(|event| match event {
        Event::Body(_, BodyEvent::Bytes(bytes)) => Some(&bytes[..]),
        _ => None,
    });
    bytes.collect::<Vec<_>>().concat()
}

/// A body's beginning, whose request Bob has got; then a frame of it with 32 KiB.
fn a_long_frame() -> (Pair, u64, Vec<u8>, Bytes) {
    let mut pair = Pair::open(ConnectionLimits::default());
    let number = begin(&mut pair.alice);
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    let bytes = pattern(32 * KIB, 0);
    let sent = pair.alice.send_body(number, &mut bytes.clone());
    sent.expect("a window");
    let frame = written(&mut pair.alice);
    assert_eq!(frame.len(), FRAME + bytes.len(), "one frame");
    (pair, number, frame, bytes)
}

const KIB: usize = 1024;

/// Length, kind, number and state of a body's frame.
const FRAME: usize = 6;

/// Who passes it on does not wait for the whole frame. What would be worth little by itself goes with the rest.
#[test]
fn much_of_a_body_is_told_before_its_frame_is_whole() {
    let (mut pair, _, frame, bytes) = a_long_frame();
    let (mut read, mut known) = (0, Vec::new());
    let reads = [
        (FRAME + 4 * KIB - 1, 0),
        (1, 4 * KIB),
        (4 * KIB - 1, 0),
        (12 * KIB, 16 * KIB - 1),
        (8 * KIB, 8 * KIB),
        // A KiB and a byte would be left.
        (3 * KIB, 0),
        (KIB + 1, 4 * KIB + 1),
    ];
    for (more, expected) in reads {
        let heard = pair.bob.heard();
        let events = pair
            .bob_reads(&frame[read..read + more])
            .expect("legal bytes");
        assert!(pair.bob.heard() > heard);
        read += more;
        assert_eq!(told(&events).len(), expected, "{read} bytes have come");
        known.extend(told(&events));
        let whole = read == frame.len();
        assert_eq!(pair.bob.has_output(), whole, "room is granted at the end");
    }
    assert_eq!(known, bytes);
    assert_eq!(
        pair.bob.counters().bytes_received,
        pair.alice.counters().bytes_sent
    );
}

#[test]
fn the_rest_of_a_frame_that_nobody_wants_is_dropped() {
    let (mut pair, number, frame, bytes) = a_long_frame();
    let (beginning, rest) = frame.split_at(FRAME + 10 * KIB);
    let events = pair.bob_reads(beginning).expect("legal bytes");
    assert_eq!(told(&events), bytes[..10 * KIB]);
    pair.bob.stop_body(number);
    for part in rest.chunks(7 * KIB) {
        assert_eq!(pair.bob_reads(part).expect("legal bytes"), []);
    }
    pair.carry_to_alice(usize::MAX).expect("a stop");
    let next = begin(&mut pair.alice);
    let events = pair.carry_to_bob(usize::MAX).expect("legal bytes");
    assert!(
        matches!(&events[..], [Event::Message(Message::Request(request))] if self::number(request) == next)
    );
}

/// A frame that announces more than was granted is refused when more comes.
#[test]
fn no_more_is_told_than_was_granted() {
    let mut pair = Pair::open(ConnectionLimits {
        call: 9 * KIB as u64,
        ..ConnectionLimits::default()
    });
    begin(&mut pair.alice);
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    let [a, b, c, _] = (32 * KIB as u32 + 2).to_le_bytes();
    let begun = [&[a, b, c, 0x09, 0, 0][..], &[7; 8 * KIB]].concat();
    assert_eq!(told(&pair.bob_reads(&begun).expect("room")), [7; 8 * KIB]);
    let error = pair.bob_reads(&[7; 4 * KIB]).expect_err("too much");
    assert!(
        error.to_string().contains("more than was granted"),
        "{error}"
    );
}

/// What no honest side would write closes the connection.
#[test]
fn lies_about_bodies_are_refused() {
    let mut opening = Pair::open(ConnectionLimits::default());
    begin(&mut opening.alice);
    let opening = written(&mut opening.alice);
    let request = opening[4 + usize::from(opening[0])..].to_vec(); // behind the method's frame
    let body = |number: u8, state: u8, rest: &[u8]| -> Vec<u8> {
        let len = rest.len() as u32 + 2;
        let [a, b, c, _] = len.to_le_bytes();
        [&[a, b, c, 0x09, number, state][..], rest].concat()
    };
    let lies = [
        (body(1, 0, b"x"), "not begun"),
        (body(0, 0, b""), "nothing in it"),
        (body(0, 3, b""), "neither more nor an end"),
        (body(0, 1, b"x"), "neither more nor an end"),
        ([body(0, 1, b""), body(0, 0, b"x")].concat(), "has ended"),
        (body(0, 0, &[0; 1001]), "more than was granted"),
        (vec![2, 0, 0, 0x0a, 0, 1], "not begun"),
        (vec![2, 0, 0, 0x0a, 0, 2], "neither credit nor stop"),
        (request, "used before"),
    ];
    for (lie, why) in lies {
        let mut pair = Pair::open(ConnectionLimits {
            call: 1000,
            ..ConnectionLimits::default()
        });
        pair.bob_reads(&opening).expect("legal bytes");
        let error = pair.bob_reads(&lie).expect_err("a lie");
        assert!(
            matches!(error, ConnectionError::Malformed(_)) && error.to_string().contains(why),
            "{error}, not {why}"
        );
    }
}
