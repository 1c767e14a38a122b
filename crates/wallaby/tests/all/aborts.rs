//! A call that is given up: its servers learn of it, and nothing is left.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::common::raw::{Raw, hello};
use crate::common::{Gate, Net, at, client, heap, load, patience, service, until, work};
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use wallaby::intercept::{Admission, Incoming};
use wallaby::{
    Address, Call, Code, Endpoint, Failure, Many, One, Outcome, Request, Service, Status,
};

over_every_transport!(
    a_handler_that_waits_is_dropped_with_its_request,
    what_is_shielded_is_finished,
    who_stops_a_call_waits_until_its_handlers_are_gone,
    who_stops_a_call_waits_for_what_is_shielded,
    who_stops_a_call_waits_for_calls_of_its_handlers,
    who_stops_a_call_at_once_is_not_told_of_what_nobody_runs,
    what_does_not_stop_in_time_is_named,
    a_request_that_goes_on_elsewhere_ends_with_its_call,
    a_call_that_was_dropped_does_not_stay_for_what_is_shielded,
    dropping_a_call_stops_its_handler,
    closing_an_endpoint_stops_handlers_of_its_calls,
    a_call_within_a_handler_ends_with_its_request,
    a_reply_that_waits_ends_with_the_call,
);

/// After so much of it a server is not asked any more.
const SILENCE: Duration = Duration::from_millis(300);

/// Tells when it is dropped.
struct Guard(mpsc::UnboundedSender<String>, String);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0
            .send(std::mem::take(&mut self.1))
            .expect("the test listens");
    }
}

/// A handler that waits for ever, and tells when it is dropped.
fn waits_for_ever(told: &mpsc::UnboundedSender<String>) -> Service {
    let told = told.clone();
    service().method(
        &work::MANY,
        move |request: Request<Many<String>>, (what,): (String,)| {
            let guard = Guard(told.clone(), what);
            async move {
                request.reply("begun".into()).await?;
                pending::<()>().await;
                drop(guard);
                Ok(())
            }
        },
    )
}

async fn a_handler_that_waits_is_dropped_with_its_request(net: Net) {
    let (told, mut dropped) = mpsc::unbounded_channel();
    let server = net.serve(waits_for_ever(&told)).await;
    let client = client();
    for how in ["drop", "abort", "task", "deadline"] {
        let limit = match how {
            "deadline" => Duration::from_millis(100),
            _ => Duration::from_secs(3600),
        };
        let work = work::at(&client, at(&server)).deadline(limit);
        let mut call = work.many(how.into());
        if how != "deadline" {
            call.next().await.expect("an answer").expect("an answer");
        }
        match how {
            "drop" => drop(call),
            "abort" => call.abort(),
            "task" => {
                let task = tokio::spawn(async move { call.next().await });
                tokio::task::yield_now().await;
                task.abort();
            }
            _ => while let Some(Ok(_)) = call.next().await {},
        }
        assert_eq!(dropped.recv().await.as_deref(), Some(how));
        until(|| server.load().is_idle()).await;
    }
    assert_eq!(server.metrics().panics, 0);
}

async fn who_stops_a_call_waits_until_its_handlers_are_gone(net: Net) {
    let (told, mut dropped) = mpsc::unbounded_channel();
    let server = net.serve(waits_for_ever(&told)).await;
    let client = client();
    for _ in 0..10 {
        let mut call = work::at(&client, at(&server)).many("stop".into());
        call.next().await.expect("an answer").expect("an answer");
        call.stop().await.expect("it is dropped");
        assert_eq!(dropped.try_recv().as_deref(), Ok("stop"));
    }
}

