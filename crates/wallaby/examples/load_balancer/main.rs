//! A load-balancing proxy that forwards: the backend answers the client straight, so that large answers do not pass
//! through the proxy, and it never waits for anybody.
//!
//! ```text
//!   client ──request──▶ proxy ──request──▶ backend ──answer──▶ client
//!                         ▲                   │
//!                         └─ so many finished ┘
//! ```
//!
//! It sends each request to the backend with the *fewest outstanding* ones. But who is not on the way of the answers does
//! not see requests end. So the proxy counts what it forwards, and each backend reports how many of that proxy's requests it
//! has finished: the difference is outstanding. Totals are reported, not changes, so a report may replace the one before
//! it; while a backend is busy one report speaks for many requests. The proxy's own count is always up to date: a burst
//! is spread before any report comes, which queue lengths that backends measure would not do (all of it would go to the one
//! that was the shortest a moment ago). With many proxies, none of which sees what the others forward, the better
//! choice would be the shorter of two random queues.
//!
//! Reports are the answers of a call that the proxy makes to each backend and that never completes. When the backend dies,
//! that call fails: so the proxy learns of it, and takes the backend out. Requests that were under way there
//! fail at their clients, who know whether they may make them again.
//!
//! `cargo run --example load_balancer` runs a proxy and three backends, of which one dies and one is new.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use wallaby::{
    Address, Client, Code, Endpoint, Many, NodeId, One, RawRequest, Request, Retry, Service, Status,
};

/// How many backends a proxy takes, and how many proxies a backend reports to.
const MOST: usize = 64;

/// How often servers of a call are asked about it, and for how long silence is no failure: so long a death goes unnoticed.
const PING: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// What clients want, and backends do. The proxy serves it too.
#[wallaby::service(package = "example")]
trait Renderer {
    /// A page as a picture.
    async fn render(page: u32) -> Vec<u8>;
}

/// What backends tell proxies.
#[wallaby::service(package = "example")]
trait Load {
    /// How many requests of the calling proxy have come, and how many of them are finished; again and again.
    async fn reports() -> Many<Report>;
}

/// What proxies offer backends.
#[wallaby::service(package = "example")]
trait Balancer {
    /// Sends requests to a backend from now on.
    async fn join(backend: Address) -> ();
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    received: u64,
    finished: u64,
}

/// The proxy. Cheap to clone.
#[derive(Clone)]
struct Proxy {
    endpoint: Endpoint,
    pool: Arc<Mutex<Pool>>,
    /// How many backends there are.
    size: watch::Sender<usize>,
}

/// The backends, and what is known of them.
#[derive(Default)]
struct Pool {
    /// All that were named: those whose reports are waited for, too.
    named: BTreeSet<Address>,
    backends: BTreeMap<Address, Backend>,
    turn: u64,
}

#[derive(Default)]
struct Backend {
    /// Requests forwarded to it since its first report.
    forwarded: u64,
    /// Its latest report.
    report: Report,
    /// What had been forwarded when that report came.
    forwarded_then: u64,
    /// Requests that never arrived: a connection broke, and the backend lives.
    lost: u64,
    /// When it was last chosen.
    turn: u64,
}

impl Proxy {
    /// Serves an endpoint.
    fn serve(endpoint: &Endpoint) -> Result<Self, Error> {
        let proxy = Self {
            endpoint: endpoint.clone(),
            pool: Arc::default(),
            size: watch::Sender::new(0),
        };
        endpoint.serve(balancer::service(Arc::new(proxy.clone())))?;
        let handler = proxy.clone();
        let forward = move |request| forward(handler.clone(), request);
        // As bytes: the proxy does not read what it forwards.
        let render = Arc::clone(renderer::RENDER.definition());
        endpoint.serve(Service::new("example.Renderer").raw(render, forward))?;
        Ok(proxy)
    }

    /// Reads a backend's reports until it dies.
    async fn watch(self, backend: Address) {
        // A call that ended may have had its time, or the backend came back: it is made again until nothing comes.
        while self.read_reports(&backend).await > 0 {}
        self.pool().named.remove(&backend);
    }

