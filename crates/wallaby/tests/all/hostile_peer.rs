//! Peers that break the rules: they lose their connection or their message, and nobody else notices.

use std::iter::zip;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::raw::{self, Raw, hello, request, response};
use crate::common::{
    Net, all, at, client, failure, heap, load, patience, service, status, until, work,
};
use bytes::Bytes;
use tokio::net::{TcpListener, UdpSocket};
use wallaby::{
    Address, CallError, CallId, Code, ConnectError, Endpoint, Failure, Limits, Many, NodeId, One,
    Outcome, Request, RequestId,
};
use wallaby_proto::Token;
use wallaby_proto::call::records::invitation;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, Event, Hello, VERSION};
use wallaby_proto::datagram::{Gate, GateSettings};
use wallaby_proto::wire::{Message, Ping, Pong, ReplyTo, TraceReport};

pub(crate) async fn echo(net: &Net) -> Endpoint {
    net.serve(
        service()
            .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
                Ok(request.respond(what).await?)
            })
            .method(
                &work::MANY,
                |request: Request<Many<String>>, (_,)| async move {
                    request.cancelled().await;
                    Ok(())
                },
            ),
    )
    .await
}

async fn still_serves(server: &Endpoint) {
    let client = client();
    let answer = work::at(&client, at(server))
        .one("still there?".into())
        .await;
    assert_eq!(answer.expect("the server goes on"), "still there?");
}

/// A frame of this kind.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32).to_le_bytes();
    [&len[..3], &[kind], body].concat()
}

#[tokio::test]
async fn bytes_that_are_no_handshake_end_the_connection() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let hello_of = |change: fn(&mut wallaby_proto::connection::Hello)| {
            let mut hello = hello(7);
            change(&mut hello);
            let mut connection = wallaby_proto::connection::Connection::dial(hello.into(), None);
            connection.output().to_vec()
        };
        let good = hello_of(|_| {});
        let cases: [(&str, Vec<u8>, &str); 9] = [
            (
                "another protocol",
                b"GET / HTTP/1.1\r\nHost: wallaby\r\n\r\n".to_vec(),
                "frame",
            ),
            ("zeros", vec![0; 64], "frame kind"),
            (
                "the longest frame",
                [&[0xff, 0xff, 0xff, 1][..], &[0; 64]].concat(),
                "frame",
            ),
            (
                "another magic",
                frame(1, b"WLBZ0000000000000000000000"),
                "not the beginning",
            ),
            ("a short hello", frame(1, &good[4..20]), "end inside"),
            (
                "a request first",
                frame(0x10, &[1, 2, 3]),
                "before the handshake",
            ),
            (
                "a later version",
                hello_of(|hello| hello.versions = (VERSION + 1, VERSION + 2)),
                "versions",
            ),
            (
                "no room for anything",
                hello_of(|hello| hello.limits.requests = 0),
                "nothing pass",
            ),
            (
                "no node",
                {
                    let mut bytes = good.clone();
                    bytes[10..18].fill(0);
                    bytes
                },
                "node id",
            ),
        ];
        for (what, bytes, expected) in cases {
            let mut peer = Raw::connect(&at(&server), hello(1)).await;
            peer.send_bytes(&bytes).await;
            // Its own handshake is not what these bytes are, but it understands why it is refused.
            let reason = peer
                .closed()
                .await
                .unwrap_or_else(|| panic!("{what}: closed without a reason"));
            assert!(reason.contains(expected), "{what}: {reason}");
        }
        // Some just go away.
        for len in [0, 1, 4, good.len() - 1] {
            let mut peer = Raw::connect(&at(&server), hello(1)).await;
            peer.send_bytes(&good[..len]).await;
        }
        still_serves(&server).await;
        assert_eq!(server.metrics().connections_opened, 1, "only the last one");
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_no_message_end_the_connection() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let cases: [(&str, Vec<u8>, &str); 9] = [
            ("an unknown kind", frame(0x77, &[]), "0x77"),
            (
                "a second hello",
                frame(0x01, &[1; 40]),
                "after the handshake",
            ),
            ("an empty request", frame(0x10, &[]), "request"),
            (
                "a request of a method without a name",
                frame(0x10, &[1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 5]),
                "method",
            ),
            (
                "a response with unknown flags",
                frame(0x11, &[0xff, 0xff, 0x7f]),
                "not known",
            ),
            ("an empty part", frame(0x04, &[1, 100, 0x10]), "part"),
            (
                "a part of nothing known",
                frame(0x04, &[1, 2, 0x77, 9, 9]),
                "no request and no response",
            ),
            (
                "credit for ever",
                frame(0x03, &[&[0][..], &[0xff; 9], &[1]].concat()),
                "credit",
            ),
            (
                "a frame that is too long",
                vec![0xff, 0xff, 0xff, 0x10],
                "frame",
            ),
        ];
        for (number, (what, bytes, expected)) in cases.into_iter().enumerate() {
            let mut peer = Raw::dial(&at(&server), hello(100 + number as u64)).await;
            peer.send_bytes(&bytes).await;
            let reason = peer
                .closed()
                .await
                .unwrap_or_else(|| panic!("{what}: closed without a reason"));
            assert!(reason.contains(expected), "{what}: {reason}");
        }
        still_serves(&server).await;
        until(|| server.metrics().connections_ended >= 9).await;
    })
    .await;
}

