//! Calls that are made again: after a failure, or beside a slow one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::raw::{Raw, hello};
use crate::common::{Gate, Net, at, failure, patience, service, status, until, work};
use tokio::net::TcpListener;
use wallaby::{
    Address, AttemptsFailed, CallInterceptor, CallOptions, Client, Code, Endpoint, Failure,
    FailureKind, Hedge, Limits, Many, NoMore, One, Outcome, Outgoing, Request, Resend, Retry,
    RetryBudget, Service, Status,
};

over_every_transport!(
    another_server_takes_over,
    a_server_that_dies_and_comes_back_is_called_again,
    a_server_that_is_away_is_waited_for,
    who_drains_waits_for_a_call_that_waits_for_its_server,
    who_waits_in_vain_is_told_so,
    only_what_was_not_executed_is_made_again_if_that_is_said,
    what_a_closed_server_had_begun_is_made_again_only_if_that_is_said,
    what_was_delegated_in_vain_does_not_make_the_call_again,
    what_has_run_is_not_made_again_whatever_status_it_hands_on,
    an_error_tells_of_all_attempts,
    a_budget_is_shared_and_ends,
    nothing_is_made_again_once_an_answer_was_delivered,
    statuses_are_retried_where_that_is_said,
    attempts_keep_to_the_deadline_of_the_call,
    an_attempt_may_have_a_deadline_of_its_own,
    a_slow_call_is_hedged_and_the_loser_is_stopped,
    a_hedged_call_may_be_won_by_its_first_attempt,
    a_hedged_call_goes_on_when_one_attempt_is_lost,
    a_hedged_call_goes_on_when_its_second_server_shuts_down,
    a_call_that_both_attempts_lost_tells_of_both,
    what_a_dead_server_had_left_comes_from_another_one,
    a_subtree_that_was_lost_is_executed_again_from_its_root,
    a_request_that_nobody_takes_goes_to_the_next_server,
    a_second_execution_that_differs_is_an_error,
    requests_are_kept_within_limits,
    nothing_is_sent_again_after_a_status,
    a_call_that_ends_while_it_waits_to_be_sent_again_is_over,
);

const NO_PAUSE: Duration = Duration::ZERO;

/// How often handlers ran, and how often they were stopped.
#[derive(Clone, Default)]
struct Runs(Arc<(AtomicUsize, AtomicUsize)>);

