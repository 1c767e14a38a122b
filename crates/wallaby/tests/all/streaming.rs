//! Items follow requests as values of one type: through any number of hops, no faster than they are read, and what goes wrong
//! says at which item, of which method, and who sent it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{Gate, Net, at, client, failure, load, service, status, until, work};
use bytes::Bytes;
use fastrand::Rng;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use wallaby::codec::{Codec, Postcard, Raw};
use wallaby::{
    Address, Body, BodyError, Client, Code, Endpoint, ExecutorConfig, Failure, IntoStreaming,
    ItemError, Limits, Many, Method, One, Request, Service, Status, StreamError, StreamErrorKind,
    Streaming, Target, items,
};

over_every_stream!(
    a_handler_reads_items_while_they_are_sent,
    items_go_through_three_hops,
    what_was_read_is_not_sent_on,
    every_way_to_delegate_takes_the_stream_along,
    a_slow_reader_slows_only_its_sender,
    a_stream_that_nobody_wants_is_stopped,
    a_source_that_fails_is_an_error_at_its_item,
    an_abort_ends_the_stream_at_both_ends,
    a_deadline_ends_the_stream_at_both_ends,
    a_lost_connection_ends_the_stream_at_both_ends,
    an_item_that_is_too_long_is_refused,
    bytes_that_are_no_items_are_errors,
    a_stream_that_failed_does_not_look_whole_to_the_next_reader,
    other_streams_are_another_signature,
    a_stream_that_is_missing_is_a_status,
    a_handler_may_block,
    a_stream_goes_down_a_line,
    a_trace_shows_every_hop,
    random_items_arrive_as_they_were_sent,
);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    id: u64,
    text: String,
}

fn entry(id: u64) -> Entry {
    let text = "hop ".repeat(id as usize % 7);
    Entry { id, text }
}

#[wallaby::service(package = "test")]
trait Ledger {
    /// Adds up what comes.
    async fn add(from: u64, entries: Streaming<Entry>) -> u64;
    /// Every entry that came.
    async fn echo(entries: Streaming<Entry>) -> Many<Entry>;
    /// How many bytes came.
    async fn store(content: Body) -> u64;
}

#[wallaby::service(package = "test", codec = Raw)]
trait Blobs {
    async fn join(blobs: Streaming<Bytes>) -> Bytes;
}

#[wallaby::service(package = "test")]
trait Mirror {
    /// Every item; the first server answers with so many of them.
    async fn back(read: u64, items: Streaming<Vec<u8>>) -> Many<Vec<u8>>;
}

/// Items that the test sends one by one.
struct Piped<T>(mpsc::UnboundedReceiver<T>);

impl<T> Stream for Piped<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

fn piped<T>() -> (mpsc::UnboundedSender<T>, Piped<T>) {
    let (sender, items) = mpsc::unbounded_channel();
    (sender, Piped(items))
}

async fn sum(from: u64, mut entries: Streaming<Entry>) -> Result<u64, StreamError> {
    let mut sum = from;
    while let Some(item) = entries.next().await {
        let item = item?;
        assert_eq!(item, entry(item.id));
        sum += item.id;
    }
    Ok(sum)
}

/// A server that adds up, and tells the test how its streams ended.
async fn adding(net: &Net) -> (Endpoint, mpsc::UnboundedReceiver<Result<u64, StreamError>>) {
    adding_at(net, Endpoint::builder()).await
}

async fn adding_at(
    net: &Net,
    builder: wallaby::Builder,
) -> (Endpoint, mpsc::UnboundedReceiver<Result<u64, StreamError>>) {
    let (ended, ends) = mpsc::unbounded_channel();
    let handler = move |request: Request<One<u64>>, (from,), entries| {
        let ended = ended.clone();
        async move {
            let end = sum(from, entries).await;
            let _ = ended.send(end.clone());
            Ok::<_, Status>(request.respond(end?).await?)
        }
    };
    let service = service().streaming_method(&ledger::ADD, handler);
    (net.bind(builder.serve(service.shielded())).await, ends)
}

