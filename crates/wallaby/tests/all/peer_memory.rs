//! What hostile peers can make an endpoint hold: requests and answers beyond credit, large messages that never end, and
//! output that nobody reads.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::raw::{Raw, end, hello, request, response};
use crate::common::{Gate, Net, all, at, client, failure, patience, service, until, work};
use bytes::{Bytes, BytesMut};
use tokio::net::TcpListener;
use wallaby::{
    Address, CallId, Endpoint, ExecutorConfig, Failure, FailureKind, LimitReached, Limits, Many,
    MethodDefinition, NodeId, One, PartialLimits, Request, Schedule, Violation,
};
use wallaby_proto::Token;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, Event};
use wallaby_proto::wire::{Message, MessageOptions, ReplyTo};

/// Kinds of frames.
const CREDIT: u8 = 0x03;
const PART: u8 = 0x04;
const PROBE: u8 = 0x06;

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32).to_le_bytes();
    [&len[..3], &[kind], body].concat()
}

fn call(sequence: u64) -> CallId {
    CallId {
        initiator: NodeId::new(1).expect("not zero"),
        sequence,
    }
}

/// A text of 900 bytes, encoded.
fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| [&[0x84, 7][..], &[b'x'; 900]].concat())
}

fn one() -> MethodDefinition {
    MethodDefinition::new(work::ONE.name(), "postcard", 0, 0).expect("a good name")
}

async fn still_serves(server: &Endpoint) {
    let client = client();
    let answer = work::at(&client, at(server)).one("still there?".into());
    assert_eq!(answer.await.expect("the server goes on"), "still there?");
}

/// A peer that has granted itself as much as it likes.
async fn greedy(server: &Endpoint) -> Raw {
    let mut raw = Raw::dial(&at(server), hello(1)).await;
    for window in [0, 1] {
        let much = [&[window][..], &[0xff; 5], &[1]].concat();
        let mut credit = BytesMut::from(&frame(CREDIT, &much)[..]);
        let granted = raw.connection.handle_input(&mut credit);
        assert!(matches!(granted, Ok(Some(Event::Credit(_)))), "{granted:?}");
    }
    raw
}

fn is_overdrawn(failure: &Failure) -> bool {
    matches!(failure, Failure::Lost(loss) if loss.kind == FailureKind::Violation(Violation::Overdrawn))
}

#[tokio::test]
async fn requests_beyond_the_window_close_the_connection() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let pass = gate.clone();
        let serve = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let pass = pass.clone();
            async move {
                pass.pass().await;
                Ok(request.respond(what).await?)
            }
        });
        let mut limits = Limits::default();
        limits.requests = 10_000;
        let builder = Endpoint::builder()
            .limits(limits)
            .executor(ExecutorConfig {
                concurrency: 1,
                queue: 10_000,
                schedule: Schedule::Fifo,
            })
            .serve(serve);
        let server = net.bind(builder).await;
        let mut peer = greedy(&server).await;
        // Each costs 902 + 64 bytes of the window; it may be overdrawn by a message of 64 KiB.
        let most = (10_000 + 65_536 + 64) / 966;
        for sequence in 1..=most + 1 {
            let mut sent = request(call(sequence), text());
            sent.oldest = 1; // all of them live
            let accepted = peer.connection.send_request(&mut sent, &one());
            accepted.expect("it has granted that to itself");
            peer.flush().await;
        }
        let reason = peer.closed().await.expect("it is told why");
        assert!(
            reason.contains("more requests than it was granted"),
            "{reason}"
        );
        assert!(server.metrics().requests_received <= most);
        gate.open(1000);
        still_serves(&server).await;
    })
    .await;
}

/// A call to a server that the test plays, and its request there. The client listens, too.
async fn played(
    limits: Limits,
) -> (
    Endpoint,
    wallaby::Call<Many<String>>,
    Raw,
    wallaby_proto::wire::Request,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = Address::Tcp(listener.local_addr().expect("it is bound"));
    let client = Endpoint::builder().limits(limits);
    let client = client.listen("tcp://127.0.0.1:0").bind().await;
    let client = client.expect("there is a runtime");
    let call = work::at(&client, &address).many(String::new());
    let mut server = Raw::accept(&listener, hello(7)).await;
    let request = server.request().await;
    (client, call, server, request)
}

fn small() -> Limits {
    let mut limits = Limits::default();
    limits.call = 10_000;
    limits.message = 5_000;
    limits
}

#[tokio::test]
async fn answers_beyond_credit_fail_the_call_and_close_the_connection() {
    patience(async {
        let (client, mut call, mut server, request) = played(small()).await;
        // Window, one message, and what need not be counted of one request.
        let most = (10_000 + 5_064 + 8_192) / 966;
        for index in 0..=most {
            let mut answer = response(request.call, None, text());
            answer.last = false;
            answer.index = index;
            server.send_response(answer).await;
        }
        let reason = server.closed().await.expect("it is told why");
        assert!(reason.contains("more answers of a call"), "{reason}");
        let mut items = all(&mut call).await;
        let error = failure(items.pop().expect("an error"));
        assert!(is_overdrawn(&error), "{error}");
        assert!(items.len() <= most as usize);
        until(|| client.metrics().connections_ended == 1).await;
    })
    .await;
}

