//! Endpoints with several UDP sockets: which one is dialled from, who is answered over which, and what becomes of one that fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::datagram::Cause;
use wallaby_proto::endpoint::{
    Config, ConnId, Endpoint, Next, Outcome, Output, Probe, Schemes, Seeds, Serving, SocketId,
    reaches,
};
use wallaby_proto::error::{ConnectError, Failure};
use wallaby_proto::{Address, NodeId, Status};

const TICK: Duration = Duration::from_millis(10);

/// What became of sessions.
#[derive(Default)]
struct Ends(Vec<Cause>);

impl Probe for Ends {
    fn session_ended(&mut self, _: ConnId, cause: &Cause) {
        self.0.push(cause.clone());
    }
}

struct Host {
    endpoint: Endpoint<Ends>,
    /// Its sockets, and where others see them.
    sockets: Vec<(SocketId, SocketAddr)>,
    /// Whether sockets can be opened.
    opens: bool,
    /// Those that were to be opened.
    asked: Vec<(SocketId, SocketAddr)>,
    /// Where its requests are handed on to, rather than answered.
    delegates: Option<SocketAddr>,
    ran: usize,
    heard: Vec<Next>,
}

struct World {
    hosts: Vec<Host>,
    now: Duration,
    /// How many datagrams were sent from where to where.
    sent: Vec<(SocketAddr, SocketAddr)>,
    /// Datagrams also come to all other sockets of their receiver.
    strays: bool,
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn echo() -> Arc<MethodDefinition> {
    Arc::new(MethodDefinition::new("example.Echo/say", "raw", 0, 0).expect("a good name"))
}

impl Host {
    fn new(number: u8, sockets: &[(&str, bool)]) -> Self {
        let node = NodeId::new(number.into()).expect("not 0");
        let config = Config {
            schemes: Schemes::new(["udp"]),
            ..Config::default()
        };
        let seed = [number; 16];
        let seeds = Seeds {
            tokens: seed,
            cookies: seed,
        };
        let mut endpoint = Endpoint::with_probe(config, node, None, seeds, Ends::default());
        let how = Serving {
            one: true,
            ..Serving::default()
        };
        assert_eq!(endpoint.serve(echo(), how), Ok(0));
        let add = |(local, listens): &(&str, bool)| {
            let local = at(local);
            let socket = match listens {
                true => endpoint.add_listening_socket(local),
                false => endpoint.add_socket(local),
            };
            (socket, local)
        };
        Self {
            sockets: sockets.iter().map(add).collect(),
            endpoint,
            opens: true,
            asked: Vec::new(),
            delegates: None,
            ran: 0,
            heard: Vec::new(),
        }
    }

    fn call(&mut self, to: &str) {
        let to = Address::Udp(at(to));
        let call = self.endpoint.begin(&Default::default()).expect("room");
        let _ = self.endpoint.send(call, &to, &echo(), "hop".into());
        self.endpoint.close_call(call);
    }

    fn open(&mut self, socket: SocketId, to: SocketAddr) {
        self.asked.push((socket, to));
        if !self.opens {
            let why = "there is no such network".to_owned();
            return self.endpoint.handle_socket_failed(socket, why);
        }
        let local = match to {
            SocketAddr::V4(_) => at("127.0.0.1:50000"),
            SocketAddr::V6(_) => at("[::1]:50000"),
        };
        self.sockets.push((socket, local));
    }

    fn local(&self, socket: SocketId) -> SocketAddr {
        let known = self.sockets.iter().find(|known| known.0 == socket);
        known.expect("it is there").1
    }

