//! How an endpoint comes to rest.

use bytes::Bytes;
use wallaby_proto::Code;
use wallaby_proto::endpoint::{
    CallOptions, DelegateOptions, How, Limits, NewDelegation, Outcome, Output,
};
use wallaby_proto::error::{Failure, SendError};
use wallaby_proto::executor::{ExecutorConfig, Schedule};
use wallaby_proto::wire::PingSettings;

use super::queues::{MS, World, at, executor};

const WHY: &str = "this server is shutting down and has not executed the request";

#[test]
fn what_was_begun_is_finished_and_nothing_begins() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    let next = world.add(ExecutorConfig::default(), Limits::default());
    let [first, second] = ["a", "b"].map(|name| world.call(name));
    let (key, what) = world.take();
    assert!(!world.server().is_draining());
    world.server().drain();
    world.settle();
    assert!(world.server().is_draining() && !world.server().is_drained());

    let refused = world.call("c");
    let status = world.status(refused);
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(WHY), "{status}");

    let method = world.method.clone();
    let sent = world.server().delegate(key, at(next), &method, "d".into());
    assert_eq!(sent, Ok(()), "what runs may hand on");
    world.answer(key, &what);
    assert!(!world.server().is_drained(), "one waits");
    let (key, what) = world.take();
    let sent = world.server().forward(key, at(next), &method, what.into());
    assert_eq!(sent, Ok(()), "what waited before may, too");
    world.server().returned(key, Ok(()));
    world.settle();
    assert!(world.server().is_drained());
    answer_all(&mut world, next);
    for (call, answers) in [(first, &["a", "d"][..]), (second, &["b"])] {
        assert_eq!(world.heard(call).answers, answers);
        assert!(world.heard(call).statuses.is_empty());
    }
}

/// Another server answers what it has been asked, by the same.
fn answer_all(world: &mut World, at: usize) {
    for key in world.runs.remove(&at).unwrap_or_default() {
        let endpoint = &mut world.endpoints[at];
        let incoming = endpoint.take_request(key).expect("it came");
        let sent = endpoint.respond(key, incoming.payload);
        endpoint.returned(key, sent.map_err(Into::into));
    }
    world.settle();
}

/// Who is there already sends no more over the old connection; who comes later learns it when it says who it is.
#[test]
fn peers_are_told() {
    let mut world = World::new(ExecutorConfig::default());
    world.call("a");
    world.run();
    assert_eq!(world.dials, 1);
    world.server().drain();
    world.settle();
    for dials in 2..5 {
        let refused = world.call("b");
        assert_eq!(world.status(refused).code(), Code::Unavailable);
        assert_eq!(world.dials, dials, "none is used again");
    }
}

#[test]
fn own_calls_and_output_come_to_an_end_first() {
    let mut world = World::new(ExecutorConfig::default());
    let call = world.call("a");
    assert!(world.endpoints[1].load().running == 1 && !world.server().is_drained());
    let client = &mut world.endpoints[0];
    client.drain();
    assert!(!client.is_drained(), "its call lives");
    world.settle();
    world.run();
    assert_eq!(world.heard(call).answers, ["a"]);
    assert!(world.endpoints[0].is_drained());
}

/// Also before the first of its attempts has begun.
#[test]
fn what_may_have_further_attempts_is_waited_for_as_long_as_it_is_undecided() {
    let mut world = World::new(ExecutorConfig::default());
    let client = &mut world.endpoints[0];
    let numbers = [(); 2].map(|()| client.undertake().expect("there is room"));
    client.drain();
    world.settle();
    assert!(!world.endpoints[0].is_drained());
    world.endpoints[0].decide(numbers[0]);
    world.pass_slowly(2900 * MS);
    assert!(!world.endpoints[0].is_drained());
    world.pass_slowly(200 * MS);
    assert!(world.endpoints[0].is_drained(), "for three seconds");

    let server = world.server();
    let number = server.undertake().expect("there is room");
    server.drain();
    assert!(!server.is_drained());
    server.decide(number);
    assert!(server.is_drained());
}

