//! What handlers can do with a request, and what the initiator gets of it.

use std::pin::Pin;
use std::sync::Arc;

use crate::common::{
    Gate, Net, all, at, client, failure, load, patience, service, sorted, until, work,
};
use bytes::Bytes;
use futures_core::Stream;
use wallaby::{
    Address, CallError, Client, Endpoint, Failure, Many, One, Outcome, Request, SendError, Service,
    Status,
};

over_every_transport!(
    replies_arrive_in_order,
    delegations_and_replies_mix,
    trees_of_three_levels,
    a_line_of_forwards,
    nothing_is_an_answer_too,
    a_request_may_move_into_a_task,
    what_was_replied_before_a_wait_arrives_during_it,
    an_endpoint_serves_itself,
    an_initiator_may_be_a_server_of_its_own_call,
    a_call_may_have_many_roots,
);

/// Answers what it is asked, `many` times.
fn echo() -> Service {
    service()
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
        .method(
            &work::MANY,
            |request: Request<Many<_>>, (what,)| async move { Ok(request.respond(what).await?) },
        )
}

async fn replies_arrive_in_order(net: Net) {
    let server = service().method(
        &work::MANY,
        |request: Request<Many<_>>, (count,): (String,)| async move {
            for number in 0..count.parse::<u32>().expect("a number") {
                request.reply(number.to_string()).await?;
            }
            Ok(())
        },
    );
    let server = net.serve(server).await;
    let client = client();
    for count in [1, 2, 3, 500] {
        let mut call = work::at(&client, at(&server)).many(count.to_string());
        for number in 0..count {
            let answer = call.next().await.expect("more").expect("an answer");
            assert_eq!(answer, number.to_string());
        }
        assert!(call.next().await.is_none());
        assert!(call.next().await.is_none(), "the end stays the end");
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    }
}

async fn delegations_and_replies_mix(net: Net) {
    let leaf = net.serve(echo()).await;
    let (one, many) = (at(&leaf), at(&leaf));
    let root = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let (one, many) = (one.clone(), many.clone());
            async move {
                for letter in what.chars() {
                    match letter {
                        'r' => request.reply("reply".into()).await?,
                        'd' => {
                            request
                                .delegate(&many, work::many("delegated".into()))
                                .await?
                        }
                        'o' => request.delegate(&one, work::one("to one".into())).await?,
                        'f' => {
                            return Ok(request
                                .forward(&many, work::many("forwarded".into()))
                                .await?);
                        }
                        'a' => return Ok(request.respond("respond".into()).await?),
                        'y' => tokio::task::yield_now().await,
                        _ => request.flush().await,
                    }
                }
                Ok(())
            }
        },
    );
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    for what in [
        "r",
        "d",
        "o",
        "f",
        "a",
        "rd",
        "dr",
        "dd",
        "rf",
        "df",
        "da",
        "ra",
        "of",
        "rdrd",
        "drdr",
        "ddf",
        "rrf",
        "dda",
        "ryd",
        "dyr",
        "dyd",
        "dyf",
        "ryf",
        "rya",
        "dya",
        "ry",
        "dy",
        "dlr",
        "rld",
        "dld",
        "dlf",
        "dl",
        "y",
        "l",
        "yd",
        "ldlr",
        "rydyrydya",
    ] {
        let mut call = work::at(&endpoint, at(&root)).many(what.into());
        let (answers, statuses) = sorted(&mut call).await;
        let mut expected: Vec<_> = what
            .chars()
            .filter_map(|letter| match letter {
                'r' => Some("reply"),
                'd' => Some("delegated"),
                'o' => Some("to one"),
                'f' => Some("forwarded"),
                'a' => Some("respond"),
                _ => None,
            })
            .collect();
        expected.sort_unstable();
        assert!(statuses.is_empty(), "{what}: {statuses:?}");
        assert_eq!(answers, expected, "{what}");
        assert_eq!(
            call.outcome(),
            Some(Outcome::Complete { statuses: 0 }),
            "{what}"
        );
    }
}

