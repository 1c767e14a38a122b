//! Requests that are refused while answers of their call are in the way: their status comes, and until then it is said that it
//! will.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::raw::{Raw, hello, request};
use crate::common::{Net, at, heap, patience, service, until};
use bytes::Bytes;
use wallaby::polling;
use wallaby::{
    Address, CallId, ClusterKey, Code, Endpoint, Many, NodeId, Request, RequestId, Status,
};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::ConnectionLimits;
use wallaby_proto::wire::{self, Message, Ping, Pong, ReplyTo, Response};
use wallaby_proto::{Path, Token};

/// What a relay takes of a call before it credits anything.
const CREDIT: u64 = 20_000;

/// What a message counts beside its payload.
const MESSAGE_COST: u64 = 64;

/// So many of a byte or two exceed the credit.
const ANSWERS: usize = 400;

/// It travels in parts, more than are under way without being credited.
const LARGE: usize = 1_000_000;

/// The call of an initiator that is behind the relay.
fn call() -> CallId {
    CallId {
        initiator: NodeId::new(9).expect("not zero"),
        sequence: 1,
    }
}

fn id(index: u32) -> RequestId {
    RequestId {
        path: Path::ROOT.child(index, call(), Token::new(4711)),
        hop: 0,
    }
}

/// One of the call's requests, as the relay passes it on.
fn passed_on(index: u32, payload: &'static [u8]) -> wire::Request {
    wire::Request {
        id: id(index),
        depth: 1,
        reply_to: ReplyTo::Relay,
        ..request(call(), payload)
    }
}

/// What the server says of the request, asked by the relay, and the answers that come before.
async fn ask(relay: &mut Raw, index: u32) -> (Pong, Vec<Response>) {
    let ping = Ping {
        call: call(),
        token: Token::new(4711),
        request: id(index),
        abort: false,
        children_from: 0,
        missing: Vec::new(),
        shows: false,
    };
    relay.send(Message::Ping(ping)).await;
    let mut answers = Vec::new();
    loop {
        match relay.message().await {
            Message::Pong(pong) if pong.request == id(index) => return (pong, answers),
            Message::Pong(_) => {} // of the other request
            Message::Response(answer) => answers.push(answer),
            other => panic!("{other:?}"),
        }
    }
}

