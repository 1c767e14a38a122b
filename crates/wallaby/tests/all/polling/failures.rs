//! Servers that die, are restarted, or do not go on; calls that are given up or take too long. In virtual time.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use wallaby::polling::{CallOptions, Endpoint, Event, RequestKey, Wait};
use wallaby::{
    Address, Breakdown, CallError, Code, ConnectError, ExecutorConfig, Failure, FailureKind,
    Heartbeats,
};

use super::alone::{LONG, outcome, pair, work};
use super::world::{Link, World};

type Aside = Rc<RefCell<Vec<RequestKey>>>;

/// Puts all requests aside.
fn serve_holding(server: &mut Endpoint<Link>) -> Aside {
    let aside = Aside::default();
    let keys = aside.clone();
    let serve = server.serve(&work::MANY, move |request, _| {
        keys.borrow_mut().push(request.hold());
        Ok(())
    });
    serve.expect("no other has its name");
    aside
}

fn call(client: &mut Endpoint<Link>, server: Address, options: &CallOptions) {
    client
        .call(server, work::many("hop".into()), options)
        .expect("it is sent");
}

/// A call that the first server forwards to another one, which holds it and has said nothing yet.
fn call_through(
    world: &World,
    client: &mut Endpoint<Link>,
    first: &mut Endpoint<Link>,
) -> Endpoint<Link> {
    let mut next = world.bind(Endpoint::builder());
    let aside = serve_holding(&mut next);
    let to = next.address();
    let serve = first.serve(&work::MANY, move |request, (what,)| {
        Ok(request.forward(to.clone(), work::many(what))?)
    });
    serve.expect("no other has its name");
    call(client, first.address(), &CallOptions::default());
    while aside.borrow().is_empty() {
        world.step(&mut [&mut *client, &mut *first, &mut next], LONG);
    }
    next
}

/// Whoever goes on after a panic gets no answer of half a state; who has its requests finds out.
#[test]
fn an_endpoint_in_which_something_has_panicked_is_closed_when_it_is_used_next() {
    let (world, mut client, mut server) = pair(1);
    let aside = serve_holding(&mut server);
    for _ in 0..2 {
        call(&mut client, server.address(), &CallOptions::default());
    }
    while aside.borrow().len() < 2 {
        world.step(&mut [&mut client, &mut server], LONG);
    }
    let panics = |endpoint: &mut Endpoint<Link>| {
        world.panic_next();
        let turn = || endpoint.turn(Wait::Not);
        catch_unwind(AssertUnwindSafe(turn)).expect_err("it panics");
    };
    panics(&mut server);
    server.turn(Wait::Not).expect("it is only closed");
    for key in aside.take() {
        let Some(Event::Stopped { request, status }) = server.next_event() else {
            panic!("it is not told")
        };
        assert_eq!((request, status.code()), (key, Code::Internal));
        assert!(server.request(key).is_none());
    }
    assert_eq!((server.next_event(), server.sizes().requests), (None, 0));

    panics(&mut client);
    for _ in 0..2 {
        let told = client.next_event().expect("each ends");
        assert_eq!(failure(told), Failure::BrokenDown(Breakdown::Panicked));
    }
    assert_eq!((client.next_event(), client.sizes().calls), (None, 0));
    let later = client.call(
        server.address(),
        work::many("hop".into()),
        &Default::default(),
    );
    assert_eq!(
        later.map(|_| ()),
        Err(Failure::BrokenDown(Breakdown::Panicked))
    );
    // One that is dropped so says nothing more, either.
    let mut other = world.bind(Endpoint::builder());
    call(&mut other, server.address(), &CallOptions::default());
    panics(&mut other);
}

fn failure(end: Event) -> Failure {
    match end {
        Event::Failed { failure, .. } => *failure,
        other => panic!("{other:?}"),
    }
}

fn socket(address: &Address) -> std::net::SocketAddr {
    match address {
        Address::Udp(socket) => *socket,
        other => panic!("{other}"),
    }
}

