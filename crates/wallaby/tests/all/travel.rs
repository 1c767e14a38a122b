//! What travels with a request beside its arguments, and what of it comes to those that it leads to.

use bytes::Bytes;
use wallaby::{Address, CallError, Code, Failure, Many, One, Request, Service};

use crate::common::{Net, at, service, sorted, work};

over_every_transport!(a_continuation_is_of_one_request_only);

/// Says what it was given along, and delegates, calls and forwards to the next.
fn tells(next: Option<Address>) -> Service {
    service().method(&work::MANY, move |request: Request<Many<_>>, (name,)| {
        let next = next.clone();
        async move {
            let given = request.continuation();
            let given = given.as_deref().map(String::from_utf8_lossy);
            let told = format!("{name}: {given:?}");
            let Some(next) = next else {
                return Ok(request.respond(told).await?);
            };
            request.reply(told).await?;
            request
                .delegate(&next, work::many("delegated".into()))
                .await?;
            let mut called = work::within(request.call().at(&next)).many("called".into());
            while let Some(answer) = called.next().await {
                request.reply(answer?).await?;
            }
            Ok(request
                .forward(&next, work::many("forwarded".into()))
                .await?)
        }
    })
}

async fn a_continuation_is_of_one_request_only(net: Net) {
    let leaf = net.serve(tells(None)).await;
    let root = net.serve(tells(Some(at(&leaf)))).await;
    let client = net.endpoint().await;
    let client = client.caller().at(at(&root)).continuation("the rest");
    let mut call = client.call(&work::MANY, ("root".into(),));
    let (answers, statuses) = sorted(&mut call).await;
    assert!(statuses.is_empty(), "{statuses:?}");
    let expected = [
        "called: None",
        "delegated: None",
        "forwarded: None",
        "root: Some(\"the rest\")",
    ];
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn each_initial_request_has_the_continuation_of_its_call() {
    let net = Net::tcp();
    let server = net.serve(tells(None)).await;
    let client = net.endpoint().await;
    let mut call = client.caller().continuation("rest").begin();
    for name in [b"\x01a", b"\x01b"] {
        let payload = Bytes::from_static(name); // postcard's form of the text
        let sent = call.send(at(&server), work::MANY.definition(), payload);
        sent.await.expect("there is a server");
    }
    call.close();
    let mut answers = Vec::new();
    while let Some(answer) = call.next().await {
        let payload = answer.expect("an answer").payload;
        answers.push(String::from_utf8_lossy(&payload[1..]).into_owned());
    }
    answers.sort();
    assert_eq!(answers, ["a: Some(\"rest\")", "b: Some(\"rest\")"]);
}

#[tokio::test]
async fn a_continuation_has_a_limit() {
    let net = Net::tcp();
    let length = service().method(
        &work::ONE,
        |request: Request<One<_>>, (_,): (String,)| async move {
            let length = request.continuation().map_or(0, |bytes| bytes.len());
            Ok(request.respond(length.to_string()).await?)
        },
    );
    let server = net.serve(length).await;
    let client = net.endpoint().await;
    let ask = |length: usize| {
        let client = client.caller().at(at(&server));
        let client = client.continuation(vec![7; length]);
        async move { client.call(&work::ONE, (String::new(),)).await }
    };
    assert_eq!(ask(16_384).await, Ok("16384".into()));
    let Err(CallError::Failed(error @ Failure::Codec(_))) = ask(16_385).await else {
        panic!("it is too long");
    };
    assert_eq!(error.code(), Code::Internal);
    let text = "a continuation of 16385 bytes: at most 16384 are allowed";
    assert!(error.to_string().contains(text), "{error}");
}
