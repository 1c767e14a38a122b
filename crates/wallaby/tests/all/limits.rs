//! What happens at each limit: an error that says so, and nothing else is harmed.

use std::sync::Arc;

use crate::common::{
    Gate, Net, all, at, client, failure, heap, load, patience, service, sorted, status, until, work,
};
use bytes::Bytes;
use tokio::sync::mpsc;
use wallaby::{
    Address, Builder, Code, Endpoint, ExecutorConfig, Failure, Limits, Many, One, Outcome, Request,
    Schedule, SendError, Service, Status,
};

over_every_transport!(
    a_message_above_the_senders_limit_is_an_error,
    a_message_above_the_receivers_limit_is_an_error,
    the_least_recently_used_connection_makes_room,
    a_connection_in_use_is_not_closed_for_another,
    a_full_queue_is_a_status,
);

over_every_stream!(a_server_with_all_connections_in_use_says_so,);

const LIMIT: u64 = 60_000;

fn limits(set: impl FnOnce(&mut Limits)) -> Builder {
    let mut limits = Limits::default();
    set(&mut limits);
    Endpoint::builder().limits(limits)
}

fn payload(size: u64) -> Bytes {
    Bytes::from(vec![7; size as usize])
}

/// Answers with as many bytes as it is asked for.
fn sized() -> Service {
    let bytes = |what: Bytes| payload(String::from_utf8_lossy(&what).parse().unwrap_or(0));
    service()
        .method(
            &heap::ONE,
            move |request: Request<One<Bytes>, _>, (what,)| async move {
                Ok(request.respond(bytes(what)).await?)
            },
        )
        .method(
            &heap::MANY,
            move |request: Request<Many<Bytes>, _>, (what,)| async move {
                Ok(request.reply(bytes(what)).await?)
            },
        )
}

fn number(size: u64) -> Bytes {
    size.to_string().into()
}

async fn a_message_above_the_senders_limit_is_an_error(net: Net) {
    let leaf = net.serve(sized()).await;
    let (sent, mut results) = mpsc::unbounded_channel();
    let next = at(&leaf);
    let delegating = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (_,)| {
            let (next, sent) = (next.clone(), sent.clone());
            async move {
                let onward = || heap::many(payload(LIMIT + 1));
                sent.send(request.delegate(&next, onward()).await)
                    .expect("the test listens");
                sent.send(request.try_delegate(&next, onward()).map(drop))
                    .expect("the test listens");
                sent.send(request.reply(payload(LIMIT + 1)).await)
                    .expect("the test listens");
                sent.send(request.reply(payload(LIMIT)).await)
                    .expect("the test listens");
                sent.send(request.forward(&next, onward()).await)
                    .expect("the test listens");
                Ok(())
            }
        },
    );
    let small = |builder: Builder| {
        let mut limits = Limits::default();
        limits.message = LIMIT;
        builder.limits(limits)
    };
    let root = net.bind(small(Endpoint::builder().serve(delegating))).await;
    let endpoint = net.bind(small(Endpoint::builder())).await;
    let mut call = heap::at(&endpoint, at(&root)).many(Bytes::new());
    let items = all(&mut call).await;
    // The last refusal was that of all the rest of the work, and the handler has ignored it.
    assert_eq!(items.len(), 2);
    let fits = items.iter().find_map(|item| item.as_ref().ok());
    assert_eq!(fits.map(|fits| fits.len() as u64), Some(LIMIT));
    let refused = items.iter().find_map(|item| item.as_ref().err()?.status());
    assert_eq!(refused.map(Status::code), Some(Code::ResourceExhausted));
    for peer in [
        at(&leaf).to_string(),
        at(&leaf).to_string(),
        "the initiator".into(),
    ] {
        let expected = SendError::TooLarge {
            size: LIMIT + 1,
            limit: LIMIT,
            peer,
        };
        assert_eq!(results.recv().await, Some(Err(expected)));
    }
    assert_eq!(results.recv().await, Some(Ok(())));
    assert!(matches!(
        results.recv().await,
        Some(Err(SendError::TooLarge { .. }))
    ));

    // A handler that passes the error on ends with a status.
    let one = small(Endpoint::builder().serve(sized()));
    let one = net.bind(one).await;
    let refused = status(heap::at(&endpoint, at(&one)).one(number(LIMIT + 1)).await);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("60001") && refused.message().contains("60000"),
        "{refused}"
    );

    // The initiator itself.
    let heap = heap::at(&endpoint, at(&leaf));
    let Failure::TooLarge {
        size,
        limit,
        server,
        ..
    } = failure(heap.one(payload(LIMIT + 1)).await)
    else {
        panic!("another failure");
    };
    assert_eq!((size, limit, server), (LIMIT + 1, LIMIT, at(&leaf)));
    assert_eq!(heap.one(payload(LIMIT)).await.expect("it fits").len(), 0);
    assert_eq!(
        leaf.metrics().requests_received,
        1,
        "nothing else was sent to it"
    );
}

