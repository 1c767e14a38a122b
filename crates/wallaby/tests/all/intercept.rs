//! Interceptors of requests: who may have them, and what becomes of what their handlers send.

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::lines::finish;
use crate::common::{Gate, Net, at, client, load, patience, service, sorted, status, until, work};
use bytes::Bytes;
use tokio::sync::oneshot;
use wallaby::intercept::{
    Admission, DelegatedRequest, Exchange, Exit, Incoming, Intent, Interceptor, Placed, SendFuture,
};
use wallaby::{
    Address, Budgets, CallId, Code, DialPolicy, Endpoint, ExecutorConfig, HandlerFuture, Many,
    MethodDefinition, One, Request, SendError, Service, Status,
};

over_every_transport!(
    who_was_added_last_is_asked_first,
    a_request_may_be_changed_before_it_is_handled,
    what_is_refused_is_not_executed,
    an_interceptor_may_wait_before_it_decides,
    an_interceptor_may_wait_for_other_requests,
    an_interceptor_that_panics_refuses,
    who_is_around_a_request_sees_all_that_is_sent_for_it,
    an_answer_may_become_a_delegation,
    an_answer_may_become_none_or_several,
    what_is_refused_is_seen_by_who_is_around_it,
    what_was_recorded_is_sent_in_place_of_the_handler,
    what_goes_always_is_a_status_where_it_may_not_go,
    hostile_interceptors_break_nothing_but_their_own_requests,
);

pub(crate) type Log = Arc<Mutex<Vec<String>>>;

pub(crate) fn log(log: &Log, line: impl Into<String>) {
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line.into());
}

