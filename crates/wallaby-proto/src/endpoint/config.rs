//! What an endpoint takes, keeps and waits for.

use std::sync::Arc;
use std::time::Duration;

use crate::call::records::RecordLimits;
use crate::call::waiting::WaitingLimits;
use crate::connection::{
    Bounds, ConnectionLimits as WireLimits, Features, Hello, KeepAliveSettings, LEAST_PARTS,
    PartialLimits, StrangerLimits, VERSION,
};
use crate::datagram::{GateSettings, LOOPBACK_DATAGRAM, MAX_MESSAGE};
use crate::dial::DialPolicy;
use crate::executor::{ExecutorConfig, Schedule};
use crate::numbers::{DEFAULT_DEADLINE, DEFAULT_GONE_AFTER, DEFAULT_PING};
use crate::seal::ClusterKey;
use crate::wire::{Budgets, PingSettings};
use crate::{Address, Code, NodeId, Status};

/// Sessions that a socket has room for, each way, however few connections an endpoint may have.
const MIN_SESSIONS: usize = 64;

/// What an endpoint takes and keeps; see each field for what happens beyond it. There may be more fields in any later version: end a
/// literal with `..Default::default()`.
///
/// ```
/// use wallaby_proto::endpoint::Limits;
///
/// let small = Limits { message: 64 << 10, connections: 128, ..Default::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Longest payload of a message, in bytes, sent or received; over UDP never more than 64 KiB. Beyond: an error at the
    /// sender, and at a receiver whose limit is lower the status `ResourceExhausted`. Default 16 MiB.
    pub message: u64,
    /// Bytes of requests that are under way to this endpoint or wait for their handlers, a connection. Beyond: senders wait.
    /// Default 4 MiB.
    pub requests: u64,
    /// Bytes of answers that wait for the application, a call and connection. Beyond: servers wait. Default 1 MiB.
    pub call: u64,
    /// Bytes of parts of large messages under way to this endpoint, a connection; fewer than 32 KiB count as 32 KiB. Beyond: the
    /// sender waits. Default 128 KiB.
    pub parts: u64,
    /// Large messages that arrive at a time, a connection; none counts as one. Beyond: they take turns. Default 4.
    pub streams: u32,
    /// Connections, strangers aside. Beyond: one that nobody needs is closed, first one that was never of use, then the one used
    /// least recently; if all are needed, new ones are refused. Default 1,024.
    pub connections: usize,
    /// Live calls, and as many whose outcome was not taken. Beyond: calls fail with
    /// [`Failure::TooManyCalls`](crate::error::Failure::TooManyCalls). Default 1,000,000.
    pub calls: usize,
    /// Requests that calls of this endpoint know of, but for the first 1,024 of each call, all together; about 400 bytes each.
    /// A call knows at most as many as it leaves free. Beyond: it fails with
    /// [`LimitReached::Branches`](crate::call::initiator::LimitReached::Branches). Default 1,048,576.
    pub branches: u64,
    /// Bytes of requests that wait for a connection or for credit, and as many of answers, each with 64 bytes besides its
    /// payload; of answers each connection and initiator has a share. Beyond, handlers wait with what they send (those of the
    /// polling driver get [`SendError::Full`](crate::error::SendError::Full)), calls fail with
    /// [`Failure::Refused`](crate::error::Failure::Refused), and statuses that nobody waited with are dropped: they are
    /// asked for again. Delegations that have their place whatever happens
    /// ([`DelegateOptions::always`](super::DelegateOptions::always)), as those down a line of servers do, may have as much again;
    /// beyond, a status takes their place. Default 256 MiB.
    pub waiting: usize,
    /// Bytes of answers that wait to be relayed to their initiators: their payloads and optional fields, and 2 KiB for each.
    /// Beyond, and beyond a connection's share, they are dropped. Default 64 MiB.
    pub relayed: u64,
    /// Bytes of initial requests that are kept to be sent again ([`Resend`](super::Resend)), a call, each with 512 bytes besides
    /// its payload. Beyond: the call is not sent again, and its error says so. Default 1 MiB.
    pub kept_call: u64,
    /// The same for all calls together. Default 64 MiB.
    pub kept: u64,
    /// How much of messages that are not whole is held, all connections together, and how fast these must arrive. Beyond: senders
    /// wait, and too slow ones lose their connections. Default 256 MiB, and 16 KiB a second over 10 s.
    pub partials: PartialLimits,
    /// Bytes that wait to be read by a peer, a connection; at least 128 KiB should. Beyond: nothing is read from it. If for the
    /// time of [`Config::keep_alive`] it takes neither all that waits nor 4 KiB a second, the connection is closed. Default 1 MiB.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let wire = WireLimits::default();
        Self {
            message: wire.message,
            requests: wire.requests,
            call: wire.call,
            parts: wire.parts,
            streams: wire.streams,
            connections: 1024,
            calls: 1_000_000,
            branches: 1 << 20,
            waiting: 256 << 20,
            relayed: 64 << 20,
            kept_call: 1 << 20,
            kept: 64 << 20,
            partials: PartialLimits::default(),
            output: Bounds::default().output,
        }
    }
}

