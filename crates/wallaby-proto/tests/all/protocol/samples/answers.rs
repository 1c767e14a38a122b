//! Responses and ends.

use bytes::Bytes;
use wallaby_proto::wire::{End, Message, MessageOptions, Response};
use wallaby_proto::{Code, Facts, RequestId, Status};

use super::{
    Sample, alice, bob, call, carol, folded, handled_by, ipv4, link, manifest, path, record, token,
};

pub(crate) fn response(indexes: &[u32]) -> Response {
    Response {
        call: call(),
        distance: 0,
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
        distance: 0,
        token: None,
        request,
        facts,
        manifest: None,
        options: None,
    }
}

pub(super) fn answers() -> Vec<Sample> {
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
                options: Some(Box::new(MessageOptions {
                    trace: vec![record(0)],
                    ..MessageOptions::default()
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
            "response-delegated-first",
            "The first of a request that may send more says who handles it.",
            deep,
            Response {
                token: Some(token()),
                options: Some(Box::new(MessageOptions {
                    handled_by: Some(handled_by()),
                    ..MessageOptions::default()
                })),
                ..response(&[0, 3])
            },
        ),
        response_of(
            "response-delegated-undelivered",
            "In the name of a request that certainly did not reach its server.",
            deep,
            Response {
                token: Some(token()),
                last: true,
                status: true,
                options: Some(Box::new(MessageOptions {
                    undelivered: true,
                    ..MessageOptions::default()
                })),
                payload: status.to_payload(),
                ..response(&[0, 3])
            },
        ),
        response_of(
            "response-delegated-undelivered-method",
            "The same, with what the request called.",
            deep,
            Response {
                token: Some(token()),
                last: true,
                status: true,
                options: Some(Box::new(MessageOptions {
                    undelivered: true,
                    method: Some("example.Index/lookup".into()),
                    ..MessageOptions::default()
                })),
                payload: status.to_payload(),
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
            "On its way to a server that relays it: the initiator is named, and so is the distance of the request by which it goes on.",
            relayed,
            Response {
                distance: 1,
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
            "end-relayed",
            "A null response whose initiator is 300 hops away.",
            relayed,
            End {
                distance: 300,
                token: Some(token()),
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
