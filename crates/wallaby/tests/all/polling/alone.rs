//! What polling endpoints do among themselves, in virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use wallaby::codec::{Codec, CodecError, Format, Postcard};
use wallaby::polling::{CallOptions, Endpoint, Event, Request, RequestKey};
use wallaby::{
    Address, CallError, Code, ExecutorConfig, Failure, Many, Metadata, Method, One, Schedule,
    SendError, ServeError, Status,
};

use super::world::{Link, World};

#[wallaby::service(package = "test")]
pub(crate) trait Work {
    async fn many(what: String) -> Many<String>;
    async fn one(what: String) -> String;
}

pub(crate) const LONG: Duration = Duration::from_secs(100);

/// Two endpoints; the second one serves.
pub(crate) fn pair(seed: u64) -> (World, Endpoint<Link>, Endpoint<Link>) {
    let world = World::new(seed);
    let client = world.bind(Endpoint::builder());
    let server = world.bind(Endpoint::builder());
    (world, client, server)
}

/// All that comes of one call: its answers in order, and how it ends.
pub(crate) fn outcome(
    world: &World,
    endpoints: &mut [&mut Endpoint<Link>],
) -> (Vec<Result<String, CallError>>, Event) {
    let mut answers = Vec::new();
    loop {
        match world.event(endpoints, 0, LONG).expect("it ends") {
            Event::Answer(answer) => {
                let payload = answer.payload();
                answers.push(
                    payload.map(|payload| String::from_utf8_lossy(&payload[1..]).into_owned()),
                );
            }
            event => return (answers, event),
        }
    }
}

fn status(answer: &Result<String, CallError>) -> &Status {
    answer
        .as_ref()
        .expect_err("a status")
        .status()
        .expect("a status")
}

/// Postcard that can read no answer.
struct Picky;

impl Format for Picky {
    const NAME: &'static str = "postcard";
}

impl Codec<(String,)> for Picky {
    fn encode(arguments: &(String,)) -> Result<Bytes, CodecError> {
        Postcard::encode(arguments)
    }

    fn decode(payload: Bytes) -> Result<(String,), CodecError> {
        Postcard::decode(payload)
    }
}

impl Codec<String> for Picky {
    fn encode(answer: &String) -> Result<Bytes, CodecError> {
        Postcard::encode(answer)
    }

    fn decode(_: Bytes) -> Result<String, CodecError> {
        Err(CodecError::new("picky", "no"))
    }
}

static PICKY: Method<(String,), One<String>, Picky> = Method::new("test.Work/one");

