//! Clients and servers on blocking sockets: what is kept open, what is closed, and which threads there are.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_onc::auth::OpaqueAuth;
use wallaby_onc::blocking::{Options, Pool, PooledChannel, Server, ServerOptions, wait};
use wallaby_onc::client::{self, TcpChannel, UdpChannel};
use wallaby_onc::message::{Body, Call, Message, Reply};
use wallaby_onc::record::{self, Records};
use wallaby_onc::{
    AcceptError, Caller, Channel, NoReply, Peer, Procedure, Programs, Reason, Refusal, Service,
    server,
};

const ECHO: u32 = 1;
/// Answers when the gate is open.
const WAIT: u32 = 2;
const PANIC: u32 = 3;
/// Answers with more than a datagram holds.
const LARGE: u32 = 4;

/// A program that can be made to wait.
#[derive(Debug, Clone, Default)]
struct Probe(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize, usize)>,
    changed: Condvar,
}

impl Probe {
    fn open(&self) {
        self.0.state.lock().unwrap().0 = true;
        self.0.changed.notify_all();
    }

    /// Returns when so many calls wait.
    fn await_waiting(&self, calls: usize) {
        let state = self.0.state.lock().unwrap();
        drop(self.0.changed.wait_while(state, |state| state.1 < calls));
    }

    fn executed(&self) -> usize {
        self.0.state.lock().unwrap().2
    }
}

impl Service for Probe {
    const PROGRAM: u32 = 0x2000_0008;
    const VERSION: u32 = 1;

    async fn handle(&self, _: &Caller, procedure: u32, arguments: Bytes) -> Result<Bytes, Refusal> {
        self.0.state.lock().unwrap().2 += 1;
        match procedure {
            ECHO => Ok(arguments),
            WAIT => {
                let mut state = self.0.state.lock().unwrap();
                state.1 += 1;
                self.0.changed.notify_all();
                drop(self.0.changed.wait_while(state, |state| !state.0));
                Ok(arguments)
            }
            LARGE => Ok(vec![0; 100_000].into()),
            PANIC => panic!("as the test wants it"),
            _ => Err(AcceptError::ProcedureUnavailable.into()),
        }
    }
}

