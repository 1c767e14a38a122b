//! What a session makes of the packets that arrive.

use std::time::Duration;

use bytes::{Buf, Bytes};

use crate::carrier::Carrier;
use crate::carrier::credit::{self, TOO_WIDE};
use crate::carrier::event::{ConnectionError, Event, Granted, going_away, told};
use crate::carrier::methods::MethodDefinition;
use crate::carrier::receiving::receive;
use crate::datagram::assembly::PieceOutcome;
use crate::datagram::outbound::Streams;
use crate::datagram::packet::{Ack, Flags, Frame, INTRODUCTION, TIMED};
use crate::datagram::recovery::nanoseconds;
use crate::datagram::session::{Session, SessionState};
use crate::datagram::window::WindowCheck;
use crate::varint::Reader;
use crate::wire::{WireError, kind};

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
        match error {
            ConnectionError::Malformed(_) => Self::Malformed,
            error => Self::Broken(error),
        }
    }
}

impl From<WireError> for Dropped {
    fn from(_: WireError) -> Self {
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
        if self.peer().is_none() {
            return Err(Dropped::Malformed);
        }
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
        self.peering.counters.bytes_received += datagram.len() as u64;
        match self.state {
            SessionState::Asking { .. } | SessionState::Open { .. } => {}
            SessionState::Opening { .. } => self.state = SessionState::Open { issued: None },
            SessionState::Closing { .. } => return find_close(&mut reader),
        }
        let mut asks = false;
        let mut closed = None;
        while let Some(frame) = Frame::read(&mut reader)? {
            asks = true;
            let reason = self.handle_frame(now, frame, datagram, &mut events)?;
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
        let was_congested = !self.takes_output();
        let Self {
            outgoing,
            peering,
            recovery,
            ..
        } = self;
        let mut lost = Vec::new(); // does not allocate unless something is lost
        let settled = |chunk| {
            if let Some(introduced) = outgoing.settle(chunk) {
                peering.called.confirm(u32::from(introduced));
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
        Ok(was_congested && self.takes_output())
    }

    fn handle_frame(
        &mut self,
        now: Duration,
        frame: Frame,
        datagram: &Bytes,
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
            } => self.handle_message(now, kind, datagram.slice(start..end), events)?,
            Frame::Piece {
                kind,
                total,
                offset,
                start,
                end,
                ..
            } => {
                let limit = Streams::of(&self.peering.me.limits).with_control();
                let piece = &datagram[start..end];
                let message = (number, kind, total);
                match (self.assembly).insert(now, message, offset, piece, limit) {
                    PieceOutcome::Partly => return Ok(None),
                    PieceOutcome::Full => return Err(Dropped::Overrun),
                    PieceOutcome::Contradiction => return Err(Dropped::Malformed),
                    PieceOutcome::Whole(body) => self.handle_message(now, kind, body, events)?,
                }
            }
        };
        self.window.insert(number);
        Ok(closed)
    }

    /// Takes the message of this kind, or what concerns the session alone.
    fn handle_message(
        &mut self,
        now: Duration,
        mut kind: u8,
        mut body: Bytes,
        events: &mut impl FnMut(Event),
    ) -> Result<Option<String>, Dropped> {
        let size = body.len() as u64;
        let mut sent = None;
        match kind {
            INTRODUCTION => {
                let mut reader = Reader::new(&body);
                let method = MethodDefinition::read(&mut reader)?;
                body.advance(reader.position());
                if let Some(number) = self.peering.named.introduce(&method)? {
                    events(Event::Method(number, method));
                }
                kind = kind::REQUEST;
            }
            TIMED => {
                let mut reader = Reader::new(&body);
                sent = Some(reader.varint("time")?);
                body.advance(reader.position());
                kind = kind::REQUEST;
            }
            kind::CLOSE => return Ok(Some(told(&body))),
            kind if kind < kind::REQUEST => {
                events(self.handle_own(kind, &body)?);
                return Ok(None);
            }
            _ => {}
        }
        let event = receive(self, (kind, body, size), false, |session, request| {
            if request.body().is_some() {
                let (what, why) = ("request", "a body, over datagrams");
                return Err(WireError::Malformed { what, why }.into());
            }
            if let Some(sent) = sent {
                request.waited = session.waited(sent, now);
            }
            Ok(())
        });
        event?.into_iter().for_each(events);
        Ok(None)
    }

    /// What concerns the session alone.
    fn handle_own(&mut self, kind: u8, body: &[u8]) -> Result<Event, WireError> {
        match kind {
            kind::CREDIT => self.handle_credit(body),
            kind::CALL_CREDIT => self.peering.handle_call_credit(body),
            kind::GOING_AWAY => going_away(body, false),
            kind => Err(WireError::UnknownKind { kind }),
        }
    }

    /// How long a request has waited that was sent when the peer's clock showed this.
    #[inline(never)]
    fn waited(&mut self, told: u64, now: Duration) -> Duration {
        let transit = self.transit.get_or_insert_default();
        transit.handle_time(told, now);
        transit.waited(now)
    }

    fn handle_credit(&mut self, body: &[u8]) -> Result<Event, WireError> {
        let (granted, bytes) = credit::read(body)?;
        if granted != Granted::Requests {
            return Err(credit::UNKNOWN);
        }
        self.peering.requests.widen(bytes).ok_or(TOO_WIDE)?;
        Ok(Event::Credit(granted))
    }
}