/// All settings of an endpoint.
#[derive(Debug, Clone)]
pub struct Config {
    /// What it takes and keeps.
    pub limits: Limits,
    /// How much time a call has if it does not say. Default 60 s.
    pub default_deadline: Duration,
    /// How long a server may take to accept a connection. Default 2 s.
    pub dial_timeout: Duration,
    /// How long answers wait for an initiator to accept a connection; then they go another way, and the dial goes on. Default
    /// 250 ms.
    pub dial_back_timeout: Duration,
    /// Which addresses are dialled because others say so.
    pub dial_policy: DialPolicy,
    /// How many strangers there may be, and for how long each.
    pub strangers: StrangerLimits,
    /// How calls are watched over that do not say. Default 500 ms and 5 s.
    pub ping: PingSettings,
    /// How soon others are heard who have work of a server that is gone for certain: this and eight of the longest round trips that
    /// were seen, but no longer than the ping period. Default 100 ms.
    pub gone_after: Duration,
    /// Over UDP: how long after the latest acknowledgement a peer is asked whether it is there before a request goes to it.
    /// Default 5 s.
    pub confirm_after: Duration,
    /// How long the peer of a stream may be silent while something waits for it. Default 3 s and 10 s.
    pub keep_alive: KeepAliveSettings,
    /// How long a handler may make no progress before calls count it as stuck. Not limited by default.
    pub stall_limit: Option<Duration>,
    /// How many requests are remembered, running ones included. Default 65,536.
    pub remembered: usize,
    /// How many bytes of answers are kept. Default 16 MiB.
    pub kept_bytes: u64,
    /// How many hops deep the tree of a call may be. Default 4,096.
    pub max_depth: u32,
    /// The most that a request here may use up.
    pub max_budgets: Option<Budgets>,
    /// How many requests of one call are taken that state no budgets.
    pub requests_of_call: u32,
    /// How long a handler runs on whose initiator does not ask about it, or for which no heartbeat leaves. Default 30 s.
    pub initiator_timeout: Duration,
    /// The shortest period of heartbeats that a call may ask this endpoint for. Default 100 ms.
    pub shortest_heartbeat: Duration,
    /// How long a handler that goes on after its request was stopped keeps its place in the executor, where shells have such
    /// handlers ([`Endpoint::keep_permit`](super::Endpoint::keep_permit)). Default 5 s.
    pub grace: Duration,
    /// How many requests are handled at a time, how many wait, and in which order.
    pub executor: ExecutorConfig,
    /// Keys that the endpoints of a cluster share: the first seals, all verify.
    pub cluster_keys: Vec<ClusterKey>,
    /// Handles only requests that are sealed with one of them.
    pub require_seals: bool,
    /// The schemes of the addresses that the shell dials.
    pub schemes: Schemes,
    /// How many answers wait to which no route leads, and for how long.
    pub unrouted: WaitingLimits,
    /// How the shell works.
    pub shell: Shell,
}

/// How the shell around an endpoint works, as far as the endpoint goes by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shell {
    /// Timers of sessions over UDP that are due within so much time are looked at before the shell waits for them, and moved if what
    /// they were for has come meanwhile. Nothing is done later for it. For shells for which a short wait is dear. Default 0.
    pub timers_wait: Duration,
    /// Addresses of datagrams are dialled as those of streams are ([`Output::Dial`](super::Output::Dial)): the shell may know a
    /// better way there, or says [`dial_datagrams`](super::Endpoint::dial_datagrams).
    pub streams_first: bool,
    /// Calls that have ended are kept, for their outcomes and traces, until the shell [forgets](super::Endpoint::forget) them. Else
    /// they go when their outcome was taken.
    pub keep_ended: bool,
}

impl Shell {
    /// The tasks of a runtime, whose timers have a thread: each alarm costs a task switch.
    pub const RUNTIME: Self = Self {
        timers_wait: Duration::from_millis(5),
        streams_first: true,
        keep_ended: true,
    };
    /// A thread that turns the endpoint, and waits in the kernel, whose shorter waits are late.
    pub const TURNED: Self = Self {
        timers_wait: Duration::from_millis(1),
        streams_first: false,
        keep_ended: false,
    };
}

