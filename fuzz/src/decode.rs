//! Decoders: what is read, is written and read again as the same.

use bytes::{Bytes, BytesMut};
use wallaby_proto::wire::{LinkEnds, Message};
use wallaby_proto::{Address, Status};

use crate::choices::Choices;
use crate::things::{alice, bob};

pub(crate) fn message(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let kind = choices.byte();
    let mut link = LinkEnds::new(alice(), bob());
    if choices.once_in(4) {
        link.previous = choices.long();
    }
    let body = Bytes::copy_from_slice(choices.rest());
    let Ok(message) = Message::decode(kind, body, link) else {
        return;
    };
    drop(format!("{message:?}"));
    let mut written = BytesMut::new();
    message.encode(&mut written, link);
    let read = Message::decode(kind, written.freeze(), link);
    assert_eq!(read.as_ref(), Ok(&message));
}

pub(crate) fn status(bytes: &[u8]) {
    if let Ok(status) = Status::from_payload(bytes) {
        drop(format!("{status} {status:?}"));
        let read = Status::from_payload(&status.to_payload());
        assert_eq!(read.as_ref(), Ok(&status));
    }
}

pub(crate) fn address(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<Address>() {
        Ok(address) => assert_eq!(address.to_string().parse(), Ok(address)),
        Err(error) => drop(error.to_string()),
    }
}