/// What came before the bytes that end a connection is still handled.
#[tokio::test]
async fn a_message_before_an_error_counts() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let call = CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence: 1,
        };
        peer.connection
            .send_request(&mut request(call, &[1, b'x']), work::ONE.definition())
            .expect("there is credit");
        let good = peer.connection.output().to_vec();
        peer.send_bytes(&[good, frame(0x77, &[])].concat()).await;
        until(|| server.metrics().requests_received == 1).await;
        until(|| server.metrics().connections_ended == 1).await;
        until(|| server.load().is_idle()).await;
    })
    .await;
}

#[tokio::test]
async fn who_says_nothing_is_not_kept() {
    patience(async {
        let net = Net::tcp();
        let builder = Endpoint::builder().strangers(2, Duration::from_millis(100));
        let server = net
            .bind(builder.serve(
                service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
                    Ok(request.respond(what).await?)
                }),
            ))
            .await;
        let mut silent = Vec::new();
        for node in 1..=3 {
            silent.push(Raw::connect(&at(&server), hello(node)).await);
        }
        // There are places for two of them, and these are theirs for a while.
        let reason = silent[0].closed().await.expect("a reason");
        assert!(reason.contains("others have connected since"), "{reason}");
        for peer in &mut silent[1..] {
            let reason = peer.closed().await.expect("a reason");
            assert!(reason.contains("handshake"), "{reason}");
        }
        still_serves(&server).await;
        assert_eq!(server.metrics().strangers_dismissed, 3);
    })
    .await;
}

