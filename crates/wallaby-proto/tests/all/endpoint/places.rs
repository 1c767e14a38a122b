//! Which requests run, which wait, in which order, and what ends those that wait.

use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{BodyNext, CallOptions, Endpoint, Limits, Output, Placed, Serving};
use wallaby_proto::executor::{ExecutorConfig, Schedule};
use wallaby_proto::{Code, RequestId};

use crate::endpoint::world::followed;

use super::queues::{MS, World, at, executor};

fn within(seconds: u64) -> CallOptions {
    let mut options = CallOptions::default();
    options.deadline = Some(Duration::from_secs(seconds));
    options
}

#[test]
fn some_run_some_wait_and_one_more_is_refused() {
    let mut world = World::new(executor(2, 2, Schedule::Fifo));
    let calls = ["a", "b", "c", "d", "e"].map(|name| world.call(name));
    assert_eq!(world.load(), (2, 2));
    let status = world.status(calls[4]);
    assert_eq!(status.code(), Code::ResourceExhausted);
    let why = "2 handlers run and 2 requests wait: no more are taken";
    assert!(status.message().contains(why), "{status}");
    assert_eq!(world.server().metrics().requests_refused, 1);
    for (name, load) in [("a", (2, 1)), ("b", (2, 0)), ("c", (1, 0)), ("d", (0, 0))] {
        assert_eq!(world.run(), name);
        assert_eq!(world.load(), load);
    }
    assert_eq!(world.next_run(), None);
    assert_eq!(world.heard(calls[2]).answers, ["c"]);
    assert_eq!(world.server().sizes().requests, 0);
}

#[test]
fn the_first_who_came_is_first() {
    let mut world = World::new(executor(1, 9, Schedule::Fifo));
    for (name, time) in [("a", 10), ("b", 40), ("c", 20), ("d", 30)] {
        world.call_with(name, 1, &within(time));
    }
    assert_eq!([(); 4].map(|()| world.run()), ["a", "b", "c", "d"]);
}

#[test]
fn the_earliest_deadline_is_first() {
    let mut world = World::new(executor(1, 9, Schedule::EarliestDeadline));
    for (name, time) in [("first", 50), ("d", 40), ("b", 20), ("a", 10), ("c", 30)] {
        world.call_with(name, 1, &within(time));
    }
    assert_eq!([(); 5].map(|()| world.run()), ["first", "a", "b", "c", "d"]);
}

/// Of two requests the later one belongs to the older call: another server had it before.
#[test]
fn the_oldest_call_is_first() {
    for (schedule, order) in [
        (Schedule::OldestCall, ["first", "old", "young"]),
        (Schedule::Fifo, ["first", "young", "old"]),
    ] {
        let mut world = World::new(executor(1, 9, schedule));
        let relay = world.add(ExecutorConfig::default(), Limits::default());
        world.call_with("old", relay, &CallOptions::default());
        world.pass(10 * MS);
        world.call("first");
        world.call("young");
        world.pass(10 * MS);
        let key = world.runs.entry(relay).or_default().remove(0);
        let (endpoint, method) = (&mut world.endpoints[relay], world.method.clone());
        let incoming = endpoint.take_request(key).expect("it is there");
        let sent = endpoint.forward(key, at(1), &method, incoming.payload);
        endpoint.returned(key, sent.map_err(Into::into));
        world.settle();
        assert_eq!([(); 3].map(|()| world.run()), order, "{schedule:?}");
    }
}

#[test]
fn an_abort_finds_what_waits() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let [_, aborted, _] = ["a", "aborted", "b"].map(|name| world.call(name));
    assert_eq!(world.load(), (1, 2));
    world.endpoints[0].abort(aborted);
    world.settle();
    assert_eq!(world.load(), (1, 1));
    world.call("there is room again");
    let ran = [(); 3].map(|()| world.run());
    assert_eq!(ran, ["a", "b", "there is room again"]);
    assert_eq!(world.next_run(), None);
    assert!(
        world.stopped.is_empty(),
        "nobody knew it: {:?}",
        world.stopped
    );
    assert_eq!(world.load(), (0, 0));
}

