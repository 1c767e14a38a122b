//! Limits to the byte, flags that nobody knows, and what the parts of a call tell to who asks.

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::server::{Outbound, ServerHalf};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    BodyRefusal, Connection, ConnectionError, ConnectionLimits, Event, KeepAlive,
    KeepAliveSettings, SendRefusal,
};
use wallaby_proto::items::{ItemReader, put_length};
use wallaby_proto::wire::{Budgets, MAX_FRAME, Message, MessageOptions, WireError};
use wallaby_proto::{Code, RequestId, Status};

use crate::protocol::frames::with_body;
use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{self, alice, all, bob};
use crate::protocol::vectors;

/// How many bytes may wait in a connection's output.
const OUTPUT: usize = 256 * 1024;

/// Limits that nothing here comes near.
fn wide() -> ConnectionLimits {
    ConnectionLimits {
        message: 1 << 30,
        requests: 1 << 30,
        call: 1 << 30,
        ..ConnectionLimits::default()
    }
}

fn send(connection: &mut Connection, len: usize) -> Result<(), SendRefusal> {
    let sent = connection.send_request(&mut request(len), &method());
    sent.map(drop)
}

/// Alice's end, whose output is full to the last byte.
fn full() -> Pair {
    let mut pair = Pair::open(wide());
    for _ in 0..3 {
        send(&mut pair.alice, 60_000).expect("room");
    }
    let before = pair.alice.output().len();
    send(&mut pair.alice, 60_000).expect("room");
    let header = pair.alice.output().len() - before - 60_000;
    let rest = OUTPUT - pair.alice.output().len() - header;
    assert!((1..60_000).contains(&rest));
    send(&mut pair.alice, rest).expect("room");
    let missing = OUTPUT - pair.alice.output().len();
    assert_eq!(missing, 0, "its header is as long as the last one");
    pair
}

#[test]
fn output_is_taken_up_to_its_limit_and_again_when_it_is_written() {
    let mut pair = full();
    assert!(pair.alice.takes_output() && pair.alice.takes_requests());
    send(&mut pair.alice, MAX_FRAME).expect("it is not more than full");
    assert!(!pair.alice.takes_output() && !pair.alice.takes_requests());
    for len in [0, 1, MAX_FRAME] {
        assert_eq!(
            send(&mut pair.alice, len),
            Err(SendRefusal::Blocked),
            "{len}"
        );
    }
    written(&mut pair.alice);
    assert!(pair.alice.takes_output());
    send(&mut pair.alice, MAX_FRAME).expect("room");
}

#[test]
fn a_question_is_answered_until_the_output_is_more_than_full() {
    let mut pair = Pair::open(wide());
    pair.bob.probe();
    let question = BytesMut::from(&written(&mut pair.bob)[..]);
    let mut full = full();
    let answered = |full: &mut Pair| {
        let before = full.alice.output().len();
        let event = full.alice.handle_input(&mut question.clone());
        assert_eq!(event, Ok(None));
        full.alice.output().len() > before
    };
    assert!(answered(&mut full));
    assert!(!answered(&mut full), "answers do not pile up");
}

