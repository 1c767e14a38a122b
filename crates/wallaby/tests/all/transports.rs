//! Transports from outside by the public trait alone: one suite over all transports, handshakes that fail or never end, and
//! who a peer has proven to be.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::common::{Net, at, client, patience, service, sorted, status, until, work};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use wallaby::intercept::{Admission, Incoming, Interceptor};
use wallaby::transport::{
    Accepted, Connector, DatagramSocket, Dialled, Identity, Listened, Listener, Name, Proven,
    ReadHalf, Stream, Transport, Wrap, WriteHalf,
};
use wallaby::{
    Address, BindError, Code, ConnectError, Endpoint, Many, OtherAddress, Request, Service, Status,
};

transport_suite!(over_mem, Net::mem());
transport_suite!(over_tcp, Net::tcp());
transport_suite!(over_unix, Net::unix());
#[cfg(target_os = "linux")]
transport_suite!(over_shm, Net::shm());
transport_suite!(over_hidden, hidden());

/// Bytes over a unix socket, each mixed with a key and its position. Dialler and acceptor say their key first, and who has
/// another one is rejected; a certificate is only played.
struct Hidden {
    key: u8,
    schemes: Vec<&'static str>,
}

const KEY: u8 = 0x5a;

fn transport(key: u8) -> Arc<dyn Transport> {
    Arc::new(Hidden {
        key,
        schemes: vec!["hidden"],
    })
}

fn hidden() -> Net {
    Net::foreign(transport(KEY), |folder, number| {
        format!("hidden://{}/{number}", folder.display())
    })
}

#[derive(Debug)]
struct Half {
    stream: Arc<UnixStream>,
    key: u8,
    /// Bytes that have passed.
    position: AtomicUsize,
}

#[derive(Debug)]
struct Entrance {
    listener: UnixListener,
    path: String,
    key: u8,
}

impl Drop for Entrance {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Half {
    fn mix(&self, bytes: &mut [u8]) {
        let position = self.position.load(Ordering::Relaxed);
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte ^= self.key.wrapping_add((position + index) as u8);
        }
    }

    fn pass(&self, bytes: usize) {
        self.position.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl ReadHalf for Half {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let before = input.len();
            match self.stream.try_read_buf(input) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(read) => {
                    self.mix(&mut input[before..]);
                    self.pass(read);
                    return Poll::Ready(Ok(read));
                }
            }
        }
    }
}

impl WriteHalf for Half {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut mixed = bytes.to_vec();
        self.mix(&mut mixed);
        let written = self.stream.try_write(&mixed)?;
        self.pass(written);
        Ok(written)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_write_ready(cx)
    }

    fn shutdown(&self) {
        let socket = self.stream.as_fd().try_clone_to_owned();
        let socket = socket.map(std::os::unix::net::UnixStream::from);
        let _ = socket.map(|socket| socket.shutdown(std::net::Shutdown::Both));
    }
}

async fn open(mut stream: UnixStream, key: u8) -> io::Result<Stream> {
    stream.write_all(&[key]).await?;
    let theirs = stream.read_u8().await?;
    if theirs != key {
        let why = format!("its key is {theirs}, not {key}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let proven = Proven::Names(vec![Name::Dns(format!("key-{theirs}.example"))]);
    let stream = Arc::new(stream);
    let half = |stream| Half {
        stream,
        key,
        position: AtomicUsize::new(0),
    };
    let halves = (half(Arc::clone(&stream)), half(stream));
    Ok(Stream::new(
        halves.0,
        halves.1,
        Identity::new(proven, false),
    ))
}

impl Listener for Entrance {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (stream, _) = ready!(self.listener.poll_accept(cx))?;
        Poll::Ready(Ok(Accepted::Opening(Box::pin(open(stream, self.key)))))
    }
}

impl Transport for Hidden {
    fn schemes(&self) -> &[&str] {
        &self.schemes
    }

    fn dial<'a>(&'a self, to: &'a OtherAddress, _: Connector<'a>) -> Dialled<'a> {
        Box::pin(async { open(UnixStream::connect(to.text()).await?, self.key).await })
    }

    fn listen<'a>(&'a self, at: &'a OtherAddress) -> Listened<'a> {
        Box::pin(async {
            let entrance = Entrance {
                listener: UnixListener::bind(at.text())?,
                path: at.text().into(),
                key: self.key,
            };
            Ok((Box::new(entrance) as Box<dyn Listener>, at.clone()))
        })
    }
}

fn path(endpoint: &Endpoint) -> String {
    match at(endpoint) {
        Address::Other(other) => other.text().into(),
        other => panic!("{other}"),
    }
}

