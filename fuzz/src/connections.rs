//! Two honest ends of a stream: whatever they send, and however its bytes are cut, all of it arrives once, as it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{BodyEvent, BodyRefusal, Charge, Connection, Event, SendRefusal};
use wallaby_proto::wire::Message;

use crate::choices::Choices;
use crate::things::{alice, bob, hello, limits, method, node, numbered, size};

struct End {
    connection: Connection,
    /// What its peer wrote and it has not taken yet.
    input: BytesMut,
    /// What it sent and its peer has not got yet.
    sent: Vec<Message>,
    opened: bool,
    /// Bodies that it sends, and those that come to it.
    bodies: Vec<Outbound>,
    bodies_in: BTreeMap<u64, Inbound>,
}

/// A body, of bytes that tell their places.
struct Outbound {
    number: u64,
    sent: u64,
    total: u64,
    ended: bool,
}

#[derive(Default)]
struct Inbound {
    arrived: u64,
    end: Option<Result<(), String>>,
    stopped: bool,
}

/// Every fourth request has a body. One of five bodies breaks in the middle, and one is stopped by its receiver.
fn has_body(number: u64) -> bool {
    number.is_multiple_of(4)
}

fn breaks(number: u64) -> bool {
    number % 5 == 3
}

fn is_unwanted(number: u64) -> bool {
    number % 5 == 4
}

