//! A long stream through several processes, each of which keeps next to nothing of it.
//!
//! ```text
//! cargo run --release -p wallaby --example stream -- --size 1024 --hops 3
//! ```
//!
//! The client starts servers as processes of their own. *Body*: it sends a body, which each server passes on to the next one
//! while it arrives; the last one says what it got. *Items*: the same with a stream of values of one type. *Down*: it asks the
//! first server, the request is forwarded to the last one, and that one's answers, in order, are the stream. At the end it prints
//! how fast both were, and the most memory that any process had; more than 32 MiB is an error.

use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::process::{Child, Command, ExitCode, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use wallaby::codec::Raw;
use wallaby::{
    Address, Body, Client, Endpoint, Many, Method, One, Request, Service, Status, Streaming,
};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Takes a stream; the last server named answers with its length and sum.
#[wallaby::service(package = "example")]
trait Up {
    async fn body(onward: Vec<String>, body: Body) -> Sum;
    async fn items(onward: Vec<String>, chunks: Streaming<Vec<u8>>) -> Sum;
}

/// Answers with chunks, whose bytes no codec copies; the last server named makes them.
static DOWN: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("example.Stream/down");

/// Bytes of a chunk.
const CHUNK: usize = 64 * 1024;

/// Most memory that a process may have, in KiB.
const MOST_MEMORY: u64 = 32 * 1024;

/// What a stream consisted of.
type Sum = (u64, u64);

fn add(sum: &mut Sum, chunk: &[u8]) {
    sum.0 += chunk.len() as u64;
    let words = chunk
        .iter()
        .fold(0, |all: u64, byte| all.rotate_left(5) ^ u64::from(*byte));
    sum.1 = sum.1.wrapping_mul(31).wrapping_add(words);
}

/// So many chunks, each another one.
struct Chunks {
    made: u64,
    count: u64,
    sum: Sum,
}

impl Chunks {
    fn new(count: u64) -> Self {
        Self {
            made: 0,
            count,
            sum: (0, 0),
        }
    }

    fn make(&mut self) -> Option<Bytes> {
        if self.made == self.count {
            return None;
        }
        let mut chunk = vec![self.made as u8; CHUNK];
        chunk[..8].copy_from_slice(&self.made.to_le_bytes());
        self.made += 1;
        Some(chunk.into())
    }
}

impl Stream for Chunks {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.make().map(Ok))
    }
}

// The servers.

struct Summing;

#[wallaby::serve]
impl Up for Summing {
    async fn body(
        &self,
        request: Request<One<Sum>>,
        mut onward: Vec<String>,
        mut body: Body,
    ) -> Result<(), Status> {
        if !onward.is_empty() {
            let next = address(&onward.remove(0))?;
            request.forward(next, up::body(onward, body)).await?;
            return Ok(());
        }
        // Where a body is cut says nothing, so the sum is of chunks of our own making.
        let (mut sum, mut rest) = ((0, 0), Vec::new());
        while let Some(chunk) = body.next().await {
            rest.extend_from_slice(&chunk?);
            while rest.len() >= CHUNK {
                add(&mut sum, &rest[..CHUNK]);
                rest.drain(..CHUNK);
            }
        }
        Ok(request.respond(sum).await?)
    }

    async fn items(
        &self,
        request: Request<One<Sum>>,
        mut onward: Vec<String>,
        mut chunks: Streaming<Vec<u8>>,
    ) -> Result<(), Status> {
        if !onward.is_empty() {
            let next = address(&onward.remove(0))?;
            request.forward(next, up::items(onward, chunks)).await?;
            return Ok(());
        }
        let mut sum = (0, 0);
        while let Some(chunk) = chunks.next().await {
            add(&mut sum, &chunk?);
        }
        Ok(request.respond(sum).await?)
    }
}

async fn down(request: Request<Many<Bytes>, Raw>, what: Bytes) -> Result<(), Status> {
    let invalid = || Status::invalid_argument("not a count and addresses");
    let text = std::str::from_utf8(&what).map_err(|_| invalid())?;
    let mut words = text.split(' ');
    let count = words.next().ok_or_else(invalid)?;
    if let Some(next) = words.next() {
        let what = words.fold(count.to_owned(), |what, word| what + " " + word);
        request
            .forward(address(next)?, DOWN.target((what.into(),)))
            .await?;
        return Ok(());
    }
    let mut chunks = Chunks::new(count.parse().map_err(|_| invalid())?);
    while let Some(chunk) = chunks.make() {
        request.reply(chunk).await?;
    }
    Ok(())
}

fn address(text: &str) -> Result<Address, Status> {
    text.parse()
        .map_err(|error| Status::invalid_argument(format!("{text}: {error}")))
}

/// Serves until the client's end of the standard input closes.
async fn serve() -> Result<(), Failed> {
    let service = Service::new("example.Stream");
    let service = service.method(&DOWN, |request, (what,)| down(request, what));
    let endpoint = Endpoint::builder()
        .listen("tcp://127.0.0.1:0")
        .serve(service)
        .serve(up::service(Summing))
        .bind()
        .await?;
    println!("{}", endpoint.address().ok_or("it does not listen")?);
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await?;
    Ok(())
}

