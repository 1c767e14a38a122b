//! Initiators that cannot be dialled: answers come back along the way the requests went, and nobody notices.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::raw::{Raw, hello, request};
use crate::common::{
    Net, all, at, failure, heap, load, patience, service, sorted, status, until, work,
};
use bytes::Bytes;
use wallaby::{
    Address, Builder, Code, DialPolicy, Endpoint, Failure, Limits, Many, One, Outcome, Request,
    Service, Status,
};
use wallaby_link::emulate;
use wallaby_proto::wire::{Message, Ping, Pong};

over_every_transport!(
    answers_come_back_over_two_and_three_levels,
    small_answers_of_one_server_come_back_in_order,
    an_address_that_cannot_be_dialled_is_no_obstacle,
    an_address_of_somebody_else_is_no_obstacle,
    who_is_connected_answers_directly,
    an_answer_too_large_for_the_initiator_is_a_status,
    statuses_and_silence_come_back_too,
    the_time_of_a_call_ends_if_its_way_back_is_gone,
    work_that_comes_back_to_the_first_server_is_answered_straight,
    work_that_comes_back_to_a_later_server_is_not_answered_by_a_detour,
    work_that_comes_back_again_and_again_is_not_either,
);

over_every_stream!(
    large_answers_come_back_too,
    an_answer_that_is_long_on_its_way_is_not_lost,
    an_initiator_that_is_far_away_is_answered_straight_once_it_is_reached,
);

/// It pings nobody before a test is long over: it would dial those behind the first server, and answers would come back
/// directly; or pongs would be passed on like answers.
fn patient() -> Builder {
    Endpoint::builder().ping(Duration::from_secs(60), Duration::from_secs(600))
}

async fn client() -> Endpoint {
    patient().bind().await.expect("there is a runtime")
}

/// Two servers: the second one hands the work back to the first one, which answers it.
async fn there_and_back(net: &Net) -> [Endpoint; 2] {
    let second = Arc::new(OnceLock::<Address>::new());
    let next = Arc::clone(&second);
    let first = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let next = Arc::clone(&next);
            async move {
                match what.strip_prefix("back: ") {
                    Some(what) => Ok(request.respond(what.to_owned()).await?),
                    None => {
                        let next = next.get().expect("it is known by now");
                        Ok(request.forward(next, work::one(what)).await?)
                    }
                }
            }
        },
    );
    let first = net.bind(patient().serve(first)).await;
    let to = at(&first);
    let back = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let to = to.clone();
            async move {
                let what = format!("back: {what}");
                Ok(request.forward(to, work::one(what)).await?)
            }
        },
    );
    let back = net.bind(patient().serve(back)).await;
    second.set(at(&back)).expect("once");
    [first, back]
}

/// The client has a connection with the first server.
async fn work_that_comes_back_to_the_first_server_is_answered_straight(net: Net) {
    let [first, back] = there_and_back(&net).await;
    let client = client().await;
    let answer = work::at(&client, at(&first)).one("round".into()).await;
    assert_eq!(answer.expect("it comes at once"), "round");
    assert_eq!(back.metrics().relayed, 0, "it does not go round");
}

/// The client has a connection only with one that is before the first server.
async fn work_that_comes_back_to_a_later_server_is_not_answered_by_a_detour(net: Net) {
    let [first, back] = there_and_back(&net).await;
    let front = net.bind(patient().serve(link(Some(at(&first))))).await;
    let client = client().await;
    let answer = work::at(&client, at(&front)).one("round".into()).await;
    assert_eq!(answer.expect("it comes at once"), "round");
    assert_eq!((front.metrics().relayed, back.metrics().relayed), (1, 0));
}

/// Of what comes as `2103: text` the first digit says which server is next.
fn itinerant(places: &Arc<OnceLock<Vec<Address>>>) -> Service {
    let places = Arc::clone(places);
    service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let places = Arc::clone(&places);
            async move {
                let Some(next) = what.chars().next().and_then(|digit| digit.to_digit(10)) else {
                    return Ok(request.respond(what).await?);
                };
                let next = &places.get().expect("all are bound")[next as usize];
                Ok(request
                    .forward(next, work::one(what[1..].to_owned()))
                    .await?)
            }
        },
    )
}

