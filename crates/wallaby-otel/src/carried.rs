//! Trace contexts in metadata.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use wallaby::{Client, Metadata, RequestInfo};

/// The context of the hop that handles this request, for spans of its handler's own:
/// `tracer.start_with_context("reads the disk", &context(&request))`. That of no trace if no [`Tracing`](crate::Tracing) is at its
/// endpoint.
pub fn context(request: &RequestInfo) -> Context {
    let own = request.extensions().get::<HopContext>();
    own.map_or_else(Context::new, |own| own.0.clone())
}

/// What a hop's handler finds among its request's extensions.
pub(crate) struct HopContext(pub(crate) Context);

/// The calls of this client have this parent, whatever is current where they are made: a span of a handler's own.
#[must_use]
pub fn under(client: Client, parent: &Context) -> Client {
    (pairs(parent).into_iter()).fold(client, |client, (key, value)| client.metadata(&key, &value))
}

/// What tells a context to others.
pub(crate) fn pairs(context: &Context) -> Vec<(String, String)> {
    struct Pairs(Vec<(String, String)>);
    impl Injector for Pairs {
        fn set(&mut self, key: &str, value: String) {
            // No trace state is not to be told.
            if !value.is_empty() {
                self.0.push((key.to_owned(), value));
            }
        }
    }
    let mut pairs = Pairs(Vec::new());
    TraceContextPropagator::new().inject_context(context, &mut pairs);
    pairs.0
}

/// The context that metadata tell; that of no trace if they tell none, or none that can be read.
pub(crate) fn told(metadata: &Metadata) -> Context {
    struct Told<'a>(&'a Metadata);
    impl Extractor for Told<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key)
        }

        fn keys(&self) -> Vec<&str> {
            self.0.iter().map(|(key, _)| key).collect()
        }
    }
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Told(metadata))
}
