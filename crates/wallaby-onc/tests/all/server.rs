//! Servers over sockets: what they answer, what they bound, and how they end.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use wallaby_onc::auth::OpaqueAuth;
use wallaby_onc::client::{self, TcpChannel, UdpChannel, UnixChannel};
use wallaby_onc::message::{CallBody, MessageBody, Reply, RpcMessage};
use wallaby_onc::record::{self, RecordReader};
use wallaby_onc::server::{Server, ServerCounters, ServerOptions};
use wallaby_onc::{
    AcceptError, Channel, NoReply, Principal, Procedure, Program, Programs, Reason, Refusal,
};

const ECHO: u32 = 1;
/// Answers when it is let.
const WAIT: u32 = 2;
const PANIC: u32 = 3;
/// Answers with as many bytes as the argument says.
const LARGE: u32 = 4;
const SILENT: u32 = 5;
const WHO: u32 = 6;

/// Far more than anything here takes.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    let within = Duration::from_secs(60);
    timeout(within, what).await.expect("it is done by now")
}

async fn until(reached: impl Fn() -> bool) {
    soon(async {
        while !reached() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[derive(Debug)]
struct Watched {
    gate: Semaphore,
    executed: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

/// A program whose execution is watched.
#[derive(Debug, Clone)]
struct Probe(Arc<Watched>);

impl Probe {
    fn new() -> Self {
        Self(Arc::new(Watched {
            gate: Semaphore::new(0),
            executed: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
        }))
    }

    fn executed(&self) -> usize {
        self.0.executed.load(Ordering::SeqCst)
    }

    fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    fn most_running(&self) -> usize {
        self.0.most_running.load(Ordering::SeqCst)
    }

    /// Lets this many calls that wait go on.
    fn release(&self, calls: usize) {
        self.0.gate.add_permits(calls);
    }
}

impl Program for Probe {
    const PROGRAM: u32 = 0x2000_0007;
    const VERSION: u32 = 1;

    async fn handle(
        &self,
        caller: &Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> Result<Bytes, Refusal> {
        self.0.executed.fetch_add(1, Ordering::SeqCst);
        match procedure {
            0 => Ok(Bytes::new()),
            ECHO => Ok(arguments),
            WAIT => {
                let running = self.0.running.fetch_add(1, Ordering::SeqCst) + 1;
                self.0.most_running.fetch_max(running, Ordering::SeqCst);
                self.0.gate.acquire().await.expect("it is open").forget();
                self.0.running.fetch_sub(1, Ordering::SeqCst);
                Ok(arguments)
            }
            PANIC => panic!("this is a test of panics"),
            LARGE => {
                let length = u32::from_be_bytes(arguments[..4].try_into().expect("four"));
                Ok(vec![7; length as usize].into())
            }
            SILENT => Err(Refusal::Silent),
            WHO => {
                let origin = caller.origin.clone().expect("it came over a socket");
                let uid = origin.uid.map_or("nobody".into(), |uid| uid.to_string());
                Ok(format!("{} {} {uid}", origin.peer, origin.local).into())
            }
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

fn serve(options: ServerOptions) -> (Server, Probe) {
    let probe = Probe::new();
    let programs = Programs::new().with(probe.clone());
    (Server::new(programs, options), probe)
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn over_tcp(server: &Server) -> TcpChannel {
    let address = server.listen_tcp(loopback()).await.unwrap();
    connect(address).await
}

async fn connect(address: SocketAddr) -> TcpChannel {
    let options = client::ClientOptions::default();
    TcpChannel::connect(address, options).await.unwrap()
}

async fn over_udp(server: &Server) -> UdpChannel {
    let address = server.listen_udp(loopback()).await.unwrap();
    let options = client::ClientOptions {
        retransmit_after: Duration::from_millis(20),
        ..client::ClientOptions::default()
    };
    UdpChannel::connect(address, options).await.unwrap()
}

async fn call(channel: &impl Channel, number: u32, arguments: &[u8]) -> Result<Bytes, Reason> {
    let arguments = Bytes::copy_from_slice(arguments);
    soon(channel.call(procedure(number), arguments)).await
}

/// A call's message, made by hand.
fn message(xid: u32, number: u32, arguments: &'static [u8]) -> Bytes {
    let body = MessageBody::Call(CallBody {
        procedure: procedure(number),
        credential: OpaqueAuth::none(),
        verifier: OpaqueAuth::none(),
        arguments: Bytes::from_static(arguments),
    });
    RpcMessage { xid, body }.encode().unwrap()
}

fn record(message: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::new();
    record::write(message, usize::MAX, &mut bytes);
    bytes
}

/// The results in a reply.
fn results(message: Bytes) -> (u32, Bytes) {
    match RpcMessage::decode(message) {
        Ok(RpcMessage {
            xid,
            body: MessageBody::Reply(reply),
        }) => (xid, reply.results().unwrap()),
        other => panic!("expected a reply, found {other:?}"),
    }
}

async fn datagram(socket: &UdpSocket) -> Bytes {
    let mut buffer = vec![0; 65_536];
    let length = soon(socket.recv(&mut buffer)).await.unwrap();
    Bytes::copy_from_slice(&buffer[..length])
}

async fn raw_udp(server: &Server) -> UdpSocket {
    let address = server.listen_udp(loopback()).await.unwrap();
    let socket = UdpSocket::bind(loopback()).await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

/// Reads a connection to its end.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A connection that is reset has ended, too.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    bytes
}

#[tokio::test]
async fn replies_leave_in_the_order_in_which_they_are_ready() {
    let (server, probe) = serve(ServerOptions::default());
    let (tcp, udp) = (over_tcp(&server).await, over_udp(&server).await);
    let slow = async { tokio::join!(call(&tcp, WAIT, b"slow"), call(&udp, WAIT, b"slow")) };
    let quick = async {
        until(|| probe.running() == 2).await;
        for _ in 0..20 {
            assert_eq!(call(&tcp, ECHO, b"quick...").await.unwrap(), "quick...");
            assert_eq!(call(&udp, ECHO, b"quick...").await.unwrap(), "quick...");
        }
        probe.release(2);
    };
    let ((tcp, udp), ()) = tokio::join!(slow, quick);
    assert_eq!((tcp.unwrap(), udp.unwrap()), ("slow".into(), "slow".into()));
}

#[tokio::test]
async fn a_call_that_comes_again_over_udp_is_executed_once() {
    let (server, probe) = serve(ServerOptions::default());
    let socket = raw_udp(&server).await;
    let counters = || server.counters();
    for _ in 0..3 {
        socket.send(&message(9, WAIT, b"once")).await.unwrap();
    }
    until(|| counters().duplicates_dropped == 2).await;
    assert_eq!(probe.executed(), 1);
    probe.release(1);
    assert_eq!(results(datagram(&socket).await), (9, "once".into()));
    // Answered from memory: nothing waits for the gate.
    for _ in 0..2 {
        socket.send(&message(9, WAIT, b"once")).await.unwrap();
        assert_eq!(results(datagram(&socket).await), (9, "once".into()));
    }
    assert_eq!((probe.executed(), counters().duplicates_answered), (1, 2));

    // The same number with other arguments is another call; so is somebody else's.
    probe.release(2);
    socket.send(&message(9, WAIT, b"more")).await.unwrap();
    assert_eq!(results(datagram(&socket).await), (9, "more".into()));
    let stranger = UdpSocket::bind(loopback()).await.unwrap();
    stranger.connect(socket.peer_addr().unwrap()).await.unwrap();
    stranger.send(&message(9, WAIT, b"once")).await.unwrap();
    assert_eq!(results(datagram(&stranger).await), (9, "once".into()));
    assert_eq!((probe.executed(), counters().calls), (3, 3));
}

#[tokio::test]
async fn garbage_gets_no_answer_over_udp() {
    let (server, _) = serve(ServerOptions::default());
    let socket = raw_udp(&server).await;
    let reply = RpcMessage {
        xid: 1,
        body: MessageBody::Reply(Reply::accepted(Ok(Bytes::new()))),
    };
    let whole = message(1, ECHO, b"");
    let garbage: [&[u8]; 6] = [
        b"",
        b"?",
        // A call of another version of the protocol, shorter than its denial.
        b"\0\0\0\x09\0\0\0\0\0\0\0\x03",
        &reply.encode().unwrap(),
        &whole[..39],
        &[0xff; 65_507],
    ];
    for bytes in garbage {
        socket.send(bytes).await.unwrap();
    }
    until(|| server.counters().malformed == garbage.len() as u64).await;
    // The first answer is the one to the first call.
    socket.send(&message(77, ECHO, b"good")).await.unwrap();
    assert_eq!(results(datagram(&socket).await), (77, "good".into()));
    // What is long enough is told that its version is not spoken.
    let mut future = message(78, ECHO, b"").to_vec();
    future[11] = 3;
    socket.send(&future).await.unwrap();
    let denied = datagram(&socket).await;
    assert!(denied.len() <= future.len());
    let text = format!("{:?}", RpcMessage::decode(denied).unwrap());
    assert!(text.contains("RpcMismatch { low: 2, high: 2 }"), "{text}");
}

#[tokio::test]
async fn the_connection_that_was_idle_longest_makes_room() {
    let options = ServerOptions {
        max_connections: 2,
        ..ServerOptions::default()
    };
    let (server, probe) = serve(options);
    let address = server.listen_tcp(loopback()).await.unwrap();
    let (first, second) = (connect(address).await, connect(address).await);
    for channel in [&first, &second, &first] {
        call(channel, ECHO, b"").await.unwrap();
    }
    let third = connect(address).await;
    call(&third, ECHO, b"").await.unwrap();
    let counters = server.counters();
    assert_eq!((counters.idle_ended, counters.open), (1, 2));

    // The two that are left are busy: there is no room for a fourth.
    let busy = async { tokio::join!(call(&first, WAIT, b"1..."), call(&third, WAIT, b"3...")) };
    let refused = async {
        until(|| probe.running() == 2).await;
        let mut fourth = TcpStream::connect(address).await.unwrap();
        assert!(rest(&mut fourth).await.is_empty());
        assert_eq!(server.counters().refused, 1);
        probe.release(2);
    };
    let ((one, three), ()) = soon(async { tokio::join!(busy, refused) }).await;
    assert_eq!(
        (one.unwrap(), three.unwrap()),
        ("1...".into(), "3...".into())
    );
    assert_eq!(first.counters().connections, 1, "it was never ended");
    // Who was ended connects anew, at somebody else's expense.
    call(&second, ECHO, b"").await.unwrap();
    assert_eq!(second.counters().connections, 2);
}

#[tokio::test]
async fn only_so_many_requests_are_handled_at_a_time() {
    for (options, most) in [
        (
            ServerOptions {
                max_requests_per_connection: 2,
                ..ServerOptions::default()
            },
            2 * 2,
        ),
        (
            ServerOptions {
                max_requests: 3,
                ..ServerOptions::default()
            },
            3,
        ),
    ] {
        let (server, probe) = serve(options);
        let address = server.listen_tcp(loopback()).await.unwrap();
        let (one, two) = (connect(address).await, connect(address).await);
        let calls: Vec<_> = (0..20)
            .map(|number| {
                let channel = if number % 2 == 0 { &one } else { &two }.clone();
                tokio::spawn(async move { call(&channel, WAIT, b"....").await })
            })
            .collect();
        until(|| probe.running() == most).await;
        probe.release(20);
        for call in calls {
            soon(call).await.unwrap().unwrap();
        }
        assert_eq!(probe.most_running(), most);
    }
}

#[tokio::test]
async fn over_udp_what_is_too_much_is_dropped_until_it_comes_again() {
    let options = ServerOptions {
        max_requests_over_udp: 1,
        ..ServerOptions::default()
    };
    let (server, probe) = serve(options);
    let channel = over_udp(&server).await;
    let release = async {
        until(|| server.counters().overloaded > 0).await;
        probe.release(2);
    };
    let calls =
        async { tokio::join!(call(&channel, WAIT, b"1..."), call(&channel, WAIT, b"2...")) };
    let ((one, two), ()) = tokio::join!(calls, release);
    assert_eq!((one.unwrap(), two.unwrap()), ("1...".into(), "2...".into()));
    assert_eq!((probe.executed(), probe.most_running()), (2, 1));
}

#[tokio::test]
async fn a_connection_ends_with_what_is_no_call() {
    let options = ServerOptions {
        max_record: 1000,
        ..ServerOptions::default()
    };
    let (server, _) = serve(options);
    let address = server.listen_tcp(loopback()).await.unwrap();
    let too_long = (1_u32 << 31 | 1001).to_be_bytes();
    for bytes in [&too_long[..], &record(b"no call at all")] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        assert!(rest(&mut stream).await.is_empty());
    }
    let counters = server.counters();
    assert_eq!((counters.too_long_records, counters.malformed), (1, 1));
    until(|| server.counters().open == 0).await;
}

#[tokio::test]
async fn a_panic_and_a_reply_that_does_not_fit_are_the_servers_failure() {
    let (server, _) = serve(ServerOptions::default());
    let (tcp, udp) = (over_tcp(&server).await, over_udp(&server).await);
    let failed = |answer| {
        matches!(
            answer,
            Err(Reason::Refused(Refusal::Accept(AcceptError::SystemError)))
        )
    };
    assert!(failed(call(&tcp, PANIC, b"").await));
    assert!(failed(call(&udp, PANIC, b"").await));
    // 24 bytes of header.
    let fits = 65_507 - 24_u32;
    assert!(failed(call(&udp, LARGE, &(fits + 1).to_be_bytes()).await));
    let large = call(&udp, LARGE, &fits.to_be_bytes()).await.unwrap();
    assert_eq!(large.len(), fits as usize);
    let large = call(&tcp, LARGE, &3_000_000_u32.to_be_bytes()).await;
    assert_eq!(large.unwrap().len(), 3_000_000);
    let ServerCounters {
        panics,
        too_long_replies,
        ..
    } = server.counters();
    assert_eq!((panics, too_long_replies), (2, 1));
}

#[tokio::test]
async fn a_server_that_is_shut_down_finishes_what_runs() {
    let (server, probe) = serve(ServerOptions::default());
    let address = server.listen_tcp(loopback()).await.unwrap();
    let (tcp, udp) = (connect(address).await, over_udp(&server).await);
    let calls = async { tokio::join!(call(&tcp, WAIT, b"last"), call(&udp, WAIT, b"last")) };
    let shutdown = async {
        until(|| probe.running() == 2).await;
        let ending = server.shutdown();
        let refused = async {
            // Once nobody listens any more, what runs may go on.
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
            probe.release(2);
        };
        soon(async { tokio::join!(ending, refused) }).await;
    };
    let ((one, two), ()) = tokio::join!(calls, shutdown);
    assert_eq!((one.unwrap(), two.unwrap()), ("last".into(), "last".into()));
}

#[tokio::test]
async fn what_does_not_finish_is_dropped_in_the_end() {
    let options = ServerOptions {
        shutdown_timeout: Duration::from_millis(20),
        ..ServerOptions::default()
    };
    let (server, probe) = serve(options);
    let channel = over_tcp(&server).await;
    let shutdown = async {
        until(|| probe.running() == 1).await;
        soon(server.shutdown()).await;
    };
    let (answer, ()) = tokio::join!(call(&channel, WAIT, b""), shutdown);
    let error = answer.unwrap_err();
    assert!(
        matches!(error, Reason::NoReply(NoReply::Unknown { .. })),
        "{error}"
    );

    // And at once, if the server is dropped.
    let (server, probe) = serve(ServerOptions::default());
    let channel = over_tcp(&server).await;
    let gone = async {
        until(|| probe.running() == 1).await;
        drop(server);
    };
    let (answer, ()) = tokio::join!(call(&channel, WAIT, b""), gone);
    assert!(answer.is_err());
}

#[tokio::test]
async fn who_ends_its_half_still_gets_its_replies() {
    let (server, probe) = serve(ServerOptions::default());
    let address = server.listen_tcp(loopback()).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(&record(&message(5, WAIT, b"half")))
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    until(|| probe.running() == 1).await;
    probe.release(1);
    let mut records = RecordReader::new(1000);
    records.handle_input(&rest(&mut stream).await);
    let reply = records.poll_record().unwrap().expect("a reply");
    assert_eq!(results(reply), (5, "half".into()));
}

#[tokio::test]
async fn who_does_not_take_its_replies_is_ended() {
    let options = ServerOptions {
        write_timeout: Duration::from_millis(50),
        ..ServerOptions::default()
    };
    let (server, _) = serve(options);
    let address = server.listen_tcp(loopback()).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let call = record(&message(5, LARGE, b"\x04\0\0\0")); // 64 MiB
    stream.write_all(&call).await.unwrap();
    until(|| server.counters().stalled == 1).await;
    until(|| server.counters().open == 0).await;
}

/// How long it has taken nothing counts from when there was something to take.
#[tokio::test]
async fn who_was_idle_for_long_has_time_to_take_its_reply() {
    let (server, _) = serve(ServerOptions::default());
    for _ in 0..8 {
        let channel = over_tcp(&server).await;
        call(&channel, WHO, b"").await.unwrap();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(100)).await;
        tokio::time::resume();
        let answer = soon(call(&channel, LARGE, b"\x00\x80\0\0")).await; // 8 MiB
        assert_eq!(answer.unwrap().len(), 8 << 20);
    }
    assert_eq!(server.counters().stalled, 0);
}

#[tokio::test]
async fn replies_come_from_the_address_that_was_called() {
    let (server, _) = serve(ServerOptions::default());
    for (listen, call_at) in [
        ("0.0.0.0:0", "127.0.0.2"),
        ("[::]:0", "::1"),
        ("[::]:0", "127.0.0.3"),
    ] {
        let listening = server.listen_udp(listen.parse().unwrap()).await;
        let Ok(address) = listening else {
            // Past the harness, which keeps the words of tests that pass to itself.
            let why = format!("{listen} cannot be listened on here: {listening:?}");
            let _ =
                std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED: {why}\n"));
            continue;
        };
        let at = SocketAddr::new(call_at.parse().unwrap(), address.port());
        let channel = UdpChannel::connect(at, client::ClientOptions::default());
        let channel = channel.await.unwrap();
        let who = call(&channel, WHO, b"").await.unwrap();
        let who = String::from_utf8(who.to_vec()).unwrap();
        assert!(who.contains(call_at), "called at {at}, it was {who}");
    }
}

#[tokio::test]
async fn handlers_know_where_a_call_came_from_and_may_keep_silent() {
    let (server, probe) = serve(ServerOptions::default());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("server-{}.sock", std::process::id()));
    server.listen_unix(&path).await.unwrap();
    let options = client::ClientOptions::default();
    let unix = UnixChannel::connect(&path, options).await.unwrap();
    let who = call(&unix, WHO, b"").await.unwrap();
    let uid = who.rsplit(|byte| *byte == b' ').next().unwrap();
    let uid: u32 = String::from_utf8(uid.to_vec()).unwrap().parse().unwrap();
    let own = wallaby_onc::auth::AuthSys::of_this_process().unwrap();
    assert_eq!(uid, own.uid);

    let address = server.listen_tcp(loopback()).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut calls = record(&message(1, SILENT, b""));
    calls.extend_from_slice(&record(&message(2, WHO, b"")));
    stream.write_all(&calls).await.unwrap();
    let local = stream.local_addr().unwrap();
    until(|| probe.executed() == 3).await;
    stream.shutdown().await.unwrap();
    let mut records = RecordReader::new(1000);
    records.handle_input(&rest(&mut stream).await);
    let reply = records.poll_record().unwrap().expect("a reply");
    let who = format!("tcp:{local} tcp:{address} nobody");
    assert_eq!(results(reply), (2, who.into()));
    assert_eq!(records.poll_record().unwrap(), None);

    drop(server);
    assert!(!path.exists(), "the socket goes with the server");
}

/// A network between a client and a server that loses and repeats datagrams, by turns that a seed draws.
async fn lossy(server: SocketAddr, mut seed: u64) -> (SocketAddr, impl Future<Output = ()>) {
    let front = UdpSocket::bind(loopback()).await.unwrap();
    let back = UdpSocket::bind(loopback()).await.unwrap();
    back.connect(server).await.unwrap();
    let address = front.local_addr().unwrap();
    let carry = async move {
        let (mut there, mut back_again) = (vec![0; 65_536], vec![0; 65_536]);
        let mut client = None;
        loop {
            // xorshift64
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let times = [0, 1, 1, 2][(seed % 4) as usize];
            tokio::select! {
                received = front.recv_from(&mut there) => {
                    let (length, from) = received.unwrap();
                    client = Some(from);
                    for _ in 0..times {
                        back.send(&there[..length]).await.unwrap();
                    }
                }
                received = back.recv(&mut back_again) => {
                    let length = received.unwrap();
                    for _ in 0..times {
                        let to = client.expect("somebody asked");
                        front.send_to(&back_again[..length], to).await.unwrap();
                    }
                }
            }
        }
    };
    (address, carry)
}

#[tokio::test]
async fn every_call_is_executed_once_whatever_the_network_loses_and_repeats() {
    const CALLS: usize = 300;
    let seed = u64::from(std::process::id()) << 20 | 1;
    println!("seed {seed}");
    let (server, probe) = serve(ServerOptions::default());
    let at = server.listen_udp(loopback()).await.unwrap();
    let (address, carry) = lossy(at, seed).await;
    let carrying = tokio::spawn(carry);
    let options = client::ClientOptions {
        retransmit_after: Duration::from_millis(10),
        retransmit_at_most: Duration::from_millis(40),
        ..client::ClientOptions::default()
    };
    let channel = UdpChannel::connect(address, options).await.unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let channel = channel.clone();
            tokio::spawn(async move {
                let argument = (number as u64).to_be_bytes();
                (call(&channel, ECHO, &argument).await, argument)
            })
        })
        .collect();
    for call in calls {
        let (answer, argument) = call.await.unwrap();
        assert_eq!(answer.unwrap(), &argument[..]);
    }
    assert_eq!(probe.executed(), CALLS, "seed {seed}");
    let counters = channel.counters();
    assert!(
        counters.retransmissions > 0 && counters.late_replies > 0,
        "{counters:?}"
    );
    assert!(server.counters().duplicates_answered > 0);
    carrying.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_share_channels_and_servers() {
    let (server, probe) = serve(ServerOptions::default());
    let (tcp, udp) = (over_tcp(&server).await, over_udp(&server).await);
    let callers: Vec<_> = (0..8_usize)
        .map(|caller| {
            let (tcp, udp) = (tcp.clone(), udp.clone());
            tokio::spawn(async move {
                for number in 0..50 {
                    let argument = vec![caller as u8; (number * 797) % 60_000 / 4 * 4];
                    assert_eq!(call(&tcp, ECHO, &argument).await.unwrap(), argument);
                    let small = &argument[..argument.len().min(8000)];
                    assert_eq!(call(&udp, ECHO, small).await.unwrap(), small);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(probe.executed(), 8 * 50 * 2);
    assert_eq!(
        (tcp.counters().replies, tcp.counters().connections),
        (400, 1)
    );
}
