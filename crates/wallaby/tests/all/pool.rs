//! Connections: one per server, reused, replaced when a server comes back, and what calls see when it does not.

use std::sync::Arc;
use std::time::Duration;

use crate::common::raw::{Raw, hello, request, response};
use crate::common::{
    Gate, Net, all, at, client, failure, load, patience, service, sorted, status, until, work,
};
use tokio::net::TcpListener;
use wallaby::{
    Address, CallId, Code, ConnectError, Endpoint, Executed, Failure, FailureKind, Limits, Many,
    One, Outcome, Request, ServeError, Service,
};
use wallaby_proto::carrier::Carrier;

over_every_transport!(
    one_connection_serves_all_calls_to_a_server,
    an_address_is_free_as_soon_as_its_endpoint_is_closed,
    what_a_service_holds_is_free_when_its_endpoint_is_closed,
    answers_for_a_former_life_never_reach_the_next,
    a_call_whose_server_is_gone_fails,
    what_arrived_before_the_end_is_delivered,
    a_server_that_is_not_there_is_named,
    a_delegation_to_a_server_that_is_not_there_is_a_status,
    the_limit_holds_for_dials_at_the_same_time,
    both_sides_notice_the_end,
);

// Over UDP a session may have been opened to the dying life once more: `udp.rs` has a test of its own.
over_every_stream!(a_server_may_come_back_as_another_life,);

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

/// Never answers.
fn mute() -> Service {
    service().method(
        &work::ONE,
        |request: Request<One<String>>, (_,)| async move {
            request.cancelled().await;
            Ok(())
        },
    )
}

async fn again(address: &Address, service: Service) -> Endpoint {
    let builder = Endpoint::builder()
        .listen(&address.to_string())
        .serve(service);
    builder.bind().await.expect("the address is free again")
}

/// Where nobody listens.
async fn nowhere(net: &Net) -> Address {
    let endpoint = net.endpoint().await;
    endpoint.close();
    at(&endpoint)
}

async fn one_connection_serves_all_calls_to_a_server(net: Net) {
    let server = net.serve(echo()).await;
    let client = client();
    let work = work::at(&client, at(&server));
    let calls: Vec<_> = (0..50).map(|number| work.one(number.to_string())).collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.expect("an answer"), number.to_string());
    }
    client.connect(at(&server)).await.expect("it is connected");
    assert_eq!(client.metrics().connections_opened, 1);
    assert_eq!(server.metrics().connections_opened, 1);
    assert_eq!(server.metrics().requests_received, 50);
}

async fn an_address_is_free_as_soon_as_its_endpoint_is_closed(net: Net) {
    let first = net.serve(echo()).await;
    let address = at(&first);
    let taken = Endpoint::bind(&address.to_string())
        .await
        .expect_err("the address is taken");
    assert!(taken.to_string().contains(&address.to_string()), "{taken}");
    first.kill();
    let second = again(&address, echo()).await;
    assert_ne!(first.node(), second.node());
    drop(second);
    let third = again(&address, echo()).await;
    let client = client();
    let answer = work::at(&client, at(&third)).one("third".into()).await;
    assert_eq!(answer.expect("it listens"), "third");
}

/// A service that holds its own endpoint, as one does that tells the endpoint's counts, must not keep itself alive.
async fn what_a_service_holds_is_free_when_its_endpoint_is_closed(net: Net) {
    let endpoint = net.endpoint().await;
    let held = Arc::new(());
    let own = (endpoint.clone(), Arc::clone(&held));
    let service = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let own = own.clone();
        async move {
            let _in_use = own;
            Ok(request.respond(what).await?)
        }
    });
    endpoint.serve(service).expect("nothing else is served");
    let client = client();
    let answer = work::at(&client, at(&endpoint)).one("once".into()).await;
    assert_eq!(answer.expect("it serves"), "once");
    until(|| endpoint.load().is_idle()).await;
    endpoint.close();
    until(|| Arc::strong_count(&held) == 1).await;
    assert_eq!(endpoint.serve(echo()), Err(ServeError::Closed));
}

