//! Nothing queues without bound: who is faster than the other side waits, and nobody else does.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::common::{Gate, Net, all, at, client, heap, load, patience, service, until, work};
use bytes::Bytes;
use tokio::sync::mpsc;
use wallaby::codec::Raw;
use wallaby::{
    Address, Builder, Call, Endpoint, ExecutorConfig, Limits, Many, One, Outcome, Request,
    SendError, Service,
};

over_every_transport!(
    replies_wait_for_a_slow_application,
    replies_of_deep_servers_wait_too,
    who_takes_no_answers_leaves_room_for_those_of_others,
    replies_to_oneself_wait_too,
    a_fast_application_makes_nobody_wait,
    a_slow_call_does_not_hold_up_others,
    requests_wait_for_a_slow_server,
    delegations_wait_for_a_slow_server,
    a_reply_that_is_given_up_does_not_break_the_call,
    an_answer_that_was_taken_is_not_lost_for_want_of_room,
);

const SIZE: usize = 10_000;
const WINDOW: u64 = 100_000;

fn narrow() -> Builder {
    let mut limits = Limits::default();
    limits.call = WINDOW;
    Endpoint::builder().limits(limits)
}

fn payload() -> Bytes {
    Bytes::from(vec![1; SIZE])
}

/// Polls once.
fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Replies until nothing more is accepted, says how much was, and then once more and waits.
fn eager(accepted: mpsc::UnboundedSender<usize>) -> Service {
    service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (_,)| {
            let accepted = accepted.clone();
            async move {
                let mut count = 0;
                // The first one may have to wait for a connection to the initiator, and is no measure.
                request.reply(payload()).await?;
                request.flush().await;
                while count < 10_000 {
                    match request.try_reply(payload()) {
                        Ok(()) => count += 1,
                        Err(SendError::Full) => break,
                        Err(other) => return Err(other.into()),
                    }
                    // Else messages to oneself would have no time to be counted.
                    tokio::task::yield_now().await;
                }
                accepted.send(count).expect("the test listens");
                request.reply(payload()).await?;
                Ok(())
            }
        },
    )
}

async fn is_bounded(
    mut call: Call<Many<Bytes>, wallaby::codec::Raw>,
    mut accepted: mpsc::UnboundedReceiver<usize>,
) {
    let count = accepted.recv().await.expect("a count");
    // The window may be overdrawn by one message; one more is held back, and a relay has a window of its own.
    assert!((9..=25).contains(&count), "{count} were accepted");
    assert_eq!(call.outcome(), None);
    let items = all(&mut call).await;
    assert_eq!(items.len(), count + 2);
    assert!(
        items
            .iter()
            .all(|item| item.as_ref().is_ok_and(|item| item.len() == SIZE))
    );
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

async fn replies_wait_for_a_slow_application(net: Net) {
    let (accepted, counts) = mpsc::unbounded_channel();
    let server = net.serve(eager(accepted)).await;
    let client = narrow().bind().await.expect("there is a runtime");
    is_bounded(heap::at(&client, at(&server)).many(Bytes::new()), counts).await;
    until(|| server.load().is_idle()).await;
}

/// To an initiator that is dialled, and to one that is not.
async fn replies_of_deep_servers_wait_too(net: Net) {
    let (accepted, counts) = mpsc::unbounded_channel();
    let leaf = net.serve(eager(accepted)).await;
    let next = at(&leaf);
    let root = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (_,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, heap::many(Bytes::new())).await?) }
        },
    );
    let root = net.serve(root).await;
    let listening = net.bind(narrow()).await;
    is_bounded(heap::at(&listening, at(&root)).many(Bytes::new()), counts).await;
    assert_eq!(root.metrics().relayed, 0);

    let (accepted, counts) = mpsc::unbounded_channel();
    let leaf = net.serve(eager(accepted)).await;
    let next = at(&leaf);
    let root = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (_,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, heap::many(Bytes::new())).await?) }
        },
    );
    let mut limits = Limits::default();
    limits.call = WINDOW;
    let root = net
        .bind(Endpoint::builder().limits(limits).serve(root))
        .await;
    let silent = narrow().bind().await.expect("there is a runtime");
    is_bounded(heap::at(&silent, at(&root)).many(Bytes::new()), counts).await;
    assert!(root.metrics().relayed > 10);
}

