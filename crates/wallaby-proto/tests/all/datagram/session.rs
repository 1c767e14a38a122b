//! What the two sides of a session do on a good network, and what they refuse.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::{Carrier, Mark};
use wallaby_proto::connection::{Charge, ConnectionLimits, Event, SendRefusal};
use wallaby_proto::datagram::{GateSettings, MAX_MESSAGE, SessionId};
use wallaby_proto::error::hint;
use wallaby_proto::wire::{Message, MethodRef, Request, Response};

use crate::datagram::messages::{method, named, node, ping, request, response};
use crate::datagram::world::{Happening, Network, World, address};

const SHORT: Duration = Duration::from_millis(1);

fn payload(len: usize) -> Bytes {
    (0..len).map(|index| (index % 251) as u8).collect()
}

pub(crate) fn pair() -> (World, SessionId, SessionId) {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let (at_1, at_2) = world.open();
    (world, at_1, at_2)
}

fn requests(events: Vec<Happening>) -> Vec<Request> {
    let request = |(_, event): Happening| match event {
        Ok(Event::Message(Message::Request(request))) => Some(request),
        Ok(_) => None,
        Err(ended) => panic!("{ended}"),
    };
    events.into_iter().filter_map(request).collect()
}

fn responses(events: Vec<Happening>) -> Vec<Response> {
    let response = |(_, event): Happening| match event {
        Ok(Event::Message(Message::Response(response))) => Some(response),
        Ok(_) => None,
        Err(ended) => panic!("{ended}"),
    };
    events.into_iter().filter_map(response).collect()
}

#[test]
fn messages_of_all_sizes_arrive_as_they_were_sent() {
    let (mut world, at_1, at_2) = pair();
    for (sequence, len) in [0, 1, 100, 1000, 1100, 1150, 1200, 5000, 65_535, 65_536]
        .into_iter()
        .enumerate()
    {
        let sent = request(node(1), sequence as u64 + 1, payload(len));
        let session = world.gate(1).session(at_1).expect("open");
        let sent_as = session
            .send_request(&mut sent.clone(), &method())
            .expect("room");
        assert!(!session.is_idle());
        let (_, events) = world.pass(Duration::from_millis(100));
        let arrived = requests(events);
        assert_eq!(arrived, [sent], "{len}");
        let session = world.gate(1).session(at_1).expect("open");
        assert_eq!(sent_as, Mark::Written(session.acknowledged()));

        let sent = response(node(1), sequence as u64 + 1, payload(len));
        let session = world.gate(2).session(at_2).expect("open");
        session
            .send_response(&sent.clone(), Charge::Counted)
            .expect("room");
        let (events, _) = world.pass(Duration::from_millis(100));
        assert_eq!(responses(events), [sent], "{len}");
    }
}

#[test]
fn larger_messages_are_refused_and_the_error_says_what_takes_them() {
    let (mut world, at_1, at_2) = pair();
    let mut sent = request(node(1), 1, payload(MAX_MESSAGE + 1));
    let session = world.gate(1).session(at_1).expect("open");
    let refusal = session
        .send_request(&mut sent, &method())
        .expect_err("too large");
    let (size, limit) = (65_537, MAX_MESSAGE as u64);
    assert_eq!(refusal, SendRefusal::TooLarge { size, limit });
    let text = format!("{refusal}{}", hint(limit, true));
    for word in ["65537", "65536", "tcp:", "unix:"] {
        assert!(text.contains(word), "{text:?} names {word}");
    }
    let sent = response(node(1), 1, payload(MAX_MESSAGE + 1));
    let session = world.gate(2).session(at_2).expect("open");
    assert_eq!(session.send_response(&sent, Charge::Free), Err(refusal));
}

#[test]
fn a_side_that_takes_less_is_sent_less() {
    let mut world = World::new(1, Network::default());
    let small = ConnectionLimits {
        message: 100,
        ..ConnectionLimits::default()
    };
    world.start(1, 1, ConnectionLimits::default(), GateSettings::default());
    world.start(2, 2, small, GateSettings::default());
    let (at_1, _) = world.open();
    let session = world.gate(1).session(at_1).expect("open");
    let refused = session.send_request(&mut request(node(1), 1, payload(101)), &method());
    let expected = SendRefusal::TooLarge {
        size: 101,
        limit: 100,
    };
    assert_eq!(refused.expect_err("too large"), expected);
}

