//! Trees that grow as fast as they can, of an initiator that neither counts nor stops: servers end them.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::raw::{Raw, hello, request};
use common::{Net, at, patience, service, until, work};
use wallaby::{Address, Builder, CallId, Code, Endpoint, Many, NodeId, Request, Service, Status};
use wallaby_proto::connection::Event;
use wallaby_proto::wire::Message;

/// Two servers, each of which delegates to both. With "late" in place of "bomb" they do so when their time is over.
struct Pair {
    servers: [Endpoint; 2],
    handled: Arc<AtomicU64>,
}

impl Pair {
    async fn new(net: &Net, builder: impl Fn() -> Builder) -> Self {
        let handled = Arc::new(AtomicU64::new(0));
        let places: Arc<[OnceLock<Address>; 2]> = Arc::default();
        let mut servers = Vec::new();
        for place in &*places {
            let service = Self::service(Arc::clone(&handled), Arc::clone(&places));
            let server = net.bind(builder().serve(service)).await;
            place.set(at(&server)).expect("set once");
            servers.push(server);
        }
        let servers = servers.try_into().expect("two");
        Self { servers, handled }
    }

    fn service(handled: Arc<AtomicU64>, places: Arc<[OnceLock<Address>; 2]>) -> Service {
        service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                handled.fetch_add(1, Ordering::Relaxed);
                let places = Arc::clone(&places);
                async move {
                    // It does not wait: nobody has told it to stop.
                    while what == "late" && !request.remaining().is_zero() {}
                    for place in &*places {
                        let to = place.get().expect("set").clone();
                        request.delegate(&to, work::many(what.clone())).await?;
                    }
                    Ok(())
                }
            },
        )
    }

    async fn is_at_rest(&self) {
        until(|| self.servers.iter().all(|server| server.load() == (0, 0))).await;
    }
}

fn call() -> CallId {
    CallId {
        initiator: NodeId::new(7).expect("not zero"),
        sequence: 1,
    }
}

/// The next status that the initiator gets.
async fn status(peer: &mut Raw) -> Status {
    loop {
        let event = peer.event().await.expect("the connection lives");
        if let Event::Message(Message::Response(response)) = event {
            assert!(response.status, "nobody answers");
            return Status::from_payload(&response.payload).expect("a status");
        }
    }
}

#[tokio::test]
async fn a_request_without_time_is_not_executed() {
    patience(async {
        let pair = Pair::new(&Net::tcp(), Endpoint::builder).await;
        let mut peer = Raw::dial(&at(&pair.servers[0]), hello(7)).await;
        let mut late = request(call(), b"\x04bomb");
        late.deadline = Some(Duration::ZERO);
        peer.send_request(late, work::MANY.definition()).await;
        let status = status(&mut peer).await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert_eq!(pair.handled.load(Ordering::Relaxed), 0);
    })
    .await;
}

/// A handler goes on when its time is over: what it delegates then is answered by its own server.
#[tokio::test]
async fn nothing_is_delegated_after_the_deadline() {
    patience(async {
        let pair = Pair::new(&Net::tcp(), Endpoint::builder).await;
        let mut peer = Raw::dial(&at(&pair.servers[0]), hello(7)).await;
        let mut late = request(call(), b"\x04late");
        late.deadline = Some(Duration::from_millis(5));
        peer.send_request(late, work::MANY.definition()).await;
        let status = status(&mut peer).await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        pair.is_at_rest().await;
        assert_eq!(pair.handled.load(Ordering::Relaxed), 1);
    })
    .await;
}

/// Nothing is stated: each server takes so many requests of the call, and no more.
#[tokio::test]
async fn a_bomb_ends_when_each_server_has_had_enough_of_it() {
    const MOST: u32 = 100;
    patience(async {
        let builder = || Endpoint::builder().max_requests_of_call(MOST);
        let pair = Pair::new(&Net::tcp(), builder).await;
        let mut peer = Raw::dial(&at(&pair.servers[0]), hello(7)).await;
        let bomb = request(call(), b"\x04bomb");
        peer.send_request(bomb, work::MANY.definition()).await;
        // Each request leads to two: one more of them is refused than was handled.
        for _ in 0..=2 * MOST {
            let status = status(&mut peer).await;
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        }
        pair.is_at_rest().await;
        assert_eq!(pair.handled.load(Ordering::Relaxed), 2 * u64::from(MOST));
    })
    .await;
}
