//! Every length, number and table has a limit, and what exceeds it gets the documented error.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::server::ServerHalf;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    ConnectionError, ConnectionLimits, Event, MAX_METHOD_NAME, MAX_METHODS, MethodDefinition,
    SendRefusal,
};
use wallaby_proto::wire::{
    MAX_METADATA, MAX_PART_NAME, MAX_TRACE_PARTS, MAX_TRACE_RECORDS, Message, MessageOptions,
    Metadata, MethodRef, Pong, ReplyTo, Request, TracePart, TraceRecord, WireError,
};
use wallaby_proto::{Address, MAX_NAME, RequestId};

use crate::protocol::pair::{Pair, hello, method};
use crate::protocol::samples::{self, alice, bob, call, token};
use crate::protocol::{strategies, vectors};

/// A request whose optional fields are all as long as they may be.
pub(crate) fn largest_request() -> Request {
    let folded = samples::path(&[0; 17]);
    let mut metadata = Metadata::default();
    // Two bytes a pair cost the most around them: as many as there are short keys, then the rest at once.
    for key in (b'!'..=b'~').map(char::from) {
        metadata.insert(key, "").expect("room");
    }
    let rest = MAX_METADATA
        - metadata
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum::<usize>();
    metadata
        .insert("rest", "x".repeat(rest - 4))
        .expect("exactly the limit");
    let server = Address::Unix("s".repeat(MAX_NAME).into());
    let record = TraceRecord {
        request: RequestId {
            path: folded,
            hop: u32::MAX,
        },
        node: bob(),
        server: Some(server.clone()),
        method: "m".repeat(255),
        arrived_us: u64::MAX,
        queued_us: u64::MAX,
        ran_us: u64::MAX,
        parts: vec![TracePart::new(&"p".repeat(MAX_PART_NAME), Duration::MAX); MAX_TRACE_PARTS],
    };
    let options = MessageOptions {
        metadata,
        trace: vec![record; MAX_TRACE_RECORDS],
        attempt: u32::MAX,
        seal: Some(vec![1; 64].into()),
        continuation: Some(vec![2; 16 * 1024].into()),
        body: Some(u64::MAX),
        ..MessageOptions::default()
    };
    Request {
        reply_to: ReplyTo::At(server),
        oldest: 0,
        traced: true,
        options: Some(Box::new(options)),
        ..request(64 * 1024)
    }
}

/// The plain request of a call of one hop, with a payload of this size.
pub(crate) fn request(payload: usize) -> Request {
    Request {
        call: call(),
        token: token(),
        id: RequestId::FIRST,
        depth: 0,
        base: 0,
        reply_to: ReplyTo::Peer,
        manifest: None,
        deadline: None,
        oldest: call().sequence,
        traced: false,
        compressed: false,
        waited: std::time::Duration::ZERO,
        options: None,
        method: MethodRef::Number(0),
        payload: vec![9; payload].into(),
    }
}

/// A frame with this kind and body.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = body.len() as u32;
    [&len.to_le_bytes()[..3], &[kind], body].concat()
}

/// Why Bob refuses what Alice would have written.
fn refused(message: Message) -> ConnectionError {
    let mut pair = Pair::open(ConnectionLimits::default());
    let bytes = vectors::frame(&message, strategies::link(alice(), bob()));
    pair.bob_reads(&bytes).expect_err("over a limit")
}

fn too_long(what: &'static str, len: u64, limit: usize) -> ConnectionError {
    WireError::TooLong { what, len, limit }.into()
}

#[test]
fn frames_are_limited_before_and_after_the_handshake() {
    let mut pair = Pair::closed(
        hello(alice(), ConnectionLimits::default()),
        hello(bob(), ConnectionLimits::default()),
    );
    let (what, len, limit) = ("frame", 4097, 4096);
    let foreign = ConnectionError::Foreign(WireError::TooLong { what, len, limit });
    assert_eq!(pair.bob_reads(&[1, 16, 0, 0x01]), Err(foreign));
    let mut pair = Pair::open(ConnectionLimits::default());
    assert_eq!(
        pair.bob_reads(&[1, 0, 2, 0x10]),
        Err(too_long("frame", 131_073, 131_072))
    );
}