#[test]
fn a_steady_exchange_takes_one_datagram_a_message() {
    let (mut world, at_1, at_2) = pair();
    exchange(&mut world, at_1, at_2, 1);
    world.pass(Duration::from_secs(1)); // what was to be acknowledged is
    world.start_log();
    let count = 1000;
    (2..2 + count).for_each(|sequence| exchange(&mut world, at_1, at_2, sequence));
    let log = world.take_log();
    assert_eq!(log.len() as u64, 2 * count, "one datagram a message");
    let header = log.iter().map(|datagram| datagram.bytes.len() - 100).max();
    assert!(header <= Some(56), "{header:?} bytes beside the payload");
}

/// As between the servers of a chain, whose answers go elsewhere.
#[test]
fn what_is_not_answered_is_seldom_acknowledged() {
    let (mut world, at_1, at_2) = pair();
    exchange(&mut world, at_1, at_2, 1);
    world.pass(Duration::from_secs(1)); // what was to be acknowledged is
    world.start_log();
    let count = 64 * 16;
    for sequence in 2..2 + count {
        send_one(&mut world, at_1, sequence);
        let session = world.gate(2).session(at_2).expect("open");
        session.grant_request(100);
    }
    let log = world.take_log();
    let back = log.iter().filter(|datagram| datagram.from == address(2));
    assert_eq!(
        back.count() as u64,
        count / 64,
        "of {} datagrams",
        log.len()
    );
}

/// A request of 100 bytes, which arrives.
fn send_one(world: &mut World, at_1: SessionId, sequence: u64) {
    let session = world.gate(1).session(at_1).expect("open");
    session
        .send_request(&mut request(node(1), sequence, payload(100)), &method())
        .expect("room");
    let mut arrived = Vec::new();
    while arrived.is_empty() {
        assert!(world.step(world.now + SHORT));
        arrived = requests(world.events(2));
    }
}

/// One request and its answer, each of 100 bytes; both arrive.
fn exchange(world: &mut World, at_1: SessionId, at_2: SessionId, sequence: u64) {
    send_one(world, at_1, sequence);
    let session = world.gate(2).session(at_2).expect("open");
    session.grant_request(100);
    session
        .send_response(&response(node(1), sequence, payload(100)), Charge::Free)
        .expect("not counted");
    let mut arrived = Vec::new();
    while arrived.is_empty() {
        assert!(world.step(world.now + SHORT));
        arrived = responses(world.events(1));
    }
}

#[test]
fn the_first_answer_takes_two_round_trips() {
    let delay = Duration::from_millis(20);
    let network = Network {
        delay,
        ..Network::default()
    };
    let mut world = World::pair(network, GateSettings::default());
    let start = world.now;
    let at_1 = world.gate(1).dial(start, address(2), None).expect("room");
    while world.events(1).is_empty() {
        assert!(world.step(start + 10 * delay));
    }
    assert_eq!(world.now - start, 2 * delay, "open after one round trip");
    let session = world.gate(1).session(at_1).expect("open");
    session
        .send_request(&mut request(node(1), 1, payload(100)), &method())
        .expect("room");
    let arrived = loop {
        assert!(world.step(start + 10 * delay));
        let events = world.events(2);
        if !events.is_empty() {
            break events;
        }
    };
    assert_eq!(world.now - start, 3 * delay);
    let at_2 = arrived[0].0;
    assert_eq!(
        requests(arrived).len(),
        1,
        "the request came with the proof"
    );
    let session = world.gate(2).session(at_2).expect("open");
    session
        .send_response(&response(node(1), 1, payload(100)), Charge::Free)
        .expect("not counted");
    while responses(world.events(1)).is_empty() {
        assert!(world.step(start + 10 * delay));
    }
    assert_eq!(world.now - start, 4 * delay);
}

#[test]
fn small_messages_share_datagrams() {
    let (mut world, at_1, _) = pair();
    world.start_log();
    for sequence in 1..=20 {
        let session = world.gate(1).session(at_1).expect("open");
        session
            .send_request(&mut request(node(1), sequence, payload(50)), &method())
            .expect("room");
    }
    let (_, events) = world.pass(SHORT);
    assert_eq!(requests(events).len(), 20);
    let sent = world.take_log();
    let count = sent.iter().filter(|sent| sent.from == address(1)).count();
    assert!(count <= 3, "{count} datagrams");
    assert!(sent.iter().all(|sent| sent.bytes.len() <= 1200));
}

