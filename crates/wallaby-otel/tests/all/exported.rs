//! A call whose tree is spread over three servers is a trace at a collector.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use wallaby_otel::otlp;

use crate::collector::{Collector, attribute};
use crate::tree;

/// The example's: a call, the index, two shelves that it delegates to, and a span of each shelf's own.
#[tokio::test]
async fn each_hop_has_a_span_below_who_sent_it_there() {
    let collector = Collector::start();
    let provider = otlp("library", Some(&collector.url)).expect("a URL");
    let mut found = tree::run(&provider).await.expect("three ports are free");
    found.sort();
    assert_eq!(found[..2], ["a call is a tree of hops", "hops and malt"]);
    assert!(found[2].starts_with("not found: no hops here"), "{found:?}");
    let shut_down = tokio::task::spawn_blocking(move || provider.shutdown());
    shut_down
        .await
        .expect("it does not panic")
        .expect("the collector listens");
    let (service, spans) = collector.next();
    assert_eq!(service, "library");

    let by = |name: &str, kind: SpanKind| -> Vec<&Span> {
        let of = spans.iter().filter(|span| span.name == name);
        of.filter(|span| span.kind() == kind).collect()
    };
    let [call] = by("library.Index/find", SpanKind::Client)[..] else {
        panic!("{spans:#?}");
    };
    let [index] = by("library.Index/find", SpanKind::Server)[..] else {
        panic!("{spans:#?}");
    };
    let shelves = by("library.Shelf/read", SpanKind::Server);
    let opened = by("opens books", SpanKind::Internal);
    assert_eq!(
        (shelves.len(), opened.len(), spans.len()),
        (2, 2, 6),
        "{spans:#?}"
    );
    // One trace, of which each has the right parent.
    assert!(spans.iter().all(|span| span.trace_id == call.trace_id));
    assert!(call.parent_span_id.is_empty());
    assert_eq!(index.parent_span_id, call.span_id);
    for shelf in &shelves {
        assert_eq!(shelf.parent_span_id, index.span_id);
        let below = opened
            .iter()
            .filter(|span| span.parent_span_id == shelf.span_id);
        assert_eq!(below.count(), 1);
        assert_eq!(attribute(shelf, "wallaby.depth").as_deref(), Some("1"));
        assert_eq!(
            attribute(shelf, "wallaby.call"),
            attribute(call, "wallaby.call")
        );
    }
    // A hop ends before the call that it is of, and begins after it.
    for span in &spans {
        assert!(span.start_time_unix_nano >= call.start_time_unix_nano);
        assert!(
            span.end_time_unix_nano <= call.end_time_unix_nano,
            "{span:#?}"
        );
    }
    // What is not there is no fault of the server; for the call it is an error.
    let code = |span: &Span| {
        span.status
            .as_ref()
            .map_or(StatusCode::Unset, |status| status.code())
    };
    let without = shelves.iter().filter(|shelf| {
        attribute(shelf, "rpc.response.status_code").as_deref() == Some("not found")
    });
    assert_eq!(without.count(), 1);
    assert!(shelves.iter().all(|shelf| code(shelf) == StatusCode::Unset));
    assert_eq!(code(index), StatusCode::Unset);
    assert_eq!(code(call), StatusCode::Error);
    assert_eq!(
        call.status.as_ref().map(|status| &*status.message),
        Some("not found")
    );
    assert_eq!(
        attribute(index, "rpc.service").as_deref(),
        Some("library.Index")
    );
    assert_eq!(attribute(index, "rpc.method").as_deref(), Some("find"));
}
