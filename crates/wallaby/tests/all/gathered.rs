//! Answers that go back along a line of servers: they arrive together, and are what they would be otherwise.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::common::bodies::{broken, piped};
use crate::common::lines::{code, finish, quick};
use crate::common::{Gate, Net, at, client, service, until, work};
use bytes::Bytes;
use wallaby::{
    Address, Answer, Answers, Body, Code, DialPolicy, Endpoint, Forwarding, Limits, Many, One,
    Outcome, Pipeline, PipelineSettings, Request, Service, Status, TargetOutcome, codec::Codec,
};

over_every_stream!(
    answers_come_back_along_the_line,
    a_server_that_is_slow_keeps_back_those_before_it,
    servers_may_give_many_answers_delegate_and_forward,
    servers_that_cannot_handle_it_pass_it_on,
    behind_a_server_that_is_not_there_nobody_has_it,
    a_server_that_may_not_pass_it_on_says_so,
    what_a_server_has_gathered_is_not_lost_with_it,
    a_line_that_breaks_while_bytes_pass,
    what_takes_too_much_room_does_not_wait,
    a_call_that_is_dropped_stops_the_line,
    a_quorum_aborts_the_rest_of_the_line,
    a_server_that_is_drained_waits_for_those_behind,
);

fn gathered() -> PipelineSettings {
    PipelineSettings {
        answers: Answers::Gathered,
        ..PipelineSettings::default()
    }
}

/// Whether anything is delivered now.
async fn is_quiet<A: Answer, C: Codec<A::Item>>(call: &mut Pipeline<A, C>) -> bool {
    let mut next = std::pin::pin!(call.next());
    poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await
}

/// Answers how long the body is, when its gate lets it.
fn measuring(gate: Option<Gate>) -> Service {
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let gate = gate.clone();
        async move {
            let len = match request.take_body() {
                Some(body) => length(body).await?,
                None => 0,
            };
            if let Some(gate) = gate {
                gate.pass().await;
            }
            Ok::<_, Status>(request.respond(format!("{what} {len}")).await?)
        }
    };
    service().method(&work::ONE, handler)
}

async fn length(mut body: Body) -> Result<usize, Status> {
    let mut len = 0;
    while let Some(chunk) = body.next().await {
        len += chunk.map_err(broken)?.len();
    }
    Ok(len)
}

async fn answers_come_back_along_the_line(net: Net) {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.push(net.serve(measuring(None)).await);
    }
    let line: Vec<Address> = servers.iter().map(at).collect();
    let client = client();
    for forwarding in [Forwarding::CutThrough, Forwarding::StoreAndForward] {
        let settings = PipelineSettings {
            forwarding,
            ..gathered()
        };
        for (what, body) in [("x", 0), ("x", 500_000), ("long", 9)] {
            let what = what.repeat(if what == "long" { 10_000 } else { 1 });
            let body = Body::from(Bytes::from(vec![7; body]));
            let target = work::one(what.clone()).with_body(body);
            let call = client
                .caller()
                .pipeline_with(&settings, line.clone(), target);
            for answer in call.all().await {
                assert!(answer.is_ok_and(|answer| answer.starts_with(&what)));
            }
        }
    }
    // Each server has passed on the answers of all behind it, each time.
    let relayed = |server: &Endpoint| server.metrics().relayed / 6;
    assert!(servers.iter().map(relayed).eq([4, 3, 2, 1, 0]));
}