/// A handler that goes on to the end, whatever happens, once the gate lets it.
fn shielded(gate: &Gate, told: &mpsc::UnboundedSender<String>) -> Service {
    let (gate, told) = (gate.clone(), told.clone());
    let method = move |request: Request<Many<String>>, (what,): (String,)| {
        let (gate, guard) = (gate.clone(), Guard(told.clone(), what));
        async move {
            request.reply("begun".into()).await?;
            gate.pass().await;
            drop(guard);
            Ok(())
        }
    };
    service().method(&work::MANY, method).shielded()
}

/// Hands its work to the next server, in two parts of which one is nothing.
fn dividing(next: Address) -> Service {
    let method = move |request: Request<Many<String>>, (what,): (String,)| {
        let next = next.clone();
        async move {
            request.delegate(next, work::many(what)).await?;
            Ok(request.reply("divided".into()).await?)
        }
    };
    service().method(&work::MANY, method)
}

/// Hands all that is left on to the next server.
fn forwarding(next: Address) -> Service {
    let method = move |request: Request<Many<String>>, (what,): (String,)| {
        let next = next.clone();
        async move {
            request.reply("forwarded".into()).await?;
            Ok(request.forward(next, work::many(what)).await?)
        }
    };
    service().method(&work::MANY, method)
}

/// Asks the next server, and passes on what that answers.
fn calling(next: Address) -> Service {
    let method = move |request: Request<Many<String>>, (what,): (String,)| {
        let next = next.clone();
        async move {
            request.reply("calls".into()).await?;
            let mut nested = work::within(request.call().at(&next)).many(what);
            while let Some(answer) = nested.next().await {
                request.reply(answer?).await?;
            }
            Ok(())
        }
    };
    service().method(&work::MANY, method)
}

/// Its handler at the last server runs.
async fn begun(call: &mut Call<Many<String>>) {
    while call.next().await.expect("an answer").expect("an answer") != "begun" {}
}

async fn impatient(net: &Net) -> Endpoint {
    let builder = Endpoint::builder().ping(Duration::from_millis(20), Duration::from_secs(20));
    net.bind(builder).await
}

async fn who_stops_a_call_waits_for_what_is_shielded(net: Net) {
    let (told, mut finished) = mpsc::unbounded_channel();
    let gate = Gate::new();
    let server = net.serve(shielded(&gate, &told)).await;
    let front = net.serve(dividing(at(&server))).await;
    let client = impatient(&net).await;
    let mut call = work::at(&client, at(&front)).many("done".into());
    begun(&mut call).await;
    let stopping = tokio::spawn(call.stop_within(Duration::from_secs(3600)));
    let asked = client.metrics().messages_received;
    until(|| client.metrics().messages_received > asked + 5).await;
    assert!(!stopping.is_finished());
    gate.open(1);
    assert_eq!(stopping.await.expect("no panic"), Ok(()));
    assert_eq!(finished.try_recv().as_deref(), Ok("done"));
}

/// The handler that has made them is gone at once.
async fn who_stops_a_call_waits_for_calls_of_its_handlers(net: Net) {
    let (told, mut finished) = mpsc::unbounded_channel();
    let gate = Gate::new();
    let server = net.serve(shielded(&gate, &told)).await;
    let middle = net.serve(calling(at(&server))).await;
    let front = net.serve(calling(at(&middle))).await;
    let client = impatient(&net).await;
    let mut call = work::at(&client, at(&front)).many("done".into());
    begun(&mut call).await;
    let stopping = tokio::spawn(call.stop_within(Duration::from_secs(3600)));
    let asked = client.metrics().messages_received;
    until(|| client.metrics().messages_received > asked + 5).await;
    assert!(!stopping.is_finished());
    assert_eq!((front.load(), middle.load()), (load(0, 0), load(0, 0)));
    gate.open(1);
    assert_eq!(stopping.await.expect("no panic"), Ok(()));
    assert_eq!(finished.try_recv().as_deref(), Ok("done"));
}

