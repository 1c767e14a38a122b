//! Emulated links: what endpoints send arrives later, and nothing else changes.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{Gate, Net, all, at, heap, patience, service, status, until, work};
use bytes::{Bytes, BytesMut};
use wallaby::transport::{DatagramSocket, ReadHalf, Stream, Wrap, WriteHalf};
use wallaby::{Builder, Code, Endpoint, Many, One, Request, Status};
use wallaby_link::emulate;

over_every_transport!(calls_work_over_slow_links, aborts_work_over_slow_links,);

over_every_stream!(
    large_messages_work_over_slow_links,
    what_was_sent_arrives_before_the_end,
    large_messages_go_both_ways_through_small_buffers,
    wraps_are_passed_in_their_order,
);

fn slow() -> Builder {
    let narrow = NonZeroU64::new(200_000_000).expect("not zero");
    let delay = Duration::from_micros(500);
    emulate(Endpoint::builder(), delay, Some(narrow)).expect("a thread")
}

async fn calls_work_over_slow_links(net: Net) {
    let leaf = service().method(
        &work::ONE,
        |request: Request<One<_>>, (what,): (String,)| async move {
            if what == "fail" {
                return Err(Status::new(Code::NotFound, "no"));
            }
            Ok(request.respond(what).await?)
        },
    );
    let leaf = net.bind(slow().serve(leaf)).await;
    let next = at(&leaf);
    let root = service()
        .method(&work::ONE, {
            let next = next.clone();
            move |request: Request<One<_>>, (what,)| {
                let next = next.clone();
                async move { Ok(request.forward(next, work::one(what)).await?) }
            }
        })
        .method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let next = next.clone();
                async move {
                    for letter in what.chars() {
                        request
                            .delegate(&next, work::one(letter.to_string()))
                            .await?;
                    }
                    for number in 0..100 {
                        request.reply(number.to_string()).await?;
                    }
                    Ok(())
                }
            },
        );
    let root = net.bind(slow().serve(root)).await;
    for initiator in [
        net.bind(slow()).await,
        slow().bind().await.expect("there is a runtime"),
    ] {
        let work = work::at(&initiator, at(&root));
        assert_eq!(work.one("x".into()).await, Ok("x".into()));
        assert_eq!(status(work.one("fail".into()).await).code(), Code::NotFound);
        let answers: Vec<_> = all(&mut work.many("abc".into()))
            .await
            .into_iter()
            .map(|item| item.expect("an answer"))
            .collect();
        let (numbers, mut letters): (Vec<String>, Vec<String>) = answers
            .into_iter()
            .partition(|answer| answer.parse::<u32>().is_ok());
        letters.sort();
        assert_eq!(letters, ["a", "b", "c"]);
        assert_eq!(
            numbers,
            (0..100)
                .map(|number| number.to_string())
                .collect::<Vec<_>>(),
            "order is kept"
        );
    }
}

async fn large_messages_work_over_slow_links(net: Net) {
    let echo = service().method(
        &heap::ONE,
        |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
    );
    let server = net.bind(slow().serve(echo)).await;
    let client = net.bind(slow()).await;
    let heap = heap::at(&client, at(&server));
    let payload = Bytes::from(
        (0..1_500_000u32)
            .map(|number| (number / 7) as u8)
            .collect::<Vec<_>>(),
    );
    let calls: Vec<_> = (0..3)
        .map(|skipped| (skipped, heap.one(payload.slice(skipped..))))
        .collect();
    for (skipped, call) in calls {
        assert!(call.await.expect("an answer") == payload.slice(skipped..));
    }
}

/// A server that closes says what it has not executed: that is its last word, and the link delays it as all before.
async fn what_was_sent_arrives_before_the_end(net: Net) {
    let gate = Gate::new();
    let began = gate.clone();
    let server = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let began = began.clone();
        async move {
            began.open(1);
            request.cancelled().await;
            Ok(())
        }
    });
    let server = net.bind(slow().serve(server)).await;
    let client = net.bind(slow()).await;
    let call = work::at(&client, at(&server)).one(String::new());
    gate.pass().await;
    server.close();
    assert_eq!(
        call.await.expect_err("it is closed").code(),
        Code::Unfinished
    );
}

