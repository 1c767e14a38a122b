//! Two honest ends of a stream: whatever they send, and however its bytes are cut, all of it arrives once, as it was.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::connection::{Connection, Event, Refusal};
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
            _ => drop(ends[from].connection.check_stalled()),
        }
    }
    while [0, 1].map(|from| carry(&mut ends, from, usize::MAX)) != [0, 0] {
        now += Duration::from_millis(10);
        ends.iter_mut().for_each(|end| end.connection.set_time(now));
    }
    for end in &ends {
        assert!(end.opened, "the handshake is done");
        assert!(end.sent.is_empty(), "lost: {:?}", end.sent);
        assert!(end.connection.is_idle());
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
            let sent = connection.send_request(&mut request, &method);
            (Message::Request(request), sent)
        }
        Message::Response(response) => {
            let sent = connection.send_response(&response, true);
            (Message::Response(response), sent)
        }
        control => (control.clone(), connection.send_control(control)),
    };
    match sent {
        Ok(()) => end.sent.push(message),
        Err(Refusal::NotOpen) => assert!(!end.opened),
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
                Message::Request(request) => to.connection.grant_request(request.payload.len()),
                Message::Response(response) => {
                    let payload = response.payload.len() as u64;
                    to.connection.grant_call(response.call, 1, payload);
                }
                _ => {}
            }
        }
        Event::TooLarge { message, size } => panic!("{size} bytes were accepted: {message:?}"),
        Event::Method(..)
        | Event::Body(..)
        | Event::Credit
        | Event::GoingAway { .. }
        | Event::Closed(_) => {}
    }
}
