//! Answers that are asked for again over connections that take less, or more, than the one they went out on.

use crate::common::raw::{Raw, hello, request};
use crate::common::{Net, at, heap, patience, service, until};
use bytes::Bytes;
use wallaby::{CallId, Code, Endpoint, NodeId, One, Request, RequestId, Status};
use wallaby_proto::Token;
use wallaby_proto::connection::{ConnectionLimits, Hello};
use wallaby_proto::wire::{Message, Ping, Pong, Response};

/// The answer's length in bytes: it travels in parts.
const LARGE: usize = 100_000;

async fn generous(net: &Net) -> Endpoint {
    let service = service().method(
        &heap::ONE,
        |request: Request<One<Bytes>, _>, (_,)| async move {
            Ok(request.respond(vec![7; LARGE].into()).await?)
        },
    );
    net.serve(service).await
}

fn call() -> CallId {
    CallId {
        initiator: NodeId::new(7).expect("not zero"),
        sequence: 1,
    }
}

/// The hello of an initiator that takes only small messages on this connection.
fn narrow() -> Hello {
    let limits = ConnectionLimits {
        message: 1000,
        ..ConnectionLimits::default()
    };
    Hello { limits, ..hello(7) }
}

/// What comes of asking for the answer.
async fn ask(initiator: &mut Raw, token: Token) -> (Pong, Option<Response>) {
    let ping = Ping {
        call: call(),
        token,
        request: RequestId::FIRST,
        abort: false,
        children_from: 0,
        missing: vec![0],
        shows: false,
    };
    initiator.send(Message::Ping(ping)).await;
    let mut again = None;
    loop {
        match initiator.message().await {
            Message::Response(response) => again = Some(response),
            Message::Pong(pong) if !pong.announced => return (pong, again),
            Message::Pong(_) => {}
            other => panic!("neither a pong nor an answer: {other:?}"),
        }
    }
}

/// Asks until the server does not say any more that it is writing the answer.
async fn settled(initiator: &mut Raw, token: Token) -> Pong {
    loop {
        let (pong, again) = ask(initiator, token).await;
        assert_eq!(again, None);
        if !pong.writing {
            return pong;
        }
    }
}

fn lost(pong: Pong) -> Vec<u32> {
    pong.progress.expect("it is known").lost
}

/// It must not be promised for ever: the initiator would wait as long.
#[tokio::test]
async fn an_answer_that_no_connection_takes_any_more_is_lost() {
    patience(async {
        let net = Net::tcp();
        let server = generous(&net).await;
        let mut first = Raw::dial(&at(&server), hello(7)).await;
        let root = request(call(), &[0]);
        let token = root.token;
        first.send_request(root, heap::ONE.definition()).await;
        assert_eq!(first.response().await.payload.len(), LARGE);
        let mut second = Raw::dial(&at(&server), narrow()).await;
        let pong = settled(&mut second, token).await;
        assert_eq!(lost(pong), [0; 0], "the first copy may still be read");
        drop(first);
        until(|| server.metrics().connections_ended == 1).await;
        let pong = settled(&mut second, token).await;
        assert_eq!(lost(pong), [0]);
    })
    .await;
}

/// The initiator may have it already: nothing else comes in its place.
#[tokio::test]
async fn a_status_in_place_of_an_answer_stays_one() {
    patience(async {
        let net = Net::tcp();
        let server = generous(&net).await;
        let mut first = Raw::dial(&at(&server), narrow()).await;
        let root = request(call(), &[0]);
        let token = root.token;
        first.send_request(root, heap::ONE.definition()).await;
        let status = first.response().await;
        assert!(status.status, "it takes no such answer");
        drop(first);
        until(|| server.metrics().connections_ended == 1).await;
        let mut second = Raw::dial(&at(&server), hello(7)).await;
        let (pong, again) = ask(&mut second, token).await;
        assert_eq!(lost(pong), [0; 0]);
        let again = match again {
            Some(again) => again,
            None => second.response().await,
        };
        assert!(again.status, "{} bytes", again.payload.len());
        let again = Status::from_payload(&again.payload).expect("a status");
        assert_eq!(again.code(), Code::ResourceExhausted);
    })
    .await;
}