/// One lets itself be dialled and says nothing.
#[tokio::test]
async fn a_server_that_hangs_holds_up_no_delegation_to_another() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let hangs = Address::Tcp(listener.local_addr().expect("it listens"));
        let net = Net::tcp();
        let server = net.serve(echo()).await;
        let shards = [hangs.clone(), at(&server), hangs, at(&server)];
        let scatter = move |request: Request<Many<String>>, (what,): (String,)| {
            let shards = shards.clone();
            async move {
                for shard in shards {
                    request.delegate(shard, work::many(what.clone())).await?;
                }
                Ok(())
            }
        };
        let front = Endpoint::builder().dial_timeout(Duration::from_secs(3600));
        let front = front.serve(service().method(&work::MANY, scatter));
        let front = net.bind(front).await;
        let client = client();
        let mut call = work::at(&client, at(&front)).many("here".into());
        for _ in 0..2 {
            let answer = call.next().await.expect("an answer");
            assert_eq!(answer.expect("no status"), "here");
        }
    })
    .await;
}

async fn a_server_may_come_back_as_another_life(net: Net) {
    let first = net.serve(mute()).await;
    let address = at(&first);
    let client = client();
    let mut old = work::at(&client, &address).one("old".into());
    until(|| first.load() == load(1, 0)).await;
    first.kill();
    let second = again(&address, echo()).await;
    // Over UDP it may have asked the dying one once more, and more than one have ended.
    until(|| client.metrics().connections_ended >= 1).await;
    let new = work::at(&client, &address).one("new".into()).await;
    assert_eq!(new.expect("the new life answers"), "new");
    let lost = failure(old.answer().await);
    let Failure::Lost(loss) = &lost else {
        panic!("another failure: {lost}")
    };
    assert_eq!(loss.server.address.as_ref(), Some(&address));
    assert_eq!(loss.server.node, Some(first.node()));
    // So long at least: where the work might have gone on, that would have shown by then.
    let FailureKind::Silent { silence, .. } = loss.kind else {
        panic!("another kind: {lost}")
    };
    assert!(silence.as_millis() >= 100, "{silence:?}");
    // That the handler had begun is what its server could have told.
    assert_eq!(loss.executed, Executed::Unknown);
    assert_eq!(
        second.metrics().requests_received,
        1,
        "no request is sent twice"
    );
}

async fn a_call_whose_server_is_gone_fails(net: Net) {
    let server = net.serve(mute()).await;
    let client = client();
    let mut call = work::at(&client, at(&server)).one(String::new());
    until(|| server.load() == load(1, 0)).await;
    server.kill();
    let lost = failure(call.answer().await);
    assert!(matches!(lost, Failure::Lost(_)), "{lost}");
    assert!(
        lost.to_string().contains(&at(&server).to_string()),
        "{lost}"
    );
    assert_eq!(call.outcome(), Some(Outcome::Failed(lost)));
}

async fn what_arrived_before_the_end_is_delivered(net: Net) {
    let gate = Gate::new();
    let opened = gate.clone();
    let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let gate = opened.clone();
        async move {
            for word in ["these", "are", "my", "last", "words"] {
                request.reply(word.into()).await?;
            }
            request.flush().await;
            gate.open(1);
            request.cancelled().await;
            Ok(())
        }
    });
    let server = net.serve(server).await;
    let client = client();
    let work = work::at(&client, at(&server)).deadline(Duration::from_millis(500));
    let mut call = work.many(String::new());
    gate.pass().await;
    server.kill();
    let mut items = all(&mut call).await;
    let lost = failure(items.pop().expect("the failure"));
    assert!(
        lost.to_string().contains(&at(&server).to_string()),
        "{lost}"
    );
    let words: Vec<_> = items
        .into_iter()
        .map(|item| item.expect("an answer"))
        .collect();
    assert_eq!(words, ["these", "are", "my", "last", "words"]);
}

