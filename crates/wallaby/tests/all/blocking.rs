//! Handlers that block, and callers that are not async.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{Gate, Net, all, at, client, load, patience, service, sorted, until, work};
use wallaby::{
    Address, Breakdown, CallError, Client, Code, Endpoint, Failure, Many, One, Outcome, Request,
    SendError, Status, blocking,
};

over_every_transport!(
    blocking_handlers_do_all_that_others_do,
    threads_call_without_a_runtime,
    what_a_blocking_handler_replied_arrives_while_it_works,
    a_blocking_handler_that_returns_its_answer_is_stopped_by_nobody,
);

/// Both forms of handler that the macro makes block.
#[wallaby::service(package = "test")]
trait Slow {
    async fn double(number: u64) -> u64;
    async fn count(to: u64) -> Many<u64>;
    async fn onward(number: u64) -> u64;
    async fn fail(how: String) -> u64;
}

#[wallaby::service(package = "test")]
trait Held {
    async fn hold() -> u64;
}

/// What holds its handlers until it is opened.
struct Hold(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

#[wallaby::serve]
impl Held for Hold {
    fn hold(&self) -> u64 {
        let gate = self.0.lock().expect("no handler has panicked");
        gate.recv().expect("the test opens it");
        7
    }
}

struct Thread {
    next: Option<Address>,
}

#[wallaby::serve]
impl Slow for Thread {
    fn double(&self, number: u64) -> u64 {
        assert!(
            tokio::runtime::Handle::try_current().is_ok(),
            "on a thread of the runtime's pool"
        );
        number * 2
    }

    fn count(&self, request: Request<Many<u64>>, to: u64) -> Result<(), Status> {
        for number in 0..to {
            match (&self.next, number % 2) {
                (Some(next), 1) => request.blocking_delegate(next, slow::double(number))?,
                _ => request.blocking_reply(number)?,
            }
        }
        Ok(request.blocking_respond(1000)?)
    }

    fn onward(&self, request: Request<One<u64>>, number: u64) -> Result<(), Status> {
        match &self.next {
            Some(next) => request.blocking_forward(next, slow::onward(number + 1))?,
            None => request.blocking_respond(number)?,
        }
        Ok(())
    }

    fn fail(&self, request: Request<One<u64>>, how: String) -> Result<(), Status> {
        match &*how {
            "status" => Err(Status::new(Code::AlreadyExists, "twice")),
            "panic" => panic!("as the test wants it"),
            "nested" => {
                // A handler on a thread may wait for calls of its own.
                let next = self.next.clone().expect("there is one");
                let doubled = slow::within(request.call().at(next))
                    .double(21)
                    .blocking_answer();
                let doubled =
                    doubled.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
                Ok(request.blocking_respond(doubled)?)
            }
            // Dropped, and then an error: the error counts.
            "late status" => {
                drop(request);
                Err(Status::new(Code::AlreadyExists, "after all"))
            }
            _ => Ok(()),
        }
    }
}

async fn blocking_handlers_do_all_that_others_do(net: Net) {
    let leaf = net.serve(slow::service(Thread { next: None })).await;
    let root = net
        .serve(slow::service(Thread {
            next: Some(at(&leaf)),
        }))
        .await;
    let endpoint = net.endpoint().await;
    let slow = slow::at(&endpoint, at(&root));
    assert_eq!(slow.double(21).await, Ok(42));
    assert_eq!(slow.onward(7).await, Ok(8));
    let mut call = slow.count(6);
    let mut numbers: Vec<_> = all(&mut call)
        .await
        .into_iter()
        .map(|item| item.expect("an answer"))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 2, 2, 4, 6, 10, 1000]);
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    assert_eq!(slow.fail("nested".into()).await, Ok(42));
    for (how, code) in [
        ("status", Code::AlreadyExists),
        ("panic", Code::Panicked),
        ("nothing", Code::Unanswered),
        ("late status", Code::AlreadyExists),
    ] {
        let error = slow.fail(how.into()).await.expect_err("a status");
        assert_eq!(
            error.status().expect("a status").code(),
            code,
            "{how}: {error}"
        );
    }
    until(|| root.load().is_idle()).await;
    assert_eq!(root.metrics().panics, 1);
    assert_eq!(root.metrics().late_errors, 0);
}

/// Runs on a thread outside the runtime, while this task waits.
async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let _ = done.send(work());
    });
    result.await.expect("no panic on the thread")
}

