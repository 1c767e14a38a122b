//! The tree on tonic: the front calls the shards at the same time, and answers when all have, or with the first error.

use super::Fault;
use super::process::told_to_end;
use crate::on_tonic::Message;
use crate::on_tonic::generated::relay_client::RelayClient;
use crate::on_tonic::generated::relay_server::{Relay, RelayServer};
use anyhow::Result;
use futures_util::future::join_all;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

enum Role {
    Front(Vec<RelayClient<Channel>>),
    Shard,
}

#[tonic::async_trait]
impl Relay for Role {
    async fn pass(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let message = request.into_inner();
        match self {
            Self::Shard => match &message.payload[..] {
                b"hang" => std::future::pending().await,
                b"block" => {
                    let work = || std::thread::sleep(Duration::from_secs(60));
                    let worked = tokio::task::spawn_blocking(work).await;
                    worked.map_err(|error| Status::internal(error.to_string()))?;
                }
                _ => tokio::time::sleep(Duration::from_secs(2)).await,
            },
            Self::Front(shards) => {
                let calls = shards.iter().enumerate().map(|(number, shard)| {
                    let mut shard = shard.clone();
                    let own = if number == 1 {
                        message.payload.clone()
                    } else {
                        "work".into()
                    };
                    async move { shard.pass(Message { payload: own }).await }
                });
                let calls: Vec<_> = calls.map(Box::pin).collect();
                futures_util::future::try_join_all(calls).await?;
            }
        }
        Ok(Response::new(message))
    }
}

pub(super) async fn serve(shards: Option<&[String]>) -> Result<()> {
    let role = match shards {
        None => Role::Shard,
        Some(shards) => {
            let connect = |at: &String| connect(at.clone());
            let shards = join_all(shards.iter().map(connect)).await;
            Role::Front(shards.into_iter().collect::<Result<_>>()?)
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let server = Server::builder().add_service(RelayServer::new(role));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Ok(server
        .serve_with_incoming_shutdown(incoming, told_to_end())
        .await?)
}

async fn connect(address: String) -> Result<RelayClient<Channel>> {
    Ok(RelayClient::new(
        Endpoint::from_shared(address)?.connect().await?,
    ))
}

/// What the caller reads.
pub(super) async fn call(front: &str, fault: Fault) -> Result<String> {
    let mut client = connect(front.to_owned()).await?;
    let payload = fault.asks_for().into();
    let mut request = Request::new(Message { payload });
    if let Some(deadline) = fault.deadline() {
        request.set_timeout(deadline);
    }
    let call = client.pass(request);
    if fault == Fault::GivenUp {
        let given_up = tokio::time::timeout(Duration::from_secs(1), call).await;
        return Ok(match given_up {
            Ok(_) => "an answer".to_owned(),
            Err(_) => "nothing: the future is dropped, and nobody tells whether a handler goes on"
                .to_owned(),
        });
    }
    Ok(match call.await {
        Ok(_) => "nothing: the answer".to_owned(),
        Err(status) => format!("`{status}`"),
    })
}
