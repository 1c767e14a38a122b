//! What an operator reads of polling endpoints: the same as of those on tokio (`events`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use wallaby::polling::{CallOptions, Endpoint, Event, Wait};
use wallaby::{Address, Code, ExecutorConfig, Status};

use super::alone::{LONG, outcome, pair, work};
use super::world::Link;
use crate::events::{Notes, one_of};

/// Does what it is told.
fn serve_obedient(server: &mut Endpoint<Link>) {
    let serve = server.serve(&work::ONE, |request, (what,)| match &*what {
        "panic" => panic!("as it was told"),
        "fail" => Err(Status::new(Code::Panicked, "another one has panicked")),
        "late" => {
            request.respond(&what)?;
            Err(Status::new(Code::Internal, "too late"))
        }
        "wait" => {
            request.hold();
            Ok(())
        }
        _ => Ok(request.respond(&what)?),
    });
    serve.expect("no other has its name");
}

#[test]
fn an_operator_reads_what_is_wrong_with_requests() {
    let notes = Notes::default();
    let _other = tracing::Dispatch::new(Notes::default());
    let _subscribed = tracing::subscriber::set_default(notes.clone());
    let (world, mut client, _) = pair(1);
    let executor = ExecutorConfig {
        concurrency: 1,
        queue: 0,
        ..ExecutorConfig::default()
    };
    let mut server = world.bind(Endpoint::builder().executor(executor));
    serve_obedient(&mut server);
    let address = server.address().to_string();
    let own = format!("endpoint={}", server.node());
    let read = notes.for_operators();
    let listens = ["info", "listens", &address, &own];
    assert!(one_of(&read, &listens), "{read:#?}");

    let to = server.address();
    let ask = |client: &mut Endpoint<Link>, what: &str| {
        let target = work::one(what.into());
        let call = client.call(to.clone(), target, &CallOptions::default());
        call.expect("it is sent")
    };
    for what in ["x", "fail"] {
        ask(&mut client, what);
        outcome(&world, &mut [&mut client, &mut server]);
        assert_eq!(notes.for_operators(), [] as [String; 0]);
    }
    for (what, said) in [("panic", "as it was told"), ("late", "too late")] {
        ask(&mut client, what);
        outcome(&world, &mut [&mut client, &mut server]);
        let read = notes.for_operators();
        let call = format!("call={}", client.node());
        let parts = ["warning", said, "method=\"test.Work/one\"", &call];
        assert!(one_of(&read, &parts), "{read:#?}");
    }

    // Overload.
    let waits = ask(&mut client, "wait");
    ask(&mut client, "x");
    let (refused, _) = outcome(&world, &mut [&mut client, &mut server]);
    refused[0].as_ref().expect_err("one runs");
    let read = notes.for_operators();
    let parts = ["warning", "too many wait", &own, "times=1"];
    assert!(one_of(&read, &parts), "{read:#?}");

    // The server is killed while it has begun something.
    server.kill();
    let lost = world.event(&mut [&mut client], 0, LONG);
    let Some(Event::Failed { call, .. }) = lost else {
        panic!("{lost:?}")
    };
    assert_eq!(call, waits.key());
    let read = notes.for_operators();
    let at_it = format!("server={address}");
    let parts = [
        "warning",
        "a part of a call is lost",
        "test.Work/one",
        &at_it,
    ];
    assert!(one_of(&read, &parts), "{read:#?}");

    client.drain();
    world.step(&mut [&mut client], LONG);
    let own = format!("endpoint={}", client.node());
    drop(client);
    let read = notes.for_operators();
    for said in [
        "takes no more requests",
        "nothing runs any more",
        "is closed",
    ] {
        assert!(one_of(&read, &["info", said, &own]), "{said}: {read:#?}");
    }
}

/// Turns until there is an event.
fn event(endpoints: &mut [&mut Endpoint]) -> Event {
    loop {
        for endpoint in endpoints.iter_mut() {
            let turned = endpoint.turn(Wait::For(Duration::from_millis(1)));
            turned.expect("its sockets live");
        }
        if let Some(event) = endpoints[0].next_event() {
            return event;
        }
    }
}

#[test]
fn an_operator_reads_who_comes_and_goes() {
    let notes = Notes::default();
    let _other = tracing::Dispatch::new(Notes::default());
    let _subscribed = tracing::subscriber::set_default(notes.clone());
    let tcp = "tcp://127.0.0.1:0";
    let mut server = Endpoint::bind(tcp).expect("a port");
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let builder = Endpoint::builder().dial_timeout(Duration::from_millis(50));
    let mut client = builder.bind(tcp).expect("a port");
    let (own, at) = (format!("endpoint={}", server.node()), server.address());
    let ask = |client: &mut Endpoint, server: &Address| {
        let target = work::one("x".into());
        let call = client.call(server.clone(), target, &CallOptions::default());
        call.expect("it is sent");
    };
    ask(&mut client, &at);
    let answer = event(&mut [&mut client, &mut server]);
    assert!(matches!(answer, Event::Answer(_)), "{answer:?}");
    let end = event(&mut [&mut client, &mut server]);
    assert!(matches!(end, Event::Complete { .. }), "{end:?}");
    let read = notes.for_operators();
    let connected = ["info", "is connected to a server", &at.to_string()];
    assert!(one_of(&read, &connected), "{read:#?}");
    let accepted = ["info", "a peer has connected", &own, "from=127.0.0.1:"];
    assert!(one_of(&read, &accepted), "{read:#?}");

    // A peer that does not keep to the protocol.
    let Address::Tcp(socket) = at else {
        panic!("{at}")
    };
    let mut stranger = TcpStream::connect(socket).expect("it listens");
    let from = stranger.local_addr().expect("it is connected").to_string();
    let written = stranger.write_all(b"GET / HTTP/1.1\r\n\r\n");
    written.expect("there is room");
    while server.metrics().connections_broken == 0 {
        server
            .turn(Wait::For(Duration::from_millis(1)))
            .expect("it lives");
    }
    let _ = stranger.read_to_end(&mut Vec::new());
    let read = notes.for_operators();
    let broken = ["warning", "does not keep to the protocol", &own, &from];
    assert!(one_of(&read, &broken), "{read:#?}");

    // Nobody there, and somebody who says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mute = (mute.local_addr().expect("it listens"), mute);
    let nobody: Address = "tcp://127.0.0.1:1".parse().expect("an address");
    for (server, why) in [
        (nobody, "refused"),
        (Address::Tcp(mute.0), "no answer within"),
    ] {
        ask(&mut client, &server);
        let failed = event(&mut [&mut client]);
        assert!(matches!(failed, Event::Failed { .. }), "{failed:?}");
        let read = notes.for_operators();
        let at_it = format!("server={server}");
        let vain = ["warning", "dialled in vain", &at_it, why];
        assert!(one_of(&read, &vain), "{read:#?}");
    }

    // It leaves.
    drop(client);
    while server.metrics().connections_ended == 0 {
        server
            .turn(Wait::For(Duration::from_millis(1)))
            .expect("it lives");
    }
    let read = notes.for_operators();
    let ended = ["info", "a connection has ended", &own];
    assert!(one_of(&read, &ended), "{read:#?}");
}
