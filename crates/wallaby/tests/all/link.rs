//! Emulated links: what endpoints send arrives later, and nothing else changes.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::common::{Gate, Net, all, at, heap, service, status, until, work};
use bytes::Bytes;
use wallaby::{Builder, Code, Endpoint, Many, One, Request, Status};

over_every_transport!(calls_work_over_slow_links, aborts_work_over_slow_links,);

over_every_stream!(large_messages_work_over_slow_links,);

fn slow() -> Builder {
    let narrow = NonZeroU64::new(200_000_000).expect("not zero");
    Endpoint::builder()
        .link_delay(Duration::from_micros(500))
        .link_bandwidth(narrow)
}

async fn calls_work_over_slow_links(net: Net) {
    let leaf = service().method(
        &work::ONE,
        |request: Request<One<_>>, (what,): (String,)| async move {
            if what == "fail" {
                return Err(Status::new(Code::NotFound, "no"));
            }
            Ok(request.respond(what).await?)
        },
    );
    let leaf = net.bind(slow().serve(leaf)).await;
    let next = at(&leaf);
    let root = service()
        .method(&work::ONE, {
            let next = next.clone();
            move |request: Request<One<_>>, (what,)| {
                let next = next.clone();
                async move { Ok(request.forward(next, work::one(what)).await?) }
            }
        })
        .method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let next = next.clone();
                async move {
                    for letter in what.chars() {
                        request
                            .delegate(&next, work::one(letter.to_string()))
                            .await?;
                    }
                    for number in 0..100 {
                        request.reply(number.to_string()).await?;
                    }
                    Ok(())
                }
            },
        );
    let root = net.bind(slow().serve(root)).await;
    for initiator in [
        net.bind(slow()).await,
        slow().bind().await.expect("there is a runtime"),
    ] {
        let work = work::at(&initiator, at(&root));
        assert_eq!(work.one("x".into()).await, Ok("x".into()));
        assert_eq!(status(work.one("fail".into()).await).code(), Code::NotFound);
        let answers: Vec<_> = all(&mut work.many("abc".into()))
            .await
            .into_iter()
            .map(|item| item.expect("an answer"))
            .collect();
        let (numbers, mut letters): (Vec<String>, Vec<String>) = answers
            .into_iter()
            .partition(|answer| answer.parse::<u32>().is_ok());
        letters.sort();
        assert_eq!(letters, ["a", "b", "c"]);
        assert_eq!(
            numbers,
            (0..100)
                .map(|number| number.to_string())
                .collect::<Vec<_>>(),
            "order is kept"
        );
    }
}

async fn large_messages_work_over_slow_links(net: Net) {
    let echo = service().method(
        &heap::ONE,
        |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
    );
    let server = net.bind(slow().serve(echo)).await;
    let client = net.bind(slow()).await;
    let heap = heap::at(&client, at(&server));
    let payload = Bytes::from(
        (0..1_500_000u32)
            .map(|number| (number / 7) as u8)
            .collect::<Vec<_>>(),
    );
    let calls: Vec<_> = (0..3)
        .map(|skipped| (skipped, heap.one(payload.slice(skipped..))))
        .collect();
    for (skipped, call) in calls {
        assert!(call.await.expect("an answer") == payload.slice(skipped..));
    }
}

async fn aborts_work_over_slow_links(net: Net) {
    let gate = Gate::new();
    let began = gate.clone();
    let server = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let began = began.clone();
        async move {
            began.open(1);
            request.cancelled().await;
            Ok(())
        }
    });
    let server = net.bind(slow().serve(server)).await;
    let client = net.bind(slow()).await;
    let call = work::at(&client, at(&server)).one(String::new());
    gate.pass().await;
    drop(call);
    until(|| server.load().is_idle()).await;
    client.close();
    until(|| server.metrics().connections_ended == 1).await;
}
