//! A server that takes a message and says what it got, as a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Semaphore;
use wallaby::{Address, Code, Endpoint, Method, One, Request, Service, Status};

use crate::{Failed, add};

/// How many bytes, and a sum of them.
pub(crate) type Sum = (u64, u64);

/// Takes a body, and answers what it was; if asked to wait, when it is let go.
pub(crate) static PUT: Method<(bool,), One<Sum>> = Method::new("example.Store/put");

/// Answers how many bytes of a message have arrived, and whether it is whole.
pub(crate) static PROGRESS: Method<(), One<(u64, bool)>> = Method::new("example.Store/progress");

/// Lets those go that wait.
pub(crate) static GO: Method<(), One<()>> = Method::new("example.Store/go");

/// What a server has got.
struct Shelf {
    bytes: AtomicU64,
    whole: AtomicBool,
    gate: Semaphore,
}

impl Shelf {
    async fn put(&self, request: Request<One<Sum>>, wait: bool) -> Result<(), Status> {
        let no_body = || Status::new(Code::InvalidArgument, "a body is missing");
        let mut body = request.take_body().ok_or_else(no_body)?;
        let mut sum = (0, 0);
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| Status::new(Code::Aborted, error.to_string()))?;
            add(&mut sum, &chunk);
            self.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        self.whole.store(true, Ordering::Relaxed);
        if wait {
            let closed = |_| Status::new(Code::Internal, "the gate is closed");
            self.gate.acquire().await.map_err(closed)?.forget();
        }
        Ok(request.respond(sum).await?)
    }

    fn service(self: Arc<Self>) -> Service {
        let (progress, go) = (Arc::clone(&self), Arc::clone(&self));
        Service::new("example.Store")
            .method(&PUT, move |request, (wait,)| {
                let shelf = Arc::clone(&self);
                async move { shelf.put(request, wait).await }
            })
            .method(&PROGRESS, move |request: Request<One<(u64, bool)>>, ()| {
                let got = progress.bytes.load(Ordering::Relaxed);
                let whole = progress.whole.load(Ordering::Relaxed);
                async move { Ok(request.respond((got, whole)).await?) }
            })
            .method(&GO, move |request: Request<One<()>>, ()| {
                go.gate.add_permits(1);
                async move { Ok(request.respond(()).await?) }
            })
    }
}

/// Serves until the client's end of the standard input closes; keeps so many bytes of messages that are stored.
pub(crate) async fn serve(stored: u64) -> Result<(), Failed> {
    let shelf = Shelf {
        bytes: AtomicU64::new(0),
        whole: AtomicBool::new(false),
        gate: Semaphore::new(0),
    };
    let endpoint = Endpoint::builder()
        .listen("tcp://127.0.0.1:0")
        .stored(stored)
        .serve(Arc::new(shelf).service())
        .bind()
        .await?;
    println!("{}", endpoint.address().ok_or("it does not listen")?);
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| std::io::stdin().lines().for_each(drop)).await?;
    Ok(())
}

/// A server that ends with this value.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) address: Address,
}

impl Server {
    pub(crate) fn start(program: &mut Command) -> Result<Self, Failed> {
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
