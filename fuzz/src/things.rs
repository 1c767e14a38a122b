//! Who and what the targets speak of.

use bytes::{Bytes, BytesMut};
use wallaby_proto::connection::{ConnectionLimits, Features, Hello, MethodDefinition, VERSION};
use wallaby_proto::wire::{
    Child, End, Heartbeats, LinkEnds, Message, MessageOptions, MethodRef, Ping, PingSettings, Pong,
    Progress, ReplyTo, Request, Response,
};
use wallaby_proto::{Address, CallId, Facts, Manifest, NodeId, Path, RequestId, Token};

use crate::choices::Choices;

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number + 1).expect("not zero")
}

pub(crate) fn alice() -> NodeId {
    node(0)
}

pub(crate) fn bob() -> NodeId {
    node(1)
}

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

/// The usual limits, or ones that are soon reached.
pub(crate) fn limits(choices: &mut Choices<'_>) -> ConnectionLimits {
    match choices.below(3) {
        0 => ConnectionLimits::default(),
        1 => ConnectionLimits {
            message: 300_000,
            requests: 4096,
            call: 2048,
            parts: 70_000,
            streams: 1,
        },
        _ => ConnectionLimits {
            message: 200_000,
            requests: 20_000,
            call: 100_000,
            parts: 1 << 20,
            streams: 2,
        },
    }
}

pub(crate) fn method(number: u32) -> MethodDefinition {
    let name = format!("fuzz.Target/m{number}");
    MethodDefinition::new(&name, "raw", 1, 2).expect("a good name")
}

/// What the tokens of an endpoint's calls are derived from.
pub(crate) const SECRET: [u8; 16] = [7; 16];

/// The token of every call that is spoken of: it is that of the first call of an endpoint with this secret.
pub(crate) fn token() -> Token {
    Token::derive(SECRET, 1)
}

pub(crate) fn call(initiator: NodeId, sequence: u64) -> CallId {
    CallId {
        initiator,
        sequence,
    }
}

pub(crate) fn address(number: u32) -> Address {
    Address::Mem(format!("{number}").into())
}

/// A place in a small tree.
pub(crate) fn path(choices: &mut Choices<'_>, call: CallId) -> Path {
    let levels = choices.below(4);
    (0..=levels).fold(Path::ROOT, |path, _| {
        path.child(choices.number() % 5, call, token())
    })
}

pub(crate) fn request_id(choices: &mut Choices<'_>, call: CallId) -> RequestId {
    let path = match choices.below(8) {
        0 => Path::ROOT,
        1 => Path::FIRST.child(choices.number(), call, token()),
        2 => path(choices, call),
        _ => Path::FIRST,
    };
    RequestId {
        path,
        hop: match choices.below(4) {
            0 => choices.number(),
            small => small - 1,
        },
    }
}

pub(crate) fn facts(choices: &mut Choices<'_>) -> Facts {
    Facts {
        requests: choices.number(),
        responses: choices.number(),
    }
}

pub(crate) fn manifest(choices: &mut Choices<'_>, call: CallId) -> Option<Manifest> {
    choices.once_in(4).then(|| Manifest {
        owner: path(choices, call),
        facts: facts(choices),
    })
}

pub(crate) fn child(choices: &mut Choices<'_>) -> Child {
    Child {
        server: address(choices.below(4)),
        node: choices
            .once_in(2)
            .then(|| node(u64::from(choices.below(4)))),
    }
}

pub(crate) fn request(choices: &mut Choices<'_>, call: CallId, id: RequestId) -> Request {
    let options = choices.once_in(3).then(|| {
        Box::new(MessageOptions {
            ping: choices.once_in(2).then(|| PingSettings {
                period: choices.time(),
                timeout: choices.time(),
            }),
            heartbeats: choices.once_in(4).then(|| Heartbeats {
                every: choices.time(),
                timeout: choices.time(),
                hop: choices.time(),
            }),
            quiet: choices.once_in(2).then(|| choices.time()),
            attempt: choices.number(),
            ..MessageOptions::default()
        })
    });
    Request {
        call,
        token: token(),
        id,
        depth: choices.number(),
        base: choices.number() % (1 << 31),
        reply_to: match choices.below(3) {
            0 => ReplyTo::Peer,
            1 => ReplyTo::Relay,
            _ => ReplyTo::At(address(choices.below(4))),
        },
        manifest: manifest(choices, call),
        deadline: None,
        oldest: u64::from(choices.number()).min(call.sequence),
        traced: false,
        compressed: false,
        waited: std::time::Duration::ZERO,
        options,
        method: MethodRef::Number(0),
        payload: Bytes::new(),
    }
}