/// Answers must show the call's token, or come over the connection of one of its requests.
#[tokio::test]
async fn forged_answers_are_dropped_and_counted() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let initiator = net.endpoint().await;
        let call = work::at(&initiator, at(&server)).many(String::new());
        until(|| server.load() == load(1, 0)).await;

        let mut forger = Raw::dial(&at(&initiator), hello(13)).await;
        let id = call.id();
        forger
            .send_response(response(id, None, &[6, b'f', b'o', b'r', b'g', b'e', b'd']))
            .await;
        forger
            .send_response(response(id, Some(Token::new(1)), &[0]))
            .await;
        forger.send(Message::End(raw::end(id, 0, 0))).await;
        let mut foreign = raw::end(id, 0, 0);
        foreign.token = Some(Token::new(2));
        forger.send(Message::End(foreign)).await;
        until(|| initiator.metrics().forged_dropped == 4).await;
        assert_eq!(initiator.metrics().responses_received, 0);

        // Nor can it stop the call at its server.
        let mut forger = Raw::dial(&at(&server), hello(14)).await;
        let ping = Ping {
            call: id,
            token: Token::new(3),
            request: RequestId::FIRST,
            abort: true,
            children_from: 0,
            missing: Vec::new(),
            shows: false,
        };
        forger.send(Message::Ping(ping)).await;
        // It is told that nobody knows such a request, and the refusal is counted.
        let Message::Pong(pong) = forger.message().await else {
            panic!("not an answer to a ping")
        };
        assert_eq!(pong.progress, None);
        assert_eq!(server.metrics().unknown_pings, 1);
        still_serves(&server).await;
        assert_eq!(call.outcome(), None);
        assert_eq!(server.load(), load(1, 0));

        // Calls that are over or never were.
        let unknown = CallId {
            sequence: 1_000_000,
            ..id
        };
        forger.send(Message::End(raw::end(unknown, 0, 0))).await;
        let mut forger = Raw::dial(&at(&initiator), hello(15)).await;
        forger
            .send_response(response(unknown, Some(Token::new(1)), &[0]))
            .await;
        forger.send(Message::End(raw::end(unknown, 0, 0))).await;
        until(|| initiator.metrics().late_dropped == 2).await;
        // And of initiators that nobody here knows.
        let stranger = CallId {
            initiator: NodeId::new(99).expect("not zero"),
            sequence: 1,
        };
        forger
            .send_response(response(stranger, Some(Token::new(1)), &[0]))
            .await;
        until(|| initiator.metrics().undeliverable == 1).await;
        // It takes no place among the answers that wait for a way.
        assert_eq!(initiator.metrics().waited_for_routes, 0);
        drop(call);
    })
    .await;
}

/// Messages in a circle: each server passes on only what comes from farther away than where it would send it.
#[tokio::test]
async fn what_would_come_no_nearer_to_its_initiator_goes_no_further() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        // An initiator that nobody can dial, and the server through which its request comes.
        let call = CallId {
            initiator: NodeId::new(99).expect("not zero"),
            sequence: 1,
        };
        let mut near = Raw::dial(&at(&server), hello(13)).await;
        let passed_on = wallaby_proto::wire::Request {
            reply_to: ReplyTo::Relay,
            depth: 1,
            ..request(call, &[1, b'x'])
        };
        near.send_request(passed_on, work::ONE.definition()).await;
        assert_eq!(near.response().await.distance, 0, "the server's own answer");

        // What a server says that the work went on to.
        let token = Some(Token::new(4711));
        let further = RequestId {
            hop: 1,
            ..RequestId::FIRST
        };
        let pong = Pong {
            call,
            distance: 0,
            token,
            request: further,
            attempt: 0,
            announced: true,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: None,
        };
        let report = TraceReport {
            call,
            distance: 0,
            token,
            records: Vec::new(),
        };
        let all = |distance| {
            let mut response = response(call, token, &[1, b'y']);
            (response.distance, response.request) = (distance, further);
            let mut end = raw::end(call, 0, 1);
            (end.distance, end.token, end.request) = (distance, token, further);
            let mut pong = pong.clone();
            pong.distance = distance;
            let mut report = report.clone();
            report.distance = distance;
            [
                Message::Response(response),
                Message::End(end),
                Message::Pong(pong),
                Message::Trace(report),
            ]
        };
        let mut far = Raw::dial(&at(&server), hello(15)).await;
        // The request that came here was one hop away: counted from 1 that is 2.
        for (index, (near_by, farther)) in zip(all(2), all(3)).enumerate() {
            for message in [near_by.clone(), farther] {
                match message {
                    Message::Response(response) => far.send_response(response).await,
                    other => far.send(other).await,
                }
            }
            // Only the second one arrives, and it is nearer now.
            assert_eq!(near.message().await, near_by);
            let ended = index as u64 + 1;
            until(|| (server.metrics().undeliverable, server.metrics().relayed) == (ended, ended))
                .await;
        }
        still_serves(&server).await;
    })
    .await;
}

