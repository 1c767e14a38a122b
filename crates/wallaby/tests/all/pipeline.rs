//! One message down a line of servers: all of them get it while it arrives, and each has an outcome that is true.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::bodies::{broken, check, counted, piped};
use crate::common::lines::{code, finish, quick};
use crate::common::{Gate, Net, at, client, service, until, work};
use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use wallaby::{
    Address, Body, Budgets, CallError, Client, Code, DialPolicy, Endpoint, ExecutorConfig, Failure,
    Forwarding, Limits, Many, Method, One, Outcome, PipelineSettings, Request, Status,
    TargetOutcome,
};

over_every_stream!(
    every_server_of_a_line_gets_the_message,
    a_message_is_passed_on_while_it_arrives,
    a_slow_handler_slows_the_line_and_one_that_reads_nothing_does_not,
    a_message_that_is_stored_is_passed_on_when_it_is_whole,
    servers_that_cannot_handle_it_pass_it_on,
    behind_a_server_that_is_not_there_nobody_has_it,
    a_server_that_may_not_pass_it_on_says_so,
    long_arguments_are_kept_within_a_limit,
    a_server_that_shuts_down_passes_on_what_it_has_begun,
    a_line_that_breaks_while_bytes_pass,
    a_line_that_breaks_after_the_bytes_passed,
    a_body_that_breaks_at_its_source,
    a_call_that_is_dropped_stops_the_line,
    servers_may_give_many_answers_and_delegate,
    answers_from_far_down_are_delivered_once_it_is_known_whose_they_are,
    a_quorum_aborts_the_rest_of_the_line,
);

/// A server that answers with its name, what it was asked, and how long the body is, if there is one.
async fn measuring(net: &Net, name: &'static str) -> Endpoint {
    let handler = move |request: Request<One<String>>, (what,): (String,)| async move {
        let len = match request.take_body() {
            Some(body) => check(body).await.map_err(broken)?.to_string(),
            None => "no body".into(),
        };
        let answer = format!("{name}: {what}, {len}");
        Ok::<_, Status>(request.respond(answer).await?)
    };
    net.serve(service().method(&work::ONE, handler)).await
}

async fn line_of(net: &Net, names: &[&'static str]) -> Vec<Endpoint> {
    let mut servers = Vec::new();
    for name in names {
        servers.push(measuring(net, name).await);
    }
    servers
}

fn addresses(servers: &[Endpoint]) -> Vec<Address> {
    servers.iter().map(at).collect()
}

fn stored() -> PipelineSettings {
    PipelineSettings {
        forwarding: Forwarding::StoreAndForward,
        ..PipelineSettings::default()
    }
}

async fn every_server_of_a_line_gets_the_message(net: Net) {
    let names = ["a", "b", "c", "d"];
    let servers = line_of(&net, &names).await;
    let client = client();
    for len in 0..=names.len() {
        let line = addresses(&servers[..len]);
        for forwarding in [Forwarding::CutThrough, Forwarding::StoreAndForward] {
            let settings = PipelineSettings {
                forwarding,
                ..PipelineSettings::default()
            };
            // Without a body, with a short, and with a long one; arguments of both kinds.
            for (what, total) in [
                ("x".to_owned(), None),
                ("x".to_owned(), Some(0)),
                ("x".to_owned(), Some(400_001)),
                ("y".repeat(100_000), None),
                ("y".repeat(100_000), Some(5)),
                ("y".repeat(100_000), Some(400_001)),
            ] {
                let mut target = work::one(what.clone());
                if let Some(total) = total {
                    target = target.with_body(counted(total).1);
                }
                let call = client
                    .caller()
                    .pipeline_with(&settings, line.clone(), target);
                let shown = total.map_or("no body".into(), |total| total.to_string());
                let answers = call.all().await;
                let expected = names[..len].iter();
                let expected = expected.map(|name| Ok(format!("{name}: {what}, {shown}")));
                assert!(answers.into_iter().eq(expected), "{len} {total:?}");
            }
        }
    }
}

/// A server that tells each chunk it reads, and answers how many bytes there were.
async fn telling(net: &Net, read: mpsc::UnboundedSender<Bytes>) -> Endpoint {
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let read = read.clone();
        async move {
            let mut body = request.take_body().expect("it has one");
            let mut len = 0;
            while let Some(chunk) = body.next().await {
                let chunk = chunk.map_err(broken)?;
                len += chunk.len();
                read.send(chunk).expect("the test listens");
            }
            Ok::<_, Status>(request.respond(len.to_string()).await?)
        }
    };
    net.serve(service().method(&work::ONE, handler)).await
}

