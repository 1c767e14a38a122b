//! Static lists of links, without code.

use wallaby::Endpoint;
use wallaby_chain::{Chains, pipe};

use crate::world::{Net, at, library, patience, words};

/// Three requests and one response.
#[tokio::test]
async fn a_pipe_of_three_servers_takes_four_messages() {
    for net in [Net::Tcp, Net::Unix] {
        let (a, b, c) = (
            net.serve(Chains::new()).await,
            net.serve(Chains::new()).await,
            net.serve(Chains::new()).await,
        );
        let client = net.client().await;
        let chain = pipe(at(&a), &words::REPEAT, (5,))
            .then(at(&b), &words::SHOUT)
            .then(at(&c), &words::LENGTH);
        let mut call = chain.call(client.caller()).expect("it is small");
        assert_eq!(call.answer().await, Ok(6));
        assert_eq!(call.next().await.map(|next| next.is_ok()), None);
        // Not counted: what the protocol says of calls that take long, as on a slow machine.
        let requests = [&a, &b, &c].map(|server| server.metrics().requests_received);
        let responses = client.metrics().responses_received;
        assert_eq!((requests, responses), ([1, 1, 1], 1), "over {net:?}");
    }
}

#[tokio::test]
async fn a_server_may_stand_in_a_pipe_more_than_once() {
    let net = Net::Tcp;
    let (a, client) = (net.serve(Chains::new()).await, net.client().await);
    let mut chain = pipe(at(&a), &words::SHOUT, (String::new(),));
    for _ in 0..20 {
        chain = chain.then(at(&a), &words::SHOUT);
    }
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok("!".repeat(21)));
}

/// The answer of a method that may answer often is a link, if it answers once.
#[tokio::test]
async fn a_method_of_many_answers_is_a_link_if_it_gives_one() {
    let net = Net::Tcp;
    let (a, client) = (net.serve(Chains::new()).await, net.client().await);
    let chain = pipe(at(&a), &words::EACH, ("hop".to_owned(),)).then(at(&a), &words::SHOUT);
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok("hop!".into()));
}

/// A large answer goes on from server to server.
#[tokio::test]
async fn answers_may_be_as_large_as_messages() {
    let net = Net::Unix;
    let (a, b, client) = (
        net.serve(Chains::new()).await,
        net.serve(Chains::new()).await,
        net.client().await,
    );
    let chain = pipe(at(&a), &words::REPEAT, (8 << 20,)).then(at(&b), &words::SHOUT);
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer.expect("an answer").len(), (8 << 20) + 1);
}

/// A server that knows no chains answers the client. That is no wrong answer, but an error that says why.
#[tokio::test]
async fn the_answer_of_a_server_that_knows_no_chains_is_an_error() {
    patience(async {
        let net = Net::Tcp;
        let knows = net.serve(Chains::new()).await;
        let other = net.bind(Endpoint::builder().serve(library())).await;
        let client = net.client().await;
        let chain = pipe(at(&knows), &words::REPEAT, (5,))
            .then(at(&other), &words::SHOUT)
            .then(at(&knows), &words::SHOUT);
        let answer = chain.call(client.caller()).expect("it is small").await;
        let error = answer.expect_err("it was answered too early").to_string();
        assert!(
            error.contains("the answer of a link, not of the chain"),
            "{error}"
        );
        assert!(error.contains("request 0"), "{error}");
    })
    .await;
}

/// The same methods serve those who know nothing of chains, and continuations of others pass.
#[tokio::test]
async fn plain_calls_are_as_before() {
    let net = Net::Tcp;
    let (a, client) = (net.serve(Chains::new()).await, net.client().await);
    let plain = words::at(&client, at(&a));
    assert_eq!(plain.shout("hop".into()).await, Ok("hop!".into()));
    let other = client.caller().at(at(&a)).continuation("something else");
    let answer = other.call(&words::SHOUT, ("hop".to_owned(),)).await;
    assert_eq!(answer, Ok("hop!".into()));
}