/// Answers who has sent the request, who is proven to be its initiator, and hands on to the server named.
fn who() -> Service {
    service().method(
        &work::MANY,
        |request: Request<Many<_>>, (next,): (String,)| async move {
            let initiator = request.initiator_identity().map(ToString::to_string);
            let initiator = initiator.unwrap_or_else(|| "not proven".into());
            let answer = format!("{} / {initiator}", request.identity());
            request.reply(answer).await?;
            if !next.is_empty() {
                let next: Address = next.parse().expect("an address");
                request.forward(next, work::many(String::new())).await?;
            }
            Ok(())
        },
    )
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_handler_sees_what_a_transport_has_proven() {
    use std::os::unix::fs::MetadataExt;
    let me = std::fs::metadata("/proc/self").expect("a process");
    let user = format!("user {}, process {}", me.uid(), std::process::id());
    for (net, expected) in [
        (Net::mem(), "an endpoint of this process"),
        (Net::tcp(), "somebody unknown"),
        (Net::udp(), "somebody unknown"),
        (Net::unix(), user.as_str()),
        (Net::shm(), user.as_str()),
        (hidden(), "key-90.example"),
    ] {
        let (first, second) = (net.serve(who()).await, net.serve(who()).await);
        let client = net.client().await;
        let mut call = work::at(&client, at(&first)).many(at(&second).to_string());
        let (answers, statuses) = patience(sorted(&mut call)).await;
        // The second server knows who sent it the request: the first one. The initiator it has to believe.
        let mut expected =
            [expected, "not proven"].map(|initiator| format!("{expected} / {initiator}"));
        expected.sort();
        assert_eq!((answers, statuses), (expected.to_vec(), vec![]));
    }
}

/// Takes requests only of those who have this name.
fn only(name: Name) -> impl Interceptor {
    move |request: &Incoming| match request.identity().names().contains(&name) {
        true => Admission::Run,
        false => {
            let why = format!("not for {}", request.identity());
            Admission::Refuse(Status::permission_denied(why))
        }
    }
}

#[tokio::test]
async fn an_interceptor_decides_by_the_proven_name() {
    let net = hidden();
    for (name, allowed) in [("key-90.example", true), ("key-91.example", false)] {
        let only = only(Name::Dns(name.into()));
        let server = net
            .bind(Endpoint::builder().interceptor(only).serve(who()))
            .await;
        let client = net.client().await;
        let mut call = work::at(&client, at(&server)).many(String::new());
        let answer = patience(call.next()).await.expect("an answer or a status");
        if allowed {
            answer.expect("an answer");
        } else {
            let status = status(answer);
            assert_eq!(status.code(), Code::PermissionDenied);
            assert!(status.message().contains("key-90.example"), "{status}");
        }
    }
}

#[tokio::test]
async fn a_handshake_that_fails_is_told_on_both_sides() {
    let net = hidden();
    let server = net.serve(who()).await;
    let stranger = Endpoint::builder().transport(transport(7)).bind();
    let stranger = stranger.await.expect("there is a runtime");
    let error = patience(stranger.connect(at(&server))).await;
    let expected = ConnectError::Rejected {
        server: at(&server),
        reason: "its key is 90, not 7".into(),
    };
    assert_eq!(error, Err(expected));
    patience(until(|| server.metrics().accepts_failed == 1)).await;
    assert_eq!(server.metrics().connections_opened, 0);
}

#[tokio::test]
async fn a_handshake_that_never_ends_holds_up_nobody() {
    let net = hidden();
    let patient = Duration::from_millis(500);
    let builder = Endpoint::builder().strangers(3, patient);
    let server = net.bind(builder.serve(who())).await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(
            UnixStream::connect(path(&server))
                .await
                .expect("it listens"),
        );
    }
    let first = net.client().await;
    let mut call = work::at(&first, at(&server)).many(String::new());
    assert_eq!(patience(sorted(&mut call)).await.0.len(), 1);
    for mut stream in silent {
        let mut all = Vec::new();
        patience(stream.read_to_end(&mut all))
            .await
            .expect("it ends");
        assert_eq!(all, [KEY], "the server said its part");
    }
    assert_eq!(server.metrics().accepts_failed, 2);
    let second = net.client().await;
    let mut call = work::at(&second, at(&server)).many(String::new());
    assert_eq!(patience(sorted(&mut call)).await.0.len(), 1);
}

/// Bytes that are no handshake of an endpoint, after one of the transport.
#[tokio::test]
async fn nothing_is_believed_of_bytes_because_a_transport_brings_them() {
    let net = hidden();
    let server = net.serve(who()).await;
    let mut stream = UnixStream::connect(path(&server))
        .await
        .expect("it listens");
    stream.write_all(&[KEY]).await.expect("it reads");
    stream.write_all(&[0xff; 500]).await.expect("it reads");
    let mut all = Vec::new();
    let _ = patience(stream.read_to_end(&mut all)).await;
    let client = net.client().await;
    let mut call = work::at(&client, at(&server)).many(String::new());
    assert_eq!(patience(sorted(&mut call)).await.0.len(), 1);
    assert_eq!(server.metrics().connections_opened, 1);
}