pub(crate) fn lines(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn echo() -> Service {
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
    assert!(server.load().is_idle());
    gate.open(4);
    let [yes, no, twice] = &mut calls;
    assert_eq!(yes.answer().await, Ok("slow".into()));
    assert_eq!(status(no.answer().await).code(), Code::Unauthenticated);
    assert_eq!(twice.answer().await, Ok("slow".into()));
    until(|| server.load().is_idle()).await;
}

/// More comes than its connection has credit for.
async fn an_interceptor_may_wait_for_other_requests(net: Net) {
    const ALL: usize = 40;
    let (taken, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let opened = gate.clone();
    let admit = move |request: &Incoming| {
        let payload = request.take_payload();
        assert!(request.payload().is_empty(), "it was taken");
        if taken.fetch_add(1, Ordering::Relaxed) + 1 == ALL {
            opened.open(ALL);
        }
        let (gate, request) = (opened.clone(), request.clone());
        Admission::wait(async move {
            gate.pass().await;
            request.set_payload(payload);
            Admission::Run
        })
    };
    let builder = Endpoint::builder().serve(echo()).interceptor(admit);
    let server = net.bind(builder).await;
    let client = client();
    let work = work::at(&client, at(&server));
    let calls: Vec<_> = (0..ALL)
        .map(|number| work.one(number.to_string().repeat(30_000)))
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = call.await.expect("it is handled");
        assert!(answer == number.to_string().repeat(30_000), "{number}");
    }
    until(|| server.load().is_idle()).await;
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
        let said = "an interceptor panicked: the guard has fallen asleep";
        assert_eq!(refused.message(), said);
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

// What is around a request.

/// Text as postcard writes it.
pub(crate) fn encoded(text: &str) -> Bytes {
    let mut bytes = vec![text.len() as u8];
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

/// Notes what is sent, and where it stands.
struct Observed(&'static str, Log);

impl Exchange for Observed {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let last = if intent.is_last() { ", the last" } else { "" };
        let what = match &intent {
            Intent::Answer { payload, .. } => format!("an answer of {}", payload.len()),
            Intent::Delegation { to, .. } => format!("{}", to.method.name()),
            Intent::Status(status) => format!("{}", status.code()),
            _ => "something else".into(),
        };
        log(&self.1, format!("{}: {what}{last}", self.0));
        exit.send(intent)
    }

    fn placed(&self, placed: &Placed) {
        let what = match placed {
            Placed::Answer { index, status } => format!("{index}, {status}"),
            Placed::Delegation { id, .. } => id.to_string(),
            _ => "somewhere".into(),
        };
        log(&self.1, format!("{} at {what}", self.0));
    }

    fn closing(&self, _: &Exit) -> HandlerFuture {
        log(&self.1, format!("{} closes", self.0));
        Box::pin(ready(Ok(())))
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        log(&self.1, format!("{} goes", self.0));
    }
}

pub(crate) fn observe(name: &'static str, seen: &Log) -> impl Interceptor {
    let seen = Arc::clone(seen);
    move |_: &Incoming| Admission::around(Observed(name, Arc::clone(&seen)))
}

async fn who_is_around_a_request_sees_all_that_is_sent_for_it(net: Net) {
    let seen = Log::default();
    let leaf = net.serve(echo()).await;
    let next = at(&leaf);
    let served = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
        let next = next.clone();
        async move {
            match &*what {
                "refuse" => return Err(Status::aborted("no")),
                "fail" => request.fail(&Status::aborted("no")),
                "nothing" => {}
                "elsewhere" => {
                    tokio::spawn(async move {
                        tokio::task::yield_now().await;
                        request.respond(what).await
                    });
                }
                _ => {
                    request.reply(what.clone()).await?;
                    request.try_reply(what.clone())?;
                    request.delegate(&next, work::many(what.clone())).await?;
                    tokio::task::yield_now().await;
                    request.forward(next, work::many(what)).await?;
                }
            }
            Ok(())
        }
    });
    let builder = Endpoint::builder().serve(served);
    let builder = builder.interceptor(observe("inner", &seen));
    let server = net.bind(builder.interceptor(observe("outer", &seen))).await;
    let client = client();
    let work = work::at(&client, at(&server));
    let ended = |count: usize| {
        let seen = Arc::clone(&seen);
        async move {
            let goes = |seen: &Log| {
                let seen = seen.lock().expect("no panic");
                seen.iter().filter(|line| line.ends_with("goes")).count()
            };
            until(|| goes(&seen) == count).await;
            lines(&seen)
        }
    };

    let (answers, statuses) = sorted(&mut work.many("x".into())).await;
    assert_eq!((answers.len(), statuses.len()), (4, 0));
    let seen = ended(2).await;
    let of = |name: &str| {
        let lines = seen.iter().filter_map(|line| line.strip_prefix(name));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let sent: Vec<_> = of("outer: ");
    assert_eq!(
        sent,
        [
            "an answer of 2",
            "an answer of 2",
            "test.Work/many",
            "test.Work/many, the last"
        ]
    );
    assert_eq!(of("inner: "), sent);
    assert_eq!(of("outer at "), ["0, false", "1, false", "0.0", "0.1"]);
    assert_eq!(of("inner at "), of("outer at "));
    let ends: Vec<_> = seen[seen.len() - 4..].to_vec();
    assert_eq!(ends[..2], ["inner closes", "outer closes"]);

    for (what, sent, code) in [
        ("refuse", "aborted, the last", Some(Code::Aborted)),
        ("fail", "aborted, the last", Some(Code::Aborted)),
        ("nothing", "", None),
        ("elsewhere", "an answer of 10, the last", None),
    ] {
        let (_, statuses) = sorted(&mut work.many(what.into())).await;
        let codes: Vec<_> = statuses.iter().map(Status::code).collect();
        assert_eq!(codes, Vec::from_iter(code), "{what}");
        let seen = ended(2).await;
        let lines = seen.iter().filter_map(|line| line.strip_prefix("outer: "));
        let expected: Vec<_> = [sent].into_iter().filter(|sent| !sent.is_empty()).collect();
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{what}");
        assert!(seen.contains(&"outer closes".into()), "{what}: {seen:?}");
    }
    until(|| server.load().is_idle()).await;
    assert_eq!(server.metrics().late_errors, 0);
}

/// Has another server say the same.
struct Elsewhere(Address);

impl Exchange for Elsewhere {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let Intent::Answer { payload, last } = intent else {
            return exit.send(intent);
        };
        let (next, exit) = (self.0.clone(), exit.clone());
        Box::pin(async move {
            tokio::task::yield_now().await;
            let method = work::ONE.definition();
            let onward = exit.delegate(next, method, payload).continuation("state");
            match last {
                true => onward.last().await,
                false => onward.metadata("more", "comes").await,
            }
        })
    }
}

async fn an_answer_may_become_a_delegation(net: Net) {
    let leaf = service().method(
        &work::ONE,
        |request: Request<One<_>>, (what,): (String,)| async move {
            assert_eq!(request.continuation().as_deref(), Some(&b"state"[..]));
            let more = request.metadata().get("more").unwrap_or("nothing");
            let answer = format!("{what} at {}, {more}", request.id());
            Ok(request.respond(answer).await?)
        },
    );
    let leaf = net.serve(leaf).await;
    let served = echo_many();
    let next = at(&leaf);
    let elsewhere = move |_: &Incoming| Admission::around(Elsewhere(next.clone()));
    let builder = Endpoint::builder().serve(served).interceptor(elsewhere);
    let server = net.bind(builder).await;
    let client = client();
    let work = work::at(&client, at(&server));
    // As a tail call it goes on where its request was.
    assert_eq!(work.one("x".into()).await, Ok("x at 0+1, nothing".into()));
    let (answers, statuses) = sorted(&mut work.many("y".into())).await;
    assert_eq!(answers, ["y at 0.0, comes", "y at 0.1, nothing"]);
    assert_eq!(statuses, []);
}

/// Answers the same, once or twice.
fn echo_many() -> Service {
    let one = |request: Request<One<_>>, (what,)| async move { Ok(request.respond(what).await?) };
    service().method(&work::ONE, one).method(
        &work::MANY,
        |request: Request<Many<String>>, (what,): (String,)| async move {
            request.reply(what.clone()).await?;
            Ok(request.respond(what).await?)
        },
    )
}

/// Sends each answer so many times.
struct Times(usize);

impl Exchange for Times {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let (times, exit) = (self.0, exit.clone());
        Box::pin(async move {
            for _ in 0..times {
                let Intent::Answer { payload, .. } = &intent else {
                    return exit.send(intent).await;
                };
                exit.send(Intent::answer(payload.clone())).await?;
            }
            Ok(())
        })
    }

    /// What is sent now is sent, too.
    fn closing(&self, exit: &Exit) -> HandlerFuture {
        let exit = exit.clone();
        match self.0 {
            0 => Box::pin(ready(Ok(()))),
            _ => Box::pin(async move { Ok(exit.send(Intent::answer(encoded("end"))).await?) }),
        }
    }
}

