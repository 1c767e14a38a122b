//! The Wallaby protocol as pure state machines: no sockets, clocks, threads, randomness or async.
//!
//! A *call* is a tree of hops: a server that gets a request may hand the rest of the work on; whoever finishes it
//! answers the initiator directly. This crate holds the two halves of a call and the connection that carries their
//! messages. Every machine has the same shape: `handle_*` for what happened outside, verbs for what the application
//! does, and values that say what the driver must do next. Nothing calls back, nothing blocks.
//!
//! | module | what is in it |
//! |---|---|
//! | [`id`] | nodes, calls, places in the tree, tokens |
//! | [`manifest`] | what a finished branch reports |
//! | [`wire`] | the messages and their bytes |
//! | [`call::initiator`] | the client half of a call: completion |
//! | [`call::server`] | the server half: numbering, the message held back, manifests |
//! | [`call::watch`], [`call::records`] | the same for failure detection, abort and collection |
//! | [`carrier`] | what carries a peer's messages: names of methods, credit, limits |
//! | [`connection`] | a stream as one: frames, parts, bodies |
//! | [`detach`](mod@detach) | messages that wait do not keep what was read with them |
//! | [`items`] | items of one type in the body of a request |
//! | [`datagram`] | a session over UDP as one: proof of address, repair of loss, congestion |
//! | [`executor`] | which requests run, which wait, and which are refused |
//! | [`endpoint`] | all of these together: a whole endpoint without IO, and a driver for it in a page |
//! | [`mod@trace`] | the tree of hops of a call, as its initiator knows it |
//! | [`error`], [`dial`] | what can go wrong; which addresses are dialled because others say so |
//!
//! Two nodes, one connection, one call; the bytes are carried by hand:
//!
//! ```
//! use std::sync::Arc;
//! use bytes::BytesMut;
//! use wallaby_proto::call::{initiator::Initiator, server::{Outbound, ServerHalf}};
//! use wallaby_proto::carrier::Carrier;
//! use wallaby_proto::connection::{Charge, Connection, Event, Features, Hello, ConnectionLimits, MethodDefinition, VERSION};
//! use wallaby_proto::wire::{Budgets, Message, MethodRef, ReplyTo, Request};
//! use wallaby_proto::{CallId, NodeId, Token};
//!
//! let hello = |node| Arc::new(Hello {
//!     versions: (VERSION, VERSION), node, expected: None, address: None,
//!     features: Features::default(), limits: ConnectionLimits::default(),
//! });
//! let (alice, bob) = (NodeId::new(1).unwrap(), NodeId::new(2).unwrap());
//! let mut at_alice = Connection::dial(hello(alice), None);
//! let mut at_bob = Connection::accept(hello(bob));
//! let carry = |from: &mut Connection, to: &mut Connection| {
//!     let mut bytes = BytesMut::from(from.output());
//!     from.advance(bytes.len());
//!     let mut events = Vec::new();
//!     while let Some(event) = to.handle_input(&mut bytes).unwrap() {
//!         events.push(event);
//!     }
//!     events
//! };
//! carry(&mut at_alice, &mut at_bob);
//! carry(&mut at_bob, &mut at_alice);
//!
//! // Alice makes a call of one request.
//! let call = CallId { initiator: alice, sequence: 1 };
//! let mut initiator = Initiator::new(call, Token::new(42), Budgets::default());
//! let mut request = Request {
//!     call, token: Token::new(42), id: initiator.send().unwrap(), depth: 0, base: 0, reply_to: ReplyTo::Peer,
//!     manifest: None, deadline: None, oldest: 1, traced: false, compressed: false, options: None,
//!     method: MethodRef::Number(0), payload: "are you there?".into(), waited: std::time::Duration::ZERO,
//! };
//! let method = MethodDefinition::new("example.Door/knock", "raw", 0, 0).unwrap();
//! at_alice.send_request(&mut request, &method).unwrap();
//! initiator.close();
//!
//! // Bob answers.
//! let mut events = carry(&mut at_alice, &mut at_bob);
//! let Some(Event::Message(Message::Request(mut request))) = events.pop() else { panic!() };
//! let mut server: ServerHalf<()> = ServerHalf::new(&mut request);
//! for message in server.respond("come in".into(), None) {
//!     let Outbound::Response(mut response) = message else { panic!() };
//!     response.token = None; // it goes back over the connection that the request came on
//!     at_bob.send_response(&response, Charge::Free).unwrap();
//! }
//!
//! // Alice has it all.
//! let mut events = carry(&mut at_bob, &mut at_alice);
//! let Some(Event::Message(Message::Response(response))) = events.pop() else { panic!() };
//! initiator.handle_response(&response).unwrap();
//! assert_eq!(response.payload, "come in");
//! assert!(initiator.is_complete());
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

/// What is printed of these errors for debugging is their text. A `main` that returns an error, an `expect` and a test that fails
/// all print it so, for people who want to read what went wrong.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($($error:ty),+ $(,)?) => {$(
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

pub mod call;
pub mod carrier;
pub mod connection;
pub mod datagram;
pub mod detach;
pub mod dial;
pub mod endpoint;
pub mod error;
pub mod executor;
mod fifo;
pub mod id;
pub mod items;
pub mod manifest;
mod numbers;
pub mod seal;
pub mod trace;
pub mod wire;

mod address;
mod cold;
mod durable;
mod slot_map;
mod slots;
mod status;
mod varint;

pub use address::{Address, AddressError, IntoAddress, MAX_NAME, MAX_SCHEME, OtherAddress};
pub use durable::DurableId;
pub use id::{CallId, ConnId, NodeId, Path, RequestId, Token};
pub use manifest::{Facts, Manifest};
pub use status::{Code, MAX_STATUS_MESSAGE, Status};