#[test]
fn one_way_traffic_is_acknowledged_each_ten_milliseconds() {
    let (mut world, at_1, at_2) = pair();
    world.start_log();
    for sequence in 1..=1000 {
        let session = world.gate(1).session(at_1).expect("open");
        session
            .send_request(&mut request(node(1), sequence, payload(100)), &method())
            .expect("room");
        let (_, events) = world.pass(Duration::from_micros(200));
        requests(events).iter().for_each(|request| {
            let session = world.gate(2).session(at_2).expect("open");
            session.grant_request(request.payload.len());
        });
    }
    let log = world.take_log();
    let back = log.iter().filter(|sent| sent.from == address(2)).count();
    assert!((20..=30).contains(&back), "{back} datagrams back");
}

/// So that the system can send them at once: only the last one may be shorter.
#[test]
fn the_datagrams_of_a_message_have_one_length() {
    let (mut world, at_1, at_2) = pair();
    exchange(&mut world, at_1, at_2, 1);
    let session = world.gate(2).session(at_2).expect("open");
    session
        .send_response(&response(node(1), 1, payload(10)), Charge::Free)
        .expect("not counted");
    world.pass(SHORT); // it waits for its acknowledgement, which the first piece takes along
    world.start_log();
    let session = world.gate(1).session(at_1).expect("open");
    session
        .send_request(&mut request(node(1), 2, payload(9000)), &method())
        .expect("room");
    let (_, events) = world.pass(SHORT);
    assert_eq!(requests(events).len(), 1);
    let log = world.take_log();
    let there = log.iter().filter(|sent| sent.from == address(1));
    let lengths: Vec<usize> = there.map(|sent| sent.bytes.len()).collect();
    let (last, others) = lengths.split_last().expect("datagrams");
    assert!(
        others.len() >= 7 && others.iter().all(|length| *length == others[0]),
        "{lengths:?}"
    );
    assert!(*last < others[0] && others[0] <= 1200, "{lengths:?}");
}

#[test]
fn larger_datagrams_are_used_where_the_settings_allow() {
    let settings = GateSettings {
        datagram: 9000,
        ..GateSettings::default()
    };
    let mut world = World::pair(Network::default(), settings);
    let (at_1, _) = world.open();
    world.start_log();
    let session = world.gate(1).session(at_1).expect("open");
    session
        .send_request(&mut request(node(1), 1, payload(MAX_MESSAGE)), &method())
        .expect("room");
    let (_, events) = world.pass(Duration::from_secs(1));
    assert_eq!(requests(events).len(), 1);
    let log = world.take_log();
    let sent: Vec<_> = log.iter().filter(|sent| sent.from == address(1)).collect();
    assert_eq!(sent.len(), 8);
    assert!(sent.iter().all(|sent| sent.bytes.len() <= 9000));
}

#[test]
fn control_messages_go_before_large_ones() {
    let (mut world, at_1, at_2) = pair();
    let session = world.gate(1).session(at_1).expect("open");
    for sequence in 1..=8 {
        session
            .send_request(
                &mut request(node(1), sequence, payload(MAX_MESSAGE)),
                &method(),
            )
            .expect("room");
    }
    session
        .send_control(Message::Ping(ping(node(1), 9)))
        .expect("open");
    let (mut first, mut before) = (None, 0);
    while first.is_none() {
        assert!(world.step(world.now + Duration::from_secs(1)));
        for (_, event) in world.events(2) {
            match event.expect("open") {
                Event::Message(Message::Ping(_)) => first = Some(before),
                Event::Message(_) => before += 1,
                _ => {}
            }
        }
    }
    assert_eq!(first, Some(0), "messages before the ping");
    assert!(world.gate(2).session(at_2).is_some());
}

