//! Trees that would grow without end: servers that keep to the budgets end them, and the initiator learns where.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::raw::{Raw, hello, request};
use crate::common::{Net, all, at, client, failure, patience, service, sorted, until, work};
use wallaby::{
    Address, Budget, Budgets, CallId, Client, Code, Endpoint, LimitReached, Many, NodeId, One,
    Request, Retry, SendError, Service,
};
use wallaby_proto::connection::Event;
use wallaby_proto::wire::Message;

const SMALL: Budgets = Budgets {
    requests: 100,
    responses: 1000,
    bytes: 1 << 20,
    depth: 30,
};

/// Two servers that delegate to each other, and how many requests they have handled.
struct Pair {
    servers: [Endpoint; 2],
    handled: Arc<AtomicU64>,
}

impl Pair {
    /// `most`: what the servers allow.
    async fn new(net: &Net, most: Option<Budgets>) -> Self {
        let handled = Arc::new(AtomicU64::new(0));
        let places: Arc<[OnceLock<Address>; 2]> = Arc::default();
        let mut servers = Vec::new();
        for number in 0..2 {
            let mut builder = Endpoint::builder().max_depth(200);
            if let Some(most) = most {
                builder = builder.max_budgets(most);
            }
            let service = Self::service(Arc::clone(&handled), Arc::clone(&places), 1 - number);
            let server = net.bind(builder.serve(service)).await;
            places[number].set(at(&server)).expect("set once");
            servers.push(server);
        }
        let servers = servers.try_into().expect("two");
        Self { servers, handled }
    }

    fn service(
        handled: Arc<AtomicU64>,
        places: Arc<[OnceLock<Address>; 2]>,
        next: usize,
    ) -> Service {
        service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                handled.fetch_add(1, Ordering::Relaxed);
                let next = places[next].get().expect("set").clone();
                async move {
                    match &*what {
                        "loop" => request.forward(next, work::many(what)).await?,
                        "bomb" => {
                            request.delegate(&next, work::many(what.clone())).await?;
                            request.delegate(&next, work::many(what)).await?;
                        }
                        "deaf" => loop {
                            // A handler that does not look at errors.
                            let _ = request.delegate(&next, work::many(what.clone())).await;
                            if request.is_cancelled() || request.budgets().is_none() {
                                return Ok(());
                            }
                            if request.budgets().is_some_and(|left| left.requests == 0) {
                                let _ = request.delegate(&next, work::many(what.clone())).await;
                                return Ok(());
                            }
                        },
                        _ => unreachable!("{what}"),
                    }
                    Ok(())
                }
            },
        )
    }
}

/// Each handler delegates to itself twice, or once for ever: it ends within the budgets, and says so.
async fn bombs_end_by_themselves(net: Net) {
    let pair = Pair::new(&net, None).await;
    let client = net.endpoint().await;
    for what in ["bomb", "loop", "deaf"] {
        let before = pair.handled.load(Ordering::Relaxed);
        let bounded = Client::new(&client, at(&pair.servers[0])).budgets(SMALL);
        let mut call = work::within(bounded).many(what.into());
        let (answers, statuses) = sorted(&mut call).await;
        assert!(answers.is_empty());
        let handled = pair.handled.load(Ordering::Relaxed) - before;
        assert!(handled <= 100, "{what}: {handled} requests");
        assert!(!statuses.is_empty(), "{what} looks complete");
        for status in statuses {
            assert_eq!(status.code(), Code::ResourceExhausted);
            let budget = if what == "loop" { "depth" } else { "requests" };
            let text = status.message();
            assert!(text.contains(&format!("budget of {budget}")), "{text}");
            assert!(text.contains("0 left"), "{text}");
            // Where: at one of the two, and which request.
            let server = status.server().expect("it has an address");
            assert!(pair.servers.iter().any(|known| at(known) == *server));
            assert!(status.request().is_some());
        }
        // How far it comes depends on whether handlers have to wait for connections.
        let wanted = if what == "loop" { 30 } else { 5 };
        assert!(handled >= wanted, "{what}: {handled} requests");
    }
    let ended: u64 = pair
        .servers
        .iter()
        .map(|server| server.metrics().budgets_exhausted)
        .sum();
    assert!(ended >= 3);
    // That handlers return the error is no news.
    let late = pair
        .servers
        .iter()
        .map(|server| server.metrics().late_errors);
    assert_eq!(late.sum::<u64>(), 0);
}

