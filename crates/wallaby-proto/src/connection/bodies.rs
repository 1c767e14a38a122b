//! Bodies: bytes, as many as there are, that follow a request on its connection while it is handled already.
//!
//! Each side numbers the bodies that it sends, from 0. The request says the number; frames with that number bring the
//! bytes, and one of them the end. A body has a window of its own, which the receiver widens as its application takes
//! bytes: so a handler that is slow holds up nobody else. Who wants no more says stop, and the sender ends the body.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::carrier::event::{self, BodyEvent};
use crate::connection::output::OutputBuffer;
use crate::varint::{self, Reader};
use crate::wire::{MAX_FRAME, WireError, kind};

/// Most bodies that one side sends at a time on a connection.
pub const MAX_BODIES: usize = 64;

/// At most so much of a body waits to be sent, so that other bodies and large messages soon have their turn.
const MOST_TAKEN: usize = MAX_FRAME;

const MORE: u8 = 0;
const LAST: u8 = 1;
const BROKEN: u8 = 2;

/// Why a body does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BodyRefusal {
    /// There is no credit, or what was given before has not left yet; [`super::Event::Credit`] or writing output changes
    /// that.
    #[error("no credit for more of the body now")]
    Blocked,
    /// The receiver wants no more of it, or it has ended.
    #[error("the receiver wants no more of the body")]
    Stopped,
}

/// The bodies that this side sends.
#[derive(Debug, Default)]
pub(super) struct SendingBodies {
    next: u64,
    open: BTreeMap<u64, BodyWindow>,
}

#[derive(Debug)]
struct BodyWindow {
    /// Bytes that may still be sent.
    left: u64,
    /// Bytes of it wait in the outbox.
    queued: bool,
    /// The request travels in parts, as this stream: it goes first.
    after: Option<u64>,
}

impl SendingBodies {
    /// Whether one more may begin.
    pub(super) fn has_room(&self) -> bool {
        self.open.len() < MAX_BODIES
    }

    /// The number that the next one will have.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a body goes on.
    pub(super) fn is_open(&self, number: u64) -> bool {
        self.open.contains_key(&number)
    }

    /// The next one begins; its request may travel in parts.
    pub(super) fn open(&mut self, window: u64, after: Option<u64>) {
        let window = BodyWindow {
            left: window,
            queued: false,
            after,
        };
        self.open.insert(self.next, window);
        self.next += 1;
    }

    /// Takes what may be sent of `chunk` now; it then counts as waiting.
    pub(super) fn take(&mut self, number: u64, chunk: &mut Bytes) -> Result<Bytes, BodyRefusal> {
        self.may_take(number)?;
        let window = self.open.get_mut(&number).ok_or(BodyRefusal::Stopped)?;
        let len = usize::try_from(window.left).unwrap_or(usize::MAX);
        let taken = chunk.split_to(chunk.len().min(len).min(MOST_TAKEN));
        window.left -= taken.len() as u64;
        window.queued = true;
        Ok(taken)
    }

    /// Whether more of it may be sent now.
    pub(super) fn may_take(&self, number: u64) -> Result<(), BodyRefusal> {
        let window = self.open.get(&number).ok_or(BodyRefusal::Stopped)?;
        if window.queued || window.left == 0 || window.after.is_some() {
            return Err(BodyRefusal::Blocked);
        }
        Ok(())
    }

    /// The message of this stream has left: a body behind it may follow.
    pub(super) fn request_left(&mut self, stream: u64) {
        for window in self.open.values_mut() {
            window.after.take_if(|after| *after == stream);
        }
    }

    /// What was taken of it has left.
    pub(super) fn left(&mut self, number: u64) {
        if let Some(window) = self.open.get_mut(&number) {
            window.queued = false;
        }
    }

    /// Whether it may end now, as a `whole` or not.
    pub(super) fn may_end(&self, number: u64, whole: bool) -> Result<(), BodyRefusal> {
        let window = self.open.get(&number).ok_or(BodyRefusal::Stopped)?;
        if whole && window.queued || window.after.is_some() {
            return Err(BodyRefusal::Blocked);
        }
        Ok(())
    }

    /// It ends; whether it had not.
    pub(super) fn end(&mut self, number: u64) -> bool {
        self.open.remove(&number).is_some()
    }

    /// The receiver takes so many bytes more. One that has ended needs none.
    pub(super) fn grant(&mut self, number: u64, bytes: u64) -> Result<(), WireError> {
        if number >= self.next {
            return Err(unknown("body credit"));
        }
        if let Some(window) = self.open.get_mut(&number) {
            let left = window.left.checked_add(bytes);
            window.left = left.ok_or(WireError::Malformed {
                what: "body credit",
                why: "more than a window can hold",
            })?;
        }
        Ok(())
    }
}

