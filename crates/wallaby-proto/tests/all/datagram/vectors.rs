//! Golden vectors: the bytes of every kind of datagram, in `tests/datagram/vectors/`, checked both ways.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionLimits, Event, Features, Hello, NamedBy};
use wallaby_proto::datagram::{GateSettings, SessionId};
use wallaby_proto::wire::{Message, MethodRef, Request};

use super::layout;
use crate::datagram::messages::{hello, method, node, ping, request, response};
use crate::datagram::world::{Flying, Happening, Network, World, address};
use crate::golden;

const FOLDER: &str = "datagram/vectors";
/// Runs of a byte at least this long are written as `61 * 32750`.
const RUN: usize = 64;

/// A datagram that a gate is about to send in a world.
struct Sample {
    name: &'static str,
    about: &'static str,
    /// Brings the world so far that it is the next datagram of the gate at this address.
    prepare: fn(&mut World) -> u64,
}

const SAMPLES: [Sample; 19] = [
    Sample {
        name: "ask",
        about: "A client asks for a session. Nothing in it needs to be true.",
        prepare: ask,
    },
    Sample {
        name: "ask-named-by-peer",
        about: "A client asks for a session with an address that a peer has named: it is sent little.",
        prepare: ask_named_by_peer,
    },
    Sample {
        name: "challenge",
        about: "The answer: with this cookie the client shows that it receives what is sent to its address.",
        prepare: |world| {
            ask(world);
            carry(world, 1);
            2
        },
    },
    Sample {
        name: "open-request",
        about: "The cookie comes back, and with it the first request, which says what its method is.",
        prepare: |world| {
            let at_1 = challenged(world);
            send(world, at_1, 1, 10);
            1
        },
    },
    Sample {
        name: "open-probe",
        about: "The cookie comes back, but there is no message yet.",
        prepare: |world| {
            challenged(world);
            1
        },
    },
    Sample {
        name: "open-padded",
        about: "The cookie of a short ask comes back: now that the address is proven, the packet is as long as an ask would have been.",
        prepare: |world| {
            ask_named_by_peer(world);
            carry(world, 1);
            carry(world, 2);
            1
        },
    },
    Sample {
        name: "response",
        about: "An answer; it takes the acknowledgement of its request along.",
        prepare: |world| {
            let at_1 = challenged(world);
            send(world, at_1, 1, 10);
            carry(world, 1);
            let at_2 = accepted(world);
            answer(world, at_2, 1);
            2
        },
    },
    Sample {
        name: "request",
        about: "A later request: its method is known, and it acknowledges the answer to the one before.",
        prepare: |world| {
            let (at_1, at_2) = open(world);
            answer(world, at_2, 1);
            carry(world, 2);
            send(world, at_1, 2, 10);
            1
        },
    },
    Sample {
        name: "request-timed",
        about: "A delegated request with a deadline, for who wants to know how long it waits: the sender's clock shows 1,001 s.",
        prepare: |world| {
            let wants = Hello {
                features: Features::TIME,
                ..hello(node(2), ConnectionLimits::default())
            };
            world.start_as(2, wants, GateSettings::default());
            let (at_1, at_2) = open(world);
            answer(world, at_2, 1);
            carry(world, 2);
            world.now = Duration::from_secs(1001);
            let mut delegated = Request {
                depth: 1,
                deadline: Some(Duration::from_secs(2)),
                ..request(node(1), 2, vec![b'a'; 10].into())
            };
            let now = world.now;
            let session = world.gate(1).session(at_1).expect("open");
            assert!(session.confirm(now));
            let sent = session.send_request(&mut delegated, &method());
            sent.expect("room");
            1
        },
    },
    Sample {
        name: "several",
        about: "Three small requests in one datagram.",
        prepare: |world| {
            let (at_1, _) = open(world);
            (2..=4).for_each(|sequence| send(world, at_1, sequence, 3));
            1
        },
    },
    Sample {
        name: "piece-first",
        about: "A request of 3000 bytes travels in pieces: the first one.",
        prepare: |world| {
            let (at_1, _) = open(world);
            send(world, at_1, 2, 3000);
            1
        },
    },
    Sample {
        name: "piece-last",
        about: "Its last piece.",
        prepare: |world| {
            let (at_1, _) = open(world);
            send(world, at_1, 2, 3000);
            carry(world, 1);
            carry(world, 1);
            1
        },
    },
    Sample {
        name: "acknowledgement",
        about: "Packets have arrived, but not all: an acknowledgement alone, with several ranges.",
        prepare: |world| {
            let (at_1, _) = open(world);
            for sequence in 2..12 {
                send(world, at_1, sequence, 3);
                match sequence {
                    4 | 7 | 8 => drop(next(world, 1)),
                    _ => carry(world, 1),
                }
            }
            2
        },
    },
    Sample {
        name: "credit",
        about: "Requests of 2 MiB have left the queue: the peer may send as much again.",
        prepare: |world| {
            let (_, at_2) = open(world);
            let session = world.gate(2).session(at_2).expect("open");
            (0..32).for_each(|_| session.grant_request((64 << 10) - 64));
            2
        },
    },
    Sample {
        name: "call-credit",
        about: "An application took four answers of its call, of 1000 bytes in all.",
        prepare: |world| {
            let (at_1, _) = open(world);
            let session = world.gate(1).session(at_1).expect("open");
            session.grant_call(request(node(1), 1, Bytes::new()).call, 4, 1000);
            1
        },
    },
    Sample {
        name: "ping",
        about: "A message without credit.",
        prepare: |world| {
            let (at_1, _) = open(world);
            let session = world.gate(1).session(at_1).expect("open");
            let ping = Message::Ping(ping(node(1), 1));
            session.send_control(ping).expect("open");
            1
        },
    },
    Sample {
        name: "going-away",
        about: "Nothing new comes; one message has been received.",
        prepare: |world| {
            let (_, at_2) = open(world);
            world.gate(2).session(at_2).expect("open").go_away();
            2
        },
    },
    Sample {
        name: "close",
        about: "The session is closed, and why.",
        prepare: |world| {
            let (at_1, _) = open(world);
            world.gate(1).session(at_1).expect("open").close("done");
            1
        },
    },
    Sample {
        name: "gone",
        about: "The answer to a datagram of a session that this incarnation does not know.",
        prepare: |world| {
            let (at_1, _) = open(world);
            world.start(2, 20, Default::default(), GateSettings::default());
            send(world, at_1, 2, 3);
            carry(world, 1);
            2
        },
    },
];

