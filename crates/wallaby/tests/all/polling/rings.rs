//! Polling endpoints over shared memory: among themselves, with processes that are killed, and with strangers at the socket.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use wallaby::polling::{Builder, CallOptions, Endpoint, Event, Limits, Wait};
use wallaby::{Address, CallError, ConnectError, Failure};

use super::alone::work;
use super::proxy::Path;
use super::world::World;
use crate::common::process;

const FOREVER: Wait = Wait::Forever;

/// The least rings that there are, and no time that runs out while a test is stopped by others.
fn small() -> Builder {
    let builder = Endpoint::builder().shared_memory(1);
    builder.ping(Duration::from_secs(500), Duration::from_secs(1000))
}

/// An endpoint that agrees on memory at a path of its own.
fn bind(builder: Builder) -> Endpoint {
    let at = Path::new().shared(); // whoever listens there removes it
    builder.bind(&at).expect("a free path")
}

/// Answers each request with what it says.
fn echo(server: &mut Endpoint) {
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
}

fn call(client: &mut Endpoint, server: &Address, what: &str) {
    let target = work::one(what.into());
    let sent = client.call(server.clone(), target, &CallOptions::default());
    sent.expect("it is sent");
}

/// Turns all without waiting until the first one has an event.
fn event(endpoints: &mut [&mut Endpoint]) -> Event {
    loop {
        for endpoint in endpoints.iter_mut() {
            endpoint.turn(Wait::Not).expect("the system lives");
        }
        if let Some(event) = endpoints[0].next_event() {
            return event;
        }
    }
}

/// What the first one is answered.
fn ask(endpoints: &mut [&mut Endpoint], server: &Address, what: &str) -> String {
    let target = work::one(what.into());
    let call = endpoints[0].call(server.clone(), target, &CallOptions::default());
    let call = call.expect("it is sent");
    let Event::Answer(answer) = event(endpoints) else {
        panic!("an answer comes first")
    };
    let end = event(endpoints);
    assert!(matches!(end, Event::Complete { .. }), "{end:?}");
    call.read(answer).expect("a text")
}

#[test]
fn calls_are_answered_and_forwarded_over_shared_memory_alone() {
    let [mut client, mut first, mut last] = [(); 3].map(|()| bind(small()));
    echo(&mut last);
    let next = last.address();
    let serve = first.serve(&work::ONE, move |request, (what,)| {
        Ok(request.forward(next.clone(), work::one(what))?)
    });
    serve.expect("no other has its name");
    let all = [last.address(), first.address(), first.address()];
    for to in &all {
        let Address::Shm(_) = to else {
            panic!("{to:?}")
        };
        let answer = ask(&mut [&mut client, &mut first, &mut last], to, "hop");
        assert_eq!(answer, "hop");
    }
    for endpoint in [&client, &first, &last] {
        assert_eq!(endpoint.metrics().datagrams_sent, 0);
        assert_eq!(endpoint.sizes().calls, 0);
    }
    // The last server dials the client once, for the answers to what was forwarded: who dialled it may be anybody.
    assert_eq!(
        (client.sizes().connections, last.sizes().connections),
        (3, 3)
    );
    // The name is given back.
    drop(last);
    Endpoint::bind(&all[0].to_string()).expect("nobody is there");
}

#[test]
fn messages_pass_that_are_much_larger_than_the_rings() {
    for ring in [1, 5_000, 1 << 20] {
        let mut client = bind(small().shared_memory(ring));
        let mut server = bind(small());
        echo(&mut server);
        for len in [0, 100, 5_000, 70_000, 3 << 20] {
            let large = "a".repeat(len);
            let to = server.address();
            assert!(ask(&mut [&mut client, &mut server], &to, &large) == large);
        }
    }
}

