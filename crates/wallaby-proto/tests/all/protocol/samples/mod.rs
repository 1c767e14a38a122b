//! One message of every kind and notable form, as the golden vectors pin them.

mod answers;
mod controls;
mod requests;

use std::time::Duration;

use wallaby_proto::wire::{HandledBy, LinkEnds, Message, TracePart, TraceRecord};
use wallaby_proto::{Address, CallId, Facts, Manifest, NodeId, Path, RequestId, Token};

pub(crate) use self::answers::response;

/// A message, the connection it travels on, and what it shows.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) link: LinkEnds,
    pub(crate) message: Message,
}

/// The largest sequence that takes four bytes: a node that makes 3,000 calls a second reaches it after a day.
const SEQUENCE: u64 = (1 << 28) - 1;

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number).expect("not zero")
}

/// The initiator of all samples.
pub(crate) fn alice() -> NodeId {
    node(0xa11c_e000_0000_0001)
}

/// The server that got the call first.
pub(crate) fn bob() -> NodeId {
    node(0xb0b0_0000_0000_0002)
}

/// The server further on.
pub(crate) fn carol() -> NodeId {
    node(0xca01_0000_0000_0003)
}

pub(crate) fn call() -> CallId {
    CallId {
        initiator: alice(),
        sequence: SEQUENCE,
    }
}

pub(crate) fn token() -> Token {
    Token::new(0x7070_7171_7272_7373)
}

pub(crate) fn path(indexes: &[u32]) -> Path {
    indexes.iter().fold(Path::ROOT, |path, &index| {
        path.child(index, call(), token())
    })
}

pub(super) fn folded() -> Path {
    let path = path(&[0; 17]);
    assert!(path.is_folded());
    path
}

pub(super) fn link(sender: NodeId, receiver: NodeId) -> LinkEnds {
    LinkEnds::new(sender, receiver)
}

pub(super) fn ipv4() -> Address {
    "tcp://10.1.2.3:4000".parse().expect("an address")
}

pub(super) fn ipv6() -> Address {
    "tcp://[2001:db8::10:3]:4000".parse().expect("an address")
}

pub(super) fn manifest(owner: Path, requests: u32, responses: u32) -> Option<Manifest> {
    Some(Manifest {
        owner,
        facts: Facts {
            requests,
            responses,
        },
    })
}

pub(crate) fn handled_by() -> HandledBy {
    HandledBy {
        node: bob(),
        server: Some(ipv4()),
        method: "demo.Index/lookup".into(),
    }
}

pub(crate) fn record(hop: u32) -> TraceRecord {
    TraceRecord {
        request: RequestId {
            path: path(&[0]),
            hop,
        },
        node: bob(),
        server: Some(ipv4()),
        method: "demo.Index/lookup".into(),
        arrived_us: 1_780_000_000_000_000,
        queued_us: 12,
        ran_us: 340,
        parts: vec![TracePart::new("disk", Duration::from_micros(200))],
    }
}

/// All samples; a vector file is named after each.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples = requests::requests();
    samples.extend(answers::answers());
    samples.extend(controls::controls());
    samples
}