/// From the second server to two others, and back each time: all servers on the way have the work from it.
async fn work_that_comes_back_again_and_again_is_not_either(net: Net) {
    let places = Arc::new(OnceLock::new());
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(net.bind(patient().serve(itinerant(&places))).await);
    }
    let addresses = servers.iter().map(at).collect();
    places.set(addresses).expect("nobody else has");
    let client = client().await;
    let answer = work::at(&client, at(&servers[0]))
        .one("12131.".into())
        .await;
    assert_eq!(answer.expect("it comes at once"), ".");
    let relayed = servers.iter().map(|server| server.metrics().relayed);
    assert_eq!(relayed.collect::<Vec<_>>(), [1, 0, 0, 0]);
}

/// Answers by itself and hands the rest of its work on.
fn link(next: Option<Address>) -> Service {
    let (one, many, bytes) = (next.clone(), next.clone(), next);
    service()
        .method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = one.clone();
            async move {
                match next {
                    Some(next) => request.forward(next, work::one(what)).await?,
                    None => request.respond(what).await?,
                }
                Ok(())
            }
        })
        .method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let next = many.clone();
                async move {
                    if what == "nothing" && next.is_none() {
                        return Ok(());
                    }
                    for child in 0..2 {
                        let Some(next) = &next else { break };
                        request
                            .delegate(next, work::many(format!("{what}.{child}")))
                            .await?;
                    }
                    if what.contains("status") {
                        // What is held back would not be sent.
                        request.flush().await;
                        return Err(Status::new(Code::OutOfRange, what));
                    }
                    Ok(request.reply(what).await?)
                }
            },
        )
        .method(
            &heap::ONE,
            move |request: Request<One<_>, _>, (what,): (Bytes,)| {
                let next = bytes.clone();
                async move {
                    match next {
                        Some(next) => request.forward(next, heap::one(what)).await?,
                        None => request.respond(what).await?,
                    }
                    Ok(())
                }
            },
        )
}

/// Servers of which each knows the next; the first comes first.
async fn line(net: &Net, length: usize) -> Vec<Endpoint> {
    let mut servers: Vec<Endpoint> = Vec::new();
    for _ in 0..length {
        let next = servers.last().map(at);
        servers.push(net.serve(link(next)).await);
    }
    servers.reverse();
    servers
}

fn relayed(servers: &[Endpoint]) -> u64 {
    servers.iter().map(|server| server.metrics().relayed).sum()
}

async fn answers_come_back_over_two_and_three_levels(net: Net) {
    for length in [2, 3, 4] {
        let servers = line(&net, length).await;
        let client = client().await;
        let work = work::at(&client, at(&servers[0]));
        assert_eq!(work.one("hop".into()).await.expect("an answer"), "hop");
        assert_eq!(relayed(&servers), length as u64 - 1, "one relay a level");
        for _ in 0..5 {
            let (answers, statuses) = sorted(&mut work.many("r".into())).await;
            assert!(statuses.is_empty(), "{statuses:?}");
            assert_eq!(answers.len(), (1 << length) - 1);
        }
        assert_eq!(client.metrics().connections_opened, 1);
        assert!(
            servers
                .iter()
                .all(|server| server.metrics().undeliverable == 0)
        );
    }
}

async fn large_answers_come_back_too(net: Net) {
    let servers = line(&net, 3).await;
    let client = client().await;
    let payload = Bytes::from(
        (0..3_000_000u32)
            .map(|number| ((number * 7) >> 3) as u8)
            .collect::<Vec<_>>(),
    );
    let heap = heap::at(&client, at(&servers[0]));
    let calls: Vec<_> = (0..4).map(|_| heap.one(payload.clone())).collect();
    for call in calls {
        assert!(
            call.await.expect("an answer") == payload,
            "it came back as it was"
        );
    }
    assert_eq!(relayed(&servers), 8);
}

