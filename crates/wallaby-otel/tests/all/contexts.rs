//! Trace contexts come in and go out, whoever makes them.

use std::sync::{Arc, Mutex};

use opentelemetry::trace::{
    SpanId, SpanKind, Status as SpanStatus, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use wallaby::{Address, Endpoint, One, Request, Status};
use wallaby_otel::{Tracing, context, under};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

#[wallaby::service(package = "test")]
trait Work {
    /// What the server was told of the trace.
    async fn told() -> String;
    async fn call() -> String;
    async fn call_below() -> String;
    async fn panics() -> String;
}

/// Calls go on there.
struct Server(Address);

#[wallaby::serve]
impl Work for Server {
    async fn told(&self, request: Request<One<String>>) -> Result<(), Status> {
        let told = |key| request.metadata().get(key).unwrap_or("none").to_owned();
        let told = format!("{} {}", told("traceparent"), told("tracestate"));
        Ok(request.respond(told).await?)
    }

    async fn call(&self, request: Request<One<String>>) -> Result<(), Status> {
        let told = work::within(request.call().at(&self.0)).told().await?;
        Ok(request.respond(told).await?)
    }

    async fn call_below(&self, request: Request<One<String>>) -> Result<(), Status> {
        let own = context(&request);
        let remote = own.span().span_context().clone();
        let below = own.with_remote_span_context(opentelemetry::trace::SpanContext::new(
            remote.trace_id(),
            SpanId::from(7),
            remote.trace_flags(),
            true,
            remote.trace_state().clone(),
        ));
        let told = work::within(under(request.call().at(&self.0), &below))
            .told()
            .await?;
        Ok(request.respond(told).await?)
    }

    async fn panics(&self, _: Request<One<String>>) -> Result<(), Status> {
        panic!("as it was told")
    }
}

/// Keeps what is exported.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().expect("nobody panics with it").extend(batch);
        Ok(())
    }
}

/// A server and a client, whose spans are kept.
async fn world() -> (Endpoint, Endpoint, Address, Kept, SdkTracerProvider) {
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(kept.clone())
        .build();
    let tracing = Tracing::new(&provider);
    let leaf = Endpoint::builder().serve(work::service(Server(
        "mem://nobody".parse().expect("an address"),
    )));
    let leaf = leaf
        .listen("tcp://127.0.0.1:0")
        .bind()
        .await
        .expect("a port");
    let next = leaf.address().expect("it listens").clone();
    let server = tracing.attach(Endpoint::builder().serve(work::service(Server(next))));
    let server = server
        .listen("tcp://127.0.0.1:0")
        .bind()
        .await
        .expect("a port");
    let address = server.address().expect("it listens").clone();
    (server, leaf, address, kept, provider)
}

fn spans(kept: &Kept) -> Vec<SpanData> {
    std::mem::take(&mut *kept.0.lock().expect("nobody panics with it"))
}

/// The caller is a program without spans of its own, which tells where it is in a trace.
#[tokio::test]
async fn what_others_tell_is_the_parent_and_is_told_on() {
    let (_server, _leaf, address, kept, _provider) = world().await;
    let client = Endpoint::client().expect("there is a runtime");
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let work = work::at(&client, address)
        .metadata("traceparent", &parent)
        .metadata("tracestate", "vendor=1");
    // A handler sees what came.
    assert_eq!(work.told().await, Ok(format!("{parent} vendor=1")));
    let [span] = &spans(&kept)[..] else {
        panic!("one span")
    };
    assert_eq!(span.parent_span_id.to_string(), PARENT);
    assert!(span.parent_span_is_remote);
    // What it calls is told its hop's span, or rather that of the call.
    let told = work.call().await.expect("an answer");
    let all = spans(&kept);
    let of = |kind: SpanKind| {
        all.iter()
            .find(|span| span.span_kind == kind)
            .expect("such a span")
    };
    let (hop, call) = (of(SpanKind::Server), of(SpanKind::Client));
    assert_eq!(all.len(), 2);
    assert_eq!(call.parent_span_id, hop.span_context.span_id());
    assert_eq!(hop.parent_span_id.to_string(), PARENT);
    let expected = format!("00-{TRACE}-{}-01 vendor=1", call.span_context.span_id());
    assert_eq!(told, expected);
    // Or below a span of its own.
    work.call_below().await.expect("an answer");
    let all = spans(&kept);
    let call = all
        .iter()
        .find(|span| span.span_kind == SpanKind::Client)
        .expect("a call");
    assert_eq!(call.parent_span_id, SpanId::from(7));
    assert_eq!(call.span_context.trace_id().to_string(), TRACE);
}

#[tokio::test]
async fn what_is_not_sampled_has_no_span_and_what_is_no_context_begins_one() {
    let (_server, _leaf, address, kept, _provider) = world().await;
    let client = Endpoint::client().expect("there is a runtime");
    let work = work::at(&client, address);
    let told = work
        .clone()
        .metadata("traceparent", &format!("00-{TRACE}-{PARENT}-00"))
        .call()
        .await;
    assert!(spans(&kept).is_empty());
    let told = told.expect("an answer");
    assert!(
        told.starts_with(&format!("00-{TRACE}-")) && told.ends_with("-00 none"),
        "{told}"
    );
    for nonsense in ["", "x", "00-0-0-01", "00-é-b7ad6b7169203331-01"] {
        work.clone()
            .metadata("traceparent", nonsense)
            .told()
            .await
            .expect("an answer");
        let [span] = &spans(&kept)[..] else {
            panic!("one span")
        };
        assert_eq!(span.parent_span_id, SpanId::INVALID, "{nonsense:?}");
    }
}

#[tokio::test]
async fn calls_are_below_what_is_current_and_panics_are_errors() {
    let (_server, _leaf, address, kept, provider) = world().await;
    let client = Tracing::new(&provider).attach(Endpoint::builder());
    let client = client.bind().await.expect("there is a runtime");
    let work = work::at(&client, address);
    let tracer = provider.tracer("test");
    let call = tracer.in_span("outer", |_| work.panics());
    call.await.expect_err("it panics");
    let all = spans(&kept);
    let by = |kind: SpanKind| {
        all.iter()
            .find(|span| span.span_kind == kind)
            .expect("such a span")
    };
    let (outer, call, hop) = (
        by(SpanKind::Internal),
        by(SpanKind::Client),
        by(SpanKind::Server),
    );
    assert_eq!(call.parent_span_id, outer.span_context.span_id());
    assert_eq!(hop.parent_span_id, call.span_context.span_id());
    assert!(
        matches!(&hop.status, SpanStatus::Error { description } if description.contains("as it was told"))
    );
    assert!(
        matches!(&call.status, SpanStatus::Error { description } if description.contains("panicked"))
    );
}
