//! The bytes of peers that lie: the protocol's messages in frames and datagrams, with nothing that would keep to its rules.

use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use std::sync::Arc;
use wallaby::{Address, CallId, MethodDefinition, NodeId};
use wallaby_proto::connection::{Connection, ConnectionLimits, Features, Hello, VERSION};
use wallaby_proto::wire::{FRAME_HEADER, LinkEnds, Message};

/// The kinds of frames that peers here make by hand.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 0x01;
    pub(crate) const METHOD: u8 = 0x02;
    pub(crate) const PART: u8 = 0x04;
    pub(crate) const CALL_CREDIT: u8 = 0x07;
    pub(crate) const REQUEST: u8 = 0x10;
    pub(crate) const RESPONSE: u8 = 0x11;
    pub(crate) const END: u8 = 0x12;
    pub(crate) const PING: u8 = 0x13;
    pub(crate) const PONG: u8 = 0x14;
    pub(crate) const TRACE: u8 = 0x15;
    /// Over UDP: a request that also says what its method is.
    pub(crate) const INTRODUCTION: u8 = 0x30;
}

/// A frame, over a stream, or what stands in its place in a packet.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Bytes,
}

impl Frame {
    pub(crate) fn new(kind: u8, body: impl Into<Bytes>) -> Self {
        Self {
            kind,
            body: body.into(),
        }
    }

    /// A message, as it is between these two.
    pub(crate) fn of(message: &Message, link: LinkEnds) -> Self {
        let kind = match message {
            Message::Request(_) => kind::REQUEST,
            Message::Response(_) => kind::RESPONSE,
            Message::End(_) => kind::END,
            Message::Ping(_) => kind::PING,
            Message::Pong(_) => kind::PONG,
            Message::Trace(_) => kind::TRACE,
        };
        let mut body = BytesMut::new();
        message.encode(&mut body, link);
        Self::new(kind, body)
    }

    /// The first bytes of a message that is said to be of this length.
    pub(crate) fn first_part(stream: u64, total: u64, kind: u8, bytes: &[u8]) -> Self {
        let mut body = Vec::new();
        put_varint(&mut body, stream);
        put_varint(&mut body, total);
        body.push(kind);
        body.extend_from_slice(bytes);
        Self::new(kind::PART, body)
    }

    /// More of it.
    pub(crate) fn next_part(stream: u64, bytes: &[u8]) -> Self {
        let mut body = Vec::new();
        put_varint(&mut body, stream);
        body.extend_from_slice(bytes);
        Self::new(kind::PART, body)
    }

    /// Credit for answers of a call: so many bytes.
    pub(crate) fn call_credit(call: CallId, bytes: u64) -> Self {
        let mut body = call.initiator.get().to_be_bytes().to_vec();
        put_varint(&mut body, call.sequence);
        put_varint(&mut body, bytes);
        Self::new(kind::CALL_CREDIT, body)
    }

    /// The frame that gives a method a number.
    pub(crate) fn method(method: &MethodDefinition, number: u32) -> Self {
        let mut body = Vec::new();
        put_varint(&mut body, number.into());
        put_definition(&mut body, method);
        Self::new(kind::METHOD, body)
    }

    /// Appends the frame as streams carry it.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let len = (self.body.len() as u32).to_le_bytes();
        out.extend_from_slice(&len[..3]);
        out.push(self.kind);
        out.extend_from_slice(&self.body);
    }

    /// Takes the next frame out of what a stream has brought.
    pub(crate) fn take(input: &mut BytesMut) -> Option<Self> {
        let header = input.get(..FRAME_HEADER)?;
        let len =
            usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        let kind = header[3];
        if input.len() < FRAME_HEADER + len {
            return None;
        }
        input.advance(FRAME_HEADER);
        Some(Self::new(kind, input.split_to(len)))
    }

    /// The message that it is, if it is one.
    pub(crate) fn message(&self, link: LinkEnds) -> Option<Message> {
        Message::decode(self.kind, self.body.clone(), link).ok()
    }
}

/// What names a method over UDP.
pub(crate) fn method_hash(method: &MethodDefinition) -> u64 {
    let mut bytes = method.name().as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(method.codec().as_bytes());
    bytes.extend_from_slice(&method.arguments().to_be_bytes());
    bytes.extend_from_slice(&method.answer().to_be_bytes());
    wallaby_proto::id::stable_hash(&bytes)
}

