//! What is written is read again, over every kind of link, alone and through connections that cut anywhere.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, ConnectionLimits, Event, SendRefusal};
use wallaby_proto::wire::{Message, MethodRef};

use crate::protocol::layout::Layout;
use crate::protocol::pair::{Pair, messages, method};
use crate::protocol::samples::{alice, bob};
use crate::protocol::strategies::{config, link, message};
use crate::protocol::vectors::{frame, kind};

proptest! {
    #![proptest_config(config(600))]

    /// Direct, delegated, relayed: the initiator is the sender, the receiver or somebody else.
    #[test]
    fn messages_survive(message in message()) {
        let mut body = BytesMut::new();
        message.encode(&mut body, link(alice(), bob()));
        let read = Message::decode(kind(&message), body.freeze(), link(alice(), bob()));
        prop_assert_eq!(read, Ok(message));
    }

    /// The description in `docs/protocol.md`, of which `layout` is the reader, fits every message.
    #[test]
    fn every_byte_is_described(message in message()) {
        let link = link(alice(), bob());
        let frame = frame(&message, link);
        let fields = Layout::of(&frame, link, true);
        let bytes: Vec<u8> = fields.into_iter().flat_map(|(bytes, _)| bytes).collect();
        prop_assert_eq!(bytes, frame);
    }

    /// Equal values have equal bytes: what decodes at all encodes to the bytes it was read from, unless they hold
    /// optional fields of a later version or a named owner where a number would do.
    #[test]
    fn bytes_are_canonical(message in message(), position in any::<prop::sample::Index>(), byte: u8) {
        let link = link(alice(), bob());
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, link);
        let position = position.index(bytes.len());
        bytes[position] = byte;
        let bytes = bytes.freeze();
        if let Ok(read) = Message::decode(kind(&message), bytes.clone(), link) {
            let mut again = BytesMut::new();
            read.encode(&mut again, link);
            prop_assert_eq!(Message::decode(kind(&message), again.freeze(), link), Ok(read));
        }
    }
}

proptest! {
    #![proptest_config(config(60))]

    /// A stream of messages arrives in order and complete, however the transport cuts it.
    #[test]
    fn streams_survive_any_cut(sent in vec(message(), 1..20), cuts in vec(1..200usize, 1..50)) {
        let mut pair = Pair::open(ConnectionLimits::default());
        let mut expected = Vec::new();
        let mut bodies = 0..;
        for message in sent {
            let message = with_number(message, &mut bodies);
            send(&mut pair, message.clone()).expect("room for a few small messages");
            expected.push(message);
        }
        let mut arrived = Vec::new();
        for most in cuts.into_iter().cycle() {
            arrived.extend(messages(pair.carry_to_bob(most).expect("legal bytes")));
            if pair.alice.is_idle() {
                break;
            }
        }
        prop_assert_eq!(arrived, expected);
        let (sent, received) = (pair.alice.counters(), pair.bob.counters());
        prop_assert_eq!(sent.messages_sent, received.messages_received);
        prop_assert_eq!(sent.bytes_sent, received.bytes_received);
    }
}

/// The numbers of a request's method and of its body are the connection's business: the method is the first that is
/// named, and bodies count up.
fn with_number(message: Message, bodies: &mut impl Iterator<Item = u64>) -> Message {
    match message {
        Message::Request(mut request) => {
            request.method = MethodRef::Number(0);
            let options = request.options.as_mut();
            if let Some(body) = options.and_then(|options| options.body.as_mut()) {
                *body = bodies.next().expect("any number of them");
            }
            Message::Request(request)
        }
        message => message,
    }
}

fn send(pair: &mut Pair, message: Message) -> Result<(), SendRefusal> {
    let sent = match message {
        Message::Request(mut request) => pair.alice.send_request(&mut request, &method()),
        Message::Response(response) => pair.alice.send_response(&response, Charge::Counted),
        message => pair.alice.send_control(message),
    };
    sent.map(drop)
}

#[test]
fn a_message_of_the_largest_legal_size_in_every_field_passes() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let request = crate::protocol::limits::largest_request();
    pair.alice
        .send_request(&mut request.clone(), &method())
        .expect("room");
    let mut arrived = Vec::new();
    while !pair.alice.is_idle() {
        arrived.extend(messages(
            pair.carry_to_bob(usize::MAX).expect("legal bytes"),
        ));
        pair.carry_to_alice(usize::MAX).expect("credit");
    }
    assert_eq!(
        arrived,
        [with_number(Message::Request(request), &mut (0..))]
    );
    assert!(matches!(
        pair.carry_to_bob(usize::MAX).as_deref(),
        Ok([] | [Event::Credit(_)])
    ));
}

#[test]
fn an_empty_body_is_no_message() {
    for kind in 0x10..=0x15 {
        assert!(Message::decode(kind, Bytes::new(), link(alice(), bob())).is_err());
    }
}