/// Servers that pass answers on keep those for which there is no credit. While they do they say so, and a call that is given
/// up would never be over.
#[tokio::test]
async fn what_comes_of_a_call_that_was_given_up_is_granted_anew() {
    patience(async {
        let (_client, call, mut server, request) = played(small()).await;
        let mut index = 0;
        let mut fill = async |server: &mut Raw| {
            let before = index;
            while server.connection.takes_responses(request.call) {
                let mut answer = response(request.call, None, text());
                (answer.last, answer.index) = (false, index);
                (server.connection.send_response(&answer, Charge::Counted))
                    .expect("there is credit");
                index += 1;
            }
            server.flush().await;
            index - before
        };
        assert!(fill(&mut server).await >= 10_000 / 966);
        drop(call);
        for _ in 0..5 {
            while !server.connection.takes_responses(request.call) {
                server.event().await.expect("it is granted");
            }
            assert!(fill(&mut server).await > 0);
        }
    })
    .await;
}

#[tokio::test]
async fn who_connects_again_and_again_fails_the_call() {
    patience(async {
        let (client, mut call, _server, request) = played(small()).await;
        let address = at(&client);
        let (each, mut came, mut connections) = (10_000 / 966, 0, 0);
        while client.metrics().responses_received == came {
            let mut raw = Raw::dial(&address, hello(7)).await;
            for _ in 0..each {
                let mut answer = response(request.call, Some(request.token), text());
                answer.last = false;
                answer.index = came as u32;
                raw.send_response(answer).await;
                came += 1;
            }
            drop(raw);
            connections += 1;
            until(|| client.metrics().connections_ended == connections).await;
        }
        // Four times what one connection may bring, and what is not looked at yet.
        let one = (10_000 + 5_064 + 8_192) / 966;
        assert!(came > 4 * one && came <= 9 * one, "{came} answers");
        let error = failure(all(&mut call).await.pop().expect("an error"));
        assert!(is_overdrawn(&error), "{error}");
    })
    .await;
}

#[tokio::test]
async fn calls_that_are_said_to_be_large_have_only_so_much_room() {
    patience(async {
        let mut limits = small();
        limits.branches = 10_000;
        let (_client, mut call, mut server, request) = played(limits).await;
        let large = end(request.call, 65_000, 0);
        server.send(Message::End(large)).await;
        let error = failure(all(&mut call).await.pop().expect("an error"));
        let limit = 10_000;
        let reached = LimitReached::Branches { limit };
        assert_eq!(error.limit_reached(), Some(reached), "{error}");
    })
    .await;
}

#[tokio::test]
async fn who_takes_its_answers_is_sent_any_number() {
    patience(async {
        let net = Net::tcp();
        let serve = service().method(
            &work::MANY,
            |request: Request<Many<String>>, (_,)| async move {
                for _ in 0..2_000 {
                    request.reply("x".repeat(900)).await?;
                }
                Ok(())
            },
        );
        let server = net.serve(serve).await;
        let client = Endpoint::builder().limits(small()).bind().await;
        let client = client.expect("there is a runtime");
        let mut call = work::at(&client, at(&server)).many(String::new());
        assert_eq!(all(&mut call).await.len(), 2_000);
    })
    .await;
}

fn watched(bytes: u64) -> Limits {
    let mut limits = Limits::default();
    limits.partials = PartialLimits {
        bytes,
        rate: 1 << 20,
        period: Duration::from_millis(200),
    };
    limits
}

async fn echo(net: &Net, limits: Limits) -> Endpoint {
    let serve = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    net.bind(Endpoint::builder().limits(limits).serve(serve))
        .await
}

#[tokio::test]
async fn crumbs_of_a_large_message_do_not_keep_its_connection() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net, watched(1 << 30)).await;
        let mut peer = greedy(&server).await;
        // A request of 8 MiB begins.
        let begin = [&[0, 0x80, 0x80, 0x80, 0x04, 0x10][..], &[7; 50_000]].concat();
        peer.send_bytes(&frame(PART, &begin)).await;
        let crumbs = async {
            let crumb = frame(PART, &[0, 7, 7, 7, 7]);
            // Nothing tells when it has had enough.
            let mut often = tokio::time::interval(Duration::from_millis(5));
            loop {
                often.tick().await;
                peer.send_bytes(&crumb).await;
                let event = std::pin::pin!(peer.event());
                if let Ok(event) = tokio::time::timeout(Duration::from_millis(1), event).await {
                    match event {
                        Some(Event::Closed(reason)) => return reason,
                        Some(_) => {}
                        // The system drops the reason if it arrives behind another crumb.
                        None => return "stalled".into(),
                    }
                }
            }
        };
        let reason = crumbs.await;
        assert!(reason.contains("stalled"), "{reason}");
        still_serves(&server).await;
    })
    .await;
}

