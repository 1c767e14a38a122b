//! A call never lies: failures below the first hop, servers that die, stuck handlers, aborts that reach everything.

use std::time::Duration;

use crate::common::raw::{Raw, hello, request};
use crate::common::{
    Gate, Net, all, at, client, failure, load, patience, service, sorted, status, until, work,
};
use wallaby::{
    Address, CallId, Client, Code, Endpoint, Executed, Failure, FailureKind, Many, NodeId, One,
    Outcome, Request, Service,
};
use wallaby_proto::wire::{Message, Ping};

over_every_transport!(
    a_failure_below_the_first_hop_is_found_and_named,
    a_server_that_dies_after_forwarding_does_not_fail_the_call,
    a_server_that_dies_after_finishing_does_not_fail_the_call,
    a_slow_handler_is_no_failure,
    a_handler_without_progress_is_a_failure_where_that_is_limited,
    stopping_a_call_waits_for_all_of_it,
    what_is_over_is_forgotten_with_the_next_call,
    requests_of_a_dead_initiator_are_stopped,
    a_server_that_drains_hands_on_what_it_has_begun,
);

const PERIOD: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_millis(200);

/// Waits at the gate before it answers; counts nothing and sends nothing on the way.
fn waiting(gate: &Gate) -> Service {
    let (one, many) = (gate.clone(), gate.clone());
    service()
        .method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = one.clone();
            async move {
                tokio::select! {
                    () = gate.pass() => Ok(request.respond(what).await?),
                    () = request.cancelled() => Ok(()),
                }
            }
        })
        .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let gate = many.clone();
            async move {
                tokio::select! {
                    () = gate.pass() => Ok(request.respond(what).await?),
                    () = request.cancelled() => Ok(()),
                }
            }
        })
}

/// Hands everything on to another server.
fn forwarding(next: Address) -> Service {
    let (one, many) = (next.clone(), next);
    service()
        .method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = one.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        })
        .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let next = many.clone();
            async move { Ok(request.forward(next, work::many(what)).await?) }
        })
}

async fn initiator(net: &Net) -> Endpoint {
    net.bind(Endpoint::builder().ping(PERIOD, TIMEOUT)).await
}

async fn a_failure_below_the_first_hop_is_found_and_named(net: Net) {
    let last = net.serve(waiting(&Gate::new())).await;
    let first = net.serve(forwarding(at(&last))).await;
    let initiator = initiator(&net).await;
    let mut call = work::at(&initiator, at(&first)).one(String::new());
    until(|| last.load() == load(1, 0)).await;
    let (address, node) = (at(&last), last.node());
    last.kill();
    let failed = failure(call.answer().await);
    let Failure::Lost(loss) = &failed else {
        panic!("another failure: {failed}")
    };
    assert!(matches!(loss.kind, FailureKind::Silent { .. }), "{failed}");
    assert_eq!((loss.request.hop, loss.executed), (1, Executed::Executed));
    assert_eq!(loss.server.address, Some(address.clone()), "{failed}");
    assert_eq!(failed.server(), Some(&address), "{failed}");
    assert!(loss.server.node.is_none_or(|known| known == node));
    assert!(
        failed.to_string().contains(&address.to_string()),
        "{failed}"
    );
    assert_eq!(call.outcome(), Some(Outcome::Failed(failed)));
    assert!(first.load().is_idle());
}

#[tokio::test]
async fn what_else_was_missing_is_one_list() {
    let net = Net::tcp();
    let gate = Gate::new();
    let mut leaves = Vec::new();
    for _ in 0..3 {
        leaves.push(net.serve(waiting(&gate)).await);
    }
    let to: Vec<Address> = leaves.iter().map(at).collect();
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
        let to = to.clone();
        async move {
            for leaf in to {
                request
                    .delegate(leaf, work::many(String::clone(&what)))
                    .await?;
            }
            Ok(())
        }
    });
    let root = net.serve(root).await;
    let initiator = initiator(&net).await;
    let mut call = work::at(&initiator, at(&root)).many(String::new());
    patience(until(|| {
        leaves.iter().all(|leaf| leaf.load() == load(1, 0))
    }))
    .await;
    leaves[1].kill();
    let failed = failure(patience(call.next()).await.expect("an error"));
    let text = failed.to_string();
    let (_, others) = text.split_once("; also missing: ").expect("two others");
    let (first, last) = others.split_once("; and ").expect("two others");
    assert!(
        first.starts_with("request 0.0 ") && last.starts_with("request 0.2 "),
        "{text}"
    );
    assert!(!others.contains("missing"), "{text}");
}