impl Default for Config {
    fn default() -> Self {
        let records = RecordLimits::default();
        Self {
            limits: Limits::default(),
            default_deadline: DEFAULT_DEADLINE,
            dial_timeout: Duration::from_secs(2),
            dial_back_timeout: Duration::from_millis(250),
            dial_policy: DialPolicy::default(),
            strangers: StrangerLimits::default(),
            ping: DEFAULT_PING,
            gone_after: DEFAULT_GONE_AFTER,
            confirm_after: GateSettings::default().confirm_after,
            keep_alive: KeepAliveSettings::default(),
            stall_limit: None,
            remembered: records.requests,
            kept_bytes: records.kept_bytes,
            max_depth: 4096,
            max_budgets: None,
            requests_of_call: records.requests_of_call,
            initiator_timeout: records.patience,
            shortest_heartbeat: records.shortest_heartbeat,
            grace: Duration::from_secs(5),
            executor: ExecutorConfig::default(),
            cluster_keys: Vec::new(),
            require_seals: false,
            schemes: Schemes::default(),
            unrouted: WaitingLimits::default(),
            shell: Shell::default(),
        }
    }
}

impl Limits {
    /// Whether a message, or what counts as one, may be so many bytes long.
    ///
    /// # Errors
    ///
    /// What its sender is told.
    pub fn admit(&self, what: &str, size: u64) -> Result<(), Status> {
        match size <= self.message {
            true => Ok(()),
            false => Err(self.too_large(what, size)),
        }
    }

    pub(super) fn too_large(&self, what: &str, size: u64) -> Status {
        let text = format!("{what} of {size} bytes: at most {} are taken", self.message);
        Status::new(Code::ResourceExhausted, text)
    }
}

impl Config {
    /// How much time a call has that is to have so much itself, on behalf of a request that has so much left.
    pub fn time(&self, own: Option<Duration>, left: Option<Duration>) -> Duration {
        let stated = own.into_iter().chain(left).min();
        stated.unwrap_or(self.default_deadline)
    }

    /// Whether a shell that has read nothing for so long should read before it writes: peers may believe this endpoint dead, and have
    /// closed connections without its having noticed. Nobody would know what became of a request that is written to one of these.
    pub fn reads_first(&self, unread_for: Duration) -> bool {
        // Peers may be set otherwise; mostly they are not.
        let theirs = KeepAliveSettings::default().timeout;
        unread_for > self.keep_alive.timeout.min(theirs) / 4
    }

    /// What an endpoint that is set so says of itself to others.
    pub(super) fn hello(&self, node: NodeId, address: Option<Address>) -> Hello {
        let limits = &self.limits;
        let ages = match self.executor.schedule {
            Schedule::OldestCall => Features::AGE,
            Schedule::Fifo | Schedule::EarliestDeadline => Features::default(),
        };
        Hello {
            versions: (VERSION, VERSION),
            node,
            expected: None,
            address,
            features: Features::OF_ENDPOINTS.and(ages),
            limits: WireLimits {
                message: limits.message,
                requests: limits.requests.max(1),
                call: limits.call.max(1),
                parts: limits.parts.max(LEAST_PARTS),
                streams: limits.streams.max(1),
            },
        }
    }

    /// How its sessions over UDP are set.
    pub(super) fn sessions(&self) -> GateSettings {
        GateSettings {
            // Those that are being closed are still sessions for a while.
            sessions: self.limits.connections.saturating_mul(2).max(MIN_SESSIONS),
            confirm_after: self.confirm_after,
            loopback: LOOPBACK_DATAGRAM,
            ..GateSettings::default()
        }
    }

    /// The longest message to an address. Of one that is only dialled as datagrams if no stream leads there this turns out later.
    pub(super) fn longest_to(&self, to: &Address) -> u64 {
        match to.is_udp() && !self.shell.streams_first {
            true => self.limits.message.min(MAX_MESSAGE as u64),
            false => self.limits.message,
        }
    }
}

/// The schemes of the addresses that a shell dials: see [`Address::scheme`]. None by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schemes(Vec<Arc<str>>);

impl Schemes {
    /// These.
    pub fn new<'a>(schemes: impl IntoIterator<Item = &'a str>) -> Self {
        Self(schemes.into_iter().map(Arc::from).collect())
    }

    /// Whether this address has one of them.
    pub(super) fn lead_to(&self, address: &Address) -> bool {
        let scheme = address.scheme();
        self.0.iter().any(|known| **known == *scheme)
    }
}

/// What must be random: new for each endpoint, and unknown to everybody else.
#[derive(Clone)]
pub struct Seeds {
    /// The tokens of calls are derived from it.
    pub tokens: [u8; 16],
    /// The cookies of UDP sessions.
    pub cookies: [u8; 16],
}

impl std::fmt::Debug for Seeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seeds")
    }
}