async fn aborts_work_over_slow_links(net: Net) {
    let gate = Gate::new();
    let began = gate.clone();
    let server = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let began = began.clone();
        async move {
            began.open(1);
            request.cancelled().await;
            Ok(())
        }
    });
    let server = net.bind(slow().serve(server)).await;
    let client = net.bind(slow()).await;
    let call = work::at(&client, at(&server)).one(String::new());
    gate.pass().await;
    drop(call);
    until(|| server.load().is_idle()).await;
    client.close();
    until(|| server.metrics().connections_ended == 1).await;
}

/// What arrives at the end of a link and finds no room waits there, and nothing else does.
async fn large_messages_go_both_ways_through_small_buffers(net: Net) {
    let narrow = || {
        let builder = Endpoint::builder().shared_memory(4096);
        emulate(builder, Duration::from_micros(200), None).expect("a thread")
    };
    let echo = service().method(
        &heap::ONE,
        |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
    );
    let server = net.bind(narrow().serve(echo)).await;
    let client = net.bind(narrow()).await;
    let heap = heap::at(&client, at(&server));
    let payload = Bytes::from(vec![7; 1_000_000]);
    let calls: Vec<_> = (0..4).map(|_| heap.one(payload.clone())).collect();
    for call in calls {
        assert!(call.await.expect("an answer") == payload);
    }
}

/// Notes who writes.
struct Noting(&'static str, Arc<Mutex<Vec<&'static str>>>);

#[derive(Debug)]
struct NotingWriter {
    name: &'static str,
    noted: Arc<Mutex<Vec<&'static str>>>,
    writer: Box<dyn WriteHalf>,
}

#[derive(Debug)]
struct Through(Box<dyn ReadHalf>);

impl Wrap for Noting {
    fn stream(&self, stream: Stream) -> Stream {
        let noted = Arc::clone(&self.1);
        let stream = stream.map_writer(|writer| NotingWriter {
            name: self.0,
            noted,
            writer,
        });
        stream.map_reader(Through)
    }
}

impl WriteHalf for NotingWriter {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.noted.lock().expect("nobody panics").push(self.name);
        self.writer.try_write(bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_writable(cx)
    }

    fn shutdown(&self) {
        self.writer.shutdown();
    }
}

impl ReadHalf for Through {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        self.0.poll_read(cx, input)
    }
}

async fn wraps_are_passed_in_their_order(net: Net) {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let far = Arc::new(Noting("far", Arc::clone(&noted)));
    let near = Arc::new(Noting("near", Arc::clone(&noted)));
    let echo = service().method(
        &heap::ONE,
        |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
    );
    let server = net.bind(Endpoint::builder().serve(echo)).await;
    let client = Endpoint::builder()
        .wrap_transports(far)
        .wrap_transports(near);
    let client = client.bind().await.expect("there is a runtime");
    let payload = Bytes::from(vec![7; 100]);
    let answer = heap::at(&client, at(&server)).one(payload.clone()).await;
    assert_eq!(answer, Ok(payload));
    let noted = noted.lock().expect("nobody panics");
    assert_eq!(noted[..2], ["near", "far"]);
}

/// Takes little at a time, and that seldom.
#[derive(Debug)]
struct Slow;

#[derive(Debug)]
struct SlowWriter {
    writer: Box<dyn WriteHalf>,
    next: Mutex<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

const SELDOM: Duration = Duration::from_millis(100);

impl Wrap for Slow {
    fn stream(&self, stream: Stream) -> Stream {
        stream.map_writer(|writer| SlowWriter {
            writer,
            next: Mutex::new(Box::pin(tokio::time::sleep(Duration::ZERO))),
        })
    }
}

impl WriteHalf for SlowWriter {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut next = self.next.lock().expect("nobody panics");
        if !next.is_elapsed() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        next.set(tokio::time::sleep(SELDOM));
        self.writer.try_write(&bytes[..bytes.len().min(4096)])
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut next = self.next.lock().expect("nobody panics");
        next.as_mut().poll(cx).map(Ok)
    }

    fn shutdown(&self) {
        self.writer.shutdown();
    }
}