/// Its server has long written it, and the last relay has it: only that one can tell that nothing is lost.
async fn an_answer_that_is_long_on_its_way_is_not_lost(net: Net) {
    for length in [2, 3] {
        // At most 128 KiB are under way, and each time they are credited this late.
        let client = Endpoint::builder()
            .dial_policy(DialPolicy::default().only_if(|_| false))
            .ping(Duration::from_millis(100), Duration::from_millis(400));
        let client = emulate(client, Duration::from_millis(20), None).expect("a thread");
        let client = client.bind().await.expect("there is a runtime");
        let answer = Bytes::from(vec![7; 12_000_000]);
        let next = answer.clone();
        let large = service().method(&heap::MANY, move |request: Request<Many<_>, _>, (_,)| {
            let answer = next.clone();
            async move { Ok(request.respond(answer).await?) }
        });
        // It does not keep answers: asked for it again, it could not send it.
        let leaf = net
            .bind(Endpoint::builder().serve(large).remember(1000, 0))
            .await;
        let mut next = at(&leaf);
        let mut relays = Vec::new();
        for _ in 0..length - 1 {
            let onward = next.clone();
            let relay =
                service().method(&heap::MANY, move |request: Request<Many<_>, _>, (what,)| {
                    let next = onward.clone();
                    async move { Ok(request.forward(next, heap::many(what)).await?) }
                });
            relays.push(net.serve(relay).await);
            next = at(relays.last().expect("just added"));
        }
        let heap = heap::at(&client, &next);
        let begun = std::time::Instant::now();
        let mut call = heap.many(Bytes::new());
        let arrived = call.next().await.expect("an answer");
        assert!(
            arrived.expect("an answer") == answer,
            "it came back as it was"
        );
        assert!(
            begun.elapsed() > Duration::from_secs(1),
            "else nothing was slow"
        );
        assert_eq!(call.next().await, None);
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
        // Pongs of those behind a relay pass it, too, if there is time for any.
        assert!(relayed(&relays) >= relays.len() as u64);
    }
}

/// The handshake with it takes longer than an answer waits: the first answers come by the first server.
async fn an_initiator_that_is_far_away_is_answered_straight_once_it_is_reached(net: Net) {
    let client = emulate(patient(), Duration::from_millis(100), None).expect("a thread");
    let client = net.bind(client).await;
    let leaf =
        service().method(
            &work::ONE,
            |request: Request<One<_>>, (what,): (String,)| async move {
                Ok(request.respond(what).await?)
            },
        );
    let leaf = patient()
        .dial_back_timeout(Duration::from_millis(20))
        .serve(leaf);
    let leaf = net.bind(leaf).await;
    let to = at(&leaf);
    let first = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let to = to.clone();
        async move { Ok(request.forward(to, work::one(what)).await?) }
    });
    let first = net.serve(first).await;
    for number in ["1", "2", "3"] {
        let answer = work::at(&client, at(&first)).one(number.into()).await;
        assert_eq!(answer.expect("an answer"), number);
        assert_eq!(first.metrics().relayed, 1, "{number}");
    }
}

async fn small_answers_of_one_server_come_back_in_order(net: Net) {
    let leaf = service().method(&work::MANY, |request: Request<Many<_>>, (_,)| async move {
        for number in 0..1000 {
            request.reply(number.to_string()).await?;
        }
        Ok(())
    });
    let leaf = net.serve(leaf).await;
    let mut next = at(&leaf);
    let mut relays = Vec::new();
    for _ in 0..2 {
        let onward = next.clone();
        let relay = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let next = onward.clone();
            async move { Ok(request.forward(next, work::many(what)).await?) }
        });
        relays.push(net.serve(relay).await);
        next = at(relays.last().expect("just added"));
    }
    // With a window that is used up again and again, and with one that is not.
    for window in [5_000, 1_000_000] {
        let mut limits = Limits::default();
        limits.call = window;
        let client = patient().limits(limits).bind().await;
        let client = client.expect("there is a runtime");
        let mut work = work::at(&client, &next);
        if matches!(next, Address::Udp(_)) {
            work = work.in_order(); // datagrams overtake each other
        }
        let mut call = work.many(String::new());
        for number in 0..1000 {
            assert_eq!(call.next().await, Some(Ok(number.to_string())));
        }
        assert_eq!(call.next().await, None);
    }
}