async fn a_message_above_the_receivers_limit_is_an_error(net: Net) {
    let leaf = net
        .bind(limits(|limits| limits.message = LIMIT).serve(sized()))
        .await;
    let next = at(&leaf);
    let root = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (what,)| {
            let next = next.clone();
            async move {
                match what.len() as u64 {
                    size if size > 100 => request.delegate(&next, heap::many(what)).await?,
                    _ => request.delegate(&next, heap::many(number(LIMIT))).await?,
                }
                Ok(request.reply(Bytes::new()).await?)
            }
        },
    );
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;

    // A request of the initiator.
    let heap = heap::at(&endpoint, at(&leaf));
    let Failure::TooLarge {
        size,
        limit,
        server,
        ..
    } = failure(heap.one(payload(LIMIT + 1)).await)
    else {
        panic!("another failure");
    };
    assert_eq!((size, limit, server), (LIMIT + 1, LIMIT, at(&leaf)));
    assert_eq!(heap.one(payload(LIMIT)).await.expect("it fits").len(), 0);

    // A delegated one: the answers in its place name the server that did not take it.
    let mut call = heap::at(&endpoint, at(&root)).many(payload(LIMIT + 1));
    let items = all(&mut call).await;
    assert_eq!(items.len(), 2);
    let refused = status(items.into_iter().find(Result::is_err).expect("a status"));
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.server(), leaf.address());
    assert!(refused.message().contains("60000"), "{refused}");
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 1 }));

    // An answer, from near and from far.
    let narrow = net.bind(limits(|limits| limits.message = LIMIT / 2)).await;
    let status_of = |error: Result<Bytes, _>| {
        let refused = status(error);
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.server(), leaf.address());
        assert!(
            refused.message().contains("60000") && refused.message().contains("30000"),
            "{refused}"
        );
    };
    status_of(heap::at(&narrow, at(&leaf)).one(number(LIMIT)).await);
    let items = all(&mut heap::at(&narrow, at(&root)).many(number(LIMIT))).await;
    assert_eq!(items.len(), 2);
    status_of(items.into_iter().find(Result::is_err).expect("a status"));
}

#[tokio::test]
async fn metadata_above_its_limit_fails_the_call() {
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::ONE, |request: Request<One<_>>, (_,)| async move {
            let nested = work::within(
                request
                    .call()
                    .at("mem://nobody".parse::<Address>().expect("an address")),
            );
            let error = nested
                .metadata("more", &"x".repeat(1000))
                .one(String::new())
                .await
                .expect_err("too much");
            let size = request
                .metadata()
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum::<usize>();
            Ok(request.respond(format!("{size} {error}")).await?)
        });
        let server = net.serve(server).await;
        let client = client();
        let work = work::at(&client, at(&server));
        let exact = work.clone().metadata("key", &"x".repeat(8 * 1024 - 3));
        let answer = exact.one(String::new()).await.expect("an answer");
        assert!(
            answer.starts_with("8192 ") && answer.contains("metadata"),
            "{answer}"
        );

        for (key, value, code, why) in [
            (
                "key",
                "x".repeat(8 * 1024 - 2),
                Code::ResourceExhausted,
                "the call was not made: metadata of 8193 bytes: at most 8192 are allowed",
            ),
            (
                "",
                "x".into(),
                Code::InvalidArgument,
                "the call was not made: a metadata key is empty",
            ),
        ] {
            let failed = failure(work.clone().metadata(key, &value).one(String::new()).await);
            assert!(matches!(failed, Failure::Metadata(_)), "{failed}");
            assert_eq!(failed.code(), code);
            assert!(failed.to_string().starts_with(why), "{failed}");
        }
        assert_eq!(server.metrics().requests_received, 1);
    })
    .await;
}

