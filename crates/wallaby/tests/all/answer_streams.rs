//! Streams as answers: sent no faster than they are taken, read as items or like a file, and never mixed up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Net, at, client, heap, service, status, until, work};
use bytes::Bytes;
use tokio::io::AsyncReadExt;
use wallaby::codec::Raw;
use wallaby::{
    Address, Body, BodyError, CallError, Client, Code, Endpoint, Failure, Limits, Many, Request,
    Service, Status, items,
};

over_every_transport!(
    items_are_answers_in_order,
    a_slow_initiator_slows_the_handler,
    a_file_goes_through_three_hops,
    a_source_that_fails_is_a_status_behind_what_came,
    a_failed_call_breaks_the_bytes,
    bytes_that_cannot_be_read_say_whose_they_are,
    answers_of_two_branches_are_no_file,
    a_dropped_body_aborts_its_call,
);

fn to(client: &Endpoint, server: &Endpoint) -> Client {
    Client::new(client, at(server))
}

/// A body of so many bytes, each of which tells its place; counts what was asked for.
fn counted(total: u64) -> (Arc<AtomicU64>, Body) {
    const CHUNK: u64 = 50_000;
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let chunks = (0..total.div_ceil(CHUNK)).map(move |index| {
        let chunk = index * CHUNK..total.min((index + 1) * CHUNK);
        count.store(chunk.end, Ordering::Relaxed);
        Ok::<Bytes, String>(chunk.map(byte_at).collect())
    });
    (asked, Body::from_stream(items(chunks)))
}

fn byte_at(place: u64) -> u8 {
    (place % 251) as u8
}

async fn items_are_answers_in_order(net: Net) {
    let handler = |request: Request<Many<String>>, (what,): (String,)| async move {
        let answers = (0..300).map(move |index| format!("{what} {index}"));
        Ok::<_, Status>(request.reply_all(items(answers)).await?)
    };
    let server = net.serve(service().method(&work::MANY, handler)).await;
    let client = client();
    let work = work::at(&client, at(&server)).in_order();
    let answers = work.many("hop".into()).collect().await;
    let expected = (0..300).map(|index| format!("hop {index}"));
    assert!(answers.expect("no status").into_iter().eq(expected));
}

/// Nothing queues without bound, in the handler, on the way, or at the initiator.
async fn a_slow_initiator_slows_the_handler(net: Net) {
    const WINDOW: u64 = 100_000;
    const TOTAL: u64 = 5_000_000;
    let (asked, body) = counted(TOTAL);
    let body = std::sync::Mutex::new(Some(body));
    let handler = move |request: Request<Many<Bytes>, Raw>, (_,): (Bytes,)| {
        let body = body.lock().expect("no panic").take().expect("one call");
        async move { Ok::<_, Status>(request.reply_body(body).await?) }
    };
    let server = net.serve(service().method(&heap::MANY, handler)).await;
    let mut limits = Limits::default();
    limits.call = WINDOW;
    let client = Endpoint::builder().limits(limits).bind().await;
    let client = client.expect("there is a runtime");
    let call = to(&client, &server)
        .in_order()
        .call(&heap::MANY, (Bytes::new(),));
    let mut read = call.into_body();
    let mut place = 0;
    for round in 1..=5 {
        let mut some = vec![0; 100_000];
        read.read_exact(&mut some).await.expect("no status");
        for byte in some {
            assert_eq!(byte, byte_at(place), "at {place}");
            place += 1;
        }
        // The connection carries others meanwhile.
        for _ in 0..20 {
            let answer = heap::at(&client, at(&server)).one(Bytes::new()).await;
            assert_eq!(status(answer).code(), Code::Unimplemented);
        }
        let asked = asked.load(Ordering::Relaxed);
        let most = place + WINDOW + 200_000;
        assert!(
            asked <= most,
            "round {round}: {asked} were asked for, at most {most}"
        );
    }
    let mut rest = Vec::new();
    read.read_to_end(&mut rest).await.expect("no status");
    assert_eq!(place + rest.len() as u64, TOTAL);
    for byte in rest {
        assert_eq!(byte, byte_at(place), "at {place}");
        place += 1;
    }
    until(|| server.load().is_idle()).await;
}