/// Delegates to itself and to its like: `3` is three levels of three children, each of which replies as well.
fn tree(peers: Arc<std::sync::OnceLock<Vec<Address>>>) -> Service {
    service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let peers = Arc::clone(&peers);
            async move {
                let (levels, path) = what.split_once(' ').expect("levels and a path");
                let levels: usize = levels.parse().expect("a number");
                if levels > 0 {
                    for (child, server) in peers.get().expect("set").iter().enumerate() {
                        let what = format!("{} {path}.{child}", levels - 1);
                        request.delegate(server, work::many(what)).await?;
                    }
                }
                request.reply(path.to_owned()).await?;
                Ok(())
            }
        },
    )
}

async fn trees_of_three_levels(net: Net) {
    let peers = Arc::new(std::sync::OnceLock::new());
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(net.serve(tree(Arc::clone(&peers))).await);
    }
    peers
        .set(servers.iter().map(at).collect())
        .expect("set once");
    let endpoint = net.endpoint().await;
    for (levels, nodes) in [(0, 1), (1, 4), (2, 13), (3, 40)] {
        let mut call = work::at(&endpoint, at(&servers[0])).many(format!("{levels} r"));
        let (mut answers, statuses) = sorted(&mut call).await;
        assert!(statuses.is_empty(), "{statuses:?}");
        assert_eq!(answers.len(), nodes);
        answers.dedup();
        assert_eq!(answers.len(), nodes, "every place in the tree answers once");
    }
}

async fn a_line_of_forwards(net: Net) {
    let mut next: Option<Endpoint> = None;
    let mut line = Vec::new();
    for _ in 0..5 {
        let (one, many) = (next.as_ref().map(at), next.as_ref().map(at));
        let server = service()
            .method(
                &work::ONE,
                move |request: Request<One<_>>, (what,): (String,)| {
                    let next = one.clone();
                    async move {
                        let what = what + "!";
                        match next {
                            Some(next) => request.forward(next, work::one(what)).await?,
                            None => request.respond(what).await?,
                        }
                        Ok(())
                    }
                },
            )
            .method(
                &work::MANY,
                move |request: Request<Many<_>>, (what,): (String,)| {
                    let next = many.clone();
                    async move {
                        request.reply(what.clone()).await?;
                        let what = what + "!";
                        match next {
                            Some(next) => request.forward(next, work::many(what)).await?,
                            None => request.respond(what).await?,
                        }
                        Ok(())
                    }
                },
            );
        let server = net.serve(server).await;
        line.push(server.clone());
        next = Some(server);
    }
    let endpoint = net.endpoint().await;
    let work = work::at(&endpoint, at(&line[4]));
    assert_eq!(work.one("hop".into()).await.expect("an answer"), "hop!!!!!");
    let (answers, _) = sorted(&mut work.many("hop".into())).await;
    assert_eq!(
        answers,
        ["hop", "hop!", "hop!!", "hop!!!", "hop!!!!", "hop!!!!!"]
    );
}

async fn nothing_is_an_answer_too(net: Net) {
    let nobody = net
        .serve(service().method(&work::MANY, |_, (_,)| async { Ok(()) }))
        .await;
    let leaf = at(&nobody);
    let root = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let leaf = leaf.clone();
            async move {
                for _ in 0..what.parse().expect("a number") {
                    request.delegate(&leaf, work::many(String::new())).await?;
                }
                Ok(())
            }
        },
    );
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    for delegations in 0..4 {
        let mut call = work::at(&endpoint, at(&root)).many(delegations.to_string());
        assert!(all(&mut call).await.is_empty());
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    }
    let client = client();
    let mut call = work::at(&client, at(&nobody)).many(String::new());
    assert!(call.next().await.is_none());
}

async fn a_request_may_move_into_a_task(net: Net) {
    let leaf = net.serve(echo()).await;
    let gate = Gate::new();
    let (address, opened) = (at(&leaf), gate.clone());
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let (leaf, gate) = (address.clone(), opened.clone());
        async move {
            tokio::spawn(async move {
                gate.pass().await;
                request
                    .reply("first".into())
                    .await
                    .expect("the request goes on");
                gate.pass().await;
                request
                    .delegate(leaf, work::many("second".into()))
                    .await
                    .expect("the request goes on");
                gate.pass().await;
                drop(request);
            });
            Ok(())
        }
    });
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    let mut call = work::at(&endpoint, at(&root)).many(String::new());
    for expected in ["first", "second"] {
        gate.open(1);
        let answer = call.next().await.expect("it goes on").expect("an answer");
        assert_eq!(answer, expected);
        assert_eq!(call.outcome(), None, "the request has not ended");
    }
    assert!(root.load().is_idle(), "the handler is done");
    gate.open(1);
    assert!(call.next().await.is_none());
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

