//! Polling endpoints over unix sockets, in virtual time: with everything that peers and the kernel can do to a stream.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use wallaby::polling::{Builder, CallOptions, Endpoint, Event, Limits, RequestKey, Sizes, Wait};
use wallaby::{Address, CallError, ConnectError, Failure};

use super::alone::work;
use super::proxy::{FREE, Flow, Path, Proxy, STOPPED, Streams};
use super::world::{Link, World};

/// An endpoint on a unix socket, which it tells others to be its address.
fn bind(world: &World, builder: Builder) -> (Endpoint<Link>, Path) {
    let path = Path::new();
    let builder = builder.listen(&path.text()).advertise(path.address());
    (world.bind(builder), path)
}

/// Answers each request with what it says, `hold` aside.
fn serve(server: &mut Endpoint<Link>) -> (Rc<RefCell<Vec<RequestKey>>>, Rc<Cell<u32>>) {
    let aside = Rc::<RefCell<Vec<RequestKey>>>::default();
    let handled = Rc::<Cell<u32>>::default();
    let (keys, count) = (aside.clone(), handled.clone());
    let serve = server.serve(&work::ONE, move |request, (what,)| {
        count.set(count.get() + 1);
        match &*what {
            "hold" => keys.borrow_mut().push(request.hold()),
            _ => request.respond(&what)?,
        }
        Ok(())
    });
    serve.expect("no other has its name");
    (aside, handled)
}

/// Hands each request on.
fn forward(server: &mut Endpoint<Link>, next: Address) {
    let serve = server.serve(&work::ONE, move |request, (what,)| {
        Ok(request.forward(next.clone(), work::one(what))?)
    });
    serve.expect("no other has its name");
}

fn call(client: &mut Endpoint<Link>, server: &Path, what: &str) {
    let sent = client.call(
        server.address(),
        work::one(what.into()),
        &CallOptions::default(),
    );
    sent.expect("it is sent");
}

/// The words of all answers; the call has completed.
fn words(
    streams: &mut Streams<'_>,
    endpoints: &mut [&mut Endpoint<Link>],
) -> Vec<Result<usize, CallError>> {
    let (answers, end) = streams.outcome(endpoints);
    assert!(matches!(end, Event::Complete { .. }), "{end:?}");
    let lengths = answers
        .into_iter()
        .map(|answer| answer.map(|payload| payload.len()));
    lengths.collect()
}

