//! What endpoints tell of their methods, to whom, and whether they take work.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::intercept::{Admission, Incoming};
use wallaby::reflection::{
    DESCRIPTORS, Follows, LOAD, LoadReport, METHODS, MethodDescription, Signature,
};
use wallaby::schema::{Content, Definition, Schema, Shape};
use wallaby::{
    Body, Client, Code, Endpoint, ExecutorConfig, Health, Limits, Many, MethodDefinition, One,
    Outcome, RawRequest, Request, Service, Status, Streaming, health,
};

use crate::common::{Gate, Net, at, client, patience, service, until, work};

over_every_transport!(
    methods_are_told_with_their_types,
    health_is_told_and_watched,
    load_is_told
);

#[derive(Debug, Serialize, Deserialize)]
struct Query {
    words: Vec<String>,
    within: Option<Box<Self>>,
    weights: HashMap<String, f64>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Found {
    Nothing,
    At { path: String, line: u32 },
}

#[wallaby::service(package = "test.reflection")]
trait Index {
    async fn find(query: Query, most: u32) -> Many<Found>;
    async fn load(name: String, entries: Streaming<(String, u64)>) -> u64;
    async fn store(name: String, bytes: Body);
}

struct Empty;

#[wallaby::serve]
impl Index for Empty {
    async fn find(&self, request: Request<Many<Found>>, _: Query, _: u32) -> Result<(), Status> {
        Ok(request.respond(Found::Nothing).await?)
    }

    async fn load(&self, _: String, _: Streaming<(String, u64)>) -> u64 {
        0
    }

