//! What polling endpoints tell of their methods and of their health: the same as those on tokio (`reflection`). In virtual time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use wallaby::codec::{Codec, Postcard};
use wallaby::polling::{CallKey, CallOptions, Endpoint, Event, Wait};
use wallaby::reflection::{Follows, LOAD, LoadReport, METHODS, MethodDescription};
use wallaby::{Answers, Body, CallError, Client, Code, Health, Method, Target, health};

use super::alone::{LONG, pair, work};
use super::world::{Link, World};

#[wallaby::service(package = "test.own")]
trait Index {
    async fn store(name: String, bytes: Body) -> u64;
}

static PROTECTED: Method<(u32,), wallaby::One<u32>> = Method::new("test.Work/one");

/// All answers of a call.
fn all<A: Answers, C: Codec<A::Item>>(
    world: &World,
    [client, server]: [&mut Endpoint<Link>; 2],
    target: Target<A, C>,
) -> Result<Vec<A::Item>, CallError> {
    let call = client.call(server.address(), target, &CallOptions::default())?;
    let mut answers = Vec::new();
    loop {
        match world.event(&mut [&mut *client, &mut *server], 0, LONG) {
            Some(Event::Answer(answer)) => answers.push(call.read(answer)),
            Some(Event::Complete { .. }) => return answers.into_iter().collect(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn methods_are_told_with_their_types() {
    let (world, mut client, mut server) = pair(1);
    let serve = server.serve_streaming(&index::STORE, |request, (_,), body: Body| {
        drop(body);
        Ok(request.respond(&0)?)
    });
    serve.expect("no other has its name");
    let told = all(
        &world,
        [&mut client, &mut server],
        METHODS.target(("test".into(),)),
    );
    let told = told.expect("all of them");
    let [method] = &told[..] else {
        panic!("{told:?}")
    };
    let method = MethodDescription::parse(method).expect("a description");
    assert_eq!(method.name, "test.own.Index/store");
    let definition = method.definition().expect("all of it is there");
    assert_eq!(definition, **index::STORE.definition());
    let signature = method.signature.expect("its types are known");
    assert!(signature.one && signature.follows == Follows::Bytes);
    assert_eq!(signature.text("?"), "(String, Body) -> u64");
    let all_of_them = all(
        &world,
        [&mut client, &mut server],
        METHODS.target((String::new(),)),
    );
    assert_eq!(all_of_them.expect("all of them").len(), 6);
}

/// Callers of other types, too, are told which are meant, unless the endpoint is told not to tell.
#[test]
fn an_endpoint_may_tell_nobody_what_it_serves() {
    for reflects in [true, false] {
        let world = World::new(2);
        let mut client = world.bind(Endpoint::builder());
        let mut server = world.bind(Endpoint::builder().reflection(reflects));
        let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
        serve.expect("no other has its name");
        let told = all(
            &world,
            [&mut client, &mut server],
            METHODS.target((String::new(),)),
        );
        match told {
            Ok(_) => assert!(reflects),
            Err(error) => assert!(!reflects && error.code() == Code::Unimplemented, "{error}"),
        }
        let mismatch = all(&world, [&mut client, &mut server], PROTECTED.target((7,)));
        let said = mismatch.expect_err("it takes a text").to_string();
        assert_eq!(said.contains("(String) -> String"), reflects, "{said}");
        let health = all(
            &world,
            [&mut client, &mut server],
            health::CHECK.target((String::new(),)),
        );
        assert_eq!(health, Ok(vec![Health::Serving]));
    }
}

#[test]
fn load_is_told() {
    let (world, mut client, mut server) = pair(3);
    world.pass(Duration::from_secs(7));
    let told = all(&world, [&mut client, &mut server], LOAD.target(()));
    let report = LoadReport::parse(&told.expect("an answer")[0]).expect("a report");
    assert_eq!(report.node, server.node().to_string());
    assert_eq!((report.running, report.waiting), (1, 0));
    assert!((7.0..8.0).contains(&report.up), "{}", report.up);
    assert_eq!(report.metrics.requests_received, 1);
}

/// The next thing that is told of a call.
fn next(world: &World, [client, server]: [&mut Endpoint<Link>; 2], of: CallKey) -> Option<Health> {
    match world.event(&mut [client, server], 0, LONG) {
        Some(Event::Answer(answer)) if answer.call == of => {
            let payload = answer.payload().expect("no status");
            Some(Postcard::decode(payload).expect("a health"))
        }
        Some(Event::Complete { call, statuses: 0 }) if call == of => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn health_is_told_and_watched() {
    let (world, mut client, mut server) = pair(4);
    let check = |client: &mut Endpoint<Link>, server: &mut Endpoint<Link>, service: &str| {
        all(
            &world,
            [client, server],
            health::CHECK.target((service.into(),)),
        )
    };
    let name = "test.Work";
    let unknown = check(&mut client, &mut server, name).expect_err("it is not served yet");
    assert_eq!(unknown.code(), Code::NotFound);
    let [watch, given_up] = [(); 2].map(|()| {
        let target = health::WATCH.target((name.into(),));
        let watch = client.call(server.address(), target, &CallOptions::default());
        watch.expect("it is sent").key()
    });
    for of in [watch, given_up] {
        assert_eq!(
            next(&world, [&mut client, &mut server], of),
            Some(Health::Unknown)
        );
    }
    // Of who watches no more its application hears nothing.
    client.stop_within(given_up, LONG);
    for _ in 0..2 {
        world
            .event(&mut [&mut client, &mut server], 0, LONG)
            .expect("it is told");
    }
    assert_eq!((server.load().running, server.next_event()), (1, None));

    let serve = server.serve(&work::ONE, |request, _| {
        request.hold();
        Ok(())
    });
    serve.expect("no other has its name");
    assert_eq!(
        next(&world, [&mut client, &mut server], watch),
        Some(Health::Serving)
    );
    server.set_health(name, Health::Serving); // is no news
    server.set_health(name, Health::NotServing);
    assert_eq!(
        next(&world, [&mut client, &mut server], watch),
        Some(Health::NotServing)
    );
    let asked = [name, "", "the database"].map(|of| check(&mut client, &mut server, of).ok());
    let [of_it, of_all, of_none] = asked;
    assert_eq!(of_it, Some(vec![Health::NotServing]));
    assert_eq!(
        of_all,
        Some(vec![Health::Serving]),
        "that is for the application to say"
    );
    assert_eq!(of_none, None);
    server.set_health(name, Health::Serving);
    assert_eq!(
        next(&world, [&mut client, &mut server], watch),
        Some(Health::Serving)
    );

    // Who watches holds no drain up.
    server.drain();
    assert_eq!(
        next(&world, [&mut client, &mut server], watch),
        Some(Health::NotServing)
    );
    assert_eq!(next(&world, [&mut client, &mut server], watch), None);
    while !server.is_drained() {
        world.step(&mut [&mut client, &mut server], LONG);
    }
}

/// As the program `wallaby` does it, which is on tokio: it makes calls by what it is told.
#[test]
fn tools_list_call_and_ask_a_polling_endpoint() {
    let over = Arc::new(AtomicBool::new(false));
    let (ends, (tell, told)) = (Arc::clone(&over), mpsc::channel());
    let thread = thread::spawn(move || {
        let mut server = Endpoint::bind("tcp://127.0.0.1:0").expect("a port");
        let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
        serve.expect("no other has its name");
        tell.send(server.address()).expect("somebody waits");
        while !ends.load(Ordering::Relaxed) {
            let turned = server.turn(Wait::For(Duration::from_millis(20)));
            turned.expect("its sockets live");
            assert_eq!(server.next_event(), None);
        }
    });
    let server = told.recv().expect("it starts");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let endpoint = wallaby::Endpoint::client().expect("it needs nothing");
        let client = Client::new(&endpoint, server);
        let told = client.call(&METHODS, ("test.".into(),)).collect().await;
        let method = MethodDescription::parse(&told.expect("all of them")[0]);
        let definition = method.expect("a description").definition();
        let definition = Arc::new(definition.expect("all of it is there"));
        let arguments = Postcard::encode(&("hop".to_owned(),)).expect("a text");
        let mut call = client.call_raw(&definition, arguments.clone());
        let answer = call.next().await.expect("an answer").expect("no status");
        assert_eq!(answer.payload, arguments);
        let load = client.call(&LOAD, ()).await.expect("an answer");
        assert_eq!(LoadReport::parse(&load).expect("a report").running, 1);
        let healthy = client.call(&health::CHECK, ("test.Work".into(),)).await;
        assert_eq!(healthy, Ok(Health::Serving));
    });
    over.store(true, Ordering::Relaxed);
    thread.join().expect("no panic");
}
