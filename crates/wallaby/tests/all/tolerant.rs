//! Calls that go on without what is lost of them: a status in its place, and never plainly complete.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{
    Gate, Net, all, at, client, failure, load, patience, service, status, until, work,
};
use wallaby::{Client, Code, Endpoint, Failure, FailureKind, Many, One, Outcome, Request, Retry};

const PERIOD: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_millis(400);

over_every_transport!(a_shard_that_dies_costs_its_own_answers);

/// Three shards that answer once and then again when their gates open, and a front end that asks them.
async fn a_shard_that_dies_costs_its_own_answers(net: Net) {
    let mut shards = Vec::new();
    let mut gates = Vec::new();
    for number in 0..3 {
        let gate = Gate::new();
        gates.push(gate.clone());
        let shard = service().method(
            &work::MANY,
            move |request: Request<Many<String>>, (_,): (String,)| {
                let gate = gate.clone();
                async move {
                    request.reply(format!("{number} early")).await?;
                    gate.pass().await;
                    Ok(request.respond(format!("{number} late")).await?)
                }
            },
        );
        shards.push(net.serve(shard).await);
    }
    let to: Vec<_> = shards.iter().map(at).collect();
    let front = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
        let to = to.clone();
        async move {
            let what: String = what;
            for shard in &to {
                request.delegate(shard, work::many(what.clone())).await?;
            }
            Ok(())
        }
    });
    let front = net.serve(front).await;
    let initiator = net.bind(Endpoint::builder().ping(PERIOD, TIMEOUT)).await;
    let caller = Client::new(&initiator, at(&front));
    let mut tolerant = work::within(caller.clone()).tolerant().many(String::new());
    let mut strict = work::within(caller).many(String::new());
    for call in [&mut tolerant, &mut strict] {
        for _ in 0..3 {
            let early = call.next().await.expect("an answer").expect("an answer");
            assert!(early.ends_with("early"), "{early}");
        }
    }
    // It has been asked about before it dies.
    until(|| initiator.metrics().messages_received >= 15).await;
    let dead = at(&shards[1]);
    shards[1].kill();
    gates[0].open(2);
    let lost = failure(all(&mut strict).await.pop().expect("an end"));
    assert!(matches!(lost, Failure::Lost(_)), "{lost}");

    let (mut answers, mut losses) = (Vec::new(), Vec::new());
    while let Some(item) = tolerant.next().await {
        match item {
            Ok(answer) => answers.push(answer),
            error => {
                losses.push(status(error));
                assert_eq!(tolerant.outcome(), None, "others may still answer");
                gates[2].open(2); // the other call's handler waits there, too
            }
        }
    }
    answers.sort();
    assert_eq!(answers, ["0 late", "2 late"]);
    let [status] = &losses[..] else {
        panic!("{losses:?}")
    };
    assert_eq!(
        (status.code(), status.server()),
        (Code::Unavailable, Some(&dead))
    );
    let loss = status.loss().expect("nobody has sent it");
    assert_eq!(loss.request.to_string(), "0.1");
    assert_eq!(loss.method.as_deref(), Some("test.Work/many"));
    assert!(matches!(loss.kind, FailureKind::Silent { .. }), "{loss}");
    let complete = Some(Outcome::Complete { statuses: 1 });
    assert_eq!(tolerant.outcome(), complete);
}

/// The pong that says so is also the last thing that the call waits for.
#[tokio::test]
async fn what_a_pong_says_is_lost_is_told_before_the_end() {
    patience(async {
        let net = Net::mem();
        let server = service().method(
            &work::MANY,
            |request: Request<Many<String>>, (_,): (String,)| async move {
                request.cancelled().await;
                Ok(())
            },
        );
        let server = net.serve(server).await;
        let client = net.bind(Endpoint::builder().ping(PERIOD, TIMEOUT)).await;
        let caller = Client::new(&client, at(&server)).stall_limit(PERIOD * 5);
        let mut call = work::within(caller.tolerant()).many(String::new());
        let items = all(&mut call).await;
        let [lost] = &items[..] else {
            panic!("one status, not {items:?}; {:?}", call.outcome())
        };
        let lost = status(lost.clone());
        let kind = lost.loss().map(|loss| &loss.kind);
        assert!(matches!(kind, Some(FailureKind::Stalled { .. })), "{lost}");
        let complete = Some(Outcome::Complete { statuses: 1 });
        assert_eq!(call.outcome(), complete);
        // It is told to stop.
        until(|| server.load().is_idle()).await;
    })
    .await;
}

#[tokio::test]
async fn one_of_several_initial_requests_may_not_be_delivered() {
    patience(async {
        let net = Net::mem();
        let server =
            service().method(
                &work::ONE,
                |request: Request<_>, (what,): (String,)| async move {
                    Ok(request.respond(what).await?)
                },
            );
        let server = net.serve(server).await;
        let client = client();
        let nobody: wallaby::Address = "mem://nobody-at-all".parse().expect("an address");
        // Of the second it is known at once.
        let no_transport: wallaby::Address = "carrier-pigeon://attic".parse().expect("an address");
        let mut call = client.caller().tolerant().begin();
        for server in [nobody.clone(), no_transport.clone(), at(&server)] {
            let method = work::ONE.definition();
            let sent = call.send(server, method, vec![1, b'x'].into()).await;
            sent.expect("the call goes on");
        }
        call.close();
        let mut statuses = Vec::new();
        while let Some(item) = call.next().await {
            statuses.extend(item.err());
        }
        let mut codes: Vec<_> = (statuses.iter())
            .map(|status| (status.code(), status.server()))
            .collect();
        codes.sort_by_key(|(code, _)| code.to_string());
        let expected = [
            (Code::FailedPrecondition, Some(&no_transport)),
            (Code::Unavailable, Some(&nobody)),
        ];
        assert_eq!(codes, expected, "one answer and two statuses: {statuses:?}");
        let complete = Some(Outcome::Complete { statuses: 2 });
        assert_eq!(call.outcome(), complete);
        // Where nothing else is to come, nothing is left to go on with.
        for server in [nobody, no_transport] {
            let alone = work::at(&client, server).tolerant().one(String::new());
            let failed = failure(alone.await);
            assert!(matches!(failed, Failure::NotSent { .. }), "{failed}");
        }
    })
    .await;
}

/// A loss is one for retries, too: the front end hands the first attempt to who has gone, the second to who lives.
#[tokio::test]
async fn a_loss_is_made_again() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let dying = gate.clone();
        let waits = || {
            let dying = dying.clone();
            service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
                let gate = dying.clone();
                async move {
                    gate.pass().await;
                    Ok(request.respond(what).await?)
                }
            })
        };
        let (dead, alive) = (net.serve(waits()).await, net.serve(waits()).await);
        let shards = [at(&dead), at(&alive)];
        let attempt = AtomicUsize::new(0);
        let front = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let shard = shards[attempt.fetch_add(1, Ordering::Relaxed).min(1)].clone();
            async move {
                let what: String = what;
                Ok(request.forward(shard, work::one(what)).await?)
            }
        });
        let front = net.serve(front).await;
        let client = net.bind(Endpoint::builder().ping(PERIOD, TIMEOUT)).await;
        let caller = Client::new(&client, at(&front)).tolerant();
        let call = work::within(caller.retry(Retry::idempotent(2))).one("x".into());
        let dies = async {
            until(|| dead.load() == load(1, 0)).await;
            dead.kill();
            gate.open(2); // the handler of who has gone may take one
        };
        let (answer, ()) = tokio::join!(call, dies);
        assert_eq!(answer, Ok("x".into()));
    })
    .await;
}