/// It has said that its handler goes on, and dies then.
#[tokio::test]
async fn who_stops_a_call_does_not_wait_for_a_server_that_has_died() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let (told, _finished) = mpsc::unbounded_channel();
        for is_called in [false, true] {
            let server = net.serve(shielded(&gate, &told)).await;
            let front = match is_called {
                true => net.serve(calling(at(&server))).await,
                false => net.serve(dividing(at(&server))).await,
            };
            let client = impatient(&net).await;
            let mut call = work::at(&client, at(&front)).many("dies".into());
            begun(&mut call).await;
            let stopping = tokio::spawn(call.stop_within(Duration::from_secs(3600)));
            let asked = client.metrics().messages_received;
            until(|| client.metrics().messages_received > asked + 5).await;
            server.kill();
            assert_eq!(stopping.await.expect("no panic"), Ok(()), "{is_called}");
        }
    })
    .await;
}

/// What becomes of a call to a server that says nothing any more nobody knows, so nobody says that nothing runs. But a server that
/// drains does not wait for that.
#[tokio::test]
async fn who_stops_a_call_is_not_told_that_nothing_runs_where_a_server_is_silent() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mute = Address::Tcp(listener.local_addr().expect("it listens"));
        let net = Net::tcp();
        let impatient = || Endpoint::builder().ping(Duration::from_millis(20), SILENCE);
        let middle = net.bind(impatient().serve(calling(mute))).await;
        let client = net.bind(impatient()).await;
        let mut call = work::at(&client, at(&middle)).many("asks".into());
        call.next().await.expect("an answer").expect("no status");
        let mut mute = Raw::accept(&listener, hello(2)).await;
        mute.request().await;
        let running = call.stop_within(SILENCE * 4).await;
        let running = running.expect_err("nobody knows");
        let [handler] = &running.handlers[..] else {
            panic!("{running:?}")
        };
        assert_eq!(handler.server.address.as_ref(), Some(&at(&middle)));
        assert_eq!(middle.load(), load(0, 0));
        assert_eq!(middle.drain(Duration::from_secs(20)).await, Ok(()));
    })
    .await;
}

async fn what_does_not_stop_in_time_is_named(net: Net) {
    let (told, _finished) = mpsc::unbounded_channel();
    let gate = Gate::new();
    let server = net.serve(shielded(&gate, &told)).await;
    let front = net.serve(dividing(at(&server))).await;
    let client = impatient(&net).await;
    let mut grace = Duration::from_millis(50);
    let running = loop {
        let mut call = work::at(&client, at(&front)).many("goes on".into());
        begun(&mut call).await;
        let running = call.stop_within(grace).await.expect_err("it is shielded");
        // A busy machine may take longer to say so.
        if running.unheard.is_empty() {
            break running;
        }
        grace *= 2;
    };
    let [handler] = &running.handlers[..] else {
        panic!("{running:?}")
    };
    assert_eq!(handler.server.address.as_ref(), Some(&at(&server)));
    assert_eq!(handler.method.as_deref(), Some("test.Work/many"));
    assert_eq!(running.more, 0);
    let said = running.to_string();
    let reached = format!("reached by 0 at {}", at(&front));
    assert!(said.contains("(test.Work/many) at"), "{said}");
    assert!(said.contains("still runs"), "{said}");
    assert!(said.contains(&reached), "{said}");
    gate.open(100);
    until(|| server.load() == load(0, 0)).await;
}

/// What the first server was about to hand on reaches nobody any more.
async fn who_stops_a_call_at_once_is_not_told_of_what_nobody_runs(net: Net) {
    let waits = |_: Request<Many<String>>, (_,): (String,)| pending();
    for _ in 0..2 {
        let server = net.serve(service().method(&work::MANY, waits)).await;
        let front = net.serve(dividing(at(&server))).await;
        let builder = Endpoint::builder().ping(Duration::from_millis(20), Duration::from_secs(2));
        let client = net.bind(builder).await;
        let calls = (0..20).map(|_| work::at(&client, at(&front)).many("early".into()));
        let calls: Vec<_> = calls.collect();
        until(|| front.metrics().requests_received > 0).await;
        let stopping: Vec<_> = (calls.into_iter())
            .map(|call| tokio::spawn(call.stop()))
            .collect();
        for stopped in stopping {
            assert_eq!(stopped.await.expect("no panic"), Ok(()), "all live");
        }
    }
}

