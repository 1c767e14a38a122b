//! One message of every kind and notable form, as the golden vectors pin them.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::wire::{
    Budgets, Child, End, Link, Message, Metadata, MethodRef, Options, Ping, PingSettings, Pong,
    Progress, ReplyTo, Request, Response, TraceRecord, TraceReport,
};
use wallaby_proto::{
    Address, CallId, Code, Facts, Manifest, NodeId, Path, RequestId, Status, Token,
};

/// A message, the connection it travels on, and what it shows.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) link: Link,
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

fn folded() -> Path {
    let path = path(&[0; 17]);
    assert!(path.is_folded());
    path
}

fn link(sender: NodeId, receiver: NodeId) -> Link {
    Link { sender, receiver }
}

fn ipv4() -> Address {
    "tcp://10.1.2.3:4000".parse().expect("an address")
}

fn ipv6() -> Address {
    "tcp://[2001:db8::10:3]:4000".parse().expect("an address")
}

fn request(indexes: &[u32]) -> Request {
    Request {
        call: call(),
        token: token(),
        id: RequestId {
            path: path(indexes),
            hop: 0,
        },
        depth: indexes.len() as u32 - 1,
        base: 0,
        reply_to: ReplyTo::Peer,
        manifest: None,
        deadline: None,
        oldest: SEQUENCE,
        traced: false,
        compressed: false,
        options: None,
        method: MethodRef::Number(5),
        payload: Bytes::from_static(b"hop"),
    }
}

/// What a server hands on: it names the initiator and its address, and the remaining time.
fn delegated(indexes: &[u32]) -> Request {
    let deadline = Some(Duration::from_micros(29_999_104));
    Request {
        reply_to: ReplyTo::At(ipv4()),
        deadline,
        oldest: SEQUENCE - 3,
        ..request(indexes)
    }
}

pub(crate) fn response(indexes: &[u32]) -> Response {
    Response {
        call: call(),
        token: None,
        request: RequestId {
            path: path(indexes),
            hop: 0,
        },
        index: 0,
        last: true,
        manifest: None,
        status: false,
        compressed: false,
        options: None,
        payload: Bytes::from_static(b"kangaroo"),
    }
}

fn end(indexes: &[u32]) -> End {
    let request = RequestId {
        path: path(indexes),
        hop: 0,
    };
    let facts = Facts {
        requests: 0,
        responses: 0,
    };
    End {
        call: call(),
        token: None,
        request,
        facts,
        manifest: None,
        options: None,
    }
}

fn manifest(owner: Path, requests: u32, responses: u32) -> Option<Manifest> {
    Some(Manifest {
        owner,
        facts: Facts {
            requests,
            responses,
        },
    })
}

fn record(hop: u32) -> TraceRecord {
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
    }
}

fn every_option() -> Options {
    let mut metadata = Metadata::default();
    metadata
        .insert("traceparent", "00-4bf9-00f0-01")
        .expect("small");
    metadata.insert("user", "").expect("small");
    Options {
        ping: Some(PingSettings {
            period: Duration::from_micros(100_032),
            timeout: Duration::from_millis(1),
        }),
        budgets: Some(Budgets {
            requests: 100,
            responses: 1000,
            bytes: 1 << 20,
            depth: 12,
        }),
        age: Some(Duration::from_micros(2047)),
        quiet: Some(Duration::from_micros(4096)),
        metadata,
        trace: vec![record(0)],
        attempt: 1,
        seal: Some(Bytes::from_static(&[0x5e; 16])),
        continuation: Some(Bytes::from_static(b"stack")),
        stream: Some(9),
    }
}

/// All samples; a vector file is named after each.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples = requests();
    samples.extend(answers());
    samples.extend(controls());
    samples
}

