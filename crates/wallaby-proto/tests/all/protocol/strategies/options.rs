//! Arbitrary optional fields.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use wallaby_proto::wire::{
    Budgets, HandledBy, Heartbeats, MAX_TRACE_PARTS, MessageOptions, Metadata, PingSettings,
    TracePart, TraceRecord,
};
use wallaby_proto::{DurableId, NodeId};

use super::{address, duration, number, request_id};

pub(super) fn record() -> impl Strategy<Value = TraceRecord> {
    let times = (any::<u64>(), any::<u64>(), any::<u64>());
    (
        request_id(),
        1..u64::MAX,
        option::of(address()),
        "[a-zA-Z./]{0,80}",
        (times, vec(part(), 0..=MAX_TRACE_PARTS)),
    )
        .prop_map(
            |(request, node, server, method, ((arrived_us, queued_us, ran_us), parts))| {
                TraceRecord {
                    request,
                    node: NodeId::new(node).expect("not zero"),
                    server,
                    method,
                    arrived_us,
                    queued_us,
                    ran_us,
                    parts,
                }
            },
        )
}

fn part() -> impl Strategy<Value = TracePart> {
    ("\\PC{0,8}", any::<u64>()).prop_map(|(name, took_us)| TracePart {
        name: name.into(),
        took_us,
    })
}

pub(super) fn handled_by() -> impl Strategy<Value = HandledBy> {
    (1..u64::MAX, option::of(address()), "[a-zA-Z./]{0,80}").prop_map(|(node, server, method)| {
        HandledBy {
            node: NodeId::new(node).expect("not zero"),
            server,
            method: method.into(),
        }
    })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let texts = vec(("[a-z-]{1,20}", "\\PC{0,30}"), 0..8);
    let binary = vec(("[a-z-]{1,20}", vec(any::<u8>(), 0..30)), 0..4);
    (texts, binary).prop_map(|(texts, binary)| {
        let mut metadata = Metadata::default();
        for (key, value) in texts {
            metadata.insert(key, value).expect("small pairs");
        }
        for (key, value) in binary {
            metadata.insert_bin(key, value).expect("small pairs");
        }
        metadata
    })
}

fn budgets() -> impl Strategy<Value = Budgets> {
    (number(), number(), any::<u64>(), number()).prop_map(|(requests, responses, bytes, depth)| {
        Budgets {
            requests,
            responses,
            bytes,
            depth,
        }
    })
}

fn durable() -> impl Strategy<Value = DurableId> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (numbers, option::of(number())).prop_map(|((client, sequence, lease, acknowledged), index)| {
        let mut id = DurableId::new(client, sequence);
        (id.lease, id.acknowledged) = (lease, acknowledged);
        index.map_or(id, |index| id.child(index))
    })
}

pub(super) fn options() -> BoxedStrategy<Option<Box<MessageOptions>>> {
    let ping =
        (duration(), duration()).prop_map(|(period, timeout)| PingSettings { period, timeout });
    let heartbeats =
        (duration(), duration(), duration()).prop_map(|(every, timeout, hop)| Heartbeats {
            every,
            timeout,
            hop,
        });
    let times = (
        option::of(ping),
        option::of(budgets()),
        option::of(duration()),
        option::of(duration()),
        option::of(heartbeats),
    );
    let texts = (
        metadata(),
        vec(record(), 0..4),
        prop_oneof![Just(0), any::<u32>()],
        option::of(handled_by()),
        option::of("[a-z./]{0,20}".prop_map(Into::into)),
    );
    let bytes = |most| option::of(vec(any::<u8>(), 0..=most).prop_map(Bytes::from));
    let options = (
        times,
        texts,
        bytes(64),
        bytes(300),
        (option::of(any::<u64>()), any::<bool>(), any::<bool>()),
        option::of(durable()),
    )
        .prop_map(
            |(
                (ping, budgets, age, quiet, heartbeats),
                (metadata, trace, attempt, handled_by, method),
                seal,
                continuation,
                (body, repeatable, undelivered),
                durable,
            )| {
                let first = MessageOptions {
                    ping,
                    budgets,
                    age,
                    quiet,
                    metadata,
                    trace,
                    ..MessageOptions::default()
                };
                Box::new(MessageOptions {
                    attempt,
                    handled_by,
                    method,
                    seal,
                    continuation,
                    heartbeats,
                    body,
                    repeatable,
                    undelivered,
                    durable,
                    ..first
                })
            },
        );
    prop_oneof![3 => Just(None), 1 => options.prop_map(Some)].boxed()
}
