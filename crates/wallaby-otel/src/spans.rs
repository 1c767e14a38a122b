//! Which spans there are, and what they say.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{
    SpanKind, Status as SpanStatus, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use wallaby::intercept::{Admission, Incoming, Interceptor, RequestEnd};
use wallaby::{
    Builder, CallEnd, CallInterceptor, Code, MethodDefinition, Outcome, Outgoing, Status,
};

use crate::carried::{HopContext, pairs, told};

/// Makes spans of an endpoint's calls and requests. Cheap to clone; endpoints may share it.
///
/// Those of Wallaby's own services, as of health, have none.
#[derive(Debug, Clone)]
pub struct Tracing(SdkTracer);

impl Tracing {
    /// Spans go where this provider sends them, and are as many as its sampler says.
    pub fn new(provider: &SdkTracerProvider) -> Self {
        Self(provider.tracer("wallaby"))
    }

    /// The endpoint's calls and requests have spans. These are interceptors, of which the one added last is asked first: after all
    /// others they see what those refuse.
    ///
    /// The parent of a call's span is told by its metadata, as on behalf of a request; if they tell none, it is what is current
    /// where the call is made.
    pub fn attach(&self, builder: Builder) -> Builder {
        builder
            .interceptor(self.clone())
            .call_interceptor(self.clone())
    }

    /// A span that has begun.
    fn begin(
        &self,
        kind: SpanKind,
        parent: &Context,
        method: &str,
        attributes: Vec<KeyValue>,
    ) -> Context {
        let (service, name) = method.rsplit_once('/').unwrap_or(("", method));
        let mut all = vec![
            KeyValue::new("rpc.system", "wallaby"),
            KeyValue::new("rpc.service", service.to_owned()),
            KeyValue::new("rpc.method", name.to_owned()),
        ];
        all.extend(attributes);
        let span = self.0.span_builder(method.to_owned()).with_kind(kind);
        parent.with_span(self.0.build_with_context(span.with_attributes(all), parent))
    }
}

/// Whether a method has spans.
fn is_traced(method: &MethodDefinition) -> bool {
    !method.name().starts_with("wallaby.")
}

impl Interceptor for Tracing {
    fn concerns(&self, method: &MethodDefinition) -> bool {
        is_traced(method)
    }

    fn admit(&self, request: &Incoming) -> Admission {
        let parent = told(request.metadata());
        let attributes = vec![
            KeyValue::new("wallaby.call", request.call_id().to_string()),
            KeyValue::new("wallaby.request", request.id().to_string()),
            KeyValue::new("wallaby.depth", i64::from(request.depth())),
        ];
        let span = self.begin(SpanKind::Server, &parent, request.method(), attributes);
        for (key, value) in pairs(&span) {
            // Where there is no room what it leads to has its parent: a hop is missing, not the trace.
            let _ = request.set_inherited(&key, &value);
        }
        request.extensions().insert(HopContext(span.clone()));
        request.on_end(move |end| end_request(&span, end));
        Admission::Run
    }
}

impl CallInterceptor for Tracing {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        if !is_traced(&outgoing.method) {
            return Ok(());
        }
        let mut parent = told(&outgoing.options.metadata);
        if !parent.span().span_context().is_valid() {
            parent = Context::current();
        }
        let attributes = vec![
            KeyValue::new("server.address", outgoing.server.to_string()),
            KeyValue::new("wallaby.attempt", i64::from(outgoing.attempt)),
        ];
        let span = self.begin(
            SpanKind::Client,
            &parent,
            outgoing.method.name(),
            attributes,
        );
        let metadata = &mut Arc::make_mut(&mut outgoing.options).metadata;
        for (key, value) in pairs(&span) {
            let _ = metadata.insert(key, value); // as above
        }
        outgoing.on_end(move |end| end_call(&span, end));
        Ok(())
    }
}

fn end_request(context: &Context, end: &RequestEnd) {
    let span = context.span();
    span.set_attribute(KeyValue::new("wallaby.waited", seconds(end.waited)));
    if let Some(ran) = end.ran {
        span.set_attribute(KeyValue::new("wallaby.ran", seconds(ran)));
    }
    if let Some(status) = &end.status {
        let code = status.code();
        span.set_attribute(KeyValue::new("rpc.response.status_code", code.to_string()));
        if is_of_server(code) {
            span.set_status(SpanStatus::error(status.to_string()));
        }
    }
    span.end();
}

fn end_call(context: &Context, end: &CallEnd) {
    let span = context.span();
    span.set_attribute(KeyValue::new("wallaby.call", end.call.to_string()));
    if let Some(code) = end.code() {
        span.set_attribute(KeyValue::new("rpc.response.status_code", code.to_string()));
        span.set_status(SpanStatus::error(match &end.outcome {
            Outcome::Failed(failure) => failure.to_string(),
            Outcome::Complete { statuses: 1 } => code.to_string(),
            Outcome::Complete { statuses } => format!("{statuses} statuses, the first: {code}"),
        }));
    }
    span.end();
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Whether a status says that its server is not as it should be, rather than that its caller has asked for something that is not
/// there. As OpenTelemetry's conventions have it for gRPC.
fn is_of_server(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
            | Code::Unanswered
            | Code::Panicked
            | Code::Mismatch
            | Code::Unfinished
    )
}
