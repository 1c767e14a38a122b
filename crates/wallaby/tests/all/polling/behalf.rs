//! Calls on behalf of requests: what they inherit, and that they end with them. In virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use wallaby::polling::{CallKey, CallOptions, Endpoint, Event, Request, RequestKey, RetryPolicy};
use wallaby::{Address, Budgets, Code, DurableId, Failure, One, Retry, Status};

use super::alone::{LONG, outcome, pair, work};
use super::world::{Link, World};

/// A request that is put aside, and the call that was made on its behalf.
type Asked = Rc<RefCell<Option<(RequestKey, CallKey)>>>;

/// Each request is put aside until a call to `next` on its behalf is over.
fn serve_asking(server: &mut Endpoint<Link>, next: Address, options: CallOptions) -> Asked {
    let asked = Asked::default();
    let tell = asked.clone();
    let serve = server.serve(
        &work::ONE,
        move |mut request: Request<'_, One<String>>, (what,)| {
            let call = request
                .raw()
                .call(next.clone(), work::one(what), &options)?;
            *tell.borrow_mut() = Some((request.hold(), call.key()));
            Ok(())
        },
    );
    serve.expect("no other has its name");
    asked
}

/// What a server sees of a request.
#[derive(Debug, Default)]
struct Seen {
    remaining: Duration,
    metadata: Vec<(String, String)>,
    durable: Option<DurableId>,
    budgets: Option<Budgets>,
}

fn serve_seeing(server: &mut Endpoint<Link>) -> Rc<RefCell<Seen>> {
    let seen = Rc::<RefCell<Seen>>::default();
    let tell = seen.clone();
    let serve = server.serve(&work::ONE, move |mut request, (what,)| {
        let raw = request.raw();
        let metadata = raw.metadata().iter();
        *tell.borrow_mut() = Seen {
            remaining: raw.remaining(),
            metadata: metadata
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            durable: raw.durable_id(),
            budgets: raw.budgets(),
        };
        Ok(request.respond(&format!("asked {what}"))?)
    });
    serve.expect("no other has its name");
    seen
}