/// Hands the stream on to this server, after reading so many items, which it adds up itself.
fn passing(server: Address, read: u64) -> Service {
    let handler =
        move |request: Request<One<u64>>, (mut from,): (u64,), mut entries: Streaming<Entry>| {
            let server = server.clone();
            async move {
                for _ in 0..read {
                    from += entries.next().await.expect("an item")?.id;
                }
                Ok::<_, Status>(request.forward(server, ledger::add(from, entries)).await?)
            }
        };
    service().streaming_method(&ledger::ADD, handler)
}

async fn a_handler_reads_items_while_they_are_sent(net: Net) {
    let handler = |request: Request<Many<Entry>>, (), mut entries: Streaming<Entry>| async move {
        while let Some(item) = entries.next().await {
            request.reply(item?).await?;
            request.flush().await;
        }
        assert!(entries.next().await.is_none(), "it stays so");
        Ok::<_, Status>(())
    };
    let server = net
        .serve(service().streaming_method(&ledger::ECHO, handler))
        .await;
    let client = client();
    let (send, entries) = piped();
    let mut call = ledger::at(&client, at(&server)).echo(entries);
    for id in 0..20 {
        send.send(entry(id)).expect("it is read");
        assert_eq!(call.next().await, Some(Ok(entry(id))));
    }
    drop(send);
    assert_eq!(call.next().await, None);
}

async fn items_go_through_three_hops(net: Net) {
    let (last, _ends) = adding(&net).await;
    let middle = net.serve(passing(at(&last), 0)).await;
    let first = net.serve(passing(at(&middle), 0)).await;
    let client = client();
    for count in [0, 1, 50_000] {
        let call = ledger::at(&client, at(&first)).add(5, items((0..count).map(entry)));
        assert_eq!(call.await, Ok(5 + (0..count).sum::<u64>()));
    }
}

/// Wherever the reader stands in an item or a chunk.
async fn what_was_read_is_not_sent_on(net: Net) {
    let (last, _ends) = adding(&net).await;
    let client = client();
    for read in [1, 2, 999, 1000] {
        let first = net.serve(passing(at(&last), read)).await;
        let call = ledger::at(&client, at(&first)).add(0, items((0..1000).map(entry)));
        assert_eq!(call.await, Ok((0..1000).sum()), "{read} were read");
    }
    // A new one, which wraps the rest of the first, is read at each hop.
    let to = at(&last);
    let doubling = move |request: Request<One<u64>>, (from,), mut entries: Streaming<Entry>| {
        let to = to.clone();
        async move {
            let _first = entries.next().await;
            let new = Doubled(entries);
            Ok::<_, Status>(request.forward(to, ledger::add(from, new)).await?)
        }
    };
    let first = net
        .serve(service().streaming_method(&ledger::ADD, doubling))
        .await;
    let call = ledger::at(&client, at(&first)).add(0, items((7..1000).map(entry)));
    assert_eq!(call.await, Ok((8..1000).map(|id| 2 * id).sum()));
}

async fn every_way_to_delegate_takes_the_stream_along(net: Net) {
    let last = net.serve(ledger::service(Blocking { next: None })).await;
    let to = at(&last);
    let handler = move |request: Request<Many<Entry>>, (), mut entries: Streaming<Entry>| {
        let to = to.clone();
        async move {
            let first = entries.next().await.expect("an item")?;
            match first.id {
                0 => request.delegate(to, ledger::echo(entries)).await?,
                1 => request.try_delegate(to, ledger::echo(entries))?,
                _ => request.forward(to, ledger::echo(entries)).await?,
            }
            Ok::<_, Status>(())
        }
    };
    let first = net
        .serve(service().streaming_method(&ledger::ECHO, handler))
        .await;
    let client = client();
    for way in 0..3 {
        let ledger = ledger::at(&client, at(&first)).in_order();
        let echoed = ledger.echo(items((way..500).map(entry))).collect().await;
        let echoed = echoed.expect("no status");
        assert!(
            echoed.into_iter().eq((way + 1..500).map(entry)),
            "way {way}"
        );
    }
}

/// Each entry with the double id.
struct Doubled(Streaming<Entry>);

impl Stream for Doubled {
    type Item = Result<Entry, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.0).poll_next(cx);
        next.map(|next| next.map(|item| item.map(|item| entry(2 * item.id))))
    }
}

