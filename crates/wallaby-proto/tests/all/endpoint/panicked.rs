//! What is told of an endpoint in which something has panicked: each thing once.

use wallaby_proto::Code;
use wallaby_proto::endpoint::{CallKey, Endpoint, Next, Outcome, Output};
use wallaby_proto::error::{Breakdown, Failure};
use wallaby_proto::executor::ExecutorConfig;

use super::queues::World;

fn outputs(endpoint: &mut Endpoint) -> Vec<Output> {
    std::iter::from_fn(|| endpoint.poll_output()).collect()
}

#[test]
fn calls_that_nobody_knows_the_end_of_have_failed_and_no_others_are_told_of() {
    let mut world = World::new(ExecutorConfig::default());
    let known = world.call("a");
    world.run();
    assert!(world.heard(known).outcome.is_some());
    let forgotten = world.call("b");
    let goes_on = world.call("c");
    let client = &mut world.endpoints[0];
    client.forget(forgotten);
    assert!(client.is_live(forgotten));
    let over = client.begin(&Default::default()).expect("there is room");
    client.close_call(over);
    assert!(client.has_ended(over) && !client.is_live(over));

    client.handle_panic();
    let told = outputs(client)
        .into_iter()
        .filter_map(|output| match output {
            Output::Call(call) => Some(call),
            _ => None,
        });
    let mut told: Vec<CallKey> = told.collect();
    told.sort();
    assert_eq!(told, [goes_on, over]);
    let failed = Next::Ended(Outcome::Failed(Failure::BrokenDown(Breakdown::Panicked)));
    for call in told {
        assert_eq!(client.next_answer(call), failed);
    }
    let metrics = client.metrics();
    assert_eq!((metrics.calls_started, metrics.calls_completed), (4, 2));
    assert_eq!((metrics.calls_aborted, metrics.calls_failed), (1, 1));
}

#[test]
fn what_was_to_be_told_before_is_told() {
    let mut world = World::new(ExecutorConfig::default());
    let [aborted, goes_on] = ["a", "b"].map(|what| world.call(what));
    let (aside, _) = world.take();
    world.server().put_aside(aside);
    world.server().hang_up();
    world.server().handle_panic();
    let told = outputs(world.server());
    let [
        Output::Close(..),
        Output::Stopped(stopped, status),
        Output::Drained,
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!((*stopped, status.code()), (aside, Code::Cancelled));

    let client = &mut world.endpoints[0];
    for call in [aborted, goes_on] {
        assert_eq!(client.report_end(call), None);
    }
    client.abort(aborted);
    client.handle_panic();
    let told = outputs(client)
        .into_iter()
        .filter_map(|output| match output {
            Output::Ended(call, end) => Some((call, end.outcome)),
            _ => None,
        });
    let told: Vec<(CallKey, Outcome)> = told.collect();
    let [(first, Outcome::Failed(why)), second] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(*first, aborted);
    assert!(matches!(*why, Failure::Aborted { .. }), "{why}");
    let failed = Outcome::Failed(Failure::BrokenDown(Breakdown::Panicked));
    assert_eq!(*second, (goes_on, failed));
}
