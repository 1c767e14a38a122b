//! A collector of OTLP over HTTP, as far as exporters of spans need one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

/// How long a test waits for what is exported.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was received.
pub(crate) struct Collector {
    pub(crate) url: String,
    received: Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (told, received) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = told.clone();
                thread::spawn(move || serve(stream, &told));
            }
        });
        let url = format!("http://{address}/v1/traces");
        Self { url, received }
    }

    /// The next spans that are exported, and the service that they are of.
    pub(crate) fn next(&self) -> (String, Vec<Span>) {
        let received = self.received.recv_timeout(PATIENCE);
        let received = received.expect("nothing is exported");
        let mut spans = Vec::new();
        let mut service = String::new();
        for of_resource in received.resource_spans {
            let resource = of_resource.resource.expect("it says of what");
            let named = resource
                .attributes
                .iter()
                .find(|pair| pair.key == "service.name");
            service = match named.and_then(|pair| pair.value.as_ref()?.value.clone()) {
                Some(Value::StringValue(name)) => name,
                other => panic!("a service is called {other:?}"),
            };
            let scopes = of_resource.scope_spans.into_iter();
            spans.extend(scopes.flat_map(|scope| scope.spans));
        }
        (service, spans)
    }
}

/// Answers what comes over a connection, until that ends.
fn serve(stream: TcpStream, told: &Sender<ExportTraceServiceRequest>) -> Option<()> {
    let mut input = BufReader::new(stream.try_clone().ok()?);
    let mut output = stream;
    loop {
        let mut lines = (&mut input).lines().map_while(Result::ok);
        let asked = lines.next()?;
        assert!(asked.starts_with("POST /v1/traces HTTP/1.1"), "{asked}");
        let head: BTreeMap<String, String> = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_ascii_lowercase(), value.trim().to_owned()))
            })
            .collect();
        assert_eq!(head["content-type"], "application/x-protobuf");
        let length = head["content-length"].parse().expect("a number");
        let mut body = vec![0; length];
        input.read_exact(&mut body).ok()?;
        let request = ExportTraceServiceRequest::decode(&body[..]);
        told.send(request.expect("OTLP")).ok()?;
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        output.write_all(answer.as_bytes()).ok()?;
    }
}

/// A pair of a span, as text.
pub(crate) fn attribute(span: &Span, key: &str) -> Option<String> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    match pair.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}