#[tokio::test]
async fn a_tree_may_not_be_deeper_than_allowed() {
    patience(async {
        let net = Net::mem();
        let builder = |serve: Service| Endpoint::builder().max_depth(3).serve(serve);
        let peer = Arc::new(std::sync::OnceLock::<Address>::new());
        let next = Arc::clone(&peer);
        let server = service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let next = next.get().expect("set").clone();
                async move {
                    request.reply(request.depth().to_string()).await?;
                    match &*what {
                        "forward" => request.forward(next, work::many(what)).await?,
                        _ => {
                            request.delegate(next, work::many(what)).await?;
                            request.reply("after".into()).await?;
                        }
                    }
                    Ok(())
                }
            },
        );
        let server = net.bind(builder(server)).await;
        peer.set(at(&server)).expect("set once");
        let endpoint = net.endpoint().await;
        for what in ["forward", "delegate"] {
            let (answers, statuses) =
                sorted(&mut work::at(&endpoint, at(&server)).many(what.into())).await;
            let hops: Vec<_> = answers.iter().filter(|answer| *answer != "after").collect();
            // What the last handler had not released when it failed is not sent.
            assert_eq!(hops, ["0", "1", "2"], "{what}");
            assert_eq!(statuses.len(), 1);
            assert_eq!(statuses[0].code(), Code::ResourceExhausted);
            assert!(
                statuses[0].message().contains("at most 3"),
                "{}",
                statuses[0]
            );
        }
    })
    .await;
}

/// Handlers that do not care for errors: what they were refused must not look done.
#[tokio::test]
async fn a_refusal_that_its_handler_ignores_is_a_status() {
    patience(async {
        let net = Net::mem();
        let ignoring = service().method(
            &work::MANY,
            async |request: Request<Many<_>>, (what,): (String,)| {
                let nowhere: Address = "mem://nowhere".parse().expect("an address");
                let onward = work::many(what.clone());
                match &*what {
                    "delegate" => drop(request.delegate(nowhere, onward).await),
                    "try" => drop(request.try_delegate(nowhere, onward)),
                    "forward" => drop(request.forward(nowhere, onward).await),
                    "instead" => {
                        drop(request.delegate(nowhere, onward).await);
                        request.respond("done here".into()).await?;
                    }
                    _ => drop(request.respond(" ".repeat(1001)).await),
                }
                Ok(())
            },
        );
        let builder = limits(|limits| limits.message = 1000).max_depth(0);
        let server = net.bind(builder.serve(ignoring)).await;
        let endpoint = net.endpoint().await;
        let work = work::at(&endpoint, at(&server));
        for (what, why) in [
            ("delegate", "at most 0"),
            ("try", "at most 0"),
            ("forward", "at most 0"),
            ("respond", "at most 1000"),
        ] {
            let (answers, statuses) = sorted(&mut work.many(what.into())).await;
            assert_eq!((answers.len(), statuses.len()), (0, 1), "{what}");
            assert_eq!(statuses[0].code(), Code::ResourceExhausted, "{what}");
            assert!(statuses[0].message().contains(why), "{}", statuses[0]);
        }
        let (answers, statuses) = sorted(&mut work.many("instead".into())).await;
        assert_eq!((&*answers[0], statuses.len()), ("done here", 0));
        assert_eq!(server.metrics().late_errors, 0);
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_has_no_more_calls_than_allowed() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let opened = gate.clone();
        let server = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = opened.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        });
        let server = net.serve(server).await;
        let client = net.bind(limits(|limits| limits.calls = 2)).await;
        let work = work::at(&client, at(&server));
        let (first, second) = (work.one("1".into()), work.one("2".into()));
        assert_eq!(
            failure(work.one("3".into()).await),
            Failure::TooManyCalls { limit: 2 }
        );
        // What is wrong with a call is told even so.
        let wrong = work::at(&client, at(&server)).metadata("", "without a key");
        let said = failure(wrong.one("?".into()).await);
        assert!(matches!(said, Failure::Metadata(_)), "{said}");
        gate.open(3);
        assert_eq!(first.await.expect("an answer"), "1");
        assert_eq!(second.await.expect("an answer"), "2");
        assert_eq!(
            work.one("4".into()).await.expect("there is room again"),
            "4"
        );
    })
    .await;
}

