//! Datagrams that no honest peer sends, and peers that ask for more than they may.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use fastrand::Rng;
use wallaby::polling::{
    CallOptions, Datagrams, Endpoint, Event, Limits, RequestKey, Sizes, Udp, Wait,
};
use wallaby::{Address, CallId, ClusterKey, Code, NodeId, RequestId};
use wallaby_proto::Token;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Connection, ConnectionLimits as WireLimits, Event as Heard, Features, Hello, VERSION,
};
use wallaby_proto::wire::{Message, MethodRef, ReplyTo, Request};

use super::alone::{outcome, pair, work};
use super::proxy::Path;
use super::world::{Link, World};

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
    let mut random = Rng::with_seed(40);
    for round in 0..300 {
        let len = random.usize(..300);
        let mut datagram: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        if let Some(kind) = datagram.first_mut() {
            *kind = [1, 2, 3, 4, 0x10, 0x13][random.usize(..6)];
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
    let counters = server.metrics();
    assert!(counters.datagrams_dropped > 250, "{counters:?}");
    assert_eq!(server.sizes().connections, 1);
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
    while server.metrics().datagrams_received < 9 {
        server
            .turn(Wait::For(Duration::from_secs(1)))
            .expect("the socket lives");
    }
    assert_eq!(server.metrics().datagrams_dropped, 9);
    assert_eq!(server.sizes(), Sizes::default());
}

/// Answers to these clients' requests, while all of them and the server take turns.
fn ask(server: &mut Endpoint<Udp>, clients: &mut [Endpoint<Udp>], at: &Address) {
    for client in clients {
        let sent = client.call(at.clone(), work::one("hop".into()), &CallOptions::default());
        sent.expect("it is sent");
        loop {
            client.turn(Wait::Not).expect("the socket lives");
            server.turn(Wait::Not).expect("the socket lives");
            match client.next_event() {
                Some(Event::Complete { statuses: 0, .. }) => break,
                Some(Event::Answer(_)) | None => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Who connects and says nothing has a place of its own, and takes nobody else's.
#[test]
fn strangers_take_nobodys_place() {
    let mut limits = Limits::default();
    limits.connections = 2;
    let path = Path::new();
    let builder = Endpoint::builder()
        .listen(&path.text())
        .limits(limits)
        .strangers(4, Duration::from_secs(60));
    let mut server = builder.bind("udp://127.0.0.1:0").expect("a socket");
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let mut clients = [(); 3].map(|()| Endpoint::bind("udp://127.0.0.1:0").expect("a socket"));
    let (used, later) = clients.split_at_mut(2);
    ask(&mut server, used, &path.address());
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(path.connect());
        server.turn(Wait::Not).expect("the socket lives");
    }
    while server.metrics().strangers_dismissed < 46 {
        server.turn(Wait::Not).expect("the socket lives");
    }
    assert_eq!(server.sizes().connections, 2 + 4);
    ask(&mut server, used, &path.address());
    assert!(used.iter().all(|client| client.sizes().connections == 1));
    // Who says hello still finds a place: one that nobody needs makes room.
    ask(&mut server, later, &path.address());
    assert_eq!(server.sizes().connections, 2 + 3);
    assert_eq!(server.metrics().connections_refused, 0);
}

/// A request that names other initiators at one address makes one dial of it, and over UDP a few short datagrams.
#[test]
fn an_address_that_a_peer_names_is_sent_little() {
    let victim = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    victim.set_nonblocking(true).expect("it can be");
    let door = Address::Udp(victim.local_addr().expect("it is bound"));
    let path = Path::new();
    let builder = Endpoint::builder().listen(&path.text());
    let mut server = builder.bind("udp://127.0.0.1:0").expect("a socket");
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let begun = std::time::Instant::now();
    let mut stream = path.connect();
    let mut connection = Connection::dial(hello(9).into(), None);
    let mut input = BytesMut::new();
    let mut sent = 0;
    while server.metrics().dials_held < 500 {
        let output = connection.output().to_vec();
        stream.write_all(&output).expect("it is read");
        connection.advance(output.len());
        server.turn(Wait::Not).expect("the socket lives");
        let mut buffer = [0; 4096];
        if let Ok(len) = stream.read(&mut buffer) {
            input.extend_from_slice(&buffer[..len]);
        }
        while let Ok(Some(_)) = connection.handle_input(&mut input) {}
        if connection.peer().is_some() && sent < 600 {
            sent += 1;
            let mut aimed = aimed(1000 + sent, &door);
            let sent = connection.send_request(&mut aimed, work::ONE.definition());
            sent.expect("there is credit");
        }
    }
    let (mut datagrams, mut buffer) = (0, [0; 2000]);
    while let Ok(len) = victim.recv(&mut buffer) {
        datagrams += 1;
        assert!(len <= 80, "an ask of {len} bytes");
    }
    let most = 3 * (begun.elapsed().as_secs() + 1);
    assert!((1..=most).contains(&datagrams), "{datagrams} datagrams");
}

fn hello(node: u64) -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        node: NodeId::new(node).expect("not zero"),
        expected: None,
        address: None,
        features: Features::default(),
        limits: WireLimits::default(),
    }
}

/// A request of an initiator that does not exist, said to be reached at this address.
fn aimed(initiator: u64, at: &Address) -> Request {
    Request {
        call: CallId {
            initiator: NodeId::new(initiator).expect("not zero"),
            sequence: 1,
        },
        token: Token::new(4711),
        id: RequestId::FIRST,
        depth: 1,
        base: 0,
        reply_to: ReplyTo::At(at.clone()),
        manifest: None,
        deadline: None,
        oldest: 1,
        traced: false,
        compressed: false,
        waited: Duration::ZERO,
        options: None,
        method: MethodRef::Number(0),
        payload: bytes::Bytes::from_static(b"\x01x"),
    }
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
    assert_eq!(server.metrics().unsealed_refused, 1);
    let (answers, _) = outcome(&world, &mut [&mut member, &mut server]);
    assert_eq!(answers, [Ok("hop".to_owned())]);
}

/// Answers requests with what they say, and puts those aside that say "hold".
fn serve_or_hold(server: &mut Endpoint<Link>) -> Rc<RefCell<Vec<RequestKey>>> {
    let aside = Rc::new(RefCell::new(Vec::new()));
    let keys = Rc::clone(&aside);
    let serve = server.serve(&work::ONE, move |request, (what,)| {
        if what == "hold" {
            keys.borrow_mut().push(request.hold());
            return Ok(());
        }
        Ok(request.respond(&what)?)
    });
    serve.expect("no other has its name");
    aside
}

/// Where all requests that are remembered still run, a further one is refused, and one that has ended makes room.
#[test]
fn requests_beyond_the_limit_are_refused() {
    let world = World::new(42);
    let mut server = world.bind(Endpoint::builder().remember(2, 0));
    let aside = serve_or_hold(&mut server);
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

/// A request onward reaches nobody, and neither does the status that says so, as its initiator is gone: whoever else is
/// connected gets nothing of the call.
#[test]
fn what_reaches_no_initiator_goes_to_no_stranger() {
    let world = World::new(43);
    let mut server = world.bind(Endpoint::builder());
    let nowhere = world.bind(Endpoint::builder()).address();
    world.cut(&nowhere, true);
    let aside = serve_or_hold(&mut server);
    let mut stranger = world.bind(Endpoint::builder());
    let call = |client: &mut Endpoint<_>, server: &mut Endpoint<_>, what: &str| {
        let what = work::one(what.into());
        let call = client.call(server.address(), what, &CallOptions::default());
        call.expect("it is sent");
    };
    call(&mut stranger, &mut server, "hop");
    let (answers, _) = outcome(&world, &mut [&mut stranger, &mut server]);
    assert_eq!(answers, [Ok("hop".to_owned())]);
    let mut victim = world.bind(Endpoint::builder());
    call(&mut victim, &mut server, "hold");
    while aside.borrow().is_empty() {
        world.step(&mut [&mut victim, &mut server], Duration::from_secs(1));
    }
    let key = aside.borrow()[0];
    let method = std::sync::Arc::new(work::ONE.definition().clone());
    let request = server.request(key).expect("it runs");
    request
        .forward(nowhere, &method, bytes::Bytes::from_static(b"\x04lost"))
        .expect("it is released");
    drop(victim);
    let until = world.now() + Duration::from_secs(300);
    while world.now() < until && server.metrics().undeliverable == 0 {
        world.step(&mut [&mut stranger, &mut server], Duration::from_secs(1));
    }
    assert_eq!(server.metrics().undeliverable, 1);
    let got = stranger.metrics();
    let foreign = (got.late_dropped, got.forged_dropped, got.undeliverable);
    assert_eq!(foreign, (0, 0, 0));
}

/// Turns in which all that was sent arrives.
const ROUNDS: usize = 100;

/// A peer on a unix socket that does what a test wants.
struct Raw {
    stream: UnixStream,
    connection: Connection,
    input: BytesMut,
}

impl Raw {
    fn new(stream: UnixStream, connection: Connection) -> Self {
        stream.set_nonblocking(true).expect("it can be");
        Self {
            stream,
            connection,
            input: BytesMut::new(),
        }
    }

    /// Connects as this node and shakes hands.
    fn dial(path: &Path, node: u64, endpoint: &mut Endpoint<Link>) -> Self {
        let mut raw = Self::new(path.connect(), Connection::dial(hello(node).into(), None));
        raw.until(endpoint, |raw, _| raw.connection.peer().is_some());
        raw
    }

    /// Bytes pass until this is so; no time does.
    fn until(
        &mut self,
        endpoint: &mut Endpoint<Link>,
        mut done: impl FnMut(&mut Self, Option<Heard>) -> bool,
    ) {
        for _ in 0..ROUNDS {
            let output = self.connection.output().to_vec();
            let _ = self.stream.write_all(&output); // it may be closed already
            self.connection.advance(output.len());
            endpoint.turn(Wait::Not).expect("it cannot fail");
            let mut buffer = [0; 4096];
            if let Ok(len) = self.stream.read(&mut buffer) {
                self.input.extend_from_slice(&buffer[..len]);
            }
            while let Ok(Some(heard)) = self.connection.handle_input(&mut self.input) {
                if done(self, Some(heard)) {
                    return;
                }
            }
            if done(self, None) {
                return;
            }
        }
        panic!("it does not come to pass");
    }

    /// Closes the connection, and the endpoint learns of it.
    fn leave(self, endpoint: &mut Endpoint<Link>) {
        drop(self);
        for _ in 0..ROUNDS {
            endpoint.turn(Wait::Not).expect("it cannot fail");
        }
    }
}

/// A client on a unix socket, too, with a call that a server over UDP has held for a while.
fn held(world: &World, path: &Path) -> (Endpoint<Link>, Endpoint<Link>, RequestKey) {
    let builder = Endpoint::builder()
        .listen(&path.text())
        .advertise(path.address());
    let (mut client, mut server) = (world.bind(builder), world.bind(Endpoint::builder()));
    let serve = client.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let aside = std::rc::Rc::new(std::cell::Cell::new(None));
    let key = aside.clone();
    let serve = server.serve(&work::ONE, move |request, _| {
        key.set(Some(request.hold()));
        Ok(())
    });
    serve.expect("no other has its name");
    let sent = client.call(
        server.address(),
        work::one("hold".into()),
        &CallOptions::default(),
    );
    sent.expect("it is sent");
    let nothing = world.event(&mut [&mut client, &mut server], 0, Duration::from_secs(3));
    assert_eq!(nothing, None);
    let key = aside.get().expect("it is held");
    (client, server, key)
}

/// Who says hello as the server of a call and leaves causes no questions about it.
#[test]
fn who_carried_nothing_of_a_call_and_leaves_causes_no_questions() {
    let (world, path) = (World::new(44), Path::new());
    let (mut client, server, _) = held(&world, &path);
    let stranger = Raw::dial(&path, server.node().get(), &mut client);
    let before = client.metrics().datagrams_sent;
    stranger.leave(&mut client);
    assert_eq!(client.metrics().datagrams_sent, before);
}

/// A stranger is found at its own address as the server of a call, and then as somebody else: the server has as much time to
/// show life as before.
#[test]
fn who_claims_a_node_id_at_its_own_address_shortens_nobodys_time() {
    let (world, path) = (World::new(45), Path::new());
    let (mut client, mut server, key) = held(&world, &path);
    world.cut(&server.address(), true);
    let own = Path::new();
    let listener = UnixListener::bind(own.file()).expect("nobody else is there");
    listener.set_nonblocking(true).expect("it can be");
    let mut stranger = Raw::dial(&path, 9, &mut client);
    let claimed = server.node().get();
    let mut aimed = aimed(claimed, &own.address());
    let sent = stranger
        .connection
        .send_request(&mut aimed, work::ONE.definition());
    sent.expect("there is credit");
    let mut accepted = |client: &mut Endpoint<Link>, node| {
        let mut accepted = None;
        stranger.until(client, |_, _| {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (stream, _) = accepted.expect("it is dialled");
        Raw::new(stream, Connection::accept(hello(node).into()))
    };
    let mut found = accepted(&mut client, claimed);
    found.until(&mut client, |_, heard| {
        matches!(heard, Some(Heard::Message(Message::Response(_))))
    });
    found.leave(&mut client);
    // The answer may be lost: its initiator is dialled again.
    let mut next = accepted(&mut client, 7);
    let mut rounds = 0..10;
    next.until(&mut client, |_, _| rounds.next().is_none());
    next.leave(&mut client);
    let nothing = world.event(
        &mut [&mut client, &mut server],
        0,
        Duration::from_millis(3500),
    );
    assert_eq!(nothing, None);
    world.cut(&server.address(), false);
    let request = server.request(key).expect("it has not ended");
    let late = bytes::Bytes::from_static(b"\x04late");
    request.respond(late).expect("it is sent");
    let (answers, _) = outcome(&world, &mut [&mut client, &mut server]);
    assert_eq!(answers, [Ok("late".to_owned())]);
}
