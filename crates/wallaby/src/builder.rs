//! How an endpoint is set up, whatever its driver.

use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::call::waiting::WaitingLimits;
use wallaby_proto::connection::{KeepAliveSettings, StrangerLimits};
use wallaby_proto::dial::DialPolicy;
use wallaby_proto::endpoint::{Config, Endpoint as Core, Limits, Schemes, Seeds};
use wallaby_proto::executor::ExecutorConfig;
use wallaby_proto::seal::ClusterKey;
use wallaby_proto::wire::{Budgets, PingSettings};
use wallaby_proto::{Address, NodeId};

use crate::client::CallInterceptor;
use crate::endpoint::Endpoint;
use crate::error::BindError;
use crate::intercept::Interceptor;
use crate::service::Service;
use crate::streaming::LONGEST_ITEM;
use crate::transport::{self, Transport, Transports};
use crate::{random, timer};

/// The driver for tokio, and what only its endpoints have settings for.
pub struct Tokio {
    pub(crate) services: Vec<Service>,
    pub(crate) item: u64,
    pub(crate) stored: u64,
    /// Folder in which those of this host offer shared memory.
    pub(crate) same_host: Option<Box<str>>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) transports: Transports,
}

impl Default for Tokio {
    fn default() -> Self {
        Self {
            services: Vec::new(),
            item: LONGEST_ITEM,
            stored: 64 << 20,
            same_host: None,
            interceptors: Vec::new(),
            transports: Transports::default(),
        }
    }
}

/// Sets up an [`Endpoint`], or one of [the polling driver](crate::polling). Times that are longer than a year count as a year,
/// unless a setting says otherwise.
///
/// ```
/// # use wallaby::{Endpoint, ExecutorConfig};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), wallaby::BindError> {
/// let endpoint = Endpoint::builder()
///     .listen("tcp://127.0.0.1:0")
///     .executor(ExecutorConfig { concurrency: 64, queue: 256, ..Default::default() })
///     .default_deadline(Duration::from_secs(5))
///     .bind()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is bound"]
pub struct Builder<D = Tokio> {
    pub(crate) listen: Vec<String>,
    pub(crate) advertise: Option<Address>,
    pub(crate) config: Config,
    /// Bytes of a ring of shared memory.
    pub(crate) ring: usize,
    pub(crate) call_interceptors: Vec<Arc<dyn CallInterceptor>>,
    pub(crate) reflection: bool,
    pub(crate) driver: D,
}

impl<D: Default> Default for Builder<D> {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            advertise: None,
            config: Config::default(),
            ring: transport::DEFAULT_RING,
            call_interceptors: Vec::new(),
            reflection: true,
            driver: D::default(),
        }
    }
}

impl<D> Builder<D> {
    /// Listens at this address (`tcp://HOST:PORT` or `udp://HOST:PORT`, port 0 for any; `unix:///PATH`; `shm:///PATH`;
    /// `mem://NAME`). Over `shm:`, on Linux, processes of one user share memory that they agree on at the unix socket PATH. Over
    /// UDP a message's payload has at most 64 KiB, and servers at `udp:` addresses are dialled from the same socket if it reaches
    /// them; an endpoint that listens on none opens one for that. May be said several times; the first is the one that others are
    /// told, unless [`advertise`](Self::advertise) says otherwise.
    pub fn listen(mut self, address: &str) -> Self {
        self.listen.push(address.to_owned());
        self
    }

    /// Every initial request of this endpoint's calls passes this interceptor before it leaves; the one added last sees it
    /// first.
    pub fn call_interceptor(mut self, interceptor: impl CallInterceptor) -> Self {
        let interceptor = Arc::new(interceptor);
        self.call_interceptors.push(interceptor);
        self
    }

    /// Others are told this address in place of the first one listened at: for hosts behind a translated address, in
    /// containers whose ports are mapped, or with several networks.
    ///
    /// Answers of servers further on come straight to this address. If nobody can dial it they come back the way that their
    /// request went, which costs a message a hop. Who listens at `0.0.0.0` or `::`, whatever the scheme, and says nothing here tells
    /// others the address from which this host sends to other networks; where it sends to none, they are told no address, and a
    /// warning is logged.
    ///
    /// Port 0 stands for the port that is listened at over the same scheme: a program that takes a free one does not know it before.
    pub fn advertise(mut self, address: Address) -> Self {
        self.advertise = Some(address);
        self
    }