/// Until the server's own call has ended; then its request is answered with what came.
fn answer_when_asked(
    world: &World,
    endpoints: &mut [&mut Endpoint<Link>],
    whose: usize,
    asked: &Asked,
) {
    let mut payload = None;
    loop {
        let event = world.event(endpoints, whose, LONG).expect("it ends");
        let (request, call) = asked.borrow().expect("a call was made");
        match event {
            Event::Answer(answer) => {
                assert_eq!(answer.call, call);
                payload = Some(answer.payload().expect("an answer"));
            }
            Event::Complete { call: ended, .. } => {
                assert_eq!(ended, call);
                let request = endpoints[whose].request(request).expect("it goes on");
                let payload = payload.expect("an answer");
                return request.respond(payload).expect("it is sent");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_call_inherits_from_its_request() {
    let (world, mut client, mut server) = pair(60);
    let mut next = world.bind(Endpoint::builder());
    let seen = serve_seeing(&mut next);
    let mut own = CallOptions::default();
    own.deadline = Some(LONG * 9);
    own.metadata.insert("mine", "1").expect("there is room");
    own.metadata.insert("both", "mine").expect("there is room");
    let asked = serve_asking(&mut server, next.address(), own);

    let mut options = CallOptions::default();
    options.deadline = Some(LONG);
    for key in ["both", "theirs"] {
        let inserted = options.metadata.insert(key, "theirs");
        inserted.expect("there is room");
    }
    let durable = DurableId::new(3, 4);
    options.durable = Some(durable);
    options.budgets = Some(Budgets {
        requests: 100,
        ..Budgets::default()
    });
    let target = work::one("hop".into());
    let call = client.call(server.address(), target, &options);
    let call = call.expect("it is sent");
    let mut all = [&mut client, &mut server, &mut next];
    answer_when_asked(&world, &mut all, 1, &asked);
    let answer = world.event(&mut all, 0, LONG);
    let Some(Event::Answer(answer)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(call.read(answer).expect("an answer"), "asked hop");

    let seen = seen.borrow();
    assert!(
        seen.remaining <= LONG && seen.remaining > LONG / 2,
        "{seen:?}"
    );
    let mut metadata = seen.metadata.clone();
    metadata.sort();
    let expected = [("both", "mine"), ("mine", "1"), ("theirs", "theirs")];
    let pairs = metadata.iter().map(|(key, value)| (&**key, &**value));
    assert!(pairs.eq(expected), "{metadata:?}");
    let names = [0, 1].map(|index| durable.initial(0).child(index).initial(0).key());
    assert_eq!(seen.durable.map(|id| id.key()), Some(names[0]));
    // Of 99 that came along the rule gives a call a quarter, and one for its request.
    let budgets = seen.budgets.expect("they are stated");
    assert_eq!(budgets.requests, 24);
}

/// However it is made: `budgets` tests the same on a runtime.
#[test]
fn the_only_request_of_a_call_has_all_of_its_budgets() {
    let (world, mut client, mut server) = pair(63);
    let (seen, at) = (serve_seeing(&mut server), server.address());
    let mut options = CallOptions::default();
    options.budgets = Some(Budgets {
        requests: 10,
        ..Budgets::default()
    });
    for how in ["call", "call_again", "multicast"] {
        let target = work::one("hop".into());
        let sent = match how {
            "call" => client.call(at.clone(), target, &options),
            "call_again" => {
                client.call_again(at.clone(), target, &options, &RetryPolicy::default())
            }
            _ => client.multicast([at.clone()], target, &options).remove(0),
        };
        sent.expect("it is sent");
        let (_, end) = outcome(&world, &mut [&mut client, &mut server]);
        assert!(matches!(end, Event::Complete { .. }), "{end:?}");
        let left = seen.take().budgets.map(|left| left.requests);
        assert_eq!(left, Some(9), "{how}");
    }
}

/// One is given up, the other one has no time left.
#[test]
fn a_call_ends_when_its_request_is_stopped() {
    for aborted in [true, false] {
        let (world, mut client, mut server) = pair(61);
        let mut next = world.bind(Endpoint::builder());
        let aside: Rc<RefCell<Option<RequestKey>>> = Rc::default();
        let keep = aside.clone();
        let serve = next.serve(&work::ONE, move |request, _| {
            *keep.borrow_mut() = Some(request.hold());
            Ok(())
        });
        serve.expect("no other has its name");
        let asked = serve_asking(&mut server, next.address(), CallOptions::default());
        let mut options = CallOptions::default();
        options.deadline = Some(Duration::from_secs(20));
        let target = work::one("hop".into());
        let call = client.call(server.address(), target, &options);
        let call = call.expect("it is sent").key();
        let mut all = [&mut client, &mut server, &mut next];
        while aside.borrow().is_none() {
            world.step(&mut all, LONG);
        }
        if aborted {
            all[0].abort(call);
        }
        let (request, nested) = asked.borrow().expect("a call was made");
        let mut told = Vec::new();
        while told.len() < 2 {
            match world.event(&mut all, 1, LONG).expect("it is told") {
                Event::Stopped {
                    request: stopped, ..
                } => {
                    assert_eq!(stopped, request);
                    told.push("stopped");
                }
                Event::Failed { call, failure } => {
                    assert_eq!(call, nested);
                    let by_itself = matches!(*failure, Failure::Deadline { .. });
                    let is_aborted = matches!(*failure, Failure::Aborted { .. });
                    assert!(is_aborted || by_itself && !aborted, "{failure}");
                    told.push("failed");
                }
                other => panic!("{other:?}"),
            }
        }
        told.sort_unstable();
        assert_eq!(told, ["failed", "stopped"]);
        // What it led to is stopped, too.
        let stopped = world.event(&mut all, 2, LONG);
        assert!(
            matches!(stopped, Some(Event::Stopped { .. })),
            "{stopped:?}"
        );
        assert!(all[1].request(request).is_none());
        let quiet = world.event(&mut all, 1, Duration::from_secs(5));
        assert_eq!(quiet, None);
        assert_eq!(all[1].sizes().calls, 0);
    }
}

/// A request that is answered before its call is over leaves that alone.
#[test]
fn a_call_outlives_a_request_that_is_answered() {
    let (world, mut client, mut server) = pair(62);
    let mut next = world.bind(Endpoint::builder());
    let _seen = serve_seeing(&mut next);
    let to = next.address();
    let serve = server.serve(&work::ONE, move |mut request, (what,)| {
        let options = CallOptions::default();
        let asked = request.raw().call(to.clone(), work::one(what), &options);
        asked.expect("it is sent");
        Ok(request.respond(&"at once".to_owned())?)
    });
    serve.expect("no other has its name");
    let target = work::one("hop".into());
    let call = client.call(server.address(), target, &CallOptions::default());
    call.expect("it is sent");
    let mut all = [&mut client, &mut server, &mut next];
    let answered = world.event(&mut all, 0, LONG);
    assert!(matches!(answered, Some(Event::Answer(_))), "{answered:?}");
    let asked = world.event(&mut all, 1, LONG);
    assert!(matches!(asked, Some(Event::Answer(_))), "{asked:?}");
    let ended = world.event(&mut all, 1, LONG);
    assert!(
        matches!(ended, Some(Event::Complete { statuses: 0, .. })),
        "{ended:?}"
    );
}

/// The metadata of both together are too much.
#[test]
fn a_call_that_would_inherit_too_much_does_not_begin() {
    let (world, mut client, mut server) = pair(63);
    let at = server.address();
    let mut own = CallOptions::default();
    let long = "x".repeat(5000);
    own.metadata.insert("mine", &*long).expect("there is room");
    let serve = server.serve(&work::ONE, move |mut request, (what,)| {
        let refused = request.raw().call(at.clone(), work::one(what), &own);
        let refused = refused.expect_err("too much");
        Ok(request.respond(&refused.to_string())?)
    });
    serve.expect("no other has its name");
    let mut options = CallOptions::default();
    let inserted = options.metadata.insert("theirs", &*long);
    inserted.expect("there is room");
    let target = work::one("hop".into());
    let call = client.call(server.address(), target, &options);
    let call = call.expect("it is sent");
    let mut all = [&mut client, &mut server];
    let answer = world.event(&mut all, 0, LONG);
    let Some(Event::Answer(answer)) = answer else {
        panic!("{answer:?}")
    };
    let said = call.read(answer).expect("an answer");
    assert!(said.contains("metadata of 10010 bytes"), "{said}");
    assert_eq!(all[1].sizes().calls, 0);
}

/// Each attempt is made on behalf of the request, under one name.
#[test]
fn a_call_on_behalf_of_a_request_is_made_again() {
    let (world, mut client, mut server) = pair(64);
    let mut next = world.bind(Endpoint::builder());
    let seen = Rc::<RefCell<Vec<Seen>>>::default();
    let tell = seen.clone();
    let serve = next.serve(&work::ONE, move |mut request, (what,)| {
        let raw = request.raw();
        let mut seen = tell.borrow_mut();
        seen.push(Seen {
            remaining: raw.remaining(),
            metadata: Vec::new(),
            durable: raw.durable_id(),
            budgets: raw.budgets(),
        });
        if seen.len() < 3 {
            return Err(Status::new(Code::ResourceExhausted, "not now"));
        }
        Ok(request.respond(&format!("asked {what}"))?)
    });
    serve.expect("no other has its name");
    let asked = serve_asking_again(&mut server, next.address());
    let mut options = CallOptions::default();
    options.deadline = Some(LONG);
    let durable = DurableId::new(3, 4);
    options.durable = Some(durable);
    options.budgets = Some(Budgets {
        requests: 100,
        ..Budgets::default()
    });
    let target = work::one("hop".into());
    let call = client.call(server.address(), target, &options);
    let call = call.expect("it is sent");
    let mut all = [&mut client, &mut server, &mut next];
    answer_when_asked(&world, &mut all, 1, &asked);
    let answer = world.event(&mut all, 0, LONG);
    let Some(Event::Answer(answer)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(call.read(answer).expect("an answer"), "asked hop");
    assert_eq!(all[1].metrics().retries, 2);

    let seen = seen.borrow();
    let name = durable.initial(0).child(0).initial(0).key();
    assert_eq!(seen.len(), 3);
    for seen in &*seen {
        assert!(seen.remaining <= LONG, "{seen:?}");
        assert_eq!(seen.durable.map(|id| id.key()), Some(name));
    }
    // Each has a share of what those before it have left.
    let left = seen
        .iter()
        .map(|seen| seen.budgets.map_or(0, |left| left.requests));
    let left: Vec<u64> = left.map(u64::from).collect();
    assert!(
        left[0] == 24 && left.is_sorted_by(|one, other| one > other),
        "{left:?}"
    );
}

/// As `serve_asking`, and the call is made again when it is refused, after a while.
fn serve_asking_again(server: &mut Endpoint<Link>, next: Address) -> Asked {
    let asked = Asked::default();
    let tell = asked.clone();
    let serve = server.serve(
        &work::ONE,
        move |mut request: Request<'_, One<String>>, (what,)| {
            let retry = Retry::idempotent(5).on(Code::ResourceExhausted);
            let long = Duration::from_secs(9);
            let policy = RetryPolicy::default().retry(retry.backoff(long, long));
            let (target, options) = (work::one(what), CallOptions::default());
            let raw = request.raw();
            let call = raw.call_again(next.clone(), target, &options, &policy)?;
            *tell.borrow_mut() = Some((request.hold(), call.key()));
            Ok(())
        },
    );
    serve.expect("no other has its name");
    asked
}

/// Also one that is between two attempts.
#[test]
fn no_attempt_outlives_a_request_that_is_stopped() {
    for pauses in [true, false] {
        let (world, mut client, mut server) = pair(65);
        let mut next = world.bind(Endpoint::builder());
        let count = Rc::<RefCell<u32>>::default();
        let counts = count.clone();
        let serve = next.serve(&work::ONE, move |request, _| {
            *counts.borrow_mut() += 1;
            if pauses {
                return Err(Status::new(Code::ResourceExhausted, "not now"));
            }
            request.hold();
            Ok(())
        });
        serve.expect("no other has its name");
        let asked = serve_asking_again(&mut server, next.address());
        let (target, options) = (work::one("hop".into()), CallOptions::default());
        let call = client.call(server.address(), target, &options);
        let call = call.expect("it is sent").key();
        let mut all = [&mut client, &mut server, &mut next];
        while all[1].metrics().statuses_received == 0 && (pauses || *count.borrow() == 0) {
            world.step(&mut all, LONG);
        }
        assert_eq!(all[1].next_event(), None, "it goes on");
        all[0].abort(call);
        let (request, nested) = asked.borrow().expect("a call was made");
        let mut told = Vec::new();
        while told.len() < 2 {
            match world.event(&mut all, 1, LONG).expect("it is told") {
                Event::Stopped { request: key, .. } => told.push(key == request),
                Event::Failed { call, failure } => {
                    let aborted = matches!(*failure, Failure::Aborted { .. });
                    told.push(aborted && call == nested);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(told, [true, true]);
        assert_eq!(world.event(&mut all, 1, LONG), None);
        assert_eq!((*count.borrow(), all[1].sizes().calls), (1, 0));
    }
}
