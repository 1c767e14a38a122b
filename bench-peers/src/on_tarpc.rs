//! tarpc: its TCP transport with bincode, which its documentation shows; default limits, the current-thread runtime.

use crate::calls::{
    Caller, Calls, Task, addresses, current_thread, listen, perform, serve_until_gone,
};
use anyhow::Result;
use bytes::Bytes;
use futures_util::StreamExt;
use std::net::SocketAddr;
use tarpc::context::{self, Context};
use tarpc::serde_transport::{self, Transport as SerdeTransport};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use wallaby_bench::Transport;
use wallaby_bench::fleet::{Control, Fleet, ServerConfig};
use wallaby_bench::pattern::Pattern;
use wallaby_bench::stack::{Client, Stack};

#[tarpc::service]
trait Relay {
    /// Answers with what it got.
    async fn pass(payload: Bytes) -> Bytes;
}

/// tarpc over TCP.
#[derive(Debug)]
pub(crate) struct Tarpc;

impl Stack for Tarpc {
    fn name(&self) -> &'static str {
        "tarpc"
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
        let runtime = current_thread()?;
        let servers = runtime.block_on(async {
            let mut servers = Vec::new();
            for address in addresses(&fleet)? {
                servers.push(connect(address).await?);
            }
            anyhow::Ok(servers)
        })?;
        Ok(Box::new(Caller {
            runtime,
            local: LocalSet::new(),
            fleet,
            calls: Clients(servers),
            others: Vec::new(),
            payload,
        }))
    }

    fn serve(&self, _: &ServerConfig) -> Result<()> {
        let mut control = Control;
        let listener = listen(&mut control)?;
        let runtime = current_thread()?;
        let service = runtime.spawn(async {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                let channel = BaseChannel::with_defaults(framed(stream)?);
                tokio::spawn(channel.execute(Answer.serve()).for_each(async |response| {
                    tokio::spawn(response);
                }));
            }
        });
        serve_until_gone(&runtime, control, async { service.await? })
    }
}

#[derive(Clone)]
struct Answer;

impl Relay for Answer {
    async fn pass(self, _: Context, payload: Bytes) -> Bytes {
        payload
    }
}

async fn connect(address: SocketAddr) -> Result<RelayClient> {
    let transport = framed(TcpStream::connect(address).await?)?;
    Ok(RelayClient::new(tarpc::client::Config::default(), transport).spawn())
}

/// tarpc's own transport over a stream that sends at once, as all others do.
fn framed<Item, SinkItem>(
    stream: TcpStream,
) -> Result<SerdeTransport<TcpStream, Item, SinkItem, Bincode<Item, SinkItem>>>
where
    Item: for<'de> serde::Deserialize<'de>,
    SinkItem: serde::Serialize,
{
    stream.set_nodelay(true)?;
    let frames = Framed::new(stream, LengthDelimitedCodec::new());
    Ok(serde_transport::new(frames, Bincode::default()))
}

#[derive(Clone)]
struct Clients(Vec<RelayClient>);

impl Calls for Clients {
    async fn call(&self, server: u8, payload: Bytes) -> Result<Bytes> {
        let client = &self.0[usize::from(server)];
        Ok(client.pass(context::current(), payload).await?)
    }

    fn start(self, task: Task) -> JoinHandle<Result<Task>> {
        tokio::spawn(perform(self, task))
    }
}