impl Runs {
    fn count(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    fn stopped(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

/// Answers with its name once the gate lets it.
fn waiting(name: &'static str, gate: &Gate, runs: &Runs) -> Service {
    let (gate, runs) = (gate.clone(), runs.clone());
    service()
        .method(&work::ONE, move |request: Request<One<_>>, (_,)| {
            let (gate, runs) = (gate.clone(), runs.clone());
            async move {
                runs.0.0.fetch_add(1, Ordering::SeqCst);
                tokio::select! {
                    () = gate.pass() => Ok(request.respond(name.to_owned()).await?),
                    () = request.cancelled() => {
                        runs.0.1.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    }
                }
            }
        })
        .shielded()
}

fn quick(name: &'static str, runs: &Runs) -> Service {
    let gate = Gate::new();
    gate.open(1000);
    waiting(name, &gate, runs)
}

fn failing(code: Code, runs: &Runs) -> Service {
    let runs = runs.clone();
    service().method(&work::ONE, move |_: Request<One<String>>, (_,)| {
        runs.0.0.fetch_add(1, Ordering::SeqCst);
        async move { Err(Status::new(code, "not now")) }
    })
}

/// An address at which nobody listens.
async fn nobody(net: &Net) -> Address {
    let endpoint = net.endpoint().await;
    let address = at(&endpoint);
    endpoint.close();
    address
}

async fn caller(net: &Net) -> Endpoint {
    net.bind(quick_to_notice()).await
}

fn quick_to_notice() -> wallaby::Builder {
    Endpoint::builder()
        .ping(Duration::from_millis(20), Duration::from_millis(200))
        .dial_timeout(Duration::from_millis(200))
}

fn attempts_failed(failed: &Failure) -> &AttemptsFailed {
    match failed {
        Failure::Attempts(failed) => failed,
        other => panic!("another failure: {other}"),
    }
}

async fn another_server_takes_over(net: Net) {
    let runs = Runs::default();
    let server = net.serve(quick("second", &runs)).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, nobody(&net).await)
        .alternates([at(&server)])
        .retry(Retry::idempotent(3).backoff(NO_PAUSE, NO_PAUSE));
    let mut call = work::within(client.clone()).one(String::new());
    assert_eq!(call.answer().await.expect("the second lives"), "second");
    assert_eq!((call.attempts(), runs.count()), (2, 1));
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    assert_eq!(caller.metrics().retries, 1);
    // A call with its policy is made from threads, too.
    let blocking =
        std::thread::spawn(move || work::within(client).one(String::new()).blocking_answer());
    until(|| blocking.is_finished()).await;
    let answer = blocking.join().expect("no panic");
    assert_eq!(answer.expect("the second lives"), "second");
}

async fn a_server_that_dies_and_comes_back_is_called_again(net: Net) {
    let (before, after) = (Runs::default(), Runs::default());
    let server = net.serve(waiting("before", &Gate::new(), &before)).await;
    let address = at(&server);
    let caller = caller(&net).await;
    let pauses = Duration::from_millis(20);
    let client = Client::new(&caller, address.clone())
        .retry_budget(RetryBudget::new(0, 64))
        .retry(Retry::idempotent(64).backoff(pauses, pauses));
    let mut call = work::within(client).one(String::new());
    until(|| before.count() == 1).await;
    server.close();
    drop(server);
    let again = async {
        loop {
            let builder = Endpoint::builder().serve(quick("after", &after));
            match builder.listen(&address.to_string()).bind().await {
                Ok(server) => return server,
                Err(_) => tokio::task::yield_now().await, // the old one is about to let go of it
            }
        }
    };
    let (answer, _server) = tokio::join!(call.answer(), again);
    assert_eq!(answer.expect("it came back"), "after");
    assert_eq!((before.count(), after.count()), (1, 1));
    assert!(call.attempts() >= 2);
}

/// Neither the number of attempts nor the budget ends that.
async fn a_server_that_is_away_is_waited_for(net: Net) {
    let (address, runs) = (nobody(&net).await, Runs::default());
    let caller = caller(&net).await;
    let client = Client::new(&caller, address.clone())
        .retry_budget(RetryBudget::new(0, 0))
        .retry(
            Retry::unexecuted(1)
                .backoff(NO_PAUSE, NO_PAUSE)
                .wait_for_server(Duration::from_secs(3600)),
        );
    let mut call = work::within(client).one(String::new());
    let come = async {
        until(|| caller.metrics().retries >= 5).await;
        serve_again(&address, &runs).await
    };
    let (answer, _server) = tokio::join!(call.answer(), come);
    assert_eq!(answer.expect("it came"), "back");
    assert_eq!(runs.count(), 1);
    assert!(call.attempts() > 5);
}

async fn who_drains_waits_for_a_call_that_waits_for_its_server(net: Net) {
    let (address, runs) = (nobody(&net).await, Runs::default());
    let caller = caller(&net).await;
    let client = Client::new(&caller, address.clone()).retry(
        Retry::unexecuted(1)
            .backoff(NO_PAUSE, NO_PAUSE)
            .wait_for_server(Duration::from_secs(3600)),
    );
    let mut call = work::within(client).one(String::new());
    let drains = async {
        until(|| caller.metrics().retries >= 2).await;
        caller.drain(Duration::from_secs(60)).await
    };
    let come = async {
        until(|| caller.metrics().retries >= 9).await;
        serve_again(&address, &runs).await
    };
    let (answer, drained, _server) = tokio::join!(call.answer(), drains, come);
    assert_eq!(answer.expect("it came"), "back");
    assert_eq!(drained, Ok(()));
}

/// A server where nobody is.
async fn serve_again(address: &Address, runs: &Runs) -> Endpoint {
    loop {
        let builder = Endpoint::builder().serve(quick("back", runs));
        match builder.listen(&address.to_string()).bind().await {
            Ok(server) => return server,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn who_waits_in_vain_is_told_so(net: Net) {
    let nobody = nobody(&net).await;
    let caller = caller(&net).await;
    let wait = Duration::from_millis(100);
    let client = Client::new(&caller, nobody.clone()).retry(
        Retry::unexecuted(1)
            .backoff(NO_PAUSE, NO_PAUSE)
            .wait_for_server(wait),
    );
    let begun = tokio::time::Instant::now();
    let failed = failure(work::within(client).one(String::new()).await);
    assert!(begun.elapsed() >= wait);
    let told = attempts_failed(&failed);
    assert_eq!(told.why, NoMore::Absent);
    assert!(told.before.len() < 64);
    let text = failed.to_string();
    let why = "and no other follows, since no server was there for as long as it was to wait: ";
    assert!(text.contains(why), "{text}");
    // Each cause is told once, however often it came.
    assert!(text.matches("cannot connect").count() <= 4, "{text}");
    assert_eq!(
        format!("{failed:?}"),
        text,
        "a `main` that returns it prints its text"
    );
}

async fn only_what_was_not_executed_is_made_again_if_that_is_said(net: Net) {
    let (lost, runs) = (Runs::default(), Runs::default());
    let first = net.serve(waiting("first", &Gate::new(), &lost)).await;
    let second = net.serve(quick("second", &runs)).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, nobody(&net).await)
        .alternates([at(&first), at(&second)])
        .retry(Retry::unexecuted(3).backoff(NO_PAUSE, NO_PAUSE));
    let mut call = work::within(client).one(String::new());
    let killed = async {
        until(|| lost.count() == 1).await;
        first.kill();
    };
    let (answer, ()) = tokio::join!(call.answer(), killed);
    let failed = failure(answer);
    assert!(
        matches!(failed, Failure::Attempts(_) | Failure::Lost(_)),
        "{failed}"
    );
    assert_eq!((call.attempts(), runs.count()), (2, 0), "it may have run");
}

/// A server that closes tells of what it had begun: that may have run as well.
async fn what_a_closed_server_had_begun_is_made_again_only_if_that_is_said(net: Net) {
    let caller = caller(&net).await;
    for (retry, again) in [(Retry::unexecuted(3), 0), (Retry::idempotent(3), 1)] {
        let (begun, runs) = (Runs::default(), Runs::default());
        let first = net.serve(waiting("first", &Gate::new(), &begun)).await;
        let second = net.serve(quick("second", &runs)).await;
        let client = Client::new(&caller, at(&first))
            .alternates([at(&second)])
            .retry(retry.backoff(NO_PAUSE, NO_PAUSE));
        let mut call = work::within(client).one(String::new());
        let closed = async {
            until(|| begun.count() == 1).await;
            first.close();
        };
        let (answer, ()) = tokio::join!(call.answer(), closed);
        assert_eq!((answer.is_ok(), runs.count()), (again == 1, again));
    }
}

/// A handler that has run has handed its work on, and that was not executed: the call was.
async fn what_was_delegated_in_vain_does_not_make_the_call_again(net: Net) {
    let (runs, others) = (Runs::default(), Runs::default());
    let nobody = nobody(&net).await;
    let count = runs.clone();
    let front = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let (nobody, count) = (nobody.clone(), count.clone());
        async move {
            count.0.0.fetch_add(1, Ordering::SeqCst);
            Ok(request.forward(nobody, work::one(what)).await?)
        }
    });
    let front = net.serve(front).await;
    let second = net.serve(quick("second", &others)).await;
    let client = Client::new(&caller(&net).await, at(&front))
        .alternates([at(&second)])
        .retry(Retry::unexecuted(3).backoff(NO_PAUSE, NO_PAUSE));
    let refused = status(work::within(client).one(String::new()).await);
    assert!(refused.is_not_executed(), "{refused}");
    assert_eq!((runs.count(), others.count()), (1, 0));
}

/// A server that shuts down, as long as the gate is shut.
async fn draining(net: &Net) -> (Arc<Endpoint>, Gate) {
    let (gate, runs) = (Gate::new(), Runs::default());
    let server = Arc::new(net.serve(waiting("late", &gate, &runs)).await);
    let client = net.client().await;
    let call = work::at(&client, at(&server)).one(String::new());
    until(|| runs.count() == 1).await;
    let drains = Arc::clone(&server);
    tokio::spawn(async move {
        let _drained = drains.drain(Duration::from_secs(60)).await;
        drop((call, client));
    });
    let is_draining = || async {
        let asked = net.client().await;
        let refused = work::at(&asked, at(&server)).one(String::new());
        let refused = tokio::time::timeout(Duration::from_millis(50), refused.into_future());
        matches!(refused.await, Ok(Err(_)))
    };
    while !is_draining().await {}
    (server, gate)
}

/// A handler calls a server that shuts down, and fails with what that says: of its own request this is not true.
async fn what_has_run_is_not_made_again_whatever_status_it_hands_on(net: Net) {
    let (runs, others) = (Runs::default(), Runs::default());
    let (closing, _gate) = draining(&net).await;
    let (closing, count) = (at(&closing), runs.clone());
    let front = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
        count.0.0.fetch_add(1, Ordering::SeqCst);
        let closing = closing.clone();
        async move {
            let call = work::within(request.call().at(closing)).one(what);
            let refused = status(call.await);
            assert!(refused.is_not_executed(), "{refused}");
            Err(refused)
        }
    });
    let front = net.serve(front).await;
    let second = net.serve(quick("second", &others)).await;
    let client = Client::new(&caller(&net).await, at(&front))
        .alternates([at(&second)])
        .retry(Retry::unexecuted(3).backoff(NO_PAUSE, NO_PAUSE));
    let failed = status(work::within(client).one(String::new()).await);
    assert!(!failed.is_not_executed(), "{failed}");
    assert_eq!((runs.count(), others.count()), (1, 0));
}

