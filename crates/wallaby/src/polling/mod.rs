//! Endpoints that the application turns itself: no thread, no task, no runtime inside.
//!
//! An endpoint of this module does nothing but when it is told to: [`Endpoint::turn`] receives what has arrived, runs handlers
//! for it, sends what there is to send, and looks at what is due, all on the thread that calls it. What became of calls is
//! then waiting as [`Event`]s. It speaks the same protocol as [`crate::Endpoint`], and they call each other, serve
//! each other and forward to each other. `docs/polling.md` says when to use which, and what this one does not do.
//!
//! ```
//! use wallaby::polling::{Endpoint, Event, Wait};
//!
//! #[wallaby::service(package = "example")]
//! trait Greeter {
//!     async fn greet(name: String) -> String;
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut server = Endpoint::bind("udp://127.0.0.1:0")?;
//! server.serve(&greeter::GREET, |request, (name,)| {
//!     request.respond(&format!("Hello, {name}!"))?;
//!     Ok(())
//! })?;
//!
//! let mut client = Endpoint::bind("udp://127.0.0.1:0")?;
//! let call = client.call(server.address(), greeter::greet("hop".into()), &Default::default())?;
//! loop {
//!     server.turn(Wait::Not)?; // in a program of its own: Wait::Forever
//!     client.turn(Wait::Not)?;
//!     match client.next_event() {
//!         Some(Event::Answer(answer)) => assert_eq!(call.read(answer)?, "Hello, hop!"),
//!         Some(Event::Complete { .. }) => break,
//!         Some(other) => panic!("{other:?}"),
//!         None => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod attempts;
mod bodies;
mod builder;
mod calls;
mod datagrams;
mod epoll;
mod event;
mod initiator;
mod own;
mod request;
mod rings;
mod serving;
mod sockets;
mod stops;
mod stream;
mod streams;
mod turn;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use wallaby_proto::endpoint::{ConnId, Endpoint as Core, SocketId};
use wallaby_proto::{Address, NodeId, Status};

pub use wallaby_proto::endpoint::{
    CallKey, CallOptions, DelegateOptions, IncomingAnswer, Limits, Load, RequestKey, Sizes,
};

use self::bodies::BodyNews;
pub use self::bodies::{BodyKey, BodyWriter, WriteError};
pub use self::builder::{Builder, Polling};
pub use self::datagrams::Datagrams;
pub use self::event::{Call, Event};
pub use self::request::{RawRequest, Request};
pub use crate::attempts::plan::RetryPolicy;
pub use crate::metrics::Metrics;
pub use crate::transport::turned_udp::Udp;

use self::calls::Calling;
use self::own::Own;
use self::stops::Stop;
use self::streams::Streams;
use crate::error::{BindError, StillRunning};
use crate::log::{self, Watcher};
use crate::timer::Instant;

/// How long a turn may wait until something arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: for loops that have other work, or a processor to themselves.
    Not,
    /// At most so long.
    For(Duration),
    /// Until something arrives, or has to be done.
    Forever,
}

