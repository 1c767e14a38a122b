//! Bodies and streams of items behind requests, between polling endpoints and with endpoints on tokio, over real sockets and shared
//! memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use wallaby::codec::Postcard;
use wallaby::polling::{self, BodyWriter, CallOptions, Event, RequestKey, Wait, WriteError};
use wallaby::{
    Address, Body, BodyError, CallError, CallInterceptor, Code, Failure, One, Outgoing, Service,
    Status, Streaming,
};

use super::proxy::Path;

#[wallaby::service(package = "test.polling")]
trait Files {
    /// Adds up what comes.
    async fn sum(from: u64, values: Streaming<u64>) -> u64;
    /// Answers how many bytes came.
    async fn store(content: Body) -> u64;
}

/// Over what bodies travel.
fn places() -> [String; 3] {
    [
        "tcp://127.0.0.1:0".into(),
        Path::new().text(), // who listens there removes it
        Path::new().shared(),
    ]
}

/// More than is under way at a time.
const LONG: usize = 5 << 20;

/// The beginning of always the same bytes.
fn pattern(len: usize) -> Bytes {
    static PATTERN: LazyLock<Bytes> =
        LazyLock::new(|| (0..LONG).map(|place| (place / 7) as u8).collect());
    PATTERN.slice(..len)
}

/// What is read of requests that are put aside.
enum Reading {
    Sum(u64, Streaming<u64>),
    Store(usize, Body),
}

impl Reading {
    /// Reads what is there; the answer, when it is whole.
    fn read(&mut self) -> Poll<Result<u64, Status>> {
        loop {
            let next = match self {
                Self::Sum(sum, values) => values.try_next().map(|next| {
                    let next = next.map(|value| value.map_err(Status::from));
                    next.map_or(Some(Ok(*sum)), |value| match value {
                        Ok(value) => {
                            *sum += value;
                            None
                        }
                        Err(status) => Some(Err(status)),
                    })
                }),
                Self::Store(len, content) => content.try_next().map(|next| {
                    let next = next.map(|chunk| chunk.map_err(Status::from));
                    next.map_or(Some(Ok(*len as u64)), |chunk| match chunk {
                        Ok(chunk) => {
                            assert!(chunk == pattern(LONG)[*len..*len + chunk.len()]);
                            *len += chunk.len();
                            None
                        }
                        Err(status) => Some(Err(status)),
                    })
                }),
            };
            match next {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {}
                Poll::Ready(Some(answer)) => return Poll::Ready(answer),
            }
        }
    }
}

type Readings = Rc<RefCell<BTreeMap<RequestKey, Reading>>>;

/// Serves both methods: what has not come when a handler runs is read later.
fn serve(endpoint: &mut polling::Endpoint) -> Readings {
    fn handle(
        request: polling::Request<'_, One<u64>>,
        mut reading: Reading,
        readings: &Readings,
    ) -> Result<(), Status> {
        match reading.read() {
            Poll::Ready(answer) => request.respond(&answer?)?,
            Poll::Pending => drop(readings.borrow_mut().insert(request.hold(), reading)),
        }
        Ok(())
    }
    let readings = Readings::default();
    let later = readings.clone();
    let served = endpoint.serve_streaming(&files::SUM, move |request, (from,), values| {
        handle(request, Reading::Sum(from, values), &later)
    });
    served.expect("no other has its name");
    let later = readings.clone();
    let served = endpoint.serve_streaming(&files::STORE, move |request, (), content| {
        handle(request, Reading::Store(0, content), &later)
    });
    served.expect("no other has its name");
    readings
}

/// Reads on where an event says that there is more.
fn follow(endpoint: &mut polling::Endpoint, readings: &Readings) {
    while let Some(event) = endpoint.next_event() {
        let Event::Body { request } = event else {
            continue; // that a request was stopped is seen in its body, too
        };
        let mut readings = readings.borrow_mut();
        let answer = readings.get_mut(&request).map(Reading::read);
        let Some(Poll::Ready(answer)) = answer else {
            continue;
        };
        readings.remove(&request);
        if let Some(request) = endpoint.request(request) {
            let request = request.typed(&files::STORE); // both answer a number
            match answer {
                Ok(answer) => request.respond(&answer).expect("it is sent"),
                Err(status) => request.fail(&status),
            }
        }
    }
}

