//! Arbitrary legal messages.

mod options;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use wallaby_proto::wire::{
    Child, End, LinkEnds, MAX_CHILDREN, MAX_MISSING, MAX_TRACE_RECORDS, Message, MethodRef, Ping,
    Pong, Progress, ReplyTo, Request, Response, TraceReport,
};
use wallaby_proto::{
    Address, CallId, Facts, Manifest, NodeId, OtherAddress, Path, RequestId, Token,
};

use self::options::{handled_by, options, record};
use crate::protocol::samples::{alice, bob};

/// Number of cases of a property: `cases`, or as many times more as `WALLABY_CASES` says.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let times = std::env::var("WALLABY_CASES");
    let times: f64 = times.map_or(1.0, |times| times.parse().expect("a number"));
    ProptestConfig {
        cases: (f64::from(cases) * times).ceil() as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The link that all messages travel on.
pub(crate) const fn link(sender: NodeId, receiver: NodeId) -> LinkEnds {
    LinkEnds::new(sender, receiver)
}

/// Any legal message from Alice to Bob; its initiator is one of the two, or somebody else.
pub(crate) fn message() -> BoxedStrategy<Message> {
    prop_oneof![
        4 => request().boxed().prop_map(Message::Request),
        4 => response().boxed().prop_map(Message::Response),
        2 => end().boxed().prop_map(Message::End),
        1 => ping().boxed().prop_map(Message::Ping),
        2 => pong().boxed().prop_map(Message::Pong),
        1 => trace().boxed().prop_map(Message::Trace),
    ]
    .boxed()
}

/// Any number, small ones and those at the borders of varints more often.
pub(crate) fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        1..300u32,
        any::<u32>(),
        (0..32u32).prop_map(|bit| (1 << bit) - 1)
    ]
}

fn call() -> impl Strategy<Value = CallId> {
    let initiator = prop_oneof![
        Just(alice()),
        Just(bob()),
        (1..u64::MAX).prop_map(|random| NodeId::new(random).expect("not zero")),
    ];
    let sequence = prop_oneof![any::<u64>(), 0..1_000_000u64];
    (initiator, sequence).prop_map(|(initiator, sequence)| CallId {
        initiator,
        sequence,
    })
}

/// The call of a message for its initiator, and how far it still is: only who relays it is told.
fn destination() -> impl Strategy<Value = (CallId, u32)> {
    let distance = prop_oneof![Just(0), any::<u32>()];
    (call(), distance).prop_map(|(call, distance)| match call.initiator == bob() {
        true => (call, 0),
        false => (call, distance),
    })
}

fn token() -> impl Strategy<Value = Token> {
    any::<u64>().prop_map(Token::new)
}

/// Any place but the root; those of more than 16 bytes are folded.
pub(crate) fn path() -> impl Strategy<Value = Path> {
    let index = prop_oneof![8 => 0..12u32, 1 => number()];
    (vec(index, 1..=20), call(), token()).prop_map(|(indexes, call, token)| {
        indexes
            .iter()
            .fold(Path::ROOT, |path, &index| path.child(index, call, token))
    })
}

fn request_id() -> impl Strategy<Value = RequestId> {
    let first = Just(RequestId::FIRST);
    prop_oneof![1 => first, 4 => (path(), number()).prop_map(|(path, hop)| RequestId { path, hop })]
}

fn facts() -> impl Strategy<Value = Facts> {
    (number(), number()).prop_map(|(requests, responses)| Facts {
        requests,
        responses,
    })
}

/// A manifest of the branch at `place`, of one above it, or of any other.
fn manifest(place: Path) -> impl Strategy<Value = Option<Manifest>> {
    let owner = prop_oneof![
        2 => (0..20u32).prop_map(move |levels| {
            let above = place.ancestor(levels).filter(|path| !path.is_root());
            above.unwrap_or(place)
        }),
        1 => path(),
    ];
    option::of((owner, facts()).prop_map(|(owner, facts)| Manifest { owner, facts }))
}

/// A duration that two bytes hold exactly.
fn duration() -> impl Strategy<Value = Duration> {
    (0..2048u64, 0..32u32)
        .prop_map(|(mantissa, exponent)| Duration::from_micros(mantissa << exponent))
}

