//! An endpoint: one addressable participant, client and server at once.

mod same_host;
mod services;

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;
use wallaby_proto::call::records::Remembered;
use wallaby_proto::endpoint::Shell;
use wallaby_proto::error::Breakdown;
use wallaby_proto::executor::Load;
use wallaby_proto::{Address, NodeId};

use crate::builder::Builder;
use crate::client::{Caller, Outgoing};
use crate::driver::shared::{Inner, locked};
use crate::driver::waiters::Wait;
use crate::error::{BindError, ConnectError, Failure, ServeError, Undrained};
use crate::health::Health;
use crate::log;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::timer::{self, Instant};
use crate::transport::{self, Entrance};

/// One addressable participant, client and server at once. Cheap to clone; it closes when the last clone is dropped.
///
/// An endpoint lives in the tokio runtime in which it was made.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
    _open: Arc<Open>,
}

/// Closes the endpoint when its last handle is gone.
struct Open(Arc<Inner>);

impl Endpoint {
    /// An endpoint that listens at this address: `tcp://HOST:PORT` or `udp://HOST:PORT` (port 0 for any), `unix:///PATH`,
    /// `shm:///PATH` (shared memory, between processes of one user on Linux) or `mem://NAME`. Over UDP a message's payload has at most 64 KiB.
    ///
    /// # Errors
    ///
    /// If that cannot be listened at.
    pub async fn bind(address: &str) -> Result<Self, BindError> {
        Self::builder().listen(address).bind().await
    }

    /// An endpoint that does not listen. It can make calls; answers of servers that it is not connected to come back
    /// along the route its requests went.
    ///
    /// # Errors
    ///
    /// If there is no tokio runtime here, or no random numbers.
    pub fn client() -> Result<Self, BindError> {
        Self::start(Builder::default(), Vec::new())
    }

