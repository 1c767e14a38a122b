//! The tree on Wallaby: the front delegates to the shards, and these answer the caller.

use super::Fault;
use super::process::told_to_end;
use anyhow::{Context, Result};
use std::time::Duration;
use wallaby::{Address, Endpoint, Many, Request, Status};

#[wallaby::service(package = "bench")]
trait Shard {
    async fn find(how: String) -> Many<String>;
    /// The same on a thread, which nobody can stop.
    async fn block() -> Many<String>;
}

#[wallaby::service(package = "bench")]
trait Front {
    async fn lookup(how: String) -> Many<String>;
}

struct MyShard;

#[wallaby::serve]
impl Shard for MyShard {
    async fn find(&self, request: Request<Many<String>>, how: String) -> Result<(), Status> {
        if how == "hang" {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(request.respond(how).await?)
    }

    fn block(&self, request: Request<Many<String>>) -> Result<(), Status> {
        std::thread::sleep(Duration::from_secs(60));
        drop(request);
        Ok(())
    }
}

struct MyFront(Vec<Address>);

#[wallaby::serve]
impl Front for MyFront {
    async fn lookup(&self, request: Request<Many<String>>, how: String) -> Result<(), Status> {
        for (number, shard) in self.0.iter().enumerate() {
            match (number, how.as_str()) {
                (1, "block") => request.delegate(shard, shard::block()).await?,
                (1, how) => request.delegate(shard, shard::find(how.to_owned())).await?,
                _ => request.delegate(shard, shard::find("work".into())).await?,
            };
        }
        Ok(())
    }
}

pub(super) async fn serve(shards: Option<&[String]>) -> Result<()> {
    let service = match shards {
        None => shard::service(MyShard),
        Some(shards) => {
            let shards = shards.iter().map(|shard| shard.parse());
            front::service(MyFront(shards.collect::<Result<_, _>>()?))
        }
    };
    let endpoint = Endpoint::builder()
        .listen("tcp://127.0.0.1:0")
        .serve(service)
        .bind()
        .await?;
    println!("{}", endpoint.address().context("it does not listen")?);
    told_to_end().await;
    Ok(endpoint.drain(Duration::from_secs(10)).await?)
}

/// What the caller reads.
pub(super) async fn call(front: &str, fault: Fault) -> Result<String> {
    let endpoint = Endpoint::bind("tcp://127.0.0.1:0").await?;
    let mut client = front::at(&endpoint, front.parse::<Address>()?);
    if let Some(deadline) = fault.deadline() {
        client = client.deadline(deadline);
    }
    let mut call = client.lookup(fault.asks_for().to_owned());
    if fault == Fault::GivenUp {
        tokio::time::sleep(Duration::from_secs(1)).await;
        return Ok(match call.stop_within(Duration::from_secs(1)).await {
            Ok(()) => "`stop` says that nothing runs any more".to_owned(),
            Err(running) => format!("of `stop_within` 1 s: `{running}`"),
        });
    }
    let mut read = Vec::new();
    while let Some(next) = call.next().await {
        if let Err(error) = next {
            let kind = if error.failure().is_none() {
                "a status: "
            } else {
                ""
            };
            read.push(format!("{kind}`{error}`"));
            break; // its time is what counts
        }
    }
    match read.is_empty() {
        true => Ok("nothing: all answers".to_owned()),
        false => Ok(read.join("; ")),
    }
}
