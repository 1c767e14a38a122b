//! Bodies that arrive: what has come of a frame is told before the rest of it comes.
//!
//! Who passes a body on would otherwise wait for a whole frame at each hop. A frame still counts as a whole: room for
//! parts is granted anew at its end.

use bytes::{Bytes, BytesMut};

use super::bodies::{BodyEvent, Wish};
use super::{Connection, ConnectionError, Event, Granted};
use crate::wire::kind;

impl Connection {
    /// How much of a frame that has arrived so far is handled now; `None` if it has to wait for the rest.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_frame(&mut self, kind: u8, arrived: &[u8], len: usize) -> Option<usize> {
        if kind != kind::BODY || self.peer.is_none() {
            return None;
        }
        let begun = self.bodies_in.begin(arrived, len)?;
        self.arriving = 0;
        Some(begun)
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
        self.counters.bytes_received += (before - input.len()) as u64;
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
        self.refused = false;
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