    /// Sets up an endpoint.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) async fn from_builder(mut builder: Builder) -> Result<Self, BindError> {
        let transports = &builder.driver.transports;
        transports.check()?;
        let mut listeners = Vec::new();
        for address in &builder.listen {
            listeners.push(transport::listen(address, transports).await?);
        }
        let listened: Vec<Address> = (listeners.iter())
            .map(|(_, address)| address.clone())
            .collect();
        builder.advertise = transport::advertised(builder.advertise, &listened)?;
        if let (Some(folder), Some(address)) = (&builder.driver.same_host, &builder.advertise)
            && let Some(socket) = same_host::socket(folder, address)
        {
            listeners.push(transport::listen(&socket.to_string(), transports).await?);
        }
        Self::start(builder, listeners)
    }

    fn start(mut builder: Builder, listeners: Vec<(Entrance, Address)>) -> Result<Self, BindError> {
        let runtime = Handle::try_current().map_err(|_| BindError::NoRuntime)?;
        let tokio = &mut builder.driver;
        let services = std::mem::take(&mut tokio.services);
        builder.config.shell = Shell {
            streams_first: tokio.same_host.is_some(),
            ..Shell::RUNTIME
        };
        let further = builder.driver.transports.schemes();
        let schemes = transport::OWN.iter().copied().chain(further);
        let mut endpoint = builder.core(builder.advertise.clone(), schemes)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        endpoint.set_epoch(unix.unwrap_or_default());
        let inner = Inner::new(endpoint, builder, runtime);
        inner.serve_pipelines();
        inner.serve_own()?;
        for service in services {
            inner.register(service)?;
        }
        for (entrance, address) in listeners {
            log::listens(inner.node, &address);
            let listener = match entrance {
                Entrance::Streams(listener) => listener,
                Entrance::Datagrams(socket) => {
                    inner.add_port(socket);
                    continue;
                }
            };
            let listening = Arc::new(Mutex::new(Some(listener)));
            let accept = Inner::accept(Arc::downgrade(&inner), Arc::clone(&listening));
            let accepting = inner.runtime.spawn(accept).abort_handle();
            locked(&inner.listeners).push((listening, accepting));
        }
        inner.watch_runtime();
        Ok(Self {
            _open: Arc::new(Open(Arc::clone(&inner))),
            inner,
        })
    }

    /// Serves these methods from now on.
    ///
    /// # Errors
    ///
    /// If one of them is served already or has a reserved name, or the endpoint was closed; none is registered then.
    pub fn serve(&self, service: Service) -> Result<(), ServeError> {
        self.inner.register(service)
    }

    /// Says whether a service (`package.Service`) takes work, for who asks [`crate::health`]; `""` is the endpoint as a whole.
    pub fn set_health(&self, service: &str, health: Health) {
        self.inner.health.set(service, health);
    }

    /// Where others reach this endpoint; `None` if it does not listen, or if no address is known that others could dial: see
    /// [`Builder::advertise`].
    pub fn address(&self) -> Option<&Address> {
        self.inner.address.as_ref()
    }

    /// The endpoint's incarnation: random, new at every start.
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// Makes calls with settings of their own, with several initial requests, or with payloads as bytes.
    pub fn caller(&self) -> Caller {
        Caller::new(self)
    }

    /// Connects to a server ahead of the first call.
    ///
    /// # Errors
    ///
    /// If it cannot be reached.
    pub async fn connect(&self, server: impl Into<Address>) -> Result<(), ConnectError> {
        self.inner.connect(&server.into()).await
    }

    /// What the endpoint has counted since its start.
    pub fn metrics(&self) -> Metrics {
        let counted = self.inner.ask(|core| core.endpoint.metrics());
        self.inner.meters.join(counted)
    }

    /// How many handlers run and how many requests wait for one.
    pub fn load(&self) -> Load {
        self.inner.ask(|core| core.endpoint.load())
    }

    /// What is remembered of requests that came here, running ones included.
    pub fn remembered(&self) -> Remembered {
        self.inner.ask(|core| core.endpoint.sizes().remembered)
    }

    /// Shuts the endpoint down without loss: what runs here is finished, and may delegate and call until then. New requests,
    /// its own too, are refused with the status `Unavailable`, and connected peers send their next requests elsewhere.
    /// Its own calls come to their end, too. What is between two attempts then has three seconds to begin the next one.
    /// When all is done, or after `within`, the endpoint is [closed](Self::close). Over UDP what was sent is done when it is acknowledged: of a
    /// peer that has died that takes until it is given up, some ten seconds unless set otherwise ([`Builder::keep_alive`](crate::Builder)).
    ///
    /// # Errors
    ///
    /// How many handlers still ran, and how many requests waited for one, when time was up.
    pub async fn drain(&self, within: Duration) -> Result<(), Undrained> {
        let end = Instant::now() + timer::bounded(within);
        self.inner.health.drain();
        log::drains(self.inner.node, self.load());
        self.inner.enter(|core| core.endpoint.drain());
        let rest = timer::timeout_at(end, self.inner.come_to_rest());
        if rest.await.is_some() {
            log::drained(self.inner.node);
            self.close();
            return Ok(());
        }
        let Load { running, waiting } = self.load();
        // Some may have lost their place: others ran there.
        let running = running.max(self.inner.ask(|core| core.endpoint.stopping()));
        let endpoint = self.inner.node;
        tracing::warn!(%endpoint, running, waiting, "was not drained in time");
        self.close();
        Err(Undrained { running, waiting })
    }

    /// Closes the endpoint: its calls fail, its connections end, it listens no more, and it gives up its services.
    ///
    /// Who waits for its answers is told at once. Requests whose handlers have not begun, or that it has not even read, end with
    /// the status `Unavailable`, which [says](crate::Status::is_not_executed) that they were not executed; those whose handlers
    /// run end with [`Code::Unfinished`](crate::Code::Unfinished). What of this is lost on its way (over `udp:` it is sent once)
    /// callers find out as if the process had died.
    ///
    /// Until then it keeps them. A service that holds its own endpoint therefore keeps it open: such an endpoint must be
    /// closed, or [drained](Self::drain), and not just dropped.
    pub fn close(&self) {
        self.inner.close(false);
    }

    /// Closes the endpoint as if its process had died, for tests of those who call it: its connections end, and nobody is told what
    /// becomes of requests here.
    pub fn kill(&self) {
        self.inner.close(true);
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close(false);
    }
}

