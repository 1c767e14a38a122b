//! The patterns by Wallaby: servers that pass a message on, and the client that calls them.
//!
//! The payload is laid out as in the floors, so that both do the same work for the same bytes.

use crate::fleet::{Control, Fleet, ServerConfig, Transport};
use crate::harness::{Latencies, Traffic};
use crate::loading::Loading;
use crate::meter::{self, application, interface};
use crate::operator::Operator;
use crate::patience::block_on;
use crate::pattern::{Pattern, Routes, Shape};
use crate::plan::{CLIENT, Targets, is_line, pass_on};
use crate::stack::{self, Own, Stack};
use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use wallaby::codec::Raw;
use wallaby::{Address, Client, Code, Endpoint, Many, Method, One, Request, Service, Status};

/// Passes the message to the next server it names; the last one answers with it.
pub(crate) static PASS: Method<(Bytes,), One<Bytes>, Raw> = Method::new("bench.Relay/pass");
/// Passes the message, or parts of what it asks for, to all servers it names at once; each of them answers with it.
pub(crate) static SPREAD: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("bench.Relay/spread");

/// Takes a message of any size; answers with nothing.
pub(crate) static TAKE: Method<(Bytes,), One<Bytes>, Raw> = Method::new("bench.Relay/take");
/// Gives a message of the size asked for, as 8 bytes, least first.
static GIVE: Method<(Bytes,), One<Bytes>, Raw> = Method::new("bench.Relay/give");

/// Where all servers are, once that is known.
type Directory = Arc<OnceLock<Vec<Address>>>;

/// Runs a server until its client has gone.
pub(crate) fn serve(config: &ServerConfig) -> Result<()> {
    let runtime = runtime_of(config)?;
    let directory = Directory::default();
    let server = builder(config, &format!("server-{}", config.index))?.serve(relay(&directory));
    let endpoint = runtime.block_on(server.bind())?;
    let (own, handle) = (config.index, runtime.handle().clone());
    // Instructions are read on a thread of their own; this one is the runtime's.
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("bench-control".into())
        .spawn(move || {
            let _ = ended.send(attend(&endpoint, &directory, own, handle));
        })?;
    runtime.block_on(end)?
}

fn attend(endpoint: &Endpoint, directory: &Directory, own: u8, runtime: Handle) -> Result<()> {
    let mut control = Control;
    let address = endpoint.address().context("the server does not listen")?;
    let peers = control.exchange_addresses(&address.to_string())?;
    let servers = addresses(&peers.servers)?;
    if directory.set(servers.clone()).is_err() {
        bail!("was told the addresses twice");
    }
    let mut loading = Loading::new(endpoint.clone(), servers, own, runtime);
    control.attend_loaded(|| traffic(endpoint), |order| loading.carry_out(order))
}

fn relay(directory: &Directory) -> Service {
    let (for_pass, for_spread) = (Arc::clone(directory), Arc::clone(directory));
    let given = Arc::new(Mutex::new(Bytes::new()));
    Service::new("bench.Relay")
        .method(&TAKE, take)
        .method(&GIVE, move |request, (size,)| {
            give(request, size, Arc::clone(&given))
        })
        .method(&PASS, move |request, (message,)| {
            application(pass(request, message, Arc::clone(&for_pass)))
        })
        .method(&SPREAD, move |request, (message,)| {
            application(spread(request, message, Arc::clone(&for_spread)))
        })
}

async fn pass(
    request: Request<One<Bytes>, Raw>,
    message: Bytes,
    directory: Directory,
) -> Result<(), Status> {
    let (message, next) = next(message)?;
    if next == CLIENT {
        return Ok(interface(request.respond(message)).await?);
    }
    let server = locate(&directory, next)?;
    Ok(interface(request.forward(server, PASS.target((message,)))).await?)
}