async fn what_was_replied_before_a_wait_arrives_during_it(net: Net) {
    let gate = Gate::new();
    let waits = gate.clone();
    let leaf_server = net.serve(echo()).await;
    let leaf = at(&leaf_server);
    let server = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let (gate, leaf) = (waits.clone(), leaf.clone());
            async move {
                match &*what {
                    "reply" => request.reply("ready".into()).await?,
                    "delegate" => request.delegate(leaf, work::many("ready".into())).await?,
                    "flush" => {
                        request.reply("ready".into()).await?;
                        request.flush().await;
                    }
                    _ => tokio::spawn(async move { request.reply("ready".into()).await })
                        .await
                        .expect("no panic")?,
                }
                gate.pass().await;
                Ok(())
            }
        },
    );
    let server = net.serve(server).await;
    let endpoint = net.endpoint().await;
    for what in ["reply", "delegate", "flush", "task"] {
        let mut call = work::at(&endpoint, at(&server)).many(what.into());
        let ready = call.next().await.expect("it arrives").expect("an answer");
        assert_eq!(ready, "ready", "{what}");
        gate.open(1);
        assert!(call.next().await.is_none());
    }
}

async fn an_endpoint_serves_itself(net: Net) {
    let both = net.serve(echo()).await;
    let work = work::at(&both, at(&both));
    assert_eq!(work.one("me".into()).await.expect("an answer"), "me");
    let (answers, _) = sorted(&mut work.many("me".into())).await;
    assert_eq!(answers, ["me"]);
}

/// The initiator delegates on within its own call, directly and after a detour.
async fn an_initiator_may_be_a_server_of_its_own_call(net: Net) {
    let leaf_server = net.serve(echo()).await;
    let leaf = at(&leaf_server);
    let through = |next: Address| {
        service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let next = next.clone();
            async move {
                request.delegate(&next, work::many(what)).await?;
                Ok(request.respond("passed on".into()).await?)
            }
        })
    };
    let me = net.serve(through(leaf)).await;
    let detour = net.serve(through(at(&me))).await;

    let (answers, _) = sorted(&mut work::at(&me, at(&me)).many("direct".into())).await;
    assert_eq!(answers, ["direct", "passed on"]);
    let (answers, _) = sorted(&mut work::at(&me, at(&detour)).many("detour".into())).await;
    assert_eq!(answers, ["detour", "passed on", "passed on"]);
    assert_eq!(me.metrics().forged_dropped, 0);
}

async fn a_call_may_have_many_roots(net: Net) {
    let servers = [net.serve(echo()).await, net.serve(echo()).await];
    let endpoint = net.endpoint().await;
    let method = work::MANY.definition();
    let payload = |text: &'static str| work_payload(text);
    let mut call = endpoint.caller().begin();
    for (server, text) in servers.iter().zip(["a", "b"]) {
        call.send(at(server), method, payload(text))
            .await
            .expect("it is sent");
    }
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(call.next().await.expect("more").expect("an answer").payload);
    }
    // All answers are there, but the initiator may still send.
    assert_eq!(call.outcome(), None);
    call.send(at(&servers[0]), method, payload("c"))
        .await
        .expect("it is sent");
    call.close();
    while let Some(answer) = call.next().await {
        answers.push(answer.expect("an answer").payload);
    }
    answers.sort();
    assert_eq!(answers, ["a", "b", "c"].map(payload));
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

/// A string as postcard writes it.
fn work_payload(text: &str) -> Bytes {
    let mut payload = vec![text.len() as u8];
    payload.extend(text.bytes());
    payload.into()
}