    /// Whether the endpoint tells which methods it serves, of which types, and how much it has to do ([`crate::reflection`]).
    /// Default yes: to whoever may call it, unless an interceptor refuses that. Servers that strangers reach may want to say no.
    pub fn reflection(mut self, tell: bool) -> Self {
        self.reflection = tell;
        self
    }

    /// How many handlers run at a time, how many requests wait, and in which order. Both are shared among clients.
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
        self.config.default_deadline = timer::bounded(deadline);
        self
    }

    /// How long a server may take to accept a connection. Default 2 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.config.dial_timeout = timer::bounded(timeout);
        self
    }

    /// How long an answer waits for its initiator to accept a connection; after that it goes back the way its request came. The
    /// dial goes on for as long as any other ([`Self::dial_timeout`]), for the answers that come later; if it fails, the initiator
    /// is not dialled again for a second. Default 250 ms.
    pub fn dial_back_timeout(mut self, timeout: Duration) -> Self {
        self.config.dial_back_timeout = timer::bounded(timeout);
        self
    }

    /// How many strangers there are at a time, and for how long each: who has connected and not said who they are, or over
    /// `udp:` has opened a session and said nothing. Beyond, the one that came first goes. They are not counted among
    /// [`Limits::connections`] and never take the place of one. Default 256, for 2 s.
    pub fn strangers(mut self, count: usize, time: Duration) -> Self {
        let time = timer::bounded(time);
        self.config.strangers = StrangerLimits { count, time };
        self
    }

    /// Which addresses are dialled because others say so: to answer, to hand work on, to ask about requests. By default all
    /// that lead to some server; [`DialPolicy::public`] for servers that serve strangers.
    pub fn dial_policy(mut self, policy: DialPolicy) -> Self {
        self.config.dial_policy = policy;
        self
    }

    /// How calls of this endpoint are watched over if they do not say: after each `period` the servers of a call are asked
    /// about its requests, and silence for `timeout` is a failure. Default 500 ms and 5 s; keep the timeout near ten
    /// periods. A period below 1 ms counts as 1 ms, one above 5 s as 5 s, a timeout below the period as the period, and none is
    /// longer than a year. Servers bound the period to at least 10 ms and the timeout to at most 10 minutes. A timeout is how
    /// long this endpoint waits for servers; how long they go on for an endpoint that does not ask, they decide
    /// ([`initiator_timeout`](Self::initiator_timeout)).
    pub fn ping(mut self, period: Duration, timeout: Duration) -> Self {
        self.config.ping = PingSettings { period, timeout }.bounded();
        self
    }

    /// How soon a call fails whose server is gone for certain: all its connections have ended, and its address refuses to be
    /// dialled or is another process's. Whoever has work of the call from there learns of that end, too, and tells this endpoint at
    /// once: for that there is this time and eight of the longest round trips that were seen, but no more than the ping period.
    /// Default 100 ms. It is for threads that are busy with something else; from the ping period on a call waits for a whole
    /// period.
    pub fn gone_after(mut self, time: Duration) -> Self {
        self.config.gone_after = timer::bounded(time);
        self
    }

    /// How long a peer may be silent while something waits for it: an answer, credit, or bytes that were written last.
    /// After `period` it is asked whether it is there, and after `timeout` in all its connection is given up; calls that
    /// it carried go on or fail as when it breaks. Default 3 s and 10 s; a period of [`Duration::MAX`] switches this
    /// off, one below 1 ms counts as 1 ms. Where nothing waits, nobody asks. Sessions over UDP have times of their own.
    pub fn keep_alive(mut self, period: Duration, timeout: Duration) -> Self {
        // The longest of all switches it off.
        let period = match period {
            Duration::MAX => period,
            _ => period.clamp(PingSettings::SHORTEST, PingSettings::LONGEST),
        };
        self.config.keep_alive = KeepAliveSettings { period, timeout };
        self
    }

    /// Over UDP nobody tells that a server's process has ended, and a request that was sent to it is not sent to the next one:
    /// before a request goes to a peer that has acknowledged nothing newer than `silence`, it is asked whether it is still
    /// there. So the first
    /// request after a longer pause costs a round trip more, and a server that was restarted in the pause is found; in a
    /// shorter one, the first call fails that went to its former incarnation. Default 5 s.
    pub fn confirm_after(mut self, silence: Duration) -> Self {
        self.config.confirm_after = timer::bounded(silence);
        self
    }

    /// How long a handler may make no progress before calls of this endpoint count it as stuck and fail. Not limited by
    /// default: a handler makes progress by what it sends, when something it waited for has come, and by saying so
    /// ([`crate::RequestInfo::progress`]).
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.config.stall_limit = Some(limit);
        self
    }

    /// How many requests are remembered, running ones included, and how many bytes of answers in case they must be sent again, of
    /// as many initiators (4,096 at least); of answers of up to 4 KiB at most 1 GiB. Default 65,536 and 16 MiB. Beyond, ended
    /// requests are forgotten, oldest first; if all run, a further one is refused with the status `ResourceExhausted`. Before that,
    /// one is refused whose client has its share of those that run: see `docs/security.md`, *Shares*.
    pub fn remember(mut self, requests: usize, answer_bytes: u64) -> Self {
        self.config.remembered = requests;
        self.config.kept_bytes = answer_bytes;
        self
    }

    /// How many answers wait if no route leads to their initiator, how many bytes they may have together and for how long
    /// each does. It cannot be dialled, and a relay on the way that its requests came is gone: they leave by the first
    /// connection that proves to be the initiator's, or that brings another request of it. Default 4,096 answers of
    /// 16 MiB, for 10 s. Beyond, and beyond the share of the connection that their requests came over, they are dropped and
    /// counted as undeliverable, and their calls fail if their initiators still live.
    pub fn wait_for_routes(mut self, answers: usize, bytes: u64, time: Duration) -> Self {
        self.config.unrouted = WaitingLimits {
            answers,
            bytes,
            time: timer::bounded(time),
        };
        self
    }

    /// How many hops deep the tree of a call may be. Default 4,096.
    pub fn max_depth(mut self, depth: u32) -> Self {
        self.config.max_depth = depth;
        self
    }

    /// The most that a request here may use up of requests, responses, bytes and depth, with all that it leads to anywhere,
    /// whatever it states itself. Servers that serve strangers should say: it ends trees that grow without end even if their
    /// initiator lets them. Without, a call that states no budgets ([`crate::Client::budgets`]) is bounded by what its
    /// initiator counts, by its depth and by its deadline.
    ///
    /// What is used up shows as [`crate::SendError::Exhausted`] in the handler and as the status `ResourceExhausted` at the
    /// initiator.
    pub fn max_budgets(mut self, most: Budgets) -> Self {
        self.config.max_budgets = Some(most);
        self
    }

    /// How many requests of one call are taken here, as long as the call is remembered, if they state no budgets
    /// ([`crate::Client::budgets`]); further ones are refused with the status `ResourceExhausted`. Default 65,536, all
    /// that an initiator lets such a call have at all servers together: one that needs more here should state
    /// its budgets. So a tree that grows without end comes to its end even if its initiator neither counts nor stops it.
    pub fn max_requests_of_call(mut self, requests: u32) -> Self {
        self.config.requests_of_call = requests;
        self
    }

    /// How long a handler runs on whose initiator does not ask about it any more, though it states a longer timeout: then the
    /// initiator counts as dead, and the handler is cancelled. Default 30 s. It is the ping period and two timeouts of the call
    /// if that is less (10.5 s by default), and five ping periods at least. Initiators ask each ping period, 5 s at most, so
    /// that the handlers of one that lives go on. So handlers of a client that has died are gone within this time, whatever
    /// it has stated. A call with heartbeats does not ask: its initiator counts as dead when none of them could leave for so long.
    pub fn initiator_timeout(mut self, limit: Duration) -> Self {
        self.config.initiator_timeout = timer::bounded(limit);
        self
    }

    /// The shortest period of heartbeats that a call may ask for here ([`crate::Client::heartbeats`]): with a shorter one it gets one
    /// in this time, and its initiator asks for the others. So no peer makes this endpoint send more. Default 100 ms; one that is
    /// longer than 10 minutes counts as 10 minutes.
    pub fn shortest_heartbeat(mut self, period: Duration) -> Self {
        self.config.shortest_heartbeat = timer::bounded(period);
        self
    }

    /// A key that the endpoints of a cluster share: requests that this endpoint sends are sealed with it, with those it
    /// delegates among them (18 bytes more each). May be said several times: the first key seals, all verify. So a key is
    /// replaced: give all endpoints the new one as a second, then as the first, then take the old one away.
    ///
    /// What that protects, and what not, is said in `docs/security.md`.
    ///
    /// ```
    /// # use wallaby::{ClusterKey, Endpoint};
    /// # fn example(secret: [u8; 32]) -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = Endpoint::builder().cluster_key(ClusterKey::new(&secret)?).require_seals();
    /// # Ok(())
    /// # }
    /// ```
    pub fn cluster_key(mut self, key: ClusterKey) -> Self {
        self.config.cluster_keys.push(key);
        self
    }

    /// Handles only requests that somebody has sealed who has one of the [`cluster_key`](Self::cluster_key)s. Others get
    /// the status `PermissionDenied`, back over the connection that they came on and nowhere else.
    pub fn require_seals(mut self) -> Self {
        self.config.require_seals = true;
        self
    }

    /// How many bytes each direction holds of a connection that this endpoint dials over `shm:`, rounded up to a power of two
    /// between 4 KiB and 16 MiB. Default 256 KiB. The memory is taken when the connection is opened, twice this and 4 KiB;
    /// larger messages pass, a piece at a time. Who is dialled takes what its dialler says.
    pub fn shared_memory(mut self, ring_bytes: usize) -> Self {
        self.ring = transport::ring_capacity(ring_bytes);
        self
    }

    /// The endpoint without IO that is set so, and dials addresses of these schemes.
    pub(crate) fn core<'a>(
        &self,
        address: Option<Address>,
        schemes: impl IntoIterator<Item = &'a str>,
    ) -> Result<Core, BindError> {
        if self.config.require_seals && self.config.cluster_keys.is_empty() {
            return Err(BindError::NoClusterKey);
        }
        let config = Config {
            schemes: Schemes::new(schemes),
            ..self.config.clone()
        };
        let node = NodeId::new(u64::from_ne_bytes(random::bytes()?).max(1))
            .ok_or(BindError::Random("zero".into()))?;
        let seeds = Seeds {
            tokens: random::bytes()?,
            cookies: random::bytes()?,
        };
        Ok(Core::new(config, node, address, seeds))
    }
}