async fn an_error_tells_of_all_attempts(net: Net) {
    let (first, second) = (nobody(&net).await, nobody(&net).await);
    let caller = caller(&net).await;
    let client = Client::new(&caller, first.clone())
        .alternates([second.clone()])
        .retry(Retry::idempotent(3).backoff(NO_PAUSE, NO_PAUSE));
    let mut call = work::within(client).one(String::new());
    let failed = failure(call.answer().await);
    let told = attempts_failed(&failed);
    assert_eq!((told.made, told.why), (3, NoMore::Limit));
    let before: Vec<_> = told.before.iter().map(|attempt| &attempt.server).collect();
    assert_eq!(before, [&first, &second]);
    let last = told.last.failure().expect("it was not sent");
    assert!(matches!(last, Failure::NotSent { .. }), "{failed}");
    let text = failed.to_string();
    for part in [
        "attempt 3 failed, and no other follows, since no more are allowed: ",
        &last.to_string(),
        &format!("; attempt 1 at {first}: cannot connect"),
        &format!("; attempt 2 at {second}: cannot connect"),
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(call.attempts(), 3);
    assert_eq!(call.outcome(), Some(Outcome::Failed(failed)));
    assert!(call.next().await.is_none());
    assert_eq!(caller.metrics().retries, 2);
}

async fn a_budget_is_shared_and_ends(net: Net) {
    let nobody = nobody(&net).await;
    let caller = caller(&net).await;
    let budget = RetryBudget::new(50, 1);
    let client = Client::new(&caller, nobody)
        .retry(Retry::idempotent(2).backoff(NO_PAUSE, NO_PAUSE))
        .retry_budget(budget.clone());
    let fail = || async {
        let mut call = work::within(client.clone()).one(String::new());
        let failed = failure(call.answer().await);
        let told = attempts_failed(&failed);
        (told.made, told.why, failed.to_string())
    };
    let (made, why, _) = fail().await;
    assert_eq!((made, why, budget.left()), (2, NoMore::Limit, 0));
    let (made, why, text) = fail().await;
    assert_eq!((made, why), (1, NoMore::Budget));
    assert!(text.contains("the retry budget is used up"), "{text}");
    // Two calls pay for an attempt.
    let (made, why, _) = fail().await;
    assert_eq!((made, why), (2, NoMore::Limit));
    let metrics = caller.metrics();
    assert_eq!((metrics.retries, metrics.retries_over_budget), (2, 1));
}

async fn nothing_is_made_again_once_an_answer_was_delivered(net: Net) {
    let runs = Runs::default();
    let counted = runs.clone();
    let server = net
        .serve(service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                counted.0.0.fetch_add(1, Ordering::SeqCst);
                async move {
                    request.reply(what).await?;
                    request.flush().await;
                    request.cancelled().await;
                    Ok(())
                }
            },
        ))
        .await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&server)).retry(Retry::idempotent(5));
    let mut call = work::within(client).many("first".into());
    let first = call.next().await.expect("an answer").expect("no status");
    assert_eq!(first, "first");
    server.kill();
    let failed = failure(call.next().await.expect("the failure"));
    let told = attempts_failed(&failed);
    assert_eq!((told.made, told.why), (1, NoMore::Delivered));
    assert!(
        failed
            .to_string()
            .contains("an answer had been delivered already"),
        "{failed}"
    );
    let last = told.last.failure().expect("it was lost");
    assert!(matches!(last, Failure::Lost(_)), "{failed}");
    assert!(call.next().await.is_none());
    assert_eq!(call.outcome(), Some(Outcome::Failed(failed)));
    assert_eq!((runs.count(), caller.metrics().retries), (1, 0));
}