#[tokio::test]
async fn schemes_are_checked() {
    for (schemes, why) in [
        (vec!["tcp"], "no address"),
        (vec!["Upper"], "no address"),
        (vec!["a", "b", "a"], "another transport has it"),
    ] {
        let scheme = *schemes.last().expect("one");
        let transport = Arc::new(Hidden { key: 1, schemes });
        let error = Endpoint::builder().transport(transport).bind().await;
        match error.expect_err("no such scheme") {
            BindError::Transport {
                scheme: found,
                why: told,
            } => {
                assert_eq!(found, scheme);
                assert!(told.contains(why), "{told}");
            }
            other => panic!("{other}"),
        }
    }
}

/// Who has no transport for the initiator's address answers along the way that the request came.
#[tokio::test]
async fn answers_go_back_to_an_initiator_of_another_transport() {
    let (outside, inside) = (hidden(), Net::unix());
    let last = inside.serve(who()).await;
    let first = outside.with(Endpoint::builder()).listen(&inside.address());
    let first = first.listen(&outside.address()).serve(who()).bind().await;
    let first = first.expect("both addresses are free");
    let initiator = outside.endpoint().await;
    let mut call = work::at(&initiator, at(&first)).many(at(&last).to_string());
    let error = ConnectError::NoTransport {
        server: at(&initiator),
    };
    let text = error.to_string();
    assert!(
        text.ends_with("(`Builder::transport` adds one from outside)"),
        "{text}"
    );
    assert_eq!(client().connect(at(&initiator)).await, Err(error));
    let unknown = Endpoint::builder().listen("quic://127.0.0.1:1").bind();
    let text = unknown.await.expect_err("nobody knows it").to_string();
    assert!(text.contains("tcp://") && text.contains("mem://"), "{text}");
    assert!(
        text.ends_with("or one that `Builder::transport` was given"),
        "{text}"
    );
    let (answers, statuses) = patience(sorted(&mut call)).await;
    assert_eq!((answers.len(), statuses), (2, vec![]));
    assert_eq!(first.metrics().relayed, 1);
}

/// The next write waits, with its thread, until something comes here; it says first that it has begun.
type Gate = Arc<Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>>;

struct SlowWrites(Gate);

#[derive(Debug)]
struct Slow<T>(T, Gate);

impl Wrap for SlowWrites {
    fn stream(&self, stream: Stream) -> Stream {
        stream.map_writer(|writer| Slow(writer, Arc::clone(&self.0)))
    }

    fn datagrams(&self, socket: Box<dyn DatagramSocket>) -> Box<dyn DatagramSocket> {
        Box::new(Slow(socket, Arc::clone(&self.0)))
    }
}

impl<T> Slow<T> {
    fn pass(&self) {
        if let Some((began, released)) = self.1.lock().expect("nobody has panicked").take() {
            began.send(()).expect("somebody waits");
            released.recv().expect("it is let go");
        }
    }
}

impl WriteHalf for Slow<Box<dyn WriteHalf>> {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.pass();
        self.0.try_write(bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }

    fn shutdown(&self) {
        self.0.shutdown();
    }
}

impl DatagramSocket for Slow<Box<dyn DatagramSocket>> {
    fn local(&self) -> SocketAddr {
        self.0.local()
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.0.poll_receive(cx, buffer)
    }

    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.pass();
        self.0.try_send(datagram, to)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }
}

/// Over the same connection: what the others have to send leaves when the system has taken what came first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_sends_does_not_wait_for_what_another_one_writes() {
    for net in [Net::tcp(), Net::udp()] {
        send_while_another_thread_writes(net).await;
    }
}

async fn send_while_another_thread_writes(net: Net) {
    let server = net.serve(who()).await;
    let gate = Gate::default();
    let slow = Arc::new(SlowWrites(Arc::clone(&gate)));
    let client = net.bind(Endpoint::builder().wrap_transports(slow)).await;
    let to = at(&server);
    let mut call = work::at(&client, to.clone()).many(String::new());
    patience(sorted(&mut call)).await;

    let ((release, released), (began, begun)) = (mpsc::channel(), mpsc::channel());
    *gate.lock().expect("nobody has panicked") = Some((began, released));
    let (sent, sends) = mpsc::channel();
    let send = |sent: mpsc::Sender<_>| {
        let (client, to) = (client.clone(), to.clone());
        std::thread::spawn(move || sent.send(work::at(&client, to).many(String::new())))
    };
    let first = send(sent.clone());
    let long = Duration::from_secs(10);
    begun.recv_timeout(long).expect("it writes");
    let second = send(sent);
    let early = sends.recv_timeout(long);
    release.send(()).expect("it waits for that");
    let late = sends.recv_timeout(long);
    for (thread, call) in [(second, early), (first, late)] {
        thread.join().expect("no panic").expect("somebody waits");
        let mut call = call.expect("it was sent");
        assert_eq!(patience(sorted(&mut call)).await.0.len(), 1);
    }
}
