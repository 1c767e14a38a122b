//! Bodies follow their requests: through any number of hops, no faster than they are read, and each ends as it should.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::bodies::{CHUNK, broken, byte_at, check, counted, piped};
use crate::common::raw::{hello, request};
use crate::common::{
    Gate, Net, at, client, failure, heap, load, patience, service, status, until, work,
};
use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use wallaby::{
    Address, Body, BodyError, CallId, Client, Code, DialPolicy, Endpoint, Failure, Limits, NodeId,
    One, Request, Retry, Status,
};
use wallaby_link::emulate;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::Connection;

over_every_stream!(
    a_handler_reads_what_is_sent_meanwhile,
    a_body_goes_through_three_hops,
    a_slow_reader_slows_only_its_sender,
    a_body_that_nobody_wants_is_stopped,
    a_body_of_a_delegation_that_may_not_be_is_stopped,
    a_broken_body_says_why,
    a_body_that_broke_does_not_look_whole_to_the_next_reader,
    a_body_breaks_with_its_call,
    a_body_breaks_with_its_connection,
    a_body_that_was_not_sent_is_dropped_with_its_call,
    many_bodies_at_a_time,
    an_end_makes_room_for_the_next_body,
    a_connection_whose_body_is_passed_on_is_not_closed_for_another,
    a_body_of_a_delegation_breaks_with_the_call,
    a_body_that_waits_in_the_queue_is_stopped_with_its_call,
    a_body_that_is_taken_after_the_end_of_its_call_is_broken,
    a_body_to_oneself,
    a_call_with_a_body_is_made_once,
    bodies_go_over_slow_links_with_small_windows,
);

fn body_of(request: &Request<One<String>>) -> Body {
    request.take_body().expect("it has one")
}

/// A server that answers how long a body is, or with its error.
async fn measuring(net: &Net) -> Endpoint {
    let handler = |request: Request<One<String>>, (_,): (String,)| async move {
        let body = body_of(&request);
        assert!(request.take_body().is_none(), "it is there once");
        let len = check(body).await.map_err(broken)?;
        Ok::<_, Status>(request.respond(len.to_string()).await?)
    };
    net.serve(service().method(&work::ONE, handler)).await
}

/// A body can be read once.
async fn a_call_with_a_body_is_made_once(net: Net) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Request<One<String>>, (_,): (String,)| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Err(Status::new(Code::ResourceExhausted, "not now")) }
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let client = client();
    let again = Retry::idempotent(3).on(Code::ResourceExhausted);
    let client = to(&client, &server).retry(again);
    let body = Body::from(Bytes::from_static(b"once"));
    let mut call = client.call_with_body(&work::ONE, ("x".into(),), body);
    assert_eq!(status(call.answer().await).code(), Code::ResourceExhausted);
    assert_eq!((call.attempts(), runs.load(Ordering::SeqCst)), (1, 1));
}

fn to(client: &Endpoint, server: &Endpoint) -> Client {
    Client::new(client, at(server))
}

async fn a_handler_reads_what_is_sent_meanwhile(net: Net) {
    let (read, mut chunks) = mpsc::unbounded_channel();
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let read = read.clone();
        async move {
            let mut body = body_of(&request);
            while let Some(chunk) = body.next().await {
                read.send(chunk.map_err(broken)?).expect("the test listens");
            }
            Ok::<_, Status>(request.respond(what).await?)
        }
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let client = client();
    let (send, body) = piped();
    let call = to(&client, &server).call_with_body(&work::ONE, ("done".into(),), body);
    for text in ["one", "two", "three"] {
        send.send(Ok(text.into())).expect("it is read");
        assert_eq!(chunks.recv().await.as_deref(), Some(text.as_bytes()));
    }
    // Nothing may be a chunk as well.
    send.send(Ok(Bytes::new())).expect("it is read");
    drop(send);
    assert_eq!(call.await, Ok("done".into()));
}