/// Both sleep whenever there is nothing to do, and nothing but a bell ends that in time.
#[test]
fn who_sleeps_is_woken() {
    const CALLS: usize = 3_000;
    let path = Path::new();
    let (address, at) = (path.shared(), path.shared());
    let (tell, ready) = mpsc::channel();
    thread::spawn(move || {
        let mut server = small().bind(&at).expect("a free path");
        let served = Rc::new(Cell::new(0));
        let count = Rc::clone(&served);
        let serve = server.serve(&work::ONE, move |request, (what,)| {
            count.set(count.get() + 1);
            Ok(request.respond(&what)?)
        });
        serve.expect("no other has its name");
        tell.send(()).expect("somebody waits");
        while served.get() < CALLS {
            server.turn(FOREVER).expect("the system lives");
        }
        // The end of a large answer may have no room yet.
        while server.sizes().connections > 0 {
            server.turn(FOREVER).expect("the system lives");
        }
    });
    ready.recv().expect("it starts");
    let (tell, finished) = mpsc::channel();
    thread::spawn(move || {
        let mut client = bind(small());
        let server: Address = address.parse().expect("an address");
        for number in 0..CALLS {
            // Now and then more than a ring holds, so that writers sleep, too.
            let len = if number % 100 == 0 {
                20_000
            } else {
                number % 64
            };
            let what = "a".repeat(len);
            let target = work::one(what.clone());
            let answer = client.ask(server.clone(), target, &CallOptions::default(), FOREVER);
            assert_eq!(answer.expect("an answer"), what);
        }
        tell.send(()).expect("somebody waits");
    });
    let finished = finished.recv_timeout(Duration::from_secs(60));
    finished.expect("nobody rings: a wake-up was lost");
}

