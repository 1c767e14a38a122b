//! Messages up to the limit, both ways, on every transport, and small ones that do not wait behind them.

use std::time::{Duration, Instant};

use crate::common::{Net, all, at, client, heap, service, work};
use bytes::Bytes;
use wallaby::{Endpoint, Many, One, Outcome, Request, Service};
use wallaby_link::emulate;

over_every_stream!(
    messages_up_to_the_limit_travel_both_ways,
    many_large_messages_share_a_connection,
    large_messages_are_delegated,
    a_request_that_is_long_on_its_way_is_no_failure,
);

const MIB: usize = 1 << 20;

/// Bytes of which each 8 say where they are.
fn pattern(size: usize, seed: u64) -> Bytes {
    let mut bytes = Vec::with_capacity(size + 8);
    for word in 0..=(size as u64 / 8) {
        bytes.extend_from_slice(&(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

fn echo() -> Service {
    service()
        .method(
            &heap::ONE,
            |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
        )
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
}

/// As long as its own endpoint writes it, no server can know it.
async fn a_request_that_is_long_on_its_way_is_no_failure(net: Net) {
    // At most 128 KiB are under way, and each time they are credited this late.
    let server = Endpoint::builder().serve(echo());
    let server = emulate(server, Duration::from_millis(20), None).expect("a thread");
    let server = net.bind(server).await;
    let client = Endpoint::builder().ping(Duration::from_millis(100), Duration::from_secs(1));
    let client = client.bind().await.expect("there is a runtime");
    let begun = Instant::now();
    let payload = pattern(15 * MIB, 7);
    let call = heap::at(&client, at(&server)).one(payload.clone());
    let answer = call.await.expect("an answer");
    assert!(answer == payload, "it came back as it was");
    assert!(
        begun.elapsed() > Duration::from_secs(2),
        "else nothing was slow"
    );
}

async fn messages_up_to_the_limit_travel_both_ways(net: Net) {
    let server = net.serve(echo()).await;
    // It counts messages below: a slow machine must not make it ask.
    let client = Endpoint::builder().ping(Duration::from_secs(60), Duration::from_secs(600));
    let client = client.bind().await.expect("there is a runtime");
    let heap = heap::at(&client, at(&server));
    // Around the largest frame, the largest part, and the limit.
    let sizes = [
        0,
        1,
        32 * 1024,
        64 * 1024 - 1,
        64 * 1024,
        64 * 1024 + 1,
        MIB,
        3 * MIB + 5,
        16 * MIB,
    ];
    for (seed, size) in sizes.into_iter().enumerate() {
        let payload = pattern(size, seed as u64);
        let answer = heap.one(payload.clone()).await.expect("an answer");
        assert!(
            answer == payload,
            "{size} bytes did not come back as they were"
        );
    }
    let metrics = client.metrics();
    assert_eq!(
        (metrics.messages_sent, metrics.messages_received),
        (sizes.len() as u64, sizes.len() as u64)
    );
    assert!(metrics.bytes_sent > sizes.iter().sum::<usize>() as u64);
}

async fn many_large_messages_share_a_connection(net: Net) {
    let server = net.serve(echo()).await;
    let client = client();
    let heap = heap::at(&client, at(&server));
    let work = work::at(&client, at(&server));
    let payloads: Vec<_> = (0..12)
        .map(|seed| pattern(MIB + 100_000 * seed, seed as u64))
        .collect();
    let large: Vec<_> = payloads
        .iter()
        .map(|payload| heap.one(payload.clone()))
        .collect();
    let small: Vec<_> = (0..100)
        .map(|number| work.one(number.to_string()))
        .collect();
    for (number, call) in small.into_iter().enumerate() {
        assert_eq!(call.await.expect("an answer"), number.to_string());
    }
    for (call, payload) in large.into_iter().zip(&payloads) {
        assert!(
            call.await.expect("an answer") == payload,
            "it did not come back as it was"
        );
    }
    assert_eq!(client.metrics().connections_opened, 1);
}

/// Answers large or small, and says in which order requests came.
fn asked(came: tokio::sync::mpsc::UnboundedSender<usize>) -> Service {
    service().method(
        &heap::ONE,
        move |request: Request<One<Bytes>, _>, (what,): (Bytes,)| {
            came.send(what.len()).expect("the test listens");
            async move {
                match &*what {
                    b"large" => request.respond(pattern(8 * MIB, 1)).await?,
                    _ => request.respond(Bytes::from_static(b"small")).await?,
                }
                Ok(())
            }
        },
    )
}

/// On one thread, so that nothing arrives between two sends.
#[tokio::test]
async fn small_messages_overtake_large_ones() {
    for net in [Net::mem(), Net::tcp(), Net::unix()] {
        crate::common::patience(small_before_large(net)).await;
    }
}

async fn small_before_large(net: Net) {
    let (came, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let server = net.serve(asked(came)).await;
    let client = client();
    client.connect(at(&server)).await.expect("it listens");
    let heap = heap::at(&client, at(&server));

    // A small request behind a large one.
    let large = heap.one(pattern(2 * MIB, 2));
    let small = heap.one(Bytes::from_static(b"s"));
    assert_eq!(small.await, Ok(Bytes::from_static(b"small")));
    assert_eq!(
        requests.recv().await,
        Some(1),
        "the small request came first"
    );
    large.await.expect("an answer");
    assert_eq!(requests.recv().await, Some(2 * MIB));

    // A small answer behind a large one. The server has read the small request before it learns that the client has
    // taken the first parts of the large answer.
    let mut large = heap.one(Bytes::from_static(b"large"));
    let small = heap.one(Bytes::from_static(b"s"));
    assert_eq!(small.await, Ok(Bytes::from_static(b"small")));
    assert_eq!(
        client.metrics().responses_received,
        3,
        "the large answer is still on its way"
    );
    assert!(large.answer().await == Ok(pattern(8 * MIB, 1)));
    assert_eq!(large.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

async fn large_messages_are_delegated(net: Net) {
    let leaf = net.serve(echo()).await;
    let next = at(&leaf);
    let root = service().method(
        &heap::MANY,
        move |request: Request<Many<Bytes>, _>, (what,): (Bytes,)| {
            let next = next.clone();
            async move {
                request.delegate(&next, heap::one(what.clone())).await?;
                request.delegate(&next, heap::one(what.slice(1..))).await?;
                Ok(request.respond(what.slice(2..)).await?)
            }
        },
    );
    let root = net.serve(root).await;
    let initiator: Endpoint = net.endpoint().await;
    let payload = pattern(5 * MIB, 3);
    let mut call = heap::at(&initiator, at(&root)).many(payload.clone());
    let mut items: Vec<_> = all(&mut call)
        .await
        .into_iter()
        .map(|item| item.expect("an answer"))
        .collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.len()));
    assert_eq!(items.len(), 3);
    for (skipped, item) in items.into_iter().enumerate() {
        assert!(item == payload.slice(skipped..), "{skipped}");
    }
}