async fn statuses_are_retried_where_that_is_said(net: Net) {
    let (busy, absent) = (Runs::default(), Runs::default());
    let busy_server = net.serve(failing(Code::ResourceExhausted, &busy)).await;
    let absent_server = net.serve(failing(Code::NotFound, &absent)).await;
    let caller = caller(&net).await;
    let retry = Retry::idempotent(3).backoff(NO_PAUSE, NO_PAUSE);
    let ask = |server: &Endpoint, retry: Retry| {
        work::within(Client::new(&caller, at(server)).retry(retry)).one(String::new())
    };
    // By default none is.
    let plain = status(ask(&busy_server, retry.clone()).await);
    assert_eq!((plain.code(), busy.count()), (Code::ResourceExhausted, 1));
    let on = retry.on(Code::ResourceExhausted);
    let mut call = ask(&busy_server, on.clone());
    let error = call.answer().await.expect_err("it stays busy");
    let status_of = error.status().expect("the last attempt's");
    assert_eq!(status_of.code(), Code::ResourceExhausted);
    let told = attempts_failed(error.failure().expect("it has failed"));
    assert_eq!((told.made, told.why), (3, NoMore::Limit));
    // Each attempt is handled once.
    assert_eq!((call.attempts(), busy.count()), (3, 4));
    let mut call = ask(&absent_server, on);
    assert_eq!(status(call.answer().await).code(), Code::NotFound);
    assert_eq!((call.attempts(), absent.count()), (1, 1));
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 1 }));
}

async fn attempts_keep_to_the_deadline_of_the_call(net: Net) {
    let nobody = nobody(&net).await;
    let caller = caller(&net).await;
    let ages = Duration::MAX;
    let client = Client::new(&caller, nobody)
        .deadline(Duration::from_secs(5))
        .retry(Retry::idempotent(9).backoff(ages, ages));
    let failed = failure(work::within(client).one(String::new()).await);
    let told = attempts_failed(&failed);
    // It does not wait for what cannot come in time.
    assert_eq!((told.made, told.why), (1, NoMore::Deadline));
    let stuck = net.serve(waiting("never", &Gate::new(), &Runs::default()));
    let stuck = stuck.await;
    let client = Client::new(&caller, at(&stuck))
        .deadline(Duration::from_millis(100))
        .retry(Retry::idempotent(64).backoff(NO_PAUSE, NO_PAUSE));
    let failed = failure(work::within(client).one(String::new()).await);
    assert!(matches!(failed, Failure::Deadline { .. }), "{failed}");
}

