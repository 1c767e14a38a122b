//! Calls of Wallaby as traces of OpenTelemetry.
//!
//! [`Tracing`] makes a span for each call that an endpoint makes, and for each request that it handles. The parent of a request's
//! span is who sent the request: the call, or the request that delegated it. So a trace has the call's tree, across processes, and
//! goes on where a service calls others over HTTP: what travels is the W3C trace context, as the metadata `traceparent` and
//! `tracestate`.
//!
//! ```
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use wallaby::Endpoint;
//! use wallaby_otel::Tracing;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or wallaby_otel::otlp("shop", None)?, which exports to a collector on this machine.
//! let provider = SdkTracerProvider::builder().build();
//! let tracing = Tracing::new(&provider);
//! // Last of all, so that what other interceptors refuse has a span, too.
//! let builder = tracing.attach(Endpoint::builder());
//! let endpoint = builder.listen("tcp://127.0.0.1:0").bind().await?;
//! // At the end: what waits to be exported is.
//! provider.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! - `carried`: trace contexts in metadata.
//! - `spans`: which spans there are, and what they say.
//! - `otlp`: how they get to a collector.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod carried;
#[cfg(feature = "otlp")]
mod otlp;
mod spans;

pub use self::carried::{context, under};
#[cfg(feature = "otlp")]
pub use self::otlp::otlp;
pub use self::spans::Tracing;

/// The programs of the page about operation are compiled here, where traces are, and with what they need besides.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/operations.md")]
struct OperationsPage;