/// Each server that forwards may send the beginning.
async fn a_file_goes_through_three_hops(net: Net) {
    let last = |request: Request<Many<Bytes>, Raw>, (from,): (Bytes,)| async move {
        let from = from.len();
        let mut rest = counted(3_000_000).1;
        let mut skipped = vec![0; from];
        rest.read_exact(&mut skipped).await.expect("in memory");
        Ok::<_, Status>(request.reply_body(rest).await?)
    };
    let last = net.serve(service().method(&heap::MANY, last)).await;
    let next = |server: Address| {
        let handler = move |request: Request<Many<Bytes>, Raw>, (from,): (Bytes,)| {
            let server = server.clone();
            async move {
                let begun = from.len() as u64;
                let own: Bytes = (begun..begun + 1000).map(byte_at).collect();
                request.reply_body(own).await?;
                let from = vec![0; from.len() + 1000].into();
                Ok::<_, Status>(request.forward(server, heap::many(from)).await?)
            }
        };
        service().method(&heap::MANY, handler)
    };
    let middle = net.serve(next(at(&last))).await;
    let first = net.serve(next(at(&middle))).await;
    let client = client();
    let call = to(&client, &first)
        .in_order()
        .call(&heap::MANY, (Bytes::new(),));
    let all = call.into_body().collect(3_000_000).await;
    let all = all.expect("no status");
    assert_eq!(all.len(), 3_000_000);
    assert!(all.into_iter().eq((0..3_000_000).map(byte_at)));
}

async fn a_source_that_fails_is_a_status_behind_what_came(net: Net) {
    let handler = |request: Request<Many<String>>, (what,): (String,)| async move {
        let answers = [Ok(what), Err("the disk is gone")];
        Ok::<_, Status>(request.reply_all(items(answers)).await?)
    };
    let server = net.serve(service().method(&work::MANY, handler)).await;
    let client = client();
    let mut call = work::at(&client, at(&server))
        .in_order()
        .many("some".into());
    assert_eq!(call.next().await, Some(Ok("some".into())));
    let failed = status(call.next().await.expect("a status"));
    assert_eq!(failed.code(), Code::Aborted);
    assert_eq!(
        failed.message(),
        "what is to be sent cannot be read: the disk is gone"
    );
    assert_eq!(call.next().await, None);
}

/// Never an end that looks like one.
async fn bytes_that_cannot_be_read_say_whose_they_are(net: Net) {
    let many = Arc::clone(work::MANY.definition());
    let no_text = |request: wallaby::RawRequest| async move {
        Ok(request.respond(Bytes::from_static(&[1, 0xff])).await?)
    };
    let server = net.serve(Service::new("raw").raw(many, no_text)).await;
    let work = work::at(&client(), at(&server)).in_order();
    let read = work.many("hop".into()).into_body().collect(1000).await;
    let Err(BodyError::Call(error)) = read else {
        panic!("{read:?}");
    };
    assert_eq!(error.server(), Some(&at(&server)));
    let whose = format!(
        "test.Work/many (request 0) at {} sent an answer",
        at(&server)
    );
    assert!(error.to_string().starts_with(&whose), "{error}");
}

