//! How an endpoint is set up.

use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::Address;
use wallaby_proto::call::records::RecordLimits;
use wallaby_proto::wire::PingSettings;

use crate::client::SendLayer;
use crate::endpoint::{DEFAULT_DEADLINE, DEFAULT_PING, Endpoint};
use crate::error::BindError;
use crate::executor::ExecutorConfig;
use crate::service::{Layer, Service};

/// What an endpoint takes and keeps; see each field for what happens beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest payload of a message, in bytes, sent or received. Beyond: an error at the sender, and at a receiver
    /// whose limit is lower the status `ResourceExhausted`. Default 16 MiB.
    pub message: u64,
    /// Bytes of requests that wait for their handlers, a connection. Beyond: senders wait. Default 4 MiB.
    pub requests: u64,
    /// Bytes of responses that wait for the application, a call and connection. Beyond: servers wait. Default 1 MiB.
    pub call: u64,
    /// Bytes of parts of large messages under way, a connection. Beyond: the sender waits. Default 128 KiB.
    pub parts: u64,
    /// Large messages that arrive at a time, a connection. Beyond: they take turns. Default 4.
    pub streams: u32,
    /// Open connections. Beyond: the least recently used one that nobody needs is closed; if all are needed, new ones
    /// are refused. Default 1,024.
    pub connections: usize,
    /// Live calls. Beyond: calls fail with [`crate::Failure::TooManyCalls`]. Default 1,000,000.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let wire = wallaby_proto::connection::Limits::default();
        Self {
            message: wire.message,
            requests: wire.requests,
            call: wire.call,
            parts: wire.parts,
            streams: wire.streams,
            connections: 1024,
            calls: 1_000_000,
        }
    }
}

/// All settings of an endpoint.
pub(crate) struct Config {
    pub(crate) limits: Limits,
    pub(crate) default_deadline: Duration,
    pub(crate) dial_timeout: Duration,
    pub(crate) dial_back_timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) ping: PingSettings,
    pub(crate) stall_limit: Option<Duration>,
    pub(crate) remembered: usize,
    pub(crate) kept_bytes: u64,
    pub(crate) max_depth: u32,
    pub(crate) link_delay: Option<Duration>,
    pub(crate) executor: ExecutorConfig,
    pub(crate) layers: Vec<Arc<dyn Layer>>,
    pub(crate) send_layers: Vec<Arc<dyn SendLayer>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            default_deadline: DEFAULT_DEADLINE,
            dial_timeout: Duration::from_secs(2),
            dial_back_timeout: Duration::from_millis(250),
            grace: Duration::from_secs(5),
            ping: DEFAULT_PING,
            stall_limit: None,
            remembered: 1 << 16,
            kept_bytes: 16 << 20,
            max_depth: 4096,
            link_delay: None,
            executor: ExecutorConfig::default(),
            layers: Vec::new(),
            send_layers: Vec::new(),
        }
    }
}

impl Config {
    pub(crate) fn records(&self) -> RecordLimits {
        RecordLimits {
            requests: self.remembered,
            kept_bytes: self.kept_bytes,
            ping: DEFAULT_PING,
            ..RecordLimits::default()
        }
    }
}

/// Sets up an [`Endpoint`].
///
/// ```
/// # use wallaby::{Endpoint, ExecutorConfig, Schedule};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), wallaby::BindError> {
/// let endpoint = Endpoint::builder()
///     .listen("tcp://127.0.0.1:0")
///     .executor(ExecutorConfig { concurrency: 64, queue: 256, schedule: Schedule::OldestCall })
///     .default_deadline(Duration::from_secs(5))
///     .bind()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until it is bound"]
pub struct Builder {
    pub(crate) listen: Vec<String>,
    pub(crate) advertise: Option<Address>,
    pub(crate) services: Vec<Service>,
    pub(crate) config: Config,
}

impl Builder {
    /// Listens at this address (`tcp://HOST:PORT`, port 0 for any; `unix:///PATH`; `mem://NAME`). May be said several
    /// times; the first is the one that others are told, unless [`advertise`](Self::advertise) says otherwise.
    pub fn listen(mut self, address: &str) -> Self {
        self.listen.push(address.to_owned());
        self
    }

    /// Others are told this address in place of the first one listened at: for hosts behind a translated address.
    pub fn advertise(mut self, address: Address) -> Self {
        self.advertise = Some(address);
        self
    }

    /// Serves these methods.
    pub fn serve(mut self, service: Service) -> Self {
        self.services.push(service);
        self
    }

    /// How many handlers run at a time, how many requests wait, and in which order.
    pub fn executor(mut self, executor: ExecutorConfig) -> Self {
        self.config.executor = executor;
        self
    }

    /// What the endpoint takes and keeps.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// How much time a call has if it does not say. Default 60 s.
    pub fn default_deadline(mut self, deadline: Duration) -> Self {
        self.config.default_deadline = deadline;
        self
    }

    /// How long a server may take to accept a connection. Default 2 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.config.dial_timeout = timeout;
        self
    }

    /// How calls of this endpoint are watched over if they do not say: after each `period` the servers of a call are asked
    /// about its requests, and silence for `timeout` is a failure. Default 500 ms and 5 s; keep the timeout near ten
    /// periods. Servers bound the period to at least 10 ms and the timeout to at most 10 minutes.
    pub fn ping(mut self, period: Duration, timeout: Duration) -> Self {
        self.config.ping = PingSettings { period, timeout };
        self
    }

    /// How long a handler may make no progress before calls of this endpoint count it as stuck and fail. Not limited by
    /// default: a handler makes progress by what it sends, when something it waited for has come, and by saying so
    /// ([`crate::Request::progress`]).
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.config.stall_limit = Some(limit);
        self
    }

    /// How many requests are remembered, running ones included, and how many bytes of answers in case they must be sent
    /// again. Default 65,536 and 16 MiB. Beyond, ended requests are forgotten, oldest first; if all run, a further one is
    /// refused with the status `ResourceExhausted`.
    pub fn remember(mut self, requests: usize, answer_bytes: u64) -> Self {
        self.config.remembered = requests;
        self.config.kept_bytes = answer_bytes;
        self
    }

    /// How many hops deep the tree of a call may be. Default 4,096.
    pub fn max_depth(mut self, depth: u32) -> Self {
        self.config.max_depth = depth;
        self
    }

    /// How long a handler may go on after its request was stopped before it no longer counts as running. Default 5 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = grace;
        self
    }

    /// Puts a handler around all handlers of the endpoint; the one added last is outermost.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.config.layers.push(Arc::new(layer));
        self
    }

    /// Puts a sender around what typed clients send; the one added last is outermost.
    pub fn send_layer(mut self, layer: impl SendLayer) -> Self {
        self.config.send_layers.push(Arc::new(layer));
        self
    }

    /// Emulates a link: all that this endpoint sends is delayed by so much, order kept. For tests and demonstrations.
    pub fn link_delay(mut self, delay: Duration) -> Self {
        self.config.link_delay = (!delay.is_zero()).then_some(delay);
        self
    }

    /// Makes the endpoint. It serves until its last clone is dropped or it is closed.
    ///
    /// # Errors
    ///
    /// If an address cannot be listened at, or two services have a method of the same name.
    pub async fn bind(self) -> Result<Endpoint, BindError> {
        Endpoint::from_builder(self).await
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("listen", &self.listen)
            .field("services", &self.services)
            .finish()
    }
}
