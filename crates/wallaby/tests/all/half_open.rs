//! Half-open connections: a peer that is gone without a word holds nobody up, one that is slow is not given up.

use std::time::Duration;

use crate::common::raw::{Raw, hello, request, response};
use crate::common::{Gate, Net, at, failure, heap, load, patience, service, until, work};
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use wallaby::{Address, BodyError, CallId, Endpoint, Failure, NodeId, One, Request};
use wallaby_proto::connection::{ConnectionLimits, Hello};
use wallaby_proto::wire::MessageOptions;

over_every_stream!(a_slow_handler_is_not_a_silent_peer,);

/// When a peer is asked, and given up.
const PERIOD: Duration = Duration::from_millis(40);
const TIMEOUT: Duration = Duration::from_millis(200);

/// Nobody waits for anything of this connection but the reader of a body, and its request has ended.
#[tokio::test]
async fn a_body_of_a_silent_peer_is_lost() {
    patience(async {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let handler = move |request: Request<One<String>>, (what,): (String,)| {
            let ended = ended.clone();
            async move {
                let mut body = request.take_body().expect("it has one");
                tokio::spawn(async move {
                    while let Some(chunk) = body.next().await {
                        ended.send(chunk).expect("the test listens");
                    }
                });
                Ok(request.respond(what).await?)
            }
        };
        let server = Endpoint::builder()
            .keep_alive(PERIOD, TIMEOUT)
            .serve(service().method(&work::ONE, handler));
        let server = Net::tcp().bind(server).await;
        let mut silent = Raw::dial(&at(&server), hello(1)).await;
        let call = CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence: 1,
        };
        let options = MessageOptions {
            body: Some(0),
            ..MessageOptions::default()
        };
        let request = wallaby_proto::wire::Request {
            options: Some(Box::new(options)),
            ..request(call, b"\x04what")
        };
        silent.send_request(request, work::ONE.definition()).await;
        let mut some = Bytes::from_static(b"some");
        silent.connection.send_body(0, &mut some).expect("a window");
        silent.flush().await;
        assert_eq!(ends.recv().await, Some(Ok("some".into())));
        assert_eq!(&silent.response().await.payload[..], b"\x04what");
        let end = ends.recv().await.expect("an end");
        assert!(matches!(end, Err(BodyError::Lost(_))), "{end:?}");
    })
    .await;
}

async fn impatient() -> Endpoint {
    let builder = Endpoint::builder().keep_alive(PERIOD, TIMEOUT);
    builder.bind().await.expect("there is a runtime")
}

async fn listen() -> (TcpListener, Address) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = Address::Tcp(listener.local_addr().expect("it is bound"));
    (listener, address)
}

#[tokio::test]
async fn a_connection_whose_peer_is_silent_is_given_up_and_the_next_call_takes_another() {
    patience(async {
        let (listener, address) = listen().await;
        let client = impatient().await;
        let mut lost = work::at(&client, &address).one("lost".into());
        let mut silent = Raw::accept(&listener, hello(1)).await;
        silent.request().await;
        until(|| client.metrics().connections_silent == 1).await;
        let reason = silent.closed().await.expect("it is told why");
        assert!(reason.contains("nothing was heard"), "{reason}");

        // The request is never sent again; another life at the address is how its initiator learns that it is lost.
        let mut next = work::at(&client, &address).one("next".into());
        let mut server = Raw::accept(&listener, hello(2)).await;
        let request = server.request().await;
        let mut answer = response(request.call, None, b"\x04next");
        answer.request = request.id;
        server.send_response(answer).await;
        assert_eq!(next.answer().await.expect("an answer"), "next");
        let lost = failure(lost.answer().await);
        assert!(matches!(lost, Failure::Lost(_)), "{lost}");
        assert_eq!(client.metrics().connections_opened, 2);
    })
    .await;
}

#[tokio::test]
async fn what_waits_for_credit_on_it_moves_to_another_connection() {
    patience(async {
        let (listener, address) = listen().await;
        let narrow = |node| Hello {
            limits: ConnectionLimits {
                requests: 100,
                ..ConnectionLimits::default()
            },
            ..hello(node)
        };
        let client = impatient().await;
        let heap = heap::at(&client, &address);
        let _first = heap.one(vec![1; 200].into());
        let mut silent = Raw::accept(&listener, narrow(1)).await;
        silent.request().await;
        let second = heap.one(vec![2; 200].into());
        until(|| client.metrics().connections_silent == 1).await;
        let mut server = Raw::accept(&listener, narrow(2)).await;
        let request = server.request().await;
        assert_eq!(request.payload[0], 2, "no byte of it had been written");
        let mut answer = response(request.call, None, b"here");
        answer.request = request.id;
        server.send_response(answer).await;
        assert_eq!(&second.await.expect("an answer")[..], b"here");
    })
    .await;
}

