//! Delegations that do not reach their servers, and are handled in their place by who has sent them.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    CallKey, DelegateOptions, How, IncomingRequest, Limits, NewDelegation, Outcome, RequestKey,
    Serving,
};
use wallaby_proto::executor::ExecutorConfig;
use wallaby_proto::wire::Continuation;
use wallaby_proto::{Address, Code};

use super::queues::{World, at};

/// Nobody is there.
const GONE: usize = 7;

/// A world whose server has a method for what it could not send, and another server.
fn world() -> (World, Arc<MethodDefinition>) {
    let mut world = World::new(ExecutorConfig::default());
    world.add(ExecutorConfig::default(), Limits::default());
    let unsent = MethodDefinition::new("test.Work/unsent", "raw", 0, 0).expect("a name");
    let unsent = Arc::new(unsent);
    let served = world
        .server()
        .serve(Arc::clone(&unsent), Serving::default());
    assert_eq!(served, Ok(1));
    (world, unsent)
}

fn delegation(world: &World, to: Address, unsent: &Arc<MethodDefinition>) -> NewDelegation {
    NewDelegation {
        server: to,
        method: world.method.clone(),
        payload: Bytes::from_static(b"b"),
        options: Some(DelegateOptions {
            continuation: Some(Continuation::new("what is next").expect("short")),
            unless_sent: Some(Arc::clone(unsent)),
            ..DelegateOptions::default()
        }),
        followed: false,
    }
}

/// The server hands a request on there, as the last that it does for it.
fn hand_on(world: &mut World, to: Address, unsent: &Arc<MethodDefinition>) -> CallKey {
    let call = world.call("a");
    let (key, _) = world.take();
    let delegation = delegation(world, to, unsent);
    let sent = world.server().delegate_with(key, delegation, How::Last);
    assert_eq!(sent.map(|body| body.is_none()), Ok(true));
    world.server().returned(key, Ok(()));
    world.settle();
    call
}

fn take_back(world: &mut World) -> (RequestKey, IncomingRequest) {
    let key = world.next_run().expect("it has come back");
    let incoming = world.server().take_request(key).expect("it goes on");
    (key, incoming)
}

/// Where nobody listens, where nothing may be dialled, and where no transport leads.
fn nowhere() -> [Address; 2] {
    [at(GONE), "tcp://127.0.0.1:1".parse().expect("an address")]
}

#[test]
fn what_does_not_reach_its_server_is_handled_by_who_has_sent_it() {
    for to in nowhere() {
        let (mut world, unsent) = world();
        let call = hand_on(&mut world, to.clone(), &unsent);
        let (key, incoming) = take_back(&mut world);
        assert_eq!((incoming.method, &incoming.payload[..]), (1, &b"b"[..]));
        let request = world.server().request(key).expect("it is handled");
        let why = request.undelivered().expect("it says why");
        assert_eq!(why.server(), Some(&to));
        assert_eq!(why.method(), Some("test.Work/do"));
        assert!(why.is_not_executed(), "{why}");
        let next = request.continuation().map(|bytes| &bytes[..]);
        assert_eq!((next, request.depth()), (Some(&b"what is next"[..]), 1));
        // It is not over before this is.
        assert_eq!(world.heard(call).outcome, None);
        world.answer(key, "instead");
        let heard = world.heard(call);
        assert_eq!(heard.answers, ["instead"]);
        assert_eq!(heard.outcome, Some(Outcome::Complete { statuses: 0 }));
    }
}

#[test]
fn it_may_go_on_to_another_server() {
    let (mut world, unsent) = world();
    let call = hand_on(&mut world, at(GONE), &unsent);
    let (key, incoming) = take_back(&mut world);
    let method = world.method.clone();
    let sent = world
        .server()
        .forward(key, at(2), &method, incoming.payload);
    assert_eq!(sent, Ok(()));
    world.server().returned(key, Ok(()));
    world.settle();
    let other = world.runs.remove(&2).expect("it has come there")[0];
    let there = &mut world.endpoints[2];
    there.take_request(other).expect("it goes on");
    there.respond(other, "there".into()).expect("it is sent");
    there.returned(other, Ok(()));
    world.settle();
    let heard = world.heard(call);
    assert_eq!(heard.answers, ["there"]);
    assert_eq!(heard.outcome, Some(Outcome::Complete { statuses: 0 }));
}