/// A polling server on a thread of its own, until it is dropped.
struct Server {
    address: Address,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// It reads itself, or hands all requests on.
    fn start(at: String, next: Option<Address>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut endpoint = polling::Endpoint::bind(&at).expect("a socket");
            let readings = match next {
                None => serve(&mut endpoint),
                Some(next) => {
                    pass_on(&mut endpoint, next);
                    Readings::default()
                }
            };
            tell.send(endpoint.address()).expect("somebody waits");
            while !ends.load(Ordering::Relaxed) {
                let wait = Wait::For(Duration::from_millis(20));
                endpoint.turn(wait).expect("the socket lives");
                follow(&mut endpoint, &readings);
            }
        });
        Self {
            address: told.recv().expect("it starts"),
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            matches!(ended, Some(Ok(()))),
            "the server's thread panicked"
        );
    }
}

/// All requests go to another server as they come, with what follows them.
fn pass_on(endpoint: &mut polling::Endpoint, next: Address) {
    let served =
        endpoint.serve_rest(move |request, payload| Ok(request.pass_on(next.clone(), payload)?));
    served.expect("no other has its name");
}

/// A server on tokio, which reads once it may.
async fn tokio_server(at: &str, may: Arc<Notify>) -> wallaby::Endpoint {
    let (first, second) = (Arc::clone(&may), may);
    let service = Service::new("test")
        .streaming_method(
            &files::SUM,
            move |request: wallaby::Request<One<u64>>,
                  (from,): (u64,),
                  mut values: Streaming<u64>| {
                let may = Arc::clone(&first);
                async move {
                    may.notified().await;
                    let mut sum = from;
                    while let Some(value) = values.next().await {
                        sum += value?;
                    }
                    Ok(request.respond(sum).await?)
                }
            },
        )
        .streaming_method(
            &files::STORE,
            move |request: wallaby::Request<One<u64>>, (): (), mut content: Body| {
                let may = Arc::clone(&second);
                async move {
                    may.notified().await;
                    let mut len = 0;
                    while let Some(chunk) = content.next().await {
                        let chunk = chunk?;
                        assert!(chunk == pattern(LONG)[len..len + chunk.len()]);
                        len += chunk.len();
                    }
                    Ok(request.respond(len as u64).await?)
                }
            },
        );
    let builder = wallaby::Endpoint::builder().listen(at).serve(service);
    builder.bind().await.expect("a socket")
}

fn at(endpoint: &wallaby::Endpoint) -> Address {
    endpoint.address().expect("it listens").clone()
}

async fn patience<T>(test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, test)
        .await
        .expect("the test hangs")
}

fn runtime() -> tokio::runtime::Runtime {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
}

/// An initiator on tokio; a polling server reads, at once or behind others that pass the bytes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polling_server_reads_what_an_initiator_on_tokio_writes() {
    patience(async {
        for place in places() {
            let client = wallaby::Endpoint::client().expect("there is a runtime");
            let reader = Server::start(place, None);
            let next = reader.address.clone();
            let passer = Server::start("tcp://127.0.0.1:0".into(), Some(next));
            for server in [&reader, &passer] {
                let files = files::at(&client, server.address.clone());
                let sum = files.sum(7, wallaby::items(1..=200_000)).await;
                assert_eq!(sum.expect("an answer"), 7 + 200_000 * 200_001 / 2);
                let nothing = files.sum(7, wallaby::items(Vec::<u64>::new())).await;
                assert_eq!(nothing.expect("an answer"), 7);
                let stored = files.store(Body::from(pattern(LONG))).await;
                assert_eq!(stored.expect("an answer"), LONG as u64);
            }
        }
    })
    .await;
}