fn requests() -> Vec<Sample> {
    let direct = link(alice(), bob());
    let onward = link(bob(), carol());
    let sample = |name, about, link, request| Sample {
        name,
        about,
        link,
        message: Message::Request(request),
    };
    vec![
        sample(
            "request-direct",
            "What a client sends for a call of one hop: nothing that the handshake told.",
            direct,
            request(&[0]),
        ),
        sample(
            "request-direct-oldest",
            "The same while older calls are alive.",
            direct,
            Request {
                oldest: SEQUENCE - 100,
                ..request(&[0])
            },
        ),
        sample(
            "request-direct-deadline",
            "The same with a deadline of two seconds, rounded down to what two bytes can say.",
            direct,
            Request {
                deadline: Some(Duration::from_micros(1_999_872)),
                ..request(&[0])
            },
        ),
        sample(
            "request-direct-second",
            "The second initial request of a call: it states its place.",
            direct,
            request(&[1]),
        ),
        sample(
            "request-direct-traced",
            "A traced call with a compressed payload.",
            direct,
            Request {
                traced: true,
                compressed: true,
                ..request(&[0])
            },
        ),
        sample(
            "request-direct-hashed",
            "The method by its hash, as datagrams name it.",
            direct,
            Request {
                method: MethodRef::Hash(0x0123_4567_89ab_cdef),
                ..request(&[0])
            },
        ),
        sample(
            "request-direct-options",
            "Every optional field, in the order of their tags.",
            direct,
            Request {
                options: Some(Box::new(every_option())),
                ..request(&[0])
            },
        ),
        sample(
            "request-delegated-ipv4",
            "What a server hands on: the initiator is named, and where it listens.",
            onward,
            delegated(&[0, 3]),
        ),
        sample(
            "request-delegated-ipv4-manifest",
            "The last of its parent's seven delegations: it carries the parent's manifest.",
            onward,
            Request {
                manifest: manifest(path(&[0]), 7, 2),
                ..delegated(&[0, 6])
            },
        ),
        sample(
            "request-delegated-ipv6",
            "The initiator listens on IPv6.",
            onward,
            Request {
                reply_to: ReplyTo::At(ipv6()),
                ..delegated(&[0, 3])
            },
        ),
        sample(
            "request-delegated-folded",
            "Too deep for a literal path: a digest stands for it.",
            onward,
            Request {
                id: RequestId {
                    path: folded(),
                    hop: 0,
                },
                ..delegated(&[0; 17])
            },
        ),
        sample(
            "request-delegated-folded-manifest",
            "A folded path cannot be traced upwards, so the manifest names its owner in full.",
            onward,
            Request {
                manifest: manifest(path(&[0; 16]), 7, 2),
                ..delegated(&[0; 17])
            },
        ),
        sample(
            "request-delegated-relay",
            "The initiator cannot be dialled: answers go back the way the request came.",
            onward,
            Request {
                reply_to: ReplyTo::Relay,
                ..delegated(&[0, 3])
            },
        ),
        sample(
            "request-delegated-unix",
            "The initiator listens on a unix socket.",
            onward,
            Request {
                reply_to: ReplyTo::At("unix:///tmp/a.sock".parse().expect("an address")),
                ..delegated(&[0, 3])
            },
        ),
        sample(
            "request-continued",
            "A single delegation goes on with its branch: hop 2, after four replies by the hops before.",
            onward,
            Request {
                id: RequestId {
                    path: path(&[0]),
                    hop: 2,
                },
                depth: 2,
                base: 4,
                ..delegated(&[0])
            },
        ),
    ]
}

fn answers() -> Vec<Sample> {
    let back = link(bob(), alice());
    let deep = link(carol(), alice());
    let relayed = link(carol(), bob());
    let response_of = |name, about, link, response| Sample {
        name,
        about,
        link,
        message: Message::Response(response),
    };
    let end_of = |name, about, link, end| Sample {
        name,
        about,
        link,
        message: Message::End(end),
    };
    let status = Status::new(Code::NotFound, "no such document").by(Some(&ipv4()));
    vec![
        response_of(
            "response-direct",
            "The one answer to a call of one hop, back over the same connection.",
            back,
            response(&[0]),
        ),
        response_of(
            "response-direct-more",
            "The third of several answers; more follow.",
            back,
            Response {
                index: 2,
                last: false,
                ..response(&[0])
            },
        ),
        response_of(
            "response-direct-manifest",
            "The last message of a branch that also delegated three times: its own manifest.",
            back,
            Response {
                index: 4,
                last: false,
                manifest: manifest(path(&[0]), 3, 5),
                ..response(&[0])
            },
        ),
        response_of(
            "response-direct-status",
            "An error instead of an answer.",
            back,
            Response {
                status: true,
                payload: status.to_payload(),
                ..response(&[0])
            },
        ),
        response_of(
            "response-direct-traced",
            "An answer of a traced call tells how its hop went.",
            back,
            Response {
                options: Some(Box::new(Options {
                    trace: vec![record(0)],
                    ..Options::default()
                })),
                compressed: true,
                ..response(&[0])
            },
        ),
        response_of(
            "response-delegated",
            "From deep in the tree: it shows the token and its place.",
            deep,
            Response {
                token: Some(token()),
                ..response(&[0, 3])
            },
        ),
        response_of(
            "response-delegated-manifest",
            "The same with its grandparent's manifest.",
            deep,
            Response {
                token: Some(token()),
                manifest: manifest(path(&[0]), 7, 2),
                ..response(&[0, 6, 1])
            },
        ),
        response_of(
            "response-delegated-folded",
            "From a place whose path is folded, with the manifest of a parent whose path is, too.",
            deep,
            Response {
                token: Some(token()),
                request: RequestId {
                    path: path(&[0; 18]),
                    hop: 0,
                },
                manifest: manifest(folded(), 1, 2),
                ..response(&[0])
            },
        ),
        response_of(
            "response-continued",
            "From the third hop of a branch, after four answers by the hops before.",
            deep,
            Response {
                token: Some(token()),
                request: RequestId {
                    path: path(&[0]),
                    hop: 2,
                },
                index: 4,
                ..response(&[0])
            },
        ),
        response_of(
            "response-relayed",
            "On its way through a server that relays it: the initiator is named.",
            relayed,
            Response {
                token: Some(token()),
                ..response(&[0, 3])
            },
        ),
        end_of(
            "end-null",
            "A null response: the branch ended and sent nothing.",
            back,
            end(&[0]),
        ),
        end_of(
            "end-delegated-manifest",
            "A null response deep in the tree that takes its grandparent's manifest along.",
            deep,
            End {
                token: Some(token()),
                manifest: manifest(path(&[0]), 7, 2),
                ..end(&[0, 6, 1])
            },
        ),
        end_of(
            "end-facts",
            "The last output had left before it was known to be the last: the facts follow alone.",
            back,
            End {
                facts: Facts {
                    requests: 3,
                    responses: 300,
                },
                ..end(&[0])
            },
        ),
    ]
}