async fn a_message_is_passed_on_while_it_arrives(net: Net) {
    let mut chunks = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..4 {
        let (read, reading) = mpsc::unbounded_channel();
        servers.push(telling(&net, read).await);
        chunks.push(reading);
    }
    let client = client();
    let (send, body) = piped();
    let target = work::one("x".into()).with_body(body);
    let call = client.caller().pipeline(addresses(&servers), target);
    for text in ["one", "two", "three"] {
        send.send(Ok(text.into())).expect("it is read");
        // The last server has each piece before the next one exists.
        for chunks in chunks.iter_mut().rev() {
            assert_eq!(chunks.recv().await.as_deref(), Some(text.as_bytes()));
        }
    }
    drop(send);
    assert_eq!(call.all().await, vec![Ok("11".to_owned()); 4]);
}

/// Lets so many bytes through to a server, and the rest when the gate is open; what the server says is let through at once.
async fn holding_back(server: &Address, bytes: u64, gate: Gate) -> Address {
    let Address::Tcp(server) = *server else {
        panic!("not TCP: {server}");
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let (here, _) = listener.accept().await.expect("somebody dials");
        let there = TcpStream::connect(server).await.expect("it listens");
        let (mut from, mut back) = here.into_split();
        let (mut answers, mut to) = there.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
        let mut beginning = (&mut from).take(bytes);
        tokio::io::copy(&mut beginning, &mut to)
            .await
            .expect("it is read");
        gate.pass().await;
        let _ = tokio::io::copy(&mut from, &mut to).await; // until the test is over
    });
    Address::Tcp(address)
}

/// The client's connection writes 32 KiB as one frame. Nobody of the line waits for all of it.
#[tokio::test]
async fn a_frame_is_passed_on_while_it_arrives() {
    crate::common::patience(async {
        let net = Net::tcp();
        let mut chunks = Vec::new();
        let mut servers = Vec::new();
        for _ in 0..3 {
            let (read, reading) = mpsc::unbounded_channel();
            servers.push(telling(&net, read).await);
            chunks.push(reading);
        }
        let (half, gate) = (16 * 1024, Gate::new());
        let mut line = addresses(&servers);
        line[0] = holding_back(&line[0], half, gate.clone()).await;
        let body = Body::from(Bytes::from(vec![7; 32 * 1024]));
        let target = work::one("x".into()).with_body(body);
        let client = client();
        let call = client.caller().pipeline(line, target);
        for chunks in &mut chunks {
            let beginning = chunks.recv().await.expect("it reads");
            assert!((beginning.len() as u64) < half, "the rest is held back");
        }
        gate.open(1);
        assert_eq!(call.all().await, vec![Ok("32768".to_owned()); 3]);
    })
    .await;
}

async fn a_slow_handler_slows_the_line_and_one_that_reads_nothing_does_not(net: Net) {
    const LIMIT: u64 = 100_000;
    let gate = Gate::new();
    let waiting = gate.clone();
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let gate = waiting.clone();
        async move {
            match what.as_str() {
                "drop" => drop(request.take_body()),
                _ => gate.pass().await,
            }
            let len = match request.take_body() {
                Some(body) => check(body).await.map_err(broken)?,
                None => 0,
            };
            Ok::<_, Status>(request.respond(len.to_string()).await?)
        }
    };
    let mut limits = Limits::default();
    limits.call = LIMIT;
    let slow = Endpoint::builder()
        .limits(limits.clone())
        .serve(service().method(&work::ONE, handler));
    let first = net.bind(slow).await;
    let last = measuring(&net, "last").await;
    let client = client();
    let total = 1_500_000;
    let line = [at(&first), at(&last)];

    let (count, body) = counted(total);
    let target = work::one("slow".into()).with_body(body);
    let call = client.caller().pipeline(line.clone(), target);
    until(|| first.load().running == 1 && count.load(Ordering::Relaxed) > LIMIT).await;
    // A short call behind it shows that nothing more has come meanwhile.
    for round in 0..50 {
        let answer = work::at(&client, at(&last)).one(round.to_string()).await;
        assert_eq!(answer, Ok(format!("last: {round}, no body")));
    }
    // Its window, that of its connection, and what a chunk is longer.
    let asked = count.load(Ordering::Relaxed);
    assert!(asked <= 4 * LIMIT, "{asked} bytes under way");
    gate.open(1);
    let answers = call.all().await;
    assert_eq!(answers[0], Ok(total.to_string()));
    assert_eq!(answers[1], Ok(format!("last: slow, {total}")));

    let (_, body) = counted(total);
    let target = work::one("drop".into()).with_body(body);
    let answers = client.caller().pipeline(line, target).all().await;
    assert_eq!(answers[0], Ok("0".into()));
    assert_eq!(answers[1], Ok(format!("last: drop, {total}")));
}