async fn spread(
    request: Request<Many<Bytes>, Raw>,
    message: Bytes,
    directory: Directory,
) -> Result<(), Status> {
    let (mut message, targets) = step(message)?;
    // What is the same for all is copied once.
    let same = targets
        .is_uniform()
        .then(|| Bytes::copy_from_slice(&message));
    for (place, &server) in targets.as_slice().iter().enumerate() {
        targets.address(place, &mut message);
        let message = match &same {
            Some(same) => same.clone(),
            None => Bytes::copy_from_slice(&message),
        };
        if server == CLIENT {
            interface(request.reply(message)).await?;
        } else if is_line(&message) {
            let target = PASS.target((message,));
            interface(request.delegate(locate(&directory, server)?, target)).await?;
        } else {
            let target = SPREAD.target((message,));
            interface(request.delegate(locate(&directory, server)?, target)).await?;
        }
    }
    // Its end is a call of the interface, too: it tells what became of the request.
    meter::at_interface(|| drop(request));
    Ok(())
}

async fn take(request: Request<One<Bytes>, Raw>, (message,): (Bytes,)) -> Result<(), Status> {
    drop(message);
    Ok(request.respond(Bytes::new()).await?)
}

/// Messages to give are kept for the next time: making them is not what is measured.
async fn give(
    request: Request<One<Bytes>, Raw>,
    size: Bytes,
    kept: Arc<Mutex<Bytes>>,
) -> Result<(), Status> {
    let size = size
        .first_chunk()
        .and_then(|size| usize::try_from(u64::from_le_bytes(*size)).ok())
        .filter(|size| *size <= MOST_GIVEN)
        .ok_or_else(|| Status::new(Code::InvalidArgument, "a size that is not given"))?;
    let message = {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() != size {
            *kept = filled(size);
        }
        kept.clone()
    };
    Ok(request.respond(message).await?)
}

/// Bytes that are really there: memory that was never written to is shared by the operating system and quick to read.
fn filled(size: usize) -> Bytes {
    Bytes::from(vec![0x77; size])
}

/// The message as it is to be sent on, but for what [`Targets::address`] does, and to whom.
pub(crate) fn step(message: Bytes) -> Result<(BytesMut, Targets), Status> {
    let mut message = BytesMut::from(message);
    let mut targets = Targets::default();
    let done = targets.of(&mut message);
    done.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
    Ok((message, targets))
}

/// The message as it is to be sent on, and to whom, if that is one.
pub(crate) fn next(message: Bytes) -> Result<(Bytes, u8), Status> {
    let refused = |why: String| Status::new(Code::InvalidArgument, why);
    let mut message = BytesMut::from(message);
    let next = pass_on(&mut message).map_err(|error| refused(error.to_string()))?;
    let next = next.ok_or_else(|| refused("a message to be spread was passed".into()))?;
    Ok((message.freeze(), next))
}

fn locate(directory: &Directory, server: u8) -> Result<&Address, Status> {
    let address = directory
        .get()
        .and_then(|addresses| addresses.get(usize::from(server)));
    address.ok_or_else(|| Status::new(Code::NotFound, format!("there is no server {server}")))
}

/// The client's side.
pub(crate) struct Caller {
    fleet: Fleet,
    runtime: Runtime,
    endpoint: Endpoint,
    /// None after a failure: then nobody knows which answers are still to come.
    operator: Option<Operator>,
    pool: u8,
    /// A second connection to the first server, once it was asked for.
    apart: Option<Endpoint>,
    flow: Option<Flowing>,
    /// Whether operations are measured by the meter.
    metered: bool,
}

/// Large messages without pause, and which way they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Requests,
    Answers,
}

/// A flow that is under way.
struct Flowing {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

impl Caller {
    pub(crate) fn connect(mut fleet: Fleet, config: &ServerConfig, payload: usize) -> Result<Self> {
        fleet.connect(None)?;
        let runtime = runtime_of(config)?;
        let endpoint = runtime.block_on(builder(config, "client")?.bind())?;
        let operator = Operator::new(&endpoint, addresses(fleet.addresses())?, payload);
        let pool = u8::try_from(fleet.addresses().len())?;
        Ok(Self {
            fleet,
            runtime,
            endpoint,
            operator: Some(operator),
            pool,
            apart: None,
            flow: None,
            metered: config.stack == Own::WallabySplit.name(),
        })
    }