async fn an_attempt_may_have_a_deadline_of_its_own(net: Net) {
    let runs = Runs::default();
    let stuck = net.serve(waiting("never", &Gate::new(), &runs)).await;
    let other = net.serve(quick("other", &Runs::default())).await;
    let caller = caller(&net).await;
    let retry = Retry::idempotent(2).backoff(NO_PAUSE, NO_PAUSE);
    let client = Client::new(&caller, at(&stuck))
        .alternates([at(&other)])
        .retry(retry.each(Duration::from_secs(1)));
    let mut call = work::within(client).one(String::new());
    assert_eq!(call.answer().await.expect("the other answers"), "other");
    assert_eq!((call.attempts(), runs.count()), (2, 1));
    until(|| stuck.load().is_idle()).await;
    // What may not be executed twice is not made again when it is late, though the call has time.
    let retry = Retry::unexecuted(5).backoff(NO_PAUSE, NO_PAUSE);
    let client = Client::new(&caller, nobody(&net).await)
        .alternates([at(&stuck)])
        .retry(retry.each(Duration::from_millis(300)));
    let failed = failure(work::within(client).one(String::new()).await);
    let told = attempts_failed(&failed);
    assert_eq!((told.made, told.why), (2, NoMore::Executed), "{failed}");
}

async fn a_slow_call_is_hedged_and_the_loser_is_stopped(net: Net) {
    let (slow, runs) = (Runs::default(), Runs::default());
    let first = net.serve(waiting("first", &Gate::new(), &slow)).await;
    let second = net.serve(quick("second", &runs)).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first)).alternates([at(&second)]);
    let hedged = client
        .clone()
        .hedge(Hedge::idempotent(Duration::from_millis(1)));
    let mut call = work::within(hedged).one(String::new());
    assert_eq!(call.answer().await.expect("the second"), "second");
    assert_eq!((call.attempts(), runs.count()), (2, 1));
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    // If it has begun at all, that is: the second may be quicker than the first request's way.
    call.stop().await.expect("nothing of it runs");
    until(|| first.load().is_idle() && slow.count() == slow.stopped()).await;
    let metrics = caller.metrics();
    assert_eq!((metrics.hedges, metrics.hedges_won), (1, 1));
    // A budget may forbid it.
    let broke = client
        .retry_budget(RetryBudget::new(0, 0))
        .hedge(Hedge::idempotent(Duration::from_millis(1)));
    let mut call = work::within(broke).one(String::new());
    let over_budget = || caller.metrics().retries_over_budget == 1;
    tokio::select! {
        answer = call.answer() => panic!("from whom? {answer:?}"),
        () = until(over_budget) => {}
    }
    assert_eq!((call.attempts(), caller.metrics().hedges), (1, 1));
}

async fn a_hedged_call_may_be_won_by_its_first_attempt(net: Net) {
    let (gate, runs, second_runs) = (Gate::new(), Runs::default(), Runs::default());
    let first = net.serve(waiting("first", &gate, &runs)).await;
    let second = net.serve(waiting("second", &Gate::new(), &second_runs));
    let second = second.await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&second)])
        .hedge(Hedge::idempotent(Duration::from_millis(1)));
    let mut call = work::within(client).one(String::new());
    let begun = async {
        until(|| second_runs.count() == 1).await;
        gate.open(1);
    };
    let (answer, ()) = tokio::join!(call.answer(), begun);
    assert_eq!(answer.expect("the first"), "first");
    until(|| second_runs.stopped() == 1).await;
    let metrics = caller.metrics();
    assert_eq!((metrics.hedges, metrics.hedges_won), (1, 0));
    assert_eq!((call.attempts(), runs.count()), (2, 1));
}

/// Whether a call that failed would be made again says nothing of the attempt beside it.
async fn a_hedged_call_goes_on_when_one_attempt_is_lost(net: Net) {
    let (gate, runs, second_runs) = (Gate::new(), Runs::default(), Runs::default());
    let first = net.serve(waiting("first", &Gate::new(), &runs)).await;
    let second = net.serve(waiting("second", &gate, &second_runs)).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&second)])
        .retry(Retry::unexecuted(2))
        .hedge(Hedge::idempotent(Duration::from_millis(1)));
    let mut call = work::within(client).one(String::new());
    let lost = async {
        until(|| runs.count() == 1 && second_runs.count() == 1).await;
        first.kill();
        until(|| caller.metrics().calls_failed == 1).await;
        gate.open(1);
    };
    let (answer, ()) = tokio::join!(call.answer(), lost);
    assert_eq!(answer.expect("the second"), "second");
}

async fn a_hedged_call_goes_on_when_its_second_server_shuts_down(net: Net) {
    let (gate, runs) = (Gate::new(), Runs::default());
    let first = net.serve(waiting("first", &gate, &runs)).await;
    let (second, _late) = draining(&net).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&second)])
        .hedge(Hedge::idempotent(Duration::from_millis(1)));
    let mut call = work::within(client).one(String::new());
    let refused = async {
        // The second attempt is over when it has its status.
        until(|| runs.count() == 1 && caller.metrics().calls_completed == 1).await;
        gate.open(1);
    };
    let (answer, ()) = tokio::join!(call.answer(), refused);
    assert_eq!(answer.expect("the first"), "first");
}

