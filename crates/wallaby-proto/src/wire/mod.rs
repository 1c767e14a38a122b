//! The messages of the protocol and their bytes; `docs/protocol.md` draws every one of them.
//!
//! What leaves this module as a value is legal: nothing above it checks lengths or flags again. A message is written
//! and read in the context of the connection it travels on (a [`LinkEnds`]), since what both sides know from the handshake
//! is not repeated.

mod control;
mod hops;
mod liveness;
mod metadata;
mod options;
mod request;
mod response;

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub use self::control::{Child, MAX_CHILDREN, MAX_MISSING, Ping, Pong, Progress, TraceReport};
pub use self::hops::{
    HandledBy, MAX_PART_NAME, MAX_TRACE_PARTS, MAX_TRACE_RECORDS, TracePart, TraceRecord,
};
pub use self::liveness::{Heartbeats, PingSettings};
pub use self::metadata::{MAX_METADATA, Metadata, MetadataError};
pub use self::options::{
    Budgets, Continuation, ContinuationError, MAX_CONTINUATION, MessageOptions,
};
pub(crate) use self::request::Begin as RequestBegin;
pub use self::request::{MethodRef, ReplyTo, Request};
pub(crate) use self::response::Begin as ResponseBegin;
pub use self::response::{End, Response};
pub use crate::varint::WireError;

use crate::id::{CallId, NodeId, Token};
use crate::varint::{self, Reader};

/// Bytes before every frame's body: its length (3 bytes, little-endian, body only) and its kind.
pub const FRAME_HEADER: usize = 4;

/// Longest body of a frame: a message up to this size travels whole, a longer one in parts.
pub const MAX_FRAME: usize = 64 * 1024;

/// Longest body of a frame: what may exceed [`MAX_FRAME`] is the header of a message.
pub(crate) const MAX_BODY: usize = 2 * MAX_FRAME;

/// The kinds of frames: those from [`kind::REQUEST`] on are messages, the others concern the connection alone. Numbers are
/// never used again for something else.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 0x01;
    pub(crate) const METHOD: u8 = 0x02;
    pub(crate) const CREDIT: u8 = 0x03;
    pub(crate) const PART: u8 = 0x04;
    pub(crate) const GOING_AWAY: u8 = 0x05;
    pub(crate) const PROBE: u8 = 0x06;
    pub(crate) const CALL_CREDIT: u8 = 0x07;
    pub(crate) const CLOSE: u8 = 0x08;
    pub(crate) const BODY: u8 = 0x09;
    pub(crate) const BODY_CREDIT: u8 = 0x0a;
    pub(crate) const TIME: u8 = 0x0b;
    pub(crate) const REQUEST: u8 = 0x10;
    pub(crate) const RESPONSE: u8 = 0x11;
    pub(crate) const END: u8 = 0x12;
    pub(crate) const PING: u8 = 0x13;
    pub(crate) const PONG: u8 = 0x14;
    pub(crate) const TRACE: u8 = 0x15;
}

/// The two ends of the connection that a message travels on, as its reader or writer sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkEnds {
    /// Who wrote the message.
    pub sender: NodeId,
    /// Who reads it.
    pub receiver: NodeId,
    /// The sequence of the sender's own call whose request travelled before this message on the connection: the next one
    /// is told by the difference. 0 if there was none, and where messages may overtake each other.
    pub previous: u64,
}

impl LinkEnds {
    /// A link on which nothing has travelled before.
    pub const fn new(sender: NodeId, receiver: NodeId) -> Self {
        Self {
            sender,
            receiver,
            previous: 0,
        }
    }
}

/// One message of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Work for a server.
    Request(Request),
    /// An answer, or a status, for the initiator.
    Response(Response),
    /// The end of a branch for which no other message was left: a null response, or the facts alone.
    End(End),
    /// The initiator asks about a request, or aborts it.
    Ping(Ping),
    /// A server tells what it knows of a request, asked or unasked.
    Pong(Pong),
    /// Trace records that found no place in another message.
    Trace(TraceReport),
}