async fn an_address_that_cannot_be_dialled_is_no_obstacle(net: Net) {
    let servers = line(&net, 3).await;
    let gone = net.endpoint().await;
    gone.close();
    // One of the addresses has a scheme that no server has a transport for.
    let others = ["tcp://127.0.0.1:1", "quic://example.org:443"];
    let others = others.map(|text| text.parse().expect("an address"));
    for nowhere in others.into_iter().chain([at(&gone)]) {
        let initiator = net
            .bind(Endpoint::builder().advertise(nowhere.clone()))
            .await;
        assert_eq!(initiator.address(), Some(&nowhere));
        let before = relayed(&servers);
        let (answers, statuses) =
            sorted(&mut work::at(&initiator, at(&servers[0])).many("r".into())).await;
        assert!(statuses.is_empty(), "{statuses:?}");
        assert_eq!(answers.len(), 7);
        assert!(relayed(&servers) > before);
    }
}

async fn an_address_of_somebody_else_is_no_obstacle(net: Net) {
    let servers = line(&net, 3).await;
    let other = net.endpoint().await;
    let initiator = net.bind(Endpoint::builder().advertise(at(&other))).await;
    let (answers, statuses) =
        sorted(&mut work::at(&initiator, at(&servers[0])).many("r".into())).await;
    assert!(statuses.is_empty(), "{statuses:?}");
    assert_eq!(answers.len(), 7);
    assert_eq!(other.metrics().responses_received, 0);
    assert_eq!(other.metrics().late_dropped, 0);
    // It has refused connections for whom it is not.
    assert_eq!(other.metrics().connections_opened, 0);
}

async fn who_is_connected_answers_directly(net: Net) {
    let servers = line(&net, 2).await;
    let client = client().await;
    client.connect(at(&servers[1])).await.expect("it listens");
    until(|| servers[1].metrics().connections_opened == 1).await;
    let work = work::at(&client, at(&servers[0]));
    // That it is the initiator is what it says. By the time it has shown the token of a call, it is known.
    let answer = work.one("relayed".into()).await;
    assert_eq!(answer.expect("an answer"), "relayed");
    assert_eq!(relayed(&servers), 1);
    until(|| servers[1].metrics().messages_received == 2).await; // the request, and the token
    let answer = work.one("direct".into()).await;
    assert_eq!(answer.expect("an answer"), "direct");
    assert_eq!(relayed(&servers), 1);

    // And who can be dialled is, once.
    let initiator = net.endpoint().await;
    for _ in 0..3 {
        work::at(&initiator, at(&servers[0]))
            .one("dialled".into())
            .await
            .expect("an answer");
    }
    assert_eq!(relayed(&servers), 1);
    assert_eq!(initiator.metrics().connections_opened, 2);
}

async fn an_answer_too_large_for_the_initiator_is_a_status(net: Net) {
    let servers = line(&net, 3).await;
    let mut limits = Limits::default();
    limits.message = 50_000;
    let narrow = Endpoint::builder()
        .limits(limits)
        .bind()
        .await
        .expect("there is a runtime");
    let next = at(&servers[1]);
    let root = service().method(&heap::ONE, move |request: Request<One<_>, _>, (_,)| {
        let next = next.clone();
        async move {
            Ok(request
                .forward(next, heap::one(Bytes::from(vec![0; 60_000])))
                .await?)
        }
    });
    let root = net.serve(root).await;
    let refused = status(heap::at(&narrow, at(&root)).one(Bytes::new()).await);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("50000"), "{refused}");
    // It is not the answer of the server that could not pass it on.
    assert_ne!(refused.server(), Some(&at(&root)), "{refused}");
    let relay = format!("says {}", at(&root));
    assert!(refused.message().contains(&relay), "{refused}");
}