/// Of what pauses between two attempts there is no call.
#[test]
fn as_much_may_have_further_attempts_as_there_may_be_calls() {
    let mut limits = Limits::default();
    limits.calls = 1;
    let mut world = World::with(ExecutorConfig::default(), limits);
    let server = world.server();
    let number = server.undertake().expect("there is room");
    let full = Failure::TooManyCalls { limit: 1 };
    assert_eq!(server.undertake(), Err(full));
    server.decide(number);
    assert!(server.undertake().is_ok());
}

/// Nothing of it is made again: nobody is to wait for that.
#[test]
fn what_may_have_further_attempts_has_none_at_a_closed_endpoint() {
    let mut world = World::new(ExecutorConfig::default());
    let client = &mut world.endpoints[0];
    client.undertake().expect("there is room");
    client.drain();
    assert!(client.poll_output().is_none() && !client.is_drained());
    client.close();
    assert!(client.is_drained());
    assert!(matches!(client.poll_output(), Some(Output::Drained)));
}

#[test]
fn a_handler_that_goes_on_for_long_at_a_closed_endpoint_is_told_of() {
    let mut world = World::new(executor(1, 2, Schedule::Fifo));
    world.ends = true;
    world.call("a");
    let (key, _) = world.take();
    let place = world.server().keep_permit(key).expect("it has one");
    world.server().put_aside(key);
    world.server().close();
    world.settle();
    world.pass_slowly(4800 * MS);
    assert!(world.stuck.is_empty());
    world.pass_slowly(300 * MS);
    assert_eq!((world.stuck.len(), world.load()), (1, (0, 0)));
    world.server().release_permit(place);
    assert_eq!((world.server().stopping(), world.load()), (0, (0, 0)));
    assert_eq!(world.server().poll_timeout(), None);
}

#[test]
fn all_that_waits_can_be_stopped() {
    let mut world = World::new(executor(2, 9, Schedule::Fifo));
    let calls = ["a", "b", "c", "d"].map(|name| world.call(name));
    let (aside, _) = world.take();
    world.server().put_aside(aside);
    world.server().returned(aside, Ok(()));
    let untaken = world.next_run().expect("there is another place");
    assert_eq!(world.load(), (2, 2));
    world.server().drain();
    world.server().stop_all();
    world.settle();
    let ended = world.status(calls[0]);
    assert_eq!(ended.code(), Code::Unfinished);
    assert!(!ended.is_not_executed(), "{ended}");
    for call in &calls[1..] {
        let status = world.status(*call);
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains(WHY), "{status}");
        assert!(status.is_not_executed());
    }
    assert!(world.server().take_request(untaken).is_err());
    assert_eq!(world.next_run(), None, "nothing begins");
    let [(stopped, _)] = &world.stopped[..] else {
        panic!("only of one anybody knows: {:?}", world.stopped);
    };
    assert_eq!(*stopped, aside);
    world.pass(MS);
    assert!(world.server().is_drained());
}

/// As if its process had died. Nothing that waits begins.
#[test]
fn of_an_endpoint_that_is_hung_up_only_who_works_for_requests_is_told() {
    let mut world = World::new(executor(1, 9, Schedule::Fifo));
    world.ends = true;
    let calls = ["a", "b"].map(|name| world.call(name));
    let (aside, _) = world.take();
    world.server().put_aside(aside);
    world.server().hang_up();
    let outputs: Vec<Output> = std::iter::from_fn(|| world.server().poll_output()).collect();
    let told = |output: &&Output| matches!(output, Output::Stopped(key, _) if *key == aside);
    assert_eq!(outputs.iter().filter(told).count(), 1, "{outputs:?}");
    let others = |output: &&Output| matches!(output, Output::Stopped(..) | Output::Run(_));
    assert_eq!(outputs.iter().filter(others).count(), 1, "{outputs:?}");
    assert_eq!((world.server().sizes().requests, world.load()), (0, (0, 0)));
    for call in calls {
        assert!(world.heard(call).statuses.is_empty());
    }
}