over_every_transport!(bombs_end_by_themselves);

/// The initiator states nothing, takes no notice of what comes and stops nothing: the servers' own maximum ends the tree.
#[tokio::test]
async fn a_hostile_initiators_bomb_ends_at_servers_that_have_a_maximum() {
    patience(async {
        let pair = Pair::new(&Net::tcp(), Some(SMALL)).await;
        let mut peer = Raw::dial(&at(&pair.servers[0]), hello(7)).await;
        let call = CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence: 1,
        };
        let bomb = request(call, b"\x04bomb");
        peer.send_request(bomb, work::MANY.definition()).await;
        let mut exhausted = 0;
        while exhausted < 2 {
            match peer.event().await.expect("the connection lives") {
                Event::Message(Message::Response(response)) => {
                    assert!(response.status);
                    exhausted += 1;
                }
                _ => continue,
            }
        }
        until(|| pair.servers.iter().all(|server| server.load().is_idle())).await;
        assert!(pair.handled.load(Ordering::Relaxed) <= 101);
    })
    .await;
}

/// Without budgets a loop ends by its depth, and a bomb when its initiator has counted enough.
#[tokio::test]
async fn what_states_nothing_is_bounded_by_depth() {
    patience(async {
        let pair = Pair::new(&Net::tcp(), None).await;
        let client = client();
        let mut call = work::at(&client, at(&pair.servers[0])).many("loop".into());
        let (_, statuses) = sorted(&mut call).await;
        assert_eq!(statuses.len(), 1);
        assert_eq!(statuses[0].code(), Code::ResourceExhausted);
        assert!(statuses[0].message().contains("at most 200"));
        assert_eq!(pair.handled.load(Ordering::Relaxed), 201);
    })
    .await;
}

/// A server that sends as many answers as it likes.
fn talker(handled: Arc<OnceLock<SendError>>) -> Service {
    service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let handled = Arc::clone(&handled);
            async move {
                loop {
                    if let Err(error) = request.reply(what.clone()).await {
                        handled.get_or_init(|| error.clone());
                        // The request has ended, whatever the handler makes of it.
                        assert!(matches!(
                            request.reply(what.clone()).await,
                            Err(SendError::Ended(_))
                        ));
                        return Ok(());
                    }
                }
            }
        },
    )
}

#[tokio::test]
async fn answers_and_their_bytes_are_within_the_budgets() {
    patience(async {
        let net = Net::tcp();
        let client = client();
        let few = Budgets {
            responses: 10,
            ..SMALL
        };
        let short = Budgets {
            bytes: 1010,
            ..SMALL
        };
        for (budgets, answers, budget) in [
            (few, 10, Budget::Responses),
            (short, 1010 / 102, Budget::Bytes),
        ] {
            let error = Arc::new(OnceLock::new());
            let server = net.serve(talker(Arc::clone(&error))).await;
            let bounded = Client::new(&client, at(&server)).budgets(budgets);
            let mut call = work::within(bounded).many("x".repeat(101));
            let (came, statuses) = sorted(&mut call).await;
            assert_eq!(came.len(), answers, "{budget}");
            assert_eq!(statuses.len(), 1);
            assert_eq!(statuses[0].code(), Code::ResourceExhausted);
            let Some(SendError::Exhausted(exhausted)) = error.get() else {
                panic!("another error: {error:?}")
            };
            assert_eq!(exhausted.budget, budget);
            assert_eq!(server.metrics().budgets_exhausted, 1);
        }
    })
    .await;
}