async fn a_server_that_is_not_there_is_named(net: Net) {
    let nowhere = nowhere(&net).await;
    let client = client();
    let mut call = work::at(&client, &nowhere).one(String::new());
    let failed = failure(call.answer().await);
    let Failure::NotSent {
        error: ConnectError::Refused { server, .. },
        ..
    } = &failed
    else {
        panic!("another failure: {failed}");
    };
    assert_eq!(*server, nowhere);
    assert!(
        failed.to_string().contains(&nowhere.to_string()),
        "{failed}"
    );
    let error = client.connect(&nowhere).await.expect_err("nobody is there");
    assert!(error.to_string().contains(&nowhere.to_string()), "{error}");

    // As soon as somebody is there, calls arrive.
    let server = again(&nowhere, echo()).await;
    assert_eq!(
        work::at(&client, at(&server))
            .one("x".into())
            .await
            .expect("an answer"),
        "x"
    );
}

async fn a_delegation_to_a_server_that_is_not_there_is_a_status(net: Net) {
    let nowhere = nowhere(&net).await;
    let (one, many) = (nowhere.clone(), nowhere.clone());
    let root = service()
        .method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = one.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        })
        .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let next = many.clone();
            async move {
                request.delegate(&next, work::many(what)).await?;
                request.reply("but I am here".into()).await?;
                request.try_delegate(&next, work::many(String::new()))?;
                Ok(())
            }
        });
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    let work = work::at(&endpoint, at(&root));
    let gone = status(work.one(String::new()).await);
    assert_eq!(
        (gone.code(), gone.server()),
        (Code::Unavailable, Some(&nowhere))
    );
    assert!(gone.message().contains(&nowhere.to_string()), "{gone}");

    let mut call = work.many(String::new());
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!(answers, ["but I am here"]);
    assert_eq!(statuses.len(), 2);
    for status in &statuses {
        assert_eq!(
            (status.code(), status.server()),
            (Code::Unavailable, Some(&nowhere))
        );
    }
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 2 }));
}

async fn the_limit_holds_for_dials_at_the_same_time(net: Net) {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(net.serve(mute()).await);
    }
    let mut limits = Limits::default();
    limits.connections = 2;
    let client = net.bind(Endpoint::builder().limits(limits)).await;
    let mut calls: Vec<_> = servers
        .iter()
        .map(|server| work::at(&client, at(server)).one(String::new()))
        .collect();
    let refused = |call: &wallaby::Call<_>| {
        matches!(
            call.outcome(),
            Some(Outcome::Failed(Failure::NotSent { .. }))
        )
    };
    until(|| calls.iter().filter(|call| refused(call)).count() == 2).await;
    until(|| {
        servers
            .iter()
            .filter(|server| server.load() == load(1, 0))
            .count()
            == 2
    })
    .await;
    assert_eq!(client.metrics().connections_opened, 2);
    for call in calls.iter_mut().filter(|call| refused(call)) {
        let text = failure(call.answer().await).to_string();
        assert!(text.contains("all 2 connections are in use"), "{text}");
    }
}

async fn both_sides_notice_the_end(net: Net) {
    let server = net.serve(echo()).await;
    let clients = [client(), client()];
    for client in &clients {
        work::at(client, at(&server))
            .one(String::new())
            .await
            .expect("an answer");
    }
    let [first, second] = clients;
    drop(first);
    until(|| server.metrics().connections_ended == 1).await;
    server.close();
    until(|| second.metrics().connections_ended == 1).await;
    let metrics = second.metrics();
    assert_eq!((metrics.messages_sent, metrics.messages_received), (1, 1));
}