#[tokio::test]
async fn a_call_without_requests_completes_when_it_is_closed() {
    let endpoint = client();
    let mut call = endpoint.caller().begin();
    assert_eq!(call.outcome(), None);
    call.close();
    assert!(call.next().await.is_none());
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

#[tokio::test]
async fn a_call_is_a_stream() {
    patience(async {
        let net = Net::mem();
        let server = net.serve(echo()).await;
        let client = client();
        let mut call = work::at(&client, at(&server)).many("item".into());
        let mut items = Vec::new();
        while let Some(item) = std::future::poll_fn(|cx| Pin::new(&mut call).poll_next(cx)).await {
            items.push(item.expect("an answer"));
        }
        assert_eq!(items, ["item"]);
    })
    .await;
}

#[tokio::test]
async fn collect_returns_all_or_the_first_error() {
    patience(async {
        let net = Net::mem();
        let server = service().method(
            &work::MANY,
            |request: Request<Many<_>>, (what,): (String,)| async move {
                request.reply("a".into()).await?;
                request.reply("b".into()).await?;
                if what == "fail" {
                    Err(Status::new(wallaby::Code::Aborted, "no more"))
                } else {
                    Ok(())
                }
            },
        );
        let server = net.serve(server).await;
        let client = client();
        let work = work::at(&client, at(&server));
        assert_eq!(
            work.many(String::new()).collect().await.expect("all"),
            ["a", "b"]
        );
        let error = work
            .many("fail".into())
            .collect()
            .await
            .expect_err("the status");
        assert_eq!(
            error.status().expect("a status").code(),
            wallaby::Code::Aborted
        );
        let all = work.many("fail".into()).collect_all().await;
        assert_eq!(
            all.answers,
            ["a"],
            "what was held back when the handler failed was not sent"
        );
        assert_eq!(
            all.errors.iter().map(CallError::code).collect::<Vec<_>>(),
            [wallaby::Code::Aborted]
        );
        assert!(!all.is_complete());
        assert!(work.many(String::new()).collect_all().await.is_complete());
    })
    .await;
}

#[tokio::test]
async fn a_request_that_has_ended_takes_nothing() {
    patience(async {
        let net = Net::mem();
        let (sent, mut results) = tokio::sync::mpsc::unbounded_channel();
        let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let sent = sent.clone();
            async move {
                let stopped = request.cancelled();
                stopped.await;
                sent.send(request.reply("late".into()).await)
                    .expect("the test listens");
                sent.send(request.try_reply("late".into()))
                    .expect("the test listens");
                sent.send(request.respond("late".into()).await)
                    .expect("the test listens");
                Ok(())
            }
        });
        let server = net.serve(server.shielded()).await;
        let client = client();
        let call = work::at(&client, at(&server)).many(String::new());
        until(|| server.load() == load(1, 0)).await;
        drop(call);
        for _ in 0..3 {
            let result = results.recv().await.expect("three results");
            let Err(SendError::Ended(why)) = result else {
                panic!("sent: {result:?}")
            };
            assert!(why.contains("aborted"), "{why}");
        }
    })
    .await;
}

/// A method of any name can be called with bytes, and a server of bytes sees what was sent.
#[tokio::test]
async fn the_untyped_layer_is_complete() {
    patience(async {
        let net = Net::mem();
        let method =
            Arc::new(wallaby::MethodDefinition::new("raw/anything", "raw", 0, 0).expect("a name"));
        let other = Arc::clone(&method);
        let leaf_server = net
            .serve(service().raw(
                Arc::clone(&method),
                |request: wallaby::RawRequest| async move {
                    let payload = request.payload().clone();
                    assert_eq!(request.method(), "raw/anything");
                    assert_eq!(request.depth(), 1);
                    Ok(request.respond(payload).await?)
                },
            ))
            .await;
        let leaf = at(&leaf_server);
        let root = net
            .serve(
                service().raw(Arc::clone(&method), move |request: wallaby::RawRequest| {
                    let (leaf, method) = (leaf.clone(), Arc::clone(&other));
                    async move {
                        let payload = request.payload().clone();
                        assert_eq!(request.depth(), 0);
                        request.reply("from the root".into()).await?;
                        Ok(request.forward(leaf, &method, payload).await?)
                    }
                }),
            )
            .await;
        let endpoint = net.endpoint().await;
        let mut call =
            Client::new(&endpoint, at(&root)).call_raw(&method, Bytes::from_static(b"\x00\xff"));
        let mut answers = Vec::new();
        while let Some(answer) = call.next().await {
            answers.push(answer.expect("an answer").payload);
        }
        answers.sort();
        assert_eq!(
            answers,
            [Bytes::from_static(b"\x00\xff"), "from the root".into()]
        );
    })
    .await;
}

