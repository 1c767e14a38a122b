//! Wallaby's own protocol on tokio: all callers are tasks of one endpoint.

use super::line::argument;
use super::{Caller, Load, Way};
use crate::fleet::{Fleet, ServerConfig};
use crate::harness::Latencies;
use crate::on_wallaby::{TAKE, addresses, builder, runtime};
use crate::patience::block_on;
use crate::workload::take_one;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use wallaby::{Address, CallError, Client, Endpoint};

/// The client's side.
pub(super) struct Wallaby {
    fleet: Fleet,
    runtime: Runtime,
    operator: Operator,
}

#[derive(Clone)]
struct Operator {
    endpoint: Endpoint,
    servers: Arc<[Address]>,
    first: Client,
}

impl Wallaby {
    pub(super) fn connect(fleet: Fleet, config: &ServerConfig) -> Result<Self> {
        let runtime = runtime()?;
        let endpoint = runtime.block_on(builder(config, "client")?.bind())?;
        let servers: Arc<[Address]> = addresses(fleet.addresses())?.into();
        let first = servers.first().context("no server")?.clone();
        Ok(Self {
            fleet,
            runtime,
            operator: Operator {
                first: Client::new(&endpoint, first),
                endpoint,
                servers,
            },
        })
    }
}

impl Operator {
    async fn operate(&self, way: Way, argument: &Bytes) -> Result<()> {
        let servers = |degree| {
            let servers = self.servers.get(..degree).context("too few servers")?;
            anyhow::Ok(servers.iter().cloned())
        };
        let target = || TAKE.target((argument.clone(),));
        let answers = match way {
            Way::Single => {
                let answer = self.first.call(&TAKE, (argument.clone(),)).await?;
                ensure!(answer.is_empty(), "an answer that is none");
                return Ok(());
            }
            Way::Parallel(degree) => {
                let calls = self.endpoint.caller().multicast(servers(degree)?, target());
                calls.all().await
            }
            Way::Serial(degree) => {
                let line = self.endpoint.caller().pipeline(servers(degree)?, target());
                line.all().await
            }
            Way::Consecutive(_) => bail!("nobody calls one after the other who need not"),
        };
        let answers: Result<Vec<Bytes>, CallError> = answers.into_iter().collect();
        ensure!(
            answers?.iter().all(Bytes::is_empty),
            "an answer that is none"
        );
        Ok(())
    }

    async fn call_while_left(
        self,
        way: Way,
        argument: Bytes,
        left: Arc<AtomicU64>,
    ) -> Result<Vec<Duration>> {
        let mut taken = Vec::new();
        while take_one(&left) {
            let start = Instant::now();
            self.operate(way, &argument).await?;
            taken.push(start.elapsed());
        }
        Ok(taken)
    }
}

impl Caller for Wallaby {
    fn run(
        &mut self,
        load: &Load,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let argument = Bytes::from(argument(load.bytes));
        let left = Arc::new(AtomicU64::new(operations));
        let start = |_| {
            let operator = self.operator.clone();
            let work = operator.call_while_left(load.way, argument.clone(), Arc::clone(&left));
            self.runtime.spawn(work)
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