#[test]
fn small_messages_overtake_large_ones_and_do_not_starve_them() {
    let network = Network {
        bandwidth: Some((12_000_000, 20_000)),
        ..Network::default()
    };
    let mut world = World::pair(network, GateSettings::default());
    let (at_1, at_2) = world.open();
    let session = world.gate(1).session(at_1).expect("open");
    let mut large = request(node(1), 1, payload(MAX_MESSAGE));
    session.send_request(&mut large, &method()).expect("room");
    let (mut sequence, mut order) = (1, Vec::new());
    while !order.contains(&MAX_MESSAGE) {
        // More than the link carries, always.
        let session = world.gate(1).session(at_1).expect("open");
        while session.pending().filter(|pending| !pending.sent).count() < 30 {
            sequence += 1;
            let mut small = request(node(1), sequence, payload(400));
            session.send_request(&mut small, &method()).expect("room");
        }
        let (_, events) = world.pass(Duration::from_micros(100));
        for request in requests(events) {
            let session = world.gate(2).session(at_2).expect("open");
            session.grant_request(request.payload.len());
            order.push(request.payload.len());
        }
        assert!(order.len() < 5000, "it gets its turns");
    }
    let before = order.iter().position(|len| *len == MAX_MESSAGE);
    assert!(before > Some(500), "{before:?}: small ones overtake it");
}

#[test]
fn methods_are_introduced_once_and_numbered_at_the_receiver() {
    let (mut world, at_1, _) = pair();
    let mut seen = Vec::new();
    for (sequence, name) in ["a/a", "b/b", "a/a", "b/b", "a/a"].iter().enumerate() {
        let session = world.gate(1).session(at_1).expect("open");
        session
            .send_request(
                &mut request(node(1), sequence as u64 + 1, payload(3)),
                &named(name),
            )
            .expect("room");
        if sequence == 2 {
            world.start_log();
        }
        for (_, event) in world.pass(Duration::from_millis(50)).1 {
            match event.expect("open") {
                Event::Method(number, method) => {
                    seen.push(format!("{number} is {}", method.name()))
                }
                Event::Message(Message::Request(request)) => {
                    let MethodRef::Number(number) = request.method else {
                        panic!("{:?}", request.method)
                    };
                    seen.push(format!("call {number}"));
                }
                event => panic!("{event:?}"),
            }
        }
    }
    assert_eq!(
        seen,
        [
            "0 is a/a", "call 0", "1 is b/b", "call 1", "call 0", "call 1", "call 0"
        ]
    );
    let log = world.take_log();
    let named = |sent: &&[u8]| {
        sent.windows(3)
            .any(|bytes| bytes == b"a/a" || bytes == b"b/b")
    };
    let sent = log.iter().map(|sent| &sent.bytes[..]);
    assert_eq!(sent.filter(named).count(), 0, "names are not sent again");
}

#[test]
fn requests_wait_for_credit() {
    let mut world = World::new(1, Network::default());
    let limits = ConnectionLimits {
        requests: 10_000,
        ..ConnectionLimits::default()
    };
    world.start(1, 1, ConnectionLimits::default(), GateSettings::default());
    world.start(2, 2, limits, GateSettings::default());
    let (at_1, at_2) = world.open();
    let mut sent = 0;
    loop {
        let session = world.gate(1).session(at_1).expect("open");
        match session.send_request(&mut request(node(1), sent + 1, payload(936)), &method()) {
            Ok(_) => sent += 1,
            Err(refusal) => {
                assert_eq!(refusal, SendRefusal::Blocked);
                assert!(!session.takes_requests());
                break;
            }
        }
    }
    assert_eq!(sent, 10);
    let (_, events) = world.pass(Duration::from_millis(100));
    let arrived = requests(events);
    assert_eq!(arrived.len(), 10);
    for (index, request) in arrived.iter().enumerate() {
        let session = world.gate(2).session(at_2).expect("open");
        session.grant_request(request.payload.len());
        let (events, _) = world.pass(Duration::from_millis(100));
        let credit = events
            .iter()
            .any(|(_, event)| matches!(event, Ok(Event::Credit(_))));
        assert_eq!(
            credit,
            index == 4 || index == 9,
            "at half of the limit: {index}"
        );
    }
    assert!(world.gate(1).session(at_1).expect("open").takes_requests());
}