async fn a_message_that_is_stored_is_passed_on_when_it_is_whole(net: Net) {
    let servers = line_of(&net, &["a", "b"]).await;
    let client = client();
    let (send, body) = piped();
    let target = work::one("x".into()).with_body(body);
    let settings = stored();
    let call = client
        .caller()
        .pipeline_with(&settings, addresses(&servers), target);
    send.send(Ok(Bytes::from_static(&[0, 1])))
        .expect("it is read");
    until(|| servers[0].metrics().requests_received == 1).await;
    for _ in 0..20 {
        let answer = work::at(&client, at(&servers[0])).one("y".into()).await;
        assert_eq!(answer, Ok("a: y, no body".into()));
        assert_eq!(servers[1].metrics().requests_received, 0);
    }
    drop(send);
    let answers = call.all().await;
    assert_eq!(answers, [Ok("a: x, 2".into()), Ok("b: x, 2".into())]);

    // No more than a server keeps, and then nobody behind it has anything.
    let handler = |request: Request<One<String>>, (what,): (String,)| async move {
        Ok::<_, Status>(request.respond(what).await?)
    };
    let small = Endpoint::builder()
        .stored(100_000)
        .serve(service().method(&work::ONE, handler));
    let small = net.bind(small).await;
    let line = [at(&servers[0]), at(&small), at(&servers[1])];
    let target = work::one("x".into()).with_body(counted(100_001).1);
    let mut call = client
        .caller()
        .pipeline_with(&settings, line.clone(), target);
    finish(&mut call).await;
    let outcomes = call.outcomes();
    assert_eq!(outcomes[0], TargetOutcome::Answered);
    assert_eq!(code(&outcomes[1]), Some(Code::ResourceExhausted));
    assert!(
        matches!(outcomes[2], TargetOutcome::NotDelivered(_)),
        "{outcomes:?}"
    );
    // What it kept is free again, soon after the next server has it.
    for _ in 0..3 {
        loop {
            let target = work::one("x".into()).with_body(counted(90_000).1);
            let call = client
                .caller()
                .pipeline_with(&settings, line.clone(), target);
            if call.all().await.iter().all(Result::is_ok) {
                break;
            }
        }
    }
}

async fn servers_that_cannot_handle_it_pass_it_on(net: Net) {
    let first = measuring(&net, "first").await;
    let last = measuring(&net, "last").await;
    let nothing = net.serve(service()).await;
    static OTHER: Method<(u64,), One<String>> = Method::new("test.Work/one");
    let other = |request: Request<One<String>>, (number,): (u64,)| async move {
        Ok::<_, Status>(request.respond(number.to_string()).await?)
    };
    let other = net.serve(service().method(&OTHER, other)).await;
    let gate = Gate::new();
    let busy = Endpoint::builder().executor(ExecutorConfig {
        concurrency: 1,
        queue: 0,
        ..ExecutorConfig::default()
    });
    let busy = net.bind(busy.serve(waiting(&gate))).await;
    let leaving = net.serve(waiting(&gate)).await;
    let client = client();
    let held = [&busy, &leaving].map(|server| work::at(&client, at(server)).one("wait".into()));
    until(|| busy.load().running == 1 && leaving.load().running == 1).await;
    let drained = {
        let leaving = leaving.clone();
        tokio::spawn(async move { leaving.drain(Duration::from_secs(30)).await })
    };
    let line = [&first, &nothing, &other, &busy, &leaving, &last].map(at);
    for total in [0, 1_200_000] {
        let target = work::one("x".into()).with_body(counted(total).1);
        let mut call = client.caller().pipeline(line.clone(), target);
        finish(&mut call).await;
        let outcomes = call.outcomes();
        assert_eq!(outcomes[0], TargetOutcome::Answered);
        let codes = outcomes.iter().map(code).collect::<Vec<_>>();
        let expected = [
            Code::Unimplemented,
            Code::Mismatch,
            Code::ResourceExhausted,
            Code::Unavailable,
        ];
        assert_eq!(codes[1..5], expected.map(Some), "{outcomes:?}");
        assert_eq!(outcomes[5], TargetOutcome::Answered);
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 4 }));
    }
    gate.open(2);
    for held in held {
        assert_eq!(held.await, Ok("wait".into()));
    }
    drained.await.expect("no panic").expect("it was done");
}

