//! How a polling endpoint is set up.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::connection::{
    ConnectionLimits as WireLimits, Features, Hello, KeepAliveSettings, StrangerLimits, VERSION,
};
use wallaby_proto::datagram::{LOOPBACK_DATAGRAM, Settings};
use wallaby_proto::dial::DialPolicy;
use wallaby_proto::endpoint::{Config, Endpoint as Core, Limits, Schemes, Seeds};
use wallaby_proto::executor::{ExecutorConfig, Schedule};
use wallaby_proto::seal::ClusterKey;
use wallaby_proto::wire::{Budgets, PingSettings};
use wallaby_proto::{Address, AddressError, NodeId};

use super::Endpoint;
use super::datagrams::{Datagrams, Udp};
use super::streams::Streams;
use crate::error::BindError;
use crate::{random, transport};

/// Sessions that a socket has room for, each way, however few connections an endpoint may have.
const MIN_SESSIONS: usize = 64;

/// Sets up a polling [`Endpoint`].
///
/// ```
/// use std::time::Duration;
/// use wallaby::polling::Endpoint;
///
/// let endpoint = Endpoint::builder()
///     .default_deadline(Duration::from_secs(1))
///     .bind("udp://127.0.0.1:0")?;
/// # Ok::<(), wallaby::BindError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it is bound"]
pub struct Builder {
    config: Config,
    confirm_after: Duration,
    /// Bytes of a ring in shared memory.
    ring: usize,
    advertise: Option<Address>,
    /// Where it listens.
    listen: Vec<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            config: Config {
                schemes: Schemes::new(["udp", "tcp", "unix", "shm"]),
                ..Config::default()
            },
            confirm_after: Settings::default().confirm_after,
            ring: transport::DEFAULT_RING,
            advertise: None,
            listen: Vec::new(),
        }
    }
}

impl Builder {
    /// Others are told this address in place of the one that is bound; see [`crate::Builder::advertise`].
    pub fn advertise(mut self, address: Address) -> Self {
        self.advertise = Some(address);
        self
    }

    /// What the endpoint takes and keeps.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// How much time a call has if it does not say. Default 60 s.
    pub fn default_deadline(mut self, deadline: Duration) -> Self {
        self.config.default_deadline = deadline.min(PingSettings::LONGEST);
        self
    }

