//! tonic: gRPC over HTTP/2. Its defaults: a channel to each server, `TCP_NODELAY` on both sides, prost messages.
//!
//! Measured on both runtimes: what `#[tokio::main]` gives a program, with a thread for each processor, and tokio's
//! current-thread runtime, which wakes no other thread.

use crate::calls::{
    Caller, Calls, Task, addresses, current_thread, listen, multi_thread, perform, serve_until_gone,
};
use anyhow::Result;
use bytes::Bytes;
use generated::relay_client::RelayClient;
use generated::relay_server::{Relay, RelayServer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, LocalSet};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use wallaby_bench::Transport;
use wallaby_bench::fleet::{Control, Fleet, ServerConfig};
use wallaby_bench::pattern::Pattern;
use wallaby_bench::stack::{Client, Stack};

#[allow(unreachable_pub)] // it is generated
pub(crate) mod generated {
    include!(concat!(env!("OUT_DIR"), "/bench.Relay.rs"));
}

/// What goes to a server and comes back.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
}

/// tonic on one of tokio's runtimes.
#[derive(Debug)]
pub(crate) enum Tonic {
    CurrentThread,
    MultiThread,
}

impl Tonic {
    fn runtime(&self) -> Result<Runtime> {
        match self {
            Self::CurrentThread => current_thread(),
            Self::MultiThread => multi_thread(),
        }
    }
}

impl Stack for Tonic {
    fn name(&self) -> &'static str {
        match self {
            Self::CurrentThread => "tonic",
            Self::MultiThread => "tonic-threads",
        }
    }

    fn system(&self, transport: Transport, pattern: Pattern, _: usize) -> Option<&'static str> {
        crate::calls_over_tcp(transport, pattern).then(|| self.name())
    }

    fn connect(
        &self,
        mut fleet: Fleet,
        _: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn Client>> {
        fleet.connect(None)?;
        let runtime = self.runtime()?;
        let servers = runtime.block_on(async {
            let mut servers = Vec::new();
            for address in addresses(&fleet)? {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
                servers.push(RelayClient::new(endpoint.connect().await?));
            }
            anyhow::Ok(servers)
        })?;
        Ok(Box::new(Caller {
            runtime,
            local: LocalSet::new(),
            fleet,
            calls: Channels(servers),
            others: Vec::new(),
            payload,
        }))
    }

    fn serve(&self, _: &ServerConfig) -> Result<()> {
        let mut control = Control;
        let listener = listen(&mut control)?;
        let runtime = self.runtime()?;
        let service = {
            let _inside = runtime.enter();
            let incoming = TcpIncoming::from(TcpListener::from_std(listener)?);
            Server::builder()
                .add_service(RelayServer::new(Answer))
                .serve_with_incoming(incoming.with_nodelay(Some(true)))
        };
        // On a thread of the runtime, where its connections are.
        let service = runtime.spawn(service);
        serve_until_gone(&runtime, control, async { Ok(service.await??) })
    }
}

struct Answer;

#[tonic::async_trait]
impl Relay for Answer {
    async fn pass(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

#[derive(Clone)]
struct Channels(Vec<RelayClient<Channel>>);

impl Calls for Channels {
    async fn call(&self, server: u8, payload: Bytes) -> Result<Bytes> {
        let mut client = self.0[usize::from(server)].clone();
        Ok(client.pass(Message { payload }).await?.into_inner().payload)
    }

    fn start(self, task: Task) -> JoinHandle<Result<Task>> {
        tokio::spawn(perform(self, task))
    }
}