/// So many bytes of a frame are told before the rest of it has come, unless fewer than these are still to come: often
/// enough that who passes them on hardly waits, seldom enough that none costs more than it brings forward.
const EARLY: usize = 4 * 1024;

/// The bodies that come.
#[derive(Debug, Default)]
pub(super) struct ReceivingBodies {
    /// The frame whose beginning was told, while its rest arrives.
    begun: Option<Begun>,
    /// Above all numbers that have come.
    next: u64,
    /// Numbers below that whose requests travel in parts and were overtaken.
    overtaken: BTreeSet<u64>,
    /// How many bytes may still come, of each that has not ended.
    open: BTreeMap<u64, Wanted>,
}

#[derive(Debug)]
struct Begun {
    number: u64,
    /// Bytes that are still to come.
    left: usize,
    /// Bytes that have come.
    told: u64,
}

#[derive(Debug)]
struct Wanted {
    left: u64,
    /// Nobody wants more; what comes until its end is dropped.
    stopped: bool,
}

impl ReceivingBodies {
    /// A request has come whose body has this number.
    pub(super) fn open(&mut self, number: u64, window: u64) -> Result<(), WireError> {
        let begun = (self.open.len() + self.overtaken.len()) as u64;
        let new = number.saturating_add(1).saturating_sub(self.next);
        if new == 0 && !self.overtaken.remove(&number) {
            let (what, why) = ("body", "a number that was used before");
            return Err(WireError::Malformed { what, why });
        }
        if new + begun > MAX_BODIES as u64 {
            return Err(WireError::TooLong {
                what: "bodies of a connection",
                len: new + begun,
                limit: MAX_BODIES,
            });
        }
        if new > 0 {
            self.overtaken.extend(self.next..number);
            self.next = number.saturating_add(1);
        }
        let wanted = Wanted {
            left: window,
            stopped: false,
        };
        self.open.insert(number, wanted);
        Ok(())
    }

    /// A frame of this length has come as far as `arrived`: returns how much of that is to be read now, as if the frame
    /// ended there. The rest of it is for [`read_on`](Self::read_on).
    pub(super) fn begin(&mut self, arrived: &[u8], len: usize) -> Option<usize> {
        let left = len - arrived.len();
        let mut reader = Reader::new(arrived);
        let number = reader.varint("body").ok()?;
        let more = reader.u8("body").ok()? == MORE;
        let told = arrived.len() - reader.position();
        if !more || told < EARLY || left < EARLY {
            return None;
        }
        self.begun = Some(Begun {
            number,
            left,
            told: told as u64,
        });
        Some(arrived.len())
    }

    /// Whether the rest of a frame is still to come.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Takes more of the frame whose beginning was told, if enough has come; returns how many bytes of the body it has if
    /// it is whole now, and what is to be told.
    pub(super) fn read_on(
        &mut self,
        input: &mut BytesMut,
    ) -> Result<(u64, Option<(u64, BodyEvent)>), WireError> {
        let Some(begun) = &mut self.begun else {
            return Ok((0, None));
        };
        let len = begun.left.min(input.len());
        let left = begun.left - len;
        if left > 0 && (len < EARLY || left < EARLY) {
            return Ok((0, None));
        }
        begun.left = left;
        begun.told += len as u64;
        let (number, told) = (begun.number, begun.told);
        if left == 0 {
            self.begun = None;
        }
        let event = self.take(number, input.split_to(len).freeze())?;
        Ok((if left == 0 { told } else { 0 }, event))
    }

    /// Reads a frame; returns how many bytes of the body it has, and what is to be told.
    pub(super) fn read(
        &mut self,
        mut frame: Bytes,
    ) -> Result<(u64, Option<(u64, BodyEvent)>), WireError> {
        let what = "body";
        let mut reader = Reader::new(&frame);
        let number = reader.varint(what)?;
        let state = reader.u8(what)?;
        let bytes = frame.split_off(reader.position());
        if state == MORE {
            let whole = self.begun.is_none();
            let len = if whole { bytes.len() as u64 } else { 0 };
            return Ok((len, self.take(number, bytes)?));
        }
        let stopped = self.wanted(number)?.stopped;
        let event = match state {
            LAST if bytes.is_empty() => BodyEvent::Whole,
            BROKEN => BodyEvent::Broken(event::told(&bytes)),
            _ => {
                let why = "neither more nor an end";
                return Err(WireError::Malformed { what, why });
            }
        };
        self.open.remove(&number);
        Ok((0, (!stopped).then_some((number, event))))
    }

