//! Strangers: what they make an endpoint send to others, and what they take up of its room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::raw::{Raw, hello, request, response};
use crate::common::{Gate, Net, at, client, load, patience, service, status, until, work};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use wallaby::{Address, CallId, Code, DialPolicy, Endpoint, Limits, Many, NodeId, One, Request};
use wallaby_proto::wire::{Child, Message, Pong, Progress, ReplyTo};

async fn echo(net: &Net, builder: wallaby::Builder) -> Endpoint {
    let echo = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    net.bind(builder.serve(echo)).await
}

/// A call of an initiator that does not exist, said to be reached at this address.
fn aimed(initiator: u64, at: &Address) -> wallaby_proto::wire::Request {
    let call = CallId {
        initiator: NodeId::new(initiator).expect("not zero"),
        sequence: 1,
    };
    wallaby_proto::wire::Request {
        reply_to: ReplyTo::At(at.clone()),
        depth: 1,
        ..request(call, b"\x01x")
    }
}

/// How many times something may have happened that happens once a second.
fn seconds(begun: Instant) -> u64 {
    begun.elapsed().as_secs() + 1
}

/// Requests of initiators that do not exist name one address: who is there is dialled once a second, not once a request.
#[tokio::test]
async fn an_address_is_dialled_once_a_second_however_many_initiators_are_said_to_be_there() {
    patience(async {
        let victim = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let door = Address::Tcp(victim.local_addr().expect("it is bound"));
        let (mut dials, begun) = (0, Instant::now());
        let server = echo(&Net::tcp(), Endpoint::builder()).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        const REQUESTS: u64 = 2000;
        for initiator in 1..=REQUESTS {
            let request = aimed(1000 + initiator, &door);
            stranger.send_request(request, work::ONE.definition()).await;
            if let Ok(accepted) = tokio::time::timeout(Duration::ZERO, victim.accept()).await {
                drop(accepted.expect("it listens"));
                dials += 1;
            }
        }
        // All answers go back the way that the requests came.
        for _ in 0..REQUESTS {
            stranger.response().await;
        }
        while let Ok(accepted) = tokio::time::timeout(Duration::ZERO, victim.accept()).await {
            drop(accepted.expect("it listens"));
            dials += 1;
        }
        let most = seconds(begun);
        assert!((1..=most).contains(&dials), "{dials} dials, not {most}");
        assert!(server.metrics().dials_held > 0);
    })
    .await;
}

