//! wallaby-onc: the same service and the same calls.

use super::line::argument;
use super::{Caller, Load};
use crate::fleet::{Control, Fleet, ServerConfig, Transport};
use crate::harness::{Latencies, Traffic};
use crate::patience::block_on;
use crate::workload::take_one;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use wallaby_onc::client::{ClientOptions, TcpChannel, UdpChannel};
use wallaby_onc::{AcceptError, Channel, Procedure, Program, Programs, Refusal, server, service};

/// What rpcgen's compiler here would write for a procedure that takes opaque data and answers with nothing.
struct Take;

impl Program for Take {
    const PROGRAM: u32 = TAKE.program;
    const VERSION: u32 = TAKE.version;

    async fn handle(
        &self,
        _caller: &wallaby_onc::Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> Result<Bytes, Refusal> {
        if procedure != TAKE.number {
            return Err(AcceptError::ProcedureUnavailable.into());
        }
        let argument = service::arguments(arguments, |reader| reader.opaque(None))?;
        drop(argument);
        service::results(|_| Ok(()))
    }
}

async fn take(channel: &impl Channel, argument: &[u8]) -> Result<()> {
    let write = |writer: &mut wallaby_onc::xdr::Writer| writer.opaque(argument, None);
    Ok(service::call(channel, TAKE, write, |_| Ok(())).await?)
}

const TAKE: Procedure = Procedure {
    program: 0x2000_0bec,
    version: 1,
    number: 2,
};

/// Runs a server on tokio until its client has gone.
pub(super) fn serve(config: &ServerConfig) -> Result<()> {
    let runtime = runtime()?;
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = server::Server::new(Programs::new().with(Take), server::ServerOptions::default());
    let address = runtime.block_on(async {
        match config.transport {
            Transport::Udp => server.listen_udp(anywhere).await,
            _ => server.listen_tcp(anywhere).await,
        }
    })?;
    // Instructions are read on a thread of their own; this one is the runtime's.
    let (ended, end) = oneshot::channel();
    thread::spawn(move || {
        let _ = ended.send(attend(address));
    });
    runtime.block_on(end)?
}

fn attend(address: SocketAddr) -> Result<()> {
    let mut control = Control;
    control.exchange_addresses(&address.to_string())?;
    control.attend(Traffic::default)
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn address(fleet: &Fleet) -> Result<SocketAddr> {
    let first = fleet.addresses().first();
    Ok(first.context("no server")?.parse()?)
}

/// A client on tokio: all callers are tasks over one channel.
pub(super) struct Onc {
    fleet: Fleet,
    runtime: Runtime,
    channel: Either,
}

#[derive(Clone)]
enum Either {
    Tcp(TcpChannel),
    Udp(UdpChannel),
}

impl Onc {
    pub(super) fn connect(fleet: Fleet, config: &ServerConfig) -> Result<Self> {
        let (runtime, server) = (runtime()?, address(&fleet)?);
        let channel = runtime.block_on(async {
            anyhow::Ok(match config.transport {
                Transport::Tcp => {
                    Either::Tcp(TcpChannel::connect(server, ClientOptions::default()).await?)
                }
                Transport::Udp => {
                    Either::Udp(UdpChannel::connect(server, ClientOptions::default()).await?)
                }
                other => bail!("ONC RPC is not measured over {other}"),
            })
        })?;
        Ok(Self {
            fleet,
            runtime,
            channel,
        })
    }
}

impl Caller for Onc {
    fn run(
        &mut self,
        load: &Load,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let argument: Arc<[u8]> = argument(load.bytes).into();
        let left = Arc::new(AtomicU64::new(operations));
        let start = |_| {
            let (argument, left) = (Arc::clone(&argument), Arc::clone(&left));
            self.runtime
                .spawn(call_while_left(self.channel.clone(), argument, left))
        };
        let tasks: Vec<_> = (0..load.callers).map(start).collect();
        let taken = block_on(&self.runtime, limit, self.fleet.lost(), async {
            let mut all = Vec::new();
            for task in tasks {
                all.append(&mut task.await??);
            }
            Ok(all)
        })?;
        taken.into_iter().for_each(|taken| latencies.record(taken));
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}

async fn call_while_left(
    channel: Either,
    argument: Arc<[u8]>,
    left: Arc<AtomicU64>,
) -> Result<Vec<Duration>> {
    let mut taken = Vec::new();
    while take_one(&left) {
        let start = Instant::now();
        match &channel {
            Either::Tcp(channel) => take(channel, &argument).await?,
            Either::Udp(channel) => take(channel, &argument).await?,
        }
        taken.push(start.elapsed());
    }
    Ok(taken)
}