async fn a_slow_reader_slows_only_its_sender(net: Net) {
    const LIMIT: u64 = 100_000;
    const COUNT: u64 = 2000;
    // Of two hundred bytes each.
    const MOST: u64 = (LIMIT + 3 * 32 * 1024) / 200;
    let gate = Gate::new();
    let slow = {
        let gate = gate.clone();
        move |request: Request<One<u64>>, (), entries: Streaming<Entry>| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                let mut entries = entries;
                let mut read = 0;
                while let Some(item) = entries.next().await {
                    assert_eq!(item?.id, read);
                    read += 1;
                }
                Ok::<_, Status>(request.respond(read).await?)
            }
        }
    };
    static COUNTED: Method<(), One<u64>, Postcard, Streaming<Entry>> = Method::new("test/count");
    let echo = |request: Request<One<String>>, (what,)| async move {
        Ok::<_, Status>(request.respond(what).await?)
    };
    let service = service()
        .streaming_method(&COUNTED, slow)
        .method(&work::ONE, echo);
    let mut limits = Limits::default();
    limits.call = LIMIT;
    let server = net
        .bind(Endpoint::builder().limits(limits).serve(service))
        .await;
    let client = client();
    let asked = Arc::new(AtomicU64::new(0));
    let entries = (0..COUNT).map({
        let asked = Arc::clone(&asked);
        move |id| {
            asked.fetch_add(1, Ordering::Relaxed);
            let text = "x".repeat(200);
            Entry { id, text }
        }
    });
    let target = COUNTED.target((), items(entries));
    let upload = Client::new(&client, at(&server)).call_target(target);
    until(|| asked.load(Ordering::Relaxed) > LIMIT / 300).await;
    // The connection carries others meanwhile, and nothing more of the stream is asked for.
    for round in 0..100 {
        let answer = work::at(&client, at(&server)).one(round.to_string()).await;
        assert_eq!(answer, Ok(round.to_string()));
    }
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked <= MOST, "{asked} items under way");
    gate.open(1);
    assert_eq!(upload.await, Ok(COUNT));
}

async fn a_stream_that_nobody_wants_is_stopped(net: Net) {
    let handler = |request: Request<One<u64>>, (how,), mut entries: Streaming<Entry>| async move {
        match how {
            0 => drop(entries),
            1 => drop(entries.next().await),
            2 => return Err(Status::new(Code::NotFound, "no")),
            _ => return Ok::<_, Status>(request.respond(how).await?),
        }
        Ok::<_, Status>(request.respond(how).await?)
    };
    let server = net
        .serve(service().streaming_method(&ledger::ADD, handler))
        .await;
    let client = client();
    for how in 0..4 {
        let (send, entries) = piped();
        send.send(entry(1)).expect("it is there");
        let answer = ledger::at(&client, at(&server)).add(how, entries).await;
        match how {
            2 => assert_eq!(status(answer).code(), Code::NotFound),
            _ => assert_eq!(answer, Ok(how)),
        }
        send.closed().await;
    }
}

/// What an error says of where it happened.
fn check_place(error: &StreamError, item: u64, from: &Endpoint) {
    assert_eq!(error.item(), item, "{error}");
    assert_eq!(error.method(), Some("test.Ledger/add"));
    assert_eq!(error.peer(), Some(from.node()));
    assert_eq!(error.server(), from.address());
    let text = error.to_string();
    assert!(
        text.starts_with(&format!(
            "item {item} of the stream of test.Ledger/add, from "
        )),
        "{text}"
    );
}

async fn a_source_that_fails_is_an_error_at_its_item(net: Net) {
    let (server, mut ends) = adding(&net).await;
    let client = client();
    let (send, entries) = piped();
    for id in 0..3 {
        send.send(Ok(entry(id))).expect("it is there");
    }
    send.send(Err("the disk is gone")).expect("it is there");
    let call = ledger::at(&client, at(&server)).add(0, entries);
    let refused = status(call.await);
    assert_eq!(refused.code(), Code::Aborted);
    let error = ends.recv().await.expect("an end").expect_err("an error");
    check_place(&error, 3, &client);
    let broken = BodyError::Broken("cannot read the body: the disk is gone".into());
    assert_eq!(error.kind(), &StreamErrorKind::Body(broken));
    assert!(refused.message().ends_with("the disk is gone"), "{refused}");
    send.closed().await;
}