async fn a_server_that_is_slow_keeps_back_those_before_it(net: Net) {
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    let mut servers = Vec::new();
    for gate in &gates {
        servers.push(net.serve(measuring(Some(gate.clone()))).await);
    }
    let client = client();
    let line = servers.iter().map(at);
    let mut call = client
        .caller()
        .pipeline_with(&gathered(), line, work::one("x".into()));
    until(|| servers.iter().all(|server| server.load().0 == 1)).await;
    gates[0].open(1);
    gates[2].open(1);
    until(|| servers[0].load() == (0, 0) && servers[2].load() == (0, 0)).await;
    for round in 0..20 {
        assert!(is_quiet(&mut call).await, "{round}");
        // Whatever was under way before it has arrived by now.
        for place in [0, 2] {
            gates[place].open(1);
            let answer = work::at(&client, at(&servers[place])).one("y".into()).await;
            assert_eq!(answer, Ok("y 0".into()));
        }
    }
    assert_eq!(client.metrics().responses_received, 40);
    gates[1].open(1);
    finish(&mut call).await;
    assert_eq!(call.outcomes(), vec![TargetOutcome::Answered; 3]);
}

/// However a request ends, the server before it learns that, and nobody waits for the deadline.
async fn servers_may_give_many_answers_delegate_and_forward(net: Net) {
    let helper = |request: Request<Many<String>>, (_,): (String,)| async move {
        request.reply("helped".into()).await?;
        Ok::<_, Status>(())
    };
    let helper = net.serve(service().method(&work::MANY, helper)).await;
    let help = at(&helper);
    let handler = move |request: Request<Many<String>>, (ways,): (String,)| {
        let help = help.clone();
        async move {
            for way in ways.chars() {
                let target = work::many(String::new());
                match way {
                    'r' => request.reply("own".into()).await?,
                    'd' => request.delegate(&help, target).await?,
                    'f' => return Ok(request.forward(&help, target).await?),
                    'l' => return Ok(request.respond("own".into()).await?),
                    _ => tokio::task::yield_now().await,
                }
            }
            Ok::<_, Status>(())
        }
    };
    let mut servers = Vec::new();
    for _ in 0..15 {
        servers.push(
            net.serve(service().method(&work::MANY, handler.clone()))
                .await,
        );
    }
    let client = client();
    for ways in [
        "", "l", "r", "rr", "ryr", "f", "yf", "rf", "d", "dd", "dy", "drl", "rdyrf",
    ] {
        for len in [1, 2, 15] {
            let line = servers[..len].iter().map(at);
            let target = work::many(ways.into());
            let mut call = client.caller().pipeline_with(&gathered(), line, target);
            let mut answers = vec![0; len];
            while let Some(delivery) = call.next().await {
                assert!(delivery.answer.is_ok(), "{ways}: {delivery:?}");
                answers[delivery.target] += 1;
            }
            let expected = ways.replace('y', "").len();
            assert_eq!(answers, vec![expected; len], "{ways}");
            assert_eq!(call.outcomes(), vec![TargetOutcome::Answered; len]);
            assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
        }
    }
}

async fn servers_that_cannot_handle_it_pass_it_on(net: Net) {
    let first = net.serve(measuring(None)).await;
    let nothing = net.serve(service()).await;
    let last = net.serve(service()).await;
    let line = [&first, &nothing, &last].map(at);
    let target = work::one("x".into()).with_body(Bytes::from(vec![0; 300_000]).into());
    let client = client();
    let mut call = client.caller().pipeline_with(&gathered(), line, target);
    finish(&mut call).await;
    let outcomes = call.outcomes();
    assert_eq!(outcomes[0], TargetOutcome::Answered);
    for outcome in &outcomes[1..] {
        assert_eq!(code(outcome), Some(Code::Unimplemented), "{outcomes:?}");
    }
}

async fn behind_a_server_that_is_not_there_nobody_has_it(net: Net) {
    let mut servers = Vec::new();
    for _ in 0..4 {
        servers.push(net.serve(measuring(None)).await);
    }
    let client = client();
    for missing in 0..servers.len() {
        let gone = net.endpoint().await;
        let mut line: Vec<Address> = servers.iter().map(at).collect();
        line[missing] = at(&gone);
        gone.close();
        let target = work::one("x".into()).with_body(Bytes::from(vec![0; 300_000]).into());
        let mut call = client.caller().pipeline_with(&gathered(), line, target);
        finish(&mut call).await;
        for (target, outcome) in call.outcomes().iter().enumerate() {
            match outcome {
                TargetOutcome::Answered => assert!(target < missing),
                TargetOutcome::NotDelivered(_) => assert!(target >= missing),
                other => panic!("{missing} missing, {target}: {other:?}"),
            }
        }
    }
}

