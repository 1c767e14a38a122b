//! Two connections, one at each end, and bytes carried between them by hand.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use wallaby_proto::NodeId;
use wallaby_proto::connection::{
    Connection, ConnectionError, ConnectionLimits, Event, Features, Hello, MethodDefinition,
    VERSION,
};
use wallaby_proto::wire::Message;

use crate::protocol::samples::{alice, bob};

/// The two ends of a connection: Alice dialled Bob.
pub(crate) struct Pair {
    pub(crate) alice: Connection,
    pub(crate) bob: Connection,
    /// What was written but not taken by its reader yet.
    to_alice: BytesMut,
    to_bob: BytesMut,
}

/// A hello with nothing special in it.
pub(crate) fn hello(node: NodeId, limits: ConnectionLimits) -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        node,
        expected: None,
        address: None,
        features: Features::default(),
        limits,
    }
}

/// The method that all tests call.
pub(crate) fn method() -> MethodDefinition {
    MethodDefinition::new("demo.Index/lookup", "postcard", 0x11, 0x22).expect("a good name")
}

impl Pair {
    /// Before any byte has been carried.
    pub(crate) fn closed(alice: Hello, bob: Hello) -> Self {
        let expected = alice.expected;
        Self {
            alice: Connection::dial(Arc::new(alice), expected),
            bob: Connection::accept(Arc::new(bob)),
            to_alice: BytesMut::new(),
            to_bob: BytesMut::new(),
        }
    }

    /// After the handshake; both take what `limits` say.
    pub(crate) fn open(limits: ConnectionLimits) -> Self {
        let mut pair = Self::closed(hello(alice(), limits), hello(bob(), limits));
        assert!(matches!(
            pair.carry_to_bob(usize::MAX).as_deref(),
            Ok([Event::Opened(_)])
        ));
        assert!(matches!(
            pair.carry_to_alice(usize::MAX).as_deref(),
            Ok([Event::Opened(_)])
        ));
        pair
    }

    /// Carries at most `most` bytes from Alice to Bob; what Bob makes of them.
    pub(crate) fn carry_to_bob(&mut self, most: usize) -> Result<Vec<Event>, ConnectionError> {
        carry(&mut self.alice, &mut self.to_bob, &mut self.bob, most)
    }

    /// Carries at most `most` bytes from Bob to Alice; what Alice makes of them.
    pub(crate) fn carry_to_alice(&mut self, most: usize) -> Result<Vec<Event>, ConnectionError> {
        carry(&mut self.bob, &mut self.to_alice, &mut self.alice, most)
    }

    /// Carries all that Bob can write now to Alice; how many bytes it was.
    pub(crate) fn carry_all_to_alice(&mut self) -> usize {
        let bytes = written(&mut self.bob);
        self.to_alice.put_slice(&bytes);
        take(&mut self.alice, &mut self.to_alice).expect("legal bytes");
        bytes.len()
    }

    /// Bob reads these bytes after all that was carried to him.
    pub(crate) fn bob_reads(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ConnectionError> {
        self.to_bob.put_slice(bytes);
        take(&mut self.bob, &mut self.to_bob)
    }
}

/// All that a connection has to write now.
pub(crate) fn written(connection: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let output = connection.output();
        if output.is_empty() {
            return bytes;
        }
        let len = output.len();
        bytes.extend_from_slice(output);
        connection.advance(len);
    }
}

/// The messages among these events.
pub(crate) fn messages(events: Vec<Event>) -> Vec<Message> {
    let message = |event| {
        if let Event::Message(message) = event {
            Some(message)
        } else {
            None
        }
    };
    events.into_iter().filter_map(message).collect()
}

fn carry(
    from: &mut Connection,
    wire: &mut BytesMut,
    to: &mut Connection,
    most: usize,
) -> Result<Vec<Event>, ConnectionError> {
    let output = from.output();
    let len = output.len().min(most);
    wire.put_slice(&output[..len]);
    from.advance(len);
    take(to, wire)
}

fn take(to: &mut Connection, wire: &mut BytesMut) -> Result<Vec<Event>, ConnectionError> {
    let mut events = Vec::new();
    while let Some(event) = to.handle_input(wire)? {
        events.push(event);
    }
    Ok(events)
}
