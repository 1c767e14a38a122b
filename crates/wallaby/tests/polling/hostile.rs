//! Datagrams that no honest peer sends, and peers that ask for more than they may.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use wallaby::polling::{CallOptions, Datagrams, Endpoint, Wait};
use wallaby::{Address, ClusterKey, Code};

use crate::alone::{outcome, pair, work};
use crate::world::World;

/// The same numbers for each seed.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn socket(address: &Address) -> SocketAddr {
    match address {
        Address::Udp(socket) => *socket,
        other => panic!("{other}"),
    }
}

/// Garbage, and what was heard from others, cut and changed: nothing of it ends the endpoint or its calls.
#[test]
fn garbage_is_dropped_and_counted() {
    let (world, mut client, mut server) = pair(40);
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let mut stranger = world.bind(Endpoint::builder());
    let to = socket(&server.address());
    let mut state = 40;
    for round in 0..300 {
        let len = random(&mut state) as usize % 300;
        let mut datagram: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
        if let Some(kind) = datagram.first_mut() {
            *kind = [1, 2, 3, 4, 0x10, 0x13][random(&mut state) as usize % 6];
        }
        if round % 2 == 0 {
            let sum = crc32c(&datagram);
            datagram.extend_from_slice(&sum.to_be_bytes());
        }
        stranger.datagrams().send(&datagram, to).expect("sent");
        if round % 100 == 0 {
            let call = client.call(
                server.address(),
                work::one("hop".into()),
                &CallOptions::default(),
            );
            call.expect("it is sent");
            let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
            assert_eq!(answers, [Ok("hop".to_owned())]);
        }
    }
    world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(1));
    let counters = server.counters();
    assert!(counters.datagrams_dropped > 250, "{counters:?}");
    assert_eq!(server.sizes().2, 1);
}

/// CRC32C, a bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 0 {
                sum >> 1
            } else {
                sum >> 1 ^ 0x82f6_3b78
            };
        }
    }
    !sum
}

/// On a real socket, with datagrams of all lengths.
#[test]
fn garbage_on_a_real_socket_is_dropped() {
    let mut server = Endpoint::bind("udp://127.0.0.1:0").expect("a socket");
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = socket(&server.address());
    for len in [0, 1, 12, 13, 14, 1199, 1200, 1201, 65_507] {
        stranger.send_to(&vec![0x10; len], to).expect("sent");
    }
    while server.counters().datagrams_received < 9 {
        server
            .turn(Wait::For(Duration::from_secs(1)))
            .expect("the socket lives");
    }
    assert_eq!(server.counters().datagrams_dropped, 9);
    assert_eq!(server.sizes(), (0, 0, 0));
}

#[test]
fn requests_without_a_seal_are_refused_where_seals_are_required() {
    let key = || ClusterKey::new(&[7; 32]).expect("long enough");
    let world = World::new(41);
    let mut server = world.bind(Endpoint::builder().cluster_key(key()).require_seals());
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let mut stranger = world.bind(Endpoint::builder());
    let mut member = world.bind(Endpoint::builder().cluster_key(key()));
    for client in [&mut stranger, &mut member] {
        let call = client.call(
            server.address(),
            work::one("hop".into()),
            &CallOptions::default(),
        );
        call.expect("it is sent");
    }
    let (answers, _) = outcome(&world, &mut [&mut stranger, &mut server]);
    let refused = answers[0].as_ref().expect_err("it is refused");
    assert_eq!(
        refused.status().expect("a status").code(),
        Code::PermissionDenied
    );
    assert_eq!(server.counters().unsealed_refused, 1);
    let (answers, _) = outcome(&world, &mut [&mut member, &mut server]);
    assert_eq!(answers, [Ok("hop".to_owned())]);
}

/// Where all requests that are remembered still run, a further one is refused, and one that has ended makes room.
#[test]
fn requests_beyond_the_limit_are_refused() {
    let world = World::new(42);
    let mut server = world.bind(Endpoint::builder().remember(2, 0));
    let aside = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let keys = aside.clone();
    let serve = server.serve(&work::ONE, move |request, (what,)| {
        if what == "hold" {
            keys.borrow_mut().push(request.hold());
            return Ok(());
        }
        Ok(request.respond(&what)?)
    });
    serve.expect("no other has its name");
    let mut client = world.bind(Endpoint::builder());
    for _ in 0..2 {
        let call = client.call(
            server.address(),
            work::one("hold".into()),
            &CallOptions::default(),
        );
        call.expect("it is sent");
    }
    while aside.borrow().len() < 2 {
        world.step(&mut [&mut client, &mut server], Duration::from_secs(1));
    }
    let ask = |client: &mut Endpoint<_>, server: &mut Endpoint<_>| {
        let call = client.call(
            server.address(),
            work::one("hop".into()),
            &CallOptions::default(),
        );
        call.expect("it is sent");
        outcome(&world, &mut [client, server]).0
    };
    let answers = ask(&mut client, &mut server);
    let refused = answers[0].as_ref().expect_err("it is refused");
    assert_eq!(
        refused.status().expect("a status").code(),
        Code::ResourceExhausted
    );
    let key = aside.borrow()[0];
    server
        .request(key)
        .expect("it runs")
        .respond(bytes::Bytes::from_static(b"\x04done"))
        .expect("it is sent");
    let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(answers, [Ok("done".to_owned())]);
    assert_eq!(ask(&mut client, &mut server), [Ok("hop".to_owned())]);
}