    /// How long a server may take to accept a connection, and who connects to say who it is. Default 2 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.config.dial_timeout = timeout.min(PingSettings::LONGEST);
        self
    }

    /// How many strangers there are at a time, and for how long each: who has connected and not said who they are, or over
    /// `udp:` has opened a session and said nothing. Beyond, the one that came first goes. They are not counted among
    /// [`Limits::connections`] and never take the place of one. Default 256, for 2 s.
    pub fn strangers(mut self, count: usize, time: Duration) -> Self {
        let time = time.min(PingSettings::LONGEST);
        self.config.strangers = StrangerLimits { count, time };
        self
    }

    /// Which addresses are dialled because others say so: see [`crate::Builder::dial_policy`].
    pub fn dial_policy(mut self, policy: DialPolicy) -> Self {
        self.config.dial_policy = policy;
        self
    }

    /// How calls are watched over that do not say: see [`crate::Builder::ping`]. Default 500 ms and 5 s.
    pub fn ping(mut self, period: Duration, timeout: Duration) -> Self {
        self.config.ping = PingSettings { period, timeout }.bounded();
        self
    }

    /// How soon a call fails whose server is gone for certain: see [`crate::Builder::gone_after`]. Default 100 ms.
    pub fn gone_after(mut self, time: Duration) -> Self {
        self.config.gone_after = time.min(PingSettings::LONGEST);
        self
    }

    /// How long a peer may be silent while something on a stream waits for it: see [`crate::Builder::keep_alive`]. Default 3 s
    /// and 10 s.
    pub fn keep_alive(mut self, period: Duration, timeout: Duration) -> Self {
        // The longest of all switches it off.
        let period = match period {
            Duration::MAX => period,
            _ => period.clamp(PingSettings::SHORTEST, PingSettings::LONGEST),
        };
        self.config.keep_alive = KeepAliveSettings { period, timeout };
        self
    }

    /// A peer over UDP that was silent for so long is asked whether it is still there before a request goes to it: see
    /// [`crate::Builder::confirm_after`]. Default 5 s.
    pub fn confirm_after(mut self, silence: Duration) -> Self {
        self.confirm_after = silence.min(PingSettings::LONGEST);
        self
    }

    /// How long a handler may make no progress before calls count it as stuck and fail: see
    /// [`crate::Builder::stall_limit`]. Not limited by default.
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.config.stall_limit = Some(limit);
        self
    }

    /// How many requests are remembered, running ones included, and how many bytes of answers: see
    /// [`crate::Builder::remember`]. Default 65,536 and 16 MiB.
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

    /// The most that a request here may use up: see [`crate::Builder::max_budgets`].
    pub fn max_budgets(mut self, most: Budgets) -> Self {
        self.config.max_budgets = Some(most);
        self
    }

    /// How many requests of one call are taken here that state no budgets: see [`crate::Builder::max_requests_of_call`].
    pub fn max_requests_of_call(mut self, requests: u32) -> Self {
        self.config.requests_of_call = requests;
        self
    }

    /// How many requests run or are put aside at a time, how many wait for that, and in which order. Default: see
    /// [`ExecutorConfig`].
    pub fn executor(mut self, executor: ExecutorConfig) -> Self {
        self.config.executor = executor;
        self
    }

    /// How long a handler runs on whose initiator does not ask about it: see [`crate::Builder::initiator_timeout`].
    pub fn initiator_timeout(mut self, limit: Duration) -> Self {
        self.config.initiator_timeout = limit.min(PingSettings::LONGEST);
        self
    }

    /// A key that the endpoints of a cluster share: see [`crate::Builder::cluster_key`].
    pub fn cluster_key(mut self, key: ClusterKey) -> Self {
        self.config.cluster_keys.push(key);
        self
    }

    /// Handles only requests that are sealed with a [`cluster_key`](Self::cluster_key): see
    /// [`crate::Builder::require_seals`].
    pub fn require_seals(mut self) -> Self {
        self.config.require_seals = true;
        self
    }

    /// How many bytes each direction holds of a connection that this endpoint dials over `shm:`: see
    /// [`crate::Builder::shared_memory`]. Default 256 KiB.
    pub fn shared_memory(mut self, ring_bytes: usize) -> Self {
        self.ring = transport::ring_capacity(ring_bytes);
        self
    }

    /// Also listens at this address: `tcp://HOST:PORT`, `unix:///PATH`, `shm:///PATH`, or one `udp://HOST:PORT` in all.
    pub fn listen(mut self, address: &str) -> Self {
        self.listen.push(address.to_owned());
        self
    }

    /// An endpoint that listens at this address, and at those of [`listen`](Self::listen): `udp://HOST:PORT`,
    /// `tcp://HOST:PORT`, port 0 for any, `unix:///PATH` or `shm:///PATH`. It tells this address to others, and dials whatever
    /// transports addresses name.
    ///
    /// # Errors
    ///
    /// If an address is of another scheme or unknown, or cannot be listened on.
    pub fn bind(mut self, address: &str) -> Result<Endpoint, BindError> {
        self.listen.insert(0, address.to_owned());
        let all = self.resolved()?;
        let udp = all.iter().find_map(|address| match address {
            Address::Udp(socket) => Some(*socket),
            _ => None,
        });
        let datagrams = match udp {
            None => Udp::unbound(),
            Some(socket) => Udp::bind(socket).map_err(|source| BindError::Listen {
                address: Address::Udp(socket),
                source,
            })?,
        };
        self.build(datagrams, &all)
    }

    /// An endpoint that sends and receives datagrams by this, and listens at the addresses of [`listen`](Self::listen).
    ///
    /// # Errors
    ///
    /// If one of those cannot be listened on, the system gives no random numbers, or seals are required and there is no key.
    pub fn bind_to<D: Datagrams>(self, datagrams: D) -> Result<Endpoint<D>, BindError> {
        let mut all = self.resolved()?;
        all.insert(0, Address::Udp(datagrams.local()));
        self.build(datagrams, &all)
    }

    /// The addresses to listen at.
    fn resolved(&self) -> Result<Vec<Address>, BindError> {
        self.listen.iter().map(|address| resolve(address)).collect()
    }

    fn build<D: Datagrams>(
        self,
        datagrams: D,
        addresses: &[Address],
    ) -> Result<Endpoint<D>, BindError> {
        let config = self.config;
        if config.require_seals && config.cluster_keys.is_empty() {
            return Err(BindError::NoClusterKey);
        }
        let (streams, addresses) = listen(addresses, datagrams.local())?;
        let wire = WireLimits::default();
        let hello = Arc::new(Hello {
            versions: (VERSION, VERSION),
            node: random_node()?,
            expected: None,
            address: (self.advertise)
                .or_else(|| addresses.first().cloned().map(transport::advertised)),
            features: match config.executor.schedule {
                Schedule::OldestCall => Features::AGE.and(Features::TIME),
                Schedule::Fifo | Schedule::EarliestDeadline => Features::TIME,
            },
            limits: WireLimits {
                message: config.limits.message,
                requests: config.limits.requests.max(1),
                call: config.limits.call.max(1),
                ..wire
            },
        });
        let settings = Settings {
            // Those that are being closed are still sessions for a while.
            sessions: config
                .limits
                .connections
                .saturating_mul(2)
                .max(MIN_SESSIONS),
            confirm_after: self.confirm_after,
            loopback: LOOPBACK_DATAGRAM,
            ..Settings::default()
        };
        let seeds = Seeds {
            tokens: random::bytes()?,
            records: random::bytes()?,
            cookies: random::bytes()?,
            tables: random::bytes()?,
        };
        let core = Core::new(config, hello, settings, seeds);
        Ok(Endpoint::new(
            core, streams, datagrams, addresses, self.ring,
        ))
    }
}

