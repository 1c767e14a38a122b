//! Messages that arrive: read, counted, and held against limits and credit.

use bytes::Bytes;

use super::Carrier;
use super::event::{ConnectionError, Event};
use crate::varint::Reader;
use crate::wire::{Body, Message, MethodRef, Request, RequestBegin, ResponseBegin, kind};

/// A message of this kind has come, whose size includes its header: what is told of it. If it is `in_turn`, none has overtaken it.
/// Requests must have been granted, unless they are too large to be taken; `prepare` is asked for those that say more than they must.
///
/// Requests and responses are large values, and to move them from one enum to the next would cost as much as to read them. So this
/// is inlined, and most of them are built last of all, where they go. What few have is read by functions of their own, from another
/// reader: so the first one stays in registers.
#[inline(always)]
pub(crate) fn receive<C: Carrier>(
    carrier: &mut C,
    (kind, body, size): (u8, impl Body, u64),
    in_turn: bool,
    prepare: impl FnOnce(&mut C, &mut Request) -> Result<(), ConnectionError>,
) -> Result<Option<Event>, ConnectionError> {
    let link = carrier.peering().arriving(in_turn);
    let mut reader = Reader::new(body.bytes());
    match kind {
        kind::REQUEST => {
            let begin = RequestBegin::read(&mut reader, link)?;
            if begin.is_plain() {
                let method = begin.read_method(&mut reader)?;
                let method = take_head(carrier, in_turn, begin, method)?;
                let header = reader.position();
                let payload = body.behind(header);
                let peering = carrier.peering_mut();
                if peering.is_too_large(payload.len(), size) {
                    let request = begin.request(method, payload);
                    return Ok(too_large(Message::Request(request), size));
                }
                peering.take_request(payload.len())?;
                let request = begin.request(method, payload);
                return Ok(Some(Event::Message(Message::Request(request))));
            }
            let mut rest = reader;
            let mut request = begin.request(MethodRef::Number(0), Bytes::new());
            request.read_rest(&mut rest, begin)?;
            request.method = take_head(carrier, in_turn, begin, request.method)?;
            prepare(carrier, &mut request)?;
            let header = rest.position();
            request.payload = body.behind(header);
            let peering = carrier.peering_mut();
            if peering.is_too_large(request.payload.len(), size) {
                return Ok(too_large(Message::Request(request), size));
            }
            peering.take_request(request.payload.len())?;
            Ok(Some(Event::Message(Message::Request(request))))
        }
        kind::RESPONSE => {
            let (begin, found, header) = ResponseBegin::read_header(reader, link)?;
            let payload = body.behind(header);
            let large = carrier.peering_mut().is_too_large(payload.len(), size);
            let response = begin.response(found, payload);
            if large {
                return Ok(too_large(Message::Response(response), size));
            }
            Ok(Some(Event::Message(Message::Response(response))))
        }
        kind => {
            let message = Message::read_control(kind, reader, link)?;
            let header = body.bytes().len();
            drop(body.behind(header));
            carrier.peering_mut().counters.messages_received += 1;
            Ok(Some(Event::Message(message)))
        }
    }
}

/// A request has come, of which this is the beginning and how it names its method: the number of that.
#[inline]
fn take_head(
    carrier: &mut impl Carrier,
    in_turn: bool,
    begin: RequestBegin,
    method: MethodRef,
) -> Result<MethodRef, ConnectionError> {
    let peering = carrier.peering_mut();
    let number = peering.named.find(method)?;
    if in_turn && begin.is_direct() {
        peering.last_received = begin.call.sequence;
    }
    Ok(MethodRef::Number(number))
}

#[cold]
fn too_large(message: Message, size: u64) -> Option<Event> {
    Some(Event::TooLarge {
        message: message.without_payload(),
        size,
    })
}
