//! Interceptors of requests: who may have them, and what becomes of what their handlers send.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::lines::finish;
use crate::common::{Gate, Net, at, client, patience, service, status, until, work};
use tokio::sync::oneshot;
use wallaby::intercept::{Admission, Incoming, Interceptor};
use wallaby::{
    Code, Endpoint, ExecutorConfig, Many, MethodDefinition, One, Request, Service, Status,
};

over_every_transport!(
    who_was_added_last_is_asked_first,
    a_request_may_be_changed_before_it_is_handled,
    what_is_refused_is_not_executed,
    an_interceptor_may_wait_before_it_decides,
    an_interceptor_that_panics_refuses,
);

type Log = Arc<Mutex<Vec<String>>>;

fn log(log: &Log, line: impl Into<String>) {
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line.into());
}

fn lines(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap_or_else(PoisonError::into_inner))
}

fn echo() -> Service {
    service()
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
        .method(
            &work::MANY,
            |request: Request<Many<_>>, (what,)| async move { Ok(request.respond(what).await?) },
        )
}

/// Notes what it is asked, of one method.
struct Named(&'static str, &'static str, Log);

impl Interceptor for Named {
    fn concerns(&self, method: &MethodDefinition) -> bool {
        method.name().ends_with(self.1)
    }

    fn admit(&self, request: &Incoming) -> Admission {
        log(&self.2, format!("{} {}", self.0, request.method()));
        Admission::Run
    }
}

async fn who_was_added_last_is_asked_first(net: Net) {
    let seen = Log::default();
    let named = |name, method| Named(name, method, Arc::clone(&seen));
    let builder = Endpoint::builder()
        .interceptor(named("third", "one"))
        .interceptor(named("fourth", "one"))
        .interceptor(named("all", ""));
    let server = net.bind(builder).await;
    // Also about what is registered later.
    let served = echo()
        .interceptor(named("first", "one"))
        .interceptor(named("second", "one"));
    server.serve(served).expect("the names are free");
    let client = client();
    let work = work::at(&client, at(&server));
    assert_eq!(work.one("x".into()).await, Ok("x".into()));
    let expected = ["all", "fourth", "third", "second", "first"];
    assert_eq!(
        lines(&seen),
        expected.map(|name| format!("{name} test.Work/one"))
    );
    work.many("x".into()).collect().await.expect("an answer");
    assert_eq!(lines(&seen), ["all test.Work/many"]);
}

/// What an interceptor has found out.
struct Principal(String);

async fn a_request_may_be_changed_before_it_is_handled(net: Net) {
    let admit = |request: &Incoming| {
        assert_eq!(request.payload(), "\x01x"); // postcard's form of "x"
        request.set_payload("\x02yz".into());
        let peer = request.identity().to_string();
        request.extensions().insert(Principal("nobody".into()));
        request.extensions().insert(Principal(peer));
        request.shorten_deadline(Duration::from_secs(3600));
        assert!(request.remaining() < Duration::from_secs(100));
        request.shorten_deadline(Duration::from_secs(5));
        Admission::Run
    };
    let served = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        let what: String = what;
        let principal = request
            .extensions()
            .get::<Principal>()
            .expect("it is there");
        assert_eq!(principal.0, request.identity().to_string());
        assert!(request.extensions().get::<u32>().is_none());
        assert!(request.remaining() <= Duration::from_secs(5));
        Ok(request.respond(what).await?)
    });
    let builder = Endpoint::builder().serve(served).interceptor(admit);
    let server = net.bind(builder).await;
    let client = client();
    let answer = work::at(&client, at(&server)).one("x".into()).await;
    assert_eq!(answer, Ok("yz".into()));
}