async fn a_server_that_dies_after_forwarding_does_not_fail_the_call(net: Net) {
    let gate = Gate::new();
    let last = net.serve(waiting(&gate)).await;
    let first = net.serve(forwarding(at(&last))).await;
    let initiator = initiator(&net).await;
    let mut call = work::at(&initiator, at(&first)).one("late".into());
    until(|| last.load() == load(1, 0)).await;
    first.close();
    until(|| initiator.metrics().connections_ended >= 1).await;
    // It tells that it lives, unasked at first, for longer than silence may last.
    let heard = initiator.metrics().messages_received;
    until(|| initiator.metrics().messages_received >= heard + 15).await;
    gate.open(1);
    assert_eq!(call.answer().await.expect("its work goes on"), "late");
}

async fn a_server_that_dies_after_finishing_does_not_fail_the_call(net: Net) {
    let gate = Gate::new();
    let slow = net.serve(waiting(&gate)).await;
    let other = net.serve(service().method(
        &work::MANY,
        |request: Request<Many<_>>, (what,)| async move { Ok(request.respond(what).await?) },
    ));
    let quick = other.await;
    let (to_slow, to_quick) = (at(&slow), at(&quick));
    let first = net
        .serve(service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let (slow, quick) = (to_slow.clone(), to_quick.clone());
                async move {
                    request.delegate(quick, work::many(what.clone())).await?;
                    Ok(request.delegate(slow, work::many(what)).await?)
                }
            },
        ))
        .await;
    let initiator = initiator(&net).await;
    let mut call = work::at(&initiator, at(&first)).many("both".into());
    assert_eq!(
        call.next()
            .await
            .expect("the quick one")
            .expect("no status"),
        "both"
    );
    until(|| slow.load() == load(1, 0)).await;
    quick.close();
    let heard = initiator.metrics().messages_received;
    until(|| initiator.metrics().messages_received >= heard + 15).await;
    gate.open(1);
    let (rest, statuses) = sorted(&mut call).await;
    assert_eq!((rest, statuses), (vec!["both".to_owned()], vec![]));
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

async fn a_slow_handler_is_no_failure(net: Net) {
    let gate = Gate::new();
    let server = net.serve(waiting(&gate)).await;
    let initiator = initiator(&net).await;
    let mut call = work::at(&initiator, at(&server)).one("slow".into());
    // More pongs than silence may last ping periods.
    until(|| initiator.metrics().messages_received >= 15).await;
    gate.open(1);
    assert_eq!(call.answer().await.expect("it lives"), "slow");
    assert_eq!(initiator.metrics().calls_failed, 0);
}

async fn a_handler_without_progress_is_a_failure_where_that_is_limited(net: Net) {
    let gate = Gate::new();
    let server = net.serve(waiting(&gate)).await;
    let initiator = initiator(&net).await;
    let limited = Client::new(&initiator, at(&server)).stall_limit(TIMEOUT);
    let mut call = limited.call(&work::ONE, (String::new(),));
    let failed = failure(call.answer().await);
    let Failure::Lost(loss) = &failed else {
        panic!("another failure: {failed}")
    };
    assert!(matches!(loss.kind, FailureKind::Stalled { .. }), "{failed}");
    assert_eq!(loss.server.node, Some(server.node()));
    assert_eq!(loss.method.as_deref(), Some("test.Work/one"), "{failed}");
    // It is told to stop.
    until(|| server.load().is_idle()).await;
}

async fn stopping_a_call_waits_for_all_of_it(net: Net) {
    let gate = Gate::new();
    let last = net.serve(waiting(&gate)).await;
    let to_last = at(&last);
    let first = net
        .serve(service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let last = to_last.clone();
                async move {
                    for _ in 0..3 {
                        request
                            .delegate(last.clone(), work::many(what.clone()))
                            .await?;
                    }
                    request.flush().await;
                    request.cancelled().await;
                    Ok(())
                }
            },
        ))
        .await;
    let initiator = initiator(&net).await;
    let call = work::at(&initiator, at(&first)).many("stop".into());
    until(|| last.load() == load(3, 0) && first.load() == load(1, 0)).await;
    call.stop().await.expect("nothing of it runs");
    until(|| last.load().is_idle() && first.load().is_idle()).await;
    assert_eq!(initiator.metrics().calls_aborted, 1);
}

async fn what_is_over_is_forgotten_with_the_next_call(net: Net) {
    let gate = Gate::new();
    let server = net.serve(waiting(&gate)).await;
    let initiator = initiator(&net).await;
    gate.open(100);
    for _ in 0..100 {
        let call = work::at(&initiator, at(&server)).one("x".into());
        call.await.expect("an answer");
    }
    // Requests carry their initiator's oldest live call.
    let remembered = server.remembered();
    assert!(remembered.requests <= 2, "{remembered:?}");
    assert!(remembered.kept_bytes <= 1000, "{remembered:?}");
}