    /// How its only call ended.
    fn outcome(&mut self) -> Outcome {
        match self.heard.pop() {
            Some(Next::Ended(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// All of its calls were answered; how many they were.
    fn answered(&mut self) -> usize {
        let heard = std::mem::take(&mut self.heard);
        for pair in heard.chunks(2) {
            let [
                Next::Answer(answer),
                Next::Ended(Outcome::Complete { statuses: 0 }),
            ] = pair
            else {
                panic!("{heard:?}");
            };
            assert_eq!(answer.clone().payload().expect("an answer"), "hop");
        }
        heard.len() / 2
    }
}

impl World {
    fn new(hosts: impl IntoIterator<Item = Host>) -> Self {
        Self {
            hosts: hosts.into_iter().collect(),
            now: Duration::ZERO,
            sent: Vec::new(),
            strays: false,
        }
    }

    /// Time passes, and what is sent arrives.
    fn run(&mut self) {
        for _ in 0..50 {
            self.now += TICK;
            for host in 0..self.hosts.len() {
                let endpoint = &mut self.hosts[host].endpoint;
                endpoint.set_time(self.now);
                if endpoint.poll_timeout().is_some_and(|due| due <= self.now) {
                    endpoint.handle_timeout();
                }
                self.drain(host);
            }
        }
    }

    fn drain(&mut self, host: usize) {
        loop {
            let Host {
                endpoint,
                delegates,
                ran,
                heard,
                ..
            } = &mut self.hosts[host];
            let Some(output) = endpoint.poll_output() else {
                return;
            };
            match output {
                Output::Run(request) => {
                    *ran += 1;
                    let incoming = endpoint
                        .take_request(request)
                        .expect("nothing came between");
                    let sent = match delegates {
                        Some(to) => {
                            let to = Address::Udp(*to);
                            endpoint.delegate(request, to, &echo(), incoming.payload)
                        }
                        None => endpoint.respond(request, incoming.payload),
                    };
                    endpoint.returned(request, sent.map_err(Status::from));
                }
                Output::Call(call) => loop {
                    match endpoint.next_answer(call) {
                        Next::Pending => break,
                        next => heard.push(next),
                    }
                },
                Output::Socket(socket, to) => self.hosts[host].open(socket, to),
                Output::Datagrams(socket) => self.transmit(host, socket),
                Output::Room(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn transmit(&mut self, host: usize, socket: SocketId) {
        let mut bytes = Vec::new();
        while let Some(transmit) = {
            bytes.clear();
            self.hosts[host].endpoint.poll_datagram(socket, &mut bytes)
        } {
            let from = self.hosts[host].local(socket);
            assert!(reaches(from, transmit.to), "{from} {}", transmit.to);
            self.sent.push((from, transmit.to));
            let arrives = |sockets: &[(SocketId, SocketAddr)]| {
                let mut here = sockets.iter();
                here.any(|(_, local)| *local == transmit.to)
            };
            for other in &mut self.hosts {
                if !arrives(&other.sockets) {
                    continue;
                }
                for (socket, local) in &other.sockets {
                    if *local == transmit.to || self.strays {
                        let bytes = Bytes::copy_from_slice(&bytes);
                        other.endpoint.handle_datagram(*socket, from, bytes);
                    }
                }
            }
        }
        assert!(!self.hosts[host].endpoint.has_datagrams(socket));
    }

    fn sent(&self, from: &str, to: &str) -> bool {
        self.sent.contains(&(at(from), at(to)))
    }
}

/// A client on a loopback address, and a server that listens at two, of both families.
fn both_families() -> World {
    let client = Host::new(1, &[("127.0.0.1:1", true)]);
    let server = Host::new(2, &[("127.0.0.1:2", true), ("[::1]:2", true)]);
    World::new([client, server])
}

#[test]
fn a_socket_reaches_addresses_of_its_family_and_the_loopback_its_own() {
    for (local, to, expected) in [
        ("127.0.0.1:1", "127.0.0.2:9", true),
        ("127.0.0.1:1", "10.0.0.1:9", false),
        ("127.0.0.1:1", "[::1]:9", false),
        ("10.0.0.2:1", "10.0.0.1:9", true),
        ("10.0.0.2:1", "127.0.0.1:9", false),
        ("0.0.0.0:1", "127.0.0.1:9", true),
        ("0.0.0.0:1", "10.0.0.1:9", true),
        ("0.0.0.0:1", "[::1]:9", false),
        ("[::]:1", "[::1]:9", true),
        ("[::]:1", "10.0.0.1:9", false),
        ("[::1]:1", "[fe80::1]:9", false),
    ] {
        assert_eq!(reaches(at(local), at(to)), expected, "{local} {to}");
    }
}

#[test]
fn another_family_is_dialled_from_a_socket_that_is_opened_for_it_once() {
    let mut world = both_families();
    world.hosts[0].call("127.0.0.1:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    assert_eq!(world.hosts[0].asked, []);
    world.hosts[0].call("[::1]:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    let [(opened, towards)] = world.hosts[0].asked[..] else {
        panic!("{:?}", world.hosts[0].asked);
    };
    assert_eq!((opened.index(), towards), (1, at("[::1]:2")));
    // Each is answered over the socket that it came to.
    assert!(world.sent("127.0.0.1:2", "127.0.0.1:1"));
    assert!(world.sent("[::1]:2", "[::1]:50000"));
    world.hosts.push(Host::new(3, &[("[::1]:3", true)]));
    world.hosts[0].call("[::1]:3");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    assert_eq!(world.hosts[0].asked.len(), 1);
    let sent: u64 = (world.hosts.iter())
        .map(|host| host.endpoint.metrics().datagrams_sent)
        .sum();
    assert_eq!(sent, world.sent.len() as u64);
}

#[test]
fn who_is_bound_to_the_loopback_reaches_others_from_another_socket() {
    let mut world = World::new([Host::new(1, &[("127.0.0.1:1", true)])]);
    world.hosts[0].opens = false;
    for to in ["10.0.0.1:2", "10.0.0.2:2"] {
        world.hosts[0].call(to);
        world.run();
    }
    let asked: Vec<_> = world.hosts[0].asked.iter().map(|asked| asked.1).collect();
    assert_eq!(asked, [at("10.0.0.1:2"), at("10.0.0.2:2")]);
}

#[test]
fn one_that_listens_is_dialled_from_first() {
    let client = Host::new(1, &[("127.0.0.1:5", false), ("127.0.0.1:6", true)]);
    let mut world = World::new([client, Host::new(2, &[("127.0.0.1:2", true)])]);
    world.hosts[0].call("127.0.0.1:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    assert!(world.sent("127.0.0.1:6", "127.0.0.1:2"));
    assert!(!world.sent("127.0.0.1:5", "127.0.0.1:2"));
}

#[test]
fn a_stranger_at_a_socket_that_does_not_listen_is_told_so() {
    let mut world = both_families();
    world.hosts[0].call("[::1]:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    world.hosts.push(Host::new(3, &[("[::1]:3", true)]));
    world.hosts[2].call("[::1]:50000");
    world.run();
    world.run();
    let told = Cause::Closed("this endpoint does not listen".to_owned());
    let ends = &world.hosts[2].endpoint.probe().0;
    assert!(
        !ends.is_empty() && ends.iter().all(|end| *end == told),
        "{ends:?}"
    );
    assert_eq!(world.hosts[0].ran, 0);
    assert_eq!(world.hosts[0].endpoint.sizes().connections, 1);
    // The one it has opened itself goes on.
    world.hosts[0].call("[::1]:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    assert_eq!(world.hosts[0].endpoint.probe().0, []);
}

#[test]
fn a_dial_whose_socket_cannot_be_opened_fails_and_says_why() {
    let mut world = both_families();
    world.hosts[0].opens = false;
    for _ in 0..5 {
        world.hosts[0].call("[::1]:2");
        world.run();
        let outcome = world.hosts[0].outcome();
        let Outcome::Failed(failure) = outcome else {
            panic!("{outcome:?}");
        };
        let Failure::NotSent { error, .. } = &failure else {
            panic!("{failure:?}");
        };
        let server = Address::Udp(at("[::1]:2"));
        let reason = "there is no such network".to_owned();
        assert_eq!(*error, ConnectError::Local { server, reason });
    }
    assert_eq!(world.hosts[0].endpoint.sizes().connections, 0);
    assert!(!world.hosts[0].endpoint.has_sessions());
    // It is tried again with each dial, always with the same one.
    world.hosts[0].opens = true;
    world.hosts[0].call("[::1]:2");
    world.hosts[0].call("127.0.0.1:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 2);
    let asked = &world.hosts[0].asked;
    assert_eq!(asked.len(), 6);
    assert!(asked.iter().all(|(socket, _)| socket.index() == 1));
}

#[test]
fn nothing_is_dialled_from_a_listening_socket_that_has_failed() {
    let mut world = both_families();
    world.hosts[0].call("127.0.0.1:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    let mut counted = world.hosts[0].endpoint.metrics();
    let (failed, _) = world.hosts[0].sockets.remove(0);
    let why = "it was taken away".to_owned();
    world.hosts[0].endpoint.handle_socket_failed(failed, why);
    assert_eq!(world.hosts[0].endpoint.sizes().connections, 0);
    counted.connections_ended += 1;
    assert_eq!(world.hosts[0].endpoint.metrics(), counted);
    world.hosts[0].call("127.0.0.1:2");
    world.run();
    assert_eq!(world.hosts[0].answered(), 1);
    let asked = &world.hosts[0].asked;
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].0.index(), 1);
}

#[test]
fn what_is_for_one_socket_is_nothing_to_another() {
    let client = Host::new(1, &[("127.0.0.1:1", true)]);
    let server = Host::new(2, &[("127.0.0.1:2", true), ("127.0.0.1:3", true)]);
    let mut world = World::new([client, server]);
    world.strays = true;
    for to in ["127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:2"] {
        world.hosts[0].call(to);
        world.run();
    }
    assert_eq!(world.hosts[0].answered(), 3);
    assert_eq!(world.hosts[1].ran, 3);
    assert_eq!(world.hosts[1].endpoint.sizes().connections, 2);
    assert!(world.hosts[1].endpoint.metrics().datagrams_dropped > 0);
}

#[test]
fn an_address_that_a_peer_has_named_is_asked_often_once_the_application_wants_it_too() {
    let absent = "127.0.0.1:3";
    let client = Host::new(1, &[("127.0.0.1:1", true)]);
    let mut server = Host::new(2, &[("127.0.0.1:2", true)]);
    server.delegates = Some(at(absent));
    let mut world = World::new([client, server]);
    world.hosts[0].call("127.0.0.1:2");
    (0..4).for_each(|_| world.run());
    let asks = |world: &World| {
        let sent = world.sent.iter();
        let from_client = sent.filter(|(from, to)| (*from, *to) == (at("127.0.0.1:1"), at(absent)));
        from_client.count()
    };
    let at_first = asks(&world);
    assert!((1..=5).contains(&at_first), "{at_first} asks");
    world.hosts[0].call(absent);
    (0..2).for_each(|_| world.run());
    let in_a_second = asks(&world) - at_first;
    assert!((3..=6).contains(&in_a_second), "{in_a_second} asks");
}