/// What a peer that goes away has got it still answers; what waits for credit moves, as no byte of it was written.
#[tokio::test]
async fn what_was_not_written_moves_when_the_peer_goes_away() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = Address::Tcp(listener.local_addr().expect("it is bound"));
        let mut narrow = hello(1);
        narrow.limits.requests = 10;
        let client = client();
        let work = work::at(&client, &address);
        let first = work.one("first".into());
        let mut leaving = Raw::accept(&listener, narrow).await;
        let answered = leaving.request().await;
        let second = work.one("second".into());
        leaving.connection.go_away();
        leaving.flush().await;
        let mut other = Raw::accept(&listener, hello(1)).await;
        let moved = other.request().await;
        assert_eq!(&moved.payload[..], b"\x06second");
        other
            .send_response(response(moved.call, None, b"\x04here"))
            .await;
        assert_eq!(second.await.expect("an answer"), "here");
        leaving
            .send_response(response(answered.call, None, b"\x04late"))
            .await;
        assert_eq!(first.await.expect("an answer"), "late");
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_that_was_closed_opens_no_connection() {
    patience(async {
        let net = Net::mem();
        let server = net.serve(echo()).await;
        let client = client();
        client.close();
        let error = client.connect(at(&server)).await.expect_err("it is closed");
        assert!(error.to_string().contains("closed"), "{error}");
        assert_eq!(server.metrics().connections_opened, 0);
    })
    .await;
}

/// An initiator is gone, and another life listens at its address. What was meant for the one does not reach the other, and
/// its server learns that at once: nothing is sent before the other side has proven who it is.
async fn answers_for_a_former_life_never_reach_the_next(net: Net) {
    let gate = Gate::new();
    let passing = gate.clone();
    let last = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let gate = passing.clone();
        async move {
            gate.pass().await;
            Ok(request.respond(what).await?)
        }
    });
    let last = net.serve(last).await;
    let next = at(&last);
    let first = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let next = next.clone();
        async move { Ok(request.forward(next, work::one(what)).await?) }
    });
    let first = net.serve(first).await;
    let former = net.endpoint().await;
    let address = at(&former);
    let calls = [
        work::at(&former, at(&last)).one("direct".into()),
        work::at(&former, at(&first)).one("delegated".into()),
    ];
    until(|| last.load() == load(2, 0)).await;
    former.close();
    drop((calls, former));
    let later = again(&address, echo()).await;
    gate.open(2);
    until(|| last.load().is_idle()).await;
    // The later life makes calls with the same numbers, along the same ways: theirs are the only answers it gets.
    for server in [&last, &first] {
        gate.open(1);
        let own = work::at(&later, at(server)).one("own".into()).await;
        assert_eq!(own.expect("an answer"), "own");
    }
    let seen = later.metrics();
    let dropped = seen.late_dropped + seen.forged_dropped;
    assert_eq!((seen.responses_received, dropped), (2, 0));
}

/// An initiator is gone, and another life listens at its address: who wants to answer the one must not keep others
/// from calling the other.
#[tokio::test]
async fn a_failed_dial_for_an_initiator_is_not_everybodys() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = Address::Tcp(listener.local_addr().expect("it is bound"));
        let net = Net::tcp();
        let next = address.clone();
        let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let next = next.clone();
            async move {
                request.reply("for the initiator".into()).await?;
                // Sends the reply, for which the initiator is dialled.
                request.try_delegate(next, work::many("for whoever is there".into()))?;
                Ok(())
            }
        });
        let server = net.serve(server).await;
        let mut delegator = Raw::dial(&at(&server), hello(1)).await;
        let gone = CallId {
            initiator: wallaby::NodeId::new(2).expect("not zero"),
            sequence: 1,
        };
        let delegated = wallaby_proto::wire::Request {
            depth: 1,
            reply_to: wallaby_proto::wire::ReplyTo::At(address),
            ..request(gone, &[0])
        };
        delegator
            .send_request(delegated, work::MANY.definition())
            .await;
        let wrong = Raw::accept_any(&listener, hello(3)).await;
        drop(wrong);
        let mut right = Raw::accept(&listener, hello(3)).await;
        let request = right.request().await;
        assert_eq!(request.call, gone);
    })
    .await;
}
