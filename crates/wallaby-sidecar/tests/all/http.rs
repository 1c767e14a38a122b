//! Servers of HTTP behind a sidecar.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use wallaby::{CallError, Client, Code, Endpoint, Health};
use wallaby_chain::{Chains, pipe};
use wallaby_sidecar::http::{Answered, Asked, code, number};

use crate::world::{Program, Raw, World, answer, message, soon};

#[wallaby::service(package = "http")]
trait Files {
    async fn get(path: String) -> Vec<u8>;
    async fn put(path: String, body: Vec<u8>) -> Vec<u8>;
    async fn post(path: String, body: Vec<u8>) -> Vec<u8>;
    async fn delete(path: String) -> Vec<u8>;
    async fn send(asked: Asked) -> Answered;
}

#[wallaby::service(package = "test")]
trait Count {
    async fn words(text: Vec<u8>) -> u64;
}

struct Counter;

#[wallaby::serve]
impl Count for Counter {
    async fn words(&self, text: Vec<u8>) -> u64 {
        String::from_utf8_lossy(&text).split_whitespace().count() as u64
    }
}

/// A sidecar before the server at this port.
async fn before(port: u16, more: &str) -> World {
    World::new(&format!(
        "[[http]]\nname = \"Files\"\nserver = \"http://127.0.0.1:{port}\"\n{more}\n"
    ))
    .await
}

fn files(world: &World) -> files::Client {
    files::at(&world.client, world.at())
}

fn get(path: &str) -> Asked {
    Asked {
        method: "GET".into(),
        path: path.into(),
        ..Asked::default()
    }
}

#[tokio::test]
async fn pythons_server_is_a_link_of_a_chain_and_may_be_killed_and_come_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("song.txt"), "hop and hop again").unwrap();
    let (python, port) = Program::python(folder.path(), 0).await;
    let world = before(port, "health = \"/\"").await;
    let counter = Endpoint::builder().serve(count::service(Counter));
    let counter = Chains::new().add_to(counter).listen("tcp://127.0.0.1:0");
    let counter = counter.bind().await.unwrap();
    let count = async || {
        let chain = pipe(world.at(), &files::GET, ("/song.txt".into(),));
        let chain = chain.then(counter.address().unwrap(), &count::WORDS);
        chain.call(world.client.caller()).unwrap().await
    };
    let files = files(&world);
    world.until("http.Files", Health::Serving).await;
    assert_eq!(
        soon(files.get("/song.txt".into())).await.unwrap(),
        b"hop and hop again"
    );
    assert_eq!(soon(count()).await.unwrap(), 4);
    let answered = soon(files.send(get("/song.txt"))).await.unwrap();
    assert_eq!(
        (answered.status, &*answered.body),
        (200, &b"hop and hop again"[..])
    );
    let has = |name: &str, value: &str| {
        let is = |pair: &(String, String)| (pair.0.as_str(), pair.1.as_str()) == (name, value);
        answered.headers.iter().any(is)
    };
    assert!(has("content-type", "text/plain"), "{answered:?}");
    let missing = soon(files.get("/nothing".into())).await.unwrap_err();
    let status = missing.status().unwrap();
    assert_eq!((status.code(), number(status)), (Code::NotFound, Some(404)));
    assert_eq!(status.message(), "HTTP 404 File not found");
    let refused = soon(files.put("/song.txt".into(), vec![1]))
        .await
        .unwrap_err();
    assert_eq!(number(refused.status().unwrap()), Some(501));

    python.kill().await;
    let gone = soon(files.get("/song.txt".into())).await.unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    assert!(message(soon(count()).await).contains("cannot be reached"));
    world.until("http.Files", Health::NotServing).await;
    let (_python, _) = Program::python(folder.path(), port).await;
    world.until("http.Files", Health::Serving).await;
    assert_eq!(soon(count()).await.unwrap(), 4);
}