#[test]
fn a_server_that_is_cut_off_is_a_failure_within_the_timeout() {
    let (world, mut client, mut server) = pair(20);
    serve_holding(&mut server);
    call(&mut client, server.address(), &CallOptions::default());
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(2)),
        None
    );
    world.cut(&server.address(), true);
    let begun = world.now();
    let (_, end) = outcome(&world, &mut [&mut client, &mut server]);
    let failure = failure(end);
    let Failure::Lost(lost) = &failure else {
        panic!("{failure}")
    };
    assert!(matches!(lost.kind, FailureKind::Silent { .. }), "{failure}");
    assert_eq!(lost.server.address, Some(server.address()));
    let took = world.now() - begun;
    assert!(
        took > Duration::from_secs(4) && took < Duration::from_secs(7),
        "{took:?}"
    );
    // The server learns it too: nobody asks about the request any more.
    let mut stopped = None;
    while stopped.is_none() {
        stopped = world.event(&mut [&mut server, &mut client], 0, LONG);
    }
    assert!(
        matches!(stopped, Some(Event::Stopped { .. })),
        "{stopped:?}"
    );
    world.cut(&server.address(), false);
}

#[test]
fn a_server_that_is_restarted_fails_the_calls_of_its_former_life() {
    let (world, mut client, mut server) = pair(21);
    serve_holding(&mut server);
    let address = server.address();
    call(&mut client, address.clone(), &CallOptions::default());
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(1)),
        None
    );
    world.cut(&address, true); // it dies without a word
    drop(server);
    let mut server = world.bind_at(Endpoint::builder(), socket(&address));
    world.cut(&address, false);
    let begun = world.now();
    let (_, end) = outcome(&world, &mut [&mut client, &mut server]);
    let failure = failure(end);
    assert!(matches!(failure, Failure::Lost(_)), "{failure}");
    let took = world.now() - begun;
    assert!(took < Duration::from_secs(4), "found only after {took:?}");
    // The next one is answered by the next life.
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    client
        .call(address, work::one("again".into()), &CallOptions::default())
        .expect("it is sent");
    let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(answers, [Ok("again".to_owned())]);
}

/// Whoever sent it the request may send it again and again: a server that says nothing is not waited for longer because of
/// that.
#[test]
fn a_server_that_dies_before_it_acknowledges_its_request_is_a_failure_within_the_timeout() {
    let (world, mut client, mut first) = pair(29);
    let begun = world.now();
    let next = call_through(&world, &mut client, &mut first);
    let address = next.address();
    world.cut(&address, true);
    drop(next);
    let (_, end) = outcome(&world, &mut [&mut client, &mut first]);
    let failure = failure(end);
    let Failure::Lost(lost) = &failure else {
        panic!("{failure}")
    };
    assert!(matches!(lost.kind, FailureKind::Silent { .. }), "{failure}");
    assert_eq!(lost.server.address, Some(address));
    // A period and an eighth until it is asked, then the timeout, and a period.
    let took = world.now() - begun;
    assert!(took < Duration::from_secs(7), "found only after {took:?}");
}

/// It is restarted before the client has asked it for the first time; the first server has told of its former life.
#[test]
fn a_server_below_the_first_hop_that_was_never_reached_is_not_found() {
    let (world, mut client, mut first) = pair(28);
    let begun = world.now();
    let next = call_through(&world, &mut client, &mut first);
    let (address, node) = (next.address(), next.node());
    world.cut(&address, true); // it dies without a word
    drop(next);
    let mut next = world.bind_at(Endpoint::builder(), socket(&address));
    world.cut(&address, false);
    let (_, end) = outcome(&world, &mut [&mut client, &mut first, &mut next]);
    let failure = failure(end);
    let Failure::Lost(lost) = &failure else {
        panic!("{failure}")
    };
    assert!(matches!(lost.kind, FailureKind::Silent { .. }), "{failure}");
    assert_eq!(lost.server.address, Some(address));
    assert_eq!(lost.server.node, Some(node));
    // A period and an eighth until it is asked, then three.
    let took = world.now() - begun;
    assert!(took < Duration::from_secs(5), "found only after {took:?}");
}