#[test]
fn what_waits_ends_at_its_deadline() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let long = CallOptions::default();
    world.call_with("a", 1, &long);
    let late = world.call_with("late", 1, &within(1));
    world.call_with("b", 1, &long);
    // The server alone notices: its client sleeps.
    world.pass_at(1100 * MS, &[1]);
    assert_eq!(world.load(), (1, 1));
    assert!(
        world.stopped.is_empty(),
        "nobody knew it: {:?}",
        world.stopped
    );
    world.settle();
    assert_eq!(world.status(late).code(), Code::DeadlineExceeded);
    assert_eq!([(); 2].map(|()| world.run()), ["a", "b"]);
    assert_eq!(world.next_run(), None);
}

/// Its deadline has passed, though not yet the moment when it is ended without a word of its initiator.
#[test]
fn what_has_no_time_left_does_not_run() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let (key, _) = {
        world.call("a");
        world.take()
    };
    world.call_with("late", 1, &within(1));
    world.call("b");
    world.pass_at(1001 * MS, &[1]);
    assert_eq!(world.load(), (1, 2));
    world.answer(key, "a");
    let late = world.next_run().expect("it is its turn");
    let ended = world.server().take_request(late).expect_err("it is late");
    assert_eq!(ended.code(), Code::DeadlineExceeded);
    world.settle();
    assert_eq!(world.load(), (1, 0));
    assert_eq!(world.run(), "b");
}

/// Bytes that wait count against the window of their connection.
#[test]
fn credit_is_granted_when_a_request_leaves_the_queue() {
    let mut limits = Limits::default();
    limits.requests = 4096;
    let payload = "x".repeat(1000);
    for (concurrency, all) in [(100, true), (1, false)] {
        let mut world = World::with(executor(concurrency, 100, Schedule::Fifo), limits.clone());
        for _ in 0..20 {
            world.call(&payload);
        }
        let (running, waiting) = world.load();
        assert_eq!(running + waiting == 20, all, "{running} and {waiting}");
        (0..20).for_each(|_| drop(world.run()));
        assert_eq!(world.next_run(), None);
        assert_eq!(world.heard.len(), 20);
    }
}

/// The credit of what leaves without having run is granted, too.
#[test]
fn credit_of_what_is_aborted_is_granted() {
    let mut limits = Limits::default();
    limits.requests = 4096;
    let mut world = World::with(executor(1, 100, Schedule::Fifo), limits);
    let payload = "x".repeat(1000);
    world.call("runs");
    for _ in 0..50 {
        let call = world.call(&payload);
        world.endpoints[0].abort(call);
        world.settle();
    }
    world.call("last");
    assert_eq!(world.load(), (1, 1));
    assert_eq!([(); 2].map(|()| world.run()), ["runs", "last"]);
}

#[test]
fn a_place_that_is_kept_is_given_back_later() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    world.call("a");
    world.call("b");
    let (key, what) = world.take();
    let place = world.server().keep_permit(key).expect("it has one");
    assert_eq!(world.server().keep_permit(key), None);
    world.answer(key, &what);
    assert_eq!((world.load(), world.next_run()), ((1, 1), None));
    world.server().release_permit(place);
    world.settle();
    assert_eq!(world.run(), "b");
    assert_eq!(world.load(), (0, 0));
    assert_eq!(world.server().keep_permit(key), None, "it is over");
}

