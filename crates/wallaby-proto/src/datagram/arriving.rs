//! What a session makes of the packets that arrive.

use std::time::Duration;

use bytes::Bytes;

use crate::connection::{ConnectionError, Event, Granted};
use crate::datagram::assembly::PieceOutcome;
use crate::datagram::methods;
use crate::datagram::outbound::Streams;
use crate::datagram::packet::{Ack, Flags, Frame, INTRODUCTION, TIMED};
use crate::datagram::recovery::nanoseconds;
use crate::datagram::session::{REQUESTS, Session, Stage};
use crate::datagram::window::WindowCheck;
use crate::id::{CallId, NodeId};
use crate::numbers::{MAX_REASON, MESSAGE_COST};
use crate::varint::Reader;
use crate::wire::{DecodeError, LinkEnds, Message, MethodRef, Request, Response, kind};

/// Packet numbers are below: no sender gets that far.
const MAX_PACKET_NUMBER: u64 = 1 << 62;

/// Why a packet was dropped: as if it had been lost on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dropped {
    /// It arrived before.
    Duplicate,
    /// It holds what this side need not take now.
    Overrun,
    /// Its bytes are no packet, or it is out of place.
    Malformed,
    /// It breaks the rules of the connection, which ends.
    Broken(ConnectionError),
}

impl From<ConnectionError> for Dropped {
    fn from(error: ConnectionError) -> Self {
        Self::Broken(error)
    }
}

impl From<DecodeError> for Dropped {
    fn from(_: DecodeError) -> Self {
        Self::Malformed
    }
}

/// Of what comes when this side has closed the session, only that the other one has closed it too matters.
fn find_close(reader: &mut Reader<'_>) -> Result<Option<String>, Dropped> {
    while let Some(frame) = Frame::read(reader)? {
        if let Frame::Whole {
            kind: kind::CLOSE, ..
        } = frame
        {
            return Ok(Some(String::new()));
        }
    }
    Ok(None)
}

impl Session {
    /// Takes a packet: `reader` stands before its number, in `datagram`. Returns the peer's reason if it closes the
    /// session. A packet that is dropped half-way is not acknowledged; what it brought before stays, and is filtered
    /// when it comes again.
    pub(super) fn handle_packet(
        &mut self,
        now: Duration,
        flags: Flags,
        mut reader: Reader<'_>,
        datagram: &Bytes,
        mut events: impl FnMut(Event),
    ) -> Result<Option<String>, Dropped> {
        let Some(peer) = &self.peer else {
            return Err(Dropped::Malformed);
        };
        let link = LinkEnds::new(peer.node, self.me.node);
        let number = reader.varint("packet")?;
        if number >= MAX_PACKET_NUMBER {
            return Err(Dropped::Malformed);
        }
        if self.received.contains(number) {
            return Err(Dropped::Duplicate);
        }
        if flags.contains(Flags::ACK) {
            let ack = Ack::read(&mut reader)?;
            let goes_on = self.handle_ack(now, &ack)?;
            if self.note_alive() || goes_on {
                events(Event::Credit(Granted::Room));
            }
        }
        self.counters.bytes_received += datagram.len() as u64;
        match self.stage {
            Stage::Asking { .. } | Stage::Open { .. } => {}
            Stage::Opening { .. } => self.stage = Stage::Open { issued: None },
            Stage::Closing { .. } => return find_close(&mut reader),
        }
        let mut asks = false;
        let mut closed = None;
        while let Some(frame) = Frame::read(&mut reader)? {
            asks = true;
            let reason = self.handle_frame(now, frame, datagram, link, &mut events)?;
            closed = closed.or(reason);
        }
        let now = nanoseconds(now);
        if asks {
            let urgent = flags.contains(Flags::URGENT);
            (self.received).handle_asking(now, number, datagram.len(), urgent);
        } else {
            self.received.handle(now, number);
        }
        Ok(closed)
    }

    /// Returns whether messages may be sent again that had to wait.
    fn handle_ack(&mut self, now: Duration, ack: &Ack) -> Result<bool, Dropped> {
        let was_congested = self.is_congested();
        let Self {
            outgoing,
            calls,
            recovery,
            ..
        } = self;
        let mut lost = Vec::new(); // does not allocate unless something is lost
        let settled = |chunk| {
            if let Some(introduced) = outgoing.settle(chunk) {
                calls.confirm(introduced);
            }
        };
        let news = recovery
            .handle_ack(now, ack, settled, |chunk| lost.push(chunk))
            .map_err(|_| Dropped::Malformed)?;
        lost.into_iter().for_each(|chunk| outgoing.resend(chunk));
        if self.sizing.handle_ack(ack) {
            self.recovery.set_datagram(self.sizing.datagram());
        }
        self.received.forget_below(news.acknowledged_below);
        Ok(was_congested && !self.is_congested())
    }