/// A service that answers when the gate lets it.
fn waiting(gate: &Gate) -> wallaby::Service {
    let gate = gate.clone();
    let handler = move |request: Request<One<String>>, (what,): (String,)| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok::<_, Status>(request.respond(what).await?)
        }
    };
    service().method(&work::ONE, handler)
}

async fn behind_a_server_that_is_not_there_nobody_has_it(net: Net) {
    let servers = line_of(&net, &["a", "b", "c"]).await;
    let client = client();
    for missing in 0..servers.len() {
        let gone = net.endpoint().await;
        let mut line = addresses(&servers);
        line[missing] = at(&gone);
        gone.close();
        let target = work::one("x".into()).with_body(counted(1_200_000).1);
        let mut call = client.caller().pipeline(line.clone(), target);
        let mut errors = 0;
        while let Some(delivery) = call.next().await {
            assert_eq!(delivery.server, line[delivery.target]);
            errors += usize::from(delivery.answer.is_err());
        }
        let outcomes = call.outcomes();
        assert_eq!(errors, servers.len() - missing);
        for (target, outcome) in outcomes.iter().enumerate() {
            match outcome {
                TargetOutcome::Answered => assert!(target < missing, "{outcomes:?}"),
                TargetOutcome::NotDelivered(_) => assert!(target >= missing, "{outcomes:?}"),
                other => panic!("{missing} missing, {target}: {other:?}"),
            }
        }
    }
}

async fn a_server_that_may_not_pass_it_on_says_so(net: Net) {
    let last = measuring(&net, "last").await;
    let ran = Arc::new(AtomicU64::new(0));
    let answering = || {
        let ran = Arc::clone(&ran);
        let handler = move |request: Request<One<String>>, (what,): (String,)| {
            ran.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, Status>(request.respond(what).await?) }
        };
        Endpoint::builder().serve(service().method(&work::ONE, handler))
    };
    let nobody = DialPolicy::default().only_if(|_| false);
    let budgets = Budgets {
        requests: 0,
        ..Budgets::default()
    };
    let client = client();
    for (builder, answers, why) in [
        (answering().dial_policy(nobody), true, "dial policy"),
        (answering().max_depth(0), true, "hop 1 of the call"),
        (
            answering().max_budgets(budgets),
            false,
            "budget of requests",
        ),
    ] {
        let first = net.bind(builder).await;
        let line = [&first, &last].map(at);
        let target = work::one("x".into()).with_body(counted(1000).1);
        let mut call = client.caller().pipeline(line, target);
        finish(&mut call).await;
        let [one, two] = &call.outcomes()[..] else {
            panic!("two servers");
        };
        assert_eq!(*one == TargetOutcome::Answered, answers, "{one:?}");
        let TargetOutcome::NotDelivered(failure) = two else {
            panic!("{why}: {two:?}");
        };
        assert!(failure.to_string().contains(why), "{failure}");
        assert_eq!(failure.server(), Some(&at(&last)));
    }
    // What is refused is not done.
    assert_eq!(ran.load(Ordering::Relaxed), 2);
}

async fn long_arguments_are_kept_within_a_limit(net: Net) {
    let handler = |request: Request<One<String>>, (what,): (String,)| async move {
        Ok::<_, Status>(request.respond(what.len().to_string()).await?)
    };
    let small = Endpoint::builder()
        .stored(50_000)
        .serve(service().method(&work::ONE, handler));
    let small = net.bind(small).await;
    let last = measuring(&net, "last").await;
    let client = client();
    for (len, fits) in [(49_000, true), (51_000, false), (49_000, true)] {
        let target = work::one("x".repeat(len)).with_body(counted(100_000).1);
        let mut call = client.caller().pipeline([&small, &last].map(at), target);
        finish(&mut call).await;
        let outcomes = call.outcomes();
        let expected = (!fits).then_some(Code::ResourceExhausted);
        assert_eq!(code(&outcomes[0]), expected, "{outcomes:?}");
        assert_eq!(outcomes[1], TargetOutcome::Answered);
    }
}