/// Whether its call is aborted or its deadline passes, and whatever comes of it later.
#[test]
fn a_handler_that_goes_on_for_long_after_a_stop_loses_its_place() {
    for aborted in [true, false] {
        let mut world = World::new(executor(1, 2, Schedule::Fifo));
        let call = world.call_with("a", 1, &within(2));
        world.call("b");
        let (key, _) = world.take();
        let place = world.server().keep_permit(key).expect("it has one");
        world.server().put_aside(key);
        if aborted {
            world.endpoints[0].abort(call);
            world.settle();
        } else {
            world.pass_slowly(2100 * MS);
        }
        assert_eq!(world.stopped.len(), 1);
        assert_eq!((world.load(), world.next_run()), ((1, 1), None));
        world.pass_slowly(4800 * MS);
        assert_eq!((world.load(), world.next_run()), ((1, 1), None));
        world.pass_slowly(300 * MS);
        assert_eq!(world.stuck.len(), 1, "aborted: {aborted}");
        assert_eq!(world.stuck[0].request, RequestId::FIRST);
        let method = world.stuck[0].method.as_ref().expect("it is served");
        assert_eq!(method.name().as_ref(), "test.Work/do");
        assert_eq!(world.server().metrics().stuck, 1);
        assert_eq!((world.server().stopping(), world.load()), (1, (1, 0)));
        world.server().release_permit(place);
        world.settle();
        assert_eq!((world.server().stopping(), world.load()), (0, (1, 0)));
        assert_eq!(world.run(), "b");
        assert_eq!(world.load(), (0, 0));
        world.pass_slowly(10_000 * MS);
        assert_eq!(world.stuck.len(), 1);
    }
}

#[test]
fn a_handler_that_ends_soon_after_a_stop_is_not_stuck() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let call = world.call("a");
    let (key, _) = world.take();
    let place = world.server().keep_permit(key).expect("it has one");
    world.server().put_aside(key);
    world.endpoints[0].abort(call);
    world.pass_slowly(4800 * MS);
    world.server().release_permit(place);
    world.settle();
    assert_eq!((world.server().stopping(), world.load()), (0, (0, 0)));
    world.pass_slowly(10_000 * MS);
    assert!(world.stuck.is_empty() && world.server().metrics().stuck == 0);
}

#[test]
fn what_is_finished_in_any_case_keeps_its_place_for_long() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let call = world.call("a");
    let (key, _) = world.take();
    let place = world.server().keep_permit(key).expect("it has one");
    world.server().put_aside(key);
    world.server().keep_place(&place);
    world.endpoints[0].abort(call);
    world.pass_slowly(10_000 * MS);
    assert_eq!((world.server().stopping(), world.load()), (1, (1, 0)));
    assert!(world.stuck.is_empty());
    world.server().release_permit(place);
    world.settle();
    assert_eq!((world.server().stopping(), world.load()), (0, (0, 0)));
}

/// It may begin only when the request was stopped. Another place, which it has besides, says nothing of the handler's own.
#[test]
fn what_is_finished_in_any_case_keeps_the_place_that_it_takes_along() {
    for own in [true, false] {
        let mut world = World::new(executor(2, 2, Schedule::Fifo));
        let call = world.call("a");
        let (key, _) = world.take();
        let place = world.server().keep_permit(key).expect("it has one");
        let other = world.server().take_place(key).expect("there is another");
        world.server().put_aside(key);
        world.endpoints[0].abort(call);
        world.settle();
        assert_eq!(world.stopped.len(), 1);
        let taken_along = if own { &place } else { &other };
        world.server().keep_place(taken_along);
        world.pass_slowly(10_000 * MS);
        assert_eq!(world.stuck.is_empty(), own);
        world.server().release_permit(other);
        world.server().release_permit(place);
        world.settle();
        assert_eq!((world.server().stopping(), world.load()), (0, (0, 0)));
    }
}

#[test]
fn what_is_put_aside_has_its_place_until_it_ends() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let first = world.call("a");
    world.call("b");
    let (key, _) = world.take();
    world.server().put_aside(key);
    world.server().returned(key, Ok(()));
    world.settle();
    assert_eq!((world.load(), world.next_run()), ((1, 1), None));
    world.endpoints[0].abort(first);
    world.settle();
    assert_eq!(world.stopped.len(), 1);
    assert_eq!(world.run(), "b");
    assert_eq!(world.load(), (0, 0));
}

#[test]
fn a_trace_tells_how_long_a_request_has_waited() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    world.call("a");
    let mut options = CallOptions::default();
    options.traced = true;
    let traced = world.call_with("b", 1, &options);
    world.pass(30 * MS);
    world.run();
    let (key, what) = world.take();
    world.pass(20 * MS);
    world.answer(key, &what);
    let trace = world.heard(traced).trace.as_ref().expect("it was traced");
    let timing = trace.hops.iter().find_map(|hop| hop.timing);
    let timing = timing.expect("the server tells it");
    assert_eq!((timing.queued, timing.ran), (30 * MS, 20 * MS));
}