/// Sends what may be sent of each body.
fn send_bodies(end: &mut End) {
    for body in end.bodies.iter_mut().filter(|body| !body.ended) {
        let until = match breaks(body.number) {
            true => body.total / 2,
            false => body.total,
        };
        while body.sent < until {
            let mut chunk: Bytes = (body.sent..until.min(body.sent + 40_000))
                .map(|place| place as u8)
                .collect();
            let len = chunk.len();
            let sent = end.connection.send_body(body.number, &mut chunk);
            body.sent += (len - chunk.len()) as u64;
            match sent {
                Ok(()) => {}
                Err(BodyRefusal::Blocked) => break,
                Err(BodyRefusal::Stopped) => {
                    assert!(is_unwanted(body.number));
                    body.ended = true;
                    break;
                }
            }
        }
        if body.sent == until && !body.ended {
            let how = match breaks(body.number) {
                true => Err("it breaks"),
                false => Ok(()),
            };
            match end.connection.end_body(body.number, how) {
                Err(BodyRefusal::Blocked) => {}
                ended => {
                    assert!(ended.is_ok() || is_unwanted(body.number));
                    body.ended = true;
                }
            }
        }
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut hellos = [alice(), bob()].map(|node| hello(node, limits(&mut choices)));
    let expected = choices.once_in(2).then(bob);
    hellos[0].expected = expected;
    let [alice, bob] = hellos.map(Arc::new);
    let mut ends =
        [Connection::dial(alice, expected), Connection::accept(bob)].map(|connection| End {
            connection,
            input: BytesMut::new(),
            sent: Vec::new(),
            opened: false,
            bodies: Vec::new(),
            bodies_in: BTreeMap::new(),
        });
    let mut number = 0;
    let mut now = Duration::ZERO;
    while !choices.is_empty() {
        let from = choices.below(2) as usize;
        match choices.below(8) {
            0..=3 => {
                number += 1;
                send(&mut ends[from], &mut choices, number, from);
            }
            4 | 5 => {
                let most = size(&mut choices);
                carry(&mut ends, from, most);
            }
            6 => {
                now += choices.time();
                ends[from].connection.set_time(now);
            }
            _ if choices.once_in(8) && ends[from].opened => ends[from].connection.go_away(),
            _ => drop(ends[from].connection.check_stalled(Duration::ZERO)),
        }
    }
    loop {
        ends.iter_mut().for_each(send_bodies);
        if [0, 1].map(|from| carry(&mut ends, from, usize::MAX)) == [0, 0] {
            break;
        }
        now += Duration::from_millis(10);
        ends.iter_mut().for_each(|end| end.connection.set_time(now));
    }
    for end in &ends {
        assert!(end.opened, "the handshake is done");
        assert!(end.sent.is_empty(), "lost: {:?}", end.sent);
        assert!(end.connection.is_idle());
    }
    let [alice, bob] = &ends;
    for (from, to) in [(alice, bob), (bob, alice)] {
        assert_eq!(from.bodies.len(), to.bodies_in.len());
        for sent in &from.bodies {
            let got = &to.bodies_in[&sent.number];
            assert!(sent.ended, "body {} did not end", sent.number);
            match &got.end {
                // The end of what is stopped is not told.
                None => assert!(got.stopped),
                Some(Ok(())) => assert_eq!(got.arrived, sent.total),
                Some(Err(_)) => assert!(breaks(sent.number) && got.arrived <= sent.sent),
            }
        }
    }
}

fn send(end: &mut End, choices: &mut Choices<'_>, number: u64, from: usize) {
    let (me, peer) = (node(from as u64), node(1 - from as u64));
    let payload = size(choices);
    let connection = &mut end.connection;
    let Some(message) = numbered(choices, number, me, peer, payload) else {
        return;
    };
    let (message, sent) = match message {
        Message::Request(mut request) => {
            let method = method(choices.below(3));
            if has_body(number) {
                request.options.get_or_insert_default().body = Some(0);
            } else if let Some(options) = &mut request.options {
                options.body = None;
            }
            let sent = connection.send_request(&mut request, &method);
            let body = request.options.as_ref().and_then(|options| options.body);
            if let (Ok(_), Some(body)) = (&sent, body) {
                end.bodies.push(Outbound {
                    number: body,
                    sent: 0,
                    total: number * 9973 % 100_000,
                    ended: false,
                });
            }
            (Message::Request(request), sent)
        }
        Message::Response(response) => {
            let sent = connection.send_response(&response, Charge::Counted);
            (Message::Response(response), sent)
        }
        control => (control.clone(), connection.send_control(control)),
    };
    match sent {
        Ok(_) => end.sent.push(message),
        Err(SendRefusal::NotOpen) => assert!(!end.opened),
        Err(refusal) => drop(refusal.to_string()),
    }
}

/// Carries at most so many bytes from one end to the other; how many it was.
fn carry(ends: &mut [End; 2], from: usize, most: usize) -> usize {
    let [first, second] = ends;
    let (from, to) = if from == 0 {
        (first, second)
    } else {
        (second, first)
    };
    let output = from.connection.output();
    let carried = output.len().min(most);
    to.input.extend_from_slice(&output[..carried]);
    from.connection.advance(carried);
    loop {
        match to.connection.handle_input(&mut to.input) {
            Ok(Some(event)) => take(from, to, event),
            Ok(None) => return carried,
            Err(error) => panic!("an honest peer is refused: {error}"),
        }
    }
}

fn take(from: &mut End, to: &mut End, event: Event) {
    match event {
        Event::Opened(_) => to.opened = true,
        Event::Message(message) => {
            let place = from.sent.iter().position(|sent| *sent == message);
            let Some(place) = place else {
                panic!(
                    "{message:?} was not sent, or came before; under way: {:?}",
                    from.sent
                );
            };
            from.sent.remove(place);
            match message {
                Message::Request(request) => {
                    to.connection.grant_request(request.payload.len());
                    let body = request.options.as_ref().and_then(|options| options.body);
                    if let Some(number) = body {
                        let before = to.bodies_in.insert(number, Inbound::default());
                        assert!(before.is_none(), "body {number} came twice");
                    }
                }
                Message::Response(response) => {
                    let payload = response.payload.len() as u64;
                    to.connection.grant_call(response.call, 1, payload);
                }
                _ => {}
            }
        }
        Event::TooLarge { message, size } => panic!("{size} bytes were accepted: {message:?}"),
        Event::Body(number, event) => take_body(to, number, event),
        Event::Method(..) | Event::Credit(_) | Event::GoingAway { .. } | Event::Closed(_) => {}
    }
}

fn take_body(to: &mut End, number: u64, event: BodyEvent) {
    let Some(body) = to.bodies_in.get_mut(&number) else {
        panic!("body {number} was not begun");
    };
    assert!(body.end.is_none() && !body.stopped, "nothing after the end");
    match event {
        BodyEvent::Bytes(bytes) => {
            for byte in &bytes {
                assert_eq!(*byte, body.arrived as u8, "at {}", body.arrived);
                body.arrived += 1;
            }
            if is_unwanted(number) {
                body.stopped = true;
                to.connection.stop_body(number);
            } else {
                to.connection.grant_body(number, bytes.len() as u64);
            }
        }
        BodyEvent::Whole => body.end = Some(Ok(())),
        BodyEvent::Broken(why) => body.end = Some(Err(why)),
    }
}