/// A server that speaks nothing but HTTP/2, and says what it was asked.
struct H2 {
    serving: JoinHandle<()>,
    port: u16,
    /// So many requests hang.
    hanging: Arc<Semaphore>,
}

impl H2 {
    async fn new(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hanging = Arc::new(Semaphore::new(0));
        let hung = Arc::clone(&hanging);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let hung = Arc::clone(&hung);
                let says = service_fn(move |request| says(request, Arc::clone(&hung)));
                let server = http2::Builder::new(TokioExecutor::new());
                connections.spawn(server.serve_connection(TokioIo::new(stream), says));
            }
        });
        Self {
            serving,
            port,
            hanging,
        }
    }

    /// It is gone with all of its connections.
    async fn kill(self) {
        self.serving.abort();
        self.serving.await.unwrap_err();
    }
}

async fn says(
    request: Request<Incoming>,
    hanging: Arc<Semaphore>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let (version, method, path) = (head.version, head.method, head.uri.path());
    if path == "/hang" {
        hanging.add_permits(1);
        pending::<()>().await;
    }
    let length = body.collect().await.unwrap().to_bytes().len();
    let said = format!("{version:?} {method} {path} {length}");
    Ok(Response::new(Full::new(said.into())))
}

#[tokio::test]
async fn a_server_of_http_2_is_a_link_of_a_chain_and_may_be_killed_and_come_again() {
    let h2 = H2::new(0).await;
    let port = h2.port;
    let world = before(port, "h2 = true\nhealth = \"/\"").await;
    let counter = Endpoint::builder().serve(count::service(Counter));
    let counter = Chains::new().add_to(counter).listen("tcp://127.0.0.1:0");
    let counter = counter.bind().await.unwrap();
    let count = async || {
        let chain = pipe(world.at(), &files::GET, ("/a".into(),));
        let chain = chain.then(counter.address().unwrap(), &count::WORDS);
        chain.call(world.client.caller()).unwrap().await
    };
    world.until("http.Files", Health::Serving).await;
    let asked = files(&world);
    let got = soon(asked.get("/a".into())).await.unwrap();
    assert_eq!(got, b"HTTP/2.0 GET /a 0");
    // More than the first window of a stream.
    let put = soon(asked.put("/b".into(), vec![7; 100_000])).await;
    assert_eq!(put.unwrap(), b"HTTP/2.0 PUT /b 100000");
    let answered = soon(asked.send(get("/c"))).await.unwrap();
    assert_eq!(answered.body, b"HTTP/2.0 GET /c 0");
    assert_eq!(soon(count()).await.unwrap(), 4);
    let older = before(port, "").await;
    let failed = soon(files(&older).get("/a".into())).await;
    failed.expect_err("it does not speak HTTP/1");

    let hangs = tokio::spawn(asked.get("/hang".into()).into_future());
    soon(h2.hanging.acquire()).await.unwrap().forget();
    h2.kill().await;
    let lost = soon(hangs).await.unwrap().unwrap_err();
    assert_eq!(lost.code(), Code::Unfinished, "{lost}");
    let gone = soon(asked.get("/a".into())).await.unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    assert!(message(soon(count()).await).contains("cannot be reached"));
    world.until("http.Files", Health::NotServing).await;
    let _h2 = H2::new(port).await;
    world.until("http.Files", Health::Serving).await;
    assert_eq!(soon(count()).await.unwrap(), 4);
}