async fn the_least_recently_used_connection_makes_room(net: Net) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(net.serve(sized()).await);
    }
    let client = net.bind(limits(|limits| limits.connections = 2)).await;
    let ask = |server: usize| heap::at(&client, at(&servers[server])).one(number(1));
    for server in [0, 1, 0, 2] {
        ask(server).await.expect("an answer");
    }
    until(|| servers[1].metrics().connections_ended == 1).await;
    until(|| client.metrics().connections_ended == 1).await;
    assert_eq!(
        servers[0].metrics().connections_ended,
        0,
        "it was used later"
    );
    let metrics = client.metrics();
    assert_eq!(metrics.connections_opened, 3);
    // What the connection that was closed had carried still counts.
    assert_eq!((metrics.messages_sent, metrics.messages_received), (4, 4));
    ask(1).await.expect("it is connected again");
    assert_eq!(client.metrics().messages_sent, 5);
}

/// Answers once the gate was opened.
fn gated(gate: &Gate) -> Service {
    let gate = gate.clone();
    service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(request.respond(what).await?)
        }
    })
}

async fn a_connection_in_use_is_not_closed_for_another(net: Net) {
    let gate = Gate::new();
    let (busy, other) = (net.serve(gated(&gate)).await, net.serve(gated(&gate)).await);
    let client = net.bind(limits(|limits| limits.connections = 1)).await;
    let first = work::at(&client, at(&busy)).one("first".into());
    until(|| busy.load() == load(1, 0)).await;
    let refused = failure(work::at(&client, at(&other)).one("other".into()).await);
    assert!(matches!(refused, Failure::NotSent { .. }), "{refused}");
    let text = refused.to_string();
    assert!(
        text.contains("all 1 connections") && text.contains(&at(&other).to_string()),
        "{text}"
    );
    gate.open(1);
    assert_eq!(first.await.expect("an answer"), "first");
    gate.open(1);
    until(|| busy.load().is_idle()).await;
    assert_eq!(
        work::at(&client, at(&other))
            .one("other".into())
            .await
            .expect("there is room now"),
        "other"
    );
}

/// Its callers do not listen: their connections are the only way to answer them.
async fn a_server_with_all_connections_in_use_says_so(net: Net) {
    let gate = Gate::new();
    let server = net
        .bind(limits(|limits| limits.connections = 2).serve(gated(&gate)))
        .await;
    // The oldest connection has a request under way, the second one had one.
    let (first, second, third, fourth) = (client(), client(), client(), client());
    let waiting = work::at(&first, at(&server)).one("first".into());
    until(|| server.load() == load(1, 0)).await;
    second.connect(at(&server)).await.expect("there is room");
    until(|| server.metrics().connections_opened == 2).await;
    let also = work::at(&third, at(&server)).one("third".into());
    until(|| server.load() == load(2, 0)).await;
    until(|| second.metrics().connections_ended == 1).await;

    let refused = failure(work::at(&fourth, at(&server)).one("fourth".into()).await);
    assert!(matches!(refused, Failure::NotSent { .. }), "{refused}");
    assert!(
        refused.to_string().contains(&at(&server).to_string()),
        "{refused}"
    );
    gate.open(2);
    assert_eq!(waiting.await.expect("an answer"), "first");
    assert_eq!(also.await.expect("an answer"), "third");
    assert_eq!(server.metrics().undeliverable, 0);
}

async fn a_full_queue_is_a_status(net: Net) {
    let gate = Gate::new();
    let executor = ExecutorConfig {
        concurrency: 2,
        queue: 3,
        schedule: Schedule::Fifo,
    };
    let server = net
        .bind(Endpoint::builder().executor(executor).serve(gated(&gate)))
        .await;
    let client = client();
    let work = work::at(&client, at(&server));
    let mut taken = Vec::new();
    for number in 0..5 {
        taken.push(work.one(number.to_string()));
        until(|| server.metrics().requests_received == number + 1).await;
    }
    until(|| server.load() == load(2, 3)).await;
    let refused = status(work.one("one too many".into()).await);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.server(), server.address());
    assert!(
        refused
            .message()
            .contains("2 handlers run and 3 requests wait"),
        "{refused}"
    );
    assert_eq!(server.metrics().requests_refused, 1);
    gate.open(6);
    for (number, call) in taken.into_iter().enumerate() {
        assert_eq!(call.await.expect("an answer"), number.to_string());
    }
    assert_eq!(
        work.one("again".into()).await.expect("there is room again"),
        "again"
    );
    until(|| server.load().is_idle()).await;
}