/// A server that ends with this value.
struct Server {
    process: Child,
    address: Address,
}

impl Server {
    fn start(mut program: Command) -> Result<Self, Failed> {
        let mut process = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.parse().ok());
        let address = address.ok_or("the server says no address")?;
        Ok(Self { process, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The most memory that a process has had so far, in KiB, where the system tells.
fn peak_memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// What one run found.
struct Report {
    body: Duration,
    items: Duration,
    down: Duration,
    /// Of the client and of each server.
    memory: Vec<Option<u64>>,
}

// The client.

async fn run(servers: &[Server], chunks: u64) -> Result<Report, Failed> {
    let endpoint = Endpoint::client()?;
    let (first, onward) = servers.split_first().ok_or("no server")?;
    let client = Client::new(&endpoint, first.address.clone())
        .deadline(Duration::from_secs(3600))
        .in_order();
    let names = onward.iter().map(|server| server.address.to_string());
    let mut expected = Chunks::new(chunks);
    while let Some(chunk) = expected.make() {
        add(&mut expected.sum, &chunk);
    }

    let begun = Instant::now();
    let body = Body::from_stream(Chunks::new(chunks));
    let up = up::within(client.clone());
    let sum = up.body(names.clone().collect(), body).await?;
    let body = begun.elapsed();
    if sum != expected.sum {
        return Err(format!("{sum:?} arrived up there, not {:?}", expected.sum).into());
    }

    let begun = Instant::now();
    let values = wallaby::items((0..chunks).scan(Chunks::new(chunks), |chunks, _| {
        chunks.make().map(Vec::from)
    }));
    let sum = up.items(names.clone().collect(), values).await?;
    let items = begun.elapsed();
    if sum != expected.sum {
        return Err(format!("{sum:?} arrived as items, not {:?}", expected.sum).into());
    }

    let begun = Instant::now();
    let what = names.fold(chunks.to_string(), |what, name| what + " " + &name);
    let mut answers = client.traced().call(&DOWN, (what.into(),));
    let mut sum = (0, 0);
    while let Some(chunk) = answers.next().await {
        add(&mut sum, &chunk?);
    }
    let down = begun.elapsed();
    let hops = answers.trace().hops.len();
    if hops != servers.len() {
        return Err(format!("{hops} hops, not {}", servers.len()).into());
    }
    if sum != expected.sum {
        return Err(format!("{sum:?} arrived down here, not {:?}", expected.sum).into());
    }
    let processes = servers.iter().map(|server| server.process.id());
    let memory = [std::process::id()].into_iter().chain(processes);
    Ok(Report {
        body,
        items,
        down,
        memory: memory.map(peak_memory).collect(),
    })
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

fn stream(arguments: &[String]) -> Result<bool, Failed> {
    let size = option(arguments, "--size", 256)?;
    let hops = option(arguments, "--hops", 3)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    if arguments.first().is_some_and(|first| first == "serve") {
        runtime.block_on(serve())?;
        return Ok(true);
    }
    let servers: Result<Vec<_>, _> = (0..hops)
        .map(|_| {
            let mut program = Command::new(std::env::current_exe()?);
            program.arg("serve");
            Server::start(program)
        })
        .collect();
    println!("{size} MiB up and down through {hops} servers...");
    let chunks = size << 20 >> 16;
    let report = runtime.block_on(run(&servers?, chunks))?;
    for (name, time) in [
        ("body", report.body),
        ("items", report.items),
        ("down", report.down),
    ] {
        println!("{name:5} {:7.0} MiB/s", size as f64 / time.as_secs_f64());
    }
    let most = report.memory.iter().flatten().max();
    if most.is_some() {
        let memory = report.memory.iter().flatten();
        let memory: Vec<_> = memory
            .map(|kib| format!("{:.1}", *kib as f64 / 1024.0))
            .collect();
        println!("most memory, in MiB: {}", memory.join(", "));
        println!("{} MiB are allowed", MOST_MEMORY / 1024);
    }
    Ok(most.is_none_or(|most| *most <= MOST_MEMORY))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match stream(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            eprintln!("usage: stream [--size MIB] [--hops SERVERS]");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test: the servers of the other one.
    #[test]
    #[ignore = "runs until its parent ends"]
    fn server() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        runtime
            .expect("a runtime")
            .block_on(serve())
            .expect("it serves");
    }

    #[test]
    fn no_process_keeps_what_streams_through_it() {
        let server = |_| {
            let mut program = Command::new(std::env::current_exe().expect("this program"));
            program.args(["--exact", "tests::server", "--ignored", "--nocapture"]);
            Server::start(program).expect("it starts")
        };
        let servers: Vec<_> = (0..3).map(server).collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        // More than any process may have in memory.
        let chunks = (2 * MOST_MEMORY) << 10 >> 16;
        let report = runtime
            .expect("a runtime")
            .block_on(run(&servers, chunks))
            .expect("it arrives");
        for memory in report.memory.into_iter().flatten() {
            assert!(memory < MOST_MEMORY, "{memory} KiB");
        }
    }
}