/// Of a server that is closed each caller learns in the same moment what became of its request: it runs, it waits, or it was not even
/// read.
#[test]
fn who_waits_for_a_closed_server_is_told() {
    let mut world = World::new(executor(1, 9, Schedule::Fifo));
    world.ends = true;
    let [runs, waits] = ["a", "b"].map(|name| world.call(name));
    world.take();
    world.deaf = vec![1];
    let unread = world.call("c");
    world.server().close();
    world.settle();
    assert_eq!(world.status(runs).code(), Code::Unfinished);
    for call in [waits, unread] {
        let status = world.status(call);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.server(), Some(&at(1)));
        assert!(status.is_not_executed() && status.message().contains(WHY));
    }
    for call in [runs, waits, unread] {
        let outcome = world.heard(call).outcome.as_ref();
        assert_eq!(outcome, Some(&Outcome::Complete { statuses: 1 }));
    }
}

/// What it had handed on and what still waited to leave: of the one the next server tells, of the other it does.
#[test]
fn what_waits_to_be_delegated_ends_with_a_closed_server() {
    let mut world = World::new(ExecutorConfig::default());
    world.ends = true;
    let next = world.add(ExecutorConfig::default(), Limits::default());
    let first = world.call("a");
    let (key, _) = world.take();
    let method = world.method.clone();
    // Its connection is not open yet.
    let sent = world.server().forward(key, at(next), &method, "b".into());
    assert_eq!(sent, Ok(()));
    world.server().returned(key, Ok(()));
    world.server().close();
    world.settle();
    let status = world.status(first);
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.is_not_executed(), "{status}");
    assert_eq!(status.request().map(|request| request.hop), Some(1));
}

/// Nobody waits for it, but its server has to send it, and has credit for a part of it.
#[test]
fn what_is_left_of_a_call_that_is_over_keeps_no_endpoint_from_its_rest() {
    let mut world = World::new(ExecutorConfig::default());
    let mut options = CallOptions::default();
    options.ping = Some(PingSettings {
        period: 50 * MS,
        timeout: 250 * MS,
    });
    let call = world.call_with("a", 1, &options);
    let (key, _) = world.take();
    world.deaf = vec![0];
    let whole_window = Bytes::from(vec![0; Limits::default().call as usize]);
    for _ in 0..3 {
        let sent = world.server().reply(key, whole_window.clone());
        assert_eq!(sent, Ok(()));
    }
    world.server().returned(key, Ok(()));
    world.endpoints[0].abort(call);
    world.pass_slowly(4000 * MS);
    assert!(!world.endpoints[0].is_live(call), "it has heard nothing");
    world.deaf.clear();
    world.server().drain();
    world.settle();
    assert!(world.server().is_drained());
}

fn always(world: &World, to: usize, payload: &str) -> NewDelegation {
    let mut options = DelegateOptions::default();
    options.always = true;
    NewDelegation {
        server: at(to),
        method: world.method.clone(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        options: Some(options),
        followed: false,
    }
}

/// Of what goes always twice as much may wait as of anything else. What is beyond has its place all the same, with a status.
#[test]
fn what_goes_always_does_not_wait_without_limit() {
    let each = "x".repeat(1000 - 64);
    let mut world = World::with(executor(1, 1, Schedule::Fifo), limits_of_waiting(10_000));
    let next = world.add(ExecutorConfig::default(), Limits::default());
    let call = world.call("a");
    let (key, what) = world.take();
    let method = world.method.clone();
    // Nothing leaves before the connection is open.
    for number in 0..100 {
        let onward = always(&world, next, &each);
        assert_eq!(
            world.server().delegate_with(key, onward, How::More),
            Ok(None),
            "{number}"
        );
    }
    let payload = Bytes::copy_from_slice(each.as_bytes());
    let sent = world.server().delegate(key, at(next), &method, payload);
    assert_eq!(sent, Err(SendError::Full));
    world.answer(key, &what);
    let went_on = world.runs.entry(next).or_default().len();
    assert_eq!(went_on, 21, "one is held back until the next one comes");
    let statuses = &world.heard(call).statuses;
    assert_eq!(statuses.len(), 79);
    for status in statuses {
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.is_not_executed());
        assert!(
            status.message().contains(&SendError::Full.to_string()),
            "{status}"
        );
    }
}

fn limits_of_waiting(waiting: usize) -> Limits {
    let mut limits = Limits::default();
    limits.waiting = waiting;
    limits
}