/// Its sender writes meanwhile. If it is refused or ends in the queue, nobody reads that.
#[test]
fn a_body_waits_with_its_request() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    world.call("a");
    let [waits, aborted, _refused] = ["waits", "aborted", "refused"].map(|name| {
        let (client, method) = (&mut world.endpoints[0], world.method.clone());
        let call = client.begin(&CallOptions::default()).expect("room");
        let to = at(1);
        let sent = client.send_only(call, followed(&to, &method, name.into()));
        world.settle();
        (call, sent.expect("it is sent").1)
    });
    assert_eq!(world.load(), (1, 2));
    assert_eq!(world.server().sizes().bodies, 2, "who is refused has none");
    world.endpoints[0].abort(aborted.0);
    world.settle();
    assert_eq!(world.server().sizes().bodies, 1);
    world.run();
    let key = world.next_run().expect("it is its turn");
    let incoming = world.server().take_request(key).expect("it lives");
    let body = incoming.body.expect("it has one");
    assert_eq!(world.server().read_body(body), BodyNext::Pending);
    world.answer(key, "done");
    world.server().drop_body(body);
    world.settle();
    assert_eq!(world.heard(waits.0).answers, ["done"]);
    assert_eq!(world.server().sizes().bodies, 0);
}

/// A world whose clients call a method of the server whose requests are handed out ahead.
fn ahead(concurrency: usize, queue: usize, limits: Limits) -> World {
    let mut world = World::with(executor(concurrency, queue, Schedule::Fifo), limits);
    let asked = MethodDefinition::new("test.Work/asked", "raw", 0, 0).expect("a name");
    world.method = Arc::new(asked);
    let method = Arc::clone(&world.method);
    assert_eq!(
        world.server().serve(
            method,
            Serving {
                one: true,
                ahead: true,
                ..Serving::default()
            }
        ),
        Ok(1)
    );
    world
}

#[test]
fn what_is_handed_out_ahead_gets_a_place_when_somebody_says_so() {
    let mut world = ahead(1, 1, Limits::default());
    let calls = ["a", "b", "c"].map(|name| world.call(name));
    let taken = [(); 3].map(|()| world.take());
    assert_eq!(taken.clone().map(|(_, what)| what), ["a", "b", "c"]);
    assert_eq!(world.load(), (0, 0), "nobody has said that they are to run");
    let [a, b, c] = taken.map(|(key, _)| key);
    world.server().run_as(a, 1).expect("there is a place");
    world.server().run_as(b, 1).expect("it may wait");
    assert_eq!(world.load(), (1, 1));
    let refused = world.server().run_as(c, 1).expect_err("too many wait");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    world.settle();
    assert_eq!(world.status(calls[2]).code(), Code::ResourceExhausted);
    for (key, what, load) in [(a, "a", (1, 0)), (b, "b", (0, 0))] {
        assert_eq!(world.next_run(), Some(key));
        assert!(world.server().take_request(key).is_ok());
        world.answer(key, what);
        assert_eq!(world.load(), load);
    }
    assert_eq!(world.heard(calls[1]).answers, ["b"]);
    assert_eq!(world.server().sizes().requests, 0);
}

/// Whoever decides about a request may refuse it, and an abort and the deadline find what was put aside meanwhile.
#[test]
fn what_is_handed_out_ahead_may_end_before_it_has_a_place() {
    let mut world = ahead(1, 1, Limits::default());
    let long = CallOptions::default();
    let [refused, aborted] = ["refused", "aborted"].map(|what| world.call_with(what, 1, &long));
    world.call_with("late", 1, &within(1));
    let [first, second, third] = [(); 3].map(|()| world.take().0);
    let status = wallaby_proto::Status::new(Code::PermissionDenied, "no");
    world.server().returned(first, Err(status));
    world.server().put_aside(second);
    world.server().put_aside(third);
    world.endpoints[0].abort(aborted);
    world.settle();
    world.pass_at(1100 * MS, &[1]);
    world.settle();
    assert_eq!(world.status(refused).code(), Code::PermissionDenied);
    let stopped: Vec<_> = world.stopped.iter().map(|(key, _)| *key).collect();
    assert_eq!(stopped, [second, third]);
    assert!(world.server().run_as(second, 1).is_err());
    assert_eq!(world.server().sizes().requests, 0);
}