/// A peer that takes little at a time, for long, is not silent.
#[tokio::test]
async fn who_takes_answers_slowly_is_not_given_up() {
    patience(async {
        let net = Net::tcp();
        let builder = Endpoint::builder()
            .keep_alive(Duration::from_millis(200), Duration::from_millis(800))
            .wrap_transports(Arc::new(Slow));
        let echo = service().method(
            &heap::ONE,
            |request: Request<One<_>, _>, (_,): (Bytes,)| async move {
                Ok(request.respond(Bytes::from(vec![7; 30_000])).await?)
            },
        );
        let server = net.bind(builder.serve(echo)).await;
        let client = Endpoint::builder()
            .bind()
            .await
            .expect("there is a runtime");
        let heap = heap::at(&client, at(&server));
        let calls: Vec<_> = (0..4).map(|_| heap.one(Bytes::new())).collect();
        for call in calls {
            assert_eq!(call.await.map(|answer| answer.len()), Ok(30_000));
        }
    })
    .await;
}

/// What it does at its first write or read but one, which is after the handshake.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    WritesNothing,
    PanicsWriting,
    PanicsReading,
    ReadsNonsense,
}

#[derive(Debug)]
struct Faulty(Fault);

#[derive(Debug)]
struct FaultyHalf<H> {
    half: H,
    fault: Fault,
    begun: std::sync::atomic::AtomicBool,
}

impl<H> FaultyHalf<H> {
    fn new(half: H, fault: Fault) -> Self {
        let begun = std::sync::atomic::AtomicBool::new(false);
        Self { half, fault, begun }
    }

    fn is_due(&self, fault: Fault) -> bool {
        self.fault == fault && self.begun.swap(true, std::sync::atomic::Ordering::Relaxed)
    }
}

impl Wrap for Faulty {
    fn stream(&self, stream: Stream) -> Stream {
        let stream = stream.map_writer(|writer| FaultyHalf::new(writer, self.0));
        stream.map_reader(|reader| FaultyHalf::new(reader, self.0))
    }
}

impl WriteHalf for FaultyHalf<Box<dyn WriteHalf>> {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        assert!(
            !self.is_due(Fault::PanicsWriting),
            "a fault of this transport"
        );
        match self.is_due(Fault::WritesNothing) {
            true => Ok(0),
            false => self.half.try_write(bytes),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half.poll_writable(cx)
    }

    fn shutdown(&self) {
        self.half.shutdown();
    }
}

impl ReadHalf for FaultyHalf<Box<dyn ReadHalf>> {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        let read = std::task::ready!(self.half.poll_read(cx, input));
        assert!(
            !self.is_due(Fault::PanicsReading),
            "a fault of this transport"
        );
        match self.is_due(Fault::ReadsNonsense) {
            true => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            false => Poll::Ready(read),
        }
    }
}

/// Its connections end, and nothing hangs or stops.
#[tokio::test]
async fn what_a_transport_does_wrong_ends_its_connection() {
    patience(async {
        let net = Net::tcp();
        let echo = || {
            service().method(
                &heap::ONE,
                |request: Request<One<_>, _>, (what,): (Bytes,)| async move {
                    Ok(request.respond(what).await?)
                },
            )
        };
        let what = Bytes::from_static(b"what");
        for fault in [
            Fault::WritesNothing,
            Fault::PanicsWriting,
            Fault::PanicsReading,
            Fault::ReadsNonsense,
        ] {
            // All there is may come by the first read.
            let reads = matches!(fault, Fault::PanicsReading | Fault::ReadsNonsense);
            let faulty = || {
                let soon = (Duration::from_millis(20), Duration::from_millis(200));
                let builder = Endpoint::builder().ping(soon.0, soon.1);
                builder.wrap_transports(Arc::new(Faulty(fault)))
            };
            let server = net.serve(echo()).await;
            let client = faulty().bind().await.expect("there is a runtime");
            let answer = heap::at(&client, at(&server)).one(what.clone()).await;
            assert!(answer.is_err() || reads, "{fault:?}");
            let is_counted = || client.metrics().connections_broken > 0;
            while fault == Fault::ReadsNonsense && !is_counted() {
                let _ = heap::at(&client, at(&server)).one(what.clone()).await;
            }

            let server = net.bind(faulty().serve(echo())).await;
            for _ in 0..3 {
                let soon = (Duration::from_millis(20), Duration::from_millis(200));
                let client = Endpoint::builder().ping(soon.0, soon.1).bind().await;
                let client = client.expect("there is a runtime");
                let answer = heap::at(&client, at(&server)).one(what.clone()).await;
                assert!(answer.is_err() || reads, "{fault:?}");
            }
        }
    })
    .await;
}