/// Skips what comes before the status of this request.
async fn status_of(relay: &mut Raw, index: u32) -> Status {
    loop {
        match relay.message().await {
            Message::Response(status) if status.request == id(index) => {
                assert!(status.status && status.last);
                return Status::from_payload(&status.payload).expect("a status");
            }
            Message::Response(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A server that remembers one request, which uses up all credit of its call; a second one is refused.
async fn tells_of_a_status_that_waits_for_credit(server: &Address) {
    let limits = ConnectionLimits {
        call: CREDIT,
        ..ConnectionLimits::default()
    };
    let hello = wallaby_proto::connection::Hello { limits, ..hello(7) };
    let mut relay = Raw::dial(server, hello).await;
    relay
        .send_request(passed_on(0, &[0]), heap::MANY.definition())
        .await;
    let mut taken = 0;
    while taken < CREDIT {
        // It is announced while it waits.
        if let Message::Response(answer) = relay.message().await {
            taken += answer.payload.len() as u64 + MESSAGE_COST;
        }
    }
    relay
        .send_request(passed_on(1, &[0]), heap::MANY.definition())
        .await;
    for _ in 0..2 {
        let (pong, answers) = ask(&mut relay, 1).await;
        assert!(answers.is_empty(), "there is no credit");
        assert!(pong.progress.is_none(), "it is not remembered");
        assert!(pong.writing && pong.announced, "{pong:?}");
    }
    relay.connection.grant_call(call(), 1000, 1 << 20);
    relay.flush().await;
    let status = status_of(&mut relay, 1).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    while ask(&mut relay, 1).await.0.writing {}
}

/// A server that takes only what is sealed answers what is not behind a large answer of the same call: it must wait, too.
async fn a_stranger_gets_its_status_behind_a_large_answer(
    server: &Address,
    has_answered: impl Fn() -> bool,
) {
    let mut relay = Raw::dial(server, hello(7)).await;
    let node = relay.connection.peer().expect("shaken hands").node;
    let mut sealed = passed_on(0, &[0]);
    key().seal(&mut sealed, heap::MANY.definition().name(), node, None);
    relay.send_request(sealed, heap::MANY.definition()).await;
    // What is not read is not credited, so most of it stays at the server.
    until(has_answered).await;
    relay
        .send_request(passed_on(1, &[0]), heap::MANY.definition())
        .await;
    let status = status_of(&mut relay, 1).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    while ask(&mut relay, 1).await.0.writing {}
}

fn key() -> ClusterKey {
    ClusterKey::new(&[7; 32]).expect("long enough")
}

/// A polling endpoint on a thread of its own, until it is dropped.
struct Polling {
    address: Address,
    answered: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Polling {
    /// It answers each request so often with so many bytes, and keeps it.
    fn start(builder: fn() -> polling::Builder, times: usize, size: usize) -> Self {
        let (over, answered) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (ends, answers) = (Arc::clone(&over), Arc::clone(&answered));
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let builder = builder();
            let mut endpoint = builder.bind("tcp://127.0.0.1:0").expect("a socket");
            let serve = endpoint.serve(&heap::MANY, move |mut request, (_,)| {
                for _ in 0..times {
                    request.reply(&Bytes::from(vec![7; size]))?;
                }
                request.hold();
                answers.store(true, Ordering::Release);
                Ok(())
            });
            serve.expect("no other has its name");
            tell.send(endpoint.address()).expect("somebody waits");
            while !ends.load(Ordering::Relaxed) {
                let wait = polling::Wait::For(Duration::from_millis(20));
                endpoint.turn(wait).expect("the socket lives");
            }
        });
        Self {
            address: told.recv().expect("it starts"),
            answered,
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            joined
                .expect("it was started")
                .expect("it has not panicked");
        }
    }
}

#[tokio::test]
async fn a_status_that_waits_for_credit_is_told_of() {
    patience(async {
        let service = service().method(
            &heap::MANY,
            |request: Request<Many<_>, _>, (_,): (Bytes,)| async move {
                for _ in 0..ANSWERS {
                    request.reply(Bytes::from_static(b"7")).await?;
                }
                request.cancelled().await;
                Ok(())
            },
        );
        let builder = Endpoint::builder().serve(service).remember(1, 0);
        let server = Net::tcp().bind(builder).await;
        tells_of_a_status_that_waits_for_credit(&at(&server)).await;
        assert_eq!(server.metrics().undeliverable, 0);
    })
    .await;
}

#[tokio::test]
async fn a_polling_endpoint_tells_of_a_status_that_waits_for_credit() {
    patience(async {
        let server = Polling::start(|| polling::Endpoint::builder().remember(1, 0), ANSWERS, 1);
        tells_of_a_status_that_waits_for_credit(&server.address).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_not_sealed_is_refused_behind_a_large_answer() {
    patience(async {
        let service = service().method(
            &heap::MANY,
            |request: Request<Many<_>, _>, (_,): (Bytes,)| async move {
                Ok(request.respond(Bytes::from(vec![7; LARGE])).await?)
            },
        );
        let builder = Endpoint::builder().cluster_key(key()).require_seals();
        let server = Net::tcp().bind(builder.serve(service)).await;
        let has_answered = || server.metrics().requests_received == 1 && server.load().is_idle();
        a_stranger_gets_its_status_behind_a_large_answer(&at(&server), has_answered).await;
        assert_eq!(server.metrics().undeliverable, 0);
    })
    .await;
}

#[tokio::test]
async fn a_polling_endpoint_refuses_behind_a_large_answer() {
    patience(async {
        let builder = || {
            let builder = polling::Endpoint::builder();
            builder.cluster_key(key()).require_seals()
        };
        let server = Polling::start(builder, 1, LARGE);
        let has_answered = || server.answered.load(Ordering::Acquire);
        a_stranger_gets_its_status_behind_a_large_answer(&server.address, has_answered).await;
    })
    .await;
}
