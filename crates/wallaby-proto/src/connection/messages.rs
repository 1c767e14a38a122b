//! Messages that arrive whole: taken off the input, their payloads left where they are in memory.
//!
//! Requests and responses are built in place: they are large values, and moving them from one enum to the next would cost
//! as much as reading them. Only what few of them have is read by functions of their own, from another reader: so the first
//! one stays in registers.

use bytes::{Buf, Bytes, BytesMut};

use super::{Connection, ConnectionError, Event, too_large};
use crate::varint::Reader;
use crate::wire::{
    FRAME_HEADER, LinkEnds, Message, MethodRef, RequestBegin, ResponseBegin, ResponseBehind, kind,
};

impl Connection {
    /// The next frame, whose body has this length, is a message: takes it off `input`.
    #[inline(always)]
    pub(super) fn handle_message(
        &mut self,
        kind: u8,
        input: &mut BytesMut,
        len: usize,
    ) -> Result<Option<Event>, ConnectionError> {
        match kind {
            kind::REQUEST => self.handle_request(input, len),
            kind::RESPONSE => self.handle_response(input, len),
            kind => self.handle_control(kind, input, len),
        }
    }

    #[inline(always)]
    fn handle_request(
        &mut self,
        input: &mut BytesMut,
        len: usize,
    ) -> Result<Option<Event>, ConnectionError> {
        let mut reader = Reader::new(&input[FRAME_HEADER..FRAME_HEADER + len]);
        let previous = self.last_received;
        let link = LinkEnds {
            previous,
            ..self.link()
        };
        let begin = RequestBegin::read(&mut reader, link)?;
        if begin.is_plain() {
            let method = begin.read_method(&mut reader)?;
            self.check_request_head(begin, method)?;
            let payload = take_payload(input, reader.position(), len);
            let request = begin.request(method, payload);
            if self.is_too_large(&request.payload) {
                return Ok(Some(too_large(Message::Request(request), len as u64)));
            }
            self.take_request(request.payload.len())?;
            return Ok(Some(Event::Message(Message::Request(request))));
        }
        let mut rest = reader;
        let mut request = begin.request(MethodRef::Number(0), Bytes::new());
        request.read_rest(&mut rest, begin)?;
        self.check_request_head(begin, request.method)?;
        if request.options.is_some() {
            self.begin_body(&request)?;
        }
        if request.is_timed() {
            request.waited = self.waited();
        }
        request.payload = take_payload(input, rest.position(), len);
        if self.is_too_large(&request.payload) {
            return Ok(Some(too_large(Message::Request(request), len as u64)));
        }
        self.take_request(request.payload.len())?;
        Ok(Some(Event::Message(Message::Request(request))))
    }

    /// A request came, of which this is the beginning and the method.
    #[inline]
    fn check_request_head(
        &mut self,
        begin: RequestBegin,
        method: MethodRef,
    ) -> Result<(), ConnectionError> {
        self.check_method(method)?;
        if begin.is_direct() {
            self.last_received = begin.call.sequence;
        }
        Ok(())
    }

    #[inline(always)]
    fn handle_response(
        &mut self,
        input: &mut BytesMut,
        len: usize,
    ) -> Result<Option<Event>, ConnectionError> {
        let mut reader = Reader::new(&input[FRAME_HEADER..FRAME_HEADER + len]);
        let begin = ResponseBegin::read(&mut reader, self.link())?;
        if begin.is_plain() {
            let payload = take_payload(input, reader.position(), len);
            let response = begin.response(ResponseBehind::NONE, payload);
            if self.is_too_large(&response.payload) {
                return Ok(Some(too_large(Message::Response(response), len as u64)));
            }
            return Ok(Some(Event::Message(Message::Response(response))));
        }
        let mut rest = reader;
        let behind = begin.read_behind(&mut rest)?;
        let payload = take_payload(input, rest.position(), len);
        let response = begin.response(behind, payload);
        if self.is_too_large(&response.payload) {
            return Ok(Some(too_large(Message::Response(response), len as u64)));
        }
        Ok(Some(Event::Message(Message::Response(response))))
    }

    /// A message with this payload was read: counts it. Whether it is above the limit.
    #[inline(always)]
    fn is_too_large(&mut self, payload: &Bytes) -> bool {
        self.counters.messages_received += 1;
        payload.len() as u64 > self.me.limits.message
    }

    #[inline(never)]
    fn handle_control(
        &mut self,
        kind: u8,
        input: &mut BytesMut,
        len: usize,
    ) -> Result<Option<Event>, ConnectionError> {
        let mut reader = Reader::new(&input[FRAME_HEADER..FRAME_HEADER + len]);
        let message = Message::read_control(kind, &mut reader, self.link())?;
        input.advance(FRAME_HEADER + len);
        self.counters.messages_received += 1;
        Ok(Some(Event::Message(message)))
    }
}

/// Takes the next frame off `input`: a header of this length and a payload, which stays where it is in memory.
#[inline(always)]
fn take_payload(input: &mut BytesMut, header: usize, len: usize) -> Bytes {
    if header == len {
        input.advance(FRAME_HEADER + len);
        return Bytes::new();
    }
    split_payload(input, FRAME_HEADER + header, FRAME_HEADER + len)
}

#[inline(never)]
fn split_payload(input: &mut BytesMut, start: usize, end: usize) -> Bytes {
    let mut payload = input.split_to(end).freeze();
    payload.advance(start);
    payload
}