/// What was handed on waits for a server that lets itself be dialled and says nothing: who has handed it on says that it will not leave
/// any more.
#[tokio::test]
async fn who_stops_a_call_does_not_wait_for_what_was_never_sent() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mute = Address::Tcp(listener.local_addr().expect("it listens"));
        let net = Net::tcp();
        let hour = Duration::from_secs(3600);
        let patient = || Endpoint::builder().dial_timeout(hour);
        for service in [dividing, forwarding, calling].map(|front| front(mute.clone())) {
            let front = net.bind(patient().serve(service)).await;
            let client = patient().ping(Duration::from_millis(20), hour);
            let client = net.bind(client).await;
            let mut calls: Vec<_> = (0..20)
                .map(|_| work::at(&client, at(&front)).many("never".into()))
                .collect();
            for call in &mut calls {
                call.next().await.expect("an answer").expect("no status");
            }
            for call in calls {
                assert_eq!(call.stop().await, Ok(()));
            }
        }
    })
    .await;
}

/// Its handler is done, so nobody is to be waited for.
async fn a_request_that_goes_on_elsewhere_ends_with_its_call(net: Net) {
    let (told, mut dropped) = mpsc::unbounded_channel();
    let method = move |request: Request<Many<String>>, (what,): (String,)| {
        let guard = Guard(told.clone(), what);
        async move {
            request.reply("begun".into()).await?;
            tokio::spawn(async move {
                request.cancelled().await;
                drop((request, guard));
            });
            Ok(())
        }
    };
    let server = net.serve(service().method(&work::MANY, method)).await;
    let client = impatient(&net).await;
    let mut call = work::at(&client, at(&server)).many("elsewhere".into());
    begun(&mut call).await;
    until(|| server.load() == load(0, 0)).await;
    assert_eq!(call.stop_within(Duration::from_secs(3600)).await, Ok(()));
    assert_eq!(dropped.recv().await.as_deref(), Some("elsewhere"));
    assert_eq!(server.drain(Duration::from_secs(25)).await, Ok(()));
}

/// Its server says again and again that its handler goes on.
async fn a_call_that_was_dropped_does_not_stay_for_what_is_shielded(net: Net) {
    let (told, _finished) = mpsc::unbounded_channel();
    let gate = Gate::new();
    let server = net.serve(shielded(&gate, &told)).await;
    let client = impatient(&net).await;
    let mut call = work::at(&client, at(&server)).many("goes on".into());
    begun(&mut call).await;
    drop(call);
    assert_eq!(client.drain(Duration::from_secs(25)).await, Ok(()));
    assert_eq!(server.load(), load(1, 0), "its handler runs");
    gate.open(1);
    until(|| server.load() == load(0, 0)).await;
}

async fn what_is_shielded_is_finished(net: Net) {
    let (told, mut dropped) = mpsc::unbounded_channel();
    let server = service().method(
        &work::MANY,
        move |request: Request<Many<String>>, (what,): (String,)| {
            let told = told.clone();
            async move {
                let _guard = Guard(told.clone(), "gone".into());
                request
                    .shield(async {
                        request.cancelled().await;
                        tokio::task::yield_now().await;
                        assert!(request.is_cancelled());
                        assert!(request.reply("too late".into()).await.is_err());
                    })
                    .await;
                told.send(what).expect("the test listens"); // it goes on as far as it need not wait
                tokio::task::yield_now().await;
                told.send("never".into()).expect("the test listens");
                Ok(())
            }
        },
    );
    let server = net.serve(server).await;
    let client = client();
    let call = work::at(&client, at(&server)).many("done".into());
    until(|| server.load() == load(1, 0)).await;
    drop(call);
    assert_eq!(dropped.recv().await.as_deref(), Some("done"));
    assert_eq!(dropped.recv().await.as_deref(), Some("gone"));
    until(|| server.load().is_idle()).await;
}

