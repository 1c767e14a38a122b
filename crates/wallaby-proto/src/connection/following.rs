//! Bodies that follow requests: what a connection sends of them, and what it tells of those that arrive.
//!
//! What has come of a frame is told before the rest of it comes: who passes a body on would otherwise wait for a whole frame at
//! each hop. A frame still counts as a whole: room for parts is granted anew at its end.

use bytes::{Bytes, BytesMut};

use super::Connection;
use super::bodies::{self, BodyRefusal, Wish};
use crate::carrier::event::{BodyEvent, ConnectionError, Event, Granted};
use crate::carrier::{Carrier, Mark};
use crate::wire::{Request, WireError, kind};

impl Connection {
    #[cold]
    #[inline(never)]
    pub(super) fn open_body(&mut self, mark: Mark) {
        let window = self.peer().map_or(0, |peer| peer.limits.call);
        let after = match mark {
            Mark::Parts(stream) => Some(stream),
            Mark::Written(_) => None,
        };
        self.bodies.open(window, after);
    }

    /// Sends some of a body, at most 64 KiB and as much as there is credit for: what is left in `chunk` was not accepted
    /// yet. More is accepted when that has left.
    ///
    /// # Errors
    ///
    /// If nothing of it is accepted now, or nothing will be any more.
    pub fn send_body(&mut self, number: u64, chunk: &mut Bytes) -> Result<(), BodyRefusal> {
        if chunk.is_empty() {
            return Ok(());
        }
        let taken = (self.bodies.take(number, chunk))
            .inspect_err(|refusal| self.peering.refused |= *refusal == BodyRefusal::Blocked)?;
        self.outbox.push_body(number, taken);
        Ok(())
    }

    /// Whether a body goes on: it has not ended, and its receiver wants more.
    pub fn wants_body(&self, number: u64) -> bool {
        self.bodies.is_open(number)
    }

    /// Whether [`send_body`](Self::send_body) would not be [`BodyRefusal::Blocked`] now.
    pub fn takes_body(&self, number: u64) -> bool {
        self.bodies.may_take(number) != Err(BodyRefusal::Blocked)
    }

    /// Whether [`end_body`](Self::end_body) would not be [`BodyRefusal::Blocked`] now, of a `whole` one or a broken one.
    pub fn may_end_body(&self, number: u64, whole: bool) -> bool {
        self.bodies.may_end(number, whole) != Err(BodyRefusal::Blocked)
    }

    /// Ends a body: it is whole, or why it is not. What has not left yet of one that is not whole is dropped.
    ///
    /// # Errors
    ///
    /// If what was sent of a whole one has not left yet; or the receiver wants no more, or it has ended.
    pub fn end_body(&mut self, number: u64, end: Result<(), &str>) -> Result<(), BodyRefusal> {
        self.bodies.may_end(number, end.is_ok())?;
        self.finish_body(number, end);
        Ok(())
    }

    fn finish_body(&mut self, number: u64, end: Result<(), &str>) {
        if self.bodies.end(number) {
            self.outbox.drop_body(number);
            bodies::put_end(&mut self.output, number, end);
        }
    }

    /// The application took so many bytes of a body. Call it for at least a quarter of the limit `call` at a time.
    pub fn grant_body(&mut self, number: u64, bytes: u64) {
        if self.bodies_in.grant(number, bytes) {
            Wish::More(bytes).put(&mut self.output, number);
        }
    }

    /// Nobody here wants more of a body.
    pub fn stop_body(&mut self, number: u64) {
        if self.bodies_in.stop(number) {
            Wish::Stop.put(&mut self.output, number);
        }
    }

    /// A request with options that came may have a body.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_body(&mut self, request: &Request) -> Result<(), WireError> {
        match request.body() {
            Some(number) => self.bodies_in.open(number, self.peering.me.limits.call),
            None => Ok(()),
        }
    }

    /// How much of a frame that has arrived so far is handled now; `None` if it has to wait for the rest.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_frame(&mut self, kind: u8, arrived: &[u8], len: usize) -> Option<usize> {
        if kind != kind::BODY || self.peer().is_none() {
            return None;
        }
        self.bodies_in.begin(arrived, len)
    }

    /// More may have come of a frame whose beginning was handled.
    #[cold]
    #[inline(never)]
    pub(super) fn go_on_with_body(
        &mut self,
        input: &mut BytesMut,
    ) -> Result<Option<Event>, ConnectionError> {
        let before = input.len();
        let read = self.bodies_in.read_on(input)?;
        self.peering.counters.bytes_received += (before - input.len()) as u64;
        self.arriving = if self.bodies_in.has_begun() {
            input.len()
        } else {
            0
        };
        self.note_body(read)
    }

    pub(super) fn handle_body(&mut self, body: Bytes) -> Result<Option<Event>, ConnectionError> {
        let read = self.bodies_in.read(body)?;
        self.note_body(read)
    }

    fn note_body(
        &mut self,
        (bytes, event): (u64, Option<(u64, BodyEvent)>),
    ) -> Result<Option<Event>, ConnectionError> {
        self.part_arrived(bytes)?;
        Ok(event.map(|(number, event)| Event::Body(number, event)))
    }

    pub(super) fn handle_body_credit(&mut self, body: &[u8]) -> Result<Event, ConnectionError> {
        let (number, wish) = Wish::read(body)?;
        self.peering.refused = false;
        match wish {
            Wish::More(bytes) => self.bodies.grant(number, bytes)?,
            Wish::Stop => {
                self.bodies.grant(number, 0)?;
                self.finish_body(number, Err("stopped"));
            }
        }
        Ok(Event::Credit(Granted::Body))
    }
}