#[tokio::test]
async fn what_a_request_says_leads_nowhere_else() {
    let raw = Raw::new(answer("200 OK", "", "yes"), true).await;
    let world = before(raw.at.port(), "paths = [\"/open/\"]").await;
    let files = files(&world);
    let check = async |asked: Asked, expected: Code, words: &str| {
        let failed = soon(files.send(asked.clone())).await.unwrap_err();
        assert_eq!(failed.code(), expected, "{asked:?}: {failed}");
        assert!(failed.to_string().contains(words), "{asked:?}: {failed}");
    };
    for (path, words) in [
        ("", "one slash"),
        ("open/a", "one slash"),
        ("//evil.example/open/", "one slash"),
        ("http://evil.example/open/", "one slash"),
        ("@evil.example/open/", "one slash"),
        ("/open/../secret", "leads elsewhere"),
        ("/open/..", "leads elsewhere"),
        ("/open/./a", "leads elsewhere"),
        ("/open/%2e%2E/secret", "leads elsewhere"),
        ("/open/.%2e/secret", "leads elsewhere"),
        ("/open/..%2fsecret", "leads elsewhere"),
        ("/open/..%5csecret", "leads elsewhere"),
        ("/open/..;a=b/secret", "leads elsewhere"),
        ("/open/a b", "characters"),
        ("/open/a\r\nHost: evil.example", "characters"),
        ("/open/a HTTP/1.1\r\n\r\nGET /", "characters"),
        ("/open/\u{e4}", "characters"),
        ("/open/a\\..\\b", "characters"),
        ("/open/a#b", "characters"),
        ("/open/%00", "control character"),
        ("/open/%0d%0aHost:", "control character"),
        ("/open/%", "two digits"),
        ("/open/%2", "two digits"),
        ("/open/%zz", "two digits"),
        ("/open/%+1", "two digits"),
    ] {
        check(get(path), Code::InvalidArgument, words).await;
    }
    check(
        get(&format!("/open/{}", "a".repeat(9000))),
        Code::InvalidArgument,
        "8192",
    )
    .await;
    check(get("/secret"), Code::PermissionDenied, "/open/").await;
    check(get("/Open/a"), Code::PermissionDenied, "/open/").await;
    check(get("/%6fpen/a"), Code::PermissionDenied, "/open/").await;
    for method in ["CONNECT", "TRACE", "", "GET /x", "GET\r\n"] {
        let asked = Asked {
            method: method.into(),
            ..get("/open/a")
        };
        check(asked, Code::InvalidArgument, "no method of HTTP").await;
    }
    let with = |name: &str, value: &str| Asked {
        headers: vec![(name.into(), value.into())],
        ..get("/open/a")
    };
    for name in [
        "host",
        "Host",
        "transfer-encoding",
        "content-length",
        "authorization",
        "x y",
        "",
    ] {
        check(with(name, "a"), Code::InvalidArgument, "gets no header").await;
    }
    check(
        with("accept", "a\r\nHost: evil"),
        Code::InvalidArgument,
        "no header can have",
    )
    .await;
    let many = Asked {
        headers: vec![("accept".into(), "a".into()); 101],
        ..get("/open/a")
    };
    check(many, Code::ResourceExhausted, "101 headers").await;
    assert_eq!(
        *raw.seen.lock().unwrap(),
        [""; 0],
        "nothing of that has left"
    );

    assert_eq!(
        soon(files.get("/open/a..b/c?d=../e".into())).await.unwrap(),
        b"yes"
    );
    let request = raw.only();
    assert!(
        request.starts_with("GET /open/a..b/c?d=../e HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("host: {}\r\n", raw.at)),
        "{request}"
    );
}

/// A server that does not expect one would take it for the next request.
#[tokio::test]
async fn a_request_that_has_no_body_gets_none() {
    let raw = Raw::new(answer("200 OK", "", "yes"), true).await;
    let world = before(raw.at.port(), "").await;
    let files = files(&world);
    for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
        let asked = Asked {
            method: method.into(),
            body: b"GET /secret HTTP/1.1\r\n\r\n".to_vec(),
            ..get("/")
        };
        let failed = soon(files.send(asked)).await.unwrap_err();
        assert_eq!(failed.code(), Code::InvalidArgument, "{failed}");
    }
    let long = Asked {
        method: "X".repeat(10_000),
        ..get("/")
    };
    let failed = soon(files.send(long)).await.unwrap_err().to_string();
    assert!(failed.len() < 400, "{failed}");
}