async fn statuses_and_silence_come_back_too(net: Net) {
    let servers = line(&net, 3).await;
    let client = client().await;
    let work = work::at(&client, at(&servers[0]));
    let mut call = work.many("status".into());
    let (answers, statuses) = sorted(&mut call).await;
    assert!(answers.is_empty(), "{answers:?}");
    assert_eq!(statuses.len(), 7);
    assert!(
        statuses
            .iter()
            .all(|status| status.code() == Code::OutOfRange)
    );
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 7 }));
    let unknown = status(
        heap::at(&client, at(&servers[0]))
            .many(Bytes::new())
            .next()
            .await
            .expect("a status"),
    );
    assert_eq!(unknown.code(), Code::Unimplemented);

    let silent = net
        .serve(service().method(&work::MANY, |_, (_,)| async { Ok(()) }))
        .await;
    let next = at(&silent);
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
        let next = next.clone();
        async move { Ok(request.forward(next, work::many(what)).await?) }
    });
    let root = net.serve(root).await;
    let mut call = work::at(&client, at(&root)).many("nothing".into());
    assert!(all(&mut call).await.is_empty());
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

async fn the_time_of_a_call_ends_if_its_way_back_is_gone(net: Net) {
    let leaf = service().method(
        &work::ONE,
        |request: Request<One<String>>, (what,)| async move {
            request.cancelled().await;
            drop(what);
            Ok(())
        },
    );
    let leaf = net.serve(leaf).await;
    let next = at(&leaf);
    let root = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let next = next.clone();
        async move { Ok(request.forward(next, work::one(what)).await?) }
    });
    let root = net.serve(root).await;
    let client = client().await;
    let mut call = work::at(&client, at(&root))
        .deadline(Duration::from_millis(500))
        .one(String::new());
    until(|| leaf.load() == load(1, 0)).await;
    root.kill();
    let failed = failure(call.answer().await);
    assert!(
        matches!(failed, Failure::Lost(_) | Failure::Deadline { .. }),
        "{failed}"
    );
    assert!(
        failed.to_string().contains(&at(&root).to_string()),
        "{failed}"
    );
    // The leaf's status finds no way, which is counted.
    until(|| leaf.metrics().undeliverable == 1).await;
    until(|| leaf.load().is_idle()).await;
}

/// An initiator that reaches the first of three servers only, played by hand.
#[tokio::test]
async fn pings_and_aborts_go_on_to_servers_that_only_relays_reach() {
    patience(async {
        let net = Net::tcp();
        let leaf = service().method(
            &work::ONE,
            |request: Request<One<String>>, (_,)| async move {
                request.cancelled().await;
                Ok(())
            },
        );
        let mut servers = vec![net.serve(leaf).await];
        for _ in 0..2 {
            let next = at(servers.last().expect("there is one"));
            let relay = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
                let next = next.clone();
                async move { Ok(request.forward(next, work::one(what)).await?) }
            });
            servers.push(net.serve(relay).await);
        }
        let mut initiator = Raw::dial(&at(&servers[2]), hello(5)).await;
        let call = wallaby::CallId {
            initiator: wallaby::NodeId::new(5).expect("not zero"),
            sequence: 1,
        };
        let root = request(call, &[0]);
        let (token, id) = (root.token, root.id);
        initiator.send_request(root, work::ONE.definition()).await;
        until(|| servers[0].load() == load(1, 0)).await;
        let ping = Ping {
            call,
            token,
            request: wallaby::RequestId { hop: 2, ..id },
            abort: false,
            children_from: 0,
            missing: Vec::new(),
            shows: false,
        };
        initiator.send(Message::Ping(ping.clone())).await;
        let progress = loop {
            match initiator.message().await {
                Message::Pong(pong) if pong.request.hop == 2 => break pong.progress,
                Message::Pong(_) => {} // announced by a server on the way
                other => panic!("not a pong: {other:?}"),
            }
        };
        assert!(!progress.expect("it is known").finished);
        assert!(
            servers[1..]
                .iter()
                .all(|relay| relay.metrics().pings_relayed == 1)
        );

        let abort = Ping {
            abort: true,
            ..ping
        };
        initiator.send(Message::Ping(abort)).await;
        until(|| servers[0].load().is_idle()).await;
    })
    .await;
}