#[test]
fn a_connection_has_room_for_so_many_methods() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let method = |number: usize| {
        MethodDefinition::new(&format!("demo.Index/{number}"), "", 0, 0).expect("a name")
    };
    for number in 0..MAX_METHODS {
        pair.alice
            .send_request(&mut request(0), &method(number))
            .expect("a number is left");
        let events = pair.carry_to_bob(usize::MAX).expect("legal bytes");
        assert!(matches!(&events[0], Event::Method(named, _) if *named as usize == number));
        pair.bob.grant_request(0);
        pair.carry_to_alice(usize::MAX).expect("legal bytes");
    }
    let refusal = pair
        .alice
        .send_request(&mut request(0), &method(MAX_METHODS))
        .expect_err("all are taken");
    assert_eq!(refusal, SendRefusal::NoMethodName);
    assert!(
        pair.alice
            .send_request(&mut request(0), &method(17))
            .is_ok(),
        "those that have a number go on"
    );
    // A peer that names one more.
    let mut body = vec![0x80, 0x20, 1, b'm', 0];
    body.extend([0; 16]);
    assert_eq!(
        pair.bob_reads(&frame(0x02, &body)),
        Err(too_long("methods of a connection", 4097, MAX_METHODS))
    );
}

#[test]
fn methods_are_named_in_turn_and_before_they_are_called() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut body = vec![1, 1, b'm', 0];
    body.extend([0; 16]);
    let error = pair.bob_reads(&frame(0x02, &body)).expect_err("0 is next");
    assert!(error.to_string().contains("out of turn"), "{error}");
    let error = refused(Message::Request(request(0)));
    assert!(
        error
            .to_string()
            .contains("a method that was not named before"),
        "{error}"
    );
    let hashed = Request {
        method: MethodRef::Hash(1),
        ..request(0)
    };
    let error = refused(Message::Request(hashed));
    assert!(
        error
            .to_string()
            .contains("a method that was not named before"),
        "{error}"
    );
}

#[test]
fn method_names_are_limited() {
    let name = |len: usize| MethodDefinition::new(&"m".repeat(len), "raw", 0, 0);
    assert!(name(0).is_none() && name(MAX_METHOD_NAME + 1).is_none());
    assert!(name(MAX_METHOD_NAME).is_some());
    assert!(MethodDefinition::new("m", &"c".repeat(MAX_METHOD_NAME + 1), 0, 0).is_none());
    let mut pair = Pair::open(ConnectionLimits::default());
    let body = [&[0, 0x80, 0x02][..], &[b'm'; 256], &[0; 17]].concat();
    assert_eq!(
        pair.bob_reads(&frame(0x02, &body)),
        Err(too_long("method", 256, MAX_METHOD_NAME))
    );
}

#[test]
fn optional_fields_are_limited_each_and_together() {
    let with = |options: MessageOptions| {
        Message::Request(Request {
            options: Some(Box::new(options)),
            ..request(0)
        })
    };
    let seal = MessageOptions {
        seal: Some(vec![0; 65].into()),
        ..MessageOptions::default()
    };
    assert_eq!(refused(with(seal)), too_long("seal", 65, 64));
    let continuation = MessageOptions {
        continuation: Some(vec![0; 16_385].into()),
        ..MessageOptions::default()
    };
    assert_eq!(
        refused(with(continuation)),
        too_long("continuation", 16_385, 16_384)
    );
    let huge = MessageOptions {
        continuation: Some(vec![0; 50_000].into()),
        ..MessageOptions::default()
    };
    assert!(matches!(
        refused(with(huge)),
        ConnectionError::Malformed(WireError::TooLong {
            what: "optional fields",
            limit: 49_152,
            ..
        })
    ));
}