/// Pongs must show the token like any other answer, and nobody is told the token of a call that he does not know.
#[tokio::test]
async fn forged_pongs_are_dropped_and_learn_nothing() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let initiator = net.endpoint().await;
        let call = work::at(&initiator, at(&server)).many(String::new());
        until(|| server.load() == load(1, 0)).await;
        let id = call.id();
        let to_come = CallId {
            sequence: id.sequence + 1,
            ..id
        };
        let announce = |call, token| {
            Message::Pong(Pong {
                call,
                distance: 0,
                token,
                request: RequestId::FIRST,
                attempt: 0,
                announced: true,
                writing: false,
                evicted: false,
                gone: false,
                heartbeats: false,
                progress: None,
            })
        };
        let mut forger = Raw::dial(&at(&initiator), hello(13)).await;
        for (call, token) in [
            (id, None),
            (id, Some(Token::new(1))),
            (to_come, None),
            (to_come, Some(Token::new(1))),
        ] {
            forger.send(announce(call, token)).await;
        }
        until(|| initiator.metrics().forged_dropped == 4).await;
        assert_eq!(call.outcome(), None);
        drop(call);
        until(|| server.load().is_idle()).await;
        until(|| initiator.metrics().calls_aborted == 1).await;
        // The next call gets the sequence that was asked for. Only now that is over is its server told to stop.
        let answer = work::at(&initiator, at(&server)).one("x".into()).await;
        assert_eq!(answer.expect("an answer"), "x");
        // Nor is anybody told to stop, and so the token, who does not show that he knows it.
        forger.send(announce(to_come, Some(Token::new(1)))).await;
        forger.send(announce(to_come, None)).await;
        until(|| initiator.metrics().forged_dropped == 6).await;
    })
    .await;
}

/// A server that goes on working for a call that is over says that it knows the token, and is told to stop.
#[tokio::test]
async fn who_still_works_for_a_call_that_is_over_is_told_to_stop() {
    patience(async {
        let (client, mut call, mut server, request) = played(Limits::default()).await;
        let own = NodeId::new(7).expect("not zero");
        server
            .send(Message::End(raw::end(request.call, 0, 0)))
            .await;
        assert!(call.next().await.is_none());
        let mut pong = invitation(request.call, request.token, request.id, own);
        let shown = pong.token;
        pong.token = None;
        server.send(Message::Pong(pong.clone())).await;
        pong.token = shown;
        server.send(Message::Pong(pong)).await;
        let Message::Ping(stop) = server.message().await else {
            panic!("not told to stop")
        };
        assert_eq!((stop.call, stop.abort), (request.call, true));
        assert_eq!(client.metrics().forged_dropped, 1);
    })
    .await;
}

/// Somebody says that he is the initiator of others' calls, which are far behind: they go on, and more begin.
#[tokio::test]
async fn a_stolen_node_id_stops_no_call() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let victim = net.endpoint().await;
        let running = work::at(&victim, at(&server)).many(String::new());
        until(|| server.load() == load(1, 0)).await;
        let initiator = running.id().initiator;
        let stolen = CallId {
            initiator,
            sequence: 1 << 40,
        };
        let mut thief = Raw::dial(&at(&server), hello(initiator.get())).await;
        for sequence in [1 << 40, 1 << 41] {
            let call = CallId { sequence, ..stolen };
            let request = request(call, &[1, b'x']);
            thief.send_request(request, work::ONE.definition()).await;
            thief.response().await;
        }
        for _ in 0..14 {
            let answer = work::at(&victim, at(&server)).one("mine".into()).await;
            assert_eq!(answer.expect("it is answered"), "mine");
        }
        assert_eq!(running.outcome(), None);
        assert_eq!(server.load(), load(1, 0));
        // Over its own session a call that it called over is refused, and not in silence.
        let late = request(running.id(), &[1, b'x']);
        let late = wallaby_proto::wire::Request { oldest: 0, ..late };
        thief.send_request(late, work::ONE.definition()).await;
        let refused = thief.response().await;
        let status = wallaby_proto::Status::from_payload(&refused.payload);
        assert_eq!(status.expect("a status").code(), Code::Cancelled);
        assert_eq!(server.metrics().requests_dropped, 0);
        drop(running);
    })
    .await;
}