#[test]
fn an_answer_that_cannot_be_read_says_whose_it_is() {
    let (world, mut client, mut server) = pair(1);
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let target = PICKY.target(("hop".into(),));
    let call = client.call(server.address(), target, &CallOptions::default());
    let call = call.expect("it is sent");
    let address = server.address();
    let mut endpoints = [&mut client, &mut server];
    let Some(Event::Answer(answer)) = world.event(&mut endpoints, 0, LONG) else {
        panic!("no answer");
    };
    let error = client.read(call, answer).expect_err("it cannot be read");
    assert_eq!(error.server(), Some(&address));
    let expected = format!(
        "test.Work/one (request 0) at {address} sent an answer that cannot be read: picky: no"
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn typed_calls_are_answered() {
    let (world, mut client, mut server) = pair(1);
    let serve = server.serve(&work::MANY, |mut request, (what,)| {
        for word in what.split(' ') {
            request.reply(&word.to_owned())?;
        }
        Ok(())
    });
    serve.expect("no other has its name");
    let target = work::many("to be or not".into());
    let call = client
        .call(server.address(), target, &CallOptions::default())
        .expect("it is sent");
    let mut words = Vec::new();
    loop {
        match world
            .event(&mut [&mut client, &mut server], 0, LONG)
            .expect("it ends")
        {
            Event::Answer(answer) => {
                assert!(call.owns(&answer));
                words.push(call.read(answer).expect("a word"));
            }
            Event::Complete {
                call: ended,
                statuses,
            } => {
                assert_eq!((ended, statuses), (call.key(), 0));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(words, ["to", "be", "or", "not"]);
    assert_eq!(client.sizes().calls, 0);
}

/// What nobody serves by its name is handed on as it came; what has a name, now or later, is not.
#[test]
fn a_gateway_hands_on_what_it_does_not_know() {
    let (world, mut client, mut behind) = pair(1);
    let mut gateway = world.bind(Endpoint::builder());
    let answer = |from: &'static str| {
        move |request: Request<'_, One<_>, _>, (what,): (String,)| {
            Ok(request.respond(&format!("{from}: {what}"))?)
        }
    };
    behind.serve(&work::ONE, answer("behind")).expect("free");
    let to = behind.address();
    let mut rest = || {
        let to = to.clone();
        gateway.serve_rest(move |request, payload| Ok(request.pass_on(to.clone(), payload)?))
    };
    assert_eq!(rest(), Ok(()));
    let taken = ServeError::Taken { name: "*".into() };
    assert_eq!(rest(), Err(taken));
    let mut ask = |gateway: &mut Endpoint<Link>| {
        let target = work::one("greet".into());
        let sent = client.call(gateway.address(), target, &CallOptions::default());
        sent.expect("it is sent");
        outcome(&world, &mut [&mut client, gateway, &mut behind]).0
    };
    assert_eq!(ask(&mut gateway), [Ok("behind: greet".into())]);
    gateway.serve(&work::ONE, answer("gateway")).expect("free");
    assert_eq!(ask(&mut gateway), [Ok("gateway: greet".into())]);
}

#[test]
fn statuses_panics_and_missing_answers_are_told() {
    let (world, mut client, mut server) = pair(2);
    let serve = server.serve(&work::ONE, |request, (what,)| match &*what {
        "fail" => Err(Status::new(Code::NotFound, "not here")),
        "panic" => panic!("as planned"),
        "forget" => Ok(()),
        "late" => {
            request.respond(&"first".into())?;
            Err(Status::new(Code::Internal, "too late"))
        }
        _ => Ok(request.respond(&what)?),
    });
    serve.expect("no other has its name");
    let mut ask = |what: &str| {
        let call = client.call(
            server.address(),
            work::one(what.into()),
            &CallOptions::default(),
        );
        call.expect("it is sent");
        outcome(&world, &mut [&mut client, &mut server])
    };
    for (what, code, text) in [
        ("fail", Code::NotFound, "not here"),
        ("panic", Code::Panicked, "as planned"),
        (
            "forget",
            Code::Unanswered,
            "test.Work/one ended without an answer",
        ),
    ] {
        let (answers, end) = ask(what);
        assert!(
            matches!(end, Event::Complete { statuses: 1, .. }),
            "{end:?}"
        );
        let status = status(&answers[0]);
        assert_eq!(status.code(), code);
        assert!(status.message().contains(text), "{status}");
    }
    let (answers, end) = ask("late");
    assert_eq!(answers, [Ok("first".to_owned())]);
    assert!(matches!(end, Event::Complete { statuses: 0, .. }));
    // It lives on after all of this.
    assert_eq!(ask("well").0, [Ok("well".to_owned())]);
    let counters = server.metrics();
    assert_eq!((counters.panics, counters.late_errors), (1, 1));
}

#[test]
fn methods_that_are_not_served_or_of_other_types_are_statuses() {
    static OTHER: wallaby::Method<(u64,), wallaby::One<String>> =
        wallaby::Method::new("test.Work/one");
    let (world, mut client, mut server) = pair(3);
    let ask = |client: &mut Endpoint<Link>, server: &mut Endpoint<Link>| {
        let call = client.call(
            server.address(),
            work::one("hop".into()),
            &CallOptions::default(),
        );
        call.expect("it is sent");
        outcome(&world, &mut [client, server]).0
    };
    let answers = ask(&mut client, &mut server);
    assert_eq!(status(&answers[0]).code(), Code::Unimplemented);
    // Registered later, it is found by the name that the peer has told before.
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    assert_eq!(ask(&mut client, &mut server), [Ok("hop".to_owned())]);
    client
        .call(
            server.address(),
            OTHER.target((7,)),
            &CallOptions::default(),
        )
        .expect("it is sent");
    let answers = outcome(&world, &mut [&mut client, &mut server]).0;
    assert_eq!(status(&answers[0]).code(), Code::Mismatch);
    let again = server.serve(&work::ONE, |_, _| Ok(()));
    assert!(matches!(again, Err(wallaby::ServeError::Taken { .. })));
}

#[test]
fn requests_that_are_put_aside_are_answered_later() {
    let (world, mut client, mut server) = pair(4);
    let aside: Rc<RefCell<Vec<RequestKey>>> = Rc::default();
    let keys = aside.clone();
    let serve = server.serve(&work::MANY, move |mut request, (what,)| {
        request.reply(&what)?;
        keys.borrow_mut().push(request.hold());
        Ok(())
    });
    serve.expect("no other has its name");
    let call = client.call(
        server.address(),
        work::many("first".into()),
        &CallOptions::default(),
    );
    let call = call.expect("it is sent");
    // What it sent before leaves at once, not with what may come.
    let event = world
        .event(&mut [&mut client, &mut server], 0, LONG)
        .expect("an answer");
    let Event::Answer(answer) = event else {
        panic!("{event:?}")
    };
    assert_eq!(call.read(answer).expect("a word"), "first");
    // For long nothing comes, and it is no failure: the server says that the request runs.
    assert_eq!(
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(30)),
        None
    );
    let key = aside.borrow_mut().pop().expect("it was put aside");
    let mut request = server.request(key).expect("it has not ended");
    assert_eq!(request.method(), "test.Work/many");
    request
        .reply(bytes::Bytes::from_static(b"\x06second"))
        .expect("it is sent");
    assert_eq!(request.hold(), key);
    let request = server.request(key).expect("it has not ended");
    request
        .respond(bytes::Bytes::from_static(b"\x05third"))
        .expect("it is sent");
    assert!(server.request(key).is_none());
    let (answers, end) = outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(answers, [Ok("second".to_owned()), Ok("third".to_owned())]);
    assert!(
        matches!(end, Event::Complete { statuses: 0, .. }),
        "{end:?}"
    );
}

#[test]
fn what_is_delegated_is_answered_by_who_gets_it() {
    let (world, mut client, mut server) = pair(5);
    let mut last = world.bind(Endpoint::builder());
    let to = last.address();
    let serve = server.serve(&work::MANY, move |mut request, (what,)| {
        assert_eq!(request.raw().metadata().get("who"), Some("me"));
        request.reply(&format!("{what} here"))?;
        request.delegate(to.clone(), work::one(what.clone()))?;
        request.forward(to.clone(), work::many(what))?;
        Ok(())
    });
    serve.expect("no other has its name");
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = seen.clone();
    let serve = last.serve(&work::ONE, move |mut request, (what,)| {
        let raw = request.raw();
        noted
            .borrow_mut()
            .push((raw.depth(), raw.initiator(), raw.delegator()));
        Ok(request.respond(&format!("{what} there"))?)
    });
    serve.expect("no other has its name");
    let serve = last.serve(&work::MANY, |request, (what,)| {
        Ok(request.respond(&format!("{what} last"))?)
    });
    serve.expect("no other has its name");
    let mut options = CallOptions::default();
    options.metadata = Metadata::default();
    options.metadata.insert("who", "me").expect("short");
    options.budgets = Some(wallaby::Budgets {
        requests: 10,
        responses: 1000,
        bytes: 1000,
        depth: 3,
    });
    client
        .call(server.address(), work::many("hop".into()), &options)
        .expect("it is sent");
    let (mut answers, end) = outcome(&world, &mut [&mut client, &mut server, &mut last]);
    answers.sort_by_key(|answer| format!("{answer:?}"));
    let expected = ["hop here", "hop last", "hop there"].map(|text| Ok(text.to_owned()));
    assert_eq!(answers, expected);
    assert!(
        matches!(end, Event::Complete { statuses: 0, .. }),
        "{end:?}"
    );
    assert_eq!(*seen.borrow(), [(1, client.node(), Some(server.node()))]);
}

#[test]
fn a_server_may_hand_work_to_itself_and_back_to_the_initiator() {
    let (world, mut client, mut server) = pair(6);
    let (own, back) = (server.address(), client.address());
    let serve = server.serve(&work::MANY, move |mut request, (what,)| {
        if what == "inner" {
            return Ok(request.respond(&"from itself".into())?);
        }
        request.delegate(own.clone(), work::many("inner".into()))?;
        request.delegate(back.clone(), work::one("outer".into()))?;
        Ok(())
    });
    serve.expect("no other has its name");
    let serve = client.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    client
        .call(
            server.address(),
            work::many("hop".into()),
            &CallOptions::default(),
        )
        .expect("it is sent");
    let (mut answers, end) = outcome(&world, &mut [&mut client, &mut server]);
    answers.sort_by_key(|answer| format!("{answer:?}"));
    assert_eq!(
        answers,
        [Ok("from itself".to_owned()), Ok("outer".to_owned())]
    );
    assert!(
        matches!(end, Event::Complete { statuses: 0, .. }),
        "{end:?}"
    );
}

#[test]
fn calls_of_several_initial_requests_complete_when_they_are_closed() {
    let (world, mut client, mut server) = pair(7);
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let call = client
        .begin(&CallOptions::default())
        .expect("there is room");
    for word in ["one", "two", "three"] {
        let payload = postcard(word);
        let sent = client.send(call, server.address(), work::ONE.definition(), payload);
        sent.expect("it is sent");
    }
    let mut words = Vec::new();
    while let Some(Event::Answer(answer)) =
        world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(1))
    {
        let payload = answer.payload().expect("an answer");
        words.push(String::from_utf8_lossy(&payload[1..]).into_owned());
    }
    words.sort();
    assert_eq!(words, ["one", "three", "two"]);
    client.close_call(call);
    let event = world.event(&mut [&mut client, &mut server], 0, LONG);
    assert_eq!(event, Some(Event::Complete { call, statuses: 0 }));
    let late = client.send(
        call,
        server.address(),
        work::ONE.definition(),
        postcard("four"),
    );
    assert_eq!(late, Err(Failure::CallClosed));
}

fn postcard(word: &str) -> bytes::Bytes {
    let mut payload = vec![word.len() as u8];
    payload.extend_from_slice(word.as_bytes());
    payload.into()
}

#[test]
fn messages_of_one_turn_to_one_peer_share_datagrams() {
    let (world, mut client, mut server) = pair(8);
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let ask = |client: &mut Endpoint<Link>, server: &mut Endpoint<Link>, calls: usize| {
        for _ in 0..calls {
            let call = client.call(
                server.address(),
                work::one("hop".into()),
                &CallOptions::default(),
            );
            call.expect("it is sent");
        }
        let mut complete = 0;
        while complete < calls {
            let event = world.event(&mut [&mut *client, &mut *server], 0, LONG);
            complete += usize::from(matches!(event, Some(Event::Complete { .. })));
        }
    };
    ask(&mut client, &mut server, 1);
    let before = client.metrics().datagrams_sent + server.metrics().datagrams_sent;
    ask(&mut client, &mut server, 100);
    let sent = client.metrics().datagrams_sent + server.metrics().datagrams_sent - before;
    assert!(sent < 30, "{sent} datagrams for 100 calls");
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let (world, mut client, mut server) = pair(9);
    let elsewhere: Address = "mem://elsewhere".parse().expect("an address");
    let failed = client.call(
        elsewhere.clone(),
        work::one("hop".into()),
        &CallOptions::default(),
    );
    let failure = failed.expect_err("no such transport");
    assert!(matches!(failure, Failure::NotSent { .. }), "{failure}");
    assert!(failure.to_string().contains("no transport"), "{failure}");
    let large = client.call(
        server.address(),
        work::one("a".repeat(70_000)),
        &CallOptions::default(),
    );
    assert!(
        matches!(large, Err(Failure::TooLarge { limit: 65_536, .. })),
        "{large:?}"
    );
    assert_eq!(client.next_event(), None);
    assert_eq!(client.sizes().calls, 0);

    let error = Rc::new(RefCell::new(None));
    let noted = error.clone();
    let serve = server.serve(&work::ONE, move |request, (what,)| {
        let forwarded = request.forward(elsewhere.clone(), work::one(what));
        *noted.borrow_mut() = forwarded.err();
        Ok(())
    });
    serve.expect("no other has its name");
    client
        .call(
            server.address(),
            work::one("hop".into()),
            &CallOptions::default(),
        )
        .expect("it is sent");
    let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
    assert!(matches!(
        *error.borrow(),
        Some(SendError::NoTransport { .. })
    ));
    // An error that was ignored is the request's end all the same.
    assert_eq!(status(&answers[0]).code(), Code::FailedPrecondition);
}

/// What is put aside has a place, others wait for it, and both are finished by an endpoint that shuts down.
#[test]
fn requests_wait_for_their_turn_and_all_are_done_before_the_end() {
    let world = World::new(91);
    let mut client = world.bind(Endpoint::builder());
    let executor = ExecutorConfig {
        concurrency: 1,
        queue: 1,
        schedule: Schedule::OldestCall,
    };
    let mut server = world.bind(Endpoint::builder().executor(executor));
    let aside: Rc<RefCell<Vec<RequestKey>>> = Rc::default();
    let keys = aside.clone();
    let serve = server.serve(&work::ONE, move |request, (_,)| {
        keys.borrow_mut().push(request.hold());
        Ok(())
    });
    serve.expect("no other has its name");
    let call = |client: &mut Endpoint<Link>, server: &Endpoint<Link>| {
        let target = work::one("hop".into());
        let call = client.call(server.address(), target, &CallOptions::default());
        call.expect("it is sent");
    };
    let refused = |client: &mut Endpoint<Link>, server: &mut Endpoint<Link>| {
        let (answers, _) = outcome(&world, &mut [client, server]);
        status(&answers[0]).code()
    };
    let answer = |server: &mut Endpoint<Link>| {
        let key = aside.borrow_mut().pop().expect("one was put aside");
        let request = server.request(key).expect("it has not ended");
        let sent = request.respond(bytes::Bytes::from_static(b"\x03hop"));
        sent.expect("it is sent");
    };
    (0..3).for_each(|_| call(&mut client, &server));
    assert_eq!(
        refused(&mut client, &mut server),
        Code::ResourceExhausted,
        "one runs and one waits"
    );
    assert_eq!((server.load().running, server.load().waiting), (1, 1));

    server.drain();
    call(&mut client, &server);
    assert_eq!(refused(&mut client, &mut server), Code::Unavailable);
    for left in [true, false] {
        assert!(!server.is_drained());
        answer(&mut server);
        let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
        assert_eq!(answers, [Ok("hop".to_owned())]);
        assert_eq!(aside.borrow().len(), usize::from(left));
    }
    let nothing = world.event(&mut [&mut client, &mut server], 0, LONG);
    assert_eq!(nothing, None);
    assert!(server.is_drained());
}

#[test]
fn no_more_calls_live_than_may() {
    let world = World::new(10);
    let mut limits = wallaby::polling::Limits::default();
    limits.calls = 2;
    let mut client = world.bind(Endpoint::builder().limits(limits));
    let first = client
        .begin(&CallOptions::default())
        .expect("there is room");
    client
        .begin(&CallOptions::default())
        .expect("there is room");
    let third = client.begin(&CallOptions::default());
    assert_eq!(third, Err(Failure::TooManyCalls { limit: 2 }));
    client.close_call(first);
    client
        .begin(&CallOptions::default())
        .expect("there is room again");
}

#[test]
fn connections_are_closed_that_nobody_needs_when_there_are_too_many() {
    let world = World::new(11);
    let mut limits = wallaby::polling::Limits::default();
    limits.connections = 2;
    let mut client = world.bind(Endpoint::builder().limits(limits));
    let mut servers: Vec<_> = (0..4).map(|_| world.bind(Endpoint::builder())).collect();
    for server in &mut servers {
        let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
        serve.expect("no other has its name");
    }
    for round in 0..2 {
        for server in &mut servers {
            let call = client.call(
                server.address(),
                work::one("hop".into()),
                &CallOptions::default(),
            );
            call.expect("it is sent");
            let (answers, _) = outcome(&world, &mut [&mut client, &mut *server]);
            assert_eq!(answers, [Ok("hop".to_owned())], "round {round}");
            // Until all is acknowledged its session is needed.
            world.event(&mut [&mut client, &mut *server], 0, Duration::from_secs(1));
            assert!(client.sizes().connections <= 2);
        }
    }
}

/// Answers that the application does not take hold their server up, and nobody else; what waits there is bounded.
#[test]
fn a_server_waits_for_an_application_that_takes_no_answers() {
    let world = World::new(12);
    let mut limits = wallaby::polling::Limits::default();
    limits.call = 4096;
    let mut client = world.bind(Endpoint::builder().limits(limits));
    let mut limits = wallaby::polling::Limits::default();
    limits.waiting = 20_000;
    let mut server = world.bind(Endpoint::builder().limits(limits));
    let refused = Rc::new(RefCell::new(0));
    let noted = refused.clone();
    let serve = server.serve(&work::MANY, move |mut request, _| {
        for number in 0..100 {
            let sent = request.reply(&format!("{number:0500}"));
            match sent {
                Ok(()) => {}
                Err(SendError::Full) => *noted.borrow_mut() += 1,
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    });
    serve.expect("no other has its name");
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let slow = client.call(
        server.address(),
        work::many("a".into()),
        &CallOptions::default(),
    );
    let slow = slow.expect("it is sent");
    for _ in 0..1000 {
        world.step(&mut [&mut client, &mut server], Duration::from_millis(1));
    }
    // 100 answers of 500 bytes: some are at the client, some wait at the server, the others were refused.
    let held_back = *refused.borrow();
    assert!((40..80).contains(&held_back), "{held_back} were refused");
    // Another call passes.
    let quick = client.call(
        server.address(),
        work::one("quick".into()),
        &CallOptions::default(),
    );
    let quick = quick.expect("it is sent");
    for _ in 0..10 {
        world.step(&mut [&mut client, &mut server], Duration::from_millis(1));
    }
    let (mut answers, mut ended) = (0, Vec::new());
    while ended.len() < 2 {
        match world
            .event(&mut [&mut client, &mut server], 0, LONG)
            .expect("they end")
        {
            Event::Answer(answer) if quick.owns(&answer) => {
                assert_eq!(quick.read(answer).expect("an answer"), "quick");
            }
            Event::Answer(answer) => {
                assert_eq!(slow.read(answer).expect("an answer").len(), 500);
                answers += 1;
            }
            Event::Complete { call, .. } => ended.push(call),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, [quick.key(), slow.key()]);
    assert_eq!(answers + held_back, 100);
}

/// Sends on what is left of a hundred answers; whether that is all.
fn send_on(request: &mut Request<'_, Many<String>>, sent: &mut usize) -> Result<bool, SendError> {
    while *sent < 100 {
        match request.reply(&format!("{sent:0500}")) {
            Ok(()) => *sent += 1,
            Err(SendError::Full) => return Ok(false),
            Err(other) => return Err(other),
        }
    }
    Ok(true)
}

/// It is put aside meanwhile, and nothing else makes it go on.
#[test]
fn a_request_that_was_refused_room_is_told_when_there_is_some() {
    let world = World::new(12);
    let mut limits = wallaby::polling::Limits::default();
    limits.call = 4096;
    let mut client = world.bind(Endpoint::builder().limits(limits));
    let mut limits = wallaby::polling::Limits::default();
    limits.waiting = 20_000;
    let mut server = world.bind(Endpoint::builder().limits(limits));
    let held: Rc<RefCell<BTreeMap<RequestKey, usize>>> = Rc::default();
    let hold = Rc::clone(&held);
    let serve = server.serve(&work::MANY, move |mut request, _| {
        let mut sent = 0;
        if !send_on(&mut request, &mut sent)? {
            hold.borrow_mut().insert(request.hold(), sent);
        }
        Ok(())
    });
    serve.expect("no other has its name");
    let to = server.address();
    for _ in 0..3 {
        let call = client.call(to.clone(), work::many("a".into()), &CallOptions::default());
        call.expect("it is sent");
    }
    let (mut answers, mut complete, mut rooms) = (0, 0, 0);
    while complete < 3 {
        world.step(&mut [&mut client, &mut server], Duration::from_millis(1));
        while let Some(event) = server.next_event() {
            let Event::Room { request } = event else {
                panic!("{event:?}");
            };
            rooms += 1;
            let mut sent = held
                .borrow_mut()
                .remove(&request)
                .expect("it was put aside");
            let request = server.request(request).expect("it goes on");
            let mut request = request.typed(&work::MANY);
            if !send_on(&mut request, &mut sent).expect("nothing is wrong with it") {
                held.borrow_mut().insert(request.hold(), sent);
            }
        }
        match client.next_event() {
            Some(Event::Answer(_)) => answers += 1,
            Some(Event::Complete { .. }) => complete += 1,
            None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(answers, 300);
    assert!(rooms >= 3, "{rooms}");
    assert!(held.borrow().is_empty());
}

#[test]
fn a_call_fails_at_once_if_too_much_waits_already() {
    let world = World::new(13);
    let mut limits = wallaby::polling::Limits::default();
    limits.waiting = 5000;
    let mut client = world.bind(Endpoint::builder().limits(limits));
    let nowhere = Address::Udp(([10, 0, 0, 9], 9).into());
    let mut call = || {
        let target = work::one("a".repeat(1000));
        client.call(nowhere.clone(), target, &CallOptions::default())
    };
    for _ in 0..4 {
        call().expect("it waits for its connection");
    }
    let failure = call().expect_err("too much waits");
    assert!(matches!(failure, Failure::Refused { .. }), "{failure}");
    // The others fail when nobody has answered, and room is there again.
    for _ in 0..4 {
        let event = world.event(&mut [&mut client], 0, LONG);
        assert!(matches!(event, Some(Event::Failed { .. })), "{event:?}");
    }
    let again = client.call(
        nowhere.clone(),
        work::one("a".into()),
        &CallOptions::default(),
    );
    again.expect("it waits for its connection");
}

/// One of the servers is not there, another one fails: that is their outcome alone.
#[test]
fn the_same_request_goes_to_many_servers_and_each_has_its_outcome() {
    let (world, mut client, mut first) = pair(70);
    let (mut failing, mut last) = (
        world.bind(Endpoint::builder()),
        world.bind(Endpoint::builder()),
    );
    let gone = world.bind(Endpoint::builder()).address();
    for (name, server) in [("first", &mut first), ("last", &mut last)] {
        let serve = server.serve(&work::ONE, move |mut request, (what,)| {
            let id = request.raw().durable_id().expect("it has a name");
            Ok(request.respond(&format!("{name} {what} {:?}", id.key()))?)
        });
        serve.expect("no other has its name");
    }
    let serve = failing.serve(&work::ONE, |_, _| {
        Err(Status::new(Code::NotFound, "not here"))
    });
    serve.expect("no other has its name");
    let mut options = CallOptions::default();
    options.deadline = Some(LONG / 2);
    let id = wallaby::DurableId::new(1, 2);
    options.durable = Some(id);
    let forbidden: Address = "mem://nobody".parse().expect("an address");
    let servers = [
        first.address(),
        forbidden,
        failing.address(),
        gone,
        last.address(),
    ];
    let calls = client.multicast(servers, work::one("hop".into()), &options);
    assert!(matches!(calls[1], Err(Failure::NotSent { .. })));
    let mut outcomes = vec![None; calls.len()];
    let mut open = calls.iter().filter(|call| call.is_ok()).count();
    assert_eq!(open, 4);
    while open > 0 {
        let mut all = [&mut client, &mut first, &mut failing, &mut last];
        let event = world.event(&mut all, 0, LONG).expect("it ends");
        let place = |key| {
            let is = |call: &Result<wallaby::polling::Call<_, _>, _>| {
                call.as_ref().is_ok_and(|call| call.key() == key)
            };
            calls.iter().position(is).expect("one of the calls")
        };
        match event {
            Event::Answer(answer) => {
                let place = place(answer.call);
                let call = calls[place].as_ref().expect("it was sent");
                outcomes[place] = Some(call.read(answer));
            }
            Event::Failed { call, failure } => {
                outcomes[place(call)] = Some(Err(CallError::Failed(*failure)));
                open -= 1;
            }
            Event::Complete { .. } => open -= 1,
            other => panic!("{other:?}"),
        }
    }
    let name = |place| id.initial(place).initial(0).key();
    let answer = |name: &str, key| Some(Ok(format!("{name} hop {key:?}")));
    assert_eq!(outcomes[0], answer("first", name(0)));
    assert_eq!(outcomes[4], answer("last", name(4)));
    let failed = outcomes[2].as_ref().expect("a status");
    assert_eq!(status(failed).code(), Code::NotFound);
    let gone = outcomes[3].as_ref().expect("a failure");
    assert!(matches!(gone, Err(CallError::Failed(_))), "{gone:?}");
}