/// A server names an address at which somebody accepts and closes: however often a request there is asked about, it is dialled
/// once a second.
#[tokio::test]
async fn an_address_that_accepts_and_closes_is_dialled_once_a_second() {
    patience(async {
        let victim = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let door = Address::Tcp(victim.local_addr().expect("it is bound"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = Address::Tcp(listener.local_addr().expect("it is bound"));
        let (dials, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let counted = Arc::clone(&dials);
        let closes = tokio::spawn(async move {
            while let Ok((stream, _)) = victim.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                drop(stream);
            }
        });
        let period = Duration::from_millis(5);
        let client = Endpoint::builder().ping(period, Duration::from_secs(600));
        let client = Net::tcp().bind(client).await;
        let call = work::at(&client, own).many(String::new());
        let mut liar = Raw::accept(&listener, hello(9)).await;
        let request = liar.request().await;
        // Each asks about the child, too.
        for _ in 0..200 {
            if let Message::Ping(ping) = liar.message().await {
                let child = (ping.children_from == 0).then(|| Child {
                    server: door.clone(),
                    node: NodeId::new(77),
                });
                liar.send(Message::Pong(runs(&request, child))).await;
            }
        }
        let most = seconds(begun);
        let dials = dials.load(Ordering::Relaxed);
        assert!((1..=most).contains(&dials), "{dials} dials, not {most}");
        assert!(client.metrics().dials_held > 0);
        closes.abort();
        drop(call);
    })
    .await;
}

/// The request runs, and perhaps has handed something on.
fn runs(request: &wallaby_proto::wire::Request, child: Option<Child>) -> Pong {
    Pong {
        call: request.call,
        distance: 0,
        token: Some(request.token),
        request: request.id,
        attempt: 0,
        announced: false,
        writing: false,
        evicted: false,
        gone: false,
        heartbeats: false,
        progress: Some(Progress {
            finished: false,
            aborted: false,
            base: 0,
            count: 0,
            children_from: 0,
            children: child.into_iter().collect(),
            continuation: None,
            facts: None,
            manifest: None,
            idle: Some(Duration::ZERO),
            lost: Vec::new(),
            handled_by: None,
        }),
    }
}

/// The same over UDP: what arrives at the address is less than what made the server send it.
#[tokio::test]
async fn a_server_is_no_amplifier_of_datagrams() {
    patience(async {
        let victim = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let door = Address::Udp(victim.local_addr().expect("it is bound"));
        let begun = Instant::now();
        let server = echo(&Net::tcp(), Endpoint::builder()).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        const REQUESTS: u64 = 500;
        for initiator in 1..=REQUESTS {
            let request = aimed(1000 + initiator, &door);
            stranger.send_request(request, work::ONE.definition()).await;
        }
        for _ in 0..REQUESTS {
            stranger.response().await;
        }
        let (mut datagrams, mut bytes, mut buffer) = (0, 0, [0; 2000]);
        while let Ok(len) = victim.try_recv(&mut buffer) {
            datagrams += 1;
            bytes += len;
            assert_eq!(buffer[0], 1, "an ask");
            assert!(len <= 80, "an ask of {len} bytes");
        }
        assert!((1..=3 * seconds(begun)).contains(&datagrams), "{datagrams}");
        let caused = server.metrics().bytes_received as usize;
        assert!(bytes < caused, "{bytes} bytes for {caused}");
    })
    .await;
}

/// Many addresses, each named once: they share a rate.
#[tokio::test]
async fn all_addresses_that_peers_name_share_a_rate() {
    patience(async {
        let begun = Instant::now();
        let builder = Endpoint::builder().dial_policy(DialPolicy::default().rate(1, 10));
        let server = echo(&Net::tcp(), builder).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        let mut victims = Vec::new();
        for initiator in 1..=50 {
            let victim = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let door = Address::Tcp(victim.local_addr().expect("it is bound"));
            let request = aimed(1000 + initiator, &door);
            stranger.send_request(request, work::ONE.definition()).await;
            victims.push(victim);
        }
        let most = 10 + seconds(begun);
        until(|| server.metrics().dials_held >= 50 - most).await;
        let held = server.metrics().dials_held;
        assert!(held <= 40, "{held} were held back");
    })
    .await;
}

fn limited(connections: usize) -> Limits {
    let mut limits = Limits::default();
    limits.connections = connections;
    limits
}

async fn asks(clients: &[Endpoint], server: &Endpoint) {
    for client in clients {
        let answer = work::at(client, at(server)).one("hop".into()).await;
        assert_eq!(answer.expect("it is served"), "hop");
    }
}

/// Half handshakes have places of their own: all connections may be in use, and none is closed for them.
#[tokio::test]
async fn half_handshakes_take_nobodys_place() {
    patience(async {
        for net in [Net::tcp(), Net::unix()] {
            let builder = Endpoint::builder()
                .limits(limited(2))
                .strangers(4, Duration::from_secs(60));
            let server = echo(&net, builder).await;
            let clients = [client(), client()];
            asks(&clients, &server).await;
            let mut silent = Vec::new();
            for _ in 0..50 {
                silent.push(Half::open(&at(&server)).await);
            }
            until(|| server.metrics().strangers_dismissed == 46).await;
            asks(&clients, &server).await;
            let metrics = server.metrics();
            assert_eq!(
                (metrics.connections_opened, metrics.connections_ended),
                (2, 0),
                "{}",
                at(&server)
            );
            // Who says hello still finds a place: one that nobody needs makes room.
            asks(&[client()], &server).await;
            assert_eq!(server.metrics().connections_evicted, 1);
        }
    })
    .await;
}

/// A connection without a handshake.
enum Half {
    Tcp { _stream: TcpStream },
    Unix { _stream: UnixStream },
}

impl Half {
    async fn open(at: &Address) -> Self {
        match at {
            Address::Tcp(at) => Self::Tcp {
                _stream: TcpStream::connect(at).await.expect("it listens"),
            },
            Address::Unix(path) => Self::Unix {
                _stream: UnixStream::connect(&**path).await.expect("it listens"),
            },
            other => panic!("{other}"),
        }
    }
}

/// Sessions over UDP of who says nothing: their addresses are proven, but they want nothing.
#[tokio::test]
async fn silent_sessions_take_nobodys_place() {
    patience(async {
        let net = Net::udp();
        let builder = Endpoint::builder()
            .limits(limited(4))
            .strangers(4, Duration::from_secs(60));
        let server = echo(&net, builder).await;
        let clients = [client(), client()];
        asks(&clients, &server).await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            let stranger = client();
            stranger.connect(at(&server)).await.expect("a session");
            silent.push(stranger);
        }
        until(|| server.metrics().strangers_dismissed == 16).await;
        asks(&clients, &server).await;
        let metrics = server.metrics();
        assert_eq!(metrics.connections_evicted, 0);
        for client in &clients {
            assert_eq!(
                client.metrics().connections_opened,
                1,
                "it was never closed"
            );
        }
        // Each of them is served as soon as it wants something.
        asks(&silent[..1], &server).await;
        asks(&silent[19..], &server).await;
    })
    .await;
}

/// Who has said hello and never sent a request goes before who has.
#[tokio::test]
async fn who_was_never_of_use_makes_room_first() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net, Endpoint::builder().limits(limited(4))).await;
        let clients = [client(), client()];
        asks(&clients, &server).await;
        let mut idle = Vec::new();
        for node in 1..=30 {
            idle.push(Raw::dial(&at(&server), hello(node)).await);
        }
        let mut first = idle.remove(0);
        let reason = first.closed().await.expect("a reason");
        assert!(reason.contains("room is needed"), "{reason}");
        until(|| server.metrics().connections_evicted == 28).await;
        asks(&clients, &server).await;
        for client in &clients {
            assert_eq!(
                client.metrics().connections_opened,
                1,
                "it was never closed"
            );
        }
    })
    .await;
}

