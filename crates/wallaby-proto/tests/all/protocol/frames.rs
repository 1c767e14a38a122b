//! One frame of every kind that only concerns a connection, as the golden vectors pin them.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, ConnectionLimits, Event, Features, Hello};
use wallaby_proto::wire::{LinkEnds, Message, MessageOptions, Request};

use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{alice, bob, call};

/// A frame, the connection it travels on, and what it does to its reader.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) link: LinkEnds,
    /// It is the first part of its message.
    pub(crate) begins: bool,
    pub(crate) written: Vec<u8>,
    pub(crate) reader: Box<dyn Reader>,
}

/// What a connection makes of bytes, in words.
pub(crate) trait Reader {
    fn read(&self, bytes: &[u8]) -> String;
}

impl<F: Fn(&[u8]) -> String> Reader for F {
    fn read(&self, bytes: &[u8]) -> String {
        self(bytes)
    }
}

/// All samples; a vector file is named after each.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples = handshake();
    samples.extend(credit());
    samples.extend(parts());
    samples.extend(bodies());
    samples.extend(ends());
    samples.push(time());
    samples
}

/// A frame from Alice to Bob, after the handshake.
fn sample(name: &'static str, about: &'static str, act: fn(&mut Connection)) -> Sample {
    let mut pair = Pair::open(ConnectionLimits::default());
    act(&mut pair.alice);
    let mut written = written(&mut pair.alice);
    written.truncate(frame_len(&written));
    let link = LinkEnds::new(alice(), bob());
    Sample {
        name,
        about,
        link,
        begins: true,
        written,
        reader: Box::new(|bytes: &[u8]| effect(&mut open(), bytes)),
    }
}

/// Length of the first frame of these bytes.
fn frame_len(bytes: &[u8]) -> usize {
    4 + usize::from(bytes[0]) + (usize::from(bytes[1]) << 8) + (usize::from(bytes[2]) << 16)
}

fn open() -> Pair {
    Pair::open(ConnectionLimits::default())
}

/// What these bytes do to Bob.
fn effect(pair: &mut Pair, bytes: &[u8]) -> String {
    let events = pair.bob_reads(bytes).expect("legal bytes");
    let answer = written(&mut pair.bob);
    match (events.as_slice(), answer.as_slice()) {
        ([], []) => "nothing yet".into(),
        ([Event::Message(Message::Request(request))], _) => {
            format!(
                "delivers a request of {} payload bytes",
                request.payload.len()
            )
        }
        ([event], _) => describe(event),
        ([], answer) => format!("is answered by {answer:02x?}"),
        (events, _) => panic!("one event at most: {events:?}"),
    }
}

fn handshake() -> Vec<Sample> {
    let dialer = Hello {
        address: Some("tcp://10.1.2.3:4000".parse().expect("an address")),
        features: Features::AGE,
        ..hello(alice(), ConnectionLimits::default())
    };
    let dialer = Hello {
        expected: Some(bob()),
        ..dialer
    };
    let mut pair = Pair::closed(dialer.clone(), hello(bob(), ConnectionLimits::default()));
    let first = written(&mut pair.alice);
    pair.bob_reads(&first).expect("a good hello");
    let second = written(&mut pair.bob);
    let at_bob = |bytes: &[u8]| {
        let anybody = hello(alice(), ConnectionLimits::default());
        effect_only(
            &mut Pair::closed(anybody, hello(bob(), ConnectionLimits::default())).bob,
            bytes,
        )
    };
    let at_alice = move |bytes: &[u8]| {
        let mut pair = Pair::closed(dialer.clone(), hello(bob(), ConnectionLimits::default()));
        effect_only(&mut pair.alice, bytes)
    };
    vec![
        Sample {
            name: "hello-dialer",
            about: "The first frame of who dialled: it expects a certain node, listens itself, and sorts by age.",
            link: LinkEnds::new(alice(), bob()),
            begins: true,
            written: first,
            reader: Box::new(at_bob),
        },
        Sample {
            name: "hello-acceptor",
            about: "The first frame of who was dialled; it does not say where it listens.",
            link: LinkEnds::new(bob(), alice()),
            begins: true,
            written: second,
            reader: Box::new(at_alice),
        },
    ]
}

fn effect_only(connection: &mut Connection, bytes: &[u8]) -> String {
    let event = connection
        .handle_input(&mut bytes.into())
        .expect("legal bytes");
    describe(&event.expect("an event"))
}