async fn a_server_that_may_not_pass_it_on_says_so(net: Net) {
    let nobody = DialPolicy::default().only_if(|_| false);
    let alone = Endpoint::builder()
        .dial_policy(nobody)
        .serve(measuring(None));
    let servers = [net.bind(alone).await, net.serve(measuring(None)).await];
    let line = servers.iter().map(at);
    let client = client();
    let mut call = client
        .caller()
        .pipeline_with(&gathered(), line, work::one("x".into()));
    finish(&mut call).await;
    let outcomes = call.outcomes();
    assert_eq!(outcomes[0], TargetOutcome::Answered);
    let refused = matches!(&outcomes[1], TargetOutcome::NotDelivered(_));
    assert!(refused, "{outcomes:?}");
}

/// Those behind it had answered, and it had not: their answers were with it.
async fn what_a_server_has_gathered_is_not_lost_with_it(net: Net) {
    for victim in 0..3 {
        let mut servers = Vec::new();
        let gates = [Gate::new(), Gate::new(), Gate::new()];
        for gate in &gates {
            servers.push(net.serve(measuring(Some(gate.clone()))).await);
        }
        let client = client();
        let target = work::one("x".into()).with_body(Bytes::from(vec![0; 100_000]).into());
        let line = servers.iter().map(at);
        let mut call = quick(&client).pipeline_with(&gathered(), line, target);
        until(|| servers.iter().all(|server| server.load().0 == 1)).await;
        // Whom the client has not heard of it cannot ask when the server between them is gone.
        until(|| client.metrics().connections_opened == 3).await;
        for (place, gate) in gates.iter().enumerate() {
            if place != victim {
                gate.open(1);
                until(|| servers[place].load() == (0, 0)).await;
            }
        }
        servers[victim].close();
        finish(&mut call).await;
        let outcomes = call.outcomes();
        for (target, outcome) in outcomes.iter().enumerate() {
            match outcome {
                TargetOutcome::Answered => assert_ne!(target, victim),
                TargetOutcome::Unknown(_) => assert_eq!(target, victim, "{outcomes:?}"),
                other => panic!("{victim} died, {target}: {other:?}"),
            }
        }
    }
}

async fn a_line_that_breaks_while_bytes_pass(net: Net) {
    for victim in 0..3 {
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(net.serve(measuring(None)).await);
        }
        let (send, body) = piped();
        let client = client();
        let target = work::one("x".into()).with_body(body);
        let line = servers.iter().map(at);
        let mut call = quick(&client).pipeline_with(&gathered(), line, target);
        send.send(Ok("some".into())).expect("it is read");
        until(|| servers.iter().all(|server| server.load().0 == 1)).await;
        servers[victim].close();
        let _ = send.send(Ok("more".into()));
        drop(send);
        finish(&mut call).await;
        let outcomes = call.outcomes();
        for (target, outcome) in outcomes.iter().enumerate() {
            match outcome {
                TargetOutcome::Answered => assert!(target < victim, "{outcomes:?}"),
                TargetOutcome::Unknown(_) => assert_eq!(target, victim, "{outcomes:?}"),
                // The victim too, if its handler can still say that the body has ended.
                failed => {
                    assert!(target >= victim, "{outcomes:?}");
                    assert_eq!(code(failed), Some(Code::Aborted), "{outcomes:?}");
                }
            }
        }
    }
}

