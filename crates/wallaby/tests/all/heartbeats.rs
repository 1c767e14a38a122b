//! Calls whose servers show unasked that they live: nobody asks them while they do, and who does not is missed.

use std::time::Duration;

use tokio::net::TcpListener;
use wallaby::{
    Address, CallId, Client, Endpoint, Failure, FailureKind, Heartbeats, NodeId, One, Request,
    Service,
};
use wallaby_proto::connection::{Features, Hello};
use wallaby_proto::wire::{Message, MessageOptions, Pong, Progress};

use crate::common::raw::{Raw, hello, request, response};
use crate::common::{Gate, Net, at, failure, load, patience, service, until, work};

/// As quick as servers allow by default.
const EVERY: Duration = Duration::from_millis(100);

/// A machine that is busy with other tests may be late.
fn heartbeats() -> Heartbeats {
    Heartbeats {
        every: EVERY,
        timeout: 600 * EVERY,
        hop: Duration::from_millis(5),
    }
}

/// A client that would ask at once and often.
fn beating(client: &Endpoint, server: &Endpoint, heartbeats: Heartbeats) -> Client {
    Client::new(client, at(server))
        .ping(Duration::from_millis(10), Duration::from_secs(60))
        .heartbeats(heartbeats)
}

/// Waits at the gate before it answers.
fn waiting(gate: &Gate) -> Service {
    let gate = gate.clone();
    service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(request.respond(what).await?)
        }
    })
}

/// Hands everything on.
fn forwarding(next: Address) -> Service {
    service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let next = next.clone();
        async move { Ok(request.forward(next, work::one(what)).await?) }
    })
}

over_every_transport!(
    a_line_of_servers_is_not_asked_while_it_is_heard,
    a_client_that_cannot_be_dialled_asks_once_and_hears_them,
);

async fn a_line_of_servers_is_not_asked_while_it_is_heard(net: Net) {
    let gate = Gate::new();
    let last = net.serve(waiting(&gate)).await;
    let middle = net.serve(forwarding(at(&last))).await;
    let first = net.serve(forwarding(at(&middle))).await;
    let client = net.endpoint().await;
    let mut call = work::within(beating(&client, &first, heartbeats())).one("slow".into());
    until(|| last.load() == load(1, 0)).await;
    // Each is from the last one: the others are done.
    until(|| client.metrics().messages_received >= 8).await;
    assert_eq!(
        client.metrics().messages_sent,
        1,
        "the request, and no ping"
    );
    gate.open(1);
    assert_eq!(call.answer().await.expect("it lives"), "slow");
    assert_eq!(client.metrics().messages_sent, 1);
}

/// The first come by the servers that the request went by, and nobody knows whether these arrive: so the client asks, and that shows
/// the last server a way.
async fn a_client_that_cannot_be_dialled_asks_once_and_hears_them(net: Net) {
    let gate = Gate::new();
    let last = net.serve(waiting(&gate)).await;
    let first = net.serve(forwarding(at(&last))).await;
    let client = net.client().await;
    let mut call = work::within(beating(&client, &first, heartbeats())).one("slow".into());
    until(|| client.metrics().messages_received >= 12).await;
    let sent = client.metrics().messages_sent;
    assert!(
        (2..=6).contains(&sent),
        "the request, and few pings: {sent}"
    );
    gate.open(1);
    assert_eq!(call.answer().await.expect("it lives"), "slow");
}

/// It works for longer than silence may last.
#[tokio::test]
async fn a_slow_server_is_not_given_up() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let server = net.serve(waiting(&gate)).await;
        let client = net.endpoint().await;
        let soon = Heartbeats {
            timeout: 5 * EVERY,
            ..heartbeats()
        };
        let mut call = work::within(beating(&client, &server, soon)).one("slow".into());
        until(|| client.metrics().messages_received >= 15).await;
        gate.open(1);
        assert_eq!(call.answer().await.expect("it lives"), "slow");
    })
    .await;
}

/// Its connections end: who hears that does not wait for the next heartbeat.
#[tokio::test]
async fn a_server_that_is_killed_is_missed_at_once() {
    patience(async {
        let net = Net::tcp();
        let last = net.serve(waiting(&Gate::new())).await;
        let first = net.serve(forwarding(at(&last))).await;
        let client = net.endpoint().await;
        let mut call = work::within(beating(&client, &first, heartbeats())).one(String::new());
        // Now it is known where the work is.
        until(|| client.metrics().messages_received >= 2).await;
        let address = at(&last);
        last.kill();
        let failed = failure(call.answer().await);
        let Failure::Lost(loss) = &failed else {
            panic!("another failure: {failed}")
        };
        assert_eq!(loss.request.hop, 1, "{failed}");
        assert_eq!(failed.server(), Some(&address), "{failed}");
        let FailureKind::Silent { silence, .. } = loss.kind else {
            panic!("another kind: {failed}")
        };
        assert!(silence < heartbeats().timeout / 20, "{failed}");
    })
    .await;
}

fn call_of(node: u64) -> CallId {
    CallId {
        initiator: NodeId::new(node).expect("not zero"),
        sequence: 1,
    }
}