#[test]
fn answers_of_a_call_wait_for_its_credit() {
    let mut world = World::new(1, Network::default());
    let limits = ConnectionLimits {
        call: 2000,
        ..ConnectionLimits::default()
    };
    world.start(1, 1, limits, GateSettings::default());
    world.start(2, 2, ConnectionLimits::default(), GateSettings::default());
    let (at_1, at_2) = world.open();
    let answer = |sequence| response(node(1), sequence, payload(936));
    let session = world.gate(2).session(at_2).expect("open");
    session
        .send_response(&answer(1), Charge::Counted)
        .expect("room");
    session
        .send_response(&answer(1), Charge::Counted)
        .expect("room");
    assert!(matches!(
        session.send_response(&answer(1), Charge::Counted),
        Err(SendRefusal::Blocked)
    ));
    assert!(!session.takes_responses(answer(1).call));
    assert!(session.takes_responses(answer(2).call), "another call");
    session
        .send_response(&answer(1), Charge::Free)
        .expect("not counted");
    world.pass(Duration::from_millis(100));
    let session = world.gate(1).session(at_1).expect("open");
    session.grant_call(answer(1).call, 2, 2 * 936);
    let (_, events) = world.pass(Duration::from_millis(100));
    assert!(
        matches!(events[..], [(_, Ok(Event::Credit(_)))]),
        "{events:?}"
    );
    let session = world.gate(2).session(at_2).expect("open");
    assert!(session.takes_responses(answer(1).call));
}

#[test]
fn what_is_not_acknowledged_is_bounded_and_says_when_there_is_room() {
    let settings = GateSettings {
        unacknowledged: 10_000,
        ..GateSettings::default()
    };
    let mut world = World::pair(Network::default(), settings);
    let (at_1, _) = world.open();
    let session = world.gate(1).session(at_1).expect("open");
    let mut sent = 0;
    while session
        .send_request(&mut request(node(1), sent + 1, payload(1000)), &method())
        .is_ok()
    {
        sent += 1;
    }
    assert_eq!(sent, 10);
    let mut pings = 0;
    while session
        .send_control(Message::Ping(ping(node(1), 1)))
        .is_ok()
    {
        pings += 1;
    }
    assert!(
        (100..10_000).contains(&pings),
        "{pings}: more, but not without end"
    );
    let (events, _) = world.pass(Duration::from_secs(1));
    assert!(
        matches!(events[..], [(_, Ok(Event::Credit(_)))]),
        "{events:?}"
    );
    let session = world.gate(1).session(at_1).expect("open");
    assert!(session.is_idle() && session.takes_requests());
}

#[test]
fn going_away_and_closing_are_told() {
    let (mut world, at_1, at_2) = pair();
    let session = world.gate(1).session(at_1).expect("open");
    session
        .send_request(&mut request(node(1), 1, payload(3)), &method())
        .expect("room");
    let (_, events) = world.pass(SHORT);
    assert_eq!(requests(events).len(), 1);
    world.gate(2).session(at_2).expect("open").go_away();
    let (events, _) = world.pass(SHORT);
    assert!(
        matches!(events[..], [(id, Ok(Event::GoingAway { received: 1, .. }))] if id == at_1),
        "{events:?}"
    );
    world.gate(1).session(at_1).expect("open").close("enough");
    let session = world.gate(1).session(at_1).expect("not told yet");
    let refused = session.send_request(&mut request(node(1), 2, payload(3)), &method());
    assert_eq!(refused.expect_err("closed"), SendRefusal::NotOpen);
    let (events_1, events_2) = world.pass(SHORT);
    assert!(events_1.is_empty(), "{events_1:?}");
    let [(id, Err(ended))] = &events_2[..] else {
        panic!("{events_2:?}")
    };
    assert_eq!(
        (*id, ended.to_string()),
        (at_2, "closed by the peer: enough".into())
    );
    assert!(world.gate(1).is_empty() && world.gate(2).is_empty());
    world.start_log();
    world.pass(Duration::from_secs(100));
    assert!(world.take_log().is_empty(), "nothing is left to say");
}

#[test]
fn both_sides_may_close_at_once() {
    let (mut world, at_1, at_2) = pair();
    world.gate(1).session(at_1).expect("open").close("enough");
    world.gate(2).session(at_2).expect("open").close("me too");
    let (events_1, events_2) = world.pass(SHORT);
    assert!(events_1.is_empty() && events_2.is_empty());
    assert!(world.gate(1).is_empty() && world.gate(2).is_empty());
}

#[test]
fn an_idle_session_lives_on_at_the_price_of_a_probe_a_minute() {
    let (mut world, at_1, at_2) = pair();
    world.start_log();
    let (events_1, events_2) = world.pass(Duration::from_secs(600));
    assert!(events_1.is_empty() && events_2.is_empty());
    let sent = world.take_log().len();
    assert!((10..=40).contains(&sent), "{sent} datagrams in ten minutes");
    assert!(world.gate(1).session(at_1).is_some());
    assert!(world.gate(2).session(at_2).is_some());
}
