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
mod request;
mod rings;
mod sockets;
mod stream;
mod streams;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::clock::earliest;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    ConnId, Endpoint as Core, InputOutcome, Next, Outcome, Output, Serving, SocketId,
};
use wallaby_proto::error::PANICKED;
use wallaby_proto::{Address, NodeId, RequestId, Status};

pub use wallaby_proto::endpoint::{
    Answer, CallKey, CallOptions, DelegateOptions, Limits, Load, RequestKey, Sizes,
};

use self::bodies::BodyNews;
pub use self::bodies::{BodyKey, BodyWriter, WriteError};
use self::builder::DEAR;
pub use self::builder::{Builder, Polling};
pub use self::datagrams::{Datagrams, Udp};
pub use self::event::{Call, Event};
pub use self::request::{RawRequest, Request};
pub use crate::attempts::plan::RetryPolicy;
pub use crate::metrics::Metrics;

use self::attempts::Retried;
use self::calls::{Calling, Initial};
use self::streams::{Streams, Whom};
use crate::body::Body;
use crate::client::CallInterceptor;
use crate::codec::Codec;
use crate::error::{BindError, CallError, Failure, ServeError};
use crate::method::{self, Method, One, RequestBody, Target};
use crate::metrics::Meters;
use crate::panics::panic_message;
use crate::service::undecodable;

/// Room for arriving datagrams that is made at a time.
const ROOM: usize = 64 * 1024;

