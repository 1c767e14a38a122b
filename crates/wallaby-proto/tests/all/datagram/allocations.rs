//! An exchange allocates nothing at the gates, once their buffers have grown: payloads stay in the datagram that
//! brought them.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, Event};
use wallaby_proto::datagram::{Gate, GateSettings, SessionId};
use wallaby_proto::wire::Message;

use crate::counting::ALLOCATIONS;
use crate::datagram::messages::{method, node, request, response};
use crate::datagram::world::{Network, World, address};

/// Takes the next datagram of a gate into `buffer`, whose bytes then have their own place: that is the driver's.
fn carry(from: &mut Gate, now: Duration, buffer: &mut Vec<u8>) -> Bytes {
    buffer.clear();
    from.poll_transmit(now, buffer).expect("a datagram");
    let before = ALLOCATIONS.get();
    let datagram = Bytes::copy_from_slice(buffer);
    ALLOCATIONS.set(before);
    datagram
}

fn message(gate: &mut Gate) -> (SessionId, Message) {
    loop {
        match gate.poll_event().expect("an event") {
            (id, Ok(Event::Message(message))) => return (id, message),
            (_, Ok(_)) => {}
            (_, Err(ended)) => panic!("{ended}"),
        }
    }
}

#[test]
fn an_exchange_allocates_nothing() {
    let mut world = World::pair(Network::default(), GateSettings::default());
    let (at_1, _) = world.open();
    let mut now = world.now;
    let (mut client, mut server) = (
        world.gates.remove(&address(1)).expect("a gate"),
        world.gates.remove(&address(2)).expect("a gate"),
    );
    let (method, payload) = (method(), Bytes::from_static(&[7; 100]));
    let (mut buffer, mut before) = (Vec::new(), 0);
    for sequence in 1..=2000 {
        if sequence == 1001 {
            before = ALLOCATIONS.get(); // buffers have grown by now
        }
        now += Duration::from_micros(50);
        let session = client.session(at_1).expect("open");
        let mut sent = request(node(1), sequence, payload.clone());
        session.send_request(&mut sent, &method).expect("room");
        let datagram = carry(&mut client, now, &mut buffer);
        assert_eq!(client.poll_transmit(now, &mut buffer), None);
        server.handle_datagram(now, address(1), datagram);
        let (at_2, Message::Request(arrived)) = message(&mut server) else {
            panic!("a request")
        };
        let session = server.session(at_2).expect("open");
        session.grant_request(arrived.payload.len());
        let answer = response(node(1), sequence, arrived.payload);
        session
            .send_response(&answer, Charge::Free)
            .expect("not counted");
        let datagram = carry(&mut server, now, &mut buffer);
        assert_eq!(server.poll_transmit(now, &mut buffer), None);
        client.handle_datagram(now, address(2), datagram);
        let (_, Message::Response(_)) = message(&mut client) else {
            panic!("a response")
        };
    }
    let allocations = ALLOCATIONS.get() - before;
    // One a datagram, where the driver's buffer becomes shared with the payload in it.
    assert!(
        allocations <= 2000,
        "{allocations} allocations in a thousand exchanges"
    );
}