/// A server believes in an initiator as long as that pings it, also if it cannot reach it by itself.
#[tokio::test]
async fn a_server_that_only_a_relay_reaches_is_pinged_by_it() {
    patience(async {
        let net = Net::unix();
        let gate = crate::common::Gate::new();
        let open = gate.clone();
        let leaf = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = open.clone();
            async move {
                tokio::select! {
                    () = gate.pass() => Ok(request.respond(what).await?),
                    () = request.cancelled() => Ok(()),
                }
            }
        });
        let leaf = net.serve(leaf).await;
        let next = at(&leaf);
        let relay = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        });
        let relay = net.serve(relay).await;
        relay.connect(at(&leaf)).await.expect("it listens");
        let Address::Unix(path) = at(&leaf) else {
            panic!("another transport")
        };
        std::fs::remove_file(&*path).expect("nobody else finds it any more");
        let builder =
            Endpoint::builder().ping(Duration::from_millis(20), Duration::from_millis(100));
        let client = builder.bind().await.expect("there is a runtime");
        let call = work::at(&client, at(&relay)).one("late".into());
        // For longer than a server believes in an initiator that is silent: a period and two timeouts.
        until(|| relay.metrics().pings_relayed >= 15).await;
        assert_eq!(leaf.load(), load(1, 0), "it still runs");
        gate.open(1);
        assert_eq!(call.await.expect("an answer"), "late");
        assert_eq!(client.metrics().connections_opened, 1);
    })
    .await;
}

/// A relay passes on what it is given only towards whom it knows.
#[tokio::test]
async fn a_relay_does_not_send_answers_back() {
    patience(async {
        let net = Net::tcp();
        let servers = line(&net, 2).await;
        let client = client().await;
        work::at(&client, at(&servers[0]))
            .one("x".into())
            .await
            .expect("an answer");
        let initiator = client.node();
        client.close();
        until(|| servers[0].metrics().connections_ended == 1).await;
        let mut peer =
            crate::common::raw::Raw::dial(&at(&servers[0]), crate::common::raw::hello(5)).await;
        let call = wallaby::CallId {
            initiator,
            sequence: 1,
        };
        peer.send_response(crate::common::raw::response(
            call,
            Some(wallaby_proto::Token::new(1)),
            &[0],
        ))
        .await;
        until(|| servers[0].metrics().undeliverable == 1).await;
    })
    .await;
}

/// Answers for an initiator that was connected and is not any more go nowhere, however often servers met in its call.
#[tokio::test]
async fn ways_back_never_form_a_circle() {
    patience(async {
        let net = Net::tcp();
        let gate = crate::common::Gate::new();
        let open = gate.clone();
        // Two servers hand the work to each other twice; then the first of them waits and answers.
        let far: Arc<OnceLock<Address>> = Arc::default();
        let next = Arc::clone(&far);
        let near = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let (next, gate) = (Arc::clone(&next), open.clone());
            async move {
                if what == "......" {
                    gate.pass().await;
                    return Ok(request.respond(what).await?);
                }
                let next = next.get().expect("it is bound").clone();
                Ok(request.forward(next, work::one(what + "..")).await?)
            }
        });
        let builder = |service| {
            let builder = Endpoint::builder().serve(service);
            builder.wait_for_routes(16, 1024, Duration::from_millis(20))
        };
        let near = net.bind(builder(near)).await;
        let back = at(&near);
        let relay = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let back = back.clone();
            async move { Ok(request.forward(back, work::one(what)).await?) }
        });
        let relay = net.bind(builder(relay)).await;
        far.set(at(&relay)).expect("once");
        // It listens, it says, but nobody reaches it.
        let mut says = hello(5);
        says.address = Some("tcp://127.0.0.1:1".parse().expect("an address"));
        let mut initiator = Raw::dial(&at(&near), says).await;
        let call = wallaby::CallId {
            initiator: wallaby::NodeId::new(5).expect("not zero"),
            sequence: 1,
        };
        initiator
            .send_request(request(call, &[0]), work::ONE.definition())
            .await;
        until(|| near.metrics().requests_received == 4).await;
        drop(initiator);
        until(|| near.metrics().connections_ended == 1).await;
        gate.open(1);
        until(|| near.metrics().undeliverable + relay.metrics().undeliverable == 1).await;
        assert!(relayed(&[near, relay]) <= 1);
    })
    .await;
}