    fn handle_frame(
        &mut self,
        now: Duration,
        frame: Frame,
        datagram: &Bytes,
        link: LinkEnds,
        events: &mut impl FnMut(Event),
    ) -> Result<Option<String>, Dropped> {
        let number = match frame {
            Frame::Probe => return Ok(None),
            Frame::Whole { number, .. } | Frame::Piece { number, .. } => number,
        };
        match self.window.look(number) {
            WindowCheck::New => {}
            WindowCheck::Duplicate => return Ok(None),
            WindowCheck::TooFar => return Err(Dropped::Overrun),
        }
        let closed = match frame {
            Frame::Probe => None,
            Frame::Whole {
                kind, start, end, ..
            } => self.handle_message(now, kind, datagram, start, end, link, events)?,
            Frame::Piece {
                kind,
                total,
                offset,
                start,
                end,
                ..
            } => {
                let limit = Streams::of(&self.me.limits).with_control();
                let piece = &datagram[start..end];
                let message = (number, kind, total);
                match (self.assembly).insert(now, message, offset, piece, limit) {
                    PieceOutcome::Partly => return Ok(None),
                    PieceOutcome::Full => return Err(Dropped::Overrun),
                    PieceOutcome::Contradiction => return Err(Dropped::Malformed),
                    PieceOutcome::Whole(body) => {
                        self.handle_message(now, kind, &body, 0, body.len(), link, events)?
                    }
                }
            }
        };
        self.window.insert(number);
        Ok(closed)
    }

    /// Takes the message of this kind whose body lies from `start` to `end` in `bytes`; payloads stay where they are in
    /// memory.
    #[expect(
        clippy::too_many_arguments,
        reason = "what is known of a message, and where it goes"
    )]
    fn handle_message(
        &mut self,
        now: Duration,
        kind: u8,
        bytes: &Bytes,
        start: usize,
        end: usize,
        link: LinkEnds,
        events: &mut impl FnMut(Event),
    ) -> Result<Option<String>, Dropped> {
        let body = &bytes[start..end];
        let mut reader = Reader::new(body);
        match kind {
            kind::REQUEST | INTRODUCTION | TIMED => {
                let told = match kind {
                    TIMED => Some(reader.varint("time")?),
                    _ => None,
                };
                if kind == INTRODUCTION {
                    let method = methods::read(&mut reader)?;
                    let (_, number, is_new) = self.introduced.introduce(&method)?;
                    if is_new {
                        events(Event::Method(number, method));
                    }
                }
                let mut request = Request::blank(link.sender);
                request.read_header(&mut reader, link)?;
                if request.body().is_some() {
                    return Err(Dropped::Malformed); // a body, over datagrams
                }
                request.method = self.number(request.method)?;
                request.payload = bytes.slice(start + reader.position()..end);
                if let Some(told) = told {
                    request.waited = self.waited(told, now);
                }
                let size = request.payload.len() as u64;
                let waits = size <= self.me.limits.message; // else it is refused here
                if waits && !self.request_grants.take(size + MESSAGE_COST) {
                    return Err(ConnectionError::Overdrawn { what: "requests" }.into());
                }
                self.deliver(Message::Request(request), end - start, events);
            }
            kind::RESPONSE => {
                let mut response = Response::read_header(&mut reader, link)?;
                response.payload = bytes.slice(start + reader.position()..end);
                self.deliver(Message::Response(response), end - start, events);
            }
            kind::CREDIT => {
                self.handle_credit(&mut reader)?;
                events(Event::Credit(Granted::Requests));
            }
            kind::CALL_CREDIT => {
                let call = self.handle_call_credit(&mut reader)?;
                events(Event::Credit(Granted::Call(call)));
            }
            kind::GOING_AWAY => {
                let received = reader.varint("going away")?;
                reader.finish("going away")?;
                let read = None;
                events(Event::GoingAway { received, read });
            }
            kind::CLOSE => {
                let reason = &body[..body.len().min(MAX_REASON)];
                return Ok(Some(String::from_utf8_lossy(reason).into_owned()));
            }
            kind => {
                let message = Message::read_control(kind, &mut reader, link)?;
                self.deliver(message, end - start, events);
            }
        }
        Ok(None)
    }

    /// How long a request has waited that was sent when the peer's clock showed this.
    #[inline(never)]
    fn waited(&mut self, told: u64, now: Duration) -> Duration {
        let transit = self.transit.get_or_insert_default();
        transit.handle_time(told, now);
        transit.waited(now)
    }

    // Called for requests and for responses: there the message is made where it goes.
    #[inline(always)]
    fn deliver(&mut self, message: Message, size: usize, events: &mut impl FnMut(Event)) {
        self.counters.messages_received += 1;
        if message.payload().len() as u64 > self.me.limits.message {
            return events(Event::TooLarge {
                message: message.without_payload(),
                size: size as u64,
            });
        }
        events(Event::Message(message));
    }

    /// The number of a method that the peer names by its hash.
    fn number(&mut self, method: MethodRef) -> Result<MethodRef, DecodeError> {
        let number = match method {
            MethodRef::Hash(hash) => self.introduced.number(hash),
            MethodRef::Number(_) => None,
        };
        number.map(MethodRef::Number).ok_or(DecodeError::Malformed {
            what: "request",
            why: "a method that was not introduced",
        })
    }

    fn handle_credit(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        let what = "credit";
        let malformed = |why| DecodeError::Malformed { what, why };
        if reader.u8(what)? != REQUESTS {
            return Err(malformed("an unknown window"));
        }
        let bytes = reader.varint(what)?;
        reader.finish(what)?;
        self.request_window = i64::try_from(bytes)
            .ok()
            .and_then(|bytes| self.request_window.checked_add(bytes))
            .ok_or_else(|| malformed("more than a window can hold"))?;
        Ok(())
    }

    fn handle_call_credit(&mut self, reader: &mut Reader<'_>) -> Result<CallId, DecodeError> {
        let what = "call credit";
        let call = CallId {
            initiator: NodeId::read(reader)?,
            sequence: reader.varint(what)?,
        };
        let bytes = reader.varint(what)?;
        reader.finish(what)?;
        self.call_windows.grant(call, bytes);
        Ok(call)
    }
}