/// A service can say that all its handlers finish.
#[tokio::test]
async fn handlers_of_a_shielded_service_finish() {
    patience(async {
        let (told, mut finished) = mpsc::unbounded_channel();
        let server = service()
            .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
                let told = told.clone();
                async move {
                    request.cancelled().await;
                    tokio::task::yield_now().await;
                    told.send(what).expect("the test listens");
                    Ok(())
                }
            })
            .shielded();
        let server = Net::mem().serve(server).await;
        let client = client();
        let call = work::at(&client, at(&server)).many("all".into());
        until(|| server.load() == load(1, 0)).await;
        drop(call);
        let what: Option<String> = finished.recv().await;
        assert_eq!(what.as_deref(), Some("all"));
    })
    .await;
}

/// A handler's value panics when the handler is dropped.
#[tokio::test]
async fn a_panic_of_a_handler_that_is_dropped_is_caught() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as it likes");
        }
    }
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::ONE, |request: Request<One<_>>, (_,)| async move {
            let _panics = Panics;
            pending::<()>().await;
            Ok(request.respond(String::new()).await?)
        });
        let server = net.serve(server).await;
        let client = client();
        let call = work::at(&client, at(&server)).one(String::new());
        until(|| server.load() == load(1, 0)).await;
        drop(call);
        until(|| server.load().is_idle()).await;
        assert_eq!(server.metrics().panics, 1);
    })
    .await;
}

async fn dropping_a_call_stops_its_handler(net: Net) {
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let server = service()
        .method(&work::ONE, {
            let stopped = stopped.clone();
            move |request: Request<One<String>>, (what,): (String,)| {
                let stopped = stopped.clone();
                async move {
                    let is_over = request.cancelled();
                    is_over.await;
                    assert!(request.is_cancelled());
                    stopped.send(what).expect("the test listens");
                    Ok(())
                }
            }
        })
        .blocking_method(
            &work::MANY,
            move |request: Request<Many<String>>, (what,): (String,)| {
                while !request.is_cancelled() {
                    std::thread::yield_now();
                }
                stopped.send(what).expect("the test listens");
                Ok(())
            },
        )
        .shielded();
    let server = net.serve(server).await;
    let client = client();
    let work = work::at(&client, at(&server));
    for how in ["drop", "abort", "task"] {
        let (mut one, many) = (work.one(how.into()), work.many(how.into()));
        until(|| server.load() == load(2, 0)).await;
        match how {
            "drop" => drop((one, many)),
            "abort" => {
                one.abort();
                many.abort();
            }
            _ => {
                let task = tokio::spawn(async move { one.answer().await });
                tokio::task::yield_now().await;
                task.abort();
                drop(many);
            }
        }
        for _ in 0..2 {
            assert_eq!(stops.recv().await.as_deref(), Some(how));
        }
        until(|| server.load().is_idle()).await;
    }
    assert_eq!(client.metrics().calls_aborted, 6);
}

/// Its servers need not find out that nobody asks about the calls any more.
async fn closing_an_endpoint_stops_handlers_of_its_calls(net: Net) {
    let (told, mut dropped) = mpsc::unbounded_channel();
    let server = net.serve(waits_for_ever(&told)).await;
    let hour = Duration::from_secs(3600);
    for closes in [true, false] {
        let client = Endpoint::builder().ping(hour, hour);
        let client = client.bind().await.expect("there is a runtime");
        let mut call = work::at(&client, at(&server)).many("closed".into());
        begun(&mut call).await;
        match closes {
            true => client.close(),
            false => drop((client, call)),
        }
        let stopped = timeout(Duration::from_secs(10), dropped.recv()).await;
        assert_eq!(stopped.expect("at once").as_deref(), Some("closed"));
    }
}

