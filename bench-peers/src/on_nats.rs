//! NATS: a nats-server with its defaults between the client and the servers, each of which subscribes to a subject of
//! its own; request and reply, and messages passed on with their reply subject kept. The current-thread runtime.

use crate::calls::{Caller, Calls, Task, current_thread, perform, serve_until_gone};
use crate::program;
use anyhow::{Context, Result, bail, ensure};
use async_nats::{Message, Subscriber};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, LocalSet};
use wallaby_bench::Transport;
use wallaby_bench::fleet::{Control, Fleet, ServerConfig};
use wallaby_bench::harness::Latencies;
use wallaby_bench::pattern::{Pattern, Routes, Shape};
use wallaby_bench::plan::{CLIENT, Targets};
use wallaby_bench::stack::{Client, Stack};

/// NATS over TCP.
#[derive(Debug)]
pub(crate) struct Nats;

impl Stack for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn system(&self, transport: Transport, pattern: Pattern, _: usize) -> Option<&'static str> {
        match pattern {
            _ if transport != Transport::Tcp => None,
            Pattern::Multihop(Shape::Chain { .. } | Shape::Fan { .. }) => Some("nats-forward"),
            Pattern::Multihop(_) => None,
            Pattern::Calls(_) | Pattern::Concurrent { .. } => Some("nats"),
        }
    }

    fn connect(
        &self,
        mut fleet: Fleet,
        config: &ServerConfig,
        payload: usize,
    ) -> Result<Box<dyn Client>> {
        let broker = Broker::start(&config.folder)?;
        fleet.connect(Some(broker.address.clone()))?;
        let runtime = current_thread()?;
        let calls = runtime.block_on(Subjects::connect(&broker.address, &fleet))?;
        let others = vec![broker.process.id()];
        Ok(Box::new(WithBroker {
            caller: Caller {
                runtime,
                local: LocalSet::new(),
                fleet,
                calls,
                others,
                payload,
            },
            _broker: broker,
        }))
    }

    fn serve(&self, config: &ServerConfig) -> Result<()> {
        let mut control = Control;
        let own = format!("bench.{}", config.index);
        let peers = control.exchange_addresses(&own)?;
        let broker = peers.client.context("nobody says where the broker is")?;
        let runtime = current_thread()?;
        let (client, requests) = runtime.block_on(async {
            let client = async_nats::connect(broker).await?;
            let requests = client.subscribe(own).await?;
            client.flush().await?; // nobody is told that this server is there before the broker knows
            anyhow::Ok((client, requests))
        })?;
        let service = runtime.spawn(pass_on(client, requests, peers.servers));
        serve_until_gone(&runtime, control, async { service.await? })
    }
}

/// Passes messages on to the servers they name, or to whoever asked.
async fn pass_on(
    client: async_nats::Client,
    mut requests: Subscriber,
    servers: Vec<String>,
) -> Result<()> {
    let mut targets = Targets::default();
    while let Some(Message { payload, reply, .. }) = requests.next().await {
        let reply = reply.context("a message without a reply subject")?;
        let mut payload = BytesMut::from(payload);
        targets.of(&mut payload)?;
        let payload = payload.freeze();
        for &target in targets.as_slice() {
            if target == CLIENT {
                client.publish(reply.clone(), payload.clone()).await?;
            } else {
                let server = servers.get(usize::from(target));
                let server = server.with_context(|| format!("there is no server {target}"))?;
                client
                    .publish_with_reply(server.clone(), reply.clone(), payload.clone())
                    .await?;
            }
        }
    }
    bail!("the broker closed the subscription")
}

#[derive(Clone)]
struct Subjects {
    client: async_nats::Client,
    servers: Arc<[String]>,
    /// Where several answers to one message arrive, and its subscription.
    inbox: Arc<str>,
    answers: Arc<Mutex<Subscriber>>,
}

impl Subjects {
    async fn connect(broker: &str, fleet: &Fleet) -> Result<Self> {
        let client = async_nats::connect(broker).await?;
        let inbox = client.new_inbox();
        let answers = client.subscribe(inbox.clone()).await?;
        Ok(Self {
            client,
            servers: fleet.addresses().into(),
            inbox: inbox.into(),
            answers: Arc::new(Mutex::new(answers)),
        })
    }
}

impl Calls for Subjects {
    async fn call(&self, server: u8, payload: Bytes) -> Result<Bytes> {
        let subject = self.servers[usize::from(server)].clone();
        Ok(self.client.request(subject, payload).await?.payload)
    }

    async fn spread(&self, server: u8, payload: Bytes, count: usize) -> Result<Vec<Bytes>> {
        let mut answers = self.answers.lock().await;
        let subject = self.servers[usize::from(server)].clone();
        let reply = self.inbox.to_string();
        self.client
            .publish_with_reply(subject, reply, payload)
            .await?;
        let mut received = Vec::with_capacity(count);
        while received.len() < count {
            let answer = answers.next().await.context("the inbox was closed")?;
            received.push(answer.payload);
        }
        Ok(received)
    }

    fn start(self, task: Task) -> JoinHandle<Result<Task>> {
        tokio::spawn(perform(self, task))
    }
}

/// A client and the broker that is there for it alone.
struct WithBroker {
    caller: Caller<Subjects>,
    _broker: Broker,
}

impl Client for WithBroker {
    fn warm_up(&mut self) -> Result<()> {
        self.caller.warm_up()
    }

    fn run(
        &mut self,
        pattern: Pattern,
        routes: &mut Routes,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        self.caller
            .run(pattern, routes, operations, limit, latencies)
    }

    fn processes(&self) -> Vec<u32> {
        self.caller.processes()
    }
}

/// A running nats-server; it is killed when this is dropped, or when this program ends.
struct Broker {
    process: Child,
    address: String,
}

impl Broker {
    fn start(folder: &Path) -> Result<Self> {
        let program = program::find(SERVER).context("there is no nats-server")?;
        let process = program::dies_with_us(&program)
            .args(["--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir"])
            .arg(folder)
            .arg("--log")
            .arg(folder.join("nats-server.log"))
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let mut broker = Self {
            process,
            address: String::new(),
        };
        let ports = folder.join(format!("{SERVER}_{}.ports", broker.process.id()));
        let end = Instant::now() + PATIENCE;
        while broker.address.is_empty() {
            if let Some(status) = broker.process.try_wait()? {
                bail!("nats-server ended at once, {status}");
            }
            ensure!(Instant::now() < end, "nats-server does not say its port");
            thread::sleep(Duration::from_millis(10));
            broker.address = address(&ports).unwrap_or_default();
        }
        Ok(broker)
    }
}

/// What nats-server wrote about the port it chose; none: nothing yet, or only a part.
fn address(ports: &Path) -> Option<String> {
    let text = fs::read_to_string(ports).ok()?;
    let urls: HashMap<String, Vec<String>> = serde_json::from_str(&text).ok()?;
    urls.get("nats")?.first().cloned()
}

impl Drop for Broker {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program.
pub(crate) const SERVER: &str = "nats-server";
/// It is up in a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(20);
