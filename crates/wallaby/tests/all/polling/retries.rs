//! Calls that are made again, or a second time beside a slow attempt. In virtual time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use wallaby::polling::{CallOptions, Endpoint, Event, Limits, RetryPolicy};
use wallaby::{Address, Body, CallError, Code, Failure, Hedge, NoMore, Retry, RetryBudget, Status};

use super::alone::{LONG, pair, work};
use super::world::{Link, World};

const MS: Duration = Duration::from_millis(1);

/// Refuses the first requests, and answers the others; counts all.
fn serve_after(server: &mut Endpoint<Link>, refused: u32) -> Rc<Cell<u32>> {
    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    let serve = server.serve(&work::ONE, move |request, (what,)| {
        seen.set(seen.get() + 1);
        if seen.get() <= refused {
            return Err(Status::new(Code::ResourceExhausted, "not now"));
        }
        request.respond(&format!("{what} {}", seen.get()))?;
        Ok(())
    });
    serve.expect("no other has its name");
    count
}

/// Puts all requests aside.
fn serve_never(server: &mut Endpoint<Link>) {
    let serve = server.serve(&work::ONE, |request, _| {
        request.hold();
        Ok(())
    });
    serve.expect("no other has its name");
}

fn on_exhaustion(attempts: u32) -> RetryPolicy {
    let retry = Retry::idempotent(attempts).on(Code::ResourceExhausted);
    RetryPolicy::default().retry(retry)
}

fn begin(
    client: &mut Endpoint<Link>,
    server: Address,
    options: &CallOptions,
    policy: &RetryPolicy,
) -> wallaby::polling::Call<wallaby::One<String>, wallaby::codec::Postcard> {
    let target = work::one("go".into());
    let call = client.call_again(server, target, options, policy);
    call.expect("it begins")
}

/// All events until the end of the call, which is the last.
fn events(world: &World, all: &mut [&mut Endpoint<Link>]) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let event = world.event(all, 0, LONG).expect("it ends");
        let over = matches!(event, Event::Complete { .. } | Event::Failed { .. });
        events.push(event);
        if over {
            return events;
        }
    }
}