/// A call to a server that the test plays, and its request there.
async fn played(
    limits: Limits,
) -> (
    Endpoint,
    wallaby::Call<Many<String>>,
    Raw,
    wallaby_proto::wire::Request,
) {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port is free");
    let address = Address::Tcp(listener.local_addr().expect("it is bound"));
    let client = Endpoint::builder()
        .limits(limits)
        .bind()
        .await
        .expect("there is a runtime");
    let call = work::at(&client, &address).many(String::new());
    let mut server = Raw::accept(&listener, hello(7)).await;
    let request = server.request().await;
    (client, call, server, request)
}

#[tokio::test]
async fn what_comes_twice_counts_once() {
    patience(async {
        let (client, mut call, mut server, request) = played(Limits::default()).await;
        let mut first = response(request.call, None, &[1, b'a']);
        first.last = false;
        server.send_response(first.clone()).await;
        server.send_response(first).await;
        server
            .send(Message::End(raw::end(request.call, 0, 2)))
            .await;
        server
            .send(Message::End(raw::end(request.call, 0, 2)))
            .await;
        assert_eq!(call.next().await, Some(Ok("a".into())));
        until(|| client.metrics().duplicates_dropped == 1).await;
        assert_eq!(call.outcome(), None, "the other one is missing");
        let mut second = response(request.call, None, &[1, b'b']);
        second.index = 1;
        second.last = false;
        server.send_response(second).await;
        assert_eq!(all(&mut call).await, [Ok("b".into())]);
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_contradicts_itself_fails_the_call() {
    patience(async {
        let wrong = |request: &wallaby_proto::wire::Request| {
            let call = request.call;
            let last = response(call, None, &[1, b'a']);
            let more = wallaby_proto::wire::Response {
                index: 5,
                last: false,
                ..last.clone()
            };
            let child = RequestId::FIRST.path.child(0, call, request.token);
            let own = |requests, responses| Message::End(raw::end(call, requests, responses));
            [
                // Facts that change.
                vec![own(1, 0), own(2, 0)],
                // More than was announced, before and after.
                vec![own(1, 1), Message::Response(more.clone())],
                vec![Message::Response(more.clone()), own(1, 1)],
                // More requests than any call may have, and more responses.
                vec![own(u32::MAX, 0)],
                vec![Message::Response(wallaby_proto::wire::Response {
                    index: u32::MAX - 1,
                    ..more
                })],
                // Of a descendant.
                vec![own(1, 0), {
                    let mut end = raw::end(call, 0, 0);
                    end.request.path = child;
                    end.manifest = Some(raw::manifest(RequestId::FIRST.path, 3, 0));
                    Message::End(end)
                }],
            ]
        };
        for number in 0..6 {
            let (_client, mut call, mut server, request) = played(Limits::default()).await;
            for message in wrong(&request)[number].clone() {
                match message {
                    Message::Response(response) => server.send_response(response).await,
                    other => server.send(other).await,
                }
            }
            let last = all(&mut call).await.pop().expect("at least the failure");
            let failed = failure(last);
            let is_told = match number {
                3 | 4 => failed.limit_reached().is_some(),
                _ => {
                    let text = failed.to_string();
                    // Whoever reads that knows which server to look at.
                    text.contains("broke the protocol") && text.contains(" at tcp://127.0.0.1:")
                }
            };
            assert!(is_told, "{number}: {failed}");
        }
    })
    .await;
}

#[tokio::test]
async fn answers_that_cannot_be_read_are_errors_and_the_call_goes_on() {
    patience(async {
        let (_client, mut call, mut server, request) = played(Limits::default()).await;
        let base = response(request.call, None, &[9, b'x']);
        let item = |index, status, payload: &'static [u8]| wallaby_proto::wire::Response {
            index,
            status,
            last: false,
            payload: payload.into(),
            ..base.clone()
        };
        server.send_response(item(0, false, &[9, b'x'])).await;
        server.send_response(item(1, true, &[])).await;
        server
            .send_response(item(2, true, &[200, 2, b'h', b'i']))
            .await;
        server.send_response(item(3, false, &[2, b'o', b'k'])).await;
        server
            .send(Message::End(raw::end(request.call, 0, 4)))
            .await;
        let items = all(&mut call).await;
        assert!(
            matches!(
                items[0],
                Err(CallError::Decode(ref answer)) if answer.request == RequestId::FIRST
                    && answer.method.is_some() && answer.server.is_some()
            ),
            "{:?}",
            items[0]
        );
        assert!(
            matches!(items[1], Err(CallError::Decode(_))),
            "{:?}",
            items[1]
        );
        let newer = status(items[2].clone());
        assert_eq!(
            (newer.code(), newer.message()),
            (Code::Unknown, "hi"),
            "a code of a later version"
        );
        assert_eq!(items[3], Ok("ok".into()));
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 2 }));
    })
    .await;
}

