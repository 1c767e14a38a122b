//! Channels over sockets, against servers that misbehave in every way: what is told of each call.

#![cfg(feature = "net")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener};
use tokio::time::timeout;
use wallaby_onc::auth::{AuthSys, OpaqueAuth};
use wallaby_onc::client::{ClientCounters, ClientOptions, TcpChannel, UdpChannel, UnixChannel};
use wallaby_onc::failure::Lost;
use wallaby_onc::message::{CallBody, MessageBody, Reply, RpcMessage};
use wallaby_onc::record::{self, RecordReader};
use wallaby_onc::xdr::{Writer, Xdr};
use wallaby_onc::{
    AcceptError, Channel, Credential, NoReply, Procedure, Reason, Refusal, RpcError, service,
};

const ECHO: Procedure = Procedure {
    program: 0x2000_0001,
    version: 3,
    number: 4,
};

/// Far more than anything here takes.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    let within = Duration::from_secs(60);
    timeout(within, what).await.expect("it is done by now")
}

fn patient() -> ClientOptions {
    ClientOptions::default()
}

fn impatient() -> ClientOptions {
    ClientOptions {
        retransmit_after: Duration::from_millis(5),
        ..ClientOptions::default()
    }
}

/// Calls, as a generated client does.
async fn echo(channel: &impl Channel, number: u32) -> Result<u32, RpcError> {
    let argument = |writer: &mut Writer| number.encode(writer);
    service::call(channel, ECHO, argument, u32::decode).await
}

fn no_reply<T: std::fmt::Debug>(answer: Result<T, RpcError>) -> NoReply {
    match answer {
        Err(RpcError {
            reason: Reason::NoReply(error),
            ..
        }) => error,
        other => panic!("expected an error of the channel, found {other:?}"),
    }
}

fn call_of(message: Bytes) -> (u32, CallBody) {
    match RpcMessage::decode(message) {
        Ok(RpcMessage {
            xid,
            body: MessageBody::Call(call),
        }) => (xid, call),
        other => panic!("expected a call, found {other:?}"),
    }
}

fn reply(xid: u32, results: Bytes) -> Bytes {
    let body = MessageBody::Reply(Reply::accepted(Ok(results)));
    RpcMessage { xid, body }.encode().unwrap()
}

/// The other end of a connection.
struct Connection<S> {
    stream: S,
    records: RecordReader,
}

impl Connection<TcpStream> {
    async fn accept(listener: &TcpListener) -> Self {
        Self::new(listener.accept().await.unwrap().0)
    }
}

impl<S: AsyncReadExt + AsyncWriteExt + Unpin> Connection<S> {
    fn new(stream: S) -> Self {
        let records = RecordReader::new(1 << 20);
        Self { stream, records }
    }

    async fn call(&mut self) -> (u32, CallBody) {
        let mut buffer = vec![0; 4096];
        loop {
            if let Some(record) = self.records.poll_record().unwrap() {
                return call_of(record);
            }
            let length = self.stream.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "the client ended the connection");
            self.records.handle_input(&buffer[..length]);
        }
    }

    async fn send(&mut self, message: &[u8]) {
        let mut bytes = BytesMut::new();
        record::write(message, 7, &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }
}

async fn tcp() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn udp() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn datagram(socket: &UdpSocket) -> ((u32, CallBody), SocketAddr) {
    let mut buffer = vec![0; 65_536];
    let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
    (call_of(Bytes::copy_from_slice(&buffer[..length])), from)
}

