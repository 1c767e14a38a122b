//! Answers in the order in which they were sent, on transports where some overtake others.

use std::time::Duration;

use crate::common::{Net, at, client, heap, service, work};
use bytes::Bytes;
use tokio::io::AsyncReadExt;
use wallaby::{Body, Client, Endpoint, Limits, Many, Request, Status};

over_every_transport!(
    answers_come_in_order,
    a_line_of_servers_answers_in_order,
    answers_behind_those_that_wait_take_no_credit_from_them,
    an_answer_is_read_like_a_file,
);

over_every_stream!(
    answers_that_are_overtaken_come_in_order,
    a_large_answer_that_is_overtaken_on_its_way_gets_its_credit,
);

async fn answers_come_in_order(net: Net) {
    in_order(net, 60_000).await;
}

/// Large ones travel in parts, and are overtaken by what follows.
async fn answers_that_are_overtaken_come_in_order(net: Net) {
    in_order(net, 200_000).await;
}

async fn in_order(net: Net, large: usize) {
    let handler = move |request: Request<Many<Bytes>, _>, (what,): (Bytes,)| async move {
        for index in 0..200_u32 {
            let size = if index % 7 == 0 { large } else { 4 };
            let mut answer = vec![what[0]; size];
            answer[..4].copy_from_slice(&index.to_be_bytes());
            request.reply(answer.into()).await?;
        }
        Ok::<_, Status>(())
    };
    let server = net.serve(service().method(&heap::MANY, handler)).await;
    let client = client();
    let heap = heap::at(&client, at(&server)).in_order();
    let answers = heap.many(Bytes::from_static(&[9])).collect().await;
    let answers = answers.expect("no status");
    let numbers = answers
        .iter()
        .map(|answer| u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]]));
    assert!(numbers.eq(0..200));
}

/// Each replies and passes the rest on: their answers are those of one branch.
async fn a_line_of_servers_answers_in_order(net: Net) {
    let last = |request: Request<Many<String>>, (what,): (String,)| async move {
        for index in 0..20 {
            request.reply(format!("last {index} {what}")).await?;
        }
        Ok::<_, Status>(())
    };
    let last = net.serve(service().method(&work::MANY, last)).await;
    let to = at(&last);
    let first = move |request: Request<Many<String>>, (what,): (String,)| {
        let to = to.clone();
        async move {
            for index in 0..20 {
                request.reply(format!("first {index} {what}")).await?;
            }
            Ok::<_, Status>(request.forward(to, work::many(what)).await?)
        }
    };
    let first = net.serve(service().method(&work::MANY, first)).await;
    let client = client();
    for _ in 0..20 {
        let work = work::at(&client, at(&first)).in_order();
        let answers = work.many("x".into()).collect().await.expect("no status");
        let sent =
            ["first", "last"].map(|who| (0..20).map(move |index| format!("{who} {index} x")));
        assert!(answers.into_iter().eq(sent.into_iter().flatten()));
    }
}

/// The last server's answers come back through the first one, to an initiator that takes few at a time.
async fn answers_behind_those_that_wait_take_no_credit_from_them(net: Net) {
    let last = |request: Request<Many<Bytes>, _>, (_,): (Bytes,)| async move {
        for index in 3..60_u8 {
            request.reply(Bytes::from(vec![index; 2000])).await?;
        }
        Ok::<_, Status>(())
    };
    let last = net.serve(service().method(&heap::MANY, last)).await;
    let to = at(&last);
    let first = move |request: Request<Many<Bytes>, _>, (_,): (Bytes,)| {
        let to = to.clone();
        async move {
            for index in 0..3_u8 {
                request.reply(Bytes::from(vec![index; 2000])).await?;
            }
            Ok::<_, Status>(request.forward(to, heap::many(Bytes::new())).await?)
        }
    };
    let first = net.serve(service().method(&heap::MANY, first)).await;
    let mut limits = Limits::default();
    limits.call = 2500;
    let client = Endpoint::builder().limits(limits).bind().await;
    let client = client.expect("there is a runtime");
    let heap = heap::at(&client, at(&first)).in_order();
    for _ in 0..10 {
        let mut call = heap.many(Bytes::new());
        for index in 0..60_u8 {
            let answer = call.next().await.expect("an answer").expect("no status");
            assert_eq!(answer[0], index);
        }
        assert!(call.next().await.is_none());
    }
}

/// The first answer travels in parts to the server that passes it on, and those behind it are there before it.
async fn a_large_answer_that_is_overtaken_on_its_way_gets_its_credit(net: Net) {
    const COUNT: u8 = 100;
    let last = |request: Request<Many<Bytes>, _>, (_,): (Bytes,)| async move {
        for index in 0..COUNT {
            let size = if index == 0 { 400_000 } else { 4_000 };
            request.reply(Bytes::from(vec![index; size])).await?;
        }
        Ok::<_, Status>(())
    };
    let last = net.serve(service().method(&heap::MANY, last)).await;
    let to = at(&last);
    let first = move |request: Request<Many<Bytes>, _>, (_,): (Bytes,)| {
        let to = to.clone();
        async move { Ok::<_, Status>(request.forward(to, heap::many(Bytes::new())).await?) }
    };
    let mut limits = Limits::default();
    limits.parts = 8_000;
    let first = Endpoint::builder()
        .limits(limits)
        .serve(service().method(&heap::MANY, first));
    let first = net.bind(first).await;
    let mut limits = Limits::default();
    limits.call = 50_000;
    // What does not arrive is sent again when the servers are asked: not so soon.
    let hour = Duration::from_secs(3600);
    let client = Endpoint::builder().limits(limits).ping(hour, hour);
    let client = client.bind().await;
    let client = client.expect("there is a runtime");
    let heap = heap::at(&client, at(&first)).in_order();
    let mut call = heap.many(Bytes::new());
    for index in 0..COUNT {
        let answer = call.next().await.expect("an answer").expect("no status");
        assert_eq!(answer[0], index);
    }
    assert!(call.next().await.is_none());
}

async fn an_answer_is_read_like_a_file(net: Net) {
    const LEN: usize = 3_000_000;
    let byte = |place: usize| (place / 3 % 253) as u8;
    let handler = move |request: Request<Many<Bytes>, _>, (_,): (Bytes,)| async move {
        let mut place = 0;
        while place < LEN {
            let chunk: Bytes = (place..LEN.min(place + 50_000)).map(byte).collect();
            place += chunk.len();
            request.reply(chunk).await?;
        }
        Ok::<_, Status>(())
    };
    let server = net.serve(service().method(&heap::MANY, handler)).await;
    let client = client();
    let call = Client::new(&client, at(&server))
        .in_order()
        .call(&heap::MANY, (Bytes::new(),));
    let mut all = Vec::new();
    let read = Body::from_stream(call).read_to_end(&mut all).await;
    assert_eq!(read.expect("no status"), LEN);
    assert!(all.into_iter().eq((0..LEN).map(byte)));
}
