//! Calls over a chain of servers in one thread, over and over: for counting the instructions of the hot path.
//!
//! `hot_path CALLS SERVERS PREFIX [TASKS]` makes so many calls of 100 bytes that each server forwards to the next and the
//! last one answers. Server K listens at the address PREFIX followed by K, the initiator at the one after them: try
//! `mem://hot`. With TASKS, so many calls are under way at a time, each in a task of its own.

use std::env::args;

use bytes::Bytes;
use wallaby::codec::Raw;
use wallaby::{Address, Client, Endpoint, Method, One, Request, Service, Status};

static PASS: Method<(Bytes,), One<Bytes>, Raw> = Method::new("example.Chain/pass");

async fn pass(
    request: Request<One<Bytes>, Raw>,
    payload: Bytes,
    next: Option<Address>,
) -> Result<(), Status> {
    match next {
        Some(next) => request.forward(next, PASS.target((payload,))).await?,
        None => request.respond(payload).await?,
    }
    Ok(())
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    // As the benchmarks do: Wallaby needs no timers of the runtime, which reads the clock often for them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Error> {
    let usage = "usage: hot_path CALLS SERVERS PREFIX [TASKS]";
    let calls: u32 = args().nth(1).ok_or(usage)?.parse()?;
    let servers: u32 = args().nth(2).ok_or(usage)?.parse()?;
    let prefix = args().nth(3).ok_or(usage)?;
    let tasks: Option<u32> = args().nth(4).map(|tasks| tasks.parse()).transpose()?;

    let mut chain = Vec::new();
    let mut next: Option<Address> = None;
    for number in (0..servers).rev() {
        let onward = next.clone();
        let service = Service::new("example.Chain").method(&PASS, move |request, (payload,)| {
            pass(request, payload, onward.clone())
        });
        let server = Endpoint::builder()
            .listen(&format!("{prefix}{number}"))
            .serve(service)
            .bind()
            .await?;
        next = server.address().cloned();
        chain.push(server);
    }
    let initiator = Endpoint::bind(&format!("{prefix}{servers}")).await?;
    let client = Client::new(&initiator, next.ok_or(usage)?);
    let payload = Bytes::from(vec![7; 100]);
    let Some(tasks) = tasks else {
        return call(client, payload, calls).await;
    };
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        callers.spawn(call(client.clone(), payload.clone(), calls / tasks));
    }
    callers.join_all().await.into_iter().collect()
}

async fn call(client: Client, payload: Bytes, times: u32) -> Result<(), Error> {
    for _ in 0..times {
        client.call(&PASS, (payload.clone(),)).await?;
    }
    Ok(())
}