type Handler = Box<dyn FnMut(RawRequest<'_>, Bytes) -> Result<(), Status>>;

/// One participant, client and server at once, that the application turns.
///
/// It stays on the thread that made it, and so may what its handlers refer to.
///
/// All of its calls are answered by [`next_event`](Self::next_event): each comes to [`Event::Complete`] or
/// [`Event::Failed`]. Dropping it tells its peers that it is gone, and the servers of its calls that it is connected
/// with to stop.
pub struct Endpoint<D: Datagrams = Udp> {
    core: Core,
    /// The time at the latest look at the clock.
    now: Duration,
    /// When it was looked last whether anything has arrived.
    read_at: Duration,
    datagrams: D,
    /// The endpoint's name for what carries them, once there is something to carry.
    socket: Option<SocketId>,
    streams: Streams,
    /// Bytes of a ring of a connection over shared memory that is dialled here.
    ring: usize,
    handlers: Vec<Handler>,
    /// What it tells of itself, and whether of its methods.
    own: Rc<RefCell<Own>>,
    reflects: bool,
    calling: Calling,
    /// Who waits until nothing runs any more, by the call that is waited for now.
    stops: BTreeMap<CallKey, Stop>,
    /// Servers that the application wants to be connected with.
    connecting: BTreeMap<ConnId, Address>,
    /// The call that [`ask`](Self::ask) waits for, which tells the application itself.
    asked: Option<CallKey>,
    /// What the endpoint's time counts from, for the log, and what of its counts was told there.
    began: Instant,
    watcher: Watcher,
    /// The datagram that is being sent, and where to, if there was no room for it.
    datagram: Vec<u8>,
    refused: Option<SocketAddr>,
    /// Datagrams that were gathered may not have been sent.
    keeps: bool,
    /// Datagrams are copied here, so that payloads can be slices of it.
    arrived: BytesMut,
    full_batches: u32,
    /// It may be sent datagrams that it did not ask for.
    takes_datagrams: bool,
    addresses: Vec<Address>,
    /// Where what streams have sent is read.
    input: BytesMut,
    /// It is being turned, or something has panicked in that.
    turns: bool,
}

/// What the application is told of.
#[derive(Debug)]
enum Notification {
    /// There are answers of this call, or it has ended.
    Call(CallKey),
    Stopped(RequestKey, Box<Status>),
    Body(BodyNews),
    Room(RequestKey),
    /// What runs of a call that was stopped.
    Settled(CallKey, Box<StillRunning>),
    Told(Event),
}

impl Endpoint {
    /// An endpoint that listens at this address, `udp:`, `tcp:`, `unix:` or `shm:`, with all settings as they are by default.
    ///
    /// # Errors
    ///
    /// If the address is of another scheme or unknown, or cannot be listened on.
    pub fn bind(address: &str) -> Result<Self, BindError> {
        Self::builder().bind(address)
    }

    /// For other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl<D: Datagrams> Endpoint<D> {
    fn new(
        settings: Builder,
        mut core: Core,
        streams: Streams,
        datagrams: D,
        addresses: Vec<Address>,
    ) -> Self {
        for address in &addresses {
            log::listens(core.node(), address);
        }
        let takes_datagrams = addresses.iter().any(|at| matches!(at, Address::Udp(_)));
        let socket = takes_datagrams.then(|| core.add_listening_socket(datagrams.local()));
        let now = datagrams.now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        core.set_epoch(unix.unwrap_or_default().saturating_sub(now));
        core.set_time(now);
        Self {
            core,
            now,
            read_at: now,
            datagrams,
            socket,
            streams,
            ring: settings.ring,
            asked: None,
            began: Instant::now(),
            watcher: Watcher::default(),
            handlers: Vec::new(),
            own: Rc::default(),
            reflects: settings.reflection,
            calling: Calling::new(settings.call_interceptors),
            stops: BTreeMap::new(),
            connecting: BTreeMap::new(),
            datagram: Vec::new(),
            refused: None,
            keeps: false,
            arrived: BytesMut::new(),
            full_batches: 0,
            takes_datagrams,
            addresses,
            input: BytesMut::new(),
            turns: false,
        }
    }

    /// Where others reach this endpoint: what it tells them; where it tells them nothing, where it listens.
    pub fn address(&self) -> Address {
        let local = || Address::Udp(self.datagrams.local());
        let here = self.core.address().or(self.addresses.first());
        here.cloned().unwrap_or_else(local)
    }

    /// All addresses that it listens at, in the order in which they were named.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The endpoint's incarnation: random, new at every start.
    pub fn node(&self) -> NodeId {
        self.core.node()
    }

    /// What it sends and receives by.
    pub fn datagrams(&mut self) -> &mut D {
        &mut self.datagrams
    }

    /// What it has counted since its start.
    pub fn metrics(&self) -> Metrics {
        self.calling.meters.join(self.core.metrics())
    }

    /// How much it holds.
    pub fn sizes(&self) -> Sizes {
        self.core.sizes()
    }

    /// How many requests run or are put aside, and how many wait for their turn: see [`Builder::executor`].
    pub fn load(&self) -> Load {
        self.core.load()
    }

    // Shutting down.

    /// Begins to shut the endpoint down without loss: what is here is finished and answered, and may delegate and call until then.
    /// New requests are refused with the status `Unavailable`, and connected peers send their next requests elsewhere. Turn it until
    /// it [is drained](Self::is_drained), or for as long as that may take, then drop it.
    pub fn drain(&mut self) {
        self.look_at_clock();
        if !self.core.is_draining() {
            log::drains(self.core.node(), self.load());
            self.own.borrow_mut().said.draining = true;
            self.tell_health();
        }
        self.core.drain();
    }

    /// Whether nothing runs or waits here, no call lives or is to be made again, and all that was sent has left. Events may be left
    /// that were not taken. What is between two attempts then has three seconds to begin the next one.
    pub fn is_drained(&self) -> bool {
        self.core.is_drained()
    }

    /// Ends the endpoint as if its process had died, for tests of those who call it: its connections end, and nobody is told what
    /// becomes of requests here.
    pub fn kill(mut self) {
        self.look_at_clock();
        self.core.hang_up();
    }
}

impl<D: Datagrams> Drop for Endpoint<D> {
    fn drop(&mut self) {
        self.end_after_panic();
        self.look_at_clock();
        if !self.core.is_closed() {
            log::closes(self.core.node());
        }
        // Sessions send nothing any more once they are closed.
        self.core.stop_all();
        self.follow();
        self.flush();
        self.core.close();
        self.follow();
        self.flush();
        self.calling.bodies.close();
    }
}

impl<D: Datagrams> fmt::Debug for Endpoint<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address())
            .field("node", &self.core.node())
            .finish_non_exhaustive()
    }
}
