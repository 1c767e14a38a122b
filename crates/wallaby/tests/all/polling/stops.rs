//! Waiting until nothing of a call runs any more. In virtual time, but for servers whose handlers go on: these are on tokio.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use wallaby::polling::{CallKey, CallOptions, Endpoint, Event, RequestKey, RetryPolicy, Wait};
use wallaby::{Address, Failure, One, Request, Retry, Service, StillRunning};

use super::alone::{LONG, pair, work};
use super::world::{Link, World};

const SECOND: Duration = Duration::from_secs(1);

/// Puts all requests aside.
fn serve_holding(server: &mut Endpoint<Link>) -> Rc<Cell<Option<RequestKey>>> {
    let held = Rc::new(Cell::new(None));
    let holds = Rc::clone(&held);
    let serve = server.serve(&work::ONE, move |request, _| {
        holds.set(Some(request.hold()));
        Ok(())
    });
    serve.expect("no other has its name");
    held
}

fn call(client: &mut Endpoint<Link>, server: &Endpoint<Link>) -> CallKey {
    let (target, options) = (work::one("hop".into()), CallOptions::default());
    let call = client.call(server.address(), target, &options);
    call.expect("it is sent").key()
}

/// The end of a call that was given up, and what runs of it when that is told.
fn settled(
    world: &World,
    all: &mut [&mut Endpoint<Link>],
    of: CallKey,
) -> Result<(), Box<StillRunning>> {
    let end = world.event(all, 0, LONG);
    let aborted = |failure: &Failure| matches!(failure, Failure::Aborted { .. });
    let is_end =
        matches!(&end, Some(Event::Failed { call, failure }) if *call == of && aborted(failure));
    assert!(is_end, "{end:?}");
    match world.event(all, 0, LONG) {
        Some(Event::Settled { call, stopped }) if call == of => stopped,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_stops_a_call_is_told_when_its_server_has_stopped() {
    let (world, mut client, mut server) = pair(1);
    let held = serve_holding(&mut server);
    let call = call(&mut client, &server);
    let mut all = [&mut client, &mut server];
    while held.get().is_none() {
        world.step(&mut all, LONG);
    }
    all[0].stop_within(call, LONG);
    assert_eq!(settled(&world, &mut all, call), Ok(()));
    let stopped = all[1].next_event();
    assert!(
        matches!(stopped, Some(Event::Stopped { .. })),
        "{stopped:?}"
    );
    assert!(all[1].load().is_idle());
    assert_eq!((all[0].sizes().calls, all[0].next_event()), (0, None));
    // Of a call that is over nothing runs.
    all[0].stop_within(call, LONG);
    let again = all[0].next_event();
    assert_eq!(
        again,
        Some(Event::Settled {
            call,
            stopped: Ok(())
        })
    );
}

/// Until time is up, or it counts as lost.
#[test]
fn a_server_that_is_silent_is_named() {
    for (grace, waits) in [(3 * SECOND, 3), (LONG, 7)] {
        let (world, mut client, mut server) = pair(2);
        let held = serve_holding(&mut server);
        let call = call(&mut client, &server);
        let mut all = [&mut client, &mut server];
        while held.get().is_none() {
            world.step(&mut all, LONG);
        }
        world.cut(&all[1].address(), true);
        let begun = world.now();
        all[0].stop_within(call, grace);
        let running = settled(&world, &mut all, call).expect_err("nobody knows");
        let took = world.now() - begun;
        // The world's time passes before its event is looked at.
        assert!(took <= waits * SECOND + SECOND / 10, "{took:?}");
        let [unheard] = &running.unheard[..] else {
            panic!("{running}")
        };
        assert!(running.handlers.is_empty(), "{running}");
        assert_eq!(unheard.server.address, Some(all[1].address()));
        world.event(&mut all[..1], 0, LONG);
        assert_eq!(all[0].sizes().calls, 0);
    }
}

/// A server that has called another one on behalf of the request has not stopped before that.
#[test]
fn calls_on_behalf_of_its_requests_are_waited_for() {
    for is_cut in [false, true] {
        let (world, mut client, mut server) = pair(3);
        let mut leaf = world.bind(Endpoint::builder());
        let held = serve_holding(&mut leaf);
        let to = leaf.address();
        let serve = server.serve(
            &work::ONE,
            move |mut request: wallaby::polling::Request<'_, One<String>>, (what,)| {
                let (target, options) = (work::one(what), CallOptions::default());
                request.raw().call(to.clone(), target, &options)?;
                request.hold();
                Ok(())
            },
        );
        serve.expect("no other has its name");
        let call = call(&mut client, &server);
        let mut all = [&mut client, &mut server, &mut leaf];
        while held.get().is_none() {
            world.step(&mut all, LONG);
        }
        world.cut(&all[2].address(), is_cut);
        all[0].stop_within(call, 30 * SECOND);
        let stopped = settled(&world, &mut all, call);
        assert_eq!(stopped.is_err(), is_cut);
        match stopped {
            Ok(()) => assert!(all[2].load().is_idle()),
            Err(running) => {
                let [handler] = &running.handlers[..] else {
                    panic!("{running}")
                };
                assert_eq!(handler.server.address, Some(all[1].address()));
            }
        }
    }
}

/// Earlier ones may run, too.
#[test]
fn all_attempts_of_a_call_are_waited_for() {
    let (world, mut client, mut first) = pair(4);
    let mut second = world.bind(Endpoint::builder());
    serve_holding(&mut first);
    let held = serve_holding(&mut second);
    let policy = RetryPolicy::default().retry(Retry::idempotent(9).each(SECOND));
    let policy = policy.alternates([second.address()]);
    let (target, options) = (work::one("hop".into()), CallOptions::default());
    let call = client.call_again(first.address(), target, &options, &policy);
    let call = call.expect("it begins").key();
    let mut all = [&mut client, &mut first, &mut second];
    for _ in 0..20 {
        world.step(&mut all, Duration::from_millis(1));
    }
    world.cut(&all[1].address(), true);
    while held.get().is_none() {
        world.step(&mut all, SECOND);
        assert_eq!(all[0].next_event(), None);
    }
    // Who has waited for it is told when somebody else waits.
    all[0].stop_within(call, 3 * SECOND);
    all[0].stop_within(call, 3 * SECOND);
    settled(&world, &mut all, call).expect_err("nothing has stopped yet");
    let Some(Event::Settled { stopped, .. }) = world.event(&mut all, 0, LONG) else {
        panic!("the other one is told, too");
    };
    let running = stopped.expect_err("one is silent");
    let [unheard] = &running.unheard[..] else {
        panic!("{running}")
    };
    assert_eq!(unheard.server.address, Some(all[1].address()));
    assert!(all[2].load().is_idle());
    world.event(&mut all, 0, LONG);
    assert_eq!(all[0].sizes().calls, 0);
}

#[test]
fn each_who_stops_a_call_is_told() {
    let (world, mut client, mut server) = pair(5);
    let held = serve_holding(&mut server);
    let call = call(&mut client, &server);
    let mut all = [&mut client, &mut server];
    while held.get().is_none() {
        world.step(&mut all, LONG);
    }
    world.cut(&all[1].address(), true);
    all[0].stop_within(call, LONG);
    all[0].stop_within(call, LONG);
    settled(&world, &mut all, call).expect_err("it is silent");
    // Also if that is since something has panicked.
    world.panic_next();
    catch_unwind(AssertUnwindSafe(|| all[0].turn(Wait::Not))).expect_err("it panics");
    let told = all[0].next_event();
    assert!(matches!(told, Some(Event::Settled { .. })), "{told:?}");
    assert_eq!(all[0].next_event(), None);
}

/// As on a runtime, and over real sockets.
#[test]
fn a_handler_that_goes_on_is_named() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let service = Service::new("test").method(
        &work::ONE,
        |request: Request<One<String>>, (_,): (String,)| async move {
            request.shield(std::future::pending::<()>()).await;
            Ok(())
        },
    );
    let server = wallaby::Endpoint::builder().serve(service);
    let server = runtime.block_on(server.listen("tcp://127.0.0.1:0").bind());
    let server = server.expect("a port");
    let at: Address = server.address().expect("it listens").clone();
    let mut client = Endpoint::bind("tcp://127.0.0.1:0").expect("a port");
    let mut grace = Duration::from_millis(50);
    let running = loop {
        let (target, options) = (work::one("hop".into()), CallOptions::default());
        let call = client.call(at.clone(), target, &options);
        let call = call.expect("it is sent").key();
        let running = server.load().running;
        let mut turn = || {
            let turned = client.turn(Wait::For(Duration::from_millis(1)));
            turned.expect("its sockets live");
        };
        while server.load().running == running {
            turn();
        }
        client.stop_within(call, grace);
        let mut stopped = None;
        while stopped.is_none() {
            client.turn(Wait::For(LONG)).expect("its sockets live");
            while let Some(event) = client.next_event() {
                if let Event::Settled { stopped: told, .. } = event {
                    stopped = Some(told);
                }
            }
        }
        let running = stopped.expect("it was told").expect_err("it is shielded");
        // A busy machine may take longer to say so.
        if running.unheard.is_empty() {
            break running;
        }
        grace *= 2;
    };
    let [handler] = &running.handlers[..] else {
        panic!("{running}")
    };
    assert_eq!(handler.server.address, Some(at));
    assert_eq!(handler.method.as_deref(), Some("test.Work/one"));
}