/// As if nobody had handled it.
#[test]
fn who_fails_with_why_it_was_not_sent_says_that_of_its_server() {
    for to in nowhere() {
        let (mut world, unsent) = world();
        let call = hand_on(&mut world, to.clone(), &unsent);
        let (key, _) = take_back(&mut world);
        let why = world.server().request(key).and_then(|it| it.undelivered());
        let why = why.expect("it says why").clone();
        world
            .server()
            .returned(key, Err(why.with_message("it is not there")));
        world.settle();
        let status = world.status(call);
        assert_eq!(
            (status.code(), status.message()),
            (why.code(), "it is not there")
        );
        assert_eq!(
            (status.server(), status.method()),
            (Some(&to), Some("test.Work/do"))
        );
        assert!(status.is_not_executed());
        let outcome = &world.heard(call).outcome;
        assert_eq!(outcome, &Some(Outcome::Complete { statuses: 1 }));
    }
}

/// Each has its own place among all that its request sends.
#[test]
fn several_come_back_beside_what_is_answered() {
    let (mut world, unsent) = world();
    let call = world.call("a");
    let (key, _) = world.take();
    for to in nowhere() {
        let delegation = delegation(&world, to, &unsent);
        let sent = world.server().delegate_with(key, delegation, How::More);
        assert_eq!(sent.map(|body| body.is_none()), Ok(true));
    }
    world.answer(key, "own");
    for what in ["one", "two"] {
        let (key, _) = take_back(&mut world);
        assert_eq!(world.heard(call).outcome, None);
        world.answer(key, what);
    }
    let heard = world.heard(call);
    assert_eq!(heard.outcome, Some(Outcome::Complete { statuses: 0 }));
    assert_eq!(heard.answers, ["own", "one", "two"]);
}

/// Whoever has handed it on hands it on again.
#[test]
fn what_always_comes_back_comes_to_an_end() {
    let (mut world, unsent) = world();
    let call = hand_on(&mut world, at(GONE), &unsent);
    let mut times = 0;
    while let Some(key) = world.next_run() {
        times += 1;
        assert!(times <= 4096, "trees are no deeper");
        world.server().take_request(key).expect("it goes on");
        let delegation = delegation(&world, at(GONE), &unsent);
        let sent = world.server().delegate_with(key, delegation, How::Last);
        assert_eq!(sent.map(|body| body.is_none()), Ok(true));
        world.server().returned(key, Ok(()));
        world.settle();
    }
    let heard = world.heard(call);
    assert_eq!(heard.outcome, Some(Outcome::Complete { statuses: 1 }));
}

#[test]
fn an_abort_finds_what_has_come_back() {
    let (mut world, unsent) = world();
    let call = hand_on(&mut world, at(GONE), &unsent);
    let (key, _) = take_back(&mut world);
    world.server().put_aside(key);
    world.endpoints[0].abort(call);
    world.settle();
    let [(stopped, status)] = &world.stopped[..] else {
        panic!("{:?}", world.stopped);
    };
    assert_eq!((*stopped, status.code()), (key, Code::Cancelled));
}

/// It does not serve that method, or has not the time.
#[test]
fn what_cannot_be_handled_here_is_a_status_as_any_other() {
    let (mut world, _) = world();
    let unknown = MethodDefinition::new("test.Work/unknown", "raw", 0, 0).expect("a name");
    for to in nowhere() {
        let call = hand_on(&mut world, to.clone(), &Arc::new(unknown.clone()));
        assert_eq!(world.next_run(), None);
        let status = world.status(call);
        assert_eq!(
            (status.server(), status.method()),
            (Some(&to), Some("test.Work/do"))
        );
        assert!(status.is_not_executed());
    }
}