async fn an_answer_may_become_none_or_several(net: Net) {
    let client = client();
    for times in [0, 1, 3] {
        let around = move |_: &Incoming| Admission::around(Times(times));
        let builder = Endpoint::builder().serve(echo_many()).interceptor(around);
        let server = net.bind(builder).await;
        let work = work::at(&client, at(&server));
        let (answers, statuses) = sorted(&mut work.many("x".into())).await;
        let mut expected = vec!["x"; 2 * times];
        expected.splice(0..0, (times > 0).then_some("end"));
        assert_eq!(
            (answers, statuses),
            (expected.iter().map(ToString::to_string).collect(), vec![])
        );
        if times == 0 {
            let swallowed = status(work.one("x".into()).await);
            assert_eq!(swallowed.code(), Code::Unanswered);
        }
    }
}

async fn what_is_refused_is_seen_by_who_is_around_it(net: Net) {
    let seen = Log::default();
    let refuse = |_: &Incoming| Admission::Refuse(Status::permission_denied("no"));
    let builder = Endpoint::builder().serve(echo()).interceptor(refuse);
    let server = net.bind(builder.interceptor(observe("outer", &seen))).await;
    let client = client();
    let refused = status(work::at(&client, at(&server)).one("x".into()).await);
    assert_eq!(refused.code(), Code::PermissionDenied);
    until(|| seen.lock().expect("no panic").len() == 4).await;
    assert_eq!(
        lines(&seen),
        [
            "outer: permission denied, the last",
            "outer at 0, true",
            "outer closes",
            "outer goes"
        ]
    );
}

