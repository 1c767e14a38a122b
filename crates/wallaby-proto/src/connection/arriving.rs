//! Frames that arrive: messages, whole or in parts, and what concerns the connection alone.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Connection, Role};
use crate::carrier::Carrier;
use crate::carrier::credit::{self, PARTS};
use crate::carrier::event::{ConnectionError, Event, Granted, going_away, told};
use crate::carrier::hello::{Features, Hello};
use crate::carrier::methods::MethodDefinition;
use crate::carrier::output::OUTPUT_LIMIT;
use crate::carrier::receiving::receive;
use crate::carrier::transit::PeerTime;
use crate::varint::{self, Reader};
use crate::wire::{Body, FRAME_HEADER, MAX_BODY, Request, WireError, kind};

/// Before the handshake is done, a frame's body is at most this long.
const MAX_HELLO: usize = 4096;

const ASK: u8 = 0;
const ANSWER: u8 = 1;

impl Connection {
    /// Takes the next frame off `input`; `None` if it holds no complete frame, or while [input is not
    /// taken](Self::takes_input). Frames that only concern the connection are dealt with on the way. Much of a body is told
    /// before its frame is complete.
    ///
    /// # Errors
    ///
    /// If the connection must be closed.
    pub fn handle_input(&mut self, input: &mut BytesMut) -> Result<Option<Event>, ConnectionError> {
        loop {
            if !self.takes_input() {
                return Ok(None);
            }
            if self.bodies_in.has_begun() {
                let event = self.go_on_with_body(input)?;
                if event.is_some() || self.bodies_in.has_begun() {
                    return Ok(event);
                }
            }
            let Some((kind, len)) = self.next_frame(input)? else {
                return Ok(None);
            };
            if kind >= kind::REQUEST && self.peering.peer.is_some() {
                let message = (kind, Frame { input, len }, len as u64);
                return receive(self, message, true, |connection, request| {
                    connection.prepare(request, connection.told())
                });
            }
            let body = Frame { input, len }.behind(0);
            if self.peering.peer.is_none() {
                return self.handle_first_frame(kind, &body);
            }
            if let Some(event) = self.handle_frame(kind, body)? {
                return Ok(Some(event));
            }
        }
    }

    /// Kind and length of the body of the next frame, if it is complete.
    fn next_frame(&mut self, input: &BytesMut) -> Result<Option<(u8, usize)>, ConnectionError> {
        let Some(&[a, b, c, kind]) = input.first_chunk::<FRAME_HEADER>() else {
            return Ok(None);
        };
        let mut len = u32::from_le_bytes([a, b, c, 0]) as usize;
        let limit = match self.peering.peer {
            Some(_) => MAX_BODY,
            None => MAX_HELLO,
        };
        if len > limit {
            let (what, len) = ("frame", len as u64);
            let error = WireError::TooLong { what, len, limit };
            return Err(match self.peering.peer {
                Some(_) => error.into(),
                None => ConnectionError::Foreign(error),
            });
        }
        if input.len() < FRAME_HEADER + len {
            let Some(begun) = self.begin_frame(kind, &input[FRAME_HEADER..], len) else {
                self.arriving = input.len();
                return Ok(None);
            };
            len = begun;
        }
        self.arriving = 0;
        self.peering.counters.bytes_received += (FRAME_HEADER + len) as u64;
        Ok(Some((kind, len)))
    }

    /// A request has come that began to arrive when the peer had told this time: a body may follow it, and it may have waited.
    fn prepare(
        &mut self,
        request: &mut Request,
        told: Option<PeerTime>,
    ) -> Result<(), ConnectionError> {
        if request.options.is_some() {
            self.begin_body(request)?;
        }
        if request.is_timed() {
            request.waited = self.waited_since(told);
        }
        Ok(())
    }

    fn handle_part(&mut self, body: &[u8]) -> Result<Option<Event>, ConnectionError> {
        let told = self.told();
        let limits = self.peering.me.limits;
        let (bytes, assembled) = self.inbox.handle_part(body, limits, told)?;
        self.part_arrived(bytes)?;
        let Some(whole) = assembled else {
            return Ok(None);
        };
        let message = (whole.kind, whole.body, whole.size);
        let prepare =
            |connection: &mut Self, request: &mut Request| connection.prepare(request, whole.told);
        receive(self, message, false, prepare)
    }

    /// Bytes of parts, or of bodies, have come.
    pub(super) fn part_arrived(&mut self, bytes: u64) -> Result<(), ConnectionError> {
        if bytes == 0 {
            return Ok(());
        }
        self.pace.part_arrived(bytes as usize);
        if !self.parts_grants.take(bytes) {
            let what = "parts of messages";
            return Err(ConnectionError::Overdrawn { what });
        }
        self.grant_parts(bytes);
        Ok(())
    }

    pub(super) fn grant_parts(&mut self, bytes: u64) {
        let bytes = self.inbox.grantable(bytes);
        if let Some(bytes) = self.parts_grants.add(bytes) {
            self.output.put_frame(kind::CREDIT, |out| {
                out.put_u8(PARTS);
                varint::put(out, bytes);
            });
        }
    }