    /// Lets large messages flow between client and first server, over the small ones' connection or one apart, until
    /// [`Caller::end_flow`]. It is under way when this returns.
    pub(crate) fn begin_flow(
        &mut self,
        flow: Flow,
        size: usize,
        apart: bool,
        limit: Duration,
    ) -> Result<()> {
        ensure!(self.flow.is_none(), "large messages flow already");
        let address = addresses(self.fleet.addresses())?.swap_remove(0);
        let _entered = self.runtime.enter(); // an endpoint needs a runtime
        if apart && self.apart.is_none() {
            self.apart = Some(Endpoint::client()?);
        }
        let endpoint = match &self.apart {
            Some(endpoint) if apart => endpoint,
            _ => &self.endpoint,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (flows, mut wait) = mpsc::channel(FLOWS);
        let tasks = (0..FLOWS).map(|_| {
            let client = Client::new(endpoint, address.clone());
            let work = keep_flowing(client, flow, size, Arc::clone(&stop), flows.clone());
            self.runtime.spawn(work)
        });
        let tasks = tasks.collect();
        self.flow = Some(Flowing { stop, tasks });
        block_on(&self.runtime, limit, self.fleet.lost(), async {
            for _ in 0..FLOWS {
                wait.recv().await.context("large messages do not flow")?;
            }
            Ok(())
        })
    }

    /// Ends the flow, if there is one; all its messages have arrived when this returns.
    pub(crate) fn end_flow(&mut self, limit: Duration) -> Result<()> {
        let Some(flowing) = self.flow.take() else {
            return Ok(());
        };
        flowing.stop.store(true, Ordering::Relaxed);
        block_on(&self.runtime, limit, self.fleet.lost(), async {
            for task in flowing.tasks {
                task.await??;
            }
            Ok(())
        })
    }

    /// What the client sent and received, over all its connections.
    pub(crate) fn own_traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        for endpoint in [Some(&self.endpoint), self.apart.as_ref()]
            .into_iter()
            .flatten()
        {
            let metrics = endpoint.metrics();
            sum.messages += metrics.messages_sent + metrics.messages_received;
            sum.bytes += metrics.bytes_sent + metrics.bytes_received;
        }
        sum.client_messages = sum.messages;
        sum
    }