async fn what_was_recorded_is_sent_in_place_of_the_handler(net: Net) {
    let leaf = net.serve(echo()).await;
    let seen = Log::default();
    let onward = DelegatedRequest::new(
        at(&leaf),
        Arc::clone(work::MANY.definition()),
        encoded("leaf"),
    );
    let replay = move |request: &Incoming| {
        let first = Intent::answer(encoded("first"));
        let mut sent = vec![first, onward.clone().into()];
        match request.metadata().get("how") {
            Some("fail") => sent.push(Status::data_loss("gone").into()),
            Some("last") => sent.push(Intent::answer(encoded("last")).last()),
            _ => {}
        }
        Admission::Replay(sent)
    };
    let never = service().method(
        &work::MANY,
        |_: Request<Many<String>>, (_,): (String,)| async { panic!("it has run already") },
    );
    let builder = Endpoint::builder().serve(never).interceptor(replay);
    let server = net.bind(builder.interceptor(observe("outer", &seen))).await;
    let client = client();
    let work = work::at(&client, at(&server));
    for (how, expected, code) in [
        ("end", vec!["first", "leaf"], None),
        ("last", vec!["first", "last", "leaf"], None),
        ("fail", vec!["first", "leaf"], Some(Code::DataLoss)),
    ] {
        let (answers, statuses) =
            sorted(&mut work.clone().metadata("how", how).many("x".into())).await;
        assert_eq!(answers, expected, "{how}");
        let codes: Vec<_> = statuses.iter().map(Status::code).collect();
        assert_eq!(codes, Vec::from_iter(code), "{how}");
    }
    let seen = lines(&seen);
    let first = seen.iter().filter(|line| **line == "outer: an answer of 6");
    assert_eq!(first.count(), 3, "{seen:?}");
}

async fn what_goes_always_is_a_status_where_it_may_not_go(net: Net) {
    let leaf = net.serve(echo()).await;
    let method = Arc::clone(work::MANY.definition());
    let mut onward = DelegatedRequest::new(at(&leaf), method, encoded("leaf"));
    onward.options_mut().servers = 2;
    for always in [false, true] {
        onward.options_mut().always = always;
        let onward = onward.clone();
        let replay = move |_: &Incoming| {
            let last = Intent::answer(encoded("last")).last();
            Admission::Replay(vec![onward.clone().into(), last])
        };
        let nowhere = DialPolicy::default().only_if(|_| false);
        let builder = Endpoint::builder().dial_policy(nowhere).serve(echo_many());
        let (server, client) = (net.bind(builder.interceptor(replay)).await, client());
        let mut call = work::at(&client, at(&server)).many("x".into());
        let (answers, statuses) = sorted(&mut call).await;
        let [status] = &statuses[..] else {
            panic!("{statuses:?}")
        };
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(answers.len(), usize::from(always), "the rest is sent");
    }
    assert_eq!(leaf.metrics().connections_opened, 0);
}

/// Whoever waits for the end of a request is told, though it has ended before its turn came.
#[tokio::test]
async fn what_has_no_time_left_when_its_turn_comes_is_told() {
    patience(async {
        let (gate, seen) = (Gate::new(), Log::default());
        let (waits, record) = (gate.clone(), Arc::clone(&seen));
        let first = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let (waits, record) = (waits.clone(), Arc::clone(&record));
            async move {
                log(&record, format!("runs {what}"));
                waits.pass().await;
                Ok(request.respond(what).await?)
            }
        });
        let record = Arc::clone(&seen);
        let late = move |incoming: &Incoming| {
            if incoming.metadata().get("late").is_none() {
                return Admission::Run;
            }
            incoming.shorten_deadline(Duration::ZERO);
            let (cancelled, record) = (incoming.cancelled(), Arc::clone(&record));
            tokio::spawn(async move {
                cancelled.await;
                log(&record, "told");
            });
            Admission::Run
        };
        let executor = ExecutorConfig {
            concurrency: 1,
            ..ExecutorConfig::default()
        };
        let server = Endpoint::builder().serve(first).executor(executor);
        let server = server
            .interceptor(observe("outer", &seen))
            .interceptor(late);
        let (server, client) = (Net::tcp().bind(server).await, client());
        let work = work::at(&client, at(&server));
        let mut before = work.one("first".into());
        let has = |line: &str| {
            seen.lock()
                .expect("no panic")
                .iter()
                .any(|seen| seen == line)
        };
        until(|| has("runs first")).await;
        let mut call = work.metadata("late", "yes").one("late".into());
        until(|| server.load() == load(1, 1) || has("told")).await;
        gate.open(2);
        assert_eq!(before.answer().await, Ok("first".into()));
        assert_eq!(status(call.answer().await).code(), Code::DeadlineExceeded);
        until(|| has("told")).await;
        let gone = |seen: &Log| {
            let seen = seen.lock().expect("no panic");
            seen.iter().filter(|line| *line == "outer goes").count()
        };
        until(|| gone(&seen) == 2).await;
        assert!(!has("runs late"));
    })
    .await;
}