/// From its third write on it takes nothing, and says that it has taken more than there was.
#[derive(Debug)]
struct Boasts;

#[derive(Debug)]
struct Boasting(Box<dyn WriteHalf>, std::sync::atomic::AtomicUsize);

impl Wrap for Boasts {
    fn stream(&self, stream: Stream) -> Stream {
        stream.map_writer(|writer| Boasting(writer, Default::default()))
    }
}

impl WriteHalf for Boasting {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => self.0.try_write(bytes),
            _ => Ok(bytes.len() + 1),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }

    fn shutdown(&self) {
        self.0.shutdown();
    }
}

/// Who sends writes: it must not panic there, nor in the endpoint's lock.
#[tokio::test]
async fn a_transport_that_says_it_took_too_much_loses_its_connection() {
    patience(async {
        let net = Net::tcp();
        let echo = service().method(
            &heap::ONE,
            |request: Request<One<_>, _>, (what,): (Bytes,)| async move {
                Ok(request.respond(what).await?)
            },
        );
        let server = net.serve(echo).await;
        let soon = (Duration::from_millis(20), Duration::from_millis(200));
        let client = Endpoint::builder().ping(soon.0, soon.1);
        let client = client.wrap_transports(Arc::new(Boasts)).bind().await;
        let heap = heap::at(&client.expect("there is a runtime"), at(&server));
        let what = Bytes::from_static(b"what");
        assert_eq!(heap.one(what.clone()).await, Ok(what.clone()));
        heap.one(what.clone()).await.expect_err("nothing was sent");
        assert_eq!(heap.one(what.clone()).await, Ok(what), "another connection");
    })
    .await;
}

/// Panics once, and works from then on: when it is first asked for a stream, or when something first comes to its socket.
#[derive(Debug, Clone, Default)]
struct Stumbles(Arc<std::sync::atomic::AtomicBool>);

impl Stumbles {
    fn stumble(&self) {
        let again = self.0.swap(true, std::sync::atomic::Ordering::Relaxed);
        assert!(again, "a fault of this transport");
    }
}

impl Wrap for Stumbles {
    fn stream(&self, stream: Stream) -> Stream {
        self.stumble();
        stream
    }

    fn datagrams(&self, socket: Box<dyn DatagramSocket>) -> Box<dyn DatagramSocket> {
        Box::new(Stumbling(socket, self.clone()))
    }
}

#[derive(Debug)]
struct Stumbling(Box<dyn DatagramSocket>, Stumbles);

impl DatagramSocket for Stumbling {
    fn local(&self) -> SocketAddr {
        self.0.local()
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let received = self.0.poll_receive(cx, buffer);
        if received.is_ready() {
            self.1.stumble();
        }
        received
    }

    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.try_send(datagram, to)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }
}

#[tokio::test]
async fn a_panic_of_what_stands_before_a_transport_stops_no_endpoint() {
    patience(async {
        for net in [Net::tcp(), Net::udp()] {
            let echo = service().method(
                &heap::ONE,
                |request: Request<One<_>, _>, (what,): (Bytes,)| async move {
                    Ok(request.respond(what).await?)
                },
            );
            let stumbles = Arc::new(Stumbles::default());
            let builder = Endpoint::builder().wrap_transports(stumbles.clone());
            let server = net.bind(builder.serve(echo)).await;
            // Over a stream the first is turned away; of datagrams one is lost, and sent again.
            for may_fail in [true, false] {
                let client = Endpoint::builder().bind().await.expect("a runtime");
                let answer = heap::at(&client, at(&server)).one(Bytes::new()).await;
                assert!(answer.is_ok() || may_fail, "{answer:?}");
            }
            assert!(stumbles.0.load(std::sync::atomic::Ordering::Relaxed));
        }
    })
    .await;
}
