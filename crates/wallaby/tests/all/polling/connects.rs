//! Connecting ahead of the first call. In virtual time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use wallaby::polling::{CallOptions, Event, Wait};
use wallaby::{Address, ConnectError};

use super::alone::{LONG, outcome, pair, work};

#[test]
fn a_server_is_connected_ahead_of_the_first_call() {
    let (world, mut client, mut server) = pair(1);
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let at = server.address();
    let connected = Event::Connected {
        server: at.clone(),
        result: Ok(()),
    };
    for _ in 0..2 {
        client.connect(at.clone()).expect("it is dialled");
    }
    let mut all = [&mut client, &mut server];
    let told = world.event(&mut all, 0, LONG);
    assert_eq!(told.as_ref(), Some(&connected));
    assert_eq!(
        world.event(&mut all, 0, Duration::from_secs(1)),
        None,
        "it is told once"
    );
    assert_eq!(all[0].sizes().connections, 1);

    // At once, if it is connected.
    client.connect(at.clone()).expect("it is connected");
    assert_eq!(client.next_event(), Some(connected));
    let (target, options) = (work::one("hop".into()), CallOptions::default());
    client.call(at, target, &options).expect("it is sent");
    outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(client.metrics().connections_opened, 1);
}

#[test]
fn who_cannot_be_connected_is_told_why() {
    let (world, mut client, _) = pair(2);
    let other: Address = "mem://somewhere".parse().expect("an address");
    let refused = client.connect(other.clone());
    assert_eq!(refused, Err(ConnectError::NoTransport { server: other }));
    let nobody: Address = "udp://10.0.0.9:9".parse().expect("an address");
    client.connect(nobody.clone()).expect("it is dialled");
    let told = world.event(&mut [&mut client], 0, LONG);
    let Some(Event::Connected { server, result }) = told else {
        panic!("{told:?}")
    };
    assert_eq!(server, nobody);
    let error = result.expect_err("nobody is there");
    assert!(matches!(*error, ConnectError::TimedOut { .. }), "{error}");

    // Or something has panicked before.
    client.connect(nobody.clone()).expect("it is dialled");
    world.panic_next();
    catch_unwind(AssertUnwindSafe(|| client.turn(Wait::Not))).expect_err("it panics");
    let told = client.next_event();
    let Some(Event::Connected { server, result }) = told else {
        panic!("{told:?}")
    };
    assert_eq!(server, nobody);
    result.expect_err("it is closed");
}