/// A peer that does not care for what this side takes.
#[tokio::test]
async fn an_answer_above_the_limit_is_a_status() {
    patience(async {
        let mut limits = Limits::default();
        limits.message = 1000;
        let (_client, mut call, mut server, request) = played(limits).await;
        let mut whole = vec![0; 4];
        // The header of the same response without a payload, found by having it sent.
        let header = {
            server
                .connection
                .send_response(&response(request.call, None, &[]), Charge::Free)
                .expect("it is small");
            let output = server.connection.output().to_vec();
            server.connection.advance(output.len());
            output[4..].to_vec()
        };
        let len = (header.len() + 2000) as u32;
        whole[..3].copy_from_slice(&len.to_le_bytes()[..3]);
        whole[3] = 0x11;
        whole.extend(header);
        whole.extend(vec![0; 2000]);
        server.send_bytes(&whole).await;
        let items = all(&mut call).await;
        let refused = status(items[0].clone());
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("at most 1000"), "{refused}");
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 1 }));
    })
    .await;
}

#[tokio::test]
async fn a_request_above_the_limit_is_a_status() {
    patience(async {
        let net = Net::tcp();
        let mut limits = Limits::default();
        limits.message = 1000;
        let server =
            service().method(
                &heap::ONE,
                |request: Request<One<Bytes>, _>, (what,)| async move {
                    Ok(request.respond(what).await?)
                },
            );
        let server = net
            .bind(Endpoint::builder().limits(limits).serve(server))
            .await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let call = CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence: 1,
        };
        peer.connection
            .send_request(&mut request(call, &[]), heap::ONE.definition())
            .expect("there is credit");
        let output = peer.connection.output().to_vec();
        peer.connection.advance(output.len());
        // The frame of the method, then that of the request: the same with 2,000 bytes more.
        let method = 4 + u32::from_le_bytes([output[0], output[1], output[2], 0]) as usize;
        let mut bytes = output.clone();
        let len = (output.len() - method - 4 + 2000) as u32;
        bytes[method..method + 3].copy_from_slice(&len.to_le_bytes()[..3]);
        bytes.extend(vec![0; 2000]);
        peer.send_bytes(&bytes).await;
        let refused = peer.response().await;
        assert!(refused.status && refused.last);
        let refused = wallaby::Status::from_payload(&refused.payload).expect("a status");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("at most 1000"), "{refused}");
        assert!(server.load().is_idle());
    })
    .await;
}