/// Waits until something has been counted.
async fn until(counters: impl Fn() -> ClientCounters, reached: impl Fn(ClientCounters) -> bool) {
    soon(async {
        while !reached(counters()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_over_udp_is_sent_again_until_it_is_answered() {
    let (server, address) = udp().await;
    let channel = UdpChannel::connect(address, impatient()).await.unwrap();
    let serving = async {
        let ((first, call), _) = datagram(&server).await;
        let ((second, again), _) = datagram(&server).await;
        let ((third, _), from) = datagram(&server).await;
        assert_eq!((first, &call), (second, &again));
        assert_eq!(first, third);
        assert_eq!(call.procedure, ECHO);
        // The same answer twice: networks do that.
        for _ in 0..2 {
            let answer = reply(third, call.arguments.clone());
            server.send_to(&answer, from).await.unwrap();
        }
    };
    let (answer, ()) = soon(async { tokio::join!(echo(&channel, 7), serving) }).await;
    assert_eq!(answer.unwrap(), 7);
    until(|| channel.counters(), |now| now.late_replies == 1).await;
    let counters = channel.counters();
    assert!(counters.retransmissions >= 2, "{counters:?}");
    assert_eq!((counters.calls, counters.replies), (1, 1));
}

#[tokio::test]
async fn replies_from_elsewhere_and_no_replies_are_dropped() {
    let (server, address) = udp().await;
    let (stranger, _) = udp().await;
    let channel = UdpChannel::connect(address, patient()).await.unwrap();
    let serving = async {
        let ((xid, call), from) = datagram(&server).await;
        let wrong = reply(xid, Bytes::from_static(b"\0\0\0\x01"));
        stranger.send_to(&wrong, from).await.unwrap();
        server.send_to(b"no", from).await.unwrap();
        server.send_to(&wrong[..9], from).await.unwrap();
        // A call is no reply.
        let body = MessageBody::Call(call.clone());
        let question = RpcMessage { xid, body }.encode().unwrap();
        server.send_to(&question, from).await.unwrap();
        let right = reply(xid, call.arguments);
        server.send_to(&right, from).await.unwrap();
    };
    let (answer, ()) = soon(async { tokio::join!(echo(&channel, 7), serving) }).await;
    assert_eq!(answer.unwrap(), 7);
    assert_eq!(channel.counters().malformed, 3);
}

#[tokio::test]
async fn a_call_that_nobody_answers_times_out() {
    let (_server, address) = udp().await;
    let options = impatient().timeout(Duration::from_millis(40));
    let channel = UdpChannel::connect(address, options).await.unwrap();
    let error = soon(echo(&channel, 7)).await.unwrap_err();
    assert!(error.may_have_run());
    let text = error.to_string();
    for part in [
        "procedure 4",
        "program 536870913",
        "version 3",
        &format!("udp:{address}"),
        "within 40ms",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let NoReply::TimedOut { sent, .. } = no_reply::<u32>(Err(error)) else {
        panic!("expected a call that timed out");
    };
    assert!(sent > 1, "sent {sent} times");

    let (_listener, address) = tcp().await;
    let options = patient().timeout(Duration::from_millis(10));
    let channel = TcpChannel::connect(address, options).await.unwrap();
    let error = no_reply(soon(echo(&channel, 7)).await);
    assert!(matches!(error, NoReply::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn calls_of_one_channel_may_differ() {
    let (server, at) = udp().await;
    let channel = UdpChannel::connect(at, impatient()).await.unwrap();
    let user = AuthSys::default().credential().unwrap();
    // As long as there is time at all.
    let endless = channel.timeout(Duration::MAX).credential(user.clone());
    let serving = async {
        let ((_, call), _) = datagram(&server).await;
        assert_eq!(call.credential, user);
        let short = channel.timeout(Duration::from_millis(1));
        let error = no_reply(echo(&short, 1).await);
        assert!(error.to_string().contains("within 1ms"), "{error}");
        loop {
            let ((xid, call), from) = datagram(&server).await;
            if call.credential == user {
                server
                    .send_to(&reply(xid, call.arguments), from)
                    .await
                    .unwrap();
                return;
            }
            assert_eq!(call.credential, OpaqueAuth::none());
        }
    };
    let (answer, ()) = soon(async { tokio::join!(echo(&endless, 7), serving) }).await;
    assert_eq!(answer.unwrap(), 7);

    let (listener, at) = tcp().await;
    let channel = TcpChannel::connect(at, patient()).await.unwrap();
    let endless = channel.timeout(Duration::MAX).credential(user.clone());
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        let (xid, call) = connection.call().await;
        assert_eq!(call.credential, user);
        let short = channel.timeout(Duration::from_millis(1));
        no_reply(echo(&short, 1).await);
        connection.send(&reply(xid, call.arguments)).await;
        connection
    };
    let (answer, _open) = soon(async { tokio::join!(echo(&endless, 7), serving) }).await;
    assert_eq!(answer.unwrap(), 7);
    assert_eq!(channel.counters().connections, 1);
}

#[tokio::test]
async fn a_port_without_a_server_is_told_at_once() {
    // It keeps the port from other tests, and takes nothing but of itself.
    let (server, address) = udp().await;
    server.connect(address).await.unwrap();
    let channel = UdpChannel::connect(address, patient()).await.unwrap();
    // However often: an error of an earlier call is not taken for a later one's.
    for _ in 0..3 {
        let error = no_reply(soon(echo(&channel, 7)).await);
        assert!(matches!(error, NoReply::Unreachable { .. }), "{error}");
    }

    let (listener, address) = tcp().await;
    drop(listener);
    let error = TcpChannel::connect(address, patient()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn what_does_not_fit_is_not_sent() {
    let (_server, address) = udp().await;
    let channel = UdpChannel::connect(address, patient()).await.unwrap();
    let too_long = Bytes::from(vec![0; 65_507 - 40 + 1]);
    match channel.call(ECHO, too_long).await {
        Err(Reason::NoReply(error @ NoReply::TooLong { limit, found })) => {
            assert_eq!((limit, found), (65_507, 65_508));
            assert!(!error.may_have_run());
        }
        other => panic!("expected a call that is too long, found {other:?}"),
    }

    let (_listener, address) = tcp().await;
    let options = ClientOptions {
        max_record: 100,
        ..patient()
    };
    let channel = TcpChannel::connect(address, options).await.unwrap();
    let error = channel.call(ECHO, Bytes::from(vec![0; 61])).await;
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("101 bytes where at most 100 can be sent"),
        "{text}"
    );
}

#[tokio::test]
async fn only_so_many_calls_are_outstanding() {
    let options = ClientOptions {
        max_calls: 2,
        ..patient()
    };
    let (server, udp_address) = udp().await;
    let (listener, tcp_address) = tcp().await;
    let datagrams = UdpChannel::connect(udp_address, options.clone());
    let datagrams = datagrams.await.unwrap();
    let records = TcpChannel::connect(tcp_address, options).await.unwrap();
    let over_udp = async {
        let ((one, call), from) = datagram(&server).await;
        let ((two, _), _) = datagram(&server).await;
        let error = no_reply(echo(&datagrams, 3).await);
        assert!(
            error.to_string().contains("2 calls are outstanding"),
            "{error}"
        );
        for xid in [one, two] {
            let answer = reply(xid, call.arguments.clone());
            server.send_to(&answer, from).await.unwrap();
        }
    };
    let calls = async { tokio::join!(echo(&datagrams, 1), echo(&datagrams, 2)) };
    let ((one, two), ()) = soon(async { tokio::join!(calls, over_udp) }).await;
    assert!(one.is_ok() && two.is_ok());

    let over_tcp = async {
        let mut connection = Connection::accept(&listener).await;
        let calls = [connection.call().await, connection.call().await];
        let error = no_reply(echo(&records, 3).await);
        assert!(
            matches!(error, NoReply::TooManyCalls { limit: 2 }),
            "{error}"
        );
        for (xid, call) in calls {
            connection.send(&reply(xid, call.arguments)).await;
        }
    };
    let calls = async { tokio::join!(echo(&records, 1), echo(&records, 2)) };
    let ((one, two), ()) = soon(async { tokio::join!(calls, over_tcp) }).await;
    assert_eq!((one.unwrap(), two.unwrap()), (1, 2));
}

#[tokio::test]
async fn replies_find_their_calls_in_any_order() {
    const CALLS: u32 = 100;
    let (listener, address) = tcp().await;
    let channel = TcpChannel::connect(address, patient()).await.unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let channel = channel.clone();
            tokio::spawn(async move { echo(&channel, number).await })
        })
        .collect();
    soon(async {
        let mut connection = Connection::accept(&listener).await;
        let mut received = Vec::new();
        for _ in 0..CALLS {
            received.push(connection.call().await);
        }
        for (xid, call) in received.into_iter().rev() {
            connection.send(&reply(xid, call.arguments)).await;
        }
        for (number, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap().unwrap(), number);
        }
    })
    .await;
    assert_eq!(channel.counters().connections, 1);
}

#[tokio::test]
async fn a_call_that_may_have_run_is_never_sent_again() {
    let (listener, address) = tcp().await;
    let channel = TcpChannel::connect(address, patient()).await.unwrap();
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        connection.call().await
    };
    let (answer, (lost, _)) = soon(async { tokio::join!(echo(&channel, 1), serving) }).await;
    let error = answer.unwrap_err();
    assert!(error.may_have_run());
    assert!(error.to_string().contains("unknown whether"), "{error}");
    assert!(matches!(
        no_reply::<u32>(Err(error)),
        NoReply::Unknown { .. }
    ));

    // A later call has a new connection, and is the first on it.
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        let (xid, call) = connection.call().await;
        assert_eq!(&call.arguments[..], b"\0\0\0\x02");
        connection.send(&reply(xid, call.arguments)).await;
        xid
    };
    let (answer, next) = soon(async { tokio::join!(echo(&channel, 2), serving) }).await;
    assert_eq!(answer.unwrap(), 2);
    assert_ne!(lost, next, "numbers start at random on each connection");
    assert_eq!(channel.counters().connections, 2);

    // And when there is no server any more, it says so.
    drop(listener);
    channel.disconnect().await;
    let error = no_reply(soon(echo(&channel, 3)).await);
    assert!(matches!(error, NoReply::Connect(_)), "{error}");
    assert!(!error.may_have_run());
}

#[tokio::test]
async fn what_has_not_left_is_known_not_to_have_run() {
    let (listener, address) = tcp().await;
    let options = ClientOptions {
        max_unsent: 8 << 20,
        ..patient()
    };
    let channel = TcpChannel::connect(address, options).await.unwrap();
    let peer = soon(listener.accept()).await.unwrap().0;
    // Nobody reads: at some point the system takes no more, and later calls wait here.
    let mut calls = Vec::new();
    loop {
        let one = channel.clone();
        let big = Bytes::from(vec![0; 1 << 20]);
        let mut call = Box::pin(async move { one.call(ECHO, big).await });
        match futures_poll(&mut call).await {
            None => calls.push(call),
            Some(Err(Reason::NoReply(NoReply::TooMuchUnsent { limit }))) => {
                assert_eq!(limit, 8 << 20);
                break;
            }
            Some(other) => panic!("expected a limit, found {other:?}"),
        }
    }
    drop(peer);
    let last = calls.pop().expect("one was begun");
    let first = calls.remove(0);
    match soon(last).await {
        Err(Reason::NoReply(error @ NoReply::NotSent { .. })) => assert!(!error.may_have_run()),
        other => panic!("expected a call that was not sent, found {other:?}"),
    }
    match soon(first).await {
        Err(Reason::NoReply(error @ NoReply::Unknown { .. })) => assert!(error.may_have_run()),
        other => panic!("expected a call of unknown fate, found {other:?}"),
    }
}

/// Polls a future once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn a_record_that_is_too_long_ends_the_connection() {
    let (listener, address) = tcp().await;
    let options = ClientOptions {
        max_record: 1000,
        ..patient()
    };
    let channel = TcpChannel::connect(address, options).await.unwrap();
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        connection.call().await;
        let header = (1_u32 << 31 | 1001).to_be_bytes();
        connection.stream.write_all(&header).await.unwrap();
        connection
    };
    let (answer, _connection) = soon(async { tokio::join!(echo(&channel, 1), serving) }).await;
    match no_reply(answer) {
        NoReply::Unknown {
            why: Lost::Record(error),
        } => assert_eq!((error.limit, error.found), (1000, 1001)),
        other => panic!("expected a record that is too long, found {other}"),
    }
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_is_one_calls_misfortune() {
    let (listener, address) = tcp().await;
    let channel = TcpChannel::connect(address, patient()).await.unwrap();
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        let (bad, _) = connection.call().await;
        let (short, _) = connection.call().await;
        let (refused, _) = connection.call().await;
        let mut malformed = reply(bad, Bytes::new()).to_vec();
        malformed[11] = 9;
        connection.send(&malformed).await;
        connection
            .send(&reply(short, Bytes::from_static(b"\0\0")))
            .await;
        let body = MessageBody::Reply(Reply::accepted(Err(AcceptError::ProcedureUnavailable)));
        let refusal = RpcMessage { xid: refused, body };
        connection.send(&refusal.encode().unwrap()).await;
        connection
    };
    let calls = async { tokio::join!(echo(&channel, 1), echo(&channel, 2), echo(&channel, 3)) };
    let ((bad, short, refused), _open) = soon(async { tokio::join!(calls, serving) }).await;
    let error = no_reply(bad);
    assert!(matches!(error, NoReply::Malformed(_)), "{error}");
    let error = short.unwrap_err();
    assert!(matches!(error.reason, Reason::Results(_)), "{error}");
    let error = refused.unwrap_err();
    let unavailable = Refusal::Accept(AcceptError::ProcedureUnavailable);
    assert!(matches!(error.reason, Reason::Refused(refusal) if refusal == unavailable));
    let text = format!("tcp:{address}: refused: the program has no such procedure");
    assert!(error.to_string().ends_with(&text), "{error}");
    assert!(!error.may_have_run());
    let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
        error.source()
    });
    assert_eq!(
        chain.count(),
        1,
        "what stands in the text is not told again"
    );
}