async fn a_failed_call_breaks_the_bytes(net: Net) {
    let handler = |request: Request<Many<Bytes>, Raw>, (what,): (Bytes,)| async move {
        request.reply_body(Bytes::from_static(b"begun")).await?;
        request.flush().await;
        match what.first() {
            None => Err(Status::new(Code::DataLoss, "no more is there")),
            Some(_) => {
                request.cancelled().await;
                Ok(())
            }
        }
    };
    let server = net.serve(service().method(&heap::MANY, handler)).await;
    let client = client();
    let to = to(&client, &server).in_order();
    let mut body = to.call(&heap::MANY, (Bytes::new(),)).into_body();
    assert_eq!(body.next().await, Some(Ok("begun".into())));
    let Some(Err(BodyError::Call(error))) = body.next().await else {
        panic!("an error of the call");
    };
    assert_eq!(error.status().map(Status::code), Some(Code::DataLoss));
    assert_eq!(body.next().await, None);

    let hurried = to.clone().deadline(std::time::Duration::from_secs(2));
    let mut body = (hurried.call(&heap::MANY, ("wait".into(),))).into_body();
    assert_eq!(body.next().await, Some(Ok("begun".into())));
    let Some(Err(BodyError::Call(error))) = body.next().await else {
        panic!("an error of the call");
    };
    assert!(
        matches!(&*error, CallError::Failed(Failure::Deadline { .. })),
        "{error}"
    );

    // As a reader of a file sees it.
    let mut body = to.call(&heap::MANY, (Bytes::new(),)).into_body();
    let error = body
        .read_to_end(&mut Vec::new())
        .await
        .expect_err("an error");
    assert!(error.to_string().contains("no more is there"), "{error}");
}

fn halves(next: Address) -> Service {
    let handler = move |request: Request<Many<Bytes>, Raw>, (what,): (Bytes,)| {
        let next = next.clone();
        async move {
            request.delegate(&next, heap::many(what.clone())).await?;
            request.delegate(&next, heap::many(what)).await?;
            Ok::<_, Status>(())
        }
    };
    service().method(&heap::MANY, handler)
}

async fn answers_of_two_branches_are_no_file(net: Net) {
    let last = |request: Request<Many<Bytes>, Raw>, (what,): (Bytes,)| async move {
        Ok::<_, Status>(request.respond(what).await?)
    };
    let last = net.serve(service().method(&heap::MANY, last)).await;
    let first = net.serve(halves(at(&last))).await;
    let client = client();
    let to = to(&client, &first).in_order();
    let mut body = to.call(&heap::MANY, ("half".into(),)).into_body();
    assert_eq!(body.next().await, Some(Ok("half".into())));
    let Some(Err(BodyError::Source(why))) = body.next().await else {
        panic!("another branch");
    };
    assert!(why.contains("nothing tells the order"), "{why}");
    assert_eq!(body.next().await, None);
    // As answers both are there.
    let both = to.call(&heap::MANY, ("half".into(),)).collect().await;
    assert_eq!(both.expect("no status").len(), 2);
}

async fn a_dropped_body_aborts_its_call(net: Net) {
    let handler = |request: Request<Many<Bytes>, Raw>, (_,): (Bytes,)| async move {
        let (_, body) = counted(u64::MAX);
        Ok::<_, Status>(request.reply_body(body).await?)
    };
    let server = net.serve(service().method(&heap::MANY, handler)).await;
    let client = client();
    let call = to(&client, &server)
        .in_order()
        .call(&heap::MANY, (Bytes::new(),));
    let mut body = call.into_body();
    assert!(matches!(body.next().await, Some(Ok(_))));
    drop(body);
    until(|| server.load().is_idle()).await;
}

#[tokio::test]
async fn a_call_in_any_order_is_no_file() {
    let net = Net::mem();
    let handler = |request: Request<Many<Bytes>, Raw>, (what,): (Bytes,)| async move {
        Ok::<_, Status>(request.respond(what).await?)
    };
    let server = net.serve(service().method(&heap::MANY, handler)).await;
    let client = client();
    let call = to(&client, &server).call(&heap::MANY, (Bytes::new(),));
    let Some(Err(BodyError::Source(why))) = call.into_body().next().await else {
        panic!("it is refused");
    };
    assert!(why.contains("in_order"), "{why}");
}