/// A hundred connections whose requests run were used before the one that nobody needs: it makes room all the same, and so does
/// each that comes to rest.
#[tokio::test]
async fn connections_that_are_needed_hide_none_that_is_not() {
    patience(async {
        const NEEDED: u64 = 100;
        let net = Net::tcp();
        let gate = Gate::new();
        let opened = gate.clone();
        let slow = service()
            .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
                Ok(request.respond(what).await?)
            })
            .method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
                let gate = opened.clone();
                async move {
                    gate.pass().await;
                    Ok(request.respond(String::new()).await?)
                }
            });
        let limits = limited(NEEDED as usize + 1);
        let server = net
            .bind(Endpoint::builder().limits(limits).serve(slow))
            .await;
        let mut open = Vec::new();
        for node in 1..=NEEDED + 3 {
            let mut raw = Raw::dial(&at(&server), hello(node)).await;
            let call = CallId {
                initiator: NodeId::new(node).expect("not zero"),
                sequence: 1,
            };
            if node <= NEEDED {
                let request = request(call, b"x");
                raw.send_request(request, work::MANY.definition()).await;
                until(|| server.load() == load(node as usize, 0)).await;
            } else {
                // Each takes the place of the one before, which nobody needs.
                let request = request(call, b"x");
                raw.send_request(request, work::ONE.definition()).await;
                raw.response().await;
                let evicted = server.metrics().connections_evicted;
                assert_eq!(evicted, node - NEEDED - 1);
            }
            open.push(raw);
        }
        let last = CallId {
            initiator: NodeId::new(NEEDED + 3).expect("not zero"),
            sequence: 2,
        };
        let raw = open.last_mut().expect("there are some");
        raw.send_request(request(last, b"x"), work::MANY.definition())
            .await;
        until(|| server.load() == load(NEEDED as usize + 1, 0)).await;
        assert!(
            client().connect(at(&server)).await.is_err(),
            "all are needed"
        );
        gate.open(1);
        until(|| server.load() == load(NEEDED as usize, 0)).await;
        let newcomer = [client()];
        asks(&newcomer, &server).await;
        assert_eq!(server.metrics().connections_evicted, 3);
    })
    .await;
}