/// Beside rings the other sockets are not forgotten, by who waits and by who never does.
#[test]
fn all_transports_are_served_at_once() {
    let builder = small()
        .listen("tcp://127.0.0.1:0")
        .listen("udp://127.0.0.1:0")
        .listen(&Path::new().text())
        .listen(&Path::new().shared());
    let mut server = bind(builder);
    echo(&mut server);
    let all = server.addresses().to_vec();
    assert_eq!(all.len(), 5);
    let mut client = bind(small());
    for _ in 0..3 {
        for to in &all {
            assert_eq!(ask(&mut [&mut client, &mut server], to, "hop"), "hop");
        }
    }
    // All at the same time.
    for to in all.iter().cycle().take(50) {
        call(&mut client, to, "hop");
    }
    let mut completed = 0;
    while completed < 50 {
        match event(&mut [&mut client, &mut server]) {
            Event::Complete { .. } => completed += 1,
            Event::Answer(_) => {}
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..2 {
        for to in &all {
            call(&mut client, to, "hop");
            let mut over = false;
            while !over {
                server
                    .turn(Wait::For(Duration::from_millis(1)))
                    .expect("the system lives");
                client
                    .turn(Wait::For(Duration::from_millis(1)))
                    .expect("the system lives");
                while let Some(event) = client.next_event() {
                    over |= matches!(event, Event::Complete { .. });
                }
            }
        }
    }
}

/// More connections than are looked at in each turn: those that have nothing ring when they have.
#[test]
fn many_connections_are_served() {
    let mut server = bind(small());
    echo(&mut server);
    let to = server.address();
    let mut clients: Vec<Endpoint> = (0..100).map(|_| bind(small())).collect();
    for round in 0..3 {
        for client in &mut clients {
            call(client, &to, "hop");
        }
        let mut completed = 0;
        while completed < clients.len() {
            server.turn(Wait::Not).expect("the system lives");
            for client in &mut clients {
                client.turn(Wait::Not).expect("the system lives");
                while let Some(event) = client.next_event() {
                    completed += usize::from(matches!(event, Event::Complete { .. }));
                }
            }
        }
        assert_eq!(server.sizes().connections, clients.len(), "round {round}");
    }
    drop(clients);
    while server.sizes().connections > 0 {
        server.turn(FOREVER).expect("the system lives");
    }
}

/// What the server does not take waits at the client, up to its limit, and goes on when it does.
#[test]
fn a_server_that_stops_reading_is_waited_for() {
    let mut limits = Limits::default();
    limits.waiting = 200_000;
    let mut client = bind(small().limits(limits));
    let mut server = bind(small());
    echo(&mut server);
    let to = server.address();
    assert_eq!(ask(&mut [&mut client, &mut server], &to, "hop"), "hop");
    let (what, mut sent) = ("a".repeat(10_000), 0);
    let failure = loop {
        let target = work::one(what.clone());
        match client.call(to.clone(), target, &CallOptions::default()) {
            Ok(_) => sent += 1,
            Err(failure) => break failure,
        }
        client.turn(Wait::Not).expect("the system lives");
        assert!(sent < 10_000, "it takes whatever comes");
    };
    assert!(matches!(failure, Failure::Refused { .. }), "{failure}");
    let mut completed = 0;
    while completed < sent {
        match event(&mut [&mut client, &mut server]) {
            Event::Complete { .. } => completed += 1,
            Event::Answer(answer) => assert!(answer.payload().is_ok()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_ends_is_noticed_and_its_last_words_are_heard() {
    let impatient = small().ping(Duration::from_millis(50), Duration::from_millis(500));
    let mut client = bind(impatient);
    for wait in [FOREVER, Wait::Not] {
        let mut server = bind(small());
        let serve = server.serve(&work::MANY, |mut request, (what,)| {
            request.reply(&what)?;
            request.hold();
            Ok(())
        });
        serve.expect("no other has its name");
        let target = work::many("words".into());
        let sent = client.call(server.address(), target, &CallOptions::default());
        sent.expect("it is sent");
        while server.sizes().requests == 0 {
            client.turn(Wait::Not).expect("the system lives");
            server.turn(Wait::Not).expect("the system lives");
        }
        server.kill(); // before the client has read what it has said
        let mut next = || {
            loop {
                if let Some(event) = client.next_event() {
                    return event;
                }
                client.turn(wait).expect("the system lives");
            }
        };
        assert!(matches!(next(), Event::Answer(_)));
        assert!(matches!(next(), Event::Failed { .. }));
        assert_eq!(client.sizes().connections, 0);
    }
}

#[test]
fn nobody_at_a_path_is_a_failure_at_once() {
    let mut client = bind(small());
    let nowhere: Address = Path::new().shared().parse().expect("an address");
    let asked = client.ask(
        nowhere,
        work::one("hop".into()),
        &CallOptions::default(),
        FOREVER,
    );
    let Err(CallError::Failed(Failure::NotSent { error, .. })) = asked else {
        panic!("{asked:?}")
    };
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
}

/// A server that takes connections and agrees on nothing.
#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let path = Path::new();
    let _silent = UnixListener::bind(plain(&path)).expect("a free path");
    let mut client = bind(small().dial_timeout(Duration::from_millis(50)));
    let to: Address = path.shared().parse().expect("an address");
    let options = CallOptions::default();
    let asked = client.ask(to, work::one("hop".into()), &options, FOREVER);
    let Err(CallError::Failed(Failure::NotSent { error, .. })) = asked else {
        panic!("{asked:?}")
    };
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
}

#[test]
fn a_server_that_answers_something_else_is_at_fault() {
    let path = Path::new();
    let other = UnixListener::bind(plain(&path)).expect("a free path");
    let answering = std::thread::spawn(move || {
        let (mut stranger, _) = other.accept().expect("it dials");
        stranger
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .expect("room");
        stranger
    });
    let mut client = bind(small());
    let to: Address = path.shared().parse().expect("an address");
    let asked = client.ask(
        to,
        work::one("hop".into()),
        &CallOptions::default(),
        FOREVER,
    );
    let Err(CallError::Failed(Failure::NotSent { error, .. })) = asked else {
        panic!("{asked:?}")
    };
    let ConnectError::Handshake { source, .. } = &error else {
        panic!("{error}");
    };
    assert!(source.is_violation(), "{source}");
    assert_eq!(client.metrics().connections_broken, 1);
    drop(answering.join());
}

/// Where the socket is at which memory is agreed on.
fn plain(path: &Path) -> String {
    path.shared().trim_start_matches("shm://").to_owned()
}

/// Strangers have places of their own until they have said who they are, and little time for it.
#[test]
fn strangers_are_refused_and_let_go() {
    let world = World::new(70);
    let path = Path::new();
    let builder = Endpoint::builder().strangers(3, Duration::from_secs(2));
    let mut server = world.bind(builder.listen(&path.shared()));
    let connect = || UnixStream::connect(plain(&path)).expect("it listens");
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 12], b"wb-shm", b"x"] {
        let before = server.metrics().connections_broken;
        let mut stranger = connect();
        stranger.write_all(garbage).expect("room");
        while server.metrics().connections_broken == before {
            server.turn(Wait::Not).expect("the system lives");
        }
        let mut heard = Vec::new();
        let _ = stranger.read_to_end(&mut heard); // what it had sent may not have been read to its end
        assert!(heard.starts_with(b"wb-shm"), "it was told why: {heard:?}");
        assert_eq!(server.sizes().connections, 0);
    }
    let mut silent: Vec<UnixStream> = (0..5).map(|_| connect()).collect();
    while server.metrics().strangers_dismissed < 2 {
        server.turn(Wait::Not).expect("the system lives");
    }
    assert_eq!(server.sizes().connections, 3);
    world.pass(Duration::from_secs(1));
    server.turn(Wait::Not).expect("the system lives");
    assert_eq!(server.sizes().connections, 3, "they still have time");
    while server.sizes().connections > 0 {
        world.pass(Duration::from_millis(100));
        server.turn(Wait::Not).expect("the system lives");
        assert!(world.now() < Duration::from_secs(3));
    }
    for stranger in &mut silent {
        assert_eq!(stranger.read(&mut [0]).expect("it was closed"), 0);
    }
}

/// Where a process of this program listens, and for what.
const ADDRESS: &str = "WALLABY_TEST_POLLS_AT";

/// A polling server in a process of its own, which is killed with this.
struct Process(Child);

impl Process {
    fn start(address: &str) -> Self {
        let mut server = process::only(module_path!(), "is_a_server_if_it_is_asked_to")
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map(Self)
            .expect("it starts");
        let output = server.0.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(output).lines();
        let ready = lines.any(|line| line.expect("text").contains("listening"));
        assert!(ready, "it has ended");
        server
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No test, but what [`Process`] runs.
#[test]
fn is_a_server_if_it_is_asked_to() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]); // until who has started it is gone
        std::process::exit(0);
    });
    let mut server = Endpoint::bind(&address).expect("a free address");
    echo(&mut server);
    let serve = server.serve(&work::MANY, |mut request, (what,)| {
        for _ in 0..5 {
            request.reply(&what)?;
        }
        Ok(())
    });
    serve.expect("no other has its name");
    println!("listening");
    loop {
        server.turn(FOREVER).expect("the system lives");
    }
}