async fn a_call_that_both_attempts_lost_tells_of_both(net: Net) {
    let (runs, second_runs) = (Runs::default(), Runs::default());
    let first = net.serve(waiting("first", &Gate::new(), &runs)).await;
    let second = net.serve(waiting("second", &Gate::new(), &second_runs));
    let second = second.await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&second)])
        .hedge(Hedge::idempotent(Duration::from_millis(1)));
    let mut call = work::within(client).one(String::new());
    let killed = async {
        until(|| runs.count() == 1 && second_runs.count() == 1).await;
        first.kill();
        second.kill();
    };
    let (answer, ()) = tokio::join!(call.answer(), killed);
    let failed = failure(answer);
    let told = attempts_failed(&failed);
    assert_eq!((told.made, told.why), (2, NoMore::Limit));
    assert_eq!(told.before.len(), 1, "{failed}");
}

/// Notes which attempt goes where.
struct Noted(Arc<Mutex<Vec<(u32, Address)>>>);

impl CallInterceptor for Noted {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        let mut noted = self.0.lock().expect("no panic");
        noted.push((outgoing.attempt, outgoing.server.clone()));
        Ok(())
    }
}

#[tokio::test]
async fn each_attempt_passes_the_interceptors() {
    patience(async {
        let net = Net::mem();
        let (first, second) = (nobody(&net).await, nobody(&net).await);
        let noted = Arc::default();
        let builder = quick_to_notice().call_interceptor(Noted(Arc::clone(&noted)));
        let caller = net.bind(builder).await;
        let client = Client::new(&caller, first.clone())
            .alternates([second.clone()])
            .retry(Retry::idempotent(3).backoff(NO_PAUSE, NO_PAUSE));
        failure(work::within(client).one(String::new()).await);
        let noted = noted.lock().expect("no panic").clone();
        assert_eq!(noted, [(0, first.clone()), (1, second), (2, first)]);
    })
    .await;
}

/// It is between two attempts, and its application has turned to something else.
#[tokio::test]
async fn a_call_that_nobody_waits_for_does_not_hold_up_a_drain() {
    patience(async {
        let net = Net::tcp();
        let ages = Duration::from_secs(3600);
        let caller = caller(&net).await;
        let client = Client::new(&caller, nobody(&net).await)
            .retry(Retry::unexecuted(9).backoff(ages, ages))
            .deadline(ages * 9);
        let mut call = work::within(client).one(String::new());
        tokio::select! {
            biased;
            answer = call.answer() => panic!("it pauses: {answer:?}"),
            () = until(|| caller.metrics().calls_failed == 1) => {}
        }
        assert_eq!(caller.drain(ages).await, Ok(()));
    })
    .await;
}

#[tokio::test]
async fn a_call_can_be_given_up_between_two_attempts() {
    patience(async {
        let net = Net::mem();
        let caller = caller(&net).await;
        let hours = Duration::from_secs(1 << 14);
        let client = Client::new(&caller, nobody(&net).await)
            .deadline(hours * 2)
            .retry(Retry::idempotent(3).backoff(hours, hours));
        let begin = || client.call_raw(work::ONE.definition(), vec![0].into());
        let failed = |times| {
            let caller = caller.clone();
            move || caller.metrics().calls_failed == times
        };
        let mut call = begin();
        tokio::select! {
            next = call.next() => panic!("it pauses: {next:?}"),
            () = async { until(failed(1)).await; tokio::task::yield_now().await } => {}
        }
        assert_eq!(call.outcome(), None);
        call.abort();
        let next = call.next().await.expect("it was aborted");
        assert!(matches!(failure(next), Failure::Aborted { .. }));
        let outcome = call.outcome();
        assert!(matches!(
            outcome,
            Some(Outcome::Failed(Failure::Aborted { .. }))
        ));
        assert!(call.next().await.is_none());
        call.settled().await;
        // Dropped, it leaves nothing that could begin a further attempt.
        let mut call = begin();
        tokio::select! {
            next = call.next() => panic!("it pauses: {next:?}"),
            () = until(failed(2)) => {}
        }
        drop(call);
        let metrics = caller.metrics();
        assert_eq!((metrics.calls_started, metrics.retries), (2, 0));
    })
    .await;
}

/// Sends its first answers, up to `stop`, and then no more; ends if that are all of ten.
fn counting(stop: u32, runs: &Runs) -> Service {
    let runs = runs.clone();
    service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let runs = runs.clone();
        async move {
            runs.0.0.fetch_add(1, Ordering::SeqCst);
            for number in 0..stop {
                request.reply(number.to_string()).await?;
            }
            request.flush().await;
            if stop < 10 {
                request.cancelled().await;
            }
            Ok(())
        }
    })
}

fn to_nine() -> Vec<String> {
    (0..10).map(|number| number.to_string()).collect()
}