/// Over UDP a stranger's first message has arrived when it is found that there is no room: its request gets a status.
#[tokio::test]
async fn a_request_for_which_no_connection_is_left_gets_a_status() {
    patience(async {
        let gate = Gate::new();
        let waits = gate.clone();
        let net = Net::udp();
        let service = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let waits = waits.clone();
            async move {
                waits.pass().await;
                Ok(request.respond(what).await?)
            }
        });
        let builder = Endpoint::builder().limits(limited(1)).serve(service);
        let server = net.bind(builder).await;
        let (busy, other) = (client(), client());
        let first = work::at(&busy, at(&server)).one("first".into());
        until(|| server.load() == load(1, 0)).await;
        let refused = status(work::at(&other, at(&server)).one("other".into()).await);
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("all 1 connections"), "{refused}");
        gate.open(1);
        assert_eq!(first.await.expect("an answer"), "first");
    })
    .await;
}

/// A stranger is found at its own address as somebody else, and then as another: who was never there keeps its connection.
#[tokio::test]
async fn who_claims_a_node_id_at_its_own_address_ends_no_connection_of_that_node() {
    patience(async {
        const VICTIM: u64 = 5;
        let server = echo(&Net::tcp(), Endpoint::builder()).await;
        let mut victim = Raw::dial(&at(&server), hello(VICTIM)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = Address::Tcp(listener.local_addr().expect("it is bound"));
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        let found_as = async |stranger: &mut Raw, claimed| {
            let request = aimed(claimed, &own);
            stranger.send_request(request, work::ONE.definition()).await;
            let mut found = Raw::accept(&listener, hello(claimed)).await;
            found.response().await;
        };
        found_as(&mut stranger, VICTIM).await;
        Raw::accept_any(&listener, hello(7)).await; // its answer may be lost: it is dialled to be told
        found_as(&mut stranger, 7).await;
        let call = CallId {
            initiator: NodeId::new(VICTIM).expect("not zero"),
            sequence: 77,
        };
        let request = request(call, b"\x01x");
        victim.send_request(request, work::ONE.definition()).await;
        // It was also asked whether it is the initiator that the stranger has named.
        let answer = loop {
            match victim.message().await {
                Message::Pong(pong) if pong.call.sequence == 1 => {}
                other => break other,
            }
        };
        assert!(matches!(answer, Message::Response(response) if response.call == call));
    })
    .await;
}

/// A stranger says hello as the server of a call and leaves: nobody asks about the call for that. A connection that has carried
/// something of the call is another matter.
#[tokio::test]
async fn who_carried_nothing_of_a_call_and_leaves_causes_no_questions() {
    patience(async {
        const SERVER: u64 = 5;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = Address::Tcp(listener.local_addr().expect("it is bound"));
        let seldom = Duration::from_secs(600);
        let builder = Endpoint::builder().ping(seldom, 10 * seldom);
        let client = Net::tcp().bind(builder).await;
        let call = work::at(&client, &own).many(String::new());
        let mut server = Raw::accept(&listener, hello(SERVER)).await;
        let request = server.request().await;
        let runs = runs(&request, None);
        server.send(Message::Pong(runs.clone())).await; // the call is watched over from now on
        // That makes it ask, and so does nothing else for now.
        let fence = work::at(&client, &own).one(String::new());
        let answer = response(server.request().await.call, None, b"\x00");
        server.send_response(answer).await;
        fence.await.expect("an answer");
        let fence = work::at(&client, &own).one(String::new());
        while let Message::Ping(_) = server.message().await {}

        drop(Raw::dial(&at(&client), hello(SERVER)).await);
        until(|| client.metrics().connections_ended == 1).await;
        let next = work::at(&client, &own).one(String::new());
        let message = server.message().await;
        assert!(matches!(message, Message::Request(_)), "{message:?}");

        let mut also = Raw::dial(&at(&client), hello(SERVER)).await;
        also.send(Message::Pong(runs)).await;
        drop(also);
        let message = server.message().await;
        assert!(matches!(message, Message::Ping(_)), "{message:?}");
        drop((call, fence, next));
    })
    .await;
}