/// More at a time than there is room for: all of it comes through.
#[tokio::test]
async fn large_messages_wait_for_each_other_where_there_is_little_room() {
    patience(async {
        let net = Net::tcp();
        let mut limits = Limits::default();
        limits.partials.bytes = 1 << 20;
        let server = echo(&net, limits).await;
        let text: Arc<str> = "large".repeat(300_000).into();
        let clients: Vec<Endpoint> = (0..8).map(|_| client()).collect();
        let calls = clients.iter().map(|client| {
            let (to, text) = (at(&server), Arc::clone(&text));
            let client = work::at(client, to);
            tokio::spawn(async move { client.one(text.to_string()).await })
        });
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.expect("no panic").expect("it comes through");
            assert_eq!(answer.len(), text.len());
        }
    })
    .await;
}

/// A handler still runs for who has left in the middle of a large message, and keeps what is known of the connection.
#[tokio::test]
async fn who_has_left_takes_no_room_for_large_messages() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let pass = gate.clone();
        let serve = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
            let what: String = what;
            let pass = pass.clone();
            async move {
                if what.len() < 10_000 {
                    pass.pass().await;
                }
                Ok(request.respond(what).await?)
            }
        });
        let mut limits = Limits::default();
        limits.partials.bytes = 100_000;
        let server = net
            .bind(Endpoint::builder().limits(limits).serve(serve))
            .await;
        let mut peer = greedy(&server).await;
        peer.send_request(request(call(1), text()), &one()).await;
        until(|| server.metrics().requests_received == 1).await;
        let begin = [&[0, 0x80, 0x80, 0x80, 0x04, 0x10][..], &[7; 110_000]].concat();
        peer.send_bytes(&frame(PART, &begin)).await;
        drop(peer);
        until(|| server.metrics().connections_ended == 1).await;
        let client = client();
        let text = "large".repeat(100_000);
        let answer = work::at(&client, at(&server)).one(text.clone());
        assert_eq!(answer.await.expect("there is room"), text);
        gate.open(1);
    })
    .await;
}

#[tokio::test]
async fn who_asks_and_never_reads_is_given_up() {
    patience(async {
        let net = Net::tcp();
        let mut limits = Limits::default();
        limits.output = 64 << 10;
        let server = net
            .bind(
                Endpoint::builder()
                    .limits(limits)
                    .keep_alive(Duration::from_millis(100), Duration::from_millis(400)),
            )
            .await;
        let mut peer = Raw::dial(&at(&server), hello(1)).await;
        let probes = frame(PROBE, &[0, 1]).repeat(10_000);
        // Until the system's buffers are full both ways, and the server has had enough.
        let flood = async {
            while server.metrics().connections_silent == 0 {
                peer.send_bytes(&probes).await;
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = flood => {}
            () = until(|| server.metrics().connections_silent == 1) => {}
        }
    })
    .await;
}

/// Answers that wait to be passed on are counted with their optional fields.
#[tokio::test]
async fn optional_fields_of_answers_that_wait_are_counted() {
    patience(async {
        const MOST: u64 = 64 << 10;
        let net = Net::tcp();
        let mut limits = Limits::default();
        limits.relayed = MOST;
        let serve = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        });
        let server = net
            .bind(Endpoint::builder().limits(limits).serve(serve))
            .await;
        // The request came by `near`, which takes no answers.
        let call = call(1);
        let mut deaf = hello(13);
        deaf.limits.call = 1;
        let mut near = Raw::dial(&at(&server), deaf).await;
        let passed_on = wallaby_proto::wire::Request {
            reply_to: ReplyTo::Relay,
            depth: 1,
            ..request(call, &[1, b'x'])
        };
        near.send_request(passed_on, work::ONE.definition()).await;
        until(|| server.metrics().requests_received == 1).await;
        let mut far = Raw::dial(&at(&server), hello(15)).await;
        let fields = Bytes::from(vec![7; 16 << 10]);
        let mut sent = 0_u64;
        while server.metrics().undeliverable == 0 && sent < 3000 {
            let mut answer = response(call, Some(Token::new(4711)), &[]);
            answer.options = Some(Box::new(MessageOptions {
                continuation: Some(fields.clone()),
                ..MessageOptions::default()
            }));
            far.send_response(answer).await;
            sent += 1;
            if sent.is_multiple_of(16) {
                let answer = work::at(&client(), at(&server)).one("x".into()).await;
                answer.expect("the server goes on");
            }
        }
        let held = (sent - server.metrics().relayed) * fields.len() as u64;
        // It is looked after each 16.
        assert!(held <= 8 * MOST, "{held} bytes wait");
    })
    .await;
}
