//! Which requests run, which wait, and in which order: seen through a socket, under overload.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::common::{Gate, Net, at, client, load, patience, service, until, work};
use tokio::sync::{Barrier, mpsc};
use wallaby::{Code, Endpoint, ExecutorConfig, Many, One, Request, Schedule, Service};

over_every_transport!(
    first_come_first_served,
    the_earliest_deadline_runs_first,
    the_oldest_call_runs_first,
    no_more_handlers_run_than_allowed,
    whatever_ends_a_handler_frees_its_place,
    an_aborted_request_leaves_the_queue,
);

/// One handler at a time, which says its name when it begins and waits at the gate.
async fn one_at_a_time(
    net: &Net,
    schedule: Schedule,
    gate: &Gate,
) -> (Endpoint, mpsc::UnboundedReceiver<String>) {
    let (began, begins) = mpsc::unbounded_channel();
    let gate = gate.clone();
    let server = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let (began, gate) = (began.clone(), gate.clone());
            async move {
                began.send(what.clone()).expect("the test listens");
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        },
    );
    let executor = ExecutorConfig {
        concurrency: 1,
        queue: 100,
        schedule,
    };
    (
        net.bind(Endpoint::builder().serve(server).executor(executor))
            .await,
        begins,
    )
}

async fn order(begins: &mut mpsc::UnboundedReceiver<String>, count: usize) -> Vec<String> {
    let mut order = Vec::new();
    while order.len() < count {
        order.push(begins.recv().await.expect("more begin"));
    }
    order
}

/// Each that is done makes room for the next; but the runtime has other tasks.
#[tokio::test]
async fn those_that_wait_do_not_run_all_in_a_row() {
    const CALLS: usize = 500;
    patience(async {
        let (gate, ran) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
        let (pass, counts) = (gate.clone(), Arc::clone(&ran));
        let serve = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let (pass, counts) = (pass.clone(), Arc::clone(&counts));
            async move {
                if counts.fetch_add(1, Ordering::Relaxed) == 0 {
                    pass.pass().await;
                }
                Ok(request.respond(what).await?)
            }
        });
        let executor = ExecutorConfig {
            concurrency: 1,
            queue: 10 * CALLS,
            schedule: Schedule::Fifo,
        };
        let builder = Endpoint::builder().serve(serve).executor(executor);
        let server = Net::tcp().bind(builder).await;
        let client = client();
        let calls = (0..CALLS).map(|call| work::at(&client, at(&server)).one(call.to_string()));
        let calls: Vec<_> = calls.collect();
        until(|| server.load() == load(1, CALLS - 1)).await;
        let (mut most, mut before) = (0, 1);
        let observer = tokio::spawn(poll_fn(move |cx| {
            let now = ran.load(Ordering::Relaxed);
            (most, before) = (most.max(now - before), now);
            if now == CALLS {
                return Poll::Ready(most);
            }
            cx.waker().wake_by_ref(); // behind whatever is to be polled now
            Poll::Pending
        }));
        gate.open(1);
        let most = observer.await.expect("it counts");
        assert!(most <= 100, "{most} handlers in a row");
        for call in calls {
            call.await.expect("an answer");
        }
    })
    .await;
}

async fn first_come_first_served(net: Net) {
    let gate = Gate::new();
    let (server, mut begins) = one_at_a_time(&net, Schedule::Fifo, &gate).await;
    let client = client();
    let mut calls = Vec::new();
    // Neither deadlines nor ages matter.
    for (name, seconds) in [("a", 100), ("b", 400), ("c", 200), ("d", 500), ("e", 300)] {
        let work = work::at(&client, at(&server)).deadline(Duration::from_secs(seconds));
        calls.push(work.one(name.into()));
        until(|| server.metrics().requests_received == calls.len() as u64).await;
    }
    gate.open(5);
    assert_eq!(order(&mut begins, 5).await, ["a", "b", "c", "d", "e"]);
    for call in calls {
        call.await.expect("an answer");
    }
    until(|| server.load().is_idle()).await;
}

async fn the_earliest_deadline_runs_first(net: Net) {
    let gate = Gate::new();
    let (server, mut begins) = one_at_a_time(&net, Schedule::EarliestDeadline, &gate).await;
    let client = client();
    let mut calls = Vec::new();
    for (name, seconds) in [
        ("first", 900),
        ("d", 400),
        ("b", 200),
        ("e", 500),
        ("a", 100),
        ("c", 300),
    ] {
        let work = work::at(&client, at(&server)).deadline(Duration::from_secs(seconds));
        calls.push(work.one(name.into()));
        until(|| server.metrics().requests_received == calls.len() as u64).await;
    }
    gate.open(6);
    assert_eq!(
        order(&mut begins, 6).await,
        ["first", "a", "b", "c", "d", "e"]
    );
    for call in calls {
        call.await.expect("an answer");
    }
}

/// Each request goes to the server directly or over a relay that keeps it until the test lets it go.
async fn the_oldest_call_runs_first(net: Net) {
    let (gate, held) = (Gate::new(), Gate::new());
    let (server, mut begins) = one_at_a_time(&net, Schedule::OldestCall, &gate).await;
    let (next, hold) = (at(&server), held.clone());
    let relay = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let (next, hold) = (next.clone(), hold.clone());
            async move {
                hold.pass().await;
                Ok(request.forward(next, work::one(what)).await?)
            }
        },
    );
    let relay = net.serve(relay).await;
    let endpoint = net.endpoint().await;
    let (direct, over) = (
        work::at(&endpoint, at(&server)),
        work::at(&endpoint, at(&relay)),
    );
    let arrived = async |count| until(|| server.metrics().requests_received == count).await;

    let first = direct.one("first".into());
    arrived(1).await;
    // An old call whose request comes late, and two young ones that were there before.
    let old = over.one("old".into());
    until(|| relay.load() == load(1, 0)).await;
    // Time on the network does not count: the calls must be further apart than a hop takes.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let young = direct.one("young".into());
    arrived(2).await;
    // Begun after it, but travelling for longer: still younger.
    let younger = over.one("younger".into());
    until(|| relay.load() == load(2, 0)).await;
    held.open(2);
    arrived(4).await;

    gate.open(4);
    assert_eq!(
        order(&mut begins, 4).await,
        ["first", "old", "young", "younger"]
    );
    for call in [first, old, young, younger] {
        call.await.expect("an answer");
    }
}

