//! What is handed to a session: requests that introduce their methods or tell the time, and all else, each with a number.

use std::time::Duration;

use bytes::{BufMut, Bytes};

use crate::carrier::event::{SendRefusal, telling};
use crate::carrier::methods::MethodDefinition;
use crate::carrier::transit::microseconds;
use crate::carrier::{Carrier, Mark, Medium, Naming, Peering, Priority};
use crate::datagram::outbound::{MAX_PIECES, NewMessage};
use crate::datagram::packet::{self, ACK_ROOM, CHECKSUM, INTRODUCTION, PIECE_OVERHEAD, TIMED};
use crate::datagram::session::{Session, SessionState};
use crate::datagram::window::WINDOW;
use crate::varint;
use crate::wire::{Message, MethodRef, Request, Response, kind};

/// Of the numbers for messages that are not acknowledged, so many are kept for those that need no credit, and a fourth of these for
/// what concerns the session.
const CONTROL_NUMBERS: u64 = WINDOW / 4;

/// What a packet takes at most besides frames and acknowledgement: kind, session, number, checksum.
const PACKET_OVERHEAD: usize = 1 + 8 + varint::MAX_LEN + CHECKSUM;

impl Medium for Session {
    fn peering(&self) -> &Peering {
        &self.peering
    }

    fn peering_mut(&mut self) -> &mut Peering {
        &mut self.peering
    }

    fn is_congested(&self, priority: Priority, _payload: usize) -> bool {
        let kept = match priority {
            Priority::Credited => CONTROL_NUMBERS,
            _ => CONTROL_NUMBERS / 4,
        };
        let waiting = self.outgoing.bytes();
        self.peering.output.is_reached(priority, waiting)
            || self.outgoing.numbers() >= WINDOW - kept
    }

    fn name_body(&mut self, request: &mut Request) -> Result<(), SendRefusal> {
        match request.body() {
            Some(_) => Err(SendRefusal::NoBodies),
            None => Ok(()),
        }
    }

    fn put_request(
        &mut self,
        request: &mut Request,
        (method, naming): (&MethodDefinition, Naming),
    ) -> Mark {
        request.method = MethodRef::Hash(naming.hash);
        let mut header = self.outgoing.buffer();
        let mut kind = kind::REQUEST;
        if !naming.is_known {
            method.put(&mut header);
            kind = INTRODUCTION;
        } else if let Some(now) = self.peering.now
            && self.peering.wants_time(request)
        {
            varint::put(&mut header, microseconds(now));
            kind = TIMED;
        }
        request.put_header(&mut header, self.peering.leaving(false));
        let introduces = (!naming.is_known).then_some(naming.number as u16);
        self.push(header, kind, request.payload.clone(), false, introduces)
    }

    fn put_response(&mut self, response: &Response) -> Mark {
        let mut header = self.outgoing.buffer();
        response.put_header(&mut header, self.peering.leaving(false));
        self.push(
            header,
            kind::RESPONSE,
            response.payload.clone(),
            false,
            None,
        )
    }

    /// It goes before those that wait.
    fn put_control(&mut self, message: &Message) -> Mark {
        let mut header = self.outgoing.buffer();
        message.put_header(&mut header, self.peering.leaving(false));
        self.push(header, message.kind(), Bytes::new(), true, None)
    }

    fn put_own(&mut self, kind: u8, body: &mut dyn FnMut(&mut Vec<u8>)) {
        // Numbers run out only if the peer acknowledges nothing; then the session ends anyway.
        if self.peer().is_some() && self.outgoing.numbers() < WINDOW {
            let mut header = self.outgoing.buffer();
            body(&mut header);
            self.push(header, kind, Bytes::new(), true, None);
        }
    }
}

impl Carrier for Session {
    fn progress(&self) -> (u64, Option<u64>) {
        (self.left(), Some(self.acknowledged()))
    }

    fn has_left(&self, mark: u64) -> bool {
        let number = mark.checked_sub(1).filter(|_| self.recovery.is_answered());
        number.is_none_or(|number| self.outgoing.has_left(number))
    }

    fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    fn is_ready_for(&mut self, _request: &Request, now: Duration) -> bool {
        self.confirm(now)
    }

    /// What was not acknowledged is not sent again: wait until it [is idle](Carrier::is_idle) if it should be. There are no more
    /// events.
    fn close(&mut self, reason: &str) {
        let issued = match self.state {
            SessionState::Open { issued } => issued,
            SessionState::Asking { .. } | SessionState::Opening { .. } => None,
            SessionState::Closing { .. } => return,
        };
        self.outgoing.clear();
        self.stop_waiting();
        self.peering.is_open = false;
        self.put_own(kind::CLOSE, &mut |out| out.put_slice(telling(reason)));
        // Who opened it and said nothing is told once: else sessions that strangers open would take up room as they end.
        let was_silent = issued.is_some() && self.counters().messages_received == 0;
        self.state = SessionState::Closing {
            issued,
            until: was_silent.then_some(Duration::ZERO),
        };
    }
}

impl Session {
    fn push(
        &mut self,
        header: Vec<u8>,
        kind: u8,
        payload: Bytes,
        control: bool,
        introduces: Option<u16>,
    ) -> Mark {
        let len = header.len() + payload.len();
        let room = self.frame_room(len);
        if len + PIECE_OVERHEAD > room {
            self.sizing.want_more();
        }
        let message = NewMessage {
            kind,
            payload,
            control,
            introduces,
            room,
        };
        Mark::Written(self.outgoing.push(header, message) + 1)
    }

    /// Most bytes of a frame of a message of this length. While packets carry the hello there is less; only what would
    /// be too many pieces then waits until they don't.
    fn frame_room(&self, len: usize) -> usize {
        let whole = self.sizing.datagram() - PACKET_OVERHEAD - ACK_ROOM;
        let SessionState::Opening { hello, .. } = &self.state else {
            return whole;
        };
        let beside_hello = whole.saturating_sub(packet::OPEN_OVERHEAD + hello.len());
        let piece = beside_hello.saturating_sub(PIECE_OVERHEAD);
        match len <= piece * MAX_PIECES {
            true => beside_hello,
            false => whole,
        }
    }
}
