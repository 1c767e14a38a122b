//! Servers of gRPC behind a sidecar: a server of hyper's that does what is on paper, as tonic's is not in this workspace.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use wallaby::codec::Protobuf;
use wallaby::reflection::{DESCRIPTORS, METHODS, MethodDescription};
use wallaby::{CallError, Code, Health, Many, Method, One};

use crate::world::{World, soon};

#[derive(Clone, PartialEq, Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

impl prost::Name for Text {
    const PACKAGE: &'static str = "test.words";
    const NAME: &'static str = "Text";
}

wallaby::protobuf::messages!(Text);

static SAY: Method<(Text,), One<Text>, Protobuf> = Method::new("test.words.Words/Say");
static REPEAT: Method<(Text,), Many<Text>, Protobuf> = Method::new("test.words.Words/Repeat");

/// What is sent, piece by piece. Who drops it before its end has heard that its stream was reset.
struct Frames {
    frames: mpsc::Receiver<Frame<Bytes>>,
    gone: Arc<Semaphore>,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.frames.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.gone.add_permits(1);
    }
}

/// A server of gRPC.
#[derive(Clone)]
struct Words {
    heads: Arc<Mutex<Vec<HeaderMap>>>,
    arrived: Arc<Semaphore>,
    gone: Arc<Semaphore>,
    /// How many pieces of endless answers have left.
    sent: Arc<Mutex<usize>>,
    /// The reflection that it has.
    reflection: &'static str,
    health: Option<u8>,
}

struct Running {
    words: Words,
    at: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// Ends it, with all its connections.
    async fn end(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await; // it was aborted
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Words {
    fn new() -> Self {
        Self {
            heads: Arc::default(),
            arrived: Arc::new(Semaphore::new(0)),
            gone: Arc::new(Semaphore::new(0)),
            sent: Arc::default(),
            reflection: "none",
            health: None,
        }
    }

    async fn run(self, at: SocketAddr) -> Running {
        let listener = TcpListener::bind(at).await.unwrap();
        let at = listener.local_addr().unwrap();
        let words = self.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new(); // which end with it
            while let Ok((stream, _)) = listener.accept().await {
                let words = words.clone();
                let handle = service_fn(move |request| words.clone().handle(request));
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                connections.spawn(server.serve_connection(TokioIo::new(stream), handle));
            }
        });
        Running {
            words: self,
            at,
            task,
        }
    }

    async fn handle(self, request: Request<Incoming>) -> Result<Response<Frames>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map_or_else(|_| Bytes::new(), |body| body.to_bytes());
        let message = body.get(5..).unwrap_or_default();
        let (sender, frames) = mpsc::channel(1);
        let gone = Arc::clone(&self.gone);
        let mut answer = Response::new(Frames { frames, gone });
        answer
            .headers_mut()
            .insert("content-type", "application/grpc+proto".parse().unwrap());
        let mut refuse = |status: &str, message: &str| {
            answer
                .headers_mut()
                .insert("grpc-status", status.parse().unwrap());
            answer
                .headers_mut()
                .insert("grpc-message", message.parse().unwrap());
        };
        match head.uri.path() {
            "/test.words.Words/Say" => {
                let text = Text::decode(message).unwrap().text;
                self.heads.lock().unwrap().push(head.headers);
                self.arrived.add_permits(1);
                let ok = trailers("0", "");
                let pieces = match &*text {
                    "fail" => {
                        refuse("5", "no%20such%20word");
                        vec![]
                    }
                    "http" => {
                        *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                        vec![]
                    }
                    "page" => {
                        answer
                            .headers_mut()
                            .insert("content-type", "text/html".parse().unwrap());
                        vec![]
                    }
                    "hang" => {
                        tokio::spawn(async move { sender.closed().await });
                        return Ok(answer);
                    }
                    "twice" => vec![said("a"), said("b"), ok],
                    "none" => vec![ok],
                    "torn" => vec![Frame::data(Bytes::from_static(&[0, 0, 0, 0, 9, 1])), ok],
                    "silent" => vec![said("a")],
                    "late" => vec![said("a"), trailers("10", "changed%20its%20mind")],
                    "compressed" => vec![Frame::data(Bytes::from_static(&[1, 0, 0, 0, 0])), ok],
                    "long" => vec![said(&"x".repeat(3000)), ok],
                    "pieces" => {
                        let whole = said("piece by piece").into_data().unwrap();
                        let bytes = whole
                            .iter()
                            .map(|byte| Frame::data(Bytes::copy_from_slice(&[*byte])));
                        bytes.chain([ok]).collect()
                    }
                    text => vec![said(&format!("{text}!")), ok],
                };
                send(sender, pieces);
            }
            "/test.words.Words/Repeat" => {
                let text = Text::decode(message).unwrap().text;
                self.arrived.add_permits(1);
                if text == "forever" {
                    let sent = Arc::clone(&self.sent);
                    tokio::spawn(async move {
                        while sender.send(said(&"x".repeat(16 << 10))).await.is_ok() {
                            *sent.lock().unwrap() += 1;
                        }
                    });
                } else {
                    let times: usize = text.parse().unwrap();
                    let each = (0..times).map(|number| said(&number.to_string()));
                    send(sender, each.chain([trailers("0", "")]).collect());
                }
            }
            "/grpc.health.v1.Health/Check" if self.health.is_some() => {
                let health = [0, 0, 0, 0, 2, 8, self.health.unwrap_or_default()];
                send(
                    sender,
                    vec![
                        Frame::data(Bytes::copy_from_slice(&health)),
                        trailers("0", ""),
                    ],
                );
            }
            path if path.starts_with(&format!("/grpc.reflection.{}.", self.reflection)) => {
                send(sender, vec![framed(&told(message)), trailers("0", "")]);
            }
            _ => refuse("12", "no such method"),
        }
        Ok(answer)
    }
}