/// The connection is read by one thread, calls are dropped by another, and a third closes the endpoint: what is to be said leaves.
#[test]
fn closing_an_endpoint_whose_calls_are_being_dropped_stops_their_handlers() {
    const CALLS: usize = 20;
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build();
        runtime.expect("a runtime")
    };
    let (servers, clients) = (runtime(), runtime());
    let (told, mut dropped) = mpsc::unbounded_channel();
    let server = servers.block_on(async { Net::tcp().serve(waits_for_ever(&told)).await });
    for round in 0..40 {
        let (client, calls) = clients.block_on(async {
            let client = client();
            let work = work::at(&client, at(&server));
            let mut calls: Vec<_> = (0..CALLS).map(|_| work.many("closed".into())).collect();
            for call in &mut calls {
                begun(call).await;
            }
            (client, calls)
        });
        let dropping = std::thread::spawn(move || drop(calls));
        client.close();
        dropping.join().expect("no panic");
        servers.block_on(async {
            for stopped in 0..CALLS {
                let told = timeout(Duration::from_secs(5), dropped.recv()).await;
                assert!(told.is_ok(), "round {round}: only {stopped} were stopped");
            }
        });
    }
}

/// A handler that called another server in the name of its request.
async fn a_call_within_a_handler_ends_with_its_request(net: Net) {
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let said = stopped.clone();
    let leaf = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let stopped = stopped.clone();
        async move {
            request.cancelled().await;
            stopped
                .send(String::from("leaf"))
                .expect("the test listens");
            Ok(())
        }
    });
    let leaf = net.serve(leaf.shielded()).await;
    let next = at(&leaf);
    let root = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let (next, said) = (next.clone(), said.clone());
        async move {
            let nested = work::within(request.call().at(&next));
            let mut before = nested.one(String::new());
            let error = before.answer().await.expect_err("it ends with its request");
            assert!(matches!(error.failure(), Some(Failure::Aborted { .. })));
            let outcome = before.outcome();
            assert!(matches!(
                outcome,
                Some(Outcome::Failed(Failure::Aborted { .. }))
            ));
            // And one that is made after the end.
            let after = nested
                .one(String::new())
                .await
                .expect_err("nothing begins any more");
            assert!(matches!(after.failure(), Some(Failure::Aborted { .. })));
            said.send(String::from("root")).expect("the test listens");
            Ok(())
        }
    });
    let root = net.serve(root.shielded()).await;
    let client = client();
    let call = work::at(&client, at(&root)).one(String::new());
    until(|| leaf.load() == load(1, 0)).await;
    drop(call);
    let mut both = [
        stops.recv().await.expect("two"),
        stops.recv().await.expect("two"),
    ];
    both.sort();
    assert_eq!(both, ["leaf", "root"]);
    until(|| leaf.load().is_idle() && root.load().is_idle()).await;
}

/// A handler waits for an application that takes nothing, and that then gives the call up.
async fn a_reply_that_waits_ends_with_the_call(net: Net) {
    let payload = Watched(Arc::new(vec![0; 60_000]));
    let sent = payload.clone();
    let server = service().method(&heap::MANY, move |request: Request<Many<_>, _>, (what,)| {
        let payload = sent.clone();
        async move {
            while !request.is_cancelled() {
                request.reply(Bytes::from_owner(payload.clone())).await?;
            }
            drop(what);
            Ok(())
        }
    });
    let server = net.serve(server).await;
    let client = client();
    let call = heap::at(&client, at(&server)).many(Bytes::new());
    // Until the window is full.
    until(|| client.metrics().responses_received >= 10).await;
    drop(call);
    until(|| server.load().is_idle()).await;
    // Nor does what waited: only the test and the service know the payload still.
    until(|| Arc::strong_count(&payload.0) == 2).await;
}