#[test]
fn a_server_that_says_goodbye_is_noticed_sooner() {
    let (world, mut client, mut server) = pair(22);
    serve_holding(&mut server);
    call(&mut client, server.address(), &CallOptions::default());
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(1)),
        None
    );
    server.kill();
    let (_, end) = outcome(&world, &mut [&mut client]);
    assert!(matches!(failure(end), Failure::Lost(_)));
}

#[test]
fn nobody_at_the_address_is_a_failure_that_says_that_nothing_was_sent() {
    let world = World::new(23);
    let mut client = world.bind(Endpoint::builder());
    let nowhere = Address::Udp(([10, 0, 0, 9], 9).into());
    call(&mut client, nowhere.clone(), &CallOptions::default());
    let (_, end) = outcome(&world, &mut [&mut client]);
    match failure(end) {
        Failure::NotSent {
            error: ConnectError::TimedOut { server, after },
            ..
        } => assert_eq!((server, after), (nowhere, Duration::from_secs(2))),
        other => panic!("{other}"),
    }
}

#[test]
fn a_handler_without_progress_is_a_failure_where_that_is_limited() {
    let (world, mut client, mut server) = pair(24);
    let aside = serve_holding(&mut server);
    let mut options = CallOptions::default();
    options.stall_limit = Some(Duration::from_secs(3));
    call(&mut client, server.address(), &options);
    // As long as it says that it makes progress, it is none.
    for _ in 0..5 {
        let quiet = world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(2));
        assert_eq!(quiet, None);
        let key = aside.borrow()[0];
        let mut request = server.request(key).expect("it has not ended");
        request.progress();
        request.hold();
    }
    let (_, end) = outcome(&world, &mut [&mut client, &mut server]);
    let failure = failure(end);
    let Failure::Lost(lost) = &failure else {
        panic!("{failure}")
    };
    assert!(
        matches!(lost.kind, FailureKind::Stalled { .. }),
        "{failure}"
    );
}

#[test]
fn an_abort_reaches_all_servers_of_the_call() {
    let (world, mut client, mut server) = pair(25);
    let mut next = world.bind(Endpoint::builder());
    let aside = serve_holding(&mut next);
    let to = next.address();
    let serve = server.serve(&work::MANY, move |request, (what,)| {
        Ok(request.forward(to.clone(), work::many(what))?)
    });
    serve.expect("no other has its name");
    let key = client.call(
        server.address(),
        work::many("hop".into()),
        &CallOptions::default(),
    );
    let key = key.expect("it is sent").key();
    while aside.borrow().is_empty() {
        world.step(&mut [&mut client, &mut server, &mut next], LONG);
    }
    client.abort(key);
    let told = client.next_event();
    assert!(
        matches!(told, Some(Event::Failed { call, failure }) if call == key && matches!(*failure, Failure::Aborted { .. }))
    );
    let stopped = world.event(
        &mut [&mut next, &mut client, &mut server],
        0,
        Duration::from_secs(5),
    );
    match stopped {
        Some(Event::Stopped { request, status }) => {
            assert_eq!(request, aside.borrow()[0]);
            assert_eq!(status.code(), Code::Cancelled);
        }
        other => panic!("{other:?}"),
    }
    assert!(next.request(aside.borrow()[0]).is_none());
    // When nothing of it runs any more, nothing of it is left.
    let quiet = world.event(
        &mut [&mut client, &mut server, &mut next],
        0,
        Duration::from_secs(5),
    );
    assert_eq!(quiet, None);
    assert_eq!((client.sizes().calls, next.sizes().requests), (0, 0));
}

#[test]
fn a_deadline_ends_a_call_and_what_runs_of_it() {
    for deadline in [Duration::from_millis(300), Duration::from_secs(20)] {
        let (world, mut client, mut server) = pair(26);
        let aside = serve_holding(&mut server);
        let mut options = CallOptions::default();
        options.deadline = Some(deadline);
        call(&mut client, server.address(), &options);
        let begun = world.now();
        let (_, end) = outcome(&world, &mut [&mut client, &mut server]);
        match failure(end) {
            Failure::Deadline { after, missing } => {
                assert_eq!(after, deadline);
                assert_eq!(missing.branches.len(), 1, "{missing}");
                assert_eq!(missing.server(), Some(&server.address()));
            }
            other => panic!("{other}"),
        }
        let late = world.now() - begun - deadline;
        assert!(late < Duration::from_millis(1), "{late:?}");
        let event = world.event(&mut [&mut server, &mut client], 0, Duration::from_secs(1));
        assert!(matches!(event, Some(Event::Stopped { .. })), "{event:?}");
        assert!(server.request(aside.borrow()[0]).is_none());
    }
}

