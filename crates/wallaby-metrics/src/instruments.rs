//! What is observed of requests and calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use wallaby::intercept::{Admission, Incoming, Interceptor, RequestEnd};
use wallaby::{
    Builder, CallEnd, CallInterceptor, Endpoint, Failure, MethodDefinition, Outcome, Outgoing,
    Status,
};

use crate::counts::Counts;
use crate::labels::{CodeLabel, EndedCall, EndedRequest, Name, Names, OfMethod, OutcomeLabel};

/// How metrics are kept. There may be more fields in any later version: end a literal with `..Default::default()`.
#[derive(Debug, Clone)]
pub struct MetricsSettings {
    /// How many methods have metrics of their own, of requests and of calls each; all further ones share those of the method
    /// `other`. Those that an endpoint serves by their names come first. Default 200.
    pub methods: usize,
    /// The upper bounds of the buckets of histograms, in seconds, ascending. Default 18 from 100 µs to 60 s.
    pub buckets: Vec<f64>,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        let bounds = [
            0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
            2.5, 5.0, 10.0, 30.0, 60.0,
        ];
        Self {
            methods: 200,
            buckets: bounds.into(),
        }
    }
}

/// What is observed of an endpoint's requests and calls. Clones observe the same. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Instruments(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    served: Names,
    requests: Family<EndedRequest, Counter>,
    requests_live: Family<OfMethod, Gauge>,
    waited: Family<OfMethod, Histogram, Buckets>,
    ran: Family<OfMethod, Histogram, Buckets>,
    called: Names,
    calls: Family<EndedCall, Counter>,
    calls_live: Family<OfMethod, Gauge>,
    took: Family<OfMethod, Histogram, Buckets>,
}

/// What a new method's histograms are made of.
#[derive(Debug, Clone)]
struct Buckets(Arc<[f64]>);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(MetricsSettings::default())
    }
}

impl Shared {
    fn new(settings: MetricsSettings) -> Self {
        let buckets = Buckets(settings.buckets.into());
        let histograms = || Family::new_with_constructor(buckets.clone());
        Self {
            served: Names::new(settings.methods),
            requests: Family::default(),
            requests_live: Family::default(),
            waited: histograms(),
            ran: histograms(),
            called: Names::new(settings.methods),
            calls: Family::default(),
            calls_live: Family::default(),
            took: histograms(),
        }
    }
}

impl Instruments {
    /// Instruments that are set so.
    pub fn new(settings: MetricsSettings) -> Self {
        Self(Arc::new(Shared::new(settings)))
    }

    /// They observe this endpoint. They are interceptors, of which the one added last is asked first: after all others they see
    /// what those refuse. Several endpoints may share them.
    pub fn attach(&self, builder: Builder) -> Builder {
        builder
            .interceptor(self.clone())
            .call_interceptor(self.clone())
    }

    /// Adds what they observe to a registry, and what the endpoint counts itself. Of several endpoints in one registry each needs
    /// instruments of its own, and a label: `registry.sub_registry_with_label(("endpoint".into(), "front".into()))`.
    ///
    /// The registry keeps the endpoint until that is closed ([`Endpoint::close`], [`Endpoint::drain`]).
    pub fn register(&self, registry: &mut Registry, endpoint: &Endpoint) {
        let Shared {
            requests,
            requests_live,
            waited,
            ran,
            calls,
            calls_live,
            took,
            ..
        } = &*self.0;
        let about = "Requests that have ended here, by the status with which they did";
        registry.register("wallaby_requests", about, requests.clone());
        let about = "Requests that wait here, or are handled";
        registry.register("wallaby_requests_live", about, requests_live.clone());
        let about = "How long requests waited for interceptors and for their turn";
        register_seconds(registry, "wallaby_request_wait", about, waited.clone());
        let about = "How long handlers ran, until their requests ended";
        register_seconds(registry, "wallaby_request_duration", about, ran.clone());
        let about = "Calls from here that have ended, and how; each attempt is one";
        registry.register("wallaby_calls", about, calls.clone());
        let about = "Calls from here that have not ended";
        registry.register("wallaby_calls_live", about, calls_live.clone());
        let about = "How long calls took, until all of their tree was complete or they failed";
        register_seconds(registry, "wallaby_call_duration", about, took.clone());
        registry.register_collector(Box::new(Counts(endpoint.clone())));
    }
}

fn register_seconds(registry: &mut Registry, name: &str, about: &str, metric: impl Metric) {
    registry.register_with_unit(name, about, Unit::Seconds, metric);
}

impl Shared {
    fn note_request(&self, method: Name, end: &RequestEnd) {
        let code = CodeLabel(end.status.as_ref().map(Status::code));
        let of = OfMethod {
            method: method.clone(),
        };
        self.requests_live.get_or_create(&of).dec();
        observe(&self.waited, &of, end.waited);
        if let Some(ran) = end.ran {
            observe(&self.ran, &of, ran);
        }
        let ended = EndedRequest { method, code };
        self.requests.get_or_create(&ended).inc();
    }

    fn note_call(&self, method: Name, took: Duration, end: &CallEnd) {
        let outcome = match &end.outcome {
            Outcome::Complete { statuses: 0 } => OutcomeLabel::Complete,
            Outcome::Complete { .. } => OutcomeLabel::Statuses,
            Outcome::Failed(Failure::Aborted { .. }) => OutcomeLabel::Aborted,
            // A status has ended it, and that is what it says.
            Outcome::Failed(Failure::FailedFast) => OutcomeLabel::Statuses,
            Outcome::Failed(_) => OutcomeLabel::Failed,
        };
        let code = CodeLabel(end.code());
        let of = OfMethod {
            method: method.clone(),
        };
        self.calls_live.get_or_create(&of).dec();
        observe(&self.took, &of, took);
        let ended = EndedCall {
            method,
            outcome,
            code,
        };
        self.calls.get_or_create(&ended).inc();
    }
}

fn observe(histograms: &Family<OfMethod, Histogram, Buckets>, of: &OfMethod, took: Duration) {
    histograms.get_or_create(of).observe(took.as_secs_f64());
}

impl Interceptor for Instruments {
    /// What is served by its name has a label before any stranger has named another.
    fn concerns(&self, method: &MethodDefinition) -> bool {
        let method = self.0.served.label(method.name());
        drop(self.0.requests_live.get_or_create(&OfMethod { method }));
        true
    }

    fn admit(&self, request: &Incoming) -> Admission {
        let method = self.0.served.label(request.definition().name());
        let of = OfMethod {
            method: method.clone(),
        };
        self.0.requests_live.get_or_create(&of).inc();
        let shared = Arc::clone(&self.0);
        request.on_end(move |end| shared.note_request(method, end));
        Admission::Run
    }
}

impl CallInterceptor for Instruments {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        let method = self.0.called.label(outgoing.method.name());
        let of = OfMethod {
            method: method.clone(),
        };
        self.0.calls_live.get_or_create(&of).inc();
        let (shared, begun) = (Arc::clone(&self.0), Instant::now());
        outgoing.on_end(move |end| shared.note_call(method.clone(), begun.elapsed(), end));
        Ok(())
    }
}