async fn a_body_goes_through_three_hops(net: Net) {
    let last = measuring(&net).await;
    let next = |server: Address| {
        move |request: Request<One<String>>, (what,): (String,)| {
            let server = server.clone();
            async move {
                let body = body_of(&request);
                let target = work::one(what).with_body(body);
                Ok::<_, Status>(request.forward(server, target).await?)
            }
        }
    };
    let middle = net
        .serve(service().method(&work::ONE, next(at(&last))))
        .await;
    let first = net
        .serve(service().method(&work::ONE, next(at(&middle))))
        .await;
    let client = client();
    for total in [0, 1, 3_000_001] {
        let (count, body) = counted(total);
        let call = to(&client, &first).call_with_body(&work::ONE, ("x".into(),), body);
        assert_eq!(call.await, Ok(total.to_string()));
        assert_eq!(count.load(Ordering::Relaxed), total);
    }
}

/// It is let go while its delegation is refused.
async fn a_body_of_a_delegation_that_may_not_be_is_stopped(net: Net) {
    let last = at(&measuring(&net).await);
    let onward = move |request: Request<One<String>>, (what,): (String,)| {
        let last = last.clone();
        async move {
            let target = work::one(what).with_body(body_of(&request));
            Ok::<_, Status>(request.forward(last, target).await?)
        }
    };
    let nowhere = DialPolicy::default().only_if(|_| false);
    let first = Endpoint::builder().dial_policy(nowhere);
    let first = first.serve(service().method(&work::ONE, onward));
    let (first, client) = (net.bind(first).await, client());
    let (_, body) = counted(3_000_001);
    let call = to(&client, &first).call_with_body(&work::ONE, ("x".into(),), body);
    assert_eq!(status(call.await).code(), Code::PermissionDenied);
    drop(first);
}

async fn a_slow_reader_slows_only_its_sender(net: Net) {
    const LIMIT: u64 = 100_000;
    let (go_on, allowed) = mpsc::unbounded_channel::<()>();
    let allowed = Arc::new(tokio::sync::Mutex::new(allowed));
    let slow = move |request: Request<One<String>>, (_,): (String,)| {
        let allowed = Arc::clone(&allowed);
        async move {
            allowed.lock().await.recv().await;
            let len = check(body_of(&request)).await.map_err(broken)?;
            Ok::<_, Status>(request.respond(len.to_string()).await?)
        }
    };
    let echo = |request: Request<One<Bytes>, _>, (what,): (Bytes,)| async move {
        Ok(request.respond(what).await?)
    };
    let mut limits = Limits::default();
    limits.call = LIMIT;
    let server = service().method(&work::ONE, slow).method(&heap::ONE, echo);
    let server = net
        .bind(Endpoint::builder().limits(limits).serve(server))
        .await;
    let client = client();
    let (count, body) = counted(2_000_000);
    let upload = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body);
    until(|| count.load(Ordering::Relaxed) > LIMIT).await;
    // The connection carries others meanwhile, and nothing more of the body is asked for.
    for round in 0..100_u32 {
        let payload = Bytes::copy_from_slice(&round.to_be_bytes());
        let answer = heap::at(&client, at(&server)).one(payload.clone()).await;
        assert_eq!(answer, Ok(payload));
    }
    let asked = count.load(Ordering::Relaxed);
    assert!(asked <= LIMIT + 2 * CHUNK, "{asked} bytes under way");
    go_on.send(()).expect("the handler waits");
    assert_eq!(upload.await, Ok("2000000".into()));
}

