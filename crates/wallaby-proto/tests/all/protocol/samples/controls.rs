//! Messages of the protocol itself.

use std::time::Duration;

use wallaby_proto::wire::{Child, Message, Ping, Pong, Progress, TraceReport};
use wallaby_proto::{Facts, RequestId};

use super::{
    Sample, alice, bob, call, carol, handled_by, ipv4, ipv6, link, manifest, path, record, token,
};

pub(super) fn controls() -> Vec<Sample> {
    let out = link(alice(), carol());
    let back = link(carol(), alice());
    let relayed = link(bob(), carol());
    let aside = link(carol(), bob());
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
        shows: false,
    };
    let aborting = Ping {
        abort: true,
        children_from: 256,
        missing: vec![0, 300],
        ..ping.clone()
    };
    let showing = Ping {
        shows: true,
        ..ping.clone()
    };
    let pong = Pong {
        call: call(),
        distance: 0,
        token: None,
        request: at(&[0, 3]),
        attempt: 0,
        announced: false,
        writing: false,
        evicted: false,
        gone: false,
        heartbeats: false,
        progress: None,
    };
    let running = Progress {
        finished: false,
        aborted: false,
        base: 0,
        count: 2,
        children_from: 256,
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
        idle: Some(Duration::from_micros(1500)),
        lost: vec![],
        handled_by: Some(Box::new(handled_by())),
    };
    let finished = Progress {
        finished: true,
        aborted: true,
        base: 1,
        children_from: 0,
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
        idle: None,
        lost: vec![0, 300],
        handled_by: None,
        ..running.clone()
    };
    let announced = Pong {
        token: Some(token()),
        attempt: 2,
        announced: true,
        writing: true,
        progress: Some(finished),
        ..pong.clone()
    };
    let passed_on = Pong {
        distance: 2,
        token: Some(token()),
        announced: true,
        writing: true,
        ..pong.clone()
    };
    let asked = Pong {
        progress: Some(running),
        ..pong.clone()
    };
    let heartbeat = Pong {
        announced: true,
        heartbeats: true,
        ..asked.clone()
    };
    let unknown = Pong {
        evicted: true,
        ..pong.clone()
    };
    let gone = Pong {
        distance: 2,
        token: Some(token()),
        gone: true,
        ..pong
    };
    let report = TraceReport {
        call: call(),
        distance: 0,
        token: Some(token()),
        records: vec![record(0), record(1)],
    };
    let passed_on_report = TraceReport {
        distance: 1,
        ..report.clone()
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
            "ping-shows",
            "It only shows the token, to a server that asked for it.",
            out,
            Message::Ping(showing),
        ),
        sample(
            "ping-relayed",
            "A ping on its way through a server that relays it.",
            relayed,
            Message::Ping(ping),
        ),
        sample(
            "pong-unknown",
            "The server does not know the request; it may have had to forget it.",
            back,
            Message::Pong(unknown),
        ),
        sample(
            "pong-gone",
            "A server three relays away had handed the request on, and says that who got it is gone.",
            aside,
            Message::Pong(gone),
        ),
        sample(
            "pong-running",
            "The handler runs; it has delegated twice and carries its parent's manifest.",
            back,
            Message::Pong(asked),
        ),
        sample(
            "pong-announced",
            "Unasked, about a second attempt: it was aborted, its branch went on; output is being written, two responses are lost.",
            back,
            Message::Pong(announced),
        ),
        sample(
            "pong-heartbeat",
            "Unasked, as the call wants it: the handler runs.",
            back,
            Message::Pong(heartbeat),
        ),
        sample(
            "pong-relayed",
            "A server three relays away passes a response on, and says that it is on its way.",
            aside,
            Message::Pong(passed_on),
        ),
        sample(
            "trace",
            "Trace records that found no place in another message.",
            back,
            Message::Trace(report),
        ),
        sample(
            "trace-relayed",
            "The same on its way through servers that relay it.",
            aside,
            Message::Trace(passed_on_report),
        ),
    ]
}