/// Writes all of it when there is room, turning meanwhile, until the call has an answer.
fn write_all(
    client: &mut polling::Endpoint,
    call: polling::Call<One<u64>, Postcard>,
    mut writer: BodyWriter,
    mut bytes: Bytes,
) -> Result<u64, CallError> {
    let key = writer.key();
    let mut may_write = true;
    loop {
        while may_write && !bytes.is_empty() {
            may_write = match writer.write(&mut bytes) {
                Ok(()) => true,
                Err(WriteError::Full) => false,
                Err(_) => panic!("it is wanted"),
            };
        }
        if bytes.is_empty() {
            break writer.end();
        }
        client.turn(Wait::Forever).expect("the sockets live");
        while let Some(event) = client.next_event() {
            assert_eq!(event, Event::BodyRoom { body: key });
            may_write = true;
        }
    }
    loop {
        client.turn(Wait::Forever).expect("the sockets live");
        match client.next_event() {
            Some(Event::Answer(answer)) => return call.read(answer),
            Some(Event::Failed { failure, .. }) => return Err((*failure).into()),
            Some(Event::BodyRoom { .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// A polling initiator; a server on tokio reads, at once or behind a polling one.
#[test]
fn a_server_on_tokio_reads_what_a_polling_initiator_writes() {
    let runtime = runtime();
    for place in places() {
        let may = Arc::new(Notify::new());
        let reader = runtime.block_on(tokio_server(&place, Arc::clone(&may)));
        let passer = Server::start("tcp://127.0.0.1:0".into(), Some(at(&reader)));
        for server in [at(&reader), passer.address.clone()] {
            let mut client = polling::Endpoint::bind("tcp://127.0.0.1:0").expect("a socket");
            let options = CallOptions::default();
            may.notify_one();
            let target = files::sum(7, wallaby::items(1..=200_000));
            let sum = client.ask(server.clone(), target, &options, Wait::Forever);
            assert_eq!(sum.expect("an answer"), 7 + 200_000 * 200_001 / 2);
            may.notify_one();
            let (writer, body) = client.body_writer();
            let sent = client.call(server, files::store(body), &options);
            let call = sent.expect("it is sent");
            let stored = write_all(&mut client, call, writer, pattern(LONG));
            assert_eq!(stored.expect("an answer"), LONG as u64);
        }
    }
}

/// Nothing is read before the writer could not go on: until then little more than the window has left.
#[test]
fn a_slow_reader_on_tokio_holds_a_polling_writer_back() {
    let runtime = runtime();
    for place in places() {
        let may = Arc::new(Notify::new());
        let server = runtime.block_on(tokio_server(&place, Arc::clone(&may)));
        let mut client = polling::Endpoint::bind("tcp://127.0.0.1:0").expect("a socket");
        let (mut writer, body) = client.body_writer();
        let options = CallOptions::default();
        let sent = client.call(at(&server), files::store(body), &options);
        let call = sent.expect("it is sent");
        let mut left = pattern(LONG);
        let window = 1 << 20;
        let mut full = 0;
        while full < 50 {
            assert!(!left.is_empty(), "nothing holds it back");
            match writer.write(&mut left) {
                Ok(()) => {}
                Err(WriteError::Full) if LONG - left.len() >= window => full += 1,
                Err(WriteError::Full) => {}
                Err(_) => panic!("it is wanted"),
            }
            let wait = Wait::For(Duration::from_millis(1));
            client.turn(wait).expect("the sockets live");
            while client.next_event().is_some() {}
        }
        let written = LONG - left.len();
        assert!(written < 2 * window, "{written}");
        may.notify_one();
        let stored = write_all(&mut client, call, writer, left);
        assert_eq!(stored.expect("an answer"), LONG as u64);
    }
}

/// The same the other way round: a polling handler puts the body aside, unread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_polling_reader_holds_a_writer_on_tokio_back() {
    patience(async {
        for place in places() {
            let (tell, told) = mpsc::channel();
            let thread = thread::spawn(move || {
                let mut server = polling::Endpoint::bind(&place).expect("a socket");
                let aside = Rc::new(RefCell::new(None));
                let keep = aside.clone();
                let served =
                    server.serve_streaming(&files::STORE, move |request, (), content: Body| {
                        *keep.borrow_mut() = Some((request.hold(), content));
                        Ok(())
                    });
                served.expect("no other has its name");
                tell.send(server.address()).expect("somebody waits");
                let turn = |server: &mut polling::Endpoint| {
                    let wait = Wait::For(Duration::from_millis(5));
                    server.turn(wait).expect("the socket lives");
                    server.metrics().bytes_received
                };
                // Until nothing more has come for a while.
                let (window, mut came, mut quiet) = (1 << 20, 0, 0);
                while came < window || quiet < 20 {
                    let now = turn(&mut server);
                    quiet = if now > came { 0 } else { quiet + 1 };
                    came = now;
                    while server.next_event().is_some() {}
                }
                assert!(came < 2 * window, "{came}");
                let (request, content) = aside.borrow_mut().take().expect("it has come");
                let readings = Readings::default();
                let mut reading = Reading::Store(0, content);
                assert!(reading.read().is_pending());
                readings.borrow_mut().insert(request, reading);
                while server.sizes().requests > 0 {
                    turn(&mut server);
                    follow(&mut server, &readings);
                }
                turn(&mut server);
            });
            let server: Address = told.recv().expect("it starts");
            let client = wallaby::Endpoint::client().expect("there is a runtime");
            let body = Body::from(pattern(LONG));
            let stored = files::at(&client, server).store(body).await;
            assert_eq!(stored.expect("an answer"), LONG as u64);
            thread.join().expect("no panic");
        }
    })
    .await;
}

/// Two polling endpoints on this thread, and what the second one reads: a body of which some has come.
struct Cut {
    client: polling::Endpoint,
    server: polling::Endpoint,
    call: polling::CallKey,
    writer: BodyWriter,
    body: Body,
}

impl Cut {
    fn new() -> Self {
        let mut server = polling::Endpoint::bind("tcp://127.0.0.1:0").expect("a socket");
        let aside = Rc::new(RefCell::new(None));
        let keep = aside.clone();
        let served = server.serve_streaming(&files::STORE, move |request, (), content: Body| {
            request.hold();
            *keep.borrow_mut() = Some(content);
            Ok(())
        });
        served.expect("no other has its name");
        let mut client = polling::Endpoint::bind("tcp://127.0.0.1:0").expect("a socket");
        let (mut writer, body) = client.body_writer();
        let options = CallOptions::default();
        let call = client.call(server.address(), files::store(body), &options);
        let call = call.expect("it is sent").key();
        let mut some = pattern(1000);
        writer.write(&mut some).expect("there is room");
        let mut body = loop {
            for endpoint in [&mut client, &mut server] {
                endpoint.turn(Wait::Not).expect("the sockets live");
            }
            if let Some(body) = aside.borrow_mut().take() {
                break body;
            }
        };
        let mut came = 0;
        while came < 1000 {
            match body.try_next() {
                Poll::Ready(Some(chunk)) => came += chunk.expect("some").len(),
                Poll::Ready(None) => panic!("it is not whole"),
                Poll::Pending => {
                    client.turn(Wait::Not).expect("the sockets live");
                    server.turn(Wait::Not).expect("the sockets live");
                }
            }
        }
        assert!(body.try_next().is_pending());
        Self {
            client,
            server,
            call,
            writer,
            body,
        }
    }
}

/// The event, and how the body ends then.
fn end(server: &mut polling::Endpoint, body: &mut Body, mut turn: impl FnMut()) -> BodyError {
    loop {
        turn();
        server.turn(Wait::Not).expect("the sockets live");
        while let Some(event) = server.next_event() {
            if let Event::Body { .. } = event {
                let end = body.try_next();
                let Poll::Ready(Some(Err(error))) = end else {
                    panic!("{end:?}")
                };
                assert_eq!(body.try_next(), Poll::Ready(None), "it is told once");
                return error;
            }
        }
    }
}

#[test]
fn a_body_that_is_cut_ends_in_an_error() {
    let broken = |why: &str| BodyError::Broken(why.into());
    // Its writer is dropped, or says why it cannot go on.
    for (how, why) in [
        (None, "its writer was dropped"),
        (Some("no disk"), "cannot read the body: no disk"),
    ] {
        let Cut {
            mut client,
            mut server,
            writer,
            mut body,
            ..
        } = Cut::new();
        match how {
            None => drop(writer),
            Some(how) => writer.fail(how),
        }
        let turn = || client.turn(Wait::Not).expect("the sockets live");
        assert_eq!(end(&mut server, &mut body, turn), broken(why));
    }
    // Its call is given up.
    let mut cut = Cut::new();
    cut.client.abort(cut.call);
    let turn = || cut.client.turn(Wait::Not).expect("the sockets live");
    let error = end(&mut cut.server, &mut cut.body, turn);
    assert_eq!(error, broken("its call has ended"));
    assert!(!cut.writer.is_wanted());
    // Its initiator dies.
    let mut cut = Cut::new();
    cut.client.kill();
    let error = end(&mut cut.server, &mut cut.body, || ());
    assert!(matches!(error, BodyError::Lost(_)), "{error}");
    // The reader's own endpoint is gone.
    let mut cut = Cut::new();
    drop(cut.server);
    let end = cut.body.try_next();
    assert!(matches!(end, Poll::Ready(Some(Err(_)))), "{end:?}");
}

#[test]
fn who_drops_a_body_stops_its_writer() {
    let Cut {
        mut client,
        mut server,
        mut writer,
        body,
        ..
    } = Cut::new();
    drop(body);
    let told = loop {
        for endpoint in [&mut server, &mut client] {
            endpoint.turn(Wait::Not).expect("the sockets live");
        }
        if let Some(event) = client.next_event() {
            break event;
        }
    };
    assert_eq!(told, Event::BodyRoom { body: writer.key() });
    let refused = writer.write(&mut pattern(1));
    assert_eq!(refused, Err(WriteError::Stopped));
    assert_eq!((client.sizes().bodies, server.sizes().bodies), (0, 0));
}

/// The source of the items fails: the reader learns at which item, of which method.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_fails_says_at_which_item() {
    patience(async {
        let reader = Server::start("tcp://127.0.0.1:0".into(), None);
        let client = wallaby::Endpoint::client().expect("there is a runtime");
        let values = [Ok(1), Ok(2), Err("no more")];
        let files = files::at(&client, reader.address.clone());
        let failed = files.sum(0, wallaby::items(values)).await;
        let Err(CallError::Status(status)) = failed else {
            panic!("{failed:?}")
        };
        let said = status.message();
        assert!(
            said.starts_with("item 2 of the stream of test.polling.Files/sum"),
            "{said}"
        );
        assert!(said.contains("no more"), "{said}");
    })
    .await;
}

struct NoBodies;

impl CallInterceptor for NoBodies {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        match outgoing.has_body() {
            true => Err(Status::new(Code::PermissionDenied, "no bodies")),
            false => Ok(()),
        }
    }
}

#[test]
fn an_interceptor_sees_that_a_body_follows() {
    let server = Server::start("tcp://127.0.0.1:0".into(), None);
    let builder = polling::Endpoint::builder().call_interceptor(NoBodies);
    let mut client = builder.bind("tcp://127.0.0.1:0").expect("a client");
    let (options, body) = (CallOptions::default(), Body::from(pattern(10)));
    let sent = client.call(server.address.clone(), files::store(body), &options);
    assert!(matches!(sent, Err(Failure::Intercepted { .. })), "{sent:?}");
    let method = files::STORE.definition();
    let call = client.begin(&options).expect("room");
    let sent = client.send(call, server.address.clone(), method, Bytes::new());
    assert!(sent.is_ok(), "{sent:?}");
}

#[test]
fn over_datagrams_a_call_with_a_body_fails() {
    let mut server = polling::Endpoint::bind("udp://127.0.0.1:0").expect("a socket");
    let _readings = serve(&mut server);
    let mut client = polling::Endpoint::bind("udp://127.0.0.1:0").expect("a socket");
    let options = CallOptions::default();
    let body = Body::from(pattern(10));
    let sent = client.call(server.address(), files::store(body), &options);
    sent.expect("it waits for a session");
    let failure = loop {
        for endpoint in [&mut client, &mut server] {
            endpoint.turn(Wait::Not).expect("the sockets live");
        }
        match client.next_event() {
            Some(Event::Failed { failure, .. }) => break failure,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    };
    let Failure::Refused { reason, .. } = &*failure else {
        panic!("{failure}")
    };
    assert!(reason.contains("over udp:"), "{reason}");
    assert_eq!(client.sizes().bodies, 0);
}
