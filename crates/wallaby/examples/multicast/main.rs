//! One message to several processes: side by side, down a line that passes it on while it arrives, and down one that stores it.
//!
//! ```text
//! cargo run --release -p wallaby --example multicast -- --size 256 --servers 3
//! ```
//!
//! The client starts servers as processes of their own, sends the message to all of them in each way, and prints the
//! *effective bandwidth*: the size of the message by the time until the last server has answered (FlexRPC V-D). On one
//! machine all ways copy as many bytes through one kernel. Between machines the initiator's link is what they differ by.

mod server;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use server::{PUT, Server, Sum};
use wallaby::{Body, CallError, Caller, Endpoint, Forwarding, PipelineSettings};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a chunk.
const CHUNK: usize = 64 * 1024;

/// What a server makes of the bytes: how many, and a sum.
fn add(sum: &mut Sum, bytes: &[u8]) {
    sum.0 += bytes.len() as u64;
    let all = bytes.iter().map(|byte| u64::from(*byte)).sum();
    sum.1 = sum.1.wrapping_add(all);
}

/// So many chunks.
struct Chunks {
    chunk: Bytes,
    left: u64,
}

impl Chunks {
    fn new(count: u64) -> Self {
        let chunk = (0..CHUNK).map(|place| (place % 251) as u8).collect();
        Self { chunk, left: count }
    }

    fn sum(mut self) -> Sum {
        let mut sum = (0, 0);
        while let Some(chunk) = self.make() {
            add(&mut sum, &chunk);
        }
        sum
    }

    fn make(&mut self) -> Option<Bytes> {
        self.left = self.left.checked_sub(1)?;
        Some(self.chunk.clone())
    }
}

impl Stream for Chunks {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.make().map(Ok))
    }
}

/// In which way a message goes to several servers.
#[derive(Debug, Clone, Copy)]
enum Way {
    SideBySide,
    DownALine(Forwarding),
}

const WAYS: [(&str, Way); 3] = [
    ("parallel", Way::SideBySide),
    ("pipelined", Way::DownALine(Forwarding::CutThrough)),
    ("stored", Way::DownALine(Forwarding::StoreAndForward)),
];

/// How long it took until the last server had answered.
async fn send(
    caller: &Caller,
    servers: &[Server],
    chunks: u64,
    way: Way,
) -> Result<Duration, Failed> {
    let addresses = servers.iter().map(|server| server.address.clone());
    let body = || Body::from_stream(Chunks::new(chunks));
    let expected = Chunks::new(chunks).sum();
    let begun = Instant::now();
    let answers: Vec<Result<Sum, CallError>> = match way {
        Way::SideBySide => {
            // Each reads a body of its own.
            let calls = addresses.map(|server| {
                let client = caller.clone().at(server);
                client.call_with_body(&PUT, (false,), body())
            });
            let calls: Vec<_> = calls.collect();
            let mut answers = Vec::new();
            for call in calls {
                answers.push(call.await);
            }
            answers
        }
        Way::DownALine(forwarding) => {
            let settings = PipelineSettings {
                forwarding,
                ..PipelineSettings::default()
            };
            let target = PUT.target((false,)).with_body(body());
            let call = caller.pipeline_with(&settings, addresses, target);
            call.all().await
        }
    };
    let time = begun.elapsed();
    for (server, answer) in servers.iter().zip(answers) {
        if answer? != expected {
            return Err(format!("{} got something else", server.address).into());
        }
    }
    Ok(time)
}

/// The number after an option.
fn option(arguments: &[String], name: &str, default: u64) -> Result<u64, Failed> {
    let Some(position) = arguments.iter().position(|argument| argument == name) else {
        return Ok(default);
    };
    let value = arguments.get(position + 1).map(|value| value.parse());
    match value {
        Some(Ok(value)) if value > 0 => Ok(value),
        _ => Err(format!("{name} takes a number above 0").into()),
    }
}

fn multicast(arguments: &[String]) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let size = option(arguments, "--size", 64)?;
    // A stored message must be whole in memory.
    let stored = size << 21;
    if arguments.first().is_some_and(|first| first == "serve") {
        return runtime.block_on(server::serve(stored));
    }
    let count = option(arguments, "--servers", 3)?;
    let rounds = option(arguments, "--rounds", 3)?;
    let start = || {
        let mut program = Command::new(std::env::current_exe()?);
        Server::start(program.args(["serve", "--size", &size.to_string()]))
    };
    let servers: Vec<Server> = (0..count).map(|_| start()).collect::<Result<_, _>>()?;
    println!("{size} MiB to {count} servers...");
    runtime.block_on(async {
        let endpoint = Endpoint::client()?;
        let caller = endpoint.caller().deadline(Duration::from_secs(3600));
        for round in 0..rounds {
            for (name, way) in WAYS {
                let time = send(&caller, &servers, size << 20 >> 16, way).await?;
                let bandwidth = size as f64 / time.as_secs_f64();
                println!("round {round}: {name:10} {bandwidth:7.0} MiB/s");
            }
        }
        Ok(())
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match multicast(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            eprintln!("usage: multicast [--size MIB] [--servers SERVERS] [--rounds ROUNDS]");
            ExitCode::from(2)
        }
    }
}