fn controls() -> Vec<Sample> {
    let out = link(alice(), carol());
    let back = link(carol(), alice());
    let relayed = link(bob(), carol());
    let at = |indexes: &[u32]| RequestId {
        path: path(indexes),
        hop: 0,
    };
    let ping = Ping {
        call: call(),
        token: token(),
        request: at(&[0, 3]),
        abort: false,
        children_from: 0,
        missing: vec![],
    };
    let aborting = Ping {
        abort: true,
        children_from: 256,
        missing: vec![0, 300],
        ..ping.clone()
    };
    let pong = Pong {
        call: call(),
        token: None,
        request: at(&[0, 3]),
        announced: false,
        writing: false,
        progress: None,
    };
    let running = Progress {
        finished: false,
        aborted: false,
        base: 0,
        count: 2,
        children: vec![
            Child {
                server: ipv4(),
                node: Some(bob()),
            },
            Child {
                server: ipv6(),
                node: None,
            },
        ],
        continuation: None,
        facts: None,
        manifest: manifest(path(&[0]), 7, 2),
    };
    let finished = Progress {
        finished: true,
        aborted: true,
        base: 1,
        children: vec![],
        continuation: Some(Child {
            server: ipv4(),
            node: None,
        }),
        facts: Some(Facts {
            requests: 1,
            responses: 2,
        }),
        manifest: None,
        ..running.clone()
    };
    let announced = Pong {
        token: Some(token()),
        announced: true,
        writing: true,
        progress: Some(finished),
        ..pong.clone()
    };
    let asked = Pong {
        progress: Some(running),
        ..pong.clone()
    };
    let report = TraceReport {
        call: call(),
        token: Some(token()),
        records: vec![record(0), record(1)],
    };
    let sample = |name, about, link, message| Sample {
        name,
        about,
        link,
        message,
    };
    vec![
        sample(
            "ping",
            "The initiator asks a server about a request.",
            out,
            Message::Ping(ping.clone()),
        ),
        sample(
            "ping-abort",
            "It aborts one, asks for children from 256 on and for two missing responses.",
            out,
            Message::Ping(aborting),
        ),
        sample(
            "ping-relayed",
            "A ping on its way through a server that relays it.",
            relayed,
            Message::Ping(ping),
        ),
        sample(
            "pong-unknown",
            "The server does not know the request.",
            back,
            Message::Pong(pong),
        ),
        sample(
            "pong-running",
            "The handler runs; it has delegated twice and carries its parent's manifest.",
            back,
            Message::Pong(asked),
        ),
        sample(
            "pong-announced",
            "Unasked: the request was aborted and its branch went on; output is still being written.",
            back,
            Message::Pong(announced),
        ),
        sample(
            "trace",
            "Trace records that found no place in another message.",
            back,
            Message::Trace(report),
        ),
    ]
}
