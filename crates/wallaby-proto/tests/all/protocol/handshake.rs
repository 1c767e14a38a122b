//! The first frame of each side, and frames that are out of place.

use bytes::BytesMut;
use proptest::prelude::*;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    ConnectionError, ConnectionLimits, Event, Features, Hello, SendRefusal, VERSION,
};
use wallaby_proto::wire::{Message, WireError};

use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{self, alice, bob, carol, node};
use crate::protocol::strategies::config;

fn pair_of(alice: Hello, bob: Hello) -> Pair {
    Pair::closed(alice, bob)
}

fn plain(node: wallaby_proto::NodeId) -> Hello {
    hello(node, ConnectionLimits::default())
}

/// A frame with this kind and body.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = body.len() as u32;
    [&len.to_le_bytes()[..3], &[kind], body].concat()
}

#[test]
fn both_sides_learn_who_the_other_is() {
    let at_alice = Hello {
        address: Some("mem://alice".parse().expect("an address")),
        ..plain(alice())
    };
    let at_bob = Hello {
        features: Features::AGE,
        ..plain(bob())
    };
    let mut pair = pair_of(at_alice.clone(), at_bob.clone());
    assert!(pair.alice.peer().is_none());
    let events = pair.carry_to_bob(usize::MAX).expect("a good hello");
    assert_eq!(events, [Event::Opened(at_alice.into())]);
    let events = pair.carry_to_alice(usize::MAX).expect("a good hello");
    assert_eq!(events, [Event::Opened(at_bob.into())]);
    assert_eq!(pair.alice.peer().map(|peer| peer.node), Some(bob()));
}

#[test]
fn nothing_is_sent_before_the_handshake_is_done() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let mut request = crate::protocol::limits::request(10);
    let refusal = pair
        .alice
        .send_request(&mut request, &method())
        .expect_err("not open");
    assert_eq!(refusal, SendRefusal::NotOpen);
    assert_eq!(pair.bob.send_control(ping()), Err(SendRefusal::NotOpen));
    assert!(!pair.alice.takes_requests());
    assert!(
        written(&mut pair.bob).is_empty(),
        "who was dialled waits for the dialler"
    );
}

#[test]
fn versions_without_overlap_are_refused_at_both_ends() {
    let newer = (VERSION + 1, VERSION + 3);
    let mut pair = pair_of(
        Hello {
            versions: newer,
            ..plain(alice())
        },
        plain(bob()),
    );
    let ours = (VERSION, VERSION);
    let at_bob = ConnectionError::Version {
        ours,
        theirs: newer,
    };
    assert_eq!(pair.carry_to_bob(usize::MAX), Err(at_bob));
    // Bob's hello leaves all the same, so that Alice learns the reason.
    let at_alice = ConnectionError::Version {
        ours: newer,
        theirs: ours,
    };
    assert_eq!(pair.carry_to_alice(usize::MAX), Err(at_alice));
}

#[test]
fn versions_that_overlap_are_fine() {
    let wide = Hello {
        versions: (0, 9),
        ..plain(alice())
    };
    let mut pair = pair_of(wide, plain(bob()));
    assert!(matches!(
        pair.carry_to_bob(usize::MAX).as_deref(),
        Ok([Event::Opened(_)])
    ));
    assert!(matches!(
        pair.carry_to_alice(usize::MAX).as_deref(),
        Ok([Event::Opened(_)])
    ));
}

#[test]
fn a_hello_of_a_later_version_may_look_otherwise() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let error = pair
        .bob_reads(&frame(0x01, b"WLBY\x07\x09 whatever else it says"))
        .expect_err("too new");
    assert_eq!(
        error,
        ConnectionError::Version {
            ours: (VERSION, VERSION),
            theirs: (7, 9)
        }
    );
}

#[test]
fn fields_that_a_later_version_adds_are_skipped() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let mut bytes = written(&mut pair.alice);
    assert_eq!(bytes.pop(), Some(0), "the length of the extensions");
    bytes.extend([3, b'n', b'e', b'w']);
    bytes[0] += 3;
    assert!(matches!(
        pair.bob_reads(&bytes).as_deref(),
        Ok([Event::Opened(_)])
    ));
}

#[test]
fn another_incarnation_than_the_expected_one_is_refused() {
    let mut pair = pair_of(
        Hello {
            expected: Some(carol()),
            ..plain(alice())
        },
        plain(bob()),
    );
    let wrong = ConnectionError::WrongNode {
        expected: carol(),
        found: bob(),
    };
    assert_eq!(pair.carry_to_bob(usize::MAX), Err(wrong.clone()));
    assert!(pair.bob.peer().is_none(), "it is not meant");
    // All the same it says who it is, so that the dialler learns the same.
    assert_eq!(pair.carry_to_alice(usize::MAX), Err(wrong));
    assert!(pair.alice.peer().is_none(), "nothing is sent to it");
}