async fn an_abort_ends_the_stream_at_both_ends(net: Net) {
    let (server, mut ends) = adding(&net).await;
    let client = client();
    let (send, entries) = piped();
    send.send(entry(0)).expect("it is there");
    let call = ledger::at(&client, at(&server)).add(0, entries);
    until(|| server.load().running == 1).await;
    drop(call);
    send.closed().await;
    let error = ends.recv().await.expect("an end").expect_err("an error");
    let ended = BodyError::Broken("its call has ended".into());
    assert_eq!(error.kind(), &StreamErrorKind::Body(ended));
    until(|| server.load().is_idle()).await;
    // Through a server that has handed it on, and is done.
    let first = net.serve(passing(at(&server), 0)).await;
    let (send, entries) = piped();
    send.send(entry(0)).expect("it is there");
    let call = ledger::at(&client, at(&first)).add(0, entries);
    until(|| server.load().running == 1 && first.load().running == 0).await;
    drop(call);
    send.closed().await;
    let error = ends.recv().await.expect("an end").expect_err("an error");
    assert!(
        matches!(error.kind(), StreamErrorKind::Body(BodyError::Broken(_))),
        "{error}"
    );
}

async fn a_deadline_ends_the_stream_at_both_ends(net: Net) {
    let (server, mut ends) = adding(&net).await;
    let client = client();
    let (send, entries) = piped();
    send.send(entry(0)).expect("it is there");
    let call = ledger::at(&client, at(&server))
        .deadline(Duration::from_secs(1))
        .add(0, entries);
    assert!(matches!(failure(call.await), Failure::Deadline { .. }));
    send.closed().await;
    let error = ends.recv().await.expect("an end").expect_err("an error");
    assert!(
        matches!(error.kind(), StreamErrorKind::Body(BodyError::Broken(_))),
        "{error}"
    );
}

async fn a_lost_connection_ends_the_stream_at_both_ends(net: Net) {
    let (server, mut ends) = adding(&net).await;
    let client = client();
    let (send, entries) = piped();
    send.send(entry(0)).expect("it is there");
    let call = ledger::at(&client, at(&server)).add(0, entries);
    until(|| server.load().running == 1).await;
    client.close();
    send.closed().await;
    drop(call);
    let error = ends.recv().await.expect("an end").expect_err("an error");
    assert!(matches!(error.kind(), StreamErrorKind::Body(_)), "{error}");
}

async fn an_item_that_is_too_long_is_refused(net: Net) {
    let builder = || Endpoint::builder().longest_item(1000);
    let (server, mut ends) = adding_at(&net, builder()).await;
    let client = client();
    let (send, entries) = piped();
    send.send(entry(0)).expect("it is there");
    let text = "x".repeat(5000);
    let long = Entry { id: 1, text };
    let size = <Postcard as Codec<Entry>>::encode(&long).expect("it encodes");
    send.send(long).expect("it is there");
    let call = ledger::at(&client, at(&server)).add(0, entries);
    let refused = status(call.await);
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let error = ends.recv().await.expect("an end").expect_err("an error");
    check_place(&error, 1, &client);
    let expected = ItemError::TooLarge {
        size: size.len() as u64,
        limit: 1000,
    };
    assert_eq!(error.kind(), &StreamErrorKind::Item(expected));
    send.closed().await;

    let handler = |request: Request<One<u64>>, (from,), entries: Streaming<Entry>| async move {
        let mut entries = entries.item_limit(10_000);
        let mut sum = from;
        while let Some(item) = entries.next().await {
            sum += item?.id;
        }
        Ok::<_, Status>(request.respond(sum).await?)
    };
    let service = service().streaming_method(&ledger::ADD, handler);
    let server = net.bind(builder().serve(service)).await;
    let long = |id| Entry {
        id,
        text: "x".repeat(5000),
    };
    let call = ledger::at(&client, at(&server)).add(0, items((0..10).map(long)));
    assert_eq!(call.await, Ok(45));
}

/// A call whose stream is these bytes, whatever they are.
fn forged(from: &Endpoint, to: &Endpoint, bytes: Bytes) -> wallaby::Call<One<u64>> {
    let arguments = <Postcard as Codec<(u64,)>>::encode(&(0,)).expect("it encodes");
    let target: Target<One<u64>> = Target::raw(Arc::clone(ledger::ADD.definition()), arguments);
    Client::new(from, at(to)).call_target(target.with_body(Body::from(bytes)))
}