fn describe(event: &Event) -> String {
    match event {
        Event::Opened(peer) => format!(
            "opens: node {}, expects {:?}, address {:?}, {:?}, {:?}",
            peer.node, peer.expected, peer.address, peer.features, peer.limits
        ),
        Event::Method(number, method) => format!(
            "names method {number}: {}, codec {}, arguments {:#x}, answer {:#x}",
            method.name(),
            method.codec(),
            method.arguments(),
            method.answer()
        ),
        event => format!("{event:?}"),
    }
}

fn credit() -> Vec<Sample> {
    vec![
        sample(
            "method",
            "A method gets its number, before the first request that uses it.",
            |alice| {
                alice
                    .send_request(&mut request(0), &method())
                    .expect("room");
            },
        ),
        sample(
            "credit-requests",
            "Requests of 2 MiB were processed: the peer may send as much again.",
            |alice| {
                (0..32).for_each(|_| alice.grant_request((64 << 10) - 64));
            },
        ),
        sample(
            "call-credit",
            "An application took four answers, of 1000 bytes in all, off its call.",
            |alice| {
                alice.grant_call(call(), 4, 1000);
            },
        ),
    ]
}

fn parts() -> Vec<Sample> {
    let mut pair = open();
    pair.alice
        .send_request(
            &mut Request {
                payload: vec![b'a'; 65_537].into(),
                ..request(0)
            },
            &method(),
        )
        .expect("room");
    let mut method = pair.alice.output().to_vec();
    let first = method.split_off(frame_len(&method));
    assert_eq!(first.len(), frame_len(&first), "one part at a time");
    pair.alice.advance(method.len() + first.len());
    let mut before = [&method[..], &first].concat();
    let second = pair.alice.output().to_vec();
    pair.alice.advance(second.len());
    before.extend(&second);
    let third = pair.alice.output().to_vec();
    let mut reader = open();
    reader.bob_reads(&first).expect("legal bytes");
    let granted = written(&mut reader.bob);
    let link = LinkEnds::new(alice(), bob());
    let reads_third = move |bytes: &[u8]| {
        let mut pair = open();
        pair.bob_reads(&before).expect("legal bytes");
        written(&mut pair.bob);
        effect(&mut pair, bytes)
    };
    vec![
        Sample {
            name: "part-first",
            about: "The first part of a request of 65,537 bytes: its stream, its length and its kind, then its bytes.",
            link,
            begins: true,
            written: first,
            reader: Box::new(|bytes: &[u8]| effect(&mut open(), bytes)),
        },
        Sample {
            name: "part-last",
            about: "The last part of the same request; parts after the first name their stream only.",
            link,
            begins: false,
            written: third,
            reader: Box::new(reads_third),
        },
        Sample {
            name: "credit-parts",
            about: "A part of 32 KiB has arrived: the peer may send as much again.",
            link: LinkEnds::new(bob(), alice()),
            begins: true,
            written: granted,
            reader: Box::new(|bytes: &[u8]| effect(&mut open(), bytes)),
        },
    ]
}

/// The request of a call with a body, which is to follow.
pub(crate) fn with_body() -> Request {
    let options = MessageOptions {
        body: Some(0),
        ..MessageOptions::default()
    };
    Request {
        options: Some(Box::new(options)),
        ..request(0)
    }
}