/// Lets a message pass when a gate is open.
struct Slow(Gate);

impl Exchange for Slow {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let (gate, exit) = (self.0.clone(), exit.clone());
        Box::pin(async move {
            gate.pass().await;
            exit.send(intent).await
        })
    }
}

/// A handler that sends something, stops looking at that, and sends something else.
#[tokio::test]
async fn a_message_that_nobody_looks_at_is_not_in_the_way_of_others() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let opens = gate.clone();
        let sends = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let opens = opens.clone();
            async move {
                let mut first = pin!(request.reply("first".to_owned()));
                tokio::select! {
                    biased;
                    _ = &mut first => panic!("the gate is closed"),
                    () = ready(()) => {}
                }
                opens.open(3);
                request.reply("second".into()).await?;
                first.await?;
                Ok(request.reply("last".into()).await?)
            }
        });
        let slow = move |_: &Incoming| Admission::around(Slow(gate.clone()));
        let server = Endpoint::builder().serve(sends).interceptor(slow);
        let (server, client) = (net.bind(server).await, client());
        let work = client.caller().at(at(&server)).in_order();
        let mut call = work::within(work).many(String::new());
        for expected in ["first", "second", "last"] {
            assert_eq!(call.next().await, Some(Ok(expected.into())));
        }
        assert_eq!(call.next().await, None);
    })
    .await;
}

// Interceptors that do what they should not.

/// What a hostile interceptor does with what passes it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Hostile {
    /// It passes on nothing, not even a status.
    Swallows,
    /// It sends everything many times, and says each time that it is the last.
    Doubles,
    PanicsInSending,
    PanicsLater,
    PanicsInClosing,
    PanicsWhenPlaced,
    NeverSends,
    NeverCloses,
    /// It keeps its exit, and sends when all is over.
    KeepsItsExit,
}

const HOSTILE: [Hostile; 9] = [
    Hostile::Swallows,
    Hostile::Doubles,
    Hostile::PanicsInSending,
    Hostile::PanicsLater,
    Hostile::PanicsInClosing,
    Hostile::PanicsWhenPlaced,
    Hostile::NeverSends,
    Hostile::NeverCloses,
    Hostile::KeepsItsExit,
];

struct Bad(Hostile, Arc<Mutex<Option<Exit>>>);

impl Exchange for Bad {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let exit = exit.clone();
        match self.0 {
            Hostile::Swallows => Box::pin(ready(Ok(()))),
            Hostile::Doubles => Box::pin(async move {
                for _ in 0..1000 {
                    let _ = exit.send(intent.clone().last()).await;
                }
                Ok(())
            }),
            Hostile::PanicsInSending => panic!("as it likes"),
            Hostile::PanicsLater => Box::pin(async {
                tokio::task::yield_now().await;
                panic!("as it likes")
            }),
            Hostile::NeverSends => Box::pin(pending()),
            Hostile::KeepsItsExit => {
                *self.1.lock().expect("no panic") = Some(exit.clone());
                exit.send(intent)
            }
            _ => exit.send(intent),
        }
    }

    fn placed(&self, _: &Placed) {
        assert_ne!(self.0, Hostile::PanicsWhenPlaced);
    }

    fn closing(&self, _: &Exit) -> HandlerFuture {
        match self.0 {
            Hostile::PanicsInClosing => panic!("as it likes"),
            Hostile::NeverCloses => Box::pin(pending()),
            _ => Box::pin(ready(Ok(()))),
        }
    }
}