fn failure(end: Event) -> Failure {
    match end {
        Event::Failed { failure, .. } => *failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_are_answered_and_forwarded_over_streams_alone() {
    let world = World::new(50);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (mut last, last_at) = bind(&world, Endpoint::builder());
    let (mut first, first_at) = bind(&world, Endpoint::builder());
    serve(&mut last);
    forward(&mut first, last_at.address());
    let mut streams = Streams::new(&world, None);
    for to in [&last_at, &first_at, &first_at] {
        call(&mut client, to, "hop");
        let answers = words(&mut streams, &mut [&mut client, &mut first, &mut last]);
        assert_eq!(answers, [Ok(4)]);
    }
    for endpoint in [&client, &first, &last] {
        assert_eq!(endpoint.metrics().datagrams_sent, 0);
        assert_eq!(endpoint.sizes().calls, 0);
    }
    // The last server dials the client once, for the answers to what was forwarded: who dialled it may be anybody.
    assert_eq!(
        (client.sizes().connections, last.sizes().connections),
        (3, 3)
    );
    // The name is given back.
    drop(last);
    bind_again(&world, &last_at);
}

/// The application turns nothing until the server believes it dead and closes the connection. What it sends when it is back does
/// not go into that connection, where nobody could know what became of it.
#[test]
fn who_was_away_for_long_reads_before_it_sends() {
    let (period, timeout) = (Duration::from_millis(100), Duration::from_millis(400));
    let world = World::new(78);
    let builder = || Endpoint::builder().keep_alive(period, timeout);
    let mut client = world.bind(builder());
    let mut server = world.bind(builder().listen("tcp://127.0.0.1:0"));
    let server_at = server.address().clone();
    serve(&mut server);
    let begin = |client: &mut Endpoint<Link>, what: &str| {
        let work = work::one(what.into());
        let call = client.call(server_at.clone(), work, &CallOptions::default());
        call.expect("it is sent").key()
    };
    begin(&mut client, "hold");
    while server.load().running == 0 {
        world.step(&mut [&mut client, &mut server], period);
    }
    while server.metrics().connections_ended == 0 {
        world.pass(period);
        server.turn(Wait::Not).expect("its sockets work");
    }
    let back = begin(&mut client, "back");
    loop {
        match client.next_event() {
            Some(Event::Answer(answer)) => break assert_eq!(answer.call, back),
            Some(Event::Failed { call, failure }) => assert_ne!(call, back, "{failure}"),
            Some(_) => {}
            None => world.step(&mut [&mut client, &mut server], period),
        }
    }
}

/// The abort comes right behind the request, and is read with it: the request neither runs nor is it kept until its deadline.
#[test]
fn a_call_that_is_aborted_at_once_stops_its_request() {
    let world = World::new(76);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (mut server, server_at) = bind(&world, Endpoint::builder());
    let (_aside, handled) = serve(&mut server);
    let mut streams = Streams::new(&world, None);
    call(&mut client, &server_at, "hop");
    assert_eq!(
        words(&mut streams, &mut [&mut client, &mut server]),
        [Ok(4)]
    );
    for _ in 0..5 {
        let one = client.call(
            server_at.address(),
            work::one("hold".into()),
            &CallOptions::default(),
        );
        client.abort(one.expect("it is sent").key());
        let end = world.now() + Duration::from_millis(200);
        while world.now() < end {
            streams.step(&mut [&mut client, &mut server]);
        }
        assert_eq!(server.sizes().requests, 0);
    }
    assert_eq!(handled.get(), 1, "the first call's");
}

fn bind_again(world: &World, path: &Path) -> Endpoint<Link> {
    let builder = Endpoint::builder().listen(&path.text());
    world.bind(builder.advertise(path.address()))
}

/// Datagrams, a unix socket and TCP in one tree, all with their own ways back.
#[test]
fn one_endpoint_serves_and_dials_over_several_transports() {
    let world = World::new(51);
    let mut client = world.bind(Endpoint::builder());
    let (mut over_unix, unix_at) = bind(&world, Endpoint::builder());
    let mut over_tcp = world.bind(Endpoint::builder().listen("tcp://127.0.0.1:0"));
    let [datagrams, tcp_at] = over_tcp.addresses() else {
        panic!("{:?}", over_tcp.addresses())
    };
    assert_eq!(*datagrams, over_tcp.address());
    let tcp_at = tcp_at.clone();
    serve(&mut over_unix);
    forward(&mut over_tcp, unix_at.address());
    let mut streams = Streams::new(&world, None);
    for to in [over_tcp.address(), tcp_at, unix_at.address()] {
        let sent = client.call(to, work::one("hop".into()), &CallOptions::default());
        sent.expect("it is sent");
        let answers = words(
            &mut streams,
            &mut [&mut client, &mut over_tcp, &mut over_unix],
        );
        assert_eq!(answers, [Ok(4)]);
    }
}

#[test]
fn messages_of_any_size_up_to_the_limit_pass() {
    let world = World::new(52);
    let mut limits = Limits::default();
    limits.message = 4 << 20;
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (mut server, server_at) = bind(&world, Endpoint::builder().limits(limits));
    serve(&mut server);
    let mut streams = Streams::new(&world, None);
    for len in [0, 1000, 65_000, 66_000, 1 << 20, (4 << 20) - 8] {
        call(&mut client, &server_at, &"a".repeat(len));
        let answers = words(&mut streams, &mut [&mut client, &mut server]);
        let answer = answers[0].as_ref().expect("an answer");
        assert!((len..len + 8).contains(answer), "{answer} for {len}");
    }
    // The server's limit is known to the client by now.
    let too_large = work::one("a".repeat(4 << 20));
    let failed = client.call(server_at.address(), too_large, &CallOptions::default());
    assert!(
        matches!(failed, Err(Failure::TooLarge { limit, .. }) if limit == 4 << 20),
        "{failed:?}"
    );
    assert_eq!(client.sizes().calls, 0);
}

/// Whatever the pieces are in which bytes arrive and leave.
#[test]
fn frames_may_be_cut_anywhere() {
    for most in [1, 2, 3, 7, 500] {
        let world = World::new(53);
        let (mut client, _at) = bind(&world, Endpoint::builder());
        let (mut server, server_at) = bind(&world, Endpoint::builder());
        serve(&mut server);
        let mut proxy = Proxy::new(&server_at, 53);
        proxy.flows = [Flow { most, ..FREE }; 2];
        let to = Path::address(&proxy.path);
        let mut streams = Streams::new(&world, Some(&mut proxy));
        streams.pace = Duration::from_micros(100);
        let options = CallOptions::default();
        for len in [0, 10, 300, 2000] {
            let sent = client.call(to.clone(), work::one("a".repeat(len)), &options);
            sent.expect("it is sent");
        }
        let mut completed = 0;
        while completed < 4 {
            let (answers, end) = streams.outcome(&mut [&mut client, &mut server]);
            assert!(matches!(end, Event::Complete { .. }), "{end:?}");
            completed += 1;
            assert!(answers.iter().all(Result::is_ok));
        }
    }
}

/// A large request that is still on its way out is nobody's silence.
#[test]
fn a_slow_connection_is_not_a_silent_server() {
    let world = World::new(54);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (mut server, server_at) = bind(&world, Endpoint::builder());
    serve(&mut server);
    let mut proxy = Proxy::new(&server_at, 54);
    let most = 8 * 1024; // eight times a second
    proxy.flows = [Flow { most, ..FREE }, FREE];
    let to = Path::address(&proxy.path);
    let mut streams = Streams::new(&world, Some(&mut proxy));
    streams.pace = Duration::from_secs(1);
    let mut options = CallOptions::default();
    options.deadline = Some(Duration::from_secs(1000));
    let target = work::one("a".repeat(4 << 20));
    client.call(to, target, &options).expect("it is sent");
    let answers = words(&mut streams, &mut [&mut client, &mut server]);
    assert!(answers[0].is_ok(), "{answers:?}");
    assert!(world.now() > Duration::from_secs(20), "{:?}", world.now());
}

#[test]
fn nobody_at_a_path_is_a_failure_at_once() {
    let world = World::new(55);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let nowhere = Path::new();
    let mut streams = Streams::new(&world, None);
    for _ in 0..2 {
        call(&mut client, &nowhere, "hop");
        client.turn(Wait::Forever).expect("it does not wait");
        let failure = failure(client.next_event().expect("it is told"));
        let Failure::NotSent { error, .. } = &failure else {
            panic!("{failure}")
        };
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    }
    assert_eq!(world.now(), Duration::ZERO);
    assert_eq!(client.sizes(), Sizes::default());
    // Whoever comes to be there is found.
    let mut server = bind_again(&world, &nowhere);
    serve(&mut server);
    call(&mut client, &nowhere, "hop");
    assert_eq!(
        words(&mut streams, &mut [&mut client, &mut server]),
        [Ok(4)]
    );
}

/// It takes a call with it, which has three ping periods to show life elsewhere; the next one finds whoever is there then.
#[test]
fn a_server_that_ends_fails_its_calls_soon() {
    let world = World::new(56);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (mut server, server_at) = bind(&world, Endpoint::builder());
    let (aside, _) = serve(&mut server);
    let mut streams = Streams::new(&world, None);
    call(&mut client, &server_at, "hold");
    while aside.borrow().is_empty() {
        streams.step(&mut [&mut client, &mut server]);
    }
    let begun = world.now();
    server.kill();
    let (_, end) = streams.outcome(&mut [&mut client]);
    let failure = failure(end);
    assert!(matches!(failure, Failure::Lost(_)), "{failure}");
    let took = world.now() - begun;
    assert!(took < Duration::from_millis(2500), "{failure} {took:?}");
    let mut server = bind_again(&world, &server_at);
    serve(&mut server);
    call(&mut client, &server_at, "again");
    assert_eq!(
        words(&mut streams, &mut [&mut client, &mut server]),
        [Ok(6)]
    );
}

/// The connection breaks without a word, and both go on: the call does, too.
#[test]
fn a_call_outlives_its_connection() {
    let world = World::new(57);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (mut server, server_at) = bind(&world, Endpoint::builder());
    let (aside, _) = serve(&mut server);
    let mut proxy = Proxy::new(&server_at, 57);
    call(&mut client, &proxy.path, "hold");
    let mut streams = Streams::new(&world, Some(&mut proxy));
    while aside.borrow().is_empty() {
        streams.step(&mut [&mut client, &mut server]);
    }
    proxy.cut();
    let mut streams = Streams::new(&world, Some(&mut proxy));
    let nothing = streams.event(&mut [&mut client, &mut server], 0, Duration::from_secs(3));
    assert_eq!(nothing, None);
    let key = aside.borrow()[0];
    let request = server.request(key).expect("it has not ended");
    let late = bytes::Bytes::from_static(b"\x04late");
    request.respond(late).expect("it is sent");
    assert_eq!(
        words(&mut streams, &mut [&mut client, &mut server]),
        [Ok(5)]
    );
}

/// The kernel believes in the connection: only silence tells.
#[test]
fn a_silent_peer_is_given_up() {
    let world = World::new(58);
    let patient = || Endpoint::builder().ping(Duration::from_secs(200), Duration::from_secs(900));
    let (mut client, _at) = bind(&world, patient());
    let (mut server, server_at) = bind(&world, patient());
    let (aside, _) = serve(&mut server);
    let mut proxy = Proxy::new(&server_at, 58);
    call(&mut client, &proxy.path, "hold");
    let mut streams = Streams::new(&world, Some(&mut proxy));
    while aside.borrow().is_empty() {
        streams.step(&mut [&mut client, &mut server]);
    }
    // Who is there is asked, and believed in.
    let nothing = streams.event(&mut [&mut client, &mut server], 0, Duration::from_secs(40));
    assert_eq!(nothing, None);
    assert_eq!(client.metrics().connections_broken, 0);
    proxy.flows = [STOPPED; 2];
    let mut streams = Streams::new(&world, Some(&mut proxy));
    let begun = world.now();
    while client.metrics().connections_broken == 0 {
        streams.step(&mut [&mut client, &mut server]);
        let took = world.now() - begun;
        assert!(took < Duration::from_secs(12), "{took:?}");
    }
    let took = world.now() - begun;
    assert!(took > Duration::from_secs(8), "{took:?}");
}

#[test]
fn whoever_connects_and_says_nothing_is_let_go() {
    let world = World::new(59);
    let builder = Endpoint::builder().strangers(3, Duration::from_secs(2));
    let (mut server, server_at) = bind(&world, builder);
    let (mut client, _at) = bind(&world, Endpoint::builder());
    serve(&mut server);
    let mut streams = Streams::new(&world, None);
    streams.pace = Duration::ZERO;
    let mut strangers: Vec<_> = (0..5).map(|_| server_at.connect()).collect();
    streams.step(&mut [&mut server]);
    assert_eq!(server.sizes().connections, 3);
    assert_eq!(server.metrics().strangers_dismissed, 2);
    // The oldest goes for who has something to say.
    call(&mut client, &server_at, "hop");
    assert_eq!(
        words(&mut streams, &mut [&mut client, &mut server]),
        [Ok(4)]
    );
    assert_eq!(server.metrics().strangers_dismissed, 3);
    streams.pace = Duration::from_millis(100);
    while server.sizes().connections > 1 {
        streams.step(&mut [&mut server]);
        assert!(world.now() < Duration::from_secs(3));
    }
    assert!(world.now() > Duration::from_secs(1));
    for stranger in &mut strangers {
        let mut heard = Vec::new();
        stranger.read_to_end(&mut heard).expect("it was closed");
        assert!(!heard.is_empty(), "it was told why");
    }
    call(&mut client, &server_at, "hop");
    assert_eq!(
        words(&mut streams, &mut [&mut client, &mut server]),
        [Ok(4)]
    );
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    let world = World::new(60);
    let (mut server, server_at) = bind(&world, Endpoint::builder());
    let (mut client, _at) = bind(&world, Endpoint::builder());
    serve(&mut server);
    let mut random = Rng::with_seed(60);
    let mut broken = 0;
    for round in 0..200 {
        let len = 8 + round;
        let garbage: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let mut stranger = server_at.connect();
        stranger.write_all(&garbage).expect("there is room");
        drop(stranger);
        let mut streams = Streams::new(&world, None);
        streams.pace = Duration::ZERO;
        streams.step(&mut [&mut server]);
        assert_eq!(server.sizes().connections, usize::from(round > 0));
        broken = server.metrics().connections_broken;
        if round % 20 == 0 {
            call(&mut client, &server_at, "hop");
            let answers = words(&mut streams, &mut [&mut client, &mut server]);
            assert_eq!(answers, [Ok(4)], "round {round}");
        }
    }
    assert!(broken > 150, "{broken}");
}

/// Bytes are changed on their way: calls may fail, but what fails is told, and both sides live on.
#[test]
fn damaged_streams_end_and_calls_come_to_an_end() {
    for seed in 0..40 {
        let world = World::new(seed);
        let (mut client, _at) = bind(&world, Endpoint::builder());
        let (mut server, server_at) = bind(&world, Endpoint::builder());
        serve(&mut server);
        let mut proxy = Proxy::new(&server_at, seed);
        proxy.flows = [Flow {
            most: 1 << 20,
            damaged: 3000,
        }; 2];
        let mut streams = Streams::new(&world, Some(&mut proxy));
        for number in 0..5 {
            let target = work::one("a".repeat(number * 100));
            let to = Path::address(&streams.proxy.as_ref().expect("it is there").path);
            let sent = client.call(to, target, &CallOptions::default());
            sent.expect("it is sent");
        }
        for _ in 0..5 {
            streams.outcome(&mut [&mut client, &mut server]);
        }
        // Directly, all is well.
        call(&mut client, &server_at, "hop");
        let answers = words(&mut streams, &mut [&mut client, &mut server]);
        assert_eq!(answers, [Ok(4)], "seed {seed}");
    }
}

/// A client that sends requests and does not take their answers is not listened to any more, until it does.
#[test]
fn a_client_that_stops_reading_is_not_served_without_end() {
    const CALLS: u32 = 3000;
    let world = World::new(61);
    let mut limits = Limits::default();
    limits.waiting = 256 * 1024;
    let (mut server, server_at) = bind(&world, Endpoint::builder().limits(limits));
    let (mut client, _at) = bind(&world, Endpoint::builder());
    let (_, handled) = serve(&mut server);
    let mut proxy = Proxy::new(&server_at, 61);
    let to = Path::address(&proxy.path);
    let mut streams = Streams::new(&world, Some(&mut proxy));
    streams.pace = Duration::from_micros(10);
    // It is connected.
    let what = || work::one("a".repeat(4000));
    let sent = client.call(to.clone(), what(), &CallOptions::default());
    sent.expect("it is sent");
    words(&mut streams, &mut [&mut client, &mut server]);
    proxy.flows = [FREE, STOPPED];
    let mut streams = Streams::new(&world, Some(&mut proxy));
    streams.pace = Duration::from_micros(10);
    for _ in 0..CALLS {
        let sent = client.call(to.clone(), what(), &CallOptions::default());
        sent.expect("it is sent");
    }
    for _ in 0..500 {
        streams.step(&mut [&mut client, &mut server]);
    }
    // What the kernel's buffers hold is answered, too.
    let before = handled.get();
    assert!(before < 500, "{before} were answered");
    for _ in 0..100 {
        streams.step(&mut [&mut client, &mut server]);
    }
    assert_eq!(handled.get(), before);
    proxy.flows = [FREE; 2];
    let mut streams = Streams::new(&world, Some(&mut proxy));
    streams.pace = Duration::from_micros(10);
    for _ in 0..CALLS {
        let (answers, end) = streams.outcome(&mut [&mut client, &mut server]);
        assert!(matches!(end, Event::Complete { .. }), "{end:?}");
        assert!(answers.iter().all(Result::is_ok));
    }
    assert_eq!(handled.get(), CALLS + 1);
}

#[test]
fn streams_are_closed_that_nobody_needs_when_there_are_too_many() {
    let world = World::new(62);
    let mut limits = Limits::default();
    limits.connections = 2;
    let (mut client, _at) = bind(&world, Endpoint::builder().limits(limits));
    let mut servers: Vec<_> = (0..4).map(|_| bind(&world, Endpoint::builder())).collect();
    let mut streams = Streams::new(&world, None);
    for (server, _) in &mut servers {
        serve(server);
    }
    for _ in 0..2 {
        for (server, at) in &mut servers {
            call(&mut client, at, "hop");
            let answers = words(&mut streams, &mut [&mut client, server]);
            assert_eq!(answers, [Ok(4)]);
            assert!(client.sizes().connections <= 2);
        }
    }
}

/// A hundred connections are needed and came before the one that is not: that makes room all the same.
#[test]
fn streams_that_are_needed_hide_none_that_is_not() {
    const NEEDED: usize = 100;
    let world = World::new(63);
    let mut limits = Limits::default();
    limits.connections = NEEDED + 1;
    let (mut client, _at) = bind(&world, Endpoint::builder().limits(limits));
    let silent: Vec<_> = (0..NEEDED)
        .map(|_| bind(&world, Endpoint::builder()))
        .collect();
    for (_, at) in &silent {
        call(&mut client, at, "hop");
    }
    let mut servers: Vec<_> = (0..3).map(|_| bind(&world, Endpoint::builder())).collect();
    let mut streams = Streams::new(&world, None);
    for (server, at) in &mut servers {
        serve(server);
        call(&mut client, at, "hop");
        let answers = words(&mut streams, &mut [&mut client, server]);
        assert_eq!(answers, [Ok(4)]);
        assert_eq!(client.sizes().connections, NEEDED + 1);
    }
}

#[test]
fn addresses_that_cannot_be_listened_on_are_errors() {
    let path = Path::new();
    let _there = Endpoint::bind(&path.text()).expect("the path is free");
    for (address, expected) in [
        (path.text(), "cannot listen on unix:"),
        (path.shared(), "cannot listen on shm:"),
        ("mem://a".into(), "no transport for its scheme"),
        ("udp://127.0.0.1:0".into(), "one socket for datagrams"),
        ("somewhere".into(), "no address"),
    ] {
        let builder = Endpoint::builder().listen(&address);
        let error = builder.bind("udp://127.0.0.1:0").map(drop);
        let error = error.expect_err("it cannot be bound").to_string();
        assert!(error.contains(expected), "{error}");
    }
}