async fn a_body_that_nobody_wants_is_stopped(net: Net) {
    let handler = |request: Request<One<String>>, (how,): (String,)| async move {
        match how.as_str() {
            "drop" => drop(body_of(&request)),
            "read some" => drop(body_of(&request).next().await),
            "refuse" => return Err(Status::new(wallaby::Code::NotFound, "no")),
            _ => {}
        }
        Ok::<_, Status>(request.respond(how).await?)
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let client = client();
    for how in ["drop", "read some", "ignore", "refuse"] {
        let (send, body) = piped();
        send.send(Ok("some".into())).expect("it is there");
        let call = to(&client, &server).call_with_body(&work::ONE, (how.into(),), body);
        match call.await {
            Ok(answer) => assert_eq!(answer, how),
            Err(error) => assert_eq!((how, error.status().is_some()), ("refuse", true)),
        }
        send.closed().await;
    }
    // A method that is not there has nobody to read, either.
    let (send, body) = piped();
    let call = to(&client, &server).call_with_body(&work::MANY, ("x".into(),), body);
    let (_, statuses) = crate::common::sorted(&mut { call }).await;
    assert_eq!(statuses.len(), 1);
    send.closed().await;
}

async fn a_broken_body_says_why(net: Net) {
    let server = measuring(&net).await;
    let client = client();
    let (send, body) = piped();
    send.send(Ok(Bytes::from_static(&[0, 1, 2])))
        .expect("it is there");
    send.send(Err("the disk is gone".into()))
        .expect("it is there");
    let call = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body);
    let error = call.await.expect_err("a status");
    let text = error.status().expect("a status").message();
    assert_eq!(
        text,
        "the body is broken: cannot read the body: the disk is gone"
    );
}

async fn a_body_that_broke_does_not_look_whole_to_the_next_reader(net: Net) {
    let last = measuring(&net).await;
    let next = at(&last);
    let careless = move |request: Request<One<String>>, (what,): (String,)| {
        let next = next.clone();
        async move {
            let mut body = body_of(&request);
            while let Some(Ok(_)) = body.next().await {}
            let target = work::one(what).with_body(body);
            Ok::<_, Status>(request.forward(next, target).await?)
        }
    };
    let first = net.serve(service().method(&work::ONE, careless)).await;
    let client = client();
    let (send, body) = piped();
    send.send(Ok(Bytes::from_static(&[0])))
        .expect("it is there");
    send.send(Err("the disk is gone".into()))
        .expect("it is there");
    let call = to(&client, &first).call_with_body(&work::ONE, ("x".into(),), body);
    let error = call.await.expect_err("a status");
    let text = error.status().expect("a status").message();
    // However many hops it broke over.
    let expected = "the body is broken: cannot read the body: the disk is gone";
    assert_eq!(text, expected);
}

async fn a_body_breaks_with_its_call(net: Net) {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let ended = ended.clone();
        async move {
            let end = check(body_of(&request)).await;
            ended.send(end).expect("the test listens");
            Ok::<_, Status>(())
        }
    };
    let server = net
        .serve(service().method(&work::ONE, handler).shielded())
        .await;
    let client = client();
    let (send, body) = piped();
    send.send(Ok(Bytes::from_static(&[0])))
        .expect("it is there");
    let call = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body);
    until(|| server.load().running == 1).await;
    drop(call);
    send.closed().await;
    let end = ends.recv().await.expect("an end");
    assert_eq!(end, Err(BodyError::Broken("its call has ended".into())));
}

async fn a_body_breaks_with_its_connection(net: Net) {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let ended = ended.clone();
        async move {
            let end = check(body_of(&request)).await;
            ended.send(end).expect("the test listens");
            Ok::<_, Status>(())
        }
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let client = client();
    let (send, body) = piped();
    let call = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body);
    until(|| server.load().running == 1).await;
    client.kill(); // a word would stop the handler
    send.closed().await;
    drop(call);
    let end = ends.recv().await.expect("an end");
    assert!(
        matches!(end, Err(BodyError::Lost(_) | BodyError::Broken(_))),
        "{end:?}"
    );
}

/// Though its application still holds the call.
async fn a_body_that_was_not_sent_is_dropped_with_its_call(net: Net) {
    let server = measuring(&net).await;
    let nobody = at(&server);
    server.close();
    let (send, body) = piped();
    let client = Client::new(&client(), nobody);
    let mut call = client.call_with_body(&work::ONE, ("x".into(),), body);
    failure(call.answer().await);
    send.closed().await;
    assert!(call.outcome().is_some());
}

async fn many_bodies_at_a_time(net: Net) {
    let server = measuring(&net).await;
    let client = client();
    let calls: Vec<_> = (0..150)
        .map(|index| {
            let (_, body) = counted(index * 1000);
            to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body)
        })
        .collect();
    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await, Ok((index * 1000).to_string()));
    }
}

