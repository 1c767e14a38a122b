//! Cap'n Proto's RPC in Rust: a two-party connection to each server over buffered streams, as its documentation
//! recommends, on tokio's current-thread runtime, since its objects stay on one thread.

use crate::calls::{
    Caller, Calls, Task, addresses, current_thread, listen, perform, serve_until_gone,
};
use crate::relay_capnp::relay;
use anyhow::Result;
use bytes::Bytes;
use capnp::capability::FromClientHook;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use capnp_rpc::{RpcSystem, new_client};
use futures_util::io::{BufReader, BufWriter};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};
use wallaby_bench::Transport;
use wallaby_bench::fleet::{Control, Fleet, ServerConfig};
use wallaby_bench::pattern::Pattern;
use wallaby_bench::stack::{Client, Stack};

/// Cap'n Proto over TCP.
#[derive(Debug)]
pub(crate) struct CapnProto;

impl Stack for CapnProto {
    fn name(&self) -> &'static str {
        "capnp"
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
        let (runtime, local) = (current_thread()?, LocalSet::new());
        let servers = local.block_on(&runtime, async {
            let mut servers = Vec::new();
            for address in addresses(&fleet)? {
                servers.push(connect(address).await?);
            }
            anyhow::Ok(servers)
        })?;
        Ok(Box::new(Caller {
            runtime,
            local,
            fleet,
            calls: Clients(servers),
            others: Vec::new(),
            payload,
        }))
    }

    fn serve(&self, _: &ServerConfig) -> Result<()> {
        let mut control = Control;
        let listener = listen(&mut control)?;
        serve_until_gone(&current_thread()?, control, async {
            let listener = TcpListener::from_std(listener)?;
            let answer: relay::Client = new_client(Answer);
            loop {
                let (stream, _) = listener.accept().await?;
                let bootstrap = answer.clone().into_client_hook();
                let network = network(stream, Side::Server)?;
                let system = RpcSystem::new(
                    Box::new(network),
                    Some(capnp::capability::Client::new(bootstrap)),
                );
                spawn_local(system);
            }
        })
    }
}

struct Answer;

impl relay::Server for Answer {
    async fn pass(
        self: Rc<Self>,
        params: relay::PassParams,
        mut results: relay::PassResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_payload(params.get()?.get_payload()?);
        Ok(())
    }
}

async fn connect(address: SocketAddr) -> Result<relay::Client> {
    let network = network(TcpStream::connect(address).await?, Side::Client)?;
    let mut system = RpcSystem::new(Box::new(network), None);
    let client = system.bootstrap(Side::Server);
    spawn_local(system);
    Ok(client)
}

fn network(
    stream: TcpStream,
    side: Side,
) -> Result<VatNetwork<impl futures_util::io::AsyncRead + Unpin>> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let reader = BufReader::new(reader.compat());
    let writer = BufWriter::new(writer.compat_write());
    Ok(VatNetwork::new(reader, writer, side, Default::default()))
}

#[derive(Clone)]
struct Clients(Vec<relay::Client>);

impl Calls for Clients {
    async fn call(&self, server: u8, payload: Bytes) -> Result<Bytes> {
        let mut request = self.0[usize::from(server)].pass_request();
        request.get().set_payload(&payload);
        let response = request.send().promise.await?;
        Ok(Bytes::copy_from_slice(response.get()?.get_payload()?))
    }

    fn start(self, task: Task) -> JoinHandle<Result<Task>> {
        spawn_local(perform(self, task))
    }
}