async fn a_server_that_shuts_down_passes_on_what_it_has_begun(net: Net) {
    let gate = Gate::new();
    let waiting = gate.clone();
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let gate = waiting.clone();
        async move {
            gate.pass().await;
            let body = request.take_body().expect("it has one");
            let len = check(body).await.map_err(broken)?;
            Ok::<_, Status>(request.respond(len.to_string()).await?)
        }
    };
    let last = net.serve(service().method(&work::ONE, handler)).await;
    // It has no handler, and so only passes on.
    let first = net.serve(service()).await;
    let client = client();
    // More than one connection's window, and less than both.
    let total = 1_700_000;
    let (count, body) = counted(total);
    let target = work::one("x".into()).with_body(body);
    let call = client.caller().pipeline([&first, &last].map(at), target);
    until(|| count.load(Ordering::Relaxed) == total && last.load().running == 1).await;
    let draining = tokio::spawn(async move { first.drain(Duration::from_secs(25)).await });
    // It would be done by now if it did not wait for what it passes on.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!draining.is_finished());
    gate.open(1);
    let answers = call.all().await;
    assert!(
        answers[0]
            .as_ref()
            .is_err_and(|error| error.status().is_some())
    );
    assert_eq!(answers[1], Ok(total.to_string()));
    draining.await.expect("no panic").expect("all is done");
}

/// A server that tells each chunk it reads and how its request went on, and answers when its gate lets it.
struct Gated {
    endpoint: Endpoint,
    gate: Gate,
    read: mpsc::UnboundedReceiver<Step>,
}

#[derive(Debug, PartialEq)]
enum Step {
    Read(Bytes),
    Whole,
    Broken,
    Stopped,
}

async fn gated(net: &Net) -> Gated {
    let (tell, read) = mpsc::unbounded_channel();
    let gate = Gate::new();
    let waiting = gate.clone();
    let handler = move |request: Request<One<String>>, (_,): (String,)| {
        let (tell, gate) = (tell.clone(), waiting.clone());
        async move {
            let mut body = request.take_body().expect("it has one");
            let mut len = 0;
            while let Some(chunk) = body.next().await {
                let chunk = chunk.map_err(|error| {
                    let _ = tell.send(Step::Broken);
                    broken(error)
                })?;
                len += chunk.len();
                let _ = tell.send(Step::Read(chunk));
            }
            let _ = tell.send(Step::Whole);
            tokio::select! {
                () = gate.pass() => Ok::<_, Status>(request.respond(len.to_string()).await?),
                () = request.cancelled() => {
                    let _ = tell.send(Step::Stopped);
                    Ok(())
                }
            }
        }
    };
    Gated {
        endpoint: net
            .serve(service().method(&work::ONE, handler).shielded())
            .await,
        gate,
        read,
    }
}

async fn three(net: &Net) -> (Vec<Gated>, Vec<Address>) {
    let servers = vec![gated(net).await, gated(net).await, gated(net).await];
    let line = servers.iter().map(|server| at(&server.endpoint)).collect();
    (servers, line)
}

