//! A server is closed while callers wait for it: they are told at once what became of their requests.
//!
//! Nobody asks in these tests and no silence counts before an hour has passed, so nothing but the server's own word ends a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Gate, Net, at, load, patience, service, status, until, work};
use tokio::runtime::Builder as Runtime;
use wallaby::intercept::{Admission, Incoming};
use wallaby::{
    Address, Client, Code, Endpoint, ExecutorConfig, One, Request, Resend, Retry, Schedule, Service,
};

over_every_transport!(
    what_was_not_begun_is_not_executed_and_what_runs_is_unfinished,
    so_it_is_further_down,
    a_call_that_may_be_made_again_is,
    who_has_handed_a_request_on_says_where_it_went,
);

const PERIOD: Duration = Duration::from_millis(50);
const HOUR: Duration = Duration::from_secs(3600);

/// Counts how often it is called, and answers when the gate lets it.
fn counting(ran: &Arc<AtomicUsize>, gate: &Gate) -> Service {
    let (ran, gate) = (Arc::clone(ran), gate.clone());
    service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let (ran, gate) = (Arc::clone(&ran), gate.clone());
        async move {
            ran.fetch_add(1, Ordering::Relaxed);
            gate.pass().await;
            Ok(request.respond(what).await?)
        }
    })
}

fn forwarding(next: Address) -> Service {
    service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let next = next.clone();
        async move { Ok(request.forward(next, work::one(what)).await?) }
    })
}

/// A server with one place, where one request runs and another waits for the place.
async fn busy(net: &Net, ran: &Arc<AtomicUsize>) -> Endpoint {
    let one = ExecutorConfig {
        concurrency: 1,
        queue: 9,
        schedule: Schedule::Fifo,
    };
    let builder = Endpoint::builder().executor(one);
    net.bind(builder.serve(counting(ran, &Gate::new()))).await
}

async fn patient(net: &Net) -> Endpoint {
    let builder = Endpoint::builder()
        .ping(Duration::from_secs(5), HOUR)
        .gone_after(HOUR);
    net.bind(builder).await
}