/// Numbers at the end of their range.
#[tokio::test]
async fn extreme_numbers_are_no_panic() {
    patience(async {
        let net = Net::tcp();
        let server = service().method(
            &work::MANY,
            |request: Request<Many<String>>, (_,)| async move {
                let next: Address = "mem://nowhere".parse().expect("an address");
                request.reply("a".into()).await?;
                let deeper = request.delegate(next, work::many(String::new())).await;
                Ok(request
                    .respond(deeper.expect_err("too deep").to_string())
                    .await?)
            },
        );
        let server = net.serve(server).await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let call = CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence: u64::MAX,
        };
        let most = wallaby::Budgets {
            requests: u32::MAX,
            responses: u32::MAX,
            bytes: u64::MAX,
            depth: u32::MAX,
        };
        let options = wallaby_proto::wire::MessageOptions {
            budgets: Some(most),
            ..wallaby_proto::wire::MessageOptions::default()
        };
        let extreme = wallaby_proto::wire::Request {
            options: Some(Box::new(options)),
            id: RequestId {
                hop: u32::MAX,
                ..RequestId::FIRST
            },
            depth: u32::MAX,
            base: 1 << 31,
            oldest: 0,
            deadline: Some(Duration::MAX),
            ..request(call, &[0])
        };
        peer.send_request(extreme, work::MANY.definition()).await;
        let (first, second) = (peer.response().await, peer.response().await);
        assert_eq!((first.index, second.index), (1 << 31, (1 << 31) + 1));
        let text = String::from_utf8_lossy(&second.payload).into_owned();
        assert!(text.contains("at most 4096"), "{text}");
        // Without budgets that allow it, nobody goes on from there.
        let call = CallId {
            sequence: u64::MAX - 1,
            ..call
        };
        let late = wallaby_proto::wire::Request {
            base: 1 << 31,
            oldest: 0,
            ..request(call, &[0])
        };
        peer.send_request(late, work::MANY.definition()).await;
        let refused = peer.response().await;
        assert!(refused.status && refused.index == 1 << 31);
        assert_eq!(server.metrics().panics, 0);
        still_serves_many(&server).await;
    })
    .await;
}

async fn still_serves_many(server: &Endpoint) {
    let client = client();
    assert_eq!(
        all(&mut work::at(&client, at(server)).many(String::new()))
            .await
            .len(),
        2
    );
}

/// A server that is none.
#[tokio::test]
async fn a_server_of_another_protocol_is_named() {
    patience(async {
        for (answer, expected) in [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "another protocol"),
            (&b"SSH-2.0-OpenSSH_9.9\r\n"[..], "another protocol"),
            (&b""[..], "closed"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0")
                .await
                .expect("a port is free");
            let address = Address::Tcp(listener.local_addr().expect("it is bound"));
            let client = client();
            let mut call = work::at(&client, &address).one(String::new());
            let (mut stream, _) = listener.accept().await.expect("somebody dials");
            // Its words are read first, as a polite server would.
            tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 256])
                .await
                .expect("a hello");
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer)
                .await
                .expect("it is small");
            drop(stream);
            let failed = failure(call.answer().await);
            let Failure::NotSent { error, .. } = &failed else {
                panic!("another failure: {failed}")
            };
            assert!(
                matches!(
                    error,
                    ConnectError::Handshake { .. } | ConnectError::Closed { .. }
                ),
                "{error}"
            );
            assert!(error.to_string().contains(&address.to_string()), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    })
    .await;
}

/// A server of another version says so.
#[tokio::test]
async fn a_server_of_another_version_is_named() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = Address::Tcp(listener.local_addr().expect("it is bound"));
        let client = client();
        let mut call = work::at(&client, &address).one(String::new());
        let (mut stream, _) = listener.accept().await.expect("somebody dials");
        let mut later = hello(7);
        later.versions = (VERSION + 1, VERSION + 1);
        let mut connection = wallaby_proto::connection::Connection::dial(later.into(), None);
        tokio::io::AsyncWriteExt::write_all(&mut stream, connection.output())
            .await
            .expect("it is small");
        let failed = failure(call.answer().await);
        let text = failed.to_string();
        assert!(
            matches!(
                failed,
                Failure::NotSent {
                    error: ConnectError::Handshake { .. },
                    ..
                }
            ),
            "{text}"
        );
        assert!(
            text.contains("versions") && text.contains(&address.to_string()),
            "{text}"
        );
    })
    .await;
}