async fn bytes_that_are_no_items_are_errors(net: Net) {
    let (server, mut ends) = adding(&net).await;
    let client = client();
    let first = <Postcard as Codec<Entry>>::encode(&entry(0)).expect("it encodes");
    let behind = |rest: &[u8]| [&[first.len() as u8], &first[..], rest].concat();
    for (bytes, expected) in [
        (
            behind(&[9, 0, 0]),
            "should have 9 bytes: the stream ends after 2",
        ),
        (behind(&[0x80]), "the bytes end inside it"),
        (behind(&[0x80, 0]), "a varint that is not the shortest"),
        (behind(&[1, 0]), "it cannot be decoded: postcard"),
        (
            behind(&[3, 0, 0, 0]),
            "it cannot be decoded: postcard: 1 bytes after the value",
        ),
    ] {
        let refused = status(forged(&client, &server, bytes.into()).await);
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        let error = ends.recv().await.expect("an end").expect_err("an error");
        check_place(&error, 1, &client);
        assert!(error.to_string().contains(expected), "{error}");
        assert!(refused.message().contains(expected), "{refused}");
    }
    assert_eq!(server.metrics().panics, 0);
}

async fn a_stream_that_failed_does_not_look_whole_to_the_next_reader(net: Net) {
    let (last, mut ends) = adding(&net).await;
    let to = at(&last);
    let careless = move |request: Request<One<u64>>, (from,), mut entries: Streaming<Entry>| {
        let to = to.clone();
        async move {
            while let Some(Ok(_)) = entries.next().await {}
            Ok::<_, Status>(request.forward(to, ledger::add(from, entries)).await?)
        }
    };
    let first = net
        .serve(service().streaming_method(&ledger::ADD, careless))
        .await;
    let client = client();
    let refused = status(forged(&client, &first, Bytes::from_static(&[9, 0])).await);
    assert!(
        refused.message().contains("the stream ends after 1"),
        "{refused}"
    );
    let error = ends.recv().await.expect("an end").expect_err("an error");
    assert_eq!((error.item(), error.peer()), (0, Some(first.node())));
}

/// As other arguments are.
async fn other_streams_are_another_signature(net: Net) {
    static OTHER: Method<(u64,), One<u64>, Postcard, Streaming<u64>> =
        Method::new("test.Ledger/add");
    static BYTES: Method<(u64,), One<u64>, Postcard, Body> = Method::new("test.Ledger/add");
    static PLAIN: Method<(u64,), One<u64>> = Method::new("test.Ledger/add");
    let (server, _ends) = adding(&net).await;
    let client = client();
    let to = Client::new(&client, at(&server));
    let (send, values) = piped::<u64>();
    let others = [
        OTHER.target((0,), values),
        BYTES.target((0,), Bytes::from_static(b"bytes")),
        PLAIN.target((0,)),
    ];
    for target in others {
        let refused = status(to.call_target(target).await);
        assert_eq!(refused.code(), Code::Mismatch, "{refused}");
        assert!(refused.message().contains("arguments"), "{refused}");
        assert_eq!(refused.server(), server.address());
    }
    send.closed().await;
}

async fn a_stream_that_is_missing_is_a_status(net: Net) {
    let (server, _ends) = adding(&net).await;
    let client = client();
    let arguments = <Postcard as Codec<(u64,)>>::encode(&(0,)).expect("it encodes");
    let call = Client::new(&client, at(&server)).call_target(Target::<One<u64>>::raw(
        Arc::clone(ledger::ADD.definition()),
        arguments,
    ));
    let refused = status(call.await);
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("none follows this one"),
        "{refused}"
    );
}

/// Each form of a handler, under the macro.
struct Blocking {
    next: Option<Address>,
}

#[wallaby::serve]
impl Ledger for Blocking {
    fn add(&self, from: u64, mut entries: Streaming<Entry>) -> Result<u64, Status> {
        let mut sum = from;
        while let Some(item) = entries.blocking_next() {
            sum += item?.id;
        }
        Ok(sum)
    }

    async fn echo(
        &self,
        request: Request<Many<Entry>>,
        entries: Streaming<Entry>,
    ) -> Result<(), Status> {
        match &self.next {
            Some(next) => request.forward(next, ledger::echo(entries)).await?,
            None => request.reply_all(entries).await?,
        }
        Ok(())
    }