async fn what_a_dead_server_had_left_comes_from_another_one(net: Net) {
    let (dying, living) = (Runs::default(), Runs::default());
    let first = net.serve(counting(5, &dying)).await;
    let second = net.serve(counting(10, &living)).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&second)])
        .resend(Resend::deterministic(1));
    let mut call = work::within(client).many(String::new());
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(call.next().await.expect("one of five").expect("no status"));
    }
    first.close();
    while let Some(answer) = call.next().await {
        answers.push(answer.expect("the second has them all"));
    }
    // Each of them once.
    answers.sort();
    assert_eq!(answers, to_nine());
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    assert_eq!((call.resent(), call.attempts()), (1, 1));
    assert_eq!((dying.count(), living.count()), (1, 1));
    let metrics = caller.metrics();
    assert_eq!((metrics.resends, metrics.duplicates_dropped), (1, 5));
    assert_eq!(metrics.forged_dropped, 0);
}

/// Among all other options, beside what only clients have.
#[tokio::test]
async fn what_is_said_in_options_resends_with_alternates() {
    let net = Net::tcp();
    let living = Runs::default();
    let first = net.serve(counting(5, &Runs::default())).await;
    let second = net.serve(counting(10, &living)).await;
    let caller = caller(&net).await;
    let mut options = CallOptions::default();
    options.resend = Some(Resend::deterministic(1));
    let client = Client::new(&caller, at(&first)).options(options);
    let mut call = work::within(client.alternates([at(&second)])).many(String::new());
    for _ in 0..5 {
        call.next().await.expect("one of five").expect("no status");
    }
    first.close();
    assert_eq!(crate::common::all(&mut call).await.len(), 5);
    assert_eq!((call.resent(), living.count()), (1, 1));
}

async fn a_subtree_that_was_lost_is_executed_again_from_its_root(net: Net) {
    let (root, living, dying) = (Runs::default(), Runs::default(), Runs::default());
    let quick = net.serve(counting(10, &living)).await;
    let lost = net.serve(counting(3, &dying)).await;
    let (to_quick, to_lost, counted) = (at(&quick), at(&lost), root.clone());
    let first = net
        .serve(service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let (quick, lost) = (to_quick.clone(), to_lost.clone());
                counted.0.0.fetch_add(1, Ordering::SeqCst);
                async move {
                    request.delegate(quick, work::many(what.clone())).await?;
                    // Whether it yields in between makes no difference.
                    tokio::task::yield_now().await;
                    Ok(request.delegate(lost, work::many(what)).await?)
                }
            },
        ))
        .await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first)).resend(Resend::deterministic(5));
    let mut call = work::within(client).many(String::new());
    let mut answers = Vec::new();
    for _ in 0..13 {
        answers.push(call.next().await.expect("13 of 20").expect("no status"));
    }
    let address = at(&lost).to_string();
    lost.close();
    drop(lost);
    let again = loop {
        let builder = Endpoint::builder().serve(counting(10, &Runs::default()));
        match builder.listen(&address).bind().await {
            Ok(server) => break server,
            Err(_) => tokio::task::yield_now().await, // the old one is about to let go of it
        }
    };
    while let Some(answer) = call.next().await {
        answers.push(answer.expect("it came back"));
    }
    answers.sort();
    let mut twice = [to_nine(), to_nine()].concat();
    twice.sort();
    assert_eq!(answers, twice);
    // Once in each attempt; what had not failed runs again, too.
    let attempts = call.resent() as usize + 1;
    assert!(attempts >= 2);
    assert_eq!((root.count(), dying.count()), (attempts, 1));
    assert!(living.count() <= attempts);
    drop(again);
}

async fn a_request_that_nobody_takes_goes_to_the_next_server(net: Net) {
    let runs = Runs::default();
    let second = net.serve(counting(10, &runs)).await;
    let caller = caller(&net).await;
    let resending = |servers: Vec<Address>| {
        let client = Client::new(&caller, servers[0].clone()).alternates(servers[1..].to_vec());
        work::within(client.resend(Resend::deterministic(1))).many(String::new())
    };
    let nobody = nobody(&net).await;
    let mut call = resending(vec![nobody.clone(), at(&second)]);
    let answers = crate::common::all(&mut call).await;
    assert_eq!(answers.len(), 10);
    // It was never sent to the first, so this is no second attempt.
    assert_eq!((call.resent(), runs.count()), (0, 1));
    let mut call = resending(vec![nobody]);
    let failed = failure(call.next().await.expect("the failure"));
    let told = attempts_failed(&failed);
    let last = told.last.failure().expect("it was not sent");
    assert!(matches!(last, Failure::NotSent { .. }), "{failed}");
}

/// It is complete by its second attempt; the first one is with a server that has said nothing since.
#[tokio::test]
async fn who_stops_a_complete_call_is_told_of_its_first_attempt() {
    patience(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let silent = Address::Tcp(listener.local_addr().expect("it listens"));
        let net = Net::tcp();
        let second = net.serve(counting(10, &Runs::default())).await;
        let caller = caller(&net).await;
        let client = Client::new(&caller, silent.clone()).alternates([at(&second)]);
        let client = client.resend(Resend::deterministic(1));
        let mut call = work::within(client).many(String::new());
        let mut first = Raw::accept(&listener, hello(7)).await;
        first.request().await;
        let answers = crate::common::all(&mut call).await;
        assert_eq!((answers.len(), call.resent()), (10, 1));
        let running = call.stop().await.expect_err("the first one may run");
        let [first] = &running.unheard[..] else {
            panic!("{running}")
        };
        assert_eq!(first.server.address.as_ref(), Some(&silent), "{running}");
        let said = running.to_string();
        let first = format!("request 0 (test.Work/many) at {silent}");
        assert!(said.contains(&first), "{said}");
    })
    .await;
}