#[test]
fn names_of_addresses_are_limited() {
    let address = Address::Unix("s".repeat(MAX_NAME + 1).into());
    let request = Request {
        reply_to: ReplyTo::At(address),
        ..request(0)
    };
    assert_eq!(
        refused(Message::Request(request)),
        too_long("address", 108, MAX_NAME)
    );
}

#[test]
fn metadata_is_read_in_time_that_grows_with_its_size() {
    // As many pairs as fit: reading them must not compare each with each.
    let mut metadata = Vec::new();
    let keys = (0..64u8).flat_map(|high| (0..64u8).map(move |low| [high + 0x20, low + 0x20]));
    for key in keys {
        metadata.extend([2, key[0], key[1], 0]);
    }
    let field = [&[10, 0x80, 0x80, 0x01][..], &metadata].concat();
    let body = [
        &[0x41, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x84, 0x80, 0x01][..],
        &field,
        &[0],
    ]
    .concat();
    let message = Message::decode(0x10, body.into(), strategies::link(alice(), bob()))
        .expect("8 KiB of metadata");
    let Message::Request(request) = message else {
        panic!("it was a request")
    };
    assert_eq!(
        request.options.expect("metadata").metadata.iter().count(),
        4096
    );
}

#[test]
fn every_listed_child_has_a_number() {
    let sample = samples::all()
        .into_iter()
        .find(|sample| sample.name == "pong-running")
        .expect("a pong that lists two children");
    let read = |from: u32| {
        let mut message = sample.message.clone();
        if let Message::Pong(Pong {
            progress: Some(progress),
            ..
        }) = &mut message
        {
            progress.children_from = from;
        }
        let mut body = BytesMut::new();
        message.encode(&mut body, sample.link);
        Message::decode(0x14, body.freeze(), sample.link)
    };
    assert!(read(u32::MAX - 2).is_ok());
    assert_eq!(
        read(u32::MAX - 1),
        Err(WireError::Malformed {
            what: "pong",
            why: "children beyond the last number",
        })
    );
}

#[test]
fn counts_that_a_handler_goes_on_from_leave_it_room() {
    let most = Request {
        base: 1 << 31,
        depth: u32::MAX,
        id: RequestId {
            hop: u32::MAX,
            ..RequestId::FIRST
        },
        ..request(0)
    };
    let mut pair = Pair::open(ConnectionLimits::default());
    pair.alice
        .send_request(&mut most.clone(), &method())
        .expect("room");
    let mut events = pair.carry_to_bob(usize::MAX).expect("legal bytes");
    let Some(Event::Message(Message::Request(mut request))) = events.pop() else {
        panic!("a request was sent")
    };
    let mut server: ServerHalf<()> = ServerHalf::new(&mut request);
    for _ in 0..3 {
        drop(server.reply(Bytes::new()));
    }
    drop(server.forward((), Bytes::new(), None));
    assert!(server.has_ended());
    let more = Request {
        base: (1 << 31) + 1,
        method: MethodRef::Number(0),
        ..most
    };
    let bytes = vectors::frame(&Message::Request(more), strategies::link(alice(), bob()));
    let error = pair.bob_reads(&bytes).expect_err("no room");
    assert!(error.to_string().contains("leaves no room"), "{error}");
}

#[test]
fn a_peer_that_asks_without_reading_the_answers_takes_no_memory() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let probes = frame(0x06, &[0, 1]).repeat(100_000);
    pair.bob_reads(&probes).expect("legal bytes");
    assert!(
        pair.bob.output().len() <= 300 * 1024,
        "{} bytes of answers",
        pair.bob.output().len()
    );
}

#[test]
fn reasons_are_cut() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let events = pair
        .bob_reads(&frame(0x08, &[b'x'; 60_000]))
        .expect("legal bytes");
    assert_eq!(events, [Event::Closed("x".repeat(1024))]);
}