/// Name, codec and fingerprints.
pub(crate) fn put_definition(out: &mut Vec<u8>, method: &MethodDefinition) {
    for text in [&**method.name(), method.codec()] {
        put_varint(out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(&method.arguments().to_be_bytes());
    out.extend_from_slice(&method.answer().to_be_bytes());
}

/// What a peer says of itself, as a stream carries it.
pub(crate) fn hello(node: NodeId, address: Option<Address>) -> Vec<u8> {
    hello_of(node, address, ConnectionLimits::default())
}

/// The same of one that takes no more than this.
pub(crate) fn hello_of(
    node: NodeId,
    address: Option<Address>,
    limits: ConnectionLimits,
) -> Vec<u8> {
    let hello = Hello {
        versions: (VERSION, VERSION),
        node,
        expected: None,
        address,
        features: Features::default(),
        limits,
    };
    Connection::dial(Arc::new(hello), None).output().to_vec()
}

/// The node that a hello names.
pub(crate) fn node_of(hello: &[u8]) -> Result<NodeId> {
    let Some(node) = hello.get(6..14).and_then(|node| node.try_into().ok()) else {
        bail!("a hello of {} bytes", hello.len());
    };
    NodeId::new(u64::from_be_bytes(node)).context("a hello of no node")
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes an integer off the front.
pub(crate) fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

pub(crate) fn take_u64(input: &mut &[u8]) -> Option<u64> {
    let (number, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(u64::from_be_bytes(*number))
}

/// Takes bytes off the front that come with their length.
pub(crate) fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_varint(input)?).ok()?;
    let (bytes, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::time::Duration;
    use wallaby_proto::connection::Event;
    use wallaby_proto::datagram::{Gate, GateSettings};

    use crate::hostile::datagrams::{self, Arrived, Session};
    use crate::hostile::ground::{many_method, request};

    fn node(number: u64) -> NodeId {
        NodeId::new(number).unwrap()
    }

    fn honest() -> Arc<Hello> {
        Arc::new(Hello {
            versions: (VERSION, VERSION),
            node: node(2),
            expected: None,
            address: None,
            features: Features::default(),
            limits: ConnectionLimits::default(),
        })
    }

    /// Liars that were misunderstood would prove nothing.
    #[test]
    fn what_is_made_by_hand_is_understood_over_streams() {
        let link = LinkEnds::new(node(1), node(2));
        let own = request(node(1), 1, Bytes::from_static(b"please"));
        let mut bytes = hello(node(1), None);
        Frame::method(many_method(), 0).put(&mut bytes);
        Frame::of(&Message::Request(own.clone()), link).put(&mut bytes);
        let mut second = own.clone();
        second.call.sequence = 9;
        let whole = Frame::of(&Message::Request(second.clone()), link).body;
        let (first, rest) = whole.split_at(4);
        Frame::first_part(3, whole.len() as u64, kind::REQUEST, first).put(&mut bytes);
        Frame::next_part(3, rest).put(&mut bytes);
        let mut connection = Connection::accept(honest());
        let (mut input, mut messages) = (BytesMut::from(&bytes[..]), Vec::new());
        while let Some(event) = connection.handle_input(&mut input).unwrap() {
            if let Event::Message(message) = event {
                messages.push(message);
            }
        }
        assert_eq!(messages, [Message::Request(own), Message::Request(second)]);
        let mut output = BytesMut::from(connection.output());
        let frame = Frame::take(&mut output).unwrap();
        assert_eq!(
            (frame.kind, node_of(&frame.body).unwrap()),
            (kind::HELLO, node(2))
        );
    }

    #[test]
    fn what_is_made_by_hand_is_understood_in_datagrams() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut gate = Gate::new(honest(), [1; 16], GateSettings::default());
        let now = Duration::from_millis(1);
        let mut exchange = |datagram: Vec<u8>| {
            gate.handle_datagram(now, at(1), datagram.into());
            let (mut answers, mut messages) = (Vec::new(), Vec::new());
            while let Some((_, event)) = gate.poll_event() {
                if let Event::Message(message) = event.unwrap() {
                    messages.push(message);
                }
            }
            let mut bytes = Vec::new();
            while gate.poll_transmit(now, &mut bytes).is_some() {
                answers.push(std::mem::take(&mut bytes));
            }
            (answers, messages)
        };
        let (answers, _) = exchange(datagrams::ask(5));
        let Some(Arrived::Challenge {
            client: 5,
            server,
            issued,
            hello: theirs,
        }) = datagrams::read(&answers[0])
        else {
            panic!("no challenge: {answers:?}");
        };
        assert_eq!(node_of(&theirs).unwrap(), node(2));
        let mut session = Session::new(at(2), 5, server);
        let own = hello(node(1), None)[FRAME_HEADER..].to_vec();
        session.opening = Some((issued, own));
        let (answers, _) = exchange(session.probe());
        let Some(Arrived::Data {
            session: 5,
            packet,
            flags,
        }) = datagrams::read(&answers[0])
        else {
            panic!("no acknowledgement: {answers:?}");
        };
        session.unpack(&packet, flags);
        assert!(session.opening.is_none());
        let mut own = request(node(1), 1, Bytes::from_static(b"please"));
        own.method = wallaby_proto::wire::MethodRef::Hash(method_hash(many_method()));
        let link = LinkEnds::new(node(1), node(2));
        let mut body = Vec::new();
        put_definition(&mut body, many_method());
        body.extend_from_slice(&Frame::of(&Message::Request(own.clone()), link).body);
        let (_, messages) = exchange(session.pack(&[Frame::new(kind::INTRODUCTION, body)]));
        let [Message::Request(arrived)] = &messages[..] else {
            panic!("not one request: {messages:?}");
        };
        assert_eq!((arrived.call, &arrived.payload), (own.call, &own.payload));
    }
}
