//! Messages as the tests send them.

use bytes::Bytes;
use wallaby_proto::connection::{ConnectionLimits, Features, Hello, MethodDefinition, VERSION};
use wallaby_proto::wire::{MethodRef, Ping, ReplyTo, Request, Response};
use wallaby_proto::{CallId, NodeId, RequestId, Token};

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number).expect("not zero")
}

/// A hello with nothing special in it.
pub(crate) fn hello(node: NodeId, limits: ConnectionLimits) -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        node,
        expected: None,
        address: None,
        features: Features::default(),
        limits,
    }
}

/// The method that all tests call.
pub(crate) fn method() -> MethodDefinition {
    named("demo.Index/lookup")
}

pub(crate) fn named(name: &str) -> MethodDefinition {
    MethodDefinition::new(name, "postcard", 0x11, 0x22).expect("a good name")
}

/// The initial request of the initiator's call with this sequence.
pub(crate) fn request(initiator: NodeId, sequence: u64, payload: Bytes) -> Request {
    Request {
        call: CallId {
            initiator,
            sequence,
        },
        token: Token::new(sequence),
        id: RequestId::FIRST,
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
        payload,
    }
}

/// Its answer.
pub(crate) fn response(initiator: NodeId, sequence: u64, payload: Bytes) -> Response {
    Response {
        call: CallId {
            initiator,
            sequence,
        },
        distance: 0,
        token: None,
        request: RequestId::FIRST,
        index: 0,
        last: true,
        manifest: None,
        status: false,
        compressed: false,
        options: None,
        payload,
    }
}

pub(crate) fn ping(initiator: NodeId, sequence: u64) -> Ping {
    Ping {
        call: CallId {
            initiator,
            sequence,
        },
        token: Token::new(sequence),
        request: RequestId::FIRST,
        abort: false,
        children_from: 0,
        missing: Vec::new(),
        shows: false,
    }
}