/// Bytes that tell who still has them.
#[derive(Clone)]
struct Watched(Arc<Vec<u8>>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[tokio::test]
async fn a_call_of_a_caller_ends_with_its_request_too() {
    patience(async {
        let net = Net::mem();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let server = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
            let ended = ended.clone();
            async move {
                let mut call = request.call().begin();
                let end = call.next().await;
                ended
                    .send(end.expect("the failure").expect_err("the failure"))
                    .expect("the test listens");
                Ok(())
            }
        });
        let server = net.serve(server.shielded()).await;
        let client = client();
        let call = work::at(&client, at(&server)).one(String::new());
        until(|| server.load() == load(1, 0)).await;
        drop(call);
        let error = ends.recv().await.expect("it ends");
        assert!(matches!(error.failure(), Some(Failure::Aborted { .. })));
    })
    .await;
}

/// The request lives in a task that its handler started.
#[tokio::test]
async fn a_request_in_a_task_is_aborted_like_any_other() {
    patience(async {
        let net = Net::mem();
        let (stopped, mut stops) = mpsc::unbounded_channel();
        let gate = Gate::new();
        let ready = gate.clone();
        let server = service().method(
            &work::MANY,
            move |request: Request<Many<String>>, (what,): (String,)| {
                let (stopped, ready) = (stopped.clone(), ready.clone());
                async move {
                    if what == "later" {
                        tokio::task::yield_now().await;
                    }
                    tokio::spawn(async move {
                        ready.open(1);
                        request.cancelled().await;
                        stopped.send(what).expect("the test listens");
                    });
                    Ok(())
                }
            },
        );
        let server = net.serve(server).await;
        let client = client();
        for what in ["at once", "later"] {
            let call = work::at(&client, at(&server)).many(what.into());
            gate.pass().await;
            until(|| server.load().is_idle()).await;
            drop(call);
            assert_eq!(stops.recv().await.as_deref(), Some(what));
        }
    })
    .await;
}

/// What a call still had to send is not kept for it.
#[tokio::test]
async fn a_request_that_waits_for_room_is_dropped_with_its_call() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let opened = gate.clone();
        let server = service().method(&heap::ONE, move |request: Request<One<_>, _>, (_,)| {
            let gate = opened.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(Bytes::new()).await?)
            }
        });
        let mut limits = wallaby::Limits::default();
        limits.requests = 50_000;
        let executor = wallaby::ExecutorConfig {
            concurrency: 1,
            ..Default::default()
        };
        let server = net
            .bind(
                wallaby::Endpoint::builder()
                    .serve(server)
                    .executor(executor)
                    .limits(limits),
            )
            .await;
        let client = client();
        let heap = heap::at(&client, at(&server));
        let first = heap.one(Bytes::new());
        until(|| server.load() == load(1, 0)).await;
        let second = heap.one(Bytes::from(vec![0; 60_000]));
        until(|| server.load() == load(1, 1)).await;

        let payload = Watched(Arc::new(vec![0; 1000]));
        let waiting = heap.one(Bytes::from_owner(payload.clone()));
        tokio::task::yield_now().await;
        assert!(Arc::strong_count(&payload.0) > 1, "it waits for credit");
        drop(waiting);
        until(|| Arc::strong_count(&payload.0) == 1).await;
        gate.open(2);
        first.await.expect("an answer");
        second.await.expect("an answer");
        assert_eq!(server.metrics().requests_received, 2);
    })
    .await;
}