    /// Reads the reports of one call; how many came. The backend is in the pool meanwhile.
    async fn read_reports(&self, backend: &Address) -> u64 {
        const LONG: Duration = Duration::from_secs(3600);
        let client = Client::new(&self.endpoint, backend).deadline(LONG);
        let mut reports = load::within(client.ping(PING.0, PING.1)).reports();
        let mut came = 0;
        while let Some(Ok(report)) = reports.next().await {
            self.pool().learn(backend, report, came == 0);
            came += 1;
            self.tell_size();
        }
        self.pool().backends.remove(backend);
        self.tell_size();
        came
    }

    fn tell_size(&self) {
        let size = self.pool().backends.len();
        self.size
            .send_if_modified(|known| std::mem::replace(known, size) != size);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handles a client's request: that is all the proxy ever does with it.
async fn forward(proxy: Proxy, request: RawRequest) -> Result<(), Status> {
    let backend = proxy.pool().choose();
    let backend = backend.ok_or_else(|| Status::new(Code::Unavailable, "there is no backend"))?;
    let payload = request.payload().clone();
    let render = renderer::RENDER.definition();
    Ok(request.forward(backend, render, payload).await?)
}

#[wallaby::serve]
impl Balancer for Proxy {
    async fn join(&self, backend: Address) -> Result<(), Status> {
        {
            let named = &mut self.pool().named;
            if named.len() >= MOST && !named.contains(&backend) {
                let message = format!("there are {MOST} backends already");
                return Err(Status::new(Code::ResourceExhausted, message));
            }
            if !named.insert(backend.clone()) {
                return Ok(());
            }
        }
        tokio::spawn(self.clone().watch(backend));
        Ok(())
    }
}

impl Pool {
    /// The backend with the fewest outstanding requests; of several, the one that waits the longest.
    fn choose(&mut self) -> Option<Address> {
        self.turn += 1;
        let turn = self.turn;
        let rank = |(_, backend): &(&Address, &mut Backend)| (backend.outstanding(), backend.turn);
        let (address, backend) = self.backends.iter_mut().min_by_key(rank)?;
        backend.forwarded += 1;
        backend.turn = turn;
        Some(address.clone())
    }

    fn learn(&mut self, address: &Address, report: Report, is_first: bool) {
        if is_first {
            self.backends.insert(address.clone(), Backend::default());
        }
        if let Some(backend) = self.backends.get_mut(address) {
            backend.learn(report);
        }
    }
}

impl Backend {
    fn outstanding(&self) -> u64 {
        self.forwarded
            .saturating_sub(self.report.finished)
            .saturating_sub(self.lost)
    }

    fn learn(&mut self, report: Report) {
        // What was forwarded before the last report came had arrived before this one left, or never will.
        self.lost = self.forwarded_then.saturating_sub(report.received);
        self.forwarded_then = self.forwarded;
        self.report = report;
    }
}

/// A backend.
struct Worker {
    /// What has come from each proxy that asked for reports.
    counts: Mutex<BTreeMap<NodeId, watch::Sender<Report>>>,
    bytes: usize,
    /// How long a picture takes: a backend of few means takes long.
    takes: Takes,
}

/// Waits as long as a picture takes.
type Takes = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A request that runs; finished when this is dropped, however that comes.
struct Running(Option<watch::Sender<Report>>);

impl Worker {
    /// Serves an endpoint; pictures have so many bytes.
    fn serve(endpoint: &Endpoint, bytes: usize, takes: Takes) -> Result<Address, Error> {
        let address = endpoint.address().ok_or("a backend must listen")?.clone();
        let worker = Arc::new(Self {
            counts: Mutex::default(),
            bytes,
            takes,
        });
        endpoint.serve(load::service(Arc::clone(&worker)))?;
        endpoint.serve(renderer::service(worker))?;
        Ok(address)
    }

    /// Notes a request of a proxy: who forwarded it is its delegator.
    fn begin(&self, proxy: Option<NodeId>) -> Running {
        let counts = self.counts();
        let count = proxy.and_then(|proxy| counts.get(&proxy)).cloned();
        if let Some(count) = &count {
            count.send_modify(|report| report.received += 1);
        }
        Running(count)
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<NodeId, watch::Sender<Report>>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.send_modify(|report| report.finished += 1);
        }
    }
}

#[wallaby::serve]
impl Renderer for Worker {
    async fn render(&self, request: Request<One<Vec<u8>>>, page: u32) -> Result<(), Status> {
        let _running = self.begin(request.delegator());
        (self.takes)().await;
        let picture = vec![page as u8; self.bytes];
        Ok(request.respond(picture).await?)
    }
}

#[wallaby::serve]
impl Load for Worker {
    async fn reports(&self, request: Request<Many<Report>>) -> Result<(), Status> {
        let proxy = request.initiator();
        let mut reports = {
            let mut counts = self.counts();
            counts.retain(|_, count| count.receiver_count() > 0);
            if counts.len() >= MOST {
                let message = format!("{MOST} proxies get reports already");
                return Err(Status::new(Code::ResourceExhausted, message));
            }
            let count = watch::Sender::new(Report::default());
            let reports = count.subscribe();
            counts.insert(proxy, count);
            reports
        };
        loop {
            let report = *reports.borrow_and_update();
            // Waits while the proxy has not read those before: then one report speaks for many requests.
            request.reply(report).await?;
            if reports.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A client that makes requests again which were under way at a backend that died: pages can be rendered twice.
fn patient(endpoint: &Endpoint, proxy: &Address) -> Client {
    let pauses = (Duration::from_millis(5), Duration::from_millis(100));
    let retry = Retry::idempotent(10).on(Code::Unavailable);
    Client::new(endpoint, proxy)
        .retry(retry.backoff(pauses.0, pauses.1))
        .ping(PING.0, PING.1)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let listening = || Endpoint::bind("tcp://127.0.0.1:0");
    let endpoint = listening().await?;
    let address = endpoint.address().ok_or("the proxy must listen")?.clone();
    let proxy = Proxy::serve(&endpoint)?;
    let mut size = proxy.size.subscribe();
    let mut backends = Vec::new();
    for takes_ms in [1, 1, 10, 1] {
        let backend = listening().await?;
        let takes: Takes = Box::new(move || {
            let time = Duration::from_millis(takes_ms);
            Box::pin(tokio::time::sleep(time))
        });
        let backend_address = Worker::serve(&backend, 10_000, takes)?;
        backends.push((backend, backend_address, takes_ms));
    }
    for (_, backend, _) in &backends[..3] {
        balancer::at(&endpoint, &address)
            .join(backend.clone())
            .await?;
    }
    size.wait_for(|size| *size == 3).await?;

    let client = listening().await?;
    let mut before = 0;
    for what in [
        "three backends, the third of them slow",
        "the first has died",
        "a new one has come",
    ] {
        match what {
            "the first has died" => backends[0].0.kill(),
            "a new one has come" => {
                let join = balancer::at(&endpoint, &address).join(backends[3].1.clone());
                join.await?;
                size.wait_for(|size| *size == 3).await?;
            }
            _ => {}
        }
        render_all(&patient(&client, &address), 600).await?;
        println!("{what}:");
        for (backend, _, takes_ms) in &backends {
            let requests = backend.metrics().requests_received;
            println!("  {requests:4} requests at the one that takes {takes_ms} ms");
        }
        let carried = endpoint.metrics();
        let bytes = carried.bytes_received + carried.bytes_sent;
        println!(
            "  {} bytes through the proxy, {} answered",
            bytes - before,
            600 * 10_000
        );
        before = bytes;
    }
    endpoint.close();
    backends.iter().for_each(|(backend, ..)| backend.close());
    Ok(())
}

/// Renders so many pages, some at a time.
async fn render_all(client: &Client, pages: u32) -> Result<(), Error> {
    const AT_ONCE: u32 = 8;
    let mut workers = tokio::task::JoinSet::new();
    for first in 0..AT_ONCE {
        let renderer = renderer::within(client.clone());
        workers.spawn(async move {
            for page in (first..pages).step_by(AT_ONCE as usize) {
                let picture = renderer.render(page).await?;
                assert_eq!(
                    picture.first(),
                    Some(&(page as u8)),
                    "the picture of another page"
                );
            }
            Ok::<(), Error>(())
        });
    }
    while let Some(done) = workers.join_next().await {
        done??;
    }
    Ok(())
}
