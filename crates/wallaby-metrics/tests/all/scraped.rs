//! What Prometheus gets, and whether the page about it says so.

use std::collections::BTreeSet;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wallaby::intercept::{Admission, Incoming};
use wallaby::{Address, Endpoint, ExecutorConfig, Many, One, Request, Status};
use wallaby_metrics::{Instruments, text};

use crate::exposition::Exposition;
use crate::scrape;

#[wallaby::service(package = "test")]
trait Work {
    async fn one(what: String) -> String;
    async fn many(what: String) -> Many<String>;
}

/// Does what it is told; what it delegates goes there.
struct Obedient(Option<Address>);

#[wallaby::serve]
impl Work for Obedient {
    async fn one(&self, request: Request<One<String>>, what: String) -> Result<(), Status> {
        match (&*what, &self.0) {
            ("fail", _) => Err(Status::not_found("no such thing")),
            ("wait", _) => std::future::pending().await,
            ("hop", Some(next)) => Ok(request.forward(next, work::one("answer".into())).await?),
            _ => Ok(request.respond(what).await?),
        }
    }

    async fn many(&self, request: Request<Many<String>>, what: String) -> Result<(), Status> {
        request.reply(what).await?;
        Err(Status::data_loss("the rest is gone"))
    }
}

/// An endpoint and what is scraped of it.
async fn observed(endpoint: wallaby::Builder) -> (Endpoint, Registry) {
    let instruments = Instruments::default();
    let builder = instruments.attach(endpoint).listen("tcp://127.0.0.1:0");
    let endpoint = builder.bind().await.expect("a port is free");
    let mut registry = Registry::default();
    instruments.register(&mut registry, &endpoint);
    (endpoint, registry)
}

/// All that is told, wherever it is known.
async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
    waited.expect("it does not come to that");
}

