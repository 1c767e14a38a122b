//! A connection whose peer writes arbitrary bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Bounds, Connection, ConnectionLimits, Event, PartialLimits, Partials,
};
use wallaby_proto::wire::Message;

use crate::choices::Choices;
use crate::things::{alice, bob, hello, limits};

pub(crate) fn before_the_handshake(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let limits = limits(&mut choices);
    let me = Arc::new(hello(bob(), limits));
    let connection = match choices.below(3) {
        0 => Connection::accept(me),
        1 => Connection::dial(me, None),
        _ => Connection::dial(me, Some(alice())),
    };
    let cut = 1 + usize::from(choices.byte());
    let held = Held::new(limits, &Bounds::default(), cut);
    feed(connection, choices.rest(), cut, held);
}

pub(crate) fn after_the_handshake(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let (here, there) = (limits(&mut choices), limits(&mut choices));
    let bounds = Bounds {
        output: 64 << 10,
        partials: Partials::new(PartialLimits {
            bytes: 1000,
            ..PartialLimits::default()
        }),
    };
    let mut connection = Connection::accept(Arc::new(hello(bob(), here))).bounded(&bounds);
    let mut peer = Connection::dial(Arc::new(hello(alice(), there)), None);
    let mut input = BytesMut::from(peer.output());
    let opened = connection.handle_input(&mut input);
    assert!(matches!(opened, Ok(Some(Event::Opened(_)))));
    let cut = 1 + usize::from(choices.byte());
    let held = Held::new(here, &bounds, cut);
    if choices.once_in(2) {
        return feed(connection, choices.rest(), cut, held);
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
    feed(connection, &stream, cut * 16, held);
}

/// What the end holds for its peer.
struct Held {
    /// Requests are not taken at once.
    keeps: bool,
    requests: u64,
    /// Most that one of them costs, and all of them.
    dearest: u64,
    most: u64,
    /// Most of messages that are not whole.
    most_partly: u64,
    partials: Partials,
    most_output: usize,
}

impl Held {
    fn new(limits: ConnectionLimits, bounds: &Bounds, cut: usize) -> Self {
        let dearest = (limits.requests / 8).max(64 << 10);
        Self {
            keeps: cut.is_multiple_of(2),
            requests: 0,
            dearest,
            most: limits.requests + dearest + 64,
            most_partly: u64::from(limits.streams) * (limits.message + (64 << 10)),
            partials: bounds.partials.clone(),
            // And what one frame makes it say.
            most_output: bounds.output + 256,
        }
    }

    fn check(&self, waiting: usize) {
        assert!(waiting <= self.most_output, "{waiting} bytes to write");
        assert!(self.requests <= self.most, "{} of requests", self.requests);
        let partly = self.partials.held();
        assert!(partly <= self.most_partly, "{partly} bytes of messages");
    }

    fn take(&mut self, connection: &mut Connection, payload: usize) {
        if self.keeps {
            self.requests += (payload as u64).min(self.dearest) + 64;
        } else {
            connection.grant_request(payload);
        }
    }
}

/// Feeds bytes until they are used up or refused; messages are taken at once.
fn feed(mut connection: Connection, bytes: &[u8], cut: usize, mut held: Held) {
    let mut input = BytesMut::new();
    for (turn, chunk) in (0..).zip(bytes.chunks(cut)) {
        input.extend_from_slice(chunk);
        connection.set_time(Duration::from_millis(turn));
        loop {
            match connection.handle_input(&mut input) {
                Ok(Some(event)) => take(&mut connection, event, &mut held),
                Ok(None) => break,
                Err(error) => return drop(error.to_string()),
            }
        }
        let waiting = connection.output().len();
        held.check(connection.waiting());
        if turn % 4 == 3 {
            connection.advance(waiting);
        }
        let now = Duration::from_secs(turn);
        if turn % 16 == 15 && connection.check_stalled(now).is_err() {
            return;
        }
    }
}

fn take(connection: &mut Connection, event: Event, held: &mut Held) {
    drop(format!("{event:?}"));
    match event {
        Event::Message(Message::Request(request)) => {
            held.take(connection, request.payload.len());
        }
        Event::Message(Message::Response(response)) => {
            connection.grant_call(response.call, 1, response.payload.len() as u64);
        }
        _ => {}
    }
}