#[tokio::test]
async fn redirects_are_told_and_not_followed() {
    let other = Raw::new(answer("200 OK", "", "other"), true).await;
    let location = format!("location: http://{}/\r\n", other.at);
    let raw = Raw::new(answer("302 Found", &location, "moved"), true).await;
    let world = before(raw.at.port(), "").await;
    let files = files(&world);
    let told = message(soon(files.get("/".into())).await);
    assert_eq!(told, format!("HTTP 302 Found to http://{}/", other.at));
    let answered = soon(files.send(get("/"))).await.unwrap();
    assert_eq!((answered.status, &*answered.body), (302, &b"moved"[..]));
    assert_eq!(other.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn headers_and_credentials_pass_as_they_are_if_the_configuration_says_so() {
    let raw = Raw::new(answer("200 OK", "connection: x\r\nx-y: z\r\n", ""), true).await;
    let world = before(raw.at.port(), "headers = [\"authorization\", \"x-own\"]").await;
    let client = world
        .client()
        .metadata("authorization", "Bearer abc")
        .metadata("secret", "no");
    let asked = Asked {
        method: "POST".into(),
        path: "/form".into(),
        headers: vec![
            ("Content-Type".into(), "text/x".into()),
            ("X-Own".into(), "1".into()),
        ],
        body: b"a body".to_vec(),
    };
    let answered = soon(client.call(&files::SEND, (asked,))).await.unwrap();
    let names: Vec<&str> = answered
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["x-y"], "what is between two hosts stays there");
    let request = raw.only();
    assert!(request.starts_with("POST /form HTTP/1.1\r\n"), "{request}");
    for line in [
        "authorization: Bearer abc",
        "content-type: text/x",
        "x-own: 1",
        "content-length: 6",
    ] {
        assert!(request.contains(&format!("{line}\r\n")), "{request}");
    }
    assert!(request.ends_with("\r\n\r\na body"), "{request}");
    assert!(!request.contains("secret"), "{request}");
}

#[tokio::test]
async fn an_abort_and_a_deadline_reach_the_server() {
    let raw = Raw::new(answer("200 OK", "", ""), false).await;
    let world = before(raw.at.port(), "").await;
    let call = world.client().call(&files::GET, ("/slow".into(),));
    let waiting = tokio::spawn(call.into_future());
    soon(raw.arrived.acquire()).await.unwrap().forget();
    waiting.abort();
    soon(raw.given_up.acquire()).await.unwrap().forget();

    let hurried = world.client().deadline(Duration::from_millis(1500));
    let late = soon(hurried.call(&files::GET, ("/slow".into(),)))
        .await
        .unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    soon(raw.given_up.acquire()).await.unwrap().forget();
}

#[tokio::test]
async fn a_server_has_so_much_time_and_no_more() {
    let raw = Raw::new("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", false).await;
    let world = before(raw.at.port(), "limits = { timeout = \"200ms\" }").await;
    let told = soon(files(&world).get("/".into())).await.unwrap_err();
    assert_eq!(told.code(), Code::DeadlineExceeded);
    assert!(
        told.to_string()
            .contains("http.Files has not answered within 200ms"),
        "{told}"
    );
    raw.answers.add_permits(1);
    let world = before(raw.at.port(), "").await;
    let told = soon(files(&world).get("/".into())).await.unwrap_err();
    assert_eq!(told.code(), Code::Unfinished, "{told}");
}

#[tokio::test]
async fn a_thousand_requests_at_once_are_as_many_as_may_be_and_refusals() {
    const AT_ONCE: usize = 8;
    let raw = Raw::new(answer("200 OK", "", "done"), false).await;
    let world = before(
        raw.at.port(),
        &format!("limits = {{ at_once = {AT_ONCE} }}"),
    )
    .await;
    let mut calls: JoinSet<Result<Vec<u8>, CallError>> = JoinSet::new();
    for _ in 0..1000 {
        calls.spawn(
            world
                .client()
                .call(&files::GET, ("/".into(),))
                .into_future(),
        );
    }
    for _ in AT_ONCE..1000 {
        let refused = soon(calls.join_next()).await.unwrap().unwrap().unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(
            refused
                .to_string()
                .contains("8 requests to http.Files are under way"),
            "{refused}"
        );
    }
    raw.answers.add_permits(1000);
    while let Some(answered) = soon(calls.join_next()).await {
        assert_eq!(answered.unwrap().unwrap(), b"done");
    }
    assert_eq!(raw.seen.lock().unwrap().len(), AT_ONCE);
    assert_eq!(soon(files(&world).get("/".into())).await.unwrap(), b"done");
}

#[tokio::test]
async fn an_answer_that_is_too_much_is_a_status() {
    let check = async |answer: String, expected: Code, words: &str| {
        let raw = Raw::new(answer, true).await;
        let world = before(raw.at.port(), "limits = { answer = 1000 }").await;
        let failed = soon(files(&world).send(get("/"))).await.unwrap_err();
        assert_eq!(failed.code(), expected, "{failed}");
        assert!(failed.to_string().contains(words), "{failed}");
    };
    let long = answer("200 OK", "", &"a".repeat(1001));
    check(long, Code::ResourceExhausted, "more than 1000 bytes").await;
    let many: String = (0..200)
        .map(|number| format!("x-{number}: y\r\n"))
        .collect();
    check(
        answer("200 OK", &many, ""),
        Code::Unfinished,
        "whether it did",
    )
    .await;
    let large = format!("x: {}\r\n", "y".repeat(100_000));
    check(
        answer("200 OK", &large, ""),
        Code::ResourceExhausted,
        "headers of 1000",
    )
    .await;
    check(
        "nonsense\r\n\r\n".into(),
        Code::Unfinished,
        "whether it did",
    )
    .await;
}

#[tokio::test]
async fn a_number_of_failure_is_a_status_with_that_number_and_what_the_server_says() {
    let json = "content-type: application/problem+json\r\n";
    let raw = Raw::new(answer("409 Taken", json, "{\"by\": \"Ada\"}"), true).await;
    let world = before(raw.at.port(), "").await;
    let failed = soon(files(&world).post("/x".into(), vec![]))
        .await
        .unwrap_err();
    let status = failed.status().unwrap();
    assert_eq!((status.code(), number(status)), (Code::Aborted, Some(409)));
    assert_eq!(status.message(), "HTTP 409 Taken: {\"by\": \"Ada\"}");
    for (number, expected) in [
        (300, Code::FailedPrecondition),
        (400, Code::InvalidArgument),
        (401, Code::Unauthenticated),
        (403, Code::PermissionDenied),
        (404, Code::NotFound),
        (405, Code::Unimplemented),
        (412, Code::FailedPrecondition),
        (429, Code::ResourceExhausted),
        (500, Code::Internal),
        (503, Code::Unavailable),
        (504, Code::DeadlineExceeded),
    ] {
        assert_eq!(code(number), expected, "{number}");
    }
}

#[tokio::test]
async fn who_may_call_is_who_has_the_key_of_the_cluster() {
    let raw = Raw::new(answer("200 OK", "", "yes"), true).await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    let access = format!("allow = \"cluster\"\ncluster_key = \"{}\"", key.display());
    let port = raw.at.port();
    let world = World::new(&format!(
        "{access}\n[[http]]\nname = \"Files\"\nserver = \"http://127.0.0.1:{port}\"\n"
    ))
    .await;
    let stranger = soon(files(&world).get("/".into())).await.unwrap_err();
    assert_eq!(stranger.code(), Code::PermissionDenied);
    let key = wallaby::ClusterKey::new(b"0123456789abcdef0123456789abcdef").unwrap();
    let member = Endpoint::builder().cluster_key(key).bind().await.unwrap();
    let client = Client::new(&member, world.at());
    assert_eq!(
        soon(client.call(&files::GET, ("/".into(),))).await.unwrap(),
        b"yes"
    );
}