    /// Bytes of a body have come; what is to be told.
    fn take(&mut self, number: u64, bytes: Bytes) -> Result<Option<(u64, BodyEvent)>, WireError> {
        let what = "body";
        let wanted = self.wanted(number)?;
        let left = wanted.left.checked_sub(bytes.len() as u64);
        wanted.left = left.ok_or(WireError::Malformed {
            what,
            why: "more than was granted",
        })?;
        if bytes.is_empty() {
            let why = "nothing in it";
            return Err(WireError::Malformed { what, why });
        }
        let event = (number, BodyEvent::Bytes(bytes));
        Ok((!wanted.stopped).then_some(event))
    }

    fn wanted(&mut self, number: u64) -> Result<&mut Wanted, WireError> {
        let wanted = self.open.get_mut(&number);
        wanted.ok_or_else(|| unknown("body"))
    }

    /// The application took so many bytes; whether more of it can come.
    pub(super) fn grant(&mut self, number: u64, bytes: u64) -> bool {
        let Some(wanted) = self.open.get_mut(&number) else {
            return false;
        };
        wanted.left = wanted.left.saturating_add(bytes);
        !wanted.stopped
    }

    /// Nobody wants more of it; whether the sender is to be told.
    pub(super) fn stop(&mut self, number: u64) -> bool {
        match self.open.get_mut(&number) {
            Some(wanted) => !std::mem::replace(&mut wanted.stopped, true),
            None => false,
        }
    }
}

fn unknown(what: &'static str) -> WireError {
    let why = "a body that was not begun, or has ended";
    WireError::Malformed { what, why }
}

/// Some of a body.
pub(super) fn put_bytes(output: &mut OutputBuffer, number: u64, bytes: &[u8]) {
    output.put_frame(kind::BODY, |out| {
        varint::put(out, number);
        out.put_u8(MORE);
        out.put_slice(bytes);
    });
}

/// The end of a body: it is whole, or why it is not.
pub(super) fn put_end(output: &mut OutputBuffer, number: u64, end: Result<(), &str>) {
    output.put_frame(kind::BODY, |out| {
        varint::put(out, number);
        match end {
            Ok(()) => out.put_u8(LAST),
            Err(reason) => {
                out.put_u8(BROKEN);
                out.put_slice(event::telling(reason));
            }
        }
    });
}

/// What a receiver says of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// So many bytes more.
    More(u64),
    /// No more at all.
    Stop,
}

const GRANT: u8 = 0;
const STOP: u8 = 1;

impl Wish {
    pub(super) fn put(self, output: &mut OutputBuffer, number: u64) {
        output.put_frame(kind::BODY_CREDIT, |out| {
            varint::put(out, number);
            match self {
                Self::More(bytes) => {
                    out.put_u8(GRANT);
                    varint::put(out, bytes);
                }
                Self::Stop => out.put_u8(STOP),
            }
        });
    }

    pub(super) fn read(body: &[u8]) -> Result<(u64, Self), WireError> {
        let what = "body credit";
        let mut reader = Reader::new(body);
        let number = reader.varint(what)?;
        let wish = match reader.u8(what)? {
            GRANT => Self::More(reader.varint(what)?),
            STOP => Self::Stop,
            _ => {
                let why = "neither credit nor stop";
                return Err(WireError::Malformed { what, why });
            }
        };
        reader.finish(what)?;
        Ok((number, wish))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1000;

    #[test]
    fn bodies_whose_requests_are_still_to_come_count_like_those_that_are_open() {
        let mut receiving = ReceivingBodies::default();
        let last = MAX_BODIES as u64 - 1;
        // Request 9 overtakes those from 0 to 8, and the last one all others.
        receiving.open(9, WINDOW).expect("room");
        receiving.open(3, WINDOW).expect("it was overtaken");
        receiving
            .open(last, WINDOW)
            .expect("as many as there may be");
        let error = receiving.open(last + 1, WINDOW).expect_err("one more");
        let expected = WireError::TooLong {
            what: "bodies of a connection",
            len: MAX_BODIES as u64 + 1,
            limit: MAX_BODIES,
        };
        assert_eq!(error, expected);
        // One that has ended makes room.
        let frame = Bytes::copy_from_slice(&[3, LAST]);
        assert_eq!(receiving.read(frame), Ok((0, Some((3, BodyEvent::Whole)))));
        receiving.open(last + 1, WINDOW).expect("room");
    }

    #[test]
    fn a_number_is_used_once_be_it_overtaken_or_not() {
        let mut receiving = ReceivingBodies::default();
        for number in [5, 2, 7] {
            receiving.open(number, WINDOW).expect("new");
        }
        for number in [5, 2, 7] {
            let error = receiving.open(number, WINDOW).expect_err("used");
            let why = "a number that was used before";
            assert_eq!(error, WireError::Malformed { what: "body", why });
        }
        for number in [0, 1, 3, 4, 6] {
            receiving.open(number, WINDOW).expect("overtaken");
        }
    }
}