#[test]
fn another_protocol_is_told_at_once() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let error = pair
        .bob_reads(b"GET / HTTP/1.1\r\n\r\n")
        .expect_err("no hello");
    assert_eq!(
        error,
        ConnectionError::Foreign(WireError::TooLong {
            what: "frame",
            len: 0x0054_4547,
            limit: 4096
        })
    );
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let error = pair
        .bob_reads(&frame(0x01, &[0; 40]))
        .expect_err("no magic");
    assert!(
        error
            .to_string()
            .contains("not the beginning of a Wallaby connection"),
        "{error}"
    );
}

#[test]
fn frames_out_of_place_are_refused() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let error = pair
        .bob_reads(&frame(0x10, &[]))
        .expect_err("no handshake yet");
    assert_eq!(
        error,
        ConnectionError::OutOfPlace {
            kind: 0x10,
            when: "before the handshake"
        }
    );
    let hello = written(&mut pair.alice);
    let mut pair = Pair::open(ConnectionLimits::default());
    let error = pair.bob_reads(&hello).expect_err("a second hello");
    assert_eq!(
        error,
        ConnectionError::OutOfPlace {
            kind: 0x01,
            when: "after the handshake"
        }
    );
    let mut pair = Pair::open(ConnectionLimits::default());
    let error = pair
        .bob_reads(&frame(0x77, &[]))
        .expect_err("from the future");
    assert_eq!(error, WireError::UnknownKind { kind: 0x77 }.into());
}

#[test]
fn who_was_dialled_may_say_why_it_closes_at_once() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    pair.bob.close("too many connections");
    assert_eq!(
        pair.carry_to_alice(usize::MAX),
        Ok(vec![Event::Closed("too many connections".into())])
    );
}

#[test]
fn limits_that_let_nothing_pass_are_refused() {
    let tight = [
        ConnectionLimits {
            streams: 0,
            ..ConnectionLimits::default()
        },
        ConnectionLimits {
            requests: 0,
            ..ConnectionLimits::default()
        },
        ConnectionLimits {
            call: 0,
            ..ConnectionLimits::default()
        },
        ConnectionLimits {
            parts: 1000,
            ..ConnectionLimits::default()
        },
    ];
    for limits in tight {
        let mut pair = pair_of(hello(alice(), limits), plain(bob()));
        let error = pair
            .carry_to_bob(usize::MAX)
            .expect_err("a connection that could carry nothing");
        assert!(
            error.to_string().contains("limits that let nothing pass"),
            "{error}"
        );
    }
}

#[test]
fn node_ids_are_not_zero() {
    let mut pair = pair_of(plain(node(1)), plain(bob()));
    let mut bytes = written(&mut pair.alice);
    bytes[10..18].fill(0);
    let error = pair.bob_reads(&bytes).expect_err("no id");
    assert!(error.to_string().contains("zero"), "{error}");
}

#[test]
fn the_end_is_announced() {
    let mut pair = Pair::open(ConnectionLimits::default());
    pair.alice.send_control(ping()).expect("open");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    pair.bob.go_away();
    pair.bob.close(&"é".repeat(600));
    let events = pair.carry_to_alice(usize::MAX).expect("legal bytes");
    let reason = "é".repeat(512);
    assert_eq!(
        events,
        [
            Event::GoingAway {
                received: 1,
                read: None
            },
            Event::Closed(reason)
        ]
    );
}

#[test]
fn a_probe_is_answered_and_an_answer_is_not() {
    let mut pair = Pair::open(ConnectionLimits::default());
    pair.bob_reads(&frame(0x06, &[0, 42])).expect("a question");
    assert_eq!(written(&mut pair.bob), frame(0x06, &[1, 42]));
    pair.bob_reads(&frame(0x06, &[1, 42])).expect("an answer");
    assert!(written(&mut pair.bob).is_empty());
    assert!(pair.bob_reads(&frame(0x06, &[2, 42])).is_err());
}

proptest! {
    #![proptest_config(config(50))]

    /// The handshake survives every cut, byte by byte if need be.
    #[test]
    fn handshakes_survive_any_cut(cut in 1..20usize) {
        let mut pair = pair_of(plain(alice()), plain(bob()));
        let mut opened = 0;
        for _ in 0..200 {
            opened += pair.carry_to_bob(cut).expect("legal bytes").len();
            opened += pair.carry_to_alice(cut).expect("legal bytes").len();
        }
        prop_assert_eq!(opened, 2);
        prop_assert!(pair.alice.is_idle() && pair.bob.is_idle());
    }
}

fn ping() -> Message {
    let ping = samples::all()
        .into_iter()
        .find(|sample| sample.name == "ping")
        .expect("a sample");
    ping.message
}

#[test]
fn input_that_is_not_a_whole_frame_is_left_alone() {
    let mut pair = pair_of(plain(alice()), plain(bob()));
    let bytes = written(&mut pair.alice);
    let mut input = BytesMut::from(&bytes[..bytes.len() - 1]);
    assert_eq!(pair.bob.handle_input(&mut input), Ok(None));
    assert_eq!(input.len(), bytes.len() - 1);
}