/// It takes a request and then says nothing any more, though it is there.
#[tokio::test]
async fn a_server_that_is_silent_is_asked_and_then_given_up() {
    patience(async {
        let net = Net::tcp();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = Address::Tcp(listener.local_addr().expect("it listens"));
        let client = net.endpoint().await;
        let soon = Heartbeats {
            timeout: 5 * EVERY,
            ..heartbeats()
        };
        let asking = Client::new(&client, &server)
            .ping(EVERY / 2, 600 * EVERY)
            .heartbeats(soon);
        let mut call = work::within(asking).one(String::new());
        let mut silent = Raw::accept(&listener, hello(7)).await;
        let request = silent.request().await;
        let stated = request.options.as_ref().and_then(|all| all.heartbeats);
        assert!(
            stated.is_some_and(|stated| stated.every <= EVERY),
            "{stated:?}"
        );
        let Message::Ping(ping) = silent.message().await else {
            panic!("nothing but questions")
        };
        assert!(!ping.abort);
        let failed = failure(call.answer().await);
        let Failure::Lost(loss) = &failed else {
            panic!("another failure: {failed}")
        };
        let FailureKind::Silent { silence, .. } = loss.kind else {
            panic!("another kind: {failed}")
        };
        assert!(silence >= soon.timeout, "{failed}");
    })
    .await;
}

/// It shows in its pongs that it does not know the option: from then on it is asked as ever.
#[tokio::test]
async fn a_server_that_is_too_old_is_asked() {
    patience(async {
        let net = Net::tcp();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = Address::Tcp(listener.local_addr().expect("it listens"));
        let client = net.endpoint().await;
        let asking = Client::new(&client, &server)
            .ping(EVERY, 600 * EVERY)
            .heartbeats(heartbeats());
        let call = work::within(asking).one("old".into());
        let mut old = Raw::accept(&listener, hello(7)).await;
        let request = old.request().await;
        let progress = Progress {
            finished: false,
            aborted: false,
            base: 0,
            count: 0,
            children_from: 0,
            children: Vec::new(),
            continuation: None,
            facts: None,
            manifest: None,
            idle: Some(Duration::ZERO),
            lost: Vec::new(),
            handled_by: None,
        };
        let mut pong = Pong {
            call: request.call,
            distance: 0,
            token: None,
            request: request.id,
            attempt: 0,
            announced: true,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: Some(progress),
        };
        old.send(Message::Pong(pong.clone())).await;
        pong.announced = false;
        // More often than in the time of a test after late heartbeats.
        for _ in 0..15 {
            let Message::Ping(ping) = old.message().await else {
                panic!("nothing but questions")
            };
            assert!(!ping.abort && ping.request == request.id);
            old.send(Message::Pong(pong.clone())).await;
        }
        old.send_response(response(request.call, None, b"\x03old"))
            .await;
        assert_eq!(call.await.expect("an answer"), "old");
    })
    .await;
}

/// What a server says to who does not know the word for it is what it has always said.
#[tokio::test]
async fn only_who_knows_heartbeats_is_told_that_they_come() {
    patience(async {
        let net = Net::tcp();
        let server = net.serve(waiting(&Gate::new())).await;
        for (node, features) in [(7, Features::default()), (8, Features::HEARTBEATS)] {
            let known = features == Features::HEARTBEATS;
            let peer = Hello {
                features,
                ..hello(node)
            };
            let mut peer = Raw::dial(&at(&server), peer).await;
            let mut beating = request(call_of(node), &[1, b'x']);
            beating.options = Some(Box::new(MessageOptions {
                heartbeats: Some(heartbeats()),
                ..MessageOptions::default()
            }));
            peer.send_request(beating, work::ONE.definition()).await;
            for _ in 0..3 {
                let Message::Pong(pong) = peer.message().await else {
                    panic!("it runs")
                };
                assert!(pong.announced && pong.progress.is_some());
                assert_eq!(pong.heartbeats, known);
            }
        }
    })
    .await;
}

/// Nobody asks about its request, and no heartbeat leaves for it any more.
#[tokio::test]
async fn what_runs_for_a_client_that_has_died_is_stopped() {
    patience(async {
        let net = Net::tcp();
        let server = net.serve(waiting(&Gate::new())).await;
        let peer = Hello {
            features: Features::HEARTBEATS,
            ..hello(7)
        };
        let mut peer = Raw::dial(&at(&server), peer).await;
        let mut beating = request(call_of(7), &[1, b'x']);
        beating.options = Some(Box::new(MessageOptions {
            heartbeats: Some(Heartbeats {
                timeout: 2 * EVERY,
                ..heartbeats()
            }),
            ..MessageOptions::default()
        }));
        peer.send_request(beating, work::ONE.definition()).await;
        // A ping period and two timeouts are over long since.
        for _ in 0..15 {
            assert!(matches!(peer.message().await, Message::Pong(_)));
        }
        assert_eq!(server.load(), load(1, 0));
        drop(peer);
        until(|| server.load().is_idle()).await;
    })
    .await;
}