fn bodies() -> Vec<Sample> {
    let mut pair = open();
    let sent = pair.alice.send_request(&mut with_body(), &method());
    sent.expect("room");
    let opening = written(&mut pair.alice);
    let mut begun = open();
    begun.bob_reads(&opening).expect("legal bytes");
    let at_bob = || {
        let opening = opening.clone();
        let read = move |bytes: &[u8]| {
            let mut pair = open();
            pair.bob_reads(&opening).expect("legal bytes");
            written(&mut pair.bob);
            effect(&mut pair, bytes)
        };
        Box::new(read)
    };
    // Bob's frames go to somebody who has sent the request: here to another Bob, who reads them all the same.
    let at_sender = || {
        Box::new(|bytes: &[u8]| {
            let mut pair = open();
            let mut request = with_body();
            request.call.initiator = bob();
            let sent = pair.bob.send_request(&mut request, &method());
            sent.expect("room");
            written(&mut pair.bob);
            effect(&mut pair, bytes)
        })
    };
    let mut chunk = Bytes::from_static(b"bytes");
    pair.alice.send_body(0, &mut chunk).expect("room");
    let more = written(&mut pair.alice);
    pair.alice.end_body(0, Ok(())).expect("all has left");
    let whole = written(&mut pair.alice);
    let mut broken = open();
    let sent = broken.alice.send_request(&mut with_body(), &method());
    sent.expect("room");
    written(&mut broken.alice);
    let ended = broken.alice.end_body(0, Err("the file can't be read"));
    ended.expect("it had not ended");
    let broken = written(&mut broken.alice);
    begun.bob.grant_body(0, 300_000);
    let granted = written(&mut begun.bob);
    begun.bob.stop_body(0);
    let stopped = written(&mut begun.bob);
    let (to_bob, to_alice) = (LinkEnds::new(alice(), bob()), LinkEnds::new(bob(), alice()));
    let sample = |name, about, link, written, reader: Box<dyn Reader>| Sample {
        name,
        about,
        link,
        begins: true,
        written,
        reader,
    };
    vec![
        sample(
            "body-more",
            "Five bytes of the body that follows the first request with one.",
            to_bob,
            more,
            at_bob(),
        ),
        sample("body-whole", "That was all of it.", to_bob, whole, at_bob()),
        sample(
            "body-broken",
            "The rest can't be sent, and why.",
            to_bob,
            broken,
            at_bob(),
        ),
        sample(
            "body-credit",
            "The application took 300,000 bytes: so many more may come.",
            to_alice,
            granted,
            at_sender(),
        ),
        sample(
            "body-stop",
            "Nobody wants more of it; its sender ends it.",
            to_alice,
            stopped,
            at_sender(),
        ),
    ]
}

/// Bob wants to know how long delegated requests wait; the handshake is done.
fn timed() -> Pair {
    let at_bob = Hello {
        features: Features::TIME,
        ..hello(bob(), ConnectionLimits::default())
    };
    let mut pair = Pair::closed(hello(alice(), ConnectionLimits::default()), at_bob);
    pair.carry_to_bob(usize::MAX).expect("a good hello");
    pair.carry_to_alice(usize::MAX).expect("a good hello");
    pair
}

fn time() -> Sample {
    let mut pair = timed();
    let mut delegated = Request {
        depth: 1,
        deadline: Some(Duration::from_secs(1)),
        ..request(0)
    };
    pair.alice.set_time(Duration::from_millis(1_500));
    let sent = pair.alice.send_request(&mut delegated, &method());
    sent.expect("room");
    let mut written = written(&mut pair.alice);
    let mut time = written.split_off(frame_len(&written));
    time.truncate(frame_len(&time));
    Sample {
        name: "time",
        about: "What the sender's clock shows, ahead of a delegated request with a deadline: a second and a half.",
        link: LinkEnds::new(alice(), bob()),
        begins: true,
        written: time,
        reader: Box::new(|bytes: &[u8]| effect(&mut timed(), bytes)),
    }
}

fn ends() -> Vec<Sample> {
    let link = LinkEnds::new(alice(), bob());
    let question = vec![3, 0, 0, 0x06, 0, 0xac, 0x02];
    let mut pair = open();
    pair.bob_reads(&question).expect("a probe");
    let answer = written(&mut pair.bob);
    let reader = || Box::new(|bytes: &[u8]| effect(&mut open(), bytes));
    vec![
        Sample {
            name: "probe",
            about: "Is anybody there?",
            link,
            begins: true,
            written: question,
            reader: reader(),
        },
        Sample {
            name: "probe-answer",
            about: "Yes; the question's nonce comes back.",
            link: LinkEnds::new(bob(), alice()),
            begins: true,
            written: answer,
            reader: reader(),
        },
        sample(
            "going-away",
            "Nothing new comes; so many messages were received.",
            |alice| alice.go_away(),
        ),
        unread(),
        sample("close", "The connection is closed, and why.", |alice| {
            alice.close("malformed bytes")
        }),
    ]
}

/// To who reads it.
fn unread() -> Sample {
    let knows = |node| Hello {
        features: Features::READ,
        ..hello(node, ConnectionLimits::default())
    };
    let open = move || {
        let mut pair = Pair::closed(knows(alice()), knows(bob()));
        pair.carry_to_bob(usize::MAX).expect("a good hello");
        pair.carry_to_alice(usize::MAX).expect("a good hello");
        pair
    };
    let mut pair = open();
    pair.alice.stop_reading();
    Sample {
        name: "going-away-closed",
        about: "This side is closed, and has handled so many bytes: nothing that stands behind them.",
        link: LinkEnds::new(alice(), bob()),
        begins: true,
        written: written(&mut pair.alice),
        reader: Box::new(move |bytes: &[u8]| effect(&mut open(), bytes)),
    }
}