/// No other word of the server is needed.
async fn an_end_makes_room_for_the_next_body(net: Net) {
    const CALLS: usize = 100;
    let all_read = Arc::new(tokio::sync::Barrier::new(CALLS));
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let all_read = Arc::clone(&all_read);
        async move {
            check(body_of(&request)).await.map_err(broken)?;
            all_read.wait().await;
            Ok::<_, Status>(request.respond(what).await?)
        }
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let client = client();
    let call = |_| to(&client, &server).call_with_body(&work::ONE, ("x".into(),), counted(1).1);
    let calls: Vec<_> = (0..CALLS).map(call).collect();
    for call in calls {
        assert_eq!(call.await, Ok("x".into()));
    }
}

/// Passes the body of its request on to this server.
fn passing(server: Address) -> wallaby::Service {
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let server = server.clone();
        async move {
            let target = work::one(what).with_body(body_of(&request));
            Ok::<_, Status>(request.forward(server, target).await?)
        }
    };
    service().method(&work::ONE, handler)
}

/// The request has gone on; but what follows it still comes this way.
async fn a_connection_whose_body_is_passed_on_is_not_closed_for_another(net: Net) {
    let last = measuring(&net).await;
    let mut limits = Limits::default();
    limits.connections = 2;
    let middle = Endpoint::builder().limits(limits).serve(passing(at(&last)));
    let middle = net.bind(middle).await;
    let client = client();
    let (send, body) = piped();
    let upload = to(&client, &middle).call_with_body(&work::ONE, ("x".into(),), body);
    until(|| last.load().running == 1 && middle.load().running == 0).await;
    let other = crate::common::client();
    let refused = work::at(&other, at(&middle)).one("y".into()).await;
    assert!(refused.is_err(), "all connections are in use");
    send.send(Ok(Bytes::from_static(&[0]))).expect("it is read");
    drop(send);
    assert_eq!(upload.await, Ok("1".into()));
}

/// Passes on with a body of its own, which the test sends.
fn sending(server: Address, body: Body) -> wallaby::Service {
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let (server, body) = (server.clone(), Arc::clone(&body));
        async move {
            let body = body.lock().expect("no panic").take().expect("one call");
            let target = work::one(what).with_body(body);
            Ok::<_, Status>(request.forward(server, target).await?)
        }
    };
    service().method(&work::ONE, handler)
}

/// Its sender is not the initiator, and does not learn of the abort by itself.
async fn a_body_of_a_delegation_breaks_with_the_call(net: Net) {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let ended = ended.clone();
        async move {
            let end = check(body_of(&request)).await;
            ended.send(end).expect("the test listens");
            Ok::<_, Status>(())
        }
    };
    let last = net
        .serve(service().method(&work::ONE, handler).shielded())
        .await;
    let (send, body) = piped();
    let middle = net.serve(sending(at(&last), body)).await;
    let client = client();
    let call = work::at(&client, at(&middle)).one("x".into());
    until(|| last.load().running == 1 && middle.load().running == 0).await;
    drop(call);
    let end = ends.recv().await.expect("an end");
    assert_eq!(end, Err(BodyError::Broken("its call has ended".into())));
    send.closed().await;
}

async fn a_body_that_waits_in_the_queue_is_stopped_with_its_call(net: Net) {
    let gate = crate::common::Gate::new();
    let busy = {
        let gate = gate.clone();
        move |request: Request<One<String>>, (what,): (String,)| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok::<_, Status>(request.respond(what).await?)
            }
        }
    };
    let one = wallaby::ExecutorConfig {
        concurrency: 1,
        ..wallaby::ExecutorConfig::default()
    };
    let last = Endpoint::builder()
        .executor(one)
        .serve(service().method(&work::ONE, busy));
    let last = net.bind(last).await;
    let (send, body) = piped();
    let middle = net.serve(sending(at(&last), body)).await;
    let client = client();
    let first = work::at(&client, at(&last)).one("first".into());
    until(|| last.load().running == 1).await;
    let second = work::at(&client, at(&middle)).one("second".into());
    until(|| last.load().waiting == 1).await;
    drop(second);
    send.closed().await;
    assert_eq!(last.load(), load(1, 0), "the first still runs");
    gate.open(1);
    assert_eq!(first.await, Ok("first".into()));
}