/// The less time of the two counts, also where the request is among those that are found.
#[test]
fn a_deadline_may_be_shortened() {
    let mut world = ahead(1, 1, Limits::default());
    let call = world.call_with("a", 1, &within(5));
    let (key, _) = world.take();
    let before = world.server().remaining(key);
    world.server().shorten_deadline(key, 7000 * MS);
    assert_eq!(world.server().remaining(key), before);
    world.server().put_aside(key);
    world.server().shorten_deadline(key, 1000 * MS);
    assert_eq!(world.server().remaining(key), 1000 * MS);
    world.pass_at(1100 * MS, &[1]);
    world.settle();
    assert_eq!(world.status(call).code(), Code::DeadlineExceeded);
}

/// Requests about which nobody has decided count against the window of their connection.
#[test]
fn credit_is_granted_when_a_request_was_decided_about() {
    let mut limits = Limits::default();
    limits.requests = 4096;
    let mut world = ahead(100, 100, limits);
    let payload = "x".repeat(1000);
    for _ in 0..20 {
        world.call(&payload);
    }
    let mut decided = 0;
    while let Some(key) = world.next_run() {
        let waiting = world.runs.entry(1).or_default().len();
        assert!(waiting < 5, "{waiting} more are taken");
        world.server().take_request(key).expect("it lives");
        match decided % 2 {
            0 => {
                world.server().run_as(key, 1).expect("a place");
                world.settle();
                let runs = world.runs.entry(1).or_default();
                let runs = runs.extract_if(.., |run| *run == key).count();
                assert_eq!(runs, 1, "it has a place");
                world.server().take_request(key).expect("it lives");
                world.answer(key, "done");
            }
            _ => {
                world.server().returned(key, Ok(()));
                world.settle();
            }
        }
        decided += 1;
    }
    assert_eq!(decided, 20);
}

/// Told of those of which it was asked: the latest one when it is known that it is not held back any longer.
#[test]
fn the_places_of_messages_are_told() {
    let mut world = World::new(executor(1, 1, Schedule::Fifo));
    world.call("a");
    let (key, _) = world.take();
    let method = Arc::clone(&world.method);
    let server = world.server();
    let mut told = |act: &mut dyn FnMut(&mut Endpoint)| {
        act(server);
        let mut told = Vec::new();
        while let Some(output) = server.poll_output() {
            if let Output::Placed(request, placed) = output {
                assert_eq!(request, key);
                told.push(match *placed {
                    Placed::Answer { index, status } => format!("answer {index}, {status}"),
                    Placed::Delegation { id, server } => format!("{id} at {server}"),
                    placed => panic!("{placed:?}"),
                });
            }
        }
        told
    };
    let quiet = told(&mut |server| {
        server.reply(key, "first".into()).expect("there is room");
        server.flush(key);
    });
    assert_eq!(quiet, Vec::<String>::new(), "nobody has asked");
    let held = told(&mut |server| {
        server.report_places(key);
        server.reply(key, "second".into()).expect("there is room");
    });
    assert_eq!(held, Vec::<String>::new());
    let both = told(&mut |server| {
        let sent = server.delegate(key, at(0), &method, "third".into());
        sent.expect("there is room");
        server.flush(key);
    });
    let onward = format!("0.0 at {}", at(0));
    assert_eq!(both, ["answer 1, false".to_owned(), onward]);
    let status = wallaby_proto::Status::new(Code::Aborted, "no");
    let last = told(&mut |server| server.fail(key, &status));
    assert_eq!(last, ["answer 2, true"]);
}
