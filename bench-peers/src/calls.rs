//! Asynchronous peers: the client that the harness wants, over anything that can make a call, and the frame of a server.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};
use wallaby_bench::fleet::{Control, Fleet};
use wallaby_bench::harness::{Latencies, Traffic};
use wallaby_bench::patience::block_on;
use wallaby_bench::pattern::{Pattern, Routes, Shape};
use wallaby_bench::plan::{Plan, check};
use wallaby_bench::stack::Client;
use wallaby_bench::take_one;

/// A peer's connections to all servers.
pub(crate) trait Calls: Clone + 'static {
    /// Sends a payload to a server; its answer.
    fn call(&self, server: u8, payload: Bytes) -> impl Future<Output = Result<Bytes>>;

    /// Sends a payload to a server that passes it on to others; all their answers.
    fn spread(
        &self,
        _server: u8,
        _payload: Bytes,
        _answers: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>>> {
        async { bail!("there is no way to pass a request on") }
    }

    /// Starts [`perform`] in a task of its own, where this peer's tasks run.
    fn start(self, task: Task) -> JoinHandle<Result<Task>>;
}

/// What is done between two looks at the clock, and how long each operation took.
pub(crate) struct Task {
    work: Work,
    taken: Vec<Duration>,
}

enum Work {
    /// Operations of a pattern.
    Operations {
        pattern: Pattern,
        routes: Routes,
        operations: u64,
        plan: Plan,
    },
    /// The same call as long as there are some left to make.
    Calls {
        server: u8,
        payload: Bytes,
        left: Arc<AtomicU64>,
    },
}

/// Carries out a task. It runs in a task of the runtime, as it would in a program: the future that a runtime is entered
/// with has to wait for one more look at the sockets each time it is woken.
pub(crate) async fn perform<C: Calls>(calls: C, mut task: Task) -> Result<Task> {
    let taken = &mut task.taken;
    match &mut task.work {
        Work::Calls {
            server,
            payload,
            left,
        } => {
            while take_one(left) {
                let start = Instant::now();
                check(&calls.call(*server, payload.clone()).await?, payload)?;
                taken.push(start.elapsed());
            }
        }
        Work::Operations {
            pattern,
            routes,
            operations,
            plan,
        } => {
            if let Pattern::Concurrent { calls: under_way } = *pattern {
                plan.draw(*pattern, routes, 0);
                keep_under_way(&calls, plan, under_way, *operations, taken).await?;
            } else {
                for operation in 0..*operations {
                    plan.draw(*pattern, routes, operation);
                    let start = Instant::now();
                    operate(&calls, *pattern, plan).await?;
                    taken.push(start.elapsed());
                }
            }
        }
    }
    Ok(task)
}

/// One operation: its phases, each with one call to everyone it sends to.
async fn operate<C: Calls>(calls: &C, pattern: Pattern, plan: &Plan) -> Result<()> {
    for phase in plan.phases() {
        let payload = Bytes::copy_from_slice(phase.payload());
        match (pattern, &phase.to[..]) {
            (Pattern::Multihop(Shape::Fan { .. }), [server]) => {
                let answers = calls.spread(*server, payload.clone(), phase.from.len());
                for answer in answers.await? {
                    check(&answer, &payload)?;
                }
            }
            (_, [server]) => check(&calls.call(*server, payload.clone()).await?, &payload)?,
            (_, servers) => {
                let all = servers
                    .iter()
                    .map(|server| calls.call(*server, payload.clone()));
                for answer in try_join_all(all).await? {
                    check(&answer, &payload)?;
                }
            }
        }
    }
    Ok(())
}

/// The planned call over and over, so many at a time.
async fn keep_under_way<C: Calls>(
    calls: &C,
    plan: &Plan,
    under_way: usize,
    operations: u64,
    taken: &mut Vec<Duration>,
) -> Result<()> {
    let phase = plan.phases().first().context("nothing was planned")?;
    let left = Arc::new(AtomicU64::new(operations));
    let start = |server: u8| {
        let work = Work::Calls {
            server,
            payload: Bytes::copy_from_slice(phase.payload()),
            left: Arc::clone(&left),
        };
        let taken = Vec::new();
        calls.clone().start(Task { work, taken })
    };
    let server = *phase.to.first().context("nobody to call")?;
    let tasks: Vec<_> = (0..under_way).map(|_| start(server)).collect();
    for task in tasks {
        taken.append(&mut task.await??.taken);
    }
    Ok(())
}

/// The client of an asynchronous peer.
pub(crate) struct Caller<C> {
    pub(crate) runtime: Runtime,
    /// Where tasks run that must stay on this thread.
    pub(crate) local: LocalSet,
    pub(crate) fleet: Fleet,
    pub(crate) calls: C,
    /// Processes that serve it besides the fleet.
    pub(crate) others: Vec<u32>,
    pub(crate) payload: usize,
}

impl<C: Calls> Caller<C> {
    fn run_task(
        &self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
    ) -> Result<Vec<Duration>> {
        let work = Work::Operations {
            pattern,
            routes: routes.clone(),
            operations,
            plan: Plan::new(self.payload),
        };
        let taken = Vec::with_capacity(usize::try_from(operations)?);
        let calls = self.calls.clone();
        let task = async { calls.start(Task { work, taken }).await? };
        let done = self.local.run_until(task);
        let done = block_on(&self.runtime, limit, self.fleet.lost(), done)?;
        if let Work::Operations { routes: drawn, .. } = done.work {
            *routes = drawn;
        }
        Ok(done.taken)
    }
}

impl<C: Calls> Client for Caller<C> {
    fn warm_up(&mut self) -> Result<()> {
        let servers = self.fleet.addresses().len();
        let every_one = Pattern::Calls(Shape::Chain { servers });
        let mut routes = Routes::new(u8::try_from(servers)?, 0);
        self.run_task(every_one, &mut routes, 1, WARM_UP)?;
        Ok(())
    }

    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        for latency in self.run_task(pattern, routes, operations, limit)? {
            latencies.record(latency);
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        [self.fleet.processes(), self.others.clone()].concat()
    }
}

/// A runtime with everything on this thread.
pub(crate) fn current_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// A runtime with a thread for each processor that this process may use.
pub(crate) fn multi_thread() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// A socket that listens on the loopback interface, its address announced; servers are connected as soon as clients are
/// told the address.
pub(crate) fn listen(control: &mut Control) -> Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    control.exchange_addresses(&listener.local_addr()?.to_string())?;
    Ok(listener)
}

/// The addresses of all servers.
pub(crate) fn addresses(fleet: &Fleet) -> Result<Vec<SocketAddr>> {
    let parse = |text: &String| {
        text.parse()
            .with_context(|| format!("{text} is no address"))
    };
    fleet.addresses().iter().map(parse).collect()
}

/// Serves until the client has gone. Instructions are read on a thread of their own; this one is the runtime's.
pub(crate) fn serve_until_gone(
    runtime: &Runtime,
    mut control: Control,
    service: impl Future<Output = Result<()>> + 'static,
) -> Result<()> {
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("bench-control".into())
        .spawn(move || ended.send(control.attend(Traffic::default)))?;
    let local = LocalSet::new();
    local.spawn_local(async {
        if let Err(error) = service.await {
            eprintln!("a server failed: {error:#}");
            std::process::exit(1);
        }
    });
    local.block_on(runtime, end)?
}

/// Opening all connections takes no longer.
const WARM_UP: Duration = Duration::from_secs(60);