async fn a_body_that_is_taken_after_the_end_of_its_call_is_broken(net: Net) {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let ended = ended.clone();
        async move {
            request.cancelled().await;
            let end = check(body_of(&request)).await;
            ended.send(end).expect("the test listens");
            Ok::<_, Status>(())
        }
    };
    let last = net
        .serve(service().method(&work::ONE, handler).shielded())
        .await;
    let (send, body) = piped();
    send.send(Ok(Bytes::from_static(&[0])))
        .expect("it is there");
    let middle = net.serve(sending(at(&last), body)).await;
    let client = client();
    let call = work::at(&client, at(&middle)).one("x".into());
    until(|| last.load().running == 1 && middle.load().running == 0).await;
    drop(call);
    let end = ends.recv().await.expect("an end");
    assert_eq!(end, Err(BodyError::Broken("its call has ended".into())));
    send.closed().await;
}

async fn bodies_go_over_slow_links_with_small_windows(net: Net) {
    let builder = || {
        let mut limits = Limits::default();
        (limits.call, limits.parts, limits.streams) = (3000, 5000, 2);
        let delay = std::time::Duration::from_millis(1);
        emulate(Endpoint::builder().limits(limits), delay, None).expect("a thread")
    };
    let read = |request: Request<One<String>>, (_,): (String,)| async move {
        let len = check(body_of(&request)).await.map_err(broken)?;
        Ok::<_, Status>(request.respond(len.to_string()).await?)
    };
    let read = builder().serve(service().method(&work::ONE, read));
    let last = net.bind(read).await;
    let middle = net.bind(builder().serve(passing(at(&last)))).await;
    let client = builder().bind().await.expect("there is a runtime");
    let calls: Vec<_> = (0..10_u64)
        .map(|index| {
            let (_, body) = counted(index * 1999);
            to(&client, &middle).call_with_body(&work::ONE, ("x".into(),), body)
        })
        .collect();
    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await, Ok((index * 1999).to_string()));
    }
}

async fn a_body_to_oneself(net: Net) {
    let endpoint = measuring(&net).await;
    for total in [0, 1, 3_000_001] {
        let call =
            to(&endpoint, &endpoint).call_with_body(&work::ONE, ("x".into(),), counted(total).1);
        assert_eq!(call.await, Ok(total.to_string()));
    }
}

#[tokio::test]
async fn over_datagrams_there_are_none() {
    let net = Net::udp();
    let server = measuring(&net).await;
    let client = client();
    let call = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), counted(10).1);
    let Failure::Refused { reason, .. } = failure(call.await) else {
        panic!("it is refused");
    };
    assert!(reason.contains("over udp:"), "{reason}");
    // The same for a delegation: the initiator gets a status.
    let leaf = at(&server);
    let front = move |request: Request<One<String>>, (what,): (String,)| {
        let leaf = leaf.clone();
        async move {
            let target = work::one(what).with_body(body_of(&request));
            Ok::<_, Status>(request.forward(leaf, target).await?)
        }
    };
    let front = Net::tcp().serve(service().method(&work::ONE, front)).await;
    let call = to(&client, &front).call_with_body(&work::ONE, ("x".into(),), counted(10).1);
    let error = call.await.expect_err("a status");
    let text = error.status().expect("a status").message().to_owned();
    assert!(text.contains("over udp:"), "{text}");
}

#[tokio::test]
async fn a_body_goes_to_one_server() {
    let net = Net::mem();
    let servers = [measuring(&net).await, measuring(&net).await];
    let client = client();
    let target = work::one("x".into()).with_body(counted(10).1);
    let answers = client
        .caller()
        .multicast(servers.iter().map(at), target)
        .all()
        .await;
    assert_eq!(answers[0], Ok("10".into()));
    let error = answers[1].as_ref().expect_err("refused");
    assert!(
        matches!(error.failure(), Some(Failure::Refused { reason, .. }) if reason.contains("went with another")),
        "{error}"
    );
}