    fn store(&self, request: Request<One<u64>>, mut content: Body) -> Result<(), Status> {
        let mut len = 0;
        while let Some(chunk) = content.blocking_next() {
            len += chunk?.len() as u64;
        }
        Ok(request.blocking_respond(len)?)
    }
}

async fn a_handler_may_block(net: Net) {
    let last = net.serve(ledger::service(Blocking { next: None })).await;
    let next = Some(at(&last));
    let first = net.serve(ledger::service(Blocking { next })).await;
    let client = client();
    let ledger = ledger::at(&client, at(&first));
    let added = ledger.add(1, items((0..1000).map(entry))).await;
    assert_eq!(added, Ok(1 + (0..1000).sum::<u64>()));
    let echoed = ledger
        .clone()
        .in_order()
        .echo(items((0..1000).map(entry)))
        .collect()
        .await;
    assert!(
        echoed
            .expect("no status")
            .into_iter()
            .eq((0..1000).map(entry))
    );
    let stored = ledger.store(Body::from_read(&[1; 100_000][..])).await;
    assert_eq!(stored, Ok(100_000));
    assert_eq!(ledger.store(Bytes::from_static(b"bytes")).await, Ok(5));
}

#[tokio::test]
async fn a_blocking_read_does_not_stop_a_runtime() {
    let (send, values) = piped::<Entry>();
    let mut entries: Streaming<Entry> = values.into_streaming();
    let error = entries.blocking_next().expect("an error");
    let error = error.expect_err("an error");
    assert_eq!(error.kind(), &StreamErrorKind::WouldBlock);
    assert_eq!(
        (error.method(), error.peer(), error.server()),
        (None, None, None)
    );
    // It has not become part of the stream.
    send.send(entry(1)).expect("it is there");
    assert_eq!(entries.next().await, Some(Ok(entry(1))));
    let mut body = Body::from(Bytes::from_static(b"bytes"));
    assert_eq!(body.blocking_next(), Some(Err(BodyError::WouldBlock)));
}

#[tokio::test]
async fn the_codec_of_the_service_is_that_of_its_items() {
    let net = Net::tcp();
    let handler = |request: Request<One<Bytes>, Raw>, (), mut blobs: Streaming<Bytes, Raw>| async move {
        let mut all = Vec::new();
        while let Some(blob) = blobs.next().await {
            all.extend_from_slice(&blob?);
        }
        Ok::<_, Status>(request.respond(Bytes::from(all)).await?)
    };
    let server = net
        .serve(service().streaming_method(&blobs::JOIN, handler))
        .await;
    let client = client();
    let blobs = blobs::at(&client, at(&server));
    let words = ["one", "", "two"].map(Bytes::from);
    assert_eq!(blobs.join(items(words)).await, Ok("onetwo".into()));
}

/// Each server of a line reads all of it.
async fn a_stream_goes_down_a_line(net: Net) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(adding(&net).await.0);
    }
    let client = client();
    let target = ledger::add(1, items((0..5000).map(entry)));
    let mut line = client.caller().pipeline(servers.iter().map(at), target);
    let mut answers = 0;
    while let Some(delivery) = line.next().await {
        assert_eq!(delivery.answer, Ok(1 + (0..5000).sum::<u64>()));
        answers += 1;
    }
    assert_eq!(answers, 3);
}

async fn a_trace_shows_every_hop(net: Net) {
    let (last, _ends) = adding(&net).await;
    let middle = net.serve(passing(at(&last), 0)).await;
    let first = net.serve(passing(at(&middle), 1)).await;
    let client = client();
    let mut call = ledger::at(&client, at(&first))
        .traced()
        .add(0, items((0..100).map(entry)));
    assert_eq!(call.answer().await, Ok((0..100).sum()));
    let trace = call.trace();
    assert_eq!(trace.hops.len(), 3);
    for (hop, server) in trace.hops.iter().zip([&first, &middle, &last]) {
        assert_eq!(hop.server.as_ref(), server.address());
        assert_eq!(hop.method.as_deref(), Some("test.Ledger/add"));
        assert!(hop.timing.is_some(), "{hop:?}");
    }
    let drawn = trace.to_string();
    assert_eq!(drawn.matches("Ledger/add").count(), 3, "{drawn}");
}

