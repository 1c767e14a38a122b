//! The protocol core allocates nothing for a call of one hop, from handle to handle, once its buffers have grown.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::server::{Outbound, ServerHalf};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Charge, Connection, ConnectionLimits, Event, Features, Hello, MethodDefinition, VERSION,
};
use wallaby_proto::wire::{Budgets, Message, MethodRef, ReplyTo, Request};
use wallaby_proto::{CallId, NodeId, Token};

use crate::counting::ALLOCATIONS;

fn node(number: u64) -> NodeId {
    NodeId::new(number).expect("not zero")
}

fn hello(node: NodeId) -> Arc<Hello> {
    let versions = (VERSION, VERSION);
    let (features, limits) = (Features::default(), ConnectionLimits::default());
    Arc::new(Hello {
        versions,
        node,
        expected: None,
        address: None,
        features,
        limits,
    })
}

fn carry(from: &mut Connection, to: &mut BytesMut) {
    let len = from.output().len();
    to.extend_from_slice(from.output());
    from.advance(len);
}

/// The next message, behind whatever concerns the connection alone.
fn receive(connection: &mut Connection, input: &mut BytesMut) -> Message {
    loop {
        match connection.handle_input(input) {
            Ok(Some(Event::Message(message))) => return message,
            Ok(Some(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_call_of_one_hop_allocates_nothing() {
    let (mut client, mut server) = (
        Connection::dial(hello(node(1)), None),
        Connection::accept(hello(node(2))),
    );
    let (mut to_client, mut to_server) = (BytesMut::new(), BytesMut::new());
    carry(&mut client, &mut to_server);
    server.handle_input(&mut to_server).expect("a hello");
    carry(&mut server, &mut to_client);
    client.handle_input(&mut to_client).expect("a hello");
    let method = MethodDefinition::new("demo.Index/lookup", "postcard", 1, 2).expect("a name");
    let mut before = 0;
    for sequence in 1..=2000 {
        if sequence == 1001 {
            before = ALLOCATIONS.get(); // buffers have grown by now
        }
        let call = CallId {
            initiator: node(1),
            sequence,
        };
        let mut initiator = Initiator::new(call, Token::new(sequence), Budgets::default());
        let mut request = Request {
            call,
            token: Token::new(sequence),
            id: initiator.send().expect("within the budget"),
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: sequence,
            traced: false,
            compressed: false,
            waited: std::time::Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::from_static(&[7; 100]),
        };
        initiator.close();
        client.send_request(&mut request, &method).expect("credit");
        carry(&mut client, &mut to_server);
        let Message::Request(mut request) = receive(&mut server, &mut to_server) else {
            panic!("a request")
        };
        let mut half: ServerHalf<()> = ServerHalf::new(&mut request);
        server.grant_request(request.payload.len());
        for message in half.respond(request.payload, None) {
            let Outbound::Response(mut response) = message else {
                panic!("a response")
            };
            response.token = None;
            server
                .send_response(&response, Charge::Free)
                .expect("not counted");
        }
        carry(&mut server, &mut to_client);
        let Message::Response(response) = receive(&mut client, &mut to_client) else {
            panic!("a response")
        };
        initiator
            .handle_response(&response)
            .expect("as the protocol says");
        assert!(initiator.is_complete());
    }
    assert_eq!(
        ALLOCATIONS.get() - before,
        0,
        "allocations in a thousand calls"
    );
}