async fn hostile_interceptors_break_nothing_but_their_own_requests(net: Net) {
    let client = client();
    let kept = Arc::default();
    for hostile in HOSTILE {
        let bad = Arc::clone(&kept);
        let around = move |request: &Incoming| match request.metadata().get("good") {
            Some(_) => Admission::Run,
            None => Admission::around(Bad(hostile, Arc::clone(&bad))),
        };
        let never_ends = matches!(hostile, Hostile::NeverSends | Hostile::NeverCloses);
        let time = Duration::from_millis(if never_ends { 100 } else { 20_000 });
        let most = Budgets {
            responses: 20,
            ..Budgets::default()
        };
        let builder = Endpoint::builder().serve(echo_many()).interceptor(around);
        let server = net.bind(builder.max_budgets(most)).await;
        let bad = work::at(&client, at(&server)).deadline(time);
        let one = bad.one("x".into()).await;
        let code = one.as_ref().err().map(|error| error.code());
        match hostile {
            Hostile::Swallows => assert_eq!(code, Some(Code::Unanswered)),
            Hostile::PanicsInSending | Hostile::PanicsLater => {
                assert_eq!(code, Some(Code::Panicked));
            }
            Hostile::NeverSends => assert_eq!(code, Some(Code::DeadlineExceeded)),
            _ => {}
        }
        // It ends, with answers that add up, or it says what is wrong.
        let mut call = bad.many("x".into());
        let mut answers = 0;
        while let Some(next) = call.next().await {
            answers += usize::from(next.is_ok());
        }
        assert!(answers <= 20, "{hostile:?}: {answers} answers");
        assert!(call.outcome().is_some(), "{hostile:?}");
        let good = work::at(&client, at(&server)).metadata("good", "yes");
        assert_eq!(good.one("y".into()).await, Ok("y".into()), "{hostile:?}");
        until(|| server.load().is_idle()).await;
    }
    let exit: Option<Exit> = kept.lock().expect("no panic").take();
    let late = exit
        .expect("it was kept")
        .send(Intent::answer("late"))
        .await;
    assert!(matches!(late, Err(SendError::Ended(_))), "{late:?}");
}

/// Takes no status; what it is sent otherwise it refuses when it has waited.
struct Refuses;

impl Exchange for Refuses {
    fn sending(&self, _: Intent, _: &Exit) -> SendFuture {
        Box::pin(async {
            tokio::task::yield_now().await;
            Err(SendError::Refused("not by me".into()))
        })
    }
}

/// Notes that it closes.
struct NotesItsEnd(Log);