impl Message {
    /// The number that names this kind of message on the wire.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Request(_) => kind::REQUEST,
            Self::Response(_) => kind::RESPONSE,
            Self::End(_) => kind::END,
            Self::Ping(_) => kind::PING,
            Self::Pong(_) => kind::PONG,
            Self::Trace(_) => kind::TRACE,
        }
    }

    /// The call this message belongs to.
    pub fn call(&self) -> CallId {
        match self {
            Self::Request(request) => request.call,
            Self::Response(response) => response.call,
            Self::End(end) => end.call,
            Self::Ping(ping) => ping.call,
            Self::Pong(pong) => pong.call,
            Self::Trace(report) => report.call,
        }
    }

    /// The token of the call, if the message shows it.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Request(request) => Some(request.token),
            Self::Response(response) => response.token,
            Self::End(end) => end.token,
            Self::Ping(ping) => Some(ping.token),
            Self::Pong(pong) => pong.token,
            Self::Trace(report) => report.token,
        }
    }

    /// How far from its initiator a message for it still is: see [`Response::distance`]. `None` for requests and pings, which
    /// do not go there.
    pub fn distance(&mut self) -> Option<&mut u32> {
        match self {
            Self::Response(response) => Some(&mut response.distance),
            Self::End(end) => Some(&mut end.distance),
            Self::Pong(pong) => Some(&mut pong.distance),
            Self::Trace(report) => Some(&mut report.distance),
            Self::Request(_) | Self::Ping(_) => None,
        }
    }

    /// The application's bytes; empty for messages without.
    pub(crate) fn payload(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        match self {
            Self::Request(request) => &request.payload,
            Self::Response(response) => &response.payload,
            _ => &EMPTY,
        }
    }

    /// Appends everything but the payload, which follows it.
    pub(crate) fn put_header(&self, out: &mut Vec<u8>, link: LinkEnds) {
        match self {
            Self::Request(request) => request.put_header(out, link),
            Self::Response(response) => response.put_header(out, link),
            Self::End(end) => end.put(out, link),
            Self::Ping(ping) => ping.put(out, link),
            Self::Pong(pong) => pong.put(out, link),
            Self::Trace(report) => report.put(out, link),
        }
    }

    /// Appends the body of this message's frame: header and payload.
    pub fn encode(&self, out: &mut BytesMut, link: LinkEnds) {
        let mut header = Vec::new();
        self.put_header(&mut header, link);
        out.put_slice(&header);
        out.put_slice(self.payload());
    }

    /// Reads the body of a frame of this kind.
    ///
    /// # Errors
    ///
    /// If the bytes are not exactly one legal message of that kind.
    pub fn decode(kind: u8, body: Bytes, link: LinkEnds) -> Result<Self, WireError> {
        match kind {
            kind::REQUEST => Ok(Self::Request(Request::read(body, link)?)),
            kind::RESPONSE => Ok(Self::Response(Response::read(body, link)?)),
            kind => Self::read_control(kind, Reader::new(&body), link),
        }
    }

    /// Reads a message of a kind that has no payload.
    #[inline(never)]
    pub(crate) fn read_control(
        kind: u8,
        mut reader: Reader<'_>,
        link: LinkEnds,
    ) -> Result<Self, WireError> {
        let reader = &mut reader;
        let message = match kind {
            kind::END => Self::End(End::read(reader, link)?),
            kind::PING => Self::Ping(Ping::read(reader, link)?),
            kind::PONG => Self::Pong(Pong::read(reader, link)?),
            kind::TRACE => Self::Trace(TraceReport::read(reader, link)?),
            kind => return Err(WireError::UnknownKind { kind }),
        };
        reader.finish("message")?;
        Ok(message)
    }

    /// The same message with an empty payload.
    pub(crate) fn without_payload(mut self) -> Self {
        match &mut self {
            Self::Request(request) => request.payload = Bytes::new(),
            Self::Response(response) => response.payload = Bytes::new(),
            _ => {}
        }
        self
    }
}

/// The body of a frame, in memory.
pub(crate) trait Body {
    fn bytes(&self) -> &[u8];

    /// What stands behind a header of this length, left where it is. If nothing does, nothing of the rest is kept.
    fn behind(self, header: usize) -> Bytes;
}

impl Body for Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn behind(mut self, header: usize) -> Bytes {
        if header == self.len() {
            return Self::new();
        }
        self.advance(header);
        self
    }
}

/// Writes the initiator of a call unless it is the one that everybody on this connection would assume.
fn put_initiator(out: &mut Vec<u8>, call: CallId, assumed: NodeId) {
    if call.initiator != assumed {
        call.initiator.put(out);
    }
    varint::put(out, call.sequence);
}

fn read_initiator(reader: &mut Reader<'_>, assumed: Option<NodeId>) -> Result<CallId, WireError> {
    let initiator = match assumed {
        Some(node) => node,
        None => NodeId::read(reader)?,
    };
    Ok(CallId {
        initiator,
        sequence: reader.varint("call")?,
    })
}

/// Writes the call of a message for its initiator. If that is not the receiver, it is named, and how far it still is.
fn put_destination(out: &mut Vec<u8>, call: CallId, distance: u32, receiver: NodeId) {
    if call.initiator != receiver {
        call.initiator.put(out);
        varint::put(out, u64::from(distance));
    }
    varint::put(out, call.sequence);
}

/// Reads what [`put_destination`] writes: the receiver is not named if the message goes to it `directly`. The initiator is
/// not told who passed it on, even if it is named.
#[inline(always)]
fn read_destination(
    reader: &mut Reader<'_>,
    directly: bool,
    receiver: NodeId,
) -> Result<(CallId, u32), WireError> {
    let (initiator, distance) = match directly {
        true => (receiver, 0),
        false => (NodeId::read(reader)?, reader.u32("distance")?),
    };
    let distance = if initiator == receiver { 0 } else { distance };
    let sequence = reader.varint("call")?;
    let call = CallId {
        initiator,
        sequence,
    };
    Ok((call, distance))
}

/// Refuses flag bits outside `known`.
fn check_flags(what: &'static str, flags: u64, known: u64) -> Result<(), WireError> {
    match flags & !known {
        0 => Ok(()),
        bits => Err(WireError::NotUnderstood { what, bits }),
    }
}
