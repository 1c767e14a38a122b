//! Whoever invents methods makes no metrics of them.

use std::collections::BTreeSet;

use prometheus_client::registry::Registry;
use wallaby::{Address, Client, Endpoint, MethodDefinition, RawRequest, Service, Status};
use wallaby_metrics::{Instruments, MetricsSettings, text};

use crate::exposition::Exposition;

#[wallaby::service(package = "test")]
trait Last {
    async fn served() -> ();
}

struct Nothing;

#[wallaby::serve]
impl Last for Nothing {
    async fn served(&self) {}
}

#[tokio::test]
async fn methods_of_strangers_share_the_metrics_of_other() {
    let settings = MetricsSettings {
        methods: 8,
        ..MetricsSettings::default()
    };
    let (served, called) = (
        Instruments::new(settings.clone()),
        Instruments::new(settings),
    );
    let gateway = Service::new("gateway").catch_all(|request: RawRequest| async move {
        let _ = request;
        Err(Status::unimplemented("nobody knows that"))
    });
    let builder = Endpoint::builder()
        .serve(gateway)
        .serve(last::service(Nothing));
    let builder = served.attach(builder.listen("tcp://127.0.0.1:0"));
    let gateway = builder.bind().await.expect("a port is free");
    let client = called.attach(Endpoint::builder()).bind().await;
    let client = client.expect("there is a runtime");
    let mut registries = [Registry::default(), Registry::default()];
    served.register(&mut registries[0], &gateway);
    called.register(&mut registries[1], &client);

    let address: &Address = gateway.address().expect("it listens");
    let strange = Client::new(&client, address);
    for number in 0..50 {
        let method = MethodDefinition::new(&format!("strange.Stranger/{number}"), "raw", 0, 0);
        let method = method.expect("it has a name").into();
        let mut call = strange.call_raw(&method, Default::default());
        let answer = call.next().await.expect("a status");
        answer.expect_err("a status");
        assert!(call.next().await.is_none());
    }
    // Whoever is served by name has a label, however late it is called.
    last::at(&client, address)
        .served()
        .await
        .expect("an answer");

    let [gateway_saw, client_saw] = registries.map(|registry| Exposition::parse(&text(&registry)));
    for family in [
        "wallaby_requests",
        "wallaby_request_duration_seconds",
        "wallaby_requests_live",
    ] {
        let labels: BTreeSet<_> = gateway_saw.labels(family, "method");
        assert!(labels.len() <= 9, "{labels:?}");
        assert!(labels.contains("test.Last/served"), "{labels:?}");
        assert!(labels.contains("other"), "{labels:?}");
    }
    let labels = client_saw.labels("wallaby_calls", "method");
    assert_eq!(labels.len(), 9, "{labels:?}");
    let others =
        "wallaby_calls_total{method=\"other\",outcome=\"statuses\",code=\"unimplemented\"}";
    assert_eq!(client_saw.value(others), 42.0);
    for endpoint in [client, gateway] {
        endpoint.close();
    }
}