async fn threads_call_without_a_runtime(net: Net) {
    let server = service()
        .method(
            &work::ONE,
            |request: Request<One<_>>, (what,): (String,)| async move {
                if what == "fail" {
                    return Err(Status::new(Code::NotFound, "no"));
                }
                Ok(request.respond(what).await?)
            },
        )
        .method(
            &work::MANY,
            |request: Request<Many<_>>, (what,): (String,)| async move {
                for letter in what.chars() {
                    request.reply(letter.to_string()).await?;
                }
                Ok(())
            },
        );
    let server = net.serve(server).await;
    let client = client();
    let work = work::at(&client, at(&server));
    elsewhere(move || {
        assert_eq!(work.one("hop".into()).blocking_answer(), Ok("hop".into()));
        let error = work
            .one("fail".into())
            .blocking_answer()
            .expect_err("a status");
        assert_eq!(error.status().expect("a status").code(), Code::NotFound);
        assert_eq!(
            work.many("abc".into()).blocking_collect(),
            Ok(vec!["a".into(), "b".into(), "c".into()])
        );
        let mut call = work.many("xy".into());
        assert_eq!(call.blocking_next(), Some(Ok("x".into())));
        assert_eq!(call.blocking_next(), Some(Ok("y".into())));
        assert_eq!(call.blocking_next(), None);
        assert_eq!(call.blocking_next(), None);
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    })
    .await;
    // Several at the same time.
    let work = work::at(&client, at(&server));
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let work = work.clone();
            tokio::spawn(elsewhere(move || {
                for call in 0..50 {
                    let what = format!("{number} {call}");
                    assert_eq!(work.one(what.clone()).blocking_answer(), Ok(what));
                }
            }))
        })
        .collect();
    for thread in threads {
        thread.await.expect("no panic");
    }
}

async fn what_a_blocking_handler_replied_arrives_while_it_works(net: Net) {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = service().blocking_method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        request.blocking_reply("ready".into())?;
        wait.lock()
            .expect("no panic")
            .recv()
            .expect("the test says so");
        request.blocking_reply("done".into())?;
        Ok(())
    });
    let server = net.serve(server).await;
    let client = client();
    for _ in 0..3 {
        let mut call = work::at(&client, at(&server)).many(String::new());
        assert_eq!(call.next().await, Some(Ok("ready".into())));
        assert_eq!(call.outcome(), None);
        go_on.send(()).expect("the handler waits");
        assert_eq!(call.next().await, Some(Ok("done".into())));
        assert_eq!(call.next().await, None);
    }
}

/// Waiting on a thread of the runtime would stop it: it is an error instead.
#[tokio::test]
async fn waiting_inside_the_runtime_is_an_error() {
    patience(async {
        let net = Net::mem();
        let server = service()
            .method(
                &work::ONE,
                |request: Request<One<String>>, (what,): (String,)| async move {
                    if what == "handler" {
                        let error = request
                            .blocking_respond(what)
                            .expect_err("this is no thread of its own");
                        assert!(matches!(error, SendError::Refused(_)), "{error}");
                        return Err(Status::new(Code::FailedPrecondition, error.to_string()));
                    }
                    Ok(request.respond(what).await?)
                },
            )
            .method(
                &work::MANY,
                |request: Request<Many<String>>, (what,)| async move {
                    assert!(request.blocking_reply(what).is_err());
                    Ok(())
                },
            );
        let server = net.serve(server).await;
        let client = client();
        let work = work::at(&client, at(&server));
        let would_block =
            |error: CallError| assert_eq!(error.failure(), Some(&Failure::WouldBlock));
        would_block(
            work.one("x".into())
                .blocking_answer()
                .expect_err("it would block"),
        );
        would_block(
            work.many("x".into())
                .blocking_collect()
                .expect_err("it would block"),
        );
        let mut call = work.one("x".into());
        would_block(
            call.blocking_next()
                .expect("an error")
                .expect_err("it would block"),
        );
        // The call itself is not harmed.
        assert_eq!(call.answer().await, Ok("x".into()));

        let status = work.one("handler".into()).await.expect_err("a status");
        assert_eq!(
            status.status().expect("a status").code(),
            Code::FailedPrecondition
        );
        assert!(status.to_string().contains("async runtime"), "{status}");
        let (answers, statuses) = sorted(&mut work.many("x".into())).await;
        assert!(answers.is_empty() && statuses.is_empty());
    })
    .await;
}

/// A blocking handler that waits for credit does not keep others from running.
#[tokio::test]
async fn a_blocking_reply_waits_for_credit() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let finished = gate.clone();
        let server =
            service().blocking_method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
                for _ in 0..50 {
                    request.blocking_reply("x".repeat(10_000))?;
                }
                finished.open(1);
                Ok(())
            });
        let server = net.serve(server).await;
        let mut limits = wallaby::Limits::default();
        limits.call = 50_000;
        let client = Endpoint::builder()
            .limits(limits)
            .bind()
            .await
            .expect("there is a runtime");
        let mut call = work::at(&client, at(&server)).many(String::new());
        until(|| client.metrics().responses_received >= 5).await;
        assert!(client.metrics().responses_received < 20);
        assert_eq!(all(&mut call).await.len(), 50);
        gate.pass().await;
        // Given up while it waits: the thread is free again.
        let call = work::at(&client, at(&server)).many(String::new());
        until(|| client.metrics().responses_received >= 55).await;
        drop(call);
        until(|| server.load().is_idle()).await;
    })
    .await;
}