pub(crate) fn response(choices: &mut Choices<'_>, call: CallId) -> Response {
    let index = choices.number();
    Response {
        call,
        distance: 0,
        token: Some(token()),
        request: request_id(choices, call),
        index: index.min(u32::MAX - 1),
        last: choices.once_in(3),
        manifest: manifest(choices, call),
        status: choices.once_in(5),
        compressed: false,
        options: None,
        payload: Bytes::copy_from_slice(&[0; 300][..choices.below(256) as usize]),
    }
}

pub(crate) fn end(choices: &mut Choices<'_>, call: CallId) -> End {
    End {
        call,
        distance: 0,
        token: Some(token()),
        request: request_id(choices, call),
        facts: facts(choices),
        manifest: manifest(choices, call),
        options: None,
    }
}

pub(crate) fn ping(choices: &mut Choices<'_>, call: CallId) -> Ping {
    Ping {
        call,
        token: token(),
        request: request_id(choices, call),
        abort: choices.once_in(4),
        children_from: choices.number(),
        missing: (0..choices.below(4)).map(|_| choices.number()).collect(),
        shows: choices.once_in(8),
    }
}

pub(crate) fn pong(choices: &mut Choices<'_>, call: CallId) -> Pong {
    let flags = choices.byte();
    let flag = |bit: u8| flags & 1 << bit != 0;
    let progress = flag(0).then(|| Progress {
        finished: flag(1),
        aborted: flag(2),
        base: choices.number(),
        count: choices.number(),
        children_from: choices.number().min(u32::MAX - 5), // more is no message
        children: (0..choices.below(5)).map(|_| child(choices)).collect(),
        continuation: flag(3).then(|| child(choices)),
        facts: flag(4).then(|| facts(choices)),
        manifest: manifest(choices, call),
        idle: flag(5).then(|| choices.time()),
        lost: (0..choices.below(3)).map(|_| choices.number()).collect(),
        handled_by: None,
    });
    Pong {
        call,
        distance: 0,
        token: Some(token()),
        request: request_id(choices, call),
        attempt: if flag(6) { choices.number() } else { 0 },
        announced: flag(7),
        writing: choices.once_in(4),
        evicted: choices.once_in(8),
        gone: progress.is_none() && choices.once_in(8),
        heartbeats: progress.is_some() && choices.once_in(8),
        progress,
    }
}

/// A message that no other one equals, `number` is in it, as its reader gets it: times lose some precision. `None` if it
/// would not be legal.
pub(crate) fn numbered(
    choices: &mut Choices<'_>,
    number: u64,
    sender: NodeId,
    receiver: NodeId,
    payload: usize,
) -> Option<Message> {
    let message = any_message(choices, number, sender, receiver, payload);
    let (link, mut body) = (LinkEnds::new(sender, receiver), BytesMut::new());
    message.encode(&mut body, link);
    let kind = match message {
        Message::Request(_) => 0x10,
        Message::Response(_) => 0x11,
        Message::End(_) => 0x12,
        _ => 0x13,
    };
    Message::decode(kind, body.freeze(), link).ok()
}

fn any_message(
    choices: &mut Choices<'_>,
    number: u64,
    sender: NodeId,
    receiver: NodeId,
    payload: usize,
) -> Message {
    let mut bytes = vec![0; payload];
    bytes.extend_from_slice(&number.to_be_bytes());
    let payload = Bytes::from(bytes);
    let ids = [sender, receiver, node(7)];
    let initiator = ids[choices.below(3) as usize];
    let call = call(initiator, 1 + u64::from(choices.number()));
    match choices.below(6) {
        0 | 1 => {
            let id = request_id(choices, call);
            let mut request = request(choices, call, id);
            if request.reply_to == ReplyTo::Peer && initiator != sender {
                request.reply_to = ReplyTo::Relay;
            }
            Message::Request(Request { payload, ..request })
        }
        2 | 3 => Message::Response(Response {
            distance: number as u32,
            payload,
            ..response(choices, call)
        }),
        4 => Message::Ping(Ping {
            missing: vec![number as u32, number as u32 + 1],
            shows: false,
            ..ping(choices, call)
        }),
        _ => Message::End(End {
            distance: number as u32,
            facts: Facts {
                requests: number as u32,
                responses: 1,
            },
            ..end(choices, call)
        }),
    }
}

/// How long a payload is, in bytes.
pub(crate) fn size(choices: &mut Choices<'_>) -> usize {
    let size = usize::from(choices.byte());
    match choices.below(8) {
        0 => size * 1000,
        1 => size * 64,
        _ => size,
    }
}