async fn a_line_that_breaks_while_bytes_pass(net: Net) {
    for victim in 0..3 {
        let (mut servers, line) = three(&net).await;
        // Long enough for survivors to be heard on a busy machine, before the call goes on without what is lost.
        let patience = Duration::from_millis(500);
        let client = Endpoint::builder().gone_after(patience).bind().await;
        let client = client.expect("an endpoint");
        let (send, body) = piped();
        let target = work::one("x".into()).with_body(body);
        let caller = client.caller().ping(patience, 10 * patience);
        let mut call = caller.pipeline(line, target);
        send.send(Ok("some".into())).expect("it is read");
        for server in &mut servers {
            assert_eq!(server.read.recv().await, Some(Step::Read("some".into())));
            server.gate.open(1);
        }
        servers[victim].endpoint.kill();
        let _ = send.send(Ok("more".into()));
        drop(send);
        finish(&mut call).await;
        let outcomes = call.outcomes();
        for (target, outcome) in outcomes.iter().enumerate() {
            match outcome {
                TargetOutcome::Answered => assert!(target < victim, "{victim}: {outcomes:?}"),
                TargetOutcome::Unknown(Failure::Lost(loss)) => {
                    assert_eq!(target, victim, "{outcomes:?}");
                    assert_eq!(loss.request.path.to_string(), ["0", "0.0", "0.0.0"][victim]);
                }
                TargetOutcome::Failed(CallError::Status(status)) => {
                    assert!(target > victim, "{outcomes:?}");
                    assert_eq!(status.code(), Code::Aborted, "{status:?}");
                }
                other => panic!("{victim} died, {target}: {other:?}"),
            }
        }
        for (target, server) in servers.iter_mut().enumerate() {
            if target < victim {
                assert_eq!(server.read.recv().await, Some(Step::Read("more".into())));
                assert_eq!(server.read.recv().await, Some(Step::Whole));
            } else {
                assert_eq!(server.read.recv().await, Some(Step::Broken));
            }
        }
    }
}

async fn a_line_that_breaks_after_the_bytes_passed(net: Net) {
    for victim in 0..3 {
        for answers_first in [false, true] {
            let (mut servers, line) = three(&net).await;
            let client = client();
            let (_, body) = counted(300_000);
            let target = work::one("x".into()).with_body(body);
            let mut call = quick(&client).pipeline(line, target);
            for server in &mut servers {
                while server.read.recv().await.expect("it reads") != Step::Whole {}
            }
            let mut first = None;
            if answers_first {
                servers[victim].gate.open(1);
                first = call.next().await;
            }
            servers[victim].endpoint.kill();
            for server in &servers {
                server.gate.open(1);
            }
            finish(&mut call).await;
            assert_eq!(
                first.is_some_and(|first| first.answer.is_ok()),
                answers_first
            );
            for (target, outcome) in call.outcomes().iter().enumerate() {
                match outcome {
                    TargetOutcome::Answered => assert!(target != victim || answers_first),
                    TargetOutcome::Unknown(_) => assert!(target == victim && !answers_first),
                    other => panic!("{victim} died, {answers_first}, {target}: {other:?}"),
                }
            }
        }
    }
}

async fn a_body_that_breaks_at_its_source(net: Net) {
    let (mut servers, line) = three(&net).await;
    let client = client();
    let (send, body) = piped();
    let target = work::one("x".into()).with_body(body);
    let call = client.caller().pipeline(line.clone(), target);
    send.send(Ok("some".into())).expect("it is read");
    for server in &mut servers {
        assert_eq!(server.read.recv().await, Some(Step::Read("some".into())));
    }
    send.send(Err("the disk is gone".into()))
        .expect("it is read");
    for answer in call.all().await {
        let error = answer.expect_err("a status");
        let text = error.status().expect("a status").message().to_owned();
        assert!(text.contains("the disk is gone"), "{text}");
    }
    // Arguments that break off are nobody's.
    let (send, body) = piped();
    let target = work::one("y".repeat(100_000)).with_body(body);
    let call = client.caller().pipeline_with(&stored(), line, target);
    send.send(Err("no".into())).expect("it is read");
    let outcomes = {
        let mut call = call;
        finish(&mut call).await;
        call.outcomes()
    };
    assert_eq!(code(&outcomes[0]), Some(Code::Unavailable), "{outcomes:?}");
    for outcome in &outcomes[1..] {
        assert!(
            matches!(outcome, TargetOutcome::NotDelivered(_)),
            "{outcomes:?}"
        );
    }
}

async fn a_call_that_is_dropped_stops_the_line(net: Net) {
    let (mut servers, line) = three(&net).await;
    let client = client();
    let (send, body) = piped();
    let target = work::one("x".into()).with_body(body);
    let call = client.caller().pipeline(line.clone(), target);
    send.send(Ok("some".into())).expect("it is read");
    for server in &mut servers {
        assert_eq!(server.read.recv().await, Some(Step::Read("some".into())));
    }
    drop(call);
    send.closed().await;
    for server in &mut servers {
        assert_eq!(server.read.recv().await, Some(Step::Broken));
        until(|| server.endpoint.load().is_idle()).await;
    }

    // The same when all of it has arrived.
    let target = work::one("x".into()).with_body(Bytes::from_static(b"all").into());
    let call = client.caller().pipeline(line, target);
    for server in &mut servers {
        while server.read.recv().await.expect("it reads") != Step::Whole {}
    }
    drop(call);
    for server in &mut servers {
        assert_eq!(server.read.recv().await, Some(Step::Stopped));
    }
}