    /// Lends the operator to some work in a task of its own, as a program would do it: the future that a runtime is
    /// entered with has to wait for one more look at the sockets whenever another task wakes it.
    fn run_task<T, W>(&mut self, limit: Duration, work: impl FnOnce(Operator) -> W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<(Operator, T)>> + Send + 'static,
    {
        let operator = self.operator.take().context("an operation failed before")?;
        let _measuring = self.metered.then(meter::begin);
        let task = self.runtime.spawn(application(work(operator)));
        let (operator, result) = block_on(&self.runtime, limit, self.fleet.lost(), async {
            task.await?
        })?;
        self.operator = Some(operator);
        Ok(result)
    }
}

impl stack::Client for Caller {
    fn warm_up(&mut self) -> Result<()> {
        let pool = self.pool;
        self.run_task(Duration::from_secs(60), |mut operator| async move {
            for (first, second) in
                (0..pool).flat_map(|first| (0..pool).map(move |second| (first, second)))
            {
                let route = if first == second {
                    &[first][..]
                } else {
                    &[first, second]
                };
                let pattern = Pattern::Multihop(Shape::Chain {
                    servers: route.len(),
                });
                operator.operation += 1;
                operator.plan.lay(pattern, route, operator.operation);
                operator.operate(pattern).await?;
            }
            Ok((operator, ()))
        })
    }

    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        let mut drawn = routes.clone();
        let mut taken = Vec::with_capacity(usize::try_from(operations)?);
        let (drawn, taken) = self.run_task(limit, |mut operator| async move {
            if let Pattern::Concurrent { calls } = pattern {
                operator.operation += 1;
                operator.plan.draw(pattern, &mut drawn, operator.operation);
                let taken = operator.keep_under_way(calls, operations).await?;
                return Ok((operator, (drawn, taken)));
            }
            for _ in 0..operations {
                operator.operation += 1;
                operator.plan.draw(pattern, &mut drawn, operator.operation);
                let start = Instant::now();
                operator.operate(pattern).await?;
                taken.push(start.elapsed());
            }
            Ok((operator, (drawn, taken)))
        })?;
        *routes = drawn;
        taken
            .into_iter()
            .for_each(|latency| latencies.record(latency));
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        let mut sum = self.fleet.traffic()?;
        let own = self.endpoint.metrics();
        sum.messages += own.messages_sent;
        sum.bytes += own.bytes_sent;
        sum.client_messages = own.messages_sent + own.messages_received;
        sum.client_spent = meter::spent();
        Ok(Some(sum))
    }
}

/// One large call after the other; says when the first one is done.
async fn keep_flowing(
    client: Client,
    flow: Flow,
    size: usize,
    stop: Arc<AtomicBool>,
    flows: mpsc::Sender<()>,
) -> Result<()> {
    let message = match flow {
        Flow::Requests => filled(size),
        Flow::Answers => Bytes::copy_from_slice(&(size as u64).to_le_bytes()),
    };
    let (method, expected) = match flow {
        Flow::Requests => (&TAKE, 0),
        Flow::Answers => (&GIVE, size),
    };
    while !stop.load(Ordering::Relaxed) {
        let answer = client.call(method, (message.clone(),)).await?;
        ensure!(
            answer.len() == expected,
            "a large call was answered by {} bytes",
            answer.len()
        );
        let _ = flows.try_send(()); // nobody listens after the first ones
    }
    Ok(())
}

pub(crate) fn traffic(endpoint: &Endpoint) -> Traffic {
    let metrics = endpoint.metrics();
    Traffic {
        messages: metrics.messages_sent,
        bytes: metrics.bytes_sent,
        servers_spent: meter::spent(),
        ..Traffic::default()
    }
}

pub(crate) fn addresses(texts: &[String]) -> Result<Vec<Address>> {
    let parse = |text: &String| {
        text.parse()
            .with_context(|| format!("{text} is no address"))
    };
    texts.iter().map(parse).collect()
}

/// An endpoint of this run that listens.
pub(crate) fn builder(config: &ServerConfig, name: &str) -> Result<wallaby::Builder> {
    let address = match config.transport {
        Transport::Tcp => "tcp://127.0.0.1:0".to_owned(),
        transport @ (Transport::Unix | Transport::Shm) => {
            // Several stacks of Wallaby may share a run's folder.
            let path = config.folder.join(format!("{}-{name}", config.stack));
            let path = path
                .to_str()
                .context("the folder for sockets is not UTF-8")?;
            format!("{transport}://{path}")
        }
        Transport::Udp => "udp://127.0.0.1:0".to_owned(),
    };
    let builder = Endpoint::builder().listen(&address);
    Ok(wallaby_link::emulate(
        builder,
        config.link,
        config.bandwidth,
    )?)
}

/// What a stack runs on.
fn runtime_of(config: &ServerConfig) -> Result<Runtime> {
    if config.stack != Own::WallabyThreads.name() {
        return runtime();
    }
    let mut threads = Builder::new_multi_thread();
    Ok(threads.worker_threads(2).enable_io().build()?)
}

pub(crate) fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_io().build()?)
}

/// Large calls under way at a time: the next message waits when the last byte of one has left, so there is no pause.
const FLOWS: usize = 2;
/// The size of the largest message that a server gives.
const MOST_GIVEN: usize = 16 << 20;
