//! A connection whose peer writes arbitrary bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use wallaby_proto::connection::{Connection, Event};
use wallaby_proto::wire::Message;

use crate::choices::Choices;
use crate::things::{alice, bob, hello, limits};

/// What an end may want to write without being asked: more would grow with the peer's wishes.
const MOST_OUTPUT: usize = 1 << 20;

pub(crate) fn before_the_handshake(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let me = Arc::new(hello(bob(), limits(&mut choices)));
    let connection = match choices.below(3) {
        0 => Connection::accept(me),
        1 => Connection::dial(me, None),
        _ => Connection::dial(me, Some(alice())),
    };
    let cut = 1 + usize::from(choices.byte());
    feed(connection, choices.rest(), cut);
}

pub(crate) fn after_the_handshake(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let (here, there) = (limits(&mut choices), limits(&mut choices));
    let mut connection = Connection::accept(Arc::new(hello(bob(), here)));
    let mut peer = Connection::dial(Arc::new(hello(alice(), there)), None);
    let mut input = BytesMut::from(peer.output());
    let opened = connection.handle_input(&mut input);
    assert!(matches!(opened, Ok(Some(Event::Opened(_)))));
    let cut = 1 + usize::from(choices.byte());
    if choices.once_in(2) {
        return feed(connection, choices.rest(), cut);
    }
    let mut stream = Vec::new();
    while !choices.is_empty() {
        let kind = choices.byte();
        let len = match choices.byte() {
            255 => 256 * usize::from(choices.byte()),
            len => usize::from(len),
        };
        // Long bodies are mostly zeros.
        let body = choices.bytes(len.min(255));
        stream.put_slice(&(len as u32).to_le_bytes()[..3]);
        stream.put_u8(kind);
        stream.put_slice(body);
        stream.resize(stream.len() + len - body.len(), 0);
    }
    feed(connection, &stream, cut * 16);
}

/// Feeds bytes until they are used up or refused; messages are taken at once.
fn feed(mut connection: Connection, bytes: &[u8], cut: usize) {
    let mut input = BytesMut::new();
    for (turn, chunk) in (0..).zip(bytes.chunks(cut)) {
        input.extend_from_slice(chunk);
        connection.set_time(Duration::from_millis(turn));
        loop {
            match connection.handle_input(&mut input) {
                Ok(Some(event)) => take(&mut connection, event),
                Ok(None) => break,
                Err(error) => return drop(error.to_string()),
            }
        }
        let waiting = connection.output().len();
        assert!(waiting <= MOST_OUTPUT, "{waiting} bytes to write");
        if turn % 4 == 3 {
            connection.advance(waiting);
        }
        if turn % 16 == 15 && connection.check_stalled().is_err() {
            return;
        }
    }
}

fn take(connection: &mut Connection, event: Event) {
    drop(format!("{event:?}"));
    match event {
        Event::Message(Message::Request(request)) => {
            connection.grant_request(request.payload.len())
        }
        Event::Message(Message::Response(response)) => {
            connection.grant_call(response.call, 1, response.payload.len() as u64);
        }
        _ => {}
    }
}