/// Lives as long as the runtime in which an endpoint was made.
struct Runtime(Weak<Inner>);

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(endpoint) = self.0.upgrade() {
            endpoint.end_with_runtime();
        }
    }
}

impl Inner {
    /// Connects to a server.
    pub(crate) async fn connect(self: &Arc<Self>, server: &Address) -> Result<(), ConnectError> {
        let Some(told) = self.enter(|core| core.connect(server))? else {
            return Ok(());
        };
        told.await.unwrap_or_else(|_| {
            let reason = "this endpoint was closed".into();
            let server = server.clone();
            Err(ConnectError::Unreachable { server, reason })
        })
    }

    /// Waits until nothing is left to be done.
    async fn come_to_rest(self: &Arc<Self>) {
        poll_fn(|cx| {
            self.enter(|core| {
                if core.endpoint.is_drained() {
                    return Poll::Ready(());
                }
                core.wait(Wait::Drained, cx.waker());
                Poll::Pending
            })
        })
        .await;
    }

    fn close(self: &Arc<Self>, killed: bool) {
        if !self.is_closed() {
            log::closes(self.node);
            self.end(killed);
        }
    }

    /// Its runtime ends: so does the endpoint, with what last words it can still say.
    pub(crate) fn end_with_runtime(self: &Arc<Self>) {
        if !self.is_closed() {
            tracing::info!(endpoint = %self.node, "{}", Breakdown::RuntimeEnded);
            self.enter(|core| core.endpoint.runtime_ended());
            self.end(false);
        }
    }

    /// A task was dropped that was not done. If not in a panic, its runtime ends.
    pub(crate) fn note_dropped(self: &Arc<Self>) {
        if !std::thread::panicking() {
            self.end_with_runtime();
        }
    }

    fn end(self: &Arc<Self>, killed: bool) {
        self.stop_listening();
        // Sessions send nothing any more once they are closed.
        if !killed {
            self.enter(|core| core.endpoint.stop_all());
        }
        self.flush_ports();
        self.enter(|core| core.endpoint.hang_up());
        self.close_ports();
        self.drop_services();
        self.forget_runtime();
    }

    /// It is closed since something has panicked in it.
    pub(crate) fn shut_after_panic(self: &Arc<Self>) {
        tracing::error!(endpoint = %self.node, "{}", Breakdown::Panicked);
        self.stop_listening();
        self.close_ports();
        self.drop_services();
        self.forget_runtime();
    }

    /// If the runtime ends before the endpoint is closed, nobody reads its sockets any more: its calls must not wait for that.
    fn watch_runtime(self: &Arc<Self>) {
        let runtime = Runtime(Arc::downgrade(self));
        let watch = async move {
            let _dropped_with_it = runtime;
            pending::<()>().await;
        };
        let watch = self.runtime.spawn(watch).abort_handle();
        *locked(&self.runtime_watch) = Some(watch);
    }

    fn forget_runtime(&self) {
        if let Some(watch) = locked(&self.runtime_watch).take() {
            watch.abort();
        }
    }

    /// Now, so that the addresses are free when this returns.
    fn stop_listening(&self) {
        let listeners = std::mem::take(&mut *locked(&self.listeners));
        for (listening, accepting) in listeners {
            accepting.abort();
            let listener = locked(&listening).take();
            drop(listener); // out of the locks: it may be foreign code
        }
    }

    fn drop_services(&self) {
        // They may hold this endpoint; what they hold else is free again. Out of the lock: dropping it runs foreign code.
        let services = self.ask(|core| std::mem::take(&mut core.served));
        drop(services);
    }

    /// An initial request passes the interceptors of calls.
    #[inline]
    pub(crate) fn intercept(&self, outgoing: &mut Outgoing) -> Result<(), Failure> {
        outgoing.pass(&self.settings.call_interceptors)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("node", &self.inner.node)
            .field("address", &self.inner.address)
            .finish()
    }
}
