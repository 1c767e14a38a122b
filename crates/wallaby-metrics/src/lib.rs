//! Metrics of Wallaby's endpoints, for Prometheus and whoever else reads OpenMetrics.
//!
//! [`Instruments`] are interceptors of requests and calls: what they observe has the method as a label. [`Instruments::register`]
//! adds that to a registry of `prometheus_client`, which may have metrics of the application, too, with what the endpoint counts
//! itself. [`text`] is what a scrape gets. `docs/operations.md` has each metric with the alert that it is for, and
//! `examples/scrape.rs` a server of them.
//!
//! ```
//! use prometheus_client::registry::Registry;
//! use wallaby::Endpoint;
//! use wallaby_metrics::{Instruments, text};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let instruments = Instruments::default();
//! // Last of all, so that they see what other interceptors refuse.
//! let builder = instruments.attach(Endpoint::builder());
//! let endpoint = builder.listen("tcp://127.0.0.1:0").bind().await?;
//! let mut registry = Registry::default();
//! instruments.register(&mut registry, &endpoint);
//! assert!(text(&registry).contains("wallaby_connections 0\n"));
//! # Ok(())
//! # }
//! ```
//!
//! - `labels`: what metrics are told apart by, and how few values these have.
//! - `instruments`: what is observed of requests and calls.
//! - `counts`: what an endpoint counts itself.

mod counts;
mod instruments;
mod labels;

use prometheus_client::registry::Registry;

pub use self::instruments::{Instruments, MetricsSettings};

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All of a registry as OpenMetrics text, for the answer to a scrape.
pub fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // A collector of the application's may fail; what was written before it is no whole exposition.
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => text,
        Err(_) => "# EOF\n".into(),
    }
}