impl Exchange for NotesItsEnd {
    fn closing(&self, _: &Exit) -> HandlerFuture {
        log(&self.0, "closed");
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn a_status_that_somebody_refuses_reaches_those_further_out() {
    patience(async {
        let seen = Log::default();
        let further_out = Arc::clone(&seen);
        let server = service()
            .method(
                &work::ONE,
                |_: Request<One<String>>, (_,): (String,)| async {
                    Err(Status::not_found("nothing"))
                },
            )
            .interceptor(|_: &Incoming| Admission::around(Refuses))
            .interceptor(move |_: &Incoming| {
                Admission::around(NotesItsEnd(Arc::clone(&further_out)))
            });
        let server = Net::mem().serve(server).await;
        let refused = status(work::at(&client(), at(&server)).one("x".into()).await);
        assert_eq!(refused.code(), Code::NotFound);
        assert_eq!(lines(&seen), ["closed"]);
    })
    .await;
}

/// The handler was told that it is sent.
#[tokio::test]
async fn what_is_refused_after_a_try_form_ends_the_request() {
    patience(async {
        let server = service()
            .method(
                &work::MANY,
                |request: Request<Many<_>>, (what,)| async move {
                    let what: String = what;
                    request.try_reply(what)?;
                    request.cancelled().await;
                    Ok(())
                },
            )
            .interceptor(|_: &Incoming| Admission::around(Refuses));
        let (server, client) = (Net::mem().serve(server).await, client());
        let mut call = work::at(&client, at(&server)).many("x".into());
        let refused = status(call.next().await.expect("a status"));
        assert_eq!(refused.code(), Code::Unavailable);
    })
    .await;
}

// A split and its merge, as chains make them.

/// Has two requests come of an answer; who merges them answers.
struct Split(Address);

impl Exchange for Split {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let (merger, exit) = (self.0.clone(), exit.clone());
        Box::pin(async move {
            let Intent::Answer { payload, .. } = intent else {
                return exit.send(intent).await;
            };
            for part in ["left", "right"] {
                let method = work::MANY.definition();
                let onward = exit.delegate(merger.clone(), method, payload.clone());
                onward.continuation(part).await?;
            }
            Ok(())
        })
    }
}

/// The first branch that arrives ends without an answer, the second one answers: the initiator gets its one answer, and knows that
/// there is no other.
#[tokio::test]
async fn an_answer_may_be_split_and_merged() {
    patience(async {
        let net = Net::tcp();
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let merge = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let arrived = Arc::clone(&arrived);
            async move {
                let what: String = what;
                let part = request.continuation().expect("it came of a split");
                let mut parts: Vec<_> = {
                    let mut arrived = arrived.lock().expect("no panic");
                    arrived.push((request.call_id(), part));
                    let call = request.call_id();
                    let is_own = |(one, _): &(CallId, Bytes)| *one == call;
                    if arrived.iter().filter(|one| is_own(one)).count() < 2 {
                        return Ok(());
                    }
                    arrived.extract_if(.., |one| is_own(one)).collect()
                };
                parts.sort_by(|one, other| one.1.cmp(&other.1));
                let parts: Vec<_> = parts.iter().map(|(_, part)| part.escape_ascii()).collect();
                let answer = format!("{what}: {} and {}", parts[0], parts[1]);
                Ok(request.respond(answer).await?)
            }
        });
        let merger = net.serve(merge).await;
        let to = at(&merger);
        let split = move |_: &Incoming| Admission::around(Split(to.clone()));
        let server = net
            .bind(Endpoint::builder().serve(echo()).interceptor(split))
            .await;
        let client = client();
        let work = work::at(&client, at(&server));
        for what in ["x", "y"] {
            let mut call = work.one(what.into());
            let answer = call.answer().await;
            assert_eq!(answer, Ok(format!("{what}: left and right")));
        }
        until(|| merger.metrics().requests_received == 4).await;
        assert_eq!(client.metrics().statuses_received, 0);
        until(|| client.metrics().calls_completed == 2).await;
    })
    .await;
}

/// What is around a request panics when it is dropped: others on its connection do not notice.
#[tokio::test]
async fn a_panic_of_an_exchange_that_is_dropped_is_caught() {
    struct Panics;
    impl Exchange for Panics {}
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as it likes");
        }
    }
    patience(async {
        for net in [Net::mem(), Net::tcp()] {
            let around = |_: &Incoming| Admission::around(Panics);
            let builder = Endpoint::builder().serve(echo());
            let server = net.bind(builder.interceptor(around)).await;
            let client = client();
            for _ in 0..2 {
                let call = &mut work::at(&client, at(&server)).many("x".into());
                let (answers, statuses) = sorted(call).await;
                assert_eq!((answers, statuses), (vec!["x".into()], vec![]));
            }
        }
    })
    .await;
}

/// So does what somebody has put beside a request.
#[tokio::test]
async fn a_panic_of_what_is_beside_a_request_is_caught() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as it likes");
        }
    }
    patience(async {
        for net in [Net::mem(), Net::tcp()] {
            let beside = |incoming: &Incoming| {
                incoming.extensions().insert(Panics);
                Admission::Run
            };
            let builder = Endpoint::builder().serve(echo());
            let server = net.bind(builder.interceptor(beside)).await;
            let client = client();
            for _ in 0..3 {
                let call = &mut work::at(&client, at(&server)).many("x".into());
                let (answers, statuses) = sorted(call).await;
                assert_eq!((answers, statuses), (vec!["x".into()], vec![]));
            }
        }
    })
    .await;
}