#[tokio::test]
async fn the_reply_to_a_dropped_call_is_counted() {
    let (listener, address) = tcp().await;
    let channel = TcpChannel::connect(address, patient()).await.unwrap();
    let mut dropped = Box::pin(echo(&channel, 1));
    assert!(futures_poll(&mut dropped).await.is_none());
    drop(dropped);
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        for _ in 0..2 {
            let (xid, call) = connection.call().await;
            connection.send(&reply(xid, call.arguments)).await;
        }
        connection
    };
    let (answer, _open) = soon(async { tokio::join!(echo(&channel, 2), serving) }).await;
    assert_eq!(answer.unwrap(), 2);
    assert_eq!(channel.counters().late_replies, 1);
}

/// A channel belongs to the runtime that it was made in: nobody receives when that is gone, or tells that time is up.
#[test]
fn a_channel_ends_with_its_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let servers = runtime();
    let ((listener, over_tcp), (_socket, over_udp)) =
        servers.block_on(async { (tcp().await, udp().await) });
    let (gone, other) = (runtime(), runtime());
    let (tcp, udp) = gone.block_on(async {
        let tcp = TcpChannel::connect(over_tcp, patient()).await.unwrap();
        let udp = UdpChannel::connect(over_udp, patient()).await.unwrap();
        (tcp, udp)
    });
    drop(gone);
    drop(listener); // a call would connect again
    other.block_on(async {
        no_reply(soon(echo(&tcp, 1)).await);
        no_reply(soon(echo(&udp, 1)).await);
    });
}