/// What had arrived when a write fails is delivered all the same.
#[test]
fn last_words_are_heard() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use wallaby_proto::connection::Connection;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let path = std::env::temp_dir().join(format!("wallaby-last-words-{}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a free path");
    let address: Address = format!("unix://{}", path.display())
        .parse()
        .expect("an address");
    runtime.block_on(patience(async {
        // The server answers and is gone while this thread, and with it the client, sleeps.
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody dials");
            let mut connection = Connection::accept(hello(7).into());
            let mut input = bytes::BytesMut::new();
            loop {
                let event = connection
                    .handle_input(&mut input)
                    .expect("the client is no enemy");
                let answered = match event {
                    Some(Event::Message(Message::Request(request))) => {
                        let answer = response(request.call, None, &[3, b'b', b'y', b'e']);
                        connection.send_response(&answer, Charge::Free).is_ok()
                    }
                    Some(_) => false,
                    None => {
                        let mut buffer = [0; 1024];
                        let len = stream.read(&mut buffer).expect("the client writes");
                        input.extend_from_slice(&buffer[..len]);
                        continue;
                    }
                };
                stream
                    .write_all(connection.output())
                    .expect("the client reads");
                let len = connection.output().len();
                connection.advance(len);
                if answered {
                    return;
                }
            }
        });
        let client = client();
        client.connect(&address).await.expect("it listens");
        let work = work::at(&client, &address);
        let mut call = work.many(String::new());
        server.join().expect("no panic");
        // This one cannot be written any more.
        let other = work.many(String::new());
        assert_eq!(call.next().await, Some(Ok("bye".into())));
        assert_eq!(call.next().await, None);
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
        drop(other);
    }));
    std::fs::remove_file(path).expect("it is ours");
}

/// Dials from this socket over UDP, until the server has introduced itself.
async fn greet(socket: &UdpSocket, server: &Address, hello: Hello) {
    let Address::Udp(server) = *server else {
        panic!("{server} is no address of datagrams")
    };
    let begun = Instant::now();
    let mut gate = Gate::new(Arc::new(hello), [7; 16], GateSettings::default());
    gate.dial(Duration::ZERO, server, None).expect("room");
    let (mut written, mut buffer) = (Vec::new(), vec![0; 65_536]);
    loop {
        while let Some(transmit) = gate.poll_transmit(begun.elapsed(), &mut written) {
            let datagram = std::mem::take(&mut written);
            assert_eq!(datagram.len(), transmit.len);
            let sent = socket.send_to(&datagram, transmit.to).await;
            sent.expect("it is sent");
        }
        let mut events = std::iter::from_fn(|| gate.poll_event());
        if events.any(|event| matches!(event, (_, Ok(Event::Opened(_))))) {
            return;
        }
        let (len, from) = socket.recv_from(&mut buffer).await.expect("an answer");
        let datagram = Bytes::copy_from_slice(&buffer[..len]);
        gate.handle_datagram(begun.elapsed(), from, datagram);
    }
}

#[tokio::test]
async fn who_dials_with_the_life_of_another_ends_none_of_its_connections() {
    patience(async {
        let net = Net::udp();
        let (victim, server) = (echo(&net).await, Endpoint::builder());
        let server = net.bind(server).await;
        let work = work::at(&server, at(&victim));
        work.one("before".into()).await.expect("an answer");

        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let here = Address::Udp(socket.local_addr().expect("it is bound"));
        for (number, node) in [victim.node(), NodeId::new(7).expect("not zero")]
            .into_iter()
            .enumerate()
        {
            let stranger = Hello {
                node,
                address: Some(here.clone()),
                ..hello(7)
            };
            greet(&socket, &at(&server), stranger).await;
            let opened = 2 + number as u64; // the first is the victim's
            until(|| server.metrics().connections_opened == opened).await;
        }
        work.one("after".into()).await.expect("an answer");
        let metrics = server.metrics();
        assert_eq!(
            metrics.connections_opened, 3,
            "the victim was dialled again"
        );
    })
    .await;
}