/// Listens everywhere; the socket of datagrams is there already. Returns the addresses as others see them.
fn listen(all: &[Address], local: SocketAddr) -> Result<(Streams, Vec<Address>), BindError> {
    let mut streams = Streams::default();
    let mut found = Vec::with_capacity(all.len());
    for address in all {
        let here = match address {
            Address::Udp(_) => Address::Udp(local),
            stream => streams.listen(stream)?,
        };
        if found.contains(&here) {
            let why = "an endpoint of the polling driver has one socket for datagrams";
            return Err(BindError::Listen {
                address: address.clone(),
                source: io::Error::new(io::ErrorKind::AddrInUse, why),
            });
        }
        found.push(here);
    }
    Ok((streams, found))
}

fn random_node() -> Result<NodeId, BindError> {
    loop {
        if let Some(node) = NodeId::new(u64::from_be_bytes(random::bytes()?)) {
            return Ok(node);
        }
    }
}

/// The address; a host's name is looked up.
fn resolve(text: &str) -> Result<Address, BindError> {
    let error = match text.parse() {
        Ok(address) => return Ok(address),
        Err(error) => error,
    };
    let AddressError::NoSocketAddress { .. } = &error else {
        return Err(error.into());
    };
    type Scheme = fn(SocketAddr) -> Address;
    let (host, scheme) = match (text.strip_prefix("tcp://"), text.strip_prefix("udp://")) {
        (Some(host), _) => (host, Address::Tcp as Scheme),
        (_, Some(host)) => (host, Address::Udp as Scheme),
        (None, None) => return Err(error.into()),
    };
    match host.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(socket)) => Ok(scheme(socket)),
        Ok(None) => Err(error.into()),
        Err(source) if source.kind() == io::ErrorKind::InvalidInput => Err(error.into()),
        Err(source) => Err(BindError::Resolve {
            address: text.into(),
            source,
        }),
    }
}