/// Each of many calls of one client has a window of answers waiting at the server that passes them on. Another client's call
/// has so many there, too, and loses none.
async fn who_takes_no_answers_leaves_room_for_those_of_others(net: Net) {
    const CALLS: usize = 30;
    let (accepted, mut counts) = mpsc::unbounded_channel();
    let leaf = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (what,): (Bytes,)| {
            let accepted = accepted.clone();
            async move {
                for number in 1..=40 {
                    request.reply(payload()).await?;
                    if !what.is_empty() {
                        accepted.send(number).expect("the test listens");
                    }
                }
                Ok(())
            }
        },
    );
    let leaf = net.serve(leaf).await;
    let next = at(&leaf);
    let front = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (what,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, heap::many(what)).await?) }
        },
    );
    let mut limits = Limits::default();
    limits.call = WINDOW;
    limits.relayed = CALLS as u64 / 2 * WINDOW;
    let builder = Endpoint::builder().limits(limits).serve(front);
    let front = net.bind(builder).await;
    let slow = narrow().bind().await.expect("there is a runtime");
    let slow = heap::at(&slow, at(&front));
    let _slow: Vec<_> = (0..CALLS).map(|_| slow.many(Bytes::new())).collect();
    until(|| front.metrics().undeliverable > 0).await;
    let other = narrow().bind().await.expect("there is a runtime");
    let mut call = heap::at(&other, at(&front)).many("other".into());
    // Nearly two windows: that of the client is full, and the front's, too.
    while counts.recv().await.expect("it goes on") < 18 {}
    let items = all(&mut call).await;
    assert_eq!(items.len(), 40, "{items:?}");
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

async fn replies_to_oneself_wait_too(net: Net) {
    let (accepted, counts) = mpsc::unbounded_channel();
    let both = net.bind(narrow().serve(eager(accepted))).await;
    is_bounded(heap::at(&both, at(&both)).many(Bytes::new()), counts).await;
}

async fn a_fast_application_makes_nobody_wait(net: Net) {
    let server = service().method(
        &heap::MANY,
        |request: Request<Many<Bytes>, _>, (_,)| async move {
            for number in 0..2000u32 {
                let mut payload = vec![0; SIZE];
                payload[..4].copy_from_slice(&number.to_be_bytes());
                request.reply(payload.into()).await?;
            }
            Ok(())
        },
    );
    let server = net.serve(server).await;
    let client = narrow().bind().await.expect("there is a runtime");
    let mut call = heap::at(&client, at(&server)).many(Bytes::new());
    let mut numbers = Vec::new();
    while let Some(item) = call.next().await {
        let item = item.expect("an answer");
        numbers.push(item.first_chunk().copied().map(u32::from_be_bytes));
    }
    // Datagrams that are lost come later.
    if matches!(at(&server), Address::Udp(_)) {
        numbers.sort_unstable();
    }
    let all = (0..2000).map(Some);
    assert!(
        numbers.into_iter().eq(all),
        "each comes once, and over streams in order"
    );
}

async fn a_slow_call_does_not_hold_up_others(net: Net) {
    let (accepted, mut counts) = mpsc::unbounded_channel();
    let server = eager(accepted)
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        });
    let server = net.serve(server).await;
    let client = narrow().bind().await.expect("there is a runtime");
    let mut slow = heap::at(&client, at(&server)).many(Bytes::new());
    let count = counts.recv().await.expect("a count");
    for number in 0..20 {
        let answer = work::at(&client, at(&server)).one(number.to_string()).await;
        assert_eq!(answer.expect("an answer"), number.to_string());
    }
    let mut other = heap::at(&client, at(&server)).many(Bytes::new());
    counts.recv().await.expect("a window of its own");
    assert_eq!(
        client.metrics().connections_opened,
        1,
        "all over the same connection"
    );
    assert_eq!(all(&mut other).await.len(), all(&mut slow).await.len());
    assert!(count > 0);
}