#[test]
fn each_question_has_a_number_of_its_own() {
    let mut pair = Pair::open(wide());
    let mut questions = Vec::new();
    for _ in 0..3 {
        pair.alice.probe();
        questions.push(written(&mut pair.alice));
    }
    let numbers: Vec<u8> = questions
        .iter()
        .map(|frame| frame[frame.len() - 1])
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_window_of_requests_that_is_used_up_takes_none() {
    let limits = ConnectionLimits {
        requests: 1000,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    send(&mut pair.alice, 1000 - 64).expect("a window");
    assert!(!pair.alice.takes_requests());
    assert_eq!(send(&mut pair.alice, 0), Err(SendRefusal::Blocked));
    pair.bob.grant_request(1000 - 64);
    pair.carry_to_alice(usize::MAX).expect("legal bytes");
    assert!(pair.alice.takes_requests());
}

#[test]
fn a_large_request_takes_an_eighth_of_the_window_at_most() {
    let requests = 8 << 20;
    let mut pair = Pair::open(ConnectionLimits { requests, ..wide() });
    let sent = std::iter::from_fn(|| send(&mut pair.alice, 2 << 20).ok());
    assert_eq!(sent.take(100).count(), 8);
}

#[test]
fn large_messages_wait_for_each_other_beyond_what_one_may_be() {
    let message = 200_000;
    let mut pair = Pair::open(ConnectionLimits { message, ..wide() });
    send(&mut pair.alice, 200_000).expect("nothing waits, and it may be so large");
    assert_eq!(send(&mut pair.alice, 70_000), Err(SendRefusal::Blocked));
    let mut pair = Pair::open(ConnectionLimits { message, ..wide() });
    for _ in 0..2 {
        send(&mut pair.alice, 90_000).expect("together less");
    }
    assert_eq!(send(&mut pair.alice, 90_000), Err(SendRefusal::Blocked));
    send(&mut pair.alice, 100).expect("small ones do not wait for it");
    // What has left does not count.
    let mut pair = Pair::open(ConnectionLimits {
        message,
        parts: 1 << 30,
        ..wide()
    });
    for _ in 0..5 {
        send(&mut pair.alice, 200_000).expect("nothing waits");
        written(&mut pair.alice);
    }
}

#[test]
fn a_payload_of_a_frame_travels_in_one() {
    let kind_of = |len: usize| {
        let mut pair = Pair::open(wide());
        send(&mut pair.alice, 0).expect("room");
        written(&mut pair.alice);
        send(&mut pair.alice, len).expect("room");
        written(&mut pair.alice)[3]
    };
    assert_eq!(kind_of(MAX_FRAME), 0x10);
    assert_ne!(kind_of(MAX_FRAME + 1), 0x10);
}

#[test]
fn frames_are_as_long_as_they_may_be_and_no_longer() {
    let read = |connection: &mut Connection, len: usize| {
        let mut input = BytesMut::from(&(len as u32).to_le_bytes()[..3]);
        input.extend_from_slice(&[0x10]);
        connection.handle_input(&mut input)
    };
    let refused = |len: usize, limit| {
        let (what, len) = ("frame", len as u64);
        WireError::TooLong { what, len, limit }
    };
    let mut open = Pair::open(wide());
    assert_eq!(
        read(&mut open.bob, 2 * MAX_FRAME),
        Ok(None),
        "it waits for it"
    );
    let mut open = Pair::open(wide());
    let len = 2 * MAX_FRAME + 1;
    let broken = ConnectionError::Malformed(refused(len, 2 * MAX_FRAME));
    assert_eq!(read(&mut open.bob, len), Err(broken));
    let closed = || Pair::closed(hello(alice(), wide()), hello(bob(), wide()));
    assert_eq!(read(&mut closed().bob, 4096), Ok(None));
    let foreign = ConnectionError::Foreign(refused(4097, 4096));
    assert_eq!(read(&mut closed().bob, 4097), Err(foreign));
}

/// A peer that takes the limit for a larger one. What it sends in parts is never taken for whole because its beginning is
/// within the limit.
#[test]
fn of_a_message_above_the_limit_nothing_is_taken_for_a_message() {
    let message = 100_000;
    for size in [
        100_001, 165_000, 165_500, 165_536, 165_600, 170_000, 300_000,
    ] {
        let mut generous = Pair::open(ConnectionLimits {
            parts: 1 << 30,
            ..wide()
        });
        send(&mut generous.alice, size).expect("room");
        let mut strict = Pair::open(ConnectionLimits {
            message,
            parts: 1 << 30,
            ..wide()
        });
        let mut input = BytesMut::from(&written(&mut generous.alice)[..]);
        let mut told = Vec::new();
        while let Some(event) = strict.bob.handle_input(&mut input).expect("legal bytes") {
            match event {
                Event::TooLarge { message, size } => {
                    let Message::Request(request) = message else {
                        panic!("{message:?}")
                    };
                    assert!(request.payload.is_empty());
                    told.push(size);
                }
                Event::Message(message) => panic!("{size}: {message:?}"),
                _ => {}
            }
        }
        let [told] = told[..] else {
            panic!("{size}: {told:?}")
        };
        assert!((1..100).contains(&(told - size as u64)), "{told} of {size}");
    }
}

#[test]
fn limits_are_legal_down_to_half_a_frame_of_parts() {
    let opens = |parts: u64| {
        let limits = ConnectionLimits {
            parts,
            ..ConnectionLimits::default()
        };
        let mut pair = Pair::closed(
            hello(alice(), limits),
            hello(bob(), ConnectionLimits::default()),
        );
        pair.carry_to_bob(usize::MAX).is_ok()
    };
    let least = MAX_FRAME as u64 / 2;
    assert!(opens(least));
    assert!(!opens(least - 1));
}

#[test]
fn who_may_not_send_more_of_a_body_waits_for_the_peer() {
    let limits = ConnectionLimits {
        call: 1000,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::open(limits);
    let mut opening = with_body();
    pair.alice
        .send_request(&mut opening, &method())
        .expect("room");
    let mut chunk = Bytes::from(vec![7; 1001]);
    pair.alice.send_body(0, &mut chunk).expect("a window");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    pair.carry_to_alice(usize::MAX).expect("legal bytes");
    let settings = KeepAliveSettings::default();
    let interval = settings.interval().expect("it is on");
    let waits = |pair: &mut Pair| {
        let mut keep_alive = KeepAlive::default();
        let first = keep_alive.look(&settings, &mut pair.alice, false, interval);
        first.expect("nothing has failed");
        let again = keep_alive.look(&settings, &mut pair.alice, false, 2 * interval);
        again.expect("nothing has failed")
    };
    assert!(!waits(&mut pair), "nothing was refused");
    let refused = pair.alice.send_body(0, &mut chunk);
    assert_eq!(refused, Err(BodyRefusal::Blocked));
    assert!(waits(&mut pair));
}

/// A later version may give them a meaning: who ignored them would misread the message.
#[test]
fn flags_that_are_not_known_are_refused() {
    let mut refused = std::collections::BTreeSet::new();
    for sample in all() {
        let frame = vectors::frame(&sample.message, sample.link);
        for bit in 17..60 {
            // The flags come first, as an integer of one to three bytes.
            let body = &frame[4..];
            let len = 1 + body.iter().take_while(|byte| **byte >= 0x80).count();
            let bytes = body[..len].iter().rev();
            let known = bytes.fold(0, |known, byte| known << 7 | u64::from(byte & 0x7f));
            let mut flags = known | 1 << bit;
            let mut changed = Vec::new();
            while flags >= 0x80 {
                changed.push(flags as u8 | 0x80);
                flags >>= 7;
            }
            changed.push(flags as u8);
            changed.extend_from_slice(&body[len..]);
            let read = Message::decode(frame[3], changed.into(), sample.link);
            let Err(WireError::NotUnderstood { what, bits }) = read else {
                panic!("{}: {read:?}", sample.name)
            };
            assert_eq!(bits, 1 << bit, "{}", sample.name);
            refused.insert(what);
        }
    }
    assert_eq!(refused.len(), 6, "{refused:?}");
}

#[test]
fn a_status_tells_where_it_comes_from() {
    let server: wallaby_proto::Address = "tcp://10.0.0.1:4000".parse().expect("an address");
    let other: wallaby_proto::Address = "tcp://10.0.0.2:4000".parse().expect("an address");
    let status = Status::new(Code::Internal, "why");
    assert_eq!((status.request(), status.server()), (None, None));
    let told = status
        .at(RequestId::FIRST)
        .by(Some(&server))
        .by(Some(&other));
    assert_eq!(told.request(), Some(RequestId::FIRST));
    assert_eq!(told.server(), Some(&server), "who said so first");
}

#[test]
fn a_limit_of_items_holds_from_the_next_one_on() {
    let item = |len: usize| {
        let mut out = Vec::new();
        put_length(&mut out, len);
        out.resize(out.len() + len, 7);
        Bytes::from(out)
    };
    let mut reader = ItemReader::new(10);
    assert!(reader.next(&mut item(10)).is_ok_and(|item| item.is_some()));
    reader.set_limit(5);
    assert!(reader.next(&mut item(5)).is_ok_and(|item| item.is_some()));
    assert!(reader.next(&mut item(6)).is_err());
}

fn server(budgets: Option<Budgets>) -> ServerHalf<u64> {
    let options = budgets.map(|budgets| {
        Box::new(MessageOptions {
            budgets: Some(budgets),
            ..MessageOptions::default()
        })
    });
    ServerHalf::new(&mut wallaby_proto::wire::Request {
        options,
        ..request(0)
    })
}

#[test]
fn what_was_held_back_leaves_before_the_last_message() {
    let mut server = server(None);
    assert!(server.reply("first".into()).is_none());
    let released = server.respond("last".into(), None);
    let sent = released.into_iter().map(|message| match message {
        Outbound::Response(response) => (response.index, response.payload),
        other => panic!("{other:?}"),
    });
    let expected = [(0, "first".into()), (1, "last".into())];
    assert_eq!(sent.collect::<Vec<_>>(), expected);
}

#[test]
fn a_server_tells_what_is_left_and_what_was_announced() {
    assert!(server(None).allowance().is_none());
    let budgets = Budgets {
        responses: 5,
        ..Budgets::default()
    };
    let mut server = server(Some(budgets));
    let allowance = server.allowance_mut().expect("stated");
    assert_eq!(allowance.announced(), 0);
    allowance.announce(3);
    let allowance = server.allowance().expect("stated");
    assert_eq!((allowance.announced(), allowance.left().responses), (3, 5));
}

#[test]
fn where_nothing_is_stated_a_branch_answers_as_often_as_the_default_says() {
    let mut server = server(None);
    let most = Budgets::default().responses;
    for count in 0..most {
        server
            .afford_answer(1)
            .unwrap_or_else(|error| panic!("{count}: {error}"));
        server.reply(Bytes::new());
        server.flush();
    }
    assert!(server.afford_answer(1).is_err());
}

#[test]
fn the_end_of_a_traced_branch_brings_its_record() {
    let mut traced = wallaby_proto::wire::Request {
        traced: true,
        ..request(0)
    };
    let mut server: ServerHalf<u64> = ServerHalf::new(&mut traced);
    let record = samples::record(0);
    let Outbound::End(end) = server.finish(Some(record.clone())) else {
        panic!("nothing was sent before")
    };
    let options = end.options.expect("a trace");
    assert_eq!(options.trace, [record]);
}
