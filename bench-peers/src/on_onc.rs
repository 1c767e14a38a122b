//! ONC RPC by libtirpc, over UDP and over TCP: a server that is one loop (`svc_run`), a client handle for each server,
//! buffers of the default size. The client makes one call at a time; several under way are as many threads, each with a
//! handle of its own, and a call of several servers at once there is none.

use anyhow::{Context, Result, anyhow};
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};
use wallaby_bench::fleet::{Fleet, ServerConfig};
use wallaby_bench::harness::Latencies;
use wallaby_bench::pattern::{Pattern, Routes, Shape};
use wallaby_bench::plan::{Plan, check};
use wallaby_bench::stack::{self, Stack};
use wallaby_bench::tirpc::{self, Handle, Library};
use wallaby_bench::{Transport, take_one};

/// ONC RPC over TCP or UDP.
#[derive(Debug)]
pub(crate) struct Onc;

impl Stack for Onc {
    fn name(&self) -> &'static str {
        "onc"
    }

    fn system(
        &self,
        transport: Transport,
        pattern: Pattern,
        payload: usize,
    ) -> Option<&'static str> {
        let calls = match pattern {
            Pattern::Calls(Shape::Chain { .. }) => 1,
            Pattern::Concurrent { calls } => calls,
            Pattern::Calls(_) | Pattern::Multihop(_) => return None,
        };
        let possible = match transport {
            Transport::Unix | Transport::Shm => false,
            Transport::Tcp => true,
            Transport::Udp => {
                payload <= LARGEST_DATAGRAM && calls * (payload + DATAGRAM_COST) <= SOCKET_BUFFER
            }
        };
        possible.then(|| self.name())
    }

    fn connect(
        &self,
        mut fleet: Fleet,
        config: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn stack::Client>> {
        fleet.connect(None)?;
        let library = tirpc::library(&config.folder)?;
        let open = |address: &String| library.open(config.transport, address.parse()?, OWN_BUFFERS);
        let servers: Result<_> = fleet.addresses().iter().map(open).collect();
        Ok(Box::new(Caller {
            tirpc: library,
            transport: config.transport,
            servers: servers?,
            more: Vec::new(),
            plan: Plan::new(payload),
            fleet,
        }))
    }

    fn prepare(&self, config: &ServerConfig) -> Result<()> {
        tirpc::prepare(&config.folder)
    }

    fn serve(&self, config: &ServerConfig) -> Result<()> {
        tirpc::serve(config, OWN_BUFFERS)
    }
}

struct Caller {
    tirpc: Library,
    transport: Transport,
    servers: Vec<Handle>,
    /// Further handles for the first server, of the threads that call it at the same time.
    more: Vec<Handle>,
    plan: Plan,
    fleet: Fleet,
}

impl Caller {
    fn operate(&mut self) -> Result<()> {
        for phase in self.plan.phases() {
            for &server in &phase.to {
                let handle = &mut self.servers[usize::from(server)];
                check(handle.pass(phase.payload())?, phase.payload())?;
            }
        }
        Ok(())
    }

    fn keep_under_way(
        &mut self,
        calls: usize,
        operations: u64,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let first = self.fleet.addresses().first().context("no server")?;
        // The server's loop looks at each connection there is, so there are no more than are used. The operations that
        // settle a turn, which nobody counts, are the first to come here.
        self.more.truncate(calls);
        while self.more.len() < calls {
            let handle = self
                .tirpc
                .open(self.transport, first.parse()?, OWN_BUFFERS)?;
            self.more.push(handle);
        }
        let payload = self
            .plan
            .phases()
            .first()
            .context("nothing was planned")?
            .payload();
        let left = &AtomicU64::new(operations);
        let call_while_left = |handle: &mut Handle| {
            let mut taken = Vec::new();
            while take_one(left) {
                let start = Instant::now();
                check(handle.pass(payload)?, payload)?;
                taken.push(start.elapsed());
            }
            anyhow::Ok(taken)
        };
        let call_while_left = &call_while_left;
        thread::scope(|scope| {
            let start = |handle| scope.spawn(move || call_while_left(handle));
            let threads: Vec<_> = self.more[..calls].iter_mut().map(start).collect();
            for thread in threads {
                let taken = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
                taken
                    .into_iter()
                    .for_each(|latency| latencies.record(latency));
            }
            Ok(())
        })
    }
}

impl stack::Client for Caller {
    fn warm_up(&mut self) -> Result<()> {
        let servers = u8::try_from(self.servers.len())?;
        let route: Vec<u8> = (0..servers).collect();
        let every_one = Pattern::Calls(Shape::Chain {
            servers: route.len(),
        });
        self.plan.lay(every_one, &route, 0);
        self.operate()
    }

    // The limit is kept by that of each call.
    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        _limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        if let Pattern::Concurrent { calls } = pattern {
            self.plan.draw(pattern, routes, 0);
            return self.keep_under_way(calls, operations, latencies);
        }
        for operation in 0..operations {
            self.plan.draw(pattern, routes, operation);
            let start = Instant::now();
            self.operate()?;
            latencies.record(start.elapsed());
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}

/// Buffers of libtirpc's own size.
const OWN_BUFFERS: u32 = 0;
/// What fits into libtirpc's default datagram with its headers.
const LARGEST_DATAGRAM: usize = 8_000;
/// What the kernel counts for a datagram besides its payload, and how much a socket keeps: more under way would get lost,
/// and libtirpc sends again only after 15 seconds.
const DATAGRAM_COST: usize = 1_024;
const SOCKET_BUFFER: usize = 128 * 1024;