#[test]
fn the_first_status_ends_a_call_that_fails_fast() {
    let (world, mut client, mut server) = pair(27);
    let serve = server.serve(&work::ONE, |_, _| {
        Err(wallaby::Status::new(Code::NotFound, "no"))
    });
    serve.expect("no other has its name");
    let aside = serve_holding(&mut server);
    let mut options = CallOptions::default();
    options.fail_fast = true;
    let call = client.begin(&options).expect("there is room");
    for method in [work::MANY.definition(), work::ONE.definition()] {
        let payload = bytes::Bytes::from_static(b"\x01a");
        client
            .send(call, server.address(), method, payload)
            .expect("it is sent");
    }
    client.close_call(call);
    let (answers, end) = outcome(&world, &mut [&mut client, &mut server]);
    assert!(answers[0].is_err());
    assert_eq!(failure(end), Failure::FailedFast);
    let event = world.event(&mut [&mut server, &mut client], 0, Duration::from_secs(5));
    assert!(matches!(event, Some(Event::Stopped { request, .. }) if request == aside.borrow()[0]));
}

/// Thousands of calls have something to do at the same time: each turn looks at some of them.
#[test]
fn calls_that_fail_together_take_several_turns() {
    const CALLS: usize = 3000;
    let (world, mut client, mut server) = pair(31);
    let aside = serve_holding(&mut server);
    for _ in 0..CALLS {
        call(&mut client, server.address(), &CallOptions::default());
    }
    while aside.borrow().len() < CALLS {
        world.step(&mut [&mut client, &mut server], LONG);
    }
    world.cut(&server.address(), true);
    let (mut failed, mut most) = (0, 0);
    let end = world.now() + Duration::from_secs(60);
    while failed < CALLS && world.now() < end {
        world.step(&mut [&mut client], LONG);
        let events = std::iter::from_fn(|| client.next_event());
        let together = events.map(failure).count();
        (failed, most) = (failed + together, most.max(together));
    }
    assert_eq!(failed, CALLS);
    assert!(most <= 1024, "{most} in a turn");
}

/// They are told by and by, and all of them.
#[test]
fn very_many_calls_learn_that_their_server_is_another_life() {
    const CALLS: usize = 6_000;
    let (world, mut client, _) = pair(33);
    let roomy = ExecutorConfig {
        concurrency: 2 * CALLS,
        ..ExecutorConfig::default()
    };
    let mut server = world.bind(Endpoint::builder().executor(roomy));
    let aside = serve_holding(&mut server);
    for _ in 0..CALLS {
        call(&mut client, server.address(), &CallOptions::default());
    }
    while aside.borrow().len() < CALLS {
        world.step(&mut [&mut client, &mut server], LONG);
    }
    let at = socket(&server.address());
    server.kill();
    let mut server = world.bind_at(Endpoint::builder(), at);
    let (mut failed, end) = (0, world.now() + Duration::from_secs(60));
    while failed < CALLS && world.now() < end {
        world.step(&mut [&mut client, &mut server], LONG);
        let events = std::iter::from_fn(|| client.next_event());
        failed += events.map(failure).count();
    }
    assert_eq!(failed, CALLS);
    while client.sizes().calls > 0 {
        assert!(world.now() < end, "{:?}", client.sizes());
        world.step(&mut [&mut client, &mut server], LONG);
    }
}

/// The process was stopped for long: silence in that time is nobody's failure.
#[test]
fn time_in_which_nobody_turned_an_endpoint_is_no_silence() {
    let (world, mut client, mut server) = pair(28);
    let aside = serve_holding(&mut server);
    call(&mut client, server.address(), &CallOptions::default());
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(3)),
        None
    );
    world.pass(Duration::from_secs(30));
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(3)),
        None
    );
    let key = aside.borrow()[0];
    let request = server.request(key).expect("it has not ended");
    request
        .respond(bytes::Bytes::from_static(b"\x04done"))
        .expect("it is sent");
    let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(answers, [Ok("done".to_owned())]);
}