async fn requests_of_a_dead_initiator_are_stopped(net: Net) {
    let server = net.serve(waiting(&Gate::new())).await;
    let forwarder = net.serve(forwarding(at(&server))).await;
    let initiator = initiator(&net).await;
    let call = work::at(&initiator, at(&forwarder)).one(String::new());
    until(|| server.load() == load(1, 0)).await;
    // Without a word: what is closed tells nobody of its calls.
    initiator.close();
    until(|| server.load().is_idle()).await;
    drop(call);
}

fn call_of(node: u64, sequence: u64) -> CallId {
    CallId {
        initiator: NodeId::new(node).expect("not zero"),
        sequence,
    }
}

#[tokio::test]
async fn a_request_that_comes_twice_is_handled_once() {
    patience(async {
        let gate = Gate::new();
        let net = Net::tcp();
        let server = net.serve(waiting(&gate)).await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let twice = request(call_of(7, 1), &[1, b'x']);
        peer.send_request(twice.clone(), work::ONE.definition())
            .await;
        peer.send_request(twice, work::ONE.definition()).await;
        until(|| server.metrics().requests_dropped == 1).await;
        assert_eq!(server.load(), load(1, 0));
    })
    .await;
}

#[tokio::test]
async fn an_abort_that_overtakes_its_request_stops_it_before_it_starts() {
    patience(async {
        let net = Net::tcp();
        let server = net.serve(waiting(&Gate::new())).await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let late = request(call_of(7, 1), &[1, b'x']);
        let ping = |abort| {
            Message::Ping(Ping {
                call: late.call,
                token: late.token,
                request: late.id,
                abort,
                children_from: 0,
                missing: Vec::new(),
                shows: false,
            })
        };
        peer.send(ping(true)).await;
        let Message::Pong(pong) = peer.message().await else {
            panic!("no pong")
        };
        assert_eq!(pong.progress, None, "it is not known yet");
        peer.send_request(late.clone(), work::ONE.definition())
            .await;
        let Message::Response(response) = peer.message().await else {
            panic!("no answer")
        };
        assert!(response.status);
        let status = wallaby::Status::from_payload(&response.payload).expect("a status");
        assert_eq!(status.code(), Code::Cancelled, "{status}");
        assert!(server.load().is_idle());
    })
    .await;
}

#[tokio::test]
async fn unknown_requests_are_told_so_at_once() {
    patience(async {
        let net = Net::tcp();
        let server = net.serve(waiting(&Gate::new())).await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let never = request(call_of(7, 1), &[]);
        let ping = Ping {
            call: never.call,
            token: never.token,
            request: never.id,
            abort: false,
            children_from: 0,
            missing: Vec::new(),
            shows: false,
        };
        peer.send(Message::Ping(ping)).await;
        let Message::Pong(pong) = peer.message().await else {
            panic!("no pong")
        };
        assert_eq!((pong.call, pong.progress), (never.call, None));
    })
    .await;
}

#[tokio::test]
async fn what_is_refused_for_want_of_memory_says_so() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let builder = Endpoint::builder().serve(waiting(&gate)).remember(2, 0);
        let server = net.bind(builder).await;
        let initiator = initiator(&net).await;
        let client = work::at(&initiator, at(&server));
        let (mut first, mut second) = (client.one("1".into()), client.one("2".into()));
        until(|| server.load() == load(2, 0)).await;
        let refused = status(client.one("3".into()).await);
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        gate.open(2);
        first.answer().await.expect("it was taken");
        second.answer().await.expect("it was taken");
        // Ended ones make room.
        gate.open(1);
        client.one("4".into()).await.expect("there is room again");
    })
    .await;
}

