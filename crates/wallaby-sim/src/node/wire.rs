//! What a peer is reached by: a connection, or a session over datagrams. Both carry the same messages.

use std::collections::VecDeque;

use bytes::BytesMut;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, KeepAlive, Mark, Refusal};
use wallaby_proto::datagram::{Gate, Session, SessionId};

use crate::network::Socket;

/// One end of a connection or of a session.
#[derive(Debug)]
pub(super) enum Wire {
    Stream(Box<Stream>),
    /// The gate holds it.
    Session(SessionId),
}

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) connection: Connection,
    pub(super) input: BytesMut,
    /// The transport is there; the handshake may not be done.
    pub(super) connected: bool,
    pub(super) keep_alive: KeepAlive,
    /// Messages in the output: up to which byte they stand there, and their marks. A message in parts has no place that
    /// is known.
    marks: VecDeque<(Option<u64>, u64)>,
}

impl Wire {
    pub(super) fn stream(connection: Connection, connected: bool) -> Self {
        Self::Stream(Box::new(Stream {
            connection,
            input: BytesMut::new(),
            connected,
            keep_alive: KeepAlive::default(),
            marks: VecDeque::new(),
        }))
    }

    /// What both ends of a connection call it; sessions between two lives are not told apart.
    pub(super) fn shared_name(&self, socket: Socket) -> u32 {
        match self {
            Self::Stream(_) => socket.link.0,
            Self::Session(_) => u32::MAX,
        }
    }

    /// What carries the messages, to send by it.
    pub(super) fn carrier<'a>(
        &'a mut self,
        gate: &'a mut Gate,
    ) -> Option<Carrier<&'a mut Connection, &'a mut Session>> {
        match self {
            Self::Stream(stream) => Some(Carrier::Stream(&mut stream.connection)),
            Self::Session(id) => gate.session(*id).map(Carrier::Session),
        }
    }

    /// The same, only to ask it.
    pub(super) fn peek<'a>(
        &'a self,
        gate: &'a Gate,
    ) -> Option<Carrier<&'a Connection, &'a Session>> {
        match self {
            Self::Stream(stream) => Some(Carrier::Stream(&stream.connection)),
            Self::Session(id) => gate.peek(*id).map(Carrier::Session),
        }
    }

    /// Sends a message; returns its mark.
    pub(super) fn send(
        &mut self,
        gate: &mut Gate,
        send: impl FnOnce(&mut Carrier<&mut Connection, &mut Session>) -> Result<Mark, Refusal>,
    ) -> Result<u64, Refusal> {
        let mut carrier = self.carrier(gate).ok_or(Refusal::NotOpen)?;
        let sent = send(&mut carrier)?;
        Ok(match (self, sent) {
            (Self::Stream(stream), Mark::Written(_)) => stream.mark(false),
            (Self::Stream(stream), Mark::Parts(_)) => stream.mark(true),
            (Self::Session(_), Mark::Written(mark) | Mark::Parts(mark)) => mark,
        })
    }

    /// How far the output has got, as far as that is known, and what the peer has acknowledged, where the transport tells.
    pub(super) fn progress(&mut self, gate: &Gate) -> Option<(u64, Option<u64>)> {
        match self {
            Self::Stream(stream) => Some((stream.written()?, None)),
            Self::Session(_) => Some(self.peek(gate)?.progress()),
        }
    }
}

impl Stream {
    /// The mark of the message that was sent last, in parts or not.
    fn mark(&mut self, in_parts: bool) -> u64 {
        let waiting = self.connection.output().len() as u64;
        let counters = self.connection.counters();
        let place = (!in_parts).then_some(counters.bytes_sent + waiting);
        self.marks.push_back((place, counters.messages_sent));
        counters.messages_sent
    }

    fn written(&mut self) -> Option<u64> {
        let written = self.connection.counters().bytes_sent;
        let idle = self.connection.is_idle();
        let mut reached = None;
        while let Some((place, mark)) = self.marks.front().copied() {
            if !idle && place.is_none_or(|place| place > written) {
                break;
            }
            reached = Some(mark);
            self.marks.pop_front();
        }
        reached
    }
}
