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

mod builder;
mod calls;
mod core;
mod datagrams;
mod epoll;
mod event;
mod peer;
mod peers;
mod refused;
mod request;
mod requests;
mod rings;
mod sending;
mod sockets;
mod stream;
mod streams;
mod watching;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::connection::{Event as News, MethodDefinition};
use wallaby_proto::datagram::SessionEvent;
use wallaby_proto::wire::{Message, Request as WireRequest};
use wallaby_proto::{Address, NodeId, RequestId, Status};

pub use self::builder::{Builder, Limits};
pub use self::calls::CallOptions;
pub use self::core::Counters;
pub use self::datagrams::{Datagrams, Udp};
pub use self::event::{Answer, Call, CallKey, Event, RequestKey};
pub use self::request::{RawRequest, Request};

use self::core::Core;
use self::peer::PeerId;
use self::streams::Whom;
use crate::codec::Codec;
use crate::error::{BindError, CallError, Failure, ServeError};
use crate::method::{self, Method, One, Target};
use crate::service::undecodable;

/// Room for arriving datagrams that is made at a time.
const ROOM: usize = 64 * 1024;

/// Full batches of datagrams after which the endpoint looks at what is due, though more may have arrived.
const BATCHES_UNTIL_TIME: u32 = 16;

/// A wait shorter than this is dear where the kernel counts in ticks.
const DEAR: Duration = Duration::from_millis(1);

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
    datagrams: D,
    handlers: Vec<Handler>,
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
    fn new(mut core: Core, datagrams: D, addresses: Vec<Address>) -> Self {
        let takes_datagrams = addresses.iter().any(|at| matches!(at, Address::Udp(_)));
        core.set_time(datagrams.now());
        Self {
            core,
            datagrams,
            handlers: Vec::new(),
            datagram: Vec::new(),
            refused: None,
            keeps: false,
            arrived: BytesMut::new(),
            full_batches: 0,
            takes_datagrams,
            addresses,
            input: BytesMut::new(),
        }
    }

    /// Where others reach this endpoint: what it tells them.
    pub fn address(&self) -> Address {
        let local = || Address::Udp(self.datagrams.local());
        self.core.address.clone().unwrap_or_else(local)
    }

    /// All addresses that it listens at, in the order in which they were named.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The endpoint's life: random, new at every start.
    pub fn node(&self) -> NodeId {
        self.core.node
    }

    /// What it sends and receives by.
    pub fn datagrams(&mut self) -> &mut D {
        &mut self.datagrams
    }

    /// What it has counted since its start.
    pub fn counters(&self) -> Counters {
        let gate = self.core.gate.counters();
        let stray =
            gate.stray + gate.unknown + gate.refused + gate.duplicate + gate.overrun + gate.short;
        Counters {
            datagrams_received: gate.received,
            datagrams_sent: gate.sent,
            datagrams_dropped: gate.corrupt + gate.malformed + stray,
            ..self.core.counters
        }
    }

    /// How many calls live, how many requests are put aside, and how many peers there are.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (
            self.core.calls.len(),
            self.core.held.len(),
            self.core.peers.len(),
        )
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
        A: method::Answer,
        C: Codec<Args> + Codec<A::Item>,
    {
        self.serve_raw(
            Arc::clone(method.definition()),
            move |request, payload| match <C as Codec<Args>>::decode(payload) {
                Ok(arguments) => handler(Request::new(request), arguments),
                Err(error) => Err(undecodable(&error)),
            },
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
        let name = method.name().to_string();
        if name.starts_with("wallaby.") {
            return Err(ServeError::Reserved { name });
        }
        if self.core.add_method(method).is_none() {
            return Err(ServeError::Taken { name });
        }
        self.handlers.push(Box::new(handler));
        self.core.look_up_again();
        Ok(())
    }

    /// A request that was put aside, to answer it. It ends when it is dropped, unless it is put aside again. `None` if it has
    /// ended: it was aborted or had no time left.
    pub fn request(&mut self, key: RequestKey) -> Option<RawRequest<'_>> {
        self.core.set_time(self.datagrams.now());
        let job = self.core.take_held(key)?;
        Some(RawRequest::new(&mut self.core, job, false))
    }

    // Calling.

    /// Makes a call with one initial request. It leaves at the latest in the next [`turn`](Self::turn).
    ///
    /// # Errors
    ///
    /// If it cannot be sent; there is no event of the call then.
    pub fn call<A: method::Answer, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
    ) -> Result<Call<A, C>, Failure> {
        let payload = target.payload?;
        let key = self.call_raw(server, &target.definition, payload, options)?;
        Ok(Call::new(key))
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
        let key = self.begin(options)?;
        if let Err(failure) = self.core.send_initial(key, &server.into(), method, payload) {
            self.core.events.pop_back(); // it says the same
            return Err(failure);
        }
        self.core.close_call(key);
        Ok(key)
    }

    /// Begins a call of several initial requests. It can complete only when no more can come: after
    /// [`close`](Self::close).
    ///
    /// # Errors
    ///
    /// If as many calls live as may.
    pub fn begin(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        self.core.set_time(self.datagrams.now());
        self.core.begin_call(options)
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
        self.core.set_time(self.datagrams.now());
        self.core
            .send_initial(call, &server.into(), method, payload)
    }

    /// Says how many initial requests of a call will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_among(&mut self, call: CallKey, requests: u32) {
        self.core.share_among(call, requests);
    }

    /// No further initial request of a call comes.
    pub fn close(&mut self, call: CallKey) {
        self.core.close_call(call);
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, call: CallKey) {
        self.core.set_time(self.datagrams.now());
        self.core.end_call(call.0, Err(Failure::Aborted));
    }

    /// What happened next, if anything has.
    pub fn next_event(&mut self) -> Option<Event> {
        self.core.take_event()
    }

    /// Makes a call of a method that answers once, and turns the endpoint until it is over; events of other calls are kept
    /// meanwhile. `wait` is how each turn waits: [`Wait::Not`] keeps the processor busy.
    ///
    /// # Errors
    ///
    /// How the call failed, or the status in place of its answer. [`Failure::Refused`] if the socket fails.
    pub fn ask<T: Send + 'static, C: Codec<T>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
        options: &CallOptions,
        wait: Wait,
    ) -> Result<T, CallError> {
        let server = server.into();
        let call = self.call(server.clone(), target, options)?;
        let (mut first, mut answer) = (self.core.events.len(), None);
        loop {
            while first < self.core.events.len() {
                let own = match &self.core.events[first].event {
                    Event::Answer(answer) => answer.call == call.key(),
                    Event::Complete { call: of, .. } | Event::Failed { call: of, .. } => {
                        *of == call.key()
                    }
                    Event::Stopped { .. } => false,
                };
                if !own {
                    first += 1;
                    continue;
                }
                match self.core.events.remove(first).map(|queued| queued.event) {
                    Some(Event::Answer(found)) => answer = Some(found),
                    Some(Event::Failed { failure, .. }) => return Err((*failure).into()),
                    _ => {
                        let answer = answer.ok_or(Failure::NoAnswer)?;
                        return call.read(answer);
                    }
                }
            }
            if let Err(error) = self.receive(wait) {
                self.abort(call.key());
                return Err(CallError::Failed(Failure::Refused {
                    request: RequestId::FIRST,
                    server,
                    reason: error.to_string(),
                }));
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
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let wait = if self.core.events.is_empty() {
            wait
        } else {
            Wait::Not
        };
        self.receive(wait)
    }

    fn receive(&mut self, wait: Wait) -> io::Result<()> {
        self.core.set_time(self.datagrams.now());
        let known = self.core.events.len();
        self.core.tell_failed();
        self.core.act();
        self.flush();
        let left = self.time_left();
        let due = self.core.raw.saturating_add(left);
        // What the application does not know yet, or what has to be done first, is no time to wait.
        let busy = self.core.events.len() > known || self.core.streams.has_output();
        let wait = match wait {
            _ if busy => Duration::ZERO,
            Wait::Not => Duration::ZERO,
            Wait::For(most) => left.min(most),
            Wait::Forever => left,
        };
        let wait = self.core.rest_rings(wait);
        // Before something that is due is done, all that has arrived is to be handled.
        let spared = wait.is_zero() && !left.is_zero() && self.do_rings_come_first();
        if spared && !self.core.streams.has_unread() && !self.core.have_rings_something() {
            return Ok(());
        }
        let (received, ready) = match spared {
            true => (0, 0),
            false => self.wait(wait)?,
        };
        if !wait.is_zero() {
            self.core.set_time(self.datagrams.now());
        }
        self.core.used += 1;
        self.take_datagrams(received);
        self.serve_unread();
        let all = self.serve_streams(ready) & self.serve_rings();
        self.handle_events();
        let empty = all && received < self.datagrams.batch();
        self.full_batches = if empty { 0 } else { self.full_batches + 1 };
        // What came to be due meanwhile is done in the next turn.
        if due <= self.core.raw && (empty || self.full_batches >= BATCHES_UNTIL_TIME) {
            self.core.handle_timeouts();
            self.handle_events();
        }
        self.flush();
        Ok(())
    }

    fn do_rings_come_first(&mut self) -> bool {
        let alone = self.is_silent() && self.core.has_rings_alone();
        self.core.streams.rings.come_first(self.core.raw, alone)
    }

    /// Nobody sends datagrams to who neither listens for them nor has a session.
    fn is_silent(&self) -> bool {
        !self.takes_datagrams && self.core.gate.is_empty()
    }

    /// Waits until something arrives: how many datagrams have, and how many sockets are ready.
    fn wait(&mut self, wait: Duration) -> io::Result<(usize, usize)> {
        if !self.core.has_streams() {
            let received = self.datagrams.receive(wait, self.is_full())?;
            return Ok((received, 0));
        }
        let (silent, full) = (self.is_silent(), self.is_full());
        let watched = match (silent, self.datagrams.descriptor()) {
            (false, Some(socket)) => {
                let socket = socket.as_raw_fd();
                self.core.streams.watch_datagrams(socket, full)?;
                true
            }
            _ => false,
        };
        let wait = if silent || watched {
            wait
        } else {
            wait.min(DEAR)
        };
        let ready = self.core.streams.wait(wait)?;
        let arrived = |(whom, _)| matches!(whom, Whom::Datagrams);
        let mut whom = (0..ready).filter_map(|index| self.core.streams.ready(index));
        let received = match !silent && (!watched || whom.any(arrived)) {
            true => self.datagrams.receive(Duration::ZERO, false)?,
            false => 0,
        };
        Ok((received, ready))
    }

    /// Hands the datagrams that were received to their sessions.
    fn take_datagrams(&mut self, received: usize) {
        if received == 0 {
            // Perhaps since the network said what became of a datagram.
            while let Some(at) = self.datagrams.take_unreachable() {
                self.core.gate.handle_unreachable(self.core.raw, at);
            }
        }
        for index in 0..received {
            if let Some((datagram, from)) = self.datagrams.received(index) {
                let kept = keep(&mut self.arrived, datagram);
                self.core.gate.handle_datagram(self.core.raw, from, kept);
            }
        }
    }

    /// Does what can be done with the sockets that are ready; whether that is all there is to do.
    fn serve_streams(&mut self, ready: usize) -> bool {
        let mut all = !self.core.streams.is_full();
        for index in 0..ready {
            match self.core.streams.ready(index) {
                Some((Whom::Listener(listener), _)) => self.core.accept(listener),
                Some((Whom::Peer(id), what)) => {
                    if what.writable {
                        self.core.stream_writable(id);
                    }
                    all &= !what.readable || self.read_stream(id);
                }
                Some((Whom::Life(id), _)) => self.core.attend_life(id),
                Some((Whom::Bell(id), _)) => self.core.wake_rings(id),
                Some((Whom::Datagrams, _)) | None => {}
            }
        }
        all
    }

    /// Does what can be done with rings that are awake; whether that is all there is to do.
    fn serve_rings(&mut self) -> bool {
        let (mut all, mut index) = (true, 0);
        while let Some(id) = self.core.streams.rings.awake(index) {
            all &= !self.core.look_at_rings(id) || self.read_stream(id);
            index += 1;
        }
        all
    }

    /// Goes on with what had arrived from peers that did not read, and do now.
    fn serve_unread(&mut self) {
        if !self.core.streams.has_unread() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        while let Some(id) = self.core.take_unread(&mut input) {
            self.handle_stream(id, &mut input);
            self.core.keep_input(id, &mut input);
        }
        self.input = input;
    }

    /// Handles what has arrived on a stream; whether that is all.
    fn read_stream(&mut self, id: PeerId) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let more = self.core.read_stream(id, &mut input);
        if more.is_some() {
            self.handle_stream(id, &mut input);
            self.core.keep_input(id, &mut input);
        }
        self.input = input;
        more != Some(true)
    }

    /// Handles all whole messages where they are read to: they are large values.
    fn handle_stream(&mut self, id: PeerId, input: &mut BytesMut) {
        while !input.is_empty() {
            match &mut self.core.stream_news(id, input) {
                Ok(Some(news)) => self.handle_news(id, news),
                Ok(None) => return,
                Err(error) => return self.core.break_stream(id, error.clone()),
            }
        }
    }

    /// How long nothing has to be done.
    fn time_left(&mut self) -> Duration {
        let left = self.core.time_left().unwrap_or(Duration::MAX);
        if left < DEAR {
            self.core.gate.put_off_timers(self.core.raw + DEAR);
            return self.core.time_left().unwrap_or(Duration::MAX);
        }
        left
    }

    /// How long until the next [`turn`](Self::turn) has something to do, even if nothing arrives; `None` is for ever. For
    /// applications that wait for other things as well.
    pub fn next_timeout(&mut self) -> Option<Duration> {
        self.core.set_time(self.datagrams.now());
        let full = self.is_full();
        if self.core.gate.has_output() && !full || self.core.streams.has_output() {
            return Some(Duration::ZERO);
        }
        let left = self.core.time_left();
        if full {
            return Some(left.map_or(DEAR, |left| left.min(DEAR)));
        }
        left
    }

    /// Handles what the sessions have to tell.
    fn handle_events(&mut self) {
        loop {
            while let Some(mut told) = self.core.gate.poll_event() {
                self.handle_event(&mut told);
            }
            self.core.tell_failed();
            self.core.act();
            // What was done may have ended sessions.
            if !self.core.gate.has_events() {
                return;
            }
        }
    }

    fn handle_event(&mut self, (session, event): &mut SessionEvent) {
        match event {
            Ok(News::Opened(hello)) => self.core.session_opened(*session, hello),
            Ok(news) => {
                if let Some(id) = self.core.peers.over(*session) {
                    self.handle_news(id, news);
                }
            }
            Err(ended) => self.core.session_ended(*session, ended),
        }
    }

    fn handle_news(&mut self, id: PeerId, news: &mut News) {
        if let News::Message(message) = news
            && !self.core.heard(id, message)
        {
            return;
        }
        match news {
            News::Message(Message::Request(request)) => self.handle_request(id, request),
            news => self.core.handle_news(id, news),
        }
    }

    fn handle_request(&mut self, from: PeerId, request: &mut WireRequest) {
        let Some((job, payload)) = self.core.admit(from, request) else {
            return;
        };
        let Some(handler) = self.handlers.get_mut(job.served) else {
            return;
        };
        let request = RawRequest::new(&mut self.core, job, true);
        let result = catch_unwind(AssertUnwindSafe(|| handler(request, payload)));
        self.core.handled(result);
    }

    /// Sends what may be sent now.
    fn flush(&mut self) {
        self.core.write_streams();
        if self.core.gate.has_output() || self.is_full() {
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
            let sent = if self.core.gate.has_output() {
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
        if !self.core.gate.has_output() {
            return None;
        }
        self.datagram.clear();
        let (gate, now) = (&mut self.core.gate, self.core.raw);
        let transmit = gate.poll_transmit(now, &mut self.datagram)?;
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
        self.core.set_time(self.datagrams.now());
        for id in self.core.peers.ids() {
            self.core.say_goodbye(id, "the endpoint was closed");
        }
        self.flush();
    }
}

impl<D: Datagrams> fmt::Debug for Endpoint<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address())
            .field("node", &self.core.node)
            .finish_non_exhaustive()
    }
}