/// In both directions a body is an ordinary reader.
#[tokio::test]
async fn a_body_can_be_read_like_a_file() {
    let net = Net::tcp();
    let handler = |request: Request<One<String>>, (_,): (String,)| async move {
        let mut text = String::new();
        let read = body_of(&request).read_to_string(&mut text).await;
        read.map_err(|error| Status::new(wallaby::Code::Internal, error.to_string()))?;
        Ok::<_, Status>(request.respond(text.to_uppercase()).await?)
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let client = client();
    let body = Body::from_read("some text, read from memory".as_bytes());
    let call = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body);
    assert_eq!(call.await, Ok("SOME TEXT, READ FROM MEMORY".into()));
    let body = Body::from(Bytes::from_static(b"bytes"));
    let call = to(&client, &server).call_with_body(&work::ONE, ("x".into(),), body);
    assert_eq!(call.await, Ok("BYTES".into()));

    let limited = |limit| Body::from(Bytes::from_static(b"bytes")).collect(limit);
    assert_eq!(limited(5).await.as_deref(), Ok(&b"bytes"[..]));
    assert_eq!(limited(4).await, Err(BodyError::TooLong { limit: 4 }));
}

/// Its sender has written all of it and is gone: whoever finds out by a write that fails must still read what has come.
#[tokio::test]
async fn a_body_that_has_arrived_outlives_a_failed_write() {
    patience(async {
        let (gate, net) = (Gate::new(), Net::unix());
        let (lengths, mut told) = mpsc::unbounded_channel();
        let opened = gate.clone();
        let handler = move |request: Request<One<String>>, (what,): (String,)| {
            let (gate, lengths) = (opened.clone(), lengths.clone());
            async move {
                if let Some(body) = request.take_body() {
                    lengths.send(check(body).await).expect("the test listens");
                } else {
                    gate.pass().await;
                }
                Ok::<_, Status>(request.respond(what).await?)
            }
        };
        let server = net.serve(service().method(&work::ONE, handler)).await;
        let Address::Unix(path) = at(&server) else {
            panic!("another transport")
        };
        let stream = UnixStream::connect(&*path).await.expect("it listens");
        let mut connection = Connection::dial(Arc::new(hello(7)), None);
        let mut input = BytesMut::new();
        write(&stream, &mut connection);
        while connection.peer().is_none() {
            stream.readable().await.expect("it is open");
            let _ = stream.try_read_buf(&mut input);
            connection.handle_input(&mut input).expect("a hello");
        }
        let method = work::ONE.definition();
        let call = |sequence| CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence,
        };
        let mut waits = request(call(1), b"\x01x");
        connection.send_request(&mut waits, method).expect("room");
        write(&stream, &mut connection);
        until(|| server.load() == load(1, 0)).await;
        // All at once, before the server can read any of it: another request, its whole body, the end of the connection,
        // and the answer to the first request, which cannot be written any more.
        let mut followed = request(call(2), b"\x01x");
        followed.options.get_or_insert_default().body = Some(0);
        connection
            .send_request(&mut followed, method)
            .expect("room");
        let number = followed.options.and_then(|options| options.body);
        let number = number.expect("it has one");
        let mut chunk: Bytes = (0..1000).map(byte_at).collect();
        connection.send_body(number, &mut chunk).expect("room");
        write(&stream, &mut connection);
        connection.end_body(number, Ok(())).expect("room");
        write(&stream, &mut connection);
        drop(stream);
        gate.open(1);
        assert_eq!(told.recv().await.expect("it ends"), Ok(1000));
    })
    .await;
}

/// Writes what a connection has to say; there is room for it.
fn write(stream: &UnixStream, connection: &mut Connection) {
    while !connection.output().is_empty() {
        let written = stream.try_write(connection.output()).expect("room");
        connection.advance(written);
    }
}