async fn servers_may_give_many_answers_and_delegate(net: Net) {
    let helper = |request: Request<Many<String>>, (what,): (String,)| async move {
        request.reply(format!("{what} helped")).await?;
        Ok::<_, Status>(())
    };
    let helper = net.serve(service().method(&work::MANY, helper)).await;
    let help = at(&helper);
    let handler = move |request: Request<Many<String>>, (what,): (String,)| {
        let help = help.clone();
        async move {
            let len = check(request.take_body().expect("it has one")).await;
            request
                .reply(format!("{what} {}", len.map_err(broken)?))
                .await?;
            request
                .delegate(help.clone(), work::many(what.clone()))
                .await?;
            request.delegate(help, work::many(what)).await?;
            Ok::<_, Status>(())
        }
    };
    // Longer than what a place in the tree can say.
    let mut servers = Vec::new();
    for _ in 0..20 {
        servers.push(
            net.serve(service().method(&work::MANY, handler.clone()))
                .await,
        );
    }
    let client = client();
    let settings = PipelineSettings {
        limit: 20,
        ..PipelineSettings::default()
    };
    let target = work::many("x".into()).with_body(counted(70_000).1);
    let mut call = client
        .caller()
        .pipeline_with(&settings, addresses(&servers), target);
    let mut answers = vec![Vec::new(); servers.len()];
    while let Some(delivery) = call.next().await {
        answers[delivery.target].push(delivery.answer.expect("an answer"));
    }
    for mut answers in answers {
        answers.sort();
        assert_eq!(answers, ["x 70000", "x helped", "x helped"]);
    }
    assert_eq!(
        call.outcomes(),
        vec![TargetOutcome::Answered; servers.len()]
    );
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
}

/// Far down in the tree places do not say whence they come: an answer from there is delivered once a server says so, by a
/// pong or at the end of its request, and does not wait for the rest of the line.
async fn answers_from_far_down_are_delivered_once_it_is_known_whose_they_are(net: Net) {
    for asks in [false, true] {
        let helper = |request: Request<Many<String>>, (_,): (String,)| async move {
            request.reply("helped".into()).await?;
            Ok::<_, Status>(())
        };
        let helper = net.serve(service().method(&work::MANY, helper)).await;
        let gates = [Gate::new(), Gate::new()];
        let mut servers = Vec::new();
        for place in 0_usize..20 {
            let gate = place.checked_sub(18).map(|last| gates[last].clone());
            let help = (place == 18).then(|| at(&helper));
            let handler = move |request: Request<Many<String>>, (what,): (String,)| {
                let (gate, help) = (gate.clone(), help.clone());
                async move {
                    if let Some(help) = help {
                        request.delegate(help, work::many(what)).await?;
                    }
                    if let Some(gate) = gate {
                        gate.pass().await;
                    }
                    request.reply("own".into()).await?;
                    Ok::<_, Status>(())
                }
            };
            servers.push(net.serve(service().method(&work::MANY, handler)).await);
        }
        let client = client();
        let settings = PipelineSettings {
            limit: 20,
            ..PipelineSettings::default()
        };
        let caller = match asks {
            true => quick(&client),
            false => client.caller(),
        };
        let line = addresses(&servers);
        let mut call = caller.pipeline_with(&settings, line, work::many("x".into()));
        let (mut own, mut helped) = (0, 0);
        while own < 18 {
            let delivery = call.next().await.expect("more is to come");
            match delivery.answer.as_deref() {
                Ok("own") => own += 1,
                // The pong was faster.
                Ok("helped") if asks && delivery.target == 18 => helped += 1,
                other => panic!("{other:?}"),
            }
        }
        until(|| client.metrics().responses_received == 19).await;
        if !asks {
            gates[0].open(1);
        }
        // All of what server 18 gave, or only what its helper did while it runs itself.
        let mut left = if asks { 1 - helped } else { 2 };
        while left > 0 {
            let delivery = call.next().await.expect("more is to come");
            assert_eq!(delivery.target, 18);
            helped += usize::from(delivery.answer.as_deref() == Ok("helped"));
            left -= 1;
        }
        assert_eq!(helped, 1);
        gates.iter().for_each(|gate| gate.open(1));
        finish(&mut call).await;
        assert_eq!(call.outcomes(), vec![TargetOutcome::Answered; 20]);
    }
}