async fn no_more_handlers_run_than_allowed(net: Net) {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    // The first three go on when all of them run.
    let (begun, met) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(3)));
    let server = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            let (begun, met) = (Arc::clone(&begun), Arc::clone(&met));
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if begun.fetch_add(1, Ordering::SeqCst) < 3 {
                    met.wait().await;
                }
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(request.respond(what).await?)
            }
        },
    );
    let executor = ExecutorConfig {
        concurrency: 3,
        queue: 1000,
        schedule: Schedule::Fifo,
    };
    let server = net
        .bind(Endpoint::builder().serve(server).executor(executor))
        .await;
    let client = client();
    let calls: Vec<_> = (0..200)
        .map(|number| work::at(&client, at(&server)).one(number.to_string()))
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.expect("an answer"), number.to_string());
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    until(|| server.load().is_idle()).await;
}

async fn whatever_ends_a_handler_frees_its_place(net: Net) {
    let handler = |blocking: bool| {
        move |what: &str| match what {
            "panic" => panic!("as the test wants it, blocking: {blocking}"),
            "status" => Err(wallaby::Status::new(Code::Aborted, "no")),
            _ => Ok(()),
        }
    };
    let (async_one, blocking_one) = (handler(false), handler(true));
    let server: Service = service()
        .method(
            &work::ONE,
            move |request: Request<One<_>>, (what,): (String,)| async move {
                if what.ends_with("late") {
                    tokio::task::yield_now().await;
                }
                async_one(what.trim_end_matches("late"))?;
                Ok(request.respond(what).await?)
            },
        )
        .blocking_method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                blocking_one(&what)?;
                Ok(request.blocking_respond(what)?)
            },
        );
    let executor = ExecutorConfig {
        concurrency: 1,
        queue: 100,
        schedule: Schedule::Fifo,
    };
    let server = net
        .bind(Endpoint::builder().serve(server).executor(executor))
        .await;
    let client = client();
    let work = work::at(&client, at(&server));
    for what in [
        "panic",
        "status",
        "answer",
        "paniclate",
        "statuslate",
        "answerlate",
    ] {
        let _ = work.one(what.into()).await;
        let _ = work.many(what.into()).collect().await;
        until(|| server.load().is_idle()).await;
    }
    // Nobody reads what this handler answers.
    drop(work.one("answer".into()));
    until(|| server.load().is_idle()).await;
    assert_eq!(
        work.one("fine".into()).await.expect("there is a place"),
        "fine"
    );
    assert_eq!(server.metrics().panics, 3);
}

async fn an_aborted_request_leaves_the_queue(net: Net) {
    let gate = Gate::new();
    let (server, mut begins) = one_at_a_time(&net, Schedule::Fifo, &gate).await;
    let client = client();
    // Calls that have to wait for a connection leave in any order.
    client.connect(at(&server)).await.expect("it listens");
    let work = work::at(&client, at(&server));
    let first = work.one("first".into());
    let aborted = work.one("aborted".into());
    let last = work.one("last".into());
    until(|| server.load() == load(1, 2)).await;
    drop(aborted);
    // Its status shows that the server knows: the next request comes after the abort.
    until(|| server.metrics().statuses_sent == 1).await;
    gate.open(3);
    assert_eq!(first.await.expect("an answer"), "first");
    assert_eq!(last.await.expect("an answer"), "last");
    assert_eq!(order(&mut begins, 2).await, ["first", "last"]);
    until(|| server.load().is_idle()).await;
    assert!(begins.try_recv().is_err());
    assert_eq!(client.metrics().late_dropped, 1);
}

/// A handler that goes on after its request was stopped does not keep others from running, and is counted.
#[tokio::test]
async fn a_handler_that_ignores_its_end_loses_its_place() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let opened = gate.clone();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let server = service().method(
            &work::ONE,
            move |request: Request<One<_>>, (what,): (String,)| {
                let (gate, ended) = (opened.clone(), ended.clone());
                async move {
                    let stubborn = what == "stubborn";
                    if stubborn {
                        gate.pass().await;
                    }
                    let responded = request.respond(what).await;
                    if stubborn {
                        ended.send(responded.clone()).expect("the test listens");
                    }
                    Ok(responded?)
                }
            },
        );
        let executor = ExecutorConfig {
            concurrency: 1,
            queue: 100,
            schedule: Schedule::Fifo,
        };
        let builder = Endpoint::builder()
            .serve(server.shielded())
            .executor(executor)
            .grace(Duration::from_millis(10));
        let server = net.bind(builder).await;
        let client = client();
        let work = work::at(&client, at(&server));
        let stubborn = work.one("stubborn".into());
        until(|| server.load() == load(1, 0)).await;
        let next = work.one("next".into());
        drop(stubborn);
        assert_eq!(next.await.expect("it has the place"), "next");
        assert_eq!(server.metrics().stuck, 1);
        gate.open(1);
        ends.recv().await.expect("it ends").expect_err("too late");
        assert!(server.load().is_idle());
    })
    .await;
}