/// Bytes that tell whether somebody still has them.
#[derive(Clone)]
struct Watched(Arc<Vec<u8>>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Watched {
    fn new(size: usize) -> Self {
        Self(Arc::new(vec![0; size]))
    }

    fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }

    fn is_kept(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// One handler at a time, which waits at the gate; room for 100 KB of requests.
async fn slow_server(net: &Net, gate: &Gate) -> Endpoint {
    let gate = gate.clone();
    let server = service().method(&heap::MANY, move |request: Request<Many<_>, _>, (_,)| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(request.respond(Bytes::new()).await?)
        }
    });
    let mut limits = Limits::default();
    limits.requests = WINDOW;
    let executor = ExecutorConfig {
        concurrency: 1,
        ..ExecutorConfig::default()
    };
    net.bind(
        Endpoint::builder()
            .serve(server)
            .executor(executor)
            .limits(limits),
    )
    .await
}

async fn requests_wait_for_a_slow_server(net: Net) {
    let gate = Gate::new();
    let server = slow_server(&net, &gate).await;
    let (client, other) = (client(), client());
    let heap = heap::at(&client, at(&server));
    let mut calls = vec![heap.many(Bytes::new())];
    until(|| server.load() == load(1, 0)).await;
    for queued in 1..=2 {
        calls.push(heap.many(Watched::new(60_000).bytes()));
        until(|| server.load() == load(1, queued)).await;
    }
    // There is no more room for requests of this connection.
    let third = Watched::new(60_000);
    calls.push(heap.many(third.bytes()));
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(third.is_kept(), "it was sent");
    }
    // Others have room of their own.
    let also = heap::at(&other, at(&server)).many(Watched::new(60_000).bytes());
    until(|| server.load() == load(1, 3)).await;
    calls.push(also);

    gate.open(2);
    until(|| !third.is_kept()).await;
    gate.open(9);
    for call in &mut calls {
        assert_eq!(all(call).await, [Ok(Bytes::new())]);
    }
    assert_eq!(server.metrics().requests_received, 5);
    until(|| server.load().is_idle()).await;
}

async fn delegations_wait_for_a_slow_server(net: Net) {
    let gate = Gate::new();
    let slow = slow_server(&net, &gate).await;
    let next: Address = at(&slow);
    let (delegated, mut results) = mpsc::unbounded_channel();
    let root = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (_,)| {
            let (next, delegated) = (next.clone(), delegated.clone());
            async move {
                let target = || heap::many(Bytes::from(vec![0; 60_000]));
                // The first one opens the connection.
                request.delegate(&next, heap::many(Bytes::new())).await?;
                request.flush().await;
                let mut count = 0;
                let full = loop {
                    match request.try_delegate(&next, target()) {
                        Ok(()) => count += 1,
                        Err(error) => break error,
                    }
                    tokio::task::yield_now().await;
                };
                delegated.send((count, full)).expect("the test listens");
                request.delegate(&next, target()).await?;
                request.flush().await;
                delegated
                    .send((1, SendError::Full))
                    .expect("the test listens");
                Ok(())
            }
        },
    );
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    let mut call = heap::at(&endpoint, at(&root)).many(Bytes::new());
    let (count, full) = results.recv().await.expect("a count");
    assert_eq!(full, SendError::Full);
    assert!((2..=4).contains(&count), "{count} were accepted");
    assert!(results.try_recv().is_err(), "one more waits");
    gate.open(100);
    results.recv().await.expect("it was accepted");
    assert_eq!(all(&mut call).await.len(), count + 2);
}