async fn a_quorum_aborts_the_rest_of_the_line(net: Net) {
    let (mut servers, line) = three(&net).await;
    let client = client();
    let target = work::one("x".into()).with_body(Bytes::from_static(b"all").into());
    let call = client.caller().pipeline(line, target);
    servers[2].gate.open(1);
    servers[0].gate.open(1);
    let mut quorum = call.quorum(2).await.expect("two answer");
    quorum.sort();
    assert_eq!(quorum, [(0, "3".into()), (2, "3".into())]);
    while servers[1].read.recv().await.expect("it reads") != Step::Stopped {}
}

#[tokio::test]
async fn some_lines_cannot_be() {
    let client = client();
    let line = |count: usize| (0..count).map(|port| format!("tcp://127.0.0.1:{}", port + 1));
    let address = |text: String| text.parse::<Address>().expect("an address");
    let why = |answers: Vec<Result<String, CallError>>| match answers.first() {
        Some(Err(CallError::Failed(Failure::NoLine { reason }))) => reason.clone(),
        other => panic!("{other:?}"),
    };
    let long = line(17).map(address);
    let call = client.caller().pipeline(long, work::one("x".into()));
    assert!(matches!(
        call.outcomes()[16],
        TargetOutcome::NotDelivered(_)
    ));
    assert_eq!(why(call.all().await), "17 servers: at most 16 may be in it");

    let datagrams = line(2).chain(["udp://127.0.0.1:1".to_owned()]).map(address);
    let call = client.caller().pipeline(datagrams, work::one("x".into()));
    assert_eq!(
        why(call.all().await),
        "udp://127.0.0.1:1 cannot be in it: streams of bytes go over tcp:, unix:, shm: and mem:"
    );

    let large = "x".repeat(17 << 20);
    let call = client
        .caller()
        .pipeline(line(2).map(address), work::one(large));
    let answers = call.all().await;
    assert!(matches!(
        answers[1],
        Err(CallError::Failed(Failure::TooLarge { .. }))
    ));
}

/// Nobody makes a server pass the same bytes to itself over and over.
#[tokio::test]
async fn a_server_stands_in_a_line_once() {
    let net = Net::mem();
    let servers = line_of(&net, &["a", "b"]).await;
    let line = [&servers[1], &servers[0], &servers[1]].map(at);
    let mut call = client().caller().pipeline(line, work::one("x".into()));
    finish(&mut call).await;
    let why = format!("{} stands in it twice", at(&servers[1]));
    for outcome in call.outcomes() {
        let TargetOutcome::NotDelivered(failure) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(failure.to_string().contains(&why), "{failure}");
    }
}

/// Answers went back along the line by this method once. Whoever still sends it is told that nobody serves it.
#[tokio::test]
async fn only_its_own_method_goes_down_a_line() {
    static GATHER: Method<(u64,), One<u64>> = Method::new("wallaby.Pipeline/gather");
    let net = Net::mem();
    let server = measuring(&net, "a").await;
    let to = Client::new(&client(), at(&server));
    let error = to.call(&GATHER, (1,)).await.expect_err("nobody serves it");
    assert_eq!(error.status().map(Status::code), Some(Code::Unimplemented));
}

#[tokio::test]
async fn a_trace_shows_the_line() {
    let net = Net::mem();
    let servers = line_of(&net, &["a", "b", "c"]).await;
    let client = client();
    let target = work::one("x".into());
    let mut call = client
        .caller()
        .traced()
        .pipeline(addresses(&servers), target);
    finish(&mut call).await;
    let trace = call.trace();
    let hops = trace.hops.iter();
    let hops: Vec<_> = hops
        .map(|hop| {
            (
                hop.path.as_str(),
                hop.parent,
                hop.server.clone(),
                hop.method.as_deref(),
            )
        })
        .collect();
    let hop = |path, parent, server| (path, parent, Some(at(server)), Some("test.Work/one"));
    let expected = [
        hop("0", None, &servers[0]),
        hop("0.0", Some(0), &servers[1]),
        hop("0.0.0", Some(1), &servers[2]),
    ];
    assert_eq!(hops, expected, "{trace}");
}
