//! One message to many servers: an outcome each, and quorums.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Gate, Net, at, client, service, until, work};
use bytes::Bytes;
use tokio::sync::mpsc;
use wallaby::codec::{Codec, CodecError, Format, Postcard};
use wallaby::{
    Address, CallError, Code, Endpoint, Failure, Many, Method, One, Outcome, Request, Status,
};

over_every_transport!(
    each_server_has_an_outcome_of_its_own,
    a_quorum_aborts_the_rest,
    a_quorum_that_cannot_be_reached_fails_at_once,
    a_server_may_give_many_answers,
    a_multicast_ends_with_the_request_it_was_made_for,
);

/// A server that answers with its name and what it was asked, or with a status if it has no name.
async fn named(net: &Net, name: &'static str) -> Endpoint {
    let handler = move |request: Request<One<String>>, (what,): (String,)| async move {
        match name {
            "" => Err(Status::new(Code::NotFound, "nobody")),
            _ => Ok(request.respond(format!("{name}: {what}")).await?),
        }
    };
    net.serve(service().method(&work::ONE, handler)).await
}

/// A server that answers when the gate lets it, and reports if it is stopped before.
async fn slow(net: &Net, gate: Gate, stopped: mpsc::UnboundedSender<()>) -> Endpoint {
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let (gate, stopped) = (gate.clone(), stopped.clone());
        async move {
            tokio::select! {
                () = gate.pass() => request.respond(what).await?,
                () = request.cancelled() => stopped.send(()).expect("the test listens"),
            }
            Ok::<_, Status>(())
        }
    };
    net.serve(service().method(&work::ONE, handler).shielded())
        .await
}

async fn each_server_has_an_outcome_of_its_own(net: Net) {
    let servers = [
        named(&net, "a").await,
        named(&net, "").await,
        named(&net, "c").await,
    ];
    let mut addresses: Vec<Address> = servers.iter().map(at).collect();
    // The same server may be asked twice.
    addresses.push(at(&servers[0]));
    let client = client();
    let answers = client
        .caller()
        .multicast(addresses.clone(), work::one("x".into()));
    assert_eq!(answers.targets(), 4);
    let answers = answers.all().await;
    assert_eq!(answers[0], Ok("a: x".into()));
    let status = answers[1].as_ref().expect_err("a status").status();
    assert_eq!(status.map(Status::code), Some(Code::NotFound));
    assert_eq!(answers[2], Ok("c: x".into()));
    assert_eq!(answers[3], Ok("a: x".into()));

    // As they come; each knows its server, and how its call ended.
    let mut answers = client
        .caller()
        .multicast(addresses.clone(), work::one("y".into()));
    let mut seen = [false; 4];
    while let Some(delivery) = answers.next().await {
        assert_eq!(delivery.server, addresses[delivery.target]);
        assert!(!std::mem::replace(&mut seen[delivery.target], true));
    }
    assert_eq!(seen, [true; 4]);
    let statuses = |target| match answers.outcome(target) {
        Some(Outcome::Complete { statuses }) => statuses,
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 1, 2].map(statuses), [0, 1, 0]);
    assert_eq!(answers.outcome(4), None);
    assert_eq!(answers.trace(0).expect("a trace").hops.len(), 1);
}

async fn a_quorum_aborts_the_rest(net: Net) {
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let gate = Gate::new();
    let servers = [
        slow(&net, gate.clone(), stopped.clone()).await,
        named(&net, "b").await,
        named(&net, "c").await,
    ];
    let client = client();
    let votes = client
        .caller()
        .multicast(servers.iter().map(at), work::one("vote".into()));
    until(|| servers[0].load().running == 1).await;
    let mut votes = votes.quorum(2).await.expect("two of three answer");
    votes.sort();
    assert_eq!(votes, [(1, "b: vote".into()), (2, "c: vote".into())]);
    stops.recv().await.expect("the third was stopped");
    until(|| servers[0].load().is_idle()).await;
}

async fn a_quorum_that_cannot_be_reached_fails_at_once(net: Net) {
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let servers = [
        slow(&net, Gate::new(), stopped).await,
        named(&net, "").await,
        named(&net, "c").await,
        named(&net, "").await,
    ];
    let client = client();
    let addresses: Vec<_> = servers.iter().map(at).collect();
    let votes = client
        .caller()
        .multicast(addresses.clone(), work::one("vote".into()));
    until(|| servers[0].load().running == 1).await;
    let error = votes.quorum(3).await.expect_err("two cannot answer");
    assert_eq!((error.needed, error.targets), (3, 4));
    let mut failed: Vec<_> = error.failed.iter().map(|(server, _)| server).collect();
    failed.sort_by_key(|server| addresses.iter().position(|address| address == *server));
    assert_eq!(failed, [&addresses[1], &addresses[3]]);
    let text = error.to_string();
    assert!(
        text.starts_with("3 answers were needed, but only 2 servers of 4 can give one; the first")
            && text.contains("nobody"),
        "{text}"
    );
    stops.recv().await.expect("the first was stopped");
}

async fn a_server_may_give_many_answers(net: Net) {
    let handler = |request: Request<Many<String>>, (what,): (String,)| async move {
        for index in 0..5 {
            request.reply(format!("{what} {index}")).await?;
        }
        Ok::<_, Status>(())
    };
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(net.serve(service().method(&work::MANY, handler)).await);
    }
    let client = client();
    let mut answers = client
        .caller()
        .multicast(servers.iter().map(at), work::many("n".into()));
    let mut got: [Vec<String>; 3] = Default::default();
    while let Some(delivery) = answers.next().await {
        got[delivery.target].push(delivery.answer.expect("no status"));
    }
    for mut answers in got {
        answers.sort();
        assert_eq!(answers, ["n 0", "n 1", "n 2", "n 3", "n 4"]);
    }
}