fn failure(mut events: Vec<Event>) -> Failure {
    match (events.pop(), events.is_empty()) {
        (Some(Event::Failed { failure, .. }), true) => *failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refused_call_is_made_again_and_is_one_call() {
    let (world, mut client, mut server) = pair(1);
    let count = serve_after(&mut server, 2);
    let mut options = CallOptions::default();
    options.traced = true;
    let call = begin(&mut client, server.address(), &options, &on_exhaustion(5));
    let all = events(&world, &mut [&mut client, &mut server]);
    let [
        Event::Answer(answer),
        Event::Trace { call: traced, .. },
        end,
    ] = &all[..]
    else {
        panic!("{all:?}")
    };
    assert!(call.owns(answer));
    assert_eq!(call.read(answer.clone()), Ok("go 3".into()));
    assert_eq!(*traced, call.key());
    let complete = Event::Complete {
        call: call.key(),
        statuses: 0,
    };
    assert_eq!(*end, complete);
    assert_eq!(count.get(), 3);
    assert_eq!(client.metrics().retries, 2);
    assert_eq!(client.sizes().calls, 0);
    assert_eq!(client.next_event(), None);
}

#[test]
fn what_no_attempt_mends_says_what_each_met() {
    let (world, mut client, mut server) = pair(1);
    serve_after(&mut server, 9);
    begin(
        &mut client,
        server.address(),
        &CallOptions::default(),
        &on_exhaustion(3),
    );
    let Failure::Attempts(failed) = failure(events(&world, &mut [&mut client, &mut server])) else {
        panic!("it was tried three times")
    };
    assert_eq!((failed.made, failed.why), (3, NoMore::Limit));
    assert_eq!(failed.before.len(), 2);
    let last = matches!(&failed.last, CallError::Status(status) if status.code() == Code::ResourceExhausted);
    assert!(last, "{:?}", failed.last);
}

/// A status that is not retried is an answer, as ever.
#[test]
fn a_status_of_another_code_is_delivered() {
    let (world, mut client, mut server) = pair(1);
    serve_after(&mut server, 9);
    let policy = RetryPolicy::default().retry(Retry::idempotent(3));
    let call = begin(
        &mut client,
        server.address(),
        &CallOptions::default(),
        &policy,
    );
    let all = events(&world, &mut [&mut client, &mut server]);
    assert!(
        matches!(
            &all[..],
            [Event::Answer(_), Event::Complete { statuses: 1, .. }]
        ),
        "{all:?}"
    );
    assert_eq!(client.metrics().retries, 0);
    assert_eq!(client.attempts(call.key()), None, "it is over");
}

#[test]
fn a_server_that_is_gone_gives_way_to_the_next() {
    let (world, mut client, mut gone) = pair(1);
    let mut other = world.bind(Endpoint::builder());
    serve_never(&mut gone);
    serve_after(&mut other, 0);
    let policy = on_exhaustion(3).alternates([other.address()]);
    let call = begin(
        &mut client,
        gone.address(),
        &CallOptions::default(),
        &policy,
    );
    for _ in 0..20 {
        world.step(&mut [&mut client, &mut gone], MS);
    }
    world.cut(&gone.address(), true);
    let all = events(&world, &mut [&mut client, &mut gone, &mut other]);
    let [Event::Answer(answer), Event::Complete { .. }] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(call.read(answer.clone()), Ok("go 1".into()));
}

#[test]
fn a_slow_call_is_hedged_and_the_slow_attempt_is_stopped() {
    let (world, mut client, mut slow) = pair(1);
    let mut quick = world.bind(Endpoint::builder());
    serve_never(&mut slow);
    serve_after(&mut quick, 0);
    let hedge = RetryPolicy::default().hedge(Hedge::idempotent(50 * MS));
    let policy = hedge.alternates([quick.address()]);
    let begun = world.now();
    let call = begin(
        &mut client,
        slow.address(),
        &CallOptions::default(),
        &policy,
    );
    let all = events(&world, &mut [&mut client, &mut slow, &mut quick]);
    let took = world.now() - begun;
    // The world's time passes before its event is looked at, until the next acknowledgement.
    assert!((50 * MS..=61 * MS).contains(&took), "{took:?}");
    let [Event::Answer(answer), Event::Complete { .. }] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(call.read(answer.clone()), Ok("go 1".into()));
    let metrics = client.metrics();
    assert_eq!((metrics.hedges, metrics.hedges_won), (1, 1));
    let stopped = world.event(&mut [&mut slow, &mut client], 0, LONG);
    assert!(
        matches!(stopped, Some(Event::Stopped { .. })),
        "{stopped:?}"
    );
}

#[test]
fn attempts_have_their_own_time_within_that_of_the_call() {
    let (world, mut client, mut server) = pair(1);
    serve_never(&mut server);
    let mut options = CallOptions::default();
    options.deadline = Some(100 * MS);
    let retry = Retry::idempotent(60).each(30 * MS).backoff(MS, MS);
    let policy = RetryPolicy::default().retry(retry);
    let begun = world.now();
    let call = begin(&mut client, server.address(), &options, &policy);
    let failure = failure(events(&world, &mut [&mut client, &mut server]));
    let took = world.now() - begun;
    assert!((90 * MS..=101 * MS).contains(&took), "{took:?}");
    let Failure::Attempts(failed) = failure else {
        panic!("{failure:?}")
    };
    assert_eq!((failed.made, failed.why), (4, NoMore::Deadline), "{call:?}");
}

#[test]
fn a_budget_ends_it() {
    let (world, mut client, mut server) = pair(1);
    let count = serve_after(&mut server, 9);
    let policy = on_exhaustion(5).budget(RetryBudget::new(0, 1));
    begin(
        &mut client,
        server.address(),
        &CallOptions::default(),
        &policy,
    );
    let failure = failure(events(&world, &mut [&mut client, &mut server]));
    assert!(
        matches!(&failure, Failure::Attempts(failed) if failed.why == NoMore::Budget),
        "{failure:?}"
    );
    assert_eq!(count.get(), 2);
    assert_eq!(client.metrics().retries_over_budget, 1);
}

/// As of any other call.
#[test]
fn a_call_that_is_given_up_says_what_was_missing() {
    let (world, mut client, mut server) = pair(1);
    serve_never(&mut server);
    let (to, options) = (server.address(), CallOptions::default());
    let call = begin(&mut client, to.clone(), &options, &on_exhaustion(3));
    while server.load().running == 0 {
        world.step(&mut [&mut client, &mut server], MS);
    }
    client.abort(call.key());
    let end = failure(events(&world, &mut [&mut client, &mut server]));
    let Failure::Aborted { missing } = &end else {
        panic!("{end:?}");
    };
    assert_eq!(missing.branches.len(), 1, "{end}");
    assert_eq!(missing.branches[0].server.address, Some(to), "{end}");
}

#[test]
fn a_call_can_be_given_up_between_attempts() {
    let (world, mut client, mut server) = pair(1);
    let count = serve_after(&mut server, 9);
    let long = Duration::from_secs(9);
    let retry = Retry::idempotent(3)
        .on(Code::ResourceExhausted)
        .backoff(long, long);
    let policy = RetryPolicy::default().retry(retry);
    let mut options = CallOptions::default();
    options.traced = true;
    let call = begin(&mut client, server.address(), &options, &policy);
    while client.metrics().statuses_received == 0 {
        world.step(&mut [&mut client, &mut server], MS);
    }
    assert_eq!(client.next_event(), None, "it is made again");
    assert_eq!(client.attempts(call.key()), Some(1));
    client.drain();
    assert!(!client.is_drained(), "the call goes on");
    client.abort(call.key());
    let mut all = events(&world, &mut [&mut client, &mut server]);
    // The attempt that was refused has told its hops.
    assert!(matches!(all.remove(0), Event::Trace { .. }), "{all:?}");
    let end = failure(all);
    assert!(matches!(end, Failure::Aborted { .. }), "{end:?}");
    world.pass(2 * long);
    world.step(&mut [&mut client, &mut server], MS);
    assert_eq!((count.get(), client.sizes().calls), (1, 0));
    let mut steps = 0..1000;
    while !client.is_drained() {
        steps.next().expect("nothing of it is left");
        world.step(&mut [&mut client, &mut server], MS);
    }
    assert_eq!(client.next_event(), None);
}

/// An end that nobody takes holds nothing up, no more than that of any other call.
#[test]
fn a_call_whose_end_is_not_taken_holds_no_drain_up() {
    let (world, mut client, mut server) = pair(1);
    serve_after(&mut server, 0);
    let policy = on_exhaustion(2);
    let call = begin(
        &mut client,
        server.address(),
        &CallOptions::default(),
        &policy,
    );
    while client.metrics().calls_completed == 0 {
        world.step(&mut [&mut client, &mut server], MS);
    }
    client.drain();
    let mut steps = 0..1000;
    while !client.is_drained() {
        steps.next().expect("it is drained");
        world.step(&mut [&mut client, &mut server], MS);
    }
    let answer = client.next_event();
    assert!(
        matches!(&answer, Some(Event::Answer(answer)) if answer.call == call.key()),
        "{answer:?}"
    );
}

/// One that fails is to be made again, which happens when that is looked at; a long pause is not waited for to its end.
#[test]
fn who_drains_waits_three_seconds_for_a_further_attempt() {
    for taken in [false, true] {
        let (world, mut client, mut server) = pair(1);
        let count = serve_after(&mut server, 1);
        // Pauses are drawn by chance, up to so much.
        let day = Duration::from_secs(24 * 3600);
        let pause = if taken { 100 * day } else { MS };
        let mut options = CallOptions::default();
        options.deadline = Some(200 * day);
        let retry = Retry::idempotent(2).on(Code::ResourceExhausted);
        let policy = RetryPolicy::default().retry(retry.backoff(pause, pause));
        let call = begin(&mut client, server.address(), &options, &policy);
        while client.metrics().statuses_received == 0 {
            world.step(&mut [&mut client, &mut server], MS);
        }
        if taken {
            assert_eq!(client.next_event(), None, "it is made again");
        }
        client.drain();
        for _ in 0..28 {
            world.pass(100 * MS);
            world.step(&mut [&mut client, &mut server], MS);
            assert!(!client.is_drained(), "taken: {taken}");
        }
        if taken {
            let mut steps = 0..20;
            while !client.is_drained() {
                steps.next().expect("it is long before the next attempt");
                world.pass(100 * MS);
                world.step(&mut [&mut client, &mut server], MS);
            }
            continue;
        }
        let all = events(&world, &mut [&mut client, &mut server]);
        let [Event::Answer(answer), Event::Complete { .. }] = &all[..] else {
            panic!("{all:?}")
        };
        assert!(call.owns(answer) && count.get() == 2);
        world.step(&mut [&mut client, &mut server], MS);
        assert!(client.is_drained());
    }
}

/// A body can be read once.
#[test]
fn a_call_with_a_body_is_made_once() {
    let world = World::new(1);
    let listening = || Endpoint::builder().listen("tcp://127.0.0.1:0");
    let [mut client, mut server] = [world.bind(listening()), world.bind(listening())];
    let at = server.addresses().last().expect("it listens").clone();
    let count = serve_after(&mut server, 1);
    let target = work::one("go".into()).with_body(Body::from(bytes::Bytes::from_static(b"once")));
    let call = client.call_again(at, target, &CallOptions::default(), &on_exhaustion(2));
    call.expect("it begins");
    let mut all = Vec::new();
    while all.len() < 2 {
        world.step(&mut [&mut client, &mut server], MS);
        all.extend(client.next_event());
    }
    let [Event::Answer(_), Event::Complete { statuses: 1, .. }] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((count.get(), client.metrics().retries), (1, 0));
}

/// Who looks at an answer late does not make the server work twice.
#[test]
fn a_call_that_is_answered_is_not_hedged() {
    let (world, mut client, mut server) = pair(1);
    let count = serve_after(&mut server, 0);
    let policy = RetryPolicy::default().hedge(Hedge::idempotent(50 * MS));
    begin(
        &mut client,
        server.address(),
        &CallOptions::default(),
        &policy,
    );
    while client.metrics().responses_received == 0 {
        world.step(&mut [&mut client, &mut server], MS);
    }
    for _ in 0..9 {
        world.pass(50 * MS);
        world.step(&mut [&mut client, &mut server], MS);
    }
    assert_eq!((client.metrics().hedges, count.get()), (0, 1));
    assert_eq!(events(&world, &mut [&mut client, &mut server]).len(), 2);
}

/// The answers of an attempt that has delivered may take long to come.
#[test]
fn a_call_that_delivers_is_not_hedged() {
    let (world, mut client, mut server) = pair(1);
    let (aside, count) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
    let (held, seen) = (Rc::clone(&aside), Rc::clone(&count));
    let serve = server.serve(&work::MANY, move |mut request, (what,)| {
        seen.set(seen.get() + 1);
        request.reply(&what)?;
        held.set(Some(request.hold()));
        Ok(())
    });
    serve.expect("no other has its name");
    let policy = RetryPolicy::default().hedge(Hedge::idempotent(50 * MS));
    let (target, options) = (work::many("go".into()), CallOptions::default());
    let call = client.call_again(server.address(), target, &options, &policy);
    let call = call.expect("it begins");
    let mut all = [&mut client, &mut server];
    let Some(Event::Answer(answer)) = world.event(&mut all, 0, LONG) else {
        panic!("it delivers")
    };
    assert_eq!(call.read(answer), Ok("go".into()));
    assert_eq!(world.event(&mut all, 0, 200 * MS), None, "no second answer");
    assert_eq!((client.metrics().hedges, count.get()), (0, 1));
    let key = aside.take().expect("it has come");
    drop(server.request(key).expect("it waits")); // which ends it
    assert_eq!(events(&world, &mut [&mut client, &mut server]).len(), 1);
}

#[test]
fn a_limit_of_calls_holds_for_those_that_pause_and_a_hedge_beyond_it_harms_nobody() {
    let world = World::new(1);
    let mut limits = Limits::default();
    limits.calls = 1;
    let mut client = world.bind(Endpoint::builder().limits(limits));
    let mut server = world.bind(Endpoint::builder());
    let aside = Rc::new(Cell::new(None));
    let held = Rc::clone(&aside);
    let serve = server.serve(&work::ONE, move |request, _| {
        held.set(Some(request.hold()));
        Ok(())
    });
    serve.expect("no other has its name");
    let policy = RetryPolicy::default().hedge(Hedge::idempotent(10 * MS));
    let call = begin(
        &mut client,
        server.address(),
        &CallOptions::default(),
        &policy,
    );
    let target = work::one("go".into());
    let another = client.call_again(server.address(), target, &CallOptions::default(), &policy);
    assert!(
        matches!(another, Err(Failure::TooManyCalls { limit: 1 })),
        "{another:?}"
    );
    while client.metrics().hedges == 0 {
        world.step(&mut [&mut client, &mut server], MS);
    }
    let key = aside.take().expect("it has come");
    let answer = postcard::to_allocvec("late").expect("a text");
    server
        .request(key)
        .expect("it waits")
        .respond(answer.into())
        .expect("it is sent");
    let all = events(&world, &mut [&mut client, &mut server]);
    let [Event::Answer(answer), Event::Complete { .. }] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(call.read(answer.clone()), Ok("late".into()));
}

/// Two attempts deliver in the same turn: one is the call, and of the other nothing is told.
#[test]
fn of_two_attempts_that_answer_at_once_one_counts() {
    let (world, mut client, mut one) = pair(1);
    let mut other = world.bind(Endpoint::builder());
    let held: Vec<_> = [&mut one, &mut other]
        .map(|server| {
            let held = Rc::new(Cell::new(None));
            let holds = Rc::clone(&held);
            let serve = server.serve(&work::MANY, move |request, _| {
                holds.set(Some(request.hold()));
                Ok(())
            });
            serve.expect("no other has its name");
            held
        })
        .into();
    let policy = RetryPolicy::default().hedge(Hedge::idempotent(50 * MS));
    let policy = policy.alternates([other.address()]);
    let (target, options) = (work::many("go".into()), CallOptions::default());
    let call = client.call_again(one.address(), target, &options, &policy);
    let call = call.expect("it begins");
    while held.iter().any(|held| held.get().is_none()) {
        world.step(&mut [&mut client, &mut one, &mut other], MS);
    }
    for (server, held) in [&mut one, &mut other].into_iter().zip(&held) {
        let request = server.request(held.get().expect("it has come"));
        let mut request = request.expect("it waits").typed(&work::MANY);
        request.reply(&"at once".to_owned()).expect("there is room");
        request.hold();
    }
    let before = client.metrics().responses_received;
    while client.metrics().responses_received == before {
        world.step(&mut [&mut one, &mut other, &mut client], MS);
    }
    assert_eq!(client.metrics().responses_received, before + 2);
    let Some(Event::Answer(answer)) = client.next_event() else {
        panic!("it delivers")
    };
    assert_eq!(call.read(answer), Ok("at once".into()));
    let mut all = [&mut client, &mut one, &mut other];
    assert_eq!(world.event(&mut all, 0, 9 * MS), None);
}
