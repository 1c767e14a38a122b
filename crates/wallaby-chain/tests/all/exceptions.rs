//! What ends a chain before its time: each is a status that names the hosts.

use wallaby::{Code, Status};
use wallaby_chain::{Chains, Hop, State, pipe, start};

use crate::world::{Net, at, hosts, patience, status, texts, words};

fn functions() -> Chains {
    Chains::new()
        .function("fail", |_, answer| {
            Err(Status::data_loss(answer.read::<String>()?))
        })
        .function("panic", |_, _| panic!("as it was told"))
}

/// Each of them behind another link, so that there is a path.
#[tokio::test]
async fn each_exception_names_the_hosts_of_its_chain() {
    patience(async {
        for net in [Net::Tcp, Net::Unix] {
            let (a, b) = (net.serve(functions()).await, net.serve(functions()).await);
            let client = net.client().await;
            let first = || pipe(at(&a), &words::SHOUT, ("hop".to_owned(),));
            let begin = |function: &str| {
                let first = Hop::to(at(&a), &words::SHOUT, ("hop".to_owned(),));
                start::<String>(first.then(function, State::new()))
            };
            let both = texts([&at(&a), &at(&b)]);
            for (chain, code, text, path) in [
                (
                    first().then(at(&b), &words::DENY),
                    Code::PermissionDenied,
                    "hop! is not for you",
                    &both[..],
                ),
                (
                    pipe(at(&a), &words::EACH, ("panic".to_owned(),)).then(at(&b), &words::DENY),
                    Code::Panicked,
                    "as it was told",
                    &both[..],
                ),
                (begin("fail"), Code::DataLoss, "hop!", &both[..1]),
                (
                    begin("panic"),
                    Code::Panicked,
                    "function \"panic\" has panicked: as it was told",
                    &both[..1],
                ),
                (
                    begin("unknown"),
                    Code::NotFound,
                    "there is no chaining function \"unknown\" at this server",
                    &both[..1],
                ),
                (
                    pipe(at(&a), &words::EACH, ("two answers".to_owned(),)),
                    Code::FailedPrecondition,
                    "a link of a chain answers once, test.Words/each has answered again",
                    &both[..1],
                ),
                (
                    pipe(at(&a), &words::EACH, (String::new(),)).then(at(&b), &words::SHOUT),
                    Code::Unanswered,
                    "test.Words/each has ended without an answer",
                    &both[..1],
                ),
            ] {
                let answer = chain.call(client.caller()).expect("it is small").await;
                let status = status(answer);
                assert_eq!(status.code(), code, "{status}");
                assert!(status.message().contains(text), "{status}");
                assert_eq!(hosts(&status), path, "{status}");
            }
        }
    })
    .await;
}

/// What the function says that would run on the answer is looked at first: the service function does not run in vain.
#[tokio::test]
async fn a_link_is_not_executed_for_a_function_that_is_not_there() {
    let net = Net::Tcp;
    let (a, hanging) = net.serve_hanging(functions()).await;
    let client = net.client().await;
    let first = Hop::to(at(&a), &words::HANG, (String::new(),)).then("unknown", State::new());
    let chain = start::<String>(first);
    let status = status(chain.call(client.caller()).expect("it is small").await);
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(hanging.available_permits(), 0);
}

/// An answer that the caller could not have had either.
#[tokio::test]
async fn an_answer_that_is_too_large_to_go_on_is_an_exception() {
    patience(async {
        let net = Net::Tcp;
        let (a, b, client) = (
            net.serve(Chains::new()).await,
            net.serve(Chains::new()).await,
            net.client().await,
        );
        let chain = pipe(at(&a), &words::REPEAT, (17 << 20,)).then(at(&b), &words::LENGTH);
        let status = status(chain.call(client.caller()).expect("it is small").await);
        assert_eq!(hosts(&status), texts([&at(&a), &at(&b)]), "{status}");
        assert_eq!(b.metrics().requests_received, 0);
    })
    .await;
}

/// What was to be caught is not lost with who was to catch it.
#[tokio::test]
async fn an_exception_is_told_though_who_was_to_catch_it_is_not_there() {
    patience(async {
        let net = Net::Unix;
        let (a, client) = (net.serve(Chains::new()).await, net.client().await);
        let gone: wallaby::Address = net.address().parse().expect("an address");
        let chain = pipe(at(&a), &words::DENY, ("hop".to_owned(),));
        let chain = chain.catch(&gone, "any", State::new());
        let lost = status(chain.call(client.caller()).expect("it is small").await);
        assert_eq!(lost.code(), Code::Unavailable, "{lost}");
        assert_eq!(lost.server(), Some(&gone));
        let text = "it was to catch: hop is not for you [chain 1: ";
        assert!(lost.message().contains(text), "{lost}");
        assert_eq!(hosts(&lost), texts([&at(&a)]));
    })
    .await;
}