async fn a_slow_handler_is_not_a_silent_peer(net: Net) {
    let gate = Gate::new();
    let passed = gate.clone();
    let server = net
        .serve(
            service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
                let gate = passed.clone();
                async move {
                    gate.pass().await;
                    Ok(request.respond(what).await?)
                }
            }),
        )
        .await;
    // It pings so seldom that only keep-alive asks.
    let client = Endpoint::builder()
        .keep_alive(PERIOD, TIMEOUT)
        .ping(Duration::from_secs(600), Duration::from_secs(6000))
        .bind()
        .await
        .expect("there is a runtime");
    let mut call = work::at(&client, at(&server)).one("late".into());
    until(|| server.load() == load(1, 0)).await;
    let before = client.metrics().bytes_received;
    // Probes come back: many periods pass, more than the timeout.
    until(|| client.metrics().bytes_received >= before + 10 * 6).await;
    gate.open(1);
    assert_eq!(call.answer().await.expect("an answer"), "late");
    assert_eq!(client.metrics().connections_silent, 0);
    assert_eq!(client.metrics().connections_opened, 1);
}

/// A server that takes its time with what it was sent before gets no ping either: it is not silent on that account.
#[tokio::test]
async fn a_ping_that_is_not_out_yet_has_no_answer() {
    patience(async {
        let (listener, address) = listen().await;
        let (other, elsewhere) = listen().await;
        let wide = Hello {
            limits: ConnectionLimits {
                requests: 1 << 30,
                ..ConnectionLimits::default()
            },
            ..hello(1)
        };
        let builder =
            Endpoint::builder().keep_alive(Duration::from_secs(600), Duration::from_secs(600));
        let client = builder
            .ping(PERIOD, TIMEOUT)
            .bind()
            .await
            .expect("there is a runtime");
        let mut call = work::at(&client, &address).one("slow".into());
        let mut server = Raw::accept(&listener, wide).await;
        let request = server.request().await;
        // More than all buffers on the way hold, and the server does not read on.
        let large = vec![1; 48 * 1024];
        let _filling: Vec<_> = (0..400)
            .map(|_| heap::at(&client, &address).one(large.clone().into()))
            .collect();

        // So much later, a call that began after it has waited for too long for its server, which is silent indeed.
        let mut silent = work::at(&client, &elsewhere).one("lost".into());
        let mut mute = Raw::accept(&other, hello(2)).await;
        mute.request().await;
        let lost = failure(silent.answer().await);
        assert!(matches!(lost, Failure::Lost(_)), "{lost}");
        assert_eq!(call.outcome(), None, "its ping is not out yet");

        let mut answer = response(request.call, None, b"\x04late");
        answer.request = request.id;
        server.send_response(answer).await;
        assert_eq!(call.answer().await.expect("an answer"), "late");
    })
    .await;
}

/// The client's only thread does something else, until the server believes it dead and closes the connection. What it sends
/// when it is back does not go into that connection, where nobody could know what became of it.
#[test]
fn who_was_away_for_long_listens_before_it_sends() {
    let servers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let clients = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let gate = Gate::new();
    let passed = gate.clone();
    let server = servers.block_on(async {
        let slow = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = passed.clone();
            async move {
                if what == "slow" {
                    gate.pass().await;
                }
                Ok(request.respond(what).await?)
            }
        });
        let builder = Endpoint::builder().listen("tcp://127.0.0.1:0").serve(slow);
        builder.keep_alive(PERIOD, TIMEOUT).bind().await
    });
    let server = server.expect("the address is free");
    clients.block_on(patience(async {
        let client = impatient().await;
        let work = work::at(&client, at(&server));
        let slow = work.one("slow".into());
        until(|| server.load() == load(1, 0)).await;
        for _ in 0..10_000 {
            if server.metrics().connections_ended > 0 {
                break; // its end is on the way to the client
            }
            std::thread::sleep(Duration::from_millis(1)); // the runtime does not get to listen
        }
        assert_eq!(server.metrics().connections_silent, 1);
        // It is counted first, and closed when the server's only thread has had its turn.
        for _ in 0..8 {
            let turn = servers.spawn(async {});
            while !turn.is_finished() {
                std::thread::yield_now();
            }
        }
        let answer = work.one("back".into()).await;
        assert_eq!(answer.expect("an answer"), "back");
        drop(slow);
        gate.open(1);
    }));
}
