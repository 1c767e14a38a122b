//! Requests that may come again: what they send gets the same places, whenever their handlers yield.

use bytes::Bytes;
use wallaby_proto::RequestId;
use wallaby_proto::call::server::{Outbound, ServerHalf};
use wallaby_proto::wire::{Budgets, MessageOptions, MethodRef, ReplyTo, Request};

use crate::protocol::samples::{call, path, token};

fn server(repeatable: bool) -> ServerHalf<()> {
    let options = MessageOptions {
        repeatable,
        budgets: Some(Budgets::default()),
        ..MessageOptions::default()
    };
    ServerHalf::new(&mut Request {
        call: call(),
        token: token(),
        id: RequestId {
            path: path(&[0]),
            hop: 0,
        },
        depth: 0,
        base: 0,
        reply_to: ReplyTo::Peer,
        manifest: None,
        deadline: None,
        oldest: 0,
        traced: false,
        compressed: false,
        waited: std::time::Duration::ZERO,
        options: Some(Box::new(options)),
        method: MethodRef::Number(0),
        payload: Bytes::new(),
    })
}

/// The places of what a handler sends that replies, delegates and ends; `yields` between any two of that.
fn places(repeatable: bool, yields: bool) -> Vec<String> {
    let mut server = server(repeatable);
    let mut sent = Vec::new();
    sent.extend(server.reply(Bytes::new()));
    if yields {
        sent.extend(server.flush());
    }
    sent.extend(server.delegate((), Bytes::new()));
    if yields {
        sent.extend(server.flush());
    }
    sent.push(server.finish(None));
    let place = |message: Outbound<()>| match message {
        Outbound::Response(response) => format!("{}#{}", response.request, response.index),
        Outbound::End(end) => format!("{} {:?}", end.request, end.facts),
        Outbound::Request(delegated) => delegated.id.to_string(),
    };
    sent.into_iter().map(place).collect()
}

#[test]
fn places_do_not_depend_on_when_a_handler_yields() {
    // Where that is not needed, the last delegation continues its branch and needs no message for the end.
    assert_ne!(places(false, false), places(false, true));
    assert_eq!(places(true, false), places(true, true));
    assert_eq!(places(true, false), places(false, true));
}