async fn a_multicast_ends_with_the_request_it_was_made_for(net: Net) {
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let leaves = [
        slow(&net, Gate::new(), stopped.clone()).await,
        slow(&net, Gate::new(), stopped).await,
    ];
    let addresses: Vec<_> = leaves.iter().map(at).collect();
    let front = move |request: Request<One<String>>, (what,): (String,)| {
        let addresses = addresses.clone();
        async move {
            let answers = request.call().multicast(addresses, work::one(what));
            let answers = answers.all().await;
            assert!(answers.iter().all(Result::is_err), "{answers:?}");
            Ok::<_, Status>(())
        }
    };
    let front = net
        .serve(service().method(&work::ONE, front).shielded())
        .await;
    let client = client();
    let call = work::at(&client, at(&front)).one("x".into());
    until(|| leaves.iter().all(|leaf| leaf.load().running == 1)).await;
    drop(call);
    for _ in 0..2 {
        stops.recv().await.expect("both were stopped");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_alone() {
    let net = Net::tcp();
    let gone = at(&net.endpoint().await);
    let here = named(&net, "here").await;
    let client = client();
    let answers = client
        .caller()
        .multicast([gone, at(&here)], work::one("x".into()))
        .all()
        .await;
    assert!(
        matches!(&answers[0], Err(CallError::Failed(Failure::NotSent { .. }))),
        "{:?}",
        answers[0]
    );
    assert_eq!(answers[1], Ok("here: x".into()));
}

#[tokio::test]
async fn quorums_of_none_and_of_too_many() {
    let net = Net::mem();
    let server = named(&net, "a").await;
    let client = client();
    let multicast = |servers: &[&Endpoint]| {
        let servers: Vec<_> = servers.iter().map(|server| at(server)).collect();
        client.caller().multicast(servers, work::one("x".into()))
    };
    assert_eq!(multicast(&[&server]).quorum(0).await, Ok(Vec::new()));
    assert_eq!(multicast(&[]).all().await, []);
    assert_eq!(multicast(&[]).next().await, None);
    let error = multicast(&[&server]).quorum(2).await.expect_err("too many");
    assert_eq!((error.needed, error.targets), (2, 1));
    assert_eq!(error.code(), Code::FailedPrecondition);
    let error = multicast(&[]).first().await.expect_err("nobody");
    let expected = "1 answers were needed, but only 0 servers of 0 can give one";
    assert_eq!(error.to_string(), expected);
    let first = multicast(&[&server, &server]).first().await;
    assert_eq!(first.expect("an answer").1, "a: x");
}

/// Text that counts how often it was encoded.
#[derive(Debug, Clone, PartialEq)]
struct Counted(String);

struct Counting;

static ENCODED: AtomicUsize = AtomicUsize::new(0);

impl Format for Counting {
    const NAME: &'static str = "counting";
}

impl Codec<(Counted,)> for Counting {
    fn encode((value,): &(Counted,)) -> Result<Bytes, CodecError> {
        ENCODED.fetch_add(1, Ordering::Relaxed);
        <Postcard as Codec<String>>::encode(&value.0)
    }

    fn decode(payload: Bytes) -> Result<(Counted,), CodecError> {
        <Postcard as Codec<String>>::decode(payload).map(|text| (Counted(text),))
    }
}

impl Codec<String> for Counting {
    fn encode(value: &String) -> Result<Bytes, CodecError> {
        <Postcard as Codec<String>>::encode(value)
    }

    fn decode(payload: Bytes) -> Result<String, CodecError> {
        <Postcard as Codec<String>>::decode(payload)
    }
}

static COUNTED: Method<(Counted,), One<String>, Counting> = Method::new("test.Counting/one");

#[tokio::test]
async fn arguments_are_encoded_once() {
    let net = Net::mem();
    let mut servers = Vec::new();
    for _ in 0..10 {
        let echo = |request: Request<One<String>, _>, (what,): (Counted,)| async move {
            Ok(request.respond(what.0).await?)
        };
        servers.push(net.serve(service().method(&COUNTED, echo)).await);
    }
    let client = client();
    let target = COUNTED.target((Counted("x".into()),));
    let answers = client.caller().multicast(servers.iter().map(at), target);
    let answers = answers.all().await;
    assert_eq!(answers, vec![Ok("x".to_owned()); 10]);
    assert_eq!(ENCODED.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_multicast_at_once() {
    let net = Net::tcp();
    let servers = [
        named(&net, "a").await,
        named(&net, "b").await,
        named(&net, "c").await,
    ];
    let addresses: Vec<_> = servers.iter().map(at).collect();
    let client = client();
    let tasks = (0..20).map(|task| {
        let (caller, addresses) = (client.caller(), addresses.clone());
        tokio::spawn(async move {
            for round in 0..20 {
                let what = format!("{task} {round}");
                let answers = caller.multicast(addresses.clone(), work::one(what.clone()));
                let expected = ["a", "b", "c"].map(|name| Ok(format!("{name}: {what}")));
                assert_eq!(answers.all().await, expected);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
}

#[test]
fn a_blocking_caller_gets_deliveries_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .expect("a runtime");
    let net = Net::tcp();
    let (client, server) = runtime.block_on(async { (client(), named(&net, "a").await) });
    let mut answers = client
        .caller()
        .multicast([at(&server)], work::one("x".into()));
    let delivery = answers.blocking_next().expect("no runtime here");
    assert_eq!(delivery.expect("one").answer, Ok("a: x".into()));
    assert_eq!(answers.blocking_next(), Ok(None));
    let refused = runtime.block_on(async { answers.blocking_next() });
    assert_eq!(refused, Err(Failure::WouldBlock));
}