async fn what_is_refused_is_not_executed(net: Net) {
    let served = service().method(
        &work::ONE,
        |request: Request<One<_>>, (what,): (String,)| async move {
            assert_ne!(what, "no");
            Ok(request.respond(what).await?)
        },
    );
    let asked = Arc::new(AtomicUsize::new(0));
    let inner = {
        let asked = Arc::clone(&asked);
        move |_: &Incoming| {
            asked.fetch_add(1, Ordering::Relaxed);
            Admission::Run
        }
    };
    let outer = |request: &Incoming| match request.payload().ends_with(b"no") {
        true => Admission::Refuse(Status::permission_denied("not this")),
        false => Admission::Run,
    };
    let builder = Endpoint::builder().serve(served);
    let server = net
        .bind(builder.interceptor(inner).interceptor(outer))
        .await;
    let client = client();
    let work = work::at(&client, at(&server));
    for _ in 0..3 {
        let refused = status(work.one("no".into()).await);
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert_eq!(refused.message(), "not this");
    }
    assert_eq!(work.one("yes".into()).await, Ok("yes".into()));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// While it waits its request takes nobody's place.
async fn an_interceptor_may_wait_before_it_decides(net: Net) {
    let gate = Gate::new();
    let (first, second) = (gate.clone(), gate.clone());
    let wait = |gate: &Gate, admission: fn(Incoming) -> Admission, request: &Incoming| {
        let (gate, request) = (gate.clone(), request.clone());
        Admission::wait(async move {
            gate.pass().await;
            admission(request)
        })
    };
    let outer = move |request: &Incoming| match request.metadata().get("slow") {
        None => Admission::Run,
        Some("no") => wait(
            &first,
            |_| Admission::Refuse(Status::unauthenticated("no")),
            request,
        ),
        // One wait may lead to another.
        Some(_) => wait(
            &first,
            |request| {
                Admission::wait(async move {
                    request.extensions().insert(7);
                    Admission::Run
                })
            },
            request,
        ),
    };
    let inner = move |request: &Incoming| match request.metadata().get("slow") {
        Some("twice") => {
            assert_eq!(request.extensions().get::<i32>().as_deref(), Some(&7));
            wait(&second, |_| Admission::Run, request)
        }
        _ => Admission::Run,
    };
    let places = ExecutorConfig {
        concurrency: 1,
        ..ExecutorConfig::default()
    };
    let builder = Endpoint::builder().serve(echo()).executor(places);
    let server = net
        .bind(builder.interceptor(inner).interceptor(outer))
        .await;
    let client = client();
    let work = work::at(&client, at(&server));
    let slow = |slow: &str| work.clone().metadata("slow", slow).one("slow".into());
    let mut calls = [slow("yes"), slow("no"), slow("twice")];
    assert_eq!(work.one("quick".into()).await, Ok("quick".into()));
    until(|| server.metrics().requests_received == 4).await;
    assert_eq!(server.load(), (0, 0));
    gate.open(4);
    let [yes, no, twice] = &mut calls;
    assert_eq!(yes.answer().await, Ok("slow".into()));
    assert_eq!(status(no.answer().await).code(), Code::Unauthenticated);
    assert_eq!(twice.answer().await, Ok("slow".into()));
    until(|| server.load() == (0, 0)).await;
}

async fn an_interceptor_that_panics_refuses(net: Net) {
    let admit = |request: &Incoming| match request.metadata().get("panic") {
        Some("now") => panic!("the guard has fallen asleep"),
        Some(_) => Admission::wait(async { panic!("the guard has fallen asleep") }),
        None => Admission::Run,
    };
    let builder = Endpoint::builder().serve(echo()).interceptor(admit);
    let server = net.bind(builder).await;
    let client = client();
    let work = work::at(&client, at(&server));
    for when in ["now", "later"] {
        let refused = work.clone().metadata("panic", when).one("x".into()).await;
        let refused = status(refused);
        assert_eq!(refused.code(), Code::Panicked);
        assert!(refused.message().ends_with("the guard has fallen asleep"));
    }
    assert_eq!(server.metrics().panics, 2);
    assert_eq!(work.one("x".into()).await, Ok("x".into()));
}

/// Tells when it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let told = self.0.take().map(|told| told.send(()));
        assert_eq!(told, Some(Ok(())), "the test listens");
    }
}

/// A server whose interceptor waits for ever, and who hears that it does not any more.
async fn waiting(net: &Net) -> (Endpoint, oneshot::Receiver<()>) {
    let (told, dropped) = oneshot::channel();
    let told = Mutex::new(Some(told));
    let admit = move |_: &Incoming| {
        let told = Dropped(told.lock().expect("no panic").take());
        Admission::wait(async move {
            let _told = told;
            pending().await
        })
    };
    let never = service().method(&work::ONE, |_: Request<One<String>>, (_,)| async {
        panic!("it was not admitted")
    });
    let builder = Endpoint::builder().serve(never).interceptor(admit);
    (net.bind(builder).await, dropped)
}

#[tokio::test]
async fn an_abort_ends_the_wait_of_an_interceptor() {
    patience(async {
        let net = Net::tcp();
        let (server, dropped) = waiting(&net).await;
        let client = client();
        let call = work::at(&client, at(&server)).one("x".into());
        until(|| server.metrics().requests_received == 1).await;
        drop(call);
        dropped.await.expect("it is dropped");
    })
    .await;
}

#[tokio::test]
async fn the_deadline_ends_the_wait_of_an_interceptor() {
    patience(async {
        let net = Net::tcp();
        let (server, dropped) = waiting(&net).await;
        let client = client();
        let brief = work::at(&client, at(&server)).deadline(Duration::from_millis(50));
        brief.one("x".into()).await.expect_err("its time is over");
        dropped.await.expect("it is dropped");
    })
    .await;
}

/// What came before is still decided about and handled.
#[tokio::test]
async fn a_server_that_drains_waits_for_interceptors() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let waits = gate.clone();
        let admit = move |_: &Incoming| {
            let gate = waits.clone();
            Admission::wait(async move {
                gate.pass().await;
                Admission::Run
            })
        };
        let builder = Endpoint::builder().serve(echo()).interceptor(admit);
        let server = net.bind(builder).await;
        let client = client();
        let mut call = work::at(&client, at(&server)).one("x".into());
        until(|| server.metrics().requests_received == 1).await;
        let draining = tokio::spawn({
            let server = server.clone();
            async move { server.drain(Duration::from_secs(60)).await }
        });
        gate.open(1);
        assert_eq!(call.answer().await, Ok("x".into()));
        draining.await.expect("no panic").expect("it is drained");
    })
    .await;
}

/// At each server of a line the interceptors of the method that it is for are asked.
#[tokio::test]
async fn interceptors_are_asked_about_what_comes_down_a_line() {
    patience(async {
        let net = Net::tcp();
        let seen = Log::default();
        let mut servers = Vec::new();
        for name in ["first", "second"] {
            let named = Named(name, "one", Arc::clone(&seen));
            let builder = Endpoint::builder().serve(echo()).interceptor(named);
            servers.push(net.bind(builder).await);
        }
        let client = client();
        let addresses: Vec<_> = servers.iter().map(at).collect();
        let mut call = client.caller().pipeline(addresses, work::one("x".into()));
        finish(&mut call).await;
        let mut seen = lines(&seen);
        seen.sort();
        assert_eq!(seen, ["first test.Work/one", "second test.Work/one"]);
    })
    .await;
}
