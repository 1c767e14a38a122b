//! `wallaby list`, `call`, `health` and `top` as their users run them, against endpoints that this test serves.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use wallaby::codec::{Codec, MessagePack, Raw};
use wallaby::extension::Reserved;
use wallaby::intercept::{Admission, Incoming};
use wallaby::reflection::METHODS;
use wallaby::{
    Address, Body, Builder, Endpoint, ExecutorConfig, Health, Many, Method, One, Request, Service,
    Status, Streaming,
};
use wallaby_tls::Tls;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Item {
    name: String,
    price: Option<f64>,
    kind: Kind,
    stock: BTreeMap<String, u32>,
    inside: Vec<Self>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Kind {
    Plain,
    Sized { width: u32, height: u32 },
    Tagged(String),
    Pair(i64, u64),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Odd {
    large: u64,
    small: i64,
    huge: u128,
    letter: char,
    bytes: CString,
    by_number: BTreeMap<u8, bool>,
    by_pair: BTreeMap<(u8, u8), ()>,
    float: f32,
    array: [u8; 4],
}

#[wallaby::service(package = "test.shop")]
trait Shop {
    async fn put(item: Item) -> Item;
    async fn search(word: String, most: u32) -> Many<Item>;
    async fn odd(odd: Odd) -> Odd;
    async fn onward(to: Address, word: String) -> Many<Item>;
    async fn nothing();
    async fn upload(name: String, body: Body) -> u64;
    async fn load(items: Streaming<Item>) -> Vec<Item>;
}

/// The same types, with names.
#[wallaby::service(package = "test.shop", codec = MessagePack)]
trait Evolving {
    async fn put(item: Item) -> Item;
    async fn odd(odd: Odd) -> Odd;
    async fn load(items: Streaming<Item>) -> Vec<Item>;
}

#[wallaby::service(package = "test.shop", codec = Raw)]
trait Echo {
    async fn echo(bytes: bytes::Bytes) -> bytes::Bytes;
}

struct Server;

fn item(name: &str) -> Item {
    Item {
        name: name.to_owned(),
        price: None,
        kind: Kind::Plain,
        stock: BTreeMap::new(),
        inside: Vec::new(),
    }
}

#[wallaby::serve]
impl Shop for Server {
    async fn put(&self, item: Item) -> Item {
        item
    }

    async fn search(
        &self,
        request: Request<Many<Item>>,
        word: String,
        most: u32,
    ) -> Result<(), Status> {
        if word == "slow" {
            std::future::pending::<()>().await;
        }
        for number in 0..most {
            request.reply(item(&format!("{word} {number}"))).await?;
        }
        request.flush().await; // else the status takes the last one's place
        match word.as_str() {
            "broken" => Err(Status::not_found("the shelf is\x1b[2J empty")),
            _ => Ok(()),
        }
    }

    async fn odd(&self, odd: Odd) -> Odd {
        odd
    }

    async fn onward(
        &self,
        request: Request<Many<Item>>,
        to: Address,
        word: String,
    ) -> Result<(), Status> {
        request.reply(item("first")).await?;
        Ok(request.forward(to, shop::search(word, 1)).await?)
    }

    async fn nothing(&self) {}

    async fn upload(
        &self,
        request: Request<One<u64>>,
        _: String,
        mut body: Body,
    ) -> Result<(), Status> {
        let mut length = 0;
        while let Some(chunk) = body.next().await {
            length += chunk?.len() as u64;
        }
        Ok(request.respond(length).await?)
    }

    async fn load(
        &self,
        request: Request<One<Vec<Item>>>,
        items: Streaming<Item>,
    ) -> Result<(), Status> {
        Ok(request.respond(all(items).await?).await?)
    }
}

#[wallaby::serve]
impl Evolving for Server {
    async fn put(&self, item: Item) -> Item {
        item
    }

    async fn odd(&self, odd: Odd) -> Odd {
        odd
    }

    async fn load(
        &self,
        request: Request<One<Vec<Item>>, MessagePack>,
        items: Streaming<Item, MessagePack>,
    ) -> Result<(), Status> {
        Ok(request.respond(all(items).await?).await?)
    }
}

async fn all<C: Codec<Item>>(mut items: Streaming<Item, C>) -> Result<Vec<Item>, Status> {
    let mut all = Vec::new();
    while let Some(item) = items.next().await {
        all.push(item?);
    }
    Ok(all)
}

#[wallaby::serve]
impl Echo for Server {
    async fn echo(
        &self,
        request: Request<One<bytes::Bytes>, Raw>,
        bytes: bytes::Bytes,
    ) -> Result<(), Status> {
        Ok(request.respond(bytes).await?)
    }
}

/// An endpoint that is served while this lives.
struct Served {
    runtime: Runtime,
    endpoint: Endpoint,
}

impl Served {
    fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let builder = Endpoint::builder()
            .serve(shop::service(Server))
            .serve(echo::service(Server))
            .serve(evolving::service(Server))
            .listen("tcp://127.0.0.1:0");
        let endpoint = runtime.block_on(change(builder).bind()).unwrap();
        Self { runtime, endpoint }
    }

    fn start() -> Self {
        Self::with(|builder| builder)
    }

    fn address(&self) -> String {
        self.endpoint.address().unwrap().to_string()
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Output {
        self.command(command, arguments).output().unwrap()
    }

    fn command(&self, command: &str, arguments: &[&str]) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_wallaby"));
        program.arg(command).arg(self.address()).args(arguments);
        program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        program
    }

    /// What a call prints, when it is complete.
    fn call(&self, method: &str, arguments: &str) -> String {
        let output = self.run("call", &[&format!("test.shop.{method}"), arguments]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(stderr(&output), "");
        stdout(&output)
    }

    /// What it complains of.
    fn refuses(&self, method: &str, arguments: &str) -> String {
        let output = self.run("call", &[&format!("test.shop.{method}"), arguments]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(stdout(&output), "");
        stderr(&output)
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_list_reads_like_rust() {
    let served = Served::start();
    let output = served.run("list", &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = "\
test.shop.Echo
  echo(bytes) -> bytes  (codec raw)

test.shop.Evolving
  load(Streaming<Item>) -> Vec<Item>  (codec msgpack)
  odd(Odd) -> Odd  (codec msgpack)
  put(Item) -> Item  (codec msgpack)
  struct Item { name: String, price: Option<f64>, kind: Kind, stock: Map<String, u32>, inside: Vec<Item> }
  enum Kind { Plain, Sized { width: u32, height: u32 }, Tagged(String), Pair(i64, u64) }
  struct Odd { large: u64, small: i64, huge: u128, letter: char, bytes: Bytes, by_number: Map<u8, bool>, \
by_pair: Map<(u8, u8), ()>, float: f32, array: [u8; 4] }

test.shop.Shop
  load(Streaming<Item>) -> Vec<Item>
  nothing()
  odd(Odd) -> Odd
  onward(String, String) -> Many<Item>
  put(Item) -> Item
  search(String, u32) -> Many<Item>
  upload(String, Body) -> u64
  struct Item { name: String, price: Option<f64>, kind: Kind, stock: Map<String, u32>, inside: Vec<Item> }
  enum Kind { Plain, Sized { width: u32, height: u32 }, Tagged(String), Pair(i64, u64) }
  struct Odd { large: u64, small: i64, huge: u128, letter: char, bytes: Bytes, by_number: Map<u8, bool>, \
by_pair: Map<(u8, u8), ()>, float: f32, array: [u8; 4] }
";
    assert_eq!(stdout(&output), expected);
    let output = served.run("list", &["test.shop.Nobody"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("no method here begins with test.shop.Nobody"));
    let output = served.run("list", &["test.shop.Shop/nothing", "--json"]);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed[0]["name"], "test.shop.Shop/nothing");
    assert_eq!(listed[0]["signature"]["one"], true);
    let own = stdout(&served.run("list", &["wallaby."]));
    assert!(own.contains("methods(String) -> Many<String>"), "{own}");
    assert!(own.contains("check(String) -> Health"), "{own}");
}

#[test]
fn values_of_all_kinds_go_there_and_back() {
    let served = Served::start();
    let item = r#"{"name":"box","price":2.5,"kind":{"Sized":{"width":1,"height":2}},"stock":{"here":3,"there":0},"inside":[{"name":"pen","price":null,"kind":"Plain","stock":{},"inside":[]},{"name":"a\"b","price":null,"kind":{"Pair":[-9223372036854775808,18446744073709551615]},"stock":{},"inside":[]}]}"#;
    for method in ["Shop/put", "Evolving/put"] {
        assert_eq!(served.call(method, item), format!("{item}\n"));
        assert_eq!(
            served.call(method, &format!("[{item}]")),
            format!("{item}\n")
        );
    }
    let short = r#"[{"name":"x","kind":{"Tagged":"t"},"stock":[["k",1]],"inside":[]}]"#;
    let whole = r#"{"name":"x","price":null,"kind":{"Tagged":"t"},"stock":{"k":1},"inside":[]}"#;
    assert_eq!(served.call("Shop/put", short), format!("{whole}\n"));
    assert_eq!(served.call("Evolving/put", short), format!("{whole}\n"));
    let odd = r#"{"large":9007199254740993,"small":-9007199254740993,"huge":"340282366920938463463374607431768211455","letter":"ß","bytes":"Af8=","by_number":{"7":true},"by_pair":[[[1,2],null]],"float":"-inf","array":[1,2,3,4]}"#;
    assert_eq!(served.call("Shop/odd", odd), format!("{odd}\n"));
    assert_eq!(served.call("Evolving/odd", odd), format!("{odd}\n"));
    let other = odd
        .replace("\"Af8=\"", "[1,255]")
        .replace("\"-inf\"", "0.1");
    assert_eq!(
        served.call("Shop/odd", &other),
        odd.replace("\"-inf\"", "0.1") + "\n"
    );
    assert_eq!(served.call("Shop/nothing", ""), "null\n");
    assert_eq!(served.call("Shop/nothing", "[]"), "null\n");
    assert_eq!(served.call("Echo/echo", "as it is"), "as it is\n");
}

#[test]
fn arguments_come_from_files_and_from_standard_input() {
    let served = Served::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [0xff, 0]).unwrap();
    let name = format!("@{}", file.path().display());
    assert_eq!(served.call("Echo/echo", &name), "base64:/wA=\n");
    let mut command = served.command("call", &["test.shop.Shop/search", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"[\"hop\", 2]")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let found = stdout(&output);
    assert!(
        found.contains("hop 0") && found.contains("hop 1"),
        "{output:?}"
    );
}

#[test]
fn what_does_not_fit_is_said_with_its_place() {
    let served = Served::start();
    let item = |change: Value| {
        let mut item = json!({ "name": "x", "kind": "Plain", "stock": {}, "inside": [] });
        let members = change.as_object().unwrap().clone();
        item.as_object_mut().unwrap().extend(members);
        json!([item]).to_string()
    };
    let deep =
        json!({ "inside": [{ "name": "y", "kind": "Plain", "stock": { "a": -1 }, "inside": [] }] });
    let cases = [
        (
            item(json!({ "name": 3 })),
            "arguments[0].name: expected a string, got 3",
        ),
        (
            item(deep),
            "arguments[0].inside[0].stock[\"a\"]: expected u32, got -1",
        ),
        (
            item(json!({ "kind": "Round" })),
            "arguments[0].kind: expected one of Plain, Sized, Tagged, Pair, got \"Round\"",
        ),
        (
            item(json!({ "kind": { "Pair": [1] } })),
            "arguments[0].kind.Pair: expected an array of 2, got one of 1",
        ),
        (
            item(json!({ "colour": 1 })),
            "arguments[0]: no field \"colour\"; expected name, price, kind, stock, inside",
        ),
        (
            "[{\"name\": \"x\"}]".into(),
            "arguments[0]: the field \"kind\" is missing",
        ),
        (
            "[1, 2]".into(),
            "arguments: expected an array of 1, got one of 2",
        ),
        ("[{".into(), "this is no JSON"),
        (
            format!("{}{}", "[".repeat(200), "]".repeat(200)),
            "recursion limit",
        ),
    ];
    for (arguments, expected) in cases {
        let said = served.refuses("Shop/put", &arguments);
        assert!(said.contains(expected), "{said} of {arguments}");
        assert!(said.contains("put(Item) -> Item"), "{said}");
    }
    let said = served.refuses("Shop/missing", "");
    assert!(said.contains("no method test.shop.Shop/missing"), "{said}");
    assert!(said.contains("test.shop.Shop/put"), "{said}");
}

#[test]
fn bytes_and_items_follow_requests() {
    let served = Served::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let call = |method: &str, arguments: &str, following: &str| {
        let method = format!("test.shop.{method}");
        served.run("call", &[&method, arguments, "--following", following])
    };
    let large = file("large", &vec![7; 3_000_000]);
    let output = call("Shop/upload", "[\"x\"]", &large);
    assert_eq!(stdout(&output), "3000000\n", "{output:?}");

    let item = |name: &str| {
        format!(
            r#"{{"name":"{name}","price":null,"kind":{{"Pair":[1,2]}},"stock":{{}},"inside":[]}}"#
        )
    };
    let items = file(
        "items",
        format!("{} {}\n\n{}", item("a"), item("b"), item("c")).as_bytes(),
    );
    for method in ["Shop/load", "Evolving/load"] {
        let output = call(method, "", &items);
        let all = format!("[{},{},{}]\n", item("a"), item("b"), item("c"));
        assert_eq!(stdout(&output), all, "{output:?}");
        assert_eq!(output.status.code(), Some(0));
    }
    let mut command = served.command("call", &["test.shop.Shop/load", "--following", "-"]);
    let mut program = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = program.stdin.take().unwrap();
    input.write_all(item("typed").as_bytes()).unwrap();
    drop(input);
    let output = program.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("[{}]\n", item("typed")));

    let wrong = file("wrong", format!("{} {{\"name\": 7}}", item("a")).as_bytes());
    let output = call("Evolving/load", "", &wrong);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let why = "following: item 1: the field \"kind\" is missing";
    assert!(stderr(&output).contains(why), "{output:?}");
    let refused = |output: Output| {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        stderr(&output)
    };
    let said = refused(call("Shop/nothing", "", &items));
    assert!(
        said.contains("nothing follows the requests of test.shop.Shop/nothing"),
        "{said}"
    );
    let said = refused(call("Shop/load", "", "/not/there"));
    assert!(said.contains("cannot read /not/there"), "{said}");
    let said = served.refuses("Shop/upload", "[\"x\"]");
    let why = "bytes follow the requests of test.shop.Shop/upload: say --following FILE";
    assert!(said.contains(why), "{said}");
    let said = refused(call("Shop/upload", "-", "-"));
    assert!(said.contains("cannot both be standard input"), "{said}");
}

#[test]
fn answers_statuses_and_ends_have_statuses_of_their_own() {
    let (served, other) = (Served::start(), Served::start());
    let arguments = json!([other.address(), "broken"]).to_string();
    let call = |more: &[&str]| {
        let mut all = vec!["test.shop.Shop/onward", &arguments];
        all.extend(more);
        served.run("call", &all)
    };
    let output = call(&["--traced"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let (answers, said) = (stdout(&output), stderr(&output));
    assert_eq!(answers.lines().count(), 2, "{answers} {said}");
    assert!(
        said.contains("status: not found: the shelf is\\u001b[2J empty"),
        "{said}"
    );
    assert!(
        said.contains(&format!("test.shop.Shop/search at {}", other.address())),
        "{said}"
    );
    // Both hops of the trace.
    for server in [&served, &other] {
        assert!(
            said.lines()
                .any(|line| line.contains("Shop/") && line.contains(&server.address())),
            "{said}"
        );
    }

    let output = call(&["--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let lines: Vec<Value> = (stdout(&output).lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let answers = lines.iter().filter_map(|line| line.get("answer"));
    assert_eq!(answers.count(), 2, "{lines:?}");
    let status = lines.iter().find_map(|line| line.get("status")).unwrap();
    assert_eq!(
        (&status["code"], &status["server"]),
        (&json!("not found"), &json!(other.address()))
    );
    assert_eq!(
        lines.last().unwrap(),
        &json!({ "complete": true, "statuses": 1 })
    );

    // A server further on that means something else by the method's name.
    static OTHER: Method<(u64,), Many<u64>> = Method::new("test.shop.Shop/search");
    let other = Service::new("other").method(&OTHER, |_: Request<_>, (_,)| async { Ok(()) });
    let other = Endpoint::builder()
        .serve(other)
        .listen("tcp://127.0.0.1:0")
        .bind();
    let other = served.runtime.block_on(other).unwrap();
    let arguments = json!([other.address(), "hop"]).to_string();
    let output = served.run("call", &["test.shop.Shop/onward", &arguments]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stderr(&output).contains("status: mismatch: "), "{output:?}");

    let output = served.run(
        "call",
        &[
            "test.shop.Shop/search",
            "[\"slow\", 1]",
            "--deadline",
            "200ms",
        ],
    );
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains("failed: "), "{output:?}");
    assert_eq!(
        served
            .run("call", &["test.shop.Shop/nothing", "--deadline", "soon"])
            .status
            .code(),
        Some(2)
    );
}

/// The first server goes on, the second one dies.
#[test]
fn a_tolerant_call_goes_on_without_what_is_lost() {
    let (served, other) = (Served::start(), Served::start());
    let arguments = format!(r#"["{}", "slow"]"#, other.address());
    let all = ["test.shop.Shop/onward", &arguments, "--tolerant"];
    let program = served.command("call", &all).spawn().unwrap();
    while other.endpoint.load().running == 0 {
        std::thread::yield_now();
    }
    other.endpoint.kill();
    let output = program.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(stdout(&output).contains("first"), "{output:?}");
    assert!(stderr(&output).contains(&other.address()), "{output:?}");
}

#[test]
fn endpoints_that_do_not_tell_say_so() {
    let served = Served::with(|builder| builder.reflection(false));
    let output = served.run("top", &["--once"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stdout(&output).contains("switched off"), "{output:?}");
    for output in [
        served.run("list", &[]),
        served.run("call", &["test.shop.Shop/nothing"]),
    ] {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains("switched off"), "{output:?}");
    }
    let guard = |request: &Incoming| match request.metadata().get("token") {
        Some("sesame") => Admission::Run,
        _ => Admission::Refuse(Status::unauthenticated("no token")),
    };
    let served = Served::with(|builder| builder.interceptor(guard));
    let output = served.run("list", &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        stderr(&output).contains("unauthenticated: no token"),
        "{output:?}"
    );
    let output = served.run(
        "call",
        &["test.shop.Shop/nothing", "--metadata", "token=sesame"],
    );
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), "null\n".to_owned())
    );
    let mut nobody = Command::new(env!("CARGO_BIN_EXE_wallaby"));
    let output = nobody.args(["list", "tcp://127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// A server that says this of its methods, and again and again if it is to.
fn telling(told: Vec<String>, again: bool) -> Served {
    let reflection = Service::new("hostile")
        .reserved(Reserved::new("wallaby.Reflection"))
        .method(&METHODS, move |request: Request<_>, _| {
            let told = told.clone();
            async move {
                loop {
                    for text in &told {
                        request.reply(text.clone()).await?;
                    }
                    if !again {
                        return Ok(());
                    }
                }
            }
        });
    Served::with(|builder| builder.reflection(false).serve(reflection))
}

/// What a server says of `test.shop`, without the other methods.
fn described(served: &Served) -> Vec<String> {
    let output = served.run("list", &["test.shop.", "--json"]);
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    listed.iter().map(ToString::to_string).collect()
}

#[test]
fn a_server_that_tells_of_methods_for_ever_is_not_listened_to_for_ever() {
    let served = telling(described(&Served::start()), true);
    for command in ["list", "call"] {
        let output = served.run(command, &["test.shop.", "--deadline", "30s"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains("budget of responses is used up"), "{said}");
    }
}

#[test]
fn words_of_a_server_do_nothing_to_a_terminal() {
    const EVIL: &str = "\u{1b}[2J\u{9b}2J\u{202e}";
    let told = described(&Served::start());
    let evil = json!(EVIL).to_string();
    let told = told.iter().map(|text| text.replace("\"kind\"", &evil));
    let served = telling(told.collect(), false);
    let is_plain = |text: &str| {
        let is_evil = |character: char| character != '\n' && character.is_control();
        assert!(
            !text.contains(is_evil) && !text.contains('\u{202e}'),
            "{text:?}"
        );
    };

    let output = served.run("list", &["--json"]);
    is_plain(&stdout(&output));
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(listed.to_string().contains(&evil), "it is the same JSON");
    is_plain(&stdout(&served.run("list", &[])));

    let items = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(items.path(), "{\"colour\": 1}").unwrap();
    let file = items.path().to_str().unwrap();
    let output = served.run("call", &["test.shop.Shop/load", "--following", file]);
    let said = stderr(&output);
    assert!(
        said.contains("following: item 0: no field \"colour\""),
        "{said}"
    );
    assert!(said.contains("\\u001b[2J"), "{said}");
    is_plain(&said);

    let output = served.run("call", &["test.shop.Echo/echo", EVIL, "--json"]);
    let said = stdout(&output);
    is_plain(&said);
    let answer: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!(answer, json!({ "answer": EVIL }));
}

#[test]
fn health_is_in_the_exit_status() {
    let served = Served::start();
    let health = |arguments: &[&str], said: &str, status: i32| {
        let output = served.run("health", arguments);
        assert_eq!(
            (stdout(&output), output.status.code()),
            (said.to_owned(), Some(status)),
            "{output:?}"
        );
    };
    health(&[], "serving\n", 0);
    health(&["test.shop.Shop"], "serving\n", 0);
    health(&["test.shop.Shed"], "unknown\n", 4);
    served
        .endpoint
        .set_health("test.shop.Shop", Health::NotServing);
    health(&["test.shop.Shop"], "not serving\n", 3);

    let mut watch = served
        .command("health", &["test.shop.Shop", "--watch"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "not serving");
    served
        .endpoint
        .set_health("test.shop.Shop", Health::Serving);
    assert_eq!(lines.next().unwrap().unwrap(), "serving");
    let drained = served
        .runtime
        .block_on(served.endpoint.drain(Duration::from_secs(60)));
    assert_eq!(drained, Ok(()));
    assert_eq!(lines.next().unwrap().unwrap(), "not serving");
    assert!(lines.next().is_none());
    assert_eq!(watch.wait().unwrap().code(), Some(3));
    let output = served.run("health", &[]);
    assert_eq!(output.status.code(), Some(1), "it is closed: {output:?}");
}

/// One hangs at the first endpoint, and nobody is at the second address.
#[test]
fn the_load_of_endpoints_is_shown_once_or_again_and_again() {
    let served = Served::start();
    let mut slow = served.command("call", &["test.shop.Shop/search", "[\"slow\", 1]"]);
    let slow = slow.spawn().unwrap();
    while served.endpoint.load().running == 0 {
        std::thread::yield_now();
    }
    let nobody = "tcp://127.0.0.1:1";
    let output = served.run("top", &[nobody, "--once"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = stdout(&output);
    let lines: Vec<Vec<&str>> = (shown.lines())
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert_eq!(lines[0][..3], ["up", "running", "waiting"]);
    // The question runs there, too.
    assert_eq!(
        (lines[1][0], lines[1][2], lines[1][3]),
        (&*served.address(), "2", "0")
    );
    assert_eq!(lines[2][0], nobody);
    assert!(shown.contains("refused"), "{shown}");

    let mut top = served.command("top", &["--json", "--every", "10ms"]);
    let mut top = top.spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert_eq!(first["address"], served.address());
    assert_eq!(
        (&first["running"], &first["waiting"]),
        (&json!(2), &json!(0))
    );
    // From the second time on rates are of what came between: one question.
    let second = next();
    let requests = |told: &Value| told["metrics"]["requests_received"].as_u64().unwrap();
    assert_eq!(requests(&second), requests(&first) + 1);
    let rate = second["requests_per_second"].as_f64().unwrap();
    let up = |told: &Value| told["up"].as_f64().unwrap();
    let questions = rate * (up(&second) - up(&first));
    assert!((questions - 1.0).abs() < 1e-3, "{second}");
    for mut child in [top, slow] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Its only handler hangs.
#[test]
fn an_endpoint_with_too_much_to_do_does_not_hold_up_the_view_of_others() {
    let busy = Served::with(|builder| {
        builder.executor(ExecutorConfig {
            concurrency: 1,
            ..ExecutorConfig::default()
        })
    });
    let mut slow = busy.command("call", &["test.shop.Shop/search", "[\"slow\", 1]"]);
    let mut slow = slow.spawn().unwrap();
    while busy.endpoint.load().running == 0 {
        std::thread::yield_now();
    }
    let begun = Instant::now();
    let idle = Served::start();
    let mut top = busy.command("top", &[&idle.address(), "--json", "--every", "10ms"]);
    let mut top = top.spawn().unwrap();
    let lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let told: Vec<Value> = (lines.take(4))
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "as long as a call may take"
    );
    for (index, line) in told.iter().enumerate() {
        let is_busy = index % 2 == 0;
        assert_eq!(line["error"].is_string(), is_busy, "{line}");
    }
    for child in [&mut top, &mut slow] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn over_tls_somebody_has_to_be_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let certificate = file("certificate.pem", own.cert.pem());
    let key = file("key.pem", own.signing_key.serialize_pem());
    let tls = Tls::builder()
        .roots_file(&certificate)
        .certificate_files(&certificate, &key)
        .mutual();
    let tls = tls.build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
    let builder = Endpoint::builder()
        .transport(tls)
        .listen("tls://127.0.0.1:0");
    let endpoint = runtime.block_on(builder.bind()).unwrap();
    let served = Served { runtime, endpoint };
    let output = served.run("health", &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("--roots"), "{output:?}");
    let output = served.run("health", &["--roots", &certificate]);
    assert_eq!(
        output.status.code(),
        Some(1),
        "it wants to know who asks: {output:?}"
    );
    let whole = [
        "--roots",
        &certificate,
        "--certificate",
        &certificate,
        "--key",
        &key,
    ];
    let output = served.run("health", &whole);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), "serving\n".to_owned())
    );
}