#[tokio::test]
async fn calls_say_who_calls() {
    let (listener, address) = tcp().await;
    let caller = AuthSys::of_this_process().unwrap();
    let options = patient().credential(caller.credential().unwrap());
    let channel = TcpChannel::connect(address, options).await.unwrap();
    let serving = async {
        let mut connection = Connection::accept(&listener).await;
        let (xid, call) = connection.call().await;
        connection.send(&reply(xid, call.arguments)).await;
        assert_eq!(call.verifier, OpaqueAuth::none());
        Credential::from_opaque(call.credential)
    };
    let (answer, identity) = soon(async { tokio::join!(echo(&channel, 2), serving) }).await;
    answer.unwrap();
    assert_eq!(identity, Ok(Credential::Sys(caller)));
}

#[tokio::test]
async fn unix_sockets_are_called_like_tcp() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("client-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let channel = UnixChannel::connect(&path, patient()).await.unwrap();
    let serving = async {
        let mut connection = Connection::new(listener.accept().await.unwrap().0);
        let (xid, call) = connection.call().await;
        connection.send(&reply(xid, call.arguments)).await;
        connection
    };
    let (answer, _open) = soon(async { tokio::join!(echo(&channel, 2), serving) }).await;
    assert_eq!(answer.unwrap(), 2);
    std::fs::remove_file(path).unwrap();
}