    /// A frame that only concerns the connection.
    #[inline(never)]
    fn handle_frame(&mut self, kind: u8, body: Bytes) -> Result<Option<Event>, ConnectionError> {
        Ok(Some(match kind {
            kind::BODY => return self.handle_body(body),
            kind::BODY_CREDIT => self.handle_body_credit(&body)?,
            kind::PART => return self.handle_part(&body),
            kind::TIME => return Ok(self.handle_time(&body).map(|()| None)?),
            kind::PROBE => return Ok(self.handle_probe(&body).map(|()| None)?),
            kind::METHOD => self.handle_method(&body)?,
            kind::CREDIT => self.handle_credit(&body)?,
            kind::CALL_CREDIT => self.peering.handle_call_credit(&body)?,
            kind::GOING_AWAY => {
                let may = self.peering.me.features.contains(Features::READ);
                going_away(&body, may)?
            }
            kind::CLOSE => Event::Closed(told(&body)),
            kind::HELLO => return Err(out_of_place(kind, "after the handshake")),
            kind => return Err(WireError::UnknownKind { kind }.into()),
        }))
    }

    #[cold]
    #[inline(never)]
    fn handle_first_frame(
        &mut self,
        kind: u8,
        body: &[u8],
    ) -> Result<Option<Event>, ConnectionError> {
        match kind {
            kind::HELLO => {}
            kind::CLOSE => return Ok(Some(Event::Closed(told(body)))),
            kind => return Err(out_of_place(kind, "before the handshake")),
        }
        let mut reader = Reader::new(body);
        let theirs = Hello::read_versions(&mut reader)?;
        if self.role == Role::Acceptor {
            self.send_hello(None); // also if the versions do not fit: so the dialer learns why
        }
        let me = &self.peering.me;
        let peer = me.read_peer(&mut reader, theirs)?;
        let (expected, found) = match self.role {
            Role::Dialer { expected } => (expected, peer.node),
            Role::Acceptor => (peer.expected, me.node),
        };
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(ConnectionError::WrongNode { expected, found });
        }
        self.pace.open(peer.limits.parts);
        let peer = Arc::new(peer);
        self.peering.open(Arc::clone(&peer));
        Ok(Some(Event::Opened(peer)))
    }

    fn handle_method(&mut self, body: &[u8]) -> Result<Event, WireError> {
        let what = "method";
        let mut reader = Reader::new(body);
        let number = reader.u32(what)?;
        let definition = MethodDefinition::read(&mut reader)?;
        reader.finish(what)?;
        if number != self.peering.named.add()? {
            let why = "a number out of turn";
            return Err(WireError::Malformed { what, why });
        }
        Ok(Event::Method(number, definition))
    }

    fn handle_credit(&mut self, body: &[u8]) -> Result<Event, WireError> {
        let (granted, bytes) = credit::read(body)?;
        self.peering.refused = false;
        let taken = match granted {
            Granted::Parts => self.pace.granted(bytes),
            _ => self.peering.requests.widen(bytes),
        };
        taken.ok_or(credit::TOO_WIDE)?;
        Ok(Event::Credit(granted))
    }

    /// Asks the peer whether it is there, if the handshake is done. What it answers only shows in [`Self::heard`].
    pub fn probe(&mut self) {
        if self.peer().is_some() {
            self.probes += 1;
            self.put_probe(ASK, self.probes);
        }
    }

    fn put_probe(&mut self, side: u8, nonce: u64) {
        self.output.put_frame(kind::PROBE, |out| {
            out.put_u8(side);
            varint::put(out, nonce);
        });
    }

    /// A probe asks whether this side still lives; an answer to a probe of ours proves the same of the peer.
    fn handle_probe(&mut self, body: &[u8]) -> Result<(), WireError> {
        let what = "probe";
        let mut reader = Reader::new(body);
        let answer = reader.u8(what)?;
        let nonce = reader.varint(what)?;
        reader.finish(what)?;
        match answer {
            ANSWER => {}
            // Who does not read the answers needs no more of them: they must not pile up here.
            ASK if self.output.len() > OUTPUT_LIMIT => {}
            ASK => self.put_probe(ANSWER, nonce),
            _ => {
                let why = "neither a question nor an answer";
                return Err(WireError::Malformed { what, why });
            }
        }
        Ok(())
    }
}

/// The next frame of the input, whose body has this length.
struct Frame<'a> {
    input: &'a mut BytesMut,
    len: usize,
}

impl Body for Frame<'_> {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        &self.input[FRAME_HEADER..FRAME_HEADER + self.len]
    }

    #[inline(always)]
    fn behind(self, header: usize) -> Bytes {
        let end = FRAME_HEADER + self.len;
        if header == self.len {
            self.input.advance(end);
            return Bytes::new();
        }
        split(self.input, FRAME_HEADER + header, end)
    }
}

#[inline(never)]
fn split(input: &mut BytesMut, start: usize, end: usize) -> Bytes {
    let mut bytes = input.split_to(end).freeze();
    bytes.advance(start);
    bytes
}

fn out_of_place(kind: u8, when: &'static str) -> ConnectionError {
    ConnectionError::OutOfPlace { kind, when }
}