/// A server that was connected to an initiator passes answers on by another way once it is not.
#[tokio::test]
async fn a_connection_that_was_there_once_is_no_obstacle() {
    patience(async {
        let net = Net::tcp();
        let servers = line(&net, 3).await;
        let call = |sequence| wallaby::CallId {
            initiator: wallaby::NodeId::new(5).expect("not zero"),
            sequence,
        };
        for (index, server) in [&servers[1], &servers[0]].into_iter().enumerate() {
            let mut initiator = Raw::dial(&at(server), hello(5)).await;
            let request = request(call(index as u64 + 1), &[0]);
            let method = work::ONE.definition();
            initiator.send_request(request, method).await;
            loop {
                if let Message::Response(_) = initiator.message().await {
                    break;
                }
            }
            drop(initiator);
            until(|| server.metrics().connections_ended == 1).await;
        }
    })
    .await;
}

/// The initiator is itself the server that is asked: its pong comes back to it, with the token that tells it apart from
/// one of the relay's own.
#[tokio::test]
async fn a_pong_of_the_initiator_itself_comes_back() {
    patience(async {
        let net = Net::tcp();
        let servers = line(&net, 1).await;
        let mut initiator = Raw::dial(&at(&servers[0]), hello(5)).await;
        let call = wallaby::CallId {
            initiator: wallaby::NodeId::new(5).expect("not zero"),
            sequence: 1,
        };
        let root = request(call, &[0]);
        let (token, request) = (root.token, root.id);
        initiator.send_request(root, work::ONE.definition()).await;
        initiator.response().await;
        let pong = Pong {
            call,
            token: Some(token),
            distance: 0,
            request: wallaby::RequestId { hop: 1, ..request },
            attempt: 0,
            announced: false,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: None,
        };
        initiator.send(Message::Pong(pong.clone())).await;
        assert_eq!(initiator.message().await, Message::Pong(pong));
    })
    .await;
}

/// Nobody can dial `0.0.0.0`, so others are told an address that they can, where this host has one.
#[tokio::test]
async fn who_listens_at_all_addresses_is_answered_directly() {
    patience(async {
        for any in ["tcp://0.0.0.0:0", "udp://0.0.0.0:0"] {
            let net = Net::tcp();
            let leaf = net.serve(link(None)).await;
            let root = net.serve(link(Some(at(&leaf)))).await;
            let client = patient().listen(any).bind().await.expect("a free port");
            let told = client.address().map(ToString::to_string);
            let answer = work::at(&client, at(&root)).one("x".into()).await;
            assert_eq!(answer, Ok("x".into()), "{told:?}");
            // A host without networks has only its loopback address, which others must not be told.
            let networks = std::net::UdpSocket::bind("0.0.0.0:0").expect("a free port");
            let has_networks = networks.connect("192.0.2.1:9").is_ok();
            assert_eq!(told.is_some(), has_networks, "{told:?}");
            assert_eq!(root.metrics().relayed == 0, has_networks, "{told:?}");
            let cannot_be_dialled =
                |told: &String| told.contains("//0.0.0.0") || told.contains("//127.");
            assert!(!told.is_some_and(|told| cannot_be_dialled(&told)));
        }
        // Nor if that is what somebody wants to be told.
        let any: Address = "tcp://0.0.0.0:4000".parse().expect("an address");
        let client = Endpoint::builder().advertise(any.clone()).bind().await;
        assert_ne!(client.expect("a runtime").address(), Some(&any));
        let polling = wallaby::polling::Endpoint::builder().advertise(any.clone());
        let polling = polling.bind("udp://127.0.0.1:0").expect("a free port");
        assert_ne!(polling.address(), any);
    })
    .await;
}