fn procedure(number: u32) -> Procedure {
    Procedure {
        program: Probe::PROGRAM,
        version: Probe::VERSION,
        number,
    }
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn serve(probe: &Probe, options: ServerOptions) -> Server {
    Server::new(Programs::new().with(probe.clone()), options).unwrap()
}

fn call(channel: &impl Channel, number: u32, bytes: &'static [u8]) -> Result<Bytes, Reason> {
    wait(channel.call(procedure(number), Bytes::from_static(bytes)))
}

fn echoes(channel: &impl Channel) {
    assert_eq!(call(channel, ECHO, b"abcd").unwrap(), &b"abcd"[..]);
}

/// A call of the probe as it travels.
fn message(xid: u32, number: u32, arguments: &'static [u8]) -> Bytes {
    let call = Call {
        procedure: procedure(number),
        credential: OpaqueAuth::none(),
        verifier: OpaqueAuth::none(),
        arguments: Bytes::from_static(arguments),
    };
    let body = Body::Call(call);
    Message { xid, body }.encode().unwrap()
}

fn until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

#[test]
fn calls_go_over_everything_and_handles_are_used_again() {
    let server = serve(&Probe::default(), ServerOptions::default());
    let path = std::env::temp_dir().join(format!("wallaby-onc-blocking-{}", std::process::id()));
    server.listen_unix(&path).unwrap();
    let pool = Pool::new(Options::default());
    let channels = [
        pool.tcp(server.listen_tcp(anywhere()).unwrap()),
        pool.udp(server.listen_udp(anywhere()).unwrap()),
        pool.unix(Path::new(&path)),
    ];
    for channel in &channels {
        for _ in 0..10 {
            echoes(channel);
        }
    }
    let counters = pool.counters();
    assert_eq!(
        (counters.calls, counters.misses, counters.hits),
        (30, 3, 27)
    );
    assert_eq!((counters.open, counters.idle), (3, 3));
    assert_eq!(server.counters().traffic.calls, 30);
    assert_eq!(server.counters().traffic.connections, 2);
    assert!(server.shutdown());
    assert!(!path.exists());
}

#[test]
fn large_arguments_and_results_arrive_whole() {
    let server = serve(&Probe::default(), ServerOptions::default());
    let pool = Pool::new(Options::default());
    let tcp = pool.tcp(server.listen_tcp(anywhere()).unwrap());
    let pattern: Bytes = (0..3_000_000_u32).map(|number| number as u8).collect();
    let answer = wait(tcp.call(procedure(ECHO), pattern.clone())).unwrap();
    assert!(answer == pattern);
    let udp = pool.udp(server.listen_udp(anywhere()).unwrap());
    let datagram = pattern.slice(..60_000);
    let answer = wait(udp.call(procedure(ECHO), datagram.clone())).unwrap();
    assert!(answer == datagram);
    let refused = call(&udp, LARGE, b"").unwrap_err();
    assert!(matches!(
        refused,
        Reason::Refused(Refusal::Accept(AcceptError::SystemError))
    ));
    let refused = wait(udp.call(procedure(ECHO), pattern)).unwrap_err();
    assert!(matches!(refused, Reason::NoReply(NoReply::TooLong { .. })));
    echoes(&udp);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_kinds_of_clients_and_servers_understand_each_other() {
    let probe = Probe::default();
    let blocking = serve(&probe, ServerOptions::default());
    let options = client::Options::default();
    let tcp = blocking.listen_tcp(anywhere()).unwrap();
    let tcp = TcpChannel::connect(tcp, options.clone()).await.unwrap();
    let udp = blocking.listen_udp(anywhere()).unwrap();
    let udp = UdpChannel::connect(udp, options).await.unwrap();
    let calls = (0..100_u8).map(|number| {
        let (tcp, udp) = (tcp.clone(), udp.clone());
        tokio::spawn(async move {
            let bytes = Bytes::from(vec![number; 4]);
            let answer = tcp.call(procedure(ECHO), bytes.clone()).await.unwrap();
            assert_eq!(answer, bytes);
            let answer = udp.call(procedure(ECHO), bytes.clone()).await.unwrap();
            assert_eq!(answer, bytes);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }

    let programs = Programs::new().with(probe);
    let on_tokio = server::Server::new(programs, server::Options::default());
    let tcp = on_tokio.listen_tcp(anywhere()).await.unwrap();
    let udp = on_tokio.listen_udp(anywhere()).await.unwrap();
    let calls = tokio::task::spawn_blocking(move || {
        let pool = Pool::new(Options::default());
        echoes(&pool.tcp(tcp));
        echoes(&pool.udp(udp));
    });
    calls.await.unwrap();
}

/// So many threads that each make a call which waits.
fn waiting(channel: &PooledChannel, calls: usize) -> Vec<JoinHandle<Result<Bytes, Reason>>> {
    let start = |_| {
        let channel = channel.clone();
        thread::spawn(move || call(&channel, WAIT, b"wait"))
    };
    (0..calls).map(start).collect()
}

#[test]
fn threads_come_with_calls_and_stay_for_the_next() {
    for over_tcp in [true, false] {
        let probe = Probe::default();
        let server = serve(&probe, ServerOptions::default());
        let pool = Pool::new(Options::default());
        let channel = match over_tcp {
            true => pool.tcp(server.listen_tcp(anywhere()).unwrap()),
            false => pool.udp(server.listen_udp(anywhere()).unwrap()),
        };
        let calls = waiting(&channel, 8);
        probe.await_waiting(8);
        let busy = server.counters();
        assert_eq!(busy.executing, 8);
        assert!((8..=9).contains(&busy.workers.active), "{busy:?}");
        probe.open();
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap(), &b"wait"[..]);
        }
        assert_eq!(pool.counters().idle, 8);
        until(|| server.counters().executing == 0);
        echoes(&channel);
        assert!(server.counters().workers.started <= 9);
    }
}

#[test]
fn threads_without_work_end() {
    let options = ServerOptions {
        keep_workers: Duration::from_millis(1),
        linger: Duration::from_millis(1),
        ..ServerOptions::default()
    };
    let probe = Probe::default();
    let server = serve(&probe, options);
    let pool = Pool::new(Options::default());
    let tcp = pool.tcp(server.listen_tcp(anywhere()).unwrap());
    let udp = pool.udp(server.listen_udp(anywhere()).unwrap());
    let calls = [waiting(&tcp, 4), waiting(&udp, 4)];
    probe.await_waiting(8);
    probe.open();
    for call in calls.into_iter().flatten() {
        call.join().unwrap().unwrap();
    }
    // The one that receives on the UDP socket stays.
    until(|| server.counters().workers.active + server.counters().workers.dormant == 1);
    assert_eq!(server.counters().traffic.open, 4, "connections stay");
    echoes(&tcp);
    echoes(&udp);
}

#[test]
fn more_connections_than_threads_take_turns() {
    let options = ServerOptions {
        max_workers: 1,
        linger: Duration::from_millis(1),
        ..ServerOptions::default()
    };
    let server = serve(&Probe::default(), options);
    let address = server.listen_tcp(anywhere()).unwrap();
    let callers = (0..5).map(|_| {
        thread::spawn(move || {
            let pool = Pool::new(Options::default());
            let channel = pool.tcp(address);
            (0..20).for_each(|_| echoes(&channel));
            pool
        })
    });
    let pools: Vec<Pool> = callers
        .collect::<Vec<_>>()
        .into_iter()
        .map(|caller| caller.join().unwrap())
        .collect();
    assert_eq!(server.counters().traffic.open, 5);
    assert_eq!(server.counters().workers.started, 1);
    drop(pools);
    until(|| server.counters().traffic.open == 0);
}

#[test]
fn threads_that_receive_datagrams_make_room_for_connections() {
    const LONG: Duration = Duration::from_secs(3_600);
    // They leave when a call is over while connections wait, and when no datagram has come for a while.
    for (linger, is_waiting) in [(LONG, true), (Duration::from_millis(1), false)] {
        let probe = Probe::default();
        let options = ServerOptions {
            max_workers: 1,
            keep_workers: LONG,
            linger,
            ..ServerOptions::default()
        };
        let server = serve(&probe, options);
        let pool = Pool::new(Options::default());
        let tcp = pool.tcp(server.listen_tcp(anywhere()).unwrap());
        let udp = pool.udp(server.listen_udp(anywhere()).unwrap());
        let calls = waiting(&udp, 2);
        probe.await_waiting(2);
        let connection = is_waiting.then(|| waiting(&tcp, 1));
        until(|| !is_waiting || server.counters().workers.waiting == 1);
        probe.open();
        for call in calls.into_iter().chain(connection.into_iter().flatten()) {
            assert_eq!(call.join().unwrap().unwrap(), &b"wait"[..]);
        }
        echoes(&tcp);
    }
}

#[test]
fn no_more_handles_than_the_limit() {
    let probe = Probe::default();
    let server = serve(&probe, ServerOptions::default());
    let addresses = [0; 3].map(|_| server.listen_tcp(anywhere()).unwrap());
    let pool = Pool::new(Options {
        max_handles: 2,
        ..Options::default()
    });
    let channels = addresses.map(|address| pool.tcp(address));
    channels.iter().for_each(echoes);
    let counters = pool.counters();
    assert_eq!((counters.open, counters.evictions), (2, 1));
    echoes(&channels[1]);
    echoes(&channels[2]);
    assert_eq!(pool.counters().hits, 2, "the first one was closed");
    let calls = waiting(&channels[0], 2);
    probe.await_waiting(2);
    let refused = call(&channels[1], ECHO, b"");
    assert!(
        matches!(
            refused,
            Err(Reason::NoReply(NoReply::TooManyCalls { limit: 2 }))
        ),
        "{refused:?}"
    );
    probe.open();
    for call in calls {
        call.join().unwrap().unwrap();
    }
    echoes(&channels[1]);
}

/// A server of this test's own: a connection of it.
struct Accepted(TcpStream, Records);

impl Accepted {
    fn accept(listener: &TcpListener) -> Self {
        Self(listener.accept().unwrap().0, Records::new(1 << 20))
    }

    /// Answers the next call with its arguments.
    fn answer(&mut self) {
        let call = loop {
            if let Some(record) = self.1.poll_record().unwrap() {
                break Message::decode(record).unwrap();
            }
            let mut buffer = [0; 1_000];
            let length = self.0.read(&mut buffer).unwrap();
            assert!(length > 0, "the client is there");
            self.1.handle_input(&buffer[..length]);
        };
        let Body::Call(Call { arguments, .. }) = call.body else {
            panic!("a call")
        };
        let body = Body::Reply(Reply::accepted(Ok(arguments)));
        let reply = Message {
            xid: call.xid,
            body,
        }
        .encode()
        .unwrap();
        let mut record = BytesMut::new();
        record::write(&reply, 5, &mut record); // in several fragments
        self.0.write_all(&record).unwrap();
    }
}

/// Two connections of a pool to a server of this test's own, both idle.
fn two_idle(options: Options) -> (TcpListener, [Accepted; 2], Pool, PooledChannel) {
    let listener = TcpListener::bind(anywhere()).unwrap();
    let pool = Pool::new(options);
    let channel = pool.tcp(listener.local_addr().unwrap());
    let start = |_| {
        let channel = channel.clone();
        thread::spawn(move || echoes(&channel))
    };
    let calls = [0; 2].map(start);
    let mut accepted = [0; 2].map(|_| Accepted::accept(&listener));
    accepted.iter_mut().for_each(Accepted::answer);
    calls.into_iter().for_each(|call| call.join().unwrap());
    assert_eq!(pool.counters().idle, 2);
    (listener, accepted, pool, channel)
}

#[test]
fn a_connection_that_ends_takes_all_to_the_same_server_with_it() {
    let (listener, accepted, pool, channel) = two_idle(Options {
        look_after: Duration::from_secs(3_600),
        ..Options::default()
    });
    drop(accepted);
    let lost = call(&channel, ECHO, b"lost").unwrap_err();
    assert!(
        matches!(
            lost,
            Reason::NoReply(NoReply::Unknown { .. } | NoReply::NotSent { .. })
        ),
        "{lost:?}"
    );
    let counters = pool.counters();
    assert_eq!(
        (counters.open, counters.idle, counters.invalidated),
        (0, 0, 1)
    );
    let server = thread::spawn(move || Accepted::accept(&listener).answer());
    echoes(&channel);
    server.join().unwrap();
}

#[test]
fn connections_that_ended_while_idle_are_noticed_before_a_call_is_sent() {
    let (listener, accepted, pool, channel) = two_idle(Options {
        look_after: Duration::ZERO,
        ..Options::default()
    });
    drop(accepted);
    let server = thread::spawn(move || Accepted::accept(&listener).answer());
    echoes(&channel);
    server.join().unwrap();
    assert_eq!(pool.counters().invalidated, 2);
}

#[test]
fn handles_that_are_used_while_their_server_is_invalidated_are_not_kept() {
    let probe = Probe::default();
    let server = serve(&probe, ServerOptions::default());
    let address = server.listen_tcp(anywhere()).unwrap();
    let pool = Pool::new(Options::default());
    let channel = pool.tcp(address);
    let calls = waiting(&channel, 3);
    probe.await_waiting(3);
    pool.invalidate(&Peer::Tcp(address));
    assert_eq!(pool.counters().open, 3);
    probe.open();
    for call in calls {
        call.join().unwrap().unwrap();
    }
    let counters = pool.counters();
    assert_eq!(
        (counters.open, counters.idle, counters.invalidated),
        (0, 0, 3)
    );
}

#[test]
fn over_udp_a_call_is_sent_again_and_late_replies_are_dropped() {
    let socket = UdpSocket::bind(anywhere()).unwrap();
    let pool = Pool::new(Options {
        retransmit_after: Duration::from_millis(1),
        ..Options::default()
    });
    let channel = pool.udp(socket.local_addr().unwrap());
    let server = thread::spawn(move || {
        let mut buffer = [0; 1_000];
        let (_, first) = socket.recv_from(&mut buffer).unwrap();
        let (length, again) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(first, again, "from the same port");
        let call = Message::decode(Bytes::copy_from_slice(&buffer[..length])).unwrap();
        let Body::Call(Call { arguments, .. }) = call.body else {
            panic!("a call")
        };
        for xid in [call.xid.wrapping_add(7), call.xid] {
            let body = Body::Reply(Reply::accepted(Ok(arguments.clone())));
            socket
                .send_to(&Message { xid, body }.encode().unwrap(), again)
                .unwrap();
        }
        socket // a call that was sent a third time finds it open
    });
    echoes(&channel);
    server.join().unwrap();
    let counters = pool.counters();
    assert!(
        counters.retransmissions >= 1 && counters.strangers == 1,
        "{counters:?}"
    );
    assert_eq!(
        counters.idle, 0,
        "a second answer may still come to this socket"
    );
}

#[test]
fn a_call_without_an_answer_ends_in_time_and_costs_its_handle() {
    let silent = TcpListener::bind(anywhere()).unwrap();
    let nobody = UdpSocket::bind(anywhere()).unwrap();
    let pool = Pool::new(Options::default());
    let channels = [
        pool.tcp(silent.local_addr().unwrap()),
        pool.udp(nobody.local_addr().unwrap()),
    ];
    for channel in channels {
        let channel = channel.timeout(Duration::from_millis(2));
        let late = call(&channel, ECHO, b"").unwrap_err();
        assert!(
            matches!(late, Reason::NoReply(NoReply::TimedOut { sent: 1, .. })),
            "{late:?}"
        );
    }
    assert_eq!(pool.counters().open, 0);
}

#[test]
fn calls_over_udp_that_come_again_are_executed_once() {
    let probe = Probe::default();
    let server = serve(&probe, ServerOptions::default());
    let address = server.listen_udp(anywhere()).unwrap();
    let client = UdpSocket::bind(anywhere()).unwrap();
    client.connect(address).unwrap();
    let mut buffer = [0; 1_000];
    client.send(&message(1, WAIT, b"a")).unwrap();
    probe.await_waiting(1);
    client.send(&message(1, WAIT, b"a")).unwrap();
    until(|| server.counters().traffic.duplicates_dropped == 1);
    probe.open();
    let first = client
        .recv(&mut buffer)
        .map(|length| buffer[..length].to_vec())
        .unwrap();
    client.send(&message(1, WAIT, b"a")).unwrap();
    let again = client
        .recv(&mut buffer)
        .map(|length| buffer[..length].to_vec())
        .unwrap();
    assert_eq!(first, again);
    assert_eq!(probe.executed(), 1);
    assert_eq!(server.counters().traffic.duplicates_answered, 1);
    client.send(&message(2, WAIT, b"a")).unwrap();
    client.recv(&mut buffer).unwrap();
    assert_eq!(probe.executed(), 2);
}

#[test]
fn a_handler_that_panics_is_a_failure_to_its_caller_alone() {
    let server = serve(&Probe::default(), ServerOptions::default());
    let pool = Pool::new(Options::default());
    let channels = [
        pool.tcp(server.listen_tcp(anywhere()).unwrap()),
        pool.udp(server.listen_udp(anywhere()).unwrap()),
    ];
    for channel in &channels {
        let failed = call(channel, PANIC, b"").unwrap_err();
        assert!(matches!(
            failed,
            Reason::Refused(Refusal::Accept(AcceptError::SystemError))
        ));
        echoes(channel);
    }
    assert_eq!(server.counters().traffic.panics, 2);
}

#[test]
fn a_connection_with_what_is_no_call_is_ended() {
    let options = ServerOptions {
        max_record: 1_000,
        ..ServerOptions::default()
    };
    let server = serve(&Probe::default(), options);
    let address = server.listen_tcp(anywhere()).unwrap();
    let too_long = 0x8000_03e9_u32.to_be_bytes();
    let malformed = [0x80, 0, 0, 4, 1, 2, 3, 4];
    for bytes in [&too_long[..], &malformed] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
    }
    until(|| server.counters().traffic.open == 0);
    let traffic = server.counters().traffic;
    assert_eq!((traffic.too_long_records, traffic.malformed), (1, 1));
}

#[test]
fn the_connection_that_is_idle_for_longest_makes_room() {
    let probe = Probe::default();
    let options = ServerOptions {
        max_connections: 2,
        linger: Duration::from_millis(1),
        ..ServerOptions::default()
    };
    let server = serve(&probe, options);
    let address = server.listen_tcp(anywhere()).unwrap();
    let pools = [0; 3].map(|_| Pool::new(Options::default()));
    echoes(&pools[0].tcp(address));
    until(|| server.counters().workers.active == 0);
    echoes(&pools[1].tcp(address));
    until(|| server.counters().workers.active == 0);
    // The thread that watches has to know of both.
    let last = pools[2].tcp(address);
    until(|| call(&last, ECHO, b"").is_ok());
    let traffic = server.counters().traffic;
    assert!(traffic.idle_ended >= 1 && traffic.open <= 2, "{traffic:?}");
}

#[test]
fn what_runs_is_finished_when_a_server_is_shut_down() {
    let probe = Probe::default();
    let server = serve(&probe, ServerOptions::default());
    let pool = Pool::new(Options::default());
    let tcp = server.listen_tcp(anywhere()).unwrap();
    let calls = [
        waiting(&pool.tcp(tcp), 2),
        waiting(&pool.udp(server.listen_udp(anywhere()).unwrap()), 2),
    ];
    probe.await_waiting(4);
    let ending = thread::spawn(move || server.shutdown());
    probe.open();
    assert!(ending.join().unwrap());
    for call in calls.into_iter().flatten() {
        assert_eq!(call.join().unwrap().unwrap(), &b"wait"[..]);
    }
    let gone = call(&pool.tcp(tcp).timeout(Duration::from_millis(50)), ECHO, b"");
    assert!(gone.is_err());
}