/// Settings of endpoints on tokio alone.
impl Builder {
    /// Serves these methods.
    pub fn serve(mut self, service: Service) -> Self {
        self.driver.services.push(service);
        self
    }

    /// How long a handler that is not dropped, a shielded or blocking one, may go on after its request was stopped before it no
    /// longer counts as running. Default 5 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.config.grace = timer::bounded(grace);
        self
    }

    /// Longest item of a stream that follows a request ([`crate::Streaming`]), in bytes, received. Beyond: the stream ends with an
    /// error at its reader, and its sender is stopped. A handler can take others ([`crate::Streaming::item_limit`]). Default 1 MiB.
    pub fn longest_item(mut self, bytes: u64) -> Self {
        self.driver.item = bytes;
        self
    }

    /// Bytes of messages of pipelined multicasts ([`crate::Caller::pipeline`]) that are kept until they are whole, and a few for
    /// each chunk that they came in: large arguments, and all that is stored before it is relayed. All of them together. Beyond:
    /// the server gives the message up, with the status `ResourceExhausted`. Default 64 MiB.
    pub fn stored(mut self, bytes: u64) -> Self {
        self.driver.stored = bytes;
        self
    }

    /// Asks this interceptor about requests before they are handled, whatever service they are for; the one added last is asked
    /// first.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.driver.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Dials and listens at addresses of further schemes by this transport. An endpoint has one for each scheme, and
    /// Wallaby's own schemes are taken.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use wallaby::{Builder, Endpoint, transport::Transport};
    /// # fn example(tls: Arc<dyn Transport>) -> Builder {
    /// Endpoint::builder().transport(tls).listen("tls://0.0.0.0:7443")
    /// # }
    /// ```
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.driver.transports.add(transport);
        self
    }

    /// Sends and receives the datagrams of `udp:` by this network in place of the operating system's.
    #[cfg(target_os = "linux")]
    pub fn datagrams(mut self, network: Arc<dyn transport::DatagramNetwork>) -> Self {
        self.driver.transports.carry_datagrams(network);
        self
    }

    /// Lets this stand between the endpoint and its transports, whichever they are: it sees, delays or changes all bytes. Of
    /// several, the last is nearest to the endpoint.
    pub fn wrap_transports(mut self, wrap: Arc<dyn transport::Wrap>) -> Self {
        self.driver.transports.add_wrap(wrap);
        self
    }

    /// Talks to endpoints of this host over shared memory, whatever address they are known by: to those of this user that are
    /// given the same folder, which must exist and should be this user's alone. On Linux only.
    ///
    /// An endpoint that others reach over `tcp:`, `udp:` or `unix:` listens in the folder besides, at a socket that has the name of
    /// the address that others are told. Whoever is about to dial such an address looks there first, unless it has a host's name;
    /// if nobody is found, or it is another user's, the address itself is dialled. Binding fails if another endpoint of the same
    /// address is there.
    pub fn same_host(mut self, folder: &str) -> Self {
        self.driver.same_host = Some(folder.into());
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

impl<D> std::fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}