/// A thread may make endpoints if it has entered a runtime, and only then.
#[test]
fn an_endpoint_needs_a_runtime() {
    let error = Endpoint::client().expect_err("there is no runtime");
    assert!(error.to_string().contains("runtime"), "{error}");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime
        .block_on(Endpoint::bind("mem://needs-a-runtime"))
        .expect("the name is free");
    let client = {
        let _inside = runtime.enter();
        Endpoint::client().expect("there is a runtime")
    };
    // The runtime goes on in its own threads.
    let error = work::within(Client::new(&client, at(&server)))
        .one("x".into())
        .blocking_answer()
        .expect_err("nobody serves it");
    assert_eq!(
        error.status().expect("a status").code(),
        Code::Unimplemented
    );
}

/// Nobody reads its sockets any more, so no server is to blame.
#[test]
fn what_goes_on_when_the_runtime_of_an_endpoint_ends_fails_and_says_so() {
    let servers = tokio::runtime::Runtime::new().expect("a runtime");
    let gate = Gate::new();
    let held = gate.clone();
    let waits = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            Ok(request.respond(what).await?)
        }
    });
    let server = Endpoint::builder().serve(waits).listen("tcp://127.0.0.1:0");
    let server = servers.block_on(server.bind()).expect("a free port");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = {
        let _inside = runtime.enter();
        Endpoint::client().expect("there is a runtime")
    };
    let call = work::at(&client, at(&server)).one(String::new());
    servers.block_on(until(|| server.load().running == 1));
    let waits = thread::spawn(move || call.blocking_answer());
    runtime.shutdown_background();
    let ended = CallError::from(Failure::BrokenDown(Breakdown::RuntimeEnded));
    assert_eq!(waits.join().expect("no panic"), Err(ended.clone()));
    let later = work::at(&client, at(&server)).one(String::new());
    assert_eq!(later.blocking_answer(), Err(ended));
    let drained = servers.block_on(client.drain(Duration::from_secs(600)));
    assert_eq!(drained, Ok(()), "nothing is left");
}

/// Nothing of it is async but what Wallaby does on a thread of its own.
#[test]
fn a_program_may_do_without_async() {
    let server = Endpoint::builder().listen("tcp://127.0.0.1:0");
    let server = blocking::bind(server.serve(slow::service(Thread { next: None })));
    let server = server.expect("a port is free");
    let client = blocking::bind(Endpoint::builder()).expect("a thread");
    let slow = slow::at(&client, at(&server));
    assert_eq!(slow.double(4).blocking_answer(), Ok(8));
    let (done, told) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| done.send(slow.count(2).blocking_collect()));
    });
    assert_eq!(told.recv().expect("it was told"), Ok(vec![0, 1, 1000]));
    let stopped = client.wait(slow.double(1).stop());
    assert_eq!(stopped, Ok(Ok(())), "any future can be waited for");
    let drained = server.wait(server.drain(std::time::Duration::from_secs(60)));
    assert_eq!(drained, Ok(Ok(())));
    slow.double(4)
        .blocking_answer()
        .expect_err("nobody is there");

    let kept = (*client).clone();
    drop(client);
    let closed = Client::new(&kept, at(&server));
    let closed = slow::within(closed).double(4).blocking_answer();
    assert_eq!(
        closed,
        Err(CallError::Failed(Failure::Closed)),
        "clones do not keep it open"
    );
}

#[tokio::test]
async fn an_async_program_is_told_that_it_would_be_stopped() {
    let refused = blocking::bind(Endpoint::builder()).expect_err("this thread is a runtime's");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.to_string().contains("await in place of it"),
        "{refused}"
    );
}

/// It has its place for as long as its thread works, and who stops it is told: also if its method takes no request.
async fn a_blocking_handler_that_returns_its_answer_is_stopped_by_nobody(net: Net) {
    let (open, gate) = std::sync::mpsc::channel();
    let server = net.serve(held::service(Hold(gate.into()))).await;
    let client = client();
    let call = held::at(&client, at(&server)).hold();
    until(|| server.load() == load(1, 0)).await;
    let still = call.stop_within(Duration::from_millis(100)).await;
    still.expect_err("its thread works");
    assert_eq!(server.load(), load(1, 0));
    open.send(()).expect("the handler waits");
    until(|| server.load().is_idle()).await;
}