/// Items that are there now and then.
struct Halting {
    items: std::vec::IntoIter<Vec<u8>>,
    random: Rng,
}

impl Stream for Halting {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        if self.random.u8(..3) == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.items.next())
    }
}

/// Over connections that cut the bytes anywhere, through servers that read some of them.
async fn random_items_arrive_as_they_were_sent(net: Net) {
    let seed = match std::env::var("WALLABY_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("to repeat: WALLABY_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let narrow = |random: &mut Rng| {
        let mut limits = Limits::default();
        limits.call = 1000 + random.u64(..20_000);
        limits.parts = 1000 + random.u64(..20_000);
        Endpoint::builder().limits(limits)
    };
    let last = |request: Request<Many<Vec<u8>>>, (_,): (u64,), items: Streaming<Vec<u8>>| async move {
        Ok::<_, Status>(request.reply_all(items).await?)
    };
    let last = service().streaming_method(&mirror::BACK, last);
    let last = net.bind(narrow(&mut random).serve(last)).await;
    let to = at(&last);
    let first =
        move |request: Request<Many<Vec<u8>>>, (read,): (u64,), mut items: Streaming<Vec<u8>>| {
            let to = to.clone();
            async move {
                for _ in 0..read {
                    match items.next().await {
                        Some(item) => request.reply(item?).await?,
                        None => break,
                    }
                }
                Ok::<_, Status>(request.forward(to, mirror::back(0, items)).await?)
            }
        };
    let first = service().streaming_method(&mirror::BACK, first);
    let first = net.bind(narrow(&mut random).serve(first)).await;
    let client = narrow(&mut random)
        .bind()
        .await
        .expect("there is a runtime");
    for _ in 0..5 {
        let mut sent = Vec::new();
        for index in 0..random.u64(..60) {
            let most = [1, 10, 200, 10_000, 60_000][random.usize(..5)];
            let len = random.usize(..most);
            sent.push(
                (0..len)
                    .map(|place| (place as u64 ^ index) as u8)
                    .collect::<Vec<_>>(),
            );
        }
        let items = Halting {
            items: sent.clone().into_iter(),
            random: random.fork(),
        };
        let read = random.u64(..20);
        let call = Client::new(&client, at(&first))
            .in_order()
            .call_target(mirror::back(read, items));
        let echoed = call.collect().await;
        assert!(
            echoed.expect("no status") == sent,
            "seed {seed}, {read} read"
        );
    }
}

#[tokio::test]
async fn over_datagrams_there_are_none() {
    let net = Net::udp();
    let (server, _ends) = adding(&net).await;
    let client = client();
    let (send, entries) = piped();
    send.send(entry(1)).expect("it is there");
    let call = ledger::at(&client, at(&server)).add(0, entries);
    let Failure::Refused { reason, .. } = failure(call.await) else {
        panic!("it is refused");
    };
    assert!(reason.contains("over udp:"), "{reason}");
    send.closed().await;
}

/// The executor's queue is no place where a stream is forgotten.
#[tokio::test]
async fn a_stream_of_a_request_that_waits_ends_with_its_call() {
    let net = Net::tcp();
    let gate = Gate::new();
    let opened = gate.clone();
    let handler = move |request: Request<One<u64>>, (from,), entries| {
        let gate = opened.clone();
        async move {
            gate.pass().await;
            Ok::<_, Status>(request.respond(sum(from, entries).await?).await?)
        }
    };
    let one = ExecutorConfig {
        concurrency: 1,
        ..ExecutorConfig::default()
    };
    let server = Endpoint::builder()
        .executor(one)
        .serve(service().streaming_method(&ledger::ADD, handler));
    let server = net.bind(server).await;
    let client = client();
    let ledger = ledger::at(&client, at(&server));
    let first = ledger.add(0, items((0..3).map(entry)));
    until(|| server.load().running == 1).await;
    let (send, entries) = piped();
    send.send(entry(1)).expect("it is there");
    let second = ledger.add(0, entries);
    until(|| server.load() == load(1, 1)).await;
    drop(second);
    send.closed().await;
    gate.open(1);
    assert_eq!(first.await, Ok(3));
}
