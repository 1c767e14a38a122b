//! Requests.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::seal::ClusterKey;
use wallaby_proto::wire::{
    Budgets, Heartbeats, LinkEnds, Message, MessageOptions, Metadata, MethodRef, PingSettings,
    ReplyTo, Request,
};
use wallaby_proto::{DurableId, RequestId};

use super::{
    SEQUENCE, Sample, alice, bob, call, carol, folded, ipv4, ipv6, link, manifest, path, record,
    token,
};

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
        waited: Duration::ZERO,
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

fn every_option() -> MessageOptions {
    let mut metadata = Metadata::default();
    metadata
        .insert("traceparent", "00-4bf9-00f0-01")
        .expect("small");
    metadata.insert("user", "").expect("small");
    let bytes = Bytes::from_static(&[0xff, 0]);
    metadata.insert_bin("ticket", bytes).expect("small");
    MessageOptions {
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
        undelivered: false,
        attempt: 1,
        handled_by: None,
        method: None,
        seal: Some(Bytes::from_static(&[0x5e; 16])),
        continuation: Some(Bytes::from_static(b"stack")),
        heartbeats: Some(heartbeats()),
        body: Some(9),
        repeatable: false,
        durable: Some(durable().child(2)),
    }
}

fn heartbeats() -> Heartbeats {
    Heartbeats {
        every: Duration::from_micros(2_998_272),
        timeout: Duration::from_micros(5_996_544),
        hop: Duration::from_micros(199_936),
    }
}

fn durable() -> DurableId {
    let mut id = DurableId::new(0x00d0_00d0_00d0_00d0, 42);
    (id.lease, id.acknowledged) = (3, 40);
    id
}

fn sealed() -> Request {
    let secret: Vec<u8> = (0..16).collect();
    let key = ClusterKey::new(&secret).expect("16 bytes");
    let options = MessageOptions {
        budgets: every_option().budgets,
        ..MessageOptions::default()
    };
    let mut request = Request {
        options: Some(Box::new(options)),
        ..delegated(&[0, 3])
    };
    key.seal(&mut request, "demo.Index/lookup", carol(), None);
    request
}

pub(super) fn requests() -> Vec<Sample> {
    let first = link(alice(), bob());
    let direct = LinkEnds {
        previous: SEQUENCE - 8,
        ..first
    };
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
            "request-direct-first",
            "The first request on a connection: nothing came before it.",
            first,
            request(&[0]),
        ),
        sample(
            "request-direct-repeatable",
            "A request that may come again, and then with the number of its attempt.",
            direct,
            Request {
                options: Some(Box::new(MessageOptions {
                    repeatable: true,
                    ..MessageOptions::default()
                })),
                ..request(&[0])
            },
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
            "request-direct-deadline-oldest",
            "Both, while ten thousand calls are alive, and after a thousand that went elsewhere.",
            LinkEnds {
                previous: SEQUENCE - 1_000,
                ..first
            },
            Request {
                deadline: Some(Duration::from_micros(1_999_872)),
                oldest: SEQUENCE - 10_000,
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
            "request-direct-durable",
            "The first initial request of a call whose work has a name.",
            direct,
            Request {
                options: Some(Box::new(MessageOptions {
                    durable: Some(durable()),
                    ..MessageOptions::default()
                })),
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
            "request-delegated-heartbeats",
            "Its call wants heartbeats, and nothing was heard of it for two seconds: a third of their period is left.",
            onward,
            Request {
                options: Some(Box::new(MessageOptions {
                    quiet: Some(Duration::from_micros(1_999_872)),
                    heartbeats: Some(heartbeats()),
                    ..MessageOptions::default()
                })),
                ..delegated(&[0, 3])
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
            "request-delegated-shm",
            "The initiator is reached over shared memory.",
            onward,
            Request {
                reply_to: ReplyTo::At("shm:///tmp/a.sock".parse().expect("an address")),
                ..delegated(&[0, 3])
            },
        ),
        sample(
            "request-delegated-tls",
            "The initiator is reached by a transport that is not part of Wallaby.",
            onward,
            Request {
                reply_to: ReplyTo::At("tls://alice.example:443".parse().expect("an address")),
                ..delegated(&[0, 3])
            },
        ),
        sample(
            "request-delegated-sealed",
            "A delegated request with budgets, sealed with the key that the bytes 0 to 15 make.",
            onward,
            sealed(),
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
