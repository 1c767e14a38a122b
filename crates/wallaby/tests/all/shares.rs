//! A client that takes all it can leaves others what they need: seen through a socket.

use std::future::IntoFuture;
use std::time::Duration;

use crate::common::{Gate, Net, at, client, load, service, status, until, work};
use wallaby::{Builder, Client, Code, Endpoint, ExecutorConfig, One, Request, Schedule};

over_every_transport!(
    one_client_does_not_shut_others_out,
    many_clients_together_do_not_shut_a_newcomer_out,
    hanging_requests_of_one_client_leave_room_in_the_table,
    many_short_calls_of_one_client_leave_others_theirs,
    handlers_of_a_client_that_has_died_give_their_places_back,
);

/// Handlers wait at the gate, unless they are asked for something short.
async fn bind(net: &Net, gate: &Gate, places: usize, remembered: usize) -> Endpoint {
    bind_with(net, gate, places, remembered, |builder| builder).await
}

async fn bind_with(
    net: &Net,
    gate: &Gate,
    places: usize,
    remembered: usize,
    adapt: fn(Builder) -> Builder,
) -> Endpoint {
    let gate = gate.clone();
    let server = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let gate = gate.clone();
            async move {
                if what != "short" {
                    gate.pass().await;
                }
                Ok(request.respond(what).await?)
            }
        },
    );
    let executor = ExecutorConfig {
        concurrency: places,
        queue: places,
        schedule: Schedule::Fifo,
    };
    let builder = Endpoint::builder().serve(server).executor(executor);
    net.bind(adapt(builder.remember(remembered, 1 << 20))).await
}

/// Clients that each have a connection of their own make a few short calls, all of which are answered.
async fn others_are_served(server: &Endpoint) {
    for _ in 0..5 {
        let other = client();
        for _ in 0..10 {
            let answer = work::at(&other, at(server)).one("short".into()).await;
            assert_eq!(answer.expect("an answer"), "short");
        }
        other.close();
    }
}

async fn one_client_does_not_shut_others_out(net: Net) {
    let gate = Gate::new();
    let server = bind(&net, &gate, 32, 1 << 16).await;
    let greedy = client();
    greedy.connect(at(&server)).await.expect("it listens");
    let calls: Vec<_> = (0..500)
        .map(|_| work::at(&greedy, at(&server)).one("hang".into()))
        .collect();
    until(|| server.metrics().requests_received == 500).await;
    let wallaby::Load { running, waiting } = server.load();
    assert!((27..32).contains(&running), "{running}");
    assert!((27..32).contains(&waiting), "{waiting}");
    others_are_served(&server).await;
    // Its calls are not aborted, as if it had crashed.
    let mut refused = calls.into_iter().skip(running + waiting);
    let refused = status(refused.next().expect("there are many").await);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("share"), "{refused}");
    greedy.close();
    others_are_served(&server).await;
    gate.open(1000);
    until(|| server.load().is_idle()).await;
}

/// Each of them takes its share of the queue, until next to nothing is left.
async fn many_clients_together_do_not_shut_a_newcomer_out(net: Net) {
    const OFFERED: usize = 8 * 60;
    let gate = Gate::new();
    let server = bind(&net, &gate, 32, 1 << 16).await;
    let hang = |client: &Endpoint| {
        work::at(client, at(&server))
            .one("hang".into())
            .into_future()
    };
    let crowd: Vec<_> = (0..8).map(|_| client()).collect();
    let calls: Vec<_> = (0..60)
        .flat_map(|_| crowd.iter().map(|client| tokio::spawn(hang(client))))
        .collect();
    until(|| server.metrics().requests_received == OFFERED as u64).await;
    let newcomer = client();
    let few: Vec<_> = (0..2).map(|_| tokio::spawn(hang(&newcomer))).collect();
    until(|| server.metrics().requests_received == OFFERED as u64 + 2).await;
    gate.open(OFFERED);
    for call in few {
        let answer = call.await.expect("no panic");
        assert_eq!(answer.expect("an answer"), "hang");
    }
    for call in calls {
        if let Err(error) = call.await.expect("no panic") {
            assert_eq!(
                error.status().map(|status| status.code()),
                Some(Code::ResourceExhausted)
            );
        }
    }
    until(|| server.load().is_idle()).await;
}

async fn hanging_requests_of_one_client_leave_room_in_the_table(net: Net) {
    let gate = Gate::new();
    let server = bind(&net, &gate, 4096, 100).await;
    let greedy = client();
    greedy.connect(at(&server)).await.expect("it listens");
    let calls: Vec<_> = (0..300)
        .map(|_| work::at(&greedy, at(&server)).one("hang".into()))
        .collect();
    until(|| server.metrics().requests_received == 300).await;
    let running = server.load().running;
    assert!((80..95).contains(&running), "{running}");
    others_are_served(&server).await;
    gate.open(1000);
    let (mut answers, mut refused) = (0, 0);
    for call in calls {
        match call.await {
            Ok(_) => answers += 1,
            other => {
                assert_eq!(status(other).code(), Code::ResourceExhausted);
                refused += 1;
            }
        }
    }
    assert_eq!((answers, refused), (running, 300 - running));
}

/// It has stated that silence of ten minutes is no failure; others that have stated the same still live.
async fn handlers_of_a_client_that_has_died_give_their_places_back(net: Net) {
    const AGES: Duration = Duration::from_secs(600);
    let gate = Gate::new();
    let soon = |builder: Builder| builder.initiator_timeout(Duration::from_millis(200));
    let server = bind_with(&net, &gate, 32, 1 << 16, soon).await;
    let hang = |client: &Endpoint, period| {
        let client = Client::new(client, at(&server)).ping(Duration::from_millis(period), AGES);
        work::within(client).one("hang".into())
    };
    let (dies, lives) = (client(), client());
    // Five periods are the least that anybody is given.
    let call = tokio::spawn(hang(&lives, 500).into_future());
    until(|| server.load() == load(1, 0)).await;
    let calls: Vec<_> = (0..20).map(|_| hang(&dies, 20)).collect();
    until(|| server.load() == load(21, 0)).await;
    dies.close();
    until(|| server.load() == load(1, 0)).await;
    gate.open(1);
    let answer = call.await.expect("it does not panic");
    assert_eq!(answer.expect("an answer"), "hang");
    drop(calls);
}

/// The greedy client always has more calls than are taken; as many handlers end as others make calls.
async fn many_short_calls_of_one_client_leave_others_theirs(net: Net) {
    let gate = Gate::new();
    let server = bind(&net, &gate, 32, 200).await;
    let greedy = client();
    greedy.connect(at(&server)).await.expect("it listens");
    let others: Vec<Endpoint> = (0..5).map(|_| client()).collect();
    let mut calls = Vec::new();
    for round in 0..50 {
        for _ in 0..20 {
            calls.push(work::at(&greedy, at(&server)).one("hang".into()));
        }
        gate.open(10);
        let other = &others[round % others.len()];
        let answer = work::at(other, at(&server)).one("short".into()).await;
        assert_eq!(answer.expect("an answer"), "short", "{round}");
    }
    gate.open(2000);
    let mut answers = 0;
    for call in calls {
        answers += usize::from(call.await.is_ok());
    }
    assert!(answers > 60, "{answers}");
}