/// What arrives while a timer is late is handled in the time that the timer then finds: time that went back between them would
/// make the proof of an address, which a new connection shows, one of the future.
#[test]
fn an_endpoint_that_wakes_up_late_takes_new_connections() {
    let (world, mut first, mut server) = pair(29);
    let serve = server.serve(&work::ONE, |request, (what,)| {
        request.respond(&what)?;
        Ok(())
    });
    serve.expect("no other has its name");
    for late in 0..200 {
        let call_one = |client: &mut Endpoint<Link>, server: Address| {
            let target = work::one("here".into());
            client
                .call(server, target, &CallOptions::default())
                .expect("it is sent");
        };
        call_one(&mut first, server.address()); // of which something is left to do, later
        let (answers, _) = outcome(&world, &mut [&mut first, &mut server]);
        assert_eq!(answers.len(), 1);
        let mut client = world.bind(Endpoint::builder());
        call_one(&mut client, server.address());
        client.turn(Wait::Not).expect("it asks for a connection");
        world.pass(Duration::from_micros(late * 250));
        let (answers, end) = outcome(&world, &mut [&mut client, &mut server]);
        assert!(matches!(end, Event::Complete { .. }), "{late}: {end:?}");
        assert_eq!(answers, [Ok("here".to_owned())]);
    }
}

/// On a real socket, where the system says at once that nobody is there.
#[test]
fn a_closed_port_is_a_failure_at_once() {
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let at = Address::Udp(nobody.local_addr().expect("it has one"));
    drop(nobody);
    let mut client = Endpoint::bind("udp://127.0.0.1:0").expect("a socket");
    let options = CallOptions::default();
    let failed = client.ask(at.clone(), work::one("hop".into()), &options, Wait::Forever);
    match failed {
        Err(CallError::Failed(Failure::NotSent { error, .. })) => {
            assert!(matches!(error, ConnectError::Refused { server, .. } if server == at));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_the_only_socket_does_not_reach_is_a_failure_at_once() {
    let at: Address = "udp://[::1]:9".parse().expect("an address");
    let mut client = Endpoint::bind("udp://127.0.0.1:0").expect("a socket");
    let options = CallOptions::default();
    let failed = client.ask(at.clone(), work::one("hop".into()), &options, Wait::Forever);
    let Err(CallError::Failed(Failure::NotSent { error, .. })) = failed else {
        panic!("{failed:?}");
    };
    let ConnectError::Local { server, reason } = error else {
        panic!("{error:?}");
    };
    assert_eq!(server, at);
    assert!(reason.contains("only UDP socket"), "{reason}");
}

/// By heartbeats nobody asks; and what is lost of a tolerant call is a status in its place.
#[test]
fn a_tolerant_call_goes_on_without_a_server_whose_heartbeats_stay_out() {
    let (world, mut client, mut server) = pair(21);
    serve_holding(&mut server);
    let options = CallOptions {
        heartbeats: Some(Heartbeats {
            every: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
            hop: Duration::from_millis(5),
        }),
        tolerant: true,
        ..CallOptions::default()
    };
    call(&mut client, server.address(), &options);
    let lives = Duration::from_secs(10);
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, lives),
        None,
        "it lives"
    );
    world.cut(&server.address(), true);
    let begun = world.now();
    let (answers, end) = outcome(&world, &mut [&mut client, &mut server]);
    let [lost] = &answers[..] else {
        panic!("one status: {answers:?}")
    };
    let lost = lost.as_ref().expect_err("a status");
    assert_eq!(lost.code(), Code::Unavailable, "{lost}");
    assert_eq!(lost.server(), Some(&server.address()), "{lost}");
    assert!(
        matches!(end, Event::Complete { statuses: 1, .. }),
        "{end:?}"
    );
    let took = world.now() - begun;
    assert!(took < Duration::from_secs(4), "{took:?}");
}