/// The server is killed in the midst of small and large calls. All of them end, and the next server is found at the same
/// path, where the socket was left behind.
#[test]
fn a_server_that_is_killed_ends_its_calls() {
    let path = Path::new();
    let address = path.shared();
    let server: Address = address.parse().expect("an address");
    let client = Endpoint::builder().shared_memory(16 << 10);
    let client = client.ping(Duration::from_millis(50), Duration::from_secs(3));
    let mut client = bind(client);
    let options = CallOptions::default();
    for round in 0..6 {
        let process = Process::start(&address);
        let sizes = [100, 3_000, 20_000, 100_000];
        let calls = (0..24).map(|call| {
            let target = work::many("a".repeat(sizes[call % sizes.len()]));
            client
                .call(server.clone(), target, &options)
                .expect("it is sent")
        });
        let mut calls: Vec<_> = calls.map(|call| call.key()).collect();
        // So that it dies at another point in each round.
        for _ in 0..3 * round {
            let wait = if round % 2 == 0 { Wait::Not } else { FOREVER };
            let hop = client.ask(server.clone(), work::one("hop".into()), &options, wait);
            assert_eq!(hop.expect("it lives"), "hop");
        }
        drop(process);
        while !calls.is_empty() {
            client.turn(FOREVER).expect("the system lives");
            while let Some(event) = client.next_event() {
                if let Event::Complete { call, .. } | Event::Failed { call, .. } = event {
                    calls.retain(|known| *known != call);
                }
            }
        }
    }
    let _process = Process::start(&address);
    let hop = client.ask(server, work::one("hop".into()), &options, FOREVER);
    assert_eq!(hop.expect("it lives"), "hop");
}

/// In a process of its own: other tests have connections, too.
#[test]
fn nothing_is_left_of_a_connection() {
    const ALONE: &str = "WALLABY_TEST_POLLS_ALONE";
    if std::env::var(ALONE).is_err() {
        let mut alone = process::only(module_path!(), "nothing_is_left_of_a_connection");
        let output = alone.env(ALONE, "").stderr(Stdio::inherit()).output();
        assert!(process::has_passed(&output.expect("it starts").stdout));
        return;
    }
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        maps.lines()
            .filter(|line| line.contains("memfd:wallaby"))
            .count()
    };
    let open = || {
        std::fs::read_dir("/proc/self/fd")
            .expect("it is there")
            .count()
    };
    let mut server = bind(small());
    echo(&mut server);
    let to = server.address();
    let mut before = None;
    for _ in 0..5 {
        let mut client = bind(small());
        assert_eq!(ask(&mut [&mut client, &mut server], &to, "hop"), "hop");
        assert_eq!(mapped(), 2, "one for each side");
        drop(client);
        while server.sizes().connections > 0 {
            server.turn(FOREVER).expect("the system lives");
        }
        assert_eq!(mapped(), 0);
        let now = open();
        assert_eq!(*before.get_or_insert(now), now, "descriptors");
    }
}
