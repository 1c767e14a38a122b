//! A call whose tree is spread over three servers, as a trace:
//!
//! ```text
//! docker run --rm -p 16686:16686 -p 4318:4318 jaegertracing/jaeger:2.9.0
//! cargo run -p wallaby-otel --example tree [http://COLLECTOR:4318/v1/traces]
//! ```
//!
//! Then look for the service `library` at `http://localhost:16686`.

use opentelemetry::trace::{Tracer, TracerProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use wallaby::{Address, Endpoint, Many, Request, Status};
use wallaby_otel::{Tracing, context, otlp};

#[wallaby::service(package = "library")]
trait Index {
    /// Lines with this word, from all shelves.
    async fn find(word: String) -> Many<String>;
}

#[wallaby::service(package = "library")]
trait Shelf {
    /// Lines with this word.
    async fn read(word: String) -> Many<String>;
}

/// Hands each question to all shelves.
struct Catalogue(Vec<Address>);

#[wallaby::serve]
impl Index for Catalogue {
    async fn find(&self, request: Request<Many<String>>, word: String) -> Result<(), Status> {
        for shelf in &self.0 {
            request.delegate(shelf, shelf::read(word.clone())).await?;
        }
        Ok(())
    }
}

struct Books {
    lines: &'static [&'static str],
    spans: SdkTracerProvider,
}

#[wallaby::serve]
impl Shelf for Books {
    async fn read(&self, request: Request<Many<String>>, word: String) -> Result<(), Status> {
        // A span of the handler's own, below its hop's.
        let tracer = self.spans.tracer("books");
        let lines: Vec<_> = tracer.in_span_with_context("opens books", &context(&request), |_| {
            let lines = self.lines.iter().filter(|line| line.contains(&word));
            lines.collect()
        });
        if lines.is_empty() {
            return Err(Status::not_found(format!("no {word} here")));
        }
        for line in lines {
            request.reply((*line).to_owned()).await?;
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let collector = std::env::args().nth(1);
    let provider = otlp("library", collector.as_deref())?;
    let found = run(&provider).await?;
    println!("{}", found.join("\n"));
    // It may have to wait for the collector.
    Ok(tokio::task::spawn_blocking(move || provider.shutdown()).await??)
}

/// Asks three servers for a word that two of them have.
pub(crate) async fn run(
    provider: &SdkTracerProvider,
) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let tracing = Tracing::new(provider);
    let bind =
        |builder: wallaby::Builder| tracing.attach(builder).listen("tcp://127.0.0.1:0").bind();
    let mut shelves = Vec::new();
    for lines in [
        &["a call is a tree of hops", "hops and malt"][..],
        &["nothing of the kind"][..],
    ] {
        let spans = provider.clone();
        let shelf = bind(Endpoint::builder().serve(shelf::service(Books { lines, spans }))).await?;
        shelves.push(shelf);
    }
    let known = shelves.iter().filter_map(|shelf| shelf.address().cloned());
    let catalogue = Catalogue(known.collect());
    let root = bind(Endpoint::builder().serve(index::service(catalogue))).await?;
    let client = tracing.attach(Endpoint::builder()).bind().await?;

    let mut call = index::at(&client, root.address().expect("it listens")).find("hops".into());
    let mut found = Vec::new();
    while let Some(answer) = call.next().await {
        found.push(answer.unwrap_or_else(|error| error.to_string()));
    }
    drop(call);
    Ok(found)
}