/// A handler that passes on what it learns when its request is stopped has done nothing wrong.
#[tokio::test]
async fn an_error_that_comes_of_the_abort_is_no_late_error() {
    patience(async {
        let net = Net::mem();
        let server = service().method(
            &work::MANY,
            |request: Request<Many<String>>, (what,): (String,)| async move {
                request.cancelled().await;
                if what == "other" {
                    return Err(Status::new(Code::Internal, "and this as well"));
                }
                Ok(request.reply("too late".into()).await?)
            },
        );
        let server = net.serve(server.shielded()).await;
        let client = client();
        for (what, late) in [("reply", 0), ("other", 1)] {
            let call = work::at(&client, at(&server)).many(what.into());
            until(|| server.load() == load(1, 0)).await;
            drop(call);
            until(|| server.load().is_idle()).await;
            assert_eq!(server.metrics().late_errors, late, "{what}");
        }
    })
    .await;
}

/// Nobody waits any more for what the handlers of a closed endpoint do.
#[tokio::test]
async fn handlers_of_an_endpoint_that_is_closed_are_dropped() {
    patience(async {
        for how in ["close", "drop"] {
            let (told, mut dropped) = mpsc::unbounded_channel();
            let server = Net::mem().serve(waits_for_ever(&told)).await;
            let client = client();
            let mut call = work::at(&client, at(&server)).many(how.into());
            call.next().await.expect("an answer").expect("an answer");
            match how {
                "close" => server.close(),
                _ => drop(server),
            }
            assert_eq!(dropped.recv().await.as_deref(), Some(how));
        }
    })
    .await;
}

/// An interceptor has a section of its own under way when the handler's turn comes.
#[tokio::test]
async fn a_shield_of_an_interceptor_ends_with_its_section() {
    patience(async {
        let (told, mut dropped) = mpsc::unbounded_channel();
        let gate = Gate::new();
        let pass = gate.clone();
        let (done, mut sections) = mpsc::unbounded_channel();
        let shielding = move |request: &Incoming| {
            let (pass, done) = (pass.clone(), done.clone());
            let (begun, begins) = tokio::sync::oneshot::channel();
            let section = request.shield(async move {
                begun.send(()).expect("the interceptor waits");
                pass.pass().await;
            });
            tokio::spawn(async move {
                section.await;
                done.send(()).expect("the test listens");
            });
            Admission::wait(async move {
                begins.await.expect("it begins");
                Admission::Run
            })
        };
        let builder = Endpoint::builder().serve(waits_for_ever(&told));
        let server = Net::mem().bind(builder.interceptor(shielding)).await;
        let client = client();
        let mut call = work::at(&client, at(&server)).many("stopped".into());
        call.next().await.expect("an answer").expect("an answer");
        gate.open(1);
        sections.recv().await.expect("the section ends");
        drop(call);
        assert_eq!(dropped.recv().await.as_deref(), Some("stopped"));
    })
    .await;
}

/// As of one whose deadline has passed.
#[tokio::test]
async fn an_aborted_call_says_what_was_missing() {
    patience(async {
        let net = Net::tcp();
        let waits = service().method(
            &work::ONE,
            |request: Request<One<String>>, (_,)| async move {
                request.cancelled().await;
                Ok(())
            },
        );
        let server = net.serve(waits).await;
        let client = net.client().await;
        let mut call = client.caller().begin();
        let method = work::ONE.definition();
        let empty = Bytes::from_static(&[0]); // one text of no bytes
        let sent = call.send(at(&server), method, empty);
        sent.await.expect("it is sent");
        until(|| server.load() == load(1, 0)).await;
        call.abort();
        let Some(Err(error)) = call.next().await else {
            panic!("it was aborted")
        };
        let Some(Failure::Aborted { missing }) = error.failure() else {
            panic!("another error: {error}")
        };
        let [branch] = &missing.branches[..] else {
            panic!("one branch: {missing}")
        };
        assert_eq!(branch.method.as_deref(), Some("test.Work/one"));
        assert_eq!(branch.server.address.as_ref(), Some(at(&server)).as_ref());
        assert_eq!(error.server(), Some(at(&server)).as_ref());
    })
    .await;
}
