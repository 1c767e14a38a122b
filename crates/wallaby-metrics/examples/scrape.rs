//! An endpoint whose metrics Prometheus can read:
//!
//! ```text
//! cargo run -p wallaby-metrics --example scrape [ADDRESS]
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! A client calls it ten times a second, so that there is something to see. Any HTTP server will do in place of this one, which
//! knows one path.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, timeout};
use wallaby::{Endpoint, One, Request, Status};
use wallaby_metrics::{CONTENT_TYPE, Instruments, text};

#[wallaby::service(package = "example")]
trait Halves {
    /// Half of an even number.
    async fn half(of: u64) -> u64;
}

struct Arithmetic;

#[wallaby::serve]
impl Halves for Arithmetic {
    async fn half(&self, request: Request<One<u64>>, of: u64) -> Result<(), Status> {
        match of % 2 {
            0 => Ok(request.respond(of / 2).await?),
            _ => Err(Status::invalid_argument(format!("{of} is odd"))),
        }
    }
}

/// How long somebody who scrapes may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a question may be.
const LONGEST: usize = 8 * 1024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:9464")).await?;
    println!("http://{}/metrics", listener.local_addr()?);
    run(listener).await
}

/// Serves halves, calls for them, and lets them be watched.
pub(crate) async fn run(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
    let instruments = Instruments::default();
    let builder = Endpoint::builder().serve(halves::service(Arithmetic));
    let builder = instruments.attach(builder.listen("tcp://127.0.0.1:0"));
    let endpoint = builder.bind().await?;
    let mut registry = Registry::default();
    instruments.register(&mut registry, &endpoint);
    let registry = Arc::new(registry);

    let halves = halves::at(&endpoint, endpoint.address().expect("it listens"));
    let mut ticks = interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut number = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, registry) = (accepted?.0, Arc::clone(&registry));
                tokio::spawn(async move { timeout(PATIENCE, answer(stream, &registry)).await });
            }
            _ = ticks.tick() => {
                // Every second one is a status.
                let _ = halves.half(number).await;
                number += 1;
            }
        }
    }
}

/// Answers one question.
async fn answer(mut stream: TcpStream, registry: &Registry) -> std::io::Result<()> {
    let mut question = Vec::new();
    while !question.ends_with(b"\r\n\r\n") && question.len() < LONGEST {
        if stream.read_buf(&mut question).await? == 0 {
            return Ok(());
        }
    }
    let (status, kind, body) = match question.starts_with(b"GET /metrics ") {
        true => ("200 OK", CONTENT_TYPE, text(registry)),
        false => ("404 Not Found", "text/plain", "see /metrics\n".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).await?;
    stream.shutdown().await
}