/// What an endpoint has begun fails when it is closed, and so does what begins later.
#[tokio::test]
async fn calls_of_a_closed_endpoint_fail() {
    patience(async {
        let net = Net::mem();
        let server = service().method(
            &work::ONE,
            |request: Request<One<String>>, (_,)| async move {
                request.cancelled().await;
                Ok(())
            },
        );
        let server = net.serve(server).await;
        let client = client();
        let mut call = work::at(&client, at(&server)).one(String::new());
        until(|| server.load() == load(1, 0)).await;
        client.close();
        assert_eq!(failure(call.answer().await), Failure::Closed);
        let late = work::at(&client, at(&server)).one(String::new());
        assert_eq!(failure(late.await), Failure::Closed);
    })
    .await;
}

/// Several tasks answer the same request at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_may_be_shared() {
    patience(async {
        let net = Net::tcp();
        let leaf_server = net.serve(echo()).await;
        let leaf = at(&leaf_server);
        let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let leaf = leaf.clone();
            async move {
                let request = Arc::new(request);
                for task in 0..8 {
                    let (request, leaf) = (Arc::clone(&request), leaf.clone());
                    tokio::spawn(async move {
                        for number in 0..50 {
                            let what = format!("{task} {number}");
                            if number % 10 == task {
                                let target = work::many(what);
                                request.delegate(&leaf, target).await.expect("it goes on");
                            } else {
                                request.reply(what).await.expect("it goes on");
                            }
                        }
                    });
                }
                Ok(())
            }
        });
        let server = net.serve(server).await;
        let endpoint = net.endpoint().await;
        for _ in 0..10 {
            let mut call = work::at(&endpoint, at(&server)).many(String::new());
            let (mut answers, statuses) = sorted(&mut call).await;
            assert!(statuses.is_empty(), "{statuses:?}");
            assert_eq!(answers.len(), 400);
            answers.dedup();
            assert_eq!(answers.len(), 400, "each answer comes once");
            assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
        }
    })
    .await;
}

/// A call that lives long is found among thousands that come and go.
#[tokio::test]
async fn a_long_call_outlives_many_short_ones() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let opened = gate.clone();
        let server = service()
            .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
                Ok(request.respond(what).await?)
            })
            .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
                let gate = opened.clone();
                async move {
                    gate.pass().await;
                    Ok(request.respond(what).await?)
                }
            });
        let server = net.serve(server).await;
        let client = client();
        let work = work::at(&client, at(&server));
        let mut long = Vec::new();
        for round in 0..3 {
            long.push(work.many(round.to_string()));
            for number in 0..2500 {
                assert_eq!(work.one(number.to_string()).await, Ok(number.to_string()));
            }
        }
        let aborted = long.remove(1);
        drop(aborted);
        gate.open(3);
        for (call, expected) in long.iter_mut().zip(["0", "2"]) {
            assert_eq!(sorted(call).await.0, [expected]);
        }
        assert_eq!(client.metrics().calls_started, 7503);
        assert_eq!(client.metrics().calls_completed, 7502);
    })
    .await;
}

/// Thousands at the same time.
#[tokio::test]
async fn many_calls_share_a_connection() {
    patience(async {
        let net = Net::unix();
        let server = net.serve(echo()).await;
        let client = client();
        let work = work::at(&client, at(&server));
        let calls: Vec<_> = (0..5000)
            .map(|number| work.one(number.to_string()))
            .collect();
        for (number, call) in calls.into_iter().enumerate().rev() {
            assert_eq!(call.await, Ok(number.to_string()));
        }
        assert_eq!(client.metrics().connections_opened, 1);
    })
    .await;
}

#[tokio::test]
async fn a_client_keeps_its_endpoint_open_and_a_call_does_not() {
    patience(async {
        let net = Net::mem();
        let server = net.serve(echo()).await;
        let endpoint = client();
        let work = work::at(&endpoint, at(&server));
        drop(endpoint);
        assert_eq!(work.one("x".into()).await, Ok("x".into()));
        let silent = net
            .serve(service().method(
                &work::ONE,
                |request: Request<One<String>>, (_,)| async move {
                    request.cancelled().await;
                    Ok(())
                },
            ))
            .await;
        let endpoint = client();
        let mut call = work::at(&endpoint, at(&silent)).one("x".into());
        until(|| silent.load() == load(1, 0)).await;
        drop(endpoint);
        assert_eq!(failure(call.answer().await), Failure::Closed);
        // Its server learns of it.
        until(|| silent.load().is_idle()).await;
    })
    .await;
}