fn ask(world: &mut World) -> u64 {
    let now = world.now;
    world.gate(1).dial(now, address(2), None).expect("room");
    1
}

fn ask_named_by_peer(world: &mut World) -> u64 {
    let now = world.now;
    let gate = world.gate(1);
    let dialled = gate.dial_named(now, address(2), None, NamedBy::Peer);
    dialled.expect("room");
    1
}

/// A client that has a cookie; its session.
fn challenged(world: &mut World) -> SessionId {
    ask(world);
    carry(world, 1);
    carry(world, 2);
    match world.events(1)[..] {
        [(id, Ok(Event::Opened(_)))] => id,
        ref events => panic!("{events:?}"),
    }
}

fn accepted(world: &mut World) -> SessionId {
    let events = world.events(2);
    let (id, _) = events.first().expect("it was opened");
    *id
}

/// A session in which one request was sent and acknowledged.
fn open(world: &mut World) -> (SessionId, SessionId) {
    let at_1 = challenged(world);
    send(world, at_1, 1, 10);
    carry(world, 1);
    let at_2 = accepted(world);
    world.pass(Duration::from_secs(1));
    (at_1, at_2)
}

fn send(world: &mut World, session: SessionId, sequence: u64, len: usize) {
    let mut request = request(node(1), sequence, vec![b'a'; len].into());
    let session = world.gate(1).session(session).expect("open");
    session.send_request(&mut request, &method()).expect("room");
}

fn answer(world: &mut World, session: SessionId, sequence: u64) {
    let response = response(node(1), sequence, Bytes::from_static(b"bbbbb"));
    let session = world.gate(2).session(session).expect("open");
    session
        .send_response(&response, Charge::Free)
        .expect("not counted");
}

/// The next datagram that the gate at this address sends.
fn next(world: &mut World, at: u64) -> Flying {
    let now = world.now;
    let mut bytes = Vec::new();
    let transmit = world.gate(at).poll_transmit(now, &mut bytes);
    Flying {
        to: transmit.expect("a datagram").to,
        from: address(at),
        bytes,
    }
}