pub(crate) fn address() -> impl Strategy<Value = Address> {
    let socket = || {
        let v4 = (any::<[u8; 4]>(), any::<u16>())
            .prop_map(|(ip, port)| (Ipv4Addr::from(ip), port).into());
        let v6 = (any::<[u8; 16]>(), any::<u16>())
            .prop_map(|(ip, port)| (Ipv6Addr::from(ip), port).into());
        prop_oneof![v4, v6].prop_map(|socket: SocketAddr| socket)
    };
    prop_oneof![
        socket().prop_map(Address::Tcp),
        socket().prop_map(Address::Udp),
        "/[a-zé/]{0,50}".prop_map(|name| Address::Unix(name.into())),
        "[a-z]{1,107}".prop_map(|name| Address::Mem(name.into())),
        "/[a-zé/]{0,50}".prop_map(|name| Address::Shm(name.into())),
        ("x[a-z0-9+.-]{0,15}", "[a-zé:/]{1,50}").prop_map(|(scheme, text)| {
            Address::Other(OtherAddress::new(&scheme, &text).expect("an address"))
        }),
    ]
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

/// Any request that Alice may send to Bob; one of her own says so unless it names an address.
pub(crate) fn request() -> impl Strategy<Value = Request> {
    let reply_to = prop_oneof![
        Just(ReplyTo::Peer),
        Just(ReplyTo::Relay),
        address().prop_map(ReplyTo::At),
    ];
    let id = request_id().prop_flat_map(|id| (Just(id), manifest(id.path)));
    let counts = (number(), 0..=1u32 << 31, any::<u64>());
    let method = prop_oneof![
        number().prop_map(MethodRef::Number),
        any::<u64>().prop_map(MethodRef::Hash),
    ];
    let flags = (any::<bool>(), any::<bool>(), option::of(duration()));
    (
        call(),
        token(),
        reply_to,
        id,
        counts,
        flags,
        options(),
        method,
        payload(),
    )
        .prop_map(
            |(
                call,
                token,
                reply_to,
                (id, manifest),
                (depth, base, oldest),
                flags,
                options,
                method,
                payload,
            )| {
                let (traced, compressed, deadline) = flags;
                let somebody_else = reply_to == ReplyTo::Peer && call.initiator != alice();
                Request {
                    waited: std::time::Duration::ZERO,
                    call,
                    token,
                    id,
                    depth,
                    base,
                    reply_to: if somebody_else {
                        ReplyTo::Relay
                    } else {
                        reply_to
                    },
                    manifest,
                    deadline,
                    oldest: oldest.min(call.sequence),
                    traced,
                    compressed,
                    options,
                    method,
                    payload,
                }
            },
        )
}

/// Any response.
pub(crate) fn response() -> impl Strategy<Value = Response> {
    let id = request_id().prop_flat_map(|id| (Just(id), manifest(id.path)));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let index = number().prop_map(|index| index.min(u32::MAX - 1));
    (
        destination(),
        option::of(token()),
        id,
        index,
        flags,
        options(),
        payload(),
    )
        .prop_map(
            |(
                (call, distance),
                token,
                (request, manifest),
                index,
                (last, status, compressed),
                options,
                payload,
            )| Response {
                call,
                distance,
                token,
                request,
                index,
                last,
                manifest,
                status,
                compressed,
                options,
                payload,
            },
        )
}

fn end() -> impl Strategy<Value = End> {
    let id = request_id().prop_flat_map(|id| (Just(id), manifest(id.path)));
    (destination(), option::of(token()), id, facts(), options()).prop_map(
        |((call, distance), token, (request, manifest), facts, options)| End {
            call,
            distance,
            token,
            request,
            facts,
            manifest,
            options,
        },
    )
}

fn ping() -> impl Strategy<Value = Ping> {
    let missing = prop_oneof![9 => vec(number(), 0..8), 1 => vec(number(), MAX_MISSING)];
    (
        call(),
        token(),
        request_id(),
        any::<bool>(),
        number(),
        missing,
        any::<bool>(),
    )
        .prop_map(
            |(call, token, request, abort, children_from, missing, shows)| Ping {
                call,
                token,
                request,
                abort,
                children_from,
                missing,
                shows,
            },
        )
}

fn child() -> impl Strategy<Value = Child> {
    (address(), option::of(1..u64::MAX)).prop_map(|(server, node)| Child {
        server,
        node: node.and_then(NodeId::new),
    })
}

/// Boxed, as the strategies of pongs are large and all are on the stack of a test at once.
fn progress(place: Path) -> BoxedStrategy<Progress> {
    let children = prop_oneof![9 => vec(child(), 0..5), 1 => vec(child(), MAX_CHILDREN)];
    let flags = (any::<bool>(), any::<bool>(), number(), number());
    let children = (number(), children).prop_map(|(from, children)| match children.is_empty() {
        true => (0, children),
        false => (from, children),
    });
    let lost = prop_oneof![9 => vec(number(), 0..8), 1 => vec(number(), MAX_MISSING)];
    (
        flags,
        children,
        option::of(child()),
        option::of(facts()),
        manifest(place),
        option::of(duration()),
        lost,
        option::of(handled_by().prop_map(Box::new)),
    )
        .prop_map(
            |(
                flags,
                (children_from, children),
                continuation,
                facts,
                manifest,
                idle,
                lost,
                handled_by,
            )| {
                let (finished, aborted, base, count) = flags;
                Progress {
                    finished,
                    aborted,
                    base,
                    count,
                    children_from,
                    children,
                    continuation,
                    facts,
                    manifest,
                    idle,
                    lost,
                    handled_by,
                }
            },
        )
        .boxed()
}

fn pong() -> impl Strategy<Value = Pong> {
    let known = request_id().prop_flat_map(|id| (Just(id), option::of(progress(id.path))));
    (
        destination(),
        option::of(token()),
        known,
        number(),
        any::<[bool; 5]>(),
    )
        .prop_map(
            |(
                (call, distance),
                token,
                (request, progress),
                attempt,
                [announced, writing, evicted, gone, heartbeats],
            )| Pong {
                call,
                distance,
                token,
                request,
                attempt,
                announced,
                writing,
                evicted,
                gone: gone && progress.is_none(),
                heartbeats: heartbeats && progress.is_some(),
                progress,
            },
        )
}

fn trace() -> impl Strategy<Value = TraceReport> {
    let records = prop_oneof![9 => vec(record(), 0..4), 1 => vec(record(), MAX_TRACE_RECORDS)];
    (destination(), option::of(token()), records).prop_map(|((call, distance), token, records)| {
        TraceReport {
            call,
            distance,
            token,
            records,
        }
    })
}
