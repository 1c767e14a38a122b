//! Trees that grow as fast as they can, of an initiator that neither counts nor stops: servers end them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::common::raw::{Raw, hello, request};
use crate::common::{Net, at, patience, service, until, work};
use wallaby::{Address, Builder, CallId, Code, Endpoint, Many, NodeId, Request, Service, Status};
use wallaby_proto::connection::Event;
use wallaby_proto::wire::Message;

/// Two servers, each of which delegates to both. With "late" in place of "bomb" they do so when their time is over.
struct Pair {
    servers: [Endpoint; 2],
    handled: Arc<AtomicU64>,
    /// When the last one began, in nanoseconds since then.
    last: Arc<AtomicU64>,
    since: Instant,
}

impl Pair {
    async fn new(net: &Net, builder: impl Fn() -> Builder) -> Self {
        let (handled, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let since = Instant::now();
        let places: Arc<[OnceLock<Address>; 2]> = Arc::default();
        let mut servers = Vec::new();
        for place in &*places {
            let (handled, last) = (Arc::clone(&handled), Arc::clone(&last));
            let begins = move || {
                handled.fetch_add(1, Ordering::Relaxed);
                last.fetch_max(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
            };
            let service = Self::service(begins, Arc::clone(&places));
            let server = net.bind(builder().serve(service)).await;
            place.set(at(&server)).expect("set once");
            servers.push(server);
        }
        let servers = servers.try_into().expect("two");
        Self {
            servers,
            handled,
            last,
            since,
        }
    }

    fn service(
        begins: impl Fn() + Send + Sync + 'static,
        places: Arc<[OnceLock<Address>; 2]>,
    ) -> Service {
        service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                begins();
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
        until(|| self.servers.iter().all(|server| server.load().is_idle())).await;
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
    let _alone = crate::ALONE.lock().await;
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
    let _alone = crate::ALONE.lock().await;
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
    let _alone = crate::ALONE.lock().await;
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

/// What requests wait in sockets and buffers counts as well: else a tree that has a second lasts for half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bomb_does_not_outlive_its_deadline_in_sockets() {
    const TIME: Duration = Duration::from_secs(1);
    /// The last one begins some tenths of a second late; this machine may have other things to do.
    const SLACK: Duration = Duration::from_secs(5);
    /// It is over when nothing has begun for so long.
    const QUIET: Duration = Duration::from_secs(1);
    let _alone = crate::ALONE.lock().await;
    patience(async {
        let builder = || Endpoint::builder().max_requests_of_call(u32::MAX);
        let pair = Pair::new(&Net::tcp(), builder).await;
        let mut peer = Raw::dial(&at(&pair.servers[0]), hello(7)).await;
        let mut bomb = request(call(), b"\x04bomb");
        bomb.deadline = Some(TIME);
        let begun = Instant::now();
        peer.send_request(bomb, work::MANY.definition()).await;
        // It takes what it gets, and stops nothing.
        let initiator = tokio::spawn(async move { while peer.event().await.is_some() {} });
        let last = || {
            let last = Duration::from_nanos(pair.last.load(Ordering::Relaxed));
            (pair.since + last).saturating_duration_since(begun)
        };
        let is_at_rest = || pair.servers.iter().all(|server| server.load().is_idle());
        while begun.elapsed() < last().max(TIME) + QUIET || !is_at_rest() {
            tokio::time::sleep(QUIET / 100).await;
            let last = last();
            assert!(last < TIME + SLACK, "one began after {last:?}");
        }
        initiator.abort();
    })
    .await;
}
