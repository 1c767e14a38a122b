//! What a stream carries: messages whole or in parts, behind the definitions and times that go ahead of them.

use std::time::Duration;

use bytes::{BufMut, Bytes};

use super::Connection;
use super::output::OutputBuffer;
use crate::CallId;
use crate::carrier::event::{SendRefusal, telling};
use crate::carrier::methods::MethodDefinition;
use crate::carrier::{Carrier, Mark, Medium, Naming, Peering, Priority};
use crate::connection::Features;
use crate::varint;
use crate::wire::{LinkEnds, MAX_FRAME, Message, MethodRef, ReplyTo, Request, Response, kind};

/// Longest header that most messages have.
const HEADER_GUESS: usize = 64;

impl Medium for Connection {
    fn peering(&self) -> &Peering {
        &self.peering
    }

    fn peering_mut(&mut self) -> &mut Peering {
        &mut self.peering
    }

    /// Those that travel in parts have room of their own: together as much as the longest may take.
    #[inline]
    fn is_congested(&self, priority: Priority, payload: usize) -> bool {
        if self.output.is_shut() {
            return true;
        }
        if payload > MAX_FRAME {
            let waiting = self.outbox.bytes();
            return waiting > 0 && (waiting + payload) as u64 > self.peering.longest;
        }
        self.peering.output.is_reached(priority, self.output.len())
    }

    /// An answer must not overtake a large one of its call that the peer is to pass on: it would take the credit of the next
    /// connection from it, and an initiator that wants answers in order would wait for the large one, and that for credit.
    fn is_behind(&self, call: CallId) -> bool {
        self.large_relayed.iter().any(|(large, _)| *large == call)
    }

    #[cold]
    #[inline(never)]
    fn name_body(&mut self, request: &mut Request) -> Result<(), SendRefusal> {
        let options = request.options.as_mut();
        let Some(body) = options.and_then(|options| options.body.as_mut()) else {
            return Ok(());
        };
        if !self.bodies.has_room() {
            return Err(self.peering.blocked());
        }
        *body = self.bodies.next();
        Ok(())
    }

    #[inline]
    fn put_request(
        &mut self,
        request: &mut Request,
        (method, naming): (&MethodDefinition, Naming),
    ) -> Mark {
        if !naming.is_known {
            self.output.put_frame(kind::METHOD, |out| {
                varint::put(out, u64::from(naming.number));
                method.put(out);
            });
            self.peering.called.confirm(naming.number);
        }
        request.method = MethodRef::Number(naming.number);
        let told = match self.tells_time(request) {
            true => self.tell_time(),
            false => None,
        };
        let quiet = self.pace.quiet();
        let mark = self.put(kind::REQUEST, &request.payload, |out, link| {
            request.put_header(out, link)
        });
        match mark {
            Mark::Parts(_) => self.outbox.latest_was_sent_at(told),
            Mark::Written(_) if request.reply_to == ReplyTo::Peer => {
                self.peering.last_sent = request.call.sequence;
            }
            Mark::Written(_) => {}
        }
        if request.body().is_some() {
            self.pace.was_a_beginning(quiet);
            self.open_body(mark);
        }
        mark
    }

    fn put_response(&mut self, response: &Response) -> Mark {
        let mark = self.put(kind::RESPONSE, &response.payload, |out, link| {
            response.put_header(out, link)
        });
        if let Mark::Parts(stream) = mark {
            self.note_large(response.call, stream);
        }
        mark
    }

    fn put_control(&mut self, message: &Message) -> Mark {
        self.put(message.kind(), message.payload(), |out, link| {
            message.put_header(out, link)
        })
    }

    fn put_own(&mut self, kind: u8, body: &mut dyn FnMut(&mut Vec<u8>)) {
        self.output.put_frame(kind, body);
    }
}

impl Carrier for Connection {
    fn progress(&self) -> (u64, Option<u64>) {
        (self.peering.counters.bytes_sent, None)
    }

    /// Parts that need credit wait, too.
    fn is_idle(&self) -> bool {
        self.output.is_empty() && self.outbox.is_empty()
    }

    fn is_ready_for(&mut self, request: &Request, now: Duration) -> bool {
        if self.tells_time(request) {
            self.set_time(now);
        }
        true
    }

    fn close(&mut self, reason: &str) {
        self.peering.is_open = false;
        self.put_own(kind::CLOSE, &mut |out| out.put_slice(telling(reason)));
    }

    /// The peer has just said who it is: if this side's hello was not written yet, it is not, so that the peer knows that nothing
    /// of it was taken.
    fn refuse(&mut self, reason: &str) {
        if self.peering.counters.bytes_sent == 0 && !self.output.was_taken() {
            self.output = OutputBuffer::default();
        }
        self.close(reason);
    }

    /// So the peer knows which of its requests were not taken, if it has [`Features::READ`].
    fn stop_reading(&mut self) {
        let peer = self.peering.peer.as_ref();
        if peer.is_some_and(|peer| peer.features.contains(Features::READ)) {
            let counters = self.peering.counters;
            self.output.put_frame(kind::GOING_AWAY, |out| {
                varint::put(out, counters.messages_received);
                varint::put(out, counters.bytes_received);
            });
        }
    }
}

impl Connection {
    /// Adds a message of this kind; `put_header` appends all of it but the payload.
    #[inline]
    fn put(
        &mut self,
        kind: u8,
        payload: &Bytes,
        put_header: impl FnOnce(&mut Vec<u8>, LinkEnds),
    ) -> Mark {
        let in_parts = payload.len() > MAX_FRAME;
        let link = self.peering.leaving(!in_parts);
        if in_parts {
            let mut header = Vec::new();
            put_header(&mut header, link);
            Mark::Parts(self.outbox.push(kind, header, payload))
        } else {
            self.pace.small_sent();
            self.output.put_frame(kind, |out| {
                out.reserve(HEADER_GUESS + payload.len());
                put_header(out, link);
                out.extend_from_slice(payload);
            });
            Mark::Written(self.end())
        }
    }

    #[cold]
    fn note_large(&mut self, call: CallId, stream: u64) {
        let to_initiator = self.peer().map(|peer| peer.node) == Some(call.initiator);
        if !to_initiator {
            self.large_relayed.push((call, stream));
        }
    }
}
