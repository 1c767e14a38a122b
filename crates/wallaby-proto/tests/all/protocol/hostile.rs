//! Bytes that no peer of ours would write: a typed error at worst, never a panic, and no memory that grows with what a
//! peer merely announces.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use wallaby_proto::Status;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, ConnectionLimits};
use wallaby_proto::wire::Message;

use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{alice, bob};
use crate::protocol::strategies::{config, link, message};
use crate::protocol::vectors::{frame, kind};

/// One change of a valid byte string.
#[derive(Debug, Clone)]
enum Mutation {
    Set(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        6 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => any::<Index>().prop_map(Mutation::Cut),
        2 => (any::<Index>(), vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (any::<Index>(), 1..12usize).prop_map(|(at, len)| Mutation::Remove(at, len)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutations: &[Mutation]) {
    for mutation in mutations {
        if bytes.is_empty() {
            return;
        }
        match mutation {
            Mutation::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Mutation::Insert(at, new) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, new.iter().copied());
            }
            Mutation::Remove(at, len) => {
                let at = at.index(bytes.len());
                let end = bytes.len().min(at + len);
                bytes.drain(at..end);
            }
        }
    }
}

/// Feeds bytes in chunks until they are used up or refused.
fn feed(connection: &mut Connection, bytes: &[u8], cuts: &[usize]) {
    let mut input = BytesMut::new();
    let mut rest = bytes;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let (chunk, later) =
            rest.split_at(cuts.next().copied().unwrap_or(rest.len()).min(rest.len()));
        input.extend_from_slice(chunk);
        rest = later;
        loop {
            match connection.handle_input(&mut input) {
                Ok(Some(event)) => drop(format!("{event:?}")),
                Ok(None) => break,
                Err(error) => return drop(error.to_string()),
            }
        }
        written(connection);
    }
    drop(connection.check_stalled(Duration::from_secs(1)));
}

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn arbitrary_bytes_decode_or_fail(kind in prop_oneof![0x10..0x16u8, any::<u8>()], body in vec(any::<u8>(), 0..80)) {
        if let Ok(message) = Message::decode(kind, body.into(), link(alice(), bob())) {
            drop(format!("{message:?}"));
        }
    }

    /// Flags that ask for everything, then anything.
    #[test]
    fn arbitrary_fields_decode_or_fail(kind in 0x10..0x16u8, flags: [u8; 2], rest in vec(0..4u8, 0..120)) {
        let body = [&[flags[0] | 0x80, flags[1] & 0x07], &rest[..]].concat();
        drop(Message::decode(kind, body.into(), link(alice(), bob())));
    }

    #[test]
    fn mutated_messages_decode_or_fail(message in message(), mutations in vec(mutation(), 1..4)) {
        let mut body = BytesMut::new();
        message.encode(&mut body, link(alice(), bob()));
        let mut body = body.to_vec();
        mutate(&mut body, &mutations);
        drop(Message::decode(kind(&message), body.into(), link(alice(), bob())));
    }

    #[test]
    fn arbitrary_statuses_are_read_or_refused(payload in vec(any::<u8>(), 0..80)) {
        if let Ok(status) = Status::from_payload(&payload) {
            prop_assert_eq!(Status::from_payload(&status.to_payload()), Ok(status));
        }
    }

    /// Before the handshake nothing but a hello passes, at either end.
    #[test]
    fn arbitrary_bytes_before_the_handshake(bytes in vec(any::<u8>(), 0..200), cuts in vec(1..20usize, 1..5)) {
        let mut pair = Pair::closed(hello(alice(), ConnectionLimits::default()), hello(bob(), ConnectionLimits::default()));
        feed(&mut pair.bob, &bytes, &cuts);
        feed(&mut pair.alice, &bytes, &cuts);
    }

    #[test]
    fn mutated_hellos(mutations in vec(mutation(), 1..4), cuts in vec(1..20usize, 1..5)) {
        let mut pair = Pair::closed(hello(alice(), ConnectionLimits::default()), hello(bob(), ConnectionLimits::default()));
        let mut bytes = written(&mut pair.alice);
        mutate(&mut bytes, &mutations);
        feed(&mut pair.bob, &bytes, &cuts);
    }

    /// Frames whose length is right and whose kind exists, with anything in them.
    #[test]
    fn arbitrary_frames(bodies in vec((0..0x18u8, vec(any::<u8>(), 0..40)), 1..20), cuts in vec(1..50usize, 1..5)) {
        let mut pair = Pair::open(ConnectionLimits::default());
        let mut bytes = Vec::new();
        for (kind, body) in bodies {
            bytes.extend([body.len() as u8, 0, 0, kind]);
            bytes.extend(body);
        }
        feed(&mut pair.bob, &bytes, &cuts);
    }
}

proptest! {
    #![proptest_config(config(100))]

    /// A stream as a peer would write it, with a few bytes changed.
    #[test]
    fn mutated_streams(sent in vec(message(), 1..10), mutations in vec(mutation(), 1..6), cuts in vec(1..300usize, 1..9)) {
        let mut pair = Pair::open(ConnectionLimits::default());
        let mut bytes = frame_of_method();
        for message in &sent {
            bytes.extend(frame(message, link(alice(), bob())));
        }
        mutate(&mut bytes, &mutations);
        feed(&mut pair.bob, &bytes, &cuts);
    }
}

fn frame_of_method() -> Vec<u8> {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut request = crate::protocol::limits::largest_request();
    pair.alice
        .send_request(&mut request, &method())
        .expect("room");
    let mut bytes = pair.alice.output().to_vec();
    bytes.truncate(4 + usize::from(bytes[0]));
    bytes
}

#[test]
fn a_frame_that_announces_much_takes_no_memory_before_it_comes() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut input = BytesMut::from(&[0xff, 0xff, 0x01, 0x10][..]);
    assert_eq!(pair.bob.handle_input(&mut input), Ok(None));
    assert!(input.capacity() < 1024);
}

#[test]
fn bytes_after_the_end_of_a_message_are_refused() {
    for sample in crate::protocol::samples::all() {
        let mut body = BytesMut::new();
        sample.message.encode(&mut body, sample.link);
        let has_payload = matches!(sample.message, Message::Request(_) | Message::Response(_));
        body.extend_from_slice(b"x");
        let read = Message::decode(kind(&sample.message), body.freeze(), sample.link);
        assert_eq!(read.is_ok(), has_payload, "{}", sample.name);
    }
}

#[test]
fn every_cut_of_every_sample_is_refused_until_the_payload_begins() {
    for sample in crate::protocol::samples::all() {
        let mut body = BytesMut::new();
        sample.message.encode(&mut body, sample.link);
        let body = body.freeze();
        let payload = match &sample.message {
            Message::Request(request) => request.payload.len(),
            Message::Response(response) => response.payload.len(),
            _ => 0,
        };
        for end in 0..body.len() - payload {
            let cut = Message::decode(
                kind(&sample.message),
                Bytes::copy_from_slice(&body[..end]),
                sample.link,
            );
            assert!(cut.is_err(), "{} cut after {end} bytes", sample.name);
        }
    }
}