#[tokio::test]
async fn requests_and_calls_are_told_by_method_and_how_they_ended() {
    let leaf = Endpoint::builder().serve(work::service(Obedient(None)));
    let (leaf, of_leaf) = observed(leaf).await;
    let next = leaf.address().cloned();
    // What others refuse that were added before is told, too.
    let refuse = |request: &Incoming| match request.metadata().get("refuse") {
        Some(_) => Admission::Refuse(Status::permission_denied("not you")),
        None => Admission::Run,
    };
    let one = ExecutorConfig {
        concurrency: 1,
        queue: 0,
        ..ExecutorConfig::default()
    };
    let root = Endpoint::builder().serve(work::service(Obedient(next)));
    let (root, of_root) = observed(root.interceptor(refuse).executor(one)).await;
    let (client, of_client) = observed(Endpoint::builder()).await;
    let work = work::at(&client, root.address().expect("it listens"));

    for what in ["answer", "answer", "hop"] {
        work.one(what.into()).await.expect("an answer");
    }
    work.one("fail".into()).await.expect_err("a status");
    let mut call = work.many("x".into());
    while call.next().await.is_some() {}
    let refused = work.clone().metadata("refuse", "yes").one("answer".into());
    refused.await.expect_err("an interceptor says no");
    let waiting = work.one("wait".into());
    until(|| root.load().running == 1).await;
    work.one("answer".into())
        .await
        .expect_err("one runs already");
    let live = Exposition::parse(&text(&of_root));
    assert_eq!(
        live.value("wallaby_requests_live{method=\"test.Work/one\"}"),
        1.0
    );
    assert_eq!(live.value("wallaby_handlers_running"), 1.0);
    let live = Exposition::parse(&text(&of_client));
    assert_eq!(
        live.value("wallaby_calls_live{method=\"test.Work/one\"}"),
        1.0
    );
    drop(waiting);
    until(|| root.load().running == 0).await;
    let late = work
        .clone()
        .deadline(Duration::from_millis(20))
        .one("wait".into());
    late.await.expect_err("it hangs");
    until(|| root.load().running == 0).await;

    let root_saw = Exposition::parse(&text(&of_root));
    let requests = |method: &str, code: &str| {
        let name =
            format!("wallaby_requests_total{{method=\"test.Work/{method}\",code=\"{code}\"}}");
        root_saw.value(&name)
    };
    assert_eq!(requests("one", "ok"), 3.0);
    assert_eq!(requests("one", "not_found"), 1.0);
    assert_eq!(requests("many", "data_loss"), 1.0);
    assert_eq!(requests("one", "permission_denied"), 1.0);
    assert_eq!(requests("one", "resource_exhausted"), 1.0);
    assert!(requests("one", "cancelled") >= 1.0);
    assert_eq!(
        root_saw.value("wallaby_requests_live{method=\"test.Work/one\"}"),
        0.0
    );
    // Those that ran; two were refused.
    let ran = "wallaby_request_duration_seconds_count{method=\"test.Work/one\"}";
    let waited = "wallaby_request_wait_seconds_count{method=\"test.Work/one\"}";
    assert_eq!(root_saw.value(ran) + 2.0, root_saw.value(waited));
    let all = "wallaby_request_duration_seconds_bucket{le=\"+Inf\",method=\"test.Work/one\"}";
    assert_eq!(root_saw.value(ran), root_saw.value(all));
    assert_eq!(root_saw.value("wallaby_requests_refused_total"), 1.0);
    assert!(root_saw.value("wallaby_received_bytes_total") > 100.0);
    assert!(root_saw.value("wallaby_connections") >= 1.0);

    let leaf_saw = Exposition::parse(&text(&of_leaf));
    let one = "wallaby_requests_total{method=\"test.Work/one\",code=\"ok\"}";
    assert_eq!(leaf_saw.value(one), 1.0);

    let client_saw = Exposition::parse(&text(&of_client));
    let calls = |method: &str, outcome: &str, code: &str| {
        let labels = format!("method=\"test.Work/{method}\",outcome=\"{outcome}\",code=\"{code}\"");
        client_saw.value(&format!("wallaby_calls_total{{{labels}}}"))
    };
    assert_eq!(calls("one", "complete", "ok"), 3.0);
    assert_eq!(calls("one", "statuses", "not_found"), 1.0);
    assert_eq!(calls("many", "statuses", "data_loss"), 1.0);
    assert_eq!(calls("one", "aborted", "cancelled"), 1.0);
    assert_eq!(calls("one", "failed", "deadline_exceeded"), 1.0);
    assert_eq!(
        client_saw.value("wallaby_calls_live{method=\"test.Work/one\"}"),
        0.0
    );
    let took = "wallaby_call_duration_seconds_sum{method=\"test.Work/one\"}";
    assert!(client_saw.value(took) > 0.02);
    for endpoint in [client, root, leaf] {
        endpoint.close();
    }
}

/// The example answers as an HTTP server does, and what it answers is as the page says.
#[tokio::test]
async fn the_example_is_scraped_and_each_metric_is_in_the_docs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let local = tokio::task::LocalSet::new();
    local.spawn_local(async move {
        scrape::run(listener)
            .await
            .map_err(|error| error.to_string())
    });
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let question = format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n");
        stream
            .write_all(question.as_bytes())
            .await
            .expect("it reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("it answers");
        answer
    };
    let scraped = local
        .run_until(async {
            assert!(ask("/").await.starts_with("HTTP/1.1 404 "));
            loop {
                let answer = ask("/metrics").await;
                let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
                assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
                assert!(head.contains(wallaby_metrics::CONTENT_TYPE), "{head}");
                let scraped = Exposition::parse(body);
                // Both outcomes were seen, so that all families are there.
                let codes = scraped.labels("wallaby_requests", "code");
                if codes == BTreeSet::from(["invalid_argument".into(), "ok".into()]) {
                    return scraped;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    for (name, family) in &scraped.families {
        assert!(!family.about.is_empty(), "{name}");
        let unit = family.unit.as_ref();
        assert!(unit.is_none_or(|unit| name.ends_with(&**unit)), "{name}");
    }
    // In the docs a counter has the name that is asked for.
    let exposed: BTreeSet<String> = (scraped.families.iter())
        .map(|(name, family)| match &*family.kind {
            "counter" => format!("{name}_total"),
            _ => name.clone(),
        })
        .collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `wallaby_"));
    let rows = rows.filter_map(|row| row.split(['`', '{']).next());
    let documented: BTreeSet<String> = rows.map(|name| format!("wallaby_{name}")).collect();
    assert_eq!(exposed, documented);
}
