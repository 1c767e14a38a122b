//! How spans get to a collector.

use std::io::Read;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use ureq::Agent;

/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long its answer may be.
const LONGEST: u64 = 64 * 1024;

/// A provider whose spans go to a collector by OTLP, over HTTP without TLS, from a thread of its own that sends what has come
/// together in 5 s. `service` is the name under which they are shown, and `collector` a URL like
/// `http://localhost:4318/v1/traces`; if nothing is said, what the usual variables of the environment say
/// (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`), or port 4318 of this machine.
///
/// What waits when the process ends is lost, unless `shutdown` of the provider was called. For a collector that wants TLS make a
/// provider with another client: `opentelemetry_otlp` has several.
///
/// # Errors
///
/// If that is no URL.
pub fn otlp(
    service: &str,
    collector: Option<&str>,
) -> Result<SdkTracerProvider, ExporterBuildError> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE));
    let exporter = SpanExporter::builder().with_http();
    let exporter = exporter.with_http_client(Client(config.build().into()));
    let exporter = match collector {
        Some(collector) => exporter.with_endpoint(collector),
        None => exporter,
    };
    let resource = Resource::builder().with_service_name(service.to_owned());
    let provider = SdkTracerProvider::builder().with_resource(resource.build());
    Ok(provider.with_batch_exporter(exporter.build()?).build())
}

/// Asks in the exporter's own thread, which may block.
#[derive(Debug)]
struct Client(Agent);

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, body) = answer.into_parts();
        let mut whole = Vec::new();
        body.into_reader().take(LONGEST).read_to_end(&mut whole)?;
        Ok(Response::from_parts(head, whole.into()))
    }
}