/// What was numbered is sent, even if the handler has lost its patience.
async fn a_reply_that_is_given_up_does_not_break_the_call(net: Net) {
    let (sent, mut counts) = mpsc::unbounded_channel();
    let server = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (_,)| {
            let sent = sent.clone();
            async move {
                let (mut done, mut given_up) = (0, 0);
                while given_up < 5 {
                    match poll_once(request.reply(payload())) {
                        Poll::Ready(result) => {
                            result?;
                            done += 1;
                        }
                        Poll::Pending => given_up += 1,
                    }
                    tokio::task::yield_now().await;
                }
                sent.send(done).expect("the test listens");
                Ok(())
            }
        },
    );
    let server = net.serve(server).await;
    let client = narrow().bind().await.expect("there is a runtime");
    let mut call = heap::at(&client, at(&server)).many(Bytes::new());
    let done = counts.recv().await.expect("a count");
    let items = all(&mut call).await;
    assert!(items.iter().all(Result::is_ok), "{:?}", items.last());
    assert!(
        (done..=done + 1).contains(&items.len()),
        "{done} were accepted, {} arrived",
        items.len()
    );
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

/// A relay keeps no more than the window for an initiator that takes nothing.
#[tokio::test]
async fn nothing_is_left_when_a_slow_call_is_given_up() {
    patience(async {
        let net = Net::tcp();
        let (accepted, mut counts) = mpsc::unbounded_channel();
        let server = net.serve(eager(accepted)).await;
        let client = narrow().bind().await.expect("there is a runtime");
        for _ in 0..3 {
            let call = heap::at(&client, at(&server)).many(Bytes::new());
            counts.recv().await.expect("a count");
            drop(call);
            until(|| server.load().is_idle()).await;
        }
        // The connection is as good as new.
        let mut call = heap::at(&client, at(&server)).many(Bytes::new());
        let count = counts.recv().await.expect("a count");
        assert_eq!(all(&mut call).await.len(), count + 2);
    })
    .await;
}

/// An initial request that has a number is sent, even if its sender has lost its patience.
#[tokio::test]
async fn an_initial_request_that_is_given_up_does_not_break_the_call() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let server = slow_server(&net, &gate).await;
        let client = client();
        let method = heap::MANY.definition();
        let mut call = client.caller().begin();
        let large = || Bytes::from(vec![0; 60_000]);
        for _ in 0..3 {
            call.send(at(&server), method, large())
                .await
                .expect("there is room");
        }
        until(|| server.load() == load(1, 2)).await;
        assert!(
            poll_once(call.send(at(&server), method, large())).is_pending(),
            "there is none"
        );
        call.close();
        gate.open(9);
        let mut answers = 0;
        while let Some(answer) = call.next().await {
            answer.expect("an answer");
            answers += 1;
        }
        assert_eq!(answers, 4);
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    })
    .await;
}

/// What a handler sends is held back while it might be the last of it. There may be no room any more when it leaves.
async fn an_answer_that_was_taken_is_not_lost_for_want_of_room(net: Net) {
    const ANSWERS: usize = 20;
    let many = |request: Request<Many<Bytes>, Raw>, (what,): (Bytes,)| async move {
        for _ in 0..ANSWERS {
            request.reply(what.clone()).await?;
        }
        Ok(())
    };
    let mut limits = Limits::default();
    limits.waiting = 2 * SIZE;
    let builder = Endpoint::builder().limits(limits);
    let server = builder.serve(service().method(&heap::MANY, many));
    let server = net.bind(server).await;
    let client = client();
    let heap = heap::at(&client, at(&server));
    let large = Bytes::from(vec![1; 3 * SIZE]);
    let mut calls: Vec<_> = (0..10).map(|_| heap.many(large.clone())).collect();
    for call in &mut calls {
        let answers = all(call).await;
        assert_eq!(answers, vec![Ok(large.clone()); ANSWERS]);
    }
    assert_eq!(server.metrics().undeliverable, 0);
}