    async fn store(&self, _: String, _: Body) {}
}

async fn methods(client: &Endpoint, server: &Endpoint, prefix: &str) -> Vec<MethodDescription> {
    let told = Client::new(client, at(server)).call(&METHODS, (prefix.into(),));
    let told = told.collect().await.expect("all of them");
    let methods = told.iter().map(|text| MethodDescription::parse(text));
    let mut methods: Vec<_> = methods
        .map(|method| method.expect("a description"))
        .collect();
    methods.sort_by(|one, other| one.name.cmp(&other.name));
    methods
}

async fn methods_are_told_with_their_types(net: Net) {
    let raw = MethodDefinition::new("test.Raw/any", "raw", 0, 0).expect("a name");
    let raw = Service::new("raw").raw(Arc::new(raw), |_: RawRequest| async { Ok(()) });
    let builder = Endpoint::builder().serve(index::service(Empty)).serve(raw);
    let server = net.bind(builder).await;
    let client = net.endpoint().await;
    let all = methods(&client, &server, "").await;
    let names: Vec<&str> = all.iter().map(|method| method.name.as_str()).collect();
    for name in [
        "wallaby.Reflection/methods",
        "wallaby.Health/check",
        "wallaby.Health/watch",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let raw = all.iter().find(|method| method.name == "test.Raw/any");
    assert_eq!(raw.expect("it is told").signature, None);

    let own = methods(&client, &server, "test.reflection.Index/").await;
    let [find, load, store] = &own[..] else {
        panic!("{own:?}");
    };
    let definition = find.definition().expect("it has all");
    assert_eq!(&definition, &**index::FIND.definition());
    let signature = find.signature.as_ref().expect("its types");
    assert!(!signature.one && signature.follows == Follows::Nothing);
    let arguments = signature.arguments.as_ref().expect("postcard knows types");
    assert_eq!(arguments.root.to_string(), "(Query, u32)");
    let Some(Definition::Struct(Content::Fields(fields))) = arguments.types.get("Query") else {
        panic!("{arguments:?}");
    };
    let fields: Vec<String> = (fields.iter())
        .map(|field| format!("{}: {}", field.name, field.shape))
        .collect();
    let expected = [
        "words: Vec<String>",
        "within: Option<Query>",
        "weights: Map<String, f64>",
    ];
    assert_eq!(fields, expected);
    let answer = signature.answer.as_ref().expect("postcard knows types");
    let Some(Definition::Enum(variants)) = answer.types.get("Found") else {
        panic!("{answer:?}");
    };
    assert_eq!(variants[0].content, Content::Unit);
    assert!(
        matches!(&variants[1].content, Content::Fields(fields) if fields[1].shape == Shape::U32)
    );

    let follows = |method: &MethodDescription| method.signature.clone().expect("types").follows;
    let Follows::ItemsOf(Some(items)) = follows(load) else {
        panic!("{load:?}");
    };
    assert_eq!(items.root.to_string(), "(String, u64)");
    assert_eq!(follows(store), Follows::Bytes);
    // By its description a method can be called.
    let arguments =
        <wallaby::codec::Postcard as wallaby::codec::Codec<_>>::encode(&("a".to_owned(),));
    let body = Body::from(Bytes::from_static(b"what follows"));
    let definition = Arc::new(store.definition().expect("it has all"));
    let mut call = client.caller().begin();
    let sent = call.send_with_body(at(&server), &definition, arguments.expect("a value"), body);
    if sent.await.is_ok() {
        call.close();
        call.next().await.expect("an answer").expect("no status");
    }
}

#[tokio::test]
async fn types_that_are_too_long_for_a_message_hide_no_method() {
    let net = Net::tcp();
    let mut limits = Limits::default();
    limits.message = 512;
    let builder = Endpoint::builder().limits(limits);
    let server = net.bind(builder.serve(index::service(Empty))).await;
    let client = client();
    let told = methods(&client, &server, "test.reflection.Index/").await;
    let has_types = |method: &MethodDescription| method.signature.is_some();
    assert_eq!(
        told.iter().map(has_types).collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_eq!(
        &told[0].definition().expect("its name"),
        &**index::FIND.definition()
    );
}

#[tokio::test]
async fn who_may_not_call_learns_nothing() {
    let net = Net::tcp();
    let refuse = |_: &Incoming| Admission::Refuse(Status::unauthenticated("who are you?"));
    let builder = Endpoint::builder()
        .serve(index::service(Empty))
        .interceptor(refuse);
    let server = net.bind(builder).await;
    let client = client();
    let client = Client::new(&client, at(&server));
    let told = client.call(&METHODS, (String::new(),)).collect().await;
    assert_eq!(told.expect_err("refused").code(), Code::Unauthenticated);
    let told = client.call(&health::CHECK, (String::new(),)).await;
    assert_eq!(told.expect_err("refused").code(), Code::Unauthenticated);
}

/// Who knows types only when it runs, as what stands before servers of other protocols, tells them, too.
#[tokio::test]
async fn types_that_are_known_when_the_program_runs_are_told() {
    let named = |name: &str| {
        Some(Schema {
            root: Shape::Named(name.into()),
            types: std::collections::BTreeMap::new(),
        })
    };
    let signature = Signature {
        one: true,
        follows: Follows::Nothing,
        arguments: named("shelf.Question"),
        answer: named("shelf.Book"),
    };
    let method =
        Arc::new(MethodDefinition::new("shelf.Shelf/find", "protobuf", 0, 0).expect("a name"));
    let (set, given) = (Bytes::from_static(b"a set"), signature.clone());
    let handle = |request: RawRequest| async move {
        match request.payload().is_empty() {
            true => Ok(()), // though it owes an answer
            false => Ok(request.respond(Bytes::from_static(b"a book")).await?),
        }
    };
    let shelf = Service::new("shelf").described(Arc::clone(&method), given, set.clone(), handle);
    let server = Endpoint::builder().serve(shelf);
    let server = server
        .listen("tcp://127.0.0.1:0")
        .bind()
        .await
        .expect("it binds");
    let client = Endpoint::client().expect("a runtime");
    let told = methods(&client, &server, "shelf.").await;
    assert_eq!(told[0].signature, Some(signature));
    let caller = Client::new(&client, at(&server));
    let sets = caller
        .call(&DESCRIPTORS, ("shelf.".into(),))
        .collect()
        .await;
    assert_eq!(sets.expect("all of them"), [set.to_vec()]);
    let mut call = caller.call_raw(&method, Bytes::from_static(b"?"));
    assert_eq!(
        call.next().await.expect("one").expect("an answer").payload,
        "a book"
    );
    let mut call = caller.call_raw(&method, Bytes::new());
    let error = call.next().await.expect("one").expect_err("none");
    assert_eq!(error.code(), Code::Unanswered);
}

#[tokio::test]
async fn reflection_can_be_switched_off() {
    let net = Net::tcp();
    let builder = Endpoint::builder()
        .serve(index::service(Empty))
        .reflection(false);
    let server = net.bind(builder).await;
    let client = client();
    let client = Client::new(&client, at(&server));
    let told = client.call(&METHODS, (String::new(),)).collect().await;
    assert_eq!(told.expect_err("not served").code(), Code::Unimplemented);
    let load = client.call(&LOAD, ()).await;
    assert_eq!(load.expect_err("nor that").code(), Code::Unimplemented);
    let health = client
        .call(&health::CHECK, ("test.reflection.Index".into(),))
        .await;
    assert_eq!(health, Ok(Health::Serving));
}

async fn load_is_told(net: Net) {
    let slow = service().method(&work::ONE, |_: Request<One<String>>, (_,): (String,)| {
        std::future::pending()
    });
    let one = ExecutorConfig {
        concurrency: 2,
        ..ExecutorConfig::default()
    };
    let server = net
        .bind(Endpoint::builder().serve(slow).executor(one))
        .await;
    let client = net.client().await;
    let ask = Client::new(&client, at(&server));
    let load = async || {
        let told = ask.call(&LOAD, ()).await.expect("it is served");
        LoadReport::parse(&told).expect("a report")
    };
    let first = load().await;
    assert_eq!((first.running, first.waiting), (1, 0)); // the question itself
    assert_eq!(first.node, server.node().to_string());
    assert!(first.up > 0.0 && first.connections() >= 1 && first.calls() == 0);
    let running = work::at(&client, at(&server)).one("x".into());
    until(|| server.load().running == 1).await;
    let second = load().await;
    assert_eq!((second.running, second.waiting), (2, 0));
    assert_eq!(
        second.metrics.requests_received,
        first.metrics.requests_received + 2
    );
    assert!(second.up > first.up);
    assert_eq!(client.metrics().calls_started, 3);
    drop(running);
}

/// A report of another version may say more, or less.
#[test]
fn a_report_of_another_version_is_read() {
    let told =
        r#"{"node":"n","up":1.5,"running":1,"waiting":2,"new":[],"metrics":{"panics":3,"new":4}}"#;
    let report = LoadReport::parse(told).expect("a report");
    assert_eq!((report.waiting, report.metrics.panics), (2, 3));
    assert_eq!(report.metrics.calls_started, 0);
    LoadReport::parse("{}").expect_err("that says nothing");
}

async fn health_is_told_and_watched(net: Net) {
    let server = net.endpoint().await;
    let client = net.endpoint().await;
    let client = Client::new(&client, at(&server));
    let check = async |service: &str| client.call(&health::CHECK, (service.into(),)).await;
    assert_eq!(check("").await, Ok(Health::Serving));
    let name = "test.reflection.Index";
    let unknown = check(name).await.expect_err("it is not served yet");
    assert_eq!(unknown.code(), Code::NotFound);

    let mut watch = client.call(&health::WATCH, (name.into(),));
    assert_eq!(watch.next().await, Some(Ok(Health::Unknown)));
    server.serve(index::service(Empty)).expect("it is new");
    assert_eq!(watch.next().await, Some(Ok(Health::Serving)));
    server.set_health(name, Health::NotServing);
    assert_eq!(watch.next().await, Some(Ok(Health::NotServing)));
    assert_eq!(check(name).await, Ok(Health::NotServing));
    assert_eq!(
        check("").await,
        Ok(Health::Serving),
        "that is for the application to say"
    );
    server.set_health(name, Health::Serving);
    assert_eq!(watch.next().await, Some(Ok(Health::Serving)));
    server.set_health("the database", Health::NotServing);
    assert_eq!(check("the database").await, Ok(Health::NotServing));
    let unknown = check("test.reflection")
        .await
        .expect_err("a package is no service");
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn who_watches_a_drained_endpoint_is_told_and_holds_nothing_up() {
    let (net, gate) = (Net::tcp(), Gate::new());
    let passes = gate.clone();
    let slow = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (what,): (String,)| {
            let gate = passes.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        },
    );
    let server = net.serve(slow).await;
    let client = client();
    let client = Client::new(&client, at(&server));
    let mut watch = client.call(&health::WATCH, (String::new(),));
    assert_eq!(watch.next().await, Some(Ok(Health::Serving)));
    let running = work::within(client.clone()).one("done".into());
    patience(async {
        while server.load().running < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let draining = tokio::spawn(async move { server.drain(Duration::from_secs(60)).await });
    assert_eq!(watch.next().await, Some(Ok(Health::NotServing)));
    assert_eq!(watch.next().await, None);
    assert_eq!(watch.outcome(), Some(Outcome::Complete { statuses: 0 }));
    let refused = client.call(&health::CHECK, (String::new(),)).await;
    assert_eq!(
        refused.expect_err("it takes no requests").code(),
        Code::Unavailable
    );
    gate.open(1);
    assert_eq!(running.await, Ok("done".into()));
    patience(draining)
        .await
        .expect("no panic")
        .expect("all is done");
}