/// Carries one datagram from this address to the other.
fn carry(world: &mut World, from: u64) {
    let datagram = next(world, from);
    arrive(world, datagram);
}

fn arrive(world: &mut World, datagram: Flying) {
    world.now += Duration::from_micros(50);
    let now = world.now;
    let gate = world.gates.get_mut(&datagram.to).expect("a gate");
    gate.handle_datagram(now, datagram.from, datagram.bytes.into());
}

#[test]
fn every_datagram_has_its_bytes() {
    for sample in SAMPLES {
        let mut world = World::pair(Network::default(), GateSettings::default());
        let at = (sample.prepare)(&mut world);
        world.events(1);
        world.events(2);
        let sent = next(&mut world, at);
        arrive(&mut world, sent.clone());
        let other = 3 - at;
        let mut does: Vec<_> = world.events(other).iter().map(describe).collect();
        let counters = world.gate(other).counters();
        assert_eq!(
            (counters.malformed, counters.corrupt),
            (0, 0),
            "{}",
            sample.name
        );
        if does.is_empty() {
            does.push("nothing that its driver sees".into());
        }
        golden::check(FOLDER, sample.name, &file(sample.about, &sent, &does));
        assert_eq!(bytes_of_file(sample.name), sent.bytes, "{}", sample.name);
    }
}

#[test]
fn no_vector_is_left_over() {
    golden::check_folder(FOLDER, &SAMPLES.map(|sample| sample.name));
}

fn describe((_, event): &Happening) -> String {
    match event {
        Ok(Event::Opened(peer)) => format!("opens: node {}", peer.node),
        Ok(Event::Method(number, method)) => format!("method {number} is {}", method.name()),
        Ok(Event::Message(Message::Request(request))) => {
            let MethodRef::Number(number) = request.method else {
                panic!("{:?}", request.method)
            };
            let len = request.payload.len();
            format!(
                "request of {} for method {number}, {len} bytes",
                request.call
            )
        }
        Ok(Event::Message(Message::Response(response))) => {
            let len = response.payload.len();
            format!("response of {}, {len} bytes", response.call)
        }
        Ok(event) => format!("{event:?}"),
        Err(ended) => format!("ends: {ended}"),
    }
}

/// The text of a vector file.
fn file(about: &str, sent: &Flying, does: &[String]) -> String {
    let mut text = format!("# {about}\n\nfrom         {} to {}\n", sent.from, sent.to);
    for line in does {
        text += &format!("does         {line}\n");
    }
    text += "\nbytes\n";
    for (bytes, label) in layout::of(&sent.bytes) {
        text += &line(&bytes, &label);
    }
    text
}

/// The bytes of one field, eight in a line, and what they say.
fn line(bytes: &[u8], label: &str) -> String {
    let (mut lines, mut label, mut rest) = (String::new(), label, bytes);
    loop {
        let run = rest.iter().take_while(|byte| rest[0] == **byte).count();
        let (hex, taken) = if run >= RUN {
            (format!("{:02x} * {run}", rest[0]), run)
        } else {
            let taken = rest.len().min(8);
            let hex = rest[..taken].iter().map(|byte| format!("{byte:02x} "));
            (hex.collect(), taken)
        };
        lines += format!("  {:26}{label}", hex.trim_end()).trim_end();
        lines += "\n";
        (rest, label) = (&rest[taken..], "");
        if rest.is_empty() {
            return lines;
        }
    }
}

/// The bytes that a vector file pins.
fn bytes_of_file(name: &str) -> Vec<u8> {
    let text = golden::read(FOLDER, name);
    let (_, lines) = text
        .split_once("\nbytes\n")
        .expect("a line that says bytes");
    let mut bytes = Vec::new();
    for line in lines.lines() {
        let hex = line.get(2..28).unwrap_or(line).trim();
        let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("two hex digits");
        match hex.split_once(" * ") {
            Some((one, run)) => bytes.extend(vec![byte(one); run.parse().expect("a number")]),
            None => bytes.extend(hex.split_whitespace().map(byte)),
        }
    }
    bytes
}