async fn what_takes_too_much_room_does_not_wait(net: Net) {
    let large = "x".repeat(3000);
    for (gathered_limit, call_limit) in [(1000, 1 << 20), (1 << 20, 2000)] {
        let gates = [Gate::new(), Gate::new(), Gate::new()];
        let mut servers = Vec::new();
        for gate in &gates {
            let mut limits = Limits::default();
            (limits.gathered, limits.call) = (gathered_limit, call_limit);
            let builder = Endpoint::builder()
                .limits(limits)
                .serve(measuring(Some(gate.clone())));
            servers.push(net.bind(builder).await);
        }
        let client = client();
        let line = servers.iter().map(at);
        let target = work::one(large.clone());
        let mut call = client.caller().pipeline_with(&gathered(), line, target);
        // One after the other, whichever it is, though the others have not answered.
        for place in [2, 0, 1] {
            gates[place].open(1);
            let delivery = call.next().await.expect("more is to come");
            assert_eq!(delivery.target, place);
            assert_eq!(delivery.answer, Ok(format!("{large} 0")));
        }
        finish(&mut call).await;
        assert_eq!(call.outcomes(), vec![TargetOutcome::Answered; 3]);
    }
}

#[tokio::test]
async fn a_trace_shows_the_line() {
    let net = Net::mem();
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(net.serve(measuring(None)).await);
    }
    let client = client();
    let caller = client.caller().traced();
    let line = servers.iter().map(at);
    let mut call = caller.pipeline_with(&gathered(), line, work::one("x".into()));
    finish(&mut call).await;
    let hops = call.trace().hops;
    let places = hops
        .iter()
        .map(|hop| (hop.path.as_str(), hop.server.clone()));
    let expected = ["0", "0.0", "0.0.0"].into_iter();
    assert!(places.eq(expected.zip(servers.iter().map(|server| Some(at(server))))));
}

async fn a_call_that_is_dropped_stops_the_line(net: Net) {
    let mut servers = Vec::new();
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    for gate in &gates {
        servers.push(net.serve(measuring(Some(gate.clone()))).await);
    }
    let client = client();
    let line = servers.iter().map(at);
    let call = client
        .caller()
        .pipeline_with(&gathered(), line, work::one("x".into()));
    until(|| servers.iter().all(|server| server.load().0 == 1)).await;
    gates[2].open(1);
    drop(call);
    until(|| servers.iter().all(|server| server.load() == (0, 0))).await;
}

async fn a_quorum_aborts_the_rest_of_the_line(net: Net) {
    let mut limits = Limits::default();
    limits.gathered = 0;
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    let mut servers = Vec::new();
    for gate in &gates {
        let builder = Endpoint::builder()
            .limits(limits.clone())
            .serve(measuring(Some(gate.clone())));
        servers.push(net.bind(builder).await);
    }
    let line = servers.iter().map(at);
    let client = client();
    let call = client
        .caller()
        .pipeline_with(&gathered(), line, work::one("x".into()));
    gates[0].open(1);
    gates[2].open(1);
    let mut quorum = call.quorum(2).await.expect("two answer");
    quorum.sort();
    assert_eq!(quorum, [(0, "x 0".into()), (2, "x 0".into())]);
    until(|| servers[1].load() == (0, 0)).await;
}

async fn a_server_that_is_drained_waits_for_those_behind(net: Net) {
    let gate = Gate::new();
    let first = net.serve(measuring(None)).await;
    let last = net.serve(measuring(Some(gate.clone()))).await;
    let client = client();
    let line = [&first, &last].map(at);
    let call = client
        .caller()
        .pipeline_with(&gathered(), line, work::one("x".into()));
    until(|| last.load().0 == 1 && first.load() == (0, 0)).await;
    let draining = tokio::spawn(async move { first.drain(Duration::from_secs(25)).await });
    gate.open(1);
    let answers = call.all().await;
    assert_eq!(answers, [Ok("x 0".into()), Ok("x 0".into())]);
    draining.await.expect("no panic").expect("all is done");
}