#[tokio::test]
async fn a_quick_call_costs_no_message_more() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let server = net.serve(waiting(&gate)).await;
        let initiator = initiator(&net).await;
        gate.open(1);
        let mut call = work::at(&initiator, at(&server)).many("x".into());
        assert_eq!(all(&mut call).await.len(), 1);
        let (ours, theirs) = (initiator.metrics(), server.metrics());
        assert_eq!((ours.messages_sent, ours.messages_received), (1, 1));
        assert_eq!((theirs.messages_sent, theirs.messages_received), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_drained_server_finishes_what_it_has_and_takes_nothing_new() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let one = gate.clone();
        let server = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = one.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        });
        let server = net.serve(server).await;
        let initiator = initiator(&net).await;
        let client = work::at(&initiator, at(&server));
        let mut running = client.one("runs".into());
        until(|| server.load() == load(1, 0)).await;
        let draining = {
            let server = server.clone();
            tokio::spawn(async move { server.drain(Duration::from_secs(20)).await })
        };
        // What it does not serve is refused for another reason until it shuts down.
        let refused = loop {
            let refused = status(all(&mut client.many("new".into())).await.remove(0));
            if refused.code() != Code::Unimplemented {
                break refused;
            }
        };
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.is_not_executed(), "{refused}");
        gate.open(1);
        assert_eq!(running.answer().await.expect("it is finished"), "runs");
        assert_eq!(draining.await.expect("no panic"), Ok(()));
        let gone = failure(client.one("late".into()).await);
        assert!(matches!(gone, Failure::NotSent { .. }), "{gone}");
    })
    .await;
}

/// It was reached by delegation, and is asked again and again: over one connection, though it takes no new requests.
#[tokio::test]
async fn a_server_that_drains_is_asked_over_the_connection_that_is_there() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let one = gate.clone();
        let shard = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = one.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        });
        let shard = net.serve(shard).await;
        let next = at(&shard);
        let front = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        });
        let front = net.serve(front).await;
        let client = Endpoint::builder().ping(Duration::from_millis(20), Duration::from_secs(20));
        let client = client.bind().await.expect("there is a runtime");
        let mut call = work::at(&client, at(&front)).one("runs".into());
        until(|| shard.load() == load(1, 0)).await;
        let draining = shard.clone();
        let draining = tokio::spawn(async move { draining.drain(Duration::from_secs(25)).await });
        until(|| client.metrics().messages_sent > 30).await;
        let opened = shard.metrics().connections_opened;
        assert!(opened <= 3, "{opened} connections"); // one of them may be opened in the moment in which it begins to drain
        gate.open(1);
        assert_eq!(call.answer().await.expect("it is finished"), "runs");
        assert_eq!(draining.await.expect("no panic"), Ok(()));
    })
    .await;
}

/// Its handler hands its work on while it drains, to a server that answers when the first one is long closed. The client cannot be
/// dialled.
async fn a_server_that_drains_hands_on_what_it_has_begun(net: Net) {
    let (begins, ends) = (Gate::new(), Gate::new());
    let last = net.serve(waiting(&ends)).await;
    let (next, gate) = (at(&last), begins.clone());
    let front = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let (next, gate) = (next.clone(), gate.clone());
        async move {
            gate.pass().await;
            Ok(request.forward(next, work::one(what)).await?)
        }
    });
    let front = net.serve(front).await;
    let client = client();
    let mut call = work::at(&client, at(&front)).one("whole".into());
    until(|| front.load() == load(1, 0)).await;
    let mut draining = std::pin::pin!(front.drain(Duration::from_secs(60)));
    tokio::select! {
        biased;
        done = &mut draining => panic!("its handler runs: {done:?}"),
        () = std::future::ready(()) => begins.open(1),
    }
    assert_eq!(draining.await, Ok(()));
    until(|| last.load() == load(1, 0)).await;
    ends.open(1);
    assert_eq!(call.answer().await.expect("nothing is lost"), "whole");
}

#[tokio::test]
async fn what_does_not_end_while_a_server_drains_ends_with_a_status() {
    patience(async {
        let net = Net::tcp();
        let server = net.serve(waiting(&Gate::new())).await;
        let next = at(&server);
        let first = net.serve(forwarding(next)).await;
        let initiator = initiator(&net).await;
        let mut stuck = work::at(&initiator, at(&server)).one(String::new());
        until(|| server.load() == load(1, 0)).await;
        let left = server.drain(Duration::from_millis(20)).await;
        assert_eq!(left.expect_err("it never ends").running, 1);
        let ended = status(stuck.answer().await);
        assert_eq!(ended.code(), Code::Unfinished, "{ended}");
        let idle = first.drain(Duration::from_secs(20)).await;
        assert_eq!(idle, Ok(()));
    })
    .await;
}

/// A server of which the test sees every message.
async fn listening() -> (tokio::net::TcpListener, Address) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let address = format!("tcp://{address}").parse().expect("an address");
    (listener, address)
}

