//! Calls that fan out, in one thread, over and over: for counting the instructions of the hot path.
//!
//! `fan_out_path CALLS dpc|rpc LEAVES PREFIX` makes so many calls of 100 bytes to one server. By `dpc` it delegates to the
//! leaves, each of which answers the initiator; by `rpc` it answers, and the initiator calls the leaves, all at a time.
//! Leaf K listens at the address PREFIX followed by K, the server and the initiator at the two after them: try
//! `mem://hot`.

use std::env::args;

use bytes::Bytes;
use wallaby::codec::Raw;
use wallaby::{Address, Client, Endpoint, Many, Method, One, Request, Service, Status};

static SPREAD: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("example.Tree/spread");
static ANSWER: Method<(Bytes,), One<Bytes>, Raw> = Method::new("example.Tree/answer");

type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: fan_out_path CALLS dpc|rpc LEAVES PREFIX";

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(run())
}

async fn run() -> Result<(), Error> {
    let arguments: Vec<String> = args().skip(1).collect();
    let [calls, form, leaves, prefix] = &arguments[..] else {
        return Err(USAGE.into());
    };
    let (calls, leaves): (u32, u32) = (calls.parse()?, leaves.parse()?);
    let mut endpoints = Vec::new();
    for number in 0..leaves {
        let service = Service::new("example.Tree").method(&ANSWER, answer);
        endpoints.push(serve(&format!("{prefix}{number}"), service).await?);
    }
    let below: Vec<Address> = endpoints
        .iter()
        .flat_map(Endpoint::address)
        .cloned()
        .collect();
    let onward = below.clone();
    let service = Service::new("example.Tree")
        .method(&ANSWER, answer)
        .method(&SPREAD, move |request, (payload,)| {
            spread(request, payload, onward.clone())
        });
    let server = serve(&format!("{prefix}{leaves}"), service).await?;
    let initiator = Endpoint::bind(&format!("{prefix}{}", leaves + 1)).await?;
    let at = |address: Option<&Address>| address.map(|at| Client::new(&initiator, at.clone()));
    let first = at(server.address()).ok_or(USAGE)?;
    let others: Vec<Client> = below.iter().flat_map(|address| at(Some(address))).collect();
    let payload = Bytes::from(vec![7; 100]);
    for _ in 0..calls {
        match form.as_str() {
            "dpc" => by_dpc(&first, &payload, leaves).await?,
            "rpc" => by_rpc(&first, &others, &payload).await?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(())
}

async fn serve(address: &str, service: Service) -> Result<Endpoint, Error> {
    Ok(Endpoint::builder()
        .listen(address)
        .serve(service)
        .bind()
        .await?)
}

async fn answer(request: Request<One<Bytes>, Raw>, (payload,): (Bytes,)) -> Result<(), Status> {
    Ok(request.respond(payload).await?)
}

async fn spread(
    request: Request<Many<Bytes>, Raw>,
    payload: Bytes,
    below: Vec<Address>,
) -> Result<(), Status> {
    for leaf in below {
        request
            .delegate(leaf, ANSWER.target((payload.clone(),)))
            .await?;
    }
    Ok(())
}

async fn by_dpc(first: &Client, payload: &Bytes, leaves: u32) -> Result<(), Error> {
    let mut call = first.call(&SPREAD, (payload.clone(),));
    let mut answers = 0;
    while let Some(answer) = call.next().await {
        answer?;
        answers += 1;
    }
    if answers == leaves {
        return Ok(());
    }
    Err(format!("{answers} answers of {leaves}").into())
}

async fn by_rpc(first: &Client, others: &[Client], payload: &Bytes) -> Result<(), Error> {
    first.call(&ANSWER, (payload.clone(),)).await?;
    let calls: Vec<_> = others
        .iter()
        .map(|leaf| leaf.call(&ANSWER, (payload.clone(),)))
        .collect();
    for call in calls {
        call.await?;
    }
    Ok(())
}