async fn what_was_not_begun_is_not_executed_and_what_runs_is_unfinished(net: Net) {
    let ran = Arc::default();
    let server = busy(&net, &ran).await;
    let client = patient(&net).await;
    let calls = work::at(&client, at(&server));
    let mut runs = calls.one("runs".into());
    until(|| server.load() == load(1, 0)).await;
    let mut waits = calls.one("waits".into());
    until(|| server.load() == load(1, 1)).await;
    let address = at(&server);
    server.close();
    let unfinished = status(runs.answer().await);
    assert_eq!(unfinished.code(), Code::Unfinished, "{unfinished}");
    assert!(!unfinished.is_not_executed());
    let untouched = status(waits.answer().await);
    assert_eq!(untouched.code(), Code::Unavailable, "{untouched}");
    assert!(untouched.is_not_executed(), "{untouched}");
    for status in [unfinished, untouched] {
        assert_eq!(status.server(), Some(&address), "{status}");
        assert_eq!(status.method(), Some("test.Work/one"), "{status}");
    }
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

async fn so_it_is_further_down(net: Net) {
    let ran = Arc::default();
    let last = busy(&net, &ran).await;
    let first = net.serve(forwarding(at(&last))).await;
    let client = patient(&net).await;
    let calls = work::at(&client, at(&first));
    let mut runs = calls.one("runs".into());
    until(|| last.load() == load(1, 0)).await;
    let mut waits = calls.one("waits".into());
    until(|| last.load() == load(1, 1)).await;
    let address = at(&last);
    last.close();
    let unfinished = status(runs.answer().await);
    assert_eq!(unfinished.code(), Code::Unfinished, "{unfinished}");
    assert_eq!(unfinished.server(), Some(&address), "{unfinished}");
    let untouched = status(waits.answer().await);
    assert!(untouched.is_not_executed(), "{untouched}");
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

async fn a_call_that_may_be_made_again_is(net: Net) {
    let (ran, gate) = (Arc::default(), Gate::new());
    let server = busy(&net, &ran).await;
    let other = net.serve(counting(&ran, &gate)).await;
    let client = patient(&net).await;
    let again = Retry::idempotent(2).backoff(Duration::ZERO, Duration::ZERO);
    let calls = Client::new(&client, at(&server)).alternates([at(&other)]);
    let calls = work::within(calls.retry(again));
    let (mut runs, mut waits) = (calls.one("runs".into()), calls.one("waits".into()));
    until(|| server.load() == load(1, 1)).await;
    server.close();
    gate.open(2);
    assert_eq!(runs.answer().await.expect("it may"), "runs");
    assert_eq!(waits.answer().await.expect("it may"), "waits");
    assert_eq!(ran.load(Ordering::Relaxed), 3, "one was made twice");
}

/// The initiator cannot be dialled, and the answers would have come by the one that is closed.
async fn who_has_handed_a_request_on_says_where_it_went(net: Net) {
    let (ran, gate) = (Arc::default(), Gate::new());
    let last = net.serve(counting(&ran, &gate)).await;
    let first = net.serve(forwarding(at(&last))).await;
    let builder = Endpoint::builder().ping(Duration::from_secs(5), HOUR);
    let client = net.with(builder.gone_after(HOUR)).bind().await;
    let client = client.expect("there is a runtime");
    let mut call = work::at(&client, at(&first)).one("late".into());
    until(|| last.load() == load(1, 0)).await;
    first.close();
    until(|| last.metrics().connections_opened == 2).await;
    gate.open(1);
    assert_eq!(call.answer().await.expect("it is asked for"), "late");
}

/// The server's runtime reads nothing any more when the request comes.
#[test]
fn what_was_not_even_read_is_not_executed() {
    for net in [Net::mem(), Net::tcp(), Net::unix()] {
        let servers = Runtime::new_current_thread().enable_all().build();
        let servers = servers.expect("a runtime");
        let clients = Runtime::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let clients = clients.expect("a runtime");
        let (ran, gate) = (Arc::default(), Gate::new());
        gate.open(1);
        let client = clients.block_on(patient(&net));
        let server = servers.block_on(async {
            let server = net.serve(counting(&ran, &gate)).await;
            let mut met = work::at(&client, at(&server)).one("first".into());
            let met = patience(met.answer()).await;
            assert_eq!(met.expect("an answer"), "first");
            server
        });
        let sent = client.metrics().bytes_sent;
        let mut call = {
            let _runtime = clients.enter();
            work::at(&client, at(&server)).one("second".into())
        };
        clients.block_on(patience(until(|| client.metrics().bytes_sent > sent)));
        server.close();
        let status = status(clients.block_on(patience(call.answer())));
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.is_not_executed(), "{status}");
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }
}

/// The server's runtime ends, and nobody closes its endpoint: callers are told the same.
#[test]
fn so_it_is_when_a_runtime_ends() {
    for net in [Net::mem(), Net::tcp(), Net::unix(), Net::udp()] {
        let (servers, clients) = (one_thread(), one_thread());
        let ran = Arc::default();
        let server = servers.block_on(busy(&net, &ran));
        let undecided = |_: &Incoming| Admission::wait(std::future::pending());
        let asking = Endpoint::builder().interceptor(undecided);
        let asking = asking.serve(counting(&ran, &Gate::new()));
        let asking = servers.block_on(net.bind(asking));
        clients.block_on(patience(async {
            let client = patient(&net).await;
            let calls = work::at(&client, at(&server));
            let mut runs = calls.one("runs".into());
            until(|| server.load() == load(1, 0)).await;
            let mut waits = calls.one("waits".into());
            until(|| server.load() == load(1, 1)).await;
            let mut asked = work::at(&client, at(&asking)).one("asked".into());
            until(|| asking.metrics().requests_received == 1).await;
            servers.shutdown_background(); // nobody may wait for it in here
            for call in [&mut runs, &mut asked] {
                let unfinished = status(call.answer().await);
                assert_eq!(unfinished.code(), Code::Unfinished, "{unfinished}");
            }
            let untouched = status(waits.answer().await);
            assert_eq!(untouched.code(), Code::Unavailable, "{untouched}");
            assert!(untouched.is_not_executed(), "{untouched}");
        }));
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        clients.block_on(patience(until(|| server.load().is_idle())));
    }
}

/// A status would be the request's end. It is sent to the other server instead.
#[test]
fn what_may_be_sent_again_is_when_a_runtime_ends() {
    for net in [Net::mem(), Net::tcp()] {
        let (servers, clients) = (one_thread(), one_thread());
        let (ran, gate) = (Arc::default(), Gate::new());
        gate.open(1);
        let server = servers.block_on(busy(&net, &ran));
        let answer = clients.block_on(patience(async {
            let other = net.serve(counting(&ran, &gate)).await;
            let client = net.client().await;
            let again = Resend::deterministic(1);
            let calls = Client::new(&client, at(&server)).resend(again);
            let calls = calls.alternates([at(&other)]);
            let calls = work::within(calls.ping(PERIOD, 10 * PERIOD));
            let mut call = calls.one("again".into());
            until(|| server.load() == load(1, 0)).await;
            servers.shutdown_background(); // nobody may wait for it in here
            call.answer().await
        }));
        assert_eq!(answer.expect("it may"), "again");
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    }
}

fn one_thread() -> tokio::runtime::Runtime {
    let mut runtime = Runtime::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
}

/// Whoever waits until nothing of a call runs any more does not wait for ever if its own endpoint is closed.
#[tokio::test]
async fn who_waits_for_the_rest_of_a_call_is_told_when_its_endpoint_is_closed() {
    patience(async {
        let net = Net::mem();
        let (ran, gate) = (Arc::default(), Gate::new());
        let shielded = counting(&ran, &gate).shielded();
        let server = net.bind(Endpoint::builder().serve(shielded)).await;
        let client = patient(&net).await;
        let to = Client::new(&client, at(&server));
        let call = to.call_raw(work::ONE.definition(), "\x01x".into());
        until(|| ran.load(Ordering::Relaxed) == 1).await;
        let call = Arc::new(call);
        let waits = tokio::spawn({
            let call = Arc::clone(&call);
            async move {
                call.abort();
                call.settled().await;
            }
        });
        until(|| call.outcome().is_some()).await;
        client.close();
        waits.await.expect("it does not panic");
    })
    .await;
}