async fn a_second_execution_that_differs_is_an_error(net: Net) {
    let first = net.serve(counting(5, &Runs::default())).await;
    let shorter = net
        .serve(service().method(
            &work::MANY,
            |request: Request<Many<_>>, (_,): (String,)| async move {
                Ok(request.respond("only this".to_owned()).await?)
            },
        ))
        .await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&shorter)])
        .resend(Resend::deterministic(1));
    let mut call = work::within(client).many(String::new());
    for _ in 0..5 {
        call.next().await.expect("one of five").expect("no status");
    }
    first.close();
    let failed = failure(call.next().await.expect("the failure"));
    let Failure::Lost(loss) = &failed else {
        panic!("another failure: {failed}")
    };
    assert!(matches!(loss.kind, FailureKind::Diverged(_)), "{failed}");
    let named_server = failed.server();
    assert_eq!(named_server, Some(&at(&shorter)), "{failed}");
    let named = format!("request 0 (test.Work/many) at {}", at(&shorter));
    assert!(failed.to_string().contains(&named), "{failed}");
}

async fn requests_are_kept_within_limits(net: Net) {
    let first = net.serve(counting(5, &Runs::default())).await;
    let second = net.serve(counting(10, &Runs::default())).await;
    let mut limits = Limits::default();
    (limits.kept_call, limits.kept) = (1000, 1200);
    let caller = net.bind(quick_to_notice().limits(limits)).await;
    let client = Client::new(&caller, at(&first))
        .alternates([at(&second)])
        .resend(Resend::deterministic(1));
    let work = work::within(client);
    // The first call takes all room there is; of the others one is too long, and one too many.
    let mut kept = work.many("x".repeat(400));
    let mut too_long = work.many("x".repeat(600));
    let mut one_too_many = work.many(String::new());
    assert_eq!(caller.metrics().resends_unkept, 2);
    for call in [&mut kept, &mut too_long, &mut one_too_many] {
        for _ in 0..5 {
            call.next().await.expect("one of five").expect("no status");
        }
    }
    first.kill();
    assert_eq!(crate::common::all(&mut kept).await.len(), 5);
    for mut call in [too_long, one_too_many] {
        let failed = failure(call.next().await.expect("the failure"));
        let told = attempts_failed(&failed);
        assert_eq!((told.made, told.why), (1, NoMore::NotKept), "{failed}");
    }
    // What has ended takes no room.
    let mut call = work.many("x".repeat(400));
    assert_eq!(crate::common::all(&mut call).await.len(), 10);
    assert_eq!(caller.metrics().resends_unkept, 2);
}

async fn nothing_is_sent_again_after_a_status(net: Net) {
    let (refusing, dying) = (Runs::default(), Runs::default());
    let lost = net.serve(counting(5, &dying)).await;
    let refused = net
        .serve({
            let runs = refusing.clone();
            service().method(&work::MANY, move |_: Request<Many<String>>, (_,)| {
                runs.0.0.fetch_add(1, Ordering::SeqCst);
                async move { Err(Status::new(Code::Unavailable, "not now")) }
            })
        })
        .await;
    let (to_lost, to_refused) = (at(&lost), at(&refused));
    let first = net
        .serve(service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let (lost, refused) = (to_lost.clone(), to_refused.clone());
                async move {
                    request.delegate(lost, work::many(what.clone())).await?;
                    Ok(request.delegate(refused, work::many(what)).await?)
                }
            },
        ))
        .await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first)).resend(Resend::deterministic(5));
    let mut call = work::within(client).many(String::new());
    let (mut answers, mut statuses) = (0, 0);
    while answers < 5 || statuses < 1 {
        match call.next().await.expect("five and a status") {
            Ok(_) => answers += 1,
            Err(error) => statuses += u32::from(error.status().is_some()),
        }
    }
    lost.close();
    let failed = failure(call.next().await.expect("the failure"));
    let told = attempts_failed(&failed);
    assert_eq!((told.made, told.why), (1, NoMore::Status), "{failed}");
    assert_eq!((refusing.count(), dying.count()), (1, 1));
}

async fn a_call_that_ends_while_it_waits_to_be_sent_again_is_over(net: Net) {
    let first = net.serve(counting(5, &Runs::default())).await;
    let caller = caller(&net).await;
    let client = Client::new(&caller, at(&first)).resend(Resend::deterministic(1));
    let mut call = work::within(client).many(String::new());
    for _ in 0..5 {
        call.next().await.expect("one of five").expect("no status");
    }
    first.close();
    until(|| caller.metrics().resends == 1).await;
    // Nobody is there to send it to; and of its first execution nobody has said that it stopped, nor is anybody asked any more.
    let still = call.stop().await.expect_err("who knows");
    assert_eq!((still.handlers.len(), still.unheard.len()), (0, 1));
    let metrics = caller.metrics();
    assert_eq!((metrics.calls_aborted, metrics.calls_failed), (1, 0));
}