/// What servers let through, the initiator counts once more.
#[tokio::test]
async fn a_server_that_keeps_to_no_budget_fails_the_call() {
    patience(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = Address::Tcp(listener.local_addr().expect("it is bound"));
        let client = client();
        let two = Budgets {
            responses: 2,
            ..SMALL
        };
        let mut call =
            work::within(Client::new(&client, &address).budgets(two)).many(String::new());
        let mut server = Raw::accept(&listener, hello(7)).await;
        let request = server.request().await;
        let given = request.options.expect("stated").budgets.expect("stated");
        assert_eq!((given.requests, given.responses, given.depth), (99, 2, 29));
        for index in 0..3 {
            let mut answer = crate::common::raw::response(call.id(), None, &[0]);
            answer.index = index;
            answer.last = false;
            server.send_response(answer).await;
        }
        let last = all(&mut call).await.pop().expect("at least the failure");
        let failed = failure(last);
        let (budget, limit) = (Budget::Responses, 2);
        let too_many = LimitReached::Budget { budget, limit };
        assert_eq!(failed.limit_reached(), Some(too_many));
    })
    .await;
}

/// A scatter to as many as the budget has, each of which answers: none is short of anything.
#[tokio::test]
async fn an_announced_scatter_needs_no_more_than_it_uses() {
    patience(async {
        let net = Net::tcp();
        let leaf = net
            .serve(
                service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
                    Ok(request.respond(what).await?)
                }),
            )
            .await;
        let to = at(&leaf);
        let root = service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let to = to.clone();
                async move {
                    assert_eq!(request.budgets().map(|left| left.requests), Some(50));
                    request.share_among(50);
                    for _ in 0..50 {
                        request.delegate(&to, work::one(what.clone())).await?;
                    }
                    Ok(())
                }
            },
        );
        let root = net.serve(root).await;
        let client = client();
        let exact = Budgets {
            requests: 51,
            responses: 5000,
            ..SMALL
        };
        let bounded = Client::new(&client, at(&root)).budgets(exact);
        let (answers, statuses) = sorted(&mut work::within(bounded).many("x".into())).await;
        assert_eq!((answers.len(), statuses), (50, vec![]));
    })
    .await;
}

/// However it is made: `polling::behalf` tests the same without a runtime.
#[tokio::test]
async fn the_only_request_of_a_call_has_all_of_its_budgets() {
    patience(async {
        let net = Net::tcp();
        let service = service().method(
            &work::ONE,
            |request: Request<One<_>>, (_,): (String,)| async move {
                let left = request.budgets().map(|left| left.requests);
                Ok(request.respond(format!("{left:?}")).await?)
            },
        );
        let (server, client) = (net.serve(service).await, client());
        let bounded = Client::new(&client, at(&server)).budgets(SMALL);
        let mut left = Vec::new();
        for bounded in [bounded.clone(), bounded.retry(Retry::idempotent(2))] {
            left.push(work::within(bounded).one("x".into()).await);
        }
        let all = client.caller().budgets(SMALL);
        let all = all.multicast([at(&server)], work::one("x".into()));
        left.extend(all.all().await);
        assert!(left.iter().flatten().all(|left| left == "Some(99)"));
        assert_eq!(left.iter().flatten().count(), 3, "{left:?}");
    })
    .await;
}

/// Calls on behalf of a request cannot escape its budgets.
#[tokio::test]
async fn calls_on_behalf_of_a_request_share_its_budgets() {
    patience(async {
        let net = Net::tcp();
        let handled = Arc::new(AtomicU64::new(0));
        let place = Arc::new(OnceLock::<Address>::new());
        let (counted, next) = (Arc::clone(&handled), Arc::clone(&place));
        let server = service().method(
            &work::ONE,
            move |request: Request<One<_>>, (what,): (String,)| {
                counted.fetch_add(1, Ordering::Relaxed);
                let next = next.get().expect("set").clone();
                async move {
                    let again = Client::clone(&request.call().at(next));
                    let work = work::within(again);
                    let both = (work.one(what.clone()).await, work.one(what).await);
                    let said = format!("{}/{}", both.0.is_ok(), both.1.is_ok());
                    Ok(request.respond(said).await?)
                }
            },
        );
        let server = net.serve(server).await;
        place.set(at(&server)).expect("set once");
        let client = client();
        let bounded = Client::new(&client, at(&server))
            .budgets(SMALL)
            .deadline(Duration::from_secs(20));
        let answer = work::within(bounded).one("x".into()).await;
        assert!(answer.is_ok(), "{answer:?}");
        let handled = handled.load(Ordering::Relaxed);
        assert!((4..=100).contains(&handled), "{handled} requests");
    })
    .await;
}