fn send(sender: mpsc::Sender<Frame<Bytes>>, pieces: Vec<Frame<Bytes>>) {
    tokio::spawn(async move {
        for piece in pieces {
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    });
}

fn framed(message: &[u8]) -> Frame<Bytes> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    Frame::data(frame.freeze())
}

fn said(text: &str) -> Frame<Bytes> {
    framed(&Text { text: text.into() }.encode_to_vec())
}

fn trailers(status: &str, message: &str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers.insert("grpc-message", message.parse().unwrap());
    Frame::trailers(trailers)
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn before(at: SocketAddr, more: &str) -> World {
    World::new(&format!(
        "[[grpc]]\nserver = \"http://{at}\"\nservices = [\"test.words.Words\"]\n{more}\n"
    ))
    .await
}

fn text(text: &str) -> (Text,) {
    (Text { text: text.into() },)
}

#[tokio::test]
async fn methods_are_methods_and_statuses_keep_their_numbers() {
    let server = Words::new().run(any()).await;
    let world = before(server.at, "limits = { answer = 2000 }").await;
    let client = world.client();
    let say = async |word: &str| soon(client.call(&SAY, text(word))).await;
    assert_eq!(say("hop").await.unwrap().text, "hop!");
    assert_eq!(say("pieces").await.unwrap().text, "piece by piece");
    let check = async |word: &str, code: Code, words: &str| {
        let error: CallError = say(word).await.unwrap_err();
        assert_eq!(error.code(), code, "{word}: {error}");
        assert!(error.to_string().contains(words), "{word}: {error}");
    };
    check("fail", Code::NotFound, "no such word").await;
    check("http", Code::Unavailable, "HTTP 503").await;
    check(
        "page",
        Code::Unknown,
        "something else than application/grpc",
    )
    .await;
    check("torn", Code::DataLoss, "in the middle of a message").await;
    check("compressed", Code::Internal, "compressed").await;
    check("long", Code::ResourceExhausted, "3003 bytes: at most 2000").await;
    let all = client.call(&REPEAT, text("5")).collect();
    let all: Vec<String> = soon(all)
        .await
        .unwrap()
        .into_iter()
        .map(|it| it.text)
        .collect();
    assert_eq!(all, ["0", "1", "2", "3", "4"]);
    static OTHER: Method<(Text,), One<Text>, Protobuf> = Method::new("test.words.Words/Other");
    let error = soon(client.call(&OTHER, text(""))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(
        error.to_string().contains("no such method"),
        "the server says so: {error}"
    );
    static HIDDEN: Method<(Text,), One<Text>, Protobuf> = Method::new("test.words.Hidden/Say");
    let error = soon(client.call(&HIDDEN, text(""))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(
        error.to_string().contains("test.words.Hidden/Say"),
        "it was not asked: {error}"
    );
    static OUTSIDE: Method<(Text,), One<Text>, Protobuf> =
        Method::new("test.words.Words/../Hidden/Say");
    let error = soon(client.call(&OUTSIDE, text(""))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(
        error.to_string().contains("/../"),
        "it was not asked: {error}"
    );
    static WRONG: Method<(String,), One<String>> = Method::new("test.words.Words/Say");
    let error = soon(client.call(&WRONG, ("hop".into(),)))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::Mismatch, "{error}");
}

/// Connections are shared: what waits for one caller must not fill them.
#[tokio::test]
async fn callers_that_take_nothing_hold_up_no_other() {
    let server = Words::new().run(any()).await;
    let world = before(server.at, "").await;
    let client = world.client();
    let slow: Vec<_> = (0..100)
        .map(|_| client.call(&REPEAT, text("forever")))
        .collect();
    soon(server.words.arrived.acquire_many(100))
        .await
        .unwrap()
        .forget();
    for _ in 0..200 {
        assert_eq!(
            soon(client.call(&SAY, text("hop"))).await.unwrap().text,
            "hop!"
        );
    }
    drop(slow);
}

#[tokio::test]
async fn deadlines_metadata_and_aborts_reach_the_server() {
    let server = Words::new().run(any()).await;
    let world = before(server.at, "metadata = [\"authorization\", \"trace-bin\"]").await;
    let client = world.client().deadline(Duration::from_secs(7));
    let client = client
        .metadata("authorization", "Bearer abc")
        .metadata("secret", "no");
    let client = client.metadata_bin("trace-bin", Bytes::from_static(&[0xff, 0]));
    soon(client.call(&SAY, text("hop"))).await.unwrap();
    let head = server.words.heads.lock().unwrap().pop().unwrap();
    let has = |name: &str| head.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(has("authorization"), Some("Bearer abc"));
    assert_eq!(has("trace-bin"), Some("/wA"));
    assert_eq!(
        (has("te"), has("content-type")),
        (Some("trailers"), Some("application/grpc"))
    );
    assert_eq!(has("secret"), None);
    let millis: u64 = has("grpc-timeout")
        .unwrap()
        .strip_suffix('m')
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=7000).contains(&millis), "{millis}");

    soon(server.words.arrived.acquire()).await.unwrap().forget();
    soon(server.words.gone.acquire()).await.unwrap().forget();
    let waiting = tokio::spawn(world.client().call(&SAY, text("hang")).into_future());
    soon(server.words.arrived.acquire()).await.unwrap().forget();
    waiting.abort();
    soon(server.words.gone.acquire()).await.unwrap().forget();
    let hurried = world.client().deadline(Duration::from_millis(1500));
    let late = soon(hurried.call(&SAY, text("hang"))).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    soon(server.words.gone.acquire()).await.unwrap().forget();
}

#[tokio::test]
async fn who_sends_much_waits_for_who_takes_it() {
    let server = Words::new().run(any()).await;
    let world = before(server.at, "").await;
    let mut stream = world.client().call(&REPEAT, text("forever"));
    for taken in 1..=2000 {
        assert_eq!(
            soon(stream.next()).await.unwrap().unwrap().text.len(),
            16 << 10
        );
        let sent = *server.words.sent.lock().unwrap();
        assert!(
            sent < taken + 512,
            "{sent} have left, and {taken} were taken"
        );
    }
    drop(stream);
    soon(server.words.gone.acquire()).await.unwrap().forget();
}

#[tokio::test]
async fn a_server_may_be_gone_and_come_again() {
    let server = Words::new().run(any()).await;
    let world = before(server.at, "").await;
    let name = "test.words.Words";
    world.until(name, Health::Serving).await;
    let lost = tokio::spawn(world.client().call(&SAY, text("hang")).into_future());
    soon(server.words.arrived.acquire()).await.unwrap().forget();
    let at = server.at;
    server.end().await;
    assert_eq!(
        soon(lost).await.unwrap().unwrap_err().code(),
        Code::Unfinished
    );
    world.until(name, Health::NotServing).await;
    let gone = soon(world.client().call(&SAY, text("hop")))
        .await
        .unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    let words = Words {
        health: Some(2), // it says that it does not serve
        ..Words::new()
    };
    let server = words.run(at).await;
    soon(async { while world.client().call(&SAY, text("hop")).await.is_err() {} }).await;
    server.end().await;
    let words = Words {
        health: Some(1),
        ..Words::new()
    };
    let _server = words.run(at).await;
    world.until(name, Health::Serving).await;
    assert_eq!(
        soon(world.client().call(&SAY, text("hop")))
            .await
            .unwrap()
            .text,
        "hop!"
    );
}

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(string, optional, tag = "3")]
    file: Option<String>,
    #[prost(string, optional, tag = "4")]
    symbol: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Refusal {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct Told {
    #[prost(message, optional, tag = "4")]
    files: Option<Files>,
    #[prost(message, optional, tag = "7")]
    error: Option<Refusal>,
}

/// What reflection answers: one file at a time, as tonic does it.
fn told(question: &[u8]) -> Vec<u8> {
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MethodDescriptorProto,
        ServiceDescriptorProto,
    };
    let method = |name: &str, client: bool, server: bool| MethodDescriptorProto {
        name: Some(name.into()),
        input_type: Some(".test.words.Text".into()),
        output_type: Some(".test.words.Text".into()),
        client_streaming: Some(client),
        server_streaming: Some(server),
        ..MethodDescriptorProto::default()
    };
    let words = FileDescriptorProto {
        name: Some("words.proto".into()),
        package: Some("test.words".into()),
        dependency: vec!["a/text.proto".into()],
        syntax: Some("proto3".into()),
        service: vec![ServiceDescriptorProto {
            name: Some("Words".into()),
            method: vec![
                method("Say", false, false),
                method("Repeat", false, true),
                method("Hear", true, false),
            ],
            options: None,
        }],
        ..FileDescriptorProto::default()
    };
    let text = FileDescriptorProto {
        name: Some("a/text.proto".into()),
        package: Some("test.words".into()),
        syntax: Some("proto3".into()),
        message_type: vec![DescriptorProto {
            name: Some("Text".into()),
            field: vec![FieldDescriptorProto {
                name: Some("text".into()),
                number: Some(1),
                label: Some(Label::Optional.into()),
                r#type: Some(Type::String.into()),
                ..FieldDescriptorProto::default()
            }],
            ..DescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    };
    let question = Question::decode(question).unwrap();
    let file = match (question.file.as_deref(), question.symbol.as_deref()) {
        (Some("a/text.proto"), _) => Some(text),
        (_, Some("test.words.Words")) => Some(words),
        _ => None,
    };
    let told = match file {
        Some(file) => Told {
            files: Some(Files {
                files: vec![file.encode_to_vec()],
            }),
            error: None,
        },
        None => Told {
            files: None,
            error: Some(Refusal {
                code: 5,
                message: "no such file".into(),
            }),
        },
    };
    told.encode_to_vec()
}

#[tokio::test]
async fn what_a_server_tells_of_its_messages_is_told_on() {
    for reflection in ["v1", "v1alpha"] {
        let words = Words {
            reflection,
            ..Words::new()
        };
        let server = words.run(any()).await;
        let world = before(server.at, "reflection = true").await;
        let client = world.client();
        let told = soon(async {
            loop {
                let told = client
                    .call(&METHODS, ("test.words.".into(),))
                    .collect()
                    .await
                    .unwrap();
                if !told.is_empty() {
                    return told;
                }
            }
        })
        .await;
        let told = told
            .iter()
            .map(|text| MethodDescription::parse(text).unwrap());
        let told: Vec<String> = told
            .map(|method| format!("{}{}", method.name, method.signature.unwrap().text("?")))
            .collect();
        assert_eq!(
            told,
            [
                "test.words.Words/Say(test.words.Text) -> test.words.Text",
                "test.words.Words/Repeat(test.words.Text) -> Many<test.words.Text>",
            ]
        );
        let sets = client.call(&DESCRIPTORS, ("test.words.".into(),)).collect();
        let sets = soon(sets).await.unwrap();
        assert_eq!(sets.len(), 1);
        let pool = prost_reflect::DescriptorPool::decode(&sets[0][..]).unwrap();
        let message = pool.get_message_by_name("test.words.Text").unwrap();
        assert_eq!(message.fields().count(), 1);
        assert_eq!(
            soon(client.call(&SAY, text("hop"))).await.unwrap().text,
            "hop!"
        );
        for (word, words) in [
            ("twice", "answered twice"),
            ("late", "changed its mind"),
            ("silent", "without a status"),
            ("none", "without an answer"),
        ] {
            let error = soon(client.call(&SAY, text(word))).await.unwrap_err();
            assert!(error.to_string().contains(words), "{word}: {error}");
        }
        let all = soon(client.call(&REPEAT, text("3")).collect())
            .await
            .unwrap();
        assert_eq!(all.len(), 3);
    }
}
