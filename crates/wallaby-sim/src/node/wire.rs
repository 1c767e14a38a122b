//! What a peer is reached by: a connection, or a session over datagrams. Both carry the same messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::CallId;
use wallaby_proto::connection::{Connection, Hello, KeepAlive, MethodDefinition, Refusal};
use wallaby_proto::datagram::{Gate, SessionId};
use wallaby_proto::wire::{MAX_FRAME, Message, Request, Response};

use crate::network::Socket;

/// One end of a connection or of a session.
#[derive(Debug)]
pub(super) enum Wire {
    Stream(Box<Stream>),
    Session(Session),
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

/// An end of a session; the gate holds it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
}

/// Up to which marks a peer's output has got.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) written: u64,
    /// What the peer has acknowledged, where the transport tells.
    pub(super) confirmed: Option<u64>,
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

    pub(super) fn session(id: SessionId) -> Self {
        Self::Session(Session { id })
    }

    /// What both ends of a connection call it; sessions between two lives are not told apart.
    pub(super) fn shared_name(&self, socket: Socket) -> u32 {
        match self {
            Self::Stream(_) => socket.link.0,
            Self::Session(_) => u32::MAX,
        }
    }

    /// What the other side said of itself.
    pub(super) fn hello(&self, gate: &Gate) -> Option<Arc<Hello>> {
        match self {
            Self::Stream(stream) => stream.connection.peer().map(Arc::clone),
            Self::Session(session) => gate.peek(session.id)?.peer().map(Arc::clone),
        }
    }

    /// Sends a request; returns its mark. A peer that has shown no life for long is asked first, if need be.
    pub(super) fn send_request(
        &mut self,
        gate: &mut Gate,
        now: Duration,
        asks: bool,
        request: &mut Request,
        method: &MethodDefinition,
    ) -> Result<u64, Refusal> {
        match self {
            Self::Stream(stream) => {
                if stream.connection.tells_time(request) {
                    stream.connection.set_time(now);
                }
                stream.connection.send_request(request, method)?;
                Ok(stream.mark(request.payload.len() > MAX_FRAME))
            }
            Self::Session(session) => {
                let state = gate.session(session.id).ok_or(Refusal::NotOpen)?;
                if asks && !state.confirm(now) {
                    return Err(Refusal::Blocked);
                }
                let number = state.send_request(request, method)?;
                Ok(number.index() + 1)
            }
        }
    }

    /// Sends a response; returns its mark.
    pub(super) fn send_response(
        &mut self,
        gate: &mut Gate,
        response: &Response,
        counted: bool,
    ) -> Result<u64, Refusal> {
        match self {
            Self::Stream(stream) => {
                stream.connection.send_response(response, counted)?;
                Ok(stream.mark(response.payload.len() > MAX_FRAME))
            }
            Self::Session(session) => {
                let state = gate.session(session.id).ok_or(Refusal::NotOpen)?;
                let number = state.send_response(response, counted)?;
                Ok(number.index() + 1)
            }
        }
    }

    /// Sends any other message; returns its mark.
    pub(super) fn send_control(
        &mut self,
        gate: &mut Gate,
        message: Message,
    ) -> Result<u64, Refusal> {
        match self {
            Self::Stream(stream) => {
                stream.connection.send_control(message)?;
                Ok(stream.mark(false))
            }
            Self::Session(session) => {
                let state = gate.session(session.id).ok_or(Refusal::NotOpen)?;
                let number = state.send_control(message)?;
                Ok(number.index() + 1)
            }
        }
    }

    /// A request has left the queue for its handler.
    pub(super) fn grant_request(&mut self, gate: &mut Gate, payload: usize) {
        match self {
            Self::Stream(stream) => stream.connection.grant_request(payload),
            Self::Session(session) => {
                if let Some(state) = gate.session(session.id) {
                    state.grant_request(payload);
                }
            }
        }
    }

    /// The application took responses.
    pub(super) fn grant_call(&mut self, gate: &mut Gate, call: CallId, count: u64, bytes: u64) {
        match self {
            Self::Stream(stream) => stream.connection.grant_call(call, count, bytes),
            Self::Session(session) => {
                if let Some(state) = gate.session(session.id) {
                    state.grant_call(call, count, bytes);
                }
            }
        }
    }

    /// How far the output has got, as far as that is known.
    pub(super) fn progress(&mut self, gate: &Gate) -> Option<Progress> {
        match self {
            Self::Stream(stream) => {
                let written = stream.written()?;
                let confirmed = None;
                Some(Progress { written, confirmed })
            }
            Self::Session(session) => {
                let state = gate.peek(session.id)?;
                Some(Progress {
                    written: state.left(),
                    confirmed: Some(state.acknowledged()),
                })
            }
        }
    }
}

impl Stream {
    /// The mark of the message that was sent last.
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