/// Hour-long periods, so that nothing is asked but what the call itself wants.
#[tokio::test]
async fn a_call_is_asked_about_after_its_own_period() {
    patience(async {
        let (listener, address) = listening().await;
        let hour = Duration::from_secs(3600);
        let builder = Endpoint::builder().ping(hour, 2 * hour);
        let client = builder.bind().await.expect("there is a runtime");
        let call = Client::new(&client, address)
            .ping(PERIOD, hour)
            .call(&work::ONE, (String::new(),));
        let mut server = Raw::accept(&listener, hello(7)).await;
        server.request().await;
        let Message::Ping(ping) = server.message().await else {
            panic!("a ping comes next");
        };
        assert_eq!(ping.call, call.id());
    })
    .await;
}

#[tokio::test]
async fn a_call_is_not_asked_about_before_its_own_period() {
    patience(async {
        let (listener, address) = listening().await;
        let hour = Duration::from_secs(3600);
        let builder = Endpoint::builder().ping(PERIOD, TIMEOUT);
        let client = builder.bind().await.expect("there is a runtime");
        let client = Client::new(&client, address);
        let patient = client.clone().ping(hour, 2 * hour);
        let patient = patient.call(&work::ONE, (String::new(),));
        let mut server = Raw::accept(&listener, hello(7)).await;
        server.request().await;
        // As long as another one needs to fail for want of an answer.
        let other = client.call(&work::ONE, (String::new(),));
        server.request().await;
        let other_id = other.id();
        let failed = tokio::spawn(async move { failure(other.await) });
        while !failed.is_finished() {
            tokio::select! {
                message = server.message() => assert_eq!(message.call(), other_id),
                () = tokio::task::yield_now() => {}
            }
        }
        failed.await.expect("no panic");
        drop(patient);
    })
    .await;
}

/// A process that is killed closes its sockets one after the other: one that listens may take a connection after the others
/// are gone. That it was reached then does not put off the discovery that nobody is there.
#[tokio::test]
async fn a_server_that_takes_a_last_connection_while_it_dies_is_gone() {
    patience(async {
        let (listener, address) = listening().await;
        let client = Endpoint::builder().ping(PERIOD, 40 * PERIOD);
        let client = client.bind().await.expect("there is a runtime");
        let call = Client::new(&client, address).call(&work::ONE, (String::new(),));
        let mut server = Raw::accept(&listener, hello(7)).await;
        server.request().await;
        drop(server);
        drop(listener.accept().await.expect("it is dialled once more"));
        drop(listener);
        let Failure::Lost(lost) = failure(call.await) else {
            panic!("the server is lost")
        };
        let FailureKind::Silent { silence, .. } = lost.kind else {
            panic!("it is silent: {:?}", lost.kind)
        };
        assert!(silence < 20 * PERIOD, "as of who is gone, not {silence:?}");
    })
    .await;
}

/// The next time that it is asked would tell, but nobody waits for that.
#[tokio::test]
async fn so_it_is_before_it_is_asked_again() {
    patience(async {
        const LONG: Duration = Duration::from_secs(600);
        let (listener, address) = listening().await;
        let client = Endpoint::builder().ping(LONG, 10 * LONG);
        let client = client.bind().await.expect("there is a runtime");
        let call = Client::new(&client, address).call(&work::ONE, (String::new(),));
        let mut server = Raw::accept(&listener, hello(7)).await;
        server.request().await;
        drop(server);
        drop(listener.accept().await.expect("it is dialled once more"));
        drop(listener);
        let Failure::Lost(lost) = failure(call.await) else {
            panic!("the server is lost")
        };
        assert_eq!(lost.server.node, NodeId::new(7));
    })
    .await;
}

/// Who forwarded the request has nothing to do with the call any more.
#[tokio::test]
async fn a_deadline_names_who_was_to_answer_and_not_who_forwarded() {
    patience(async {
        let (listener, address) = listening().await;
        let to = address.clone();
        let forwards = move |request: Request<One<String>>, (what,)| {
            let to = to.clone();
            async move { Ok(request.forward(to, work::one(what)).await?) }
        };
        let net = Net::tcp();
        let front = net.serve(service().method(&work::ONE, forwards)).await;
        let client = Endpoint::builder().ping(PERIOD, 600 * PERIOD);
        let client = client.bind().await.expect("there is a runtime");
        let caller = Client::new(&client, at(&front)).deadline(30 * PERIOD);
        let call = caller.call(&work::ONE, (String::new(),));
        let mut silent = Raw::accept(&listener, hello(7)).await;
        silent.request().await;
        let failed = failure(call.await);
        let Failure::Deadline { missing, .. } = &failed else {
            panic!("another failure: {failed}")
        };
        let [branch] = &missing.branches[..] else {
            panic!("one branch: {failed}")
        };
        let named = (branch.request.hop, branch.server.address.as_ref());
        assert_eq!(named, (1, Some(&address)), "{failed}");
        drop(silent);
    })
    .await;
}