/// Full batches of datagrams after which the endpoint looks at what is due, though more may have arrived.
const BATCHES_UNTIL_TIME: u32 = 16;

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
/// [`Event::Failed`]. Dropping it tells its peers that it is gone; its calls are not aborted then, but their servers notice.
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
    calling: Calling,
    retried: Retried,
    meters: Meters,
    /// What the application is told next.
    told: VecDeque<Notification>,
    /// The call that [`ask`](Self::ask) waits for, which tells the application itself.
    asked: Option<CallKey>,
    /// How often there was something to tell.
    news: u64,
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
        mut core: Core,
        streams: Streams,
        datagrams: D,
        addresses: Vec<Address>,
        ring: usize,
        interceptors: Vec<Arc<dyn CallInterceptor>>,
    ) -> Self {
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
            ring,
            told: VecDeque::new(),
            asked: None,
            news: 0,
            handlers: Vec::new(),
            calling: Calling::new(interceptors),
            retried: Retried::default(),
            meters: Meters::default(),
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
        self.meters.join(self.core.metrics())
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

    // Serving.

    /// Serves a method. The handler runs in [`turn`](Self::turn), and no other does meanwhile: what takes long is put aside
    /// ([`Request::hold`]) and answered later. A status that it returns, or a panic, ends the request.
    ///
    /// # Errors
    ///
    /// If a method of this name is served already, or the name is reserved.
    pub fn serve<Args, A, C>(
        &mut self,
        method: &Method<Args, A, C>,
        mut handler: impl FnMut(Request<'_, A, C>, Args) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError>
    where
        A: method::Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        let handler =
            move |request: RawRequest<'_>, payload| match <C as Codec<Args>>::decode(payload) {
                Ok(arguments) => handler(Request::new(request), arguments),
                Err(error) => Err(undecodable(&error)),
            };
        self.add_handler(
            method.definition().clone(),
            answers::<A>(),
            Box::new(handler),
        )
    }

    /// Serves a method behind whose requests something follows, bytes ([`Body`]) or items ([`crate::Streaming`]), and gives that to
    /// its handler: which reads by `try_next` what has come, and keeps the rest for later turns. [`Event::Body`] tells when there is
    /// more. Whoever drops it stops its sender.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub fn serve_streaming<Args, A, C, B>(
        &mut self,
        method: &Method<Args, A, C, B>,
        mut handler: impl FnMut(Request<'_, A, C>, Args, B) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError>
    where
        A: method::Answers,
        C: Codec<Args> + Codec<A::Item>,
        B: RequestBody,
    {
        let handler = move |mut request: RawRequest<'_>, payload| {
            let arguments = <C as Codec<Args>>::decode(payload);
            let arguments = arguments.map_err(|error| undecodable(&error))?;
            let body = B::receive(&mut request)?;
            handler(Request::new(request), arguments, body)
        };
        self.add_handler(
            method.definition().clone(),
            answers::<A>(),
            Box::new(handler),
        )
    }

    /// Serves a method with payloads as bytes.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub fn serve_raw(
        &mut self,
        method: Arc<MethodDefinition>,
        handler: impl FnMut(RawRequest<'_>, Bytes) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError> {
        self.add_handler(method, Serving::default(), Box::new(handler))
    }

    /// Serves all methods that are not served by their names, for gateways and proxies: see
    /// [`Service::catch_all`](crate::Service::catch_all).
    ///
    /// # Errors
    ///
    /// If the rest is served already.
    pub fn serve_rest(
        &mut self,
        handler: impl FnMut(RawRequest<'_>, Bytes) -> Result<(), Status> + 'static,
    ) -> Result<(), ServeError> {
        let how = Serving {
            rest: true,
            ..Serving::default()
        };
        let rest = Arc::clone(MethodDefinition::rest());
        self.add_handler(rest, how, Box::new(handler))
    }

    fn add_handler(
        &mut self,
        method: Arc<MethodDefinition>,
        how: Serving,
        handler: Handler,
    ) -> Result<(), ServeError> {
        self.core.serve(method, how)?;
        self.handlers.push(handler);
        Ok(())
    }

    /// A request that was put aside, to answer it. It ends when it is dropped, unless it is put aside again. `None` if it has
    /// ended: it was aborted or had no time left.
    pub fn request(&mut self, key: RequestKey) -> Option<RawRequest<'_>> {
        self.look_at_clock();
        let resumed = self.core.resume(key);
        resumed.then(|| RawRequest::new(&mut self.core, &mut self.calling, key, false))
    }

    // Calling.

    /// Makes a call with one initial request, and with the body of the target, if it has one. It leaves at the latest in the next
    /// [`turn`](Self::turn).
    ///
    /// A body is asked for its bytes in turns, when there is room for them, and must not block: it is what another request was
    /// followed by, for instance, or what an iterator yields ([`crate::items`]), or is written piece by piece
    /// ([`body_writer`](Self::body_writer)). Somebody who wakes it on another thread does not wake the endpoint.
    ///
    /// # Errors
    ///
    /// If it cannot be sent; there is no event of the call then.
    pub fn call<A: method::Answers, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
    ) -> Result<Call<A, C>, Failure> {
        let initial = Initial {
            server: server.into(),
            method: &target.definition,
            payload: target.payload?,
            body: target.body,
        };
        self.make_call(options, initial).map(Call::new)
    }

    /// The same with its payload as bytes.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_raw(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        options: &CallOptions,
    ) -> Result<CallKey, Failure> {
        let initial = Initial {
            server: server.into(),
            method,
            payload,
            body: None,
        };
        self.make_call(options, initial)
    }

    fn make_call(
        &mut self,
        options: &CallOptions,
        initial: Initial<'_>,
    ) -> Result<CallKey, Failure> {
        self.look_at_clock();
        self.calling.call(&mut self.core, None, options, initial)
    }

    /// Begins a call of several initial requests. It can complete only when no more can come: after
    /// [`close_call`](Self::close_call).
    ///
    /// # Errors
    ///
    /// If as many calls live as may.
    pub fn begin(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        self.look_at_clock();
        self.core.begin(options)
    }

    /// Sends an initial request of a call.
    ///
    /// # Errors
    ///
    /// If it cannot be sent, or the call is closed or has ended. The call has failed, and an event says so.
    pub fn send(
        &mut self,
        call: CallKey,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<RequestId, Failure> {
        self.look_at_clock();
        let initial = Initial {
            server: server.into(),
            method,
            payload,
            body: None,
        };
        self.calling.send(&mut self.core, call, initial)
    }

    /// Sends an initial request of a call, and then a body, as [`call`](Self::call) says. It is not sent again, whatever the call's
    /// options say.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with_body(
        &mut self,
        call: CallKey,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Body,
    ) -> Result<RequestId, Failure> {
        self.look_at_clock();
        let initial = Initial {
            server: server.into(),
            method,
            payload,
            body: Some(body),
        };
        self.calling.send(&mut self.core, call, initial)
    }

    /// A body that is written piece by piece, to be sent with a call or a delegation.
    pub fn body_writer(&mut self) -> (BodyWriter, Body) {
        self.calling.bodies.writer()
    }

    /// Says how many initial requests of a call will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_among(&mut self, call: CallKey, requests: u32) {
        self.core.share_among(call, requests);
    }

    /// No further initial request of a call comes.
    pub fn close_call(&mut self, call: CallKey) {
        self.core.close_call(call);
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, call: CallKey) {
        self.look_at_clock();
        if !self.abort_retried(call) {
            self.core.abort(call);
        }
    }

    /// What happened next, if anything has.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.told.is_empty() {
            self.follow();
        }
        loop {
            match self.told.pop_front()? {
                Notification::Stopped(request, status) => {
                    return Some(Event::Stopped { request, status });
                }
                Notification::Body(BodyNews::Came(request)) => {
                    return Some(Event::Body { request });
                }
                Notification::Body(BodyNews::Room(body)) => return Some(Event::BodyRoom { body }),
                Notification::Told(event) => return Some(event),
                Notification::Call(call) => {
                    let event = match self.retried_by(call) {
                        Some(key) => self.next_of_attempt(call, key),
                        None => self.next_of_call(call),
                    };
                    if event.is_some() {
                        return event;
                    }
                }
            }
        }
    }

    fn next_of_call(&mut self, call: CallKey) -> Option<Event> {
        Some(match self.core.next_answer(call) {
            Next::Answer(answer) => {
                self.told.push_back(Notification::Call(call)); // others have their turn
                Event::Answer(answer)
            }
            Next::Trace(trace) => {
                self.told.push_front(Notification::Call(call));
                Event::Trace { call, trace }
            }
            Next::Ended(Outcome::Complete { statuses }) => Event::Complete { call, statuses },
            Next::Ended(Outcome::Failed(failure)) => Event::Failed { call, failure },
            Next::Pending => return None,
        })
    }

    /// Whether there is something that the application was not told.
    fn has_event(&mut self) -> bool {
        while let Some(Notification::Call(call)) = self.told.front()
            && !self.core.has_next(*call)
        {
            let call = *call;
            let _ = self.core.next_answer(call); // so that it is told again when there is more
            self.told.pop_front();
        }
        !self.told.is_empty()
    }

    /// Makes a call of a method that answers once, and turns the endpoint until it is over; events of other calls are kept
    /// meanwhile. `wait` is how each turn waits: [`Wait::Not`] keeps the processor busy.
    ///
    /// # Errors
    ///
    /// How the call failed, or the status in place of its answer. [`Failure::Closed`] if the socket fails, which is logged: then nothing
    /// comes any more.
    pub fn ask<T: Send + 'static, C: Codec<T>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
        options: &CallOptions,
        wait: Wait,
    ) -> Result<T, CallError> {
        let call = self.call(server, target, options)?;
        self.asked = Some(call.key());
        let ended = self.wait_for(call, wait);
        self.asked = None;
        let answer = ended.map_err(|error| {
            tracing::error!(%error, "nothing can be received any more");
            self.core.forget(call.key());
            Failure::Closed
        })?;
        answer?.ok_or(Failure::NoAnswer)?
    }

    /// An answer of a call that this endpoint makes, as [`Call::read`] gives it.
    ///
    /// # Errors
    ///
    /// The status that came in its place, or that it cannot be read, with its method and its server as far as they are known: they
    /// are forgotten once the end of the call was [told](Event::Complete).
    pub fn read<A, C>(&self, call: Call<A, C>, answer: Answer) -> Result<A::Item, CallError>
    where
        A: method::Answers,
        C: Codec<A::Item>,
    {
        call.read(answer).map_err(|error| match error {
            CallError::Decode(unread) => {
                (self.core).unreadable(call.key(), unread.request, unread.error)
            }
            error => error,
        })
    }

    /// Turns until a call of one answer has ended, with the last answer that has come.
    fn wait_for<T: Send + 'static, C: Codec<T>>(
        &mut self,
        call: Call<One<T>, C>,
        wait: Wait,
    ) -> io::Result<Result<Option<Result<T, CallError>>, Failure>> {
        let mut answer = None;
        loop {
            match self.core.next_answer(call.key()) {
                Next::Answer(found) => answer = Some(self.read(call, found)),
                Next::Trace(_) => {} // nobody asks for it
                Next::Ended(Outcome::Complete { .. }) => return Ok(Ok(answer)),
                Next::Ended(Outcome::Failed(failure)) => return Ok(Err(*failure)),
                Next::Pending => self.receive(wait)?,
            }
        }
    }

    // Turning.

    /// Sends what is to be sent, receives what has arrived or waits for it, runs handlers, and does what is due. It returns
    /// after one round of this; it does not wait if there are events that were not taken.
    ///
    /// # Errors
    ///
    /// The socket's, if nothing can be received any more.
    ///
    /// # Panics
    ///
    /// If there is a bug, in Wallaby or in what carries its datagrams. Then the endpoint is closed in the next turn, or when it is
    /// dropped: its calls fail ([`Failure::Panicked`]), and requests that were put aside have ended.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let wait = if self.has_event() { Wait::Not } else { wait };
        self.receive(wait)
    }

    fn receive(&mut self, wait: Wait) -> io::Result<()> {
        self.end_after_panic();
        self.turns = true;
        let received = self.receive_all(wait);
        self.turns = false;
        received
    }

    /// If the latest turn has panicked, nothing is used any more of what that has left half changed, and the application is told.
    fn end_after_panic(&mut self) {
        if !std::mem::take(&mut self.turns) {
            return;
        }
        tracing::error!(endpoint = %self.core.node(), "{PANICKED}");
        self.core.handle_panic();
        self.asked = None;
        self.follow();
        self.calling.bodies.close();
        // Of some there was something to tell before.
        let mut calls = HashSet::new();
        self.told.retain(|told| match told {
            Notification::Call(call) => calls.insert(*call),
            _ => true,
        });
    }

    fn receive_all(&mut self, wait: Wait) -> io::Result<()> {
        self.look_at_clock();
        let known = self.news;
        let was_away = self
            .core
            .config()
            .reads_first(self.now.saturating_sub(self.read_at));
        self.follow();
        if !was_away {
            self.flush();
        }
        let left = self.time_left();
        let due = self.now.saturating_add(left);
        // What the application does not know yet, or what has to be done first, is no time to wait.
        let busy = was_away
            || self.news > known
            || self.streams.has_output()
            || self.calling.bodies.have_notes();
        let wait = match wait {
            _ if busy => Duration::ZERO,
            Wait::Not => Duration::ZERO,
            Wait::For(most) => left.min(most),
            Wait::Forever => left,
        };
        let wait = self.streams.rest_rings(wait);
        // Before something that is due is done, all that has arrived is to be handled.
        let spared = wait.is_zero() && !left.is_zero() && self.do_rings_come_first();
        if spared && !self.streams.has_unread() && !self.streams.have_rings_something() {
            return Ok(());
        }
        let (received, ready) = match spared {
            true => (0, 0),
            false => self.wait(wait)?,
        };
        if !wait.is_zero() {
            self.look_at_clock();
        }
        self.read_at = self.now;
        self.core.begin_turn();
        self.take_datagrams(received);
        self.serve_unread();
        let all = self.serve_streams(ready) & self.serve_rings();
        self.follow();
        let empty = all && received < self.datagrams.batch();
        self.full_batches = if empty { 0 } else { self.full_batches + 1 };
        // What came to be due meanwhile is done in the next turn.
        if due <= self.now && (empty || self.full_batches >= BATCHES_UNTIL_TIME) {
            self.streams.accept_again(self.now);
            self.core.handle_timeout();
            self.begin_attempts();
            self.follow();
        }
        self.flush();
        Ok(())
    }

    fn look_at_clock(&mut self) {
        self.now = self.datagrams.now();
        self.core.set_time(self.now);
    }

    /// Does what the endpoint wants done, but for writing.
    #[inline]
    fn follow(&mut self) {
        if self.core.has_output() || self.core.is_draining() || self.calling.bodies.have_notes() {
            self.follow_all();
        }
    }

    #[inline(never)]
    fn follow_all(&mut self) {
        self.follow_core();
        if self.calling.bodies.have_notes() {
            for news in self.calling.bodies.attend(&mut self.core) {
                self.tell_of(Notification::Body(news));
            }
            self.follow_core();
        }
    }

    fn follow_core(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Run(key) => self.run(key),
                Output::Call(call) => self.tell(call),
                Output::Stopped(key, status) => self.tell_of(Notification::Stopped(key, status)),
                Output::Body(body) => {
                    if let Some(news) = self.calling.bodies.read(&mut self.core, body) {
                        self.tell_of(Notification::Body(news));
                    }
                }
                Output::BodyRoom(body) => self.calling.bodies.write(&mut self.core, body),
                Output::Write(id) => self.streams.unwritten.push(id),
                Output::Socket(socket, to) => self.open_socket(socket, to),
                Output::Datagrams(_) => {} // they leave at the end of the turn
                Output::Dial(id, to) => self.streams.dial(&mut self.core, id, &to, self.ring),
                Output::Close(id, closed) => self.streams.close(id, &closed),
                Output::Ended(call, end) => {
                    self.calling.ended(self.core.call_id(call), call, &end);
                }
                // Nobody is kept waiting here, and no handler goes on without its request.
                Output::Stuck(_)
                | Output::Settled(_)
                | Output::Sent(_)
                | Output::Room(..)
                | Output::Placed(..)
                | Output::Space
                | Output::Drained
                | Output::Connected(..) => {}
            }
        }
    }

    /// Something is dialled that the endpoint's socket does not reach; if it has none yet, it is opened when something is sent.
    #[cold]
    fn open_socket(&mut self, socket: SocketId, to: SocketAddr) {
        if self.socket.is_none() {
            self.socket = Some(socket);
            return;
        }
        let local = self.datagrams.local();
        let why = format!("the endpoint's only UDP socket, at {local}, does not reach {to}");
        self.core.handle_socket_failed(socket, why);
    }

    fn has_datagrams(&self) -> bool {
        (self.socket).is_some_and(|socket| self.core.has_datagrams(socket))
    }

    fn tell_of(&mut self, what: Notification) {
        self.news += 1;
        self.told.push_back(what);
    }

    fn tell(&mut self, call: CallKey) {
        self.news += 1;
        if self.asked != Some(call) {
            self.told.push_back(Notification::Call(call));
        }
    }

    /// Runs the handler of a request.
    fn run(&mut self, key: RequestKey) {
        let Some(incoming) = self.core.take_request(key) else {
            return;
        };
        let Some(handler) = self.handlers.get_mut(incoming.method) else {
            return;
        };
        self.calling.bodies.offer(incoming.body);
        let request = RawRequest::new(&mut self.core, &mut self.calling, key, true);
        let result = catch_unwind(AssertUnwindSafe(|| handler(request, incoming.payload)));
        let result = result.unwrap_or_else(|panic| {
            let text = panic_message("the handler", &*panic);
            Err(self.core.panicked(text))
        });
        if let Some(body) = self.calling.bodies.withdraw() {
            self.core.drop_body(body); // nobody reads it
        }
        self.look_at_clock(); // it may have taken its time
        self.core.returned(key, result);
    }

    fn do_rings_come_first(&mut self) -> bool {
        let alone = self.is_silent() && self.streams.are_all_rings();
        self.streams.rings.come_first(self.now, alone)
    }

    /// Nobody sends datagrams to who neither listens for them nor has a session.
    fn is_silent(&self) -> bool {
        !self.takes_datagrams && !self.core.has_sessions()
    }

    /// Waits until something arrives: how many datagrams have, and how many sockets are ready.
    fn wait(&mut self, wait: Duration) -> io::Result<(usize, usize)> {
        if !self.streams.are_there() {
            let received = self.datagrams.receive(wait, self.is_full())?;
            return Ok((received, 0));
        }
        let (silent, full) = (self.is_silent(), self.is_full());
        let watched = match (silent, self.datagrams.descriptor()) {
            (false, Some(socket)) => {
                let socket = socket.as_raw_fd();
                self.streams.watch_datagrams(socket, full)?;
                true
            }
            _ => false,
        };
        let wait = if silent || watched {
            wait
        } else {
            wait.min(DEAR)
        };
        let ready = self.streams.wait(wait)?;
        let arrived = |(whom, _)| matches!(whom, Whom::Datagrams);
        let mut whom = (0..ready).filter_map(|index| self.streams.ready(index));
        let received = match !silent && (!watched || whom.any(arrived)) {
            true => self.datagrams.receive(Duration::ZERO, false)?,
            false => 0,
        };
        Ok((received, ready))
    }

    /// Hands the datagrams that were received to their sessions.
    fn take_datagrams(&mut self, received: usize) {
        let Some(socket) = self.socket else {
            return;
        };
        if received == 0 {
            // Perhaps since the network said what became of a datagram.
            while let Some(at) = self.datagrams.take_unreachable() {
                self.core.handle_unreachable(socket, at);
            }
        }
        for index in 0..received {
            if let Some((datagram, from)) = self.datagrams.received(index) {
                let kept = keep(&mut self.arrived, datagram);
                self.core.handle_datagram(socket, from, kept);
            }
        }
    }

    /// Does what can be done with the sockets that are ready; whether that is all there is to do.
    fn serve_streams(&mut self, ready: usize) -> bool {
        let mut all = !self.streams.is_full();
        for index in 0..ready {
            match self.streams.ready(index) {
                Some((Whom::Listener(listener), _)) => {
                    self.streams.accept(&mut self.core, listener, self.now);
                }
                Some((Whom::Peer(id), what)) => {
                    if what.writable {
                        self.streams.writable(&mut self.core, id);
                    }
                    all &= !what.readable || self.read_stream(id);
                }
                Some((Whom::Life(id), _)) => self.streams.attend_life(&mut self.core, id),
                Some((Whom::Bell(id), _)) => self.streams.wake_rings(id),
                Some((Whom::Datagrams, _)) | None => {}
            }
        }
        all
    }

    /// Does what can be done with rings that are awake; whether that is all there is to do.
    fn serve_rings(&mut self) -> bool {
        let (mut all, mut index) = (true, 0);
        while let Some(id) = self.streams.rings.awake(index) {
            all &= !self.streams.look_at_rings(&mut self.core, id) || self.read_stream(id);
            index += 1;
        }
        all
    }

    /// Goes on with what had arrived from peers that did not read, and do now.
    fn serve_unread(&mut self) {
        if !self.streams.has_unread() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        while let Some(id) = self.streams.take_unread(&mut input) {
            let held = self.handle_stream(id, &mut input);
            self.streams.keep_input(id, &mut input, held);
        }
        self.input = input;
    }

    /// Handles what has arrived on a stream; whether that is all.
    fn read_stream(&mut self, id: ConnId) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let more = self.streams.read(&mut self.core, id, &mut input);
        if more.is_some() {
            let held = self.handle_stream(id, &mut input);
            self.streams.keep_input(id, &mut input, held);
        }
        self.input = input;
        more != Some(true)
    }

    /// Handles all whole messages; whether some are held back for now.
    fn handle_stream(&mut self, id: ConnId, input: &mut BytesMut) -> bool {
        loop {
            let read = self.core.handle_input(id, input);
            self.follow();
            match read {
                InputOutcome::More => {}
                InputOutcome::All => return false,
                InputOutcome::Held => return true,
                InputOutcome::Ended => {
                    input.clear();
                    return false;
                }
            }
        }
    }

    /// How long nothing has to be done.
    fn time_left(&mut self) -> Duration {
        self.due()
            .map_or(Duration::MAX, |due| due.saturating_sub(self.now))
    }

    fn due(&mut self) -> Option<Duration> {
        let due = earliest(self.core.poll_timeout(), self.streams.due());
        earliest(due, self.retried.next_due())
    }

    /// How long until the next [`turn`](Self::turn) has something to do, even if nothing arrives; `None` is for ever. For
    /// applications that wait for other things as well.
    pub fn next_timeout(&mut self) -> Option<Duration> {
        self.look_at_clock();
        let full = self.is_full();
        let unsent = self.has_datagrams() && !full || self.calling.bodies.have_notes();
        if unsent || self.core.has_output() || self.streams.has_output() {
            return Some(Duration::ZERO);
        }
        let due = self.due();
        let left = due.map(|due| due.saturating_sub(self.now));
        if full {
            return Some(left.map_or(DEAR, |left| left.min(DEAR)));
        }
        left
    }

    /// Sends what may be sent now.
    fn flush(&mut self) {
        while let Some(id) = self.streams.unwritten.pop() {
            self.streams.write(&mut self.core, id);
            if self.core.has_output() {
                self.follow(); // there is room for more now
            }
        }
        if self.has_datagrams() || self.is_full() {
            self.send_datagrams();
        }
    }

    #[inline(never)]
    fn send_datagrams(&mut self) {
        if self.keeps && !self.send_gathered() {
            return;
        }
        while let Some(to) = self.next_datagram() {
            // Mostly it is the only one.
            let sent = if self.has_datagrams() {
                self.keeps = true;
                self.datagrams.gather(&self.datagram, to)
            } else {
                self.datagrams.send(&self.datagram, to)
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.refused = Some(to);
                    break;
                }
                Err(error) => tracing::debug!(%to, %error, "a datagram was not sent"), // as if lost
                Ok(()) => {}
            }
        }
        if self.keeps {
            self.send_gathered();
        }
    }

    /// The one that was refused, or the next one of the sessions.
    fn next_datagram(&mut self) -> Option<SocketAddr> {
        if let Some(to) = self.refused.take() {
            return Some(to);
        }
        let socket = self.socket?;
        if !self.core.has_datagrams(socket) {
            return None;
        }
        self.datagram.clear();
        let transmit = self.core.poll_datagram(socket, &mut self.datagram)?;
        Some(transmit.to)
    }

    /// Sends what was gathered; whether nothing of it is left.
    fn send_gathered(&mut self) -> bool {
        let flushed = self.datagrams.flush();
        self.keeps = flushed.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        !self.keeps
    }

    /// Whether something waits for room.
    fn is_full(&self) -> bool {
        self.refused.is_some() || self.keeps
    }
}

/// How a method with these answers is served.
fn answers<A: method::Answers>() -> Serving {
    Serving {
        one: A::ONE,
        ..Serving::default()
    }
}

/// A datagram that was received, where it can be referred to.
fn keep(arrived: &mut BytesMut, datagram: &[u8]) -> Bytes {
    if arrived.capacity() < datagram.len() {
        arrived.reserve(ROOM);
    }
    arrived.extend_from_slice(datagram);
    arrived.split().freeze()
}

impl<D: Datagrams> Drop for Endpoint<D> {
    fn drop(&mut self) {
        self.end_after_panic();
        self.look_at_clock();
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
